"""`Exported`: the dataclass that `jax.export.Exported` is, copies, files, and the way to jax.export and back."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import operator
import os
import pickle
import sys
import typing
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export as jax_export
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import jaxexp
from jaxexp._kernel.function.data import attributes_of
from jaxexp.errors import ExportError
from kit.alike import LIBRARIES, raises_alike, reload
from kit.command_line import started
from kit.compare import assert_same_fields, assert_same_values
from kit.corpus import CASES, arr, mesh, spec
from kit.derivatives import pull_back
from kit.each import each
from kit.models import KEYWORDS, exported_case
from kit.weighted import bound

pytestmark = pytest.mark.jax

PLAIN = ("sin", "symbolic_several", "multi_platform", "custom_call_allowed")
ORIGINS = ("exported", "loaded", "from jax.export", "specialized")


def of_origin(origin: str) -> jaxexp.Exported:
    exported = exported_case("sin")
    return {
        "exported": lambda: exported,
        "loaded": lambda: jaxexp.deserialize(exported.serialize(vjp_order=1)),
        "from jax.export": lambda: jaxexp.Exported.from_jax(exported_case("sin", jax_export)),
        "specialized": lambda: exported_case("symbolic_several").specialize(*CASES["symbolic_several"].build().args),
    }[origin]()


def fields_of_both() -> list[str]:
    """Those of jax.export in their order. JAX 0.10 has one more, which says that shardings are named."""
    names = [field.name for field in dataclasses.fields(jax_export.Exported) if field.name != "_has_named_shardings"]
    assert names == list(KEYWORDS)
    return names


def test_match_arguments() -> None:
    theirs = [name for name in jax_export.Exported.__match_args__ if name != "_has_named_shardings"]
    assert list(jaxexp.Exported.__match_args__) == theirs
    match exported_case("sin"):
        case jaxexp.Exported(name, in_tree, (aval,)):
            assert (name, in_tree.num_leaves, aval.shape) == ("sin", 1, (4,))
        case _:
            pytest.fail("no match")


@each("origin", ORIGINS)
def test_construction_by_position(origin: str) -> None:
    exported = of_origin(origin)
    again = jaxexp.Exported(*(getattr(exported, name) for name in fields_of_both()))
    assert_same_fields(again, exported)
    assert again == exported


@each("library, name", [*((library, "sin") for library in LIBRARIES.values()), (jaxexp, "sharded_2d")])
def test_every_field_has_to_be_given(library: Any, name: str) -> None:
    exported = exported_case(name, library)
    values = {field.name: getattr(exported, field.name) for field in dataclasses.fields(exported)}
    assert_same_fields(type(exported)(**values), exported)
    with pytest.raises(TypeError):
        type(exported)(**values, surprise=1)
    for missing in fields_of_both():
        with pytest.raises(TypeError, match=missing):
            type(exported)(**{given: value for given, value in values.items() if given != missing})


@each("origin", ORIGINS)
def test_taken_apart(origin: str) -> None:
    exported = of_origin(origin)
    values = [getattr(exported, name) for name in fields_of_both()]
    apart = dataclasses.asdict(exported)
    assert list(apart) == fields_of_both()
    assert list(apart.values()) == list(dataclasses.astuple(exported)) == values
    assert jaxexp.Exported(**apart).vjp().in_avals == exported.vjp().in_avals


@each("name", PLAIN)  # since JAX 0.11, HloSharding cannot be copied
def test_taken_apart_as_in_jax_export(name: str) -> None:
    ours, theirs = (dataclasses.asdict(exported_case(name, library)) for library in (jaxexp, jax_export))
    theirs.pop("_has_named_shardings", None)
    assert list(ours) == list(theirs)
    for field in ("in_tree", "out_tree", "platforms", "nr_devices", "_in_named_shardings", "mlir_module_serialized"):
        assert ours[field] == theirs[field], field
    assert list(map(str, ours["disabled_safety_checks"])) == list(map(str, theirs["disabled_safety_checks"]))
    assert all(isinstance(check, jaxexp.DisabledSafetyCheck) for check in ours["disabled_safety_checks"])


@each("kept", [(8, 1), (8, 1, 8), (8.0, 1.0), (7, 8), {8, 1}])
def test_arguments_that_the_module_takes(kept: Any) -> None:
    """In whichever order the field names them, each use passes them in the order of the signature, as jax.export."""
    args, live = [np.float32(i) for i in range(9)], jax.jit(lambda *args: args[1] * args[8])
    theirs = dataclasses.replace(jax_export.export(live)(*args), module_kept_var_idx=tuple(kept))
    replaced = dataclasses.replace(jaxexp.export(live)(*args), module_kept_var_idx=kept)
    again = jaxexp.deserialize(replaced.serialize(vjp_order=1))
    for function in (replaced, again, jaxexp.Exported.from_jax(theirs), replaced.to_jax()):
        assert function.call(*args) == theirs.call(*args)
        assert jax.grad(function.call, 8)(*args) == args[1]
    assert jax.vmap(again.call)(*(x[None] for x in args)) == replaced.raised()(*args) == theirs.call(*args)


def test_an_argument_that_does_not_exist() -> None:
    for index in (-1, 1, "0"):
        with pytest.raises(ExportError, match=f"module_kept_var_idx has indices of the 1 arg.*found {index!r}"):
            dataclasses.replace(exported_case("sin"), module_kept_var_idx=(0, index))


def test_checks_are_no_dataclasses() -> None:
    for library in LIBRARIES.values():
        check = library.DisabledSafetyCheck.custom_call("target")
        assert not dataclasses.is_dataclass(check)
        assert str(type(check)("custom_call:target")) == str(copy.deepcopy(check)) == str(check)
    assert pickle.loads(pickle.dumps(ours := jaxexp.DisabledSafetyCheck.custom_call("t"))) == ours


@each("name", (*PLAIN, "sharded_2d"))
def test_pickle_without_vjp(name: str) -> None:
    """What jax.export pickles: a function whose VJP was taken away. (With shardings, it cannot since JAX 0.11.)"""
    for library in LIBRARIES.values() if name != "sharded_2d" else [jaxexp]:
        exported = dataclasses.replace(exported_case(name, library), _get_vjp=None)
        again = pickle.loads(pickle.dumps(exported))
        assert type(again) is type(exported)
        assert not again.has_vjp()
        assert list(map(str, again.in_avals)) == list(map(str, exported.in_avals))
        assert again.mlir_module_serialized == exported.mlir_module_serialized
        if library is jaxexp:
            assert_same_fields(again, exported)
            assert again == exported or name == "symbolic_several"  # of two scopes
        if name == "sin":
            assert_same_values(again.call(arr(4)), exported.call(arr(4)))


def test_pickle_of_a_loaded_function_and_its_vjps() -> None:
    loaded = jaxexp.deserialize(exported_case("sin").serialize(vjp_order=2, metadata={"is": "mine"}))
    again = pickle.loads(pickle.dumps(loaded))
    assert again == loaded == copy.copy(loaded)
    assert again.metadata == {"is": "mine"}
    assert again.vjp().vjp() == loaded.vjp().vjp()
    assert not again.vjp().vjp().has_vjp()
    without = dataclasses.replace(loaded, _get_vjp=None)
    assert pickle.loads(pickle.dumps(without)) == without


def test_functions_with_a_vjp_cannot_be_pickled() -> None:
    """jax.export cannot do it either. A function that was changed after loading has its VJP only in this process."""
    loaded = jaxexp.deserialize(exported_case("sin").serialize(vjp_order=1))
    for exported in (exported_case("sin"), dataclasses.replace(loaded, fun_name="other")):
        with pytest.raises(ExportError, match=r"serialize\(vjp_order=.*_get_vjp=None") as error:
            pickle.dumps(exported)
        assert isinstance(error.value, TypeError)
        assert isinstance(error.value, AttributeError), "as in jax.export"


@typing.runtime_checkable
class Signature(Protocol):
    fun_name: str
    in_tree: Any
    in_avals: Sequence[Any]
    in_shardings_hlo: Sequence[Any]
    nr_devices: int
    mlir_module_serialized: bytes
    _get_vjp: Any

    def call(self, *args: Any) -> Any: ...


@typing.runtime_checkable
class Other(Protocol):
    fun_name: str
    no_such_field: int


FUNCTIONS = {
    "of jax.export": lambda: exported_case("sin", jax_export),
    "exported": lambda: exported_case("sin"),
    "loaded": lambda: reload(jaxexp, exported_case("sin")),
    "changed": lambda: dataclasses.replace(reload(jaxexp, exported_case("sin")), fun_name="other"),
    "with weights": lambda: bound()[0],
}


def test_protocols_of_data() -> None:
    for name, function in FUNCTIONS.items():
        exported = function()
        assert isinstance(exported, Signature), name
        assert not isinstance(exported, Other), name
    loaded = reload(jaxexp, exported_case("sin"))
    before = set(attributes_of(loaded))
    assert isinstance(loaded, Signature)
    asks_for_values = sys.version_info < (3, 12)
    assert (attributes_of(loaded).keys() == before) != asks_for_values, "a protocol decodes nothing"


@each("name", KEYWORDS)
def test_the_class_has_no_values(name: str) -> None:
    for library in LIBRARIES.values():
        assert not hasattr(library.Exported, name)
        with pytest.raises(AttributeError, match=f"type object 'Exported' has no attribute '{name}'"):
            getattr(library.Exported, name)
        assert all(field.default is dataclasses.MISSING for field in dataclasses.fields(library.Exported))


@each("name", KEYWORDS)
def test_an_object_whose_constructor_was_not_called(name: str) -> None:
    for library in LIBRARIES.values():
        made = object.__new__(library.Exported)
        assert not hasattr(made, name)
        assert getattr(made, name, "nothing") == "nothing"
        with pytest.raises(AttributeError, match="'Exported' object has no attribute") as error:
            getattr(made, name)
        assert error.value.obj is made
        object.__setattr__(made, name, "mine")
        assert getattr(made, name) == vars(made)[name] == "mine"
        object.__delattr__(made, name)
        assert not hasattr(made, name)
    needed = name.replace("_shardings_hlo", "_named_shardings")
    with pytest.raises(AttributeError, match=f"'_?{needed}': its constructor was not called"):
        getattr(object.__new__(jaxexp.Exported), name)


@each(
    "use", [hash, repr, dataclasses.asdict, pickle.dumps, *map(operator.methodcaller, ["has_vjp", "call", "serialize"])]
)
def test_uses_of_such_an_object(use: Any) -> None:
    with pytest.raises(AttributeError, match=r"'Exported' object has no attribute .*: its constructor was not called"):
        use(object.__new__(jaxexp.Exported))
    assert not any(hasattr(object.__new__(jaxexp.BoundExported), n) for n in ("weights", "unbound", "executables"))


def test_replace() -> None:
    exported = exported_case("sin")
    renamed = dataclasses.replace(exported, fun_name="other")
    assert (renamed.fun_name, exported.fun_name) == ("other", "sin")
    assert renamed != exported
    assert jaxexp.deserialize(renamed.serialize()).fun_name == "other"
    np.testing.assert_allclose(renamed.call(arr(4)), np.sin(arr(4)), rtol=1e-6)
    # Also of a loaded one, whose module and VJP have not been read yet.
    loaded = jaxexp.deserialize(exported.serialize(vjp_order=1))
    assert_same_fields(dataclasses.replace(loaded), loaded)
    assert dataclasses.replace(loaded, fun_name="x").vjp() == loaded.vjp()
    assert not dataclasses.replace(loaded, _get_vjp=None).has_vjp()


def test_fields_cannot_be_assigned() -> None:
    exported = exported_case("sin")
    with pytest.raises(dataclasses.FrozenInstanceError):
        exported.fun_name = "other"
    with pytest.raises(dataclasses.FrozenInstanceError):
        del exported.fun_name
    with pytest.raises(AttributeError, match="no_such_field"):
        exported.no_such_field  # noqa: B018


def test_mlir_module() -> None:
    ours = exported_case("sin")
    text = ours.mlir_module()
    assert text == ours.mlir_module(serialized=True) == jax_export.deserialize(ours.serialize()).mlir_module()
    assert "func.func public @main" in text
    assert "stablehlo.sine" in text


def test_equality_and_hash_are_by_content() -> None:
    blob = exported_case("nested_containers").serialize(vjp_order=1)
    first, second = jaxexp.deserialize(blob), jaxexp.deserialize(bytes(blob))
    assert first == second
    assert hash(first) == hash(second)
    assert len({first, second}) == 1
    assert first != jaxexp.deserialize(exported_case("sin").serialize())
    assert first != "something else"
    for name, value in {
        "fun_name": "other", "nr_devices": 2, "platforms": ("tpu",), "module_kept_var_idx": (0,),
        "uses_global_constants": True, "calling_convention_version": 9, "mlir_module_serialized": b"other",
        "in_avals": first.in_avals[::-1], "out_tree": first.in_tree, "_get_vjp": None,
    }.items():  # fmt: skip
        assert dataclasses.replace(first, **{name: value}) != first, name


def test_vjp_is_kept() -> None:
    exported = exported_case("sin")
    assert exported.vjp() is exported.vjp()
    loaded = jaxexp.deserialize(exported.serialize(vjp_order=2))
    assert loaded.vjp() is loaded.vjp()
    assert loaded.vjp().has_vjp()
    assert not loaded.vjp().vjp().has_vjp()


def test_export_of_a_function_that_calls_an_exported() -> None:
    """Either library's Exported inside what the other one exports; platforms and dimensions pass through."""
    (n,) = jaxexp.symbolic_shape("n")
    for inside, outside in itertools.product((jaxexp, jax_export), repeat=2):
        inner = inside.export(jax.jit(lambda x: jnp.sin(x) * x.shape[0]), platforms=("tpu", "cpu"))(spec((n,)))
        call = inside.deserialize(inner.serialize(vjp_order=1)).call
        outer = outside.export(jax.jit(lambda x, f=call: f(x) + 1), platforms=("cpu", "tpu"))(spec((2 * n,)))
        outer = outside.deserialize(outer.serialize(vjp_order=1))
        np.testing.assert_allclose(outer.call(arr(6)), np.sin(arr(6)) * 6 + 1, rtol=1e-5)
        gradient = pull_back(outer.call, (arr(6),), {})[0][0]
        np.testing.assert_allclose(gradient, np.cos(arr(6)) * 6 * 0.5, rtol=1e-5)


def test_shardings_jax() -> None:
    m, p = mesh((4, 2), ("x", "y")), CASES["sharded_2d"].build()
    other = jax.sharding.Mesh(m.devices[::-1], m.axis_names, axis_types=m.axis_types)
    for exported in (exported_case("sharded_2d"), jaxexp.deserialize(exported_case("sharded_2d").serialize())):
        assert exported.in_shardings_jax() == exported.in_shardings_jax(None) == exported._in_named_shardings
        for concrete in (m, other):
            ins, outs = exported.in_shardings_jax(concrete), exported.out_shardings_jax(concrete)
            assert ins == tuple(NamedSharding(concrete, p, memory_kind="device") for p in (P("x", "y"), P("y")))
            assert outs == (NamedSharding(concrete, P(None, "x"), memory_kind="device"),)
        args = [jax.device_put(np.asarray(a), s) for a, s in zip(p.args, exported.in_shardings_jax(other), strict=True)]
        assert_same_values(exported.call(*args), p.live(*p.args))
    assert [s is None for s in exported_case("partly_sharded").in_shardings_jax(m)] == [False, True, True]
    assert exported_case("sin").in_shardings_jax() == (None,)


@each("wrong", [((8,), ("x",)), ((2, 4), ("x", "y")), ((4, 2), ("a", "b"))])
def test_shardings_jax_needs_a_like_mesh(wrong) -> None:
    raises_alike(lambda library: exported_case("sharded_2d", library).in_shardings_jax(mesh(*wrong)))


@pytest.mark.processes(reason="the main promise: what one saved, another one that never saw the function runs")
def test_new_process_loads_and_calls(tmp_path, subprocess_env) -> None:
    exported_case("symbolic_batch").save(tmp_path / "f", vjp_order=1)
    code = f"""
import numpy as np, jaxexp as export, jax
f = export.load({str(tmp_path / "f")!r})
x, w = np.ones((3, 4), np.float32), np.ones((4, 3), np.float32)
np.testing.assert_allclose(f.call(x, w), np.tanh(x @ w), rtol=1e-5)
g = jax.grad(lambda w: f.call(x, w).sum())(w)
np.testing.assert_allclose(g, jax.grad(lambda w: jax.numpy.tanh(x @ w).sum())(w), rtol=1e-3)
print("fine")
"""
    done = started(code, env=subprocess_env())
    assert done.stdout == "fine\n", done.stderr


def test_save_keeps_the_mode_of_the_file_it_replaces(tmp_path) -> None:
    exported = exported_case("sin")
    path = tmp_path / ("x" * 240)
    path.touch(mode=0o600)
    exported.save(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.read_bytes() == exported.serialize()


def test_save_writes_into_a_pipe(tmp_path) -> None:
    exported = exported_case("sin")
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(pipe.read_bytes)
        exported.save(pipe)
        assert found.result() == exported.serialize()
    assert pipe.is_fifo()
    if os.path.exists("/dev/fd"):  # without a name, as /dev/stdout may be
        source, target = os.pipe()
        with open(source, "rb") as reading, open(target, "wb"):
            exported.save(f"/dev/fd/{target}")
            assert reading.read(len(found.result())) == found.result()


def test_install_leaves_names_alone_that_jaxexp_lacks(monkeypatch) -> None:
    monkeypatch.setattr(jax_export, "__all__", [*jax_export.__all__, "name_of_a_newer_jax"])
    monkeypatch.setattr(jax_export, "name_of_a_newer_jax", "theirs", raising=False)
    original = jax_export.export
    with jaxexp.install():
        assert jax_export.export is jaxexp.export
        assert jax_export.name_of_a_newer_jax == "theirs"
    assert jax_export.export is original

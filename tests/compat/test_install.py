"""jaxexp in jax.export's place: other people's code does what it did, and nothing is left behind."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import threading
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export as jax_export
from jax._src import error_check
from jax._src.export import _export as private

import jaxexp
from kit.compare import assert_same_fields, assert_same_values, module_interface
from kit.corpus import arr, f32

REGISTRIES = {"serialization_registry", "deserialization_registry"}  # shared with jaxexp, on purpose
STOCK = jax_export.Exported


def everything() -> dict[str, int]:
    """The identity of every attribute of jax.export and of the module behind it."""
    return {
        f"{module.__name__}.{name}": id(value)
        for module in (jax_export, private)
        for name, value in vars(module).items()
        if name not in REGISTRIES
    }


@pytest.fixture(autouse=True)
def no_trace() -> Iterator[None]:
    """No test of this file may leave jax.export other than it was."""
    before = everything()
    yield
    assert everything() == before


# --- code written for jax.export ------------------------------------------------------------------------------------

USER = '''
"""A module that knows jax.export alone."""
import collections
import itertools
import jax
import jax.export
import jax.numpy as jnp
import numpy as np
from jax import export

numbers = itertools.count()
x = np.arange(6, dtype=np.float32).reshape(2, 3)


@jax.jit
def f(x, y=None, *, scale=1.0):
    return {"r": jnp.sin(x) * scale, "s": (x.sum() if y is None else y)}


def reload(exported, order=0):
    assert isinstance(exported, export.Exported)
    loaded = export.deserialize(exported.serialize(vjp_order=order))
    assert isinstance(loaded, export.Exported) and isinstance(loaded, jax.export.Exported)
    return loaded


def results():
    """Values and facts by name."""
    found = {}
    exported = export.export(f)(x, x, scale=np.float32(2))
    loaded = reload(exported, 1)
    found["call"] = loaded.call(x, x, scale=np.float32(2))
    found["jit"] = jax.jit(loaded.call)(x, x, scale=np.float32(3))
    found["grad"] = jax.grad(lambda x: loaded.call(x, x, scale=np.float32(2))["r"].sum())(x)
    found["vjp"] = loaded.vjp().fun_name, loaded.has_vjp(), loaded.vjp().has_vjp()
    found["fields"] = [
        exported.fun_name, exported.in_tree, exported.in_avals, exported.out_tree, exported.out_avals,
        exported.platforms, exported.nr_devices, exported.calling_convention_version, exported.ordered_effects,
        exported.module_kept_var_idx, exported.uses_global_constants, exported.disabled_safety_checks]
    found["same module"] = loaded.mlir_module_serialized == exported.mlir_module_serialized

    b, c = export.symbolic_shape("b, 2*c", constraints=["b >= 2"])
    flat = jax.jit(lambda x: x.reshape(-1) + x.shape[0])
    symbolic = reload(export.export(flat)(jax.ShapeDtypeStruct((b, c), x.dtype)))
    found["symbolic"] = symbolic.call(x[:, :2]), [str(d) for d in symbolic.in_avals[0].shape]
    found["is symbolic"] = export.is_symbolic_dim(b), export.is_symbolic_dim(3)
    scope = export.SymbolicScope()
    specs = export.symbolic_args_specs((x, x), ("n, _", None), scope=scope)
    found["args specs"] = [str(s.shape) for s in specs]
    found["symbolic call"] = reload(export.export(f)(*specs)).call(np.ones((5, 3), np.float32), x)

    checks = [export.DisabledSafetyCheck.platform(), export.DisabledSafetyCheck.custom_call("my_call")]
    unchecked = reload(export.export(f, platforms=["tpu"], disabled_checks=checks)(x))
    found["checks"] = [(str(c), c.is_custom_call()) for c in unchecked.disabled_safety_checks]
    found["unchecked call"] = unchecked.call(x)
    found["several platforms"] = reload(export.export(f, platforms=("cpu", "tpu"))(x)).platforms
    found["default platform"] = export.default_export_platform()
    found["versions"] = (
        export.minimum_supported_calling_convention_version, export.maximum_supported_calling_convention_version)

    class Box:
        def __init__(self, x, label):
            self.x, self.label = x, label

    jax.tree_util.register_pytree_node(Box, lambda b: ((b.x,), b.label), lambda label, xs: Box(*xs, label))
    number = next(numbers)
    export.register_pytree_node_serialization(
        Box, serialized_name=f"{__name__}.Box{number}", serialize_auxdata=str.encode,
        deserialize_auxdata=lambda data: bytes(data).decode())
    pair = export.register_namedtuple_serialization(
        collections.namedtuple("pair", "a b"), serialized_name=f"{__name__}.pair{number}")
    tree = pair(Box(x, "label"), {"k": [x]})
    loaded = reload(export.export(jax.jit(lambda t: t))(tree), 1)
    result = loaded.call(tree)
    found["registered"] = type(result) is pair, type(result.a) is Box, result.a.label, result.b["k"][0]

    inner = reload(export.export(f)(x), 1)
    outer = reload(export.export(jax.jit(lambda x: inner.call(x)["r"] * 2))(x), 1)
    found["nested"] = outer.call(x), jax.grad(lambda x: outer.call(x).sum())(x)
    return found


class Unregistered(collections.UserList):
    pass


jax.tree_util.register_pytree_node(Unregistered, lambda u: (u.data, None), lambda _, data: Unregistered(data))


def mistakes():
    """What this module's author found out to be raised, and catches: an exception type, and what raises it."""
    loaded = reload(export.export(f)(x))
    return {
        "not jitted": (ValueError, lambda: export.export(lambda x: x)(x)),
        "wrong shape": (ValueError, lambda: loaded.call(x[:1])),
        "wrong rank": (ValueError, lambda: loaded.call(x[0])),
        "wrong dtype": (ValueError, lambda: loaded.call(x.astype(np.int32))),
        "wrong tree": (ValueError, lambda: loaded.call([x])),
        "no VJP": (ValueError, lambda: loaded.vjp()),
        "no VJP in grad": (ValueError, lambda: jax.grad(lambda x: loaded.call(x)["s"])(x)),
        "other platform": (ValueError, lambda: reload(export.export(f, platforms=["tpu"])(x)).call(x)),
        "custom call": (ValueError, lambda: export.export(jax.jit(
            lambda x: jax.ffi.ffi_call("nobody", jax.ShapeDtypeStruct((2,), x.dtype))(x)))(x)),
        "callback": (NotImplementedError, lambda: export.export(jax.jit(
            lambda x: (jax.debug.print("{x}", x=x), x)))(x).serialize()),
        "unregistered": (ValueError, lambda: export.export(jax.jit(lambda u: 0))(Unregistered([x])).serialize()),
        "key": (TypeError, lambda: export.export(jax.jit(lambda d: 0))({1j: x}).serialize()),
        "symbolic shape": (ValueError, lambda: export.symbolic_shape("a +")),
        "scopes": (ValueError, lambda: export.export(f)(
            *(jax.ShapeDtypeStruct(export.symbolic_shape(d), x.dtype) for d in ("a", "b")))),
        "constraint": (ValueError, lambda: export.export(f)(jax.ShapeDtypeStruct(
            export.symbolic_shape("a", constraints=["a >= 4"]), x.dtype)).call(x[0])),
        "name taken": (ValueError, lambda: export.register_namedtuple_serialization(
            collections.namedtuple("other", "a"), serialized_name="collections.OrderedDict")),
        "no namedtuple": (ValueError, lambda: export.register_namedtuple_serialization(list, serialized_name="list")),
    }


def caught(name):
    expected, provoke = mistakes()[name]
    try:
        provoke()
    except expected as error:
        return expected.__name__, bool(str(error))
    return None
'''
MISTAKES = (
    "not jitted", "wrong shape", "wrong rank", "wrong dtype", "wrong tree", "no VJP", "no VJP in grad",
    "other platform", "custom call", "callback", "unregistered", "key", "symbolic shape", "scopes", "constraint",
    "name taken", "no namedtuple",
)  # fmt: skip


@pytest.fixture(scope="module")
def user_modules(tmp_path_factory) -> dict[str, Any]:
    """The user's module, imported before jaxexp is installed, and once more while it is."""
    folder = tmp_path_factory.mktemp("user")

    def load(name: str) -> ModuleType:
        path = folder / f"{name}.py"
        path.write_text(USER)
        spec = importlib.util.spec_from_file_location(f"test_install_{name}", path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    before = load("imported_before")
    with jaxexp.install():
        inside = load("imported_inside")
    return {"imported before": before, "imported inside": inside}


each_module = pytest.mark.parametrize("name", ["imported before", "imported inside"])


def plain(value: Any) -> Any:
    """Results as they compare: arrays by what they hold, symbolic dimensions by what they say."""
    if isinstance(value, (list, tuple)):
        return [plain(part) for part in value]
    if isinstance(value, dict):
        return {key: plain(part) for key, part in value.items()}
    if isinstance(value, (np.ndarray, jax.Array)):
        return str(value.dtype), value.shape, np.asarray(value).round(5).tolist()
    return value


@each_module
def test_user_code_gives_the_same_results(name: str, user_modules) -> None:
    module = user_modules[name]
    stock = plain(module.results())
    with jaxexp.install():
        found = plain(module.results())
    again = plain(module.results())
    assert found.keys() == stock.keys()
    assert {k: v for k, v in found.items() if v != stock[k]} == {}
    assert again == stock


@each_module
@pytest.mark.parametrize("mistake", MISTAKES)
def test_user_code_catches_the_same_errors(mistake: str, name: str, user_modules) -> None:
    module = user_modules[name]
    assert set(MISTAKES) == module.mistakes().keys()
    stock = module.caught(mistake)
    assert stock is not None
    with jaxexp.install():
        assert module.caught(mistake) == stock
        with pytest.raises(jaxexp.ExportError) if mistake != "symbolic shape" else pytest.raises(ValueError):
            module.mistakes()[mistake][1]()
    assert module.caught(mistake) == stock


@each_module
def test_user_code_runs_on_jaxexp(name: str, user_modules) -> None:
    """Or the tests above would compare jax.export with itself."""
    module = user_modules[name]

    def kinds() -> set[type]:
        exported = module.export.export(module.f)(module.x)
        return {type(exported), type(module.reload(exported)), type(module.reload(exported, 1).vjp())}

    assert kinds() == {STOCK}
    with jaxexp.install():
        assert kinds() == {jaxexp.Exported}
    assert kinds() == {STOCK}


def test_objects_from_before_go_on_working() -> None:
    """An Exported and a DisabledSafetyCheck of jax.export's own, made earlier, while jaxexp is installed."""
    earlier = jax_export.export(jax.jit(jnp.sin), platforms=["cpu", "tpu"])(arr(2))
    check = jax_export.DisabledSafetyCheck.platform()
    with jaxexp.install():
        assert not isinstance(earlier, jax_export.Exported)  # the price: two classes
        assert_same_values(earlier.call(arr(2)), jnp.sin(arr(2)))
        later = jax_export.export(jax.jit(earlier.call), platforms=["tpu"], disabled_checks=[check])(arr(2))
        assert type(later) is jaxexp.Exported
        assert_same_values(jax_export.deserialize(later.serialize()).call(arr(2)), jnp.sin(arr(2)))
        assert_same_fields(jax_export.deserialize(earlier.serialize()), earlier, as_written=True)
    assert_same_values(later.call(arr(2)), jnp.sin(arr(2)))
    assert jax_export.deserialize(later.serialize()).platforms == ("tpu",)


def test_names_keep_the_meaning_they_had_when_they_were_imported() -> None:
    from jax.export import deserialize as before
    from jax.export import export as export_before

    with jaxexp.install():
        from jax.export import deserialize as inside

        assert type(export_before(jax.jit(jnp.sin))(arr(2))) is STOCK
        blob = jax_export.export(jax.jit(jnp.sin))(arr(2)).serialize()
        assert type(before(blob)) is STOCK
        assert type(inside(blob)) is jaxexp.Exported
    assert type(inside(blob)) is jaxexp.Exported
    assert inside is jaxexp.deserialize


# --- real code ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reader", ["stock", "installed"])
@pytest.mark.parametrize("writer", ["stock", "installed"])
def test_jax_error_checks(writer: str, reader: str) -> None:
    """JAX's run-time error checks come with wrappers for jax.export, and a node type registered with it."""

    def checked(x: Any) -> Any:
        error_check.set_error_if(x <= 0, "the argument must be positive")
        return x * 2

    def write() -> bytes:
        fun = jax.jit(error_check.wrap_for_export(jax.jit(checked)))
        exported = jax.export.export(fun)(jax.ShapeDtypeStruct((), f32))
        assert type(exported) is (STOCK if writer == "stock" else jaxexp.Exported)
        return bytes(exported.serialize())

    def read(blob: bytes) -> None:
        loaded = jax.export.deserialize(bytearray(blob))
        assert type(loaded) is (STOCK if reader == "stock" else jaxexp.Exported)
        fun = jax.jit(error_check.unwrap_from_import(jax.jit(loaded.call)))
        assert float(fun(f32(3))) == 6
        error_check.raise_if_error()
        fun(f32(-3))
        with pytest.raises(error_check.JaxValueError, match="must be positive"):
            error_check.raise_if_error()

    def run(how: str, work: Any, *args: Any) -> Any:
        if how == "stock":
            return work(*args)
        with jaxexp.install():
            return work(*args)

    run(reader, read, run(writer, write))


def test_jax_array_serialization() -> None:
    """JAX's checkpoints write treedefs with jax.export's private functions, by the registries that jaxexp shares."""
    from jax.experimental.array_serialization import pytree_serialization_utils as utils

    class Theirs(list):
        pass

    class Ours(list):
        pass

    for node in (Theirs, Ours):
        jax.tree_util.register_pytree_node(node, lambda n: (tuple(n), None), lambda _, xs, node=node: node(xs))
    with jaxexp.install():
        for node, library in ((Theirs, utils), (Ours, jax_export)):
            library.register_pytree_node_serialization(
                node,
                serialized_name=f"test_install.{node.__name__}",
                serialize_auxdata=lambda aux: b"",
                deserialize_auxdata=lambda data: None,
            )
        tree = {"a": Theirs([arr(1), Ours([arr(2)])])}
        structure = jax.tree.structure(tree)
        assert utils.deserialize_pytreedef(utils.serialize_pytreedef(structure)) == structure
        loaded = jax_export.deserialize(jax_export.export(jax.jit(lambda t: t))(tree).serialize())
        assert loaded.in_tree == jax.tree.structure(((tree,), {}))


ORBAX = """
import sys
sys.path[:0] = {tests!r}
import jax, jax.numpy as jnp, numpy as np, jaxexp
from jax import export
from orbax import export as orbax
from orbax.export import utils
from kit.compare import assert_same_fields, assert_same_values, module_interface

params = {{"w": np.ones((4, 3), np.float32), "b": np.zeros(3, np.float32)}}
x = np.linspace(0, 1, 20, dtype=np.float32).reshape(5, 4)

def apply(params, x):
    return jnp.tanh(x @ params["w"] + params["b"])

def save(folder):
    module = orbax.JaxModule(params, apply, input_polymorphic_shape="b, 4", jax2tf_kwargs={{}})
    saved = module.obm_module_to_jax_exported_map(jax.ShapeDtypeStruct((2, 4), np.float32))
    utils.save_jax_exported_map(folder, saved, vjp_order=1)
    return saved

def load(folder):
    return utils.load_jax_exported_map(folder)

stock = save({folder!r} + "/stock")
with jaxexp.install():
    ours = save({folder!r} + "/ours")
    loaded = load({folder!r} + "/stock"), load({folder!r} + "/ours")
by_jax = load({folder!r} + "/stock"), load({folder!r} + "/ours")
(name,) = stock
assert type(stock[name]) is type(by_jax[0][name]) is type(by_jax[1][name]) is export.Exported
assert type(ours[name]) is type(loaded[0][name]) is type(loaded[1][name]) is jaxexp.Exported
for one in (ours, *loaded, *by_jax):
    assert_same_fields(one[name], stock[name], module=False, as_written=True)
    assert module_interface(one[name]) == module_interface(stock[name])
    assert_same_values(one[name].call(params, x), apply(params, x))
    pull = lambda call: jax.grad(lambda p: call(p, x).sum())(params)
    assert_same_values(pull(one[name].call), pull(apply))
print("fine")
"""


@pytest.mark.skipif(
    not all(map(importlib.util.find_spec, ("orbax", "tensorflow"))),
    reason="needs TensorFlow (2 GB), without which orbax-export cannot be imported: pip install '.[orbax]'",
)
def test_orbax_export(tmp_path, subprocess_env) -> None:
    """orbax-export exports a module, writes it to a folder and reads it: with jaxexp inside, and with jax.export."""
    code = ORBAX.format(folder=str(tmp_path), tests=[str(p) for p in sys.path if p.endswith("tests")])
    env = subprocess_env(TF_CPP_MIN_LOG_LEVEL="3")
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
    assert done.stdout == "fine\n", done.stderr


# --- no trace -------------------------------------------------------------------------------------------------------


def test_only_public_names_change_while_installed() -> None:
    before = everything()
    with jaxexp.install():
        changed = {name for name, value in everything().items() if before.get(name) != value}
    # Two constants are equal numbers, and symbolic shapes are JAX's own on both sides.
    public = {f"jax.export.{name}" for name in jax_export.__all__}
    assert changed <= public
    assert {f"jax.export.{name}" for name in ("export", "deserialize", "Exported", "DisabledSafetyCheck")} <= changed
    assert not any("_src" in name for name in changed)


@pytest.mark.parametrize("error", [None, KeyError, KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("depth", [1, 3])
def test_nothing_is_left(error, depth: int) -> None:
    before = everything()

    def nest(level: int) -> None:
        with jaxexp.install():
            assert jax_export.export is jaxexp.export
            if level < depth:
                nest(level + 1)
                assert jax_export.export is jaxexp.export
            elif error:
                raise error("inside")
            jax_export.deserialize(jax_export.export(jax.jit(jnp.sin))(arr(2)).serialize()).call(arr(2))

    if error:
        with pytest.raises(error):
            nest(1)
    else:
        nest(1)
    assert everything() == before


def test_nothing_is_left_by_generators_and_late_ends() -> None:
    """Installations that do not end in the order in which they began."""
    before = everything()
    first, second = jaxexp.install(), jaxexp.install()
    with first:
        assert jax_export.export is jaxexp.export
    assert jax_export.export is jaxexp.export
    with second:
        pass
    assert everything() == before
    jaxexp.uninstall()
    assert everything() == before


def test_nothing_is_left_by_threads() -> None:
    before = everything()
    wrong: list[Any] = []
    start = threading.Barrier(8)

    def work(seed: int) -> None:
        start.wait()
        for _ in range(200):
            with jaxexp.install():
                if jax_export.export is not jaxexp.export or jax_export.Exported is not jaxexp.Exported:
                    wrong.append(seed)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert everything() == before


def test_private_names_are_not_reached() -> None:
    """JAX's own callers of the private module (jax2tf, Pallas) rely on more than jaxexp's Exported has."""
    with jaxexp.install():
        assert private.export is not jaxexp.export
        assert private.Exported is STOCK
        assert type(private.export(jax.jit(jnp.sin))(arr(2))) is STOCK


def test_the_other_direction_of_registrations() -> None:
    """What was registered while jaxexp was installed is known to jax.export afterwards, and the other way round."""

    def node(name: str, library: Any) -> type:
        made = type(name, (list,), {})
        jax.tree_util.register_pytree_node(made, lambda n: (tuple(n), None), lambda _, xs: made(xs))
        library.register_pytree_node_serialization(
            made, serialized_name=f"test_install.{name}", serialize_auxdata=lambda _: b"", deserialize_auxdata=bytes
        )
        return made

    before = node("Before", jax_export)
    with jaxexp.install():
        inside = node("Inside", jax_export)
        blob = jax_export.export(jax.jit(lambda t: t))(before([inside([arr(1)])])).serialize()
    loaded = jax_export.deserialize(blob)
    assert type(loaded) is STOCK
    assert_same_fields(loaded, jaxexp.deserialize(blob), as_written=True)
    assert module_interface(loaded) == module_interface(jaxexp.deserialize(blob))

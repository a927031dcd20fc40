"""`Exported`: its fields, its copies, its files, and the way to jax.export and back."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import os
import pickle
import subprocess
import sys
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export as jax_export
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import jaxexp
from jaxexp import _native
from kit.compare import assert_same_chains, assert_same_fields, assert_same_values, describe
from kit.corpus import CASES, arr, export_with, f32, mesh, spec
from kit.derivatives import pull_back
from kit.models import KEYWORDS, exported_case

# --- Exported -------------------------------------------------------------------------------------------------------


def test_constructor_takes_every_keyword() -> None:
    exported = exported_case("sharded_2d")
    again = jaxexp.Exported(**{name: getattr(exported, name) for name in KEYWORDS})
    assert_same_fields(again, exported)
    assert again == exported
    assert_same_values(
        again.call(*CASES["sharded_2d"].build().args),
        CASES["sharded_2d"].build().live(*CASES["sharded_2d"].build().args),
    )


def test_constructor_refuses_what_it_does_not_know() -> None:
    fields = {name: getattr(exported_case("sin"), name) for name in KEYWORDS}
    with pytest.raises(TypeError):
        jaxexp.Exported(**fields, surprise=1)
    del fields["fun_name"]
    with pytest.raises(TypeError):
        jaxexp.Exported(**fields)


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


def test_str_is_short_and_names_the_function() -> None:
    exported = exported_case("large_constant")
    for text in (str(exported), repr(exported)):
        assert exported.fun_name in text
        assert len(text) < 500


def test_mlir_module() -> None:
    ours = exported_case("sin")
    text = ours.mlir_module()
    assert text == ours.mlir_module(serialized=True)
    assert "func.func public @main" in text
    assert "stablehlo.sine" in text
    assert text == jax_export.deserialize(ours.serialize()).mlir_module()


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


def test_modules_of_equal_functions_are_compared_once(monkeypatch: pytest.MonkeyPatch) -> None:
    blob = exported_case("sin").serialize()
    first, second, third = jaxexp.deserialize(blob), jaxexp.deserialize(bytes(blob)), jaxexp.deserialize(bytes(blob))
    other = dataclasses.replace(first, mlir_module_serialized=bytes(len(first.mlir_module_serialized)))
    compared = []

    def counted(one: bytes, two: bytes) -> bool:
        compared.append(two)
        return equal_bytes(one, two)

    equal_bytes = _native.equal_bytes
    monkeypatch.setattr(_native, "equal_bytes", counted)
    for _ in range(3):
        assert first == second and second == first
    assert len(compared) == 1
    assert second == third and first == third
    assert len(compared) == 2
    assert other != first and first != other and hash(other) == hash(first)


def test_same_content_is_traced_and_compiled_once() -> None:
    blob = exported_case("sin").serialize()
    first, second = (jaxexp.deserialize(blob) for _ in range(2))
    traces = []

    @jax.jit
    def twice(x):
        traces.append(1)
        return first.call(x) + second.call(x)

    np.testing.assert_allclose(twice(arr(4)), 2 * np.sin(arr(4)), rtol=1e-6)
    assert twice(arr(4)) is not None
    assert len(traces) == 1
    calls = [e for e in jax.make_jaxpr(twice)(arr(4)).jaxpr.eqns[0].params["jaxpr"].eqns if "exported" in e.params]
    assert len(calls) == 2
    assert calls[0].params["exported"] == calls[1].params["exported"]


def test_vjp_is_kept() -> None:
    exported = exported_case("sin")
    assert exported.vjp() is exported.vjp()
    loaded = jaxexp.deserialize(exported.serialize(vjp_order=2))
    assert loaded.vjp() is loaded.vjp()
    assert loaded.vjp().has_vjp()
    assert not loaded.vjp().vjp().has_vjp()


def test_call_accepts_what_jit_accepts() -> None:
    exported = jaxexp.deserialize(jaxexp.export(jax.jit(lambda x, *, n: x * n))(f32(0), n=np.int32(0)).serialize())
    for x in (2.0, f32(2), np.array(2, f32), jnp.float32(2)):
        for n in (3, np.int32(3), jnp.int32(3)):
            assert float(exported.call(x, n=n)) == 6.0


def test_call_inside_transformations() -> None:
    loaded = jaxexp.deserialize(exported_case("sin").serialize(vjp_order=2))
    x = arr(4)
    np.testing.assert_allclose(jax.jit(jax.grad(lambda x: loaded.call(x).sum()))(x), np.cos(x), rtol=1e-5)
    np.testing.assert_allclose(
        jax.jacrev(lambda x: (loaded.call(x) ** 2).sum())(x), 2 * np.sin(x) * np.cos(x), rtol=1e-5
    )
    np.testing.assert_allclose(jax.checkpoint(loaded.call)(x), np.sin(x), rtol=1e-6)
    carry, _ = jax.lax.scan(lambda c, _: (loaded.call(c), None), x, length=3)
    np.testing.assert_allclose(carry, np.sin(np.sin(np.sin(x))), rtol=1e-5)
    np.testing.assert_allclose(jax.lax.cond(True, loaded.call, jnp.cos, x), np.sin(x), rtol=1e-6)


def test_export_of_a_function_that_calls_an_exported() -> None:
    """Either library's Exported inside what the other one exports; platforms and dimensions pass through."""
    (n,) = jaxexp.symbolic_shape("n")
    for inner_library, outer_library in itertools.product((jaxexp, jax_export), repeat=2):
        inner = inner_library.export(jax.jit(lambda x: jnp.sin(x) * x.shape[0]), platforms=("tpu", "cpu"))(spec((n,)))
        inner = inner_library.deserialize(inner.serialize(vjp_order=1))
        outer = outer_library.export(jax.jit(calling(inner)), platforms=("cpu", "tpu"))(spec((2 * n,)))
        outer = outer_library.deserialize(outer.serialize(vjp_order=1))
        np.testing.assert_allclose(outer.call(arr(6)), np.sin(arr(6)) * 6 + 1, rtol=1e-5)
        gradient = pull_back(outer.call, (arr(6),), {})[0][0]
        np.testing.assert_allclose(gradient, np.cos(arr(6)) * 6 * 0.5, rtol=1e-5)


def calling(exported):
    return lambda x: exported.call(x) + 1


def test_one_exported_from_many_threads() -> None:
    """Fields that are derived on first use, and the first call, at once from eight threads."""
    loaded = jaxexp.deserialize(exported_case("perceptron").serialize(vjp_order=1))
    p = CASES["perceptron"].build()
    expected = p.live(*p.args)
    start, failures = threading.Barrier(8), []

    def work() -> None:
        start.wait()
        try:
            assert loaded.vjp() == loaded.vjp()
            assert hash(loaded) == hash(loaded)
            assert len(loaded.in_shardings_hlo) == len(loaded.in_avals)
            assert_same_values(loaded.call(*p.args), expected)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


# --- shardings ------------------------------------------------------------------------------------------------------


def test_shardings_jax() -> None:
    m = mesh((4, 2), ("x", "y"))
    other = jax.sharding.Mesh(m.devices[::-1], m.axis_names, axis_types=m.axis_types)
    for exported in (exported_case("sharded_2d"), jaxexp.deserialize(exported_case("sharded_2d").serialize())):
        assert exported.in_shardings_jax() == exported._in_named_shardings
        assert exported.in_shardings_jax(None) == exported._in_named_shardings
        for concrete in (m, other):
            ins, outs = exported.in_shardings_jax(concrete), exported.out_shardings_jax(concrete)
            assert ins == tuple(NamedSharding(concrete, p, memory_kind="device") for p in (P("x", "y"), P("y")))
            assert outs == (NamedSharding(concrete, P(None, "x"), memory_kind="device"),)
        p = CASES["sharded_2d"].build()
        args = [jax.device_put(np.asarray(a), s) for a, s in zip(p.args, exported.in_shardings_jax(other), strict=True)]
        assert_same_values(exported.call(*args), p.live(*p.args))


def test_shardings_jax_of_unspecified_arguments() -> None:
    exported = exported_case("partly_sharded")
    assert [s is None for s in exported.in_shardings_jax(mesh((4, 2), ("x", "y")))] == [False, True, True]
    assert exported_case("sin").in_shardings_jax() == (None,)


@pytest.mark.parametrize("wrong", [((8,), ("x",)), ((2, 4), ("x", "y")), ((4, 2), ("a", "b"))])
def test_shardings_jax_needs_a_like_mesh(wrong) -> None:
    with pytest.raises(ValueError) as theirs:
        exported_case("sharded_2d", jax_export).in_shardings_jax(mesh(*wrong))
    with pytest.raises(jaxexp.ExportError) as ours:
        exported_case("sharded_2d").in_shardings_jax(mesh(*wrong))
    assert isinstance(ours.value, type(theirs.value))


# --- crossing over --------------------------------------------------------------------------------------------------


def test_from_jax_carries_the_vjp() -> None:
    theirs = exported_case("sin", jax_export)
    ours = jaxexp.Exported.from_jax(theirs)
    assert type(ours) is jaxexp.Exported
    assert type(ours.vjp()) is jaxexp.Exported
    assert ours.has_vjp()
    assert_same_chains(jaxexp.deserialize(ours.serialize(vjp_order=2)), ours, 2, as_written=True)
    loaded = jaxexp.Exported.from_jax(jax_export.deserialize(theirs.serialize()))
    assert not loaded.has_vjp()
    assert jaxexp.Exported.from_jax(jax_export.deserialize(theirs.serialize())) == loaded


def test_to_jax_carries_the_vjp() -> None:
    ours = jaxexp.deserialize(exported_case("sin").serialize(vjp_order=1))
    theirs = ours.to_jax()
    assert type(theirs) is jax_export.Exported
    assert type(theirs.vjp()) is jax_export.Exported
    assert not theirs.vjp().has_vjp()
    np.testing.assert_allclose(jax.grad(lambda x: theirs.call(x).sum())(arr(4)), np.cos(arr(4)), rtol=1e-5)
    assert_same_chains(jax_export.deserialize(theirs.serialize(vjp_order=1)), ours, 1)
    assert describe(jaxexp.Exported.from_jax(theirs)) == describe(ours)


def test_crossing_over_and_back() -> None:
    checks = exported_case("custom_call_allowed")
    there = checks.to_jax()
    assert all(isinstance(c, jax_export.DisabledSafetyCheck) for c in there.disabled_safety_checks)
    assert all(
        isinstance(c, jaxexp.DisabledSafetyCheck) for c in jaxexp.Exported.from_jax(there).disabled_safety_checks
    )


# --- files ----------------------------------------------------------------------------------------------------------


def test_save_and_load(tmp_path) -> None:
    exported = exported_case("perceptron")
    path = tmp_path / "f.jaxexp"
    assert exported.save(path) is None
    assert path.read_bytes() == bytes(exported.serialize())
    assert_same_fields(jaxexp.load(path), exported, as_written=True)
    assert not jaxexp.load(str(path)).has_vjp()
    exported.save(str(path), vjp_order=1)
    assert path.read_bytes() == bytes(exported.serialize(vjp_order=1))
    assert_same_chains(jaxexp.load(path), exported, 1, as_written=True)
    assert_same_chains(jax_export.deserialize(bytearray(path.read_bytes())), exported, 1, as_written=True)
    p = CASES["perceptron"].build()
    assert_same_values(jaxexp.load(path).call(*p.args), p.live(*p.args))


def test_loaded_function_outlives_its_file(tmp_path) -> None:
    """A file may be replaced or removed while a function that was loaded from it is in use."""
    path = tmp_path / "f.jaxexp"
    exported_case("sin").save(path)
    loaded = jaxexp.load(path)
    exported_case("scalars").save(path)
    np.testing.assert_allclose(loaded.call(arr(4)), np.sin(arr(4)), rtol=1e-6)
    assert jaxexp.load(path).fun_name == exported_case("scalars").fun_name
    path.unlink()
    assert jaxexp.deserialize(loaded.serialize()) == loaded
    assert "stablehlo.sine" in loaded.mlir_module()


def test_load_of_a_missing_file(tmp_path) -> None:
    with pytest.raises(FileNotFoundError):
        jaxexp.load(tmp_path / "missing")


def test_new_process_loads_and_calls(tmp_path, subprocess_env) -> None:
    """The main promise: what one process saved, another one that never saw the function runs."""
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
    done = subprocess.run(
        [sys.executable, "-c", code], env=subprocess_env(), capture_output=True, text=True, check=False
    )
    assert done.stdout == "fine\n", done.stderr


# --- copies ---------------------------------------------------------------------------------------------------------


def test_copy() -> None:
    loaded = jaxexp.deserialize(exported_case("sin").serialize(vjp_order=1))
    assert copy.copy(loaded) == loaded


def test_disabled_safety_check_pickles() -> None:
    check = jaxexp.DisabledSafetyCheck.custom_call("t")
    assert pickle.loads(pickle.dumps(check)) == check


# --- copies and files -----------------------------------------------------------------------------------------------


def test_pickle_keeps_a_loaded_function_and_its_vjps() -> None:
    loaded = jaxexp.deserialize(bytes(export_with(jaxexp, CASES["sin"].build()).serialize(vjp_order=2)))
    again = pickle.loads(pickle.dumps(loaded))
    assert again == loaded
    assert again.vjp().vjp() == loaded.vjp().vjp()
    assert not again.vjp().vjp().has_vjp()


def test_pickle_of_a_fresh_export_is_refused() -> None:
    """jax.export cannot pickle it either: the VJP exists as a Python function alone."""
    with pytest.raises(jaxexp.ExportError, match="serialize"):
        pickle.dumps(export_with(jaxexp, CASES["sin"].build()))


def test_save_keeps_the_mode_of_the_file_it_replaces(tmp_path) -> None:
    exported = export_with(jaxexp, CASES["sin"].build())
    path = tmp_path / ("x" * 240)
    path.touch(mode=0o600)
    exported.save(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.read_bytes() == exported.serialize()


def test_save_writes_into_a_pipe(tmp_path) -> None:
    exported = export_with(jaxexp, CASES["sin"].build())
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    found: list[bytes] = []
    reader = threading.Thread(target=lambda: found.append(pipe.read_bytes()))
    reader.start()
    exported.save(pipe)
    reader.join()
    assert found == [exported.serialize()]
    assert pipe.is_fifo()


@pytest.mark.skipif(not os.path.exists("/dev/fd"), reason="pipes have no paths")
def test_save_writes_into_a_pipe_without_a_name() -> None:
    """As /dev/stdout may be."""
    exported = export_with(jaxexp, CASES["sin"].build())
    source, target = os.pipe()
    with open(source, "rb") as reading, open(target, "wb"):
        exported.save(f"/dev/fd/{target}")
        assert reading.read(len(blob := exported.serialize())) == blob


def test_install_leaves_names_alone_that_jaxexp_lacks(monkeypatch) -> None:
    monkeypatch.setattr(jax_export, "__all__", [*jax_export.__all__, "name_of_a_newer_jax"])
    monkeypatch.setattr(jax_export, "name_of_a_newer_jax", "theirs", raising=False)
    original = jax_export.export
    with jaxexp.install():
        assert jax_export.export is jaxexp.export
        assert jax_export.name_of_a_newer_jax == "theirs"
    assert jax_export.export is original

"""`Exported`: its fields, its copies, its files, and the way to jax.export and back."""

from __future__ import annotations

import dataclasses
import itertools
import os
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export as jax_export
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import jaxexp
from kit.alike import raises_alike
from kit.command_line import started
from kit.compare import assert_same_fields, assert_same_values
from kit.corpus import CASES, arr, mesh, spec
from kit.derivatives import pull_back
from kit.each import each
from kit.models import KEYWORDS, exported_case

pytestmark = pytest.mark.jax


def test_constructor_takes_every_keyword() -> None:
    exported, p = exported_case("sharded_2d"), CASES["sharded_2d"].build()
    again = jaxexp.Exported(**{name: getattr(exported, name) for name in KEYWORDS})
    assert_same_fields(again, exported)
    assert again == exported
    assert_same_values(again.call(*p.args), p.live(*p.args))


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
    exported = exported_case("large_constant")
    for text in (str(exported), repr(exported)):
        assert exported.fun_name in text
        assert len(text) < 500
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

"""Calls to the end: donation, effects, platforms, nesting, calling conventions, logging."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export as jax_export
from jax import lax

import jaxexp
from jaxexp import _jax
from kit.alike import LIBRARIES
from kit.batches import reload
from kit.compare import assert_same_values
from kit.corpus import arr, f32, spec, touch
from kit.each import each

pytestmark = pytest.mark.jax


def loaded(fun: Any, *specs: Any, vjp_order: int = 0, platforms: Any = None) -> jaxexp.Exported:
    return reload(jaxexp.export(jax.jit(fun), platforms=platforms)(*specs), vjp_order)


def merged(text: str) -> list[str]:
    """The exported functions inside the text of a module, each as often as it is defined."""
    return re.findall(r'func\.func private @"?(call_exported_[^"(]+?)(?:_\d+)?"?\(', text)


def main_of(exported: Any) -> str:
    """What the main function of a module takes and gives."""
    found = re.search(r"func\.func public @main\(.*\) -> \(.*?\) \{", exported.mlir_module())
    assert found is not None
    return re.sub(r' loc\("[^"]*"\)| loc\(unknown\)', "", found[0])


@pytest.fixture(params=["static", "symbolic"])
def donating(request) -> tuple[Any, Any]:
    """{"x": donated, "n": donated but of no result's type}, y -> ({"x": ...}, y), as each library loads it."""
    (b,) = (4,) if request.param == "static" else jaxexp.symbolic_shape("b")
    fun = jax.jit(lambda d, y: ({"x": d["x"] * 2 + d["n"][0]}, y.sum()), donate_argnums=0)
    specs = {"x": spec((b,)), "n": spec((3,), np.int32)}, spec((b, 2))
    with pytest.warns(UserWarning, match="donated buffers were not usable"):
        blob = jaxexp.export(fun)(*specs).serialize(vjp_order=1)
    return jaxexp.deserialize(blob), jax_export.deserialize(blob)


RESULTS = {"x": jnp.full(4, 2.0)}, f32(8)


def test_a_call_keeps_its_arguments(donating) -> None:
    """As in jax.export, so a function that was exported from a step of a loop can be called twice on one state."""
    x, n, y = jnp.ones(4), jnp.zeros(3, jnp.int32), jnp.ones((4, 2))
    ours, theirs = donating
    for call in (ours.call, jax.jit(ours.call), theirs.call):
        for _ in range(2):
            assert_same_values(call({"x": x, "n": n}, y), RESULTS)
    jax.grad(lambda x: ours.call({"x": x, "n": n}, y)[0]["x"].sum())(x)
    assert not any(array.is_deleted() for array in (x, n, y))


def test_the_caller_donates(donating) -> None:
    """With `jax.jit(call, donate_argnums=...)`, as in jax.export, with the same warnings about what cannot be used."""
    for exported in donating:
        x, n, y = jnp.ones(4), jnp.zeros(3, jnp.int32), jnp.ones((4, 2))
        with pytest.warns(UserWarning, match=r"donated buffers were not usable: .*int32\[3\]"):
            found = jax.jit(exported.call, donate_argnums=0)({"x": x, "n": n}, y)
        assert_same_values(found, RESULTS)
        assert [array.is_deleted() for array in (x, n, y)] == [True, False, False]
        donating_x = jax.jit(lambda x, n, y, f=exported: f.call({"x": x, "n": n}, y), donate_argnums=0)
        donating_x(x := jnp.ones(4), n, y)
        assert x.is_deleted()
        donating_x(x := np.ones(4, f32), n, y)
        np.testing.assert_array_equal(x, 1)


@each("library", LIBRARIES.values())
def test_a_function_says_what_was_donated(library: Any) -> None:
    def exported(donated: tuple[int, ...], *specs: Any, vjp_order: int = 0) -> Any:
        fun = jax.jit(lambda unused, x, y: (y, x + 1), donate_argnums=donated)
        return reload(library.export(fun)(*specs), vjp_order)

    symbolic = (spec(jaxexp.symbolic_shape("b")),) * 3
    for donated in ((), (1,), (2,)):
        assert exported(donated, arr(2), arr(4), arr(4)).donated_arguments == donated
    assert exported((2,), *symbolic, vjp_order=1).vjp().donated_arguments == ()
    assert exported((1,), *symbolic).specialize(arr(3), arr(3), arr(3)).donated_arguments == (1,)


@each("order", [("second", "first"), ("first", "first", "unordered")])
def test_tokens_go_through_calls(order) -> None:

    def fun(x):
        for effect in order:
            x = touch(x, effect)
        return x

    for library in LIBRARIES.values():
        inner = reload(library.export(jax.jit(fun))(arr(3)))
        outer = reload(jaxexp.export(jax.jit(lambda x: inner.call(touch(inner.call(x), "second"))))(arr(3)))  # noqa: B023
        ordered = {"first", "second"} & {*order, "second"}
        assert len(outer.ordered_effects) == len(ordered)
        assert len(inner.unordered_effects) == len(outer.unordered_effects) == ("unordered" in order)
        for call in (outer.call, jax.jit(outer.call), jax_export.deserialize(outer.serialize()).call):
            np.testing.assert_allclose(call(arr(3)), fun(touch(fun(arr(3)), "second")), rtol=1e-6)
        assert main_of(outer).count("!stablehlo.token") == 2 * len(ordered)


def test_effects_in_control_flow() -> None:
    inner = loaded(lambda x: touch(x, "unordered"), arr(3))

    def body(x, _):
        return inner.call(x), None

    fun = jax.jit(lambda x: lax.scan(body, x, None, length=3)[0])
    outer = reload(jaxexp.export(fun)(arr(3)))
    assert outer.unordered_effects == inner.unordered_effects
    np.testing.assert_allclose(outer.call(arr(3)), np.sin(np.sin(np.sin(arr(3)))), rtol=1e-6)


def test_an_exported_is_merged_once() -> None:
    def twice(x):
        return x * 2

    f = loaded(twice, arr(3), vjp_order=1)
    again = reload(f, vjp_order=1)
    assert f == again

    def fun(x):
        y = f.call(f.call(x))
        y = jax.jit(f.call)(y) + lax.cond(y[0] > 0, f.call, lambda y: y, y)
        return lax.scan(lambda c, _: (again.call(c), None), y, None, length=2)[0]

    for text in (jaxexp.export(jax.jit(fun))(arr(3)).mlir_module(), jax.jit(fun).lower(arr(3)).as_text()):
        assert merged(text) == ["call_exported_twice"]
        assert text.count("call @call_exported_twice") == 5
    text = jaxexp.export(jax.jit(jax.value_and_grad(lambda x: f.call(f.call(x)).sum())))(arr(3)).mlir_module()
    assert sorted(merged(text)) == ["call_exported_fun_vjp_jax", "call_exported_twice"]
    np.testing.assert_allclose(jax.jit(fun)(arr(3)), arr(3) * 64, rtol=1e-6)


def test_symbols_do_not_clash() -> None:
    """Private functions inside the callees share their names with those of the caller and of each other."""

    def helper_of(k):
        @jax.jit
        def helper(x):
            return x * k

        def same_name(x):
            return helper(helper(x))

        return same_name

    one, two = loaded(helper_of(2), arr(3)), loaded(helper_of(3), arr(3))
    outer = reload(jaxexp.export(jax.jit(lambda x: helper_of(5)(one.call(two.call(one.call(x))))))(arr(3)))
    np.testing.assert_allclose(outer.call(arr(3)), arr(3) * 3600, rtol=1e-6)


def _tell_platform(x):
    return lax.platform_dependent(x, cpu=lambda x: x + 1, tpu=lambda x: x + 2, cuda=lambda x: x + 3)


MANY = ("tpu", "cpu", "cuda")


@each("outer_platforms", [("cpu",), ("cuda", "cpu"), ("tpu", "cuda", "cpu")])
def test_several_platforms_inside_some_of_them(outer_platforms) -> None:
    for size in (3, *jaxexp.symbolic_shape("b")):
        inner = loaded(_tell_platform, spec((size,)), platforms=MANY)
        outer = jaxexp.export(jax.jit(lambda x, f=inner: f.call(x) * 10), platforms=outer_platforms)(spec((size,)))
        for library in LIBRARIES.values():
            found = library.deserialize(outer.serialize()).call(arr(3))
            np.testing.assert_allclose(found, (arr(3) + 1) * 10, rtol=1e-6)


def test_one_platform_inside_several_is_refused_unless_disabled() -> None:
    inner = loaded(lambda x: x + 1, arr(3), platforms=("cpu",))
    with pytest.raises(jaxexp.errors.ExportError, match="tpu"):
        jaxexp.export(jax.jit(inner.call), platforms=("cpu", "tpu"))(arr(3))
    check = jaxexp.DisabledSafetyCheck.platform()
    unchecked = reload(jaxexp.export(jax.jit(lambda x: x + 1), platforms=("tpu",), disabled_checks=[check])(arr(3)))
    outer = reload(jaxexp.export(jax.jit(unchecked.call), platforms=("cpu", "tpu"))(arr(3)))
    np.testing.assert_allclose(outer.call(arr(3)), arr(3) + 1, rtol=1e-6)


@each("feature, version", [("plain", 9), ("everything", 9), ("plain", 10), ("everything", 10), ("dropped", 10)])
def test_calling_conventions(feature: str, version: int) -> None:
    """What jax.export and jaxexp write under either version takes the same arguments in the same order."""
    everything = feature == "everything"
    (b,) = jaxexp.symbolic_shape("b") if everything else (3,)
    platforms = MANY if everything else None

    @jax.jit
    def fun(x, unused, y):
        if everything:
            x = _tell_platform(touch(touch(x, "first"), "second"))
        return {"sum": x + y, "size": jnp.int32(x.shape[0])}

    specs = spec((b,)), spec((b, 1)) if feature == "plain" else spec((b,)), spec((b,))
    args = [arr(*(3 if size is b else 1 for size in s.shape)) for s in specs]
    with _jax.calling_convention_flag(version):
        written = [library.export(fun, platforms=platforms)(*specs) for library in LIBRARIES.values()]
    for exported in written:
        assert exported.calling_convention_version == version
        for reader in LIBRARIES.values():
            assert_same_values(reader.deserialize(exported.serialize()).call(*args), fun(*args))
    assert main_of(written[0]) == main_of(written[1])


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Callable[[], str]:
    """What jaxexp logged since it was asked last."""

    def since() -> str:
        found = [record.getMessage() for record in caplog.records if record.name.startswith("jaxexp")]
        caplog.clear()
        return "\n".join(found)

    return since


def test_modules_are_dumped(tmp_path, caplog, said) -> None:
    """`jax_dump_ir_to` gets the module of every export, without debug logging; which names the dump."""
    jax.config.update("jax_dump_ir_to", str(tmp_path))
    try:
        jaxexp.export(jax.jit(jnp.sin))(arr(3))
        (dump,) = tmp_path.glob("*sin*export*.mlir")
        assert not said()
        with caplog.at_level(logging.DEBUG, logger="jaxexp"):
            jaxexp.export(jax.jit(jnp.cos))(arr(3))
    finally:
        jax.config.update("jax_dump_ir_to", None)
    assert "stablehlo.sine" in dump.read_text()
    (other,) = tmp_path.glob("*cos*export*.mlir")
    text = said()
    assert other.name in text
    assert "stablehlo.cosine" not in text


def test_debug_logging(caplog, said) -> None:
    with caplog.at_level(logging.DEBUG, logger="jaxexp"):
        exported = jaxexp.export(jax.jit(jnp.sin), platforms=("cpu", "tpu"))(arr(3))
    text = said()
    for part in ("sin", "tpu", str(len(exported.mlir_module_serialized)), "stablehlo.sine", "JAX_DUMP_IR_TO"):
        assert part in text
    with caplog.at_level(logging.INFO, logger="jaxexp"):
        jaxexp.export(jax.jit(jnp.sin))(arr(3))
    assert not said()

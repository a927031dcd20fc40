"""Calls to the end: donation, effects, platforms, nesting, calling conventions, logging."""

from __future__ import annotations

import logging
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export as jax_export
from jax import lax

import jaxexp
from kit.compare import assert_same_values
from kit.corpus import arr, f32, spec, touch

LIBRARIES = {"jaxexp": jaxexp, "jax": jax_export}


def reload(exported: Any, vjp_order: int = 0) -> jaxexp.Exported:
    return jaxexp.deserialize(exported.serialize(vjp_order=vjp_order))


def loaded(fun: Any, *specs: Any, vjp_order: int = 0, platforms: Any = None, **kwspecs: Any) -> jaxexp.Exported:
    return reload(jaxexp.export(jax.jit(fun), platforms=platforms)(*specs, **kwspecs), vjp_order)


def merged(text: str) -> list[str]:
    """The exported functions inside the text of a module, each as often as it is defined."""
    return re.findall(r'func\.func private @"?(call_exported_[^"(]+?)(?:_\d+)?"?\(', text)


# --- donation -------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["static", "symbolic"])
def donating(request) -> jaxexp.Exported:
    """{"x": donated, "n": donated but of no result's type}, y -> ({"x": ...}, y)."""
    (b,) = (4,) if request.param == "static" else jaxexp.symbolic_shape("b")
    fun = jax.jit(lambda d, y: ({"x": d["x"] * 2 + d["n"][0]}, y.sum()), donate_argnums=0)
    specs = {"x": spec((b,)), "n": spec((3,), np.int32)}, spec((b, 2))
    with pytest.warns(UserWarning, match="donated buffers were not usable"):
        return reload(jaxexp.export(fun)(*specs), vjp_order=1)


def test_a_call_keeps_its_arguments(donating) -> None:
    """As in jax.export, so a function that was exported from a step of a loop can be called twice on one state."""
    x, n, y = jnp.ones(4), jnp.zeros(3, jnp.int32), jnp.ones((4, 2))
    for call in (
        donating.call,
        jax.jit(donating.call),
        lambda *a: jax_export.deserialize(donating.serialize()).call(*a),
    ):
        for _ in range(2):
            assert_same_values(call({"x": x, "n": n}, y), ({"x": jnp.full(4, 2.0)}, f32(8)))
    jax.grad(lambda x: donating.call({"x": x, "n": n}, y)[0]["x"].sum())(x)
    assert not any(array.is_deleted() for array in (x, n, y))


def test_the_caller_donates(donating) -> None:
    """With `jax.jit(call, donate_argnums=...)`, as in jax.export, with the same warnings about what cannot be used."""
    stock = jax_export.deserialize(donating.serialize())
    for exported in (donating, stock):
        x, n, y = jnp.ones(4), jnp.zeros(3, jnp.int32), jnp.ones((4, 2))
        with pytest.warns(UserWarning, match=r"donated buffers were not usable: .*int32\[3\]"):
            found = jax.jit(exported.call, donate_argnums=0)({"x": x, "n": n}, y)
        assert_same_values(found, ({"x": jnp.full(4, 2.0)}, f32(8)))
        assert [array.is_deleted() for array in (x, n, y)] == [True, False, False]
        x = jnp.ones(4)
        jax.jit(lambda x, n, y, f=exported: f.call({"x": x, "n": n}, y), donate_argnums=0)(x, n, y)
        assert x.is_deleted()


def test_numpy_arguments_are_never_donated(donating) -> None:
    x = np.ones(4, f32)
    jax.jit(lambda x: donating.call({"x": x, "n": np.zeros(3, np.int32)}, np.ones((4, 2), f32)), donate_argnums=0)(x)
    np.testing.assert_array_equal(x, 1)


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_function_says_what_was_donated(library: str) -> None:
    def fun(unused, x, y):
        return y, x + 1

    def exported(donated: tuple[int, ...], *specs: Any) -> Any:
        return reload(LIBRARIES[library].export(jax.jit(fun, donate_argnums=donated))(*specs), 1)

    (b,) = jaxexp.symbolic_shape("b")
    for specs in ((arr(2), arr(4), arr(4)), (spec((b,)),) * 3):
        assert exported((1,), *specs).donated_arguments == (1,)
        assert exported((), *specs).donated_arguments == ()
        assert exported((2,), *specs).donated_arguments == (2,)
        assert exported((2,), *specs).vjp().donated_arguments == ()
    fixed = exported((1,), *specs).specialize(arr(3), arr(3), arr(3))
    assert fixed.donated_arguments == (1,)


# --- effects --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", [("first", "second"), ("second", "first"), ("first", "first", "unordered")])
@pytest.mark.parametrize("library", LIBRARIES)
def test_tokens_go_through_calls(library: str, order) -> None:
    """An exported function keeps the effects of the exported functions that it calls."""

    def fun(x):
        for effect in order:
            x = touch(x, effect)
        return x

    inner = reload(LIBRARIES[library].export(jax.jit(fun))(arr(3)))
    outer = reload(jaxexp.export(jax.jit(lambda x: inner.call(touch(inner.call(x), "second"))))(arr(3)))
    ordered = {"first", "second"} & {*order, "second"}
    assert len(outer.ordered_effects) == len(ordered)
    assert len(inner.unordered_effects) == len(outer.unordered_effects) == ("unordered" in order)
    expected = fun(touch(fun(arr(3)), "second"))
    for call in (outer.call, jax.jit(outer.call), jax_export.deserialize(outer.serialize()).call):
        np.testing.assert_allclose(call(arr(3)), expected, rtol=1e-6)
    module = outer.mlir_module()
    main = re.search(r"func\.func public @main\(.*", module)
    assert main is not None
    assert main[0].count("!stablehlo.token") == 2 * len(ordered)


def test_effects_in_control_flow() -> None:
    inner = loaded(lambda x: touch(x, "unordered"), arr(3))

    def body(x, _):
        return inner.call(x), None

    fun = jax.jit(lambda x: lax.scan(body, x, None, length=3)[0])
    outer = reload(jaxexp.export(fun)(arr(3)))
    assert outer.unordered_effects == inner.unordered_effects
    np.testing.assert_allclose(outer.call(arr(3)), np.sin(np.sin(np.sin(arr(3)))), rtol=1e-6)


# --- nesting --------------------------------------------------------------------------------------------------------


@pytest.fixture
def pair() -> tuple[jaxexp.Exported, jaxexp.Exported]:
    return (
        loaded(lambda x: jnp.sin(x) * 2, arr(3), vjp_order=2),
        loaded(lambda x, y: (x @ y, x + y), arr(3), arr(3), vjp_order=2),
    )


def _in_scan(f, g, x):
    def body(c, y):
        s, t = g(c, y)
        return f(t) / 2, s

    return lax.scan(body, x, jnp.stack([x, x + 1, x - 1]))


def _in_while(f, g, x):
    return lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, f(g(c[1], x)[1])), (0, x))[1]


def _in_cond(f, g, x):
    return lax.cond(x[0] > 0.5, lambda x: f(x), lambda x: g(x, x)[1], x) + lax.switch(1, [f, lambda x: f(f(x))], x)


def _in_remat(f, g, x):
    return jax.checkpoint(lambda x: f(g(x, f(x))[1]))(x)


def _in_map(f, g, x):
    return lax.map(lambda r: g(f(r), x)[0], jnp.stack([x, 2 * x]))


def _in_jit(f, g, x):
    inner = jax.jit(lambda x: f(x) + g(x, x)[0])
    return inner(inner(x))


def _in_custom_vjp(f, g, x):
    @jax.custom_vjp
    def h(x):
        return f(x)

    h.defvjp(lambda x: (f(x), x), lambda x, ct: (ct * g(x, x)[1],))
    return h(x)


NESTS = {fun.__name__: fun for fun in (_in_scan, _in_while, _in_cond, _in_remat, _in_map, _in_jit, _in_custom_vjp)}


@pytest.mark.sampled(one_in=3, reason="many cases go the same way")
@pytest.mark.parametrize("nest", NESTS)
def test_nested_in_control_flow(nest: str, pair) -> None:
    """Exported functions inside control flow inside an exported function; twice, with derivatives."""
    build = NESTS[nest]
    f, g = (lambda x: jnp.sin(x) * 2), (lambda x, y: (x @ y, x + y))
    live = jax.jit(lambda x: build(f, g, x))
    calls = jax.jit(lambda x: build(pair[0].call, pair[1].call, x))
    differentiable = nest != "_in_while"

    once = reload(jaxexp.export(calls)(arr(3)), vjp_order=int(differentiable))
    twice = reload(jaxexp.export(jax.jit(lambda x: once.call(x)))(arr(3)), vjp_order=int(differentiable))
    for call in (calls, once.call, twice.call, jax_export.deserialize(twice.serialize()).call):
        assert_same_values(call(arr(3)), live(arr(3)))
    if differentiable:

        def gradient(fun):
            return jax.grad(lambda x: sum(jnp.sum(leaf) for leaf in jax.tree.leaves(fun(x))))(arr(3))

        for call in (calls, once.call, twice.call):
            np.testing.assert_allclose(gradient(call), gradient(live), rtol=1e-4)


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


def test_same_name_and_other_function() -> None:
    def make(k):
        def same_name(x):
            return x * k

        return loaded(same_name, arr(3))

    two, three = make(2), make(3)
    outer = reload(jaxexp.export(jax.jit(lambda x: two.call(three.call(two.call(x)))))(arr(3)))
    np.testing.assert_allclose(outer.call(arr(3)), arr(3) * 12, rtol=1e-6)


def test_symbols_do_not_clash() -> None:
    """Private functions inside the callees share their names with those of the caller and of each other."""

    def helper_of(k):
        @jax.jit
        def helper(x):
            return x + k

        return lambda x: helper(helper(x))

    one, two = loaded(helper_of(1), arr(3)), loaded(helper_of(10), arr(3))
    outer = reload(jaxexp.export(jax.jit(lambda x: helper_of(100)(two.call(one.call(x)))))(arr(3)))
    np.testing.assert_allclose(outer.call(arr(3)), arr(3) + 222, rtol=1e-6)


# --- platforms ------------------------------------------------------------------------------------------------------


def _tell_platform(x):
    return lax.platform_dependent(x, cpu=lambda x: x + 1, tpu=lambda x: x + 2, cuda=lambda x: x + 3)


MANY = ("tpu", "cpu", "cuda")


@pytest.mark.parametrize("outer_platforms", [("cpu",), ("cpu", "tpu"), ("cuda", "cpu"), ("tpu", "cuda", "cpu")])
@pytest.mark.parametrize("symbolic", [False, True], ids=["static", "symbolic"])
def test_several_platforms_inside_some_of_them(outer_platforms, symbolic: bool) -> None:
    (b,) = jaxexp.symbolic_shape("b") if symbolic else (3,)
    inner = loaded(_tell_platform, spec((b,)), platforms=MANY)
    outer = jaxexp.export(jax.jit(lambda x: inner.call(x) * 10), platforms=outer_platforms)(spec((b,)))
    for library in (jaxexp, jax_export):
        again = library.deserialize(outer.serialize())
        np.testing.assert_allclose(again.call(arr(3)), (arr(3) + 1) * 10, rtol=1e-6)


def test_one_platform_inside_several_is_refused_unless_disabled() -> None:
    inner = loaded(lambda x: x + 1, arr(3), platforms=("cpu",))
    with pytest.raises(jaxexp.ExportError, match="tpu"):
        jaxexp.export(jax.jit(inner.call), platforms=("cpu", "tpu"))(arr(3))
    check = jaxexp.DisabledSafetyCheck.platform()
    unchecked = reload(jaxexp.export(jax.jit(lambda x: x + 1), platforms=("tpu",), disabled_checks=[check])(arr(3)))
    outer = reload(jaxexp.export(jax.jit(unchecked.call), platforms=("cpu", "tpu"))(arr(3)))
    np.testing.assert_allclose(outer.call(arr(3)), arr(3) + 1, rtol=1e-6)


def test_platform_index_in_derivatives_and_batches() -> None:
    inner = loaded(_tell_platform, f32(0), platforms=MANY, vjp_order=1)
    np.testing.assert_allclose(jax.vmap(jax.grad(lambda x: inner.call(x) ** 2))(arr(3)), 2 * (arr(3) + 1), rtol=1e-6)


# --- calling conventions --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [9, 10])
@pytest.mark.parametrize("feature", ["plain", "symbolic", "platforms", "tokens", "dropped", "everything"])
def test_calling_conventions(feature: str, version: int) -> None:
    """What jax.export and jaxexp write under either version takes the same arguments in the same order."""
    everything = feature == "everything"
    (b,) = jaxexp.symbolic_shape("b") if feature == "symbolic" or everything else (3,)
    platforms = MANY if feature == "platforms" or everything else None

    @jax.jit
    def fun(x, unused, y):
        if feature == "tokens" or everything:
            x = touch(touch(x, "first"), "second")
        if platforms:
            x = _tell_platform(x)
        return {"sum": x + y, "size": jnp.int32(x.shape[0])}

    unused = spec((b,)) if feature == "dropped" or everything else spec((b, 1))
    args = arr(3), arr(3) if len(unused.shape) == 1 else arr(3, 1), arr(3)
    before = jax.config.jax_export_calling_convention_version
    jax.config.update("jax_export_calling_convention_version", version)
    try:
        written = {
            name: library.export(fun, platforms=platforms)(spec((b,)), unused, spec((b,)))
            for name, library in LIBRARIES.items()
        }
    finally:
        jax.config.update("jax_export_calling_convention_version", before)
    mains = set()
    for exported in written.values():
        assert exported.calling_convention_version == version
        main = re.search(r"func\.func public @main\((.*?)\) -> \((.*?)\) \{", exported.mlir_module())
        assert main is not None
        mains.add(re.sub(r' loc\("[^"]*"\)| loc\(unknown\)', "", main[0]))
        for reader in LIBRARIES.values():
            assert_same_values(reader.deserialize(exported.serialize()).call(*args), fun(*args))
    assert len(mains) == 1, mains


# --- logging --------------------------------------------------------------------------------------------------------


def test_modules_are_dumped(tmp_path) -> None:
    """`jax_dump_ir_to` gets the module of every export, without debug logging."""
    jax.config.update("jax_dump_ir_to", str(tmp_path))
    try:
        exported = jaxexp.export(jax.jit(jnp.sin))(arr(3))
    finally:
        jax.config.update("jax_dump_ir_to", None)
    (dump,) = tmp_path.glob("*export*.mlir")
    assert "stablehlo.sine" in dump.read_text()
    assert "sin" in dump.name
    assert exported.fun_name == "sin"


def test_debug_logging(caplog) -> None:
    with caplog.at_level(logging.DEBUG, logger="jaxexp"):
        exported = jaxexp.export(jax.jit(jnp.sin), platforms=("cpu", "tpu"))(arr(3))
    text = "\n".join(record.getMessage() for record in caplog.records if record.name.startswith("jaxexp"))
    for part in ("sin", "tpu", str(len(exported.mlir_module_serialized)), "stablehlo.sine", "JAX_DUMP_IR_TO"):
        assert part in text


def test_debug_logging_names_the_dump(caplog, tmp_path) -> None:
    jax.config.update("jax_dump_ir_to", str(tmp_path))
    try:
        with caplog.at_level(logging.DEBUG, logger="jaxexp"):
            jaxexp.export(jax.jit(jnp.sin))(arr(3))
    finally:
        jax.config.update("jax_dump_ir_to", None)
    text = "\n".join(record.getMessage() for record in caplog.records if record.name.startswith("jaxexp"))
    assert next(tmp_path.glob("*export*.mlir")).name in text
    assert "stablehlo.sine" not in text


def test_no_logging_by_default(caplog) -> None:
    with caplog.at_level(logging.INFO, logger="jaxexp"):
        jaxexp.export(jax.jit(jnp.sin))(arr(3))
    assert not [record for record in caplog.records if record.name.startswith("jaxexp")]

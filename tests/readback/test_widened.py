"""A jaxpr in float64: nothing narrow is left but what depends on bits, and rounding errors are where rounding is."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaxexp
from jaxexp._readback import in_float64
from kit.batches import equations
from kit.each import each

pytestmark = pytest.mark.jax

_random = np.random.RandomState(0)
A = _random.standard_normal((4, 4)).astype(np.float32)
X = _random.standard_normal(4).astype(np.float32)


def wide(function: Any, *arguments: Any, size: float = 0.0, seed: int = 0) -> tuple[list[Any], Any]:
    """The results of an exported function in float64, and the jaxpr that makes them."""
    closed = jaxexp.export(jax.jit(function))(*arguments).make_jaxpr()
    signs = np.random.RandomState(seed).random_sample
    errors = in_float64.table_of(closed.jaxpr, lambda count: signs(count) < 0.5, size)
    given = [x.astype(in_float64.dtype_of(x.dtype)) for x in arguments]
    with jax.enable_x64(True):
        evaluate = lambda errors, *arrays: in_float64.evaluated(closed, errors, arrays)  # noqa: E731
        return [np.asarray(x) for x in jax.jit(evaluate)(errors, *given)], jax.make_jaxpr(evaluate)(errors, *given)


def loops(a: jax.Array, x: jax.Array) -> Any:
    x = lax.fori_loop(0, 5, lambda i, x: jnp.tanh(a @ x) + i, x)
    x = lax.while_loop(lambda x: jnp.sum(x) < 100, lambda x: x * 2 + 3, x)
    last, every = lax.scan(lambda c, t: (c * 0.5 + t, jnp.sin(c)), x, a)
    return lax.cond(last[0] > 0, jnp.exp, jnp.cos, last / 100), every


EXACT = {
    "loops": loops,
    "linear algebra": lambda a, x: (jnp.linalg.solve(a, x), jnp.linalg.eigvalsh(a + a.T), jnp.linalg.svd(a)[1]),
    "reductions": lambda a, x: (
        jnp.cumsum(x),
        jnp.argsort(a, axis=1),
        jnp.sort(a),
        x.at[jnp.array([1, 1])].add(x[:2]),
        lax.reduce_window(a, 0.0, lax.add, (2, 2), (1, 1), "SAME"),
        jnp.fft.rfft(x),
        lax.conv_general_dilated(a[None, None], a[None, None, :2, :2], (1, 1), "SAME"),
    ),
}


@each("name", EXACT)
def test_it_is_float64(name: str) -> None:
    function = EXACT[name]
    found, jaxpr = wide(function, A, X)
    with jax.enable_x64(True):
        expected = jax.tree_util.tree_leaves(jax.jit(function)(A.astype(np.float64), X.astype(np.float64)))
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == other.dtype or one.dtype.kind == other.dtype.kind == "i"
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-12)
    narrow = {e.primitive.name for e in equations(jaxpr.jaxpr) for v in e.outvars if v.aval.dtype == np.float32}
    assert narrow <= {"convert_element_type"}  # whether a number needs rounding


def test_narrow_floats_are_not_rounded() -> None:
    found, _ = wide(lambda x: (x.astype(jnp.bfloat16) * 3, lax.reduce_precision(x, 5, 2)), X)
    np.testing.assert_array_equal(found, [X.astype(np.float64) * 3, X.astype(np.float64)])


def test_bits_and_random_numbers_stay() -> None:
    def f(x: jax.Array, n: jax.Array) -> Any:
        return lax.bitcast_convert_type(x, np.int32), jnp.nextafter(x, 9.0), jax.random.bits(jax.random.key(n), (4,))

    n = np.int32(3)
    found, _ = wide(f, X, n)
    for one, other in zip(found, jax.jit(f)(X, n), strict=True):
        np.testing.assert_array_equal(one, other)


def test_other_custom_calls_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is known for float32 only gets float32."""
    monkeypatch.setattr(in_float64, "_LAPACK", in_float64.re.compile("none()()()"))
    (found,), _ = wide(jnp.linalg.cholesky, A @ A.T + 4 * np.eye(4, dtype=np.float32))
    np.testing.assert_array_equal(found, found.astype(np.float32))


# --- rounding errors --------------------------------------------------------------------------------------------------


def relative(function: Any, *arguments: Any, seed: int = 0) -> np.ndarray[Any, Any]:
    """The errors of the result, in parts of half a unit in the last place of float32."""
    (exact,), _ = wide(function, *arguments)
    (found,), _ = wide(function, *arguments, size=1.0, seed=seed)
    return np.asarray((found - exact) / np.abs(exact) * 2**24)


def test_an_operation_rounds_once() -> None:
    errors = relative(jnp.exp, _random.standard_normal(1000).astype(np.float32))
    np.testing.assert_allclose(np.abs(errors), 1, rtol=1e-6)
    assert 400 < np.count_nonzero(errors > 0) < 600
    assert np.any(errors != relative(jnp.exp, np.ones(1000, np.float32), seed=1))
    whole = np.arange(1, 9, dtype=np.float32)
    assert not relative(lambda x: jnp.cumsum(x[::-1] * 2 + 1).reshape(2, 4).sum(), whole).any(), "these are exact"


def test_a_sum_rounds_more() -> None:
    """Products of narrow floats are added in float32."""
    errors = relative(lambda x: x.sum(0), (1 + _random.random_sample((6400, 100))).astype(np.float32))
    np.testing.assert_allclose(np.abs(errors), np.sqrt(6400) / 4, rtol=1e-3)
    x = (1 + _random.random_sample((1, 4096))).astype(jnp.bfloat16)
    assert abs(relative(lambda x: x @ x.T, x).item()) == pytest.approx(2**16, rel=1e-3)


C = (A + 1j * A.T).astype(np.complex64)


@each(
    "function",
    [jnp.fft.fft, lambda c: c @ c, lambda c: jnp.cumsum(c, axis=0), jnp.sum, lambda c: jnp.exp(c) * c[::-1]],
)
def test_both_parts_of_complex_numbers_round(function: Any) -> None:
    """By errors of their own, which are relative to the number."""
    (exact,), _ = wide(function, C)
    (found,), _ = wide(function, C, size=1.0)
    errors = (found - exact) / np.abs(exact)
    assert all(2**-27 < np.abs(part).mean() < 2**-19 for part in (errors.real, errors.imag))


def test_a_sum_of_two_rounds_each_part_by_itself() -> None:
    """What is real stays so."""
    (found,), _ = wide(lambda c: c + c[::-1], A.astype(np.complex64), size=1.0)
    assert np.all(found.imag == 0)
    exact = C + C[::-1].astype(complex)
    (found,), _ = wide(lambda c: c + C, C[::-1].copy(), size=1.0)
    errors = (found - exact).real / exact.real, (found - exact).imag / exact.imag
    assert all(0 < np.abs(error).max() < 2**-23 for error in errors)
    assert np.any(errors[0] != errors[1])


def test_turns_of_a_loop_have_errors_of_their_own() -> None:
    """Errors of many turns cancel as random ones do."""
    x = (1 + _random.random_sample(200)).astype(np.float32)
    errors = relative(lambda x: lax.fori_loop(0, 1024, lambda i, x: x * 1.0000001, x), x)
    assert 20 < np.sqrt(np.mean(errors**2)) < 50


def test_too_many_equations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_float64, "MOST_EQUATIONS", 2)
    with pytest.raises(jaxexp.errors.UnsupportedError, match="more than 2 equations"):
        wide(lambda x: jnp.sin(jnp.cos(jnp.exp(x))), X)

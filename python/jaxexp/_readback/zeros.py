"""Functions of each element whose derivatives keep zeros: a tangent or cotangent of 0 stays 0, whatever the slope is.

Code often computes what it does not choose: the root of a negative number, a series outside of its interval. There
the cotangent is 0, and the slope may be infinite or NaN. JAX's own functions have derivative rules for this. A module
has only what they were lowered to, of which JAX's rules make NaN.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import jax
from jax import lax
from jax.custom_derivatives import SymbolicZero

from jaxexp import _jax
from jaxexp._errors import UnsupportedError

from .carried import at_front, size_of
from .operation import Operation, Read

# In fewer operations than JAX makes of a product, and without overflow in a quotient.
_SLOPES: Mapping[Any, Sequence[Callable[..., Any]]] = {
    lax.mul: (lambda x, y: y, lambda x, y: x),
    lax.div: (lambda x, y: lax.div(lax.full_like(y, 1), y), lambda x, y: lax.neg(lax.div(lax.div(x, y), y))),
}


def keeping(read: Read) -> Read:
    """Reads an operation as `read` does; a function of each element gets derivatives, of any order, that keep zeros."""

    def read_keeping(operation: Operation) -> Any:
        made, types = read(operation), {*operation.operands, *operation.results}
        return _keeping(made) if callable(made) and [type_.kind in "fc" for type_ in types] == [True] else made

    return read_keeping


def absolute(operation: Operation) -> Callable[..., Any]:
    """`abs` with the slope 0 at 0: the mean of both sides, as JAX has it for `max`. With JAX's slope of 1, that of
    softplus, which is `max(x, 0) + log1p(exp(-abs(x)))`, would be 0 there.
    """
    return (lambda x: lax.mul(x, lax.sign(x))) if operation.operands[0].kind == "f" else lax.abs


def bits(operation: Operation) -> Callable[..., Any]:
    """`bitcast_convert`, which refuses to be differentiated: for JAX, the derivative is 0."""
    dtype, place = operation.results[0].dtype, operation.place
    bitcast = jax.custom_jvp(lambda x: lax.bitcast_convert_type(x, dtype))

    def refuse(primals: Any, tangents: Any) -> NoReturn:
        raise UnsupportedError(
            f"stablehlo.bitcast_convert{place and f' at {place}'} takes the bits of a number apart, and there is no "
            "derivative through bits. Let the producer keep the function that does so, as an operation of CHLO"
        )

    bitcast.defjvp(refuse)
    return bitcast


def _keeping(function: Callable[..., Any]) -> Callable[..., Any]:
    def rule(primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        terms = [
            _product(tangent, _keeping(functools.partial(_slope, function, i))(*primals))
            for i, tangent in enumerate(tangents)
            if not isinstance(tangent, SymbolicZero)
        ]
        return same(*primals), functools.reduce(lax.add, terms)

    same = jax.custom_jvp(lambda *arrays: function(*arrays))
    same.defjvp(rule, symbolic_zeros=True)
    return same


def _slope(function: Callable[..., Any], i: int, *arrays: Any) -> Any:
    """The derivative of a function of each element by its argument `i`."""
    if function in _SLOPES:
        return _SLOPES[function][i](*arrays)

    def of_one(array: Any) -> Any:
        return function(*arrays[:i], array, *arrays[i + 1 :])

    return jax.jvp(of_one, arrays[i : i + 1], (lax.full_like(arrays[i], 1),))[1]


def _lowered(left: Any, right: Any, *, either: bool) -> Sequence[Any]:
    zero = lax.full_like(left, 0)
    is_zero = lax.eq(left, zero)
    if either:
        is_zero = lax.bitwise_or(is_zero, lax.eq(right, zero))
    return [lax.select(is_zero, zero, lax.mul(left, right))]


def _batched(arrays: Sequence[Any], dims: Sequence[int | None], *, either: bool) -> tuple[Any, int]:
    size = size_of(arrays, dims)
    return _product(*(at_front(array, dim, size) for array, dim in zip(arrays, dims, strict=True)), either=either), 0


def _product(left: Any, right: Any, *, either: bool = False) -> Any:
    """A product that is 0 if its left factor is, which is a tangent; or if `either` is, where both factors are."""
    return product_p.bind(left, right, either=either)


product_p = _jax.Primitive("product_keeping_zeros")
product_p.def_abstract_eval(lambda left, right, *, either: left)
product_p.def_impl(functools.partial(_jax.apply_primitive, product_p))
_jax.register_lowering(product_p, _jax.lower_as_function(_lowered))
_jax.primitive_batchers[product_p] = _batched
_jax.define_bilinear(
    product_p,
    lambda ct, _, right, *, either: _product(ct, right, either=either),
    lambda ct, left, _, *, either: _product(left, ct, either=either),
)
_jax.define_jvp(
    product_p,
    lambda tangent, _, right, *, either: _product(tangent, right, either=either),
    lambda tangent, left, _, *, either: _product(left, tangent, either=True),
)

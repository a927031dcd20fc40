"""A jaxpr in float64: every float of less than 64 bits, given or in between, is held in float64 (complex128).

Integers and bools stay, and so does what depends on bits: such an equation gets its operands in their own dtypes.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxexp import _jax
from jaxexp._errors import UnsupportedError

from .noise import Noise, next_turn

_WIDE: dict[Any, Any] = {
    np.dtype(jnp.bfloat16): np.dtype(np.float64),
    np.dtype(np.float16): np.dtype(np.float64),
    np.dtype(np.float32): np.dtype(np.float64),
    np.dtype(np.complex64): np.dtype(np.complex128),
}
_OF_DTYPES = ("dtype", "new_dtype", "out_dtype", "output_dtype", "preferred_element_type")
# What these make depends on how many bits a float has.
_OF_BITS = frozenset(("bitcast_convert_type", "nextafter", "rng_uniform"))
# What a reduction does is in a jaxpr, too.
_OF_NUMBERS = frozenset(("reduce", "reduce_window", "scatter", "scatter-add", "scatter-mul", "sort"))
# LAPACK has each function for four dtypes.
_LAPACK = re.compile(r"((?:lapack|blas)_)([sc])(\w+_ffi)")
_WIDE_LAPACK = {"s": "d", "c": "z"}
# With each call written out, and each loop entered once.
MOST_EQUATIONS = 2000


def dtype_of(dtype: Any) -> Any:
    """The dtype in which arrays of this one are held."""
    return _WIDE.get(dtype, dtype)


def evaluated(closed: Any, errors: Any, arrays: Sequence[Any]) -> list[Any]:
    """The results of a closed jaxpr, for operands that are held as `dtype_of` says, as the results are.

    It is to be traced, with `jax.enable_x64`.

    Args:
        closed: the jaxpr.
        errors: the rounding errors, which `noise.table_of` makes.
        arrays: the operands.

    Raises:
        UnsupportedError: with each call written out, there are too many equations.
        Exception: whatever JAX raises for an equation.
    """
    return _Widening(Noise(errors)).closed(closed, arrays)


class _Widening:
    """Runs jaxprs, and enters calls and loops."""

    def __init__(self, noise: Noise) -> None:
        self._noise = noise
        self._count = 0
        self._enter: dict[str, Callable[..., Sequence[Any]]] = {
            "cond": self._cond,
            "while": self._while,
            "scan": self._scan,
        }

    def closed(self, closed: Any, arrays: Sequence[Any]) -> list[Any]:
        return self._run(closed.jaxpr, closed.consts, arrays)

    def _run(self, jaxpr: Any, constants: Sequence[Any], arrays: Sequence[Any]) -> list[Any]:
        known: dict[Any, Any] = {}

        def value(atom: Any) -> Any:
            return _held(atom.val, atom.aval) if isinstance(atom, _jax.Literal) else known[atom]

        known.update((v, _held(constant, v.aval)) for v, constant in zip(jaxpr.constvars, constants, strict=True))
        known.update(zip(jaxpr.invars, arrays, strict=True))
        for equation in jaxpr.eqns:
            results = self._equation(equation, [value(atom) for atom in equation.invars])
            known.update((v, _held(result, v.aval)) for v, result in zip(equation.outvars, results, strict=True))
        return [value(atom) for atom in jaxpr.outvars]

    def _equation(self, equation: Any, operands: Sequence[Any]) -> Sequence[Any]:
        self._count += 1
        if self._count > MOST_EQUATIONS:
            raise UnsupportedError(f"with each call written out, it has more than {MOST_EQUATIONS:,} equations")
        name, params = equation.primitive.name, equation.params
        if name in self._enter:
            return self._enter[name](params, operands)
        for key in ("call_jaxpr", "jaxpr") if name not in _OF_NUMBERS else ():
            if isinstance(params.get(key), _jax.ClosedJaxpr):
                return self.closed(params[key], operands)
        if name == "reduce_precision":
            return operands
        before, after = ([_narrow(atom.aval) for atom in atoms] for atoms in (equation.invars, equation.outvars))
        if name not in _OF_BITS:
            # An equation that JAX does not make of wide operands gets its own.
            with contextlib.suppress(Exception):
                wide = _wide_params(name, params)
                moved = self._noise.before(name, operands, before)
                results = _bound(equation.primitive, moved, wide)
                return self._noise.after(equation, wide, operands, results, after)
        own = [
            x if dtype is None else lax.convert_element_type(x, dtype)
            for x, dtype in zip(operands, before, strict=True)
        ]
        return _bound(equation.primitive, own, params)

    def _turn(self, closed: Any, turn: Any, arrays: Sequence[Any]) -> tuple[Any, list[Any]]:
        """One turn of a loop; and what tells the next one from it."""
        outer, self._noise.turn = self._noise.turn, turn
        results = self.closed(closed, arrays)
        self._noise.turn = outer
        return next_turn(turn), results

    def _cond(self, params: dict[str, Any], operands: Sequence[Any]) -> Sequence[Any]:
        index, *rest = operands
        branches = [lambda *arrays, branch=branch: self.closed(branch, arrays) for branch in params["branches"]]
        return lax.switch(lax.convert_element_type(index, np.int32), branches, *rest)

    def _while(self, params: dict[str, Any], operands: Sequence[Any]) -> Sequence[Any]:
        of_test, of_body = params["cond_nconsts"], params["body_nconsts"]
        test, body = operands[:of_test], operands[of_test : of_test + of_body]

        def goes_on(carry: Any) -> Any:
            return self._turn(params["cond_jaxpr"], carry[0], [*test, *carry[1]])[1][0]

        def turn(carry: Any) -> Any:
            return self._turn(params["body_jaxpr"], carry[0], [*body, *carry[1]])

        return lax.while_loop(goes_on, turn, (self._noise.start(), list(operands[of_test + of_body :])))[1]

    def _scan(self, params: dict[str, Any], operands: Sequence[Any]) -> Sequence[Any]:
        if "num_consts" in params:
            first, count = params["num_consts"], params["num_carry"]
        else:  # since JAX 0.12
            first, count = (len(part) for part in params["ft_in"].unpack()[:2])
        constants, carried, each = operands[:first], operands[first : first + count], operands[first + count :]

        def turn(carry: Any, xs: Any) -> Any:
            following, results = self._turn(params["jaxpr"], carry[0], [*constants, *carry[1], *xs])
            return (following, results[:count]), results[count:]

        (_, last), every = lax.scan(
            turn,
            (self._noise.start(), list(carried)),
            list(each),
            length=params["length"],
            reverse=params["reverse"],
            unroll=params["unroll"],
        )
        return [*last, *every]


def _wide_params(name: str, params: dict[str, Any]) -> dict[str, Any]:
    if name == "ffi_call":
        target = _LAPACK.fullmatch(params["target_name"])
        if target is None:
            raise NotImplementedError(params["target_name"])
        before, kind, after = target.groups()
        results = tuple(_wide_aval(aval) for aval in params["result_avals"])
        return {**params, "target_name": f"{before}{_WIDE_LAPACK[kind]}{after}", "result_avals": results}
    return {key: _wide_param(key, value) for key, value in params.items()}


def _wide_param(key: str, value: Any) -> Any:
    if key in _OF_DTYPES and value is not None:
        return dtype_of(np.dtype(value))
    if key == "precision":
        return None
    if isinstance(value, _jax.ClosedJaxpr):
        closed: Any = value
        return _wide_jaxpr(closed.jaxpr, closed.consts)
    if isinstance(value, _jax.Jaxpr):
        return _wide_jaxpr(value, ()).jaxpr
    return value


class _Exact(Noise):
    """No rounding errors."""

    def __init__(self) -> None:
        super().__init__(None)

    def before(self, name: str, operands: Sequence[Any], dtypes: Sequence[Any]) -> list[Any]:
        return list(operands)

    def after(self, equation: Any, params: Any, operands: Any, results: Sequence[Any], dtypes: Any) -> list[Any]:
        return list(results)


def _wide_jaxpr(jaxpr: Any, constants: Sequence[Any]) -> Any:
    """What a reduction or a scatter does with two numbers, without rounding errors."""

    def exact(*arrays: Any) -> list[Any]:
        widening = _Widening(_Exact())
        return widening._run(jaxpr, constants, arrays)

    return jax.make_jaxpr(exact)(*[_wide_aval(variable.aval) for variable in jaxpr.invars])


def _narrow(aval: Any) -> Any:
    """The dtype of a float that is held in a wider one; None for other types."""
    dtype = getattr(aval, "dtype", None)
    return dtype if dtype in _WIDE else None


def _wide_aval(aval: Any) -> Any:
    return aval.update(dtype=dtype_of(aval.dtype)) if aval.dtype in _WIDE else aval


def _held(value: Any, aval: Any) -> Any:
    """A value of this type as it is held."""
    wide = _WIDE.get(getattr(aval, "dtype", None))
    if wide is None or getattr(value, "dtype", None) == wide:
        return value
    if not hasattr(value, "aval"):  # a constant, which has the precision of its dtype
        return np.asarray(value, aval.dtype).astype(wide)
    return lax.convert_element_type(value, wide)


def _bound(primitive: Any, operands: Sequence[Any], params: dict[str, Any]) -> Sequence[Any]:
    found = primitive.bind(*operands, **params)
    return found if primitive.multiple_results else (found,)

"""An exported function compiled in float64, with rounding errors as they are asked for.

Its jaxpr is evaluated so that every float of less than 64 bits, given or in between, is held in float64 (complex128).
Integers and bools stay, and so does what depends on bits: such an equation gets its operands in their own dtypes.

Rounding errors are drawn at random: what an operation of a narrow float may return. An operation that rounds gets a
relative error of half a unit in the last place, up or down. A sum of n terms gets a quarter of the square root of n
times as much, which it has from left to right: a rounding is 0.4 of its limit in the root mean square, and partial sums
are 0.6 of the last one. Algorithms of linear algebra get operands nearby. Results that need no rounding get no error.
Both parts of a complex number get one: relative to the number, as products round them, or to the part, where an
operation rounds each part by itself.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxexp import _jax
from jaxexp._errors import UnsupportedError
from jaxexp._kernel.function.data import ExportedData

from .read_back import raised_for

_QUICKLY = {"xla_backend_optimization_level": 0}  # it runs a few times only


@dataclasses.dataclass(frozen=True)
class InFloat64:
    """A function in float64, for arguments of known shapes.

    Attributes:
        nbytes: how many bytes its numbers in between take.
    """

    _program: ExportedData
    _closed: Any
    _compiled: Any
    nbytes: int

    def errors(self, signs: Callable[[int], np.ndarray[Any, Any]], size: float) -> np.ndarray[Any, Any]:
        """Rounding errors for a run, as `table_of` makes them."""
        return table_of(self._closed.jaxpr, signs, size)

    def __call__(self, leaves: Sequence[Any], errors: np.ndarray[Any, Any]) -> list[Any]:
        """The flat results for flat arguments, both in float64; None for results of float0."""
        given = [leaf for leaf, aval in zip(leaves, self._program.in_avals, strict=True) if aval.dtype != _jax.float0]
        with jax.enable_x64(True):
            found = iter(self._compiled(errors, *given))
        return [None if aval.dtype == _jax.float0 else next(found) for aval in self._program.out_avals]


def in_float64(program: ExportedData, leaves: Sequence[Any]) -> InFloat64:
    """Compiles a function for flat arguments like these, on a CPU if JAX has one.

    Raises:
        UnsupportedError: it cannot be read back, or has too many equations.
        Exception: whatever JAX raises.
    """
    # JAX takes no arguments of float0.
    given = [index for index, aval in enumerate(program.in_avals) if aval.dtype != _jax.float0]

    def flat(*arrays: Any) -> list[Any]:
        every = list(leaves)
        for index, array in zip(given, arrays, strict=True):
            every[index] = array
        results = read(*every)
        return [result for result, aval in zip(results, program.out_avals, strict=True) if aval.dtype != _jax.float0]

    with jax.enable_x64(True), jax.default_device(_cpu()):
        avals = [_jax.ShapedArray(jax.numpy.shape(leaf), leaf.dtype) for leaf in leaves]
        read = raised_for(program, avals, "cpu" if "cpu" in program.platforms else program.platforms[0]).inline
        closed = jax.make_jaxpr(flat)(*[jax.ShapeDtypeStruct(avals[i].shape, avals[i].dtype) for i in given])
        specs = [jax.ShapeDtypeStruct(avals[i].shape, dtype_of(avals[i].dtype)) for i in given]
        errors = table_of(closed.jaxpr, lambda count: np.zeros(count, bool), 0.0)
        lowered: Any = jax.jit(lambda errors, *arrays: evaluated(closed, errors, arrays)).lower(errors, *specs)
        compiled: Any = lowered.compile(_QUICKLY)
    return InFloat64(program, closed, compiled, getattr(compiled.memory_analysis(), "temp_size_in_bytes", 0))


def _cpu() -> Any:
    """A device that has float64; None, which is the default one, if there is no CPU for JAX."""
    try:
        return jax.local_devices(backend="cpu")[0]
    except RuntimeError:
        return None


# --- a jaxpr in float64

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
        errors: the rounding errors, which `table_of` makes.
        arrays: the operands.

    Raises:
        UnsupportedError: with each call written out, there are too many equations.
        Exception: whatever JAX raises for an equation.
    """
    return _Evaluation(errors).closed(closed, arrays)


class _Evaluation:
    """Runs jaxprs, and enters calls and loops.

    Attributes:
        turn: what tells a turn of a loop from the others: a uint32, traced; None outside of loops.
    """

    def __init__(self, errors: Any) -> None:
        self._errors = errors  # None for no errors
        self.turn: Any = None
        self._equations = self._draws = 0
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
        self._equations += 1
        if self._equations > MOST_EQUATIONS:
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
                is_noisy = self._errors is not None
                moved = list(map(self._moved, operands, before)) if is_noisy and name in _BACKWARD_STABLE else operands
                results = _bound(equation.primitive, moved, wide)
                return self._rounded(equation, wide, operands, results, after) if is_noisy else results
        own = (
            x if dtype is None else lax.convert_element_type(x, dtype)
            for x, dtype in zip(operands, before, strict=True)
        )
        return _bound(equation.primitive, list(own), params)

    def _start(self) -> Any:
        """The first turn of a loop."""
        self._draws += 1
        return np.uint32(self._draws) if self.turn is None else self.turn + np.uint32(self._draws)

    def _turn(self, closed: Any, turn: Any, arrays: Sequence[Any]) -> tuple[Any, list[Any]]:
        """One turn of a loop; and what tells the next one from it."""
        outer, self.turn = self.turn, turn
        results = self.closed(closed, arrays)
        self.turn = outer
        return turn * np.uint32(5) + np.uint32(12345), results

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

        return lax.while_loop(goes_on, turn, (self._start(), list(operands[of_test + of_body :])))[1]

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
            (self._start(), list(carried)),
            list(each),
            length=params["length"],
            reverse=params["reverse"],
            unroll=params["unroll"],
        )
        return [*last, *every]

    # --- rounding errors

    def _rounded(
        self, equation: Any, params: dict[str, Any], operands: Sequence[Any], results: Sequence[Any], dtypes: Any
    ) -> Sequence[Any]:
        """Results of an operation; of these dtypes, None for those that are not rounded."""
        name = equation.primitive.name
        if name in _EXACT or all(dtype is None for dtype in dtypes):
            return results
        if name == "convert_element_type":
            before, after = equation.invars[0].aval.dtype, equation.outvars[0].aval.dtype
            if jnp.promote_types(before, after) == after and before.kind == after.kind:  # each number is one of `after`
                return results
        moved = [self._moved(x, dtype, name in _BY_PARTS) for x, dtype in zip(results, dtypes, strict=True)]
        (x, *_), (dtype, *_) = results, dtypes
        if terms := _terms(name, params, operands):
            partial = _of_magnitudes(equation.primitive, params, operands)
            unit = float(jnp.finfo(np.float32).eps / jnp.finfo(dtype).eps) if name in _IN_FLOAT32 else 1.0
            of_sum = jnp.maximum(math.sqrt(terms) * jnp.abs(x), partial) * (unit / 4)
            error = self._error(x, dtype) * jnp.maximum(jnp.abs(x), of_sum)
            moved[0] = jnp.where(_fits(x, dtype) & _fits(partial, jnp.finfo(dtype).dtype), x, x + error)
        elif name == "fft":
            size = math.log2(max(2, math.prod(params["fft_lengths"]))) * jnp.sqrt(jnp.mean(jnp.abs(x) ** 2))
            moved[0] = x + self._error(x, dtype) * size
        elif name in _PRODUCTS:
            axes = params["axes"] if "axes" in params else (params["axis"],)
            terms = math.prod(np.shape(operands[0])[axis] for axis in axes)
            moved[0] = x + (moved[0] - x) * max(1.0, math.sqrt(terms) / 4)
        elif name in _MAY_FIT:
            moved[0] = jnp.where(_fits(x, dtype), x, moved[0])
        return moved

    def _moved(self, x: Any, dtype: Any, by_parts: bool = False) -> Any:
        """Numbers of a dtype with errors; as they are if it is None."""
        if dtype is None:
            return x
        shape = np.shape(x)
        if x.dtype.kind != "c":
            return x * self._factor(shape, dtype)
        if by_parts:
            return lax.complex(*(part * self._factor(shape, dtype) for part in (lax.real(x), lax.imag(x))))
        return x + x * self._error(x, dtype)

    def _error(self, x: Any, dtype: Any) -> Any:
        """Errors for numbers of a dtype, as parts of them."""
        error = self._factor(np.shape(x), dtype) - 1
        return lax.complex(error, self._factor(np.shape(x), dtype) - 1) if x.dtype.kind == "c" else error

    def _factor(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """Factors for numbers of a dtype."""
        self._draws += 1
        count, place = math.prod(shape), self._draws * 40503 % _PLACES
        if self.turn is None:
            found = lax.slice(self._errors, (place,), (place + count,))
        else:
            start = (self.turn + np.uint32(place)) % np.uint32(_PLACES)
            found = lax.dynamic_slice(self._errors, (start,), (count,))
        unit = float(jnp.finfo(dtype).eps / jnp.finfo(np.float32).eps)
        return lax.reshape(found if unit == 1 else 1 + (found - 1) * unit, shape)


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


def _wide_jaxpr(jaxpr: Any, constants: Sequence[Any]) -> Any:
    """What a reduction or a scatter does with two numbers, without rounding errors."""
    avals = [_wide_aval(variable.aval) for variable in jaxpr.invars]
    return jax.make_jaxpr(lambda *arrays: _Evaluation(None)._run(jaxpr, constants, arrays))(*avals)


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


# --- which operations round, and how much

# Operations that only move or choose numbers, or whose results need no rounding.
_EXACT = frozenset(
    """
    abs broadcast_in_dim ceil clamp complex concatenate conj copy copy_p cummax cummin dynamic_slice
    dynamic_update_slice expand_dims floor gather imag iota max min neg optimization_barrier pad real reduce_max
    reduce_min rem reshape rev round scatter scatter-max scatter-min select_n sign slice sort split squeeze
    stop_gradient top_k transpose
    """.split()
)
# What every backend adds up in float32 at least.
_IN_FLOAT32 = frozenset(("dot_general", "conv_general_dilated"))
# Operations of which many results need no rounding, such as sums of small integers.
_MAY_FIT = frozenset(
    "add add_any convert_element_type div integer_pow mul pow reduce scatter-add scatter-mul sqrt square sub".split()
)
# Operations that round each part of a complex number by itself.
_BY_PARTS = frozenset("add add_any convert_element_type sub".split())
_PRODUCTS = frozenset(("reduce_prod", "cumprod"))
# Algorithms that are exact for operands nearby.
_BACKWARD_STABLE = frozenset(("ffi_call", "triangular_solve", "cholesky", "lu", "qr", "eigh", "eig", "svd"))


def _terms(name: str, params: dict[str, Any], operands: Sequence[Any]) -> int:
    """How many numbers a sum has; 0 for other operations."""
    shape = np.shape(operands[0])
    if name == "reduce_sum":
        return math.prod(shape[axis] for axis in params["axes"])
    if name == "cumsum":
        return int(shape[params["axis"]])
    if name == "dot_general":
        (contracted, _), _ = params["dimension_numbers"]
        return math.prod(shape[axis] for axis in contracted)
    if name == "conv_general_dilated":
        kernel = np.shape(operands[1])
        return math.prod(kernel) // kernel[params["dimension_numbers"].rhs_spec[0]]
    if name in ("reduce_window", "reduce_window_sum"):
        return math.prod(params["window_dimensions"])
    return 0


# From how many places in a table errors are taken.
_PLACES = 1 << 16


def table_of(jaxpr: Any, signs: Callable[[int], np.ndarray[Any, Any]], size: float) -> np.ndarray[Any, Any]:
    """The errors of an evaluation of a jaxpr: factors for float32.

    Args:
        jaxpr: what is evaluated.
        signs: so many bools at random.
        size: how large the errors are, in parts of what rounding makes.
    """
    unit = float(np.finfo(np.float32).eps) / 2 * size
    return np.where(signs(_PLACES + _largest(jaxpr)), 1 + unit, 1 - unit)


def _largest(jaxpr: Any) -> int:
    """The most numbers that an operation in a jaxpr takes or returns in one array."""
    sizes = (math.prod(v.aval.shape) for e in jaxpr.eqns for v in (*e.invars, *e.outvars) if hasattr(v.aval, "shape"))
    inner = (_largest(one) for equation in jaxpr.eqns for one in _jax.jaxprs_in_params(equation.params))
    return max((*sizes, *inner), default=0)


def _of_magnitudes(primitive: Any, params: dict[str, Any], operands: Sequence[Any]) -> Any:
    """The sums of magnitudes in place of numbers: about as large as partial sums can be."""
    found = primitive.bind(*(jnp.abs(x).astype(x.dtype) if x.dtype.kind in "fc" else x for x in operands), **params)
    return jnp.abs(found[0] if primitive.multiple_results else found)


def _fits(x: Any, dtype: Any) -> Any:
    """Whether numbers need no rounding."""
    return lax.convert_element_type(lax.convert_element_type(x, dtype), x.dtype) == x

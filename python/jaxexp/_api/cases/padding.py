"""Whether a function may be padded, as `save` is told: it runs with larger arrays, and what is kept is compared."""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from jaxexp import _jax
from jaxexp._errors import ExportError, cause
from jaxexp._kernel.artifact.cases import FLOAT0, Array, Drawn, integers_of, storage
from jaxexp._kernel.artifact.words import dtype_and_shape, name_of_order
from jaxexp._kernel.call.primitive import check as check_types
from jaxexp._kernel.call.specialize import sizes_fit
from jaxexp._kernel.function.paths import argument_paths, result_paths
from jaxexp._kernel.function.specs import dimension_variables
from jaxexp._kernel.write.fitting import name_of

from .calling import Chain
from .comparing import compared, finfo, wide
from .machine import explained
from .recording import cotangents_of, flat_arguments, options_of
from .report import DIFFERS, OF_DTYPE, Compared

logger = logging.getLogger(__name__)

# Sizes for functions of which none are known. Not the smallest first: a function of one row mixes it with no other.
_SIZES = (4, 6, 3, 8, 5, 7, 2, 9, 12, 16, 10, 1, 24, 32, 64, 128)
_MOST_TRIED = 4096
# How large noise is, compared with arguments: it shows wherever it goes. Products of it, as in attention, are finite: a
# mask multiplies what it hides by 0, and an infinite number times 0 is NaN.
_NOISE, _NARROW_NOISE = 100.0, 8.0
_ZEROS, _OF_NOISE = "zeros", "random numbers"


class _CannotRunError(Exception):
    """The function does not run here, or nothing is known to run it with."""


def check(
    exported: Any,
    padded: Sequence[str],
    sizes: Sequence[Mapping[str, int]],
    vjp_order: Any,
    given: Iterable[Any],
    must: bool,
) -> None:
    """Compares what a function and its VJPs return with and without padding along each dimension by itself.

    Behind the arguments are zeros, as in `jaxexp.runtime`, and then random numbers: zeros may change no result of the
    arguments that are tried, and one of others. Cotangents get zeros only: a function's gradient sums over what is
    padded.

    Args:
        sizes: the sets of sizes that are saved with the function, which are tried first.
        vjp_order: up to which order its VJPs are saved.
        given: the `cases` of `save`, whose arguments are used.
        must: whether it is an error if the function cannot run here.

    Raises:
        ExportError: results differ by more than those of a case may.
    """
    where = f"saving {exported.fun_name} with pad={tuple(padded)}"
    try:
        if exported.nr_devices > 1:
            raise _CannotRunError("a function for several devices is never padded")
        checking = _Checking(exported, where, sizes, given)
        for name in padded:
            checking.along(name, vjp_order, tuple(other for other in padded if other != name))
    except _CannotRunError as error:
        if must:
            said = f"{where}: cannot check that padding keeps the results: {error}"
            raise ExportError(said) from cause(error.__cause__ or error)
        logger.info("%s: its batch_dim is not checked: %s", where, error)


class _Checking:
    def __init__(self, exported: Any, where: str, sizes: Sequence[Mapping[str, int]], given: Iterable[Any]) -> None:
        self._chain, self._where, self._sizes = Chain(exported), where, sizes
        self._program, self._weights = self._chain.program(0), self._chain.weights
        self._names = dimension_variables(self._program)
        self._avals = self._program.in_avals[self._weights :]
        self._calls = list(self._recorded(given))

    def along(self, name: str, vjp_order: Any, others: Sequence[str]) -> None:
        """Raises an ExportError if the function may not be padded along this dimension."""
        if name not in self._names:  # of an artifact, which may declare anything
            return
        sizes, larger, arguments, is_drawn = self._call_for(name)
        must_not = f"{self._where}: {name} must not be padded. With {name}={larger[name]} in place of {sizes[name]}, "
        self._check_shapes(sizes, larger, must_not)
        for order in itertools.count():
            results = self._run(order, arguments)
            if is_drawn:
                self._check_numbers(order, results)
            for fill in (_ZEROS, _OF_NOISE):
                padded = self._padded(order, arguments, larger, fill)
                if worst := self._worst(order, results, self._run(order, padded)):
                    raise ExportError(
                        f"{must_not}and the arguments filled up with {fill}, {_change(order, worst)}. Save it with "
                        f"pad={tuple(others)}, or mask the padding in the function"
                    )
            if not isinstance(vjp_order, (int, float)) or order + 1 > vjp_order or not self._chain.has(order + 1):
                return
            cotangents = cotangents_of(self._chain, self._where, order, results)
            arguments = [*arguments, *(one.array() for one in cotangents)]

    def _recorded(self, given: Iterable[Any]) -> Iterator[tuple[dict[str, int], list[Array]]]:
        """The arguments of cases, with their sizes."""
        name, chain = self._chain.exported.fun_name, self._chain
        new = (flat_arguments(chain, self._where, options_of(name, one)) for one in given)
        old = (case.arguments[: len(self._avals)] for case in chain.cases())
        for values in (*new, *old):
            arrays = [value.array() for value in values]
            avals = [
                _jax.ShapedArray(array.shape[: len(aval.shape)], aval.dtype)
                for array, aval in zip(arrays, self._avals, strict=True)
            ]
            names, found = check_types(self._program, [*self._program.in_avals[: self._weights], *avals])
            yield dict(zip(names, found, strict=True)), arrays

    def _call_for(self, name: str) -> tuple[Mapping[str, int], Mapping[str, int], Sequence[Array], bool]:
        """Sizes without padding and with it, and the arguments without it: those of a case, or else random ones."""
        for sizes, arrays in self._calls:
            if (larger := self._larger(name, sizes)) is not None:
                return sizes, larger, arrays, False
        listed = sorted(self._sizes, key=lambda one: math.prod(one.values()))
        for target in itertools.chain(listed, self._small()):
            for sizes in ({**target, name: size} for size in _parts(target[name])):
                if sizes_fit(self._program, sizes):
                    return sizes, target, self._drawn(sizes), True
        example = dict.fromkeys(self._names, 8)
        raise _CannotRunError(f"found no sizes at which {name} can grow: pass some, as in sizes=[{example}]")

    def _larger(self, name: str, sizes: Mapping[str, int]) -> dict[str, int] | None:
        size = sizes[name]
        listed = sorted(one[name] for one in self._sizes if one[name] > size)
        tried = ({**sizes, name: more} for more in (*listed, 2 * size, *(size + more for more in _SIZES)))
        return next((larger for larger in tried if sizes_fit(self._program, larger)), None)

    def _small(self) -> Iterator[dict[str, int]]:
        for sizes in itertools.islice(itertools.product(_SIZES, repeat=len(self._names)), _MOST_TRIED):
            if sizes_fit(self._program, found := dict(zip(self._names, sizes, strict=True))):
                yield found

    def _drawn(self, sizes: Mapping[str, int]) -> list[Array]:
        made = []
        for seed, (shape, aval) in enumerate(zip(self._shapes(self._avals, sizes), self._avals, strict=True)):
            dtype = name_of(aval.dtype)
            made.append(np.zeros(shape, np.bool_) if dtype == FLOAT0 else Drawn(shape, dtype, seed=seed).array())
        return made

    def _shapes(self, avals: Sequence[Any], sizes: Mapping[str, int]) -> list[tuple[int, ...]]:
        values: list[Any] = [*sizes.values()]
        return [tuple(map(int, _jax.evaluate_shape(aval.shape, tuple(sizes), *values))) for aval in avals]

    def _check_shapes(self, sizes: Mapping[str, int], larger: Mapping[str, int], must_not: str) -> None:
        shapes = (self._shapes(self._avals, one) for one in (sizes, larger))
        paths = argument_paths(self._program.in_tree, self._weights)[self._weights :]
        for path, small, large in zip(paths, *shapes, strict=True):
            if any(size > more for size, more in zip(small, large, strict=True)):
                raise ExportError(f"{must_not}{path} has the smaller shape {large} in place of {small}")

    def _padded(self, order: int, arguments: Sequence[Array], sizes: Mapping[str, int], fill: str) -> list[Array]:
        avals = self._chain.program(order).in_avals[self._weights :]
        rng = np.random.default_rng(order)
        made = []
        for index, (array, aval, shape) in enumerate(zip(arguments, avals, self._shapes(avals, sizes), strict=True)):
            shape, dtype = (*shape, *array.shape[len(shape) :]), name_of(aval.dtype)
            if fill == _ZEROS or index >= len(self._avals) or dtype == FLOAT0:
                larger = np.zeros(shape, array.dtype)
            else:
                larger = _noise(rng, array, shape, dtype)
            larger[tuple(map(slice, array.shape))] = array
            made.append(larger)
        return made

    def _run(self, order: int, arguments: Sequence[Array]) -> list[Array]:
        try:
            return self._chain.call(order, arguments)
        except Exception as error:  # whatever JAX raises
            types = ", ".join(dtype_and_shape(array.dtype, array.shape) for array in arguments[:4]) or "no arguments"
            raise _CannotRunError(f"it does not run here, with {types}: {explained(error)}") from cause(error)

    def _check_numbers(self, order: int, results: Sequence[Array]) -> None:
        """NaN is equal to NaN, so a function that returns nothing else would pass."""
        program = self._chain.program(order)
        for path, aval, result in zip(result_paths(program.out_tree), program.out_avals, results, strict=True):
            dtype = name_of(aval.dtype)
            if integers_of(dtype) is not None or dtype == FLOAT0 or not result.size:
                continue
            if not np.isfinite(wide(result)).any():
                raise _CannotRunError(
                    f"for random arguments, {_name(order, path)} has no finite number to compare: give a case with "
                    "real arguments, as in cases=[(x,)]"
                )

    def _worst(self, order: int, expected: Sequence[Array], found: Sequence[Array]) -> Compared | None:
        """The result that differs most in what is kept; None if none does."""
        program = self._chain.program(order)
        all_compared = (
            compared(path, name_of(aval.dtype), one, other[tuple(map(slice, one.shape))], None, OF_DTYPE)
            for path, aval, one, other in zip(
                result_paths(program.out_tree), program.out_avals, expected, found, strict=True
            )
        )
        wrong = [one for one in all_compared if one.verdict == DIFFERS]
        return max(wrong, key=lambda one: (bool(one.why or one.nans or one.infinities), one.max_absolute), default=None)


def _parts(size: int) -> list[int]:
    """Smaller sizes, those that are about half of it first."""
    parts = {size * some // of for of in range(2, 9) for some in range(1, of)} - {0}
    return sorted(parts, key=lambda part: abs(2 * part - size))


def _noise(rng: np.random.Generator, array: Array, shape: tuple[int, ...], dtype: str) -> Array:
    """Numbers that are large for floats, and for integers between those that are real: they may be indices."""
    kind = storage(dtype).dtype
    if integers_of(dtype) is not None:
        whole = array if array.dtype.kind in "biu" else array.astype(np.int64)
        least, most = (int(whole.min()), int(whole.max())) if whole.size else (0, 0)
        return rng.integers(least, most, shape, np.uint64 if least >= 0 else np.int64, endpoint=True).astype(kind)
    magnitudes = np.abs(wide(array))
    size = max(1.0, float(np.max(magnitudes, initial=0.0, where=np.isfinite(magnitudes))))
    largest = float(finfo(kind).max)
    scale = min(_NOISE * size, largest ** (1 / 3)) if largest > _NOISE**3 else min(_NARROW_NOISE * size, largest / 8)
    drawn = rng.uniform(-scale, scale, shape)
    return (drawn + 1j * rng.uniform(-scale, scale, shape) if kind.kind == "c" else drawn).astype(kind)


def _name(order: int, path: str) -> str:
    return f"{path} of {name_of_order('the function', order)}" if order else path


def _change(order: int, worst: Compared) -> str:
    name = _name(order, worst.path)
    if worst.why:
        return f"{name} has another shape: {worst.why}"
    if others := worst.nans + worst.infinities:
        return f"{others:,} of {worst.size:,} numbers in the kept part of {name} become, or stop being, NaN or infinite"
    return f"the kept part of {name} changes by up to {worst.max_absolute:.3g}, where {worst.allowed:.3g} is allowed"

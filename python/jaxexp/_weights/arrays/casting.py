"""Arrays and tensors in other dtypes than a program's weights, cast when the user asks for it."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from jaxexp._errors import WeightsError
from jaxexp._weights.files.dtypes import dtype_of, held_as, type_of, unnamed
from jaxexp._weights.files.header import Tensor
from jaxexp._weights.files.reading import HoldsTensors

from .pieces import source
from .placing import view, wherever

ADVICE = "; cast=True casts it"
REFUSED = "; cast=True makes floats of floats, complex numbers of complex numbers and integers of integers only"

_KINDS = (jnp.floating, jnp.complexfloating, jnp.integer)


def is_castable(dtype: Any, to: Any) -> bool:
    """Whether numbers of a dtype can become those of another one: floats, complex numbers and integers stay such."""
    return any(jnp.issubdtype(dtype, kind) and jnp.issubdtype(to, kind) for kind in _KINDS)


def cast(name: str, array: Any, dtype: Any, file: str | None = None) -> Any:
    """An array in another dtype, where it is; floats are rounded.

    Raises:
        WeightsError: an integer does not fit into the dtype, or a float would become infinite, the largest number or
            NaN, or an infinity or NaN something else.
    """
    if is_integer := jnp.issubdtype(dtype, jnp.integer):
        _check_fits(name, array, dtype, file)
    if isinstance(array, Tracer):
        return array.astype(dtype)
    with wherever(), np.errstate(over="ignore"):  # the error below says more than NumPy's warning
        old = array if isinstance(array, jax.Array) else np.asarray(array)
        is_small = np.dtype(old.dtype).itemsize < 4  # not every pair of small dtypes has a conversion
        wide = old.astype(np.int32 if is_integer else np.float32) if is_small else old
        new = wide.astype(dtype)
        if not is_integer and not _holds_all(old.dtype, new.dtype):
            _check_kept(name, old, wide, new, file)
    if isinstance(new, np.ndarray):
        new.flags.writeable = False
    return new


def _check_fits(name: str, array: Any, dtype: Any, file: str | None) -> None:
    least, most = jnp.iinfo(dtype).min, jnp.iinfo(dtype).max
    own = jnp.iinfo(array.dtype)
    if (least <= own.min and own.max <= most) or not array.size:
        return
    if isinstance(array, Tracer):
        raise WeightsError(name, f"integers that fit into {dtype}", f"{type_of(array)}, which is being traced")
    with wherever():
        found = int(array.min()), int(array.max())
    if not (least <= found[0] and found[1] <= most):
        numbers = f"{type_of(array)} from {found[0]:,} to {found[1]:,}"
        raise WeightsError(name, f"integers that fit into {dtype}", numbers, file=file)


def _holds_all(dtype: Any, to: Any) -> bool:
    """Whether a dtype of floats or complex numbers has the range of another one, and infinities and NaN if that has."""
    ranges = jnp.finfo(dtype), jnp.finfo(to)
    if float(ranges[1].min) > float(ranges[0].min) or float(ranges[1].max) < float(ranges[0].max):
        return False
    return all(_has(number, to) or not _has(number, dtype) for number in (np.inf, np.nan))


def _has(number: float, dtype: Any) -> bool:
    made = np.asarray(number, np.float32).astype(dtype).astype(np.complex128)
    return bool(np.array_equal(made, number, equal_nan=True))


def _check_kept(name: str, old: Any, wide: Any, new: Any, file: str | None) -> None:
    """`wide` has the numbers of `old` in a dtype with which one can compute."""
    xp: Any = jnp if isinstance(wide, jax.Array) else np
    made = new.astype(np.float32) if np.dtype(new.dtype).itemsize < 4 else new
    lost = xp.isfinite(wide) != xp.isfinite(made)
    lost |= xp.isnan(wide) != xp.isnan(made)
    if not _has(np.nan, new.dtype):  # such dtypes have their largest number instead
        lost |= xp.abs(wide) > float(jnp.finfo(new.dtype).max)
    if lost.any():
        found = f"{type_of(old)} with {wide[lost][0]}"
        raise WeightsError(name, f"floats that fit into {new.dtype}", found, file=file)


def cast_in_file(file: HoldsTensors, tensor: Tensor, aval: Any) -> tuple[HoldsTensors, Tensor]:
    """A tensor in the dtype of a program's argument, to which it is cast when it is read; the same one if it differs
    from the argument in something else, or in nothing.
    """
    own = str(aval.dtype)
    held, found = held_as(own, aval.shape), tensor.of or dtype_of(tensor.dtype)
    if held is None or tensor.shape != tuple(aval.shape) or found in (None, own) or not is_castable(found, aval.dtype):
        return file, tensor
    made = dataclasses.replace(tensor, dtype=held[0], shape=held[1], of=unnamed(own, aval.shape))
    return _Cast(file, tensor, np.dtype(found), aval), made


class _Cast:
    """One tensor of a file, in another dtype."""

    identity = None

    def __init__(self, file: HoldsTensors, tensor: Tensor, dtype: Any, aval: Any) -> None:
        self.name = file.name
        self._file, self._tensor = file, tensor
        self._found, self._aval = jax.ShapeDtypeStruct(tensor.shape, dtype), aval

    def bytes_of(self, tensor: Tensor) -> memoryview:
        array = view(self._file, self._tensor, self._found)
        new = cast(tensor.name, array, self._aval.dtype, self.name)
        pieces = list(source(tensor.name, new).pieces())
        return memoryview(pieces[0] if len(pieces) == 1 else b"".join(pieces))

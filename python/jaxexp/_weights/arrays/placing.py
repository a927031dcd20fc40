"""Tensors as arrays on devices: on a CPU without a copy, elsewhere by the parts that each device needs."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Generator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from jaxexp import _jax
from jaxexp._errors import WeightsError, shown
from jaxexp._kernel.artifact.words import dtype_and_shape
from jaxexp._weights.files.dtypes import dtype_of, held_as, type_of, unnamed
from jaxexp._weights.files.header import ALIGNMENT, Source
from jaxexp._weights.files.reading import TensorFile, in_pieces

from .pieces import source, unpacked

ADVICE = "; cast=True casts it"
REFUSED = "; cast=True makes floats of floats, complex numbers of complex numbers and integers of integers only"

_KINDS = (jnp.floating, jnp.complexfloating, jnp.integer)

logger = logging.getLogger("jaxexp.weights")


def check(tensor: Source, aval: Any) -> None:
    """Raises a WeightsError if a tensor has another type, by its header, than the argument of a program. Its dtype may
    be any that files hold under its name, if nothing says which.
    """
    own = str(aval.dtype)
    needed = held_as(own, aval.shape)
    if needed != (tensor.dtype, tensor.shape) or tensor.of not in (None, own):
        is_named = needed is None or unnamed(own, aval.shape) is None
        held = "" if needed is None or is_named else f", held as {dtype_and_shape(*needed)}"
        expected, found = f"{dtype_and_shape(aval.dtype, aval.shape)}{held}", str(tensor)
        raise WeightsError(tensor.name, expected, found, file=tensor.file or None)


def view(tensor: Source, aval: Any) -> np.ndarray[Any, Any]:
    """A tensor with the dtype and the shape of a program's argument; a view of the mapped file if elements are held as
    they are.
    """
    held = np.frombuffer(tensor.data(), np.uint8)
    if tensor.dtype == "F4":
        held = unpacked(held)
    array: np.ndarray[Any, Any] = held.view(aval.dtype).reshape(aval.shape)
    return array


def placed(tensor: Source, aval: Any, sharding: Any | None) -> jax.Array:
    """A tensor, which was checked, on devices; the default device if there is no sharding.

    On one CPU device, the array is the mapped file, if the tensor is aligned there. Otherwise it reads only the parts
    that devices of this process need.
    """
    array = view(tensor, aval)
    if sharding is None:
        on_device: jax.Array = jax.device_put(array)
        return on_device
    return jax.make_array_from_callback(aval.shape, sharding, lambda index: array[index])


def log_copies(files: list[TensorFile]) -> None:
    """Says of each file of another program how much of it JAX copies on a CPU, because it is not aligned. The list is
    emptied, so that this is said once.
    """
    foreign, files[:] = [file for file in files if file.content is None], []
    for file in foreign:
        header = file.header
        if sizes := [t.size for t in header.tensors.values() if t.size and (header.size + t.start) % ALIGNMENT]:
            logger.info(
                "%s: a CPU copies %d of its %d tensors to memory (%s bytes), because they do not begin at multiples of "
                "%d bytes. If you `save` the function with these weights, they do",
                shown(repr(file.name)), len(sizes), len(header.tensors), f"{sum(sizes):,}", ALIGNMENT,
            )  # fmt: skip


@contextlib.contextmanager
def wherever() -> Generator[None]:
    """A context in which weights are placed. They are kept, so they must be the same wherever they are first used.

    In it, nothing is traced or mapped, no mesh is set, 64-bit types are enabled, and all transfers are allowed, because
    none is the caller's. Only the default device is the caller's.
    """
    with contextlib.ExitStack() as undo:
        undo.enter_context(_jax.outside_of_traces())
        undo.enter_context(jax.enable_x64(True))
        undo.enter_context(jax.transfer_guard("allow"))
        for context in _jax.other_surroundings:
            undo.callback(context.set_local, context.swap_local(_jax.not_set))
        yield


def is_castable(dtype: Any, to: Any) -> bool:
    """Whether numbers of a dtype can become those of another one: floats, complex numbers and integers stay such."""
    return any(jnp.issubdtype(dtype, kind) and jnp.issubdtype(to, kind) for kind in _KINDS)


def cast(name: str, array: Any, dtype: Any, file: str | None = None) -> Any:
    """An array in another dtype, where it is; floats are rounded. A WeightsError if an integer does not fit into the
    dtype, or if a float would become infinite, the largest number or NaN, or an infinity or NaN something else.
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


def cast_tensor(tensor: Source, aval: Any) -> Source:
    """A tensor in the dtype of a program's argument, to which it is cast when it is read; the same one if it differs
    from the argument in something else, or in nothing.
    """
    own = str(aval.dtype)
    held, found = held_as(own, aval.shape), tensor.of or dtype_of(tensor.dtype)
    if held is None or tensor.shape != tuple(aval.shape) or found in (None, own) or not is_castable(found, aval.dtype):
        return tensor

    def whole() -> memoryview:
        array = view(tensor, jax.ShapeDtypeStruct(tensor.shape, np.dtype(found)))
        return source(tensor.name, cast(tensor.name, array, aval.dtype, tensor.file or None)).data()

    of = unnamed(own, aval.shape)
    return Source(tensor.name, *held, lambda: in_pieces(whole()), of=of, file=tensor.file, whole=whole)

"""Tensors in files as arrays on devices: on a CPU without a copy, elsewhere by the parts that each device needs."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Generator
from typing import Any

import jax
import numpy as np

from jaxexp import _jax
from jaxexp._errors import WeightsError, shown
from jaxexp._kernel.artifact.words import dtype_and_shape
from jaxexp._weights.files.dtypes import held_as, unnamed
from jaxexp._weights.files.header import ALIGNMENT, Tensor
from jaxexp._weights.files.reading import HoldsTensors, TensorFile

from .pieces import unpacked

logger = logging.getLogger("jaxexp.weights")


def check(file: HoldsTensors, tensor: Tensor, aval: Any) -> None:
    """Raises a WeightsError if a tensor has another type, by its header, than the argument of a program. Its dtype may
    be any that files hold under its name, if nothing says which.
    """
    own = str(aval.dtype)
    needed = held_as(own, aval.shape)
    if needed != (tensor.dtype, tensor.shape) or tensor.of not in (None, own):
        is_named = needed is None or unnamed(own, aval.shape) is None
        held = "" if needed is None or is_named else f", held as {dtype_and_shape(*needed)}"
        expected, found = f"{dtype_and_shape(aval.dtype, aval.shape)}{held}", str(tensor)
        raise WeightsError(tensor.name, expected, found, file=file.name)


def view(file: HoldsTensors, tensor: Tensor, aval: Any) -> np.ndarray[Any, Any]:
    """A tensor with the dtype and the shape of a program's argument; a view of the mapped file if elements are held as
    they are.
    """
    held = np.frombuffer(file.bytes_of(tensor), np.uint8)
    if tensor.dtype == "F4":
        held = unpacked(held)
    array: np.ndarray[Any, Any] = held.view(aval.dtype).reshape(aval.shape)
    return array


def placed(file: HoldsTensors, tensor: Tensor, aval: Any, sharding: Any | None) -> jax.Array:
    """A tensor, which was checked, on devices; the default device if there is no sharding.

    On one CPU device, the array is the mapped file, if the tensor is aligned there. Otherwise it reads only the parts
    that devices of this process need.
    """
    array = view(file, tensor, aval)
    if sharding is None:
        on_device: jax.Array = jax.device_put(array)
        if isinstance(file, TensorFile) and on_device.platform() == "cpu":
            _log_copies(file)
        return on_device
    return jax.make_array_from_callback(aval.shape, sharding, lambda index: array[index])


def _log_copies(file: TensorFile) -> None:
    """Says once for each file of another program how much of it JAX copies, because it is not aligned."""
    if file.is_described or file.content is not None:
        return
    file.is_described = True
    header = file.header
    if sizes := [t.size for t in header.tensors.values() if t.size and (header.size + t.start) % ALIGNMENT]:
        logger.info(
            "%s: a CPU copies %d of its %d tensors to memory (%s bytes), because they do not begin at multiples of %d "
            "bytes. If you `save` the function with these weights, they do",
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

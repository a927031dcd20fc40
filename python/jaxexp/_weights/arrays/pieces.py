"""Arrays in pytrees: what they are called, whether two are the same one, and their bytes.

The bytes come piece by piece: a device array is fetched in parts, so that it is never on the host as a whole.
"""

from __future__ import annotations

import collections
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from jaxexp._errors import ExportError
from jaxexp._kernel.function.placeholders import key_paths
from jaxexp._weights.files.dtypes import held_as, unnamed
from jaxexp._weights.files.header import Source, xxh3

# Large enough for a disk, and small beside the rest of a process. A power of two, so that no element is cut.
PIECE = 1 << 24

# What to do about random keys.
NUMBERS_OF_KEYS = "take jax.random.key_data(key) as the weight, and jax.random.wrap_key_data of it in the function"


def named_leaves(tree: Any) -> dict[str, Any]:
    """The leaves of a pytree by their paths, such as ``layers/0/w``; an ExportError if two have the same path."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return dict(zip(_names(path for path, _ in leaves), (leaf for _, leaf in leaves), strict=True))


def names_in(treedef: Any) -> list[str]:
    """The paths of the leaves in a tree structure; an ExportError if two are the same."""
    return _names(key_paths(treedef))


def _names(paths: Iterable[Any]) -> list[str]:
    names = [jax.tree_util.keystr(path, simple=True, separator="/") or "weights" for path in paths]
    if len(set(names)) != len(names):
        twice = collections.Counter(names).most_common(1)[0][0]
        raise ExportError(f"two weights would be called {twice!r}: rename one of them in the pytree")
    return names


def is_array(leaf: Any) -> bool:
    """Whether a leaf could be a weight: pytrees of models also have functions and numbers as leaves."""
    return hasattr(leaf, "shape") and hasattr(leaf, "dtype")


def identities(array: Any) -> Iterable[tuple[Any, ...]]:
    """Keys that only the same array has: the object, and for NumPy also the memory, because each view is an object."""
    yield ("object", id(array))
    if not isinstance(array, jax.Array):
        memory = np.asarray(array).__array_interface__
        yield ("memory", memory["data"][0], memory["strides"], array.shape, array.dtype)


def source(name: str, array: Any) -> Source:
    """An array, of NumPy or on any devices, as it is written to a file of tensors.

    An ExportError if a file cannot hold its dtype, or if parts of it are only on devices of other processes.
    """
    own = np.dtype(array.dtype).name if isinstance(array.dtype, np.dtype) else str(array.dtype)
    held = held_as(own, array.shape)
    if held is None:
        advice = f": {NUMBERS_OF_KEYS}" if jax.dtypes.issubdtype(array.dtype, jax.dtypes.prng_key) else ""
        raise ExportError(f"the weight {name!r} has dtype {array.dtype}, which a file of tensors cannot hold{advice}")
    if isinstance(array, jax.Array) and not _is_here(array):
        raise ExportError(
            f"the weight {name!r} is not in this process as a whole: it has the sharding {array.sharding}. "
            "Gather it first, for example with jax.experimental.multihost_utils.process_allgather"
        )
    make = packed if held[0] == "F4" else pieces
    origin = array if isinstance(array, jax.Array) else None
    of = unnamed(own, array.shape)
    return Source(name, *held, lambda: (piece.data for piece in make(array)), origin, of=of)


def pieces(array: Any) -> Iterator[np.ndarray[Any, Any]]:
    """The bytes of an array, row by row, as arrays of uint8 with at most `PIECE` elements.

    Elements of less than a byte take a byte each.
    """
    host = np.asarray(array) if not isinstance(array, jax.Array) or _is_host_memory(array) else None
    like = array if host is None else host
    for index in _blocks(like.shape, max(1, PIECE // np.dtype(like.dtype).itemsize)):
        # Of a host array that is not contiguous, a copy of all of it would take as much memory again.
        block = _fetched(array, index) if host is None else np.ascontiguousarray(host[index])
        yield block.reshape(-1).view(np.uint8)


def digest(array: Any, *before: bytes) -> bytes:
    """The XXH3 digest of the bytes of an array, and of others in front of them."""
    return xxh3(itertools.chain(before, (piece.data for piece in pieces(array))))


def packed(array: Any) -> Iterator[np.ndarray[Any, Any]]:
    """The same for elements of four bits: two in a byte, the first one in the lower bits."""
    for piece in pieces(array):  # of even size: the whole has an even number of elements
        pairs = piece.reshape(-1, 2)
        yield (pairs[:, 0] & 15) | (pairs[:, 1] << 4)


def unpacked(held: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The elements of four bits that `packed` put into bytes, one in each byte."""
    return np.stack([held & 15, held >> 4], -1).reshape(-1)


def _is_here(array: Any) -> bool:
    """Whether every element of a `jax.Array` is on some device of this process."""
    here = {_as_tuple(shard.index) for shard in array.addressable_shards}
    return {_as_tuple(index) for index in array.sharding.devices_indices_map(array.shape).values()} <= here


def _as_tuple(index: Sequence[slice]) -> tuple[tuple[int | None, int | None], ...]:
    """Slices that can be hashed; Python's own cannot before 3.12."""
    return tuple((part.start, part.stop) for part in index)


def _is_host_memory(array: jax.Array) -> bool:
    """Whether `numpy.asarray` gives a view of the array: it is on one device, whose memory is the host's."""
    devices: list[Any] = list(array.sharding.device_set)
    return len(devices) == 1 and devices[0].platform == "cpu"


def _blocks(shape: Sequence[int], most: int) -> Iterator[tuple[slice, ...]]:
    """Slices of an array, of at most this many elements each, which make up the array one after the other.

    Leading dimensions are taken index by index, the next one in parts, and the rest as a whole.
    """
    if 0 in shape:
        return
    sizes = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
    split = next((axis for axis, size in enumerate(sizes) if size <= most), len(shape))
    if split == len(shape):  # a scalar
        yield ()
        return
    step = most // sizes[split]
    step -= step % 2 if step > 1 else 0  # an even number of elements stays one in each part
    for leading in itertools.product(*(range(size) for size in shape[:split])):
        for start in range(0, shape[split], step):
            stop = min(start + step, shape[split])
            yield (
                *(slice(i, i + 1) for i in leading),
                slice(start, stop),
                *(slice(0, size) for size in shape[split + 1 :]),
            )


def _fetched(array: jax.Array, index: tuple[slice, ...]) -> np.ndarray[Any, Any]:
    """A block of an array on the host, put together from the shards that have parts of it."""
    block = np.empty([part.stop - part.start for part in index], array.dtype)
    left = block.size
    seen = set()
    for shard in array.addressable_shards:
        place = _as_tuple(shard.index)
        if place in seen:  # another copy of the same part
            continue
        seen.add(place)
        inside, target = [], []
        for part, whole, size in zip(index, shard.index, array.shape, strict=True):
            first, last, _ = whole.indices(size)
            start, stop = max(part.start, first), min(part.stop, last)
            inside.append((start - first, stop - start))
            target.append(slice(start - part.start, stop - part.start))
        if all(size > 0 for _, size in inside):
            found = _part(shard.data, inside)
            block[tuple(target)] = found
            left -= found.size
    assert left == 0
    return block


def _part(data: jax.Array, inside: Sequence[tuple[int, int]]) -> np.ndarray[Any, Any]:
    if _is_host_memory(data):
        return np.asarray(data)[tuple(slice(start, start + size) for start, size in inside)]
    starts, sizes = zip(*inside, strict=True) if inside else ((), ())
    return np.asarray(jax.lax.dynamic_slice(data, starts, sizes))  # compiled once for each size, not for each place

"""`Weights`: the weights of a function by their names, as arrays on devices."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import itertools
import logging
import math
import os
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from jaxexp import _jax, _native
from jaxexp._errors import ExportError, ExportTypeError, WeightsError, shown
from jaxexp._kernel.artifact.words import check_flags, dtype_and_shape, no_weight, why_no_numbers, why_traced
from jaxexp._kernel.function.paths import key_paths
from jaxexp._kernel.io import files, lock
from jaxexp._public import no_attribute
from jaxexp._weights.files import reading
from jaxexp._weights.files.dtypes import dtype_of, held_as, type_of, unnamed
from jaxexp._weights.files.header import ALIGNMENT, Source, xxh3
from jaxexp._weights.files.names import NOT_USED, Rename, check_names, names_given, warn_of_others
from jaxexp._weights.files.reading import StoredTensors, TensorFile, Tensors, in_pieces

# --- arrays in pytrees: what they are called, whether two are the same one, and their bytes ---------------------------
# The bytes come piece by piece: a device array is fetched in parts, so that it is never on the host as a whole.


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
    names = [jax.tree_util.keystr(path, simple=True, separator="/") or ALONE for path in paths]
    if len(set(names)) != len(names):
        twice = collections.Counter(names).most_common(1)[0][0]
        raise ExportError(f"two weights would be called {twice!r}: rename one of them in the pytree")
    return names


ALONE = "weights"  # the name of an array that is the whole pytree


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
    if isinstance(array, Tracer):
        raise ExportTypeError(f"the weight {name!r} cannot be written: found {why_traced(array)}")
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
    here = {str(shard.index) for shard in array.addressable_shards}  # slices have no hash before Python 3.12
    return here.issuperset(map(str, array.sharding.devices_indices_map(array.shape).values()))


def _is_host_memory(array: jax.Array) -> bool:
    """Whether `numpy.asarray` gives a view of the array: it is on one device, whose memory is the host's."""
    devices: list[Any] = list(array.sharding.device_set)
    return len(devices) == 1 and devices[0].platform == "cpu"


def _blocks(shape: Sequence[int], most: int) -> Iterator[tuple[slice, ...]]:
    """Slices of an array, of at most this many elements each, which make up the array one after the other.

    Leading dimensions are taken index by index, the next one in parts, and the rest as a whole.
    """
    if not shape:
        yield ()
        return
    rest = math.prod(shape[1:])
    if rest > most:
        for i in range(shape[0]):
            yield from ((slice(i, i + 1), *inner) for inner in _blocks(shape[1:], most))
    elif rest:
        step = most // rest
        step -= step % 2 if step > 1 else 0  # an even number of elements stays one in each part
        for start in range(0, shape[0], step):
            yield slice(start, min(start + step, shape[0])), *(slice(0, size) for size in shape[1:])


def _fetched(array: jax.Array, index: tuple[slice, ...]) -> np.ndarray[Any, Any]:
    """A block of an array on the host, put together from the shards that have parts of it."""
    block = np.empty([part.stop - part.start for part in index], array.dtype)
    left = block.size
    for shard in {str(shard.index): shard for shard in array.addressable_shards}.values():  # one of equal parts
        starts, sizes, target = [], [], []
        for part, whole, size in zip(index, shard.index, array.shape, strict=True):
            first, last, _ = whole.indices(size)
            start, stop = max(part.start, first), min(part.stop, last)
            starts.append(start - first)
            sizes.append(stop - start)
            target.append(slice(start - part.start, stop - part.start))
        if all(size > 0 for size in sizes):
            if _is_host_memory(shard.data):
                inside = zip(starts, sizes, strict=True)
                found = np.asarray(shard.data)[tuple(slice(start, start + size) for start, size in inside)]
            else:  # compiled once for each size, not for each place
                found = np.asarray(jax.lax.dynamic_slice(shard.data, starts, sizes))
            block[tuple(target)] = found
            left -= found.size
    assert left == 0
    return block


# --- tensors as arrays on devices: on a CPU without a copy, elsewhere by the parts that each device needs -------------


ADVICE = "; cast=True casts it"
REFUSED = "; cast=True only casts floats to floats, complex numbers to complex numbers, and integers to integers"

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


# --- the mapping of both ----------------------------------------------------------------------------------------------


class Weights(Mapping[str, Any]):
    """The weights of a bound function by their names.

    Weights in files are read when they are first used, and then kept. On one CPU device, they are the mapped file.

    It is a mapping, not a pytree, so that looking at a tree does not read the files. ``dict(weights)`` is a
    pytree of all arrays, for `jax.tree.map`, optimizers and functions under `jax.jit`; `with_weights` takes it back.
    """

    def __init__(
        self,
        types: Mapping[str, Any],
        found: Mapping[str, Any] | Tensors,
        shardings: Sequence[Any] = (),
        other_names: Mapping[str, str] | None = None,
        digests: Mapping[str, bytes] | None = None,
        on_devices: Mapping[str, Any] | None = None,
    ) -> None:
        """Args:
        types: the abstract value of each weight, in the order of the arguments.
        found: the arrays, or the tensors that they are made of.
        shardings: where each weight goes; None for the default device. Empty if all go there.
        other_names: each further name of a tied weight, with the weight's own name.
        digests: of those arrays that may change, if they are not new here.
        on_devices: what `__getitem__` returns, for weights that need not be placed.
        """
        self._types = dict(types)
        self.other_names = dict(other_names or {})
        self._shardings = dict(zip(types, shardings or [None] * len(types), strict=True))
        self._files = None if isinstance(found, Mapping) else found
        self._arrays: dict[str, Any] = dict(found) if isinstance(found, Mapping) else {}
        self._on_devices = dict(on_devices or {})
        self._is_checked = on_devices is None  # whether all are known to be arrays
        # If the owners of NumPy arrays changed them, the function would be another one. A copy would double the memory,
        # which may not be there. So their first digests are compared when the arrays are used.
        if digests is None:
            digests = {name: digest(array) for name, array in self._arrays.items() if _may_change(array)}
        self._digests = digests
        self._lock = lock.reentrant()

    def __getitem__(self, name: str) -> Any:
        if name not in self._on_devices:
            if (type_ := self._types.get(name)) is None:
                raise no_weight(name, self._types)
            with self._lock:  # a second thread waits for the array, and does not read it again
                if name not in self._on_devices:
                    self._on_devices.setdefault(name, self._placed(name, type_))
        return self._on_devices[name]

    def __contains__(self, name: object) -> bool:
        return name in self._types

    def get(self, name: str, /, default: Any = None) -> Any:
        return self[name] if name in self._types else default  # the message of a KeyError takes time

    def __iter__(self) -> Iterator[str]:
        return iter(self._types)

    def __len__(self) -> int:
        return len(self._types)

    def __eq__(self, other: object) -> bool:
        return self.is_same(other) if isinstance(other, Weights) else NotImplemented

    def __hash__(self) -> int:
        return hash(tuple(self._types))

    def __repr__(self) -> str:
        where = "in memory" if self._files is None else f"in files: {self._files.where}"
        return f"Weights({len(self)} arrays {where})"

    if not TYPE_CHECKING:  # type checkers would no longer report missing attributes

        def __getattr__(self, name: str) -> NoReturn:
            advice = "; it is a mapping of arrays, and dict(weights) makes a pytree of it"
            raise no_attribute(self, name, advice)

    @property
    def stored(self) -> StoredTensors | None:
        """The files beside the artifact that these weights were loaded with; None for other weights."""
        return self._files if isinstance(self._files, StoredTensors) else None

    def arrays(self) -> tuple[Any, ...]:
        """All weights on their devices, in the order of the arguments."""
        return tuple(self[name] for name in self)

    def for_calls(self) -> tuple[Any, ...]:
        """The same, as arguments of a call; an ExportTypeError if JAX put something else in the place of an array, as
        for `jax.tree.map(..., bound)`.
        """
        if not self._is_checked:
            for name, leaf in self._on_devices.items():
                self._check_leaf(name, leaf)
            self._is_checked = True
        return self.arrays()

    def _check_leaf(self, name: str, leaf: Any) -> None:
        found = why_no_numbers(leaf) if is_array(leaf) else repr(leaf)[:200]
        if isinstance(leaf, (bool, int, float, complex)) or not found:
            return
        raise ExportTypeError(
            f"the weight {name!r} must be an array, {type_of(self._types[name])}, to call or save the function, found "
            f"{found}: this function was made from another one's tree, as by jax.tree.map, whose results take the "
            "place of the weights"
        )

    def specs(self) -> tuple[Any, ...]:
        """The weights that are on devices, and specs for the others."""
        return tuple(self._on_devices[name] if name in self._on_devices else self._spec(name) for name in self)

    def is_same(self, other: Weights) -> bool:
        """Whether the others are the same arrays, or were loaded with equal digests. Nothing is read."""
        if self is other:
            return True
        if list(self) != list(other) or self._shardings != other._shardings:
            return False
        if self._files is not None or other._files is not None:
            one, two = (None if weights._files is None else weights._files.table.tensors for weights in (self, other))
            return self._files is other._files or bool(one and one == two)
        return all(self._arrays[name] is other._arrays[name] for name in self)

    def on(self, shardings: Sequence[Any]) -> Weights:
        """The same weights on other devices, None for the default one; nothing is read yet."""
        found = self._arrays if self._files is None else self._files
        return Weights(self._types, found, shardings, self.other_names, self._digests)

    def with_values(
        self, values: Any, rename: Rename | None = None, is_cast: bool = False, stable: bool = False
    ) -> Weights:
        """Other weights of the same names, shapes and dtypes, as `Exported.with_weights` explains.

        A `UserWarning` names arrays that are not used: a name may be misspelt. Files cause no warning: they may be
        checkpoints with much else. Numbers, functions and other leaves that are not arrays are part of the program, and
        never used. Files are also copied to memory if the files of these weights were.
        """
        check_flags(cast=is_cast, stable=stable)
        shardings = list(self._shardings.values())
        is_same = rename is None and isinstance(values, Weights) and values._types == self._types
        if is_same and values._files is not None:
            return Weights(self._types, values._files, shardings, self.other_names)
        names = names_given(list(self._types), self.other_names, rename)
        if isinstance(values, (str, os.PathLike)):
            files.path_here(values, "weights=")
            stable = stable or (self._files is not None and self._files.stable)
            found_files = self._in_files(values, names, is_cast, rename is None, stable)
            return Weights(self._types, found_files, shardings, self.other_names)
        if isinstance(values, (bytes, bytearray, memoryview)) or callable(getattr(values, "readable", None)):
            raise ExportTypeError(
                f"weights are arrays by their names, or the path of a file of tensors, not {type(values)}: pass the "
                "path, or the dict that safetensors.numpy.load returns for the bytes"
            )
        given = named_leaves(dict(values) if isinstance(values, Mapping) else values)
        own = {name: names[name] for name in self._types}
        used = set(own.values())
        arrays = [name for name, leaf in given.items() if name in used or is_array(leaf)]
        is_mapping = isinstance(values, Mapping) and jax.tree_util.all_leaves(values.values())
        has_arrays = self._files is not None or bool(self._arrays)  # and not only types
        advice = _about_given(values, own.values())
        check_names(own, arrays, is_mapping=is_mapping and has_arrays, can_rename=rename is None, advice=advice)
        found = {}
        for name, type_ in self._types.items():
            leaf, advice = given[own[name]], REFUSED if is_cast else ""
            if why_not := why_no_numbers(leaf):
                raise WeightsError(own[name], type_of(type_), why_not)
            if is_array(leaf) and leaf.dtype != type_.dtype and is_castable(leaf.dtype, type_.dtype):
                if is_cast:
                    leaf = cast(own[name], leaf, type_.dtype)
                else:
                    advice = ADVICE
            _check_type(own[name], type_, leaf, advice)
            found[name] = leaf
        _check_tied({name: given[there] for name, there in names.items() if there in given}, self.other_names)
        used.update(names.values())
        others = [name for name in arrays if name not in used and not isinstance(given[name], np.generic)]
        warn_of_others(NOT_USED, others)
        return Weights(self._types, found, shardings, self.other_names)

    def _in_files(
        self, path: str | os.PathLike[str], names: Mapping[str, str], is_cast: bool, can_rename: bool, stable: bool
    ) -> Tensors:
        """The tensors of files that the user named, where weights and the other places of tied weights have these
        names. Only types are looked at, and the bytes of tied weights.
        """
        tensors, file = reading.open_tensors(path, "copied" if stable else "mapped"), os.fsdecode(path)
        check_names({name: names[name] for name in self._types}, tensors, file, can_rename=can_rename)
        sources = []
        for name, type_ in self._types.items():
            tensor, own = tensors[names[name]], unnamed(str(type_.dtype), type_.shape)
            if tensor.of is None and own is not None and own != "complex128":  # of which the shape is another one
                tensor = dataclasses.replace(tensor, of=dtype_of(tensor.dtype))
            made = cast_tensor(tensor, type_)
            try:
                check(made if is_cast else tensor, type_)
            except WeightsError as error:
                if is_cast:
                    error.found += REFUSED if tensor.shape == tuple(type_.shape) else ""
                elif made is not tensor:
                    error.found += ADVICE
                raise
            tensor = dataclasses.replace(tensor, name=name)
            sources.append(cast_tensor(tensor, type_) if is_cast else tensor)
        tied = {name for pair in self.other_names.items() for name in pair if names[name] in tensors}
        _check_tied({n: np.frombuffer(tensors[names[n]].data(), np.uint8) for n in tied}, self.other_names, file)
        return Tensors(self._types, sources.__getitem__, repr(file), stable=stable, named=tensors.files)

    def into(self, model: Any) -> Any:
        """`Exported.weights_into`."""
        leaves = named_leaves(model)
        places = {name: own for name in leaves if (own := self.other_names.get(name, name)) in self._types}
        own_names = {name: name for name in self._types}
        found = [*dict.fromkeys(places.values()), *(name for name in leaves if name not in places)]
        check_names(own_names, found, expected="a leaf at this path of the model")
        for place, name in places.items():
            _check_type(place, self._types[name], leaves[place])
        others = [name for name, leaf in leaves.items() if name not in places and is_array(leaf)]
        why = "it does not use them, or they are part of its program"
        warn_of_others("arrays of the model that stay as they are", others, why)
        new = (self[places[name]] if name in places else leaf for name, leaf in leaves.items())
        return jax.tree_util.tree_unflatten(jax.tree_util.tree_structure(model), new)

    def sources(self) -> list[Source]:
        """The weights as they are written to files. Weights in files do not go through devices."""
        return [source(name, self._array(name)) if self._files is None else self._tensor(name) for name in self]

    def check_digests(self) -> None:
        """Compares the files beside an artifact with the digests in its trailer; a WeightsError if one is damaged."""
        if self._files is None or not self._files.table.tensors:
            raise ExportError("these weights were not loaded with an artifact, so there are no digests to compare with")
        self._files.check_digests()

    def _spec(self, name: str) -> Any:
        type_, sharding = self._types[name], self._shardings[name]
        array = self._arrays.get(name)
        if sharding is None and isinstance(array, jax.Array):
            return array
        return jax.ShapeDtypeStruct(type_.shape, type_.dtype, sharding=sharding)

    def _array(self, name: str) -> Any:
        array = self._arrays[name]
        if not self._is_checked:
            self._check_leaf(name, array)
        if name in self._digests and digest(array) != self._digests[name]:
            raise ExportError(
                f"the weight {name!r} is a NumPy array that has changed since the function got it. Export, bind or use "
                "with_weights again, or give it an array that cannot change: jax.numpy.array(...)"
            )
        return array

    def _tensor(self, name: str) -> Source:
        assert self._files is not None
        tensor = self._files.find(name)
        check(tensor, self._types[name])
        return tensor

    def _placed(self, name: str, type_: Any) -> Any:
        sharding = self._shardings[name]
        if self._files is not None:
            tensor = self._tensor(name)
            with wherever():
                array = placed(tensor, type_, sharding)
            if sharding is None and array.platform() == "cpu":
                log_copies(self._files.named)
            return array
        array = self._array(name)
        if isinstance(array, Tracer):
            return array if sharding is None else jax.device_put(array, sharding)
        with wherever():
            if not isinstance(array, jax.Array):
                array = jax.numpy.array(array)  # a copy: the caller may change a NumPy array
            return array if sharding is None else jax.device_put(array, sharding)


def _check_type(name: str, type_: Any, leaf: Any, advice: str = "") -> None:
    if not is_array(leaf):
        raise WeightsError(name, type_of(type_), repr(leaf)[:200])
    is_shape = tuple(leaf.shape) == tuple(type_.shape)
    if not is_shape or leaf.dtype != type_.dtype:
        raise WeightsError(name, type_of(type_), type_of(leaf) + (advice if is_shape else ""))


def _about_given(values: Any, names: Collection[str]) -> str:
    """What to say if none of the names is among the paths of the values."""
    what, where = values, ""
    if isinstance(values, Mapping):
        inside = next((name for name in names if name in values), None)
        if inside is None:
            return "" if list(names) != [ALONE] else f". The weight is one array: pass it, or {{{ALONE!r}: array}}"
        what, where = values[inside], f" under {inside!r}"
    kind = "an array" if is_array(what) else "None" if what is None else f"one {type(what).__qualname__}"
    return f". Given was {kind}{where}; weights are arrays in a dict by name or in such a pytree, or the path of a file"


def _may_change(array: Any) -> bool:
    """Whether it can be written to, or is a view of memory that can."""
    if isinstance(array, jax.Array):
        return False
    part: Any = np.asarray(array)
    while isinstance(part, np.ndarray):
        if part.flags.writeable:
            return True
        part = part.base
    return False


def _check_tied(given: Mapping[str, Any], other_names: Mapping[str, str], file: str | None = None) -> None:
    """Raises a WeightsError if the values for different places of one weight differ, or cannot be compared.

    `given` has arrays by the names of their places, and `other_names` the name of the weight for each further place.
    """
    for other, name in other_names.items():
        if other not in given or name not in given or given[other] is given[name]:
            continue
        if (found := _difference(given[other], given[name])) is not None:
            expected = f"the same array as {name!r}, because the two are one weight"
            raise WeightsError(other, expected, f"{found}. Leave out one of them", file=file)


def _difference(one: Any, other: Any) -> str | None:
    if not is_array(one) or not is_array(other) or one.shape != other.shape or one.dtype != other.dtype:
        return "one of another type"
    if not _is_readable(one) or not _is_readable(other):
        return "another one, which cannot be compared while it is traced or is in other processes"
    if set(identities(one)) & set(identities(other)):
        return None
    parts = itertools.zip_longest(pieces(one), pieces(other), fillvalue=np.empty(0, np.uint8))
    return None if all(_native.equal_bytes(a.data, b.data) for a, b in parts) else "other values"


def _is_readable(array: Any) -> bool:
    return not isinstance(array, jax.Array) or (not isinstance(array, Tracer) and array.is_fully_addressable)

"""`Weights`: the weights of a function by their names, as arrays on devices."""

from __future__ import annotations

import dataclasses
import itertools
import os
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import jax
import numpy as np
from jax.core import Tracer

from jaxexp import _native
from jaxexp._errors import ExportError, WeightsError
from jaxexp._kernel.artifact.words import why_no_numbers
from jaxexp._weights.files import reading
from jaxexp._weights.files.dtypes import dtype_of, type_of, unnamed
from jaxexp._weights.files.header import Source
from jaxexp._weights.files.names import Rename, check_names, listed_names, names_given
from jaxexp._weights.files.reading import StoredTensors, Tensors

from . import placing
from .pieces import digest, identities, is_array, named_leaves, pieces, source
from .placing import ADVICE, REFUSED, cast, is_castable


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
        self._all: tuple[Any, ...] | None = None
        # If the owners of NumPy arrays changed them, the function would be another one. A copy would double the memory,
        # which may not be there. So their first digests are compared when the arrays are used.
        if digests is None:
            digests = {name: digest(array) for name, array in self._arrays.items() if _may_change(array)}
        self._digests = digests
        self._lock = threading.Lock()

    def __getitem__(self, name: str) -> Any:
        on_device = self._on_devices.get(name)
        if on_device is None:
            type_ = self._types[name]  # raises KeyError, as mappings do
            with self._lock:  # a second thread waits for the array, and does not read it again
                on_device = self._on_devices.get(name)
                if on_device is None:
                    on_device = self._on_devices[name] = self._placed(name, type_)
        return on_device

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
            advice = (
                "" if name.startswith("_") else "; it is a mapping of arrays, and dict(weights) makes a pytree of it"
            )
            raise AttributeError(
                f"{type(self).__name__!r} object has no attribute {name!r}{advice}", name=name, obj=self
            )

    @property
    def stored(self) -> StoredTensors | None:
        """The files beside the artifact that these weights were loaded with; None for other weights."""
        return self._files if isinstance(self._files, StoredTensors) else None

    def arrays(self) -> tuple[Any, ...]:
        """All weights on their devices, in the order of the arguments."""
        if self._all is None:
            self._all = tuple(self[name] for name in self)
        return self._all

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

        A pytree stands for the whole model, so a `UserWarning` names arrays in it that are not used. Files, and
        mappings without containers, cause no warning: they may be large checkpoints. Numbers, functions and other
        leaves that are not arrays are part of the program, and never used. Files are also copied to memory if the files
        of these weights were.
        """
        shardings = list(self._shardings.values())
        is_same = rename is None and isinstance(values, Weights) and values._types == self._types
        if is_same and values._files is not None:
            return Weights(self._types, values._files, shardings, self.other_names)
        names = names_given(list(self._types), self.other_names, rename)
        if isinstance(values, (str, os.PathLike)):
            stable = stable or (self._files is not None and self._files.stable)
            files = self._in_files(values, names, is_cast, rename is None, stable)
            return Weights(self._types, files, shardings, self.other_names)
        given = named_leaves(dict(values) if isinstance(values, Mapping) else values)
        own = {name: names[name] for name in self._types}
        used = set(own.values())
        arrays = [name for name, leaf in given.items() if name in used or is_array(leaf)]
        is_mapping = isinstance(values, Mapping) and jax.tree_util.all_leaves(values.values())
        check_names(own, arrays, is_mapping=is_mapping, can_rename=rename is None)
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
        if not is_mapping:
            used.update(names.values())
            others = (name for name in arrays if name not in used)
            _warn_of_others(
                "not used of the given arrays",
                [name for name in others if not isinstance(given[name], np.generic)],
                "they belong to another model, or are part of the program. A dict from names to arrays may have such "
                "arrays without this warning",
            )
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
            made = placing.cast_tensor(tensor, type_)
            try:
                placing.check(made if is_cast else tensor, type_)
            except WeightsError as error:
                if is_cast:
                    error.found += REFUSED if tensor.shape == tuple(type_.shape) else ""
                elif made is not tensor:
                    error.found += ADVICE
                raise
            tensor = dataclasses.replace(tensor, name=name)
            sources.append(placing.cast_tensor(tensor, type_) if is_cast else tensor)
        tied = {name for pair in self.other_names.items() for name in pair if names[name] in tensors}
        _check_tied({n: np.frombuffer(tensors[names[n]].data(), np.uint8) for n in tied}, self.other_names, file)
        return Tensors(self._types, sources.__getitem__, repr(file), stable=stable, named=tensors.files)

    def into(self, model: Any) -> Any:
        """`Exported.weights_into`."""
        leaves = named_leaves(model)
        places = {name: own for name in leaves if (own := self.other_names.get(name, name)) in self._types}
        own_names = {name: name for name in self._types}
        check_names(own_names, [*dict.fromkeys(places.values()), *(name for name in leaves if name not in places)])
        for place, name in places.items():
            _check_type(place, self._types[name], leaves[place])
        others = [name for name, leaf in leaves.items() if name not in places and is_array(leaf)]
        why = "it does not use them, or they are part of its program"
        _warn_of_others("arrays of the model that stay its own", others, why)
        new = (self[places[name]] if name in places else leaf for name, leaf in leaves.items())
        return jax.tree_util.tree_unflatten(jax.tree_util.tree_structure(model), new)

    def sources(self) -> list[Source]:
        """The weights as they are written to files. Weights in files do not go through devices."""
        return [source(name, self._array(name)) if self._files is None else self._tensor(name) for name in self]

    def check_digests(self) -> None:
        """Compares the files beside an artifact with the digests in its trailer.

        Raises:
            WeightsError: a tensor is damaged.
            ExportError: the weights come from elsewhere, so there is nothing to compare with.
        """
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
        if name in self._digests and digest(array) != self._digests[name]:
            raise ExportError(
                f"the weight {name!r} is a NumPy array that has changed since the function got it. Export, bind or use "
                "with_weights again, or give it an array that cannot change: jax.numpy.array(...)"
            )
        return array

    def _tensor(self, name: str) -> Source:
        assert self._files is not None
        tensor = self._files.find(name)
        placing.check(tensor, self._types[name])
        return tensor

    def _placed(self, name: str, type_: Any) -> Any:
        sharding = self._shardings[name]
        if self._files is not None:
            tensor = self._tensor(name)
            with placing.wherever():
                array = placing.placed(tensor, type_, sharding)
            if sharding is None and array.platform() == "cpu":
                placing.log_copies(self._files.named)
            return array
        array = self._array(name)
        if isinstance(array, Tracer):
            return array if sharding is None else jax.device_put(array, sharding)
        with placing.wherever():
            if not isinstance(array, jax.Array):
                array = jax.numpy.array(array)  # a copy: the caller may change a NumPy array
            return array if sharding is None else jax.device_put(array, sharding)


def _check_type(name: str, type_: Any, leaf: Any, advice: str = "") -> None:
    if not is_array(leaf):
        raise WeightsError(name, type_of(type_), repr(leaf)[:200])
    is_shape = tuple(leaf.shape) == tuple(type_.shape)
    if not is_shape or leaf.dtype != type_.dtype:
        raise WeightsError(name, type_of(type_), type_of(leaf) + (advice if is_shape else ""))


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


def _warn_of_others(what: str, names: Sequence[str], why: str) -> None:
    """Warns of arrays in a model that are not weights of the function."""
    if names:
        text = f"{what}: {listed_names(names)}. They are not weights of the function: {why}"
        warnings.warn(text, UserWarning, stacklevel=4)  # the caller of `with_weights` or `weights_into`


def _check_tied(given: Mapping[str, Any], other_names: Mapping[str, str], file: str | None = None) -> None:
    """Raises a WeightsError if the values for different places of one weight differ, or cannot be compared.

    `given` has arrays by the names of their places, and `other_names` the name of the weight for each further place.
    """
    for other, name in other_names.items():
        if other not in given or name not in given or given[other] is given[name]:
            continue
        if (found := _difference(given[other], given[name])) is not None:
            expected = f"the same array as {name!r}, with which it is one weight"
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

"""`Weights`: the weights of a function by their names, as arrays on devices."""

from __future__ import annotations

import dataclasses
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import jax
import numpy as np
from jax.core import Tracer

from jaxexp._errors import ExportError, WeightsError
from jaxexp._kernel.artifact.words import why_no_numbers
from jaxexp._weights.files import reading
from jaxexp._weights.files.dtypes import dtype_of, type_of, unnamed
from jaxexp._weights.files.header import Tensor
from jaxexp._weights.files.names import Rename, check_names, names_given
from jaxexp._weights.files.places import taking
from jaxexp._weights.files.reading import HoldsTensors
from jaxexp._weights.files.writing import Source

from . import placing
from .casting import ADVICE, REFUSED, cast, cast_in_file, is_castable
from .names import is_array, named_leaves, warn_of_others
from .pieces import source
from .stored import Stored, WithDigests
from .tied import check_tied
from .unchanged import Unchanged


class _Named:
    """The tensors of files that the user named."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        types: Mapping[str, Any],
        names: Mapping[str, str],
        is_cast: bool,
        stable: bool,
    ) -> None:
        """Args:
        path: the file, or the index of several.
        types: the abstract value of each weight.
        names: what weights, and the other places of tied weights, are called in the files.
        is_cast: whether tensors of other dtypes are cast.
        stable: whether the files are copied to memory, and not mapped.
        """
        self._tensors = reading.open_tensors(path, taking(stable))
        self.stable = stable
        self._path = os.fsdecode(path)
        self._types, self._names, self._is_cast = types, names, is_cast

    def __str__(self) -> str:
        return repr(self._path)

    def check(self, other_names: Mapping[str, str], *, can_rename: bool) -> None:
        """Compares the tensors with the types that a program needs. `can_rename` as in `check_names`."""
        own = {name: self._names[name] for name in self._types}
        check_names(own, self._tensors, self._path, can_rename=can_rename)
        for name, type_ in self._types.items():
            file, tensor = self._found(name)
            try:
                placing.check(file, tensor, type_)
            except WeightsError as error:
                if self._is_cast:
                    error.found += REFUSED if tensor.shape == tuple(type_.shape) else ""
                elif cast_in_file(file, tensor, type_)[1] is not tensor:
                    error.found += ADVICE
                raise
        tied = {name for pair in other_names.items() for name in pair if self._names[name] in self._tensors}
        check_tied({name: self._bytes_of(name) for name in tied}, other_names, self._path)

    def digest_of(self, name: str) -> None:
        """Not known."""

    def _bytes_of(self, name: str) -> Any:
        given = self._names[name]
        return np.frombuffer(self._tensors.file_of(given).bytes_of(self._tensors[given]), np.uint8)

    def find(self, name: str) -> tuple[HoldsTensors, Tensor]:
        """A weight, under its own name, and what holds it."""
        file, tensor = self._found(name)
        return file, dataclasses.replace(tensor, name=name)

    def _found(self, name: str) -> tuple[HoldsTensors, Tensor]:
        given = self._names[name]
        file, tensor = self._tensors.file_of(given), self._tensors[given]
        type_ = self._types[name]
        own = unnamed(str(type_.dtype), type_.shape)
        if tensor.of is None and own is not None and own != "complex128":  # of which the shape is another one
            tensor = dataclasses.replace(tensor, of=dtype_of(tensor.dtype))
        return cast_in_file(file, tensor, type_) if self._is_cast else (file, tensor)


class Weights(Mapping[str, Any]):
    """The weights of a bound function by their names.

    Weights in files are read when they are first used, and then kept. On one CPU device, they are the mapped file.

    It is a mapping, not a pytree, so that looking at a tree does not read the files. ``dict(weights)`` is a
    pytree of all arrays, for `jax.tree.map`, optimizers and functions under `jax.jit`; `with_weights` takes it back.
    """

    def __init__(
        self,
        types: Mapping[str, Any],
        found: Mapping[str, Any] | WithDigests | _Named,
        shardings: Sequence[Any] = (),
        other_names: Mapping[str, str] | None = None,
        unchanged: Unchanged | None = None,
    ) -> None:
        """Args:
        types: the abstract value of each weight, in the order of the arguments.
        found: the arrays, or the files that they are in.
        shardings: where each weight goes; None for the default device. Empty if all go there.
        other_names: each further name of a tied weight, with the weight's own name.
        unchanged: the digests of the arrays, if they are not new here.
        """
        self._types = dict(types)
        self.other_names = dict(other_names or {})
        self._shardings = dict(zip(types, shardings or [None] * len(types), strict=True))
        self._files = None if isinstance(found, Mapping) else found
        self._arrays: dict[str, Any] = dict(found) if isinstance(found, Mapping) else {}
        self._on_devices: dict[str, Any] = {}
        self._all: tuple[Any, ...] | None = None
        self._unchanged = Unchanged(self._arrays) if unchanged is None else unchanged
        self._lock = threading.Lock()

    @classmethod
    def of_leaves(cls, types: Mapping[str, Any], leaves: Mapping[str, Any], other_names: Mapping[str, str]) -> Weights:
        """Weights that are leaves of a pytree: whatever a transformation of JAX puts in place of the arrays."""
        weights = cls(types, leaves, (), other_names, Unchanged({}))
        weights._on_devices = dict(leaves)
        return weights

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
        where = "in memory" if self._files is None else f"in files: {self._files}"
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
    def stored(self) -> Stored | None:
        """The files beside the artifact that these weights were loaded with; None for other weights."""
        return self._files if isinstance(self._files, Stored) else None

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
        if isinstance(self._files, WithDigests) and isinstance(other._files, WithDigests):
            return self._files.table.tensors == other._files.table.tensors
        if self._files is not None or other._files is not None:
            return self._files is other._files
        return all(self._arrays[name] is other._arrays[name] for name in self)

    def on(self, shardings: Sequence[Any]) -> Weights:
        """The same weights on other devices, None for the default one; nothing is read yet."""
        found = self._arrays if self._files is None else self._files
        return Weights(self._types, found, shardings, self.other_names, self._unchanged)

    def with_values(
        self, values: Any, rename: Rename | None = None, is_cast: bool = False, stable: bool = False
    ) -> Weights:
        """Other weights of the same names, shapes and dtypes.

        Args:
            values: the path of a safetensors file or its index, a mapping of arrays by name, or a pytree whose paths
                are the names. Others are not used. A pytree stands for the whole model, so a `UserWarning`
                names arrays in it that are not used. Files, and mappings without containers, cause no warning: they may
                be large checkpoints. Numbers, functions and other leaves that are not arrays are part of the program,
                and never used.
            rename: what weights are called among the values; None if they have their own names there.
            is_cast: whether values of other dtypes are cast.
            stable: whether files are copied to memory; also if these weights were.

        Raises:
            ExportError: `rename` is not about names of weights.
            WeightsError: a weight is missing, or has another shape or dtype; or the values of tied weights, which are
                one weight here, differ.
        """
        shardings = list(self._shardings.values())
        is_same = rename is None and isinstance(values, Weights) and values._types == self._types
        if is_same and values._files is not None:
            return Weights(self._types, values._files, shardings, self.other_names)
        names = names_given(list(self._types), self.other_names, rename)
        if isinstance(values, (str, os.PathLike)):
            stable = stable or (self._files is not None and self._files.stable)
            files = _Named(values, self._types, names, is_cast, stable)
            files.check(self.other_names, can_rename=rename is None)
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
        check_tied({name: given[there] for name, there in names.items() if there in given}, self.other_names)
        if not is_mapping:
            used.update(names.values())
            others = (name for name in arrays if name not in used)
            warn_of_others(
                "not used of the given arrays",
                [name for name in others if not isinstance(given[name], np.generic)],
                "they belong to another model, or are part of the program. A dict from names to arrays may have such "
                "arrays without this warning",
            )
        return Weights(self._types, found, shardings, self.other_names)

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
        warn_of_others("arrays of the model that stay its own", others, why)
        new = (self[places[name]] if name in places else leaf for name, leaf in leaves.items())
        return jax.tree_util.tree_unflatten(jax.tree_util.tree_structure(model), new)

    def sources(self) -> list[Source]:
        """The weights as they are written to files. Weights in files do not go through devices."""
        return [source(name, self._array(name)) if self._files is None else self._in_file(name) for name in self]

    def check_digests(self) -> None:
        """Compares the files beside an artifact with the digests in its trailer.

        Raises:
            WeightsError: a tensor is damaged.
            ExportError: the weights come from elsewhere, so there is nothing to compare with.
        """
        if not isinstance(self._files, WithDigests):
            raise ExportError("these weights were not loaded with an artifact, so there are no digests to compare with")
        self._files.check_digests()

    def _spec(self, name: str) -> Any:
        type_, sharding = self._types[name], self._shardings[name]
        array = self._arrays.get(name)
        if sharding is None and isinstance(array, jax.Array):
            return array
        return jax.ShapeDtypeStruct(type_.shape, type_.dtype, sharding=sharding)

    def _array(self, name: str) -> Any:
        self._unchanged.check(name, self._arrays[name])
        return self._arrays[name]

    def _in_file(self, name: str) -> Source:
        assert self._files is not None
        file, tensor = self._files.find(name)
        placing.check(file, tensor, self._types[name])
        return reading.source_in(file, tensor, self._files.digest_of(name))

    def _placed(self, name: str, type_: Any) -> Any:
        sharding = self._shardings[name]
        if self._files is not None:
            file, tensor = self._files.find(name)
            placing.check(file, tensor, type_)
            with placing.wherever():
                return placing.placed(file, tensor, type_, sharding)
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
    if tuple(leaf.shape) != tuple(type_.shape):
        raise WeightsError(name, type_of(type_), type_of(leaf))
    if leaf.dtype != type_.dtype:
        raise WeightsError(name, type_of(type_), type_of(leaf) + advice)

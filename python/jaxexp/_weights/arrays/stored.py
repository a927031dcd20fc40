"""Weights in files beside an artifact, on this machine or behind a URL, as its trailer describes them."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from jaxexp._errors import WeightsError
from jaxexp._kernel.io import files
from jaxexp._weights.files import content, places, reading
from jaxexp._weights.files.header import Tensor
from jaxexp._weights.files.reading import HoldsTensors, TensorFile, source_in
from jaxexp._weights.files.writing import Source, WrittenFile


class StoredFile(NamedTuple):
    """A file of tensors, as a trailer describes it."""

    name: str
    size: int
    content: bytes

    def is_same(self, file: TensorFile) -> bool:
        """Whether a file says that it has this content."""
        return file.size == self.size and file.content == self.content.hex()


class StoredTensor(NamedTuple):
    """A tensor in one of the files."""

    name: str
    file: int
    size: int
    digest: bytes


class Table(NamedTuple):
    """What a trailer says about weights: the files, and a tensor in one of them for each of the first arguments.

    It is also what `_native.Artifact.weights` returns, and `_native.Notes` takes.
    """

    files: tuple[StoredFile, ...]
    tensors: tuple[StoredTensor, ...]
    other_names: tuple[tuple[str, int], ...] = ()  # of tied weights: a further name, and which tensor it is

    @classmethod
    def of_trailer(cls, files: Iterable[Any], tensors: Iterable[Any], other_names: Iterable[Any]) -> Table:
        return cls(tuple(map(StoredFile._make, files)), tuple(map(StoredTensor._make, tensors)), tuple(other_names))

    def with_other_names(self, other_names: Mapping[str, str]) -> Table:
        """The same table with further names of tensors, given with their own names."""
        place = {tensor.name: number for number, tensor in enumerate(self.tensors)}
        return self._replace(other_names=tuple((n, place[own]) for n, own in other_names.items()))

    def named_otherwise(self) -> dict[str, str]:
        """The further names of tensors, with their own names."""
        return {other: self.tensors[number].name for other, number in self.other_names}

    @classmethod
    def of_written(cls, written: Sequence[WrittenFile], sources: Iterable[Source]) -> Table:
        """For files that were just written from these sources, which are in the order of the arguments."""
        place = {name: (number, digest) for number, file in enumerate(written) for name, digest in file.digests.items()}
        files = (StoredFile(file.name, file.size, file.content) for file in written)
        tensors = ((source, *place[source.name]) for source in sources)
        return cls(tuple(files), tuple(StoredTensor(s.name, file, s.size, digest) for s, file, digest in tensors))


class WithDigests:
    """Tensors that a table describes, wherever they are.

    Attributes:
        stable: whether they are copied to memory, where other files would be mapped.
    """

    stable = False

    def __init__(self, table: Table) -> None:
        self.table = table
        self._tensors = {tensor.name: tensor for tensor in table.tensors}

    def find(self, name: str) -> tuple[HoldsTensors, Tensor]:
        """A tensor, and the file that holds it; a WeightsError if it is missing, or differs from the table."""
        raise NotImplementedError

    def digest_of(self, name: str) -> bytes:
        return self._tensors[name].digest

    def sources(self) -> list[Source]:
        """The tensors as they are written elsewhere."""
        return [source_in(*self.find(stored.name), stored.digest) for stored in self.table.tensors]

    def check_digests(self) -> None:
        """Compares every tensor with its digest; a WeightsError if one is damaged."""
        for stored in self.table.tensors:
            reading.check_digest(*self.find(stored.name), stored.digest)


class Together(WithDigests):
    """The files of several tables, for whoever moves all files of an artifact. Tensors of two tables may have one
    name, so none is found by its name.
    """

    def __init__(self, parts: Sequence[WithDigests]) -> None:
        files: list[StoredFile] = []
        tensors: list[StoredTensor] = []
        for part in parts:
            tensors += [tensor._replace(file=tensor.file + len(files)) for tensor in part.table.tensors]
            files += part.table.files
        super().__init__(Table(tuple(files), tuple(tensors)))
        self._parts = parts

    @classmethod
    def of(cls, *parts: WithDigests | None) -> WithDigests | None:
        """Those that are there; None if none is."""
        found = [part for part in parts if part is not None]
        return cls(found) if len(found) > 1 else found[0] if found else None

    def sources(self) -> list[Source]:
        return [source for part in self._parts for source in part.sources()]

    def check_digests(self) -> None:
        for part in self._parts:
            part.check_digests()


class Stored(WithDigests):
    """The files of a table. Each is opened when one of its tensors is needed."""

    def __init__(self, path: str | os.PathLike[str], table: Table, stable: bool = False) -> None:
        """`path` is that of the artifact, beside which the files are."""
        super().__init__(table)
        self.stable = stable
        self.path = os.path.abspath(os.fsdecode(path))  # files are opened later, perhaps from elsewhere
        self._open: Callable[[int], TensorFile] = functools.cache(self._opened)

    def __str__(self) -> str:
        return f"beside {self.path!r}"

    def find(self, name: str) -> tuple[TensorFile, Tensor]:
        """The same; also a WeightsError if the file is damaged, or not the one that the artifact was saved with."""
        stored = self._tensors[name]
        file = self._open(stored.file)
        tensor = file.header.tensors.get(name)
        if tensor is None or tensor.size != stored.size:
            found = str(tensor) if tensor else "none of this name"
            raise WeightsError(name, f"a tensor of {stored.size:,} bytes", found, file=file.name)
        return file, tensor

    def paths(self) -> list[str]:
        """The path or the URL of each file, under the name that it was found by; each is opened."""
        return [self._open(number).name for number in range(len(self.table.files))]

    def check_whole(self) -> None:
        """Raises a WeightsError if files have more tensors than the table, which then cannot make them again."""
        for number in range(len(self.table.files)):
            names = {tensor.name for tensor in self.table.tensors if tensor.file == number}
            file = self._open(number)
            if others := [name for name in file.header.tensors if name not in names]:
                expected = f"only the tensors of {os.path.basename(self.path)!r}"
                raise WeightsError("", expected, f"{others[0]!r}, too", file=file.name)

    def check_files(self) -> None:
        """Checks that all files exist and have the tensors. No tensor is read."""
        for stored in self.table.tensors:
            self.find(stored.name)

    def are_there(self) -> bool:
        """Whether the files that are read have their own names, where somebody may have put others since. Files that
        were copied are compared by their digests.

        Raises:
            WeightsError: a file was not opened yet, and is missing or another one, or lacks a tensor.
        """
        self.check_files()
        return all(map(self._is_there, range(len(self.table.files))))

    def _is_there(self, number: int) -> bool:
        file, identity = self.table.files[number], self._open(number).identity
        try:
            if identity is not None:
                return places.is_still(identity, os.stat(os.path.join(os.path.dirname(self.path), file.name)))
            there = reading.open_beside(self.path, file.name, places.FileInPieces)
            for stored in self.table.tensors:
                if stored.file == number:
                    reading.check_digest(there, there.header.tensors[stored.name], stored.digest)
            return file.is_same(there)
        except (WeightsError, OSError, KeyError):
            return False

    def _opened(self, number: int) -> TensorFile:
        stored = self.table.files[number]
        # Between two steps of saving, or after a process died there, the file has only its second name. That
        # name is tried again, because the file may have got it in the meantime.
        second = content.second_name(stored.name, stored.content)
        for name in self._tried(stored.name, second):
            with contextlib.suppress(FileNotFoundError, WeightsError):
                file = self._open_beside(name, stored.size)
                if stored.is_same(file):
                    return file
        file = self._open_beside(stored.name, stored.size)
        if not stored.is_same(file):
            program = os.path.basename(self.path)
            raise WeightsError(
                "",
                f"the file that {program!r} was saved with ({stored.size:,} bytes, content {stored.content.hex()})",
                f"another one ({file.size:,} bytes, content {file.content}). To use other weights, pass them to "
                "with_weights",
                file=file.name,
            )
        return file

    def _tried(self, name: str, second: str) -> tuple[str, ...]:
        """The names to look for a file under, in this order."""
        return second, name, second

    def _open_beside(self, name: str, size: int) -> TensorFile:
        return reading.open_beside(self.path, name, places.taking(self.stable, size))


class StoredInPieces(Stored):
    """The same files, read in pieces: for a look at all of their bytes, which nobody can end by cutting a file."""

    def _open_beside(self, name: str, size: int) -> TensorFile:
        return reading.open_beside(self.path, name, places.FileInPieces)


class StoredToSign(StoredInPieces):
    """The same files, only under their own names: nobody who loads what is signed looks for others."""

    def _tried(self, name: str, second: str) -> tuple[str, ...]:
        return (name,)

    def _opened(self, number: int) -> TensorFile:
        try:
            return super()._opened(number)
        except WeightsError as error:
            file = self.table.files[number]
            second = content.second_name(file.name, file.content)
            if os.path.lexists(os.path.join(os.path.dirname(self.path), second)):
                error.found += (
                    f". {second!r} is there, as after a process that died while it saved: save the artifact again, or "
                    "rename that file"
                )
            raise


class StoredChecked(Stored):
    """The same files, copied to memory, and checked there before they are used."""

    def __init__(self, path: str | os.PathLike[str], table: Table, check: reading.Check) -> None:
        """Reads all of them.

        Raises:
            WeightsError: one of them is missing, or does not fit the table.
            Exception: what `check` raises.
        """
        super().__init__(path, table, stable=True)
        self._check = check
        self.check_files()

    def _tried(self, name: str, second: str) -> tuple[str, ...]:
        return (name,)  # no file is between two steps of saving, because it was checked after the last one

    def _open_beside(self, name: str, size: int) -> TensorFile:
        return reading.open_beside(self.path, name, places.taking(True, size), self._check)


class StoredBehind(Stored):
    """The same files behind a URL, read by ranges."""

    def __init__(self, url: str, table: Table, url_of: Callable[[str], str]) -> None:
        """`url` is that of the artifact; `url_of` makes that of a file beside it from the file's name."""
        super().__init__(url, table)
        self.path = url
        self._url_of = url_of

    def _tried(self, name: str, second: str) -> tuple[str, ...]:
        return name, second  # no program saves there, and each try is a request

    def _open_beside(self, name: str, size: int) -> TensorFile:
        with files.named_in_errors(self.path):
            places.check_name(name)
            if "::" in name:
                raise WeightsError("", "a name without '::', which joins URLs", repr(name))
        return reading.open_behind(self._url_of(name), os.path.basename(self.path))

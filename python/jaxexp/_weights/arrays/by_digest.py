"""Weights in one large file, such as an archive, which finds tensors by their digests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from jaxexp import _native
from jaxexp._errors import WeightsError
from jaxexp._weights.files.dtypes import held_as, size_of, type_of, unnamed
from jaxexp._weights.files.header import Tensor
from jaxexp._weights.files.reading import HoldsTensors
from jaxexp._weights.files.writing import damaged

from .stored import Table, WithDigests


class FindsTensors(HoldsTensors, Protocol):
    """A file that holds tensors, and knows where each one is."""

    @property
    def stable(self) -> bool:
        """Whether its bytes are read, and never mapped."""
        ...

    def place(self, digest: bytes) -> tuple[int, int] | None:
        """The position and the size of a tensor; None if there is none of this digest."""
        ...


class ByDigest(WithDigests):
    """The tensors of a table, in a file that has no names for them."""

    def __init__(self, file: FindsTensors, label: str, table: Table, types: Mapping[str, Any]) -> None:
        """`types` has objects with the dtype and the shape of each weight, by its name; the bytes do not say these.

        Messages call the function by its label.
        """
        super().__init__(table)
        self.stable = file.stable
        self._file, self._label, self._types = file, label, types

    def __str__(self) -> str:
        return repr(self._label)

    def find(self, name: str) -> tuple[HoldsTensors, Tensor]:
        stored = self._tensors[name]
        place = self._file.place(stored.digest)
        if place is None or place[1] != stored.size:
            found = "none" if place is None else f"one of {place[1]:,} bytes"
            expected = f"a tensor of {stored.size:,} bytes with the digest {stored.digest.hex()}"
            raise WeightsError(name, expected, found, file=self._label)
        type_ = self._types[name]
        held = held_as(str(type_.dtype), type_.shape)
        if held is None or size_of(*held) != stored.size:
            expected = f"as many bytes as {type_of(type_)} has"
            raise WeightsError(name, expected, f"{stored.size:,}", file=self._label)
        tensor = Tensor(name, *held, place[0], place[0] + place[1], unnamed(str(type_.dtype), type_.shape))
        # A file that was mapped when the archive was opened does not change.
        return (_Fetched(self._file, stored.digest) if self._file.identity is None else self._file), tensor


class _Fetched:
    """A tensor in a file that is fetched in parts, and that may have been replaced meanwhile."""

    identity = None

    def __init__(self, file: HoldsTensors, digest: bytes) -> None:
        self.name = file.name
        self._file, self._digest = file, digest

    def bytes_of(self, tensor: Tensor) -> memoryview:
        """The bytes, compared with their digest."""
        found = self._file.bytes_of(tensor)
        if (digest := _native.digest(found)) != self._digest:
            error = damaged(self.name, tensor.name, self._digest, digest)
            error.found += ": it is damaged, or the file has changed since it was opened; open it again"
            raise error
        return found

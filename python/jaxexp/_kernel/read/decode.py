"""Makes functions from verified artifacts."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Sequence
from typing import Any

from jaxexp import _native
from jaxexp._errors import DeserializationError
from jaxexp._kernel.artifact.chain import chain
from jaxexp._kernel.artifact.metadata import from_json
from jaxexp._kernel.artifact.opened import explain, opened
from jaxexp._kernel.codec import binding
from jaxexp._kernel.function.data import ExportedData, artifact_of
from jaxexp._kernel.function.vjps import LaterVjp


class Decoder:
    """Makes functions of one class from artifacts. `reader_of` returns the reader of a class."""

    def __init__(self, made: type[ExportedData]) -> None:
        vjp = functools.partial(_LoadedVjp, self)
        self._functions = _native.Functions(
            types.SimpleNamespace(Exported=made, LoadedVjp=vjp, metadata_from_json=from_json)
        )
        self._read = self._functions.read

    def read(self, buffer: Any, modules: Sequence[Any] = ()) -> Any:
        """Verifies a buffer, and returns its function. Its module and its VJP are read on first use.

        If modules are given, one for each function, the buffer is the image that `_native.cut` made of an artifact.
        """
        if modules:
            return self.decode(verified(buffer, modules))
        binding.bind()
        try:  # the same, in one native call
            return self._read(buffer)
        except (DeserializationError, TypeError) as error:
            explain(error, buffer)
            raise

    def decode(self, artifact: _native.Artifact) -> Any:
        """Makes a function. Its fields, module and VJP are read on first use; fields that might be refused, now."""
        artifact.prepare()
        return self._functions.function(artifact)

    def many(
        self, workers: int, stop: bool, admit: Callable[[_native.Artifact], None] | None = None
    ) -> _native.ReadMany:
        """Reads many buffers or files at once, and makes a function or an exception from each.

        With `stop`, the first exception ends the work. `admit` is called with each artifact before anything is made
        from it; what it raises is the result.
        """
        binding.bind()
        return _native.ReadMany(self._functions, workers, stop, admit)


@functools.cache
def reader_of(made: Any) -> Decoder:
    return Decoder(made)


def verified(buffer: Any, modules: Sequence[Any] = ()) -> _native.Artifact:
    """The artifact in a buffer, or in an image and its modules; `Decoder.decode` makes a function from it."""
    binding.bind()
    return opened(buffer, modules)


def verify_modules(exported: ExportedData) -> None:
    """Compares the modules of a function and of its VJPs with their digests; a DeserializationError if one differs."""
    artifact = artifact_of(exported)
    if artifact is not None:
        for link in chain(artifact):
            link.module()


class _LoadedVjp(LaterVjp):
    """The VJP inside a function's artifact; equal to one of equal content."""

    __slots__ = ("primal", "reader")

    def __init__(self, reader: Decoder, primal: _native.Artifact) -> None:
        self.reader, self.primal = reader, primal

    def __call__(self, primal: object = None) -> Any:
        artifact = self.primal.vjp()
        assert artifact is not None
        return self.reader.decode(artifact)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _LoadedVjp):
            return NotImplemented
        return self is other or self() == other()

    def __hash__(self) -> int:
        return hash(_LoadedVjp)

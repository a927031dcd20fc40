"""`Archive`: many artifacts in one file, each a few microseconds away."""

from __future__ import annotations

import bisect
import fnmatch
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal, overload

from jaxexp._errors import DeserializationError
from jaxexp._io.sources import open_source
from jaxexp._public import public

from . import load, verify
from .handle import Handle
from .opened import Opened

if TYPE_CHECKING:
    from jaxexp._exported import Exported
    from jaxexp._io.sources import BinaryFile
    from jaxexp._read.many import OnError
    from jaxexp._read.policy import Policy

    from .writer import ArchiveWriter


@public
class Archive(Mapping[str, "Handle"]):
    """The artifacts in one file: a read-only mapping of their names to handles, in the order of the names.

    The file is a ZIP file of stored members, each an artifact that any `unzip` takes out and any `jax.export` reads,
    with an index as last member. Opening reads the index's root alone, whatever the number of members; what is asked
    for is checked when it is asked for. A file in the file system is mapped into memory, so many threads and processes
    share its pages, and a module's bytes are read when the function is called.

    An archive stays open as long as something loaded from it is in use. It sees the file as it was when it was opened:
    who appends to it overwrites nothing, who compacts it makes a new file.

    Attributes:
        name: the path or URL.
        unfinished_bytes: how many bytes behind the archive were left by somebody who was interrupted while he appended
            to it, or is still at it; 0 nearly always.

    Example:
        >>> with jaxexp.Archive.create("fleet.zip") as archive:
        ...     archive.add("resnet/b8", exported)
        >>> jaxexp.Archive.open("fleet.zip")["resnet/b8"].load().call(x)
    """

    __slots__ = ("_names", "_opened")

    def __init__(self, opened: Opened, names: tuple[str, ...] | None = None) -> None:
        self._opened = opened
        self._names = names  # of a slice, ascending

    @staticmethod
    def open(source: str | os.PathLike[str] | BinaryFile, **storage_options: Any) -> Archive:
        """Opens an archive for reading.

        Args:
            source: a path; a binary file object that can be read and sought, which has to stay open; or a URL that
                fsspec knows, such as ``"s3://bucket/fleet.zip"`` (extra ``jaxexp[remote]``). What is behind a URL or a
                file object is read by ranges: the end with the index, then the members that are asked for.
            storage_options: for fsspec, such as credentials.

        Raises:
            DeserializationError: it is no archive, or its index is damaged.
            OSError: it cannot be opened.
            ImportError: it is a URL, and fsspec or what it takes for such URLs is not installed.
            TypeError: `source` is something else.
        """
        return Archive(Opened(open_source(source, storage_options), Archive.open))

    @staticmethod
    def create(path: str | os.PathLike[str], *, share_modules: bool = True) -> ArchiveWriter:
        """A new archive, as a context manager: `path` appears, or is replaced, when its block ends without exception.

        Args:
            path: the file.
            share_modules: as in `ArchiveWriter`.

        Raises:
            OSError: the file cannot be written.
        """
        from .writer import ArchiveWriter

        return ArchiveWriter.creating(path, share_modules)

    @staticmethod
    def append(path: str | os.PathLike[str], *, share_modules: bool = True) -> ArchiveWriter:
        """An archive to add members to, or to remove some from, as a context manager.

        Nothing in the file is overwritten: new members go behind the old end, and then a new index. Whoever reads it
        meanwhile, or after this was interrupted, sees the archive as it was. One process at a time can do this.

        Args:
            path: the file.
            share_modules: as in `ArchiveWriter`.

        Raises:
            DeserializationError: it is no archive, or its index is damaged.
            ExportError: another process is changing it.
            OSError: the file cannot be opened or written.
        """
        from .writer import ArchiveWriter

        return ArchiveWriter.appending(path, share_modules)

    @staticmethod
    def compact(path: str | os.PathLike[str], *, share_modules: bool = True) -> None:
        """Writes an archive anew, without what was removed, and with every index but the last left out.

        The new file takes the old one's place at the end; who has the old one open keeps it. Every artifact is
        verified on the way, so a damaged one ends this, and leaves everything as it was.

        Args:
            path: the file.
            share_modules: as in `ArchiveWriter`; False makes every member an artifact that `jax.export` reads.

        Raises:
            DeserializationError: the archive, or an artifact in it, is damaged.
            ExportError: another process is changing it.
            OSError: the file cannot be read or written.
        """
        from . import writer

        writer.compact(path, share_modules)

    @property
    def name(self) -> str:
        return self._opened.source.name

    @property
    def unfinished_bytes(self) -> int:
        return self._opened.unfinished_bytes

    def __getitem__(self, name: str) -> Handle:
        number = self._opened.find(name) if self._includes(name) else None
        if number is None:
            raise KeyError(f"{name!r} is not in {self}")
        return Handle(self._opened, number, name)

    def __contains__(self, name: object) -> bool:
        return self._includes(name) and self._opened.find(name) is not None

    def __iter__(self) -> Iterator[str]:
        return iter(self._listed())

    def __len__(self) -> int:
        return len(self._opened.index) if self._names is None else len(self._names)

    def __repr__(self) -> str:
        return f"Archive({self.name!r}: {len(self)} artifacts)"

    def glob(self, pattern: str) -> Archive:
        """The members whose names match a pattern, as an archive of the same file.

        Args:
            pattern: as in `fnmatch.fnmatchcase`: ``*`` matches anything, slashes included, ``?`` one character, and
                ``[ab]`` one of some.
        """
        names = self._listed()
        matching = fnmatch.filter(names, pattern) if os.sep == "/" else [n for n in names if _matches(n, pattern)]
        return Archive(self._opened, tuple(matching))

    @overload
    def load_all(
        self,
        names: Iterable[str] | None = None,
        *,
        workers: int | None = None,
        on_error: Literal["raise"] = "raise",
        policy: Policy | None = None,
    ) -> list[Exported]: ...
    @overload
    def load_all(
        self,
        names: Iterable[str] | None = None,
        *,
        workers: int | None = None,
        on_error: Literal["return"],
        policy: Policy | None = None,
    ) -> list[Exported | Exception]: ...
    def load_all(
        self,
        names: Iterable[str] | None = None,
        *,
        workers: int | None = None,
        on_error: OnError = "raise",
        policy: Policy | None = None,
    ) -> list[Exported] | list[Exported | Exception]:
        """Loads many members at once: verified in threads, decoded with what they have in common made once.

        Args:
            names: which ones, in this order; None for all, in the order of the archive.
            workers: as in `load_many`.
            on_error: as in `load_many`.
            policy: as in `load_many`.

        Returns:
            One Exported for each name, as in `load_many`.

        Raises:
            KeyError: there is no member of such a name.
            DeserializationError: a member, or the index, is damaged; it names the archive and the member.
            PolicyError: likewise.
        """
        return load.load(self._opened, self._names if names is None else names, workers, on_error, policy)

    def verify(self, *, workers: int | None = None) -> dict[str, DeserializationError]:
        """Reads every byte of the archive and compares it with what it has to be.

        Checked are the index, each artifact (its digest over all bytes, its structure and what it means, as in
        `deserialize`), and what `unzip` goes by. Of a slice, its members alone. No JAX is imported.

        Args:
            workers: how many threads; None for as many as there are CPUs.

        Returns:
            The errors of the members that are damaged, by name.

        Raises:
            DeserializationError: the index, or the ZIP file's directory, is damaged.
        """
        return dict(error for _, errors in verify_in_steps(self, workers) for error in errors)

    def close(self) -> None:
        """Lets go of the file. What was loaded from it stays usable, and holds it as long as it needs it."""
        self._opened.close()

    def __enter__(self) -> Archive:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        reopen, address = self._opened.__reduce__()
        return (reopen, address) if self._names is None else (reopen, address, self._names)

    def __setstate__(self, names: tuple[str, ...]) -> None:
        self._names = names

    def _includes(self, name: object) -> bool:
        """Whether a slice has it."""
        if self._names is None or not isinstance(name, str):
            return self._names is None
        place = bisect.bisect_left(self._names, name)
        return place < len(self._names) and self._names[place] == name

    def _listed(self) -> Any:
        return self._opened.names() if self._names is None else self._names


def verify_in_steps(
    archive: Archive, workers: int | None
) -> Iterator[tuple[int, list[tuple[str, DeserializationError]]]]:
    """`Archive.verify`, as it goes on: how many members were verified at once, and the errors of the damaged ones."""
    return verify.verify(archive._opened, archive._names, workers)


def _matches(name: str, pattern: str) -> bool:
    return fnmatch.fnmatchcase(name, pattern)  # `filter` would take backslashes for slashes on Windows

"""`Archive`: many artifacts in one file, each a few microseconds away."""

from __future__ import annotations

import bisect
import dataclasses
import fnmatch
import json
import os
import weakref
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from . import _native, _source, _summary
from ._errors import DeserializationError, ExportError, PolicyError

if TYPE_CHECKING:
    from ._archive_writer import ArchiveWriter
    from ._bulk import OnError
    from ._exported import Exported
    from ._inspect import Inspection
    from ._policy import Policy
    from ._source import Source

# What is read from the end of a file that takes a request for each range: with luck the whole index.
_FIRST_FETCH = 1 << 16


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

    __slots__ = ("_names", "_reader")

    def __init__(self, reader: _Reader, names: tuple[str, ...] | None = None) -> None:
        self._reader = reader
        self._names = names  # of a slice, ascending

    @staticmethod
    def open(source: Any, **storage_options: Any) -> Archive:
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
        return Archive(_Reader(_source.open_source(source, storage_options)))

    @staticmethod
    def create(path: str | os.PathLike[str], *, share_modules: bool = True) -> ArchiveWriter:
        """A new archive, as a context manager: `path` appears, or is replaced, when its block ends without exception.

        Args:
            path: the file.
            share_modules: as in `ArchiveWriter`.

        Raises:
            OSError: the file cannot be written.
        """
        from ._archive_writer import ArchiveWriter

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
        from ._archive_writer import ArchiveWriter

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
        from ._archive_writer import compact

        compact(path, share_modules)

    @property
    def name(self) -> str:
        return self._reader.source.name

    @property
    def unfinished_bytes(self) -> int:
        return self._reader.unfinished_bytes

    def __getitem__(self, name: str) -> Handle:
        number = self._reader.find(name) if self._includes(name) else None
        if number is None:
            raise KeyError(f"{name!r} is not in {self}")
        return Handle(self._reader, number, name)

    def __contains__(self, name: object) -> bool:
        return self._includes(name) and self._reader.find(name) is not None

    def __iter__(self) -> Iterator[str]:
        return iter(self._listed())

    def __len__(self) -> int:
        return len(self._reader.index) if self._names is None else len(self._names)

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
        return Archive(self._reader, tuple(matching))

    def load_all(
        self,
        names: Iterable[str] | None = None,
        *,
        workers: int | None = None,
        on_error: OnError = "raise",
        policy: Policy | None = None,
    ) -> list[Exported]:
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
        from . import _members

        return _members.load(self._reader, self._names if names is None else names, workers, on_error, policy)

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
        from . import _members

        return dict(error for _, errors in _members.verify(self._reader, self._names, workers) for error in errors)

    def close(self) -> None:
        """Lets go of the file. What was loaded from it stays usable, and holds it as long as it needs it."""
        self._reader.kept.clear()
        self._reader.source.close()

    def __enter__(self) -> Archive:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopened, (self._reader.reopening(), self._names)

    def _includes(self, name: object) -> bool:
        """Whether a slice has it."""
        if self._names is None or not isinstance(name, str):
            return self._names is None
        place = bisect.bisect_left(self._names, name)
        return place < len(self._names) and self._names[place] == name

    def _listed(self) -> Any:
        return self._reader.names() if self._names is None else self._names


@dataclasses.dataclass(frozen=True, slots=True, repr=False, eq=False)
class Handle:
    """A member of an archive that has not been read yet.

    Attributes:
        name: its name in the archive.
    """

    _reader: _Reader
    _number: int
    name: str

    @property
    def summary(self) -> _summary.Summary:
        """What the index says of the function; the artifact is not read."""
        return _summary.of_member(self._member)

    @property
    def size(self) -> int:
        """The size of the artifact in bytes."""
        return self._member.size

    @property
    def digest(self) -> str:
        """The digest of the artifact as a hexadecimal number (XXH3, 128 bits). Equal artifacts have equal ones."""
        return self._member.digest.hex()

    @property
    def metadata(self) -> dict[str, Any]:
        """What the user said of it, to the archive or else to the artifact."""
        with self._placed():
            return self._reader.metadata(self._number)

    @property
    def shares_modules(self) -> bool:
        """Whether its modules are stored with another member, so that what `unzip` takes out is not an artifact."""
        return self._member.place.apart

    def load(self, *, policy: Policy | None = None) -> Exported:
        """The function, as from `jaxexp.load`; from a mapped file, its module is read when it is called.

        As long as somebody keeps it, and without a policy, the same function is returned again, with the code that was
        compiled for it.

        Args:
            policy: what the artifact may contain, as in `deserialize`.

        Raises:
            DeserializationError: the artifact is damaged; it names the archive and the member.
            PolicyError: it contains what the policy does not allow.
            OSError: a remote file cannot be read.
        """
        from . import _members

        exported = self._reader.loaded.get(self._number) if policy is None else None
        if exported is None:
            exported = _members.load(self._reader, [self.name], 1, "raise", policy)[0]
            if policy is None:
                self._reader.loaded[self._number] = exported
        return exported

    def load_and_keep(self) -> Exported:
        """As `load`; the archive keeps the function until it is closed."""
        exported = self._reader.kept[self._number] = self.load()
        return exported

    def read(self) -> bytes | memoryview:
        """The bytes of the artifact, for any `jax.export`; a view into the file where that is possible.

        They are not verified.

        Raises:
            DeserializationError: its modules are stored with another member, and are not there.
        """
        with self._placed():
            data: bytes | memoryview = self._reader.artifact_bytes(self._number)
            return data

    def inspect(self, *, check_modules: bool = False) -> Inspection:
        """What the artifact says of itself, as from `jaxexp.inspect`."""
        from . import _inspect

        with self._placed():
            image, modules = self._reader.parts(self._number)
            return _inspect.described(image, check_modules, modules)

    @property
    def _member(self) -> _native.Member:
        with self._placed():
            return self._reader.index.member(self._number)

    def _placed(self) -> _Placed:
        return self._reader.placed(self.name)

    def __repr__(self) -> str:
        return f"Handle({self.name!r} in {self._reader.source.name!r})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Handle):
            return NotImplemented
        return self._reader is other._reader and self._number == other._number

    def __hash__(self) -> int:
        return hash((id(self._reader), self._number))

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopened_member, (self._reader.reopening(), self.name)


class _Reader:
    """An open file and its index: what an archive, its slices and its handles share."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.loaded: weakref.WeakValueDictionary[int, Exported] = weakref.WeakValueDictionary()
        self.kept: dict[int, Exported] = {}
        self._names: list[str] | None = None
        try:
            with self.placed():
                self.end, self.pointer, self.index_bytes, root = _find_index(source)
                self.index = _native.ArchiveIndex(
                    self.index_bytes, root, self.pointer.root_digest, self.pointer.index_position
                )
        finally:
            source.opened()

    @property
    def unfinished_bytes(self) -> int:
        return self.source.size - self.end

    def label(self, name: str) -> str:
        """What messages call a member."""
        return f"{self.source.name}::{name}"

    def placed(self, name: str | None = None) -> _Placed:
        """Says in errors which file, and which member of it, they are about."""
        return _Placed(self.source.name if name is None else self.label(name))

    def check(self) -> None:
        """Checks all of the index."""
        with self.placed():
            self.index.check()

    def find(self, name: object) -> int | None:
        if not isinstance(name, str):
            return None
        try:
            name.encode()
        except UnicodeEncodeError:
            return None
        with self.placed():
            return self.index.find(name)

    def names(self) -> list[str]:
        if self._names is None:
            with self.placed():
                self._names = self.index.names()
        return self._names

    def metadata(self, number: int) -> dict[str, Any]:
        member = self.index.member(number)
        if member.metadata is not None:
            return self.object(member.metadata)
        if member.own_metadata:
            return {}
        from . import _metadata

        return _metadata.from_json(_native.Artifact(*self.parts(number)).metadata() or {})

    @staticmethod
    def object(text: str) -> dict[str, Any]:
        """What a JSON text of the index says."""
        try:
            value = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise DeserializationError("index.metadata", "JSON", str(error)) from error
        if not isinstance(value, dict):
            raise DeserializationError("index.metadata", "a JSON object", f"a {type(value).__name__}")
        return value

    def parts(self, number: int) -> tuple[Any, list[Any]]:
        """The bytes of a member, and of its modules if they are apart."""
        position, size, modules = self.index.extent(number)
        image, *parts = self.source.read_many([(position, size), *modules])
        return image, parts

    def artifact_bytes(self, number: int) -> Any:
        image, modules = self.parts(number)
        return bytes(_native.join(image, modules)) if modules else image

    def reopening(self) -> tuple[str, dict[str, Any]]:
        if self.source.address is None:
            raise ExportError(
                f"an archive in a file object cannot be pickled: another process could not open {self.source.name}. "
                "Open it by its path or URL"
            )
        return self.source.address


class _Placed:
    """Gives errors about bytes the name of the file that they are in, unless they have a more precise one."""

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, (DeserializationError, PolicyError)) and error.file is None:
            error.file = self._name


def _find_index(source: Source) -> tuple[int, _native.ArchiveEnd, Any, Any]:
    """Where the archive ends, what its last bytes say, the bytes of its index, and those of the index's root."""
    if source.size == 0:
        raise DeserializationError("", "an archive of artifacts", "an empty file")
    first = min(source.size, _FIRST_FETCH if source.whole is None else _native.ARCHIVE_END_SIZE)
    last = source.copy(source.size - first, first)
    tail = last[-_native.ARCHIVE_END_SIZE :]
    end, pointer = source.size, _native.ArchiveEnd.read(tail)
    if pointer is None:
        if _native.ArchiveEnd.is_resembled_by(tail):
            raise DeserializationError("", "an archive's end", "a damaged one; get another copy of the archive")
        end, pointer = _earlier_end(source)
    start = pointer.index_position
    if (
        start + pointer.index_size > end - _native.ARCHIVE_END_SIZE
        or pointer.root_position + pointer.root_size > pointer.index_size
    ):
        raise DeserializationError(
            "", f"an index of {pointer.index_size} bytes at {start}", f"an archive of {end}; get another copy of it"
        )
    inside = start - (source.size - first)
    index = last[inside : inside + pointer.index_size] if inside >= 0 else source.read(start, pointer.index_size)
    if source.whole is not None:
        return end, pointer, index, source.copy(start + pointer.root_position, pointer.root_size)
    return end, pointer, index, index[pointer.root_position : pointer.root_position + pointer.root_size]


def _earlier_end(source: Source) -> tuple[int, _native.ArchiveEnd]:
    """The end of the archive as it was before somebody appended to it and did not come to an end."""
    found = source.size
    while (found := source.rfind(_native.ARCHIVE_END_MAGIC, found)) >= _native.ARCHIVE_END_MAGIC_AT:
        start = found - _native.ARCHIVE_END_MAGIC_AT
        if start + _native.ARCHIVE_END_SIZE > source.size:
            continue
        pointer = _native.ArchiveEnd.read(bytes(source.read(start, _native.ARCHIVE_END_SIZE)))
        if pointer is not None:
            return start + _native.ARCHIVE_END_SIZE, pointer
    is_zip = bytes(source.read(0, min(4, source.size))) in (b"PK\3\4", b"PK\5\6")
    raise DeserializationError(
        "",
        "an archive of artifacts, with an index that its end points to",
        "a ZIP file without, which `jaxexp pack` makes from its members" if is_zip else "something else",
    )


def _matches(name: str, pattern: str) -> bool:
    return fnmatch.fnmatchcase(name, pattern)  # `filter` would take backslashes for slashes on Windows


def _reopened(address: tuple[str, dict[str, Any]], names: tuple[str, ...] | None) -> Archive:
    path, options = address
    archive = Archive.open(path, **options)
    return archive if names is None else Archive(archive._reader, names)


def _reopened_member(address: tuple[str, dict[str, Any]], name: str) -> Handle:
    path, options = address
    return Archive.open(path, **options)[name]

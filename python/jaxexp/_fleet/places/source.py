"""The artifact that a user gives: a path, a member of an archive, a URL, a buffer or a file object. Also says whether a
file is an artifact, an archive or neither, by its beginning and its name. Damage does not change that."""

from __future__ import annotations

import contextlib
import enum
import functools
import os
import struct
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

from jaxexp import _native
from jaxexp._errors import DeserializationError, ExportError, ExportTypeError
from jaxexp._kernel.artifact.opened import opened, tables_of
from jaxexp._kernel.io import files
from jaxexp._kernel.io.files import is_url
from jaxexp._kernel.io.other_files import MARK, MARK_AT, is_tensors
from jaxexp._kernel.io.sources import beginning_of_url, open_source

if TYPE_CHECKING:
    from typing import TypeAlias

    from typing_extensions import Buffer

    from jaxexp._fleet.archive.archive import Handle
    from jaxexp._kernel.io.sources import Readable
    from jaxexp._signing.signed_by import SignedBy
    from jaxexp._weights.files.header import Table
    from jaxexp._weights.files.reading import Opening, StoredTensors, Tensors

    Given: TypeAlias = str | os.PathLike[str] | Buffer | Readable | Handle

MEMBER = "::"
# fsspec's protocols for a file that is inside of the file that the next link of the URL names.
_INSIDE = ("zip", "tar", "libarchive", "dir")
_AT_ONCE = 1 << 20
# Suffixes of artifacts; one of the second kind decides only if the file is too short to tell.
SUFFIXES, _PERHAPS = (".jaxexp", ".jax_export"), ("", ".bin")
_HEAD = 64
_TOO_SHORT = 12
# In the first member of an archive: its name starts after the 30 bytes of a ZIP file's local header.
_SECTION = slice(30, 45)


class Kind(enum.Enum):
    """How a file is verified or packed."""

    ARTIFACT = "artifact"
    ARCHIVE = "archive"


class Source:
    """An artifact, and how to get at its bytes: one of the four attributes after `name` is set.

    Attributes:
        name: as the user would write it; empty for a buffer and for a file object without a name.
        path: its file, or a URL.
        handle: its member of an archive.
        buffer: its bytes; also those of a URL, since they were read.
        file: a binary file object; the artifact is what comes next in it.
    """

    __slots__ = ("buffer", "file", "handle", "name", "path")

    def __init__(
        self, name: str, path: str | None = None, handle: Handle | None = None, buffer: Any = None, file: Any = None
    ) -> None:
        self.name, self.path, self.handle, self.buffer, self.file = name, path, handle, buffer, file

    @property
    def given(self) -> Any:
        """The artifact as the functions of the API take it: a member of an archive, or a path or URL."""
        return self.path if self.handle is None else self.handle

    @property
    def is_file(self) -> bool:
        return self.path is not None and not is_url(self.path)

    def read(self, check_size: Callable[[int], None] | None = None) -> Any:
        """The bytes of the artifact, which do not change later; for a member, with the digest that its archive has.
        `check_size` is called with the size, before more than that is read.
        """
        if self.handle is not None:
            if check_size is not None:
                check_size(self.handle.size)
            buffer = self.handle.read()
            if (found := _native.digest(buffer).hex()) != self.handle.digest:
                raise DeserializationError("", f"an artifact of digest {self.handle.digest}", f"one of {found}")
            return buffer
        if self.path is not None and not is_url(self.path):
            return files.opened(self.path) if check_size is None else files.read(self.path, check_size)
        if self.path is not None and self.buffer is None:
            with contextlib.closing(open_source(self.path, {})) as remote:
                if not remote.size:
                    raise files.empty("a serialized Exported")
                if check_size is not None:
                    check_size(remote.size)
                if remote.size > files.LARGEST:  # before it fills the memory
                    raise files.too_large(f"a file of {remote.size:,} bytes")
                self.buffer = remote.read(0, remote.size)
        return self.buffer if self.file is None else _rest(self.file, check_size)

    def mapped(self) -> Any:
        """The same for a brief look: a file is mapped."""
        return files.mapped(self.path) if self.path is not None and self.is_file else self.read()

    def opened(self, check_size: Callable[[int], None] | None = None) -> Opened:
        return Opened(self, check_size=check_size)

    def own_metadata(self) -> dict[str, Any] | None:
        return None if self.handle is None else self.handle.own_metadata()

    @contextlib.contextmanager
    def named(self) -> Generator[None]:
        """A context in which errors about the bytes name the artifact, and say what to do about archives or folders."""
        path = self.path
        try:
            with files.named_in_errors(self.name):
                yield
        except DeserializationError as error:
            if path is not None and kind_of_file(path) is Kind.ARCHIVE:
                error.expected = "one artifact"
                error.found = f"an archive of artifacts: name one of them, as in '{path}{MEMBER}NAME'"
            raise
        except (FileNotFoundError, NotADirectoryError) as error:
            if error.filename == path and path:
                for place in (i for i, character in enumerate(path) if character in ":/"):
                    if is_archive(path[:place]) and path[place + 1 :]:
                        member = f"{path[:place]}{MEMBER}{path[place + 1 :]}"
                        error.strerror = f"{error.strerror}. A member of an archive is named as in {member!r}"
            raise
        except IsADirectoryError as error:
            if error.filename == path:
                advice = "Name a file in it; load_many, verify_many and others take many files"
                error.strerror = f"{error.strerror}. {advice}"
            raise


class Opened:
    """An artifact that is read once: its bytes, what they are, and the only way to the files that it uses.

    Attributes:
        source: where it is.
        buffer: its bytes, which do not change; given, if they were read already.
    """

    def __init__(self, source: Source, buffer: Any = None, check_size: Callable[[int], None] | None = None) -> None:
        self.source, self._check_size = source, check_size
        if buffer is not None:
            self.buffer = buffer

    @functools.cached_property
    def buffer(self) -> Any:
        return self.source.read(self._check_size)

    @functools.cached_property
    def artifact(self) -> _native.Artifact:
        return opened(self.buffer)

    def files(self, how: Opening | None = None) -> list[Tensors]:
        return [found for found in (self.weights(how), self.cases(how)) if found is not None]

    def weights(self, how: Opening | None = None) -> Tensors | None:
        """Its weights, beside its file, also behind a URL, or in its archive; None if it has none there, or if it is a
        buffer, beside which is nothing. `how` files on this machine are opened; by default, they are read in pieces.
        """
        if self.source.handle is not None:
            from jaxexp._fleet.archive.opened import of_artifact

            return of_artifact(self.source.handle._opened, self.source.handle.label, self.artifact)
        return self._beside(self.artifact.weights(), how)

    def cases(self, how: Opening | None = None) -> Tensors | None:
        """The same for the arrays of its cases."""
        if self.source.handle is not None:
            from jaxexp._fleet.archive.opened import cases_of

            return cases_of(self.source.handle._opened, self.source.handle.label, self.artifact)
        _, _, files, tensors = self.artifact.cases() or ((), (), (), ())
        return self._beside((files, tensors) if files else None, how)

    def names(self) -> list[str]:
        return [name for files, *_ in tables_of(self.artifact) for name, *_ in files]

    def _beside(self, said: Any, how: Opening | None) -> StoredTensors | None:
        if said is None or self.source.path is None:
            return None
        from jaxexp._weights.files.header import Table

        return stored_beside(self.source.path, Table.of_trailer(*said), how)


def stored_beside(path: str, table: Table, how: Opening | None = None) -> StoredTensors:
    """The files of a table in the folder of a path or URL. `how` files on this machine are opened; by default, and
    behind a URL, they are read in pieces.
    """
    from jaxexp._weights.files.reading import Opening, StoredTensors

    url_of = functools.partial(beside, path) if is_url(path) else None
    return StoredTensors(path, table, how or Opening("in pieces", url_of=url_of))


def source(given: Given, function: str, signed_by: SignedBy | None = None, stable: bool = False) -> Source:
    """The artifact that a user gave to a function. With `signed_by`, it is a file, which the caller has to check, or a
    member of an archive, which was checked. With `stable`, an archive maps no weights.
    """
    if isinstance(given, (str, os.PathLike)):
        text = os.fsdecode(given)
        path, member = split(text)
        if member is None:
            if signed_by is not None and is_url(path):
                raise _unsigned("a URL: copy the file here with its signature")
            return Source(text, path=text)
        from jaxexp._fleet.archive.archive import Archive

        return Source(text, handle=Archive.open(path, signed_by=signed_by, stable=stable)[member])
    if signed_by is not None:
        raise _unsigned(f"{type(given).__name__}. Open an archive with Archive.open(path, signed_by=...)")
    with contextlib.suppress(TypeError):  # not a buffer
        memoryview(given).release()  # type: ignore[arg-type]
        return Source("", buffer=given)
    from jaxexp._fleet.archive.archive import Handle

    if isinstance(given, Handle):
        if stable and not given._opened.stable:
            raise ExportError(f"{given.label!r}: open its archive with Archive.open(path, stable=True)")
        return Source(given.label, handle=given)
    if callable(getattr(given, "read", None)):
        name = getattr(given, "name", None)
        return Source(name if isinstance(name, str) else "", file=given)
    is_function = hasattr(type(given), "mlir_module")
    advice = ". Of a function that is in memory already, call the methods, or save it and pass the path"
    raise ExportTypeError(
        f"{function} takes an artifact as a path, as 'archive.zip{MEMBER}member', as a Handle, as a binary file object "
        f"or as a buffer such as bytes, bytearray, memoryview or mmap, not {type(given)}{advice if is_function else ''}"
    )


def _unsigned(what: str) -> ExportError:
    from jaxexp._signing.reading import unnamed

    return unnamed(what)


def _rest(file: Any, check_size: Callable[[int], None] | None) -> bytes:
    if isinstance(file.read(0), str):
        raise ExportTypeError(
            f"{file!r} is a text file: an artifact is read from a binary file, as from open(path, 'rb')"
        )
    if check_size is None:
        data = bytes(file.read())
    else:
        parts, size = list[bytes](), 0
        while part := file.read(_AT_ONCE):
            parts.append(part)
            size += len(part)
            check_size(size)
        data = b"".join(parts)
    if not data:
        raise DeserializationError("", "a serialized Exported", "0 bytes: the file object is at its end already")
    return data


def split(text: str) -> tuple[str, str | None]:
    """A path and the name of a member, if there is one. If a file has the whole text as its name, that is the path."""
    path, found, member = text.rpartition(MEMBER)
    # URLs of fsspec are chained by the same two colons, as in simplecache::https://... and zip://name::/tmp/all.zip
    if not found or not path or is_url(member) or _is_chained(path) or os.path.lexists(text):
        return text, None
    return path, member


def _is_chained(url: str) -> bool:
    """Whether the last link of a URL is inside of the file that the next link names."""
    protocol, found, _ = url.rpartition(MEMBER)[2].partition("://")
    return bool(found) and protocol in _INSIDE


def link_of_file(url: str) -> str:
    """The link of a chained URL that names the file; the others say where that is. Another URL is returned as it is."""
    return next((link for link in url.split(MEMBER) if is_url(link)), url)


def path_in(place: str) -> str:
    """A path, or that of a URL, without what else a URL may have: a user, a password, a query."""
    if not is_url(place):
        return place
    link = link_of_file(place)
    if link.startswith(("http://", "https://")):
        import urllib.parse  # a session of a file does not need it

        return urllib.parse.unquote(urllib.parse.urlsplit(link).path)
    return link.partition("://")[2].partition("?")[0]


def beside(path: str, name: str) -> str:
    """The path or URL of a file in the folder of another one; with the same query if that is sent to a server."""
    if not is_url(path):
        return os.path.join(os.path.dirname(path), name)
    link = link_of_file(path)
    if link.startswith(("http://", "https://")):
        import urllib.parse

        parts = urllib.parse.urlsplit(link)
        there = f"{parts.path.rpartition('/')[0]}/{urllib.parse.quote(name)}"
        link_beside = urllib.parse.urlunsplit(parts._replace(path=there))
    else:
        link_beside = f"{link.rpartition('/')[0]}/{name}"
    return path.replace(link, link_beside, 1)


def is_archive(path: str) -> bool:
    """Whether a path leads to an archive, by the first bytes of the file, or by the end of a URL."""
    if is_url(path):
        return link_of_file(path).endswith(".zip")
    return files.is_zip(path)


def kind_of_file(path: str) -> Kind | None:
    """The kind of a file on this machine, by its beginning; None if it is neither, or cannot be read."""
    try:
        return _kind(*_beginning(path))
    except OSError:
        return None


def kind_in_folder(path: str) -> Kind | None:
    """The kind of a file or URL that the user did not name; None if it has nothing to do with artifacts."""
    head, size = beginning_of_url(path, _HEAD) if is_url(path) else _beginning(path)
    kind, suffix = _kind(head, size), os.path.splitext(path)[1]
    if kind is None and (suffix in SUFFIXES or (size < _TOO_SHORT and suffix in _PERHAPS)):
        return Kind.ARTIFACT
    return kind


def _beginning(path: str) -> tuple[bytes, int]:
    with files.regular(path) as file:
        return file.read(_HEAD), os.fstat(file.fileno()).st_size


def _kind(head: bytes, size: int) -> Kind | None:
    if _mostly(head[_SECTION], _native.archive_section_head(0)[_SECTION]):
        return Kind.ARCHIVE
    if len(head) < _TOO_SHORT:
        return None
    if _mostly(head[MARK_AT], MARK):
        return Kind.ARTIFACT
    # A FlatBuffer begins with the place of its root. Next, other formats have an identifier.
    (root,) = struct.unpack_from("<I", head)
    is_other = head[4:8].isalnum() or is_tensors(head)
    return Kind.ARTIFACT if 4 <= root < size and root % 4 == 0 and not is_other else None


def _mostly(found: bytes, expected: bytes) -> bool:
    """Whether more than half of the bytes are as expected. With less damage than that, a file keeps its kind."""
    return sum(a == b for a, b in zip(found, expected, strict=False)) > len(expected) // 2

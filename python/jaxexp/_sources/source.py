"""What users give for an artifact: a path, a member of an archive, a URL, a buffer, or a file object."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import urllib.parse
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from jaxexp._errors import DeserializationError, ExportTypeError, PolicyError
from jaxexp._io import files
from jaxexp._io.sources import open_source

from .kinds import ARCHIVE, is_zip, kind_of_file

if TYPE_CHECKING:
    from typing import TypeAlias

    from typing_extensions import Buffer

    from jaxexp._archive.handle import Handle
    from jaxexp._io.sources import Readable
    from jaxexp._weights.stored import WithDigests

    Given: TypeAlias = str | os.PathLike[str] | Buffer | Readable | Handle

MEMBER = "::"
# The protocols of fsspec for a file that is inside of what the next link of the URL names.
_INSIDE = ("zip", "tar", "libarchive", "dir")
_AT_ONCE = 1 << 20


@dataclasses.dataclass(slots=True)
class Source:
    """An artifact, and how to get at its bytes. It is one of four.

    Attributes:
        name: as the user would write it; empty for a buffer and for a file object without a name.
        path: its file, or a URL.
        handle: its member of an archive.
        buffer: its bytes.
        file: a binary file object; the artifact is what comes next in it.
    """

    name: str
    path: str | None = None
    handle: Handle | None = None
    buffer: Any = None
    file: Any = None

    @property
    def is_file(self) -> bool:
        """Whether it is a file on this machine."""
        return self.path is not None and not is_url(self.path)

    def size(self) -> int:
        """How many bytes a file or a member has."""
        return self.handle.size if self.handle is not None else os.path.getsize(self.path or "")

    def read(self, check_size: Callable[[int], None] | None = None) -> Any:
        """The bytes of the artifact. Nobody changes them later.

        Args:
            check_size: is called with the size, before more than that is read.

        Raises:
            DeserializationError: a file is empty.
            OSError: it cannot be opened.
            TypeError: a file object is one of text.
        """
        if self.path is None or not self.is_file:
            return self._bytes(check_size)
        return files.opened(self.path) if check_size is None else files.read(self.path, check_size)

    def mapped(self) -> Any:
        """The same for a look that is over soon: a file is mapped."""
        return self._bytes(None) if self.path is None or not self.is_file else files.mapped(self.path)

    def stored_weights(self) -> WithDigests | None:
        """The weights of a member, where its archive has them; None of anything else.

        Raises:
            DeserializationError: the member is damaged.
        """
        return None if self.handle is None else self.handle.stored_weights()

    def _bytes(self, check_size: Callable[[int], None] | None) -> Any:
        if self.handle is not None:
            if check_size is not None:
                check_size(self.handle.size)
            return self.handle.read()
        if self.path is not None:
            with contextlib.closing(open_source(self.path, {})) as remote:
                if check_size is not None:
                    check_size(remote.size)
                return remote.read(0, remote.size)
        return self.buffer if self.file is None else _rest(self.file, check_size)

    def named(self) -> Named:
        """A context in which errors about the bytes name the artifact, and say what to do about an archive."""
        return Named(self)


class Named:
    """See `Source.named`."""

    __slots__ = ("_source",)

    def __init__(self, source: Source) -> None:
        self._source = source

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        name, path = self._source.name, self._source.path
        if isinstance(error, (DeserializationError, PolicyError)) and error.file is None:
            error.file = name or None
        if isinstance(error, DeserializationError) and path is not None and kind_of_file(path) is ARCHIVE:
            error.expected = "one artifact"
            error.found = f"an archive of artifacts: name one of them, as in '{path}{MEMBER}NAME'"


def source(given: Given, function: str) -> Source:
    """The artifact that somebody gave to a function.

    Raises:
        TypeError: it is none; the message names the function.
        KeyError: there is no such member in an archive.
        DeserializationError: the archive is damaged.
        OSError: the archive cannot be opened.
    """
    if isinstance(given, (str, os.PathLike)):
        return _at(os.fsdecode(given))
    if is_buffer(given):
        return Source("", buffer=given)
    from jaxexp._archive.handle import Handle

    if isinstance(given, Handle):
        return Source(given.label, handle=given)
    if callable(getattr(given, "read", None)):
        name = getattr(given, "name", None)
        return Source(name if isinstance(name, str) else "", file=given)
    raise ExportTypeError(
        f"{function} takes an artifact as a path, as 'archive.zip{MEMBER}member', as a Handle, as a binary file object "
        f"or as a buffer such as bytes, bytearray, memoryview or mmap, not {type(given)}"
    )


def _at(text: str) -> Source:
    path, member = split(text)
    if member is None:
        return Source(text, path=text)
    from jaxexp._archive.archive import Archive

    return Source(text, handle=Archive.open(path)[member])


def is_buffer(given: Any) -> bool:
    try:
        memoryview(given).release()
    except TypeError:
        return False
    return True


def _rest(file: Any, check_size: Callable[[int], None] | None) -> bytes:
    """What comes next in a file object."""
    if isinstance(file.read(0), str):
        raise ExportTypeError(
            f"{file!r} is a file of text: an artifact is read from one of bytes, as of open(path, 'rb')"
        )
    if check_size is None:
        return bytes(file.read())
    parts: list[bytes] = []
    size = 0
    while part := file.read(_AT_ONCE):
        parts.append(part)
        size += len(part)
        check_size(size)
    return b"".join(parts)


def split(text: str) -> tuple[str, str | None]:
    """A path and the name of a member, if there is one. A file that has the whole text as its name is a file."""
    path, found, member = text.rpartition(MEMBER)
    # URLs of fsspec are chained by the same two colons, as in simplecache::https://... and zip://name::/tmp/all.zip
    if not found or not path or "://" in member or _is_chained(path) or os.path.lexists(text):
        return text, None
    return path, member


def _is_chained(url: str) -> bool:
    """Whether the last link of a URL is in what the next link names."""
    protocol, found, _ = url.rpartition(MEMBER)[2].partition("://")
    return bool(found) and protocol in _INSIDE


def is_url(path: str) -> bool:
    return "://" in path


def link_of_file(url: str) -> str:
    """The link of a chained URL that names the file; the others say where that is. Of any other URL, it is the same."""
    return next((link for link in url.split(MEMBER) if "://" in link), url)


def beside_url(url: str, name: str) -> str:
    """The URL of a file in the same folder as another one, with the same query where that is sent to a server."""
    link = link_of_file(url)
    if link.startswith(("http://", "https://")):
        parts = urllib.parse.urlsplit(link)
        path = f"{parts.path.rpartition('/')[0]}/{urllib.parse.quote(name)}"
        beside = urllib.parse.urlunsplit(parts._replace(path=path))
    else:
        beside = f"{link.rpartition('/')[0]}/{name}"
    return url.replace(link, beside, 1)


def is_archive(path: str) -> bool:
    """Whether a path leads to an archive, by the first bytes of the file, or by the end of a URL."""
    return link_of_file(path).endswith(".zip") if is_url(path) else is_zip(path)

"""`compile_cache`: the folder or URL in which processes share compiled code.

What code is, and what it depends on, only those know who ask for it: calls of functions, and sessions of plugins.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Mapping
from typing import Any

from jaxexp import _native
from jaxexp._errors import DeserializationError, ExportError, ExportTypeError, shown
from jaxexp._public import public

from . import files

logger = logging.getLogger("jaxexp.executables")

VARIABLE = "JAXEXP_COMPILE_CACHE"
MAX_BYTES = 4 << 30
PATIENCE = 600  # seconds for which another process may compile what this one needs
_HERE = ("localhost", "127.0.0.1", "::1")
_UNPROTECTED = ("http", "ftp", "webhdfs")  # protocols in which anybody on the way can change bytes
_ON_THIS_MACHINE = ("file", "local")

Entry = tuple[dict[str, str], bytes]


class CompileCache:
    """A folder, or a URL with perhaps a folder in front of it. Nothing here raises: code can always be compiled.

    Attributes:
        name: what messages call it.
        folder: its folder; None for a URL only.
        max_bytes: how many bytes the folder may have.
    """

    def __init__(self, folder: str | None, url: str | None, max_bytes: int) -> None:
        self.name = folder if url is None else url
        self.folder, self.max_bytes = folder, max_bytes
        self._url = url
        self._store = None if folder is None else _native.ExecutableStore(folder, max_bytes)
        self._said: set[str] = set()

    def find(self, conditions: Mapping[str, str]) -> tuple[Entry | None, Any]:
        """What a call needs, with the code for these conditions; None if there is none. Then the second is the right to
        compile it, until its `end`; or None, if nobody waits for that.

        If another process compiles it, this waits.
        """
        last = time.monotonic() + PATIENCE
        turn = None
        while True:
            entry = self._in_folder(conditions)
            if entry is None and self._store is not None and turn is None and time.monotonic() < last:
                turn = self._store.turn(dict(conditions))
                if turn is None:
                    time.sleep(0.01)
                continue  # whoever had the turn before may have compiled it
            if entry is None:
                entry = self._behind_url(conditions)
            if entry is not None and turn is not None:
                turn.end()
                turn = None
            return entry, turn

    def add(self, conditions: Mapping[str, str], call: Mapping[str, str], code: bytes) -> None:
        """Adds code to the folder, if there is one."""
        if self._store is None:
            return
        try:
            if not self._store.put(dict(conditions), dict(call), code):
                self.say(f"code of {len(code):,} bytes is larger than the compile cache {self.name!r} may be")
        except (OSError, DeserializationError) as error:
            self.say(f"cannot add to the compile cache {self.name!r}: {error}")

    def remove(self, conditions: Mapping[str, str]) -> None:
        """Removes code that does not run from the folder."""
        if self._store is not None:
            self._store.remove(dict(conditions))

    def say(self, message: str) -> None:
        """Logs what is wrong with the cache: once, because it may be so for every function."""
        if message not in self._said:
            self._said.add(message)
            logger.warning("%s", shown(message))

    def _in_folder(self, conditions: Mapping[str, str]) -> Entry | None:
        return None if self._store is None else self._entry(self._store, conditions)

    def _entry(self, store: _native.ExecutableStore, conditions: Mapping[str, str]) -> Entry | None:
        try:
            return store.find(dict(conditions))
        except (OSError, DeserializationError) as error:
            name = _native.store_name(dict(conditions))
            self.say(f"cannot use {name} of the compile cache {self.name!r}, which is made again: {error}")
            return None

    def _behind_url(self, conditions: Mapping[str, str]) -> Entry | None:
        """The same from the URL, which also goes into the folder."""
        if self._url is None:
            return None
        import tempfile  # few processes read URLs

        from . import sources

        name = _native.store_name(dict(conditions))
        try:
            url = f"{self._url.rstrip('/')}/{name}"
            with contextlib.closing(sources.open_source(url, _options(self._url))) as remote:
                if remote.size > self.max_bytes:
                    raise OSError(f"{remote.name}: it has {remote.size:,} bytes, and {self.max_bytes:,} may be")
                data = remote.read(0, remote.size)
        except FileNotFoundError:
            return None
        except (OSError, DeserializationError) as error:
            self._never_again(error)  # each function would wait for it
            return None
        try:
            with tempfile.TemporaryDirectory() as folder:  # read as any other file of a store
                files.replace(os.path.join(folder, name), [data])
                entry = self._entry(_native.ExecutableStore(folder, len(data)), conditions)
        except OSError as error:  # there is no place for temporary files
            self._never_again(error)
            return None
        if entry is not None:
            self.add(conditions, *entry)
        return entry

    def _never_again(self, error: Exception) -> None:
        """Asks the URL for nothing any more."""
        self.say(f"the compile cache {self.name!r} is not asked again by this process: {error}")
        self._url = None


_chosen = threading.Lock()
_current: CompileCache | None = None
_is_chosen = False


def current() -> CompileCache | None:
    """The compile cache of this process, if it has one: the one that was chosen, or that the environment names."""
    global _current, _is_chosen
    if not _is_chosen:
        with _chosen:
            named = os.environ.get(VARIABLE)
            if named and not _is_chosen:
                try:
                    _current = made(named)
                except (OSError, ImportError, ExportError) as error:
                    logger.warning("%s", shown(f"${VARIABLE} is not used: {error}"))
            _is_chosen = True
    return _current


@public
def compile_cache(
    where: str | os.PathLike[str] | None,
    *,
    local: str | os.PathLike[str] | None = None,
    max_bytes: int = MAX_BYTES,
) -> None:
    """Shares compiled code with other processes: from now on, a function that would be compiled by an eager call, or
    an eager gradient, is first looked for in a folder, and what this process compiles is added there. Sessions of
    `jaxexp.runtime` use the folder, too.

    Code is used only if everything is the same that it depends on, as with `load(..., executables=)`. A miss, or an
    entry that is damaged, compiles as always. Processes that start together compile each function once: the others
    wait for it, for at most ten minutes.

    Call it before functions are called: what this process compiled before stays as it is. Inside `jax.jit`, JAX's own
    persistent compilation cache applies instead.

    The environment variable ``JAXEXP_COMPILE_CACHE`` names a folder or a URL for processes that do not call this.

    Args:
        where: a folder, which is made if it is missing; or a URL that fsspec can read, ``https://`` or another one,
            behind which is a copy of such a folder; None switches the cache off. The code is native: name only a place
            where nobody else can write whom you would not let run programs as you.
        local: a folder in front of a URL, for what was found there and for what was not.
        max_bytes: how many bytes the folder may have. Entries that were not used for longest are removed.

    Raises:
        ExportError: every user of this machine may write to the folder; the URL begins with ``http://``, ``ftp://`` or
            ``webhdfs://``, and so anybody on the way could replace the code, or is a chain of URLs (``::``); `local` is
            given without a URL; or `max_bytes` is not positive.
        ImportError: the URL needs a package that is not installed.
        OSError: the folder cannot be made, or nothing knows the protocol of the URL.
        TypeError: `where` is neither a path nor a URL.

    Example:
        >>> compile_cache("/var/cache/models")
        >>> compile_cache("https://cdn.example/code", local="/var/cache/models")
    """
    global _current, _is_chosen
    found = None if where is None else made(where, local, max_bytes)
    with _chosen:
        _current, _is_chosen = found, True


def made(
    where: str | os.PathLike[str], local: str | os.PathLike[str] | None = None, max_bytes: int = MAX_BYTES
) -> CompileCache:
    """A compile cache, as `compile_cache` describes it."""
    if not isinstance(where, (str, os.PathLike)):
        raise ExportTypeError(f"a compile cache is a folder or a URL, not {type(where)}")
    if isinstance(max_bytes, bool) or not isinstance(max_bytes, int) or max_bytes <= 0:
        raise ExportError(f"max_bytes is a number of bytes above 0, found {max_bytes!r}")
    url = where if isinstance(where, str) and "://" in where else None
    if url is None:
        if local is not None:
            raise ExportError(f"local is the folder in front of a URL, and {os.fsdecode(where)!r} is a folder itself")
        return CompileCache(_folder(where), None, max_bytes)
    from urllib.parse import urlsplit

    from .remote import failures, filesystem_of

    try:
        place = urlsplit(url)
    except ValueError as error:
        raise ExportError(f"a compile cache is a folder or a URL, and {url!r} is none: {error}") from None
    if "::" in url or place.scheme == "dir":
        raise ExportError(f"a compile cache is a folder or one URL, and {url!r} leads through several: copy its files")
    if place.scheme in _UNPROTECTED and place.hostname not in _HERE:
        raise ExportError(
            f"the compile cache {url!r} has native code, which anybody on the way could replace: use https"
        )
    with failures(url):  # an unknown protocol, or a package that is missing
        _, folder = filesystem_of(url, _options(url))
    if place.scheme in _ON_THIS_MACHINE:
        _check_permissions(folder)  # the one that is read: a URL has characters that mean others
    return CompileCache(None if local is None else _folder(local), url, max_bytes)


def _folder(path: str | os.PathLike[str]) -> str:
    """A folder for code, which is made if it is missing."""
    name = os.path.abspath(os.path.expanduser(os.fsdecode(path)))
    with files.named_in_os_errors(name):
        _native.ExecutableStore(name, 1)
        _check_permissions(name)
    return name


def _check_permissions(name: str) -> None:
    """Raises an ExportError if every user may write to a folder."""
    status = os.stat(name)
    if os.name == "posix":
        if status.st_mode & 0o002:
            raise ExportError(
                f"every user of this machine may write to the folder {name!r}, and a compile cache has native code: "
                f"choose another one, or take that permission away: chmod o-w {name}"
            )
        if status.st_uid not in (0, os.getuid()):
            logger.warning(
                "%s",
                shown(f"the compile cache {name!r} belongs to another user, whose programs this process may run"),
            )


def _options(url: str) -> dict[str, Any]:
    """Of the file system: a redirect could lead from https to http."""
    return {"allow_redirects": False} if url.startswith(("http://", "https://")) else {}

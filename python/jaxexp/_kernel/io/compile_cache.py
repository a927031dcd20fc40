"""`compile_cache`: the folder in which processes share compiled code.

Callers define keys and contents: calls of functions, and sessions of plugins.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Generator, Mapping
from typing import Any

from jaxexp import _native
from jaxexp._errors import DeserializationError, ExportError, ExportTypeError, shown
from jaxexp._public import public

from . import files, lock

VARIABLE = "JAXEXP_COMPILE_CACHE"
MAX_BYTES = 4 << 30
PATIENCE = 600  # seconds for which another process may compile what this one needs

Entry = tuple[dict[str, str], bytes]


class CompileCache:
    """A folder of compiled code. Only `put` raises: calls go on without it, because code can always be compiled."""

    def __init__(self, folder: str, max_bytes: int) -> None:
        self.folder, self.max_bytes = folder, max_bytes
        self._store = _native.ExecutableStore(folder, max_bytes)
        self._said: set[str] = set()

    @contextlib.contextmanager
    def finding(self, conditions: Mapping[str, str]) -> Generator[Entry | None]:
        """What a call needs, with the code for these conditions, or None. Then this process compiles it inside of the
        context, and others wait for that. If another process compiles it, this waits.
        """
        last = time.monotonic() + PATIENCE
        turn: Any = None  # the right to compile it; others may compile it for too long
        while (entry := self._entry(conditions)) is None and turn is None and time.monotonic() < last:
            turn = self._store.turn(dict(conditions))
            if turn is None:
                time.sleep(0.01)  # another process may have compiled it before this one got its turn
        if entry is not None and turn is not None:
            turn.end()
            turn = None
        try:
            yield entry
        finally:
            if turn is not None:
                turn.end()

    def put(self, conditions: Mapping[str, str], call: Mapping[str, str], code: bytes) -> None:
        with files.named_in_os_errors(self.folder):
            is_added = self._store.put(dict(conditions), dict(call), code)
        if not is_added:
            raise OSError(f"code of {len(code):,} bytes is larger than the compile cache {self.folder!r} may be")

    def add(self, conditions: Mapping[str, str], call: Mapping[str, str], code: bytes) -> None:
        try:
            self.put(conditions, call, code)
        except (OSError, DeserializationError) as error:
            self._say(f"cannot add to the compile cache {self.folder!r}: {error}")

    def remove(self, conditions: Mapping[str, str]) -> None:
        self._store.remove(dict(conditions))

    def _entry(self, conditions: Mapping[str, str]) -> Entry | None:
        try:
            return self._store.find(dict(conditions))
        except (OSError, DeserializationError) as error:
            name = _native.store_name(dict(conditions))
            self._say(f"cannot use {name} of the compile cache {self.folder!r}, which is made again: {error}")
            return None

    def _say(self, message: str) -> None:
        """Logs what is wrong with the cache: once, because it may be so for every function."""
        if message not in self._said:
            self._said.add(message)
            _warn(message)


def _warn(message: str) -> None:
    import logging  # sessions start without it

    logging.getLogger("jaxexp.executables").warning("%s", shown(message))


_chosen = lock.reentrant()
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
                    _current = _made(named, MAX_BYTES)
                except (OSError, ExportError) as error:
                    _warn(f"${VARIABLE} is not used: {error}")
            _is_chosen = True
    return _current


@public
def compile_cache(where: str | os.PathLike[str] | None, *, max_bytes: int = MAX_BYTES) -> None:
    """Shares compiled code with other processes. From now on, eager calls and eager gradients look for code in a folder
    before they compile a function, and add the code that they compile. Sessions of `jaxexp.runtime` use the folder,
    too, and `Exported.precompile` fills it before calls.

    Code is used only if its conditions are the same, as in `Executable`. A missing or damaged entry is compiled as
    always. Processes that start together compile each function once: the others wait for at most ten minutes.

    Call this before you call functions: code that this process has compiled already is not added. Inside `jax.jit`,
    JAX's own persistent compilation cache applies instead.

    The environment variable ``JAXEXP_COMPILE_CACHE`` names a folder for processes that do not call this.

    Args:
        where: a folder, which is made if it is missing; None switches the cache off. The code is native, so everybody
            who can write to the folder can run programs as you.
        max_bytes: the largest size of the folder, in bytes. The least recently used entries are removed.

    Raises:
        ExportError: every user of this machine may write to the folder; it is a URL; or `max_bytes` is not positive.
        OSError: the folder cannot be made.
        TypeError: `where` is not a path.

    Example:
        >>> compile_cache("/var/cache/models")
    """
    global _current, _is_chosen
    found = None if where is None else _made(where, max_bytes)
    with _chosen:
        _current, _is_chosen = found, True


def _made(folder: str | os.PathLike[str], max_bytes: int) -> CompileCache:
    if not isinstance(folder, (str, os.PathLike)):
        raise ExportTypeError(f"a compile cache is a folder, not {type(folder)}")
    files.path_of(folder, "compile_cache")
    if isinstance(max_bytes, bool) or not isinstance(max_bytes, int) or max_bytes <= 0:
        raise ExportError(f"max_bytes is a number of bytes above 0, found {max_bytes!r}")
    if isinstance(folder, str) and files.is_url(folder):
        raise ExportError(
            f"a compile cache is a folder on this machine, and {folder!r} is a URL: mount it, or copy its files to a "
            "folder"
        )
    name = os.path.abspath(os.path.expanduser(os.fsdecode(folder)))
    with files.named_in_os_errors(name):
        cache = CompileCache(name, min(max_bytes, sys.maxsize))
        status = os.stat(name)
    if os.name == "posix":
        if status.st_mode & 0o002:
            raise ExportError(
                f"every user of this machine may write to the folder {name!r}, and a compile cache has native code: "
                f"choose another one, or take that permission away: chmod o-w {name}"
            )
        if status.st_uid not in (0, os.getuid()):
            _warn(f"the compile cache {name!r} belongs to another user, whose programs this process may run")
    return cache

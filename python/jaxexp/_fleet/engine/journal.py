"""The journal of a pass: a file with the results so far. It only grows, and it is still usable after a crash.

Each line is the digest of its text, a space, and the text: a JSON object. The first line says which pass it belongs
to. An unfinished last line is cut off. Any other change raises an error. URLs are written as they
were given, with their secrets, so only their owner may read the file.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
from collections.abc import Sequence
from typing import IO, Any

from jaxexp import _native
from jaxexp._errors import JournalError
from jaxexp._kernel.artifact.words import cut
from jaxexp._kernel.io.lock import locked

Stretch = tuple[int, int, Any]  # the first unit, the one after the last, and the result

_LAYOUT = 1
_DIGEST = 32
# Much longer than any line that is written here.
_LONGEST = 1 << 26
# How much of a line an error shows.
_SHOWN = 300
_ANY_JOURNAL = "a journal, or an empty file"


class Journal(contextlib.AbstractContextManager["Journal"]):
    """An open journal; only one pass at a time has it. Without a path it remembers nothing."""

    def __init__(self, path: str | os.PathLike[str] | None, about: dict[str, Any]) -> None:
        """Opens a journal, or makes one. The pass, its options and releases have to be the same when it is resumed.

        Raises:
            JournalError: it is not a journal, is damaged, or belongs to another pass.
            ExportError: another process has it.
            OSError: it cannot be opened.
        """
        self.name = "" if path is None else os.fsdecode(path)
        self._context = contextlib.ExitStack()
        self._file: IO[bytes] | None = None
        self._done: dict[tuple[str, str], list[Stretch]] = {}  # by name and identity of the input
        if path is None:
            return
        with contextlib.suppress(FileExistsError), open(path, "xb", opener=_private):
            pass
        with contextlib.ExitStack() as stack:
            self._file = stack.enter_context(locked(path))
            if not stat.S_ISREG(os.fstat(self._file.fileno()).st_mode):  # reading a pipe would wait for a writer
                raise JournalError("", _ANY_JOURNAL, "a pipe or a device", self.name)
            self._read(self._file, json.loads(json.dumps(about)))
            self._context = stack.pop_all()

    def done(self, name: str, identity: Any) -> list[Stretch]:
        """The finished stretches of an input, in order; none if its identity has changed. They are returned once."""
        return _last_said(self._done.pop((name, _text_of(identity)), []))

    def add(self, parts: Sequence[tuple[str, Any, int, int, Any]]) -> None:
        """Writes results: names, identities, stretches and findings. They are on the disk when this returns.

        Raises:
            OSError: it cannot be written.
        """
        if self._file is not None and parts:
            _write(self._file, _line({"done": parts}))

    def refused(self, name: str, error: Exception) -> JournalError:
        """The error for a result that no pass writes."""
        return self._wrong("", f"the result of this pass for {name!r}", f"something else ({type(error).__name__})")

    def __exit__(self, *_: object) -> None:
        self._context.close()
        self._file = None

    def _read(self, file: IO[bytes], about: dict[str, Any]) -> None:
        first = _line({"jaxexp": "journal", "layout": _LAYOUT, **about})
        end = number = 0
        with open(file.fileno(), "rb", closefd=False) as lines:
            while line := lines.readline(_LONGEST):
                number += 1
                if not line.endswith(b"\n") and len(line) < _LONGEST:
                    break  # the writer was interrupted
                said = self._text(line, number)
                if said is None:
                    if line.strip(b"\0\n") or lines.read(1):
                        raise self._wrong(f"line {number}", "what its digest says", "other bytes")
                    break
                if number == 1:
                    self._check_first(said, about)
                else:
                    self._take(said, number)
                end += len(line)
            # A crash may keep the length of a line, and lose the line.
            unfinished = first.startswith(line) or (len(line) <= len(first) and not line.strip(b"\0"))
            if number == 1 and line and not unfinished:
                raise self._wrong("", _ANY_JOURNAL, "something else")
        file.truncate(end)
        file.seek(end)
        if not end:
            _write(file, first)

    def _text(self, line: bytes, number: int) -> Any:
        """The value of a line; None if its bytes are not those that were written."""
        digest, text = line[:_DIGEST], line[_DIGEST + 1 : -1]
        if line[_DIGEST : _DIGEST + 1] != b" " or _native.digest(text).hex().encode() != digest:
            if number == 1:
                raise self._wrong("", _ANY_JOURNAL, "something else")
            return None
        try:
            return json.loads(text)
        except (ValueError, RecursionError) as error:
            raise self._wrong(f"line {number}", "JSON", str(error)) from None

    def _check_first(self, said: Any, about: dict[str, Any]) -> None:
        if not isinstance(said, dict) or said.pop("jaxexp", None) != "journal" or said.pop("layout", None) != _LAYOUT:
            raise self._wrong("line 1", f"a journal of layout {_LAYOUT}", "another one")
        for name in sorted(about.keys() | said.keys(), key=lambda name: (name != "pass", name)):
            if said.get(name) != about.get(name):
                raise self._wrong(
                    "line 1",
                    f"the same pass as now, with {name} {about.get(name)!r}",
                    f"{name} {cut(repr(said.get(name)), _SHOWN)}",
                )

    def _take(self, said: Any, number: int) -> None:
        try:
            for name, identity, start, stop, result in said["done"]:
                if not (isinstance(name, str) and type(start) is type(stop) is int and 0 <= start < stop):
                    raise ValueError
                self._done.setdefault((name, _text_of(identity)), []).append((start, stop, result))
        except (ValueError, TypeError, KeyError):
            raise self._wrong(f"line {number}", "names, numbers and results", "something else") from None

    def _wrong(self, where: str, expected: str, found: str) -> JournalError:
        found = f"{found}; name another file, or remove this one to begin again"
        return JournalError(where, expected, found, self.name)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _text_of(identity: Any) -> str:
    """The same text for an identity and for the copy that JSON made of it."""
    return json.dumps(identity, sort_keys=True)


def _last_said(found: list[Stretch]) -> list[Stretch]:
    """Stretches in ascending order. Of stretches that overlap, the last one counts: the others were out of date."""
    kept: list[tuple[int, Stretch]] = []
    for order, stretch in sorted(enumerate(found), key=lambda one: (one[1][0], one[0])):
        while kept and kept[-1][1][1] > stretch[0] and kept[-1][0] < order:
            kept.pop()
        if not kept or kept[-1][1][1] <= stretch[0]:
            kept.append((order, stretch))
    return [stretch for _, stretch in kept]


def _line(said: dict[str, Any]) -> bytes:
    text = json.dumps(said, separators=(",", ":")).encode()
    return _native.digest(text).hex().encode() + b" " + text + b"\n"


def _write(file: IO[bytes], line: bytes) -> None:
    left = memoryview(line)
    while left:  # a raw file may write only a part
        left = left[file.write(left) :]
    os.fsync(file.fileno())

"""The version of a remote file, as its storage states it, without reading the file."""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping
from typing import Any

from jaxexp._errors import ChangedArtifactError

from .remote import failures, filesystem_of

# Facts that change with a file, by the names that servers and fsspec use, without case and hyphens.
_NAMES = frozenset(
    "size etag mtime lastmodified modified modify updated generation versionid checksum contentmd5 md5 md5hash "
    "contenthash digest sha blobid ino".split()
)


class Version:
    """The state of a file, as far as it is known."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._known: dict[str, str] = {}

    def check(self, facts: Mapping[str, str]) -> None:
        """Compares facts about the file with earlier ones (see `changed`), and remembers the new ones."""
        for what, said in facts.items():
            value = said.removeprefix("W/")  # servers that compress weaken the tag of some answers
            if (known := self._known.setdefault(what, value)) != value:
                raise self.changed(f"{what} {known}", f"{what} {value}")

    def changed(self, expected: str, found: str) -> ChangedArtifactError:
        """The error for a file that is no longer the one that was opened."""
        found += ": the file has changed since it was opened, so open it again"
        return ChangedArtifactError("", expected, found, file=self._name)


def described(url: str) -> tuple[int, str]:
    """The size of a file, and a text that changes when the file does."""
    with failures(url):
        filesystem, path = filesystem_of(url, {})
        filesystem.invalidate_cache(path)  # of listings, which may be old
        return of_info(filesystem.info(path))


def stamp(path: str) -> tuple[int, int | str]:
    """The size of a file, also behind a URL, and a value that differs after the file is written again."""
    if "://" in path:
        return described(path)
    found = os.stat(path)
    return found.st_size, found.st_mtime_ns


def unknown() -> str:
    """A version that equals no other one."""
    return uuid.uuid4().hex


def of_info(info: Mapping[str, Any]) -> tuple[int, str]:
    """What `described` returns, for the `info` of an fsspec file system."""
    facts = facts_of(info)
    said = "; ".join(f"{what} {facts[what]}" for what in sorted(facts) if what != "size")
    return int(info.get("size") or 0), said or unknown()


def facts_of(told: Mapping[str, Any]) -> dict[str, str]:
    """What an answer's headers, or the `info` of an fsspec file system, say about the state of a file.

    A strong ETag is enough: dates change when the same bytes are uploaded again. Two states may share a weak one.
    """
    facts = {key: str(value) for key, value in told.items() if _plain(key) in _NAMES and value not in (None, "")}
    tag = next((key for key in facts if _plain(key) == "etag"), None)
    if tag is not None and not facts[tag].startswith("W/"):
        facts = {key: value for key, value in facts.items() if key in (tag, "size")}
    if set(facts) <= {"size"} and told.get("created") is not None:  # elsewhere it may be the time of a link
        facts["created"] = str(told["created"])
    return facts


def _plain(key: str) -> str:
    return key.lower().replace("-", "").replace("_", "")

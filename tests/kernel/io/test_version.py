"""What tells a changed file behind a URL: an open archive and a journal go by the same facts."""

from __future__ import annotations

from typing import Any

import pytest

import jaxexp
from jaxexp._kernel.io.version import Version, described, facts_of

fsspec = pytest.importorskip("fsspec")
pytestmark = pytest.mark.once(reason="nothing here knows JAX")


@pytest.mark.parametrize(
    "name",
    (
        "ETag Last-Modified Content-MD5 LastModified last_modified mtime modify updated created md5Hash generation "
        "VersionId content_hash checksum sha ino"
    ).split(),
)
def test_whatever_storage_says(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    said: dict[str, Any] = {"size": 3, name: "first"}
    memory = fsspec.filesystem("memory")
    monkeypatch.setattr(memory, "info", lambda path: said)
    version, (size, text) = Version("file"), described("memory://file")
    version.check(facts_of(said))
    assert (size, text) == described("memory://file") == (3, f"{name} first")
    said[name] = "second"
    assert described("memory://file") != (3, text)
    with pytest.raises(jaxexp.DeserializationError, match="the file has changed since it was opened"):
        version.check(facts_of(said))


def test_storage_that_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then no two states are known to be the same."""
    monkeypatch.setattr(fsspec.filesystem("memory"), "info", lambda path: {"size": 3})
    assert described("memory://file") != described("memory://file")


def test_listings_that_are_old_are_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    forgotten: list[Any] = []
    memory = fsspec.filesystem("memory")
    memory.pipe("/listed/a.jaxexp", b"abc")
    monkeypatch.setattr(memory, "invalidate_cache", lambda path=None: forgotten.append(path))
    described("memory://listed/a.jaxexp")
    jaxexp.verify_many(["memory://listed/"])
    assert forgotten[0] == "/listed/a.jaxexp"
    assert None in forgotten
    memory.rm("/listed", recursive=True)

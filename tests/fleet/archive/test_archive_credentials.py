"""Storage options with secrets: where they go, and how they are left out."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import fsspec
import pytest

from jaxexp import Archive
from kit.archives import blob
from kit.served import serving

pytest.importorskip("aiohttp")

TOKEN = "token-of-a-test"
HEADERS = {"headers": {"Authorization": f"Bearer {TOKEN}"}}


@pytest.fixture
def private(tmp_path: Any) -> Iterator[str]:
    """The URL of an archive that is served only with the token."""
    with Archive.create(tmp_path / "fleet.zip") as archive:
        archive.add("a", blob())
    with serving((tmp_path / "fleet.zip").read_bytes()) as server:
        server.token = TOKEN
        yield server.url
    fsspec.get_filesystem_class("http").clear_instance_cache()


def test_options_are_in_the_pickle_that_other_processes_open(private: str) -> None:
    with pytest.raises(OSError, match="401"):
        Archive.open(private)
    pickled = pickle.dumps(Archive.open(private, **HEADERS))
    assert TOKEN.encode() in pickled
    assert list(pickle.loads(pickled)) == ["a"]


def test_what_fsspec_is_configured_with_is_not(private: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(fsspec.config.conf, "http", HEADERS)
    archive = Archive.open(private)
    for given in (archive, archive["a"]):
        pickled = pickle.dumps(given)
        assert TOKEN.encode() not in pickled
        assert pickle.loads(pickled) is not None
    fsspec.get_filesystem_class("http").clear_instance_cache()
    monkeypatch.delitem(fsspec.config.conf, "http")
    with pytest.raises(OSError, match="401"):
        list(pickle.loads(pickle.dumps(archive)))

"""Files behind URLs that somebody replaces while they are open: functions stay what they were."""

from __future__ import annotations

import io
import os
import re
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import fsspec.asyn
import numpy as np
import pytest

import jaxexp
from jaxexp import Archive, DeserializationError
from kit.archive_files import make
from kit.archives import blob, platforms
from kit.served import serving
from kit.weighted import X, apply, bound, close, params

pytest.importorskip("aiohttp")


@pytest.fixture(scope="module", autouse=True)
def _sessions_end() -> Iterator[None]:
    """fsspec keeps its connections for the next who asks; left open, they would warn in some later test."""
    yield
    filesystem = fsspec.get_filesystem_class("http")
    for fs in list(filesystem._cache.values()):
        if fs._session is not None:
            fsspec.asyn.sync(fs.loop, fs._session.__aexit__, None, None, None)
    filesystem.clear_instance_cache()


@pytest.fixture(scope="module")
def weights() -> list[Any]:
    return [params(seed=0), params(seed=1)]


@pytest.fixture(scope="module")
def states(weights: list[Any], tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    """Archives of the same size and layout: one model, and the same after more training."""
    model, _ = bound()
    found = []
    for values in weights:
        path = tmp_path_factory.mktemp("states") / "fleet.zip"
        trained = model.with_weights(values)
        make(path, {"model/v1": trained, "model/v2": trained})
        found.append(path.read_bytes())
    assert len(found[0]) == len(found[1])
    assert found[0] != found[1]
    return found


TELLS: dict[str, tuple[dict[str, str], dict[str, str]]] = {
    "an ETag": ({"ETag": '"1"'}, {"ETag": '"2"'}),
    "a weak ETag": ({"ETag": 'W/"1"'}, {"ETag": 'W/"2"'}),
    "a date": (
        {"Last-Modified": "Thu, 01 Jan 2026 00:00:00 GMT"},
        {"Last-Modified": "Fri, 02 Jan 2026 00:00:00 GMT"},
    ),
    "a date beside a weak ETag": (
        {"ETag": 'W/"1"', "Last-Modified": "Thu, 01 Jan 2026 00:00:00 GMT"},
        {"ETag": 'W/"1"', "Last-Modified": "Fri, 02 Jan 2026 00:00:00 GMT"},
    ),
}


@pytest.mark.sampled(one_in=2, reason="many cases go the same way")
@pytest.mark.parametrize("what", TELLS)
def test_what_a_server_says_of_a_file_is_compared_with_each_answer(
    what: str, states: list[bytes], weights: list[Any]
) -> None:
    before, after = TELLS[what]
    with serving(states[0]) as server:
        server.headers = before
        archive = Archive.open(server.url)
        early, late = archive["model/v1"].load(), Archive.open(server.url)["model/v2"].load()
        close(early.call(X), apply(weights[0], X))
        name = next(iter(late.weights))
        assert late.weights[name] is not None, "one weight is of the old file"
        server.data, server.headers = states[1], after
        changed = f"{re.escape(repr(server.url))}.*has changed since it was opened, so open it again"
        for use in (lambda: late.call(X), archive["model/v2"].load, archive.load_all, archive["model/v2"].read):
            with pytest.raises(DeserializationError, match=changed):
                use()
        close(early.call(X), apply(weights[0], X))
        close(Archive.open(server.url)["model/v2"].load().call(X), apply(weights[1], X))


@pytest.mark.parametrize("way", ["http", "memory", "a file object"])
def test_digests_tell_where_nothing_else_does(
    way: str, states: list[bytes], weights: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a server without ETags and dates, of a file system that knows no times, and of what can only be read."""
    monkeypatch.setattr("jaxexp._kernel.io.sources.facts_of", lambda info: {})
    with serving(states[0]) as server:
        source: Any
        if way == "http":
            source, replace = server.url, lambda data: setattr(server, "data", data)
        elif way == "memory":
            source = f"memory://{secrets.token_hex(8)}/fleet.zip"
            replace = _writer(source)
        else:
            source = io.BytesIO(states[0])
            replace = lambda data: (source.seek(0), source.write(data))  # noqa: E731
        replace(states[0])
        archive = Archive.open(source)
        model = archive["model/v1"].load()
        assert model.weights["head"] is not None
        replace(states[1])
        with pytest.raises(DeserializationError, match="the file has changed since it was opened; open it again"):
            model.call(X)
        for use in (archive["model/v2"].load, archive.load_all, archive["model/v2"].read, archive["model/v2"].inspect):
            with pytest.raises(DeserializationError, match=r"an artifact of digest .* the file has changed since"):
                use()
        assert all(isinstance(e, DeserializationError) for e in archive.load_all(on_error="return"))
        replace(states[0])
        close(model.call(X), apply(weights[0], X))


def _writer(url: str) -> Callable[[bytes], None]:
    def write(data: bytes) -> None:
        with fsspec.open(url, "wb") as file:
            file.write(data)

    return write


@pytest.mark.parametrize("protocol", ["memory", "file"])
def test_what_file_systems_say_of_a_file_is_compared(
    protocol: str, states: list[bytes], weights: list[Any], tmp_path: Path
) -> None:
    url = f"{protocol}://{tmp_path}/fleet.zip"
    replace = _writer(url)
    replace(states[0])
    if protocol == "file":
        os.utime(tmp_path / "fleet.zip", (1, 1))
    archive = Archive.open(url)
    model = archive["model/v1"].load()
    assert model.weights["head"] is not None
    replace(states[1])
    for use in (lambda: model.call(X), archive["model/v2"].load):
        with pytest.raises(DeserializationError, match=r"(mtime|created) .*has changed since it was opened"):
            use()
    close(Archive.open(url)["model/v1"].load().call(X), apply(weights[1], X))


def test_s3(states: list[bytes]) -> None:
    pytest.importorskip("s3fs")
    moto = pytest.importorskip("moto.server")
    server = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        options = {"endpoint_url": f"http://{host}:{port}", "key": "key", "secret": "secret"}
        fs = fsspec.filesystem("s3", **options)
        fs.mkdir("replaced")
        fs.pipe_file("replaced/fleet.zip", states[0])
        fs.ls("replaced")  # which is kept, and says later what was true now
        archive = Archive.open("s3://replaced/fleet.zip", **options)
        model = archive["model/v1"].load()
        fs.pipe_file("replaced/fleet.zip", states[0])
        assert model.weights["head"] is not None, "the same bytes have the same ETag"
        fs.pipe_file("replaced/fleet.zip", states[1])
        for use in (lambda: model.call(X), archive["model/v2"].load):
            with pytest.raises(DeserializationError, match=r"ETag .*has changed since it was opened"):
                use()
        fsspec.asyn.sync(fs.loop, fs._s3creator.__aexit__, None, None, None)
    finally:
        server.stop()
        fsspec.get_filesystem_class("s3").clear_instance_cache()


@pytest.mark.parametrize("protocol", ["simplecache", "filecache"])
def test_a_copy_that_fsspec_keeps_stays_what_it_was(
    protocol: str, states: list[bytes], weights: list[Any], tmp_path: Path
) -> None:
    with serving(states[0]) as server:
        server.headers = {"ETag": '"1"'}
        archive = Archive.open(f"{protocol}::{server.url}", **{protocol: {"cache_storage": str(tmp_path)}})
        server.data, server.headers = states[1], {"ETag": '"2"'}
        close(archive["model/v1"].load().call(X), apply(weights[0], X))


def test_a_tag_that_some_answers_weaken_is_the_same(states: list[bytes], weights: list[Any]) -> None:
    with serving(states[0]) as server:
        server.headers = {"ETag": '"1"'}
        archive = Archive.open(server.url)
        server.headers = {"ETag": 'W/"1"'}
        close(archive["model/v1"].load().call(X), apply(weights[0], X))


def test_another_size_is_noticed_without_anything_else(states: list[bytes]) -> None:
    with serving(states[0]) as server:
        archive = Archive.open(server.url)
        server.data = states[0] + b"more"
        with pytest.raises(DeserializationError, match=f"size {len(states[0])}, found size {len(states[0]) + 4}"):
            archive["model/v1"].load()


def test_members_without_weights(tmp_path: Path) -> None:
    """Each is whole, and has the place of the other in the archive that is open."""
    blobs = [  # all from here: where a function was traced is in its bytes
        [bytes(made[platform].serialize()) for platform in ("cpu", "tpu")]
        for made in map(platforms.__wrapped__, (2.0, 3.0))
    ]
    first, second = (
        make(tmp_path / f"{n}.zip", {"a": on_cpu, "b": on_tpu}).read_bytes() for n, (on_cpu, on_tpu) in enumerate(blobs)
    )
    assert len(first) == len(second)
    with serving(first) as server:
        archive = Archive.open(server.url)
        server.data = second
        loaded: Any = archive.load_all(on_error="return")
        assert all("as the index says" in str(e) for e in loaded)
        assert [e.file for e in loaded] == [f"{server.url}::a", f"{server.url}::b"]
        server.data = first
        assert archive["a"].load() == jaxexp.deserialize(blobs[0][0])


def test_the_same_date_and_tag_are_no_change(states: list[bytes], weights: list[Any]) -> None:
    with serving(states[0]) as server:
        server.headers = {"ETag": '"1"', "Last-Modified": "Thu, 01 Jan 2026 00:00:00 GMT"}
        model = Archive.open(server.url)["model/v1"].load()
        server.headers = {"ETag": '"1"', "Last-Modified": "Fri, 02 Jan 2026 00:00:00 GMT"}
        close(model.call(np.asarray(X)), apply(weights[0], X))


class ChangingOnce(dict[str, str]):
    """Headers of a server at which the same file is uploaded again after so many answers."""

    def __init__(self, answers: int) -> None:
        super().__init__({"ETag": '"1"'})
        self.left = answers

    def items(self) -> Any:
        self.left -= 1
        return {"ETag": '"1"' if self.left >= 0 else '"2"'}.items()


@pytest.mark.parametrize("answers", [3, 5])
@pytest.mark.parametrize("name", ["migrate_many", "digests_many", "verify_many"])
def test_a_journal_does_not_keep_that_a_file_changed(name: str, answers: int, tmp_path: Path) -> None:
    members = {f"{number:02}": blob(factor=float(number)) for number in range(20)}
    data = make(tmp_path / "fleet.zip", members).read_bytes()

    def errors() -> list[Any]:
        journal = tmp_path / "journal"
        if name == "migrate_many":
            return list(jaxexp.migrate_many([server.url], tmp_path / "new", journal=journal).values())
        if name == "verify_many":
            return list(jaxexp.verify_many([server.url], journal=journal).values())
        found = jaxexp.digests_many([server.url], journal=journal)
        return [one for _, one in found if isinstance(one, Exception)]

    with serving(data) as server:
        server.headers = ChangingOnce(answers)
        first = errors()
        assert first
        assert all("has changed since it was opened" in str(error) for error in first)
        assert errors() == []

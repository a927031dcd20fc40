"""Archives behind URLs are read by ranges, only from whom they should be, and stay what they were when opened."""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import re
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import fsspec.asyn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxexp
from jaxexp import Archive, _native
from jaxexp.errors import DeserializationError
from kit.archive_files import make
from kit.archives import blob, exported, plain
from kit.each import each
from kit.served import asked, part, raw, serving
from kit.weighted import X, bound, params

pytest.importorskip("aiohttp")


@pytest.fixture(scope="module", autouse=True)
def _sessions_end() -> Iterator[None]:
    """fsspec keeps its connections for the next who asks; left open, they would warn in some later test."""
    yield
    for protocol, attribute in (("http", "_session"), ("s3", "_s3creator")):
        with contextlib.suppress(ImportError):  # of s3fs
            kind = fsspec.get_filesystem_class(protocol)
            for fs in list(kind._cache.values()):
                if (session := getattr(fs, attribute, None)) is not None:
                    fsspec.asyn.sync(fs.loop, session.__aexit__, None, None, None)
            kind.clear_instance_cache()


def exported_of(noise: np.ndarray) -> jaxexp.Exported:
    return jaxexp.export(jax.jit(lambda x: x * jnp.asarray(noise).sum()))(np.zeros(3, np.float32))


@pytest.fixture(scope="module")
def members() -> dict[str, bytes]:
    """Each has 100 kB of noise, so that ranges are told from whole files."""
    functions = {f"m{i:02}": exported_of(np.random.default_rng(i).random(25_000, np.float32)) for i in range(20)}
    functions |= {"whole": exported("cpu"), "apart": exported("tpu")}
    made = {name: bytes(function.serialize(metadata={"name": name})) for name, function in functions.items()}
    return {**made, "jax": plain()}


@pytest.fixture(scope="module")
def data(members: dict[str, bytes], tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("archives") / "fleet.zip"
    with Archive.create(path) as archive:
        for name, member in members.items():
            archive.add(name, member, metadata={"name": name})
    return path.read_bytes()


@pytest.fixture
def server(data: bytes) -> Iterator[Any]:
    with serving(data) as server:
        yield server


@pytest.fixture(scope="module")
def s3() -> Iterator[dict[str, Any]]:
    pytest.importorskip("s3fs")
    moto = pytest.importorskip("moto.server")
    server = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield {"endpoint_url": f"http://{host}:{port}", "key": "key", "secret": "secret"}
    server.stop()


def writer_of(url: str) -> Callable[[bytes], None]:
    def write(data: bytes) -> None:
        with fsspec.open(url, "wb") as file:
            file.write(data)

    return write


def assert_all_is_there(archive: Archive, members: dict[str, bytes]) -> None:
    assert list(archive) == sorted(members)
    assert {name: bytes(handle.read()) for name, handle in archive.items()} == members
    loaded = archive.load_all(workers=2)
    assert [bytes(e.serialize(metadata={})) for e in loaded] == [
        bytes(jaxexp.deserialize(members[name]).serialize(metadata={})) for name in archive
    ]
    assert [dict(e.metadata) for e in loaded] == [{"name": name} for name in archive]
    assert archive.verify() == {}
    assert archive["apart"].shares_modules
    again = pickle.loads(pickle.dumps(archive["apart"]))
    assert again.load() == archive["apart"].load()


def test_memory_and_http(server: Any, data: bytes, members: dict[str, bytes], tmp_path: Path) -> None:
    url = f"memory://{secrets.token_hex(8)}/fleet.zip"
    writer_of(url)(data)
    assert_all_is_there(Archive.open(url), members)
    assert_all_is_there(Archive.open(server.url), members)
    with pytest.raises(TypeError, match="storage options are for URLs, found key"):
        Archive.open(tmp_path / "fleet.zip", key="key")


def test_s3(s3: dict[str, Any], data: bytes, members: dict[str, bytes], states: list[bytes]) -> None:
    fs = fsspec.filesystem("s3", **s3)
    fs.mkdir("models")
    fs.pipe_file("models/fleet.zip", data)
    assert_all_is_there(Archive.open("s3://models/fleet.zip", **s3), members)
    with pytest.raises(FileNotFoundError):
        Archive.open("s3://models/absent.zip", **s3)
    fs.pipe_file("models/replaced.zip", states[0])
    fs.ls("models")  # which is kept, and says later what was true now
    archive = Archive.open("s3://models/replaced.zip", **s3)
    model = archive["model/v1"].load()
    fs.pipe_file("models/replaced.zip", states[0])
    assert model.weights["head"] is not None, "the same bytes have the same ETag"
    fs.pipe_file("models/replaced.zip", states[1])
    for use in (lambda: model.call(X), archive["model/v2"].load):
        with pytest.raises(DeserializationError, match=r"ETag .*has changed since it was opened"):
            use()


def test_only_what_is_asked_for_is_fetched(server: Any, members: dict[str, bytes]) -> None:
    archive = Archive.open(server.url)
    assert archive["m07"].summary.arguments == ("float32[3]",)
    assert archive["m07"].metadata == {"name": "m07"}
    assert len(archive) == len(members)
    fetched = len(server.requests)
    one, *first = sorted(size for _, size in server.requests)
    assert one == 1, "a byte, with which the size comes"
    assert len(first) == 2, "the head of the first section, and the end, which has the index"
    assert first[0] < 256 and sum(first) <= 1 << 16
    archive["m07"].load()
    assert server.requests[fetched:] == [("GET", len(members["m07"]))]
    del server.requests[:]
    assert archive.load_all(["m03", "m04", "m12"])
    one, two = sorted(size for _, size in server.requests)
    neighbours = len(members["m03"]) + len(members["m04"])
    assert one == len(members["m12"])
    assert neighbours <= two <= neighbours + 256, "neighbours come in one request"


def test_a_long_index_takes_one_more_request(server: Any, tmp_path: Path) -> None:
    names = [f"{'a-long-folder-name/' * 9}{i:03}" for i in range(400)]
    server.data = make(tmp_path / "many.zip", dict.fromkeys(names, blob())).read_bytes()
    archive = Archive.open(server.url)
    _, first, second, third = (size for _, size in server.requests)
    assert (first + second, third) == (1 << 16, archive._opened.pointer.index_size)
    assert third > 1 << 16 and list(archive) == names


def test_a_torn_append_is_found_behind_its_garbage(server: Any, data: bytes) -> None:
    server.data = data + np.random.default_rng(0).bytes(300_000)
    archive = Archive.open(server.url)
    assert archive.unfinished_bytes == 300_000
    assert archive.verify() == {}


def answers_with(size: int, body_of: Callable[[int, int], bytes], sent: list[int]) -> Callable[[Any, bytes], None]:
    """A server of a file of this size, with so many bytes in each range as it is asked for."""

    def answer(connection: Any, head: bytes) -> None:
        if (place := asked(head)) is None:
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size)
        else:
            sent.append(len(body := body_of(*place)))
            connection.sendall(part(*place, size, body))

    return answer


def test_what_is_no_archive_is_refused_at_once() -> None:
    """A terabyte of it, of which 64 kB are read; or sections without end, which a server makes up as it is asked."""
    for content in (b"\0", b"jaxexp archive ", b"PK\3\4"):
        sent: list[int] = []
        bodies = lambda start, end, content=content: (content * ((end - start) // len(content) + 1))[: end - start]  # noqa: E731
        with raw(answers_with(1 << 40, bodies, sent)) as server:
            with pytest.raises(DeserializationError, match="an archive"):
                Archive.open(server.url)
            assert len(server.requests) == 3
        assert sum(sent) == (1 << 16) + 1

    def section(start: int, end: int) -> bytes:
        return _native.archive_section_head(start, start + 512, bytes(134)).ljust(end - start, b"\0")[: end - start]

    with raw(answers_with(1 << 40, section, [])) as server:
        with pytest.raises(DeserializationError, match="at most 1000 appends"):
            Archive.open(server.url)
        assert len(server.requests) < 1010


def test_options_are_in_the_pickle_that_other_processes_open(server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """But not those that fsspec is configured with."""
    server.token = token = "token-of-a-test"
    headers = {"headers": {"Authorization": f"Bearer {token}"}}
    with pytest.raises(OSError, match="401"):
        Archive.open(server.url)
    pickled = pickle.dumps(Archive.open(server.url, **headers))
    assert token.encode() in pickled
    assert "whole" in pickle.loads(pickled)
    monkeypatch.setitem(fsspec.config.conf, "http", headers)
    archive = Archive.open(server.url)
    for given in (archive, archive["whole"]):
        pickled = pickle.dumps(given)
        assert token.encode() not in pickled
        assert pickle.loads(pickled) is not None
    fsspec.get_filesystem_class("http").clear_instance_cache()
    monkeypatch.delitem(fsspec.config.conf, "http")
    with pytest.raises(OSError, match="401"):
        list(pickle.loads(pickle.dumps(archive)))
    fsspec.get_filesystem_class("http").clear_instance_cache()


@pytest.fixture(scope="module")
def models() -> list[jaxexp.BoundExported]:
    model, _ = bound()
    return [model.with_weights(params(seed=seed)) for seed in (0, 1)]


@pytest.fixture(scope="module")
def states(models: list[Any], tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    """Archives of the same size and layout, with each of the models twice."""
    path = tmp_path_factory.mktemp("states") / "fleet.zip"
    found = [make(path, {"model/v1": model, "model/v2": model}).read_bytes() for model in models]
    assert len(found[0]) == len(found[1])
    assert found[0] != found[1]
    return found


def assert_weights(loaded: Any, model: jaxexp.BoundExported) -> None:
    for name, weight in model.weights.items():
        np.testing.assert_array_equal(loaded.weights[name], weight)


DATES = [{"Last-Modified": f"Thu, 0{day} Jan 2026 00:00:00 GMT"} for day in (1, 2)]
TELLS = {
    "an ETag": ({"ETag": '"1"'}, {"ETag": '"2"'}),
    "a weak ETag": ({"ETag": 'W/"1"'}, {"ETag": 'W/"2"'}),
    "a date": (DATES[0], DATES[1]),
    "a date beside a weak ETag": ({"ETag": 'W/"1"', **DATES[0]}, {"ETag": 'W/"1"', **DATES[1]}),
}


@each("what", TELLS)
def test_what_a_server_says_of_a_file_is_compared_with_each_answer(
    what: str, states: list[bytes], models: list[Any]
) -> None:
    before, after = TELLS[what]
    with serving(states[0]) as server:
        server.headers = before
        archive = Archive.open(server.url)
        early, late = archive["model/v1"].load(), Archive.open(server.url)["model/v2"].load()
        assert_weights(early, models[0])
        name = next(iter(late.weights))
        assert late.weights[name] is not None, "one weight is of the old file"
        server.data, server.headers = states[1], after
        changed = f"{re.escape(repr(server.url))}.*has changed since it was opened, so open it again"
        for use in (lambda: late.call(X), archive["model/v2"].load, archive.load_all, archive["model/v2"].read):
            with pytest.raises(DeserializationError, match=changed):
                use()
        assert_weights(early, models[0])
        assert_weights(Archive.open(server.url)["model/v2"].load(), models[1])


TAG = {"ETag": '"1"'}


@each("before, after", [(TAG, {"ETag": 'W/"1"'}), ({**TAG, **DATES[0]}, {**TAG, **DATES[1]})])
def test_what_is_no_change(before: Any, after: Any, states: list[bytes], models: list[Any]) -> None:
    with serving(states[0]) as server:
        server.headers = before
        archive = Archive.open(server.url)
        model = archive["model/v2"].load()
        server.headers = after
        assert_weights(archive["model/v1"].load(), models[0])
        assert_weights(model, models[0])


@each("way", ["http", "memory", "a file object"])
def test_digests_tell_where_nothing_else_does(
    way: str, states: list[bytes], models: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a server without ETags and dates, of a file system that knows no times, and of what can only be read."""
    monkeypatch.setattr("jaxexp._kernel.io.sources.facts_of", lambda info: {})
    with serving(states[0]) as server:
        source: Any
        if way == "http":
            source, replace = server.url, lambda data: setattr(server, "data", data)
        elif way == "memory":
            source = f"memory://{secrets.token_hex(8)}/fleet.zip"
            replace = writer_of(source)
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
        assert_weights(model, models[0])


@each("protocol", ["memory", "file"])
def test_what_file_systems_say_of_a_file_is_compared(
    protocol: str, states: list[bytes], models: list[Any], tmp_path: Path
) -> None:
    url = f"{protocol}://{tmp_path}/fleet.zip"
    replace = writer_of(url)
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
    assert_weights(Archive.open(url)["model/v1"].load(), models[1])


def test_a_copy_that_fsspec_keeps_stays_what_it_was(states: list[bytes], models: list[Any], tmp_path: Path) -> None:
    with serving(states[0]) as server:
        server.headers = {"ETag": '"1"'}
        archive = Archive.open(f"simplecache::{server.url}", simplecache={"cache_storage": str(tmp_path)})
        server.data, server.headers = states[1], {"ETag": '"2"'}
        assert_weights(archive["model/v1"].load(), models[0])


def test_another_size_is_noticed_without_anything_else(states: list[bytes]) -> None:
    with serving(states[0]) as server:
        archive = Archive.open(server.url)
        for data in (states[0] + b"more", states[0][:-500]):
            server.data = data
            with pytest.raises(DeserializationError, match=f"size {len(states[0])}, found size {len(data)}"):
                archive["model/v1"].load()


class ChangingOnce(dict[str, str]):
    """Headers of a server at which the same file is uploaded again after so many answers."""

    def __init__(self, answers: int) -> None:
        super().__init__({"ETag": '"1"'})
        self.left = answers

    def items(self) -> Any:
        self.left -= 1
        return {"ETag": '"1"' if self.left >= 0 else '"2"'}.items()


@each("name, answers", [("migrate_many", 3), ("digests_many", 3), ("verify_many", 5)])
def test_a_journal_does_not_keep_that_a_file_changed(name: str, answers: int, tmp_path: Path) -> None:
    members = {f"{number:02}": blob(version=number) for number in range(8)}
    given: list[Any] = [tmp_path / "new"] if name == "migrate_many" else []
    with serving(make(tmp_path / "fleet.zip", members).read_bytes()) as server:

        def errors() -> list[Any]:
            found = getattr(jaxexp, name)([server.url], *given, journal=tmp_path / "journal")
            return [one for _, one in dict(found).items() if isinstance(one, Exception)]

        server.headers = ChangingOnce(answers)
        first = errors()
        assert first
        assert all("has changed since it was opened" in str(error) for error in first)
        assert errors() == []

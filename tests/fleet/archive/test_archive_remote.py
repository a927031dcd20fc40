"""Archives behind URLs are read by ranges: the end with the index, then what is asked for."""

from __future__ import annotations

import pickle
import re
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import fsspec.asyn
import jax
import numpy as np
import pytest

import jaxexp
from jaxexp import Archive, DeserializationError
from kit.archives import blob, plain
from kit.served import serving

pytest.importorskip("aiohttp")
pytest.importorskip("s3fs")


@pytest.fixture(scope="module", autouse=True)
def _sessions_end() -> Iterator[None]:
    """fsspec keeps its connections for the next who asks; left open, they would warn in some later test."""
    yield
    for protocol, attribute in (("http", "_session"), ("s3", "_s3creator")):
        for fs in list(fsspec.get_filesystem_class(protocol)._cache.values()):
            if (session := getattr(fs, attribute, None)) is not None:
                fsspec.asyn.sync(fs.loop, session.__aexit__, None, None, None)
        fsspec.get_filesystem_class(protocol).clear_instance_cache()


@pytest.fixture(scope="module")
def members() -> dict[str, bytes]:
    """Each has 100 kB of noise, so that ranges are told from whole files."""
    noise = {f"m{i:02}": np.random.default_rng(i).bytes(50_000).hex() for i in range(20)}
    return {
        name: bytes(exported_of(i).serialize(metadata={"noise": text})) for i, (name, text) in enumerate(noise.items())
    } | {"whole": blob("cpu"), "jax": plain(), "apart": blob("tpu")}


def exported_of(factor: float) -> jaxexp.Exported:
    return jaxexp.export(jax.jit(lambda x: x * factor))(np.zeros(3, np.float32))


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


@pytest.fixture
def http_url(server: Any) -> str:
    found: str = server.url
    return found


@pytest.fixture
def memory_url(data: bytes) -> str:
    url = f"memory://{secrets.token_hex(8)}/fleet.zip"
    with fsspec.open(url, "wb") as file:
        file.write(data)
    return url


@pytest.fixture(scope="module")
def s3_options() -> Iterator[dict[str, Any]]:
    pytest.importorskip("s3fs")
    moto = pytest.importorskip("moto.server")
    server = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield {"endpoint_url": f"http://{host}:{port}", "key": "key", "secret": "secret"}
    server.stop()


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


def test_memory(memory_url: str, members: dict[str, bytes]) -> None:
    assert_all_is_there(Archive.open(memory_url), members)


def test_http(http_url: str, members: dict[str, bytes]) -> None:
    assert_all_is_there(Archive.open(http_url), members)


def test_s3(s3_options: dict[str, Any], data: bytes, members: dict[str, bytes]) -> None:
    fs = fsspec.filesystem("s3", **s3_options)
    fs.mkdir("models")
    fs.pipe_file("models/fleet.zip", data)
    assert_all_is_there(Archive.open("s3://models/fleet.zip", **s3_options), members)
    with pytest.raises(FileNotFoundError):
        Archive.open("s3://models/absent.zip", **s3_options)


def test_only_what_is_asked_for_is_fetched(http_url: str, server: Any, members: dict[str, bytes]) -> None:
    archive = Archive.open(http_url)
    assert sum(size for command, size in server.requests if command == "GET") <= 1 << 16
    assert archive["m07"].summary.arguments == ("float32[3]",)
    assert archive["m07"].metadata == {"name": "m07"}
    assert len(archive) == len(members)
    fetched = len(server.requests)
    first = sorted(size for command, size in server.requests if command == "GET")
    assert len(first) == 2, "the head of the first section, and the end, which has the index"
    assert first[0] < 256

    archive["m07"].load()
    assert server.requests[fetched:] == [("GET", len(members["m07"]))]

    del server.requests[:]
    assert archive.load_all(["m03", "m04", "m12"])
    sizes = sorted(size for _, size in server.requests)
    neighbours = len(members["m03"]) + len(members["m04"])
    assert sizes[0] == len(members["m12"])
    assert len(sizes) == 2, "neighbours come in one request"
    assert neighbours <= sizes[1] <= neighbours + 256


def test_a_large_index_takes_one_more_request(server: Any, http_url: str, tmp_path: Path) -> None:
    with Archive.create(tmp_path / "many.zip") as archive:
        for i in range(600):
            archive.add(f"{'a-long-folder-name/' * 5}{i:03}", blob(version=i % 9), metadata={"number": i})
    server.data = (tmp_path / "many.zip").read_bytes()
    many = Archive.open(http_url)
    index = many._opened.pointer.index_size
    assert index > 1 << 16
    first, second, third = (size for command, size in server.requests if command == "GET")
    assert first + second == 1 << 16
    assert third == index
    name = list(many)[123]
    assert many[name].metadata == {"number": 123}
    assert many[name].load() == jaxexp.deserialize(blob(version=123 % 9))


def test_a_torn_append_is_found_behind_its_garbage(server: Any, http_url: str, data: bytes) -> None:
    server.data = data + np.random.default_rng(0).bytes(300_000)
    archive = Archive.open(http_url)
    assert archive.unfinished_bytes == 300_000
    assert archive.verify() == {}


def test_damage_names_url_and_member(server: Any, http_url: str, data: bytes) -> None:
    damaged = bytearray(data)
    position, _, _ = Archive.open(http_url)._opened.index.extent(Archive.open(http_url)._opened.find("m05"))
    damaged[position + 200] ^= 1
    server.data = bytes(damaged)
    archive = Archive.open(http_url)
    with pytest.raises(DeserializationError, match=re.escape(f"{http_url}::m05")):
        archive["m05"].load()
    assert set(archive.verify()) == {"m05"}


def test_a_file_that_shrinks_is_noticed(server: Any, http_url: str, data: bytes) -> None:
    archive = Archive.open(http_url)
    server.data = data[:500_000]
    with pytest.raises(DeserializationError, match="changed since it was opened"):
        archive["m04"].load()


def test_absent(http_url: str) -> None:
    with pytest.raises(FileNotFoundError):
        Archive.open(http_url.replace("fleet", "absent"))


def test_options_are_for_urls(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="storage options are for URLs, found key"):
        Archive.open(tmp_path / "fleet.zip", key="key")

"""Buffers that change under functions that were read from them: nothing of the functions does."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import jaxexp
from jaxexp import _native
from jaxexp._api.exported import reader
from jaxexp._kernel.io import files
from kit.compare import assert_same_fields
from kit.corpus import arr

Change = Callable[[bytes], None]


def view_of_a_bytearray(data: bytes, _: Path) -> tuple[Any, Change]:
    memory = bytearray(data)
    return memoryview(memory).toreadonly(), lambda other: memory.__setitem__(slice(None), other)


def array_that_is_another_one(data: bytes, _: Path) -> tuple[Any, Change]:
    memory = np.frombuffer(data, np.uint8).copy()
    frozen = memory.view()
    frozen.flags.writeable = False
    return frozen, lambda other: np.copyto(memory, np.frombuffer(other, np.uint8))


def view_of_ctypes(data: bytes, _: Path) -> tuple[Any, Change]:
    memory = (ctypes.c_ubyte * len(data)).from_buffer_copy(data)
    return memoryview(memory).toreadonly(), lambda other: ctypes.memmove(memory, other, len(other))


def _written(path: Path) -> Change:
    def change(other: bytes) -> None:
        with open(path, "r+b") as file:
            file.write(other)

    return change


def mapped_file(data: bytes, folder: Path) -> tuple[Any, Change]:
    (folder / "f").write_bytes(data)
    with open(folder / "f", "rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), _written(folder / "f")


def mapped_array(data: bytes, folder: Path) -> tuple[Any, Change]:
    (folder / "f").write_bytes(data)
    return np.memmap(folder / "f", np.uint8, mode="r"), _written(folder / "f")


MEMORIES = [view_of_a_bytearray, array_that_is_another_one, view_of_ctypes, mapped_file, mapped_array]

READINGS: dict[str, Callable[[Any], Any]] = {
    "deserialize": jaxexp.deserialize,
    "with a policy": lambda buffer: jaxexp.deserialize(buffer, policy=jaxexp.Policy()),
    "load": jaxexp.load,
    "load_many": lambda buffer: jaxexp.load_many([buffer])[0],
    "many with a policy": lambda buffer: jaxexp.load_many([buffer], policy=jaxexp.Policy())[0],
}

CHANGES: dict[str, Callable[[bytes], bytes]] = {
    "zeros": lambda data: bytes(len(data)),
    "ones": lambda data: b"\xff" * len(data),
    "moved": lambda data: data[4:] + data[:4],
    "another function": lambda data: data.replace(b"scaled", b"halved").replace(b"cpu", b"tpu"),
}


@pytest.fixture(scope="module")
def blob() -> bytes:
    def scaled(tree: Any, n: Any) -> Any:
        return {"y": tree["a"] * n, "z": [tree["b"]]}

    return bytes(jaxexp.export(jax.jit(scaled))({"a": arr(3), "b": arr(2, 2)}, np.float32(2)).serialize(vjp_order=2))


@pytest.mark.sampled(one_in=7, reason="many cases go the same way")
@pytest.mark.parametrize("memory", MEMORIES)
@pytest.mark.parametrize("reading", READINGS)
def test_a_function_stays_what_it_was(memory: Any, reading: str, blob: bytes, tmp_path: Path) -> None:
    for change in CHANGES.values():
        assert change(blob) != blob
        buffer, write = memory(blob, tmp_path)
        found = READINGS[reading](buffer)
        write(change(blob))
        assert (found.fun_name, found.platforms, found.nr_devices) == ("scaled", ("cpu",), 1)
        expected = jaxexp.deserialize(blob)
        while True:
            assert_same_fields(found, expected)
            assert found.serialize() == expected.serialize()
            if not found.has_vjp():
                break
            found, expected = found.vjp(), expected.vjp()


@pytest.mark.parametrize("memory", MEMORIES)
def test_images_and_modules_stay_what_they_were(memory: Any, blob: bytes, tmp_path: Path) -> None:
    image, modules = _native.cut(blob), [bytes(link.mlir_module_serialized) for link in _links(blob)]
    made = [memory(data, tmp_path / str(i)) for i, data in enumerate([image, *modules]) if _folder(tmp_path / str(i))]
    found = reader.read(made[0][0], [buffer for buffer, _ in made[1:]])
    for (_, write), data in zip(made, [image, *modules], strict=True):
        write(bytes(len(data)))
    assert found == jaxexp.deserialize(blob)
    assert [link.mlir_module_serialized for link in _links(found)] == modules


@pytest.mark.parametrize("memory", MEMORIES)
def test_an_archive_has_what_was_verified(memory: Any, blob: bytes, tmp_path: Path) -> None:
    buffer, _ = memory(blob, tmp_path)
    with jaxexp.Archive.create(tmp_path / "a.zip") as archive:
        archive.add("f", buffer)
    assert jaxexp.Archive.open(tmp_path / "a.zip")["f"].read() == blob


def test_bytes_and_files_are_not_copied(blob: bytes, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(blob)
    for buffer in (blob, memoryview(blob), memoryview(blob)[:], files.opened(tmp_path / "f")):
        for read in (jaxexp.deserialize, lambda buffer: jaxexp.load_many([buffer])[0]):
            module = np.frombuffer(read(buffer)._artifact.module(), np.uint8)
            assert np.shares_memory(module, np.frombuffer(buffer, np.uint8))


def test_what_the_caller_keeps_is_not_copied(blob: bytes) -> None:
    memory = bytearray(blob)
    view = memoryview(memory).toreadonly()
    for buffer, in_place, is_shared in ((view, True, True), (view, False, False), (memory, True, False)):
        artifact = _native.Artifact(buffer, in_place=in_place)
        assert np.shares_memory(np.frombuffer(artifact.module(), np.uint8), np.frombuffer(memory, np.uint8)) == (
            is_shared
        )
        assert reader.decode(artifact)._artifact.is_decoded == is_shared, "nobody knows for how long"


def _folder(path: Path) -> bool:
    path.mkdir()
    return True


def _links(given: Any) -> list[Any]:
    links = [jaxexp.deserialize(given) if isinstance(given, bytes) else given]
    while links[-1].has_vjp():
        links.append(links[-1].vjp())
    return links

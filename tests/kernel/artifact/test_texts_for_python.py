"""Texts that only Python reads: what no function can be made of is refused wherever an artifact is verified."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jaxexp
from jaxexp import Archive, _native
from jaxexp._fleet.archive import writer
from jaxexp.errors import DeserializationError
from jaxexp.runtime.trees import tree_of
from kit import library_nodes
from kit.archives import blob
from kit.each import each
from kit.parts import put_together, take_apart, walk


def added(artifact: bytes, path: Path) -> None:
    with Archive.create(path) as archive:
        archive.add("m", artifact)


def raised(found: dict[str, Exception]) -> None:
    for error in found.values():
        raise error


def in_file(artifact: bytes, path: Path) -> Path:
    path.write_bytes(artifact)
    return path


def in_archive(artifact: bytes, path: Path) -> Archive:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(writer.texts, "check", lambda *_: None)
        added(artifact, path)
    return Archive.open(path)


def in_memory(archive: Archive) -> Archive:
    return Archive.open(io.BytesIO(Path(archive.name).read_bytes()))


DOORS: dict[str, Callable[[bytes, Path], Any]] = {
    "deserialize": lambda artifact, _: jaxexp.deserialize(artifact),
    "inspect": lambda artifact, _: jaxexp.inspect(artifact),
    "verify": lambda artifact, _: jaxexp.verify(artifact),
    "verify a file": lambda artifact, path: jaxexp.verify(in_file(artifact, path)),
    "verify_many": lambda artifact, path: raised(jaxexp.verify_many([in_file(artifact, path)])),
    "Archive.verify": lambda artifact, path: raised(in_archive(artifact, path).verify()),
    "Archive.verify in memory": lambda artifact, path: raised(in_memory(in_archive(artifact, path)).verify()),
    "ArchiveWriter.add": added,
}


def refused_by_all(artifact: bytes, tmp_path: Path, where: str) -> None:
    for name, door in DOORS.items():
        with pytest.raises(DeserializationError) as error:
            door(artifact, tmp_path / name)
        assert error.value.path == where, name


@each("text", ["{", "", "1e400", "NaN", "01", '"\n"', "[1] 2", "[" * 100_000, "1" * 5000, '[1, {"a": -1e999}]'])
def test_metadata(text: str, tmp_path: Path) -> None:
    refused_by_all(_native.with_metadata(blob(), {"a": "1", "b": text}), tmp_path, "trailer.metadata['b']")


def with_node(name: str, data: bytes) -> bytes:
    """An artifact with a custom node of two children, below its first argument, and in its results."""
    root = take_apart(library_nodes.jaxexp_without_trailer(library_nodes.written(library_nodes.VALUES["namedtuple"])))
    for part in walk(root):
        if "custom_name" in part:
            part |= {"custom_name": name, "custom_auxdata": data}
    return put_together(root)


def keys(*tagged: Any) -> bytes:
    return json.dumps({"version": 1, "keys": tagged}, separators=(",", ":")).encode()


NODE = library_nodes.described("a:B")
NODES = {
    "no JSON": ("jaxexp.node", b"{"),
    "of three children": ("jaxexp.node", library_nodes.described("a:B", ("a", "b", "c"))),
    "unknown": ("jaxexp.nodes", NODE),
    "keys in another order": ("jaxexp.dict", keys(["int", "0x2"], ["int", "0x1"])),
    "one key": ("jaxexp.OrderedDict", keys(["int", "0x1"])),
    "keys of JAX, too many": ("collections.OrderedDict", b'["a","b","c"]'),
    "keys of JAX, no list": ("collections.OrderedDict", b"12"),
    "keys of JAX, no JSON": ("collections.OrderedDict", b'["a","b"'),
    "keys of JAX without a hash": ("collections.OrderedDict", b'["a",[]]'),
}


@each("kind", NODES)
def test_nodes(kind: str, tmp_path: Path) -> None:
    name, data = NODES[kind]
    refused_by_all(with_node(name, data), tmp_path, "in_tree.children[0].children[0]")
    with pytest.raises(DeserializationError, match=name):  # without JAX
        tree_of([(5, 2, name, data), (0, 0), (0, 0)], "in_tree")


@each("name, data", [
    ("jaxexp.node", NODE),
    ("jaxexp.dict", keys(["int", "0x1"], ["int", "0x2"])),
    ("jaxexp.OrderedDict", keys(["int", "0x2"], ["str", "1"])),
    ("collections.OrderedDict", b'["b", "a"]'),
    ("somebody.else", b"{"),  # only whoever registered it can tell
])  # fmt: skip
def test_what_can_be_read(name: str, data: bytes, tmp_path: Path) -> None:
    artifact = with_node(name, data)
    for what, door in DOORS.items():
        door(artifact, tmp_path / what)


def test_a_vjp(tmp_path: Path) -> None:
    """It is read when it is asked for."""
    root = take_apart(library_nodes.written([np.ones(2), np.ones(2)], trailer=False, vjp_order=1))
    data = keys(["int", "0x2"], ["int", "0x1"])
    root["vjp"]["out_tree"] |= {"kind": 5, "custom_name": "jaxexp.dict", "custom_auxdata": data}
    artifact = put_together(root)
    function = jaxexp.deserialize(artifact)
    doors = [lambda *_: function.vjp().out_tree, *(DOORS[name] for name in DOORS if name != "deserialize")]
    for number, door in enumerate(doors):
        with pytest.raises(DeserializationError, match=r"vjp\.out_tree.* not in ascending order"):
            door(artifact, tmp_path / str(number))

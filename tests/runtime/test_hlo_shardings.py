"""How a newer plugin says that a compiled module divides its results: by axes of a mesh, which become tiles."""

from __future__ import annotations

import itertools
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.cpp

Axis = tuple[int, int, int]  # of the mesh; how many parts of it are before this part; how many parts there are
Dimensions = Sequence[Sequence[Axis]]


@pytest.fixture
def read(programs: Path, tmp_path: Path) -> Callable[[bytes], str]:
    def read(module: bytes) -> str:
        (tmp_path / "module").write_bytes(module)
        return subprocess.run(
            [programs / "hlo_shardings", tmp_path / "module"], capture_output=True, text=True, timeout=60
        ).stdout

    return read


def varint(value: int) -> bytes:
    return bytes([value & 0x7F | 0x80]) + varint(value >> 7) if value >> 7 else bytes([value])


def field(number: int, value: int | bytes) -> bytes:
    """Of a protocol buffer."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def named(sizes: Sequence[int], dimensions: Dimensions, ids: Sequence[int] = ()) -> bytes:
    """An xla.OpSharding with an xla.NamedShardingProto."""
    mesh = b"".join(field(1, field(1, b"axis") + field(2, size)) for size in sizes)
    if ids:
        mesh += field(2, b"".join(map(varint, ids)))

    def reference(axis: Axis) -> bytes:
        index, before, size = axis
        is_whole = (before, size) == (1, sizes[index])
        part = b"" if is_whole else field(2, field(1, before) + field(2, size))
        return field(1, (field(1, index) if index else b"") + part)

    said = b"".join(field(3, b"".join(map(reference, axes)) + field(2, 1)) for axes in dimensions)
    return field(1, 3) + field(14, field(2, mesh) + said)


def as_result(sharding: bytes) -> bytes:
    return field(12, sharding)


def tiles(text: str) -> np.ndarray:
    """The devices of each tile of an xla.OpSharding, in a last dimension."""
    message = bytes.fromhex(text)
    numbers: dict[int, list[int]] = {}
    while message:
        pair = []
        for _ in range(2):
            length = next(i for i, byte in enumerate(message, 1) if byte < 0x80)
            pair.append(sum((byte & 0x7F) << 7 * i for i, byte in enumerate(message[:length])))
            message = message[length:]
        numbers.setdefault(pair[0] >> 3, []).append(pair[1])
    assert numbers[1] == [3]
    devices = np.array(numbers[4]).reshape(numbers[3])
    return devices if 6 in numbers else devices[..., None]


CASES: dict[str, tuple[Sequence[int], Dimensions, Sequence[int]]] = {
    "one axis": ([8], [[(0, 1, 8)]], []),
    "two axes": ([4, 2], [[(0, 1, 4)], [(1, 1, 2)]], []),
    "axes in another order": ([4, 2], [[(1, 1, 2)], [(0, 1, 4)]], []),
    "two axes for one dimension": ([2, 3, 4], [[(2, 1, 4), (0, 1, 2)], []], []),
    "copies": ([4, 2], [[], [(1, 1, 2)]], []),
    "parts of an axis": ([8, 2], [[(0, 2, 2)], [(0, 1, 2), (1, 1, 2)]], []),
    "numbered devices": ([2, 3], [[(1, 1, 3)]], [5, 1, 3, 0, 2, 4]),
}


def test_axes_become_tiles(read: Callable[[bytes], str]) -> None:
    for name, (sizes, dimensions, ids) in CASES.items():
        lengths = [int(np.prod([size for *_, size in axes], dtype=int)) for axes in dimensions]
        expected: dict[tuple[int, ...], list[int]] = {}
        for i, place in enumerate(itertools.product(*map(range, sizes))):
            tile = []
            for axes in dimensions:
                index = 0
                for axis, before, size in axes:
                    index = index * size + place[axis] // (sizes[axis] // before // size) % size
                tile.append(index)
            expected.setdefault(tuple(tile), []).append(ids[i] if ids else i)
        found = tiles(read(as_result(named(sizes, dimensions, ids))))
        assert found.shape[:-1] == tuple(lengths), name
        for tile, devices in expected.items():
            assert found[tile].tolist() == devices, name


def test_what_is_not_divided_and_tiles_that_are_there(read: Callable[[bytes], str]) -> None:
    whole, one = named([4, 2], [[], []]), named([], [], [3])
    on_one = field(1, 1) + field(3, 1) + field(4, 3)
    assert read(as_result(field(1, 2) + field(5, whole) + field(5, one))) == f"\n{on_one.hex()}\n"
    tiled = field(1, 3) + field(3, 2) + field(4, 1) + field(4, 0)
    assert read(field(14, tiled) + as_result(tiled)) == f"{tiled.hex()}\n" * 2


def test_what_cannot_be_read(read: Callable[[bytes], str]) -> None:
    for what, sharding in {
        "shortened": named([4, 2], [[(0, 1, 4)]])[:-1],
        "no devices": named([0], [[]]),
        "very many devices": named([2**15, 2**15], [[]]),
        "no part": named([4], [[(0, 3, 2)]]),
        "too few numbers": named([4], [[(0, 1, 4)]], [1, 2]),
        "no such axis": field(14, field(2, field(1, field(2, 4))) + field(3, field(1, field(1, 1)))),
    }.items():
        assert read(as_result(sharding)) == "the plugin shows a compiled module that cannot be read\n", what

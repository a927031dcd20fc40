"""Archives that try to cost more than their bytes: families, each of any size.

Their indexes are written by the codec, and say what the codec would never make them say.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from jaxexp import _native
from kit import layout, mlir_bytes
from kit.archive_files import of_one_section, with_index
from kit.archives import blob

FAMILIES: dict[str, Callable[[int], bytes]] = {}
Members = Iterator[tuple[str, _native.Member]]


def family(make: Callable[[int], bytes]) -> Callable[[int], bytes]:
    """Registers a function that makes an archive of about so many bytes."""
    FAMILIES[make.__name__] = make
    return make


@dataclass(frozen=True)
class Body:
    """An artifact in the file, behind its header."""

    name: str
    data: bytes
    position: int
    header: int

    def place(self, *, shared: bool = False, apart: bool = False) -> _native.MemberPlace:
        return _native.MemberPlace(
            self.position, len(self.data), zlib.crc32(self.data), self.header, shared=shared, apart=apart
        )

    def member(
        self, *, shared: bool = False, apart: bool = False, digest: bytes | None = None, text: str = "",
        metadata: str | None = None, modules: tuple[tuple[int, int, bytes], ...] = (),
    ) -> _native.Member:  # fmt: skip
        summary = _native.MemberSummary(
            fun_name=text or "f", jax_version=text or None, writer=text or "1", platforms=text or "cpu", nr_devices=1,
            arguments=text, argument_count=1 if text else 0, results=text, result_count=1 if text else 0,
        )  # fmt: skip
        made = _native.Member(
            summary=summary, digest=digest or _native.digest(self.data), size=len(self.data), metadata=metadata,
            own_metadata=metadata is not None,
        )  # fmt: skip
        return made.at(self.place(shared=shared, apart=apart), modules)


def archive(
    artifacts: dict[str, bytes],
    members: Callable[[dict[str, Body]], Members],
    weights: Callable[[_native.ArchiveRecords, dict[str, Body]], None] | None = None,
) -> bytes:
    """An archive of one section with these artifacts, and an index of these members and weights."""
    data = _native.archive_section_head(0)
    bodies = {}
    for name, artifact in artifacts.items():
        header = _native.zip_local_header(name, len(artifact), zlib.crc32(artifact), len(data))
        data += header
        bodies[name] = Body(name, artifact, len(data), len(header))
        data += artifact
    records = _native.ArchiveRecords()
    for name, member in members(bodies):
        records.put(name, member)
    if weights is not None:
        weights(records, bodies)
    return of_one_section(with_index(data, records, "hostile"))


def _shared(size: int, of_each: int, artifact: Callable[[], bytes] = blob, **changes: Callable[[int], Any]) -> bytes:
    """One artifact, of which all other members, with so many bytes in an index, say that it is theirs."""

    def members(bodies: dict[str, Body]) -> Members:
        yield "a", bodies["a"].member()
        name = changes.pop("name", lambda i: f"b{i:06}")
        for i in range(size // of_each):
            yield name(i), bodies["a"].member(shared=True, **{field: change(i) for field, change in changes.items()})

    return archive({"a": artifact()}, members)


FAMILIES |= {
    "members_that_share_an_artifact": lambda size: _shared(size, 140),
    "members_that_share_a_large_artifact": lambda size: _shared(
        size,
        280,
        lambda: layout.put_together(layout.function(mlir_module_serialized=mlir_bytes.many_attributes(size // 6))),
    ),
    # A block has each text once, and up to 64 members have it.
    "members_that_share_long_texts": lambda size: _shared(
        size, 250, text=lambda i: chr(ord("a") + i // 64 % 26) * 4000
    ),
    "members_that_share_metadata": lambda size: _shared(
        size, 250, metadata=lambda i: '{"k": [' + ",".join(["[]"] * 1000) + f", {i // 64}" + "]}"
    ),
    # As long as a hash of them is.
    "digests_that_begin_alike": lambda size: _shared(size, 140, digest=lambda i: bytes(8) + i.to_bytes(8, "little")),
    "long_names_that_begin_alike": lambda size: _shared(size, 600, name=lambda i: f"{'n' * 200}/{'m' * 200}{i:06}"),
    "folders_in_folders": lambda size: _shared(
        size, 600, name=lambda i: "/".join(["f"] * 100 + [f"{i:06}"] + ["g"] * 40)
    ),
}


@family
def members_without_bytes(size: int) -> bytes:
    """All in one place, and each one's own."""

    def members(bodies: dict[str, Body]) -> Members:
        for i in range(size // 200):
            yield f"b{i:06}", bodies["b000000"].member(digest=i.to_bytes(16, "little"))

    return archive({"b000000": b""}, members)


@family
def members_of_one_module(size: int) -> bytes:
    """That is apart from them, and half of the file."""
    module = b"ML\xefR" + bytes(size // 2)

    def members(bodies: dict[str, Body]) -> Members:
        place = (bodies["a"].position, len(module), _native.digest(module))
        yield "a", bodies["a"].member()
        for i in range(size // 400):
            yield f"b{i:06}", bodies["b"].member(shared=i > 0, apart=True, modules=(place,) * 2)

    return archive({"a": module, "b": blob()}, members)


@family
def sections_of_nothing(size: int) -> bytes:
    data = archive({"a": blob()}, lambda bodies: iter([("a", bodies["a"].member())]))
    section = data[len(_native.archive_section_head(0)) :]
    while len(data) < size:
        position = len(data)
        rest = section[-2000:]
        end = position + len(_native.archive_section_head(position)) + len(rest)
        data += _native.archive_section_head(position, end, rest[-_native.ARCHIVE_END_SIZE :]) + rest
    return data


@family
def members_of_earlier_versions(size: int) -> bytes:
    """Headers that a reader walks along, one behind the other, without an end."""
    data = b""
    while len(data) < size:
        data += _native.zip_local_header("m", 0, 0, len(data))
    return data

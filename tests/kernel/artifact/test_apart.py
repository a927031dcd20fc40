"""Damage to artifacts, and to those whose modules are stored apart: images, put together again byte for byte."""

from __future__ import annotations

import copy
import dataclasses
import functools
import itertools
import mmap
import pickle
import random
import struct
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash

import jaxexp
from jaxexp import _native
from jaxexp._api.exported import reader
from jaxexp._kernel.artifact.inspection import described
from jaxexp._kernel.read.decode import verified
from kit import wire
from kit.census import artifact, census, every_artifact, flipped, read_bytes, read_everything, with_two
from kit.corpus import CASES, export_with
from kit.each import each
from kit.ways import assert_apart_as_in_one, parts_of

DeserializationError = jaxexp.errors.DeserializationError


def exported_case(name: str, vjp_order: int = 1, **options: Any) -> bytes:
    with CASES[name].context():
        return bytes(export_with(jaxexp, CASES[name].build()).serialize(vjp_order, **options))


SIN = exported_case("sin")
IMAGE, MODULES = parts_of(SIN)


@each("name, order", [("sharded_2d", 1), ("perceptron", 0)])
def test_python_sees_one_kind_of_function(name: str, order: int, tmp_path: Path) -> None:
    blob = exported_case(name, order, metadata={"version": 3})
    image, modules = parts_of(blob)
    ours, plain = reader.read(image, modules), jaxexp.deserialize(blob)
    assert ours == plain and hash(ours) == hash(plain) and len({ours, plain}) == 1
    assert copy.copy(ours) is ours and copy.deepcopy(ours) is ours
    thawed = pickle.loads(pickle.dumps(ours))
    assert thawed == plain and thawed.metadata == {"version": 3}
    assert not order or thawed.vjp() == plain.vjp() == ours.vjp()
    ours.save(tmp_path / "f", vjp_order=order)
    assert (tmp_path / "f").read_bytes() == blob
    for check in (False, True):
        assert described(image, check, modules) == described(blob, check)


def test_modules_are_not_copied_and_kept_while_in_use() -> None:
    mapped = [mmap.mmap(-1, len(module)) for module in MODULES]
    for pages, module in zip(mapped, MODULES, strict=True):
        pages[:] = module
    views = [memoryview(pages).toreadonly() for pages in mapped]
    part = _native.Artifact(IMAGE, views, in_place=True)
    module = part.module()
    assert np.shares_memory(np.frombuffer(module, np.uint8), np.frombuffer(mapped[0], np.uint8))
    with pytest.raises(BufferError):
        mapped[1].close()
    vjp = part.vjp()
    del part, views
    assert vjp is not None and [module, vjp.module()] == MODULES


def test_what_is_not_aligned_is_copied_and_what_follows_left_out() -> None:
    odd = memoryview(b"x" + IMAGE)[1:], [memoryview(b"xyz" + module)[3:] for module in MODULES]
    for given in (odd, (IMAGE + b"more", MODULES)):
        assert reader.read(*given) == jaxexp.deserialize(SIN)
        assert _native.join(*given) == SIN
    assert _native.cut(memoryview(b"x" + SIN)[1:]) == _native.cut(SIN + b"more") == IMAGE
    assert _native.digest(memoryview(b"x" + SIN)[1:]) == xxhash.xxh3_128_digest(SIN)
    for size in (0, 1, 2**21 + 3):
        module = np.random.default_rng(size).bytes(size)
        blob = dataclasses.replace(jaxexp.deserialize(SIN), mlir_module_serialized=module).serialize()
        assert_apart_as_in_one(bytes(blob))


def both_refuse(image: Any, modules: Sequence[Any], match: str) -> None:
    for reads in (verified, _native.join):
        with pytest.raises(DeserializationError, match=match):
            reads(image, modules)


def test_an_image_is_no_artifact() -> None:
    """Alone, it is refused by all that reads artifacts, and the message says what to do. Nor is one an image."""
    for read in (jaxexp.deserialize, jaxexp.inspect, jaxexp.compatibility, jaxexp.migrate, _native.cut):
        with pytest.raises(DeserializationError, match=r"modules are stored apart.*read it through the archive"):
            read(IMAGE)
    both_refuse(SIN, MODULES, "found one that has its modules")
    both_refuse(exported_case("sin", 1, trailer=False), MODULES, "bytes that do not begin like one")
    both_refuse(b"", [b""], "0 bytes that do not begin like one")
    with pytest.raises(DeserializationError, match=r"at modules: .*, found no modules"):
        _native.join(SIN, [])


def test_other_modules() -> None:
    module, vjp = MODULES
    for modules in ([module], [module, vjp, vjp], [module, vjp, b""]):
        both_refuse(IMAGE, modules, f"at modules: expected 2 modules for as many functions, found {len(modules)}")
    both_refuse(IMAGE, [module, vjp + b"\0"], rf"at modules\[1\]: expected a module of {len(vjp)} bytes")
    both_refuse(IMAGE, [b"", vjp], r"at modules\[0\]: .* found one of 0")
    both_refuse(IMAGE, [vjp, module], r"at modules\[0\]")


def test_what_is_damaged_is_not_cut() -> None:
    """Its modules would be taken for others, by their digests."""
    for path in ("mlir_module_serialized", "vjp.mlir_module_serialized", "function_name"):
        (damaged,) = flipped(SIN, [8 * (wire.locate(SIN, path)[0] + 4)])
        with pytest.raises(DeserializationError, match="damaged; get another copy"):
            _native.cut(damaged)


@pytest.mark.wide(one_in=2, promise="no damaged artifact or image is read, whatever is damaged")
@pytest.mark.parametrize(
    ("name", "is_image"),
    [
        ("tiny", False), ("tiny", True), ("dicts_with_vjp", True), ("dicts_with_vjp", False),
        ("symbolic_sharded", False), ("symbolic_sharded", True),
    ],
)  # fmt: skip
def test_damage(name: str, is_image: bool) -> None:
    """Every bit, every truncation, every byte left out; pairs of bytes by chance: nothing is read as something else."""
    blob = artifact(name)
    image, modules = parts_of(blob)
    assert wire.has_trailer(blob)
    assert read_everything(blob).metadata == {"made": "for the census"}
    whole, apart = (image, [modules]) if is_image else (blob, [])
    source, size = random.Random(name), len(whole)

    def refused(changed: Iterable[bytes], look: Callable[..., Any] = read_bytes) -> None:
        assert census(
            changed, lambda one: look(one, *(apart if look in (read_bytes, _native.join) else []))
        ).keys() == {"refused"}

    # What is refused below is not refused for another reason.
    assert census([whole, whole + b"behind the end"], lambda one: read_bytes(one, *apart)) == {"silent": 2}
    refused(flipped(whole, range(8 * size)))
    refused(whole[:end] for end in range(size))
    refused(whole[:at] + whole[at + 1 :] for at in range(size))
    refused(whole[:at] + b"\0" + whole[at:] for at in range(1, size))
    refused(with_two(whole, itertools.combinations([*range(16), *range(size - 48, size)], 2), source))
    refused(with_two(whole, ((i, i + 1) for i in range(size - 1)), source))
    refused(with_two(whole, (source.sample(range(size), 2) for _ in range(1000)), source))
    some = source.sample(range(8 * size), 500)
    refused(flipped(whole, some), read_everything if not is_image else _native.join)
    if is_image:  # nor does it become an artifact; nor are other modules taken
        refused(flipped(image, some), jaxexp.deserialize)
        for look in (read_bytes, _native.join):
            changed = ([module, *modules[1:]] for module in flipped(modules[0], range(0, 8 * len(modules[0]), 9)))
            assert census(changed, functools.partial(look, image)).keys() == {"refused"}


def reseal(image: bytearray) -> bytes:
    """Digests made right again, as somebody who changes an image on purpose would."""
    metadata_size, content_size = struct.unpack_from("<II", image, len(image) - 32)
    image[-48:-32] = xxhash.xxh3_128_digest(bytes(image[:metadata_size]))
    image[-24:-8] = xxhash.xxh3_128_digest(bytes(image[len(image) - 64 - content_size : -24]))
    return bytes(image)


@every_artifact
def test_changed_on_purpose(name: str) -> None:
    """It says something else then, or is refused; it is never put together to what no artifact was."""
    image, modules = parts_of(artifact(name))
    assert reseal(bytearray(image)) == image
    source = random.Random(name)
    metadata_size = struct.unpack_from("<I", image, len(image) - 32)[0]
    sealed = []
    for _ in range(1500):
        blob = bytearray(image)
        blob[source.randrange(16, metadata_size)] ^= source.randrange(1, 256)
        sealed.append(reseal(blob))
    assert census(sealed, lambda image: read_bytes(image, modules)).keys() == {"refused", "silent"}
    assert census(sealed, lambda blob: _native.join(blob, modules)) == {"refused": len(sealed)}


@each("slot", ["nr_devices", "function_name", "platforms", "in_tree", "jax_version"])
def test_a_field_over_the_offset_of_a_module(slot: str) -> None:
    blob = bytearray(exported_case("sin", 0))
    table = struct.unpack_from("<I", blob)[0]
    vtable = table - struct.unpack_from("<i", blob, table)[0]
    slots = {name: number for name, (number, _) in wire.LAYOUT["Exported"].items()}
    entry = struct.unpack_from("<H", blob, vtable + 4 + 2 * slots["mlir_module_serialized"])[0]
    struct.pack_into("<H", blob, vtable + 4 + 2 * slots[slot], entry)
    sealed = bytes(wire.seal(blob))
    if slot == "nr_devices":
        assert _native.join(*parts_of(sealed)) == sealed
        return
    for read in (jaxexp.deserialize, _native.cut):
        with pytest.raises(DeserializationError):
            read(sealed)


def test_sizes_beyond_the_format() -> None:
    start = len(IMAGE) - 64 - struct.unpack_from("<I", IMAGE, len(IMAGE) - 28)[0]
    at = IMAGE.index(struct.pack("<I", len(MODULES[0])), start)
    for huge in (2**32 - 1, 2**31):
        changed = bytearray(IMAGE)
        struct.pack_into("<I", changed, at, huge)
        both_refuse(reseal(changed), MODULES, rf"expected a module of {huge} bytes, found one of {len(MODULES[0])}")

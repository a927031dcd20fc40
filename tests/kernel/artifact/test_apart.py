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
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xxhash

import jaxexp
from jaxexp import _native
from jaxexp._api.exported import reader
from jaxexp._kernel.artifact.inspect import described
from jaxexp._kernel.read.decode import verified
from kit import wire
from kit.census import artifact, census, every_artifact, flipped, read_bytes, read_everything, with_two
from kit.compare import assert_same_values
from kit.corpus import CASES, export_with
from kit.each import each
from kit.ways import assert_apart_as_in_one, parts_of

DeserializationError = jaxexp.DeserializationError
IMAGE_MARK = b"jximage\1"


def exported_case(name: str, vjp_order: int = 1, **options: Any) -> bytes:
    with CASES[name].context():
        return bytes(export_with(jaxexp, CASES[name].build()).serialize(vjp_order, **options))


SIN = exported_case("sin")
IMAGE, MODULES = parts_of(SIN)


@each("size", [0, 1, 2, 3, 2**17 + 1, 2**21 + 3])
def test_modules_of_any_size(size: int) -> None:
    module = np.random.default_rng(size).bytes(size)
    loaded = jaxexp.deserialize(exported_case("sin", 0))
    blob = bytes(dataclasses.replace(loaded, mlir_module_serialized=module).serialize())
    assert_apart_as_in_one(blob)
    assert len(parts_of(blob)[0]) < 3000


def test_python_sees_one_kind_of_function(tmp_path) -> None:
    """Equality, hash, copies, pickles, files."""
    blob = exported_case("sharded_2d", 1, metadata={"version": 3})
    image, modules = parts_of(blob)
    ours, plain = reader.read(image, modules), jaxexp.deserialize(blob)
    assert ours == plain and hash(ours) == hash(plain) and len({ours, plain}) == 1
    assert copy.copy(ours) is ours and copy.deepcopy(ours) is ours
    thawed = pickle.loads(pickle.dumps(ours))
    assert thawed == plain and thawed.vjp() == plain.vjp() and thawed.metadata == {"version": 3}
    ours.save(tmp_path / "f", vjp_order=1)
    assert (tmp_path / "f").read_bytes() == blob
    other = reader.read(image, modules)
    assert other == ours and other.vjp() == ours.vjp()


def test_inspected_as_in_one() -> None:
    for name in ("sin", "sharded_2d", "symbolic_expressions", "perceptron"):
        blob = exported_case(name, 0)
        image, modules = parts_of(blob)
        for check in (False, True):
            assert described(image, check, modules) == described(blob, check)


def test_layout() -> None:
    """As schema/trailer.fbs has it."""
    blob = exported_case("sin", 2)
    image, modules = parts_of(blob)
    start, footer, metadata_size = wire.trailer_of(blob)
    assert image[:4] == blob[:4] and image[4:12] == image[-8:] == IMAGE_MARK
    assert struct.unpack_from("<I", image, 12) == (len(image),)
    content_size, functions = footer - start, len(modules)
    end = metadata_size + 4 * functions
    assert image[metadata_size:end] == bytes(4 * functions)
    assert image[end : end + content_size] == blob[start:footer]
    assert image[end + content_size : -48] == xxhash.xxh3_128_digest(blob[:metadata_size])
    assert image[-48:-32] == xxhash.xxh3_128_digest(image[:metadata_size])
    assert struct.unpack_from("<II", image, len(image) - 32) == (metadata_size, content_size)
    assert image[-24:-8] == xxhash.xxh3_128_digest(image[end:-24])
    places = [wire.locate(blob, f"{'vjp.' * order}mlir_module_serialized@")[0] for order in range(functions)]
    changed = {place + i for place in places for i in range(4)} | set(range(4, 16))
    assert all(image[at] == blob[at] for at in range(metadata_size) if at not in changed)


def test_modules_are_not_copied_and_kept_while_in_use() -> None:
    """test_changing_buffers.py has those that are copied."""
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


@each("size", [0, 1, 16, 1000, 2**20 + 1])
def test_digest(size: int) -> None:
    data = np.random.default_rng(size).bytes(size)
    for buffer in (data, bytearray(data), memoryview(b"x" + data)[1:]):
        assert _native.digest(buffer) == xxhash.xxh3_128_digest(data)


def test_what_is_no_buffer() -> None:
    for wrong in ([None], ["text"], [1], 7):
        for read in (_native.Artifact, _native.join):
            with pytest.raises(TypeError):
                read(IMAGE, wrong)
    for wrong in (None, "text"):
        for read in (_native.cut, _native.digest, lambda wrong: _native.join(wrong, MODULES)):
            with pytest.raises(TypeError):
                read(wrong)


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
    with pytest.raises(DeserializationError, match=r"at modules: .*, found none"):
        _native.join(SIN, [])


def test_other_modules() -> None:
    module, vjp = MODULES
    for modules in ([module], [module, vjp, vjp], [module, vjp, b""]):
        both_refuse(IMAGE, modules, f"at modules: expected 2 modules for as many functions, found {len(modules)}")
    both_refuse(IMAGE, [module, vjp + b"\0"], rf"at modules\[1\]: expected a module of {len(vjp)} bytes")
    both_refuse(IMAGE, [b"", vjp], r"at modules\[0\]: .* found one of 0")
    both_refuse(IMAGE, [vjp, module], r"at modules\[0\]")


def damaged(blob: bytes, at: int) -> bytes:
    (changed,) = flipped(blob, [8 * at])
    return changed


def test_damage_to_a_module_shows_when_it_is_read(tmp_path) -> None:
    modules, x = [MODULES[0], damaged(MODULES[1], 100)], np.ones(4, np.float32)
    loaded = reader.read(IMAGE, modules)
    assert_same_values([loaded.call(x)], [jnp.sin(x)])
    derivative = loaded.vjp()
    for use in (
        lambda: derivative.mlir_module_serialized, lambda: derivative.call(x, x),
        lambda: jax.grad(lambda x: loaded.call(x).sum())(x), lambda: loaded.serialize(1),
        lambda: loaded.serialize(1, trailer=False), lambda: loaded.save(tmp_path / "f", vjp_order=1),
        lambda: pickle.dumps(loaded), lambda: _native.join(IMAGE, modules),
    ):  # fmt: skip
        with pytest.raises(DeserializationError, match="damaged; get another copy") as error:
            use()
        assert error.value.path == "vjp.mlir_module_serialized"
    with pytest.raises(DeserializationError, match="damaged; get another copy"):
        _ = reader.read(IMAGE, [bytes(len(MODULES[0])), MODULES[1]]).mlir_module_serialized
    # Nor is a damaged artifact cut: its modules would be taken for others, by their digests.
    for path in ("mlir_module_serialized", "vjp.mlir_module_serialized", "function_name"):
        with pytest.raises(DeserializationError, match="damaged; get another copy"):
            _native.cut(damaged(SIN, wire.locate(SIN, path)[0] + 4))


@every_artifact
def test_every_single_bit_and_truncation(name: str) -> None:
    image, modules = parts_of(artifact(name))
    source, bytes_of, size = random.Random(name), range(len(image)), 8 * len(image)

    def look(image: bytes) -> None:
        read_bytes(image, modules)

    some = source.sample(range(size), 1000)
    assert census([image, image + b"behind the end"], look) == {"silent": 2}
    assert census(flipped(image, range(size)), look) == {"refused": size}
    assert census((image[:end] for end in bytes_of), look) == {"refused": len(image)}
    assert census((image[:at] + image[at + 1 :] for at in bytes_of), look) == {"refused": len(image)}
    anywhere = [(source.randrange(16), source.randrange(len(image) - 64, len(image))) for _ in range(1000)]
    anywhere += [(i, j) for i, j in (source.sample(bytes_of, 2) for _ in range(2000))]
    assert census(with_two(image, anywhere, source), look) == {"refused": 3000}
    # Nor does an image become an artifact, or join to another one; nor do modules to others.
    assert census(flipped(image, some), jaxexp.deserialize) == {"refused": 1000}
    assert census(flipped(image, some), lambda blob: _native.join(blob, modules)) == {"refused": 1000}
    bits = source.sample(range(8 * len(modules[0])), 1000)
    for read in (read_bytes, _native.join):
        changed = ([module, *modules[1:]] for module in flipped(modules[0], bits))
        assert census(changed, functools.partial(read, image)) == {"refused": 1000}


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
    for _ in range(3000):
        blob = bytearray(image)
        blob[source.randrange(16, metadata_size)] ^= source.randrange(1, 256)
        sealed.append(reseal(blob))
    found = census(sealed, lambda image: read_bytes(image, modules))
    assert set(found) == {"refused", "silent"}  # no crash, no other exception
    assert census(sealed, lambda blob: _native.join(blob, modules)) == {"refused": len(sealed)}


@each("slot", ["nr_devices", "function_name", "platforms", "in_tree", "jax_version"])
def test_a_field_over_the_offset_of_a_module(slot: str) -> None:
    """What stands there is another number in the image; the artifact comes back all the same, or is not cut."""
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
    """A trailer that says 4 GiB of a module is refused for what is there."""
    start = len(IMAGE) - 64 - struct.unpack_from("<I", IMAGE, len(IMAGE) - 28)[0]
    at = IMAGE.index(struct.pack("<I", len(MODULES[0])), start)
    for huge in (2**32 - 1, 2**31):
        changed = bytearray(IMAGE)
        struct.pack_into("<I", changed, at, huge)
        both_refuse(reseal(changed), MODULES, rf"expected a module of {huge} bytes, found one of {len(MODULES[0])}")


@every_artifact
def test_every_single_bit(name: str) -> None:
    blob = artifact(name)
    bits = 8 * len(blob)
    assert wire.has_trailer(blob)
    assert read_everything(blob).metadata == {"made": "for the census"}
    for look in (read_bytes, read_everything):  # what is refused below is not refused for another reason
        assert census([blob, blob + b"behind the end"], look) == {"silent": 2}
    assert census(flipped(blob, range(bits))) == {"refused": bits}
    some = random.Random(name).sample(range(bits), 500)
    assert census(flipped(blob, some), read_everything) == {"refused": 500}


@every_artifact
def test_two_bytes(name: str) -> None:
    """All pairs of places that say where the trailer is; of other pairs, thousands by chance."""
    blob = artifact(name)
    source = random.Random(name)
    head, footer = range(16), range(len(blob) - 48, len(blob))
    framing = list(itertools.combinations([*head, *footer], 2))
    anywhere = [tuple(source.sample(range(len(blob)), 2)) for _ in range(3000)]
    one_in_the_frame = [(source.choice([*head, *footer]), source.randrange(16, len(blob) - 48)) for _ in range(2000)]
    neighbours = [(i, i + 1) for i in range(len(blob) - 1)]
    for places in (framing, anywhere, one_in_the_frame, neighbours):
        assert census(with_two(blob, places, source)) == {"refused": len(places)}


@every_artifact
def test_every_byte_left_out(name: str) -> None:
    """What follows moves up by one; so does what a byte put in moves down. And every truncation."""
    blob = artifact(name)
    ends, inside = range(len(blob)), range(1, len(blob))
    assert census(blob[:end] for end in ends) == {"refused": len(ends)}
    assert census(blob[:at] + blob[at + 1 :] for at in ends) == {"refused": len(ends)}
    assert census(blob[:at] + b"\0" + blob[at:] for at in inside) == {"refused": len(inside)}


def test_metadata_are_checked_before_the_module_is_touched() -> None:
    """Damage to the signature shows on reading; damage to a module when its bytes are asked for, not when they run."""
    blob = artifact("tiny")
    _, _, metadata_size = wire.trailer_of(blob)
    assert census(flipped(blob, range(8 * metadata_size)), jaxexp.deserialize) == {"refused": 8 * metadata_size}
    damaged = next(iter(flipped(blob, [8 * (metadata_size + 40)])))
    loaded = jaxexp.deserialize(damaged)
    for use in (lambda: loaded.mlir_module_serialized, loaded.mlir_module, lambda: loaded.call(jnp.float32(1))):
        with pytest.raises(jaxexp.DeserializationError, match="mlir_module_serialized"):
            use()

"""Modules stored apart from their artifact: images, read with their modules, and put together again byte for byte."""

from __future__ import annotations

import copy
import dataclasses
import mmap
import pickle
import random
import struct
from collections.abc import Callable, Sequence
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
from kit import own_goldens, wire
from kit.census import artifact, census, every_artifact, flipped, with_two
from kit.compare import assert_same_fields, assert_same_values
from kit.corpus import CASES, export_with

DeserializationError = jaxexp.DeserializationError
IMAGE_MARK = b"jximage\1"


def modules_of(blob: bytes) -> list[bytes]:
    found, part = [], _native.Artifact(blob)
    while part is not None:
        found.append(bytes(part.module()))
        part = part.vjp()
    return found


def parts_of(blob: bytes) -> tuple[bytes, list[bytes]]:
    return _native.cut(blob), modules_of(blob)


def exported_case(name: str, vjp_order: int | None = None, **options: Any) -> bytes:
    case = CASES[name]
    with case.context():
        order = case.vjp_order if vjp_order is None else vjp_order
        return bytes(export_with(jaxexp, case.build()).serialize(order, **options))


def assert_apart_as_in_one(blob: bytes) -> None:
    image, modules = parts_of(blob)
    assert _native.join(image, modules) == blob
    assert len(image) < len(blob) - sum(map(len, modules)) + 32
    ours, plain = reader.read(image, modules), jaxexp.deserialize(blob)
    part = ours
    for order, module in enumerate(modules):
        assert_same_fields(part, plain)
        assert part.mlir_module_serialized == plain.mlir_module_serialized == module
        assert part.has_vjp() == plain.has_vjp() == (order + 1 < len(modules))
        assert part.metadata == plain.metadata
        if part.has_vjp():
            part, plain = part.vjp(), plain.vjp()
    # Nothing that was decoded is left: written from what is loaded.
    orders = len(modules) - 1
    fresh = reader.read(image, modules)
    assert fresh.serialize(orders) == jaxexp.deserialize(blob).serialize(orders)
    assert fresh.serialize(orders, trailer=False) == jaxexp.deserialize(blob).serialize(orders, trailer=False)
    assert _native.Artifact(image, modules).size == _native.Artifact(blob).size == len(blob)


# --- alike ----------------------------------------------------------------------------------------------------------


@pytest.mark.sampled(one_in=4, reason="many cases go the same way")
@pytest.mark.parametrize("name", CASES)
def test_every_case(name: str) -> None:
    with CASES[name].context():
        assert_apart_as_in_one(exported_case(name))


@own_goldens.every_artifact
def test_what_was_written_earlier(folder: str, name: str) -> None:
    blob = own_goldens.blob_of(folder, name)
    if wire.has_trailer(blob):
        with own_goldens.around(folder, name):
            assert_apart_as_in_one(blob)
    else:
        with pytest.raises(DeserializationError, match="expected a trailer, without which no module"):
            _native.cut(blob)


@pytest.mark.parametrize("size", [0, 1, 2, 3, 2**17 + 1, 2**21 + 3])
def test_modules_of_any_size(size: int) -> None:
    module = np.random.default_rng(size).bytes(size)
    loaded = jaxexp.deserialize(exported_case("sin", 0))
    blob = bytes(jaxexp.Exported(**{**loaded_fields(loaded), "mlir_module_serialized": module}).serialize())
    assert_apart_as_in_one(blob)
    image, _ = parts_of(blob)
    assert len(image) < 3000


def loaded_fields(loaded: jaxexp.Exported) -> dict[str, Any]:
    return {field.name: getattr(loaded, field.name) for field in dataclasses.fields(loaded)}


def test_calls_and_derivatives() -> None:
    blob = exported_case("perceptron", 2)
    image, modules = parts_of(blob)
    ours, plain = reader.read(image, modules), jaxexp.deserialize(blob)
    rng = np.random.default_rng(0)
    leaves = [jnp.asarray(rng.standard_normal(a.shape), a.dtype) for a in plain.in_avals]
    args, kwargs = plain.in_tree.unflatten(leaves)
    assert_same_values(jax.tree.leaves(ours.call(*args, **kwargs)), jax.tree.leaves(plain.call(*args, **kwargs)))

    def loss(exported: jaxexp.Exported) -> Callable[..., Any]:
        return lambda *args: sum(jnp.sum(jnp.sin(leaf)) for leaf in jax.tree.leaves(exported.call(*args, **kwargs)))

    assert_same_values(jax.tree.leaves(jax.grad(loss(ours))(*args)), jax.tree.leaves(jax.grad(loss(plain))(*args)))


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


@pytest.mark.parametrize("name", ["sin", "sharded_2d", "symbolic_expressions", "perceptron"])
def test_inspected_as_in_one(name: str) -> None:
    blob = exported_case(name)
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


def test_what_follows_is_left_out() -> None:
    blob = exported_case("sin", 1)
    image, modules = parts_of(blob)
    assert _native.cut(blob + b"more") == image
    assert reader.read(image + b"more", modules) == jaxexp.deserialize(blob)
    assert _native.join(image + b"more", modules) == blob


# --- buffers --------------------------------------------------------------------------------------------------------


def test_modules_are_not_copied_and_kept_while_in_use() -> None:
    blob = exported_case("sin", 1)
    image, modules = parts_of(blob)
    mapped = [mmap.mmap(-1, len(module)) for module in modules]
    for pages, module in zip(mapped, modules, strict=True):
        pages[:] = module
    views = [memoryview(pages).toreadonly() for pages in mapped]
    part = _native.Artifact(image, views, in_place=True)
    module = part.module()
    assert np.shares_memory(np.frombuffer(module, np.uint8), np.frombuffer(mapped[0], np.uint8))
    with pytest.raises(BufferError):
        mapped[1].close()
    vjp = part.vjp()
    del part, views
    assert vjp is not None and vjp.module() == modules[1] and module == modules[0]


def test_what_others_can_write_is_copied() -> None:
    blob = exported_case("sin", 1)
    image, modules = parts_of(blob)
    scratch, buffers = bytearray(image), [bytearray(module) for module in modules]
    loaded = reader.read(scratch, buffers)
    for buffer in (scratch, *buffers):
        buffer[:] = bytes(len(buffer))
    assert loaded == jaxexp.deserialize(blob)
    assert loaded.vjp().mlir_module_serialized == modules[1]


def test_what_is_not_aligned_is_copied() -> None:
    blob = exported_case("sin", 1)
    image, modules = parts_of(blob)
    odd = memoryview(b"x" + image)[1:], [memoryview(b"xyz" + module)[3:] for module in modules]
    assert reader.read(*odd) == jaxexp.deserialize(blob)
    assert _native.join(*odd) == blob
    assert _native.cut(memoryview(b"x" + blob)[1:]) == image


@pytest.mark.parametrize("size", [0, 1, 16, 1000, 2**20 + 1])
def test_digest(size: int) -> None:
    data = np.random.default_rng(size).bytes(size)
    for buffer in (data, bytearray(data), memoryview(b"x" + data)[1:]):
        assert _native.digest(buffer) == xxhash.xxh3_128_digest(data)
    with pytest.raises(TypeError):
        _native.digest("text")


def test_what_is_no_buffer() -> None:
    image, modules = parts_of(exported_case("sin", 0))
    for wrong in ([None], ["text"], [1], 7):
        with pytest.raises(TypeError):
            _native.Artifact(image, wrong)
        with pytest.raises(TypeError):
            _native.join(image, wrong)
    for wrong in (None, "text"):
        with pytest.raises(TypeError):
            _native.cut(wrong)
        with pytest.raises(TypeError):
            _native.join(wrong, modules)


# --- refused --------------------------------------------------------------------------------------------------------


def both_refuse(image: Any, modules: Sequence[Any], match: str) -> None:
    for reads in (verified, _native.join):
        with pytest.raises(DeserializationError, match=match):
            reads(image, modules)


def test_an_image_is_no_artifact() -> None:
    """Alone, it is refused by all that reads artifacts, and the message says what to do."""
    image, _ = parts_of(exported_case("sin", 1))
    for read in (jaxexp.deserialize, jaxexp.inspect, jaxexp.compatibility, jaxexp.migrate, _native.cut):
        with pytest.raises(DeserializationError, match=r"modules are stored apart.*read it through the archive"):
            read(image)


def test_an_artifact_is_no_image() -> None:
    blob = exported_case("sin", 1)
    both_refuse(blob, modules_of(blob), "found one that has its modules")
    without = exported_case("sin", 1, trailer=False)
    both_refuse(without, modules_of(blob), "bytes that do not begin like one")
    both_refuse(b"", [b""], "0 bytes that do not begin like one")
    with pytest.raises(DeserializationError, match=r"at modules: .*, found none"):
        _native.join(blob, [])


def test_other_modules() -> None:
    image, (module, vjp) = parts_of(exported_case("sin", 1))
    for modules in ([module], [module, vjp, vjp], [module, vjp, b""]):
        both_refuse(image, modules, f"at modules: expected 2 modules for as many functions, found {len(modules)}")
    both_refuse(image, [module, vjp + b"\0"], rf"at modules\[1\]: expected a module of {len(vjp)} bytes")
    both_refuse(image, [b"", vjp], r"at modules\[0\]: .* found one of 0")
    both_refuse(image, [vjp, module], r"at modules\[0\]")


def damaged(blob: bytes, at: int) -> bytes:
    changed = bytearray(blob)
    changed[at] ^= 1
    return bytes(changed)


def test_damage_to_a_module_shows_when_it_is_read(tmp_path) -> None:
    image, (module, vjp) = parts_of(exported_case("sin", 1))
    loaded = reader.read(image, [module, damaged(vjp, 100)])
    x = np.ones(4, np.float32)
    assert_same_values([loaded.call(x)], [jnp.sin(x)])
    derivative = loaded.vjp()
    uses: dict[str, Callable[[], Any]] = {
        "bytes": lambda: derivative.mlir_module_serialized,
        "call": lambda: derivative.call(x, x),
        "gradient": lambda: jax.grad(lambda x: loaded.call(x).sum())(x),
        "serialize": lambda: loaded.serialize(1),
        "serialize without a trailer": lambda: loaded.serialize(1, trailer=False),
        "save": lambda: loaded.save(tmp_path / "f", vjp_order=1),
        "pickle": lambda: pickle.dumps(loaded),
        "join": lambda: _native.join(image, [module, damaged(vjp, 100)]),
    }
    for use in uses.values():
        with pytest.raises(DeserializationError, match="damaged; get another copy") as error:
            use()
        assert error.value.path == "vjp.mlir_module_serialized"
    other = bytes(len(module))
    with pytest.raises(DeserializationError, match="damaged; get another copy"):
        _ = reader.read(image, [other, vjp]).mlir_module_serialized


def test_a_damaged_artifact_is_not_cut() -> None:
    """Its modules would be taken for others, by their digests."""
    blob = exported_case("sin", 1)
    for path in ("mlir_module_serialized", "vjp.mlir_module_serialized", "function_name"):
        with pytest.raises(DeserializationError, match="damaged; get another copy"):
            _native.cut(damaged(blob, wire.locate(blob, path)[0] + 4))


# --- damage, everywhere ---------------------------------------------------------------------------------------------


def look_with(modules: Sequence[bytes]) -> Callable[[bytes], None]:
    def look(image: bytes) -> None:
        part: Any = verified(image, modules)
        while part is not None:
            part.module()
            part = part.vjp()

    return look


@every_artifact
def test_every_single_bit_and_truncation(name: str) -> None:
    image, modules = parts_of(artifact(name))
    look = look_with(modules)
    assert census([image, image + b"behind the end"], look) == {"silent": 2}
    assert census(flipped(image, range(8 * len(image))), look) == {"refused": 8 * len(image)}
    assert census((image[:end] for end in range(len(image))), look) == {"refused": len(image)}
    assert census((image[:at] + image[at + 1 :] for at in range(len(image))), look) == {"refused": len(image)}
    source = random.Random(name)
    anywhere = [(source.randrange(16), source.randrange(len(image) - 64, len(image))) for _ in range(1000)]
    anywhere += [(i, j) for i, j in (source.sample(range(len(image)), 2) for _ in range(2000))]
    assert census(with_two(image, anywhere, source), look) == {"refused": 3000}
    # Nor does an image become an artifact, or join to another one.
    some = source.sample(range(8 * len(image)), 1000)
    assert census(flipped(image, some), jaxexp.deserialize) == {"refused": 1000}
    assert census(flipped(image, some), lambda blob: _native.join(blob, modules)) == {"refused": 1000}


@every_artifact
def test_every_bit_of_a_module(name: str) -> None:
    image, modules = parts_of(artifact(name))
    bits = random.Random(name).sample(range(8 * len(modules[0])), 1000)
    for look in (
        lambda module: look_with([module, *modules[1:]])(image),
        lambda module: _native.join(image, [module, *modules[1:]]),
    ):
        assert census(flipped(modules[0], bits), look) == {"refused": 1000}


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
    places = [source.randrange(16, metadata_size) for _ in range(3000)]
    changed = [bytearray(image) for _ in places]
    for blob, at in zip(changed, places, strict=True):
        blob[at] ^= source.randrange(1, 256)
    sealed = [reseal(blob) for blob in changed]
    found = census(sealed, look_with(modules))
    assert set(found) == {"refused", "silent"}  # no crash, no other exception
    assert census(sealed, lambda blob: _native.join(blob, modules)) == {"refused": len(sealed)}


@pytest.mark.parametrize("slot", ["nr_devices", "function_name", "platforms", "in_tree", "jax_version"])
def test_a_field_over_the_offset_of_a_module(slot: str) -> None:
    """What stands there is another number in the image; the artifact comes back all the same, or is not cut."""
    blob = bytearray(exported_case("sin", 0))
    table = struct.unpack_from("<I", blob)[0]
    vtable = table - struct.unpack_from("<i", blob, table)[0]
    slots = {name: number for name, (number, _) in wire.LAYOUT["Exported"].items()}
    entry = struct.unpack_from("<H", blob, vtable + 4 + 2 * slots["mlir_module_serialized"])[0]
    struct.pack_into("<H", blob, vtable + 4 + 2 * slots[slot], entry)
    sealed = bytes(wire.seal(blob))
    refused = census([sealed]) == {"refused": 1}
    assert refused == (slot != "nr_devices")
    if refused:
        with pytest.raises(DeserializationError):
            _native.cut(sealed)
    else:
        assert _native.join(*parts_of(sealed)) == sealed


def test_sizes_beyond_the_format() -> None:
    """A trailer that says 4 GiB of a module is refused for what is there."""
    image, modules = parts_of(exported_case("sin", 0))
    content_size = struct.unpack_from("<I", image, len(image) - 28)[0]
    start = len(image) - 64 - content_size
    size = struct.pack("<I", len(modules[0]))
    at = image.index(size, start)
    for huge in (2**32 - 1, 2**31):
        changed = bytearray(image)
        struct.pack_into("<I", changed, at, huge)
        both_refuse(reseal(changed), modules, rf"expected a module of {huge} bytes, found one of {len(modules[0])}")

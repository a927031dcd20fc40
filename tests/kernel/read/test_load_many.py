"""`load_many` returns, for many artifacts at once, what `load` and `deserialize` return for each."""

from __future__ import annotations

import contextlib
import gc
import mmap
import os
import struct
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxexp
from jaxexp import _native
from jaxexp._api.exported import reader
from jaxexp._api.many import Manner, load_slices
from jaxexp._fleet.archive.opened import Opened
from jaxexp._kernel.io import sources
from kit.compare import assert_same_fields
from kit.corpus import CASES, arr
from kit.many import alone, assert_alike, versions
from kit.places import ATTACKS, GOLDEN

FILES = sorted([*GOLDEN.glob("**/*.bin"), *ATTACKS.glob("*.bin")])
WORKERS = pytest.mark.parametrize("workers", [1, 2, 8])


@WORKERS
def test_golden_files_and_attacks(workers: int) -> None:
    """Twice, so that everything is also found among what is known already."""
    assert len(FILES) > 300
    found = jaxexp.load_many([*FILES, *FILES], workers=workers, on_error="return")
    for path, *both in zip(FILES, found[: len(FILES)], found[len(FILES) :], strict=True):
        for one in both:
            assert_alike(one, alone(jaxexp.load, path), str(path))


@pytest.mark.sampled(one_in=3, reason="many cases go the same way")
@WORKERS
def test_every_case(blobs: list[bytes], workers: int) -> None:
    for case, expected, found in zip(
        [*CASES.values()] * 2, [*blobs, *blobs], jaxexp.load_many(blobs + blobs, workers=workers), strict=True
    ):
        with case.context():
            assert_alike(found, jaxexp.deserialize(expected), None)
            assert bytes(found.serialize(vjp_order=case.vjp_order)) == expected
            if found.has_vjp():
                assert_same_fields(found.vjp(), jaxexp.deserialize(expected).vjp())


def test_kinds_in_any_mixture_and_order(tmp_path: Path, blobs: list[bytes]) -> None:
    chosen = blobs[:6]
    paths = [tmp_path / f"{i}.jaxexp" for i in range(6)]
    for path, blob in zip(paths, chosen, strict=True):
        path.write_bytes(blob)
    with open(paths[4], "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        scratch = bytearray(chosen[2])
        given = [str(paths[0]), paths[1], scratch, memoryview(chosen[3]), mapped, np.frombuffer(chosen[5], np.uint8)]
        found = jaxexp.load_many(iter(given), workers=2)
        scratch[:] = bytes(len(scratch))  # it was copied
        for one, blob in zip(found, chosen, strict=True):
            assert_same_fields(one, jaxexp.deserialize(blob))
        del found, one
    backwards = jaxexp.load_many(reversed(paths), workers=3)
    assert [e.fun_name for e in backwards] == [jaxexp.deserialize(b).fun_name for b in reversed(chosen)]


def test_somebody_has_to_work(tmp_path: Path) -> None:
    """Below Python's own check."""
    with jaxexp.Archive.create(tmp_path / "a.zip") as writer:
        writer.add("f", jaxexp.export(jax.jit(jnp.sin))(arr(2)))
    with contextlib.closing(sources.open_source(str(tmp_path / "a.zip"), {})) as source:
        verification = _native.ArchiveVerification(Opened(source).index)
        for none_work in (
            lambda: reader.many(0, True),
            lambda: _native.verify_files([str(tmp_path / "a.zip")], 0),
            lambda: verification.step([0], [(b"", [])], 0),
            lambda: verification.step_of_file(source.whole, [0], 0, 0),
        ):
            with pytest.raises(ValueError, match="workers has to be at least 1"):
                none_work()
        assert verification.step_of_file(source.whole, [0], 0, 1) == (1, [])


def test_nothing() -> None:
    assert jaxexp.load_many([]) == []
    assert jaxexp.load_many(iter(()), workers=8) == []


def test_large_files_are_read_in_parts_and_small_ones_at_once(tmp_path: Path) -> None:
    large = jnp.asarray(np.random.default_rng(0).normal(size=1 << 19).astype(np.float32))
    jaxexp.export(jax.jit(lambda x: x + large))(large).save(tmp_path / "large")
    jaxexp.export(jax.jit(jnp.sin))(arr(3)).save(tmp_path / "small")
    found = jaxexp.load_many([tmp_path / "large", tmp_path / "small"])
    if sys.platform == "linux":

        def opened() -> list[str]:
            return [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")
                    if os.path.lexists(f"/proc/self/fd/{fd}")]  # fmt: skip

        assert str(tmp_path / "large") in opened()
        assert str(tmp_path / "small") not in opened()
        assert str(tmp_path / "large") not in Path("/proc/self/maps").read_text()
    np.testing.assert_array_equal(found[0].call(large), 2 * large)
    np.testing.assert_array_equal(found[1].call(arr(3)), jnp.sin(arr(3)))
    if sys.platform == "linux":
        del found
        gc.collect()
        jax.clear_caches()
        gc.collect()
        assert str(tmp_path / "large") not in opened()


def test_an_item_that_is_no_artifact(tmp_path: Path, blobs: list[bytes]) -> None:
    (tmp_path / "empty").touch()
    (tmp_path / "text").write_text("hello, this is text")
    os.mkfifo(tmp_path / "pipe")
    bad = [
        tmp_path / "missing", tmp_path, tmp_path / "empty", tmp_path / "text", tmp_path / "pipe", b"", b"abc", 3, None,
        "nul\0", np.zeros((2, 2))[:, 0], blobs[0][:100],
    ]  # fmt: skip
    given = [item for one in bad for item in (one, blobs[0])]
    found = jaxexp.load_many(given, workers=2, on_error="return")
    assert [isinstance(one, Exception) for one in found] == [True, False] * len(bad)
    types = [type(error) for error in found[::2]]
    assert types[:2] == [FileNotFoundError, IsADirectoryError]
    assert [error.filename for error in found[0:4:2]] == [str(tmp_path / "missing"), str(tmp_path)]
    assert f"load_many takes the files in it, as in sorted(pathlib.Path({str(tmp_path)!r}).glob('*.jaxexp'))" in str(
        found[2]
    )
    assert "expected a serialized Exported, found an empty file" in str(found[8])  # and nobody waits for a writer
    for place in (2, 3):
        assert_alike(found[2 * place], alone(jaxexp.load, bad[place]), str(bad[place]))
    assert_alike(found[10], alone(jaxexp.deserialize, b""), "item 10")
    assert "'item 12'" in str(found[12])
    assert isinstance(found[14], jaxexp.ExportError) and isinstance(found[14], TypeError)
    assert "not <class 'int'>" in str(found[14])
    assert found[14].__notes__ == ["This is about item 14."]
    assert types[9] is ValueError
    assert str(found[22]).startswith("cannot read the artifact 'item 22': at trailer: ")


@WORKERS
def test_the_first_error_in_order_is_raised(workers: int, blobs: list[bytes], tmp_path: Path) -> None:
    given: list[Any] = [blobs[0]] * 200
    given[150] = blobs[1][:50]
    given[61] = blobs[1][:-1]
    given[60] = tmp_path / "missing"
    with pytest.raises(FileNotFoundError, match="missing"):
        jaxexp.load_many(given, workers=workers)
    given[60] = blobs[0]
    with pytest.raises(jaxexp.DeserializationError, match="'item 61'"):
        jaxexp.load_many(given, workers=workers)


def test_arguments(blobs: list[bytes]) -> None:
    for one in ("model.jaxexp", b"abc", bytearray(3), Path("model.jaxexp")):
        with pytest.raises(TypeError, match=r"many artifacts.*use load or deserialize"):
            jaxexp.load_many(one)
    for workers in (0, -1):
        with pytest.raises(jaxexp.ExportError, match="at least 1, found"):
            jaxexp.load_many(blobs[:1], workers=workers)
    for workers in (1.5, "2", True):
        with pytest.raises(TypeError, match="workers has to be a number"):
            jaxexp.load_many(blobs[:1], workers=workers)  # type: ignore[arg-type]
    with pytest.raises(jaxexp.ExportError, match="found 'ignore'"):
        jaxexp.load_many(blobs[:1], on_error="ignore")  # type: ignore[arg-type]


def test_damage_to_a_module_is_noticed_when_it_is_read() -> None:
    first, second = versions(lambda c, x: x * c, arr(3), count=2)
    damaged = bytearray(second)
    damaged[struct.unpack_from("<I", second, len(second) - 32)[0] + 40] ^= 1
    one, other, whole = jaxexp.load_many([first, bytes(damaged), second])
    assert one.mlir_module_serialized != whole.mlir_module_serialized
    with pytest.raises(jaxexp.DeserializationError, match="at mlir_module_serialized: expected the bytes"):
        _ = other.mlir_module_serialized


def test_policy(tmp_path: Path) -> None:
    plain = jaxexp.export(jax.jit(jnp.sin))(arr(3))
    calling = jaxexp.export(
        jax.jit(lambda x: jax.ffi.ffi_call("my_kernel", jax.ShapeDtypeStruct((3,), np.float32))(x)),
        disabled_checks=[jaxexp.DisabledSafetyCheck.custom_call("my_kernel")],
    )(arr(3))
    for name, function in (("plain", plain), ("calling", calling)):
        function.save(tmp_path / name)
    blobs = [bytes(f.serialize()) for f in (plain, calling)]
    given: list[Any] = [blobs[0], tmp_path / "calling", tmp_path / "plain", blobs[1], b"damaged"]
    found = jaxexp.load_many(given, policy=jaxexp.Policy(), on_error="return", workers=2)
    assert [type(one) for one in found[1:4:2]] == [jaxexp.PolicyError] * 2
    assert [found[1].file, found[3].file] == [str(tmp_path / "calling"), "item 3"]
    assert isinstance(found[4], jaxexp.DeserializationError)
    with pytest.raises(jaxexp.PolicyError, match="my_kernel"):
        jaxexp.load_many(given, policy=jaxexp.Policy())
    # The first in order: what is refused for its policy is known later than what is damaged.
    with pytest.raises(jaxexp.PolicyError) as raised:
        jaxexp.load_many([blobs[0], blobs[1], b"damaged"], policy=jaxexp.Policy())
    assert raised.value.file == "item 1"
    sizes = jaxexp.load_many(given[:3], policy=jaxexp.Policy(max_artifact_bytes=100), on_error="return")
    assert [one.field for one in sizes] == ["max_artifact_bytes"] * 3
    assert [one.file for one in sizes] == ["item 0", *map(str, given[1:3])]
    with pytest.raises(jaxexp.PolicyError, match="max_artifact_bytes"):
        jaxexp.load_many(given[:3], policy=jaxexp.Policy(max_artifact_bytes=100))


def test_with_a_policy_files_are_not_mapped(tmp_path: Path) -> None:
    large = jnp.asarray(np.random.default_rng(0).normal(size=1 << 17).astype(np.float32))
    jaxexp.export(jax.jit(lambda x: x + large))(large).save(tmp_path / "large")
    (kept,) = jaxexp.load_many([tmp_path / "large"], policy=jaxexp.Policy())
    os.truncate(tmp_path / "large", 0)  # which a mapping would not survive
    assert len(kept.mlir_module_serialized) > large.nbytes


def test_images_and_their_modules() -> None:
    from jaxexp import _native

    made = versions(lambda c, x: x * c, arr(3), count=6, vjp_order=1)
    owner, extents = bytearray(), []
    for blob in made:
        pieces = [_native.cut(blob), *map(bytes, modules_of(blob))]
        places = []
        for piece in pieces:
            owner += bytes(-len(owner) % 8)
            places.append((len(owner), len(piece)))
            owner += piece
        extents.append((*places[0], tuple(places[1:])))
    found = load_slices(bytes(owner), extents, "abcdef".__getitem__, Manner(workers=2))
    assert len({id(e.in_avals) for e in found}) == 1
    for i, (one, blob) in enumerate(zip(found, made, strict=True)):
        assert_same_fields(one, jaxexp.deserialize(blob))
        assert one.serialize(vjp_order=1) == blob
        np.testing.assert_array_equal(one.call(arr(3)), arr(3) * (i + 2))
    # One that has the modules of none, one with a module too few, and one with another's.
    position, size, modules = extents[1]
    wrong = [extents[0], (position, size, ()), (position, size, modules[:1]), (position, size, extents[2][2])]
    first, *errors = load_slices(bytes(owner), wrong, "abcd".__getitem__, Manner(on_error="return"))
    assert first.in_avals
    assert [type(e) for e in errors[:2]] == [jaxexp.DeserializationError] * 2
    with pytest.raises(jaxexp.DeserializationError, match="at mlir_module_serialized"):
        _ = errors[2].mlir_module_serialized


def modules_of(blob: bytes) -> list[Any]:
    from jaxexp import _native

    link: Any = _native.Artifact(blob)
    modules = []
    while link is not None:
        modules.append(link.module())
        link = link.vjp()
    return modules

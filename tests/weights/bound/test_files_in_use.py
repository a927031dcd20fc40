"""A save leaves no artifact without its weights or cases: neither the saved one, nor others in the folder."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxexp
from jaxexp import _native
from jaxexp._fleet.places.source import Source
from jaxexp._fleet.places.verify import files_of
from jaxexp._kernel.io import lock
from jaxexp._kernel.write import serialize
from jaxexp._weights.files.places import second_name
from jaxexp.errors import BusyError, ExportError
from kit import forged
from kit.each import each

X = np.ones((2, 4), np.float32)
FAILS = Mock(side_effect=OSError("the disk is full"))


def constant(value: float, size: int = 64) -> Any:
    """Each result is four times the value."""
    weights = {"w": np.full((4, size), value, np.float32)}
    return jaxexp.export(jax.jit(lambda x: x @ jnp.asarray(weights["w"])), weights=weights)(X)


def value(path: Path) -> float:
    return float(np.asarray(jaxexp.load(path).call(X))[0, 0]) / 4


def damage(folder: Path) -> None:
    """Other numbers under the same header, in a file of its own."""
    blob = bytearray((folder / "m.safetensors").read_bytes())
    blob[-400:] = bytes(400)
    (folder / "m.safetensors").unlink()
    (folder / "m.safetensors").write_bytes(blob)


CHANGES: dict[str, Callable[[Path], None]] = {
    "other weights": lambda folder: constant(2).save(folder / "m.jaxexp"),
    "deleted": lambda folder: (folder / "m.safetensors").unlink(),
    "damaged": damage,
}


@each("how, stable", [*((how, False) for how in CHANGES), ("damaged", True)])
def test_what_was_loaded_can_be_saved_again(how: str, stable: bool, tmp_path: Path) -> None:
    path = tmp_path / "m.jaxexp"
    constant(1).save(path)
    loaded = jaxexp.load(path, stable=stable)
    loaded.call(X)
    CHANGES[how](tmp_path)
    loaded.save(path)
    assert value(path) == 1


@each("how", ["other weights", "deleted"])
def test_what_was_not_read_in_time_is_an_error(how: str, tmp_path: Path) -> None:
    path = tmp_path / "m.jaxexp"
    constant(1).save(path)
    loaded = jaxexp.load(path)
    CHANGES[how](tmp_path)
    with pytest.raises(ExportError):
        loaded.save(path)
    if how == "other weights":
        assert value(path) == 2


def test_weights_of_a_neighbour(tmp_path: Path) -> None:
    constant(1).save(tmp_path / "a.jaxexp")
    with pytest.raises(ExportError, match=r"found the weights of 'a\.jaxexp', which would be lost: .* weights="):
        constant(2).save(tmp_path / "a.bin")
    assert sorted(os.listdir(tmp_path)) == ["a.jaxexp", "a.safetensors"]
    constant(2).save(tmp_path / "a.bin", weights="b.safetensors")
    constant(3).save(tmp_path / "a.jaxexp")  # its own may be replaced
    assert [value(tmp_path / name) for name in ("a.jaxexp", "a.bin")] == [3, 2]
    for name in ("equal.jaxexp", "equal.bin"):
        constant(1).save(tmp_path / name)
    assert [value(tmp_path / name) for name in ("equal.jaxexp", "equal.bin")] == [1, 1]


def test_who_shares_a_file_keeps_it(tmp_path: Path) -> None:
    path, other = tmp_path / "m.jaxexp", tmp_path / "other.jaxexp"
    constant(1).save(path)
    shutil.copyfile(path, other)
    constant(2).save(path)
    constant(3).save(path)
    assert [value(path), value(other)] == [3, 1]
    other.unlink()
    constant(1).save(path)
    constant(4).save(path)
    assert sorted(os.listdir(tmp_path)) == ["m.jaxexp", "m.safetensors"]


def test_who_shares_cases_keeps_them(tmp_path: Path) -> None:
    path, other = tmp_path / "m.jaxexp", tmp_path / "other.jaxexp"
    for _ in range(2):
        large(path)
        assert jaxexp.check(path).ok
        assert sorted(os.listdir(tmp_path)) == ["m.cases.safetensors", "m.jaxexp"]
    shutil.copyfile(path, other)
    assert jaxexp.record(path, [(np.zeros(65536, np.float32),)])
    assert [jaxexp.load(one).check().verdict for one in (path, other)] == ["equal", "equal"]


def test_weights_of_one_digest_are_not_equal(tmp_path: Path) -> None:
    ours, theirs = forged.pair(4096, 0)

    def saved(array: np.ndarray, name: str) -> Path:
        weights = {"w": array}
        exported = jaxexp.export(jax.jit(lambda x: x + jnp.asarray(weights["w"])), weights=weights)
        exported(np.zeros(4096, np.uint32)).save(tmp_path / name)
        return tmp_path / name

    assert _native.digest(ours.tobytes()) == _native.digest(theirs.tobytes())
    path = saved(ours, "a.jaxexp")
    saved(ours, "a.same")
    with pytest.raises(ExportError, match=r"found the weights of 'a\.jaxexp', which would be lost"):
        saved(theirs, "a.other")
    np.testing.assert_array_equal(jaxexp.load(path).call(np.zeros(4096, np.uint32)), ours)


def large(path: Path) -> None:
    exported = jaxexp.export(jax.jit(jnp.sin))(jax.ShapeDtypeStruct((65536,), np.float32))
    exported.save(path, cases=[(np.arange(65536, dtype=np.float32),)])


def test_weights_with_the_name_of_cases(tmp_path: Path) -> None:
    constant(1).save(tmp_path / "m.cases.jaxexp")
    with pytest.raises(ExportError, match=r"found the weights of 'm\.cases\.jaxexp', which would be lost"):
        large(tmp_path / "m.jaxexp")
    assert value(tmp_path / "m.cases.jaxexp") == 1
    path = tmp_path / "o.jaxexp"
    constant(1, 65536).save(path, weights="o.cases.safetensors")
    with pytest.raises(ExportError, match="save it with its weights in another file first"):
        jaxexp.record(path, [(X,)])
    assert value(path) == 1
    with pytest.raises(ExportError, match="weights="):
        constant(2, 65536).save(tmp_path / "p.jaxexp", weights="p.cases.safetensors", cases=[(X,)])


def several(value: float) -> Any:
    weights = {name: np.full((4, 64), value, np.float32) for name in "abc"}
    return jaxexp.export(jax.jit(lambda x: x @ sum(map(jnp.asarray, weights.values()))), weights=weights)(X)


def test_the_index_of_a_neighbour(tmp_path: Path) -> None:
    """The files of the two have different names, and one index would be for both."""
    several(1).save(tmp_path / "a.jaxexp", max_weights_file_size=1024)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(ExportError, match=r"a\.safetensors\.index\.json.* the weights of 'a\.jaxexp'"):
        several(2).save(tmp_path / "a.bin", max_weights_file_size=2048)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    several(2).save(tmp_path / "a.jaxexp", max_weights_file_size=2048)
    assert value(tmp_path / "a.jaxexp") == 6


def hide(path: Path) -> Path:
    """Leaves the weights of an artifact with their second name only, as a process that died does."""
    file = path.with_suffix(".safetensors")
    stored: Any = jaxexp.load(path).weights.stored
    hidden = path.with_name(second_name(file.name, stored.table.files[0].content))
    file.rename(hidden)
    return hidden


def test_what_a_process_left_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "m.jaxexp"
    constant(1).save(path)
    hidden = hide(path)
    assert files_of(Source(str(path), str(path)).opened()) == ((str(hidden), hidden.stat().st_size),)
    assert value(path) == 1
    constant(2).save(path)
    assert sorted(os.listdir(tmp_path)) == ["m.jaxexp", "m.safetensors"]
    hide(path)
    jaxexp.load(path).save(path)  # the weights get their own name
    assert sorted(os.listdir(tmp_path)) == ["m.jaxexp", "m.safetensors"]
    assert value(path) == 2


def test_what_another_artifact_finds_under_a_second_name_stays(tmp_path: Path) -> None:
    """As `unpack` leaves the weights of artifacts that have files of one name."""
    path, other = tmp_path / "m.jaxexp", tmp_path / "other.jaxexp"
    constant(1).save(path)
    hidden = hide(path)
    other.write_bytes(path.read_bytes())
    constant(2).save(path)
    assert hidden.exists()
    assert [value(path), value(other)] == [2, 1]


def test_an_error_leaves_what_has_a_second_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "m.jaxexp"
    constant(1).save(path)
    hide(path)
    monkeypatch.setattr(serialize, "save", FAILS)
    with pytest.raises(OSError, match="the disk is full"):
        constant(1).save(path)
    assert value(path) == 1


@each("values", [(2, 3), (1, 2)])
def test_two_writers(values: tuple[float, float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second one, in another thread, begins while the first one's program is written, and waits."""
    path, write = tmp_path / "m.jaxexp", serialize.save
    constant(1).save(path)
    second = threading.Thread(target=lambda: constant(values[1]).save(path))

    def with_a_second(*args: Any) -> None:
        if threading.current_thread() is not second:
            second.start()
            second.join(0.3)
            assert second.is_alive()
        write(*args)

    monkeypatch.setattr(serialize, "save", with_a_second)
    constant(values[0]).save(path)
    second.join()
    assert value(path) == values[1]
    assert sorted(file.name for file in tmp_path.iterdir()) == ["m.jaxexp", "m.safetensors"]


def test_a_writer_that_takes_too_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "m.jaxexp"
    constant(1).save(path)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    monkeypatch.setattr(lock, "PATIENCE", 0.1)

    def other() -> None:
        with pytest.raises(BusyError, match="another writer is saving files in"):
            constant(2).save(path)

    with lock.folder_locked(str(tmp_path)), ThreadPoolExecutor(1) as threads:
        threads.submit(other).result()
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before


@each("name", ["m.jaxexp", "m.safetensors"])
def test_an_interruption_when_a_file_has_its_name(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, replace = tmp_path / "m.jaxexp", os.replace
    constant(1).save(path)

    def interrupted(source: str, target: str) -> None:
        replace(source, target)
        if os.path.basename(target) == name:
            raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        constant(2).save(path)
    monkeypatch.undo()
    assert value(path) == 2
    constant(3).save(path)
    assert value(path) == 3


@pytest.mark.skipif(os.name == "nt", reason="few users may make links there")
def test_links_are_not_saved_through(tmp_path: Path) -> None:
    """The program would be where the link leads, and what it needs beside the link."""
    path, link = tmp_path / "models" / "m.jaxexp", tmp_path / "current.jaxexp"
    path.parent.mkdir()
    constant(1).save(path)
    link.symlink_to(path)
    with pytest.raises(ExportError, match=r"found a symbolic link to '.*m\.jaxexp'.*: save under that path"):
        constant(2).save(link)
    x = np.ones((200, 200), np.float32)
    exported = jaxexp.export(jax.jit(jnp.sin))(x)
    with pytest.raises(ExportError, match="found a symbolic link"):
        exported.save(link, cases=[(x,)])
    assert value(path) == 1
    exported.save(link)  # what needs no other file
    assert jaxexp.inspect(path).fun_name == "sin"


def renamed(name: str) -> jaxexp.BoundExported:
    weights = {name: np.full((4, 64), 1.0, np.float32)}
    return jaxexp.export(jax.jit(lambda p, x: x @ p[name]))(weights, X).bind(weights)


def test_the_same_bytes_under_another_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody takes such a file for the one that is there: no save that fails, and none beside another artifact."""
    renamed("w").save(tmp_path / "m.jaxexp")
    with monkeypatch.context() as patched:
        patched.setattr(serialize, "save", FAILS)
        with pytest.raises(OSError, match="full"):
            renamed("v").save(tmp_path / "m.jaxexp")
    assert value(tmp_path / "m.jaxexp") == 1
    with pytest.raises(ExportError, match="which would be lost"):
        renamed("v").save(tmp_path / "other.jaxexp", weights="m.safetensors")
    assert value(tmp_path / "m.jaxexp") == 1


@pytest.mark.skipif(os.name != "posix", reason="Windows has other permissions")
def test_private_files_are_private_from_the_beginning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    constant(1).save(tmp_path / "m.jaxexp")
    for path in tmp_path.iterdir():
        path.chmod(0o600)
    seen: list[int] = []
    real = os.replace

    def replace(source: Any, target: Any) -> None:
        seen.extend(path.stat().st_mode & 0o777 for path in tmp_path.iterdir())
        real(source, target)

    monkeypatch.setattr(os, "replace", replace)
    constant(2).save(tmp_path / "m.jaxexp")
    assert set(seen) == {0o600}
    assert value(tmp_path / "m.jaxexp") == 2

"""Files of weights that somebody changes while a function uses them: what the guide says, mapped and read."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxexp
from kit.archive_files import make
from kit.each import each

SIZE = 512
X = np.ones(SIZE, np.float32)


def filled(tmp_path: Path) -> Path:
    """A function in a file, with weights beside it, and in an archive."""
    random = np.random.default_rng(0)
    weights = {n: jnp.asarray(random.standard_normal((SIZE, SIZE)), jnp.float32) for n in "ab"}
    exported = jaxexp.export(jax.jit(lambda p, x: p["a"] @ (p["b"] @ x)))(weights, jax.ShapeDtypeStruct((SIZE,), "f4"))
    bound = exported.bind(weights)
    bound.save(tmp_path / "f.jaxexp")
    make(tmp_path / "f.zip", {"m": bound})
    return tmp_path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return filled(tmp_path)


HOWS: dict[str, Callable[[Path, bool], Any]] = {
    "load": lambda folder, stable: jaxexp.load(folder / "f.jaxexp", stable=stable),
    "member": lambda folder, stable: jaxexp.load(f"{folder / 'f.zip'}::m", stable=stable),
    "archive": lambda folder, stable: jaxexp.Archive.open(folder / "f.zip", stable=stable)["m"].load(),
    "many": lambda folder, stable: jaxexp.load_many([folder / "f.jaxexp"], stable=stable)[0],
    "bind": lambda folder, stable: jaxexp.load(folder / "f.jaxexp").unbound.bind(
        folder / "f.safetensors", stable=stable
    ),
    "other": lambda folder, stable: jaxexp.load(folder / "f.jaxexp").with_weights(
        folder / "f.safetensors", stable=stable
    ),
    "inherited": lambda folder, stable: jaxexp.load(folder / "f.jaxexp", stable=stable).with_weights(
        folder / "f.safetensors"
    ),
}


def stays(folder: Path, how: str, change: str, stable: bool = True) -> bool:
    """Uses the weights, changes their file, and calls the function: whether it returns what it did before."""
    expected = jaxexp.load(folder / "f.jaxexp", stable=True).call(X)
    function = HOWS[how](folder, stable)
    path = folder / ("f.zip" if how in ("member", "archive") else "f.safetensors")
    contents = [np.asarray(function.weights[name]).tobytes() for name in "ab"]
    if change == "shortened":
        os.truncate(path, 4096)
    elif change == "replaced":
        other = path.with_suffix(".new")
        other.write_bytes(bytes(path.stat().st_size))
        other.rename(path)
    else:
        content = path.read_bytes()
        with open(path, "r+b") as file:
            for whole in contents:
                file.seek(content.index(whole))
                file.write(bytes(len(whole)))
    return np.allclose(function.call(X), expected, rtol=1e-3, atol=1e-2)


@pytest.mark.parametrize("how", HOWS)
@each("change", ["overwritten", "replaced", "shortened"])
def test_nothing_changes(change: str, how: str, tmp_path: Path) -> None:
    assert stays(filled(tmp_path), how, change)


@pytest.mark.skipif(sys.platform != "linux", reason="as Linux maps files")
@pytest.mark.parametrize(("how", "change"), [("load", "replaced"), ("load", "overwritten"), ("archive", "overwritten")])
def test_what_happens_to_files_that_are_written_to(how: str, change: str, folder: Path) -> None:
    """The guide says so."""
    assert stays(folder, how, change, stable=False) == (change == "replaced")


@pytest.mark.skipif(sys.platform != "linux", reason="as Linux maps files")
@pytest.mark.processes(reason="Linux ends it")
def test_what_happens_to_files_that_are_shortened(folder: Path, subprocess_env: Any) -> None:
    code = """if True:
        import os, sys, jaxexp, numpy as np
        from pathlib import Path
        function = jaxexp.load(Path(sys.argv[1]) / "f.jaxexp")
        function.weights["a"], function.weights["b"]
        os.truncate(Path(sys.argv[1]) / "f.safetensors", 4096)
        np.asarray(function.call(np.ones(int(sys.argv[2]), np.float32)))
    """
    command = [sys.executable, "-c", code, str(folder), str(SIZE)]
    assert subprocess.run(command, env=subprocess_env(XLA_FLAGS="")).returncode == -signal.SIGBUS


def test_an_archive_that_changes_before_a_weight_is_read(folder: Path) -> None:
    """Its digest is compared then."""
    function = jaxexp.Archive.open(folder / "f.zip", stable=True)["m"].load()
    content, weight = (folder / "f.zip").read_bytes(), np.asarray(function.weights["a"]).tobytes()
    with (folder / "f.zip").open("r+b") as file:
        file.seek(content.index(weight) + len(weight))
        file.write(bytes(100))
    with pytest.raises(jaxexp.errors.WeightsError, match="the file has changed since it was opened"):
        function.weights["b"]


def test_archives_stay_stable(folder: Path) -> None:
    archive = jaxexp.Archive.open(folder / "f.zip", stable=True)
    for one in (archive, archive["m"], pickle.loads(pickle.dumps(archive))["m"]):
        handle = one if isinstance(one, jaxexp.Handle) else one["m"]
        jaxexp.load(handle, stable=True)
    with pytest.raises(jaxexp.errors.ExportError, match=r"open its archive with Archive\.open\(path, stable=True\)"):
        jaxexp.load(jaxexp.Archive.open(folder / "f.zip")["m"], stable=True)


@each("look", [jaxexp.verify, jaxexp.digests])
def test_a_look_at_all_bytes_maps_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, look: Any) -> None:
    """Who cuts a file while it is verified gets no process of others killed."""
    weights = tmp_path / "f.safetensors"
    parameters = {name: np.ones((SIZE, SIZE), np.float32) for name in "ab"}
    exported = jaxexp.export(jax.jit(lambda p: p["a"] @ p["b"]))(parameters)
    exported.bind(parameters).save(tmp_path / "f.jaxexp")
    target = weights if look is jaxexp.verify else tmp_path / "f.jaxexp"
    look(target)
    size, reads = weights.stat().st_size, []
    read = os.preadv

    def cutting(descriptor: int, targets: Any, position: int) -> int:
        reads.append(position)
        if len(reads) == 4:  # after the header, and the first weight
            os.truncate(weights, size // 2)
        return read(descriptor, targets, position)

    monkeypatch.setattr(os, "preadv", cutting)
    with pytest.raises(jaxexp.errors.WeightsError, match="the file was shortened while it was read") as caught:
        look(target)
    assert caught.value.file == str(weights)

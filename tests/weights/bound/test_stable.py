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

SIZE = 512
# Uses one weight of two, changes their file as the third argument says, and calls the function.
CHANGING = f"""
import os, sys
from pathlib import Path
import numpy as np
import jaxexp
folder, how, change = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
stable = how.startswith("stable")
path = folder / ("f.zip" if "archive" in how else "f.safetensors")
if "member" in how:
    function = jaxexp.load(f"{{folder / 'f.zip'}}::m", stable=stable)
elif "archive" in how:
    function = jaxexp.Archive.open(path, stable=stable)["m"].load()
elif "many" in how:
    (function,) = jaxexp.load_many([folder / "f.jaxexp"], stable=stable)
elif "bind" in how:
    function = jaxexp.load(folder / "f.jaxexp").unbound.bind(path, stable=stable)
elif "other" in how:
    function = jaxexp.load(folder / "f.jaxexp").with_weights(path, stable=stable)
elif "inherited" in how:
    function = jaxexp.load(folder / "f.jaxexp", stable=stable).with_weights(path)
else:
    function = jaxexp.load(folder / "f.jaxexp", stable=stable)
a = function.weights["a"]
x = np.ones({SIZE}, np.float32)
b = function.weights["b"]
if change == "shortened":
    os.truncate(path, 4096)
elif change == "replaced":
    other = path.with_suffix(".new")
    other.write_bytes(bytes(path.stat().st_size))
    other.rename(path)
else:
    content = path.read_bytes()
    with open(path, "r+b") as file:
        for whole in (np.asarray(a).tobytes(), np.asarray(b).tobytes()):
            file.seek(content.index(whole))
            file.write(bytes(len(whole)))
np.save(folder / "result.npy", np.asarray(function.call(x)))
"""


@pytest.fixture
def changed(tmp_path: Path, subprocess_env) -> Callable[[str, str], subprocess.CompletedProcess[str]]:
    random = np.random.default_rng(0)
    weights = {n: jnp.asarray(random.standard_normal((SIZE, SIZE)), jnp.float32) for n in "ab"}
    exported = jaxexp.export(jax.jit(lambda p, x: p["a"] @ (p["b"] @ x)))(weights, jax.ShapeDtypeStruct((SIZE,), "f4"))
    bound = exported.bind(weights)
    bound.save(tmp_path / "f.jaxexp")
    with jaxexp.Archive.create(tmp_path / "f.zip") as archive:
        archive.add("m", bound)
    np.save(tmp_path / "expected.npy", bound.call(np.ones(SIZE, np.float32)))

    def run(how: str, change: str) -> subprocess.CompletedProcess[str]:
        env = subprocess_env(XLA_FLAGS="")
        command = [sys.executable, "-c", CHANGING, tmp_path, how, change]
        return subprocess.run(command, env=env, capture_output=True, text=True)

    return run


def is_same(folder: Path) -> bool:
    return np.allclose(np.load(folder / "result.npy"), np.load(folder / "expected.npy"), rtol=1e-3, atol=1e-2)


HOWS = ["", ", archive", ", archive member", ", many", ", bind", ", other", ", inherited"]


@pytest.mark.sampled(one_in=4, reason="many cases go the same way")
@pytest.mark.processes(reason="some cases kill one")
@pytest.mark.parametrize("change", ["shortened", "overwritten", "replaced"])
@pytest.mark.parametrize("how", [f"stable{how}" for how in HOWS])
def test_nothing_changes(how: str, change: str, changed, tmp_path: Path) -> None:
    done = changed(how, change)
    assert done.returncode == 0, done.stderr
    assert is_same(tmp_path)


@pytest.mark.skipif(sys.platform != "linux", reason="as Linux maps files")
@pytest.mark.processes(reason="kills them")
@pytest.mark.parametrize("how", ["mapped", "mapped, archive"])
def test_what_happens_to_mapped_files(how: str, changed, tmp_path: Path) -> None:
    """The guide says so."""
    assert changed(how, "replaced").returncode == 0
    assert is_same(tmp_path)


@pytest.mark.skipif(sys.platform != "linux", reason="as Linux maps files")
@pytest.mark.processes(reason="kills them")
@pytest.mark.parametrize("how", ["mapped", "mapped, archive"])
@pytest.mark.parametrize("change", ["shortened", "overwritten"])
def test_what_happens_to_files_that_are_written_to(how: str, change: str, changed, tmp_path: Path) -> None:
    done = changed(how, change)
    if change == "shortened":
        assert done.returncode == -signal.SIGBUS
    else:
        assert done.returncode == 0, done.stderr
        assert not is_same(tmp_path)


def test_an_archive_that_changes_before_a_weight_is_read(changed, tmp_path: Path) -> None:
    """Its digest is compared then."""
    function = jaxexp.Archive.open(tmp_path / "f.zip", stable=True)["m"].load()
    content, weight = (tmp_path / "f.zip").read_bytes(), np.asarray(function.weights["a"]).tobytes()
    with (tmp_path / "f.zip").open("r+b") as file:
        file.seek(content.index(weight) + len(weight))
        file.write(bytes(100))
    with pytest.raises(jaxexp.WeightsError, match="the file has changed since it was opened"):
        function.weights["b"]


def test_archives_stay_stable(changed, tmp_path: Path) -> None:
    """In another process, and `load` refuses a handle of one that is not."""
    archive = jaxexp.Archive.open(tmp_path / "f.zip", stable=True)
    for one in (archive, archive["m"], pickle.loads(pickle.dumps(archive))["m"]):
        handle = one if isinstance(one, jaxexp.Handle) else one["m"]
        jaxexp.load(handle, stable=True)
    with pytest.raises(jaxexp.ExportError, match=r"open its archive with Archive\.open\(path, stable=True\)"):
        jaxexp.load(jaxexp.Archive.open(tmp_path / "f.zip")["m"], stable=True)


def test_a_file_that_is_cut_while_it_is_read(changed, tmp_path: Path, monkeypatch) -> None:
    from jaxexp._weights.files import places

    monkeypatch.setattr(
        places.os, "fstat", lambda descriptor: type("Stat", (), {"st_size": 1 << 23, "st_mode": 0o100644})
    )
    with pytest.raises(jaxexp.WeightsError, match="somebody cut the file while it was read"):
        jaxexp.load(tmp_path / "f.jaxexp").with_weights(tmp_path / "f.safetensors", stable=True)


@pytest.mark.parametrize("look", [jaxexp.verify, jaxexp.digests])
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
    with pytest.raises(jaxexp.WeightsError, match="somebody cut the file while it was read") as caught:
        look(target)
    assert caught.value.file == str(weights)

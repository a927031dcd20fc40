"""A program and its weights are saved together: whatever happens, the program that is there has its own weights."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np
import pytest
import safetensors.numpy

from jaxexp._errors import ExportError
from jaxexp._weights.arrays import saving
from jaxexp._weights.arrays.stored import Stored, Table
from jaxexp._weights.arrays.weights import Weights
from kit.places import WORKERS
from kit.tensor_files import array_in

pytestmark = pytest.mark.once(reason="files, whoever wrote what is in them")


def weights_of(value: float) -> Weights:
    array = np.full(16, value, np.float32)
    return Weights({"w": jax.typeof(array)}, {"w": array})


def two_weights(value: float = 0) -> Weights:
    arrays = {name: np.full(16, value, np.float32) for name in "ab"}
    return Weights({name: jax.typeof(array) for name, array in arrays.items()}, arrays)


def save(folder: Path, value: float, **options: int) -> Table:
    tables: list[Table] = []
    saving.save(folder / "x", "x.safetensors", weights_of(value).sources(), tables.append, **options)
    return tables[0]


def value(folder: Path, table: Table) -> float:
    file, tensor = Stored(folder / "x", table).find("w")
    return float(array_in(file, tensor)[0])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks the processes that it kills")
def test_killed_processes(tmp_path: Path, subprocess_env) -> None:
    """In front of each step, and at many bytes: the old program with its weights, or the new one with its."""
    command = [sys.executable, "-W", "ignore", WORKERS / "kill_weights.py", tmp_path]
    done = subprocess.run(command, env=subprocess_env(), capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    *lines, left = map(str.split, done.stdout.splitlines())
    steps = [(event, version) for kind, event, version in lines if kind == "step"]
    first_new = [version for _, version in steps].index("2")
    assert first_new > 5
    assert all(version == "2" for _, version in steps[first_new:])  # nothing goes back
    assert {"os.link", "os.rename", "os.remove"} <= {event for event, _ in steps}
    assert all(version == "1" for kind, _, version in lines if kind == "byte")
    names = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "model.safetensors.index.json"]
    assert left == ["left", *names, "program"]


def test_an_error_while_the_program_is_written(tmp_path: Path) -> None:
    old = save(tmp_path, 1)

    def fail(table: Table) -> None:
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="the disk is full"):
        saving.save(tmp_path / "x", "x.safetensors", weights_of(2).sources(), fail)
    assert value(tmp_path, old) == 1
    save(tmp_path, 3)


def test_nothing_is_left(tmp_path: Path) -> None:
    for number in (1, 2, 2, 1):
        table = save(tmp_path, number)
        assert value(tmp_path, table) == number
        assert [path.name for path in tmp_path.iterdir()] == ["x.safetensors"]


def test_permissions_stay(tmp_path: Path) -> None:
    save(tmp_path, 1)
    (tmp_path / "x.safetensors").chmod(0o640)
    save(tmp_path, 2)
    assert (tmp_path / "x.safetensors").stat().st_mode & 0o777 == 0o640


def of_safetensors(path: Path) -> None:
    safetensors.numpy.save_file({"w": np.ones(16, np.float32)}, path, {"format": "pt"})


def an_index(path: Path) -> None:
    path.write_text(
        json.dumps({"metadata": {"total_size": 64}, "weight_map": {"w": "model-00001-of-00001.safetensors"}})
    )


OF_OTHERS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "safetensors": ("x.safetensors", of_safetensors),
    "something else": ("x.safetensors", lambda path: path.write_bytes(b"something else")),
    "folder": ("x.safetensors", Path.mkdir),
    "one of several": ("x-00002-of-00002.safetensors", of_safetensors),
    "index": ("x.safetensors.index.json", an_index),
    "index without metadata": ("x.safetensors.index.json", lambda path: path.write_text('{"weight_map":{}}')),
    "list": ("x.safetensors.index.json", lambda path: path.write_text("[]")),
    "deep": ("x.safetensors.index.json", lambda path: path.write_text("[" * 100_000)),
    "binary": ("x.safetensors.index.json", lambda path: path.write_bytes(b"\xff\xfe\xfd")),
}


@pytest.mark.parametrize("kind", OF_OTHERS)
def test_files_of_others_are_not_replaced(tmp_path: Path, kind: str) -> None:
    name, make = OF_OTHERS[kind]
    make(tmp_path / name)
    before = [(path.name, path.stat().st_ino, path.stat().st_mtime_ns) for path in tmp_path.iterdir()]
    options = {} if name == "x.safetensors" else {"max_file_size": 16}
    with pytest.raises(
        ExportError, match=rf"expected '.*{re.escape(name)}' to be missing, or a file that jaxexp wrote"
    ):
        saving.save(tmp_path / "x", "x.safetensors", two_weights().sources(), lambda table: None, **options)
    assert [(path.name, path.stat().st_ino, path.stat().st_mtime_ns) for path in tmp_path.iterdir()] == before


def test_an_empty_file_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "x.safetensors").touch()
    assert value(tmp_path, save(tmp_path, 1)) == 1


def test_an_index_of_jaxexp_is_replaced(tmp_path: Path) -> None:
    for weights in (two_weights(0), two_weights(1)):
        saving.save(tmp_path / "x", "x.safetensors", weights.sources(), lambda table: None, max_file_size=16)
    assert len(list(tmp_path.iterdir())) == 3


def test_without_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_links(*args: object) -> None:
        raise OSError("not supported")

    save(tmp_path, 1)
    monkeypatch.setattr(os, "link", no_links)
    assert value(tmp_path, save(tmp_path, 2)) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["x.safetensors"]


def test_a_second_name_of_another_content_is_not_believed(tmp_path: Path) -> None:
    table = save(tmp_path, 1)
    save(tmp_path / ".." / tmp_path.name, 1)
    (file,) = table.files
    from jaxexp._weights.files.content import second_name

    (tmp_path / second_name(file.name, file.content)).write_bytes(b"hostile")
    assert value(tmp_path, table) == 1

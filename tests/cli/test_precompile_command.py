"""`jaxexp precompile`, and what `jaxexp inspect` says of the file that it writes."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import jaxexp
from jaxexp import _native
from kit.archive_files import make
from kit.flips import flip
from kit.weighted import X, apply, bound, close, params

pytestmark = pytest.mark.jax


@pytest.fixture
def model(tmp_path: Path) -> Path:
    shape = jaxexp.symbolic_shape("batch, 4", constraints=["batch >= 2"])
    exported = jaxexp.export(jax.jit(lambda x: x * 2 + 1))(jax.ShapeDtypeStruct(shape, "float32"))
    exported.save(tmp_path / "model.jaxexp", vjp_order=1)
    return tmp_path / "model.jaxexp"


def used(path: Path | str, exe: Path, *args: Any) -> bool:
    """Whether a call uses code from the file, which changes nothing in its result."""
    function, plain = jaxexp.load(path, executables=exe), jaxexp.load(path)
    np.testing.assert_array_equal(function.call(*args), plain.call(*args))
    return any(one.used for one in function.executables)


def test_the_file_is_beside_the_function(model: Path, good: Any) -> None:
    out = good("precompile", model, "--size", "batch=2,8")
    exe = model.with_suffix(".exe")
    heading, two, eight, said = out.splitlines()
    assert heading.split() == ["function", "sizes", "arguments", "bytes"]
    assert two.split()[:3] == ["<lambda>", "batch=2", "float32[2,4]"]
    assert eight.split()[:3] == ["<lambda>", "batch=8", "float32[8,4]"]
    assert said == f"{exe}: 2 executables, {exe.stat().st_size:,} bytes"
    assert used(model, exe, np.ones((2, 4), np.float32))
    assert used(model, exe, np.ones((8, 4), np.float32))
    assert not used(model, exe, np.ones((3, 4), np.float32))
    # What is there is not compiled again.
    before = exe.read_bytes()
    said = good("precompile", model, "--size", "batch=2")
    assert said.endswith(": 1 executable, nothing was compiled: the file had them all\n")
    assert exe.read_bytes() == before
    more = good("precompile", model, "--size", "batch=2,3")
    assert f"2 executables, {exe.stat().st_size - len(before):,} bytes more" in more
    assert exe.read_bytes().startswith(before)


def test_members_and_weights(tmp_path: Path, good: Any) -> None:
    fleet = make(tmp_path / "fleet.zip", {"a": bound()[0], "b": bound(layers=1)[0]})
    assert "7 weights; float32[4,32]" in good("precompile", f"{fleet}::*")
    for name, layers in (("a", 3), ("b", 1)):
        function = jaxexp.load(f"{fleet}::{name}", executables=tmp_path / "fleet.exe")
        close(function.call(X), apply(params(layers), X))
        assert sum(one.used for one in function.executables) == 1


def test_functions_of_several_devices(folder: Path, tmp_path: Path, good: Any) -> None:
    exe = tmp_path / "sharded.exe"
    good("precompile", folder / "sharded.jaxexp", "-o", exe)
    good("run", folder / "sharded.jaxexp", "--random", "--executables", exe)  # complains if it is not used
    (found,) = json.loads(good("inspect", "--json", exe))[0]["executables"]
    assert found["conditions"]["devices"] == "0,1,2,3,4,5,6,7"


@pytest.fixture
def exe(model: Path, good: Any) -> Path:
    assert "the VJP of order 1 of <lambda>" in good("precompile", model, "--size", "batch=2,8", "--vjp", 1)
    return model.with_suffix(".exe")


def test_inspect(model: Path, exe: Path, good: Any) -> None:
    out = good("inspect", exe)
    assert f"size  {exe.stat().st_size:,} bytes: 4 executables, 4 usable here" in out
    fields = dict(line.strip().split("  ", 1) for line in out.splitlines()[3:17] if "  " in line.strip())
    assert (fields["jax"].strip(), fields["platform"].strip()) == (jax.__version__, "cpu")
    rows = [line.split() for line in out.splitlines() if line.endswith("usable")]
    assert ([row[0] for row in rows], rows[0][1]) == (["<lambda>", "the", "<lambda>", "the"], rows[2][1])
    assert rows[0][1] == hashlib.sha256(jaxexp.load(model).mlir_module_serialized).hexdigest()
    assert rows[0][2:] == ["float32[2,4]", "0", rows[0][4], "usable"]
    found, artifact = json.loads(good("inspect", "--json", "--check", exe, model))
    assert (found["file"], artifact["fun_name"], len(found["executables"])) == (str(exe), "<lambda>", 4)
    first = found["executables"][0]
    assert (first["usable"], first["why"], first["conditions"]["arguments"]) == (True, None, "float32[2,4]")


def test_why_it_is_not_usable_here(model: Path, exe: Path, good: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Code of another machine has a section of its own."""
    monkeypatch.setenv("LIBTPU_INIT_ARGS", "--other")
    out, why = good("inspect", exe), "LIBTPU_INIT_ARGS: compiled for none, here it is --other"
    assert "4 executables, 0 usable here" in out
    assert out.count(why) == 4
    (found,) = json.loads(good("inspect", "--json", exe))
    assert found["executables"][0]["why"] == why
    good("precompile", model, "--size", "batch=2")
    out = good("inspect", exe)
    assert "5 executables, 1 usable here" in out
    assert out.count("LIBTPU_INIT_ARGS  none") == out.count("LIBTPU_INIT_ARGS  --other") == 1


def test_damage(exe: Path, refused: Any) -> None:
    refused("", "inspect", "--mlir", exe)  # only artifacts have modules
    flip(exe, -2000)
    said = f"cannot read the executables {str(exe)!r}: at code: expected the bytes as they were written"
    assert "found different bytes; delete the file, and precompile again" in refused(said, "inspect", "--check", exe)
    flip(exe, 70)
    refused("cannot read the executables", "inspect", exe)


def test_executables_of_many_arguments_differ_on_a_terminal(tmp_path: Path, lines_on: Any) -> None:
    """The last argument has the batch, as after parameters."""
    (b,) = jaxexp.symbolic_shape("b")
    exported = jaxexp.export(jax.jit(lambda *xs: xs))(*[X] * 5, jax.ShapeDtypeStruct((b, 4), "float32"))
    for size in (5, 8):
        exported.precompile((*[X] * 5, jax.ShapeDtypeStruct((size, 4), "float32")), into=tmp_path / "f.exe")
    for columns in (72, 110):
        rows = [line for line in lines_on(columns, "inspect", tmp_path / "f.exe") if "<lambda>" in line]
        assert [("[5,4]" in row, "[8,4]" in row) for row in rows] == [(True, False), (False, True)], rows


def test_code_of_the_runtime(tmp_path: Path, good: Any) -> None:
    from jaxexp._executables.file import GrowingFile

    conditions = {"function": "f", "module": "00", "plugin": "a plugin", "platform": "cpu"}
    file = GrowingFile(tmp_path / "runtime.exe")
    file.put({**conditions, "processor": _native.cpu_features()}, {}, b"code")
    out = good("inspect", tmp_path / "runtime.exe")
    assert "1 executable, 1 for sessions (jaxexp.runtime)\n" in out
    assert "for sessions (jaxexp.runtime) on this processor" in out
    file.put({**conditions, "processor": "x86 1.c=0"}, {}, b"code")
    exported = jaxexp.export(jax.jit(lambda x: x))(X)
    exported.precompile(into=file)
    out = good("inspect", tmp_path / "runtime.exe")
    assert "3 executables, 1 usable here, 2 for sessions (jaxexp.runtime)\n" in out
    assert "for sessions (jaxexp.runtime) elsewhere: processor: compiled for x86 1.c=0, here it is " in out

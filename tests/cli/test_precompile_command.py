"""`jaxexp precompile`, and what `jaxexp inspect` says of the file that it writes."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import jaxexp
from kit.weighted import X, apply, bound, close, params


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


def test_what_is_there_is_not_compiled_again(model: Path, tmp_path: Path, good: Any) -> None:
    exe = tmp_path / "any.exe"
    good("precompile", model, "--size", "batch=2", "-o", exe)
    before = exe.read_bytes()
    said = good("precompile", model, "--size", "batch=2", "-o", exe)
    assert said.endswith(": 1 executable, nothing was compiled: the file had them all\n")
    assert exe.read_bytes() == before
    more = good("precompile", model, "--size", "batch=2,3", "-o", exe)
    assert f"2 executables, {exe.stat().st_size - len(before):,} bytes more" in more
    assert exe.read_bytes().startswith(before)


def test_gradients(model: Path, good: Any) -> None:
    out = good("precompile", model, "--size", "batch=2", "--vjp", 1)
    assert "the VJP of order 1 of <lambda>" in out
    function = jaxexp.load(model, executables=model.with_suffix(".exe"))
    jax.grad(lambda x: function.call(x).sum())(np.ones((2, 4), np.float32))
    assert [one.used for one in function.vjp().executables] == [True]


def test_members_and_weights(tmp_path: Path, good: Any, run: Any) -> None:
    with jaxexp.Archive.create(tmp_path / "fleet.zip") as archive:
        archive.add("a", bound()[0])
        archive.add("b", bound(layers=1)[0])
    fleet = tmp_path / "fleet.zip"
    status, _, err = run("precompile", fleet)
    assert status == 2
    assert f"name a member as {fleet}::NAME, or all of them as '{fleet}::*'" in err
    out = good("precompile", f"{fleet}::*")
    assert "7 weights; float32[4,32]" in out
    for name, layers in (("a", 3), ("b", 1)):
        function = jaxexp.load(f"{tmp_path / 'fleet.zip'}::{name}", executables=tmp_path / "fleet.exe")
        close(function.call(X), apply(params(layers), X))
        assert sum(one.used for one in function.executables) == 1


def test_functions_of_several_devices(folder: Path, tmp_path: Path, good: Any) -> None:
    exe = tmp_path / "sharded.exe"
    good("precompile", folder / "sharded.jaxexp", "-o", exe)
    good("run", folder / "sharded.jaxexp", "--random", "--executables", exe)  # complains if it is not used
    (found,) = json.loads(good("inspect", "--json", exe))[0]["executables"]
    assert found["conditions"]["devices"] == "0,1,2,3,4,5,6,7"


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        ([], 1, "code is compiled for constant ones: say how large batch is, as in --size batch=4"),
        (["--size", "n=4"], 1, "has no symbolic dimension n: its symbolic dimensions are batch"),
        (["--size", "batch=1"], 1, "constraint batch >= 2"),
        (["--size", "batch=2", "--vjp", "2"], 1, "has no VJP of order 2"),
        (["--size", "batch=2", "-o", "model.jaxexp"], 1, "cannot read the executables"),
    ],
)
def test_what_is_refused(
    model: Path, run: Any, monkeypatch: pytest.MonkeyPatch, arguments: list[str], status: int, said: str
) -> None:
    monkeypatch.chdir(model.parent)
    before = model.read_bytes()
    found, out, err = run("precompile", "model.jaxexp", *arguments)
    assert (found, out) == (status, "")
    assert said in err
    assert err.count("\n") == 1
    assert model.read_bytes() == before
    assert not model.with_suffix(".exe").exists()


def test_a_url_needs_a_file(run: Any) -> None:
    status, _, err = run("precompile", "https://example.org/model.jaxexp")
    assert status == 2
    assert "as in -o model.exe" in err


# --- inspect ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def exe(model: Path, good: Any) -> Path:
    good("precompile", model, "--size", "batch=2,8", "--vjp", 1)
    return model.with_suffix(".exe")


def test_inspect(model: Path, exe: Path, good: Any) -> None:
    out = good("inspect", exe)
    assert f"size  {exe.stat().st_size:,} bytes: 4 executables, 4 usable here" in out
    fields = dict(line.strip().split("  ", 1) for line in out.splitlines()[3:17] if "  " in line.strip())
    assert fields["jax"].strip() == jax.__version__
    assert fields["platform"].strip() == "cpu"
    rows = [line.split() for line in out.splitlines() if line.endswith("usable")]
    assert [row[0] for row in rows] == ["<lambda>", "the", "<lambda>", "the"]
    assert rows[0][1] == rows[2][1]
    assert rows[0][1] == hashlib.sha256(jaxexp.load(model).mlir_module_serialized).hexdigest()
    assert rows[0][2:] == ["float32[2,4]", "0", rows[0][4], "usable"]


@pytest.mark.skipif(sys.platform == "win32", reason="there are no pseudo-terminals")
@pytest.mark.parametrize("columns", [72, 110])
def test_executables_of_many_arguments_differ_on_a_terminal(tmp_path: Path, subprocess_env: Any, columns: int) -> None:
    """The last argument has the batch, as after parameters."""
    from kit.terminal import on_terminal

    (b,) = jaxexp.symbolic_shape("b")
    exported = jaxexp.export(jax.jit(lambda *xs: xs))(*[X] * 5, jax.ShapeDtypeStruct((b, 4), "float32"))
    for size in (5, 8):
        exported.precompile((*[X] * 5, jax.ShapeDtypeStruct((size, 4), "float32")), into=tmp_path / "f.exe")
    command = [sys.executable, "-m", "jaxexp", "inspect", str(tmp_path / "f.exe")]
    env = {name: value for name, value in subprocess_env().items() if name != "COLUMNS"} | {"NO_COLOR": "1"}
    _, seen = on_terminal(command, 40, columns, env=env)
    rows = [line for line in seen.replace("\r", "").splitlines() if "<lambda>" in line]
    assert ["[5,4]" in row for row in rows] == [True, False], seen
    assert ["[8,4]" in row for row in rows] == [False, True], seen
    assert max(map(len, seen.replace("\r", "").splitlines())) <= columns


def test_inspect_as_json(exe: Path, model: Path, good: Any) -> None:
    found, artifact = json.loads(good("inspect", "--json", "--check", exe, model))
    assert found["file"] == str(exe)
    assert artifact["fun_name"] == "<lambda>"
    assert len(found["executables"]) == 4
    first = found["executables"][0]
    assert (first["usable"], first["why"]) == (True, None)
    assert first["conditions"]["arguments"] == "float32[2,4]"
    assert sum(one["bytes"] for one in found["executables"]) < exe.stat().st_size


def test_why_it_is_not_usable_here(exe: Path, good: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIBTPU_INIT_ARGS", "--other")
    out = good("inspect", exe)
    assert "4 executables, 0 usable here" in out
    assert out.count("LIBTPU_INIT_ARGS: compiled for none, here it is --other") == 4
    (found,) = json.loads(good("inspect", "--json", exe))
    assert found["executables"][0]["why"] == "LIBTPU_INIT_ARGS: compiled for none, here it is --other"


def test_code_of_another_machine_has_a_section_of_its_own(
    model: Path, exe: Path, good: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LIBTPU_INIT_ARGS", "--other")
    good("precompile", model, "--size", "batch=2")
    out = good("inspect", exe)
    assert "5 executables, 1 usable here" in out
    assert out.count("LIBTPU_INIT_ARGS  none") == out.count("LIBTPU_INIT_ARGS  --other") == 1


def test_code_of_the_runtime(tmp_path: Path, good: Any) -> None:
    from jaxexp._executables.file import GrowingFile

    conditions = {"function": "f", "module": "00", "plugin": "a plugin", "platform": "cpu"}
    GrowingFile(tmp_path / "runtime.exe").append(conditions, {}, b"code")
    out = good("inspect", tmp_path / "runtime.exe")
    assert "1 executable, 0 usable here" in out
    assert "it is code of the C++ runtime" in out


def test_damage(exe: Path, run: Any) -> None:
    content = bytearray(exe.read_bytes())
    content[content.rindex(b"\x7fELF") if b"\x7fELF" in content else len(content) - 2000] ^= 0xFF
    exe.write_bytes(content)
    status, _, err = run("inspect", "--check", exe)
    assert status == 1
    assert f"cannot read the executables {str(exe)!r}: at code: expected the bytes as they were written" in err
    assert "found others; delete the file, and precompile again" in err
    content[70] ^= 1
    exe.write_bytes(content)
    status, out, err = run("inspect", exe)
    assert (status, out) == (1, "")
    assert "cannot read the executables" in err


def test_only_artifacts_have_modules(exe: Path, run: Any) -> None:
    status, out, err = run("inspect", "--mlir", exe)
    assert (status, out) == (1, "")
    assert err.count("\n") == 1

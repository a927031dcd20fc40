"""Code that one process compiled and another one uses, from the command line and from C; and why it is not used."""

from __future__ import annotations

import concurrent.futures
import ctypes
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

import jaxexp
from jaxexp._executables.file import ExecutablesFile
from kit import runtime
from kit.corpus import mesh
from kit.run_c import Handle, Library, Options, RunError, pointer
from kit.saved import saved

pytestmark = [pytest.mark.cpp, pytest.mark.usefixtures("plugin")]

X = np.linspace(-1, 1, 64, dtype=np.float32).reshape(8, 8)


def written(path: Path, function: Any) -> Path:
    np.save(path.parent / "x.npy", X)
    return saved(path, function, X, vjp_order=1, reader=runtime.READER)


@pytest.fixture
def artifact(tmp_path: Path) -> Path:
    return written(tmp_path / "f.jaxexp", lambda x: jnp.tanh(x) @ x)


@pytest.fixture
def exe(tmp_path: Path) -> Path:
    return tmp_path / "f.exe"


def call(artifact: Path, *more: object, devices: int = 1) -> tuple[np.ndarray, str]:
    """The result, and what the program says."""
    out = artifact.with_suffix(".npy")
    done = runtime.run(artifact, artifact.parent / "x.npy", "--out", out, *more, devices=devices)
    assert done.returncode == 0, done.stderr
    return np.load(out), done.stderr


def save(artifact: Path, exe: Path, *more: object, devices: int = 1) -> None:
    done = runtime.run(artifact, "--save-executable", exe, *more, devices=devices)
    assert done.returncode == 0, done.stderr


def test_another_process_uses_the_code(artifact: Path, exe: Path, tmp_path: Path) -> None:
    """With inputs or a file for results, whoever compiles calls it, too; and what is there is not added again."""
    x, y = tmp_path / "x.npy", tmp_path / "y.npy"
    exe.touch(0o600)  # as good as none
    save(artifact, exe, x, "--out", y)
    written = exe.read_bytes()
    assert len(ExecutablesFile(exe).records) == 1
    assert exe.stat().st_mode & 0o777 == 0o600
    found, said = call(artifact, "--executables", exe)
    assert said == ""
    np.testing.assert_array_equal(found, np.load(y))
    np.testing.assert_allclose(found, np.tanh(X) @ X, rtol=1e-5, atol=1e-5)
    timed = runtime.run(artifact, x, "--executables", exe, "--repeat", 1).stdout
    assert re.match(rf"code from {re.escape(str(exe))} in [\d.]+ ms\n", timed)
    assert re.match(r"compiled in ", runtime.run(artifact, x, "--repeat", 1).stdout)
    shown = runtime.run(artifact, x, "--save-executable", exe)
    assert (shown.returncode, exe.read_bytes()) == (0, written)
    assert "\n  result  float32[8,8]" in shown.stdout
    (other := tmp_path / "notes.txt").write_text("not executables")
    for options, status, message in (
        (("--save-executable", exe, "--out", y), 2, "no file gives args[0]"),
        ((x, "--executables", tmp_path / "missing.exe"), 1, "missing.exe"),
        (("--save-executable", other), 1, f"cannot read the executables '{other}': expected a file of executables"),
    ):
        done = runtime.run(artifact, *options)
        assert done.returncode == status and message in done.stderr
    assert other.read_text() == "not executables"


def test_damaged_code_is_passed_over(artifact: Path, exe: Path) -> None:
    """And named. Where the same code is there twice, whichever copy is damaged, the other one is used."""
    save(artifact, exe)
    intact = exe.read_bytes()
    expected, _ = call(artifact)
    damaged = intact[:-1000] + bytes([intact[-1000] ^ 255]) + intact[-999:]
    places = [
        intact[:at] + bytes([intact[at] ^ 255]) + intact[at + 1 :] for at in range(0, len(intact), len(intact) // 8)
    ]
    was_cut = "bytes of a record that was not finished: the file was cut, or is being written\n"
    cuts = [intact[:size] for size in (0, 63, 127)]
    cuts_of_code = [intact[:size] for size in (len(intact) // 2, len(intact) - 1)]
    for content, why in (
        *((content, "") for content in places),
        *((content, "is not used") for content in cuts),
        *((content, was_cut) for content in cuts_of_code),
        (damaged, "bytes as they were written, found different bytes; delete the file, and precompile again\n"),
    ):
        exe.write_bytes(content)
        found, said = call(artifact, "--executables", exe)
        assert why in said
        np.testing.assert_array_equal(found, expected)
    save(artifact, exe)
    repaired = exe.read_bytes()
    assert repaired.startswith(damaged) and len(repaired) > len(damaged)
    for content in (repaired, intact + damaged[64:]):
        exe.write_bytes(content)
        found, said = call(artifact, "--executables", exe)
        assert said == ""
        np.testing.assert_array_equal(found, expected)


def test_code_of_several_functions_in_one_file(artifact: Path, exe: Path, tmp_path: Path) -> None:
    """Of VJPs, too; of JAX, which only Python uses; and of others that have the name of this one."""

    def other(x: jax.Array) -> jax.Array:
        return x + 1

    named, alike = written(tmp_path / "other.jaxexp", other), written(tmp_path / "alike.jaxexp", lambda x: x - 1)
    jaxexp.load(artifact).precompile(into=exe)
    for save_more, why in (
        (None, "its code of this function is for calls in JAX; save_executable writes code for calls without JAX"),
        (named, "it has no code of this function"),
        (alike, "its code is for another module of this name: another function, or this one exported again\n"),
    ):
        if save_more is not None:
            exe.unlink(missing_ok=save_more is named)
            save(save_more, exe)
        assert f"is not used: {why}" in call(artifact, "--executables", exe)[1]
    save(artifact, exe)
    save(named, exe)
    save(artifact, exe, "--vjp", 1)
    model = jaxexp.load(artifact, executables=exe)
    np.testing.assert_allclose(model.call(X), np.tanh(X) @ X, rtol=1e-5, atol=1e-5)
    assert not any(one.used for one in model.executables)
    model.precompile(into=exe)  # both kinds in one file
    for function in (artifact, named):
        assert call(function, "--executables", exe)[1] == ""


def test_flags_are_what_xla_reads(artifact: Path, exe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two flags of one name, the last one counts; and what does not begin like a flag is the name of a file."""
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    save(artifact, exe)
    said = call(artifact, "--executables", exe, devices=2)[1]
    assert "plugin options: compiled for cpu_device_count=1" in said
    slow, fast = (f"--xla_cpu_enable_fast_math={value}" for value in ("false", "true"))
    file = tmp_path / "flags"
    file.write_text(f"{slow}\n{fast}\n")
    for flags, why in (
        (fast, "XLA_FLAGS: compiled for none"),
        (f"{slow} {fast}", ""),
        (f"{fast} {slow}", f"XLA_FLAGS: compiled for {slow} {fast}, here it is {fast} {slow}"),
        (str(file), ""),
    ):
        monkeypatch.setenv("XLA_FLAGS", flags)
        if not why:
            save(artifact, exe)
            assert call(artifact, "--executables", exe)[1] == ""
        assert why in call(artifact, "--executables", exe)[1]
    file.write_text(slow)
    assert "XLA_FLAGS: compiled for" in call(artifact, "--executables", exe)[1]


def test_shardings_come_from_the_file(tmp_path: Path, exe: Path) -> None:
    rows = NamedSharding(mesh((2,), ("d",)), PartitionSpec("d"))
    artifact = written(tmp_path / "f.jaxexp", jax.jit(lambda x: jnp.sin(x).sum(0), in_shardings=rows))
    save(artifact, exe, devices=2)
    found, said = call(artifact, "--executables", exe, devices=2)
    assert said == ""
    np.testing.assert_allclose(found, np.sin(X).sum(0), rtol=1e-5, atol=1e-5)
    said = call(artifact, "--executables", exe, "--device", 1, "--device", 0, devices=2)[1]
    assert "devices: compiled for 0,1, here it is 1,0" in said


COMPILES_LATER = """
import os, sys, jaxexp
from jaxexp.runtime import Session
artifact, plugin, cache, meanwhile = sys.argv[1:]
jaxexp.compile_cache(cache)
session = Session(artifact, plugin=plugin)
exec(meanwhile)
session.compile()
"""


def test_code_is_for_the_process_as_it_started(artifact: Path, tmp_path: Path) -> None:
    """The compiler is the one in memory, with the flags that it read, whatever files and variables are now."""
    plugin, fast = tmp_path / "plugin.so", "--xla_cpu_enable_fast_math=true"

    def entries(meanwhile: str, flags: str, cache: Path) -> int:
        plugin.unlink(missing_ok=True)
        shutil.copyfile(runtime.plugin(), plugin)
        command = [sys.executable, "-c", COMPILES_LATER, str(artifact), "./plugin.so", str(cache), meanwhile]
        subprocess.run(command, cwd=tmp_path, env={**os.environ, "XLA_FLAGS": flags}, check=True)
        return len(list(cache.glob("*.exe")))

    first = tmp_path / "cache"
    assert entries("pass", "", first) == 1
    for number, (meanwhile, flags, expected) in enumerate(
        [
            ("pass", "", 1),
            ("os.environ.pop('XLA_FLAGS')", fast, 2),
            (f"os.environ['XLA_FLAGS'] = '{fast}'", "", 2),
            ("open('new', 'w').close(); os.replace('new', plugin)", "", 1),
            ("os.remove(plugin)", "", 1),
            ("os.chdir('/')", "", 1),
        ]
    ):
        cache = shutil.copytree(first, tmp_path / str(number))
        assert entries(meanwhile, flags, cache) == expected, meanwhile
    plugin.unlink(missing_ok=True)  # it is large


# --- the compile cache ----------------------------------------------------------------------------------------------


def test_processes_that_start_together_compile_once(tmp_path: Path) -> None:
    def function(x: Any) -> Any:
        for _ in range(60):
            x = jnp.tanh(x) @ x
        return x

    artifact = written(tmp_path / "f.jaxexp", function)
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        command = (artifact, tmp_path / "x.npy", "--compile-cache", tmp_path / "cache", "--repeat", 1)
        done = list(pool.map(lambda _: runtime.run(*command), range(8)))
    assert [one.returncode for one in done] == [0] * 8
    assert sum(one.stdout.startswith("compiled in ") for one in done) == 1
    assert len(list((tmp_path / "cache").iterdir())) == 1


def test_from_c(
    library: Library, runtime: Handle, artifact: Path, exe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library.c.jaxexp_why_compiled.restype = ctypes.c_void_p

    def why(**fields: Any) -> bytes:
        function = library.load_with(runtime, artifact, **fields)
        before = library.c.jaxexp_why_compiled(pointer(function))
        library.checked("compile", pointer(function))
        found = ctypes.string_at(library.c.jaxexp_why_compiled(pointer(function)))
        assert ctypes.string_at(before) == b"", "a text stays until the function is freed"
        return found

    file, folder = str(exe).encode(), str(tmp_path / "cache").encode()
    writer = library.load(runtime, artifact)
    library.checked("save_executable", pointer(writer), file)
    assert why(executables=file) == b""
    with pytest.raises(RunError, match=r"size of the options is not set: expected sizeof\(jaxexp_load_options\)"):
        why(executables=file, size=0)
    exe.write_bytes(b"")
    # As a program has it that was built before there were weights.
    assert b"an empty file" in why(executables=file, size=Options.weights.offset)
    assert why(compile_cache=folder) and not why(compile_cache=folder)
    assert len(list((tmp_path / "cache").iterdir())) == 1
    why(compile_cache=f"{tmp_path}/small".encode(), compile_cache_bytes=10)
    assert list((tmp_path / "small").iterdir()) == []
    monkeypatch.chdir(tmp_path)
    function = library.load_with(runtime, artifact, compile_cache=b"beside")
    monkeypatch.chdir("/")
    library.call(function, library.array(X))
    assert len(list((tmp_path / "beside").iterdir())) == 1, "the folder is the one that was checked"
    (tmp_path / "cache").chmod(0o777)
    with pytest.raises(RunError, match="every user of this machine may write"):
        why(compile_cache=folder)

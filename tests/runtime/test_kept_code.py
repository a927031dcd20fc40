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
    save(artifact, exe, x, "--out", y)
    written = exe.read_bytes()
    assert len(ExecutablesFile(exe).records) == 1
    found, said = call(artifact, "--executables", exe)
    assert said == ""
    np.testing.assert_array_equal(found, np.load(y))
    np.testing.assert_allclose(found, np.tanh(X) @ X, rtol=1e-5, atol=1e-5)
    timed = runtime.run(artifact, x, "--executables", exe, "--repeat", 1).stdout
    assert re.match(rf"code from {re.escape(str(exe))} in [\d.]+ ms\n", timed)
    assert re.match(r"compiled in ", runtime.run(artifact, x, "--repeat", 1).stdout)
    save(artifact, exe)
    shown = runtime.run(artifact, x, "--save-executable", exe)
    assert shown.returncode == 0
    assert "\n  result  float32[8,8]" in shown.stdout
    assert exe.read_bytes() == written
    missing = runtime.run(artifact, "--save-executable", exe, "--out", y)
    assert missing.returncode == 2
    assert "no file gives args[0]" in missing.stderr


def test_files_that_are_no_files_of_code(artifact: Path, tmp_path: Path) -> None:
    """An empty one is as good as none."""
    empty, other = tmp_path / "empty.exe", tmp_path / "notes.txt"
    empty.touch(0o600)
    save(artifact, empty)
    assert len(ExecutablesFile(empty).records) == 1
    assert empty.stat().st_mode & 0o777 == 0o600
    assert call(artifact, "--executables", empty)[1] == ""
    done = runtime.run(artifact, tmp_path / "x.npy", "--executables", tmp_path / "missing.exe")
    assert done.returncode == 1 and "missing.exe" in done.stderr
    other.write_text("not executables")
    done = runtime.run(artifact, "--save-executable", other)
    assert done.returncode == 1
    assert f"cannot read the executables '{other}': expected a file of executables" in done.stderr
    assert other.read_text() == "not executables"


def test_damaged_code_is_passed_over(artifact: Path, exe: Path) -> None:
    """And named. Where the same code is there twice, whichever copy is damaged, the other one is used."""
    save(artifact, exe)
    intact = exe.read_bytes()
    expected, _ = call(artifact)
    for place in range(0, len(intact), max(1, len(intact) // 20)):
        exe.write_bytes(intact[:place] + bytes([intact[place] ^ 255]) + intact[place + 1 :])
        np.testing.assert_array_equal(call(artifact, "--executables", exe)[0], expected)
    for size in (0, 63, 64, 127, len(intact) // 2, len(intact) - 1):
        exe.write_bytes(intact[:size])
        found, said = call(artifact, "--executables", exe)
        assert "is not used" in said
        np.testing.assert_array_equal(found, expected)
    damaged = intact[:-1000] + bytes([intact[-1000] ^ 255]) + intact[-999:]
    exe.write_bytes(damaged)
    said = call(artifact, "--executables", exe)[1]
    assert "expected the bytes as they were written, found others; delete the file, and precompile again\n" in said
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
    jaxexp.load(artifact).precompile(into=exe)
    said = call(artifact, "--executables", exe)[1]
    assert "is not used: JAX compiled its code of this function, which only Python can use" in said
    exe.unlink()

    def other(x: jax.Array) -> jax.Array:
        return x + 1

    save(written(tmp_path / "other.jaxexp", other), exe)
    assert "is not used: it has no code of this function" in call(artifact, "--executables", exe)[1]
    save(written(tmp_path / "same_name.jaxexp", lambda x: x - 1), exe)
    why = "its code is for another module of this name: another function, or this one exported again"
    assert f"is not used: {why}\n" in call(artifact, "--executables", exe)[1]
    save(artifact, exe)
    save(artifact, exe, "--vjp", 1)
    for function in (artifact, tmp_path / "other.jaxexp"):
        assert call(function, "--executables", exe)[1] == ""
    model = jaxexp.load(artifact, executables=exe)
    np.testing.assert_allclose(model.call(X), np.tanh(X) @ X, rtol=1e-5, atol=1e-5)
    assert not any(one.used for one in model.executables)
    model.precompile(into=exe)  # both kinds in one file
    assert call(artifact, "--executables", exe)[1] == ""


def test_flags_are_what_xla_reads(artifact: Path, exe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two flags of one name, the last one counts; and what does not begin like a flag is the name of a file."""
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    save(artifact, exe)
    said = call(artifact, "--executables", exe, devices=2)[1]
    assert "plugin options: compiled for cpu_device_count=1" in said
    slow, fast = (f"--xla_cpu_enable_fast_math={value}" for value in ("false", "true"))
    monkeypatch.setenv("XLA_FLAGS", fast)
    assert "XLA_FLAGS: compiled for none" in call(artifact, "--executables", exe)[1]
    monkeypatch.setenv("XLA_FLAGS", f"{slow} {fast}")
    save(artifact, exe)
    assert call(artifact, "--executables", exe)[1] == ""
    monkeypatch.setenv("XLA_FLAGS", f"{fast} {slow}")
    assert f"XLA_FLAGS: compiled for {slow} {fast}, here it is {fast} {slow}" in call(artifact, "--executables", exe)[1]
    file = tmp_path / "flags"
    file.write_text(f"{slow}\n{fast}\n")
    monkeypatch.setenv("XLA_FLAGS", str(file))
    save(artifact, exe)
    assert call(artifact, "--executables", exe)[1] == ""
    file.write_text(slow)
    assert "XLA_FLAGS: compiled for" in call(artifact, "--executables", exe)[1]


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


def test_shardings_come_from_the_file(tmp_path: Path, exe: Path) -> None:
    rows = NamedSharding(mesh((2,), ("d",)), PartitionSpec("d"))
    artifact = written(tmp_path / "f.jaxexp", jax.jit(lambda x: jnp.sin(x).sum(0), in_shardings=rows))
    save(artifact, exe, devices=2)
    found, said = call(artifact, "--executables", exe, devices=2)
    assert said == ""
    np.testing.assert_allclose(found, np.sin(X).sum(0), rtol=1e-5, atol=1e-5)
    said = call(artifact, "--executables", exe, "--device", 1, "--device", 0, devices=2)[1]
    assert "devices: compiled for 0,1, here it is 1,0" in said


def test_from_c(installed: Path, plugin: Path, artifact: Path, exe: Path) -> None:
    library = Library(next(installed.glob("lib*/libjaxexp-c.so")))
    library.c.jaxexp_why_compiled.restype = ctypes.c_char_p
    own = library.runtime(plugin)
    writer = library.load(own, artifact)
    library.checked("save_executable", pointer(writer), str(exe).encode())

    def loaded(**fields: Any) -> Handle:
        return library.load_with(own, artifact, **{"executables": str(exe).encode(), **fields})

    function = loaded()
    library.checked("compile", pointer(function))
    assert library.c.jaxexp_why_compiled(pointer(function)) == b""
    with pytest.raises(RunError, match=r"size of the options is not set: expected sizeof\(jaxexp_load_options\)"):
        loaded(size=0)
    exe.write_bytes(b"")
    function = loaded(size=Options.weights.offset)  # as a program has it that was built before there were weights
    library.checked("compile", pointer(function))
    assert b"an empty file" in library.c.jaxexp_why_compiled(pointer(function))


# --- the compile cache ----------------------------------------------------------------------------------------------


def test_processes_share_a_compile_cache(artifact: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    expected = call(artifact)[0]
    x = artifact.parent / "x.npy"
    commands = (artifact, x, "--compile-cache", cache, "--repeat", 1)
    assert re.match(r"compiled in ", runtime.run(*commands).stdout)
    (entry,) = cache.iterdir()
    found = runtime.run(*commands)
    assert re.match(rf"code from {re.escape(str(cache))} in [\d.]+ ms\n", found.stdout)
    assert found.stderr == ""
    np.testing.assert_array_equal(call(artifact, "--compile-cache", cache)[0], expected)
    whole = entry.read_bytes()
    for bad in (b"", whole[:100], whole[:-64], bytes([*whole[:-100], whole[-100] ^ 1, *whole[-99:]])):
        entry.write_bytes(bad)
        assert re.match(r"compiled in ", runtime.run(*commands).stdout)
        assert entry.read_bytes()[:64] == whole[:64], "it was made again"
        assert re.match(r"code from ", runtime.run(*commands).stdout)
    assert list(cache.iterdir()) == [entry]


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


def test_a_compile_cache_from_c(
    library: Library, runtime: Handle, artifact: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = str(tmp_path / "cache").encode()
    for _ in range(2):
        library.call(library.load_with(runtime, artifact, compile_cache=folder), library.array(X))
    assert len(list((tmp_path / "cache").iterdir())) == 1
    small = {"compile_cache": f"{tmp_path}/small".encode(), "compile_cache_bytes": 10}
    library.call(library.load_with(runtime, artifact, **small), library.array(X))
    assert list((tmp_path / "small").iterdir()) == []
    monkeypatch.chdir(tmp_path)
    function = library.load_with(runtime, artifact, compile_cache=b"beside")
    monkeypatch.chdir("/")
    library.call(function, library.array(X))
    assert len(list((tmp_path / "beside").iterdir())) == 1, "the folder is the one that was checked"
    (tmp_path / "cache").chmod(0o777)
    with pytest.raises(RunError, match="every user of this machine may write"):
        library.load_with(runtime, artifact, compile_cache=folder)

"""Programs in C++: that fork or exit while functions are called, whose weights change; and what public headers say."""

from __future__ import annotations

import os
import re
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
from jaxexp._kernel.function.paths import argument_paths
from kit import native
from kit import runtime as built
from kit.archive_files import make
from kit.command_line import started
from kit.saved import saved
from kit.weighted import bound
from tools import sanitize

pytestmark = [pytest.mark.cpp, pytest.mark.skipif(os.name == "nt", reason="forks")]

FORKED = (
    "a plugin was started before this process was forked, and its threads are in the parent only: fork before the "
    "first Runtime is made, or start a new program"
)


@pytest.fixture(scope="module")
def process(installed: Path, plugin: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """Runs tests/cpp/process.cpp in one of its ways, and returns what it says."""
    folder = tmp_path_factory.mktemp("process")
    functions = {
        "add": (lambda x: x + 1, np.zeros(3, np.float32)),
        "slow": (lambda x: jax.lax.fori_loop(0, 4, lambda _, y: jnp.tanh(y @ x), x), np.zeros((300, 300), np.float32)),
    }
    files = [saved(folder / name, *one, reader=built.READER) for name, one in functions.items()]
    program = built.program("process", folder)

    def run(how: str) -> str:
        done = subprocess.run([program, how, plugin, *files], capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, (how, done.returncode, done.stdout, done.stderr)
        return done.stdout

    return run


def test_forks(process: Callable[[str], str]) -> None:
    """The child gets an error wherever it needs a plugin, and can exit; copies of locks are never opened."""
    assert process("fork before") == "process: 2.000000\n" * 2
    *said, parent = process("fork").splitlines()
    assert parent == "parent: 2.000000, its child ended with 0"
    assert [line.split(":")[0] for line in said] == ["call", "array", "load", "new"]
    assert all(line.endswith(f": {FORKED}") for line in said)
    assert process("fork and return") == "parent: 2.000000, its child ended with 0\n"
    assert process("fork while compiling").splitlines() == [
        f"call: {FORKED}", "why: ''", "parent: 2.000000, its child ended with 0",
    ]  # fmt: skip


def test_exits(process: Callable[[str], str]) -> None:
    for how in ("static", "static and exit", "exit while calling", "exit while compiling"):
        for _ in range(2):
            assert process(how) == ("" if how == "static" else "exits\n"), how
    assert process("call while exiting") == "call: the plugin cannot be used any more: the process exits\n"


# Loads a function with a weight, calls it, changes its file as the third argument says, and calls it again.
CHANGING = """
import os, sys
from pathlib import Path
import numpy as np
from kit.run_c import Library
library, plugin, artifact, how = Library(Path(sys.argv[1])), Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4]
stable = int(how.startswith("stable"))
runtime = library.runtime(plugin)
function = library.load_with(runtime, artifact, stable=stable)
weights = artifact.with_suffix(".safetensors")
if how.endswith("named"):
    function = library.changed("with_weights", function, os.fsencode(weights))
x = library.array(np.ones(SIZE, np.float32))
def call():
    return library.read(library.call(function, x)[0])
first = call()
if "replaced" in how:
    other = weights.with_suffix(".new")
    other.write_bytes(bytes(weights.stat().st_size))
    other.rename(weights)
elif "shortened" in how:
    os.truncate(weights, 4096)
elif "overwritten" in how:
    with open(weights, "r+b") as file:
        file.seek(-4 * SIZE * SIZE, os.SEEK_END)
        file.write(bytes(4 * SIZE * SIZE))
print("the same" if np.array_equal(call(), first) else "another result")
"""
SIZE = 512


@pytest.fixture
def changing(installed: Path, plugin: Path, tmp_path: Path, subprocess_env: Any) -> Callable[[str], Any]:
    w = jnp.asarray(np.random.default_rng(0).standard_normal((SIZE, SIZE)), jnp.float32)
    x = jax.ShapeDtypeStruct((SIZE,), np.float32)
    exported = jaxexp.export(jax.jit(lambda p, x: p["w"] @ x))({"w": w}, x).bind({"w": w})
    code, library = CHANGING.replace("SIZE", str(SIZE)), next(installed.glob("lib*/libjaxexp-c.*"))

    def call(how: str) -> Any:
        for file in tmp_path.glob("f.*"):
            file.unlink()
        exported.save(tmp_path / "f.jaxexp", compatibility=built.READER)
        return started(code, library, plugin, tmp_path / "f.jaxexp", how, env=subprocess_env())

    return call


def test_weights_that_change(changing: Callable[[str], Any]) -> None:
    """Whoever replaces a file changes nothing, and to stable ones nobody can do anything; the guide says the rest."""
    for how in ("replaced", "stable, replaced", "stable, shortened", "stable, overwritten", "stable, shortened, named"):
        done = changing(how)
        assert (done.returncode, done.stdout) == (0, "the same\n"), (how, done.stderr)
    if sys.platform == "linux":  # as it maps files
        assert changing("overwritten").stdout == "another result\n"
        assert changing("shortened").returncode == -signal.SIGBUS


# --- the public headers: paths as in Python, and documented exceptions ----------------------------------------------


@pytest.fixture(scope="module")
def public(installed: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """Runs tests/cpp/public_api.cpp, and returns what it says."""
    program = built.program("public_api", tmp_path_factory.mktemp("public_api"))

    def run(*arguments: object) -> str:
        done = subprocess.run([program, *map(str, arguments)], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def test_what_programs_see(public: Callable[..., str], plugin: Path, tmp_path: Path) -> None:
    """Paths are those of Python, archives are read at any address, cases are shown."""
    loaded = bound()[0]
    loaded.save(tmp_path / "model.jaxexp", compatibility=built.READER, vjp_order=1)
    inspected = [value.path for value in jaxexp.inspect(tmp_path / "model.jaxexp").arguments]
    unbound, vjp = (argument_paths(f.in_tree) for f in (loaded.unbound, loaded.vjp()))
    count = len(loaded.weights)
    expected = {
        "artifact": inspected,
        "artifact.vjp": vjp,
        "function": inspected[count:],
        "unbound": unbound,
        "vjp": vjp[count:],
        "vjp.unbound": vjp,
        "in memory": unbound,  # which looks for no files
        "in memory, of a file": inspected[count:],
    }
    lines = [f"{kind} {path}\n" for kind, paths in expected.items() for path in paths]
    assert public("paths", plugin, tmp_path / "model.jaxexp") == "".join(lines)

    make(tmp_path / "a.zip", {f"f{n}": jaxexp.export(jax.jit(jnp.sin))(np.zeros(n, np.float32)) for n in (2, 3)})
    assert public("version").strip() == re.match("[0-9.]+", jaxexp.__version__)[0]
    missing = "f4: something else: the archive has no member 'f4'; it has 'f2', 'f3'\n"
    assert public("misaligned", tmp_path / "a.zip") == "f2: float32[2]\nf3: float32[3]\n" * 8 + missing

    (b,) = jaxexp.symbolic_shape("b")
    exported = jaxexp.export(jax.jit(lambda x: x.astype(jnp.int8)))(jax.ShapeDtypeStruct((b,), np.float32))
    cases = [
        {"args": (np.array([1, -2], np.float32),), "name": "two", "tolerance": (1e-3, 1.0)},
        {"args": (jaxexp.Drawn((2,), "float32", seed=7),), "name": "vjp", "vjp_order": 1, "tolerance": "dtype"},
        {"args": (np.zeros(100_000, np.float32),), "name": "large"},
    ]
    exported.save(tmp_path / "f.jaxexp", vjp_order=1, cases=cases)
    assert public("cases", tmp_path / "f.jaxexp").splitlines() == [
        "two: 0, XLA_FLAGS",
        "  argument float32[2] 0 0 128 63 0 0 0 192",
        "  result int8[2] 1 254 within 0.001, 1",
        "vjp: 1, XLA_FLAGS",
        "  argument float32[2] normal(0, 1) by 7",
        "  argument float0[2]",
        "  result float32[2] 0 0 0 0 0 0 0 0",
        "large: 0, XLA_FLAGS",
        "  argument float32[100000] 'large/arguments/0' of 'f.cases.safetensors'",
        "  result int8[100000] 'large/results/0' of 'f.cases.safetensors'",
    ]
    exported.save(tmp_path / "without.jaxexp", trailer=False)
    assert public("cases", tmp_path / "without.jaxexp") == ""


def test_errors_have_documented_types(public: Callable[..., str], plugin: Path, tmp_path: Path) -> None:
    bound()[0].save(model := tmp_path / "model.jaxexp", compatibility=built.READER, vjp_order=1)
    missing = tmp_path / "none"
    weights = (
        "expected a file of tensors (.safetensors), or an index of several (.safetensors.index.json), found nothing "
        "that can be opened (No such file or directory): name the file that has the weights"
    )
    said = dict(line.split(": ", 1) for line in public("errors", plugin, model, missing).splitlines())
    index = f"{missing}.safetensors.index.json"
    named = dict.fromkeys(("other weights", "loaded with", "stable and weights", "weights"), missing)
    for what, file in {**named, "an index": index}.items():
        assert said.pop(what) == f"WeightsError of '{file}': cannot read the weights '{file}': {weights}"
    assert "found something else" in (folder := said.pop("a folder"))
    assert folder.startswith(f"WeightsError of '{tmp_path}': ")
    assert said.pop("no name").startswith("WeightsError of '': ")
    member = "it is an artifact, which has no members: leave out the member 'f'"
    assert said.pop("a member of an artifact") == f"RunError: {member}"
    assert said.pop("no archive") == f"RunError: {model}: {member}"
    for what in ("an artifact", "an archive", "executables"):
        assert said.pop(what) == f"system_error: {missing}: No such file or directory"
    assert said.pop("a shape") == "RunError: there can be no array of shape [-1]"
    assert said.pop("too few numbers") == "RunError: float32[2] takes 8 bytes, and not 4"
    assert said.pop("stable") == "nothing"
    assert re.match(r"RunError: calling .*: args\[0\] must have rank 2, found rank 1", said.pop("a rank"))
    assert re.match("RunError: .* takes 1 argument beside its weights, and not 0", said.pop("no arguments"))
    no_variable = "takes no sizes, because it has no symbolic dimensions, found bach=8"
    assert no_variable in said.pop("sizes")
    assert not said


@pytest.mark.long(
    promise="functions that threads call make no error of memory, and lose none",
    sibling="test_symbolic_calls.py::test_threads_with_the_same_and_other_sizes",
)
def test_functions_called_by_threads(plugin: Path, tmp_path: Path) -> None:
    """Under AddressSanitizer, UBSan and LeakSanitizer; `make sanitize` does the same with ThreadSanitizer."""
    try:
        programs = native.sanitized(targets="functions")
    except native.UnavailableError as missing:
        pytest.skip(str(missing))
    assert sanitize.call_functions(programs, plugin, tmp_path) == 0

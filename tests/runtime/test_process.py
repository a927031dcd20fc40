"""Processes that fork or exit while functions are called, and files of weights that change while they are in use."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxexp
from kit import runtime as built
from kit.places import TESTS

pytestmark = [
    pytest.mark.slow(reason="builds the C++ runtime, which takes minutes"),
    pytest.mark.once(reason="what is built in C++ is the same for every pair of Python and JAX"),
    pytest.mark.skipif(os.name == "nt", reason="forks"),
]

FORKED = (
    "a plugin was started before this process was forked, and its threads are in the parent only: fork before the "
    "first Runtime is made, or start a new program"
)


@pytest.fixture(scope="module")
def process(installed: Path, plugin: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """Runs tests/cpp/process.cpp in one of its ways, and returns what it says."""
    folder = tmp_path_factory.mktemp("process")
    files = []
    for name, function, shape in (
        ("add", lambda x: x + 1, (3,)),
        ("slow", lambda x: jax.lax.fori_loop(0, 4, lambda _, y: jnp.tanh(y @ x), x), (300, 300)),
    ):
        exported = jaxexp.export(jax.jit(function))(jax.ShapeDtypeStruct(shape, np.float32))
        files.append(folder / name)
        files[-1].write_bytes(exported.serialize(compatibility=built.READER))
    program = built.program("process", folder)

    def run(how: str) -> str:
        done = subprocess.run([program, how, plugin, *files], capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, (how, done.returncode, done.stdout, done.stderr)
        return done.stdout

    return run


class TestForks:
    def test_before_the_first_runtime(self, process: Callable[[str], str]) -> None:
        assert process("fork before") == "process: 2.000000\n" * 2

    def test_afterwards(self, process: Callable[[str], str]) -> None:
        """The child gets an error wherever it needs a plugin, and can exit."""
        *said, parent = process("fork").splitlines()
        assert parent == "parent: 2.000000, its child ended with 0"
        assert [line.split(":")[0] for line in said] == ["call", "array", "load", "new"]
        assert all(line.endswith(f": {FORKED}") for line in said)

    def test_a_child_that_destroys_what_it_inherited(self, process: Callable[[str], str]) -> None:
        assert process("fork and return") == "parent: 2.000000, its child ended with 0\n"

    def test_while_another_thread_compiles(self, process: Callable[[str], str]) -> None:
        """The child's copies of locks are never opened."""
        assert process("fork while compiling").splitlines() == [
            f"call: {FORKED}", "why: ''", "parent: 2.000000, its child ended with 0",
        ]  # fmt: skip


class TestExit:
    @pytest.mark.parametrize("how", ["static", "static and exit", "exit while calling", "exit while compiling"])
    def test_nothing_crashes(self, process: Callable[[str], str], how: str) -> None:
        for _ in range(8):
            assert process(how) == ("" if how == "static" else "exits\n")

    def test_a_call_by_a_static_object(self, process: Callable[[str], str]) -> None:
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


class TestChangingWeights:
    @pytest.fixture
    def call(self, installed: Path, plugin: Path, tmp_path: Path) -> Callable[[str], subprocess.CompletedProcess[str]]:
        w = jnp.asarray(np.random.default_rng(0).standard_normal((SIZE, SIZE)), jnp.float32)
        x = jax.ShapeDtypeStruct((SIZE,), np.float32)
        exported = jaxexp.export(jax.jit(lambda p, x: p["w"] @ x))({"w": w}, x).bind({"w": w})
        exported.save(tmp_path / "f.jaxexp", compatibility=built.READER)
        code = CHANGING.replace("SIZE", str(SIZE))
        path = os.pathsep.join([*filter(None, [os.environ.get("PYTHONPATH")]), str(TESTS)])
        library = next(installed.glob("lib*/libjaxexp-c.*"))

        def call(how: str) -> subprocess.CompletedProcess[str]:
            command = [sys.executable, "-c", code, library, plugin, tmp_path / "f.jaxexp", how]
            return subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True)

        return call

    @pytest.mark.parametrize(
        "how", ["replaced", "stable, replaced", "stable, shortened", "stable, overwritten", "stable, shortened, named"]
    )
    def test_harmless(self, call: Callable[[str], subprocess.CompletedProcess[str]], how: str) -> None:
        done = call(how)
        assert (done.returncode, done.stdout) == (0, "the same\n"), done.stderr

    @pytest.mark.skipif(sys.platform != "linux", reason="as Linux maps files")
    def test_what_happens_to_mapped_files(self, call: Callable[[str], subprocess.CompletedProcess[str]]) -> None:
        """The guide says so."""
        assert call("overwritten").stdout == "another result\n"
        assert call("shortened").returncode == -signal.SIGBUS

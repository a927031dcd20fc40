"""The public headers as C++ programs use them: paths as in Python, and documented exceptions."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxexp
from jaxexp._kernel.function.paths import argument_paths
from kit import runtime as built
from kit.weighted import bound

pytestmark = [
    pytest.mark.slow(reason="builds the C++ runtime, which takes minutes"),
    pytest.mark.once(reason="what is built in C++ is the same for every pair of Python and JAX"),
]


@pytest.fixture(scope="module")
def program(installed: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """Runs tests/cpp/public_api.cpp, and returns what it says."""
    program = built.program("public_api", tmp_path_factory.mktemp("public_api"))

    def run(*arguments: object) -> str:
        done = subprocess.run([program, *map(str, arguments)], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


@pytest.fixture
def model(tmp_path: Path) -> Path:
    bound()[0].save(tmp_path / "model.jaxexp", compatibility=built.READER, vjp_order=1)
    return tmp_path / "model.jaxexp"


def test_paths_are_those_of_python(program: Callable[..., str], plugin: Path, model: Path) -> None:
    loaded = jaxexp.load(model)
    inspected = [value.path for value in jaxexp.inspect(model).arguments]
    unbound, vjp = (argument_paths(f.in_tree) for f in (loaded.unbound, loaded.vjp()))
    assert (inspected[0], inspected[-1], unbound[-1], vjp[-2]) == (
        "weights['head']",
        "args[0]",
        "args[1]",
        "args[7]",
    )
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
    assert program("paths", plugin, model) == "".join(lines)


def test_errors_have_documented_types(program: Callable[..., str], plugin: Path, model: Path, tmp_path: Path) -> None:
    missing = tmp_path / "none"
    weights = (
        "expected a file of tensors (.safetensors), or an index of several (.safetensors.index.json), found nothing "
        "that can be opened (No such file or directory): name the file that has the weights"
    )
    said = dict(line.split(": ", 1) for line in program("errors", plugin, model, missing).splitlines())
    for what in ("other weights", "loaded with", "stable and weights", "weights"):
        assert said.pop(what) == f"WeightsError of '{missing}': cannot read the weights '{missing}': {weights}"
    index = f"{missing}.safetensors.index.json"
    assert said.pop("an index") == f"WeightsError of '{index}': cannot read the weights '{index}': {weights}"
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
    no_variable = "is compiled for sizes of at least 1 of no dimension variable, and not for bach=8"
    assert no_variable in said.pop("sizes")
    assert not said


def test_archives_at_any_address(program: Callable[..., str], tmp_path: Path) -> None:
    with jaxexp.Archive.create(tmp_path / "a.zip") as archive:
        for size in (2, 3):
            archive.add(f"f{size}", jaxexp.export(jax.jit(jnp.sin))(np.zeros(size, np.float32)))
    missing = "f4: something else: the archive has no member 'f4'; it has 'f2', 'f3'\n"
    assert program("misaligned", tmp_path / "a.zip") == "f2: float32[2]\nf3: float32[3]\n" * 8 + missing


def test_the_version(program: Callable[..., str]) -> None:
    assert program("version").strip() == re.match("[0-9.]+", jaxexp.__version__)[0]


def test_cases(program: Callable[..., str], tmp_path: Path) -> None:
    (b,) = jaxexp.symbolic_shape("b")
    exported = jaxexp.export(jax.jit(lambda x: x.astype(jnp.int8)))(jax.ShapeDtypeStruct((b,), np.float32))
    cases = [
        {"args": (np.array([1, -2], np.float32),), "name": "two", "tolerance": (1e-3, 1.0)},
        {"args": (jaxexp.Drawn((2,), "float32", seed=7),), "name": "vjp", "vjp_order": 1, "tolerance": "dtype"},
        {"args": (np.zeros(100_000, np.float32),), "name": "large"},
    ]
    exported.save(tmp_path / "f.jaxexp", vjp_order=1, cases=cases)
    assert program("cases", tmp_path / "f.jaxexp").splitlines() == [
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
    jaxexp.load(tmp_path / "f.jaxexp").save(tmp_path / "without.jaxexp", trailer=False)
    assert program("cases", tmp_path / "without.jaxexp") == ""

"""`jaxexp check --bisect`: which flag or pass of XLA makes a case differ."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np
import pytest

import jaxexp
from jaxexp._api.cases import machine
from jaxexp._cli.commands.check import FLAG, LLVM, PASS, bisected

# XLA makes exp(x) * exp(-x) one exp: in its pass algsimp. Without it, inf * 0 is NaN.
RECORD = """
import os, sys
import jax, jax.numpy as jnp, numpy as np
import jaxexp

jax.devices()
os.environ["XLA_FLAGS"] = sys.argv[2]  # what the case says of flags
f = jax.jit(lambda x: {"product": jnp.exp(x) * jnp.exp(-x), "sine": jnp.sin(x)})
x = np.array([1, 100, 2], np.float32)
jaxexp.export(f)(jax.ShapeDtypeStruct((3,), np.float32)).save(sys.argv[1], cases=[{"args": (x,), "name": "large"}])
"""
pytestmark = pytest.mark.jax
WITHOUT = "--xla_disable_hlo_passes=algsimp"


def record(path: Path, flags: str, said: str) -> None:
    environment = {**os.environ, "XLA_FLAGS": flags}
    subprocess.run([sys.executable, "-c", textwrap.dedent(RECORD), path, said], check=True, env=environment)


@pytest.mark.long(
    promise="checks in processes find the pass that makes a case differ",
    sibling="test_bisect_command.py::test_the_first_one_is_named",
)
@pytest.mark.processes(reason="checks in processes of their own")
def test_a_pass(tmp_path: Path, run: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_FLAGS", "")
    file = tmp_path / "f.jaxexp"
    record(file, WITHOUT, "")
    status, out, _ = run("check", file, "--bisect", "--workers", "2", "--junit", tmp_path / "report.xml")
    if jax.__version_info__ >= (0, 11) and status == 0:
        pytest.skip("this XLA makes no exp of two without algsimp, either")
    assert status == 1
    assert "large without XLA's pass algsimp: 2 results with the same bits" in out
    assert "pass algsimp" in (tmp_path / "report.xml").read_text()


class Fake:
    """Checks whose outcome depends on XLA_FLAGS; None if a process ends."""

    def __init__(self, exported: jaxexp.Exported, verdict_of: Callable[[list[str]], str | None]) -> None:
        self.exported, self.verdict_of, self.flags = exported, verdict_of, list[str]()

    def __call__(self, flags: str, seconds: float | None) -> jaxexp.CheckReport | None:
        self.flags.append(flags)
        for flag in flags.split():
            if flag.startswith("--xla_dump_to="):
                self.dump(Path(flag.partition("=")[2]))
        return self.report(self.verdict_of(flags.split()))

    def dump(self, folder: Path) -> None:
        names = [
            "module_0000.jit_f.0000.simplification.after_pipeline-start.before_algsimp.txt",
            "module_0000.jit_f.0002.after.after_fusion.before_copy-insertion.txt",
            "module_0000.jit_f.0001.simplification.after_algsimp.before_cse.txt",
            "module_0000.jit_f.0003.copy-insertion.after_adding_special-case_copies.txt",
            "module_0001.jit_f.0001.simplification.after_algsimp.before_cse.txt",
            "module_0000.x.0001.p.after_evil --xla_flag.before_y.cpu_after_optimizations.txt",
            "module_0000.jit_f.before_optimizations.txt",
        ]
        for name in names:
            (folder / name).touch()

    def report(self, verdict: str | None) -> jaxexp.CheckReport | None:
        if verdict is None:
            return None
        right, wrong = self.exported.check(tolerance=1e9), self.exported.check(tolerance=0)
        return right if verdict == "close" else wrong


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> jaxexp.Exported:
    file = tmp_path_factory.mktemp("bisect") / "f.jaxexp"
    jaxexp.export(jax.jit(lambda x: x * 2))(jax.ShapeDtypeStruct((3,), "float32")).save(
        file, cases=[(np.ones(3, np.float32),)]
    )
    loaded = jaxexp.load(file)
    text = loaded.mlir_module().replace("dense<2.000000e+00>", "dense<2.500000e+00>")
    return dataclasses.replace(loaded, mlir_module_serialized=text.encode())


def test_what_is_tried(exported: jaxexp.Exported, monkeypatch: pytest.MonkeyPatch) -> None:
    """Flags that are new here, each alone and all; then passes in their order; then LLVM. Nothing of the recording."""
    monkeypatch.setenv("XLA_FLAGS", "--xla_a=1 --xla_b=2 --xla_disable_hlo_passes=dce")
    fake = Fake(exported, lambda flags: "differs")
    report = exported.check(tolerance=0)
    for case in report.cases:
        case.recorded["XLA_FLAGS"] = "--xla_a=1 --xla_dump_to=/somewhere"  # type: ignore[index]  # a dict
    (found,) = bisected(report, fake, 2)
    assert (found.kind, found.tried, found.unusable) == (None, 6, 0)
    assert str(found) == "0 differs also without each flag and each pass of XLA's (6 checks)"
    assert "--xla_dump_to" in fake.flags[0]
    assert sorted(fake.flags[1:]) == sorted(
        [
            "--xla_a=1 --xla_disable_hlo_passes=dce",
            "--xla_a=1 --xla_b=2",
            "--xla_a=1",
            "--xla_a=1 --xla_b=2 --xla_disable_hlo_passes=dce,algsimp",
            "--xla_a=1 --xla_b=2 --xla_disable_hlo_passes=dce,fusion",
            "--xla_a=1 --xla_b=2 --xla_disable_hlo_passes=dce --xla_backend_optimization_level=0",
        ]
    )


def test_the_first_one_is_named(exported: jaxexp.Exported, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_FLAGS", "")
    for without, kind, name, tried, unusable in (
        ("--xla_disable_hlo_passes=algsimp", PASS, "algsimp", 1, 0),
        ("--xla_disable_hlo_passes=fusion", PASS, "fusion", 2, 1),
        ("--xla_backend_optimization_level=0", LLVM, "--xla_backend_optimization_level=0", 3, 2),
    ):
        fake = Fake(exported, lambda flags, without=without: "close" if without in flags else None)
        (found,) = bisected(exported.check(tolerance=0), fake, 1)
        assert (found.kind, found.name, found.tried, found.unusable) == (kind, name, tried, unusable)
        assert found.without == "within the tolerance; result by at most 0.5, 2,097,152 ulps"
    monkeypatch.setenv("XLA_FLAGS", "--xla_a=1 --xla_b=2")
    fake = Fake(exported, lambda flags: "differs" if "--xla_b=2" in flags else "close")
    (found,) = bisected(exported.check(tolerance=0), fake, 1)
    assert (found.kind, found.name, found.tried) == (FLAG, "--xla_b=2", 2)

    def check(flags: str, seconds: float | None) -> jaxexp.CheckReport | None:
        raise AssertionError

    assert bisected(exported.check(tolerance=1e9), check, 1) == (), "nothing to bisect"


def test_flags_as_xla_takes_them_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    both = """--xla_a=1 --xla_b="one two" --xla_c='3 4'\n--xla_d"""
    expected = ["--xla_a=1", '--xla_b="one two"', "--xla_c='3 4'", "--xla_d"]
    assert machine.split(both) == expected
    (tmp_path / "flags").write_text(both)
    for flags in (both, str(tmp_path / "flags")):
        monkeypatch.setenv("XLA_FLAGS", flags)
        assert machine.flags() == expected

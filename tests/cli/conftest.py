"""What tests of the command line look at, and how they run it."""

from __future__ import annotations

import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import jaxexp
from jaxexp._cli import start
from kit.command_line import HOSTILE
from kit.corpus import arr, mesh, spec


@pytest.fixture(scope="session")
def folder(tmp_path_factory) -> Path:
    """Artifacts of all kinds, to be read only."""
    folder = tmp_path_factory.mktemp("artifacts")

    def scores(weights, x):
        return jnp.linalg.cholesky(weights["w"].T @ weights["w"]) @ (x @ weights["w"] + weights["b"]).T

    weights = {"w": arr(4, 3), "b": arr(3)}
    x = jax.ShapeDtypeStruct(jaxexp.symbolic_shape("batch, 4", constraints=["batch >= 2"]), "float32")
    exported = jaxexp.export(jax.jit(scores))(weights, x)
    exported.save(folder / "scores.jaxexp", vjp_order=1, metadata={"run": [1, 2], "by": "me"})
    exported.save(folder / "untrailed.jaxexp", trailer=False)

    sharding = NamedSharding(mesh((4, 2), ("x", "y")), P("x", None))
    jaxexp.export(jax.jit(lambda a: {"b": a + 1, "sum": a.sum()}, in_shardings=(sharding,)))(spec((8, 4))).save(
        folder / "sharded.jaxexp"
    )

    def plus(x):
        return x + 1

    plus.__name__ = HOSTILE
    jaxexp.export(jax.jit(plus))(1.0).save(folder / "hostile.jaxexp", metadata={"\x1b]0;title\x07": "\x1b[2J"})
    return folder


@pytest.fixture(scope="session")
def damaged(folder, tmp_path_factory) -> Path:
    bad = tmp_path_factory.mktemp("damaged")
    blob = bytearray((folder / "scores.jaxexp").read_bytes())
    (bad / "cut").write_bytes(blob[:-100])
    blob[len(blob) // 2] ^= 1
    (bad / "flipped").write_bytes(blob)
    (bad / "empty").touch()
    (bad / "text").write_text("no artifact at all, but long enough to be looked at")
    return bad


@pytest.fixture
def run(capsys):
    """Runs a command in this process: its status, stdout and stderr."""

    def run(*arguments: object) -> tuple[int, str, str]:
        status = start.main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        return status, out, err

    return run


@pytest.fixture
def good(run):
    """Runs a command that has to succeed: its stdout."""

    def good(*arguments: object) -> str:
        status, out, err = run(*arguments)
        assert (status, err) == (0, "")
        return out

    return good


@pytest.fixture
def refused(run):
    """Runs a command that has to fail with one line on stderr, and none on stdout: that line."""

    def refused(said: str, *arguments: object, status: int = 1) -> str:
        found, out, err = run(*arguments)
        assert (found, out, err.count("\n")) == (status, "", 1), (arguments, out, err)
        assert said in err and "not expected" not in err, err
        return err

    return refused


@pytest.fixture
def lines_on(run, monkeypatch):
    """Runs a command as on a terminal with so many columns, without colours: its lines, none of which is longer."""

    def lines_on(columns: int, *arguments: object, status: int | None = 0) -> list[str]:
        with monkeypatch.context() as patch:
            patch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
            patch.setenv("COLUMNS", str(columns))
            patch.setenv("NO_COLOR", "1")
            found, out, _ = run(*arguments)
        assert status in (None, found), arguments
        assert max(map(len, out.splitlines())) <= columns, arguments
        return out.splitlines()

    return lines_on


@pytest.fixture(scope="session")
def fleet(folder, tmp_path_factory) -> Path:
    """An archive, to be read only."""
    place = tmp_path_factory.mktemp("fleet")
    (place / "models" / "inner").mkdir(parents=True)
    for name, source in {"b8": "scores", "inner/b16": "sharded", "inner/again": "scores", "h": "hostile"}.items():
        (place / "models" / f"{name}.jaxexp").write_bytes((folder / f"{source}.jaxexp").read_bytes())
    (place / "models" / ".hidden").write_text("not packed")
    assert (
        start.main(["pack", str(place / "fleet.zip"), str(place / "models"), "-m", 'commit="0e3c"', "-m", "v=3"]) == 0
    )
    return place / "fleet.zip"

"""The option `--import`: modules that register the classes in artifacts."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import pytest

from kit import wire
from kit.goldens import blob_of

MODULE = """
import collections
import jaxexp

Pt = collections.namedtuple("Pt", "x y")
jaxexp.register_namedtuple_serialization(Pt, serialized_name="corpus.{name}")
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: Any) -> Path:
    """A folder with an artifact and with the module that has its class; it is the current one."""
    blob = bytearray(blob_of("0.12.0.1", "namedtuple_tree"))
    for tree in ("in_tree.children.0.children.0", "out_tree"):
        if wire.read(blob, f"{tree}.custom_name") == "corpus.Pt":
            wire.write(blob, f"{tree}.custom_name", "corpus.Im")
    (tmp_path / "point.bin").write_bytes(blob)
    (tmp_path / "my_types.py").write_text(MODULE.format(name="Im"))
    (tmp_path / "broken_types.py").write_text("import jaxexp_has_no_such_module\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    return tmp_path


def test_errors(place: Path, run: Any) -> None:
    for name, status, said in (
        ("no_such", 2, "--import no_such: there is no module of this name"),
        ("my_types.py", 2, "there is no module of this name: say --import my_types."),
        ("./my_types", 2, "--import ./my_types: there is no module of this name"),
        ("broken_types", 1, "--import broken_types: ModuleNotFoundError: No module named 'jaxexp_has_no_such_module'"),
    ):
        found, out, err = run("compat", "--import", name, "point.bin")
        assert (found, out, err.count("\n")) == (status, "", 1)
        assert said in err


@pytest.mark.processes(reason="a registration lasts as long as its process")
def test_classes_are_known(place: Path, subprocess_env: Any) -> None:
    def jaxexp(*arguments: str) -> str:
        # As the installed command, which does not have the current folder on its path.
        code = "import sys; sys.path.remove(''); from jaxexp._cli import start; sys.exit(start.main())"
        command = [sys.executable, "-c", code, *arguments]
        return subprocess.run(command, env=subprocess_env(), capture_output=True, text=True, check=True).stdout

    def generic(*arguments: str) -> list[list[str]]:
        return [one["generic_nodes"] for one in json.loads(jaxexp("compat", "--json", *arguments))]

    (place / "again.bin").write_bytes((place / "point.bin").read_bytes())
    assert generic(".") == [["corpus.Im"]] * 2
    assert generic("--import", "my_types", ".") == [[]] * 2
    assert generic("--import", "my_types", "--workers", "2", ".") == [[]] * 2
    assert "GenericNode" not in jaxexp("inspect", "--import", "my_types", "--jaxpr", "point.bin")
    (place / "policy.toml").write_text("unregistered_nodes = false\n")
    assert "2 of 2" in jaxexp("verify", "--import", "my_types", "--policy", "policy.toml", ".")
    jaxexp("migrate", "--import", "my_types", "point.bin", "new.jaxexp")
    jaxexp("view", "--import", "my_types", "point.bin")
    jaxexp("run", "--random", "point.bin")  # with generic nodes
    jaxexp("run", "--random", "--import", "my_types", "point.bin")
    assert jax.__version__ in jaxexp("compat", "--import", "my_types", "new.jaxexp")


def test_a_journal_remembers_what_was_imported(place: Path, run: Any) -> None:
    assert run("compat", "--journal", "j", "point.bin")[0] == 0
    (place / "harmless.py").write_text("")
    status, _, err = run("compat", "--journal", "j", "--import", "harmless", "point.bin")
    assert status == 1
    assert "the same pass as now, with imports ['harmless']" in err

"""What commands import: modules of `--import`, which register classes of artifacts; nothing of the current folder."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxexp
from kit import in_forks, wire
from kit.goldens import blob_of

pytestmark = pytest.mark.jax
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
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    return tmp_path


@pytest.mark.processes(reason="a registration lasts as long as its process")
def test_classes_are_known(place: Path, subprocess_env: Any) -> None:
    (place / "again.bin").write_bytes((place / "point.bin").read_bytes())
    (place / "policy.toml").write_text("unregistered_nodes = false\n")
    given = "--import", "my_types"
    commands = {
        "unknown": ["compat", "--json", "."], "known": ["compat", "--json", *given, "."],
        "verify": ["verify", *given, "--policy", "policy.toml", "."],
        "migrate": ["migrate", *given, "point.bin", "new.jaxexp"], "view": ["view", *given, "point.bin"],
        "run with generic nodes": ["run", "--random", "point.bin"], "run": ["run", "--random", *given, "point.bin"],
    }  # fmt: skip
    # As the installed command, which does not have the current folder on its path.
    programs = {
        name: "import sys; sys.path.remove(''); " + in_forks.COMMAND.format(command)
        for name, command in commands.items()
    }
    found = in_forks.run(programs, subprocess_env(), place)
    assert {name: (status, err) for name, (status, _, err) in found.items()} == dict.fromkeys(commands, (0, ""))
    out = {name: text for name, (_, text, _) in found.items()}
    generic = {name: [one["generic_nodes"] for one in json.loads(out[name])] for name in ("unknown", "known")}
    assert generic == {"unknown": [["corpus.Im"]] * 2, "known": [[]] * 2}
    assert "2 of 2" in out["verify"]
    assert (place / "new.jaxexp").exists()


@pytest.mark.long(promise="workers import the modules, too", sibling="test_importing.py::test_classes_are_known")
@pytest.mark.processes(reason="workers of a command")
def test_classes_are_known_to_workers(place: Path, subprocess_env: Any) -> None:
    command = in_forks.COMMAND.format(["compat", "--json", "--import", "my_types", "--workers", "2", "point.bin"])
    status, out, err = in_forks.run({"known": command}, subprocess_env(), place)["known"]
    assert (status, err, json.loads(out)[0]["generic_nodes"]) == (0, "", [])


def test_a_journal_remembers_what_was_imported(place: Path, good: Any, refused: Any) -> None:
    good("compat", "--journal", "j", "point.bin")
    (place / "harmless.py").write_text("")
    command = "compat", "--journal", "j", "--import", "harmless", "point.bin"
    refused("the same pass as now, with imports ['harmless']", *command)


NAMES = ("jaxexp", "multiprocessing", "concurrent", "numpy", "click")
COMMANDS = {
    "check": ["check", "--workers", "2"],
    "compat": ["compat", "--workers", "2"],
    "python": ["check", "--python", sys.executable],
    "migrate": ["migrate", "--workers", "2", ".", "out"],
}


@pytest.mark.wide(one_in=4, promise="no command runs code of the current folder")
@pytest.mark.processes(reason="the workers of a command")
@pytest.mark.parametrize("name", COMMANDS)
def test_no_code_of_the_current_folder_runs(name: str, tmp_path: Path) -> None:
    exported = jaxexp.export(jax.jit(jnp.negative))(jax.ShapeDtypeStruct((2,), np.float32))
    for file in ("a.jaxexp", "b.jaxexp"):
        exported.save(tmp_path / file, cases=[(np.ones(2, np.float32),)])
    for module in NAMES:
        (tmp_path / f"{module}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()\nraise ImportError")
    # As the console script, whose folder is in its path, and not the current one.
    script = tmp_path / "bin" / "jaxexp"
    script.parent.mkdir()
    script.write_text(
        "import sys\nfrom jaxexp._cli.start import main\nif __name__ == '__main__':\n    sys.exit(main())\n"
    )
    command = [sys.executable, script, *COMMANDS[name]]
    command += [] if name == "migrate" else ["a.jaxexp", "b.jaxexp"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert not (tmp_path / "ran").exists()
    assert done.returncode == 0, done.stderr

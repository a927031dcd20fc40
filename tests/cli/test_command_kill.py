"""Commands that are killed while they write leave old files or new ones, and can be repeated."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

import jaxexp
from kit.archives import blob
from kit.places import WORKERS
from kit.weighted import bound

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="forks the processes that it kills"),
    pytest.mark.processes(reason="kills some"),
]

COMMANDS = {
    "pack": "pack --force old.zip models",
    "migrate": "migrate --force --to 0.7.2 models/1.jaxexp models/2.jaxexp",
    "migrate in place": "migrate --force --to 0.7.2 models/1.jaxexp models/1.jaxexp",
    "migrate a member": "migrate --force weighted.zip::m out/there.jaxexp",
    "migrate many": "migrate --to 0.7.2 models new --journal journal",
    "migrate members": "migrate --force weighted.zip out --journal journal",
    "migrate many in place": "migrate --force --to 0.7.2 models models --journal journal",
    "unpack": "unpack --force weighted.zip -d out",
}


@pytest.fixture(scope="module")
def before(tmp_path_factory) -> Path:
    """Artifacts, archives, and a folder in which something else is written over."""
    folder = tmp_path_factory.mktemp("killed") / "before"
    (folder / "models" / "inner").mkdir(parents=True)
    for number, name in enumerate(("1", "2", "inner/3")):
        constant = np.random.default_rng(number).standard_normal((50, 50)).astype(np.float32)
        jaxexp.export(jax.jit(lambda x, c=constant: x @ c))(constant).save(folder / "models" / f"{name}.jaxexp")
    with jaxexp.Archive.create(folder / "old.zip") as archive:
        archive.add("old", blob())
    with jaxexp.Archive.create(folder / "weighted.zip") as archive:
        archive.add("a", blob())
        archive.add("m", bound()[0])
    (folder / "out").mkdir()
    for name in ("a", "m", "there"):
        (folder / "out" / f"{name}.jaxexp").write_bytes(blob(version=7))
    return folder


@pytest.mark.wide(one_in=8, promise="a command that is killed leaves old files or new ones, and can be repeated")
@pytest.mark.parametrize("name", COMMANDS)
def test_killed_at_any_byte(name: str, before: Path, tmp_path: Path, subprocess_env, good, monkeypatch) -> None:
    command, after = COMMANDS[name].split(), tmp_path / "after"
    shutil.copytree(before, after)
    monkeypatch.chdir(after)
    good(*command)
    worker = WORKERS / "command_kill.py"
    python = [sys.executable, "-W", "ignore", worker, tmp_path / "there", before, after, "5", "0", *command]
    done = subprocess.run(python, env=subprocess_env(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr

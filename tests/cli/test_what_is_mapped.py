"""Whoever cuts a mapped file ends the process: commands map weights while functions use them, and nothing else."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np
import pytest

import jaxexp
from jaxexp import _native
from jaxexp._fleet.passes.migrate_many import Written
from jaxexp._kernel.io import files
from jaxexp._weights.files import places

X = np.ones(20_000, np.float32)
WEIGHTS = {"a.safetensors", "b.safetensors"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two functions with weights, and cases with arrays in files."""
    folder = tmp_path / "artifacts"
    folder.mkdir()
    exported = jaxexp.export(jax.jit(lambda w, x: w * x))(X, X).bind(X)
    for name in ("a", "b"):
        exported.save(folder / f"{name}.jaxexp", cases=[(X,)])
    return folder


@pytest.fixture
def mapped(folder: Path, monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The names of the files that were mapped since."""
    names = {path.stat().st_ino: path.name for path in folder.iterdir()}
    found: set[str] = set()
    artifact, tensors = files.mapped, places.mapped

    def artifact_seen(path: str) -> files.Mapped:
        found.add(os.fspath(path))
        return artifact(path)

    def tensors_seen(descriptor: int) -> places.Bytes:
        found.add(names.get(os.fstat(descriptor).st_ino, "another file"))
        return tensors(descriptor)

    monkeypatch.setattr(files, "mapped", artifact_seen)
    monkeypatch.setattr(places, "mapped", tensors_seen)
    return found


def test_commands(folder: Path, mapped: set[str], good: Callable[..., str]) -> None:
    """Weights in an archive are mapped, and those that are there already are compared, and not mapped."""
    for command, allowed in (
        ("ls {f}", set()), ("ls --long {f}", set()), ("inspect {f}/a.safetensors", set()),
        ("diff {f}/a.jaxexp {f}/b.jaxexp --only signature", set()), ("verify {f}", set()),
        ("pack {t}/all.zip {f}", set()), ("unpack {t}/all.zip -d {t}/out", set()),
        ("unpack {t}/all.zip -d {t}/out --force", set()), ("migrate --to max {f}/a.jaxexp {f}/c.jaxexp", set()),
        ("check {f}", WEIGHTS), ("record {f}/b.jaxexp --random --seed 3", WEIGHTS),
    ):  # fmt: skip
        mapped.clear()
        good(*command.format(f=folder, t=folder.parent).split())
        assert mapped <= allowed, command
    mapped.clear()
    blob = (folder / "a.jaxexp").read_bytes()
    written = Written(str(folder / "a.jaxexp"), len(blob), _native.digest(blob).hex())  # as a journal says it
    assert written.is_there(str(folder / "a.jaxexp"))
    assert mapped == set()

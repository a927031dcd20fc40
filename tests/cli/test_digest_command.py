"""`jaxexp digest`, and the digests and paths that other commands show."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxexp
from jaxexp._fleet.passes import digests_many
from jaxexp._fleet.places.digests import digests_of
from jaxexp._fleet.places.source import Source
from kit.weighted import bound

pytestmark = pytest.mark.jax
X = np.ones((4, 4), np.float32)


@pytest.fixture
def models(tmp_path: Path) -> Path:
    exported = jaxexp.export(jax.jit(lambda x: jnp.sin(x) @ x))(X)
    exported.save(tmp_path / "full.jaxexp")
    exported.save(tmp_path / "names.jaxexp", locations="names")
    jaxexp.export(jax.jit(lambda x: jnp.cos(x) @ x))(X).save(tmp_path / "other.jaxexp")
    return tmp_path


def test_equal_programs_have_equal_meanings(models: Path, good: Any) -> None:
    full = models / "full.jaxexp"
    lines = good("digest", full, models / "names.jaxexp").splitlines()
    assert [line.split()[-1] for line in lines[0::3]] == [str(full), str(models / "names.jaxexp")]
    assert (lines[1], lines[2]) == (f"  SHA-256  {hashlib.sha256(full.read_bytes()).hexdigest()}", lines[5])
    assert lines[1] != lines[4]
    digests = jaxexp.digests(full)
    out = good("inspect", "--digests", full)
    assert digests.sha256 in out and digests.meaning in out
    assert digests.meaning not in good("inspect", full)
    (found,) = json.loads(good("inspect", "--digests", "--json", full))
    assert (found["sha256"], found["meaning"]) == (digests.sha256, digests.meaning)


def test_folders_and_archives(models: Path, good: Any, run: Any) -> None:
    found = {Path(one["file"]).name: one for one in json.loads(good("digest", "--json", models))}
    assert found.keys() == {"full.jaxexp", "names.jaxexp", "other.jaxexp"}
    assert found["full.jaxexp"]["meaning"] == found["names.jaxexp"]["meaning"] != found["other.jaxexp"]["meaning"]
    good("pack", models / "all.zip", models / "full.jaxexp", models / "other.jaxexp")
    packed = json.loads(good("digest", "--json", models / "all.zip"))
    assert [(one["sha256"], one["meaning"]) for one in packed] == [
        (found[name]["sha256"], found[name]["meaning"]) for name in ("full.jaxexp", "other.jaxexp")
    ]
    (models / "damaged.jaxexp").write_bytes((models / "full.jaxexp").read_bytes()[:-50])
    status, out, err = run("digest", models / "names.jaxexp", models / "damaged.jaxexp")
    assert status == 1
    assert found["names.jaxexp"]["meaning"] in out
    assert "damaged.jaxexp" in err
    status, out, err = run("digest", "--json", models / "damaged.jaxexp", models / "names.jaxexp")
    whole, damaged = json.loads(out)
    assert (status, err.count("\n"), whole["meaning"]) == (1, 1, found["names.jaxexp"]["meaning"])
    assert damaged == {"file": str(models / "damaged.jaxexp"), "error": err.removeprefix("jaxexp: ").rstrip("\n")}


@pytest.mark.processes(reason="workers are processes")
def test_workers_and_a_journal(models: Path, good: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good("pack", models / "all.zip", models / "other.jaxexp")
    model, _ = bound()
    model.save(models / "bound.jaxexp")
    with_journal = "digest", "--json", "--journal", tmp_path / "journal", models
    alone = good("digest", "--json", models)
    assert good(*with_journal, "--workers", 2) == alone
    read: list[str] = []

    def noted(source: Source) -> Any:
        read.append(Path(source.name).name)
        return digests_of(source)

    monkeypatch.setattr(digests_many, "digests_of", noted)
    assert (good(*with_journal), read) == (alone, [])
    # Weights beside an artifact are a part of its meaning.
    (models / "bound.safetensors").touch()
    assert (good(*with_journal), read) == (alone, ["bound.jaxexp"])


def test_paths_are_shown_and_left_out(models: Path, good: Any) -> None:
    (found,) = json.loads(good("inspect", "--json", models / "full.jaxexp"))
    paths = found["absolute_paths"]
    assert __file__ in paths
    assert "source paths" in good("inspect", models / "full.jaxexp")
    assert "source paths" not in good("inspect", models / "names.jaxexp")
    files = json.loads(good("verify", "--json", models))["files"]
    shown = {Path(one["file"]).name: one["absolute_paths"] for one in files}
    assert (shown["full.jaxexp"], shown["names.jaxexp"]) == (paths, [])
    assert "whole  names source files" in good("verify", models / "full.jaxexp")
    assert "names source files" not in good("verify", models / "names.jaxexp")
    good("migrate", "--locations", "names", models / "full.jaxexp", models / "new.jaxexp")
    assert jaxexp.inspect(models / "new.jaxexp").absolute_paths == ()
    good("migrate", "--locations", "none", models, models / "all")
    for path in (models / "all").glob("*.jaxexp"):
        assert jaxexp.inspect(path).absolute_paths == ()
        assert jaxexp.digests(path).meaning == jaxexp.digests(models / path.name).meaning

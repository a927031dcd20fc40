"""The commands know the weights in files beside an artifact."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import pytest

import jaxexp
from kit.weighted import X, apply, bound, close, params


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    bound()[0].save(tmp_path / "model.jaxexp", vjp_order=1)
    return tmp_path / "model.jaxexp"


def damage(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def test_inspect(run: Any, saved: Path) -> None:
    found = jaxexp.inspect(saved)
    assert [weight.name for weight in found.weights] == list(bound()[0].weights)
    assert found.weights[0] == jaxexp.Inspection.Weight(
        name="head", file="model.safetensors", bytes=1024, digest=found.weights[0].digest
    )
    assert "7, 13,696 bytes, in model.safetensors" in str(found)
    _, shown, _ = run("inspect", str(saved))
    assert "7, 13,696 bytes, in model.safetensors" in shown
    assert "args[0]" not in shown  # they are listed as weights
    (row,) = [line for line in shown.splitlines() if line.strip().startswith("layers/0/w")]
    assert "float32[32,32]" in row
    assert "29.9%" in row
    (said,) = json.loads(run("inspect", "--json", str(saved))[1])
    assert said["weights"][0] == {**said["weights"][0], "name": "head", "file": "model.safetensors", "bytes": 1024}
    assert jaxexp.inspect(bound()[0].serialize()).weights == ()


def test_verify(run: Any, saved: Path) -> None:
    status, out, _ = run("verify", str(saved.parent))
    assert status == 0
    assert "skipped" not in out  # the weights were read
    size = saved.stat().st_size + saved.with_suffix(".safetensors").stat().st_size
    assert f"1 of 1 artifact whole, {size:,} bytes" in out
    damage(saved.with_suffix(".safetensors"))
    status, out, _ = run("verify", str(saved))
    assert status == 1
    assert "layers/2/w" in out
    saved.with_suffix(".safetensors").unlink()
    _, out, _ = run("verify", "--json", str(saved))
    (file,) = json.loads(out)["files"]
    assert file["state"] == "damaged"
    assert "expected a file that 'model.jaxexp' names, found none of this name" in file["error"]


def test_diff(run: Any, saved: Path) -> None:
    tuned = params()
    tuned["head"] = tuned["head"] + 1
    jaxexp.load(saved).with_weights(tuned).save(saved.with_name("tuned.jaxexp"), vjp_order=1)
    status, out, _ = run("diff", "--json", "--only", "weights", str(saved), str(saved.with_name("tuned.jaxexp")))
    assert status == 1
    assert list(json.loads(out)["changes"]["weights"]) == ["head"]


def test_migrate(run: Any, saved: Path, tmp_path: Path) -> None:
    new = saved.with_name("new.jaxexp")
    assert run("migrate", str(saved), str(new))[0] == 0
    close(jaxexp.load(new).call(X), apply(params(), X))
    (tmp_path / "elsewhere").mkdir()
    status, _, error = run("migrate", str(saved), str(tmp_path / "elsewhere" / "new.jaxexp"))
    assert status == 1
    assert "OUT has to be in the same folder" in error


def test_archives_hold_no_weights(run: Any, saved: Path, tmp_path: Path) -> None:
    status, _, error = run("pack", str(tmp_path / "x.zip"), str(saved))
    assert status == 1
    assert "has weights in files beside it, which an archive does not hold" in error
    loaded = jaxexp.load(saved)
    with jaxexp.Archive.create(tmp_path / "y.zip") as archive:
        with pytest.raises(jaxexp.UnsupportedError, match="has weights, which archives do not hold"):
            archive.add("model", loaded)
        archive.add("model", loaded.unbound, vjp_order=1)
    program = jaxexp.Archive.open(tmp_path / "y.zip")["model"].load()
    close(program.bind(saved.with_suffix(".safetensors")).call(X), apply(params(), X))
    assert jax.tree.leaves(program) == [program]

"""The journal of `check_many`: an artifact is checked again when it changed, or a file beside it."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import jaxexp

check_many = importlib.import_module("jaxexp._fleet.passes.check_many")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A function with weights and cases in files beside it."""
    weights = {"w": np.full((200, 200), 2.0, np.float32)}
    exported = jaxexp.export(jax.jit(lambda p, x: p["w"] * x))(weights, jax.ShapeDtypeStruct((200, 200), np.float32))
    exported.bind(weights).save(tmp_path / "f.jaxexp", cases=[(np.ones((200, 200), np.float32),)])
    assert {file.name for file in tmp_path.iterdir()} == {"f.jaxexp", "f.safetensors", "f.cases.safetensors"}
    return tmp_path / "f.jaxexp"


@pytest.fixture
def checked(model: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], tuple[str, int]]:
    """Checks the model with a journal: the verdict, and how many artifacts were looked at."""
    looked_at: list[Any] = []
    real = check_many.check
    monkeypatch.setattr(check_many, "check", lambda *args, **how: looked_at.append(args) or real(*args, **how))

    def run() -> tuple[str, int]:
        looked_at.clear()
        ((_, report),) = jaxexp.check_many([model], journal=model.parent / "journal")
        return report.verdict, len(looked_at)

    return run


def changed(file: Path) -> bytes:
    """Changes the last byte, and returns what the file was."""
    before, stat = file.read_bytes(), file.stat()
    file.write_bytes(before[:-1] + bytes([before[-1] ^ 1]))
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1_000_000_000))
    return before


@pytest.mark.parametrize(("name", "verdict"), [("f.cases.safetensors", "failed"), ("f.safetensors", "differs")])
def test_a_file_beside_it_changes(name: str, verdict: str, model: Path, checked: Callable[[], tuple[str, int]]) -> None:
    assert checked() == ("equal", 1)
    assert checked() == ("equal", 0)
    file = model.parent / name
    before = changed(file)
    assert checked() == (verdict, 1)
    assert checked() == (verdict, 0)
    file.write_bytes(before)
    assert checked() == ("equal", 1)


def test_a_file_beside_it_goes(model: Path, checked: Callable[[], tuple[str, int]]) -> None:
    """Then its cases fail, as in `check`."""
    assert checked() == ("equal", 1)
    file = model.parent / "f.cases.safetensors"
    before = file.read_bytes()
    file.unlink()
    assert checked() == checked() == ("failed", 1) == (jaxexp.check(model).verdict, 1)
    file.write_bytes(before)
    assert checked() == ("equal", 1)


def test_weights_that_come_later(model: Path) -> None:
    """`verify_many` looks again at an artifact whose weights were missing."""
    journal, weights = model.parent / "journal", model.parent / "f.safetensors"
    weights.rename(model.parent / "later")
    (error,) = jaxexp.verify_many([model], journal=journal).values()
    assert isinstance(error, jaxexp.WeightsError)
    (model.parent / "later").rename(weights)
    assert jaxexp.verify_many([model], journal=journal) == {}


@pytest.mark.parametrize("how", ["verify", "digest"])
def test_a_file_that_is_replaced_while_it_is_read(how: str, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The journal has the state of the file from before it was read."""
    file = model.parent / "f.safetensors"
    module, name = {
        "verify": ("jaxexp._fleet.places.verify", "files_of"), "digest": ("jaxexp._fleet.places.digests", "_digests")
    }[how]  # fmt: skip
    owner = importlib.import_module(module)
    real = getattr(owner, name)

    def slow(*args: Any) -> Any:
        found = real(*args)
        changed(file)
        return found

    def run() -> Any:
        if how == "verify":
            return jaxexp.verify_many([model], journal=model.parent / "journal")
        return dict(jaxexp.digests_many([model], journal=model.parent / "journal"))

    monkeypatch.setattr(owner, name, slow)
    before = run()
    monkeypatch.setattr(owner, name, real)
    assert run() != before

"""Files of weights that are made again: one that is there counts only if it has the same bytes."""

from __future__ import annotations

from pathlib import Path

import jax
import numpy as np
import pytest

import jaxexp
from jaxexp._weights.arrays.unpacking import Unpacking
from jaxexp._weights.files import header, reading
from kit.compare import assert_same_values

X = np.ones(4, np.float32)


def archive(folder: Path, weights: np.ndarray) -> jaxexp.Archive:
    """An archive of a function that multiplies by its weights, which are in the file model.safetensors."""
    folder.mkdir()
    exported = jaxexp.export(jax.jit(lambda p, x: x * p["w"]))({"w": weights}, X).bind({"w": weights})
    exported.save(folder / "model.jaxexp")
    with jaxexp.Archive.create(folder / "a.zip") as writer:
        writer.add_file("model", folder / "model.jaxexp")
    return jaxexp.Archive.open(folder / "a.zip")


def unpack(opened: jaxexp.Archive, folder: Path) -> int:
    """What `jaxexp unpack` does with a file of weights."""
    unpacking, weights = Unpacking(), opened["model"].stored_weights()
    assert weights is not None
    return unpacking.write(unpacking.plan(str(folder), weights, lambda path: None), weights)


def test_a_file_of_another_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody can make other bytes of the same digests; here, the digests are not looked at."""
    monkeypatch.setattr(reading, "check_digest", lambda *_: None)
    first, second = np.arange(4, dtype=np.float32), np.full(4, 7, np.float32)
    (tmp_path / "out").mkdir()
    with archive(tmp_path / "theirs", first) as theirs, archive(tmp_path / "ours", second) as ours:
        assert unpack(theirs, tmp_path / "out") > 0
        assert unpack(theirs, tmp_path / "out") == 0
        (written,) = (tmp_path / "out").glob("*.safetensors")
        said = (tmp_path / "ours" / "model.safetensors").read_bytes()
        size = header.size_of_header(said[:8], len(said))
        forged = said[:size] + written.read_bytes()[size:]  # it says that it has the content of ours
        stored = ours["model"].stored_weights()
        assert stored is not None
        path = tmp_path / "out" / stored.table.files[0].name
        path.write_bytes(forged)
        with pytest.raises(jaxexp.WeightsError, match="one of the same digest with other bytes"):
            unpack(ours, tmp_path / "out")
        assert path.read_bytes() == forged


def test_a_damaged_file_is_written_again(tmp_path: Path) -> None:
    weights = np.arange(4, dtype=np.float32)
    (tmp_path / "out").mkdir()
    with archive(tmp_path / "in", weights) as opened:
        assert unpack(opened, tmp_path / "out") > 0
        (path,) = (tmp_path / "out").glob("*.safetensors")
        whole = path.read_bytes()
        path.unlink()
        path.write_bytes(whole[:-1] + b"\x00")
        assert unpack(opened, tmp_path / "out") == len(whole)
        assert path.read_bytes() == whole
        assert_same_values(opened["model"].load().call(X), X * weights)

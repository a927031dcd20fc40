"""The commands know the weights in files beside an artifact."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

import jaxexp
from jaxexp._weights.files.places import second_name
from kit.archive_files import make
from kit.flips import flip
from kit.weighted import X, apply, bound, close, params


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    bound()[0].save(tmp_path / "model.jaxexp", vjp_order=1)
    return tmp_path / "model.jaxexp"


def test_inspect(good: Any, saved: Path) -> None:
    found = jaxexp.inspect(saved)
    assert [weight.name for weight in found.weights] == list(bound()[0].weights)
    weight = jaxexp.Inspection.Weight(name="head", file="model.safetensors", bytes=1024, digest=found.weights[0].digest)
    assert found.weights[0] == weight
    shown = good("inspect", saved)
    for text in (str(found), shown):
        assert "7 arrays, 13,696 bytes, in model.safetensors" in text
        assert "in tree       (({7 weights}, *), {})\n" in text, "they have a table of their own"
    assert "'head': *" in found.in_tree
    assert shown.count("args[") == shown.count("args[0]   float32[4,32]") == 1  # what a call takes
    (row,) = [line for line in shown.splitlines() if line.strip().startswith("layers/0/w")]
    assert "float32[32,32]" in row and "29.9%" in row
    (said,) = json.loads(good("inspect", "--json", saved))
    assert said["weights"][0] == {**said["weights"][0], "name": "head", "file": "model.safetensors", "bytes": 1024}
    assert jaxexp.inspect(bound()[0].serialize()).weights == ()


def test_inspect_lists_the_tensors_of_a_file(good: Any, refused: Any, tmp_path: Path) -> None:
    file = tmp_path / "hub.safetensors"
    arrays = {"model.w": np.ones((4, 3), np.float16), "evil\x1b[31m": np.ones(2, np.float32)}
    safetensors.numpy.save_file(arrays, file)
    shown = good("inspect", file)
    assert re.search(r"^tensors  .*hub\.safetensors$\n  size  [\d,]+ bytes: 2 tensors$", shown, re.MULTILINE)
    assert re.search(r"^  model\.w +F16\[4,3\] +24$", shown, re.MULTILINE) and "\x1b" not in shown
    (said,) = json.loads(good("inspect", "--json", file))
    expected = {"name": "model.w", "dtype": "F16", "shape": [4, 3], "bytes": 24, "file": "hub.safetensors"}
    assert (said["file"], said["tensors"][1]) == (str(file), expected)
    bound()[0].save(tmp_path / "x.jaxexp", max_weights_file_size=5000)
    shown = good("inspect", tmp_path / "x.safetensors.index.json")
    assert re.search(r"^  head +F32\[32,8\] +1,024  x-0000\d-of-00004\.safetensors$", shown, re.MULTILINE)
    safetensors.numpy.save_file({}, tmp_path / "none.safetensors")
    assert "0 tensors" in good("inspect", tmp_path / "none.safetensors")
    os.truncate(file, 100)
    refused("hub.safetensors", "inspect", file)


def test_verify(good: Any, run: Any, saved: Path) -> None:
    out = good("verify", saved.parent)
    assert "skipped" not in out  # the weights were read
    size, weights = (path.stat().st_size for path in (saved, saved.with_suffix(".safetensors")))
    assert f"1 of 1 artifact whole, {size:,} bytes, and {weights:,} bytes of weights" in out
    (row,) = (line for line in out.splitlines() if str(saved) in line)
    assert row.split()[1] == f"{size:,}"
    assert f"{weights:,} bytes of weights in model.safetensors" in row
    flip(saved.with_suffix(".safetensors"), -1)
    status, out, _ = run("verify", saved)
    assert (status, "layers/2/w" in out) == (1, True)
    saved.with_suffix(".safetensors").unlink()
    (file,) = json.loads(run("verify", "--json", saved)[1])["files"]
    assert file["state"] == "damaged"
    assert "expected a file that 'model.jaxexp' names, found none of this name" in file["error"]


def test_damage_that_many_members_have_is_said_once(
    good: Any, run: Any, refused: Any, saved: Path, tmp_path: Path
) -> None:
    archive = make(tmp_path / "x.zip", dict.fromkeys("abc", saved))
    size = archive.stat().st_size
    assert f"3 of 3 artifacts whole, {size:,} bytes" in good("verify", archive)
    flip(archive, np.asarray(params()["head"]).tobytes())
    status, out, error = run("verify", archive)
    assert status == 1
    (row,) = (line for line in out.splitlines() if str(archive) in line)
    assert "damaged: 3 members" in row
    assert "weights head, used by 3 members: expected bytes with the digest" in row
    assert "3 of 3 artifacts are not whole" in error
    files = json.loads(run("verify", "--json", archive)[1])["files"]
    assert [file["file"] for file in files] == [f"{archive}::{name}" for name in "abc"]
    assert {file["archive_bytes"] for file in files} == {size}
    (row,) = (line for line in run("verify", f"{archive}::b")[1].splitlines() if str(archive) in line)
    assert f"{archive}::b" in row
    refused("tensor 'head': expected bytes with the digest", "unpack", archive, "-d", tmp_path / "out")
    assert not list((tmp_path / "out").glob("*"))


def test_diff_and_migrate(good: Any, run: Any, refused: Any, saved: Path, tmp_path: Path) -> None:
    tuned = params()
    tuned["head"] = tuned["head"] + 1
    jaxexp.load(saved).with_weights(tuned).save(saved.with_name("tuned.jaxexp"), vjp_order=1)
    status, out, _ = run("diff", "--json", "--only", "weights", saved, saved.with_name("tuned.jaxexp"))
    assert (status, list(json.loads(out)["changes"]["weights"])) == (1, ["head"])
    new = saved.with_name("new.jaxexp")
    assert "weights: in model.safetensors, which stays beside it" in good("migrate", saved, new)
    close(jaxexp.load(new).call(X), apply(params(), X))
    (tmp_path / "elsewhere").mkdir()
    refused("so it has to be written into the same folder", "migrate", saved, tmp_path / "elsewhere" / "new.jaxexp")
    status, _, err = run("migrate", saved.parent, tmp_path / "elsewhere" / "all")
    assert (status, err.count("it has weights in files beside it")) == (1, 1)
    assert "'jaxexp pack' makes an archive" in err


def test_archives(good: Any, run: Any, saved: Path, tmp_path: Path) -> None:
    archive, out = tmp_path / "x.zip", tmp_path / "out"
    (saved.parent / "more").mkdir()
    jaxexp.load(saved).with_weights(params(seed=2)).save(saved.parent / "more" / saved.name)
    said = good("pack", archive, saved.parent)
    assert ("2 artifacts packed" in said, "skipped" in said) == (True, False)
    assert "2 artifacts packed" in good("pack", tmp_path / "all.zip", saved.parent, "--include", "m*")
    good("verify", "-q", archive, saved.parent)
    listed = good("ls", archive)
    assert "2 members, " in listed and listed.strip().endswith("bytes, and 27,392 bytes of weights")
    good("unpack", archive, "-d", out)
    names = [saved.name, saved.with_suffix(".safetensors").name]
    for name in [*names, *(f"more/{name}" for name in names)]:
        assert (out / name).read_bytes() == (saved.parent / name).read_bytes()
    assert run("unpack", archive, "-d", out)[0] == 1
    good("unpack", archive, "-d", out, "--force")
    good("pack", tmp_path / "copy.zip", f"{archive}::*")
    assert (tmp_path / "copy.zip").read_bytes() == archive.read_bytes()
    member, new = f"{archive}::more/{saved.stem}", tmp_path / "new"
    new.mkdir()
    said = good("migrate", member, new / "m.jaxexp")
    (written,) = new.glob("model-*.safetensors")
    assert f"files: written to {written}, which the new artifact needs beside it" in said
    close(jaxexp.load(new / "m.jaxexp", verify=True).call(X), apply(params(seed=2), X))
    status, text, _ = run("diff", "--json", "--only", "weights", member, f"{archive}::{saved.stem}")
    assert (status, len(json.loads(text)["changes"]["weights"])) == (1, 7)
    # Files that have only their second name, which is hidden, do not count as skipped.
    shutil.rmtree(new)
    new.mkdir()
    bound()[0].save(new / "m.jaxexp")
    file = jaxexp.load(new / "m.jaxexp").weights.stored.table.files[0]
    os.rename(new / file.name, new / second_name(file.name, file.content))
    assert "skipped" not in good("pack", tmp_path / "hidden.zip", new)


def test_files_of_one_name(good: Any, saved: Path, tmp_path: Path) -> None:
    """Functions of different weights, whose files were called the same, side by side in one folder: unpacked ones, and
    migrated ones, whose files have names that programs name. So a copy of what the shell shows is complete.
    """
    (saved.parent / "more").mkdir()
    other, archive = saved.parent / "more" / saved.name, tmp_path / "x.zip"
    jaxexp.load(saved).with_weights(params(seed=2)).save(other)
    good("pack", archive, f"one={saved}", f"two={other}", f"three={saved}")
    good("unpack", archive, "-d", tmp_path / "unpacked")
    said = good("migrate", "--json", archive, tmp_path / "out")
    shutil.copytree(tmp_path / "out", tmp_path / "copy", ignore=shutil.ignore_patterns(".*"))
    for copy in (tmp_path / "unpacked", tmp_path / "out", tmp_path / "copy"):
        files = {file.name for file in copy.iterdir() if file.suffix == ".safetensors"}
        assert len(files) == 2
        for name, seed in (("one", 0), ("two", 2), ("three", 0)):
            function = jaxexp.load(copy / f"{name}.jaxexp", verify=True)
            close(function.call(X), apply(params(seed=seed), X))
            if copy.name != "unpacked":
                assert all(re.fullmatch(r"model-[0-9a-f]{16}\.safetensors", name) for name in files)
                assert function.weights.stored.table.files[0].name in files
    weights = [weight for file in json.loads(said)["files"] for weight in file["weights"]]
    assert {Path(weight).name for weight in weights} == files
    # Again, from an archive of what was migrated: names that have the digest stay.
    good("pack", tmp_path / "again.zip", tmp_path / "out")
    good("migrate", tmp_path / "again.zip", tmp_path / "new")
    assert {file.name for file in (tmp_path / "new").glob("*.safetensors")} == files

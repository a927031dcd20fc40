"""The commands know the weights in files beside an artifact."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import safetensors.numpy

import jaxexp
from jaxexp._weights.files.content import second_name
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
    assert "7 arrays, 13,696 bytes, in model.safetensors" in str(found)
    _, shown, _ = run("inspect", str(saved))
    assert "7 arrays, 13,696 bytes, in model.safetensors" in shown
    assert "  in tree       (({7 weights}, *), {})\n" in shown, "they have a table of their own"
    assert "in tree       (({7 weights}, *), {})\n" in str(found) and "'head': *" in found.in_tree
    assert shown.count("args[") == shown.count("args[0]   float32[4,32]") == 1  # what a call takes
    (row,) = [line for line in shown.splitlines() if line.strip().startswith("layers/0/w")]
    assert "float32[32,32]" in row
    assert "29.9%" in row
    (said,) = json.loads(run("inspect", "--json", str(saved))[1])
    assert said["weights"][0] == {**said["weights"][0], "name": "head", "file": "model.safetensors", "bytes": 1024}
    assert jaxexp.inspect(bound()[0].serialize()).weights == ()


def test_inspect_lists_the_tensors_of_a_file(run: Any, tmp_path: Path) -> None:
    arrays = {"model.w": np.ones((4, 3), np.float16), "evil\x1b[31m": np.ones(2, np.float32)}
    safetensors.numpy.save_file(arrays, tmp_path / "hub.safetensors")
    status, shown, err = run("inspect", str(tmp_path / "hub.safetensors"))
    assert (status, err) == (0, "")
    assert re.search(r"^tensors  .*hub\.safetensors$\n  size  [\d,]+ bytes: 2 tensors$", shown, re.MULTILINE)
    assert re.search(r"^  model\.w +F16\[4,3\] +24$", shown, re.MULTILINE) and "\x1b" not in shown
    (said,) = json.loads(run("inspect", "--json", str(tmp_path / "hub.safetensors"))[1])
    assert said["file"] == str(tmp_path / "hub.safetensors")
    assert said["tensors"][1] == {
        "name": "model.w",
        "dtype": "F16",
        "shape": [4, 3],
        "bytes": 24,
        "file": "hub.safetensors",
    }
    bound()[0].save(tmp_path / "x.jaxexp", max_weights_file_size=5000)
    shown = run("inspect", str(tmp_path / "x.safetensors.index.json"))[1]
    assert re.search(r"^  head +F32\[32,8\] +1,024  x-0000\d-of-00004\.safetensors$", shown, re.MULTILINE)
    safetensors.numpy.save_file({}, tmp_path / "none.safetensors")
    assert "0 tensors" in run("inspect", str(tmp_path / "none.safetensors"))[1]
    os.truncate(tmp_path / "hub.safetensors", 100)
    status, _, err = run("inspect", str(tmp_path / "hub.safetensors"))
    assert status == 1 and "hub.safetensors" in err


def test_verify(run: Any, saved: Path) -> None:
    status, out, _ = run("verify", str(saved.parent))
    assert status == 0
    assert "skipped" not in out  # the weights were read
    size, weights = (path.stat().st_size for path in (saved, saved.with_suffix(".safetensors")))
    assert f"1 of 1 artifact whole, {size:,} bytes, and {weights:,} bytes of weights" in out
    (row,) = (line for line in out.splitlines() if str(saved) in line)
    assert row.split()[1] == f"{size:,}"
    assert f"{weights:,} bytes of weights in model.safetensors" in row
    damage(saved.with_suffix(".safetensors"))
    status, out, _ = run("verify", str(saved))
    assert status == 1
    assert "layers/2/w" in out
    saved.with_suffix(".safetensors").unlink()
    _, out, _ = run("verify", "--json", str(saved))
    (file,) = json.loads(out)["files"]
    assert file["state"] == "damaged"
    assert "expected a file that 'model.jaxexp' names, found none of this name" in file["error"]


def test_verify_says_once_what_many_members_use(run: Any, saved: Path, tmp_path: Path) -> None:
    archive = tmp_path / "x.zip"
    with jaxexp.Archive.create(archive) as writer:
        for name in "abc":
            writer.add(name, jaxexp.load(saved))
    size = archive.stat().st_size
    assert f"3 of 3 artifacts whole, {size:,} bytes" in run("verify", str(archive))[1]
    data = bytearray(archive.read_bytes())
    data[data.index(np.asarray(params()["head"]).tobytes())] ^= 1
    archive.write_bytes(data)
    status, out, error = run("verify", str(archive))
    assert status == 1
    (row,) = (line for line in out.splitlines() if str(archive) in line)
    assert "damaged: 3 members" in row
    assert "weights head, used by 3 members: expected bytes with the digest" in row
    assert "3 of 3 artifacts are not whole" in error
    files = json.loads(run("verify", "--json", str(archive))[1])["files"]
    assert [file["file"] for file in files] == [f"{archive}::{name}" for name in "abc"]
    assert {file["archive_bytes"] for file in files} == {size}
    (row,) = (line for line in run("verify", f"{archive}::b")[1].splitlines() if str(archive) in line)
    assert f"{archive}::b" in row


def test_diff(run: Any, saved: Path) -> None:
    tuned = params()
    tuned["head"] = tuned["head"] + 1
    jaxexp.load(saved).with_weights(tuned).save(saved.with_name("tuned.jaxexp"), vjp_order=1)
    status, out, _ = run("diff", "--json", "--only", "weights", str(saved), str(saved.with_name("tuned.jaxexp")))
    assert status == 1
    assert list(json.loads(out)["changes"]["weights"]) == ["head"]


def test_migrate(run: Any, saved: Path, tmp_path: Path) -> None:
    new = saved.with_name("new.jaxexp")
    status, said, _ = run("migrate", str(saved), str(new))
    assert (status, "weights: in model.safetensors, which stays beside it" in said) == (0, True)
    close(jaxexp.load(new).call(X), apply(params(), X))
    (tmp_path / "elsewhere").mkdir()
    status, _, error = run("migrate", str(saved), str(tmp_path / "elsewhere" / "new.jaxexp"))
    assert status == 1
    assert "OUT has to be in the same folder" in error


def test_archives(run: Any, saved: Path, tmp_path: Path) -> None:
    """Packed with their weights, and unpacked as they were."""
    archive, out = tmp_path / "x.zip", tmp_path / "out"
    (saved.parent / "more").mkdir()
    jaxexp.load(saved).with_weights(params(seed=2)).save(saved.parent / "more" / saved.name)
    status, said, _ = run("pack", str(archive), str(saved.parent))
    assert (status, "2 artifacts packed" in said, "skipped" in said) == (0, True, False)
    assert "2 artifacts packed" in run("pack", str(tmp_path / "all.zip"), str(saved.parent), "--include", "m*")[1]
    assert run("verify", "-q", str(archive), str(saved.parent))[0] == 0
    assert "2 members, " in (listed := run("ls", str(archive))[1])
    assert listed.strip().endswith("bytes, and 27,392 bytes of weights")
    assert run("unpack", str(archive), "-d", str(out))[0] == 0
    names = [saved.name, saved.with_suffix(".safetensors").name]
    for name in [*names, *(f"more/{name}" for name in names)]:
        assert (out / name).read_bytes() == (saved.parent / name).read_bytes()
    assert run("unpack", str(archive), "-d", str(out))[0] == 1
    assert run("unpack", str(archive), "-d", str(out), "--force")[0] == 0
    assert run("pack", str(tmp_path / "copy.zip"), f"{archive}::*")[0] == 0
    assert (tmp_path / "copy.zip").read_bytes() == archive.read_bytes()
    member = f"{archive}::more/{saved.stem}"
    (tmp_path / "new").mkdir()
    status, said, _ = run("migrate", member, str(tmp_path / "new" / "m.jaxexp"))
    assert status == 0
    assert (
        f"weights: written to {tmp_path / 'new' / 'model.safetensors'}, which the new artifact needs beside it" in said
    )
    close(jaxexp.load(tmp_path / "new" / "m.jaxexp", verify=True).call(X), apply(params(seed=2), X))
    status, text, _ = run("diff", "--json", "--only", "weights", member, f"{archive}::{saved.stem}")
    assert (status, len(json.loads(text)["changes"]["weights"])) == (1, 7)


def test_unpacked_files_of_one_name(run: Any, saved: Path, tmp_path: Path) -> None:
    """Functions of different weights, whose files were called the same, side by side in one folder."""
    (saved.parent / "more").mkdir()
    other = saved.parent / "more" / saved.name
    jaxexp.load(saved).with_weights(params(seed=2)).save(other)
    assert run("pack", str(tmp_path / "x.zip"), f"one={saved}", f"two={other}", f"three={saved}")[0] == 0
    assert run("unpack", str(tmp_path / "x.zip"), "-d", str(tmp_path / "out"))[0] == 0
    files = [file.name for file in (tmp_path / "out").iterdir() if file.suffix == ".safetensors"]
    assert len(files) == 2
    for name, seed in (("one", 0), ("two", 2), ("three", 0)):
        close(jaxexp.load(tmp_path / "out" / f"{name}.jaxexp", verify=True).call(X), apply(params(seed=seed), X))


def test_migrated_weights_have_names_that_programs_name(run: Any, saved: Path, tmp_path: Path) -> None:
    """So a copy of what the shell shows is complete. Files of one name do not get in each other's way."""
    (saved.parent / "more").mkdir()
    other = saved.parent / "more" / saved.name
    jaxexp.load(saved).with_weights(params(seed=2)).save(other)
    archive = tmp_path / "x.zip"
    assert run("pack", str(archive), f"one={saved}", f"two={other}", f"three={saved}")[0] == 0
    status, said, _ = run("migrate", "--json", str(archive), str(tmp_path / "out"))
    assert status == 0
    for copy in (tmp_path / "out", tmp_path / "copy"):
        if copy.name == "copy":
            copy.mkdir()
            for file in (tmp_path / "out").glob("*"):
                if not file.name.startswith("."):
                    shutil.copy(file, copy)
        files = {file.name for file in copy.iterdir() if file.suffix == ".safetensors"}
        assert len(files) == 2 and all(re.fullmatch(r"model-[0-9a-f]{16}\.safetensors", name) for name in files)
        for name, seed in (("one", 0), ("two", 2), ("three", 0)):
            function = jaxexp.load(copy / f"{name}.jaxexp", verify=True)
            close(function.call(X), apply(params(seed=seed), X))
            assert function.weights.stored.table.files[0].name in files
    weights = [weight for file in json.loads(said)["files"] for weight in file["weights"]]
    assert {Path(weight).name for weight in weights} == files
    # Again, from an archive of what was migrated: names that have the digest stay.
    assert run("pack", str(tmp_path / "again.zip"), str(tmp_path / "out"))[0] == 0
    assert run("migrate", str(tmp_path / "again.zip"), str(tmp_path / "new"))[0] == 0
    assert {file.name for file in (tmp_path / "new").glob("*.safetensors")} == files


def test_packed_weights_do_not_count_as_skipped(run: Any, saved: Path, tmp_path: Path) -> None:
    """Also if they have only the second name, which is hidden."""
    file = jaxexp.load(saved).weights.stored.table.files[0]
    os.rename(saved.parent / file.name, saved.parent / second_name(file.name, file.content))
    status, said, _ = run("pack", str(tmp_path / "x.zip"), str(saved.parent))
    assert (status, "skipped" in said) == (0, False), said


def test_a_damaged_member_is_not_unpacked(run: Any, saved: Path, tmp_path: Path) -> None:
    archive = tmp_path / "x.zip"
    assert run("pack", str(archive), str(saved))[0] == 0
    data = bytearray(archive.read_bytes())
    data[data.index(np.asarray(params()["head"]).tobytes())] ^= 1
    archive.write_bytes(data)
    status, _, error = run("unpack", str(archive), "-d", str(tmp_path / "out"))
    assert status == 1
    assert "tensor 'head': expected bytes with the digest" in error
    assert not list((tmp_path / "out").glob("*"))


def test_a_folder_with_weights_is_migrated_through_an_archive(tmp_path, run, good) -> None:
    models = tmp_path / "models"
    models.mkdir()
    for name in "ab":
        bound()[0].save(models / f"{name}.jaxexp")
    status, _, err = run("migrate", models, tmp_path / "new")
    assert status == 1
    assert err.count("it has weights in files beside it") == 1  # in one line about both
    assert "'jaxexp pack' makes an archive" in err
    good("pack", tmp_path / "all.zip", models)
    good("migrate", tmp_path / "all.zip", tmp_path / "other")
    assert len(jaxexp.load(tmp_path / "other" / "a.jaxexp").weights) > 0


@pytest.mark.parametrize("other", [{"v": np.ones((4, 4), np.float32)}, {"w": np.ones((2, 8), np.float32)}])
def test_unpacked_members_with_the_same_bytes_as_other_weights(run: Any, other: dict[str, Any], tmp_path: Path) -> None:
    x = np.ones((4, 4), np.float32)
    with jaxexp.Archive.create(tmp_path / "fleet.zip") as archive:
        for name, weights in (("a", {"w": np.ones((4, 4), np.float32)}), ("b", other)):
            (key,) = weights
            function = jax.jit(lambda p, x, key=key: p[key].reshape(4, 4) @ x)
            archive.add(name, jaxexp.export(function)(weights, x).bind(weights))
    assert run("unpack", tmp_path / "fleet.zip", "-d", tmp_path / "out")[0] == 0
    for name in "ab":
        found = jaxexp.load(tmp_path / "out" / f"{name}.jaxexp").call(x)
        np.testing.assert_array_equal(found, np.full((4, 4), 4.0))

"""`jaxexp verify --policy`: what a policy in a file refuses, and files that have none."""

from __future__ import annotations

import json
import os
import random
import zipfile
from pathlib import Path

import pytest

import jaxexp
from kit.served import serving


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    return tmp_path / "policy.toml"


def test_what_is_not_allowed_is_said_of_each_artifact(folder, policy, run, good) -> None:
    policy.write_text("stable_custom_calls = false\nmax_devices = 1\n")
    names = ("scores", "sharded", "hostile")
    paths = [folder / f"{name}.jaxexp" for name in names]
    status, out, err = run("verify", "--policy", policy, *paths)
    assert status == 1
    assert err == "jaxexp: 2 of 3 artifacts are not allowed\n"
    assert "1 of 3 artifacts whole and allowed" in out
    rows = {Path(line.split()[0]).stem: line for line in out.splitlines() if str(folder) in line}
    assert "refused" in rows["scores"]
    assert "custom call 'lapack_spotrf_ffi'" in rows["scores"]
    assert "has 8 devices" in rows["sharded"]
    assert "refused" not in rows["hostile"]
    _, out, _ = run("verify", "--quiet", "--policy", policy, *paths)
    assert "hostile" not in out
    assert "sharded" in out
    _, out, _ = run("verify", "--json", "--policy", policy, *paths)
    facts = json.loads(out)
    assert (facts["whole"], facts["refused"]) == (1, 2)
    assert [file["state"] for file in facts["files"]] == ["refused", "refused", "whole"]
    policy.write_text("custom_calls = ['lapack_*']\nstable_custom_calls = false\n")
    assert "3 of 3 artifacts whole and allowed" in good("verify", "--policy", policy, *paths)


def test_members_and_damage(fleet, damaged, policy, run) -> None:
    policy.write_text("max_devices = 1\n")
    status, out, err = run("verify", "--policy", policy, fleet, damaged / "cut")
    assert status == 1
    assert err.splitlines() == ["jaxexp: 1 of 5 artifacts is not whole", "jaxexp: 1 of 5 artifacts is not allowed"]
    (row,) = (line for line in out.splitlines()[:-1] if "refused" in line)
    assert f"{fleet}::inner/b16" in row
    assert out.splitlines()[-1].startswith("3 of 5 artifacts whole and allowed, 1 damaged, 1 refused, ")


def test_archives_with_a_damaged_directory(fleet, policy, tmp_path, run) -> None:
    """Nothing of them was verified, wherever the damage is."""
    policy.write_text("max_devices = 100\n")
    with zipfile.ZipFile(fleet) as whole:
        start = whole.start_dir
    path, folder = tmp_path / "f.zip", tmp_path / "folder"
    folder.mkdir()
    data = bytearray(fleet.read_bytes())
    for place in random.Random(0).sample(range(start, len(data)), 20):
        damaged = bytearray(data)
        damaged[place] ^= 1
        for file in (path, folder / "f.zip"):
            file.write_bytes(damaged)
            for options in ([], ["--policy", policy], ["--quiet"]):
                status, out, _ = run("verify", *options, file.parent if file.parent == folder else file)
                assert status == 1, place
                assert "f.zip" in out


def test_every_field_can_be_in_a_file(folder, policy, good) -> None:
    lines = []
    for name, field in jaxexp.Policy.__dataclass_fields__.items():
        value = "['*']" if "Collection" in field.type else "true" if "bool" in field.type else "1000000000"
        lines.append(f"{name} = {value}" if name != "platforms" else "platforms = ['cpu', 'cuda']")
    policy.write_text("\n".join(lines))
    assert "1 of 1 artifact whole and allowed" in good("verify", "--policy", policy, folder / "hostile.jaxexp")


def test_hidden_files_are_counted_as_skipped(folder, policy, tmp_path, run, good) -> None:
    policy.write_text("max_devices = 1\n")
    models = tmp_path / "models"
    (models / "inner" / ".cache").mkdir(parents=True)
    (models / "README.md").write_text("# Models")
    for name in ("a.jaxexp", "inner/.b.jaxexp", "inner/.cache/c.jaxexp"):
        (models / name).write_bytes((folder / "scores.jaxexp").read_bytes())
    said = good("verify", "--policy", policy, models)
    assert said.endswith("; 1 other file and 2 hidden files skipped\n")
    assert "; 1 other file skipped" in good("verify", "--no-recursive", models)
    skipped = json.loads(good("verify", "--json", models))["skipped"]
    assert {Path(name).name for name in skipped} == {"README.md", ".b.jaxexp", ".cache"}
    (models / "a.jaxexp").unlink()
    status, _, err = run("verify", models)
    assert status == 1
    assert "2 hidden files skipped" in err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("platform = ['cpu']", "Policy has no field 'platform': did you mean platforms?"),
        ("platforms = ['cpus']", "there is no platform 'cpus'; did you mean 'cpu'?"),
        ("max_devices = 'one'", "Policy(max_devices='one'): expected an int"),
        ("[policy]\nmax_devices = 1", "Policy has no field 'policy'"),
        ("max_devices = ", "is not a TOML file"),
        ("a = " + "[" * 100_000, "is not a TOML file"),
    ],
    ids=["field", "platform", "type", "table", "syntax", "nesting"],
)
def test_files_that_are_no_policy(folder, policy, run, text, said) -> None:
    policy.write_text(text)
    status, out, err = run("verify", "--policy", policy, folder / "hostile.jaxexp")
    assert (status, out) == (2, "")
    assert said in err
    assert repr(str(policy)) in err
    assert err.count("\n") == 1


def test_files_that_cannot_be_read(folder, policy, tmp_path, run) -> None:
    for path, said in ((policy, "No such file"), (tmp_path, "directory")):
        status, out, err = run("verify", "--policy", path, folder / "hostile.jaxexp")
        assert (status, out) == (2, "")
        assert said in err
    policy.write_bytes(b"\xff\xfe")
    assert "is not a TOML file" in run("verify", "--policy", policy, folder / "hostile.jaxexp")[2]


def test_files_that_are_too_large_are_not_read(tmp_path, policy, run) -> None:
    policy.write_text("max_artifact_bytes = 1000\n")
    large = tmp_path / "large.jaxexp"
    large.write_bytes(b"no artifact")
    os.truncate(large, 1 << 42)
    status, out, err = run("verify", "--policy", policy, large)
    assert (status, err) == (1, "jaxexp: 1 of 1 artifact is not allowed\n")
    assert "max_artifact_bytes" in out
    with serving(b"") as server:
        server.others["/m.jaxexp"] = bytes(1 << 20)
        url = server.url.replace("fleet.zip", "m.jaxexp")
        (error,) = jaxexp.verify_many([url], policy=jaxexp.Policy(max_artifact_bytes=1000)).values()
        assert isinstance(error, jaxexp.PolicyError)
        assert sum(sent for _, sent in server.requests) < 1 << 17

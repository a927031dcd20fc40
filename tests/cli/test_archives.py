"""`jaxexp pack`, `ls`, `unpack` and `archive`."""

from __future__ import annotations

import inspect
import json
import os
import re
import shutil
import sys
from pathlib import Path

import pytest

import jaxexp
from jaxexp import _native
from jaxexp._cli import inputs
from jaxexp._cli.commands import ls, pack, view
from jaxexp._fleet.passes import migrate_many as targets
from jaxexp._fleet.places.folders import Folders
from jaxexp._fleet.places.source import path_in
from jaxexp._kernel.io import lock
from kit.archive_files import make
from kit.archives import blob
from kit.command_line import NAMES
from kit.flips import flip
from kit.weighted import bound


def packed(path: Path) -> bytes:
    """A file as the archive `fleet` has it."""
    return _native.with_metadata(path.read_bytes(), {"commit": '"0e3c"', "v": "3"})


def test_pack(folder, fleet, tmp_path, good, monkeypatch) -> None:
    archive = jaxexp.Archive.open(fleet)
    assert (list(archive), archive["b8"].metadata) == (NAMES, {"commit": "0e3c", "v": 3})
    assert archive["b8"].read() == packed(folder / "scores.jaxexp")
    monkeypatch.chdir(folder)
    a, b, c = (tmp_path / f"{name}.zip" for name in "abc")
    text = good("pack", a, "scores.jaxexp", "a/b=sharded.jaxexp", folder / "hostile.jaxexp")
    assert text == f"{a}: 3 artifacts packed, {a.stat().st_size:,} bytes\n"
    assert list(jaxexp.Archive.open(a)) == ["a/b", "hostile", "scores"]
    assert jaxexp.Archive.open(a)["scores"].metadata == {"run": [1, 2], "by": "me"}
    monkeypatch.chdir(fleet.parent)
    good("pack", b, "models/b8.jaxexp", "models/inner/../h.jaxexp", "--include", "nothing")
    assert list(jaxexp.Archive.open(b)) == ["h", "models/b8"]
    good("pack", c, f"{fleet}::inner/*")
    assert list(jaxexp.Archive.open(c)) == ["inner/again", "inner/b16"]


def test_pack_appends_and_replaces(folder, tmp_path, good, refused) -> None:
    archive = tmp_path / "a.zip"
    scores, sharded = folder / "scores.jaxexp", folder / "sharded.jaxexp"
    refused("nothing to pack", "pack", archive, tmp_path)
    good("pack", archive, f"x={scores}")
    for arguments in ([f"x={sharded}"], ["--append", f"y={scores}", f"x={sharded}"]):
        refused("--force replaces it", "pack", archive, *arguments)
    assert list(jaxexp.Archive.open(archive)) == ["x"]
    assert "1 artifact added" in good("pack", archive, "--append", f"y={sharded}")
    good("pack", archive, "--append", "--force", f"x={sharded}")
    assert {name: one.summary.nr_devices for name, one in jaxexp.Archive.open(archive).items()} == {"x": 8, "y": 8}
    good("pack", archive, "--force", f"z={scores}")
    assert list(jaxexp.Archive.open(archive)) == ["z"]


def test_pack_and_verify_treat_folders_alike(folder, damaged, fleet, tmp_path, good, run) -> None:
    models = tmp_path / "models"
    (models / "inner" / "empty").mkdir(parents=True)
    for name in ("a.jaxexp", "b", "inner/c.bin"):
        (models / name).write_bytes((folder / "scores.jaxexp").read_bytes())
    (models / "README.md").write_text("# Models")
    (models / "inner" / "config.json").write_text("{}")
    assert "3 of 3 artifacts whole" in (said := good("verify", models))
    assert said.endswith("; 2 other files skipped\n")
    said = good("pack", tmp_path / "a.zip", models)
    assert "3 artifacts packed" in said
    assert said.endswith("; 2 other files skipped\n")
    assert list(jaxexp.Archive.open(tmp_path / "a.zip")) == ["a", "b", "inner/c"]
    assert "2 of 2 artifacts whole" in good("verify", "--no-recursive", models)
    assert "2 artifacts packed" in good("pack", "--force", "-R", tmp_path / "a.zip", models)
    assert "1 of 1 artifact whole" in good("verify", "--include", "*.bin", models)
    assert "1 artifact packed" in good("pack", "--force", "--include", "*.bin", tmp_path / "a.zip", models)
    # A file that is asked for is not skipped, nor is one that is damaged.
    for arguments in (["--include", "*.md", models], [models / "README.md"]):
        assert run("verify", *arguments)[0] == run("pack", "--force", tmp_path / "a.zip", *arguments)[0] == 1
        assert "README" in run("verify", *arguments)[1]
    (models / "inner" / "d.bin").write_bytes((damaged / "cut").read_bytes())
    assert "d.bin" in run("verify", "-q", models)[1]
    assert "d.bin" in run("pack", "--force", tmp_path / "a.zip", models)[2]
    (models / "inner" / "d.bin").unlink()
    # Archives are verified with all their members, and not packed: one of them may be the one that is written.
    (models / "fleet.zip").write_bytes(fleet.read_bytes())
    assert "7 of 7 artifacts whole" in good("verify", models)
    assert good("pack", "--append", models / "fleet.zip", models / "inner", models).endswith(
        "; 4 other files skipped\n"
    )
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.txt").write_text("no artifact")
    for arguments in (["verify"], ["pack", tmp_path / "c.zip"]):
        status, out, err = run(*arguments, tmp_path / "texts")
        assert (status, out) == (1, "")
        assert "; 1 other file skipped" in err


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such files")
def test_odd_files_in_folders(folder, tmp_path, run) -> None:
    """A pipe is not waited for, and a link that leads nowhere is not hidden."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "gone.jaxexp").symlink_to(tmp_path / "nowhere")
    (tmp_path / "linked").symlink_to(folder / "scores.jaxexp")
    (tmp_path / "again").symlink_to(tmp_path)
    status, out, _ = run("verify", "--json", tmp_path)
    facts = json.loads(out)
    assert status == 1
    assert (facts["whole"], facts["unreadable"], facts["skipped"]) == (1, 1, [str(tmp_path / "pipe")])


@pytest.mark.wide(one_in=2, promise="what is damaged is named, and does not keep others from being packed")
@pytest.mark.parametrize("workers", [["--workers", 2], []])
@pytest.mark.processes(reason="workers are processes")
def test_pack_keeps_going(folder, damaged, tmp_path, good, run, refused, workers: list) -> None:
    models, archive = tmp_path / "models", tmp_path / "a.zip"
    model, _ = bound()
    for name in ("good", "lost", "bad"):
        (models / name).mkdir(parents=True)
        model.save(models / name / "model.jaxexp")
    (models / "lost" / "model.safetensors").unlink()
    flip(models / "bad" / "model.safetensors", -1)
    (models / "cut.jaxexp").write_bytes((damaged / "cut").read_bytes())
    (models / "scores.jaxexp").write_bytes((folder / "scores.jaxexp").read_bytes())

    said = "nothing was packed: --keep-going packs all others, and names what is damaged"
    refused(said, "pack", archive, models, *workers)
    assert not archive.exists()
    status, out, err = run("pack", "--keep-going", archive, models, models / "gone.jaxexp", *workers)
    assert status == 1
    assert out.startswith(f"{archive}: 2 artifacts packed, ")
    for name, line in zip(("bad/model", "cut.jaxexp", "lost/model", "gone.jaxexp"), err.splitlines(), strict=True):
        assert name in line and "not expected" not in line
    packed = jaxexp.Archive.open(archive)
    assert (list(packed), packed.verify()) == (["good/model", "scores"], {})
    # What is there stays where its replacement is damaged.
    (models / "scores.jaxexp").write_bytes((damaged / "cut").read_bytes())
    assert run("pack", "-k", "--append", "--force", archive, models, *workers)[0] == 1
    assert list(jaxexp.Archive.open(archive)) == ["good/model", "scores"]
    jaxexp.Archive.open(archive)["scores"].load()
    # With nothing to pack, nothing is written.
    now = archive.read_bytes()
    for options in (["--append"], ["--force"]):
        status, out, err = run("pack", "-k", *options, archive, models / "cut.jaxexp", *workers)
        assert (status, out) == (1, "")
        assert (err.splitlines()[-1], archive.read_bytes()) == ("jaxexp: nothing was packed", now)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.zip", "models"]
    assert "2 artifacts packed" in good("pack", "-k", tmp_path / "b.zip", folder / "scores.jaxexp", models / "good")


def test_ls(fleet, good, refused) -> None:
    lines = good("ls", fleet).splitlines()
    assert [line.split()[0] for line in lines[1:5]] == NAMES
    assert "(float32[3], float32[4,3], float32[batch,4]) -> float32[3,batch]" in lines[1]
    assert lines[-1].startswith("4 members")
    assert [line.split()[0] for line in good("ls", fleet, "inner/*").splitlines()[1:3]] == ["inner/again", "inner/b16"]
    assert jaxexp.Archive.open(fleet)["b8"].digest in good("ls", "--long", fleet, "b8")
    refused("'nothing*'", "ls", fleet, "nothing*")
    for place in (fleet, fleet.parent / "models"):
        lines = good("ls", place, "--signature", "float32[batch,4]").splitlines()
        assert [line.split()[0].removesuffix(".jaxexp") for line in lines[1:3]] == ["b8", "inner/again"]
        assert lines[-1].startswith("2 ")
        lines = good("ls", "--group", place).splitlines()
        rows = [re.split(r" {2,}", line.strip())[:2] for line in lines[1:4]]
        expected = [["2", "b8, inner/again"], ["1", "inner/b16"], ["1", "h"]]
        assert [[count, names.replace(".jaxexp", "")] for count, names in rows] == expected
        assert lines[-1].startswith("4 ")
    facts = json.loads(good("ls", "--json", fleet))
    for fact, (name, handle) in zip(facts, jaxexp.Archive.open(fleet).items(), strict=True):
        more = {"name": name, "bytes": handle.size, "digest": handle.digest, "metadata": handle.metadata}
        assert fact == {**more, **json.loads(json.dumps(handle.summary.to_dict()))}


def test_unpack(fleet, tmp_path, good, refused) -> None:
    out = tmp_path / "new" / "folder"
    assert "4 artifacts unpacked" in good("unpack", fleet, "-d", out)
    models = fleet.parent / "models"
    for name in NAMES:
        assert (out / f"{name}.jaxexp").read_bytes() == packed(models / f"{name}.jaxexp")
    assert sum(path.is_file() for path in out.rglob("*")) == 4
    (out / "h.jaxexp").write_text("mine")
    (out / "b8.jaxexp").unlink()
    refused("--force", "unpack", fleet, "-d", out)
    assert (out / "h.jaxexp").read_text() == "mine"
    assert not (out / "b8.jaxexp").exists()  # nothing is written if not all can be
    good("unpack", fleet, "h", "-d", out, "--force")
    assert (out / "h.jaxexp").read_bytes() == packed(models / "h.jaxexp")
    long = make(tmp_path / "long.zip", {"a" * 1000: blob()})
    refused("", "unpack", long, "-d", tmp_path / "out")  # too long for a file system
    assert not list((tmp_path / "out").iterdir())


@pytest.mark.skipif(sys.platform == "win32", reason="links take privileges there")
def test_unpack_stays_inside(fleet, tmp_path, refused) -> None:
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    inside.mkdir()
    outside.mkdir()
    (inside / "inner").symlink_to(outside)
    (inside / "h.jaxexp").symlink_to(outside / "h")
    for pattern in ("inner/*", "h"):
        for force in ([], ["--force"]):
            refused("", "unpack", fleet, pattern, "-d", inside, *force)
    assert not list(outside.iterdir())
    for name in ("/etc/passwd", "../up", "a/../../up", "..", ".", "a\0b"):  # archives refuse them: the second wall
        with pytest.raises(jaxexp.errors.ExportError, match="would not lie inside"):
            targets.inside(str(tmp_path), name, ".jaxexp")


@pytest.mark.skipif(sys.platform == "win32", reason="links take privileges there")
def test_no_member_replaces_another(tmp_path, refused) -> None:
    """Names that differ may be one file: a file system may ignore case, or one of them is a link, as here."""
    fleet, out = make(tmp_path / "fleet.zip", {"a": blob(version=0), "b": blob(version=1)}), tmp_path / "out"
    out.mkdir()
    (out / "b.jaxexp").symlink_to(out / "a.jaxexp")
    refused("which was just written: use another folder", "unpack", fleet, "-d", out, "--force")
    assert (out / "a.jaxexp").read_bytes() == blob(version=0)
    os.unlink(out / "b.jaxexp")
    os.mkfifo(out / "b.jaxexp")
    refused("is not a regular file, so it is not replaced", "unpack", fleet, "-d", out, "--force")


@pytest.mark.skipif(sys.platform == "win32", reason="links take privileges there")
def test_weights_and_members_of_one_name(tmp_path, refused, good) -> None:
    """No member replaces the weights of another; damaged weights are written again, also if their header is right."""
    model, out = bound()[0], tmp_path / "first"
    fleet = make(tmp_path / "fleet.zip", {"m": model, "n": model})
    good("unpack", fleet, "-d", out)
    (weights,) = out.glob("*.safetensors")
    whole = weights.read_bytes()
    flip(weights, -1)
    good("unpack", fleet, "-d", out, "--force")
    assert weights.read_bytes() == whole
    (out / "n.jaxexp").unlink()
    (out / "n.jaxexp").symlink_to(weights)
    refused("which was just written: use another folder", "unpack", fleet, "-d", out, "--force")
    assert weights.read_bytes() == whole


def test_names_that_mean_something_else_on_windows(tmp_path, monkeypatch) -> None:
    for name in (
        "c:x", "a/c:x", "a:stream", "a\\b", "NUL", "a/con.txt", "com1 .x", "LPT²", "a ", "a./b", "a?", "conin$"
    ):  # fmt: skip
        monkeypatch.setattr(targets, "_ON_WINDOWS", False)
        assert targets.inside(str(tmp_path), name, ".jaxexp")
        monkeypatch.setattr(targets, "_ON_WINDOWS", True)
        with pytest.raises(jaxexp.errors.ExportError, match="would not lie inside"):
            targets.inside(str(tmp_path), name, ".jaxexp")
    assert targets.inside(str(tmp_path), "console/null/com10", ".jaxexp")


def test_members(folder, fleet, good, run, tmp_path) -> None:
    pytest.importorskip("fsspec")
    member = f"{fleet}::b8"
    said = good("inspect", folder / "scores.jaxexp").partition("\n")[2]
    for name in (member, f"{fleet.as_uri()}::b8"):
        found = good("inspect", name).partition("\n")[2]
        assert found.replace('commit = "0e3c", v = 3', 'by = "me", run = [1, 2]') == said != found  # the archive's own
    assert good("ls", fleet.as_uri()) == good("ls", fleet)
    assert "4 of 4 artifacts whole" in good("verify", fleet.as_uri())
    assert inputs.split("s3://bucket/fleet.zip::a/b") == ("s3://bucket/fleet.zip", "a/b")
    assert inputs.split("simplecache::s3://bucket/fleet.zip") == ("simplecache::s3://bucket/fleet.zip", None)
    assert inputs.is_archive("s3://bucket/fleet.zip") and not inputs.is_archive("s3://bucket/model.jaxexp")
    found = json.loads(good("inspect", "--json", f"{fleet}::*"))
    assert [fact["file"] for fact in found] == [f"{fleet}::{name}" for name in NAMES]
    assert "1 of 1 artifact whole" in good("verify", member)
    status, text, _ = run("diff", "--json", member, folder / "scores.jaxexp")
    assert (status, list(json.loads(text)["changes"])) == (1, ["origin"])  # its metadata
    assert good("diff", member, f"{fleet}::inner/again") == ""
    assert "loads it" in good("compat", member)
    good("migrate", member, tmp_path / "new")
    assert "module @" in good("inspect", "--mlir", member)
    odd = tmp_path / "odd::name"
    odd.write_bytes((folder / "scores.jaxexp").read_bytes())
    good("inspect", odd)


def test_verify_archives(folder, fleet, tmp_path, good, run) -> None:
    text = good("verify", fleet, folder / "scores.jaxexp")
    assert re.search(r"fleet.zip .* whole: 4 members", text)
    assert "5 of 5 artifacts whole" in text
    assert "2 of 2 artifacts whole" in good("verify", f"{fleet}::inner/*")
    flip(Path(shutil.copy(fleet, tmp_path / "bad.zip")), bytes(jaxexp.Archive.open(fleet)["h"].read()), 300)
    status, out, _ = run("verify", "--json", tmp_path / "bad.zip")
    assert status == 1
    facts = json.loads(out)
    assert (facts["whole"], facts["damaged"]) == (3, 1)
    (wrong,) = (file for file in facts["files"] if file["state"] == "damaged")
    assert (wrong["file"], wrong["archive"]) == (f"{tmp_path / 'bad.zip'}::h", str(tmp_path / "bad.zip"))
    assert run("unpack", tmp_path / "bad.zip", "h", "-d", tmp_path / "out")[0] == 1
    assert not list((tmp_path / "out").glob("*"))
    (tmp_path / "torn.zip").write_bytes(fleet.read_bytes()[:-5])
    status, out, _ = run("verify", tmp_path / "torn.zip", fleet)
    assert status == 1
    assert re.search(r"torn.zip .* damaged", out)
    assert "4 of 5 artifacts whole" in out
    torn = Path(shutil.copy(fleet, tmp_path / "left.zip"))  # by an append that was killed
    good("pack", "--append", torn, f"x={folder / 'sharded.jaxexp'}")
    torn.write_bytes(torn.read_bytes()[:-5])
    assert re.search(r"left.zip .* whole: 4 members.* bytes after its end", good("verify", torn))


@pytest.mark.skipif(sys.platform != "linux", reason="names of files are text there")
def test_pack_of_a_name_that_is_no_text(folder, tmp_path, good, refused) -> None:
    file = os.fsencode(tmp_path) + b"/\xe9t\xe9.jaxexp"
    with open(file, "wb") as target:
        target.write((folder / "scores.jaxexp").read_bytes())
    for path in (os.fsdecode(file), tmp_path):
        said = "is not UTF-8, and the name of a member has to be: pass NAME=FILE"
        refused(said, "pack", tmp_path / "fleet.zip", path)
        assert not (tmp_path / "fleet.zip").exists()
    good("pack", tmp_path / "fleet.zip", f"café={os.fsdecode(file)}")
    assert list(jaxexp.Archive.open(tmp_path / "fleet.zip")) == ["café"]


def test_names_of_urls_have_no_secrets() -> None:
    url, folder = "https://me:SECRET@host/models/m.jaxexp?token=SECRET", "https://me:SECRET@host/my%20models/"
    for one in (url, "https://me:SECRET@host/models/m.jaxexp", "s3://bucket/a/m.jaxexp"):
        assert pack._name(inputs.Source(one, one), one) == "m"
    assert pack._name(inputs.Source("m", folder + "a/m.b.jaxexp?x=1"), folder) == "a/m.b"
    assert (pack._name(inputs.Source("m", folder + "m.jaxexp"), folder), view._stem(url)) == ("m", "m")
    assert (path_in(url), path_in("models/a?b@c.jaxexp")) == ("/models/m.jaxexp", "models/a?b@c.jaxexp")
    assert path_in("zip://m.jaxexp::https://host/models.zip?token=SECRET") == "m.jaxexp"


@pytest.fixture
def archive(fleet, tmp_path) -> Path:
    return Path(shutil.copy(fleet, tmp_path / "fleet.zip"))


def test_remove(archive, good, folder) -> None:
    assert good("pack", archive, "--remove", "h").startswith(f"{archive}: 1 member removed, 3 left; --compact")
    assert list(jaxexp.Archive.open(archive)) == ["b8", "inner/again", "inner/b16"]
    assert "2 members removed, 1 left" in good("pack", archive, "--remove", "inner/*", "--remove", "inner/b16")
    assert list(jaxexp.Archive.open(archive)) == ["b8"]
    jaxexp.load(f"{archive}::b8", verify=True)
    said = good("pack", archive, f"b8={folder / 'scores.jaxexp'}", "--remove", "b8")  # in one step, without --force
    assert said.splitlines()[1].startswith(f"{archive}: 1 artifact added, ")
    assert jaxexp.load(f"{archive}::b8").fun_name == jaxexp.load(folder / "scores.jaxexp").fun_name
    assert "0 left" in good("pack", archive, "--remove", "*")
    assert list(jaxexp.Archive.open(archive)) == []
    odd = make(archive.with_name("odd.zip"), {"[ab]": blob(), "a": blob()})
    good("pack", odd, "--remove", "[ab]")  # a name stands for itself
    assert list(jaxexp.Archive.open(odd)) == ["a"]


def test_all_or_nothing_and_one_at_a_time(archive, refused, damaged) -> None:
    before = archive.read_bytes()
    for patterns in (["b8", "nothing"], ["nothing*"], ["B8"]):
        refused(f"no member {patterns[-1]!r}", "pack", archive, *(f"--remove={one}" for one in patterns))
        assert archive.read_bytes() == before
    refused("found what looks like text", "pack", archive, damaged / "text", "--remove", "b8")
    with lock.locked(archive):
        for option in ("--remove=b8", "--compact"):
            refused("being changed by another writer", "pack", archive, option, status=75)
    assert archive.read_bytes() == before
    flipped = flip(archive, bytes(jaxexp.Archive.open(archive)["b8"].read()), 300)
    refused(f"{archive}::b8", "pack", archive, "--compact")  # damage stops it
    assert archive.read_bytes() == flipped


def test_compact(archive, tmp_path, good) -> None:
    before = archive.stat().st_size
    removed, packed = good("pack", archive, "--remove=inner/*", "--remove=h", "--compact").splitlines()
    assert removed == f"{archive}: 3 members removed, 1 left"
    assert packed.endswith(f" bytes -> {archive.stat().st_size:,} bytes")
    assert archive.stat().st_size < 0.8 * before
    assert "1 of 1 artifact whole" in good("verify", archive)
    apart = make(tmp_path / "apart.zip", {str(version): blob(version=version) for version in range(3)})
    assert any(handle.shares_modules for handle in jaxexp.Archive.open(apart).values())
    good("pack", apart, "--compact", "--whole")
    assert not any(handle.shares_modules for handle in jaxexp.Archive.open(apart).values())


def test_ls_of_members_that_share_long_metadata(fleet, refused, monkeypatch) -> None:
    monkeypatch.setattr(ls, "_MOST_TEXT", 100)
    monkeypatch.setattr(ls, "_MOST_TEXT_PER_BYTE", 0)
    for option in ("--json", "--long"):
        refused("would be too long: choose members by a GLOB", "ls", option, fleet)


def test_deep_folders(tmp_path) -> None:
    folder = tmp_path
    for _ in range(150):
        folder /= "a"
    folder.mkdir(parents=True)
    (folder / "m.jaxexp").write_bytes(blob())
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(len(inspect.stack()) + 140)
    try:
        found = [path for path, _ in Folders().files(str(tmp_path))]
    finally:
        sys.setrecursionlimit(limit)
    assert found == [folder / "m.jaxexp"]

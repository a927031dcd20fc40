"""Folders of artifacts of all ages: what is in them, what can be loaded, and what has to be migrated."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import jax
import pytest

import jaxexp
from jaxexp._cli import outputs
from kit import command_line, wire
from kit.damaged import jax_blob
from kit.goldens import blob_of
from kit.places import GOLDEN

pytestmark = pytest.mark.jax


@pytest.fixture
def old(tmp_path: Path, fleet: Path) -> Path:
    folder = tmp_path / "old"
    for release in ("jax-0.4.35", "jax-0.8.3", "jax-0.12.0.1"):
        for name in ("sin", "sharded"):
            (folder / release).mkdir(parents=True, exist_ok=True)
            shutil.copy(GOLDEN / release / f"{name}.bin", folder / release)
    shutil.copy(fleet, folder / "fleet.zip")
    (folder / "notes.txt").write_text("no artifact, and long enough to be looked at")
    return folder


NAMES = [f"jax-{release}/{name}.bin" for release in ("0.12.0.1", "0.4.35", "0.8.3") for name in ("sharded", "sin")]


def rows_of(text: str) -> list[str]:
    return [line.split()[0] for line in text.split("\n\n")[0].splitlines()[1:]]


def test_ls_and_inspect(old: Path, good: Any) -> None:
    inside = [*(f"fleet.zip::{name}" for name in command_line.NAMES), *NAMES]
    expected = [f"{old}/{name}" for name in inside]
    text = good("ls", old)
    assert rows_of(text) == inside, "as patterns match them"
    members = jaxexp.Archive.open(old / "fleet.zip")
    size = sum(Path(name).stat().st_size for name in expected[4:]) + sum(one.size for one in members.values())
    assert text.endswith(f"10 artifacts, {size:,} bytes; 1 other file skipped\n")
    assert rows_of(good("ls", old, "*/sin.bin")) == [name for name in inside if name.endswith("/sin.bin")]
    assert rows_of(good("ls", "--no-recursive", old)) == inside[:4]
    listed = {one["name"]: one for one in json.loads(good("ls", "--json", old))}
    assert (list(listed), listed[expected[0]]["digest"]) == (expected, members["b8"].digest)
    # The same artifact says the same in a folder and in an archive.
    (old / "b8.jaxexp").write_bytes(members["b8"].read())
    in_folder = json.loads(good("ls", "--json", old, "b8.jaxexp"))[0]
    assert {**in_folder, "name": ""} == {**listed[expected[0]], "name": ""}
    (old / "b8.jaxexp").unlink()
    text = good("inspect", old)
    assert rows_of(text) == expected
    assert "10 artifacts, " in text and text.endswith("; 1 other file skipped\n")
    assert rows_of(good("inspect", old / "fleet.zip")) == expected[:4]
    found = json.loads(good("inspect", "--json", old))
    assert [one.pop("file") for one in found] == expected
    assert found[-1] == json.loads(json.dumps(jaxexp.inspect(old / NAMES[-1]).to_dict()))


def test_damage_in_a_folder(old: Path, run: Any) -> None:
    blob = (old / NAMES[0]).read_bytes()
    for i in range(6):
        (old / f"cut{i}.jaxexp").write_bytes(blob[:200])
    (old / "other.jaxexp").write_bytes(b"PK\3\4 is no archive")
    for command in ("ls", "inspect"):
        status, out, err = run(command, old)
        assert status == 1
        assert "10 artifacts, " in out
        assert err.count("\n") == 2, err
        names = ", ".join(repr(f"{old}/cut{i}.jaxexp") for i in range(4))
        assert f"jaxexp: 6 artifacts ({names} and 2 more): cannot read the artifact: " in err
        listed = json.loads(run(command, "--json", old)[1])
        assert sum("error" in one for one in listed) == 7 and len(listed) == 17
    status, out, err = run("migrate", old, old.parent / "new")
    assert status == 1 and err.count("jaxexp: ") == 2
    assert f"6 artifacts ({names} and 2 more): cannot read the artifact: " in err
    status, out, err = run("compat", old)
    assert (status, err) == (1, "jaxexp: 7 of 17 artifacts cannot be read\n")
    assert re.search(r"^ +6  damaged  ", out, re.MULTILINE)
    (old / "other.jaxexp").unlink()
    assert "10 of 16 artifacts whole (6 without digests), 6 damaged, " in run("verify", old)[1]


def test_compat(old: Path, good: Any) -> None:
    facts = {one["file"]: one for one in json.loads(good("compat", "--json", old))}
    text = good("compat", old)
    table, totals, *more = text.split("\n\n")
    refused = [name for name, one in facts.items() if one["jax_export_refuses"]]
    for line, (name, one) in zip(table.splitlines()[1:], facts.items(), strict=True):
        assert line.split()[0] == name
        assert ("jaxexp only" in line) == (name in refused) and (one["jax_export_refuses"] or "loaded") in line
    counts = {f"{len(refused)} jaxexp only", f"{10 - len(refused)} loaded"} if refused else {"10 loaded"}
    assert set(totals.removeprefix("10 artifacts: ").partition(";")[0].split(", ")) == counts
    assert totals.rstrip().endswith("; 1 other file skipped")
    assert bool(refused) == bool(more)
    if refused:
        reasons, remedy = more
        assert sum(int(line.split()[0]) for line in reasons.splitlines()[1:]) == len(refused)
        assert f"'jaxexp migrate {old} NEW' rewrites them for JAX {jax.__version__}, if that is possible" in remedy
        good("migrate", old, old.parent / "new")
        assert "10 artifacts: 10 loaded\n" in good("compat", old.parent / "new")


def test_migrate_takes_several(old: Path, tmp_path: Path, good: Any, run: Any) -> None:
    """Names are those in their own folders; of two with the same name, the second one is an error."""
    first, other, single = old / "jax-0.8.3", tmp_path / "other", tmp_path / "single.bin"
    (other / "deep").mkdir(parents=True)
    shutil.copy(first / "sin.bin", other / "deep" / "mine.bin")
    shutil.copy(first / "sin.bin", single)
    new = tmp_path / "new"
    said = good("migrate", first, other, single, new)
    assert said.startswith(f"{first}, {other}, {single} -> {new}: 4 artifacts, ")
    written = {str(file.relative_to(new)) for file in new.rglob("*") if file.is_file()}
    assert written == {"sharded.jaxexp", "sin.jaxexp", "deep/mine.jaxexp", "single.jaxexp"}
    done = json.loads(good("migrate", "--json", "--include", "s*", old, tmp_path / "some"))
    assert [one["file"] for one in done["files"]] == [f"{old}/{name}" for name in NAMES]
    status, out, err = run("migrate", first, old / "jax-0.4.35", tmp_path / "twice")
    assert (status, "2 artifacts" in out) == (1, True)
    assert err.count("would be written to the same place as another: 'sin'; migrate one into another folder\n") == 1
    assert f"'jaxexp migrate --to 0.4.30 {first} {single} NEW'" in run("compat", "--reader", "0.4.30", first, single)[1]


def test_reasons_on_a_terminal(old: Path, lines_on: Any, monkeypatch: Any) -> None:
    """Each row has a number, and the reason of that number is written out below: nothing is cut."""
    monkeypatch.chdir(old)
    for columns in (80, 100):
        lines = lines_on(columns, "compat", "--reader", "0.12.0.1", ".", status=None)
        rows = [line for line in lines if ".bin " in line]
        by_number = {row.split()[-1]: row.split()[0] for row in rows if "refused" in row}
        assert by_number.keys() == {"(1)", "(2)"}
        written_out = [line for line in lines if line.strip().startswith("(")]
        assert "expired layout (of JAX 0.8.1 or older)" in " ".join("".join(written_out).split())
        assert not any("..." in line for line in lines)


def test_a_file_that_has_just_appeared_is_kept(folder: Path, tmp_path: Path, monkeypatch: Any, run: Any) -> None:
    """Between the look at a path and the writing of its file."""
    output = tmp_path / "new.jaxexp"
    monkeypatch.setattr(outputs, "refuse_existing", lambda path: Path(path).write_text("another"))
    status, _, err = run("migrate", folder / "scores.jaxexp", output)
    assert (status, "File exists" in err) == (1, True), err
    assert output.read_text() == "another"
    assert run("migrate", folder / "scores.jaxexp", output, "--force")[0] == 0
    assert jaxexp.load(output).fun_name == jaxexp.load(folder / "scores.jaxexp").fun_name
    assert [path.name for path in tmp_path.iterdir()] == ["new.jaxexp"]


def unknown() -> bytes:
    """An artifact with a namedtuple that nobody has registered here."""
    blob = bytearray(blob_of("0.12.0.1", "namedtuple_tree"))
    for place in ("in_tree.children.0.children.0", "out_tree"):
        if wire.read(blob, f"{place}.custom_name") == "corpus.Pt":  # both may be one string
            wire.write(blob, f"{place}.custom_name", "corpus.Qt")
    return bytes(blob)


def test_what_view_draws_has_a_verdict(tmp_path: Path, good: Any, run: Any) -> None:
    """Modules are parsed whatever the signature names: a class, or an effect, that is unknown here."""
    effect = jax_blob("ordered_effect")
    name = wire.read(effect, "ordered_effects.0.type_name")
    wire.write(effect, "ordered_effects.0.type_name", name.replace("First", "Thrsd"))
    for artifact, here, status in ((unknown(), "loaded", 0), (bytes(effect), "refused", 1)):
        (tmp_path / "artifact.bin").write_bytes(artifact)
        good("view", "--force", "-o", tmp_path / "page.html", tmp_path / "artifact.bin")
        found, out, _ = run("compat", tmp_path / "artifact.bin")
        assert (found, "does not read the module" in out) == (status, False)
        (tmp_path / "again.bin").write_bytes(artifact)
        found, out, _ = run("compat", tmp_path)
        assert (found, f"2 artifacts: 2 {here}" in out) == (status, True)
        (tmp_path / "again.bin").unlink()

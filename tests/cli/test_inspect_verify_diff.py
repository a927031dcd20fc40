"""`jaxexp inspect`, `verify`, also with a policy, and `diff`: what they print of artifacts, and where."""

from __future__ import annotations

import html
import json
import os
import random
import re
import zipfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxexp
from jaxexp._kernel.artifact.inspection import facts_of
from kit import hostile
from kit.command_line import NAMES
from kit.corpus import arr, spec

pytestmark = pytest.mark.jax


def test_inspect(folder, good) -> None:
    text = good("inspect", folder / "scores.jaxexp", folder / "sharded.jaxexp")
    found = jaxexp.inspect(folder / "scores.jaxexp")
    for part in (
        "scores  ", f"{found.total_bytes:,} bytes", f"JAX {jax.__version__} with {found.trailer}",
        "lapack_spotrf_ffi (1), shape_assertion (2)", "VJPs up to order 1", "batch >= 2", 'by = "me", run = [1, 2]',
        found.module_digests[0], "args[0]['b']  float32[3]", "args[1]       float32[batch,4]",
        "result  float32[3,batch]", "P('x', None) on Mesh('x': 4, 'y': 2)", "for 8 devices",
        "result['sum']  float32[]",
    ):  # fmt: skip
        assert part in text
    assert re.search(r"^  of VJP 1 +lapack_spotrf_ffi \(1\), lapack_strsm_ffi \(2\)", text, re.MULTILINE) or (
        "lapack_strsm_ffi (2)" in text
    )
    assert "weakly typed" in good("inspect", folder / "hostile.jaxexp")
    assert "compared and right" in good("inspect", "--check", folder / "scores.jaxexp")
    assert "none: damage" in good("inspect", folder / "untrailed.jaxexp")


def test_the_same_words_everywhere(folder, good) -> None:
    """Texts, the command line and pages show one list of facts, and `compat` the same ones in the same words."""
    name = folder / "scores.jaxexp"
    facts = dict(facts_of(jaxexp.inspect(name)))
    assert {"platforms", "written by", "size", "module", "custom calls", "derivatives", "digests"} <= {*facts}
    text, shown, page = str(jaxexp.inspect(name)), good("inspect", name), good("view", "-o", "-", name)
    for label, said in facts.items():
        assert f"  {label:<14}{said}\n" in text
        assert f"  {label:<14}{said}\n" in shown
        said = said if label != "digests" else f"{said}, compared and right"  # a page compares them
        assert f"<dt>{label}</dt><dd>{html.escape(said)}</dd>" in page
    report = " ".join(str(jaxexp.compatibility(name.read_bytes())).split())  # which is wrapped
    for line in good("compat", name).split("\n\n")[0].splitlines()[1:]:
        assert " ".join(line.split()) in report
    for label in ("platforms", "derivatives"):
        assert f"{label} {facts[label]}" in report


def test_shapes_that_many_values_share_are_written_out_for_none(tmp_path, good, run) -> None:
    """13 kB whose signature has 450 million characters."""
    path = tmp_path / "f"
    path.write_bytes(hostile.FAMILIES["shapes_of_one_long_dimension"](11_000))
    assert len(good("inspect", path)) < 10_000
    assert len(str(jaxexp.inspect(path))) < 100_000
    status, out, _ = run("inspect", "--json", path)
    assert status == 1
    (said,) = json.loads(out)
    assert "characters, and --json writes at most" in said["error"]
    exported = jaxexp.deserialize(path.read_bytes())
    for args in ((), [np.int16(1)] * len(exported.in_avals)):
        with pytest.raises(jaxexp.errors.ExportError) as error:
            exported.call(*args)
        assert len(str(error.value)) < 100_000


def test_inspect_jaxpr_for_sizes(tmp_path, good) -> None:
    shape = jaxexp.symbolic_shape("batch, 2*width", constraints=["batch >= 2"])
    exported = jaxexp.export(jax.jit(lambda tree, *, y: jax.numpy.tanh(tree["x"]) + y))(
        {"x": jax.ShapeDtypeStruct(shape, np.float32)}, y=jax.ShapeDtypeStruct(shape[1:], np.float32)
    )
    exported.save(tmp_path / "f", vjp_order=1)
    x, y = spec((4, 6)), spec((6,))
    given = "--size", "batch=4", "--size", "width=3", tmp_path / "f"
    text = good("inspect", "--jaxpr", *given)
    assert text == f"{exported.make_jaxpr({'x': x}, y=y)}\n"
    assert "f32[4,6]" in text and "tanh" in text
    assert good("inspect", "--jaxpr", "--vjp", 1, *given) == f"{exported.vjp().make_jaxpr(x, y, x)}\n"


def test_inspect_mlir(folder, tmp_path, good) -> None:
    text = good("inspect", "--mlir", folder / "scores.jaxexp")
    assert text.startswith("module @")
    assert "stablehlo.custom_call @lapack_spotrf_ffi" in text and "lapack_strsm" not in text
    assert "lapack_strsm" in good("inspect", "--mlir", "--vjp", 1, folder / "scores.jaxexp")
    values = np.arange(100, dtype=np.float32) ** 2
    jaxexp.export(jax.jit(lambda x: x + values))(spec((100,))).save(tmp_path / "f")
    short, long = good("inspect", "--mlir", tmp_path / "f"), good("inspect", "--mlir", "--all", tmp_path / "f")
    assert len(short) + 500 < len(long), "large constants are cut"


def test_inspect_goes_on_after_an_error(folder, damaged, run) -> None:
    scores = folder / "scores.jaxexp"
    status, out, err = run("inspect", damaged / "cut", scores, damaged / "missing")
    assert status == 1
    assert "float32[batch,4]" in out
    assert [("cut" in line, "missing" in line) for line in err.splitlines()] == [(True, False), (False, True)]
    status, out, err = run("inspect", "--json", damaged / "cut", scores, folder / "sharded.jaxexp")
    assert status == 1
    first, *others = json.loads(out)
    assert first.keys() == {"file", "error"}
    names = [str(scores), str(folder / "sharded.jaxexp")]
    assert [fact.pop("file") for fact in others] == names
    assert others == [json.loads(json.dumps(jaxexp.inspect(name).to_dict())) for name in names]


def test_verify(folder, damaged, tmp_path, run, good) -> None:
    assert "4 of 4 artifacts whole" in good("verify", folder)
    assert "whole, without digests" in good("verify", folder / "untrailed.jaxexp")
    status, out, err = run("verify", folder, damaged, damaged / "text", damaged / "missing")
    assert (status, err) == (1, "jaxexp: 5 of 9 artifacts are not whole\n")
    lines = {line.split()[0]: line for line in out.splitlines() if "/" in line}
    for name in ("cut", "flipped", "empty", "text"):
        assert "damaged" in lines[str(damaged / name)]
    assert "unreadable" in lines[str(damaged / "missing")]
    assert "1 other file skipped" in out  # the text, which was asked for by its name, too
    assert list(lines) == [*map(str, sorted(folder.iterdir())), *map(str, sorted(damaged.iterdir())), *list(lines)[-1:]]
    # What follows an artifact is nobody's.
    (tmp_path / "f").write_bytes((folder / "scores.jaxexp").read_bytes() + b"12345")
    assert "whole, and 5 bytes more" in good("verify", tmp_path / "f")
    for path, more in ((tmp_path / "f", 5), (folder / "scores.jaxexp", 0)):
        (file,) = json.loads(good("verify", "--json", path))["files"]
        assert (file["state"], file["more_bytes"]) == ("whole", more)
    assert jaxexp.load(tmp_path / "f").fun_name == "scores"
    facts = json.loads(run("verify", "--json", folder, damaged, damaged / "missing", "--workers", 3)[1])
    files = facts.pop("files")
    quiet = json.loads(run("verify", "--json", "-q", folder, damaged, damaged / "missing")[1])
    assert quiet.pop("files") == [file for file in files if file["state"] != "whole"] and quiet == facts
    total = sum(path.stat().st_size for place in (folder, damaged) for path in place.iterdir())
    counts = {"artifacts": 8, "whole": 4, "damaged": 3, "unreadable": 1, "refused": 0, "unsigned": 0}
    assert facts == {**counts, "bytes": total - (damaged / "text").stat().st_size, "skipped": [str(damaged / "text")]}
    assert [file["digests"] for file in files[:4]] == [True, True, True, False]
    assert all((file["error"] is None) == (file["state"] == "whole") for file in files)


def test_folders_without_artifacts(tmp_path, refused) -> None:
    said = f"jaxexp: there is no artifact in {str(tmp_path)!r}"
    assert refused(said, "verify", tmp_path) == f"{said}\n"
    (tmp_path / "notes.txt").write_text("none at all")
    assert refused(said, "compat", tmp_path) == f"{said}; 1 other file skipped\n"
    said += " whose name matches '*.exe' or '*.bin'\n"
    assert refused(said, "verify", "--include", "*.exe", "--include", "*.bin", tmp_path) == said


def test_diff(folder, tmp_path, run, good) -> None:
    assert good("diff", folder / "scores.jaxexp", folder / "scores.jaxexp") == ""
    jaxexp.export(jax.jit(lambda x: jnp.sin(x) + 1.0))(arr(2)).save(tmp_path / "a", metadata={"v": 1})
    jaxexp.export(jax.jit(lambda x: jnp.sin(jnp.sin(x)) + 1.0))(arr(3)).save(tmp_path / "b", metadata={"v": 2})
    status, out, err = run("diff", tmp_path / "a", tmp_path / "b")
    assert (status, err) == (1, "")
    rows = {line[2:].split("  ")[0]: line.split() for line in out.splitlines() if line}
    assert rows["args[0]"][1:] == ["float32[2]", "float32[3]"]
    sine = next(row for name, row in rows.items() if "sine" in name)
    assert (sine[1:], rows["metadata"][-4:]) == (["1", "2", "+1"], ['{"v":', "1}", '{"v":', "2}"])
    assert "platforms" not in rows
    size = (tmp_path / "b").stat().st_size - (tmp_path / "a").stat().st_size
    assert rows["artifact"][-1] == f"{size:+,}"


def test_diff_of_versions_of_an_operation(tmp_path, run) -> None:
    exported = jaxexp.export(jax.jit(lambda x: jnp.tanh(x) @ x))(arr(2, 2))
    exported.save(tmp_path / "old", compatibility="0.4.30")  # has tanh_v1, and not tanh_v2
    exported.save(tmp_path / "new")
    assert run("diff", "--only", "operations", tmp_path / "old", tmp_path / "new") == (0, "", "")


def test_diff_json_and_sections(folder, tmp_path, run) -> None:
    for name, constant in (("a", 1.0), ("b", 2.0)):
        jaxexp.export(jax.jit(lambda x, c=constant: x + c))(arr(2)).save(tmp_path / name)
    status, out, _ = run("diff", "--json", tmp_path / "a", tmp_path / "b")
    facts = json.loads(out)
    assert (status, facts["same"], facts.keys()) == (1, False, {"a", "b", "same", "changes"})
    assert facts["changes"].keys() == {"origin"}  # the constant is in the bytes alone
    assert facts["changes"]["origin"].keys() == {"all bytes", "module"}
    assert run("diff", "--only", "signature", "--only", "operations", tmp_path / "a", tmp_path / "b") == (0, "", "")
    status, out, _ = run("diff", "--json", "--only", "sizes", tmp_path / "a", tmp_path / "a")
    assert (status, json.loads(out)["same"], json.loads(out)["changes"]) == (0, True, {})
    jaxexp.load(folder / "scores.jaxexp").save(tmp_path / "none", vjp_order=0)
    status, out, _ = run("diff", "--json", folder / "scores.jaxexp", tmp_path / "none")
    changes = json.loads(out)["changes"]
    assert (status, changes["signature"]) == (1, {"VJPs": {"a": 1, "b": 0}})
    assert "operations" not in changes
    assert changes["sizes"]["VJP 1: module"]["b"] is None


def test_diff_of_archives(folder, fleet, tmp_path, good, run) -> None:
    other = tmp_path / "other.zip"
    members = [f"b8={folder / 'sharded.jaxexp'}", f"h={folder / 'hostile.jaxexp'}", f"new={fleet}::b8"]
    good("pack", other, *members, "-m", 'commit="0e3c"', "-m", "v=3")
    assert good("diff", fleet, fleet) == ""
    status, out, _ = run("diff", "--json", fleet, other)
    digests = {name: jaxexp.Archive.open(fleet)[name].digest for name in NAMES}
    assert status == 1
    assert json.loads(out)["changes"]["members"] == {
        "b8": {"a": digests["b8"], "b": digests["inner/b16"]},
        "inner/again": {"a": digests["inner/again"], "b": None},
        "inner/b16": {"a": digests["inner/b16"], "b": None},
        "new": {"a": None, "b": digests["b8"]},
    }
    out = run("diff", fleet, other)[1]
    assert [line.split()[0] for line in out.splitlines()] == ["members", "b8", "inner/again", "inner/b16", "new"]


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    return tmp_path / "policy.toml"


def test_what_is_not_allowed_is_said_of_each_artifact(folder, fleet, damaged, policy, run, good) -> None:
    policy.write_text("stable_custom_calls = false\nmax_devices = 1\n")
    names = ("scores", "sharded", "hostile")
    paths = [folder / f"{name}.jaxexp" for name in names]
    status, out, err = run("verify", "--policy", policy, *paths)
    assert (status, err) == (1, "jaxexp: 2 of 3 artifacts are not allowed\n")
    assert "1 of 3 artifacts whole and allowed" in out
    rows = {Path(line.split()[0]).stem: line for line in out.splitlines() if str(folder) in line}
    assert "refused" in rows["scores"] and "custom call 'lapack_spotrf_ffi'" in rows["scores"]
    assert "has 8 devices" in rows["sharded"]
    assert "refused" not in rows["hostile"]
    _, out, _ = run("verify", "--quiet", "--policy", policy, *paths)
    assert "hostile" not in out and "sharded" in out
    assert out.splitlines()[-1].startswith("1 of 3 artifacts whole and allowed, 2 refused")
    _, out, _ = run("verify", "--json", "--policy", policy, *paths)
    facts = json.loads(out)
    assert (facts["whole"], facts["refused"]) == (1, 2)
    assert [file["state"] for file in facts["files"]] == ["refused", "refused", "whole"]
    policy.write_text("custom_calls = ['lapack_*']\nstable_custom_calls = false\n")
    assert "3 of 3 artifacts whole and allowed" in good("verify", "--policy", policy, *paths)
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
    (tmp_path / "folder").mkdir()
    file, data = tmp_path / "folder" / "f.zip", bytearray(fleet.read_bytes())
    for place in random.Random(0).sample(range(start, len(data)), 6):
        file.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        for path in (file, file.parent):
            for options in ([], ["--policy", policy], ["--quiet"]):
                status, out, _ = run("verify", *options, path)
                assert (status, "f.zip" in out) == (1, True), place


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


def test_files_that_are_too_large_are_not_read(tmp_path, policy, run) -> None:
    policy.write_text("max_artifact_bytes = 1000\n")
    large = tmp_path / "large.jaxexp"
    large.write_bytes(b"no artifact")
    os.truncate(large, 1 << 42)
    status, out, err = run("verify", "--policy", policy, large)
    assert (status, err) == (1, "jaxexp: 1 of 1 artifact is not allowed\n")
    assert "max_artifact_bytes" in out


@pytest.fixture
def models(tmp_path: Path) -> Path:
    exported = jaxexp.export(jax.jit(lambda x: jnp.sin(x) @ x))(arr(4, 4))
    exported.save(tmp_path / "full.jaxexp")
    exported.save(tmp_path / "names.jaxexp", locations="names")
    jaxexp.export(jax.jit(lambda x: jnp.cos(x) @ x))(arr(4, 4)).save(tmp_path / "other.jaxexp")
    return tmp_path


def test_equal_programs_have_equal_meanings(models: Path, good, run) -> None:
    full, names, damaged = (models / f"{name}.jaxexp" for name in ("full", "names", "damaged"))
    digests = jaxexp.digests(full)
    shown = good("inspect", "--digests", full)
    assert digests.sha256 in shown and digests.meaning in shown
    assert digests.meaning not in good("inspect", full)
    found = {Path(one["file"]).name: one for one in json.loads(good("inspect", "--digests", "--json", models))}
    assert found.keys() == {"full.jaxexp", "names.jaxexp", "other.jaxexp"}
    assert (found["full.jaxexp"]["sha256"], found["full.jaxexp"]["meaning"]) == (digests.sha256, digests.meaning)
    assert digests.meaning == found["names.jaxexp"]["meaning"] != found["other.jaxexp"]["meaning"]
    good("pack", models / "all.zip", full, models / "other.jaxexp")
    rows = [line.split() for line in good("inspect", "--digests", models / "all.zip").splitlines()[1:3]]
    assert rows == [
        [f"{models / 'all.zip'}::{name}", *(found[f"{name}.jaxexp"][key] for key in ("sha256", "meaning"))]
        for name in ("full", "other")
    ]
    damaged.write_bytes(full.read_bytes()[:-50])
    status, out, err = run("inspect", "--digests", "--json", damaged, names)
    bad, whole = json.loads(out)
    assert (status, err.count("\n"), whole["meaning"]) == (1, 1, digests.meaning)
    assert bad == {"file": str(damaged), "error": err.removeprefix("jaxexp: ").rstrip("\n")}


def test_paths_are_shown_and_left_out(models: Path, good) -> None:
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

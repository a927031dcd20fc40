"""The command line: every command, what it prints where, how it ends."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import click
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export as jax_export
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import jaxexp
from jaxexp._cli import inputs, page, progress, start
from jaxexp._cli.commands import bench, unpack
from kit.corpus import arr, mesh, spec
from kit.places import GOLDEN, ROOT

HOSTILE = "evil\x1b[31m\n\u202egood\x07"
COMMANDS = ("inspect", "verify", "diff", "compat", "migrate", "pack", "ls", "unpack", "bench")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Artifacts of all kinds, to be read only."""
    folder = tmp_path_factory.mktemp("artifacts")

    def scores(weights, x):
        return jnp.linalg.cholesky(weights["w"].T @ weights["w"]) @ (x @ weights["w"] + weights["b"]).T

    weights = {"w": arr(4, 3), "b": arr(3)}
    x = jax.ShapeDtypeStruct(jaxexp.symbolic_shape("batch, 4", constraints=["batch >= 2"]), "float32")
    exported = jaxexp.export(jax.jit(scores))(weights, x)
    exported.save(folder / "scores.jaxexp", vjp_order=1, metadata={"run": [1, 2], "by": "me"})
    exported.save(folder / "untrailed.jaxexp", trailer=False)

    sharding = NamedSharding(mesh((4, 2), ("x", "y")), P("x", None))
    jaxexp.export(jax.jit(lambda a: {"b": a + 1, "sum": a.sum()}, in_shardings=(sharding,)))(spec((8, 4))).save(
        folder / "sharded.jaxexp"
    )

    def plus(x):
        return x + 1

    plus.__name__ = HOSTILE
    jaxexp.export(jax.jit(plus))(1.0).save(folder / "hostile.jaxexp", metadata={"\x1b]0;title\x07": "\x1b[2J"})
    return folder


@pytest.fixture(scope="module")
def damaged(folder, tmp_path_factory) -> Path:
    bad = tmp_path_factory.mktemp("damaged")
    blob = bytearray((folder / "scores.jaxexp").read_bytes())
    (bad / "cut").write_bytes(blob[:-100])
    blob[len(blob) // 2] ^= 1
    (bad / "flipped").write_bytes(blob)
    (bad / "empty").touch()
    (bad / "text").write_text("no artifact at all, but long enough to be looked at")
    return bad


@pytest.fixture
def run(capsys):
    """Runs a command in this process: its status, stdout and stderr."""

    def run(*arguments: object) -> tuple[int, str, str]:
        status = start.main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        return status, out, err

    return run


@pytest.fixture
def good(run):
    """Runs a command that has to succeed: its stdout."""

    def good(*arguments: object) -> str:
        status, out, err = run(*arguments)
        assert (status, err) == (0, "")
        return out

    return good


def started(code: str, *arguments: object, env: dict[str, str], **options) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        env=env,
        capture_output=True,
        text=True,
        check=False,
        **options,
    )


# --- starting ---------------------------------------------------------------------------------------------------------


def test_entry_points_are_the_same(folder, subprocess_env) -> None:
    """The script that is installed, what pyproject.toml declares, and `python -m jaxexp`."""
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]["jaxexp"]
    module, _, function = declared.partition(":")
    code = f"import sys; from {module} import {function} as main; sys.exit(main())"
    starts = [[sys.executable, "-m", "jaxexp"], [sys.executable, "-c", code]]
    script = Path(sys.executable).with_name("jaxexp")
    if script.exists():
        starts.append([str(script)])
    for arguments in (["--version"], ["inspect", "scores.jaxexp"], ["inspect", "missing"], ["diff", "scores.jaxexp"]):
        results = [
            subprocess.run([*start, *arguments], cwd=folder, env=subprocess_env(), capture_output=True, check=False)
            for start in starts
        ]
        seen = {(done.returncode, done.stdout, done.stderr) for done in results}
        assert len(seen) == 1


def test_without_a_command(good) -> None:
    assert good() == good("--help")


def test_version(good) -> None:
    assert good("--version") == f"jaxexp {jaxexp.__version__}\n"


@pytest.mark.parametrize("name", COMMANDS)
def test_help_has_an_example(good, name: str) -> None:
    text = good(name, "--help")
    assert text.startswith(f"Usage: jaxexp {name}")
    examples = [line for line in text.partition("Example:\n")[2].splitlines() if line.strip()]
    assert examples and all(line.startswith(f"    jaxexp {name}") for line in examples)
    assert name in good("--help")


@pytest.mark.parametrize(
    ("absent", "named"), [(["click"], "click"), (["rich"], "rich"), (["click", "rich"], "click and rich")]
)
def test_without_the_extra(subprocess_env, absent: list[str], named: str) -> None:
    code = f"""
import sys
sys.modules.update(dict.fromkeys({absent}))
from jaxexp._cli.start import main
sys.exit(main())
"""
    done = started(code, "--version", env=subprocess_env())
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.count("\n") == 1
    assert f"needs {named}," in done.stderr
    assert "pip install 'jaxexp[cli]'" in done.stderr


def imported(env: dict[str, str], *arguments: object) -> tuple[int, set[str]]:
    """The status of a command, and what it imported."""
    code = """
import sys
from jaxexp._cli.start import main
status = main(sys.argv[1:])
print("\\n" + " ".join({name.partition(".")[0] for name in sys.modules}))
sys.exit(status)
"""
    done = started(code, *arguments, env=env)
    return done.returncode, set(done.stdout.splitlines()[-1].split())


def test_what_needs_no_jax_imports_none(folder, fleet, tmp_path, subprocess_env) -> None:
    env = subprocess_env()
    scores, sharded = folder / "scores.jaxexp", folder / "sharded.jaxexp"
    for arguments in (
        ["inspect", scores, sharded],
        ["inspect", "--json", "--check", scores],
        ["verify", folder],
        ["verify", "--json", scores],
        ["diff", scores, scores],
        ["ls", "--long", fleet],
        ["ls", "--json", fleet],
        ["inspect", f"{fleet}::b8"],
        ["verify", fleet],
        ["unpack", fleet, "-d", tmp_path],
        ["pack", tmp_path / "a.zip", scores],
    ):
        status, modules = imported(env, *arguments)
        assert status == 0
        assert "click" in modules
        assert not modules & {"jax", "jaxlib", "numpy", "rich"}
    assert "jax" in imported(env, "inspect", "--mlir", scores)[1]


# --- inspect ----------------------------------------------------------------------------------------------------------


def test_inspect(folder, good) -> None:
    text = good("inspect", folder / "scores.jaxexp", folder / "sharded.jaxexp")
    found = jaxexp.inspect(folder / "scores.jaxexp")
    for part in (
        "scores  ",
        f"{found.total_bytes:,} bytes",
        f"JAX {jax.__version__} with {found.trailer}",
        "lapack_spotrf_ffi (1), shape_assertion (2)",
        "VJPs up to order 1",
        "batch >= 2",
        'by = "me", run = [1, 2]',
        found.module_digests[0],
        "args[0]['b']  float32[3]",
        "args[1]       float32[batch,4]",
        "result  float32[3,batch]",
        "P('x', None) on Mesh('x': 4, 'y': 2)",
        "for 8 devices",
        "result['sum']  float32[]",
    ):
        assert part in text
    assert re.search(r"^  of VJP 1 +lapack_spotrf_ffi \(1\), lapack_strsm_ffi \(2\)", text, re.MULTILINE) or (
        "lapack_strsm_ffi (2)" in text
    )
    assert "weakly typed" in good("inspect", folder / "hostile.jaxexp")
    assert "compared and right" in good("inspect", "--check", folder / "scores.jaxexp")
    assert "none: damage" in good("inspect", folder / "untrailed.jaxexp")


def test_inspect_json(folder, good) -> None:
    names = [str(folder / "scores.jaxexp"), str(folder / "sharded.jaxexp")]
    facts = json.loads(good("inspect", "--json", *names))
    assert [fact.pop("file") for fact in facts] == names
    assert facts == [json.loads(json.dumps(jaxexp.inspect(name).to_dict())) for name in names]


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("**/*.bin"))[::7], ids=lambda p: f"{p.parent.name}-{p.stem}")
def test_inspect_and_verify_artifacts_of_all_releases(good, path: Path) -> None:
    found = jaxexp.inspect(path)
    assert found.fun_name in good("inspect", path)
    assert len(json.loads(good("inspect", "--json", path))) == 1
    assert "whole" in good("verify", path)


def test_inspect_mlir(folder, good, run) -> None:
    text = good("inspect", "--mlir", folder / "scores.jaxexp")
    assert text.startswith("module @")
    assert "stablehlo.custom_call @lapack_spotrf_ffi" in text
    assert "lapack_strsm" not in text
    assert "lapack_strsm" in good("inspect", "--mlir", "--vjp", 1, folder / "scores.jaxexp")
    status, out, err = run("inspect", "--mlir", "--vjp", 2, folder / "scores.jaxexp")
    assert (status, out) == (1, "")
    assert "no VJP of order 2" in err
    assert "\x1b" not in good("inspect", "--mlir", folder / "hostile.jaxexp")


def test_inspect_mlir_cuts_large_constants(tmp_path, good) -> None:
    values = np.arange(100, dtype=np.float32) ** 2
    jaxexp.export(jax.jit(lambda x: x + values))(spec((100,))).save(tmp_path / "f")
    short, long = good("inspect", "--mlir", tmp_path / "f"), good("inspect", "--mlir", "--all", tmp_path / "f")
    assert len(short) + 500 < len(long)


def test_inspect_goes_on_after_an_error(folder, damaged, run) -> None:
    status, out, err = run("inspect", damaged / "cut", folder / "scores.jaxexp", damaged / "missing")
    assert status == 1
    assert "float32[batch,4]" in out
    assert [("cut" in line, "missing" in line) for line in err.splitlines()] == [(True, False), (False, True)]
    status, out, err = run("inspect", "--json", damaged / "cut", folder / "scores.jaxexp")
    assert status == 1
    first, second = json.loads(out)
    assert first.keys() == {"file", "error"}
    assert second["fun_name"] == "scores"


def test_thousands_of_arguments(tmp_path, good) -> None:
    """In a pipe nothing is cut."""
    jaxexp.export(jax.jit(lambda xs: xs[0]))([1.0] * 500).save(tmp_path / "f")
    lines = good("inspect", tmp_path / "f").splitlines()
    assert sum(line.startswith("  args[0][") for line in lines) == 500
    assert any(len(line) > 1000 for line in lines)  # the tree


# --- verify -----------------------------------------------------------------------------------------------------------


def test_verify(folder, damaged, run, good) -> None:
    assert "4 of 4 artifacts whole" in good("verify", folder)
    assert "whole, without digests" in good("verify", folder / "untrailed.jaxexp")
    status, out, err = run("verify", folder, damaged, damaged / "missing")
    assert status == 1
    assert err == "jaxexp: 5 of 9 artifacts are not whole\n"
    lines = {line.split()[0]: line for line in out.splitlines() if "/" in line}
    for name in ("cut", "flipped", "empty", "text"):
        assert "damaged" in lines[str(damaged / name)]
    assert "unreadable" in lines[str(damaged / "missing")]
    assert list(lines) == [*map(str, sorted(folder.iterdir())), *map(str, sorted(damaged.iterdir())), *list(lines)[-1:]]


def test_verify_json(folder, damaged, run) -> None:
    status, out, _ = run("verify", "--json", folder, damaged, damaged / "missing", "--workers", 3)
    assert status == 1
    facts = json.loads(out)
    files = facts.pop("files")
    total = sum(path.stat().st_size for place in (folder, damaged) for path in place.iterdir())
    assert facts == {"artifacts": 9, "whole": 4, "damaged": 4, "unreadable": 1, "bytes": total}
    assert all(
        file.keys() == {"file", "state", "bytes", "digests", "error", "archive", "unfinished_bytes"} for file in files
    )
    assert [file["digests"] for file in files[:4]] == [True, True, True, False]
    assert all((file["error"] is None) == (file["state"] == "whole") for file in files)


def test_verify_finds_every_flipped_byte_of_a_module(folder, tmp_path, run) -> None:
    blob = (folder / "hostile.jaxexp").read_bytes()
    for at in range(0, len(blob), 37):
        (tmp_path / "f").write_bytes(blob[:at] + bytes([blob[at] ^ 0x10]) + blob[at + 1 :])
        assert run("verify", tmp_path / "f")[0] == 1, at


def test_verify_folders(folder, damaged, tmp_path, run, good) -> None:
    inner = tmp_path / "models" / "inner"
    inner.mkdir(parents=True)
    (tmp_path / "models" / "a.jaxexp").write_bytes((folder / "scores.jaxexp").read_bytes())
    (tmp_path / "models" / ".0123.tmp").write_bytes(b"left over by somebody")
    (inner / "b.jaxexp").write_bytes((damaged / "cut").read_bytes())
    (inner / "notes.txt").write_text("not an artifact")
    models = tmp_path / "models"
    assert "1 of 1 artifact whole" in good("verify", models)
    status, out, _ = run("verify", "-r", models)
    assert status == 1
    assert "1 of 3 artifacts whole" in out
    status, out, _ = run("verify", "-r", "--include", "*.jaxexp", models)
    assert "1 of 2 artifacts whole" in out
    status, out, _ = run("verify", "-rq", "--include", "*.jaxexp", models)
    assert [line.split()[0] for line in out.splitlines()] == ["artifact", str(inner / "b.jaxexp")]
    assert good("verify", "-q", models) == ""
    (tmp_path / "none").mkdir()
    assert run("verify", tmp_path / "none") == (1, "", "jaxexp: there is no artifact here\n")


def test_verify_reads_bytecode(tmp_path, run) -> None:
    """Without a digest, damage in a module is seen where it breaks the bytecode."""
    blob = bytearray(jaxexp.export(jax.jit(jnp.sin))(arr(2)).serialize(trailer=False))
    at = blob.index(b"ML\xefR")
    blob[at + 30 : at + 60] = bytes(30)
    (tmp_path / "f").write_bytes(blob)
    status, out, _ = run("verify", tmp_path / "f")
    assert status == 1
    assert "MLIR bytecode" in out


# --- diff -------------------------------------------------------------------------------------------------------------


def test_diff(folder, tmp_path, run, good) -> None:
    assert good("diff", folder / "scores.jaxexp", folder / "scores.jaxexp") == ""
    jaxexp.export(jax.jit(lambda x: jnp.sin(x) + 1.0))(arr(2)).save(tmp_path / "a", metadata={"v": 1})
    jaxexp.export(jax.jit(lambda x: jnp.sin(jnp.sin(x)) + 1.0))(arr(3)).save(tmp_path / "b", metadata={"v": 2})
    status, out, err = run("diff", tmp_path / "a", tmp_path / "b")
    assert (status, err) == (1, "")
    rows = {line[2:].split("  ")[0]: line.split() for line in out.splitlines() if line}
    assert rows["args[0]"][1:] == ["float32[2]", "float32[3]"]
    sine = next(row for name, row in rows.items() if "sine" in name)
    assert sine[1:] == ["1", "2", "+1"]
    assert rows["metadata"][-4:] == ['{"v":', "1}", '{"v":', "2}"]
    assert "platforms" not in rows
    size = (tmp_path / "b").stat().st_size - (tmp_path / "a").stat().st_size
    assert rows["artifact"][-1] == f"{size:+,}"


def test_diff_json_and_sections(folder, tmp_path, run) -> None:
    for name, constant in (("a", 1.0), ("b", 2.0)):
        jaxexp.export(jax.jit(lambda x, c=constant: x + c))(arr(2)).save(tmp_path / name)
    status, out, _ = run("diff", "--json", tmp_path / "a", tmp_path / "b")
    facts = json.loads(out)
    assert status == 1
    assert facts.keys() == {"a", "b", "same", "changes"}
    assert facts["same"] is False
    assert facts["changes"].keys() == {"origin"}  # the constant is in the bytes alone
    assert facts["changes"]["origin"].keys() == {"all bytes", "module"}
    assert run("diff", "--only", "signature", "--only", "operations", tmp_path / "a", tmp_path / "b") == (0, "", "")
    status, out, _ = run("diff", "--json", "--only", "sizes", tmp_path / "a", tmp_path / "a")
    assert (status, json.loads(out)["same"], json.loads(out)["changes"]) == (0, True, {})


def test_diff_of_vjps_and_modules_that_cannot_be_read(folder, tmp_path, run) -> None:
    exported = jaxexp.load(folder / "scores.jaxexp")
    exported.save(tmp_path / "none", vjp_order=0)
    status, out, _ = run("diff", "--json", folder / "scores.jaxexp", tmp_path / "none")
    changes = json.loads(out)["changes"]
    assert status == 1
    assert changes["signature"] == {"VJPs": {"a": 1, "b": 0}}
    assert "operations" not in changes
    assert changes["sizes"]["VJP 1: module"]["b"] is None


def test_diff_of_archives(folder, fleet, tmp_path, good, run) -> None:
    other = tmp_path / "other.zip"
    good("pack", other, f"b8={folder / 'sharded.jaxexp'}", f"h={folder / 'hostile.jaxexp'}", f"new={fleet}::b8")
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
    status, out, _ = run("diff", fleet, other)
    assert status == 1
    assert [line.split()[0] for line in out.splitlines()] == ["members", "b8", "inner/again", "inner/b16", "new"]
    assert run("diff", fleet, folder / "scores.jaxexp")[0] == 2


def test_diff_trouble(folder, damaged, run) -> None:
    for arguments in (
        [folder / "scores.jaxexp", damaged / "cut"],
        [folder / "scores.jaxexp", damaged / "missing"],
        [folder / "scores.jaxexp"],
        [folder / "scores.jaxexp", folder / "scores.jaxexp", "--only", "colour"],
    ):
        status, out, err = run("diff", *arguments)
        assert (status, out) == (2, "")
        assert err.count("\n") == 1


# --- compat and migrate -----------------------------------------------------------------------------------------------


def test_compat(folder, good, run) -> None:
    old = GOLDEN / "jax-0.4.30" / "poly.bin"
    found = jaxexp.compatibility(old.read_bytes())
    text = good("compat", old)
    assert found.fun_name in text
    for first, last in found.readers:
        assert re.search(rf"^  {re.escape(first)} to {re.escape(last)} +loads it", text, re.MULTILINE)
    (facts,) = json.loads(good("compat", "--json", old))
    assert facts.pop("file") == str(old)
    assert facts["readers"] == [list(span) for span in found.readers]
    assert facts["promised_until"] == found.promised_until.isoformat()
    assert facts.keys() == set(type(found).__dataclass_fields__)
    good("compat", "--reader", jax.__version__, folder / "scores.jaxexp")
    status, out, err = run("compat", "--reader", "0.4.30", old, folder / "scores.jaxexp")
    assert status == 1
    assert "scores" in out
    assert err.count("\n") == 1
    assert str(folder / "scores.jaxexp") in err
    assert str(old) not in err


def test_migrate(folder, tmp_path, good, run) -> None:
    old, new = GOLDEN / "jax-0.4.30" / "poly.bin", tmp_path / "new.jaxexp"
    assert f"{old} -> {new}" in good("migrate", old, new)
    jax_export.deserialize(bytearray(new.read_bytes()))
    before = new.read_bytes()
    status, _, err = run("migrate", old, new)
    assert status == 1
    assert "--force" in err
    assert new.read_bytes() == before
    good("migrate", "--force", "--to", "jax-0.6.2", old, new)
    assert jaxexp.compatibility(new.read_bytes()).readable_by("0.6.2")
    assert [path.name for path in tmp_path.iterdir()] == ["new.jaxexp"]


def test_migrate_with_inputs(folder, tmp_path, good, run) -> None:
    np.savez(tmp_path / "in.npz", arr(3), np.eye(4, 3, dtype=np.float32), arr(3, 4))
    good("migrate", "--inputs", tmp_path / "in.npz", folder / "scores.jaxexp", tmp_path / "new")
    np.savez(tmp_path / "few.npz", arr(3))
    status, _, err = run("migrate", "--inputs", tmp_path / "few.npz", folder / "scores.jaxexp", tmp_path / "other")
    assert status == 1
    assert "expected 3" in err
    assert not (tmp_path / "other").exists()


# --- archives ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def fleet(folder, tmp_path_factory) -> Path:
    """An archive, to be read only."""
    place = tmp_path_factory.mktemp("fleet")
    (place / "models" / "inner").mkdir(parents=True)
    for name, source in {"b8": "scores", "inner/b16": "sharded", "inner/again": "scores", "h": "hostile"}.items():
        (place / "models" / f"{name}.jaxexp").write_bytes((folder / f"{source}.jaxexp").read_bytes())
    (place / "models" / ".hidden").write_text("not packed")
    assert (
        start.main(["pack", str(place / "fleet.zip"), str(place / "models"), "-m", 'commit="0e3c"', "-m", "v=3"]) == 0
    )
    return place / "fleet.zip"


NAMES = ["b8", "h", "inner/again", "inner/b16"]


def test_pack(folder, fleet, tmp_path, good, monkeypatch) -> None:
    with jaxexp.Archive.open(fleet) as archive:
        assert list(archive) == NAMES
        assert archive["b8"].metadata == {"commit": "0e3c", "v": 3}
        assert bytes(archive["b8"].read()) == (folder / "scores.jaxexp").read_bytes()
    monkeypatch.chdir(folder)
    text = good("pack", tmp_path / "a.zip", "scores.jaxexp", "a/b=sharded.jaxexp", folder / "hostile.jaxexp")
    assert text == f"{tmp_path / 'a.zip'}: 3 artifacts packed, {(tmp_path / 'a.zip').stat().st_size:,} bytes\n"
    with jaxexp.Archive.open(tmp_path / "a.zip") as archive:
        assert list(archive) == ["a/b", "hostile", "scores"]
        assert archive["scores"].metadata == {"run": [1, 2], "by": "me"}
    monkeypatch.chdir(fleet.parent)
    good("pack", tmp_path / "b.zip", "models/b8.jaxexp", "models/inner/../h.jaxexp", "--include", "nothing")
    with jaxexp.Archive.open(tmp_path / "b.zip") as archive:
        assert list(archive) == ["h", "models/b8"]
    good("pack", tmp_path / "c.zip", f"{fleet}::inner/*")
    with jaxexp.Archive.open(tmp_path / "c.zip") as archive:
        assert list(archive) == ["inner/again", "inner/b16"]


def test_pack_appends_and_replaces(folder, tmp_path, good, run) -> None:
    archive = tmp_path / "a.zip"
    scores, sharded = folder / "scores.jaxexp", folder / "sharded.jaxexp"
    good("pack", archive, f"x={scores}")
    for arguments in ([f"x={sharded}"], ["--append", f"x={sharded}"]):
        status, out, err = run("pack", archive, *arguments)
        assert (status, out) == (1, "")
        assert err.count("\n") == 1
    assert "1 artifact added" in good("pack", archive, "--append", f"y={sharded}")
    good("pack", archive, "--append", "--force", f"x={sharded}")
    with jaxexp.Archive.open(archive) as opened:
        assert {name: opened[name].summary.nr_devices for name in opened} == {"x": 8, "y": 8}
    good("pack", archive, "--force", f"z={scores}")
    with jaxexp.Archive.open(archive) as opened:
        assert list(opened) == ["z"]


def test_pack_refuses(folder, damaged, tmp_path, run) -> None:
    scores, archive = folder / "scores.jaxexp", tmp_path / "a.zip"
    for arguments, said in (
        ([damaged / "cut"], "cut"),
        ([scores, damaged / "flipped"], "flipped"),
        ([scores, f"scores={scores}"], "would both be 'scores'"),
        ([f"../up={scores}"], "../up"),
        ([f"/top={scores}"], "/top"),
        ([scores, "-m", "nothing"], "KEY=JSON"),
        ([scores, "-m", "a=b"], "is no JSON"),
        ([tmp_path], "nothing to pack"),
        ([damaged / "missing"], "missing"),
    ):
        status, out, err = run("pack", archive, *arguments)
        assert (status, out) == (1, ""), arguments
        assert said in err
        assert err.count("\n") == 1
        assert "not expected" not in err
    assert not list(tmp_path.iterdir())


def test_ls(folder, fleet, good, run) -> None:
    lines = good("ls", fleet).splitlines()
    assert [line.split()[0] for line in lines[1:5]] == NAMES
    assert "(float32[3], float32[4,3], float32[batch,4]) -> float32[3,batch]" in lines[1]
    assert lines[-1].startswith("4 members")
    assert [line.split()[0] for line in good("ls", fleet, "inner/*").splitlines()[1:3]] == ["inner/again", "inner/b16"]
    assert jaxexp.Archive.open(fleet)["b8"].digest in good("ls", "--long", fleet, "b8")
    status, out, err = run("ls", fleet, "nothing*")
    assert (status, out) == (1, "")
    assert "'nothing*'" in err
    for bad in (folder / "scores.jaxexp", folder / "missing"):
        status, out, err = run("ls", bad)
        assert (status, out, err.count("\n")) == (1, "", 1)


def test_ls_json(fleet, good) -> None:
    facts = json.loads(good("ls", "--json", fleet))
    with jaxexp.Archive.open(fleet) as archive:
        for fact, (name, handle) in zip(facts, archive.items(), strict=True):
            assert fact == {
                "name": name,
                "bytes": handle.size,
                "digest": handle.digest,
                "metadata": handle.metadata,
                **json.loads(json.dumps(handle.summary.to_dict())),
            }


def test_unpack(fleet, tmp_path, good, run) -> None:
    out = tmp_path / "new" / "folder"
    assert "4 artifacts unpacked" in good("unpack", fleet, "-d", out)
    models = fleet.parent / "models"
    for name in NAMES:
        assert (out / f"{name}.jaxexp").read_bytes() == (models / f"{name}.jaxexp").read_bytes()
    assert sum(path.is_file() for path in out.rglob("*")) == 4
    (out / "h.jaxexp").write_text("mine")
    (out / "b8.jaxexp").unlink()
    status, _, err = run("unpack", fleet, "-d", out)
    assert status == 1
    assert "--force" in err
    assert (out / "h.jaxexp").read_text() == "mine"
    assert not (out / "b8.jaxexp").exists()  # nothing is written if not all can be
    good("unpack", fleet, "h", "-d", out, "--force")
    assert (out / "h.jaxexp").read_bytes() == (models / "h.jaxexp").read_bytes()
    good("unpack", fleet, "inner/*", "-d", out, "--suffix", ".bin")
    assert (out / "inner" / "b16.bin").exists()
    assert run("unpack", fleet, "-d", out, "--suffix", "/../../x")[0] == 1


@pytest.mark.skipif(sys.platform == "win32", reason="links take privileges there")
def test_unpack_stays_inside(fleet, tmp_path, run) -> None:
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    inside.mkdir()
    outside.mkdir()
    (inside / "inner").symlink_to(outside)
    (inside / "h.jaxexp").symlink_to(outside / "h")
    for pattern in ("inner/*", "h"):
        for force in ([], ["--force"]):
            status, _, err = run("unpack", fleet, pattern, "-d", inside, *force)
            assert status == 1
            assert err.count("\n") == 1
    assert not list(outside.iterdir())


@pytest.mark.parametrize("name", ["/etc/passwd", "../up", "a/../../up", "..", ".", "a\0b"])
def test_names_that_lead_out_are_refused(tmp_path, name: str) -> None:
    """Archives refuse them, too: this is the second wall."""
    with pytest.raises(click.ClickException, match="would not lie inside"):
        unpack._inside(str(tmp_path), name, ".jaxexp")


def test_members(folder, fleet, good, run, tmp_path) -> None:
    """Wherever a file is read, it may be a member of an archive, or several."""
    member = f"{fleet}::b8"
    assert good("inspect", member).partition("\n")[2] == good("inspect", folder / "scores.jaxexp").partition("\n")[2]
    assert [fact["file"] for fact in json.loads(good("inspect", "--json", f"{fleet}::*"))] == [
        f"{fleet}::{name}" for name in NAMES
    ]
    assert "1 of 1 artifact whole" in good("verify", member)
    assert good("diff", member, folder / "scores.jaxexp") == ""
    assert good("diff", member, f"{fleet}::inner/again") == ""
    assert run("diff", member, f"{fleet}::inner/*")[0] == 2
    assert "loads it" in good("compat", member)
    good("migrate", member, tmp_path / "new")
    assert "b8" in good("bench", "--rounds", 1, member)
    assert "module @" in good("inspect", "--mlir", member)
    for bad in (f"{fleet}::nothing", fleet, f"{folder / 'scores.jaxexp'}::b8"):
        status, out, err = run("inspect", bad)
        assert (status, out, err.count("\n")) == (1, "", 1)
    odd = tmp_path / "odd::name"
    odd.write_bytes((folder / "scores.jaxexp").read_bytes())
    good("inspect", odd)


def test_urls(fleet, good) -> None:
    pytest.importorskip("fsspec")
    url = fleet.as_uri()
    assert good("ls", url) == good("ls", fleet)
    assert good("inspect", f"{url}::b8").partition("\n")[2] == good("inspect", f"{fleet}::b8").partition("\n")[2]
    assert "4 of 4 artifacts whole" in good("verify", url)
    assert inputs.split("s3://bucket/fleet.zip::a/b") == ("s3://bucket/fleet.zip", "a/b")
    assert inputs.split("simplecache::s3://bucket/fleet.zip") == ("simplecache::s3://bucket/fleet.zip", None)
    assert inputs.is_archive("s3://bucket/fleet.zip")
    assert not inputs.is_archive("s3://bucket/model.jaxexp")


def test_verify_archives(folder, fleet, tmp_path, good, run) -> None:
    text = good("verify", fleet, folder / "scores.jaxexp")
    assert re.search(r"fleet.zip .* whole: 4 members", text)
    assert "5 of 5 artifacts whole" in text
    assert "2 of 2 artifacts whole" in good("verify", f"{fleet}::inner/*")
    blob = bytearray(fleet.read_bytes())
    with jaxexp.Archive.open(fleet) as archive:
        at = blob.index(bytes(archive["h"].read()))
    blob[at + 300] ^= 1
    (tmp_path / "bad.zip").write_bytes(blob)
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


def test_verify_an_unfinished_append(folder, fleet, tmp_path, good) -> None:
    """The archive is as it was before, and whole; what is left behind it is mentioned."""
    torn = tmp_path / "torn.zip"
    torn.write_bytes(fleet.read_bytes())
    good("pack", "--append", torn, f"x={folder / 'sharded.jaxexp'}")
    torn.write_bytes(torn.read_bytes()[:-5])
    left = jaxexp.Archive.open(torn).unfinished_bytes
    assert left > 0
    text = good("verify", torn)
    assert "whole: 4 members" in text
    assert f"{left:,} bytes after its end" in text
    assert {file["unfinished_bytes"] for file in json.loads(good("verify", "--json", torn))["files"]} == {left}


# --- bench ------------------------------------------------------------------------------------------------------------


@pytest.mark.slow(reason="measures for seconds")
def test_bench_of_no_file(good) -> None:
    """Then of two functions of its own."""
    rows = json.loads(good("bench", "--json", "--rounds", 2))
    assert [(row["file"], row["what"]) for row in rows] == [
        (name, what) for name in ("1 layer", "100 layers") for what in ("signature", "all")
    ]
    assert_rows_of_bench(rows)


def assert_rows_of_bench(rows) -> None:
    for row in rows:
        assert row.keys() == {"file", "what", "jaxexp", "jax.export", "ratio", "quartiles"}
        assert row["ratio"] == pytest.approx(row["jax.export"] / row["jaxexp"])


def test_bench(folder, good) -> None:
    rows = json.loads(good("bench", "--json", "--rounds", 2, folder / "scores.jaxexp"))
    assert [row["what"] for row in rows] == ["signature", "all"]
    assert_rows_of_bench(rows)
    text = good("bench", "--rounds", 1, folder / "scores.jaxexp")
    assert text.count("scores.jaxexp") == 2
    assert "jax.export" in text


def test_bench_checks_that_both_load_the_same(folder, monkeypatch, run) -> None:
    blob = (folder / "hostile.jaxexp").read_bytes()
    assert bench._difference(blob) is None
    other = jaxexp.export(jax.jit(lambda x: x + 2))(1.0).serialize()
    real = jax_export.deserialize
    monkeypatch.setattr(jax_export, "deserialize", lambda _: real(other))
    assert "fun_name" in bench._difference(blob)
    status, out, err = run("bench", "--rounds", 1, folder / "hostile.jaxexp")
    assert status == 1
    assert "differ in fun_name" in err
    assert "signature" not in out

    def refuse(_):
        raise RuntimeError("too old")

    monkeypatch.setattr(jax_export, "deserialize", refuse)
    status, out, err = run("bench", "--json", "--rounds", 1, folder / "hostile.jaxexp")
    assert status == 1
    assert "cannot load it: RuntimeError: too old" in json.loads(out)[0]["error"]
    assert err.count("\n") == 1


# --- how errors end ---------------------------------------------------------------------------------------------------


def test_errors_are_one_line(folder, damaged, tmp_path, run) -> None:
    scores = folder / "scores.jaxexp"
    for arguments in (
        ["nothing"],
        ["inspect"],
        ["inspect", "--colour", scores],
        ["inspect", "--mlir", "--json", scores],
        ["inspect", damaged / "missing"],
        ["inspect", damaged],
        ["inspect", damaged / "cut"],
        ["inspect", damaged / "text"],
        ["inspect", f"{damaged / 'missing'}::member"],
        ["verify", damaged / "missing"],
        ["verify", "-j", "0", scores],
        ["compat", damaged / "empty"],
        ["compat", "--reader", "7.7", scores],
        ["migrate", damaged / "cut", tmp_path / "new"],
        ["migrate", "--to", "yesterday", scores, tmp_path / "new"],
        ["migrate", scores, tmp_path / "no" / "folder"],
        ["migrate", "--inputs", damaged / "text", scores, tmp_path / "new"],
        ["bench", damaged / "missing"],
    ):
        status, out, err = run(*arguments)
        assert status == 1, arguments
        assert err.startswith("jaxexp: "), arguments
        assert err.count("\n") == 1, (arguments, err)
        assert err.endswith("\n")
        assert "Traceback" not in err
        assert "not expected" not in err, arguments
        if arguments[0] != "verify":
            assert out == ""
    assert not list(tmp_path.iterdir())


def test_an_unexpected_error(monkeypatch, folder, run) -> None:
    def broken(text):
        raise RuntimeError("two\nlines\x1b[0m")

    monkeypatch.setattr(inputs, "artifact", broken)
    status, out, err = run("migrate", "x", "y")
    assert (status, out) == (1, "")
    assert err.startswith(r"jaxexp: RuntimeError: two lines\x1b[0m (not expected")
    with pytest.raises(RuntimeError):
        run("--traceback", "migrate", "x", "y")


def test_interrupted(monkeypatch, folder, run) -> None:
    def interrupt(text):
        raise KeyboardInterrupt

    monkeypatch.setattr(inputs, "artifacts", interrupt)
    for command in ("inspect", "compat", "bench"):
        assert run(command, folder / "scores.jaxexp") == (130, "", "jaxexp: interrupted\n")


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such pipes")
@pytest.mark.parametrize("arguments", [["inspect"], ["inspect", "--json"], ["inspect", "--mlir"], ["verify"]])
def test_a_reader_who_has_left(folder, subprocess_env, arguments: list[str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-m", "jaxexp", *arguments, str(folder / "scores.jaxexp")],
        env=subprocess_env(),
        stdout=writing,
        stderr=subprocess.PIPE,
        check=False,
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (1, b"")


# --- what reaches a terminal ------------------------------------------------------------------------------------------


def printable(text: str) -> bool:
    return all(line.isprintable() for line in text.split("\n"))


def test_hostile_names(folder, tmp_path, run, good) -> None:
    hostile = folder / "hostile.jaxexp"
    assert jaxexp.inspect(hostile).fun_name == HOSTILE
    text = good("inspect", hostile)
    assert r"evil\x1b[31m\n\u202egood\x07" in text
    assert r"\x1b]0;title\x07" in text
    outputs = [text, good("inspect", "--json", hostile), good("inspect", "--mlir", hostile), good("compat", hostile)]
    outputs += [good("compat", "--json", hostile), good("verify", hostile)]
    outputs += run("diff", hostile, folder / "scores.jaxexp")[1:]
    name = tmp_path / "file\x1b[2J\n\u202e"
    name.write_bytes(b"no artifact")
    outputs += run("inspect", name)[1:]
    outputs += run("verify", name)[1:]
    outputs += run("verify", "--json", tmp_path)[1:]
    name.unlink()
    outputs += run("bench", "--rounds", 1, hostile)[1:]
    outputs += run("migrate", hostile, name)[1:]
    outputs += run("nothing\x1b[2J")[1:]
    outputs += run("pack", tmp_path / "a.zip", hostile, "-m", '"k\x1b"="v\x1b[2J"', f"\x1b[2J={hostile}")[1:]
    outputs += [good("pack", tmp_path / "a.zip", hostile, "-m", r'k="\u001b[2J\u009b"')]
    outputs += [good("ls", "--long", tmp_path / "a.zip"), good("ls", "--json", tmp_path / "a.zip")]
    outputs += run("ls", tmp_path / "a.zip", "\x1b[2J")[1:]
    outputs += [good("unpack", tmp_path / "a.zip", "-d", tmp_path / "\x1b[31m")]
    for output in outputs:
        assert printable(output), output


def test_shown() -> None:
    assert page.shown("plain é 漢 text") == "plain é 漢 text"
    assert page.shown("\x1b\x00\x7f\x9b\u202e\ud800\U000e0001\u2028") == r"\x1b\x00\x7f\x9b\u202e\ud800\U000e0001\u2028"


def terminal(env: dict[str, str], columns: int, *arguments: object, delay: float | None = 0) -> tuple[int, str]:
    """Runs a command on a terminal of its own: its status, and all that appears there."""
    from kit.terminal import on_terminal  # which not every system has

    # As if it took long, and the files were many.
    code = (
        "import sys; from jaxexp._cli import progress, start; from jaxexp._cli.commands import verify; "
        "progress.DELAY = {}; verify._FILES = 1; sys.exit(start.main())"
    )
    env = {name: value for name, value in env.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")} | {
        "TERM": "xterm-256color",
        **{name: value for name, value in env.items() if name == "NO_COLOR" and value},
    }
    code = code.format("progress.DELAY" if delay is None else delay)
    return on_terminal([sys.executable, "-c", code, *map(str, arguments)], 40, columns, env=env)


needs_pty = pytest.mark.skipif(sys.platform == "win32", reason="there are no pseudo-terminals")


@needs_pty
def test_colours_and_progress_on_a_terminal(folder, subprocess_env) -> None:
    status, seen = terminal(subprocess_env(), 80, "verify", folder)
    assert status == 0
    assert "\x1b[32mwhole" in seen
    assert "verifying" in seen and "/4" in seen
    status, seen = terminal(subprocess_env(), 80, "inspect", folder / "missing")
    assert status == 1
    assert seen.startswith("\x1b[31mjaxexp:\x1b[0m")
    status, seen = terminal(subprocess_env(NO_COLOR="1"), 80, "verify", folder)
    assert status == 0
    assert not re.search(r"\x1b\[[0-9;]*m", seen)
    assert "verifying" in seen
    assert "\x1b" not in terminal(subprocess_env(NO_COLOR="1"), 80, "inspect", folder / "hostile.jaxexp")[1]


@needs_pty
def test_work_that_takes_no_time_shows_no_bar(folder, subprocess_env) -> None:
    assert "verifying" not in terminal(subprocess_env(), 80, "verify", folder, delay=1e9)[1]
    assert "verifying" not in terminal(subprocess_env(), 80, "verify", folder / "scores.jaxexp")[1]  # one step


@needs_pty
@pytest.mark.parametrize("columns", [60, 80, 120])
def test_lines_fit_the_terminal(folder, damaged, subprocess_env, columns: int) -> None:
    env = subprocess_env(NO_COLOR="1")
    for arguments in (
        ["inspect", folder / "scores.jaxexp", folder / "sharded.jaxexp"],
        ["verify", "-q", damaged],
        ["diff", folder / "scores.jaxexp", folder / "sharded.jaxexp"],
    ):
        seen = terminal(env, columns, *arguments, delay=1e9)[1]
        shown = [line for line in seen.replace("\r", "").split("\n") if not line.startswith(("jaxexp:", "scores  "))]
        assert max(map(len, shown)) <= columns
        assert len(shown) > 3
        for line in shown:  # nothing is lost but spaces
            assert "..." not in line


@needs_pty
def test_long_tables_are_cut_on_a_terminal_alone(tmp_path, subprocess_env) -> None:
    jaxexp.export(jax.jit(lambda xs: xs[0]))([1.0] * 300).save(tmp_path / "f")
    seen = terminal(subprocess_env(NO_COLOR="1"), 80, "inspect", tmp_path / "f")[1]
    assert "args[0][39]" in seen
    assert "args[0][40]" not in seen
    assert "260 more: --all" in seen
    assert "... (--all)" in seen  # of the tree
    seen = terminal(subprocess_env(NO_COLOR="1"), 80, "inspect", "--all", tmp_path / "f")[1]
    assert "args[0][99]" in seen
    assert "--all" not in seen


def test_no_colours_and_no_progress_in_a_pipe(folder, subprocess_env) -> None:
    code = "import sys; from jaxexp._cli import progress, start; progress.DELAY = 0; sys.exit(start.main())"
    done = started(code, "verify", folder, env=subprocess_env(FORCE_COLOR="1", TERM="xterm-256color"))
    assert done.returncode == 0
    assert done.stderr == ""
    assert "\x1b" not in done.stdout


def test_text_is_wrapped_at_spaces() -> None:
    assert page._wrapped("one two three", 8) == ["one two", "three"]
    assert page._wrapped("one two", 7) == ["one two"]
    assert page._wrapped("one two ", 7) == ["one two", ""]
    assert page._wrapped("abcdefghij", 4) == ["abcd", "efgh", "ij"]
    assert page._wrapped("漢字漢字漢", 4) == ["漢字", "漢字", "漢"]
    assert page._wrapped("", 4) == [""]
    text = " ".join(["word"] * 100_000)
    assert " ".join(page._wrapped(text, 72)) == text
    assert page._shortened("漢字漢字漢", 7) == "漢字..."


def test_one_long_cell_does_not_lengthen_every_row(capsys) -> None:
    shown = page.Page()
    shown.table([page.Column("a"), page.Column("b")], [("x" * 10_000, "y"), *[("z", "y")] * 3])
    shown.write()
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines[2:])) < 300
    assert "x" * 10_000 in lines[1]


def test_output_in_another_encoding(folder, subprocess_env, tmp_path) -> None:
    jaxexp.export(jax.jit(lambda tree: tree["漢"]))({"漢": 1.0}).save(tmp_path / "f")
    code = "import sys; from jaxexp._cli.start import main; sys.exit(main())"
    done = started(code, "inspect", tmp_path / "f", env=subprocess_env(PYTHONIOENCODING="latin-1", PYTHONUTF8="0"))
    assert (done.returncode, done.stderr) == (0, "")
    assert r"\u6f22" in done.stdout


def test_progress_counts(monkeypatch, capsys) -> None:
    with progress.bar("work", 3) as advance:
        advance(1)
        advance(2)
    assert capsys.readouterr() == ("", "")


def test_shell_completion(subprocess_env) -> None:
    code = "import sys; from jaxexp._cli.start import main; sys.exit(main())"
    done = started(code, env=subprocess_env(_JAXEXP_COMPLETE="bash_source"))
    assert "_JAXEXP_COMPLETE=bash_complete" in done.stdout
    env = subprocess_env(_JAXEXP_COMPLETE="bash_complete", COMP_WORDS="jaxexp in", COMP_CWORD="1")
    assert started(code, env=env).stdout.split(",")[-1].strip() == "inspect"

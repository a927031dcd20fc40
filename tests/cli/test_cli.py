"""The command line as a whole: how it starts, and how it ends when something is wrong."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

import jaxexp
from jaxexp._cli import inputs
from jaxexp._cli.commands import migrate
from kit.command_line import started
from kit.places import ROOT

COMMANDS = (
    "inspect", "verify", "run", "diff", "compat", "migrate", "specialize", "from-stablehlo", "precompile", "pack", "ls",
    "unpack", "archive", "bench", "completion"
)  # fmt: skip


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


@pytest.mark.parametrize("name", [*COMMANDS, "archive rm", "archive compact"])
def test_help_has_an_example(good, name: str) -> None:
    text = good(*name.split(), "--help")
    assert text.startswith(f"Usage: jaxexp {name}")
    examples = [line for line in text.partition("Example:\n")[2].splitlines() if line.strip()]
    assert examples and all(line.startswith(f"    jaxexp {name}") and len(line) <= 80 for line in examples)
    assert name.split()[-1] in good(*name.split()[:-1], "--help")


@pytest.mark.parametrize(
    ("absent", "named"), [(["click"], "click"), (["rich"], "rich"), (["click", "rich"], "click and rich")]
)
def test_without_the_extra(subprocess_env, absent: list[str], named: str) -> None:
    code = f"""
import sys
import zipfile
sys.modules.update(dict.fromkeys({absent}))
from jaxexp._cli.start import main
sys.exit(main())
"""
    done = started(code, "--version", env=subprocess_env())
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.count("\n") == 1
    assert f"needs {named}," in done.stderr
    assert done.stderr.endswith(f": pip install {' '.join(absent)}\n")


def imported(env: dict[str, str], *arguments: object) -> tuple[int, set[str]]:
    """The status of a command, and what it imported."""
    code = """
import sys
import zipfile
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


# --- how errors end ---------------------------------------------------------------------------------------------------


def test_errors_are_one_line(folder, fleet, damaged, tmp_path, run) -> None:
    """With the status 2 where the command line makes no sense, else 1."""
    scores = folder / "scores.jaxexp"
    misused = (
        ["nothing"],
        ["inspect"],
        ["inspect", "--colour", scores],
        ["inspect", "--mlir", "--json", scores],
        ["inspect", "--mlir", "--jaxpr", scores],
        ["view", fleet],
        ["inspect", "--mlir", damaged],
        ["inspect", "--import", "no_such_module", scores],
        ["verify"],
        ["verify", "-j", "0", scores],
        ["verify", "--workers", "many", scores],
        ["compat", "--reader", "7.7", scores],
        ["compat", "--reader", "max", scores],
        ["migrate", "--to", "yesterday", scores, tmp_path / "new"],
        ["migrate", "--inputs", damaged / "text", f"{fleet}::*", tmp_path / "new"],
        ["migrate", "--workers", "2", scores, tmp_path / "new"],
        ["run"],
        ["run", scores],
        ["run", scores, "--random", "-o", tmp_path / "y.txt"],
        ["specialize", scores, "--size", "batch=4"],
        ["specialize", scores, "--size", "batch", "-o", tmp_path / "new"],
        ["from-stablehlo", scores],
        ["from-stablehlo", scores, "--shape", "batch, 4", "-o", tmp_path / "new"],
        ["from-stablehlo", damaged / "missing", "-o", tmp_path / "new"],
        ["precompile", scores, "--size", "batch=two"],
        ["pack", tmp_path / "a.zip"],
        ["pack", tmp_path / "a.zip", scores, "-m", "nothing"],
        ["archive", "nothing"],
        ["archive", "rm", fleet],
        ["completion", "tcsh"],
    )
    failed = (
        ["inspect", damaged / "missing"],
        ["view", damaged],
        ["ls", damaged, "nothing*"],
        ["inspect", damaged / "cut"],
        ["inspect", damaged / "text"],
        ["inspect", f"{damaged / 'missing'}::member"],
        ["verify", damaged / "missing"],
        ["compat", damaged / "empty"],
        ["migrate", damaged / "cut", tmp_path / "new"],
        ["migrate", scores, tmp_path / "no" / "folder"],
        ["migrate", "--inputs", damaged / "text", scores, tmp_path / "new"],
        ["run", damaged / "cut"],
        ["run", damaged / "missing", "--random"],
        ["run", f"{fleet}::nothing"],
        ["specialize", damaged / "flipped", "--size", "batch=4", "-o", tmp_path / "new"],
        ["specialize", scores, "-o", tmp_path / "new"],
        ["from-stablehlo", damaged / "text", "-o", tmp_path / "new"],
        ["precompile", damaged / "empty", "-o", tmp_path / "new"],
        ["bench", damaged / "missing"],
        ["archive", "rm", fleet, "nothing"],
        ["archive", "rm", scores, "nothing"],
        ["archive", "compact", damaged / "missing"],
    )
    for arguments in (*misused, *failed):
        status, out, err = run(*arguments)
        assert status == (2 if arguments in misused else 1), arguments
        assert err.startswith("jaxexp: "), arguments
        assert err.count("\n") == 1, (arguments, err)
        assert err.endswith("\n")
        assert "Traceback" not in err
        assert "not expected" not in err, arguments
        if arguments[0] != "verify":
            assert out == ""
    assert not list(tmp_path.iterdir())


def test_what_errors_suggest(folder, fleet, tmp_path, run) -> None:
    scores = folder / "scores.jaxexp"
    with zipfile.ZipFile(tmp_path / "other.zip", "w") as file:
        file.writestr("readme.txt", "text")
    for arguments, said in (
        (["inspec", scores], "No such command 'inspec'. Did you mean 'inspect'? 'jaxexp --help' has examples"),
        (["nothing"], "No such command 'nothing'. 'jaxexp --help' has examples"),
        (["inspect", "--checkk", scores], "Did you mean '--check'? 'jaxexp inspect --help' has examples"),
        (["completion"], "Choose from: bash, zsh, fish. 'jaxexp completion --help' has examples"),
        (["view", folder], f"{str(folder)!r} is a folder: 'jaxexp ls {folder}' lists what is in it"),
        (["inspect", "--vjp", 1, scores], "--vjp chooses the VJP that --mlir or --jaxpr prints: add one"),
        (["inspect", "--jaxpr", scores], "say how large batch is, as in --size batch=4; or --mlir prints the module"),
        (["view", fleet], f"is an archive: name a member as {fleet}::NAME"),
        (["inspect", tmp_path / "other.zip"], "expected an archive"),
    ):
        status, out, err = run(*arguments)
        assert status > 0 and out == ""
        assert said in err


def test_traceback_of_what_is_expected(damaged, run) -> None:
    for name in ("missing", "cut"):
        assert "Traceback" not in run("inspect", damaged / name)[2]
        status, _, err = run("--traceback", "inspect", damaged / name)
        assert status == 1
        assert "Traceback (most recent call last)" in err
        assert err.splitlines()[-1].startswith("jaxexp: ")


def test_an_unexpected_error(monkeypatch, folder, run) -> None:
    def broken(text):
        raise RuntimeError("two\nlines\x1b[0m")

    monkeypatch.setattr(migrate, "artifact", broken)
    status, out, err = run("migrate", "x", "y")
    assert (status, out) == (1, "")
    assert err.startswith(r"jaxexp: RuntimeError: two lines\x1b[0m (not expected")
    with pytest.raises(RuntimeError):
        run("--traceback", "migrate", "x", "y")


def test_interrupted(monkeypatch, folder, run) -> None:
    def interrupt(*_, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(inputs, "artifacts", interrupt)
    monkeypatch.setattr(inputs, "given", interrupt)
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
    assert (done.returncode, done.stderr) == (141, b"")  # not 1, which says that something is damaged

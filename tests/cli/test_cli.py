"""The command line as a whole: how it starts, and how it ends when something is wrong; where `jaxexp view` writes."""

from __future__ import annotations

import subprocess
import sys
import tomllib
import webbrowser
from pathlib import Path
from unittest.mock import Mock

import pytest

import jaxexp
from jaxexp._cli import app, completing, inputs, start
from jaxexp._cli.commands import migrate
from kit.command_line import NAMES, started
from kit.places import ROOT

MAIN = "from jaxexp._cli.start import main; sys.exit(main())"


def test_entry_points_are_the_same(folder, subprocess_env) -> None:
    """The script that is installed, what pyproject.toml declares, and `python -m jaxexp`."""
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]["jaxexp"]
    module, _, function = declared.partition(":")
    code = f"import sys; from {module} import {function} as main; sys.exit(main())"
    starts = [[sys.executable, "-m", "jaxexp"], [sys.executable, "-c", code]]
    script = Path(sys.executable).with_name("jaxexp")
    if script.exists():
        starts.append([str(script)])
    results = [
        subprocess.run([*start, "inspect", "missing"], cwd=folder, env=subprocess_env(), capture_output=True)
        for start in starts
    ]
    assert len({(done.returncode, done.stdout, done.stderr) for done in results}) == 1


def test_without_a_command(good) -> None:
    assert good() == good("--help")
    assert good("--version") == f"jaxexp {jaxexp.__version__}\n"


def test_help_has_an_example(good) -> None:
    for name in app._COMMANDS:
        text = good(name, "--help")
        assert text.startswith(f"Usage: jaxexp {name}")
        examples = [line for line in text.partition("Example:\n")[2].splitlines() if line.strip()]
        assert examples[0].startswith(f"    jaxexp {name}"), name
        assert all(line.startswith("    jaxexp ") and len(line) <= 80 for line in examples), name
        assert name in good("--help")


@pytest.mark.processes(reason="one, whose last command imports JAX")
def test_what_needs_no_jax_imports_none(folder, fleet, tmp_path, subprocess_env) -> None:
    scores = str(folder / "scores.jaxexp")
    free = [
        (0, ["inspect", scores, str(folder / "sharded.jaxexp")]), (0, ["inspect", "--json", "--check", scores]),
        (0, ["verify", str(folder)]), (0, ["verify", "--json", scores]), (0, ["diff", scores, scores]),
        (0, ["ls", "--long", str(fleet)]), (0, ["ls", "--json", str(fleet)]), (0, ["inspect", f"{fleet}::b8"]),
        (0, ["verify", str(fleet)]), (0, ["unpack", str(fleet), "-d", str(tmp_path)]),
        (0, ["pack", str(tmp_path / "a.zip"), scores, "-m", "v=1"]), (0, ["run", "--help"]),
        (0, ["pack", "--append", str(tmp_path / "a.zip"), f"again={scores}"]), (2, ["run", scores, "--seed", "1"]),
        (2, ["run", scores, "-o", "y.txt"]),
    ]  # fmt: skip
    code = f"""
import contextlib, io, sys
from jaxexp._cli.start import main
for expected, command in {free!r}:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        status = main(command)
    assert status == expected, (command, status)
    assert "click" in sys.modules
    assert not {{"jax", "jaxlib", "numpy", "rich"}} & {{name.partition(".")[0] for name in sys.modules}}, command
assert main(["inspect", "--mlir", {scores!r}]) == 0
assert "jax" in sys.modules
"""
    done = started(code, env=subprocess_env())
    assert done.returncode == 0, done.stderr


def test_without_the_extra(subprocess_env) -> None:
    code = f"import sys; sys.modules.update(dict.fromkeys(['click', 'rich'])); {MAIN}"
    done = started(code, "--version", env=subprocess_env())
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert "needs click and rich," in done.stderr and done.stderr.endswith(": pip install 'jaxexp[cli]'\n")


def test_an_unexpected_error(monkeypatch, damaged, run) -> None:
    status, _, err = run("--traceback", "inspect", damaged / "cut")
    assert (status, "Traceback (most recent call last)" in err) == (1, True)
    assert err.splitlines()[-1].startswith("jaxexp: ")

    monkeypatch.setattr(migrate, "artifact", Mock(side_effect=RuntimeError("two\nlines\x1b[0m")))
    status, out, err = run("migrate", "x", "y")
    assert (status, out) == (1, "")
    assert err.startswith(r"jaxexp: RuntimeError: two lines\x1b[0m (not expected")
    with pytest.raises(RuntimeError):
        run("--traceback", "migrate", "x", "y")


def test_interrupted(monkeypatch, folder, run) -> None:
    for name in ("artifacts", "given"):
        monkeypatch.setattr(inputs, name, Mock(side_effect=KeyboardInterrupt))
    for command in ("inspect", "compat"):
        assert run(command, folder / "scores.jaxexp") == (130, "", "jaxexp: interrupted\n")


def test_where_the_page_goes(folder, fleet, good, refused, tmp_path, monkeypatch) -> None:
    """It is named after the artifact, is on stdout, or in a file that does not exist."""
    monkeypatch.chdir(tmp_path)
    assert good("view", folder / "sharded.jaxexp") == "sharded.html\n"
    assert Path("sharded.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    assert good("view", folder / "hostile.jaxexp", "-o", "-").startswith("<!doctype html>")
    assert good("view", f"{fleet}::inner/b16") == "b16.html\n"
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", opened.append)
    good("view", folder / "sharded.jaxexp", "--open")
    shown = Path(opened[0].removeprefix("file://"))
    assert shown.read_text(encoding="utf-8").startswith("<!doctype html>")
    shown.unlink()
    assert good("view", f"{fleet}::b8", f"{fleet}::inner/b16", "-o", "two.html") == "two.html\n"
    path = tmp_path / "page.html"
    path.write_text("mine")
    refused(f"'{path}' exists: --force replaces it", "view", folder / "sharded.jaxexp", "-o", path)
    assert path.read_text() == "mine"
    good("view", folder / "sharded.jaxexp", "-o", path, "--force")
    assert path.read_text(encoding="utf-8").startswith("<!doctype html>")


# --- what shells complete ---------------------------------------------------------------------------------------------


@pytest.fixture
def completed(capsys, monkeypatch):
    """What a shell that asks in these variables gets."""

    def completed(**variables: str) -> list[str]:
        with monkeypatch.context() as patch:
            for name, value in variables.items():
                patch.setenv(name, value)
            with pytest.raises(SystemExit) as ended:
                start.main([])
        out, err = capsys.readouterr()
        assert (ended.value.code, err) == (0, "")
        return out.splitlines()

    return completed


@pytest.fixture
def offered(fleet, completed, monkeypatch):
    """What is offered for a line whose end is still to be typed, in the folder of the archive."""
    monkeypatch.chdir(fleet.parent)
    return lambda line: completed(_JAXEXP_COMPLETE="bash_complete", COMP_WORDS=line, COMP_CWORD="9")


def test_scripts(good, completed) -> None:
    for shell in completing.SHELLS:
        assert f"{completing.VARIABLE}={shell}_complete" in good("--completion", shell)
    assert "_JAXEXP_COMPLETE=bash_complete" in "".join(completed(_JAXEXP_COMPLETE="bash_source"))


def test_commands_options_and_files(offered) -> None:
    assert offered("jaxexp in") == ["plain,inspect"]
    assert "plain,--include" in offered("jaxexp verify --i")
    assert offered("jaxexp specialize --si") == ["plain,--size"]
    assert offered("jaxexp run model.jaxexp --exec") == ["plain,--executables"]
    assert (offered("jaxexp run model.jaxexp x"), offered("jaxexp prec")) == (["file,x"], ["plain,precompile"])
    assert (offered("jaxexp inspect flee"), offered("jaxexp --completion z")) == (["file,flee"], ["plain,zsh"])


def test_members(offered, fleet) -> None:
    assert offered("jaxexp inspect fleet.zip::") == [f"plain,fleet.zip::{name}" for name in NAMES]
    assert offered(f"jaxexp compat --json {fleet}::inner/b") == [f"plain,{fleet}::inner/b16"]
    assert offered("jaxexp run fleet.zip::b") == ["plain,fleet.zip::b8"]
    assert offered("jaxexp ls fleet.zip b") == ["plain,b8"]
    assert offered("jaxexp pack fleet.zip --remove b8 --remove inner/a") == ["plain,inner/again"]
    for nothing in ("missing.zip::", "models/b8.jaxexp::", "http://127.0.0.1:1/fleet.zip::", "models::"):
        assert [item for item in offered(f"jaxexp inspect {nothing}") if item.startswith("plain")] == []

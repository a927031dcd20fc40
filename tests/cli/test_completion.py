"""What shells complete."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest

import jaxexp
from jaxexp._cli import completing
from kit.command_line import NAMES, started

CODE = "import sys; from jaxexp._cli.start import main; sys.exit(main())"


@pytest.fixture
def offered(fleet, subprocess_env):
    """What is offered for a line whose end is still to be typed."""

    def offered(line: str, folder=fleet.parent) -> list[str]:
        env = subprocess_env(_JAXEXP_COMPLETE="bash_complete", COMP_WORDS=line, COMP_CWORD="9")
        done = started(CODE, env=env, cwd=folder)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout.splitlines()

    return offered


@pytest.mark.parametrize("shell", completing.SHELLS)
def test_scripts(good, shell: str) -> None:
    assert f"{completing.VARIABLE}={shell}_complete" in good("completion", shell)


def test_commands_options_and_files(offered) -> None:
    assert offered("jaxexp in") == ["plain,inspect"]
    assert offered("jaxexp archive ") == ["plain,compact", "plain,rm"]
    assert "plain,--include" in offered("jaxexp verify --i")
    assert offered("jaxexp specialize --si") == ["plain,--size"]
    assert offered("jaxexp run model.jaxexp --exec") == ["plain,--executables"]
    assert offered("jaxexp run model.jaxexp x") == ["file,x"]
    assert offered("jaxexp prec") == ["plain,precompile"]
    assert offered("jaxexp inspect flee") == ["file,flee"]
    assert offered("jaxexp completion z") == ["plain,zsh"]


def test_members(offered, fleet) -> None:
    assert offered("jaxexp inspect fleet.zip::") == [f"plain,fleet.zip::{name}" for name in NAMES]
    assert offered(f"jaxexp compat --json {fleet}::inner/b") == [f"plain,{fleet}::inner/b16"]
    assert offered("jaxexp run fleet.zip::b") == ["plain,fleet.zip::b8"]
    assert offered("jaxexp ls fleet.zip b") == ["plain,b8"]
    assert offered("jaxexp archive rm fleet.zip b8 inner/a") == ["plain,inner/again"]
    for nothing in ("missing.zip::", "models/b8.jaxexp::", "http://127.0.0.1:1/fleet.zip::", "models::"):
        assert [item for item in offered(f"jaxexp inspect {nothing}") if item.startswith("plain")] == []


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_in_bash(folder, tmp_path, good, subprocess_env) -> None:
    """It takes words apart at colons, and would run what a name may contain."""
    with jaxexp.Archive.create(tmp_path / "fleet.zip") as archive:
        for name in ("a b", "$(touch evil)", "plain"):
            archive.add(name, (folder / "scores.jaxexp").read_bytes())
    program = tmp_path / "jaxexp"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m jaxexp "$@"\n')
    program.chmod(0o755)
    script = good("completion", "bash") + (
        'COMP_LINE="$1" COMP_POINT=${#1}; shift; COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))\n'
        '_jaxexp_completion ./jaxexp; printf "%s\\n" "${COMPREPLY[@]}"\n'
    )

    def replies(line: str, *words: str) -> list[str]:
        done = subprocess.run(
            ["bash", "-c", script, "bash", line, *words],
            cwd=tmp_path,
            env=subprocess_env(),
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout.splitlines()

    assert replies("jaxexp inspect fleet.zip::", "jaxexp", "inspect", "fleet.zip", "::") == [
        r"\$\(touch\ evil\)", r"a\ b", "plain"
    ]  # fmt: skip
    assert replies("jaxexp inspect fleet.zip::p", "jaxexp", "inspect", "fleet.zip", "::", "p") == ["plain"]
    assert replies("jaxexp ver", "jaxexp", "ver") == ["verify"]
    # Within quotes bash takes nothing apart, and puts the words that it gets between them.
    assert replies("jaxexp inspect 'fleet.zip::a", "jaxexp", "inspect", "'fleet.zip::a") == ["fleet.zip::a b"]
    assert replies("jaxexp inspect 'fleet.zip::", "jaxexp", "inspect", "'fleet.zip::") == [
        "fleet.zip::$(touch evil)", "fleet.zip::a b", "fleet.zip::plain"
    ]  # fmt: skip
    assert replies('jaxexp inspect "fleet.zip::$', "jaxexp", "inspect", '"fleet.zip::$') == [
        r"fleet.zip::\$(touch evil)"
    ]
    assert not (tmp_path / "evil").exists()

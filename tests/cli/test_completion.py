"""What shells complete."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest

import jaxexp
from jaxexp._cli import completing, start
from kit.command_line import NAMES


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
    assert offered("jaxexp archive ") == ["plain,compact", "plain,rm"]
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
    script = good("--completion", "bash") + (
        'COMP_LINE="$1" COMP_POINT=${#1}; shift; COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))\n'
        '_jaxexp_completion ./jaxexp; printf "%s\\n" "${COMPREPLY[@]}"\n'
    )

    def replies(line: str, *words: str) -> list[str]:
        command = ["bash", "-c", script, "bash", line, *words]
        done = subprocess.run(command, cwd=tmp_path, env=subprocess_env(), capture_output=True, text=True, check=True)
        return done.stdout.splitlines()

    assert replies("jaxexp inspect fleet.zip::", "jaxexp", "inspect", "fleet.zip", "::") == [
        r"\$\(touch\ evil\)", r"a\ b", "plain"
    ]  # fmt: skip
    assert replies("jaxexp ver", "jaxexp", "ver") == ["verify"]
    # Within quotes bash takes nothing apart, and puts the words that it gets between them.
    assert replies("jaxexp inspect 'fleet.zip::", "jaxexp", "inspect", "'fleet.zip::") == [
        "fleet.zip::$(touch evil)", "fleet.zip::a b", "fleet.zip::plain"
    ]  # fmt: skip
    assert replies('jaxexp inspect "fleet.zip::$', "jaxexp", "inspect", '"fleet.zip::$') == [
        r"fleet.zip::\$(touch evil)"
    ]
    assert not (tmp_path / "evil").exists()

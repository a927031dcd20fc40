"""What shells complete."""

from __future__ import annotations

import pytest

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

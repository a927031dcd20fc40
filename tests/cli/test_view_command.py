"""`jaxexp view`: where the page goes, and what is refused."""

from __future__ import annotations

import webbrowser
from pathlib import Path

import pytest


def test_page_is_named_after_the_artifact(folder, good, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert good("view", folder / "sharded.jaxexp") == "sharded.html\n"
    assert Path("sharded.html").read_text(encoding="utf-8").startswith("<!doctype html>")


def test_existing_files_stay(folder, run, good, tmp_path) -> None:
    path = tmp_path / "page.html"
    path.write_text("mine")
    status, _, err = run("view", folder / "sharded.jaxexp", "-o", path)
    assert status == 1
    assert f"'{path}' exists: --force replaces it" in err
    assert path.read_text() == "mine"
    good("view", folder / "sharded.jaxexp", "-o", path, "--force")
    assert path.read_text(encoding="utf-8").startswith("<!doctype html>")


def test_page_on_stdout(folder, good) -> None:
    assert good("view", folder / "hostile.jaxexp", "-o", "-").startswith("<!doctype html>")


def test_opens_a_browser(folder, good, tmp_path, monkeypatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", opened.append)
    good("view", folder / "sharded.jaxexp", "-o", tmp_path / "page.html", "--open")
    assert opened == [(tmp_path / "page.html").as_uri()]
    good("view", folder / "sharded.jaxexp", "--open")
    assert Path(opened[1].removeprefix("file://")).read_text(encoding="utf-8").startswith("<!doctype html>")
    Path(opened[1].removeprefix("file://")).unlink()


def test_member_of_an_archive(fleet, good, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert good("view", f"{fleet}::inner/b16") == "b16.html\n"
    assert good("view", f"{fleet}::b8", f"{fleet}::inner/b16", "-o", "two.html") == "two.html\n"


@pytest.mark.parametrize("name", ["cut", "flipped", "empty", "text"])
def test_damaged_artifacts_are_refused(damaged, run, tmp_path, name: str) -> None:
    status, out, err = run("view", damaged / name, "-o", tmp_path / "page.html")
    assert (status, out) == (1, "")
    assert name in err
    assert not (tmp_path / "page.html").exists()


def test_what_is_no_single_artifact_is_refused(fleet, run, tmp_path) -> None:
    misused = {fleet: "is an archive", f"{fleet}::*": "stands for 4 artifacts"}
    for file, reason in {**misused, tmp_path / "x": "x"}.items():
        status, _, err = run("view", file, "-o", tmp_path / "page.html")
        assert status == (2 if file in misused else 1)
        assert reason in err
    status, _, err = run("view", fleet, "--open", "-o", "-")
    assert status != 0
    assert "-o - writes to stdout" in err

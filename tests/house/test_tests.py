"""The tests' own house: what is shared lies in kit, and tools are for people and for make."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from kit.collected import COLLECTED
from kit.places import TESTS
from tools import check, steps

FILES = sorted(TESTS.rglob("test_*.py"))
ROOMS = {path.parent.relative_to(TESTS).as_posix() for path in FILES}
# Rooms whose tests need the bytes that an export left, at most.
WITHOUT_JAX = {"wire", "fleet/archive", "fleet/engine", "kernel/io", "signing", "weights/arrays"}


def imported(path: Path) -> set[str]:
    """The first names of what a file imports, wherever in the file."""
    return {name or "." for name in re.findall(r"^ *(?:from|import) (\w*)", path.read_text(), re.MULTILINE)}


def test_no_test_imports_another() -> None:
    files = {path.stem for path in FILES} | {"conftest", "."}
    wrong = {str(path.relative_to(TESTS)): imported(path) & files for path in FILES}
    assert not {path: names for path, names in wrong.items() if names}


def test_kit_imports_no_tools() -> None:
    wrong = [path.name for path in (TESTS / "kit").rglob("*.py") if "tools" in imported(path)]
    assert not wrong


def test_files_have_names_of_their_own() -> None:
    """Reports and the table of behaviours would mix them up."""
    assert len({path.name for path in FILES}) == len(FILES) > 50


@pytest.fixture
def items(request: pytest.FixtureRequest) -> list[pytest.Item]:
    found = request.config.stash[COLLECTED]
    if len({item.path for item in found}) < 0.9 * len(FILES):  # some are skipped where they cannot run
        pytest.skip("only a part of the tests was collected")
    return found


def name_of(item: pytest.Item) -> str:
    """As in test_x.py::test_y, also of a method."""
    return f"{item.path.name}::{item.nodeid.partition('[')[0].rpartition('::')[2]}"


def test_marks_say_what_is_guarded_and_what_guards_it_at_the_gate(items: list[pytest.Item]) -> None:
    gating = {name_of(item) for item in items if not item.get_closest_marker("long")}
    wrong: dict[str, str] = {}
    for item in items:
        for mark in item.iter_markers("wide"):
            if mark.kwargs.keys() != {"one_in", "promise"} or mark.kwargs["one_in"] < 2 or not mark.kwargs["promise"]:
                wrong[name_of(item)] = "wide says one_in (2 or more) and a promise"
        for mark in item.iter_markers("long"):
            if mark.kwargs.keys() - {"once"} != {"promise", "sibling"} or not mark.kwargs["promise"]:
                wrong[name_of(item)] = "long says a promise and a sibling"
            elif mark.kwargs["sibling"] not in gating:
                wrong[name_of(item)] = f"there is no gating test {mark.kwargs['sibling']}"
        if any(mark.kwargs.keys() != {"reason"} for mark in item.iter_markers("processes")):
            wrong[name_of(item)] = "processes says a reason"
    assert not wrong


def test_only_what_depends_on_jax_repeats_on_other_releases(items: list[pytest.Item]) -> None:
    """Files, archives, servers and programs in C++ are the same with each release."""
    repeated = {name_of(item) for item in items if item.get_closest_marker("jax")}
    without = {name_of(item) for item in items if item.path.parent.relative_to(TESTS).as_posix() in WITHOUT_JAX}
    in_cpp = {name_of(item) for item in items if item.get_closest_marker("cpp")}
    assert not repeated & without
    assert not repeated & in_cpp
    assert len(repeated) > 300


def test_make_check_knows_the_rooms() -> None:
    assert set(check.ELSEWHERE.values()) <= check.rooms() == ROOMS


def test_contributing_has_the_steps() -> None:
    page = steps.CONTRIBUTING.read_text()
    assert steps.with_table(page) == page, "python3 tests/tools/steps.py table"


def test_the_night_goes_on_where_it_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    ran: list[str] = []

    def run(step: steps.Step) -> steps.Took:
        ran.append(step.name)
        return steps.Took(step.name, int(step.name in failing), 60.0, 60.0, step.budget)

    files, failing = "as they were", {"fuzzing"}
    monkeypatch.setattr(steps, "run", run)
    monkeypatch.setattr(steps, "NIGHT", tmp_path / "night.json")
    monkeypatch.setattr(steps, "state", lambda: files)
    assert steps.run_night("4/4") == 1
    assert "part 4/4: left: fuzzing" in capsys.readouterr().out
    failing, ran[:] = set(), []
    assert steps.run_night("4/4") == 0
    assert ran == ["set-up", "fuzzing"]
    assert steps.run_night(None) == 0
    said = capsys.readouterr().out
    assert all(f"part {part}/4: passed in" in said for part in range(1, 5))
    ran[:] = []
    assert steps.run_night(None) == 0
    assert ran == ["set-up"]
    files, ran[:] = "changed", []
    assert steps.run_night("1/4") == 0
    assert ran == ["set-up", "all tests"]


def test_the_night_knows_its_files_by_what_is_in_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "ROOT", tmp_path)
    (tmp_path / ".ci").mkdir()
    for name in ("code", steps.SANITIZED):
        (tmp_path / name).write_text("1")
    commit = "git init -q && git add . && git -c user.name=a -c user.email=a@b commit -q -m files"
    subprocess.run(commit, shell=True, check=True, cwd=tmp_path)
    seen = [steps.state()]
    (tmp_path / steps.SANITIZED).write_text("2")  # as the step of the sanitizers does
    assert steps.state() == seen[0]
    for name in ("code", "more"):
        (tmp_path / name).write_text("2")
        seen.append(steps.state())
    subprocess.run(commit, shell=True, check=True, cwd=tmp_path)
    assert steps.state() == seen[-1]
    assert len(set(seen)) == 3

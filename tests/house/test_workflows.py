"""What .github/workflows runs, and what the weekly run makes of its results."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from jaxexp import _jax
from kit.places import ROOT
from tools import pairs, watch

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
SUM, LOAD = "tests.call.test_call::test_sum[2]", "tests.read.test_load::test_load"


def release(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def test_the_pairs_are_the_range_of_the_package() -> None:
    releases = [release(jax) for jax in pairs.pairs().values()]
    assert releases == sorted(releases)
    assert (releases[0], releases[-1]) == (_jax.OLDEST_JAX, _jax.NEWEST_JAX)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pythons = list(map(release, pairs.pairs()))
    assert (project["requires-python"], pythons) == (f">={'.'.join(map(str, min(pythons)))}", sorted(pythons))


def test_jobs_are_made_of_the_pairs() -> None:
    found = dict(line.split("=", 1) for line in pairs.outputs())
    assert {row["python"]: row["jax"] for row in json.loads(found["pairs"])} == pairs.pairs()
    assert found["newest"] == max(pairs.pairs(), key=release)
    for path in WORKFLOWS:
        if "pairs.py" in path.read_text():
            assert not any(jax in path.read_text() for jax in pairs.pairs().values())


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_say_what_they_may_do_and_call_what_there_is(path: Path) -> None:
    workflow = yaml.safe_load(path.read_text())
    assert workflow["permissions"] == {"contents": "read"}
    assert workflow["concurrency"]
    steps = [step for job in workflow["jobs"].values() for step in job["steps"]]
    assert all(not step["with"]["persist-credentials"] for step in steps if "checkout" in step.get("uses", ""))
    # What GitHub puts into a command by itself could be somebody's title of a pull request.
    commands = "\n".join(step.get("run", "") for step in steps)
    assert "${{" not in commands
    assert all((ROOT / script).exists() for script in re.findall(r"\S+\.py", commands) if "/" in script)
    targets = re.findall(r"\bmake ([a-z-]+)", commands)
    assert all(re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE) for target in targets)


class GitHub:
    """Answers as `gh` does, of one repository."""

    def __init__(self) -> None:
        self.issues: list[dict[str, Any]] = [{"number": 1, "body": "somebody's", "comments": [], "open": True}]

    def __call__(self, *arguments: str, text: str | None = None) -> str:
        match arguments:
            case ("issue", "list", *_):
                return json.dumps([issue for issue in self.issues if issue["open"]])
            case ("issue", "create", "--title", _, "--body-file", "-"):
                self.issues.append({"number": len(self.issues) + 1, "body": text, "comments": [], "open": True})
            case ("issue", "edit", number, "--body-file", "-"):
                self.issues[int(number) - 1]["body"] = text
            case ("issue", "comment", number, "--body-file", "-"):
                self.issues[int(number) - 1]["comments"].append(text)
            case ("issue", "close", number, "--comment", comment):
                self.issues[int(number) - 1]["open"] = False
                self.issues[int(number) - 1]["comments"].append(comment)
            case _:
                raise AssertionError(arguments)
        return ""


def test_one_issue_is_opened_changed_and_closed_only_when_the_result_changes() -> None:
    github = GitHub()

    def report(jax: str, ordinary: list[str], simplified: list[str]) -> str:
        failed = {"ordinary constants": ordinary, "simplified constants": simplified}
        return watch.report("newest-jax", failed, f"JAX {jax}", "https://example.org/log", github)

    assert (report("0.13.0", [], []), report("0.13.1", [], [SUM])) == ("nothing", "opened")
    assert (report("0.13.1", [], [SUM]), report("0.13.2", [], [SUM])) == ("nothing", "nothing")
    assert report("0.13.2", [LOAD], [LOAD, SUM]) == "changed"
    assert report("0.13.2", [LOAD], [SUM, LOAD]) == "nothing"
    _, issue = github.issues
    assert all(f"\n{test}\n" in issue["body"] for test in (SUM, LOAD))
    assert "### ordinary constants: 1 failed" in issue["body"]
    assert "1 with ordinary constants, 2 with simplified constants" in issue["comments"][-1]
    assert report("0.13.3", [], []) == "closed"
    assert not issue["open"] and "JAX 0.13.3" in issue["comments"][-1]
    assert (len(issue["comments"]), report("0.13.3", [], [])) == (2, "nothing")
    assert report("0.14.0", [SUM], []) == "opened"
    assert [found["open"] for found in github.issues] == [True, False, True]
    assert github.issues[0]["body"] == "somebody's"


def test_an_issue_has_room_for_whatever_fails() -> None:
    tests = [f"tests.call.test_call::test_sum[{'x' * 1000}\n{i}~~~~ -->]" for i in range(5000)]
    text = watch.body("night", {"ordinary": tests, "simplified": tests}, "0123abcd", "https://example.org/log")
    assert len(text) < 65_536 and text.count("and 4950 more") == 2


def test_what_was_tested_on_this_branch_is_not_tested_again(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"REPOSITORY": "owner/jaxexp", "REF_NAME": "main", "SHA": "0123abcd"}.items():
        monkeypatch.setenv(f"GITHUB_{name}", value)
    run = {"head_branch": "main", "repository_id": 1, "head_repository_id": 1}

    def planned(*, expired: bool = False, **other: Any) -> dict[str, str]:
        kept = {"artifacts": [{"expired": expired, "workflow_run": {**run, **other}}]}
        return watch.plan("night", lambda *command: json.dumps(kept if "night-0123abcd" in command[-1] else {}))

    assert planned() == {"record": "night-0123abcd", "tested": "yes"}
    for no in (planned(expired=True), planned(head_branch="a-pull-request"), planned(head_repository_id=2)):
        assert no["tested"] == "no"


def test_what_the_night_leaves(tmp_path: Path) -> None:
    steps = tmp_path / "night.json"
    assert watch.left_by_the_night(steps, tmp_path) == ["step nothing ran"]
    steps.write_text(json.dumps({"state": "0123", "passed": {}, "failed": ["fuzzing"]}))
    assert watch.left_by_the_night(steps, tmp_path) == ["step fuzzing"]
    case = '<testcase classname="tests.call.test_call" name="test_sum[2]"><failure/></testcase>'
    (tmp_path / "all-tests.xml").write_text(f"<testsuites><testsuite>{case}</testsuite></testsuites>")
    assert watch.left_by_the_night(steps, tmp_path) == [SUM, "step fuzzing"]
    steps.write_text(json.dumps({"state": "0123", "passed": {"1: all tests": 9.0}, "failed": []}))
    (tmp_path / "all-tests.xml").unlink()
    assert watch.left_by_the_night(steps, tmp_path) == []

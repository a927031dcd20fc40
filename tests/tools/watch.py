"""The steps of the workflows that watch: newest-jax.yml, and night.yml. Each has one issue, which says what fails.

python tests/tools/watch.py plan WATCH        whether this commit was tested before, and the newest JAX
python tests/tools/watch.py test NAME ...     runs what depends on JAX, and writes build/watched/NAME.json
python tests/tools/watch.py part NAME         reads what a part of `make night` has left, and writes the same file
python tests/tools/watch.py report WATCH      opens, changes or closes the issue by what these files say

`plan` and `report` call GitHub's `gh`, with a token in GH_TOKEN that may read actions, or write issues.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

sys.path.insert(0, str(Path(__file__).parents[1]))

from kit.places import ROOT
from tools.steps import report_of

BUILD = ROOT / "build"
RESULTS = BUILD / "watched"
TITLES = {"newest-jax": "Tests fail with the newest JAX", "night": "The nightly run fails"}
MARK = "<!-- {}: {} -->"
MOST_LISTED = 50
# jaxexp says so on import, and in tests a warning is an error.
NEWER = "ignore:jaxexp is tested with JAX:RuntimeWarning"

Gh = Callable[..., str]  # takes the arguments of a command, and its input
Failed = Mapping[str, Sequence[str]]  # for each name of a run the tests that failed


def gh(*arguments: str, text: str | None = None) -> str:
    return subprocess.run(["gh", *arguments], input=text, stdout=subprocess.PIPE, text=True, check=True).stdout


# What is to be tested.


def plan(watch: str, gh: Gh = gh) -> dict[str, str]:
    """The outputs of the step. `record` names the artifact that a run leaves when it has reported.

    The settings under which the tests run are in the workflow, and so belong to the commit.
    """
    versions: dict[str, str] = {}
    if watch == "newest-jax":
        command = "install --dry-run --ignore-installed --no-deps --quiet --report - jax jaxlib"
        found = json.loads(subprocess.check_output([sys.executable, "-m", "pip", *command.split()]))["install"]
        versions = {item["metadata"]["name"]: item["metadata"]["version"] for item in found}
    record = "-".join([watch, *versions.values(), os.environ["GITHUB_SHA"]])
    return {**versions, "record": record, "tested": "yes" if is_kept(record, gh) else "no"}


def is_kept(record: str, gh: Gh) -> bool:
    """Whether a run on this branch of this repository, and not a pull request from elsewhere, left the artifact."""
    path = f"repos/{os.environ['GITHUB_REPOSITORY']}/actions/artifacts?name={record}"
    return any(
        not artifact["expired"]
        and artifact["workflow_run"]["head_branch"] == os.environ["GITHUB_REF_NAME"]
        and artifact["workflow_run"]["head_repository_id"] == artifact["workflow_run"]["repository_id"]
        for artifact in json.loads(gh("api", path))["artifacts"]
    )


# The tests.


def failing(name: str, arguments: Sequence[str], folder: Path = RESULTS) -> list[str]:
    """Runs what depends on JAX. Tests that fail run once more: those that pass then are left out."""
    folder.mkdir(parents=True, exist_ok=True)
    report = folder / f"{name}.xml"
    failed = run(report, arguments)
    if failures(report):
        failed = run(report, [*arguments, "--last-failed"])
    (folder / f"{name}.json").write_text(json.dumps(failed))
    return failed


def run(report: Path, arguments: Sequence[str]) -> list[str]:
    """The tests that failed, or what pytest ended with if that was for another reason."""
    report.unlink(missing_ok=True)
    pytest = Path(sys.executable).with_name("pytest")
    command = [str(pytest), "-n", "auto", "--gate", "-m", "jax", "-W", NEWER, f"--junitxml={report}"]
    environment = {**os.environ, "PYTHONWARNINGS": NEWER}
    status = subprocess.run([*command, *arguments], cwd=ROOT, env=environment).returncode
    return failures(report) or ([f"pytest ended with status {status}"] if status else [])


def failures(report: Path) -> list[str]:
    """The tests that failed in a JUnit file; none if pytest did not come to write it."""
    if not report.exists():
        return []
    cases = ElementTree.parse(report).iter("testcase")
    broken = [case for case in cases if case.find("failure") is not None or case.find("error") is not None]
    return sorted({f"{case.get('classname')}::{case.get('name')}" for case in broken})


def left_by_the_night(steps: Path = BUILD / "night.json", reports: Path = BUILD / "junit") -> list[str]:
    """The tests that failed, and the steps that failed without one."""
    failed = sorted({test for report in sorted(reports.glob("*.xml")) for test in failures(report)})
    wrong: list[str] = json.loads(steps.read_text())["failed"] if steps.exists() else ["nothing ran"]
    return [*failed, *(f"step {name}" for name in wrong if not failures(reports / report_of(name).name))]


# The issue.


def report(watch: str, failed: Failed, of: str, log: str, gh: Gh = gh) -> str:
    """What was done about the issue: opened, changed, closed or nothing. The text of an open one says what failed.

    `of` is what was tested, as in "JAX 0.13.0".
    """
    issue = open_issue(watch, gh)
    if not any(failed.values()):
        if issue is None:
            return "nothing"
        gh("issue", "close", str(issue["number"]), "--comment", f"All tests pass with {of}: [log]({log}).")
        return "closed"
    text = body(watch, failed, of, log)
    if issue is None:
        gh("issue", "create", "--title", TITLES[watch], "--body-file", "-", text=text)
        return "opened"
    if MARK.format(watch, digest(failed)) in issue["body"]:
        return "nothing"
    gh("issue", "edit", str(issue["number"]), "--body-file", "-", text=text)
    counts = ", ".join(f"{len(tests)} with {name}" for name, tests in failed.items())
    changed = f"Other tests fail now, with {of}: {counts}. The text above lists them."
    gh("issue", "comment", str(issue["number"]), "--body-file", "-", text=changed)
    return "changed"


def open_issue(watch: str, gh: Gh) -> dict[str, Any] | None:
    """The one that a workflow opened before, if it is open."""
    query = ["--app", "github-actions", "--state", "open", "--limit", "1000", "--json", "number,body"]
    issues = json.loads(gh("issue", "list", *query))
    return next((issue for issue in issues if f"<!-- {watch}: " in issue["body"]), None)


def digest(failed: Failed) -> str:
    return hashlib.sha256(json.dumps({k: sorted(v) for k, v in failed.items()}, sort_keys=True).encode()).hexdigest()


def body(watch: str, failed: Failed, of: str, log: str) -> str:
    """The text of the issue, which ends with what the next run compares."""
    parts = [f"{of}: [log]({log}). The workflow {watch} changes this text, and closes the issue when all pass."]
    for name, tests in failed.items():
        listed = [" ".join(test.split())[:200] for test in tests[:MOST_LISTED]]
        more = [f"and {len(tests) - MOST_LISTED} more"] * (len(tests) > MOST_LISTED)
        parts.append("\n".join([f"### {name}: {len(tests)} failed", "~~~~text", *listed, *more, "~~~~"]))
    return "\n\n".join([*parts, MARK.format(watch, digest(failed))])


def main(command: str, *arguments: str) -> None:
    if command == "plan":
        print(*(f"{name}={value}" for name, value in plan(*arguments).items()), sep="\n")
    elif command == "test":
        name, *others = arguments
        print(*failing(name, others) or ["all tests passed"], sep="\n")
    elif command == "part":
        failed = left_by_the_night()
        RESULTS.mkdir(parents=True, exist_ok=True)
        (RESULTS / f"{arguments[0]}.json").write_text(json.dumps(failed))
        print(*failed or ["all steps passed"], sep="\n")
    elif command == "report":
        by_name = {path.stem: json.loads(path.read_text()) for path in sorted(RESULTS.glob("*.json"))}
        where = os.environ
        log = f"{where['GITHUB_SERVER_URL']}/{where['GITHUB_REPOSITORY']}/actions/runs/{where['GITHUB_RUN_ID']}"
        print(report(arguments[0], by_name, where.get("OF") or where["GITHUB_SHA"], log))
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Watches the newest JAX: the steps of .github/workflows/newest-jax.yml.

python tests/tools/newest_jax.py plan           which JAX is the newest, and whether this commit was tested with it
python tests/tools/newest_jax.py test NAME      runs the tests, and writes build/newest-jax/NAME.json
python tests/tools/newest_jax.py report         opens, changes or closes the issue by what these files say

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

RESULTS = ROOT / "build" / "newest-jax"
TITLE = "Tests fail with the newest JAX"
MARK = "<!-- newest-jax: {} -->"
MOST_LISTED = 50
# jaxexp says so on import, and in tests a warning is an error.
NEWER = "ignore:jaxexp is tested with JAX:RuntimeWarning"

Gh = Callable[..., str]  # takes the arguments of a command, and its input
Failed = Mapping[str, Sequence[str]]  # for each name of a run the tests that failed


def gh(*arguments: str, text: str | None = None) -> str:
    return subprocess.run(["gh", *arguments], input=text, stdout=subprocess.PIPE, text=True, check=True).stdout


# What is to be tested.


def plan(gh: Gh = gh) -> dict[str, str]:
    """The outputs of the step. `record` names the artifact that a run leaves when it has reported.

    The settings under which the tests run are in the workflow, and so belong to the commit.
    """
    command = "install --dry-run --ignore-installed --no-deps --quiet --report - jax jaxlib"
    report = subprocess.check_output([sys.executable, "-m", "pip", *command.split()])
    versions = {item["metadata"]["name"]: item["metadata"]["version"] for item in json.loads(report)["install"]}
    record = f"newest-jax-{versions['jax']}-{versions['jaxlib']}-{os.environ['GITHUB_SHA']}"
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
    command = [str(pytest), "-n", "auto", "-m", "not slow and not once", "-W", NEWER, f"--junitxml={report}"]
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


# The issue.


def report(failed: Failed, jax: str, log: str, gh: Gh = gh) -> str:
    """What was done about the issue: opened, changed, closed or nothing. The text of an open one says what failed."""
    issue = open_issue(gh)
    if not any(failed.values()):
        if issue is None:
            return "nothing"
        gh("issue", "close", str(issue["number"]), "--comment", f"All tests pass with JAX {jax}: [log]({log}).")
        return "closed"
    if issue is None:
        gh("issue", "create", "--title", TITLE, "--body-file", "-", text=body(failed, jax, log))
        return "opened"
    if MARK.format(digest(failed)) in issue["body"]:
        return "nothing"
    gh("issue", "edit", str(issue["number"]), "--body-file", "-", text=body(failed, jax, log))
    counts = ", ".join(f"{len(tests)} with {name}" for name, tests in failed.items())
    changed = f"Other tests fail now, on JAX {jax}: {counts}. The text above lists them."
    gh("issue", "comment", str(issue["number"]), "--body-file", "-", text=changed)
    return "changed"


def open_issue(gh: Gh) -> dict[str, Any] | None:
    """The one that a workflow opened before, if it is open."""
    query = ["--app", "github-actions", "--state", "open", "--limit", "1000", "--json", "number,body"]
    issues = json.loads(gh("issue", "list", *query))
    return next((issue for issue in issues if MARK.partition("{")[0] in issue["body"]), None)


def digest(failed: Failed) -> str:
    return hashlib.sha256(json.dumps({k: sorted(v) for k, v in failed.items()}, sort_keys=True).encode()).hexdigest()


def body(failed: Failed, jax: str, log: str) -> str:
    """The text of the issue, which ends with what the next run compares."""
    parts = [f"JAX {jax}: [log]({log}). The workflow newest-jax changes this text, and closes the issue when all pass."]
    for name, tests in failed.items():
        listed = [" ".join(test.split())[:200] for test in tests[:MOST_LISTED]]
        more = [f"and {len(tests) - MOST_LISTED} more"] * (len(tests) > MOST_LISTED)
        parts.append("\n".join([f"### {name}: {len(tests)} failed", "~~~~text", *listed, *more, "~~~~"]))
    return "\n\n".join([*parts, MARK.format(digest(failed))])


def main(command: str, *arguments: str) -> None:
    if command == "plan":
        print(*(f"{name}={value}" for name, value in plan().items()), sep="\n")
    elif command == "test":
        name, *others = arguments
        print(*failing(name, others) or ["all tests passed"], sep="\n")
    elif command == "report":
        failed = {path.stem: json.loads(path.read_text()) for path in sorted(RESULTS.glob("*.json"))}
        where = os.environ
        log = f"{where['GITHUB_SERVER_URL']}/{where['GITHUB_REPOSITORY']}/actions/runs/{where['GITHUB_RUN_ID']}"
        print(report(failed, where["JAX"], log))
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main(*sys.argv[1:])

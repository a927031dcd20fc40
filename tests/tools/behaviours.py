"""Writes docs/behaviours.md: what behaviours.toml lists, with the outcome of its tests on each JAX that was tested.

python tests/tools/behaviours.py [JUNIT_XML ...]    (default: build/junit/*.xml, of `make night`)
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections import defaultdict
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

sys.path.insert(0, str(Path(__file__).parents[1]))

from kit.places import ROOT, TESTS

PAGE = ROOT / "docs" / "behaviours.md"

HEAD = """\
# jax.export's behaviours, one by one

`jax.export` makes promises in its documentation, and raises errors in its code. This page lists all of both, with the
tests of the same behaviour in jaxexp. They compare with the `jax.export` of the same JAX. A test fails if the installed
`jax.export` has a `raise` that is not listed. An *artifact* is a saved function.

The last columns count the tests that passed on each JAX. Tests of the C++ runtime run with only one JAX; the others
have a dash. `python tests/tools/behaviours.py` writes this page from `tests/house/behaviours.toml` and the results of
`make night`.
"""

_NOT_RUN = "not run"
# The mark of a file whose tests run with one JAX.
_CPP = re.compile(r"^pytestmark = (?:\[[^\]]*|.*)\bmark\.cpp\b", re.MULTILINE)

# Outcomes: JAX release -> "room/file::function" -> (cases, cases that did not pass)
Outcomes = dict[str, dict[str, tuple[int, int]]]


def load() -> dict[str, list[dict[str, Any]]]:
    """The rows: "promise" and "failure", each with its section filled in."""
    tables: dict[str, list[dict[str, Any]]] = tomllib.loads((TESTS / "house" / "behaviours.toml").read_text())
    for rows in tables.values():
        section = ""
        for row in rows:
            section = row.setdefault("section", section)
    return tables


def outcomes_of(reports: list[Path]) -> Outcomes:
    """The outcomes in the JUnit files of test runs."""
    outcomes: Outcomes = {}
    for report in reports:
        for suite in ElementTree.parse(report).iter("testsuite"):
            jax = suite.find("./properties/property[@name='jax']")
            if jax is None:
                continue
            counts = outcomes.setdefault(jax.get("value", ""), defaultdict(lambda: (0, 0)))
            for case in suite.iter("testcase"):
                file = case.get("classname", "").removeprefix("tests.").replace(".", "/")
                test = f"{file}.py::{case.get('name', '').partition('[')[0]}"
                cases, bad = counts[test]
                failed = any(case.find(outcome) is not None for outcome in ("failure", "error", "skipped"))
                counts[test] = cases + 1, bad + failed
    return outcomes


def render(outcomes: Outcomes) -> str:
    """The page; without outcomes, only the text."""
    releases = sorted(outcomes, key=lambda release: [int(part) for part in re.findall(r"\d+", release)])
    lines = [HEAD]
    for kind, title in (("promise", "Promises"), ("failure", "Failures")):
        lines += [f"## {title}", ""]
        section = None
        for row in load()[kind]:
            if row["section"] != section:
                section = row["section"]
                columns = ["behaviour", *(["raises"] if kind == "failure" else []), "tests"]
                columns += [f"JAX {release}" for release in releases]
                lines += ["", f"### {section}", "", _row(columns), _row(["---"] * len(columns))]
            what = row["what"] + (f" (differs: {row['differs']})" if "differs" in row else "")
            cells = [what, *([f"`{row['raises']}`"] if kind == "failure" else [])]
            cells += ["<br>".join(f"`{test}`" for test in row["tests"])]
            found = [_outcome(outcomes[release], row["tests"]) for release in releases]
            ran = any(outcome != _NOT_RUN for outcome in found)
            cells += ["-" if outcome == _NOT_RUN and ran and _run_once(row["tests"]) else outcome for outcome in found]
            lines.append(_row(cells))
        lines.append("")
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines).rstrip() + "\n")


def without_outcomes(page: str) -> list[str]:
    """The lines of a page, without the columns of outcomes."""
    lines, columns = [], 0
    for line in page.splitlines():
        if line.startswith("| "):
            cells = line.strip("| ").split(" | ")
            if cells[0] == "behaviour":
                columns = sum(not cell.startswith("JAX ") for cell in cells)
            line = _row(cells[:columns])
        lines.append(line)
    return lines


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _outcome(counts: dict[str, tuple[int, int]], tests: list[str]) -> str:
    found = [counts.get(test, (0, 0)) for test in tests]
    cases, bad = sum(cases for cases, _ in found), sum(bad for _, bad in found)
    if not all(cases for cases, _ in found):
        return _NOT_RUN
    return f"{bad} of {cases} failed" if bad else f"{cases} passed"


def _run_once(tests: list[str]) -> bool:
    """Whether all of these tests are in files whose tests run with one JAX."""
    return all(_CPP.search((TESTS / test.partition("::")[0]).read_text()) for test in tests)


def main(arguments: list[str]) -> None:
    reports = [Path(argument) for argument in arguments] or sorted((ROOT / "build" / "junit").glob("*.xml"))
    outcomes = outcomes_of(reports)
    if not outcomes:
        sys.exit("no test results found: run `make night` first")
    PAGE.write_text(render(outcomes))
    print(f"{PAGE.relative_to(ROOT)}: JAX {', '.join(outcomes)}")


if __name__ == "__main__":
    main(sys.argv[1:])

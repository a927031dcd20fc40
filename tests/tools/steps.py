"""What runs when: the steps of `make test`, `.ci/run` and `make night`, their budgets, and how long they took.

python3 tests/tools/steps.py test          what gates a commit
python3 tests/tools/steps.py ci            what CI runs after `make test`; the last line counts the tests of both
python3 tests/tools/steps.py night [K/4]   everything else, in four parts; goes on where it stopped for the same files
python3 tests/tools/steps.py table         writes the table of CONTRIBUTING.md

It runs on any Python 3.11, before anything is installed. A step that fails does not keep the next ones from running.
Times are those of this machine, so a step that takes half as long again as its budget only makes a line at the end.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import resource
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[2]
JUNIT = ROOT / "build" / "junit"
TIMES = ROOT / "build" / "steps.json"
NIGHT = ROOT / "build" / "night.json"
CONTRIBUTING = ROOT / "CONTRIBUTING.md"
SANITIZED = ".ci/sanitized"  # the digest of the C++ that sanitizers have passed

JOBS = os.environ.get("JOBS", "2")
BIN = ROOT / os.environ.get("VENV", ".venv") / "bin"
PAIRS: dict[str, str] = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["jaxexp"]["pairs"]
OVERRUN = 1.5


@dataclasses.dataclass(frozen=True)
class Step:
    """One command of a shell, run in the checkout."""

    name: str
    command: str
    budget: int  # seconds of CPU time, on one machine at one time: what tells a creep from noise
    what: str  # for the table


def report_of(name: str) -> Path:
    """Where a step that runs tests leaves its JUnit file."""
    return JUNIT / f"{name.replace(' ', '-')}.xml"


def pytest(name: str, arguments: str, budget: int, what: str, environment: str = "") -> Step:
    """The script, not `python -m pytest`: the checkout stays off sys.path, and the installed package is tested.

    Many processes import the same modules of tests/, so these are compiled once, whatever the environment says. The
    tests of a file run in one worker, since they share what it made, traced and compiled.
    """
    more = os.environ.get("PYTEST_ARGS", "")
    start = f"PYTHONDONTWRITEBYTECODE= {environment} {BIN}/pytest -n {JOBS} --dist loadfile"
    command = f"{start} {arguments} --junitxml={report_of(name)} {more}"
    return Step(name, command.strip(), budget, what)


def other_pairs() -> list[str]:
    """The Pythons of two pairs that `make` does not run on; it runs this file with its own."""
    return [python for python in PAIRS if python != "{}.{}".format(*sys.version_info)][-2:]


def commits() -> int:
    done = subprocess.run(["git", "rev-list", "--count", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    return int(done.stdout) if done.returncode == 0 else 0


def pair(name: str, python: str, arguments: str, budget: int, what: str) -> Step:
    session = f"-s matrix-{python} -- {arguments} --junitxml={report_of(name)}"
    return Step(name, f"make --no-print-directory matrix NOX_ARGS='{session}'", budget, what)


def gate_of_another_pair() -> Step:
    """One of the other pairs, by the parity of the commit."""
    others = other_pairs()
    python = others[commits() % len(others)]
    return pair("another pair", python, "--gate -m jax", 900, "what depends on JAX, with another Python and JAX")


TEST = [
    Step("set-up", "make --no-print-directory setup", 700, "builds and installs what is not there yet"),
    pytest("tests", '--gate -m "not cpp"', 700, "the tests that gate a commit"),
    Step("lint", "make --no-print-directory lint", 60, "ruff, clang-format, codespell, mypy, pyright, workflows"),
]


def ci() -> list[Step]:
    return [
        Step("C++", "make --no-print-directory runtime", 400, "builds what the tests of C++ link"),
        pytest("tests of C++", "--gate -m cpp", 400, "the tests that need the C++ runtime"),
        gate_of_another_pair(),
        Step("sanitizers", f"{BIN}/python tests/tools/sanitize.py --if-needed", 1500,
             "ASan, UBSan, 2,000 runs of each fuzz target; only if `.ci/sanitized` is of other C++"),
        Step("docs", "make --no-print-directory docs", 60, "the documentation's site, and its links"),
    ]  # fmt: skip


MEASURED = "make --no-print-directory measured &&"  # whose instructions a test counts
# Two runs for six conditions. NPROC is how many threads XLA starts.
OLD_CPU = "XLA_FLAGS=--xla_cpu_max_isa=SSE4_2 OPENBLAS_CORETYPE=Prescott OPENBLAS_NUM_THREADS=1 NPROC=1"
BUSY_CPU = "XLA_FLAGS=--xla_cpu_max_isa=AVX2 OPENBLAS_CORETYPE=Haswell"
# Other places each day.
MUTANTS = f"""
folder=build/mutants mutants="{BIN}/python tests/tools/mutants.py"
rm -rf $folder && mkdir -p $folder &&
$mutants draw . $folder/drawn.json --number 20 --seed "$(date +%Y%j)" &&
$mutants apply . $folder/drawn.json $folder/copy &&
$mutants reach $folder/copy $folder/reach.jsonl -- --gate -m "not cpp" &&
$mutants run $folder/copy $folder/reach.jsonl $folder/results.json &&
$mutants table $folder/results.json $folder/results.json
"""
LOADED = (
    "for i in 1 2 3 4 5 6 7 8; do sh -c 'while :; do :; done' & busy=\"$busy $!\"; done; "
    "{}; status=$?; kill $busy; exit $status"
)


def night() -> dict[int, list[Step]]:
    second, third = other_pairs()
    calm = pytest("tests under load", '--gate -m "not cpp"', 900,
                  "the gate with instructions up to AVX2, OpenBLAS for Haswell, beside eight busy processes",
                  BUSY_CPU)  # fmt: skip
    busy = dataclasses.replace(calm, command=LOADED.format(calm.command))
    return {
        1: [pytest("all tests", '-m "not cpp"', 3600, "all cases, on the default pair", MEASURED)],
        2: [
            pair("second pair", second, '--again -m "not cpp"', 2400,
                 "the gate, and nearly all cases that depend on JAX, with another Python and JAX"),
            pytest("tests of an old CPU", '--gate -m "not cpp"', 900,
                   "the gate with instructions up to SSE4.2, OpenBLAS for Prescott, one thread", OLD_CPU),
        ],
        3: [
            pair("third pair", third, '--again -m "not cpp"', 2400, "the same with the third Python and JAX"),
            busy,
        ],
        4: [
            Step("C++", "make --no-print-directory runtime", 400, "builds what the tests of C++ link"),
            pytest("all tests of C++", "-m cpp", 1500, "all cases, shared libraries included"),
            Step("sanitizers", f"{BIN}/python tests/tools/sanitize.py --all", 1500, "ASan, UBSan, LeakSanitizer, TSan"),
            Step("fuzzing", "make --no-print-directory fuzz SECONDS=600", 1200, "ten minutes over all targets"),
            Step("mutants", MUTANTS, 2400, "twenty broken places of the product, and which test notices each"),
        ],
    }  # fmt: skip


# Running.


@dataclasses.dataclass
class Took:
    name: str
    status: int
    wall: float
    cpu: float
    budget: int
    tests: bool = False


def cpu_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def run(step: Step) -> Took:
    print(f"== {step.name}", flush=True)
    JUNIT.mkdir(parents=True, exist_ok=True)
    report_of(step.name).unlink(missing_ok=True)
    start, before = time.monotonic(), cpu_of_children()
    status = subprocess.run(step.command, shell=True, cwd=ROOT).returncode
    wall, cpu = time.monotonic() - start, cpu_of_children() - before
    return Took(step.name, status, wall, cpu, step.budget, tests="--junitxml" in step.command)


def keep(took: Sequence[Took]) -> None:
    TIMES.write_text(json.dumps([dataclasses.asdict(row) for row in took], indent=1))


def kept() -> list[Took]:
    return [Took(**row) for row in json.loads(TIMES.read_text())] if TIMES.exists() else []


def slowest(reports: Iterable[Path], count: int = 10) -> list[tuple[float, str]]:
    cases = [case for report in reports if report.exists() for case in ElementTree.parse(report).iter("testcase")]
    times = [(float(case.get("time", 0)), f"{case.get('classname')}::{case.get('name')}") for case in cases]
    return sorted(times, reverse=True)[:count]


def summary(took: Sequence[Took]) -> str:
    """The slowest tests, the minutes by step, and the steps that took much longer than their budgets."""
    lines = [f"{seconds:7.1f} s  {name}" for seconds, name in slowest(report_of(row.name) for row in took)]
    lines = ["the slowest tests:", *lines, ""] if lines else []
    lines += [f"{'step':<24}{'minutes':>8}{'CPU min':>9}{'budget':>8}"]
    for row in took:
        failed = "  FAILED" if row.status else ""
        lines.append(f"{row.name:<24}{row.wall / 60:>8.1f}{row.cpu / 60:>9.1f}{row.budget / 60:>8.1f}{failed}")
    lines.append(f"{'all':<24}{sum(row.wall for row in took) / 60:>8.1f}{sum(row.cpu for row in took) / 60:>9.1f}")
    lines += [
        f"warning: {row.name} took {row.cpu / 60:.1f} minutes of CPU time, over {OVERRUN} times its budget of "
        f"{row.budget / 60:.1f}; see which tests are slow, or whether this machine is"
        for row in took
        if row.cpu > OVERRUN * row.budget
    ]
    return "\n".join(lines)


def totals(took: Sequence[Took]) -> str:
    """A line for each report, and one for all of them."""
    passed = failed = skipped = 0
    lines, cases = [], set()
    for row in took:
        report = report_of(row.name)
        if row.tests and not row.status and not report.exists():  # nox says which interpreter there is not
            lines.append(f"{row.name}: not on this machine")
            skipped += 1
        for suite in ElementTree.parse(report).iter("testsuite") if report.exists() else ():
            ran, broken, left = (int(suite.get(key, 0)) for key in ("tests", "failures", "skipped"))
            broken += int(suite.get("errors", 0))
            cases.update((case.get("classname"), case.get("name")) for case in suite.iter("testcase"))
            passed, failed, skipped = passed + ran - broken - left, failed + broken, skipped + left
            lines.append(f"{row.name}: {ran} tests, {broken} failed, {left} skipped")
    # A step can fail without a failed test: a build, the linters, a crash.
    if any(row.status for row in took) and not failed:
        lines.append("a step other than a test failed, see above")
        failed = 1
    return "\n".join([*lines, f"{len(cases)} different tests", f"{passed} passed, {failed} failed, {skipped} skipped"])


def state() -> str:
    """A name for what is in the files of the checkout, committed or not, without what a step of the night writes."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True, text=True).stdout
    found = hashlib.sha256()
    for name in sorted({*listed.split("\0")} - {"", SANITIZED}):
        path = ROOT / name
        content = path.read_bytes() if path.is_file() else b"none"
        found.update(hashlib.sha256(name.encode()).digest() + hashlib.sha256(content).digest())
    return found.hexdigest()[:12]


def run_night(part: str | None) -> int:
    """Steps that passed for the same files do not run again."""
    parts = night()
    wanted = [int(part.partition("/")[0])] if part else list(parts)
    now = state()
    known = json.loads(NIGHT.read_text()) if NIGHT.exists() else {}
    passed: dict[str, float] = known.get("passed", {}) if known.get("state") == now else {}
    took = []
    setup = run(TEST[0])
    for number in wanted:
        for step in parts[number]:
            if f"{number}: {step.name}" in passed:
                continue
            took.append(run(step))
            if not took[-1].status and state() == now:
                passed[f"{number}: {step.name}"] = took[-1].wall
            failed = [row.name for row in [setup, *took] if row.status]
            NIGHT.write_text(json.dumps({"state": now, "passed": passed, "failed": failed}, indent=1))
    print(summary([setup, *took]))
    for number, steps in parts.items():
        left = [step.name for step in steps if f"{number}: {step.name}" not in passed]
        minutes = sum(passed.get(f"{number}: {step.name}", 0) for step in steps) / 60
        result = f"left: {', '.join(left)}" if left else f"passed in {minutes:.0f} minutes"
        print(f"part {number}/{len(parts)}: {result}")
    print(f"of {now}")
    return int(any(row.status for row in [setup, *took]))


def table() -> str:
    def rows(when: str, steps: Iterable[Step]) -> list[str]:
        return [f"| {when} | {step.name} | {step.what} | {step.budget / 60:.0f} |" for step in steps]

    lines = ["| run by | step | what it is | CPU minutes |", "|---|---|---|---|", *rows("`make test`", TEST)]
    lines += rows("`.ci/run`, after `make test`", ci())
    for part, steps in night().items():
        lines += rows(f"`make night PART={part}/4`", steps)
    return "\n".join(lines)


def with_table(page: str) -> str:
    before, start, rest = page.partition("<!-- steps: start -->\n")
    _, end, after = rest.partition("<!-- steps: end -->\n")
    return f"{before}{start}{table()}\n{end}{after}"


def main(arguments: Sequence[str]) -> int:
    match list(arguments):
        case ["test"]:
            took = []
            for step in TEST:
                took.append(run(step))
                if step.name == "set-up" and took[-1].status:
                    break
            keep(took)
            print(summary(took))
        case ["ci"]:
            took = kept()
            for step in ci():
                took.append(run(step))
            keep(took)
            print(f"{summary(took)}\n{totals(took)}")
        case ["night"]:
            return run_night(None)
        case ["night", part] if part in {"1/4", "2/4", "3/4", "4/4"}:
            return run_night(part)
        case ["table"]:
            CONTRIBUTING.write_text(with_table(CONTRIBUTING.read_text()))
            return 0
        case _:
            sys.exit(__doc__)
    return int(any(row.status for row in took))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

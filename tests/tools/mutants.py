"""Breaks the product in many places, one at a time, and says which test notices: so that nothing loses its guard when
tests go away.

    python tests/tools/mutants.py draw TREE MUTANTS.json [--number 60] [--seed 1]
    python tests/tools/mutants.py apply TREE MUTANTS.json COPY
    python tests/tools/mutants.py reach COPY REACH.jsonl [--jobs 2] [-- options of pytest]
    python tests/tools/mutants.py run COPY REACH.jsonl RESULTS.json [--at-most 400] [--seconds 300]
    python tests/tools/mutants.py table BEFORE.json AFTER.json

`draw` chooses places at random, and writes what each becomes. `apply` copies a checkout with all changes in it, each
behind a switch, and builds that once; COPY/.venv is a copy of the environment that runs this file. With every change
off, `reach` runs the tests, and keeps which places each one reaches. `run` turns on one change after the other, and
runs tests that reach it, until one fails: the cheapest first, at most so many, which together take so many seconds.
Both go on where they stopped. `table` compares the results of two checkouts with the same product and other tests; its
exit status is 1 if something was caught before and is not now. Places are found by the text of their lines.

mutant_changes.py has the kinds of changes, and mutants_plugin.py the switch.
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import contextlib
import json
import os
import random
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from kit import native
from tools import mutants_plugin
from tools.mutant_changes import Mutant, cpp_changes, python_changes
from tools.mutants_plugin import AT_IMPORT, SIZE, mapped

Tests: TypeAlias = dict[str, dict[str, Any]]
SHARE_OF_PYTHON = 0.63
STOPPED = (-signal.SIGINT, -signal.SIGTERM, -signal.SIGKILL)  # of a process that somebody has ended
FUTURE = "from __future__ import annotations"  # after it, a module may import
RESULTS_KEPT = 0.3  # of results that become None: any test notices

HELPER = """
import mmap, os
def opened():
    try:
        file = os.open(os.environ.get("JAXEXP_MUTANTS", DEFAULT), os.O_RDWR | os.O_CREAT, 0o666)
        os.ftruncate(file, SIZE)
        found = mmap.mmap(file, SIZE)
        os.close(file)
        return found
    except OSError:
        return bytearray(SIZE)
switch = opened()
def mutant(number):
    switch[number + 2] = 1
    return switch[0] | switch[1] << 8 == number
"""
HEADER = """
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>
#include <cstdlib>
namespace jaxexp_mutants {
inline unsigned char* opened() {
  static unsigned char nowhere[SIZE];
  const char* name = std::getenv("JAXEXP_MUTANTS");
  const int file = ::open(name == nullptr ? DEFAULT : name, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (file < 0 || ::ftruncate(file, SIZE) != 0) return nowhere;
  void* found = ::mmap(nullptr, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  ::close(file);
  return found == MAP_FAILED ? nowhere : static_cast<unsigned char*>(found);
}
inline bool active(unsigned number) {
  static unsigned char* const map = opened();
  __atomic_store_n(map + number + 2, static_cast<unsigned char>(1), __ATOMIC_RELAXED);
  return number == (__atomic_load_n(map, __ATOMIC_RELAXED) | unsigned{__atomic_load_n(map + 1, __ATOMIC_RELAXED)} << 8);
}
}  // namespace jaxexp_mutants
#define JAXEXP_MUTANT(number) ::jaxexp_mutants::active(number)
"""


def draw(tree: Path, number: int, seed: int) -> list[Mutant]:
    """Each line with something to change is as likely as any other; then each of its changes is."""
    chooser, drawn = random.Random(seed), list[Mutant]()
    python = [path for path in tree.glob("python/jaxexp/**/*.py") if path.name not in ("__init__.py", "_version.py")]
    cpp = [path for folder in ("wire", "runtime", "bindings") for path in tree.glob(f"cpp/{folder}/**/*.cpp")]
    for paths, changes, wanted in (
        (python, python_changes, round(number * SHARE_OF_PYTHON)),
        (cpp, cpp_changes, number - round(number * SHARE_OF_PYTHON)),
    ):
        found = collections.defaultdict[tuple[str, int], list[Mutant]](list)
        for path in paths:
            text = path.read_text()
            for one in changes(text):
                name, line = path.relative_to(tree).as_posix(), text.splitlines()[one["line"] - 1]
                found[name, one["line"]].append({"file": name, "text": line, **one})
        chosen = [chooser.choice(found[place]) for place in chooser.sample(sorted(found), min(3 * wanted, len(found)))]
        chosen = [one for one in chosen if one["old"] != "return " or chooser.random() < RESULTS_KEPT][: 2 * wanted]
        commands = configured(tree) if paths is cpp else {}
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            good = pool.map(lambda one: compiles(tree, one, commands), chosen)  # noqa: B023
            right = [one for one, works in zip(chosen, good, strict=True) if works]
        assert len(right) >= wanted, f"only {len(right)} of {len(chosen)} changes compile"
        drawn += right[:wanted]
    return [{"number": i, **one} for i, one in enumerate(drawn, 1)]


def configured(tree: Path) -> dict[str, Any]:
    """How each C++ file is compiled, by its path. What they include is made."""
    folder = tree / "build" / "mutants" / "check"
    configure(tree, folder, "-DCMAKE_EXPORT_COMPILE_COMMANDS=ON", "-DJAXEXP_WERROR=ON", "-DCMAKE_BUILD_TYPE=Debug")
    headers = [f"cpp/wire/generated/{path.stem}_generated.h" for path in tree.glob("schema/*.fbs")]
    cmake("--build", folder, "--target", *headers)
    return {entry["file"]: entry for entry in json.loads((folder / "compile_commands.json").read_text())}


def configure(tree: Path, folder: Path, *options: str) -> None:
    cmake("-G", "Ninja", "-S", tree, "-B", folder, f"-DPython_EXECUTABLE={sys.executable}", *options)


def cmake(*arguments: object) -> None:
    subprocess.run([native.cmake(), *map(str, arguments)], check=True, stdout=sys.stderr)


def compiles(tree: Path, mutant: Mutant, commands: Mapping[str, Any]) -> bool:
    path = tree / mutant["file"]
    text = "\n".join(mutated(path.read_text().splitlines(), [{"number": 1, **mutant}]))
    if path.suffix == ".py":
        with contextlib.suppress(SyntaxError):
            return bool(compile(text, path.name, "exec"))
        return False
    if str(path) not in commands:  # it is for another platform
        return False
    with tempfile.NamedTemporaryFile("w", suffix=".cpp", dir=path.parent, prefix="mutant_") as file:
        file.write(f"{HEADER.replace('SIZE', str(SIZE)).replace('DEFAULT', 'nullptr')}{text}\n")
        file.flush()
        entry = commands[str(path)]
        command = [file.name if part == entry["file"] else part for part in shlex.split(entry["command"])]
        done = subprocess.run([*command, "-fsyntax-only"], cwd=entry["directory"], stderr=subprocess.DEVNULL)
        return done.returncode == 0


# apply


def mutated(lines: list[str], mutants: Iterable[Mutant]) -> list[str]:
    """With all of these changes, each on the line with its text that is nearest to where that was."""
    result = list(lines)
    for mutant in mutants:
        places = [i for i, line in enumerate(lines) if line == mutant["text"]]
        if not places:
            print(f"not there any more: {mutant['number']}, {mutant['file']}:{mutant['line']}", file=sys.stderr)
            continue
        name = "_mutant" if mutant["file"].endswith(".py") else "JAXEXP_MUTANT"
        new = mutant["new"].replace("$MUTANT", f"{name}({mutant['number']})")
        start, text = mutant["column"], mutant["text"]
        at = min(places, key=lambda i: abs(i + 1 - mutant["line"]))
        result[at] = text[:start] + new + text[start + len(mutant["old"]) :]
    return result


def apply(tree: Path, mutants: list[Mutant], target: Path) -> None:
    subprocess.run(["git", "clone", "--quiet", str(tree), str(target)], check=True)
    listed = subprocess.check_output(["git", "-C", str(tree), "ls-files", "-coz", "--exclude-standard"], text=True)
    for name in filter(None, listed.split("\0")):  # as they are now, committed or not
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        (target / name).unlink(missing_ok=True)
        if (tree / name).exists():
            shutil.copy2(tree / name, target / name, follow_symlinks=False)
    header = target / "cpp" / "mutants.h"
    for name in {mutant["file"] for mutant in mutants}:
        path = target / name
        original = path.read_text().splitlines() if path.exists() else []
        lines = mutated(original, [mutant for mutant in mutants if mutant["file"] == name])
        if path.exists():
            at = original.index(FUTURE) + 1 if FUTURE in original else 0
            own = f'#include "{header}"' if path.suffix == ".cpp" else "from jaxexp._mutants import mutant as _mutant"
            path.write_text("\n".join([*lines[:at], own, *lines[at:]]) + "\n")
    default, size = json.dumps(str(maps(target) / "default")), str(SIZE)
    for path, text in ((target / "python" / "jaxexp" / "_mutants.py", HELPER), (header, f"#pragma once\n{HEADER}")):
        path.write_text(text.replace("DEFAULT", default).replace("SIZE", size))
    (maps(target).parent / "mutants.json").write_text(json.dumps(mutants, indent=1))
    environment(target)


def maps(target: Path) -> Path:
    folder = target / "build" / "mutants" / "maps"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def environment(target: Path) -> None:
    """COPY/.venv: what is in this environment, by hard links, with the copy's jaxexp."""
    ours, theirs = Path(sys.prefix), target / ".venv"
    subprocess.run(["cp", "-al", str(ours), str(theirs)], check=True)
    for path in (theirs / "bin").iterdir():
        if path.is_file() and not path.is_symlink() and (text := path.read_bytes()).startswith(f"#!{ours}/".encode()):
            path.unlink()
            path.write_bytes(text.replace(str(ours).encode(), str(theirs).encode(), 1))
            path.chmod(0o755)
    site = theirs / Path(sysconfig.get_path("purelib")).relative_to(ours)
    shutil.rmtree(site / "jaxexp")
    shutil.copytree(target / "python" / "jaxexp", site / "jaxexp")
    build = maps(target).parent / "cmake"
    configure(target, build, "-DCMAKE_BUILD_TYPE=None", "-DCMAKE_CXX_FLAGS=-O1 -DNDEBUG")
    cmake("--build", build, "--parallel", 2)
    cmake("--install", build, "--prefix", site)


# reach


def read_reach(path: Path) -> Tests:
    """What was written last about each test; of imports, all."""
    tests = Tests()
    for line in path.read_text().splitlines() if path.exists() else []:
        if name := (record := json.loads(line)).get("test"):
            if name == AT_IMPORT and name in tests:
                record["reached"] = sorted({*record["reached"], *tests[name]["reached"]})
            tests[name] = record
    return tests


def run_pytest(
    target: Path, log: Path, options: Iterable[str], tests: Iterable[str] = (), number: int = 0, limit: float = 1e6
) -> int:
    """Runs these tests, or those that are not in the log yet, with one change on or none. Returns the exit status, 1
    if it takes too long.
    """
    shutil.copy(mutants_plugin.__file__, next((target / ".venv").glob("lib/python*/site-packages")))
    variables = {"MUTANTS_LOG": str(log), "MUTANTS_MAPS": str(maps(target))}
    variables["PATH"] = f"{target / '.venv' / 'bin'}{os.pathsep}{os.environ['PATH']}"
    for name, listed in (("MUTANTS_TESTS", [*tests]), ("MUTANTS_DONE", [*read_reach(log)])):
        variables[name] = str(maps(target).parent / f"{name.lower()}.json")
        Path(variables[name]).write_text(json.dumps(listed))
    for path in {maps(target) / "default", *maps(target).iterdir()}:
        mapped(path)[:] = number.to_bytes(2, "little") + bytes(SIZE - 2)
    command = [str(target / ".venv" / "bin" / "pytest"), "-q", "-p", "mutants_plugin", "-p", "no:cacheprovider"]
    environment = {**os.environ, **variables}
    process = subprocess.Popen([*command, *options], cwd=target, env=environment, start_new_session=True, stdout=2)
    try:
        if (status := process.wait(limit)) in STOPPED:
            sys.exit(f"stopped from outside: {status}")
        return status
    except subprocess.TimeoutExpired:
        return 1
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def reach(target: Path, log: Path, jobs: int, options: list[str]) -> None:
    run_pytest(target, log, ["-n", str(jobs), *options])
    tests = read_reach(log)
    reached = {number for test in tests.values() for number in test["reached"]}
    print(f"{len(tests) - 1} tests, {len(reached)} places reached; by importing: {tests[AT_IMPORT]['reached']}")
    print("failed:", *[name for name, test in tests.items() if not test["passed"]], sep="\n  ")


# run


def run(target: Path, log: Path, output: Path, at_most: int, seconds: float) -> None:
    """At last, what has caught something runs with no change on. What fails then does not count."""
    results = json.loads(output.read_text()) if output.exists() else {"unreliable": [], "mutants": {}}
    while True:
        good = {name: test for name, test in read_reach(log).items() if test["passed"]}
        good = {name: test for name, test in good.items() if name not in results["unreliable"]}
        for mutant in json.loads((maps(target).parent / "mutants.json").read_text()):
            if (number := str(mutant["number"])) not in results["mutants"]:
                found = judge(target, mutant["number"], good, at_most, seconds)
                results["mutants"][number] = {**mutant, **found}
                output.write_text(json.dumps(results, indent=1))
                print(f"{number}: {mutant['file']}:{mutant['line']}: {found}", flush=True)
        catching = {found["by"] for found in results["mutants"].values()} - {"", AT_IMPORT}
        unreliable = sorted(catching - set(passing(target, sorted(catching), good)))
        if not unreliable:
            return
        results["unreliable"] += unreliable
        results["mutants"] = {i: found for i, found in results["mutants"].items() if found["by"] not in unreliable}


def judge(target: Path, number: int, good: Tests, at_most: int, seconds: float) -> Mutant:
    # Then others: what is kept, by a fixture, a cache or an import, is reached by the first test that asks for it.
    reaching = {name for name, test in good.items() if number in test["reached"] and name != AT_IMPORT}
    files = {file_of(name) for name in reaching}
    by_all = number in good[AT_IMPORT]["reached"]
    beside = {name for name in good if by_all or file_of(name) in files} - reaching - {AT_IMPORT}
    ran, count = 0, {"of": len(reaching)}
    for names in (reaching, beside):
        while chosen := cheapest(names, good, at_most, seconds):
            culprit = first_failing(target, number, chosen, good)
            ran += chosen.index(culprit) + 1 if culprit in chosen else len(chosen)
            if culprit is None:
                break
            # What fails while tests are collected runs again without the change; a test runs again alone.
            if culprit == AT_IMPORT and first_failing(target, 0, chosen[:1], good) == AT_IMPORT:
                sys.exit("no test can be collected, with no change on")
            if culprit in (AT_IMPORT, chosen[0]) or first_failing(target, number, [culprit], good):
                return {"result": "caught", "by": culprit, "tests": ran, **count}
            names = names - {culprit}  # it fails only after others
    return {"result": "survived" if ran else "not reached", "by": "", "tests": ran, **count}


def file_of(test: str) -> str:
    return test.partition("::")[0]


def cheapest(names: Iterable[str], good: Tests, at_most: int, seconds: float) -> list[str]:
    """From each file the cheapest one, then the next one, up to a number and a time; in all, the cheapest first."""
    by_file = collections.defaultdict[str, list[str]](list)
    for name in sorted(names, key=lambda name: (good[name]["seconds"], name)):
        by_file[file_of(name)].append(name)
    turns = sorted((i, good[name]["seconds"], name) for some in by_file.values() for i, name in enumerate(some))
    chosen = list[str]()
    for _, cost, name in turns[:at_most]:
        seconds -= cost
        if seconds >= 0 or not chosen:
            chosen.append(name)
    return sorted(chosen, key=lambda name: good[name]["seconds"])


def first_failing(target: Path, number: int, names: list[str], good: Tests) -> str | None:
    """The test that fails, crashes or hangs with this change."""
    log = maps(target).parent / "log.jsonl"
    log.write_text("")
    times = [good[name]["seconds"] for name in names]
    options = ["-x", "-n", "0", f"--timeout={60 + 10 * max(times):.0f}", *sorted(set(map(file_of, names)))]
    if run_pytest(target, log, options, names, number, 180 + 5 * sum(times)) in (0, pytest.ExitCode.NO_TESTS_COLLECTED):
        return None
    records = [json.loads(line) for line in log.read_text().splitlines()]
    failed = [record["test"] for record in records if not record.get("passed", True)]
    started = [record["started"] for record in records if "started" in record]
    return [AT_IMPORT, *started[-1:], *failed[:1]][-1]


def passing(target: Path, names: list[str], good: Tests) -> list[str]:
    log = maps(target).parent / "log.jsonl"
    log.write_text("")
    run_pytest(target, log, ["-n", "0", *sorted(set(map(file_of, names)))], names)
    return [name for name, test in read_reach(log).items() if test["passed"]]


def table(before: Path, after: Path) -> int:
    old, new = (json.loads(path.read_text())["mutants"] for path in (before, after))

    def cell(text: str) -> str:
        return f"`{text[:120].replace('|', '&#124;')}`" if text else ""

    print("| | place | change | before | after |\n|---|---|---|---|---|")
    missed = 0
    for number, was in old.items():
        now = new.get(number, {"result": "not run", "by": ""})
        lost = was["result"] == "caught" and now["result"] != "caught"
        missed += lost
        said = [f"{'**' * lost}{found['result']}{'**' * lost} {cell(found['by'])}" for found in (was, now)]
        print(f"| {number} | {was['file']}:{was['line']} | {cell(was['shown'])} | {' | '.join(said)} |")
    for name, results in (("before", old), ("after", new)):
        print(f"\n{name}: {dict(collections.Counter(found['result'] for found in results.values()))}")
    return 1 if missed else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)

    def command(name: str, *paths: str, **numbers: int) -> None:
        made = commands.add_parser(name)
        for path in paths:
            made.add_argument(path, type=lambda text: Path(text).resolve())
        for option, default in numbers.items():
            made.add_argument(f"--{option.replace('_', '-')}", type=int, default=default)

    command("draw", "tree", "mutants", number=60, seed=1)
    command("apply", "tree", "mutants", "copy")
    command("reach", "copy", "log", jobs=2)
    command("run", "copy", "log", "results", at_most=400, seconds=300)
    command("table", "before", "after")
    at = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    given = parser.parse_args(sys.argv[1:at])
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # CMake and Ninja
    match given.command:
        case "draw":
            given.mutants.write_text(json.dumps(draw(given.tree, given.number, given.seed), indent=1))
        case "apply":
            apply(given.tree, json.loads(given.mutants.read_text()), given.copy)
        case "reach":
            reach(given.copy, given.log, given.jobs, sys.argv[at + 1 :])
        case "run":
            run(given.copy, given.log, given.results, given.at_most, given.seconds)
        case "table":
            return table(given.before, given.after)
    return 0


if __name__ == "__main__":
    sys.exit(main())

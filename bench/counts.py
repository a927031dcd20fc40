"""`python -m bench counts`: the instructions of some operations, beside those in bench/counts.json.

Times differ from run to run on a machine that does other work, too. Counts of instructions do not, so a small loss is
seen. They are those of one Python, one JAX and one compiler: elsewhere there is nothing to compare with.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import jax
import jax.export

from bench.cases import CASES

FILE = Path(__file__).with_name("counts.json")
TOLERANCE = 0.03
WANTED = ("tiny", "2,000 parameters", "2,000 sharded", "50 symbolic", "VJP order 3")  # both read and written
CANNOT = 77  # the exit status where nothing can be counted or compared


class CannotCountError(Exception):
    """Why nothing is counted here."""


def surroundings() -> dict[str, str]:
    """What counts depend on."""
    compiler = subprocess.run([_found("g++"), "-dumpfullversion"], capture_output=True, text=True).stdout.strip()
    return {
        "python": platform.python_version(),
        "jax": jax.__version__,
        "g++": compiler,
        "processor": platform.machine(),
        "C library": "-".join(platform.libc_ver()),
    }


def count() -> dict[str, int]:
    """Instructions per run, by operation.

    Raises:
        CannotCountError: valgrind, its headers or a compiler is missing.
    """
    valgrind, compiler = _found("valgrind"), _found("gcc")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        marks = folder / "marks.so"
        source = Path(__file__).with_name("marks.c")
        built = subprocess.run(
            [compiler, "-O2", "-shared", "-fPIC", source, "-o", marks], capture_output=True, text=True
        )
        if built.returncode != 0:
            raise CannotCountError(f"{compiler} cannot compile {source.name}: {built.stderr.strip()}")
        cases = {case.name: case for case in CASES if case.name in WANTED}
        artifacts = {name: case.build().artifact(jax.export, case.vjp_order) for name, case in cases.items()}
        (folder / "artifacts.pickle").write_bytes(pickle.dumps(artifacts))
        options = ["--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={folder / 'out'}"]
        program = [sys.executable, "-m", "bench.counted", str(folder), str(marks)]
        environment = {**os.environ, "PYTHONHASHSEED": "0", "JAX_PLATFORMS": "cpu"}
        done = subprocess.run([valgrind, *options, *program], env=environment, capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(program)}\n{done.stdout[-2000:]}{done.stderr[-5000:]}")
        return dict(_read(path.read_text()) for path in sorted(folder.glob("out.*")))


def _read(profile: str) -> tuple[str, int]:
    """What callgrind wrote for one operation: its name and instructions per run."""
    mark = re.search(r"^desc: Trigger: Client Request: (\d+) (.*)$", profile, re.MULTILINE)
    totals = re.search(r"^totals: (\d+)$", profile, re.MULTILINE)
    assert mark and totals, "callgrind writes both"
    return mark[2], int(totals[1]) // int(mark[1])


def differences(known: Mapping[str, int], found: Mapping[str, int]) -> list[str]:
    """A line for each operation whose count is not what it was."""
    lines = [f"{name}: is not counted any more" for name in known.keys() - found.keys()]
    for name, number in found.items():
        before = known.get(name)
        if before is None:
            lines.append(f"{name}: {number:,} instructions, and none are known")
        elif abs(number - before) > TOLERANCE * before:
            lines.append(f"{name}: {number:,} instructions, {number / before - 1:+.1%} against {before:,}")
    return sorted(lines)


def _found(program: str) -> str:
    path = shutil.which(program)
    if path is None:
        raise CannotCountError(f"there is no {program} here")
    return path


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench counts", description=__doc__)
    parser.add_argument("--update", action="store_true", help="keep the counts of this run")
    options = parser.parse_args(argv)
    try:
        here = surroundings()
        known = json.loads(FILE.read_text()) if FILE.exists() else {"surroundings": here, "counts": {}}
        if not options.update and known["surroundings"] != here:
            raise CannotCountError(f"counts are known for {known['surroundings']}, and this is {here}")
        found = count()
    except CannotCountError as error:
        print(error)
        return CANNOT
    lines = differences(known["counts"], found)
    if options.update:
        FILE.write_text(json.dumps({"surroundings": here, "counts": found}, indent=2) + "\n")
        print(*(lines or ["nothing changed"]), sep="\n")
        return 0
    if lines:
        print(*lines, "`make counts` keeps the new ones, if that is meant.", sep="\n")
    return 1 if lines else 0

"""`python -m bench`: every question of every case, a table on the screen, pyperf's JSON in bench/results/."""

from __future__ import annotations

import argparse
import importlib
import os
import platform
import sys
import traceback
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType

import jax
import jax.export

from bench import disk, render, report, waits, without_python
from bench.cases import CASES, Case
from bench.measure import FULL, QUICK, ZERO, Effort, Reading, Rival, alternate, benchmark
from bench.memory import gibibytes, peak_of
from bench.processes import watched
from bench.program import Program
from bench.question import Question
from bench.questions import QUESTIONS, TOPICS, named
from bench.results import ALONE, ORACLE, PEAK, SUBJECT, Results

FOLDER = Path(__file__).parent / "results"


def arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description=__doc__,
        epilog="`python -m bench compare` compares two results, `python -m bench render` writes docs from one.",
    )
    parser.add_argument("--quick", action="store_true", help="fewer cases and samples: less than a minute")
    names = list(dict.fromkeys([*(q.name for q in QUESTIONS), *TOPICS])), [c.name for c in CASES]
    about_questions = "only this, or all questions of a file, such as weights; repeatable"
    parser.add_argument("--question", action="append", choices=names[0], help=about_questions)
    parser.add_argument("--case", action="append", choices=names[1], help="only this; repeatable")
    parser.add_argument("--subject", default="jaxexp", help="the module to compare, with jax.export's API")
    parser.add_argument("--output", type=Path, help="where the JSON goes (default: bench/results/, named by date)")
    parser.add_argument("--render", action="store_true", help="then write docs/benchmarks.md and the charts from it")
    return parser.parse_args(argv)


def about(subject: str) -> dict[str, str]:
    """What a result depends on."""
    return {
        "subject": subject,
        "versions": f"{report.versions(subject, 'jax', 'jaxlib', 'numpy')}, python {platform.python_version()}",
        "versions of others": report.versions("safetensors", "onnxruntime", "torch", "pypjrt", "xla-cpu-pjrt"),
        "jax": jax.__version__,
        "machine": report.machine(),
        "device": jax.devices()[0].device_kind,
        "load average": report.load(),
        "file system": disk.file_system(),
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
    }


def measure(
    results: Results,
    question: Question,
    case: Case,
    program: Program,
    subject: ModuleType,
    oracle: ModuleType,
    effort: Effort,
) -> None:
    """Fills one cell of `results`, or notes why it stays empty."""
    where = f"{question.name}, {case.name}"
    trial = question.trial(case, program, subject, oracle)
    try:
        wrong = trial.wrong()
    except Exception as error:
        wrong = [f"{type(error).__name__}: {error}"]
    rivals: dict[str, Rival | Reading] = {ORACLE: trial.oracle} if trial.oracle is not None else {}
    if wrong:
        results.mistakes.append(f"{where}: wrong: {', '.join(wrong[:5])}")
    else:
        rivals = {SUBJECT: trial.subject, **rivals, **trial.beside}

    def add(question_name: str, unit: str, samples: dict[str, list[float]]) -> None:
        for rival, values in samples.items():
            place = {"question": question_name, "case": case.name, "rival": rival, "unit": unit}
            results.add(benchmark(f"{question_name}/{case.name}/{rival}", values, place))

    if effort is FULL and waits.rivals_of(question.name, case.name):
        effort = replace(effort, fewest=waits.FEWEST)
    add(question.name, question.unit, alternate(rivals, effort.scaled(question.patience)))
    if question.peak and case.large:
        peaks = {rival: peak(rivals[rival]) for rival in (SUBJECT, ORACLE) if rival in rivals}
        add(
            PEAK + question.name,
            "byte",
            {rival: [max(ZERO, value)] for rival, value in peaks.items() if value is not None},
        )
    alone = {name: trial.alone.get(name, rival) for name, rival in rivals.items()}
    found = {
        name: peak_alone(alone[name])
        for name in waits.rivals_of(question.name, case.name)
        if isinstance(alone.get(name), Reading)
    }
    add(ALONE + question.name, "byte", {name: [value] for name, value in found.items() if value})


def peak(rival: Rival | Reading) -> int | None:
    assert isinstance(rival, Rival)
    if rival.prepare is None:
        return peak_of(rival.run)
    prepared = rival.prepare()
    return peak_of(lambda: rival.run(prepared))


def peak_alone(reading: Reading | Rival) -> int:
    """The most memory that one of the processes of a reading has, in one more sample; 0 if it starts none."""
    assert isinstance(reading, Reading)
    reading.stop()
    with watched() as peaks:
        reading.read()
        reading.stop()
    return max(peaks, default=0)


def main(argv: Sequence[str]) -> int:
    options = arguments(argv)
    without_python.check()
    subject, oracle = importlib.import_module(options.subject), jax.export
    questions = named(options.question) if options.question else list(QUESTIONS)
    if options.quick and not options.question:
        questions = [q for q in questions if q.quick]
    cases = [c for c in CASES if (c.name in options.case if options.case else c.quick or not options.quick)]
    effort = QUICK if options.quick else FULL
    name = f"{datetime.now(UTC):%Y%m%dT%H%M%S}{'-quick' if options.quick else ''}.json"
    output = options.output or FOLDER / name

    results = Results(about(options.subject))
    print(report.header(results.about), flush=True)
    for case in cases:
        asked = [q for q in questions if q.applies(case)]
        if not asked:
            continue
        if case.memory > (present := gibibytes()):
            print(f"left out: {case.name}, which takes {case.memory} GiB of memory; there are {present}", flush=True)
            continue
        try:
            program = case.build()
        except Exception as error:
            traceback.print_exc()
            results.mistakes.append(f"{case.name}: cannot be built: {type(error).__name__}: {error}")
            continue
        for question in asked:
            try:
                measure(results, question, case, program, subject, oracle, effort)
            except Exception as error:
                traceback.print_exc()
                results.mistakes.append(f"{question.name}, {case.name}: failed: {type(error).__name__}: {error}")
            if (cell := results.cell(question.name, case.name)) is not None:
                print(report.row(cell, report.peaks_of(results, cell)), flush=True)
        del program
        jax.clear_caches()
        disk.clear()
        results.dump(output)  # again after each case, so that a crash loses one at most

    print(report.footer(questions))
    print(f"Samples: {os.path.relpath(output)}")
    if options.render and results.cells:
        render.render(output)
    for mistake in results.mistakes:
        print(f"EMPTY: {mistake}", file=sys.stderr)
    return 1 if results.mistakes else 0

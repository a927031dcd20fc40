"""The command line: every question on every case, a table on the screen, and pyperf's JSON in bench/results/."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from datetime import UTC, datetime
from pathlib import Path

# Before JAX starts: eight devices to shard over.
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8"
os.environ["JAX_PLATFORMS"] = "cpu"

import jax.export
import pyperf

from bench import bench_call, bench_deserialize, bench_export, bench_serialize, report
from bench.cases import CASES
from bench.measure import FULL, QUICK, alternate, benchmark

QUESTIONS = (bench_serialize.QUESTION, bench_deserialize.QUESTION, bench_call.QUESTION, bench_export.QUESTION)
RESULTS = Path(__file__).parent / "results"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer cases and samples: less than a minute")
    names = [q.name for q in QUESTIONS], [c.name for c in CASES]
    parser.add_argument("--question", action="append", choices=names[0], help="only this; repeatable")
    parser.add_argument("--case", action="append", choices=names[1], help="only this; repeatable")
    parser.add_argument("--subject", default="jaxexp", help="the module to compare, with jax.export's API")
    parser.add_argument("--output", type=Path, help="where the JSON goes (default: bench/results/, named by date)")
    return parser.parse_args()


def main() -> int:
    options = arguments()
    subject, oracle = importlib.import_module(options.subject), jax.export
    questions = [q for q in QUESTIONS if not options.question or q.name in options.question]
    cases = [c for c in CASES if (c.name in options.case if options.case else c.quick or not options.quick)]
    effort = QUICK if options.quick else FULL
    print(report.header(options.subject), flush=True)

    stack = {f"version of {name}": number for name, number in report.versions(options.subject).items()}
    kept: list[pyperf.Benchmark] = []
    mistakes = []
    for case in cases:
        program = case.build()
        for question in questions:
            trial = question.trial(case, program, subject, oracle)
            wrong = trial.wrong()
            rivals = {"jax.export": trial.oracle, "floor": trial.floor}
            if wrong:
                mistakes.append(f"{question.name}, {case.name}: {', '.join(wrong[:5])}")
            else:
                rivals = {options.subject: trial.subject, **rivals}
            about = {"question": question.name, "case": case.name, **stack}
            results = {
                name: benchmark(f"{question.name}/{case.name}/{name}", samples, about)
                for name, samples in alternate(rivals, effort).items()
            }
            kept += results.values()
            line = report.row(
                question.name, case.name, results.get(options.subject), results["jax.export"], results["floor"]
            )
            print(line, flush=True)

    print(report.footer(questions))
    output = options.output or RESULTS / f"{datetime.now(UTC):%Y%m%dT%H%M%S}{'-quick' if options.quick else ''}.json"
    output.parent.mkdir(parents=True, exist_ok=True)
    pyperf.BenchmarkSuite(kept).dump(str(output), compact=False, replace=True)
    print(f"Samples: {os.path.relpath(output)}")
    for mistake in mistakes:
        print(f"WRONG: {mistake}", file=sys.stderr)
    return 1 if mistakes else 0


if __name__ == "__main__":
    sys.exit(main())

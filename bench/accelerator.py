"""`python -m bench accelerator PLATFORM`: five rows of the page on an accelerator, such as `cuda`.

`cpu` may stand for one, to try the command.

The result becomes docs/benchmarks/accelerator.json, which `python -m bench render` shows. Other files are for trials.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from bench import disk, run, waits

FILE = Path("docs") / "benchmarks" / waits.ACCELERATOR
QUICK = {"64 MiB of weights": "2 small weights", "transformer": "tiny model", "200 parameters": "tiny"}


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench accelerator", description=__doc__)
    parser.add_argument("platform", help="as JAX calls it, such as cuda, rocm or tpu")
    parser.add_argument("--quick", action="store_true", help="smaller cases, to try the command; needs --output")
    parser.add_argument("--output", type=Path, default=disk.ROOT / FILE, help=f"where the JSON goes (default: {FILE})")
    options = parser.parse_args(argv)
    if options.output == disk.ROOT / FILE and (options.quick or options.platform == "cpu"):
        parser.error("a trial is not for the page: name another file with --output")
    asked = [f"--question={question}" for question in dict.fromkeys(row.question for row in waits.ON_ACCELERATOR)]
    cases = dict.fromkeys(QUICK[row.case] if options.quick else row.case for row in waits.ON_ACCELERATOR)
    quick = ["--quick"] if options.quick else []
    return run.main([*asked, *(f"--case={case}" for case in cases), *quick, f"--output={options.output}"])

"""What runs without Python, where somebody built it: $JAXEXP_RUN is jaxexp-run, and $JAXEXP_PJRT_PLUGIN a plugin."""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from bench import disk

RUN, PLUGIN = (os.environ.get(name, "") for name in ("JAXEXP_RUN", "JAXEXP_PJRT_PLUGIN"))
IS_THERE = bool(RUN and PLUGIN)
COMMAND = (RUN, "--plugin", PLUGIN)


def check() -> None:
    """Ends the program if jaxexp-run was built without optimization, as tests do it: its times would say nothing."""
    if IS_THERE:
        done = subprocess.run([RUN, "--version"], check=True, capture_output=True, text=True)
        if "without optimization" in done.stdout:
            sys.exit(
                f"$JAXEXP_RUN is {RUN}, which was built without optimization: docs/guide/run.md says how to build it"
            )


@functools.cache
def overhead() -> Path:
    """Builds overhead.cpp with the libraries that are installed with jaxexp-run."""
    prefix = Path(RUN).resolve().parents[1]
    libraries = [next(prefix.glob(f"lib*/libjaxexp_{name}.a")) for name in ("runtime", "wire")]
    cpp, file = disk.ROOT / "cpp", disk.ROOT / "build" / "bench" / "overhead"
    file.parent.mkdir(parents=True, exist_ok=True)
    headers = [f"-I{prefix / 'include'}", *(f"-isystem{cpp / 'third_party' / name}" for name in ("dlpack", "pjrt"))]
    compiler = shutil.which("c++") or "g++"
    source = disk.ROOT / "bench" / "overhead.cpp"
    command = [compiler, "-std=c++20", "-O2", "-fpermissive", "-w", *headers, source, *libraries, "-pthread", "-ldl"]
    subprocess.run([*command, "-o", file], check=True, capture_output=True)
    return file


def seconds_of_a_call(who: str, artifact: Path, threads: int, seconds: float = 0.3) -> float:
    """Seconds in which one call is made and its first number read, by pointer: the time of all calls, divided by their
    number. `who` is "runtime", or "raw" for hand-written calls of PJRT.
    """

    def rate(calls: int) -> float:
        command = [overhead(), PLUGIN, artifact, who, "view", str(threads), str(calls)]
        environment = {**os.environ, "XLA_FLAGS": "", "TF_CPP_MIN_LOG_LEVEL": "3"}
        done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
        found = re.search(r"([\d.]+) calls/s", done.stdout)
        assert found is not None, done.stdout
        return float(found[1])

    return 1 / rate(max(10, int(rate(10) * seconds / threads)))

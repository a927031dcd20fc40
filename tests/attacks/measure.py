"""Reads each file of this folder and prints what that takes: time, and memory at its peak.

With `--json`, as a line of JSON for each file; `tests/kernel/artifact/test_attacks.py` reads those.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import time
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jaxexp

HERE = Path(__file__).parent
MEGABYTE = 2**20
HIGHEST_CPU_SECONDS = 30  # of all files together, which take less than one: some attacks would take hours


def kilobytes(field: str) -> int:
    """A field of this process's status, on Linux; 0 elsewhere."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return 0
    return next(int(line.split()[1]) for line in lines if line.startswith(field + ":"))


def forget_peak() -> None:
    if sys.platform == "linux":
        Path("/proc/self/clear_refs").write_text("5")


def read(blob: bytes) -> str:
    """The error of reading a file and all of its VJPs; empty where there is none."""
    try:
        exported = jaxexp.deserialize(blob)
        vars(exported)  # its fields are decoded for this
        while exported.has_vjp():
            exported = exported.vjp()
            vars(exported)
    except jaxexp.DeserializationError as error:
        return str(error)
    return ""


def limit_resources() -> None:
    """What leads too far ends in a MemoryError or in the end of this process, instead of in that of the machine."""
    if sys.platform == "linux":
        import resource

        used = kilobytes("VmSize") * 1024
        resource.setrlimit(resource.RLIMIT_AS, (used + 64 * MEGABYTE, resource.RLIM_INFINITY))
        seconds = int(time.process_time()) + HIGHEST_CPU_SECONDS
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    as_json = parser.parse_args().json
    manifest = json.loads((HERE / "manifest.json").read_text())
    blobs = {name: (HERE / f"{name}.bin").read_bytes() for name in manifest}
    read(blobs["dimension_maxima_in_maxima"])  # so that what is loaded once is loaded
    read(blobs["leaves"])
    gc.collect()
    limit_resources()
    if not as_json:
        print("| file | bytes | ms | MB | outcome |\n|---|---|---|---|---|")
    for name, blob in blobs.items():
        forget_peak()
        before = kilobytes("VmRSS")
        found = read(blob)
        megabytes = max(0, kilobytes("VmHWM") - before) / 1024
        # Processor time comes in ticks that are longer than most of these.
        start = time.perf_counter()
        read(blob)
        milliseconds = 1e3 * (time.perf_counter() - start)
        if as_json:
            print(json.dumps({"name": name, "found": found, "ms": milliseconds, "MB": megabytes}), flush=True)
        else:
            outcome = "refused" if found else "loads"
            print(f"| {name} | {len(blob):,} | {milliseconds:.2f} | {megabytes:.1f} | {outcome} |")


if __name__ == "__main__":
    main()

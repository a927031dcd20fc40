"""Reads each file of this folder and prints what that takes: time, and memory at its peak.

With `--json`, as a line of JSON for each file; `tests/kernel/artifact/test_attacks.py` reads those.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")
HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

import jaxexp  # noqa: E402
from kit import costs  # noqa: E402

MEGABYTE = 2**20
HIGHEST_CPU_SECONDS = 30  # of all files together, which take less than one: some attacks would take hours


def read(blob: bytes) -> str:
    """The error of reading a file and all of its VJPs; empty where there is none."""
    try:
        exported = jaxexp.deserialize(blob)
        vars(exported)  # its fields are decoded for this
        while exported.has_vjp():
            exported = exported.vjp()
            vars(exported)
    except jaxexp.errors.DeserializationError as error:
        return str(error)
    return ""


def limit_resources() -> None:
    """What leads too far ends in a MemoryError or in the end of this process, instead of in that of the machine."""
    if sys.platform == "linux":
        import resource

        used = costs.kilobytes("VmSize") * 1024
        resource.setrlimit(resource.RLIMIT_AS, (used + 64 * MEGABYTE, resource.RLIM_INFINITY))
        seconds = int(time.process_time()) + HIGHEST_CPU_SECONDS
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))


def main() -> None:
    blobs = {name: (HERE / f"{name}.bin").read_bytes() for name in json.loads((HERE / "manifest.json").read_text())}
    read(blobs["dimension_maxima_in_maxima"])  # so that what is loaded once is loaded
    read(blobs["leaves"])
    gc.collect()
    limit_resources()
    for name, blob in blobs.items():
        found, _, memory = costs.measured(lambda blob=blob: read(blob))
        # Processor time comes in ticks that are longer than most of these.
        start = time.perf_counter()
        read(blob)
        line = {"name": name, "found": found, "ms": 1e3 * (time.perf_counter() - start), "MB": memory / MEGABYTE}
        if "--json" in sys.argv:
            print(json.dumps(line), flush=True)
        else:
            print(f"{name:34} {line['ms']:8.2f} ms {line['MB']:6.1f} MB  {'refused' if found else 'loads'}")


if __name__ == "__main__":
    main()

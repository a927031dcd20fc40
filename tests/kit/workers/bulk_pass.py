"""A pass that somebody interrupts: ``bulk_pass.py FOLDER JOURNAL RESULT WORKERS``. It says when it has begun."""

import json
import sys
import time

import jaxexp
from jaxexp import _native
from jaxexp._archive import verified
from jaxexp._bulk import crew


def slowly() -> None:
    """From now on there is time to interrupt."""
    verify_files = _native.verify_files

    def verify(paths: list[str], threads: int):
        time.sleep(0.01 * len(paths))
        return verify_files(paths, threads)

    _native.verify_files = verify


if __name__ == "__main__":
    folder, journal, result, workers = sys.argv[1:]
    verified.SHARE_BYTES = 3 * verified.UNIT_BYTES
    slowly()
    print("begun", flush=True)
    executor = crew.processes(int(workers)) if int(workers) else None
    found = jaxexp.verify_many([folder], journal=journal, executor=executor)
    with open(result, "w") as file:
        json.dump({name: str(error) for name, error in found.items()}, file)

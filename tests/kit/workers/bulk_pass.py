"""A pass that somebody interrupts: ``bulk_pass.py FOLDER JOURNAL RESULT WORKERS``. It says when it has begun."""

import json
import signal
import sys
import time

import jaxexp
from jaxexp._fleet.archive import verification
from jaxexp._fleet.engine import engine


def slowly() -> None:
    """From now on there is time to interrupt: what is found is written down one after the other."""
    add = engine.Journal.add

    def add_later(self: engine.Journal, found: list) -> None:
        time.sleep(0.03)
        add(self, found)

    engine.Journal.add = add_later


if __name__ == "__main__":
    folder, path, result, workers = sys.argv[1:]
    signal.signal(signal.SIGINT, signal.default_int_handler)  # shells start what is in the background without
    verification.SHARE_BYTES = 3 * verification.UNIT_BYTES
    slowly()
    print("begun", flush=True)
    executor = engine.processes(int(workers)) if int(workers) else None
    found = jaxexp.verify_many([folder], journal=path, executor=executor)
    with open(result, "w") as file:
        json.dump({name: str(error) for name, error in found.items()}, file)

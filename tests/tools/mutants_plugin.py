"""What tests/tools/mutants.py adds to pytest: runs chosen tests, and writes for each one how long it took, whether it
passed, and which places of the product it reached.

This is in a mapped file: the number of the change that is on, in two bytes, then a byte for each place, which is set
when a process gets there. Each worker of xdist has a file of its own, in $JAXEXP_MUTANTS. Processes without this
variable use a common one; what they reach counts for all tests that run meanwhile.
"""

from __future__ import annotations

import functools
import json
import mmap
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

SIZE = 4096
AT_IMPORT = "(import)"  # in place of a test

if LOG := os.environ.get("MUTANTS_LOG"):
    HERE = Path(os.environ["MUTANTS_MAPS"])
    OWN = HERE / os.environ.get("PYTEST_XDIST_WORKER", "default")
    os.environ["JAXEXP_MUTANTS"] = str(OWN)  # before jaxexp is imported


@functools.cache
def mapped(path: Path) -> mmap.mmap:
    with path.open("a+b") as file:
        file.truncate(SIZE)
        return mmap.mmap(file.fileno(), SIZE)


def take() -> list[int]:
    """What has been reached since the last time. What is in the common file goes to all the others."""
    common, own = mapped(HERE / "default"), mapped(OWN)
    if common is not own and any(hits := common[2:]):
        common[2:] = bytes(SIZE - 2)
        for path in HERE.glob("gw*"):
            mapped(path)[2:] = bytes(map(max, mapped(path)[2:], hits))
    reached = [number for number, hit in enumerate(own[2:]) if hit]
    own[2:] = bytes(SIZE - 2)
    return reached


def note(**what: Any) -> None:
    with open(str(LOG), "a") as file:
        file.write(json.dumps(what) + "\n")


def pytest_collection_finish(session: pytest.Session) -> None:
    if LOG:
        note(test=AT_IMPORT, reached=take(), seconds=0, passed=True)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Those named by a file, in its order; or all that another file does not name."""
    if LOG:
        run, done = (json.loads(Path(os.environ[name]).read_text()) for name in ("MUTANTS_TESTS", "MUTANTS_DONE"))
        place, old = {name: i for i, name in enumerate(run)}, set(done)
        items[:] = [item for item in items if (item.nodeid in place if run else item.nodeid not in old)]
        items.sort(key=lambda item: place.get(item.nodeid, 0))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    if not LOG:
        return (yield)
    take()
    note(started=item.nodeid)
    failed, start = item.session.testsfailed, time.monotonic()
    result = yield
    seconds, passed = round(time.monotonic() - start, 2), item.session.testsfailed == failed
    note(test=item.nodeid, reached=take(), seconds=seconds, passed=passed)
    return result

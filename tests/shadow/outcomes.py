"""A pytest plugin that writes what came of each test as soon as it is known, and can leave tests out.

Environment: SHADOW_OUT is the file of JSON lines to append to; SHADOW_PART="2/5" runs the tests whose names fall into
the third of five parts. Tests that the file knows are not run again, so a run goes on after one that crashed.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

OUT = Path(os.environ["SHADOW_OUT"])
part, parts = map(int, os.environ.get("SHADOW_PART", "0/1").split("/"))


def write(**line: Any) -> None:
    with OUT.open("a") as file:
        file.write(json.dumps(line) + "\n")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    known = {json.loads(line).get("test") for line in OUT.read_text().splitlines()} if OUT.exists() else set()
    left = [i for i in items if i.nodeid not in known and zlib.crc32(i.nodeid.encode()) % parts == part]
    config.hook.pytest_deselected(items=[item for item in items if item not in left])
    items[:] = left


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    write(test=item.nodeid, outcome="crashed")  # unless another line follows
    return (yield)  # type: ignore[return-value]


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "call" or report.outcome != "passed":
        why = str(report.longrepr)[-2000:] if report.failed else ""
        write(test=report.nodeid, outcome=report.outcome, why=why, **dict(report.user_properties))


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.failed:
        write(test=report.nodeid, outcome="not collected", why=str(report.longrepr)[-2000:])

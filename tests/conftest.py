"""How the tests run: on eight CPU devices, with every warning an error, all of them or what gates a commit.

Each has a time limit.
"""

from __future__ import annotations

import collections
import faulthandler
import functools
import os
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

from kit.devices import DEVICES  # before JAX

# isort: split
import jax
import numpy as np
import pytest
import pytest_timeout
from _pytest.faulthandler import fault_handler_stderr_fd_key
from _pytest.junitxml import xml_key

from kit import native
from kit.collected import COLLECTED
from kit.compiled import HARMLESS, forget_if_too_many, keep_compiled_programs
from kit.places import TESTS

keep_compiled_programs()

LONG_SECONDS = 3600  # the limit of a long test, on a busy machine


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--brief",
        metavar="ROOMS",
        help="of the tests in these rooms (folders of tests/, with commas between), the first case of each; of each "
        "other file, one test; nothing that is long, needs the C++ runtime or starts processes",
    )
    parser.addoption(
        "--gate",
        action="store_true",
        help="what gates a commit: nothing that is marked as long, and of what is marked as wide the fixed part",
    )
    parser.addoption(
        "--again",
        action="store_true",
        help="for another pair of Python and JAX: what gates a commit, and all of what is marked as jax, unless it is "
        "long(once=True)",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("filterwarnings", "error")
    # numpy scalars of ml_dtypes overflow on purpose in a few casts of the corpus.
    config.addinivalue_line("filterwarnings", "ignore:invalid value encountered in cast:RuntimeWarning")
    config.addinivalue_line("filterwarnings", HARMLESS)
    if "PYTEST_XDIST_WORKER" not in os.environ:  # neither a worker nor a process of its test
        forget_if_too_many()


@pytest.hookimpl(trylast=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """The JUnit file of a run says which JAX it was; behaviours.py makes columns of that."""
    report = session.config.stash.get(xml_key, None)
    if report is not None:
        report.add_global_property("jax", jax.__version__)


def pytest_report_header() -> str:
    return f"jax {jax.__version__}, {jax.device_count()} {jax.default_backend()} devices"


@pytest.fixture(scope="session", autouse=True)
def _eight_devices() -> None:
    assert len(jax.devices("cpu")) == DEVICES, "a plugin imported JAX before conftest.py asked for eight devices"


@pytest.fixture
def subprocess_env():
    """The environment of a child process that can import the corpus and sees the same devices."""

    def make(**extra: str) -> dict[str, str]:
        path = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
        return {**os.environ, "PYTHONPATH": path, **extra}

    return make


def pytest_timeout_set_timer(item: pytest.Item, settings: pytest_timeout.Settings) -> bool:
    """Instead of the timers of pytest-timeout: a thread without the GIL, which a test may never give back.

    It writes the stacks to the standard error of the run, and ends the process. Then xdist reports the test as failed,
    and goes on in a new process.
    """
    if settings.disable_debugger_detection or not pytest_timeout.is_debugging():
        stderr = item.config.stash[fault_handler_stderr_fd_key]
        faulthandler.dump_traceback_later(settings.timeout, exit=True, file=stderr)
    return True


def pytest_timeout_cancel_timer() -> bool:
    faulthandler.cancel_dump_traceback_later()
    return True


def pytest_enter_pdb() -> None:
    faulthandler.cancel_dump_traceback_later()


@functools.cache
def float16_compiles() -> bool:
    try:
        jax.jit(lambda x: x + x)(np.float16(1))
    except jax.errors.JaxRuntimeError:
        return False
    return True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, pytest.TestReport]:
    """XLA compiles no float16 for processors without F16C, and says so in other words: then nobody can run it."""
    report: pytest.TestReport = yield
    if report.failed and "Failed to materialize symbols" in str(report.longrepr) and not float16_compiles():
        report.outcome, report.longrepr = "skipped", (str(item.path), 0, "XLA compiles no float16 on this processor")
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Before -m and -k choose, so that the fixed part of a wide test is the same whatever else runs."""
    if config.getoption("timeout") is None:
        for item in items:
            if item.get_closest_marker("long"):
                item.add_marker(pytest.mark.timeout(LONG_SECONDS))
    config.stash[COLLECTED] = list(items)
    rooms = config.getoption("--brief")
    if config.getoption("--gate") or rooms is not None:
        keep(gate(items), items, config)
    if config.getoption("--again"):
        keep(gate(items) | set(filter(runs_again, items)), items, config)
    if rooms is not None:
        keep(brief(items, set(rooms.split(","))), items, config)
    cases_in_a_row(items)


def keep(chosen: set[pytest.Item], items: list[pytest.Item], config: pytest.Config) -> None:
    config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
    items[:] = [item for item in items if item in chosen]


def gate(items: list[pytest.Item]) -> set[pytest.Item]:
    """See the option of this name. A wide test's fixed part is every n-th of its cases, from the first one on."""
    chosen, seen = set(), collections.Counter[str]()
    for item in items:
        mark, test = item.get_closest_marker("wide"), item.nodeid.partition("[")[0]
        if not item.get_closest_marker("long") and seen[test] % (mark.kwargs["one_in"] if mark else 1) == 0:
            chosen.add(item)
        seen[test] += 1
    return chosen


def runs_again(item: pytest.Item) -> bool:
    long = item.get_closest_marker("long")
    return bool(item.get_closest_marker("jax")) and not (long and long.kwargs.get("once"))


def cases_in_a_row(items: list[pytest.Item]) -> None:
    """All tests of one corpus case in a row, so that they share what the case exported."""

    def case_of(item: pytest.Item) -> int:
        name = getattr(item, "callspec", None) and item.callspec.params.get("name")
        return order.get(name, -1)

    from kit.corpus import CASES

    order = {name: i for i, name in enumerate(CASES)}
    differential = [i for i, item in enumerate(items) if item.path.name == "test_differential.py"]
    for i, item in zip(differential, sorted((items[i] for i in differential), key=case_of), strict=True):
        items[i] = item


def brief(items: list[pytest.Item], rooms: set[str]) -> set[pytest.Item]:
    """See the option of this name."""
    chosen: dict[tuple[Path, str], pytest.Item] = {}
    for item in items:
        if any(map(item.get_closest_marker, ("cpp", "processes"))):
            continue
        if "subprocess_env" in getattr(item, "fixturenames", ()):
            continue
        inside = item.path.parent.relative_to(TESTS).as_posix() in rooms
        chosen.setdefault((item.path, item.originalname if inside else ""), item)
    return set(chosen.values())


def _built(build: Callable[[], Path]) -> Path:
    try:
        return build()
    except native.UnavailableError as missing:
        pytest.skip(str(missing))


@pytest.fixture(scope="session")
def programs() -> Path:
    """The folder of the small programs of tests/cpp, which link the libraries that are built once."""
    return _built(native.programs)


@pytest.fixture(scope="session")
def sanitized() -> Path:
    """The folder of all programs of tests/cpp, built with AddressSanitizer and UBSan, which takes minutes."""
    return _built(native.sanitized)

"""How the tests run: on eight CPU devices, with every warning an error, all of them or the first of each kind.

Each has a time limit.
"""

from __future__ import annotations

import collections
import faulthandler
import os
from pathlib import Path

from kit.devices import DEVICES  # before JAX

# isort: split
import jax
import pytest
import pytest_timeout
from _pytest.faulthandler import fault_handler_stderr_fd_key
from _pytest.junitxml import xml_key

from kit import native
from kit.compiled import HARMLESS, forget_if_too_many, keep_compiled_programs
from kit.places import TESTS

keep_compiled_programs()

SLOW_SECONDS = 3600  # the limit of a slow test, which may build C++ on a busy machine


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--brief",
        metavar="ROOMS",
        help="of the tests in these rooms (folders of tests/, with commas between), the first case of each; of each "
        "other file, one test; nothing that is slow or starts processes",
    )
    parser.addoption(
        "--sample",
        metavar="PART",
        nargs="?",
        type=int,
        const=-1,
        help="of tests that are marked as sampled, one case in so many as the mark says: the first of these, or those "
        "of a part (0, 1, 2, ...), of which each third one also has the tests that a sample leaves out",
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


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    cases_in_a_row(items)
    if config.getoption("timeout") is None:
        for item in items:
            if item.get_closest_marker("slow"):
                item.add_marker(pytest.mark.timeout(SLOW_SECONDS))
    rooms = config.getoption("--brief")
    part = config.getoption("--sample")
    if part is not None:
        keep(sample(items, part), items, config)
    if rooms is not None:
        keep(brief(items, set(rooms.split(","))), items, config)


def keep(chosen: set[pytest.Item], items: list[pytest.Item], config: pytest.Config) -> None:
    config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
    items[:] = [item for item in items if item in chosen]


def sample(items: list[pytest.Item], part: int = -1) -> set[pytest.Item]:
    """All tests, but of each that is marked as sampled one case in so many, which differ from part to part.

    Args:
        items: the tests.
        part: a number from 0 on. In -1 are the first cases, and no test that samples leave out.
    """
    chosen, seen = set(), collections.Counter[str]()
    for item in items:
        mark, test = item.get_closest_marker("sampled"), item.nodeid.partition("[")[0]
        one_in = mark.kwargs["one_in"] if mark else 1
        if (seen[test] - max(part, 0)) % one_in == 0 if one_in else part >= 0 and part % 3 == 0:
            chosen.add(item)
        seen[test] += 1
    return chosen


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
        if any(map(item.get_closest_marker, ("slow", "once", "processes"))):
            continue
        if "subprocess_env" in getattr(item, "fixturenames", ()):
            continue
        inside = item.path.parent.relative_to(TESTS).as_posix() in rooms
        chosen.setdefault((item.path, item.originalname if inside else ""), item)
    return set(chosen.values())


@pytest.fixture(scope="session")
def programs() -> Path:
    """The folder of the C++ tests' programs, built with AddressSanitizer and UBSan."""
    try:
        return native.build()
    except native.UnavailableError as missing:
        pytest.skip(str(missing))

"""Sets JAX up before anything imports it: CPU only, eight devices, quick compilation; every warning is an error."""

import os
import sys
from pathlib import Path

DEVICES = 8

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = " ".join(
    [
        os.environ.get("XLA_FLAGS", ""),
        f"--xla_force_host_platform_device_count={DEVICES}",
        # Most tests run what they compile once.
        "--xla_backend_optimization_level=0",
        "--xla_llvm_disable_expensive_passes=true",
    ]
).strip()

TESTS = Path(__file__).parent
if str(TESTS) not in sys.path:  # corpus.py and its neighbours are imported by name, whatever the import mode
    sys.path.insert(0, str(TESTS))

import jax  # noqa: E402
import pytest  # noqa: E402
from _pytest.junitxml import xml_key  # noqa: E402


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("filterwarnings", "error")
    # numpy scalars of ml_dtypes overflow on purpose in a few casts of the corpus.
    config.addinivalue_line("filterwarnings", "ignore:invalid value encountered in cast:RuntimeWarning")


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
    assert jax.device_count() == DEVICES, "another plugin imported JAX before conftest.py could ask for eight devices"


@pytest.fixture
def subprocess_env():
    """The environment of a child process that can import the corpus and sees the same devices."""

    def make(**extra: str) -> dict[str, str]:
        path = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
        return {**os.environ, "PYTHONPATH": path, **extra}

    return make


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All tests of one corpus case in a row, so that they share what the case exported."""

    def case_of(item: pytest.Item) -> int:
        name = getattr(item, "callspec", None) and item.callspec.params.get("name")
        return order.get(name, -1)

    from corpus import CASES

    order = {name: i for i, name in enumerate(CASES)}
    differential = [i for i, item in enumerate(items) if item.path.name == "test_differential.py"]
    for i, item in zip(differential, sorted((items[i] for i in differential), key=case_of), strict=True):
        items[i] = item

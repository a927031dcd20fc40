"""All golden artifacts run as they are, without Python, JAX and jaxlib, on both plugins for the CPU that PyPI has."""

from __future__ import annotations

import collections
import functools
from collections.abc import Callable
from pathlib import Path

import pytest

import jaxexp
from kit import documentation, native, recorded, runtime
from kit.runtime_values import assert_alike

PAGE = documentation.DOCS / "guide" / "run.md"
MARKERS = ("<!-- golden artifacts: start -->", "<!-- golden artifacts: end -->")
PLUGINS: dict[str, Callable[[], Path]] = {
    "xla-cpu-pjrt 0.0.1": runtime.plugin,
    "lammps-jax-pjrt-cpu 0.11.2": runtime.newer_plugin,
}


@functools.cache
def needed(find: Callable[[], Path]) -> Path:
    try:
        return find()
    except native.UnavailableError as missing:
        pytest.skip(str(missing))


@pytest.mark.slow(reason="builds the C++ runtime, which takes minutes, and starts hundreds of processes")
@pytest.mark.once(reason="what is built in C++ is the same for every pair of Python and JAX")
@pytest.mark.parametrize("name", recorded.ARTIFACTS)
@pytest.mark.parametrize("plugin_name", PLUGINS)
def test_golden_artifacts_run(plugin_name: str, name: str, installed: Path, tmp_path: Path) -> None:
    plugin, lapack = needed(PLUGINS[plugin_name]), needed(runtime.lapack)
    arguments, expected = recorded.recorded(name)
    artifact = recorded.path_of(name)
    dtypes = {value.path: value.dtype for value in jaxexp.inspect(artifact).results}
    how = {"devices": 8, "plugin_file": plugin, "lapack_file": lapack}
    assert_alike(runtime.results(artifact, arguments, dtypes, folder=tmp_path, **how), expected)


def test_the_table_of_the_page() -> None:
    """It says of every kind what the test above shows of each of its artifacts."""
    if not PAGE.exists():
        pytest.skip("the documentation is not beside the tests")
    before, start, rest = PAGE.read_text(encoding="utf-8").partition(MARKERS[0])
    found, end, _ = rest.partition(MARKERS[1])
    assert before and start and end
    assert found.strip() == table()


def table() -> str:
    counts = collections.Counter(recorded.ARTIFACTS.values())
    rows = [("golden artifacts", "", *PLUGINS), ("---", "--:", *["---"] * len(PLUGINS))]
    rows += [(kind, str(count), *["all equal"] * len(PLUGINS)) for kind, count in counts.items()]
    rows += [("refused", "0", *["0"] * len(PLUGINS))]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def test_no_golden_artifact_is_left_out() -> None:
    assert {recorded.path_of(name) for name in recorded.ARTIFACTS} == set(recorded.GOLDEN.rglob("*.bin"))

"""Passes on the executors of real engines, of which nothing is known but `concurrent.futures`: Dask's and Parsl's."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

import pytest

import jaxexp
from jaxexp._fleet.archive import verification as of_archives
from kit import bulk

pytestmark = [
    # The engines' own threads, event loops and processes, not ours.
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::RuntimeWarning"),
]


@contextlib.contextmanager
def parsl_executor(folder: Path) -> Generator[Executor]:
    parsl = pytest.importorskip("parsl", reason="Parsl is not installed")
    from parsl.concurrent import ParslPoolExecutor

    threads = parsl.executors.ThreadPoolExecutor(max_threads=2)
    config = parsl.Config(executors=[threads], run_dir=str(folder / "parsl"), usage_tracking=0)
    with ParslPoolExecutor(config) as executor:
        yield executor


@contextlib.contextmanager
def dask_executor(folder: Path) -> Generator[Executor]:
    distributed = pytest.importorskip("distributed", reason="Dask is not installed")
    options = {"dashboard_address": ":0", "memory_limit": 0, "processes": False, "threads_per_worker": 1}
    with (
        distributed.LocalCluster(n_workers=1, **options) as cluster,
        distributed.Client(cluster, set_as_default=False) as client,
    ):
        yield client.get_executor()


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return bulk.folder_of(tmp_path_factory.mktemp("bulk") / "in", 60)


@pytest.fixture(autouse=True)
def _small_shares(monkeypatch) -> None:
    monkeypatch.setattr(of_archives, "SHARE_BYTES", 3 * of_archives.UNIT_BYTES)


@pytest.mark.parametrize("engine", [dask_executor, parsl_executor])
def test_an_engine(engine: Any, folder: Path, tmp_path: Path) -> None:
    expected = bulk.said(jaxexp.verify_many([folder]))
    with engine(tmp_path) as executor:
        for _ in range(2):
            found = jaxexp.verify_many([folder], executor=executor, journal=tmp_path / "journal")
            assert bulk.said(found) == expected
        assert jaxexp.Archive.open(folder / "fleet.zip").verify(executor=executor) == {}

"""Passes on the executors of real engines, of which nothing is known but `concurrent.futures`: Dask's and Parsl's."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Generator
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

import pytest

import jaxexp
from jaxexp._cli import start
from jaxexp._errors import WorkerError
from jaxexp._fleet.archive import verification as of_archives
from kit import bulk

pytestmark = [
    # The engines' own threads, event loops and processes, not ours.
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::RuntimeWarning"),
]
on_a_cluster = pytest.mark.long(
    promise="passes on a cluster find the same, whoever dies", sibling="test_clusters.py::test_an_engine"
)


@contextlib.contextmanager
def dask(workers: int = 1, *, processes: bool = False) -> Generator[Any]:
    distributed = pytest.importorskip("distributed", reason="Dask is not installed")
    options = {"dashboard_address": ":0", "memory_limit": 0, "processes": processes, "threads_per_worker": 1}
    with (
        distributed.LocalCluster(n_workers=workers, **options) as cluster,
        distributed.Client(cluster, set_as_default=False) as client,
    ):
        yield client


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
    with dask() as client:
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


@on_a_cluster
def test_a_cluster_without_workers(folder, tmp_path, capsys, monkeypatch) -> None:
    """What is done stays done, and the same call goes on from there. Workers may come later."""
    journal, single = tmp_path / "journal", folder / "000.jaxexp"
    expected = bulk.said(jaxexp.verify_many([folder]))
    with dask(processes=True) as client:
        client.cluster.scale(0)
        while client.nthreads():
            time.sleep(0.05)
        executor = client.get_executor()
        assert jaxexp.verify_many([single], journal=journal) == {}
        message = r"no worker has finished anything for 0\.5 seconds"
        with pytest.raises(WorkerError, match=message):
            jaxexp.verify_many([single, folder], executor=executor, journal=journal, timeout=0.5)
        assert jaxexp.verify_many([single], executor=executor, journal=journal, timeout=0.5) == {}
        with pytest.raises(WorkerError, match=message):
            jaxexp.Archive.open(folder / "fleet.zip").verify(executor=executor, timeout=0.5)
        (tmp_path / "my_cluster.py").write_text(
            "import distributed\n\n\ndef executor():\n"
            f"    return distributed.Client({client.scheduler.address!r}, set_as_default=False).get_executor()\n"
        )
        monkeypatch.syspath_prepend(tmp_path)
        options = ["--executor", "my_cluster:executor", "--timeout", "0.5", str(folder)]
        assert start.main(["compat", "--journal", str(tmp_path / "other"), *options]) == 75
        err = capsys.readouterr().err
        assert err.startswith("jaxexp: compat: no worker has finished anything for 0.5 seconds")
        assert err.endswith("The journal has what is done: run the same command again to go on\n")
        adding = threading.Timer(1.5, client.cluster.scale, [1])
        adding.start()
        assert bulk.said(jaxexp.verify_many([folder], executor=executor, timeout=60)) == expected
        adding.join()
        assert start.main(["verify", "--executor", "my_cluster:executor", str(folder / "000.jaxexp")]) == 0


@on_a_cluster
@pytest.mark.parametrize("what", ["workers", "cluster", "client"])
def test_what_is_closed(what: str, folder, tmp_path) -> None:
    """While the pass runs."""
    journal = tmp_path / "journal"
    with dask(2, processes=True) as client:
        executor, taken = client.get_executor(), []
        close = {"workers": lambda: client.cluster.scale(0), "cluster": client.cluster.close, "client": client.close}

        def submit_and_close(*args: Any, submit: Any = executor.submit) -> Any:
            taken.append(submit(*args))
            if len(taken) == 5:
                close[what]()
            return taken[-1]

        executor.submit = submit_and_close
        with pytest.raises(WorkerError):
            jaxexp.verify_many([folder], executor=executor, journal=journal, timeout=2)
    assert bulk.said(jaxexp.verify_many([folder], journal=journal)) == bulk.said(jaxexp.verify_many([folder]))

"""Passes on a Dask cluster of two worker processes on this machine, of which some are killed."""

from __future__ import annotations

import importlib
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import jaxexp
from jaxexp._cli import start
from jaxexp._fleet.archive import verification as of_archives
from kit import bulk
from kit.places import TESTS

distributed = pytest.importorskip("distributed", reason="Dask is not installed")
pytestmark = [
    pytest.mark.once(reason="files are verified without JAX"),
    pytest.mark.processes(reason="a cluster of two"),
    # Dask's own threads and event loops, not ours.
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::RuntimeWarning"),
]


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("PYTHONPATH", os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])]))
        # Dask would try what killed a worker on three others; that is Dask's to test, and takes a minute.
        config = importlib.import_module("dask").config
        config.set({"distributed.scheduler.allowed-failures": 0})
        cluster = distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None, memory_limit=0
        )
        with cluster, distributed.Client(cluster) as client:
            yield client


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return bulk.folder_of(tmp_path_factory.mktemp("bulk") / "in", 60)


@pytest.fixture(autouse=True)
def _small_shares(monkeypatch) -> None:
    monkeypatch.setattr(of_archives, "SHARE_BYTES", 3 * of_archives.UNIT_BYTES)


def test_two_workers(client, folder, tmp_path) -> None:
    journal = tmp_path / "journal"
    for _ in range(2):
        found = jaxexp.verify_many([folder], executor=client.get_executor(), journal=journal)
        assert bulk.said(found) == bulk.said(jaxexp.verify_many([folder]))
    archive = jaxexp.Archive.open(folder / "fleet.zip")
    assert archive.verify(executor=client.get_executor()) == {}


def test_a_worker_that_is_killed(client, folder) -> None:
    """In the middle of the pass."""
    expected, killed = bulk.said(jaxexp.verify_many([folder])), threading.Event()
    executor = client.get_executor()
    submit, taken = executor.submit, 0

    def submit_and_kill(fn, *args):
        nonlocal taken
        taken += 1
        future = submit(fn, *args)
        if taken == 10:
            future.add_done_callback(lambda _: threading.Thread(target=kill_one).start())
        return future

    def kill_one() -> None:
        os.kill(next(iter(client.run(os.getpid).values())), signal.SIGKILL)
        killed.set()

    executor.submit = submit_and_kill
    assert bulk.said(jaxexp.verify_many([folder], executor=executor)) == expected
    assert killed.wait(60)
    assert taken >= 20


def test_what_kills_each_worker_is_named(client, folder) -> None:
    class Poisoned(distributed.WorkerPlugin):
        idempotent = True

        def setup(self, worker) -> None:
            bulk.dies_of_poison()

    expected = bulk.said(jaxexp.verify_many([folder]))
    poison = folder / f"{bulk.POISON}.jaxexp"
    poison.write_bytes((folder / "000.jaxexp").read_bytes())
    client.register_plugin(Poisoned(), name="poisoned")
    try:
        found = jaxexp.verify_many([folder], executor=client.get_executor())
    finally:
        client.unregister_worker_plugin("poisoned")
        poison.unlink()
    assert "KilledWorker" in str(found.pop(str(poison)))
    assert bulk.said(found) == expected


def test_on_the_command_line(client, folder, capsys) -> None:
    address = client.scheduler.address
    assert start.main(["verify", "--quiet", "--dask", address, str(folder)]) == 1
    out, err = capsys.readouterr()
    assert "damaged.jaxexp" in out
    assert err == "jaxexp: 1 of 68 artifacts is not whole\n"


def test_no_cluster(capsys, monkeypatch, folder) -> None:
    monkeypatch.setitem(__import__("sys").modules, "distributed", None)
    assert start.main(["verify", "--dask", "tcp://127.0.0.1:1", str(folder)]) == 1
    assert capsys.readouterr().err.endswith("needs Dask: pip install 'jaxexp[dask]'\n")

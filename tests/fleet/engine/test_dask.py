"""Passes on a Dask cluster of two worker processes on this machine, of which some are killed."""

from __future__ import annotations

import contextlib
import importlib
import json
import logging.handlers
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest

import jaxexp
from jaxexp._cli import start
from jaxexp._errors import WorkerError
from jaxexp._fleet.archive import verification as of_archives
from kit import bulk
from kit.command_line import started
from kit.places import TESTS

distributed = pytest.importorskip("distributed", reason="Dask is not installed")
pytestmark = [
    # Dask's own threads and event loops, not ours.
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::RuntimeWarning"),
]
on_a_cluster = pytest.mark.long(
    promise="passes on a Dask cluster find the same, whoever dies",
    sibling="test_dask.py::test_a_cluster_in_this_process",
)


def cluster_of(workers: int, **options: Any) -> Any:
    options = {"processes": True, "threads_per_worker": 1, **options}
    return distributed.LocalCluster(n_workers=workers, dashboard_address=":0", memory_limit=0, **options)


def at_share(executor: Any, number: int, act: Callable[[Any], object]) -> list[Any]:
    """Calls `act` with the future of one share, once the executor has taken it. Returns the futures of all shares."""
    submit, taken = executor.submit, []

    def submit_and_act(fn: Any, *args: Any) -> Any:
        taken.append(submit(fn, *args))
        if len(taken) == number:
            act(taken[-1])
        return taken[-1]

    executor.submit = submit_and_act
    return taken


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("PYTHONPATH", os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])]))
        # Dask would try what killed a worker on three others; that is Dask's to test, and takes a minute.
        config = importlib.import_module("dask").config
        config.set({"distributed.scheduler.allowed-failures": 0})
        with cluster_of(2) as cluster, distributed.Client(cluster) as client:
            yield client


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return bulk.folder_of(tmp_path_factory.mktemp("bulk") / "in", 60)


@pytest.fixture(autouse=True)
def _small_shares(monkeypatch) -> None:
    monkeypatch.setattr(of_archives, "SHARE_BYTES", 3 * of_archives.UNIT_BYTES)


def test_a_cluster_in_this_process(folder, tmp_path) -> None:
    with cluster_of(1, processes=False) as cluster, distributed.Client(cluster, set_as_default=False) as client:
        for _ in range(2):
            found = jaxexp.verify_many([folder], executor=client.get_executor(), journal=tmp_path / "journal")
            assert bulk.said(found) == bulk.said(jaxexp.verify_many([folder]))
        assert jaxexp.Archive.open(folder / "fleet.zip").verify(executor=client.get_executor()) == {}


@on_a_cluster
def test_a_worker_that_is_killed(client, folder) -> None:
    """In the middle of the pass."""
    expected, killed = bulk.said(jaxexp.verify_many([folder])), threading.Event()
    executor = client.get_executor()

    def kill_one() -> None:
        os.kill(next(iter(client.run(os.getpid).values())), signal.SIGKILL)
        killed.set()

    taken = at_share(
        executor, 10, lambda future: future.add_done_callback(lambda _: threading.Thread(target=kill_one).start())
    )
    assert bulk.said(jaxexp.verify_many([folder], executor=executor)) == expected
    assert killed.wait(60)
    assert len(taken) >= 20


@on_a_cluster
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


@on_a_cluster
def test_a_check_on_the_command_line(client, tmp_path, capsys) -> None:
    """Workers import JAX, and read arrays beside an artifact."""
    import jax

    exported = jaxexp.export(jax.jit(lambda x: x + 1))(jax.ShapeDtypeStruct((200, 200), "float32"))
    exported.save(tmp_path / "a.jaxexp", cases=[(numpy.ones((200, 200), numpy.float32),)])
    exported.save(tmp_path / "b.jaxexp")
    files = [str(tmp_path / f"{name}.jaxexp") for name in "ab"]
    options = ["--dask", client.scheduler.address, "--journal", str(tmp_path / "journal")]
    for _ in range(2):
        assert start.main(["check", *options, *files]) == 1
        assert capsys.readouterr().out.splitlines() == [
            f"{files[0]}: 1 of 1 case as recorded",
            "  equal    0: 1 result with the same bits",
            f"{files[1]}: no cases",
            "",
            "2 artifacts: 1 equal, 1 no cases",
        ]


def test_no_cluster(capsys, monkeypatch, folder) -> None:
    monkeypatch.setitem(__import__("sys").modules, "distributed", None)
    assert start.main(["verify", "--dask", "tcp://127.0.0.1:1", str(folder)]) == 1
    assert capsys.readouterr().err.endswith("needs Dask: pip install distributed\n")


def test_no_scheduler(capsys, folder, tmp_path) -> None:
    """One may be there later."""
    address = "tcp://127.0.0.1:1"
    paths = {"migrate": [folder, tmp_path / "new"], "pack": [tmp_path / "new.zip", folder]}
    for command in ("verify", "digest", "check", "compat", "migrate", "pack"):
        with importlib.import_module("dask").config.set({"distributed.comm.timeouts.connect": "0.2s"}):
            assert start.main([command, "--dask", address, *map(str, paths.get(command, [folder]))]) == 75
        assert capsys.readouterr().err == f"jaxexp: no scheduler answers at {address}: start it, and try again\n"
    assert not any(tmp_path.iterdir())


@pytest.mark.timeout(100)
@pytest.mark.processes(reason="one has to end at once")
def test_what_is_no_address(subprocess_env) -> None:
    """The process ends at once: Dask's client waits for a minute if it fails while it begins."""
    code = """if True:
        import sys
        from jaxexp._cli import start
        for address in ("foo://x", "x", "tls://127.0.0.1:1"):
            print(start.main(["verify", "--dask", address, sys.argv[1]]))
    """
    done = started(code, __file__, env=subprocess_env())
    assert done.stdout.split() == ["2"] * 3
    lines = done.stderr.splitlines()
    assert len(lines) == 3
    for address, line in zip(("foo://x", "x", "tls://127.0.0.1:1"), lines, strict=True):
        assert line.startswith(f"jaxexp: --dask '{address}': ")
        assert "expected a scheduler, as in tcp://scheduler:8786" in line


# --- no workers -----------------------------------------------------------------------------------------------------


@pytest.fixture
def lonely(client) -> Iterator[Any]:
    """A cluster whose workers are gone, and a client of it."""
    with cluster_of(1) as cluster, distributed.Client(cluster, set_as_default=False) as other:
        cluster.scale(0)
        while other.nthreads():
            time.sleep(0.05)
        yield cluster, other


@on_a_cluster
def test_a_cluster_without_workers(lonely, folder, tmp_path, capsys) -> None:
    """What is done stays done, and the same call goes on from there."""
    _, other = lonely
    journal, single = tmp_path / "journal", folder / "000.jaxexp"
    assert jaxexp.verify_many([single], journal=journal) == {}
    message = "the executor has had no workers for 0.5 seconds. Start some"
    with pytest.raises(WorkerError, match=message):
        jaxexp.verify_many([single, folder], executor=other.get_executor(), journal=journal, wait_for_workers=0.5)
    assert jaxexp.verify_many([single], executor=other.get_executor(), journal=journal, wait_for_workers=0.5) == {}
    with pytest.raises(WorkerError, match=message):
        jaxexp.Archive.open(folder / "fleet.zip").verify(executor=other.get_executor(), wait_for_workers=0.5)
    address = other.scheduler.address
    options = ["--dask", address, "--wait-for-workers", "0.5", str(folder)]
    assert start.main(["verify", *options]) == 75
    err = capsys.readouterr().err
    assert message in err and "or wait longer (--wait-for-workers). Nothing that was done is kept; --journal" in err
    assert start.main(["compat", "--journal", str(tmp_path / "other"), *options]) == 75
    err = capsys.readouterr().err
    assert err.startswith("jaxexp: compat: the executor has had no workers")
    assert err.endswith("The journal has what is done: run the same command again to go on\n")


@on_a_cluster
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_scheduler_that_is_gone(how: int, folder, tmp_path, capfd, monkeypatch) -> None:
    """Killed or hanging, in the middle of the pass. Dask itself would wait whenever it is asked, for half a minute or
    for ever, and log that it gives up.
    """
    command = [sys.executable, "-m", "dask", "scheduler", "--port", "0", "--no-dashboard", "--scheduler-file"]
    with subprocess.Popen([*command, tmp_path / "where"], stderr=subprocess.DEVNULL) as scheduler:
        while not (tmp_path / "where").exists() or not (tmp_path / "where").read_text():
            time.sleep(0.1)
        address = json.loads((tmp_path / "where").read_text())["address"]
        submit = distributed.cfexecutor.ClientExecutor.submit

        def submit_and_kill(self, fn: Any, *args: Any) -> Any:
            taken = submit(self, fn, *args)
            scheduler.send_signal(how)
            return taken

        monkeypatch.setattr(distributed.cfexecutor.ClientExecutor, "submit", submit_and_kill)
        logged = logging.handlers.BufferingHandler(1000)
        loggers = [logging.getLogger(f"distributed.{name}") for name in ("client", "batched")]
        for logger in loggers:
            logger.addHandler(logged)
        began = time.monotonic()
        try:
            assert start.main(["verify", "--quiet", "--dask", address, "--wait-for-workers", "3", str(folder)]) == 75
        finally:
            scheduler.kill()
        assert time.monotonic() - began < 20
    err = capfd.readouterr().err
    assert "the cluster is gone: its scheduler does not answer" in err
    assert err.count("\n") == 1
    for logger in loggers:
        logger.removeHandler(logged)
    assert not logged.buffer


@pytest.mark.timeout(120)
def test_no_scheduler_at_the_address(folder, capsys) -> None:
    """Nobody, for as long as the user waits; or another server."""

    def answer(server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = server.accept()
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                connection.close()

    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"tcp://127.0.0.1:{server.getsockname()[1]}"
        threading.Thread(target=answer, args=(server,), daemon=True).start()
        assert start.main(["verify", "--dask", address, "--wait-for-workers", "1", str(folder)]) != 0
        err = capsys.readouterr().err
        assert "not expected here" not in err
        assert address in err
        server.shutdown(socket.SHUT_RDWR)
    began = time.monotonic()
    assert start.main(["verify", "--dask", address, "--wait-for-workers", "1", str(folder)]) == 75
    assert capsys.readouterr().err == f"jaxexp: no scheduler answers at {address}: start it, and try again\n"
    assert time.monotonic() - began < 15


@on_a_cluster
def test_workers_that_come_later(lonely, folder) -> None:
    """As in a cluster that grows on demand."""
    cluster, other = lonely
    adding = threading.Timer(1.5, cluster.scale, [1])
    adding.start()
    found = jaxexp.verify_many([folder], executor=other.get_executor(), wait_for_workers=60)
    assert bulk.said(found) == bulk.said(jaxexp.verify_many([folder]))
    adding.join()


@on_a_cluster
def test_workers_that_all_die(folder, tmp_path) -> None:
    """In the middle of the pass, and nothing starts others."""
    journal = tmp_path / "journal"
    with cluster_of(2) as cluster, distributed.Client(cluster, set_as_default=False) as other:
        executor = other.get_executor()
        at_share(executor, 5, lambda _: cluster.scale(0))
        with pytest.raises(WorkerError, match=r"no workers for 0\.5 seconds"):
            jaxexp.verify_many([folder], executor=executor, journal=journal, wait_for_workers=0.5)
    assert bulk.said(jaxexp.verify_many([folder], journal=journal)) == bulk.said(jaxexp.verify_many([folder]))


@on_a_cluster
@pytest.mark.parametrize("what", ["cluster", "client"])
def test_what_is_closed(what: str, folder) -> None:
    """While the pass runs."""
    with cluster_of(1) as cluster, distributed.Client(cluster, set_as_default=False) as other:
        executor = other.get_executor()
        at_share(executor, 5, lambda _: (cluster if what == "cluster" else other).close())
        with pytest.raises(WorkerError, match="the cluster is gone"):
            jaxexp.verify_many([folder], executor=executor, wait_for_workers=0.5)

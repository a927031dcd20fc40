"""Passes on a Dask cluster on this machine, whose workers or scheduler may be gone."""

from __future__ import annotations

import contextlib
import importlib
import socket
import threading
import time
from pathlib import Path
from typing import Any

import jax
import numpy
import pytest

import jaxexp
from jaxexp._cli import start
from jaxexp._errors import WorkerError
from jaxexp._fleet.archive import verification as of_archives
from kit import bulk
from kit.command_line import started

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


def test_no_cluster(capsys, monkeypatch, folder) -> None:
    monkeypatch.setitem(__import__("sys").modules, "distributed", None)
    assert start.main(["verify", "--dask", "tcp://127.0.0.1:1", str(folder)]) == 1
    assert capsys.readouterr().err.endswith("needs Dask: pip install 'jaxexp[dask]'\n")


@pytest.mark.timeout(100)
@pytest.mark.processes(reason="one has to end at once")
def test_what_is_no_address(subprocess_env) -> None:
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


@on_a_cluster
def test_a_cluster_without_workers(folder, tmp_path, capsys) -> None:
    """What is done stays done, and the same call goes on from there. Workers may come later."""
    journal, single = tmp_path / "journal", folder / "000.jaxexp"
    expected = bulk.said(jaxexp.verify_many([folder]))
    with cluster_of(1) as cluster, distributed.Client(cluster, set_as_default=False) as lonely:
        cluster.scale(0)
        while lonely.nthreads():
            time.sleep(0.05)
        executor = lonely.get_executor()
        assert jaxexp.verify_many([single], journal=journal) == {}
        message = "the executor has had no workers for 0.5 seconds. Start some"
        with pytest.raises(WorkerError, match=message):
            jaxexp.verify_many([single, folder], executor=executor, journal=journal, wait_for_workers=0.5)
        assert jaxexp.verify_many([single], executor=executor, journal=journal, wait_for_workers=0.5) == {}
        with pytest.raises(WorkerError, match=message):
            jaxexp.Archive.open(folder / "fleet.zip").verify(executor=executor, wait_for_workers=0.5)
        options = ["--dask", lonely.scheduler.address, "--wait-for-workers", "0.5", str(folder)]
        assert start.main(["compat", "--journal", str(tmp_path / "other"), *options]) == 75
        err = capsys.readouterr().err
        assert err.startswith("jaxexp: compat: the executor has had no workers")
        assert err.endswith("The journal has what is done: run the same command again to go on\n")
        adding = threading.Timer(1.5, cluster.scale, [1])
        adding.start()
        assert bulk.said(jaxexp.verify_many([folder], executor=executor, wait_for_workers=60)) == expected
        adding.join()
        x = numpy.ones((200, 200), numpy.float32)  # of which the worker reads a file
        jaxexp.export(jax.jit(lambda x: x + 1))(x).save(tmp_path / "a.jaxexp", cases=[(x,)])
        assert start.main(["check", "--dask", lonely.scheduler.address, str(tmp_path / "a.jaxexp")]) == 0
        assert "1 of 1 case as recorded" in capsys.readouterr().out


@pytest.mark.timeout(120)
def test_no_scheduler(folder, tmp_path, capsys) -> None:
    """Another server at the address, or nobody, which may change: for as long as the user waits."""

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
    paths = {"migrate": [folder, tmp_path / "new"], "pack": [tmp_path / "new.zip", folder]}
    for command in ("verify", "digest", "check", "compat", "migrate", "pack"):
        with importlib.import_module("dask").config.set({"distributed.comm.timeouts.connect": "0.2s"}):
            assert start.main([command, "--dask", address, *map(str, paths.get(command, [folder]))]) == 75
        assert capsys.readouterr().err == f"jaxexp: no scheduler answers at {address}: start it, and try again\n"
    assert not any(tmp_path.iterdir())


@on_a_cluster
@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("workers", r"no workers for 0\.5 seconds"),
        ("cluster", "the cluster is gone"),
        ("client", "the cluster is gone"),
    ],
)
def test_what_is_closed(what: str, said: str, folder, tmp_path) -> None:
    """While the pass runs."""
    journal = tmp_path / "journal"
    with cluster_of(2) as cluster, distributed.Client(cluster, set_as_default=False) as client:
        executor, taken = client.get_executor(), []
        close = {"workers": lambda: cluster.scale(0), "cluster": cluster.close, "client": client.close}[what]

        def submit_and_close(*args: Any, submit: Any = executor.submit) -> Any:
            taken.append(submit(*args))
            if len(taken) == 5:
                close()
            return taken[-1]

        executor.submit = submit_and_close
        with pytest.raises(WorkerError, match=said):
            jaxexp.verify_many([folder], executor=executor, journal=journal, wait_for_workers=0.5)
    assert bulk.said(jaxexp.verify_many([folder], journal=journal)) == bulk.said(jaxexp.verify_many([folder]))

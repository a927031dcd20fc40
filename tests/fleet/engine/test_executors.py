"""Passes on executors of all kinds: the same results, a bounded number of shares, and workers that die."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import jaxexp
from jaxexp import Archive
from jaxexp._errors import FatalArtifactError, WorkerError
from jaxexp._fleet.archive import verification as of_archives
from kit import bulk
from kit.archives import blob

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return bulk.folder_of(tmp_path_factory.mktemp("bulk") / "in", 40)


@pytest.fixture(autouse=True)
def _small_shares(monkeypatch) -> None:
    """A few artifacts each, so that there are many of them."""
    monkeypatch.setattr(of_archives, "SHARE_BYTES", 5 * of_archives.UNIT_BYTES)


class Counting(Executor):
    """Does the work of three workers in a thread, the newest first, and counts what it holds."""

    _max_workers = 3

    def __init__(self) -> None:
        self.most = self.taken = 0
        self._held: list[tuple[Future, Any]] = []
        self._thread = ThreadPoolExecutor(1)

    def submit(self, fn, /, *args):
        assert len(pickle.dumps((fn, args))) < 4000
        future: Future = Future()
        self._held.append((future, (fn, args)))
        self.most, self.taken = max(self.most, len(self._held)), self.taken + 1
        self._thread.submit(self._work)
        return future

    def _work(self) -> None:
        future, (fn, args) = self._held[-1]
        result = fn(*args)
        self._held.remove((future, (fn, args)))
        future.set_result(result)


@pytest.fixture(scope="module")
def expected(folder) -> dict[str, str]:
    return bulk.said(jaxexp.verify_many([folder]))


@pytest.mark.parametrize("kind", ["threads", "processes", "a function"])
@pytest.mark.processes(reason="some cases start processes")
def test_the_same_on_every_executor(kind: str, folder, expected) -> None:
    assert list(expected) == [str(folder / "damaged.jaxexp")]
    if kind == "a function":
        assert bulk.said(jaxexp.verify_many([folder], executor=lambda: bulk.pool(), workers=2)) == expected
        return
    with ThreadPoolExecutor(3) if kind == "threads" else bulk.pool() as executor:
        assert bulk.said(jaxexp.verify_many([folder], executor=executor)) == expected
        archive = Archive.open(folder / "fleet.zip")
        for part in (archive, archive.glob("inner/*")):
            assert part.verify(executor=executor) == {}
        found = dict(jaxexp.compatibility_many([folder / "fleet.zip", folder / "damaged.jaxexp"], executor=executor))
        assert found[f"{folder / 'fleet.zip'}::other"] == jaxexp.compatibility(blob("tpu"))
        assert isinstance(found[str(folder / "damaged.jaxexp")], jaxexp.DeserializationError)


def test_few_shares_are_out_at_a_time(tmp_path) -> None:
    """And they are small: what a worker gets is names and numbers."""
    folder = tmp_path / "in"
    folder.mkdir()
    for i in range(1000):
        (folder / f"{i}").hardlink_to(folder / "0") if i else (folder / "0").write_bytes(blob())
    executor = Counting()
    assert jaxexp.verify_many([folder], executor=executor) == {}
    assert executor.taken >= 200
    assert 3 <= executor.most <= 7


def test_damage_in_an_archive(tmp_path) -> None:
    """Whoever shares the bytes is damaged, too, as without an executor."""
    path = bulk.folder_of(tmp_path / "in", 1) / "fleet.zip"
    archive = Archive.open(path)
    where = path.read_bytes().index(archive["inner/0"].read()[:200])
    with path.open("r+b") as file:
        file.seek(where + 700)
        file.write(b"\xff\0\xff")
    with ThreadPoolExecutor(2) as executor:
        found = Archive.open(path).verify(executor=executor)
        assert bulk.said(found) == bulk.said(Archive.open(path).verify())
        assert {"inner/0", "inner/5"} <= set(found)
        assert bulk.said(jaxexp.verify_many([path], executor=executor)) == {
            f"{path}::{n}": t for n, t in bulk.said(found).items()
        }


# --- workers that die -----------------------------------------------------------------------------------------------


@pytest.mark.processes(reason="kills some")
def test_a_worker_that_dies_costs_its_share_only(folder, expected, tmp_path) -> None:
    poison, alive = folder / f"{bulk.POISON}.jaxexp", tmp_path / "alive"
    poison.write_bytes(blob())
    alive.touch()
    try:
        with bulk.pool(bulk.dies_of_poison, str(alive)) as executor:
            assert bulk.said(jaxexp.verify_many([folder], executor=executor)) == expected
        assert not alive.exists(), "no worker died"
    finally:
        poison.unlink()


@pytest.mark.processes(reason="kills some")
def test_what_kills_each_worker_is_named(folder, expected, tmp_path) -> None:
    poison, journal = folder / f"{bulk.POISON}.jaxexp", tmp_path / "journal"
    poison.write_bytes(blob())
    try:
        with bulk.pool(bulk.dies_of_poison) as executor:
            found = jaxexp.verify_many([folder], executor=executor, journal=journal)
        error = found.pop(str(poison))
        assert isinstance(error, FatalArtifactError)
        assert "found one that killed 3 workers" in str(error)
        assert bulk.said(found) == expected
        # Nothing was decided about it: another day, a worker may survive it.
        assert bulk.said(jaxexp.verify_many([folder], journal=journal)) == expected
    finally:
        poison.unlink()


@pytest.mark.processes(reason="kills some")
def test_workers_that_cannot_even_begin(folder) -> None:
    with bulk.pool(bulk.dies_at_once) as executor, pytest.raises(WorkerError, match="cannot run jaxexp"):
        jaxexp.verify_many([folder], executor=executor)


@pytest.mark.processes(reason="another release is in another process")
def test_workers_of_another_release(folder) -> None:
    with bulk.pool(bulk.is_of_another_release, workers=1) as executor:
        with pytest.raises(WorkerError, match=r"this process, which has jaxexp \S+; one of them has jaxexp 0\.0\.1"):
            jaxexp.verify_many([folder], executor=executor)
        with pytest.raises(WorkerError, match=r"jax 0\.5\.0"):
            list(jaxexp.compatibility_many([folder], executor=executor))


def test_an_executor_that_was_shut_down(folder) -> None:
    executor = ThreadPoolExecutor(1)
    executor.shutdown()
    with pytest.raises(WorkerError, match="takes no more work"):
        jaxexp.verify_many([folder], executor=executor)


# --- what is given --------------------------------------------------------------------------------------------------


def test_a_policy_crosses(folder) -> None:
    archive = folder / "fleet.zip"
    policy = jaxexp.Policy(platforms=("cpu",))
    with ThreadPoolExecutor(2) as executor:
        found = jaxexp.verify_many([archive, folder / "000.jaxexp"], executor=executor, policy=policy)
    assert list(found) == [f"{archive}::other"]
    assert isinstance(found[f"{archive}::other"], jaxexp.PolicyError)


def test_what_other_processes_could_not_find() -> None:
    with pytest.raises(TypeError, match="paths, URLs, folders"):
        jaxexp.verify_many([blob()])
    with pytest.raises(TypeError, match="takes many artifacts"):
        jaxexp.verify_many("fleet.zip")
    with pytest.raises(TypeError, match=r"has to be a concurrent\.futures\.Executor, such as Client"):
        jaxexp.verify_many(["x"], executor="tcp://scheduler:8786")


def test_what_is_not_there(folder, tmp_path) -> None:
    missing = [tmp_path / "no.jaxexp", f"{folder / 'fleet.zip'}::no", tmp_path / "no.zip"]
    found = jaxexp.verify_many([*missing, folder / "fleet.zip"])
    assert set(found) == set(map(str, missing))
    assert all(isinstance(error, FileNotFoundError) for error in found.values())


@pytest.fixture
def in_memory() -> Iterator[str]:
    """The URL of a folder."""
    fsspec = pytest.importorskip("fsspec", reason="URLs need fsspec")
    storage = fsspec.filesystem("memory")
    yield "memory://bulk/"
    storage.rm("/bulk", recursive=True)


def test_folders_behind_urls(in_memory, folder, tmp_path) -> None:
    fsspec = pytest.importorskip("fsspec", reason="URLs need fsspec")
    for name in ("000.jaxexp", "damaged.jaxexp", "fleet.zip"):
        with fsspec.open(f"{in_memory}inner/{name}", "wb") as file:
            file.write((folder / name).read_bytes())
    for _ in range(2):
        found = jaxexp.verify_many([in_memory], journal=tmp_path / "journal")
        assert list(found) == [f"{in_memory}inner/damaged.jaxexp"]
    assert os.path.getsize(tmp_path / "journal") < 3000


# --- executors that die ---------------------------------------------------------------------------------------------


@pytest.mark.timeout(60)
@pytest.mark.parametrize("after", [0, 3])
@pytest.mark.parametrize("way", ["refuses", "is shut down", "cancels", "returns nonsense", "raises"])
def test_executors_that_die(way: str, after: int, folder, expected, tmp_path) -> None:
    """One clear error, and what was done before is not done again."""
    journal = tmp_path / "journal"
    executor = bulk.Dying(way, after)
    with pytest.raises(WorkerError, match=r"takes no more work|cannot run jaxexp|not what its worker returned"):
        jaxexp.verify_many([folder], executor=executor, journal=journal)
    assert len(journal.read_bytes().splitlines()) == 1 + after
    assert bulk.said(jaxexp.verify_many([folder], journal=journal)) == expected


@pytest.mark.parametrize("seconds", [-1, float("nan")])
def test_times_that_are_none(seconds: float, folder) -> None:
    with pytest.raises(ValueError, match="wait_for_workers: expected at least 0 seconds"):
        jaxexp.verify_many([folder], wait_for_workers=seconds)


@pytest.mark.timeout(60)
def test_an_executor_that_says_that_it_has_no_workers(folder) -> None:
    """Only Dask's does; this one has its interface, and answers nothing."""

    class Client:
        asked = 0

        def nthreads(self, callback_timeout: float | None) -> dict[str, int]:
            Client.asked += 1
            return {"tcp://one": 1} if Client.asked < 3 else {}

    executor = bulk.Dying("answers nothing", 2)
    executor._client = Client()
    with pytest.raises(WorkerError, match=r"no workers for 0\.1 seconds"):
        jaxexp.verify_many([folder], executor=executor, wait_for_workers=0.1)
    assert Client.asked >= 4  # a worker that is there may take its time

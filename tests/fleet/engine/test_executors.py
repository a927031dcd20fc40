"""How passes are cut and done on executors of all kinds: each unit once, the same results, and workers that die."""

from __future__ import annotations

import contextlib
import errno
import json
import math
import pickle
import subprocess
import tracemalloc
from collections.abc import Generator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import jaxexp
from jaxexp import Archive, _errors
from jaxexp._cli import start
from jaxexp._errors import FatalArtifactError, WorkerError
from jaxexp._fleet.archive import verification as of_archives
from jaxexp._fleet.engine import worker
from jaxexp._fleet.engine.engine import Input, Part, cut
from jaxexp._fleet.engine.worker import packed, unpacked
from jaxexp._readback.refused import RefusedError
from kit import bulk
from kit.archives import blob
from kit.each import each

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


def test_the_same_on_threads(folder, expected) -> None:
    assert list(expected) == [str(folder / "damaged.jaxexp")]
    archive, damaged = Archive.open(folder / "fleet.zip"), folder / "damaged.jaxexp"
    with ThreadPoolExecutor(3) as executor:
        assert bulk.said(jaxexp.verify_many([folder], executor=executor)) == expected
        for part in (archive, archive.glob("inner/*")):
            assert part.verify(executor=executor) == {}
        found = dict(jaxexp.compatibility_many([folder / "fleet.zip", damaged], executor=executor))
    assert found[f"{folder / 'fleet.zip'}::other"] == jaxexp.compatibility(blob("tpu"))
    assert isinstance(found[str(damaged)], jaxexp.errors.DeserializationError)


@pytest.mark.processes(reason="one worker dies, and another one begins")
def test_the_same_on_processes(folder, expected, tmp_path) -> None:
    """Of which one dies, which costs its share only; given as a function, since the pool of who died is gone."""
    poison, alive = folder / f"{bulk.POISON}.jaxexp", tmp_path / "alive"
    poison.write_bytes(blob())
    alive.touch()
    try:
        with bulk.pool(bulk.dies_of_poison, str(alive), workers=1) as executor:
            assert bulk.said(jaxexp.verify_many([folder], executor=executor)) == expected
        assert not alive.exists(), "no worker died"
    finally:
        poison.unlink()


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


@pytest.mark.long(
    promise="an artifact that kills each worker is named, and a worker that cannot begin is one error",
    sibling="test_executors.py::test_the_same_on_processes",
)
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
    with bulk.pool(bulk.dies_at_once) as executor, pytest.raises(WorkerError, match="cannot run jaxexp"):
        jaxexp.verify_many([folder], executor=executor)


class OfAnotherRelease(Executor):
    """Has another jaxexp and another JAX."""

    _max_workers = 1

    def submit(self, fn, /, *args):
        with pytest.MonkeyPatch.context() as patched:
            other = {"jaxexp": "0.0.1"}
            patched.setattr(worker, "releases", lambda with_jax: {**other, **({"jax": "0.5.0"} if with_jax else {})})
            future: Future = Future()
            future.set_result(fn(*args))
        return future


def test_workers_of_another_release(folder) -> None:
    executor = OfAnotherRelease()
    with pytest.raises(WorkerError, match=r"this process, which has jaxexp \S+; one of them has jaxexp 0\.0\.1"):
        jaxexp.verify_many([folder], executor=executor)
    with pytest.raises(WorkerError, match=r"jax 0\.5\.0"):
        list(jaxexp.compatibility_many([folder], executor=executor))


def test_a_policy_crosses(folder) -> None:
    archive = folder / "fleet.zip"
    policy = jaxexp.Policy(platforms=("cpu",))
    with ThreadPoolExecutor(2) as executor:
        found = jaxexp.verify_many([archive, folder / "000.jaxexp"], executor=executor, policy=policy)
    assert list(found) == [f"{archive}::other"]
    assert isinstance(found[f"{archive}::other"], jaxexp.errors.PolicyError)


def test_what_other_processes_could_not_find() -> None:
    with pytest.raises(TypeError, match="paths, URLs, folders"):
        jaxexp.verify_many([blob()])
    for many in (jaxexp.verify_many, jaxexp.check_many):
        with pytest.raises(TypeError, match=f"{many.__name__} takes many artifacts"):
            many("fleet.zip")
    with pytest.raises(TypeError, match=r"has to be a concurrent\.futures\.Executor, such as a ProcessPoolExecutor"):
        jaxexp.verify_many(["x"], executor="tcp://scheduler:8786")


def test_what_is_not_there(folder, tmp_path) -> None:
    missing = [tmp_path / "no.jaxexp", f"{folder / 'fleet.zip'}::no", tmp_path / "no.zip"]
    found = jaxexp.verify_many([*missing, folder / "fleet.zip"])
    assert set(found) == set(map(str, missing))
    assert all(isinstance(error, FileNotFoundError) for error in found.values())


@pytest.mark.timeout(60)
@each("way, after", [("refuses", 0), ("is shut down", 3), ("cancels", 3), ("returns nonsense", 0), ("raises", 3)])
def test_executors_that_die(way: str, after: int, folder: Path, expected: dict[str, str], tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    with pytest.raises(WorkerError, match=r"takes no more work|cannot run jaxexp|not the result of its worker"):
        jaxexp.verify_many([folder], executor=bulk.Dying(way, after), journal=journal)
    assert len(journal.read_bytes().splitlines()) == 1 + after
    assert bulk.said(jaxexp.verify_many([folder], journal=journal)) == expected


def test_times_that_are_none(folder, capsys) -> None:
    for seconds in (-1, float("nan")):
        with pytest.raises(ValueError, match="timeout: expected at least 0 seconds"):
            jaxexp.verify_many([folder], timeout=seconds)
    assert start.main(["verify", "--timeout", "nan", "--workers", "2", str(folder)]) == 1
    assert "expected at least 0 seconds" in capsys.readouterr().err


@pytest.mark.timeout(60)
def test_an_executor_that_does_nothing(folder: Path, expected: dict[str, str], tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    with pytest.raises(WorkerError, match=r"no worker has finished any work for 0\.1 seconds"):
        jaxexp.verify_many([folder], executor=bulk.Dying("answers nothing", 2), journal=journal, timeout=0.1)
    assert bulk.said(jaxexp.verify_many([folder], journal=journal, timeout=math.inf)) == expected


def test_an_executor_by_its_name(folder, tmp_path, monkeypatch, capsys) -> None:
    (tmp_path / "some_executor.py").write_text(
        "from concurrent.futures import ThreadPoolExecutor\nfrom kit.bulk import Dying\n\n\n"
        "def two():\n    return ThreadPoolExecutor(2)\n\n\ndef idle():\n    return Dying('answers nothing', 0)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    whole = str(folder / "000.jaxexp")
    assert start.main(["verify", "--executor", "some_executor:two", whole]) == 0
    capsys.readouterr()
    idle = ["--executor", "some_executor:idle", "--timeout", "0.1", "--journal", str(tmp_path / "journal"), whole]
    assert start.main(["compat", *idle]) == 75
    err = capsys.readouterr().err
    assert err.startswith("jaxexp: compat: no worker has finished any work for 0.1 seconds")
    assert err.endswith("Finished work is in the journal: run the same command again to go on\n")
    for name, said in (
        ("some_executor", "expected MODULE:FUNCTION, as in my_cluster:executor, found 'some_executor'"),
        ("some_executor:three", "some_executor has no function 'three'"),
        ("no_executor:two", "--executor no_executor: there is no module of this name"),
    ):
        capsys.readouterr()
        assert start.main(["verify", "--executor", name, whole]) == 2
        assert said in capsys.readouterr().err
    assert start.main(["verify", "--dask", "tcp://127.0.0.1:1", whole]) == 2
    assert "--executor MODULE:FUNCTION" in capsys.readouterr().err


def test_an_archive_of_many_members_is_cut_as_workers_become_free() -> None:
    """By its index: what a worker gets is a range, whatever its length, and the cutter remembers nothing."""
    looked_up: list[int] = []

    def sizes(start: int, stop: int) -> list[int]:
        looked_up.append(stop - start)
        return [20_000] * (stop - start)

    fleet = Input("fleet.zip", [], ("archive",), range(200_000), sizes)
    shares, end = cut([Part(fleet, 0, 200_000)], 1 << 27, 1 << 14), 0
    tracemalloc.start()
    for share in filter(None, shares):
        ((_, numbers),) = (part.crossing() for part in share.parts)
        assert isinstance(numbers, range) and numbers.start == end < numbers.stop
        end = numbers.stop
        assert sum(looked_up) < end + 10_000
    assert end == sum(looked_up) == 200_000
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


def crossed(error: Exception) -> Exception:
    return unpacked(json.loads(json.dumps(packed(error))))


def of_file(error: jaxexp.errors.DeserializationError | jaxexp.errors.PolicyError) -> Exception:
    error.file = "the file"
    return error


ERRORS = [
    jaxexp.errors.ExportError("why"),
    _errors.SerializationKeyError("why"),
    jaxexp.errors.TooOldReaderError("why", (0, 6, 0)),
    jaxexp.errors.TooOldReaderError("why", None),
    of_file(jaxexp.errors.DeserializationError("at", "this", "that")),
    of_file(jaxexp.errors.PolicyError("callbacks", "calls back", "main", "do this")),
    ModuleNotFoundError("no such module"),
    FileNotFoundError("https://a.test/f"),  # as fsspec raises it
    FileNotFoundError(errno.ENOENT, "No such file or directory", "/f"),
    OSError(errno.EIO, "Input/output error"),
    TimeoutError("too slow"),
]


@each("error", ERRORS)
def test_every_error_crosses(error: Exception) -> None:
    again = crossed(error)
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert vars(again) == vars(error)
    if isinstance(error, OSError):
        assert isinstance(again, OSError)
        assert (again.errno, again.strerror, again.filename) == (error.errno, error.strerror, error.filename)


class OfALibraryError(subprocess.TimeoutExpired, ConnectionResetError):
    def __init__(self, whom: str) -> None:
        super().__init__(whom, 1.0)

    def __str__(self) -> str:
        return "the message"


class OfOwnFieldsError(jaxexp.errors.WeightsError):
    def __init__(self, tensor: str) -> None:
        super().__init__(tensor, "this", "that")


def test_classes_that_are_not_known_become_their_base() -> None:
    for error, kind in (
        (RefusedError("stablehlo.sine", "of a string"), jaxexp.errors.UnsupportedError),
        (OfALibraryError("a server"), ConnectionResetError),
        (OfOwnFieldsError("w"), jaxexp.errors.WeightsError),
    ):
        again = crossed(error)
        assert type(again) is kind
        assert str(again) == str(error)


def test_what_is_no_error() -> None:
    with pytest.raises(ZeroDivisionError):
        packed(ZeroDivisionError("a mistake"))
    for said in (["ValueError", "x"], ["Exception", "x"], [1, "x"], ["print", "x"], ["annotations", "x"]):
        with pytest.raises(ValueError, match="not a packed error"):
            unpacked(said)


def total_bytes(artifact: Any) -> int:
    return jaxexp.inspect(artifact, check_modules=True).total_bytes


def test_any_function_of_one_artifact(folder: Path, tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    with ThreadPoolExecutor(2) as executor:
        found = dict(jaxexp.spread(total_bytes, [folder], executor=executor, journal=journal))
    assert found.keys() == {name for name, _ in jaxexp.compatibility_many([folder])}
    sizes = {name: size for name, size in found.items() if not isinstance(size, Exception)}
    assert sizes == {name: total_bytes(name) for name in sizes}
    assert len(sizes) < len(found)
    assert all(isinstance(one, jaxexp.errors.DeserializationError) for name, one in found.items() if name not in sizes)
    with pytest.raises(AssertionError), ThreadPoolExecutor(1) as executor:
        list(jaxexp.spread(not_called, [folder], executor=executor))
    assert dict(jaxexp.spread(total_bytes, [folder], journal=journal)).keys() == found.keys()
    with pytest.raises(TypeError, match="workers find by its name"):
        jaxexp.spread(lambda artifact: 0, [folder])
    wrong = r"^spread: .*\.open_archive returned .* for '.*fleet\.zip::.*', and has to return a JSON value,"
    for executor in (None, ThreadPoolExecutor(1)):
        with pytest.raises(TypeError, match=wrong):
            list(jaxexp.spread(open_archive, [folder / "fleet.zip"], executor=executor))


def not_called(artifact: Any) -> None:
    raise AssertionError(artifact)


def open_archive(artifact: Any) -> Any:
    return artifact


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


# The engines' own threads, event loops and processes, not ours.
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::RuntimeWarning")
@pytest.mark.parametrize("engine", [dask_executor, parsl_executor])
def test_engines_of_clusters(engine: Any, folder: Path, expected: dict[str, str], tmp_path: Path) -> None:
    """Of which nothing is known but `concurrent.futures`."""
    with engine(tmp_path) as executor:
        for _ in range(2):
            found = jaxexp.verify_many([folder], executor=executor, journal=tmp_path / "journal")
            assert bulk.said(found) == expected
        assert Archive.open(folder / "fleet.zip").verify(executor=executor) == {}

"""The benchmarks' harness: what it computes from samples, when it leaves a cell empty, what it measures."""

import dataclasses
import sys
import types
import zipfile
from concurrent.futures import ThreadPoolExecutor

import jax.export
import numpy as np
import pytest

import jaxexp
from bench import (
    bench_first,
    bench_fleet,
    bench_served,
    bench_weights,
    cases,
    compare,
    disk,
    measure,
    memory,
    models,
    render,
    report,
    rivals,
    run,
    without_python,
)  # fmt: skip
from bench import fleet as fleets
from bench import served as serving
from bench.cases import CASES, Case
from bench.questions import QUESTIONS, named
from bench.results import ORACLE, SUBJECT, Cell, Results
from kit.benchmarks import ABOUT, QUESTION, results_of
from kit.places import ROOT

ONCE = measure.Effort(sample=0.0, samples=1, total=0.0, fewest=1, warm=False)
CASE = {case.name: case for case in CASES}
SMALL = [case for case in CASES if case.size <= 200 and case.vjp_order <= 1 and not case.large]


class Clock:
    """Stands for the time module: seconds pass when a rival says so."""

    def __init__(self):
        self.now = 0.0

    def perf_counter(self):
        return self.now

    def passing(self, seconds):
        def run(*args):
            self.now += seconds

        return run


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(measure, "time", clock)
    return clock


def measured(question, case, subject=jaxexp, program=None):
    """The results of one question about one case, asked once."""
    results = Results(ABOUT)
    run.measure(results, QUESTION[question], case, program or case.build(), subject, jax.export, ONCE)
    disk.clear()
    return results


def test_samples(clock):
    """The mean of loops that fill a sample; preparations are not timed."""
    assert measure.Rival(clock.passing(2.0), finish=clock.passing(1.0)).sample(4) == (4 * 2.0 + 1.0) / 4
    given = []
    rival = measure.Rival(lambda x: given.append(x) or clock.passing(2.0)(), prepare=lambda: clock.passing(5.0)() or 7)
    assert (rival.sample(1), given) == (2.0, [7])
    assert rival.plan(measure.Effort(sample=100.0, samples=9, total=9.0)) == (1, 7.0)
    effort = measure.Effort(sample=0.01, samples=9, total=9.0)
    assert measure.Rival(clock.passing(0.001)).plan(effort) == (10, pytest.approx(0.01))
    assert measure.Rival(clock.passing(3.0)).plan(effort) == (1, pytest.approx(3.0))


def test_rivals_take_turns(clock):
    turns = []

    def rival(name, seconds):
        return measure.Rival(lambda: turns.append(name) or clock.passing(seconds)())

    effort = measure.Effort(sample=0.0, samples=10, total=12.0, fewest=2, warm=False)
    samples = measure.alternate({"a": rival("a", 1.0), "b": rival("b", 2.0)}, effort)
    assert samples == {"a": [1.0] * 4, "b": [2.0] * 4}  # 12 seconds are worth four rounds of 3
    assert "".join(turns) == "ab" + "abbaabba"  # calibration first
    assert len(measure.alternate({"a": rival("a", 50.0)}, effort)["a"]) == effort.fewest


def test_readings_are_samples_as_they_are():
    values = iter([7.0, 8.0, 0.0])
    effort = measure.Effort(sample=1.0, samples=2, total=9.0, warm=True)
    samples = measure.alternate({"x": measure.Reading(lambda: next(values))}, dataclasses.replace(effort, fewest=2))
    assert samples["x"][0] == 8.0
    assert 0 < samples["x"][1] < 1e-6


def test_medians_spread_and_ratio():
    samples = {SUBJECT: [1.0, 2.0, 9.0], ORACLE: [30.0, 20.0, 10.0], "memcpy": [0.5]}
    cell = results_of({("serialize again", "tiny"): samples}).cell("serialize again", "tiny")
    assert (cell.median(SUBJECT), cell.ratio, compare.ratios(cell)) == (2.0, 10.0, [30.0, 10.0, 10.0 / 9.0])
    assert list(cell.beside) == ["memcpy"]
    assert measure.spread(measure.benchmark("x", [1.0, 2.0, 3.0, 4.0, 5.0], {})) == 2.0 / 3.0
    assert Cell("serialize again", "tiny").ratio is None
    place = "load, new memory", "1 MiB constant"
    samples = {SUBJECT: [measure.ZERO, measure.ZERO, 6144.0], ORACLE: [2e6, 2e6, 2e6]}
    cell = results_of({place: samples}).cell(*place)
    assert cell.ratio is None, "nothing has no ratio"
    assert "\N{MULTIPLICATION SIGN}" not in (row := report.row(cell, None)) and row.count("%") == 1


def test_files_keep_everything(tmp_path):
    place = "serialize again", "2,000 sharded"
    results = results_of({place: {SUBJECT: [1.0, 2.0], ORACLE: [3.0, 4.0]}}, machine="Zoë, 2")
    results.mistakes.append("load, tiny: failed: OSError: no")
    results.dump(tmp_path / "new" / "x.json")
    loaded = Results.load(tmp_path / "new" / "x.json")
    assert (loaded.about, loaded.mistakes) == (results.about, results.mistakes)
    assert compare.ratios(loaded.cell(*place)) == [3.0, 2.0]


def test_amounts():
    for value, unit, text in (
        (1.2345e-7, "second", "0.123 µs"), (9.996e-4, "second", "1,000 µs"), (0.0123, "second", "12.3 ms"),
        (61.0, "second", "61.0 s"), (378.0, "byte", "378 B"), (2e6, "byte", "2.00 MB"),
    ):  # fmt: skip
        assert report.amount(value, unit) == text
    for text, short in (("50.0x", "50x"), ("100x", "100x"), ("1.50x", "1.5x"), ("2.00 MB", "2 MB")):
        assert report.short(text) == short


# Questions and cases.


@pytest.mark.wide(one_in=11, promise="the functions of all cases can be built and called")
@pytest.mark.parametrize("case", SMALL, ids=lambda case: case.name)
def test_cases_build(case):
    program = case.build()
    expected = jax.tree.map(lambda x: (x.shape, x.dtype), jax.eval_shape(program.fresh(), *program.args))
    found = jax.tree.map(lambda x: (x.shape, x.dtype), program.function(*program.args))
    assert (found, jax.tree.structure(program.specs)) == (expected, jax.tree.structure(program.args))
    assert case.family not in ("parameters", "sharded") or len(jax.tree.leaves(program.specs)) == case.size


def distinct(indices):
    return len({str(jax.tree.flatten_with_path(fleets.member(index, 1).specs)) for index in indices}) == len(indices)


def test_members_of_a_fleet_are_distinct():
    assert distinct(range(0, 10_000, 17))
    sizes = [fleets.constant(index, 0, 1).nbytes for index in range(100)]
    assert (min(sizes), max(sizes)) == (0, 2**18)


@pytest.mark.long(
    promise="all members of a large fleet are distinct", sibling="test_bench.py::test_members_of_a_fleet_are_distinct"
)
def test_all_members_of_large_fleets_are_distinct():
    assert distinct(range(10_000))
    parts = CASE["1,000 artifacts"].build().parts
    shapes = {str([(x.shape, x.dtype) for x in jax.tree.leaves(part.specs)]) for part in parts}
    assert len(parts) == len(shapes) == 1000
    assert len({jax.tree.structure(part.specs).num_leaves for part in parts}) > 1


@pytest.fixture(scope="module")
def fleet():
    made = fleets.fleet(2, 3)
    yield made
    disk.clear()


def test_a_fleet(fleet):
    """Versions differ in a constant; the same artifacts are in files, in a zip and in an archive."""
    blobs = {name: path.read_bytes() for name, path in fleet.files(jaxexp).items()}
    loaded = {name: jaxexp.deserialize(blob) for name, blob in blobs.items()}
    assert list(loaded) == list(fleet.names) == [f"predict_{i:05}-v{v:02}" for i in range(2) for v in range(3)]
    for index in range(2):
        first, *others = (loaded[f"predict_{index:05}-v{version:02}"] for version in range(3))
        assert first.fun_name == f"predict_{index:05}"
        for version, other in enumerate(others, start=1):
            assert (other.in_avals, other.in_tree, other.out_avals) == (first.in_avals, first.in_tree, first.out_avals)
            assert len(other.mlir_module_serialized) == len(first.mlir_module_serialized)
            table = fleets.constant(index, version, 3)
            specs = fleets.member(index, 3).specs
            params, inputs = jax.tree.map(lambda s: np.zeros(s.shape, s.dtype), specs)
            logits = other.call(params, {**inputs, "step": np.int32(7)})["logits"]
            np.testing.assert_array_equal(logits, np.full(logits.shape, table[7].astype(logits.dtype)))
    with zipfile.ZipFile(fleet.zipped(jaxexp)) as archive:
        assert {info.filename: archive.read(info) for info in archive.infolist()} == blobs
        assert {info.compress_type for info in archive.infolist()} == {zipfile.ZIP_STORED}
    with jaxexp.Archive.open(fleet.archive(jaxexp)) as archive:
        assert {name: bytes(archive[name].read()) for name in archive} == blobs
    for name, blob in blobs.items():
        assert jax.export.deserialize(bytearray(blob)).fun_name == name[:-4]
        assert jaxexp.deserialize((fleet.made / name).read_bytes()).serialize() == blob
    assert fleet.archive(jaxexp) == fleet.archive(jaxexp)  # made once
    assert list(fleet.some(2)) == [fleet.names[0], fleet.names[3]]


def test_a_process_that_fails_is_an_error(monkeypatch, capfd):
    monkeypatch.setattr(fleets, "make", None)
    monkeypatch.setattr(disk, "ROOT", ROOT / "docs")  # where there is no bench
    with pytest.raises(RuntimeError, match="a process that exports functions failed"):
        fleets.fleet(1, 1)
    assert "ModuleNotFoundError" in capfd.readouterr().err


class Backwards:
    """An archive that loads its members in another order, and calls everything sound."""

    create = jaxexp.Archive.create

    def __init__(self, archive):
        self.archive = archive

    @classmethod
    def open(cls, path):
        return cls(jaxexp.Archive.open(path))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.archive.close()

    def __len__(self):
        return len(self.archive)

    def __iter__(self):
        return iter(self.archive)

    def load_all(self):
        return [self.archive[name].load() for name in self.archive][::-1]

    def verify(self):
        return {}


def test_a_fleet_that_is_wrong_leaves_its_cells_empty(fleet):
    case = Case("6 versions", lambda: fleet, family="fleet", size=6)
    fake = types.ModuleType("fake")
    fake.load_many, fake.load, fake.deserialize = jaxexp.load_many, jaxexp.load, jaxexp.deserialize
    fake.Archive = Backwards
    mistakes = {}
    for name in ("load all again", "verify", "open archive"):
        results = Results(ABOUT)
        run.measure(results, QUESTION[name], case, fleet, fake, jax.export, ONCE)
        mistakes[name] = results.mistakes
        assert (results.cell(name, case.name).subject is None) == bool(results.mistakes)
    assert mistakes["open archive"] == []
    assert "load all again, 6 versions: wrong: predict_00000-v00.fun_name" in mistakes["load all again"][0]
    assert mistakes["verify"] == [f"verify, 6 versions: wrong: damage to {fleet.names[3]}: noticed []"]


def test_all_bytes_are_read(tmp_path):
    for size in (0, 1, 1000, 256_003):
        (tmp_path / "f").write_bytes(bytes(size))
        with ThreadPoolExecutor(3) as threads:
            assert bench_fleet._read(tmp_path / "f", threads, [bytearray(1000) for _ in range(3)]) == size


@pytest.mark.skipif(sys.platform != "linux", reason="/proc/self/status is Linux's")
def test_growth_of_resident_memory():
    found = bench_fleet._growth_of(lambda library, path: bytearray(b"x" * 2**26), jaxexp, "unused")
    assert found.keys() == {"VmRSS", "RssAnon", "RssFile"}
    assert 0.9 * 2**26 < found["RssAnon"] < 1.5 * 2**26


SLOW = {
    "load, new memory", "import", "import names", "read back", "first vmap", "open archive", "cold signature",
    "load all again",
    "load all, first time", "verify", "memory of handles", "memory of all", "cold start", "cold first call",
    "anonymous memory of that", "load weights, first call", "serialize, first time", "deserialize, first time",
    *(question.name for question in bench_served.QUESTIONS),
}  # fmt: skip
# These are measured only where somebody installed or built them.
OPTIONAL = {"C++", "C++, executables", "PJRT by hand", "session", "session, executables", "ONNX Runtime", "torch"}
long = pytest.mark.long(promise="all questions can be asked", sibling="test_bench.py::test_questions_run")


@pytest.mark.wide(one_in=6, promise="all questions can be asked")
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(q.name, marks=[long] if q.name in SLOW else [])
        for q in QUESTIONS
        if not q.name.startswith("round trip")
    ],
)
def test_questions_run(name):
    question = QUESTION[name]
    case = next(case for case in sorted(CASES, key=lambda case: not case.quick) if question.applies(case))
    results = measured(name, case)
    assert results.mistakes == []
    cell = results.cell(name, case.name)
    assert cell.subject.get_nvalue() == cell.oracle.get_nvalue() == 1
    assert cell.beside.keys() | (question.beside.keys() & OPTIONAL) == question.beside.keys()
    assert cell.subject.get_unit() == question.unit
    assert case.name in report.row(cell, None)


def test_weights_that_jax_export_cannot_write():
    """As for 4 GiB: their cells have no oracle."""
    case = Case("4 GiB", lambda: cases.chain(2, 64), family="weights", size=4096)
    for name in ("export weights", "save weights", "disk for weights"):
        results = measured(name, case)
        cell = results.cell(name, case.name)
        assert results.mistakes == []
        assert cell.oracle is None and cell.subject is not None and "arguments" in cell.beside
        assert cell.ratio is None and "4 GiB" in report.row(cell, None)


@long
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits memory in this way")
def test_a_round_trip_in_little_memory():
    case = Case("1 GiB", lambda: cases.chain(1, 64), family="limited weights", size=1024)
    results = measured("round trip in little memory", case)
    assert results.mistakes == []
    assert results.cell("round trip in little memory", case.name).subject.get_nvalue() == 1


def test_cases_that_the_machine_has_no_memory_for_are_left_out(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(run, "gibibytes", lambda: 6)
    asked = ["--question", "weights", "--case", "3 GiB in little memory", "--case", "4 GiB of weights"]
    assert run.main([*asked, "--output", str(tmp_path / "result.json")]) == 0
    printed = capsys.readouterr().out
    assert "left out: 4 GiB of weights, which takes 20 GiB of memory; there are 6" in printed
    assert "left out: 3 GiB in little memory" in printed


def served(name):
    return next(case for case in CASES if case.name == f"served {name}")


@pytest.fixture
def nothing_else(monkeypatch):
    """Only JAX and jaxexp are installed."""
    monkeypatch.setattr(bench_served, "RIVALS", {})
    monkeypatch.setattr(bench_served, "_can_run_sessions", lambda: False)
    monkeypatch.setattr(bench_served.without_python, "IS_THERE", False)


@long
def test_what_is_not_installed_is_left_out(nothing_else):
    case = served("16 numbers")
    results = measured("served, cold start", case)
    assert results.mistakes == []
    assert results.cell("served, cold start", case.name).beside.keys() == {"executables"}


def test_a_runtime_that_is_wrong_leaves_the_cell_empty(nothing_else, monkeypatch):
    class Server:
        def __init__(self, result):
            self.result, self.start = result, lambda: 1.0

    case = served("16 numbers")
    x = np.arange(16.0)
    servers = {"jaxexp": Server(lambda: x + 1), "jax.export": Server(lambda: x + 1), "torch": Server(lambda: x)}
    monkeypatch.setattr(bench_served, "_served", lambda *_: servers)
    results = measured("served, cold start", case)
    assert results.mistakes == ["served, cold start, served 16 numbers: wrong: result of torch"]
    assert results.cell("served, cold start", case.name).subject is None


@pytest.mark.long(promise="rivals compute the same", sibling="test_bench.py::test_questions_run")
@pytest.mark.parametrize("how", ["ONNX Runtime", "torch"])
@pytest.mark.parametrize("name", models.SERVED)
def test_equal_models(how, name, tmp_path):
    if how not in rivals.RIVALS:
        pytest.skip("comes with the extra 'rivals'")
    suffix, write = rivals.RIVALS[how]
    write(name, tmp_path / f"model{suffix}")
    program = served(name).build()
    found = serving.load(how, str(tmp_path / "model"))(np.asarray(program.args[0]))
    np.testing.assert_allclose(found, program.fresh()(*program.args), rtol=1e-3, atol=1e-4)


def test_calls_of_several_threads_are_counted(monkeypatch):
    times, called = iter([1.0, 7.0]), []
    monkeypatch.setattr(serving.time, "perf_counter", lambda: next(times))
    assert (serving.seconds_of_a_call(called.append, 5, threads=3, calls=4), called) == (6 / 12, [5] * 12)


def test_questions_of_a_file():
    assert named(["weights"]) == list(bench_weights.QUESTIONS)
    assert [question.name for question in named(["save", "disk for weights"])] == ["save", "disk for weights"]
    assert len(QUESTIONS) == len({question.name for question in QUESTIONS})


SYMBOLIC = Case("5 symbolic", lambda: cases._symbolic(5))


def test_the_floor_builds_what_is_decoded():
    for case in (CASE["20 sharded"], CASE["deep tree"], SYMBOLIC):
        artifact = case.build().artifact(jax.export)
        built = bench_first.building(jax.export, case, artifact)()
        decoded = jaxexp.deserialize(artifact)
        for name in ("in_tree", "out_tree", "_in_named_shardings", "_out_named_shardings", "module_kept_var_idx"):
            assert built[name] == getattr(decoded, name), (case.name, name)
        assert list(map(str, built["in_avals"])) == list(map(str, decoded.in_avals))


def test_other_libraries_of_the_same_api_can_be_measured():
    for name in ("serialize again", "deserialize own again", "save", "load"):
        results = measured(name, CASE["tiny"], jax.export)
        assert results.mistakes == []
        assert results.cell(name, "tiny").subject is not None


def library(deserialize):
    module = types.ModuleType("fake")
    module.export, module.deserialize = jax.export.export, deserialize
    return module


def renamed(blob):
    return dataclasses.replace(jax.export.deserialize(blob), fun_name="other")


def refused(blob):
    raise ValueError("not today")


def test_a_wrong_result_leaves_its_cells_empty():
    results = measured("metadata size", CASE["tiny"], library(renamed))
    cell = results.cell("metadata size", "tiny")
    assert results.mistakes == ["metadata size, tiny: wrong: fun_name"]
    assert cell.subject is None and cell.ratio is None and cell.oracle is not None
    assert "|  |  | " in render.page(results) and "wrong: fun_name" in render.page(results)

    class Doubling:
        def __init__(self, blob):
            self.inner = jax.export.deserialize(blob)

        def call(self, *args):
            return self.inner.call(*args) * 2

    assert measured("call", CASE["tiny"], library(Doubling)).mistakes == ["call, tiny: wrong: result"]


def test_a_failing_cell_does_not_stop_the_others(monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(sys.modules, "fake", library(refused))
    monkeypatch.setattr(run, "QUICK", ONCE)
    path = tmp_path / "result.json"
    chosen = ["--quick", "--case", "tiny", "--output", str(path)]
    asked = ["--question", "metadata size", "--question", "export"]
    assert run.main(["--subject", "fake", *chosen, *asked]) == 1
    printed = capsys.readouterr()
    assert "EMPTY: metadata size, tiny: failed: ValueError: not today" in printed.err
    results = Results.load(path)
    assert results.cell("metadata size", "tiny") is None
    assert results.cell("export", "tiny").subject is not None

    assert run.main([*chosen, *asked]) == 0
    assert Results.load(path).cell("metadata size", "tiny").ratio > 0


def test_a_runtime_without_optimization_is_not_measured(tmp_path, monkeypatch) -> None:
    program = tmp_path / "jaxexp-run"
    monkeypatch.setattr(without_python, "RUN", str(program))
    monkeypatch.setattr(without_python, "IS_THERE", True)
    for said in ("", " (built without optimization)"):
        program.write_text(f"#!/bin/sh\necho 'jaxexp-run 0.1.0{said}'\n")
        program.chmod(0o755)
        if said:
            with pytest.raises(SystemExit, match="was built without optimization"):
                without_python.check()
        else:
            without_python.check()


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's high-water mark of memory is Linux's")
def test_peak_memory():
    assert memory.peak_of(lambda: None) < 2**22
    found = memory.peak_of(lambda: (bytearray(2**26), bytes(2**20))[1])
    assert found is None or 0.9 * 2**26 < found < 1.5 * 2**26

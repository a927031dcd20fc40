"""The benchmarks' harness: what it computes from samples, when it leaves a cell empty, what it measures."""

import dataclasses
import os
import sys
import types
import zipfile

import jax.export
import pytest

import jaxexp
from bench import (
    bench_growth,
    bench_served,
    compare,
    disk,
    measure,
    processes,
    render,
    report,
    run,
)  # fmt: skip
from bench import fleet as fleets
from bench.cases import CASES
from bench.questions import QUESTIONS
from bench.results import ORACLE, SUBJECT, Cell, Results
from kit.benchmarks import ABOUT, QUESTION, results_of

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
    results = Results(ABOUT)
    run.measure(results, QUESTION[question], case, program or case.build(), subject, jax.export, ONCE)
    disk.clear()
    return results


@pytest.mark.wide(one_in=20, promise="the functions of all cases can be built and called")
@pytest.mark.parametrize("case", SMALL, ids=lambda case: case.name)
def test_cases_build(case):
    program = case.build()
    expected = jax.tree.map(lambda x: (x.shape, x.dtype), jax.eval_shape(program.fresh(), *program.args))
    found = jax.tree.map(lambda x: (x.shape, x.dtype), program.function(*program.args))
    assert (found, jax.tree.structure(program.specs)) == (expected, jax.tree.structure(program.args))
    assert case.family not in ("parameters", "sharded") or len(jax.tree.leaves(program.specs)) == case.size


SLOW = {
    "load, new memory", "import names", "read back", "first vmap", "open archive", "cold signature", "load all again",
    "load all, first time", "verify", "memory of handles", "memory of all", "cold start", "load weights, first call",
    "serialize, first time", "deserialize, first time", "append", "check after an upgrade", "load one member",
    *(question.name for question in (*bench_served.QUESTIONS, *bench_growth.QUESTIONS)),
}  # fmt: skip
# These are measured only where somebody installed or built them.
OPTIONAL = {
    "C++",
    "C++, executables",
    "PJRT by hand",
    "session",
    "session, executables",
    "ONNX Runtime",
    "AOTInductor",
    "pypjrt",
}
long = pytest.mark.long(promise="all questions can be asked", sibling="test_bench.py::test_questions_run")


@pytest.mark.wide(one_in=9, promise="all questions can be asked")
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


def test_the_memory_of_processes():
    hold = "import json; held = bytearray(50 << 20); print(json.dumps(len(held)))"
    with processes.watched() as peaks:
        assert processes.json_of(hold, []) == 50 << 20
        processes.until_first_line([sys.executable, "-c", "print()"], os.environ)
    assert 50 << 20 < peaks[0] < 100 << 20
    assert 1 << 20 < peaks[1] < 50 << 20
    assert len(peaks) == 2


@long
@pytest.mark.parametrize(
    ("name", "case"),
    [
        ("export", "tiny"),
        ("cold signature", "100 versions"),
        ("verify", "100 versions"),
        ("save weights", "2 small weights"),
    ],
)
def test_processes_that_do_one_thing(name, case):
    trial = QUESTION[name].trial(CASE[case], CASE[case].build(), jaxexp, jax.export)
    assert {SUBJECT, ORACLE} <= trial.alone.keys()
    for reading in trial.alone.values():
        assert run.peak_alone(reading) > 10 << 20
    disk.clear()


def served(name):
    return next(case for case in CASES if case.name == f"served {name}")


def test_rivals_take_turns(clock):
    turns = []

    def rival(name, seconds):
        return measure.Rival(lambda: turns.append(name) or clock.passing(seconds)())

    effort = measure.Effort(sample=0.0, samples=10, total=12.0, fewest=2, warm=False)
    samples = measure.alternate({"a": rival("a", 1.0), "b": rival("b", 2.0)}, effort)
    assert samples == {"a": [1.0] * 4, "b": [2.0] * 4}  # 12 seconds are worth four rounds of 3
    assert "".join(turns) == "ab" + "abbaabba"  # calibration first
    assert len(measure.alternate({"a": rival("a", 50.0)}, effort)["a"]) == effort.fewest


def test_files_keep_samples_medians_and_ratios(tmp_path):
    place = "load", "tiny"
    results = results_of(
        {place: {SUBJECT: [1.0, 2.0, 9.0], ORACLE: [30.0, 20.0, 10.0], "memcpy": [0.5]}}, machine="Zoë"
    )
    results.mistakes.append("load, tiny: failed: OSError: no")
    results.dump(tmp_path / "new" / "x.json")
    loaded = Results.load(tmp_path / "new" / "x.json")
    assert (loaded.about, loaded.mistakes) == (results.about, results.mistakes)
    cell = loaded.cell(*place)
    assert (cell.median(SUBJECT), cell.ratio, compare.ratios(cell)) == (2.0, 10.0, [30.0, 10.0, 10.0 / 9.0])
    assert list(cell.beside) == ["memcpy"]
    assert Cell("load", "tiny").ratio is None
    nothing = results_of({place: {SUBJECT: [measure.ZERO] * 3, ORACLE: [2e6] * 3}}).cell(*place)
    assert nothing.ratio is None, "nothing has no ratio"


def test_a_fleet():
    """Versions differ in a constant; the same artifacts are in files, in a zip and in an archive."""
    fleet = fleets.fleet(2, 3)
    blobs = {name: path.read_bytes() for name, path in fleet.files(jaxexp).items()}
    assert list(blobs) == list(fleet.names) == [f"predict_{i:05}-v{v:02}" for i in range(2) for v in range(3)]
    assert len(set(blobs.values())) == 6
    first, other = (jaxexp.deserialize(blobs[f"predict_00001-v0{version}"]) for version in (0, 2))
    assert (other.in_avals, other.in_tree, other.out_avals) == (first.in_avals, first.in_tree, first.out_avals)
    with zipfile.ZipFile(fleet.zipped(jaxexp)) as archive:
        assert {info.filename: archive.read(info) for info in archive.infolist()} == blobs
    with jaxexp.Archive.open(fleet.archive(jaxexp)) as archive:
        assert {name: bytes(archive[name].read()) for name in archive} == blobs
    disk.clear()


def library(deserialize):
    module = types.ModuleType("fake")
    module.export, module.deserialize = jax.export.export, deserialize
    return module


def test_a_wrong_result_leaves_its_cells_empty():
    def renamed(blob):
        return dataclasses.replace(jax.export.deserialize(blob), fun_name="other")

    results = measured("metadata size", CASE["tiny"], library(renamed))
    cell = results.cell("metadata size", "tiny")
    assert results.mistakes == ["metadata size, tiny: wrong: fun_name"]
    assert cell.subject is None and cell.ratio is None and cell.oracle is not None
    assert "|  |  | " in render.page(results) and "wrong: fun_name" in render.page(results)


def test_a_failing_cell_does_not_stop_the_others(monkeypatch, tmp_path, capsys):
    def refused(blob):
        raise ValueError("not today")

    monkeypatch.setitem(sys.modules, "fake", library(refused))
    monkeypatch.setattr(run, "QUICK", ONCE)
    path = tmp_path / "result.json"
    asked = ["--case", "tiny", "--question", "metadata size", "--question", "export", "--output", str(path)]
    assert run.main(["--subject", "fake", "--quick", *asked]) == 1
    assert "EMPTY: metadata size, tiny: failed: ValueError: not today" in capsys.readouterr().err
    results = Results.load(path)
    assert results.cell("metadata size", "tiny") is None
    assert results.cell("export", "tiny").subject is not None

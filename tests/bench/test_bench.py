"""The benchmarks' harness: what it computes from samples, when it leaves a cell empty, what it compares and draws."""

import dataclasses
import sys
import types
import xml.etree.ElementTree
import zipfile
from concurrent.futures import ThreadPoolExecutor

import jax.export
import numpy as np
import pytest

from kit.places import ROOT

if str(ROOT) not in sys.path:
    sys.path.append(str(ROOT))  # bench is not installed

import jaxexp
from bench import bench_fleet, cases, chart, compare, disk, goals, measure, memory, render, report, run
from bench import fleet as fleets
from bench.cases import CASES, Case
from bench.questions import QUESTIONS
from bench.results import ORACLE, PEAK, SUBJECT, Cell, Results

ONCE = measure.Effort(sample=0.0, samples=1, total=0.0, fewest=1, warm=False)
ABOUT = {
    "subject": "jaxexp",
    "versions": "jax 0.12.0.1",
    "jax": "0.12.0.1",
    "machine": "a machine",
    "load average": "0.00",
    "file system": "ext4",
    "date": "2027-01-01",
}
CASE = {case.name: case for case in CASES}
QUESTION = {question.name: question for question in QUESTIONS}
SMALL = [case for case in CASES if case.size <= 200 and case.vjp_order <= 1 and not case.large]


def results_of(cells, **about):
    """Results with the given samples: {(question, case): {rival: samples}}."""
    results = Results({**ABOUT, **about})
    for (question, case), rivals in cells.items():
        unit = QUESTION[question].unit if question in QUESTION else "byte"
        for rival, samples in rivals.items():
            place = {"question": question, "case": case, "rival": rival, "unit": unit}
            results.add(measure.benchmark(f"{question}/{case}/{rival}", samples, place))
    return results


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


def test_a_sample_is_the_mean_of_its_loops(clock):
    rival = measure.Rival(clock.passing(2.0), finish=clock.passing(1.0))
    assert rival.sample(4) == (4 * 2.0 + 1.0) / 4


def test_preparations_are_not_timed(clock):
    given = []
    rival = measure.Rival(lambda x: given.append(x) or clock.passing(2.0)(), prepare=lambda: clock.passing(5.0)() or 7)
    assert rival.sample(1) == 2.0
    assert given == [7]
    assert rival.plan(measure.Effort(sample=100.0, samples=9, total=9.0)) == (1, 7.0)


def test_loops_fill_a_sample(clock):
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
    cell = results_of({("serialize", "tiny"): {SUBJECT: [1.0, 2.0, 9.0], ORACLE: [30.0, 20.0, 10.0], "memcpy": [0.5]}})
    cell = cell.cell("serialize", "tiny")
    assert cell.median(SUBJECT) == 2.0
    assert cell.ratio == 10.0
    assert compare.ratios(cell) == [30.0, 10.0, 10.0 / 9.0]
    assert list(cell.beside) == ["memcpy"]
    assert measure.spread(measure.benchmark("x", [1.0, 2.0, 3.0, 4.0, 5.0], {})) == 2.0 / 3.0
    assert Cell("serialize", "tiny").ratio is None


def test_files_keep_everything(tmp_path):
    results = results_of({("serialize", "2,000 sharded"): {SUBJECT: [1.0, 2.0], ORACLE: [3.0, 4.0]}}, machine="Zoë, 2")
    results.mistakes.append("load, tiny: failed: OSError: no")
    results.dump(tmp_path / "new" / "x.json")
    loaded = Results.load(tmp_path / "new" / "x.json")
    assert loaded.about == results.about
    assert loaded.mistakes == results.mistakes
    assert compare.ratios(loaded.cell("serialize", "2,000 sharded")) == [3.0, 2.0]


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (1.2345e-7, "second", "0.123 µs"),
        (9.996e-4, "second", "1,000 µs"),
        (0.0123, "second", "12.3 ms"),
        (61.0, "second", "61.0 s"),
        (378.0, "byte", "378 B"),
        (2e6, "byte", "2.00 MB"),
    ],
)
def test_amounts(value, unit, text):
    assert report.amount(value, unit) == text


@pytest.mark.parametrize(
    ("text", "short"), [("50.0x", "50x"), ("100x", "100x"), ("1.50x", "1.5x"), ("2.00 MB", "2 MB")]
)
def test_short_amounts(text, short):
    assert report.short(text) == short


# Questions and cases.


@pytest.mark.parametrize("case", SMALL, ids=lambda case: case.name)
def test_cases_build(case):
    program = case.build()
    expected = jax.tree.map(lambda x: (x.shape, x.dtype), jax.eval_shape(program.fresh(), *program.args))
    found = jax.tree.map(lambda x: (x.shape, x.dtype), program.function(*program.args))
    assert found == expected
    assert jax.tree.structure(program.specs) == jax.tree.structure(program.args)
    assert case.family not in ("parameters", "sharded") or len(jax.tree.leaves(program.specs)) == case.size


def test_a_thousand_artifacts_are_different():
    program = CASE["1,000 artifacts"].build()
    signatures = {jax.tree.structure(part.specs).num_leaves for part in program.parts}
    assert len(program.parts) == 1000
    assert len(signatures) > 1
    shapes = [str([(x.shape, x.dtype) for x in jax.tree.leaves(part.specs)]) for part in program.parts]
    assert len(set(shapes)) == 1000


def signature_of(program):
    return str(jax.tree.flatten_with_path(program.specs))


def test_ten_thousand_are_distinct():
    assert len({signature_of(fleets.member(index, 1)) for index in range(10_000)}) == 10_000
    sizes = [fleets.constant(index, 0, 1).nbytes for index in range(100)]
    assert min(sizes) == 0
    assert max(sizes) == 2**18


@pytest.fixture(scope="module")
def fleet():
    made = fleets.fleet(2, 3)
    yield made
    disk.clear()


def test_versions_differ_in_a_constant(fleet):
    loaded = {name: jaxexp.load(path) for name, path in fleet.files(jaxexp).items()}
    assert list(loaded) == list(fleet.names) == [f"predict_{i:05}-v{v:02}" for i in range(2) for v in range(3)]
    for index in range(2):
        first, *others = (loaded[f"predict_{index:05}-v{version:02}"] for version in range(3))
        assert first.fun_name == f"predict_{index:05}"
        for version, other in enumerate(others, start=1):
            assert (other.in_avals, other.in_tree, other.out_avals) == (first.in_avals, first.in_tree, first.out_avals)
            assert len(other.mlir_module_serialized) == len(first.mlir_module_serialized)
            table = fleets.constant(index, version, 3)
            params, inputs = (
                jax.tree.map(lambda s: np.zeros(s.shape, s.dtype), s) for s in fleets.member(index, 3).specs
            )
            logits = other.call(params, {**inputs, "step": np.int32(7)})["logits"]
            np.testing.assert_array_equal(logits, np.full(logits.shape, table[7].astype(logits.dtype)))


def test_what_a_fleet_is_written_to(fleet):
    blobs = {name: path.read_bytes() for name, path in fleet.files(jaxexp).items()}
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
    for name in ("load all", "verify", "open archive"):
        results = Results(ABOUT)
        run.measure(results, QUESTION[name], case, fleet, fake, jax.export, ONCE)
        mistakes[name] = results.mistakes
        assert (results.cell(name, case.name).subject is None) == bool(results.mistakes)
    assert mistakes["open archive"] == []
    assert "load all, 6 versions: wrong: predict_00000-v00.fun_name" in mistakes["load all"][0]
    assert mistakes["verify"] == [f"verify, 6 versions: wrong: damage to {fleet.names[3]}: noticed []"]


@pytest.mark.parametrize("size", [0, 1, 1000, 256_003])
def test_all_bytes_are_read(tmp_path, size):
    (tmp_path / "f").write_bytes(bytes(size))
    with ThreadPoolExecutor(3) as threads:
        assert bench_fleet._read(tmp_path / "f", threads, [bytearray(1000) for _ in range(3)]) == size


@pytest.mark.skipif(sys.platform != "linux", reason="/proc/self/status is Linux's")
def test_growth_of_resident_memory():
    found = bench_fleet._growth_of(lambda library, path: bytearray(b"x" * 2**26), jaxexp, "unused")
    assert found.keys() == {"VmRSS", "RssAnon", "RssFile"}
    assert 0.9 * 2**26 < found["RssAnon"] < 1.5 * 2**26


IN_PROCESSES = {
    "load, new memory", "import", "import names", "open archive", "cold signature", "load all", "load all, first",
    "verify", "memory of handles", "memory of all",
}  # fmt: skip
in_processes = pytest.mark.slow(reason="starts up to five processes")


@pytest.mark.parametrize(
    "question",
    [pytest.param(q, marks=[in_processes] if q.name in IN_PROCESSES else [], id=q.name) for q in QUESTIONS],
)
def test_questions_run(question):
    case = next(case for case in sorted(CASES, key=lambda case: not case.quick) if question.applies(case))
    results = Results(ABOUT)
    run.measure(results, question, case, case.build(), jaxexp, jax.export, ONCE)
    disk.clear()
    assert results.mistakes == []
    cell = results.cell(question.name, case.name)
    assert cell.subject.get_nvalue() == cell.oracle.get_nvalue() == 1
    assert cell.beside.keys() == question.beside.keys()
    assert cell.subject.get_unit() == question.unit
    assert case.name in report.row(cell, None)


SYMBOLIC = Case("5 symbolic", lambda: cases._symbolic(5))


@pytest.mark.parametrize("case", [CASE["20 sharded"], CASE["deep tree"], SYMBOLIC], ids=lambda case: case.name)
def test_the_floor_builds_what_is_decoded(case):
    program = case.build()
    trial = QUESTION["deserialize"].trial(case, program, jaxexp, jax.export)
    built = trial.beside["objects"].run()
    decoded = jaxexp.deserialize(program.artifact(jax.export))
    for name in ("in_tree", "out_tree", "_in_named_shardings", "_out_named_shardings", "module_kept_var_idx"):
        assert built[name] == getattr(decoded, name), name
    assert list(map(str, built["in_avals"])) == list(map(str, decoded.in_avals))


def test_other_libraries_of_the_same_api_can_be_measured():
    for name in ("serialize", "deserialize own", "save", "load"):
        results = Results(ABOUT)
        case = CASE["tiny"]
        run.measure(results, QUESTION[name], case, case.build(), jax.export, jax.export, ONCE)
        assert results.mistakes == []
        assert results.cell(name, "tiny").subject is not None
    disk.clear()


def library(deserialize):
    module = types.ModuleType("fake")
    module.export, module.deserialize = jax.export.export, deserialize
    return module


def renamed(blob):
    return dataclasses.replace(jax.export.deserialize(blob), fun_name="other")


def refused(blob):
    raise ValueError("not today")


def test_a_wrong_result_leaves_its_cells_empty():
    results = Results(ABOUT)
    case = CASE["tiny"]
    run.measure(results, QUESTION["metadata size"], case, case.build(), library(renamed), jax.export, ONCE)
    cell = results.cell("metadata size", "tiny")
    assert results.mistakes == ["metadata size, tiny: wrong: fun_name"]
    assert cell.subject is None
    assert cell.ratio is None
    assert cell.oracle is not None
    assert "|  |  | " in render.page(results)
    assert "wrong: fun_name" in render.page(results)


def test_wrong_numbers_are_noticed():
    class Doubling:
        def __init__(self, blob):
            self.inner = jax.export.deserialize(blob)

        def call(self, *args):
            return self.inner.call(*args) * 2

    results = Results(ABOUT)
    case = CASE["tiny"]
    run.measure(results, QUESTION["call"], case, case.build(), library(Doubling), jax.export, ONCE)
    assert results.mistakes == ["call, tiny: wrong: result"]


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


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's high-water mark of memory is Linux's")
def test_peak_memory():
    assert memory.peak_of(lambda: None) < 2**22
    found = memory.peak_of(lambda: (bytearray(2**26), bytes(2**20))[1])
    assert found is None or 0.9 * 2**26 < found < 1.5 * 2**26


# Comparing.


def noisy(level, seed=0):
    return [level * (1 + 0.02 * ((7 * i + seed) % 11 - 5) / 5) for i in range(20)]


def comparison(tmp_path, old, new, *options):
    for name, results in (("old", old), ("new", new)):
        results.dump(tmp_path / f"{name}.json")
    return compare.main([str(tmp_path / "old.json"), str(tmp_path / "new.json"), *options])


def both(ours, theirs=1e-3, seed=0):
    return {SUBJECT: noisy(ours, seed), ORACLE: noisy(theirs, seed + 3)}


def test_compare_flags_a_regression(tmp_path, capsys):
    places = ("serialize", "tiny"), ("deserialize", "tiny"), ("load", "tiny")
    old = results_of(dict.fromkeys(places, both(1e-5)))
    new = results_of(
        {places[0]: both(1.5e-5, seed=1), places[1]: both(1.01e-5, seed=2), places[2]: both(0.5e-5, seed=4)}
    )
    assert comparison(tmp_path, old, new) == 1
    printed = capsys.readouterr().out
    (line,) = [line for line in printed.splitlines() if "REGRESSION" in line]
    assert line.startswith("serialize")
    assert "-33%" in line
    assert "1 got worse, 1 better, 1 the same" in printed


def test_compare_is_about_ratios_not_machines(tmp_path):
    old = results_of({("serialize", "tiny"): both(1e-5, 1e-3)})
    new = results_of({("serialize", "tiny"): both(3e-5, 3e-3, seed=1)})
    assert comparison(tmp_path, old, new) == 0


def test_compare_ignores_noise(tmp_path):
    wide = [1e-5 * (1 + i % 2 * 4) for i in range(6)]
    old = results_of({("serialize", "tiny"): {SUBJECT: wide, ORACLE: [1e-3] * 6}})
    new = results_of({("serialize", "tiny"): {SUBJECT: [1.5 * x for x in wide], ORACLE: [1e-3] * 6}})
    assert comparison(tmp_path, old, new) == 0  # 50% slower, which such samples do not prove
    small = results_of({("serialize", "tiny"): both(1.1e-5, seed=1)})
    assert comparison(tmp_path, results_of({("serialize", "tiny"): both(1e-5)}), small) == 0  # proven, but small
    assert comparison(tmp_path, results_of({("serialize", "tiny"): both(1e-5)}), small, "--threshold", "0.05") == 1


def test_compare_takes_different_numbers_of_rounds(tmp_path):
    old = results_of({("serialize", "tiny"): both(1e-5)})
    new = results_of({("serialize", "tiny"): {rival: samples[:7] for rival, samples in both(2e-5).items()}})
    assert comparison(tmp_path, old, new) == 1
    assert comparison(tmp_path, new, new) == 0


def test_compare_takes_no_memory_below_a_megabyte_seriously(tmp_path):
    place = PEAK + "deserialize", "512 MiB constant"
    nothing, little, much = (results_of({place: {SUBJECT: [x], ORACLE: [5e8]}}) for x in (measure.ZERO, 3e5, 3e7))
    assert comparison(tmp_path, nothing, little) == 0
    assert comparison(tmp_path, nothing, much) == 1


def test_compare_knows_sizes_and_empty_cells(tmp_path, capsys):
    size = "metadata size", "tiny"
    old = results_of({size: {SUBJECT: [100.0] * 3, ORACLE: [500.0] * 3}, ("call", "tiny"): both(1e-5)})
    grown = results_of({size: {SUBJECT: [130.0] * 3, ORACLE: [500.0] * 3}, ("call", "tiny"): both(1e-5)})
    assert comparison(tmp_path, old, old) == 0
    assert comparison(tmp_path, old, grown) == 1
    wrong = results_of({size: {ORACLE: [500.0] * 3}})
    assert comparison(tmp_path, old, wrong) == 1
    assert "not measured" in capsys.readouterr().out  # a partial run is no regression by itself
    failed = results_of({size: {SUBJECT: [100.0] * 3, ORACLE: [500.0] * 3}})
    assert comparison(tmp_path, old, failed) == 0
    failed.mistakes.append("call, tiny: failed: no")
    assert comparison(tmp_path, old, failed) == 1


# Rendering.


def everything():
    """A result in which the subject takes 1 ms, jax.export 100 ms, and whatever stands beside 0.9 ms."""
    cells = {}
    for question in QUESTIONS:
        for case in filter(question.applies, CASES):
            beside = {name: [9e-4] * 3 for name in question.beside}
            cells[question.name, case.name] = {SUBJECT: [1e-3] * 3, ORACLE: [0.1] * 3, **beside}
            if question.peak and case.large:
                cells[PEAK + question.name, case.name] = {SUBJECT: [1e6], ORACLE: [5e8]}
    return results_of(cells)


def test_render_writes_the_page_and_the_charts(tmp_path):
    result = tmp_path / "result.json"
    everything().dump(result)
    (tmp_path / "README.md").write_text(f"before\n\n{render.START}\nold\n{render.END}\n\nafter\n")

    def written():
        render.main([str(result), "--root", str(tmp_path)])
        files = [tmp_path / "README.md", tmp_path / "docs" / "benchmarks.md", *(tmp_path / "docs/benchmarks").iterdir()]
        return {path.name: path.read_bytes() for path in files}

    first = written()
    assert written() == first
    assert first.keys() == {
        "README.md", "benchmarks.md", "result.json",
        "headline.svg", "ratio-files.svg", "ratio-use.svg", "arguments.svg", "module.svg",
    }  # fmt: skip
    for name, content in first.items():
        if name.endswith(".svg"):
            root = xml.etree.ElementTree.fromstring(content)
            assert root.tag.endswith("svg")
            assert b"prefers-color-scheme:dark" in content
    page, readme = first["benchmarks.md"].decode(), first["README.md"].decode()
    for goal in goals.GOALS:
        assert f"| {goal.about} | {goal.bound()} |" in page
    for name in ("ratio-files", "ratio-use", "arguments", "module"):
        assert f"(benchmarks/{name}.svg)" in page
    for case in CASES:
        assert f"| {case.name} |" in page
    assert "1.00 MB / 500 MB" in page
    assert readme.startswith("before\n")
    assert readme.endswith("\nafter\n")
    assert "docs/benchmarks/headline.svg" in readme
    assert "old" not in readme


def test_the_readme_has_a_place_for_the_chart():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert readme.count(render.START) == readme.count(render.END) == 1
    assert render.with_chart("no markers\n", everything()) == "no markers\n"


def test_goals_are_honest():
    results = everything()
    verdicts = {}
    for goal in goals.GOALS:
        measured = goal.measured(results)
        verdicts[goal.about] = goal.met(measured)
        # The goal of another name of a question or a case would never be measured.
        assert goal.question in QUESTION
        assert {*goal.cases, *filter(None, [goal.over])} <= {
            case.name for case in CASES if QUESTION[goal.question].applies(case)
        }
    assert verdicts["serialize, tiny: times faster than jax.export"]  # 100 of 50
    assert verdicts["serialize, 2,000 parameters: times faster than jax.export"]  # 100 of 100
    assert not verdicts["serialize, 2,000 sharded: times faster than jax.export"]  # 100 of 200
    assert verdicts["save, 512 MiB constant: divided by write(2) of the same bytes"]  # 1.11 of 1.15
    assert verdicts["deserialize, tiny: divided by its floor, verify + objects"]  # 1 / (0.9 + 0.9)
    assert not verdicts["vjp(), every case: first time divided by second"]  # 0.9 of 100
    page = render.page(results)
    assert page.count("| met |") == sum(verdicts.values())
    assert page.count("| **missed** |") == len(verdicts) - sum(verdicts.values())


def test_a_goal_about_every_case_takes_the_worst():
    goal = next(goal for goal in goals.GOALS if goal.question == "export" and not goal.cases)
    results = results_of({("export", "tiny"): both(1e-3), ("export", "20 sharded"): both(2e-3)})
    assert goal.measured(results) == pytest.approx(0.5, rel=0.01)
    results.add(measure.benchmark("x", [1.0], {"question": "export", "case": "deep tree", "rival": ORACLE}))
    assert goal.measured(results) is None  # a wrong one among them
    assert goal.measured(Results(ABOUT)) is None


def test_a_goal_about_two_cases_is_about_their_quotient():
    goal = next(goal for goal in goals.GOALS if goal.over)
    numbers = dict(zip((*goal.cases, goal.over), (1.1e-3, 1e-3), strict=True))
    results = results_of({(goal.question, case): {SUBJECT: [x], ORACLE: [1.0]} for case, x in numbers.items()})
    assert goal.measured(results) == pytest.approx(1.1)
    assert goal.met(goal.measured(results))
    assert goal.measured(results_of({(goal.question, goal.cases[0]): {SUBJECT: [1.0]}})) is None


def test_charts_show_every_value():
    svg = chart.bars("Title & more", "note", {"fast": 120.0, "slow": 0.5})
    texts = [element.text for element in xml.etree.ElementTree.fromstring(svg).iter() if element.text]
    assert {"Title & more", "fast", "slow"} <= set(texts)
    assert report.times(120.0) in texts
    assert report.times(0.5) in texts
    assert report.short(report.times(1.0)) in texts

    marks = chart.dots("t", "n", ["a", "b", "unused"], {"x": {"a": 3.0}, "y": {"a": 5.0, "b": 70.0}})
    assert marks.count("<polygon") == 3 + 2  # and one a name in the legend
    assert "unused" not in marks

    lines = [chart.Line("x", 0, {20.0: 1e-5, 200.0: 1e-4}), chart.Line("y", 1, {20.0: 2e-3}, dashed=True)]
    drawn = chart.panels("t", "n", [chart.Panel("p", lines), chart.Panel("empty", [chart.Line("z", 2, {})])], "things")
    assert drawn.count("<polygon") == 3
    assert "things" in drawn
    assert "empty" not in drawn

"""The benchmarks' results: compared with earlier ones, and drawn."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import xml.etree.ElementTree

import pytest

from bench import chart, compare, counts, goals, measure, render, report
from bench.cases import CASES
from bench.questions import QUESTIONS
from bench.results import ORACLE, PEAK, SUBJECT, Results
from kit.benchmarks import ABOUT, QUESTION, results_of
from kit.places import ROOT

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
    places = ("serialize again", "tiny"), ("deserialize again", "tiny"), ("load", "tiny")
    old = results_of(dict.fromkeys(places, both(1e-5)))
    new = results_of(
        {places[0]: both(1.5e-5, seed=1), places[1]: both(1.01e-5, seed=2), places[2]: both(0.5e-5, seed=4)}
    )
    assert comparison(tmp_path, old, new) == 1
    printed = capsys.readouterr().out
    (line,) = [line for line in printed.splitlines() if "REGRESSION" in line]
    assert line.startswith("serialize again")
    assert "-33%" in line
    assert "1 got worse, 1 better, 1 the same" in printed


AGAIN = "serialize again", "tiny"


def test_compare_is_about_ratios_not_machines_or_noise(tmp_path):
    """Also where the runs had different numbers of rounds."""
    old = results_of({AGAIN: both(1e-5, 1e-3)})
    assert comparison(tmp_path, old, results_of({AGAIN: both(3e-5, 3e-3, seed=1)})) == 0
    wide = [1e-5 * (1 + i % 2 * 4) for i in range(6)]
    noisy_ones = [results_of({AGAIN: {SUBJECT: [n * x for x in wide], ORACLE: [1e-3] * 6}}) for n in (1, 1.5)]
    assert comparison(tmp_path, *noisy_ones) == 0  # 50% slower, which such samples do not prove
    small = results_of({AGAIN: both(1.1e-5, seed=1)})
    assert comparison(tmp_path, old, small) == 0  # proven, but small
    assert comparison(tmp_path, old, small, "--threshold", "0.05") == 1
    fewer = results_of({AGAIN: {rival: samples[:7] for rival, samples in both(2e-5).items()}})
    assert (comparison(tmp_path, old, fewer), comparison(tmp_path, fewer, fewer)) == (1, 0)
    # No memory below a megabyte is taken seriously.
    place = PEAK + "deserialize again", "512 MiB constant"
    nothing, little, much = (results_of({place: {SUBJECT: [x], ORACLE: [5e8]}}) for x in (measure.ZERO, 3e5, 3e7))
    assert (comparison(tmp_path, nothing, little), comparison(tmp_path, nothing, much)) == (0, 1)


def test_compare_knows_sizes_and_empty_cells(tmp_path, capsys):
    size = "metadata size", "tiny"
    old = results_of({size: {SUBJECT: [100.0] * 3, ORACLE: [500.0] * 3}, ("call", "tiny"): both(1e-5)})
    grown = results_of({size: {SUBJECT: [130.0] * 3, ORACLE: [500.0] * 3}, ("call", "tiny"): both(1e-5)})
    assert (comparison(tmp_path, old, old), comparison(tmp_path, old, grown)) == (0, 1)
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
    first_screen = page.partition("\n## ")[0]
    took = {SUBJECT: "1.00 ms", ORACLE: "100 ms"}
    for wait in render.WAITS:
        there, here = (took.get(rival, "900 µs") for rival in (wait.than, wait.rival))
        assert f"| {wait.text} | {wait.in_place_of} | {there} | {here} |" in first_screen
        ratio = report.times({"1.00 ms": 1, "900 µs": 0.9, "100 ms": 100}[there] / {"1.00 ms": 1, "900 µs": 0.9}[here])
        assert f"| {here} | {ratio} | {report.times(100) if wait.again else ''} |" in first_screen
    assert "(benchmarks/headline.svg)" in first_screen
    for goal in goals.GOALS:
        assert f"| {goal.about} | {goal.bound()} |" in page
    for name in ("ratio-files", "ratio-use", "arguments", "module"):
        assert f"(benchmarks/{name}.svg)" in page
    for case in CASES:
        assert f"| {case.name} |" in page
    assert "1.00 MB / 500 MB" in page
    assert readme.startswith("before\n")
    assert readme.endswith("\nafter\n")
    assert "docs/benchmarks/headline.svg" in readme and "old" not in readme


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
        question = QUESTION[goal.question.removeprefix(PEAK)]
        is_peak = goal.question.startswith(PEAK)
        assert not is_peak or question.peak
        assert {*goal.cases, *filter(None, [goal.over])} <= {
            case.name for case in CASES if question.applies(case) and (case.large or not is_peak)
        }
    assert verdicts["serialize again, tiny: times faster than jax.export"]  # 100 of 60
    assert verdicts["deserialize again, 2,000 parameters: times faster than jax.export"]  # 100 of 100
    assert not verdicts["serialize, first time, 2,000 parameters: times faster than jax.export"]  # 100 of 120
    assert verdicts["save, 512 MiB constant: divided by write(2) of the same bytes"]  # 1.11 of 1.15
    workers = "load all again, 10,000 distinct, opened, 2 workers: divided by 1 worker without half of the verification"
    assert not verdicts[workers]  # 0.9 / (0.9 - 0.9 / 2)
    assert not verdicts["vjp(), every case: first time divided by second"]  # 0.9 of 100
    page = render.page(results)
    assert page.count("| met |") == sum(verdicts.values())
    assert page.count("| **missed** |") == len(verdicts) - sum(verdicts.values())


def test_a_page_of_two_runs_says_how_far_they_agree(tmp_path):
    tiny, sharded, size = ("serialize again", "tiny"), ("serialize again", "2,000 sharded"), ("metadata size", "tiny")

    def cells(small, large):
        return {tiny: {SUBJECT: [small] * 3, ORACLE: [1e-3] * 3}, sharded: {SUBJECT: [large] * 3, ORACLE: [1e-2] * 3}}

    measured = cells(1e-5, 1e-5) | {size: {SUBJECT: [1.0], ORACLE: [5.0]}}
    measured[sharded]["by hand"] = [1e-6] * 3
    first = results_of(measured)
    second = results_of(cells(2e-5, 1.01e-5), date="2027-01-02")
    for name, results in (("first", first), ("second", second)):
        results.dump(tmp_path / f"{name}.json")
    (tmp_path / "README.md").write_text("no chart\n")

    def rendered(*options):
        render.main([str(tmp_path / "first.json"), "--root", str(tmp_path), *options])
        return (tmp_path / "docs/benchmarks.md").read_text(encoding="utf-8")

    page = rendered("--again", str(tmp_path / "second.json"))
    assert f"1 of {len(goals.GOALS)} goals are met in both of two runs, 1 in one of them." in page
    assert "| goal | limit | measured | again |  |" in page
    small, large = (
        next(goal for goal in goals.GOALS if goal.about.startswith(f"serialize again, {case}:"))
        for case in ("tiny", "2,000 sharded")
    )
    times = report.times
    assert f"| {small.about} | {small.bound()} | {times(100)} | {times(50)} | met once |" in page
    assert f"| {large.about} | {large.bound()} | {times(1000)} | {times(990)} | met |" in page
    assert "1 of 3 ratios to jax.export are the same. In the second run, 0 are higher and 1 are lower," in page
    assert "1 were not measured again. Only the first run measured 'by hand'." in page
    assert f"| serialize again | tiny | {times(100)} | {times(50)} | -50% |" in page
    again = tmp_path / "docs/benchmarks/again.json"
    assert Results.load(again).about["date"] == "2027-01-02"
    assert f"| metadata size | tiny | {times(5)} |  |  |" in page

    kept = again.with_name("result.json")
    first_samples, second_samples = kept.read_bytes(), again.read_bytes()
    render.main([str(again), "--root", str(tmp_path), "--again", str(kept)])  # the other way round
    assert (kept.read_bytes(), again.read_bytes()) == (second_samples, first_samples)

    assert "## Measured again" not in rendered()
    assert not again.exists()  # of another page


def test_a_row_whose_samples_spread_is_unclear():
    goal = next(goal for goal in goals.GOALS if goal.about.startswith("serialize again, tiny:"))
    place = goal.question, "tiny"
    wide = [1e-5 * (1 + i % 3) for i in range(9)]
    for cells in ({SUBJECT: wide, ORACLE: [1e-2] * 9}, {SUBJECT: [1e-5] * 9, ORACLE: [1e3 * x for x in wide]}):
        results = results_of({place: cells | {"memcpy": wide}})
        assert not goal.is_clear(results)
        assert f"| {goal.about} | {goal.bound()} | {goal.show(goal.measured(results))} | unclear |" in render.page(
            results
        )
        assert "0 of" in render.page(results) and "1 are unclear" in render.page(results)
    steady = {SUBJECT: [1e-5] * 9, ORACLE: [1e-2] * 9, "memcpy": wide}
    results = results_of({place: steady, (place[0], "deep tree"): both(1)})
    assert goal.is_clear(results)
    results.add(measure.benchmark("x", wide, {"question": place[0], "case": "deep tree", "rival": SUBJECT}))
    assert goal.is_clear(results)  # another case


def test_goals_about_several_cases():
    """One about every case takes the worst; one about two cases is about their quotient."""
    goal = next(goal for goal in goals.GOALS if goal.question == "export" and not goal.cases)
    results = results_of({("export", "tiny"): both(1e-3), ("export", "20 sharded"): both(2e-3)})
    assert goal.measured(results) == pytest.approx(0.5, rel=0.01)
    results.add(measure.benchmark("x", [1.0], {"question": "export", "case": "deep tree", "rival": ORACLE}))
    assert goal.measured(results) is None  # a wrong one among them
    assert goal.measured(Results(ABOUT)) is None
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
    assert report.times(120.0) in texts and report.times(0.5) in texts
    assert report.short(report.times(1.0)) in texts

    marks = chart.dots("t", "n", ["a", "b", "unused"], {"x": {"a": 3.0}, "y": {"a": 5.0, "b": 70.0}})
    assert marks.count("<polygon") == 3 + 2  # and one a name in the legend
    assert "unused" not in marks

    lines = [chart.Line("x", 0, {20.0: 1e-5, 200.0: 1e-4}), chart.Line("y", 1, {20.0: 2e-3}, dashed=True)]
    drawn = chart.panels("t", "n", [chart.Panel("p", lines), chart.Panel("empty", [chart.Line("z", 2, {})])], "things")
    assert drawn.count("<polygon") == 3
    assert "things" in drawn and "empty" not in drawn


def test_a_small_loss_is_seen_and_noise_is_not():
    known = {"a": 1000, "b": 1000, "c": 1000, "d": 1000}
    found = {"a": 1029, "b": 1031, "c": 960, "e": 5}
    lines = counts.differences(known, found)
    assert [line.partition(":")[0] for line in lines] == ["b", "c", "d", "e"]
    assert "+3.1%" in lines[0]
    assert not counts.differences(known, known)
    kept = json.loads(counts.FILE.read_text())
    assert len(kept["counts"]) >= 12
    assert all(number > 1000 for number in kept["counts"].values())


@pytest.mark.long(
    promise="no core operation takes more instructions than before",
    sibling="test_compare_and_render.py::test_a_small_loss_is_seen_and_noise_is_not",
)
def test_no_operation_takes_more_instructions():
    measured = ROOT / "build" / "measured-{}.{}".format(*sys.version_info)
    if not measured.exists():
        pytest.skip("the installed jaxexp has assertions: `make measured` builds what is counted")
    command = [sys.executable, "-m", "bench", "counts"]
    environment = {**os.environ, "PYTHONPATH": str(measured)}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment)
    if done.returncode == counts.CANNOT:
        pytest.skip(done.stdout.strip())
    assert done.returncode == 0, done.stdout + done.stderr

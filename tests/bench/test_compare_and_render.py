"""The benchmarks' results: compared with earlier ones, and drawn."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import xml.etree.ElementTree

import pytest

from bench import accelerator, compare, counts, growth, measure, render, waits
from bench.cases import CASES
from bench.questions import QUESTIONS
from bench.results import ALONE, ORACLE, PEAK, SUBJECT, Results
from kit.benchmarks import QUESTION, results_of
from kit.places import ROOT


def noisy(level, seed=0):
    return [level * (1 + 0.02 * ((7 * i + seed) % 11 - 5) / 5) for i in range(20)]


def comparison(tmp_path, old, new, *options):
    for name, results in (("old", old), ("new", new)):
        results.dump(tmp_path / f"{name}.json")
    return compare.main([str(tmp_path / "old.json"), str(tmp_path / "new.json"), *options])


def both(ours, theirs=1e-3, seed=0):
    return {SUBJECT: noisy(ours, seed), ORACLE: noisy(theirs, seed + 3)}


def test_compare_flags_a_regression(tmp_path, capsys):
    places = ("save", "tiny"), ("deserialize again", "tiny"), ("load", "tiny")
    old = results_of(dict.fromkeys(places, both(1e-5)))
    new = results_of(
        {places[0]: both(1.5e-5, seed=1), places[1]: both(1.01e-5, seed=2), places[2]: both(0.5e-5, seed=4)}
    )
    assert comparison(tmp_path, old, new) == 1
    printed = capsys.readouterr().out
    (line,) = [line for line in printed.splitlines() if "REGRESSION" in line]
    assert line.startswith("save")
    assert "-33%" in line
    assert "1 got worse, 1 better, 1 the same" in printed


AGAIN = "deserialize again", "tiny"


def test_compare_is_about_ratios_not_machines_or_noise(tmp_path):
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


def everything():
    """A result in which the subject takes 1 ms, jax.export 100 ms, and whatever stands beside 0.9 ms."""
    cells = {}
    for question in QUESTIONS:
        for case in filter(question.applies, CASES):
            beside = {name: [9e-4] * 3 for name in question.beside}
            cells[question.name, case.name] = {SUBJECT: [1e-3] * 3, ORACLE: [0.1] * 3, **beside}
            alone = {rival: [1e6] for rival in cells[question.name, case.name]}
            cells[ALONE + question.name, case.name] = {**alone, SUBJECT: [2e6]}
            if question.peak and case.large:
                cells[PEAK + question.name, case.name] = {SUBJECT: [1e6], ORACLE: [5e8]}
    return results_of(cells)


def test_the_page_and_its_charts(tmp_path):
    """Of one run; of two, it says how far they agree."""
    for name, results in {"first": everything(), "second": results_of({AGAIN: both(2e-5)}, date="2027-01-02")}.items():
        results.dump(tmp_path / f"{name}.json")
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert readme.count(render.START) == readme.count(render.END) == 1
    (tmp_path / "README.md").write_text(f"before\n\n{render.START}\nold\n{render.END}\n\nafter\n")

    def written(*options):
        render.main([str(tmp_path / "first.json"), "--root", str(tmp_path), *options])
        files = [tmp_path / "README.md", tmp_path / "docs" / "benchmarks.md", *(tmp_path / "docs/benchmarks").iterdir()]
        return {path.name: path.read_bytes() for path in files}

    first = written()
    assert written() == first
    for name, content in first.items():
        if name.endswith(".svg"):
            assert xml.etree.ElementTree.fromstring(content).tag.endswith("svg")
            assert f"benchmarks/{name})".encode() in first["benchmarks.md"]
    page, readme = first["benchmarks.md"].decode(), first["README.md"].decode()
    first_table = page.partition("\n## ")[0]
    assert all(f"| {wait.text} | " in first_table for wait in waits.WAITS)
    grown = {family.family for family in growth.GROWN}
    assert all(f"| {case.name} |" in page for case in CASES if case.family not in grown)
    assert all(f"By the number of {family.text}:" in page for family in growth.GROWN)
    assert "Not measured yet" in page.partition("## On an accelerator")[2].partition("\n## ")[0]
    assert "1.00 MB / 2.00 MB" in first_table
    assert "1.00 MB / 500 MB" in page
    assert [wait for wait in waits.WAITS if f"| {wait.text} |" in readme] == [w for w in waits.WAITS if w.front]
    assert readme.startswith("before\n") and readme.endswith("\nafter\n") and "old" not in readme
    two = written("--again", str(tmp_path / "second.json"))
    assert b": met, measured once |" not in first["benchmarks.md"]
    assert b": met, measured once |" in two["benchmarks.md"]
    assert Results.load(tmp_path / "docs/benchmarks/again.json").about["date"] == "2027-01-02"
    written()
    assert not (tmp_path / "docs/benchmarks/again.json").exists()  # of another page


def test_goals_are_honest():
    """Every row can be measured; it is met, missed, met once or not measured, as its samples say."""
    results = everything()
    for wait in waits.WAITS:
        question = QUESTION[wait.question]
        assert wait.case in {case.name for case in filter(question.applies, CASES)}
        others = {wait.ours, wait.theirs, *wait.others, wait.bound} - {SUBJECT, ORACLE, ""}
        assert others <= question.beside.keys()
        assert wait.cell(results)
    for wait in waits.ON_ACCELERATOR:
        asked = {case.name for case in filter(QUESTION[wait.question].applies, CASES)}
        assert {wait.case, accelerator.QUICK[wait.case]} <= asked
    fast = waits.WAITS[0]
    place = fast.question, fast.case

    def ratio(ours, theirs=1.0):
        return fast.ratio(results_of({place: {fast.ours: [ours] * 3, fast.theirs: [theirs] * 3}}))

    assert fast.verdict([ratio(0.5)]) == fast.verdict([ratio(0.5), ratio(0.9)]) == "met"
    assert fast.verdict([ratio(1.0)]) == "**missed**"
    assert fast.verdict([ratio(1.0), ratio(0.5)]) == "met once"
    spread = results_of({place: {fast.ours: [0.1, 0.5, 0.9], fast.theirs: [1.0] * 3}})
    nothing = fast.ratio(results_of({}))
    assert fast.verdict([fast.ratio(spread)]) == fast.verdict([nothing, nothing]) == "not measured"
    assert fast.verdict([ratio(0.5), nothing]) == "met, measured once"
    assert fast.verdict([nothing, ratio(1.0)]) == "**missed**"


def test_slopes():
    """Where time is a power of size, or n log n."""
    sizes = [10.0, 100.0, 1000.0]
    for power in (0, 1, 2):
        points = {n: 3 * n**power for n in sizes}
        assert growth.slope(points) == pytest.approx(power)
        assert growth.steepest(points) == pytest.approx(power)
    points = {n: n * math.log(n) for n in sizes}
    assert growth.steepest(points) == pytest.approx(growth.most(points))
    (symbolic, *_) = growth.tables(everything())
    assert symbolic[1][0][2:5] == ("10", "30", "100")
    assert symbolic[1][1][:3] == ("serialize", "jaxexp", "1.00 ms")


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

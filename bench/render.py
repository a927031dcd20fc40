"""`python -m bench render RESULT.json`: writes docs/benchmarks.md, its charts, and the README's numbers from a result.

With `--again OTHER.json`, the page also says how far a second run agrees with it.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bench import chart, disk, memory
from bench.bench_cold import CACHED_ORACLE
from bench.cases import CASES
from bench.compare import GONE, IMPROVEMENT, REGRESSION, SAME, THRESHOLD, changes
from bench.goals import GOALS, JAX, MOST_SPREAD, Goal
from bench.measure import FULL
from bench.question import Question
from bench.questions import QUESTIONS
from bench.report import amount, pair, peaks_of, percent, shown, times
from bench.results import ORACLE, SUBJECT, Cell, Results, over

START, END = "<!-- benchmarks: start -->", "<!-- benchmarks: end -->"


@dataclass(frozen=True)
class Wait:
    """A row of the page's first table: what people wait for, the cell that tells how long, the rivals that it compares,
    the name of the one in whose place the other comes, and the question that tells the same of the next times.
    """

    text: str
    question: str
    case: str
    rival: str = SUBJECT
    than: str = ORACLE
    in_place_of: str = "jax.export"
    again: str = ""
    front: bool = False  # in the README, too


_LOADED = "a model with 512 MiB of weights is loaded and called"
_STARTED = "a process starts, loads a convnet and calls it"
WAITS = (
    Wait(
        "a function of 2,000 arrays becomes bytes", "serialize, first time", "2,000 parameters", again="serialize again"
    ),
    Wait("these bytes become a function", "deserialize, first time", "2,000 parameters", again="deserialize again"),
    Wait(
        "10,000 functions are read from disk",
        "load all, first time",
        "10,000 versions",
        again="load all again",
        front=True,
    ),
    Wait(_LOADED, "load weights, first call", "512 MiB of weights", in_place_of="jax.export, weights in the module"),
    Wait(
        _LOADED,
        "load weights, first call",
        "512 MiB of weights",
        than="arguments, warm cache",
        in_place_of="jax.export with JAX's compilation cache, weights from safetensors as an argument",
        front=True,
    ),
    Wait(_STARTED, "cold start", "convnet"),
    Wait(
        f"{_STARTED}, with compiled code in a file",
        "cold start",
        "convnet",
        rival="executables",
        than=CACHED_ORACLE,
        in_place_of="jax.export, JAX's compilation cache",
    ),
    Wait(
        f"{_STARTED}, from C++, with compiled code in a file",
        "cold start",
        "convnet",
        rival="C++, executables",
        than=CACHED_ORACLE,
        in_place_of="Python with jax.export and JAX's compilation cache",
        front=True,
    ),
)
HEADLINES = (
    ("serialize, first time", "tiny"),
    ("serialize, first time", "2,000 parameters"),
    ("serialize, first time", "2,000 sharded"),
    ("deserialize, first time", "tiny"),
    ("deserialize, first time", "2,000 parameters"),
    ("deserialize, first time", "2,000 sharded"),
    ("save", "512 MiB constant"),
    ("load", "512 MiB constant"),
    ("load all, first time", "10,000 versions"),
    ("load all, first time", "10,000 distinct"),
    ("call", "tiny"),
    ("trace", "2,000 parameters"),
    ("export", "2,000 parameters"),
    ("export", "512 MiB constant"),
)


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench render", description=__doc__)
    parser.add_argument("result", type=Path)
    parser.add_argument("--again", type=Path, metavar="RESULT", help="a second run, which the page compares")
    parser.add_argument("--root", type=Path, default=disk.ROOT, help="the checkout that is written to")
    options = parser.parse_args(argv)
    render(options.result, options.root, options.again)
    return 0


def render(result: Path, root: Path = disk.ROOT, again: Path | None = None) -> None:
    results, second = Results.load(result), Results.load(again) if again else None
    docs = root / "docs"
    folder = docs / "benchmarks"
    folder.mkdir(parents=True, exist_ok=True)
    # Read before they are written: the second run may become the first.
    samples = {"result.json": result.read_bytes()}
    if again:
        samples["again.json"] = again.read_bytes()
    (folder / "again.json").unlink(missing_ok=True)  # of an older page
    for name, content in samples.items():
        (folder / name).write_bytes(content)
    for name, text in charts(results).items():
        (folder / f"{name}.svg").write_text(text, encoding="utf-8")
    (docs / "benchmarks.md").write_text(page(results, second), encoding="utf-8")
    readme = root / "README.md"
    readme.write_text(with_numbers(readme.read_text(encoding="utf-8"), results), encoding="utf-8")


def with_numbers(readme: str, results: Results) -> str:
    """A README whose text between the two markers, if it has them, has the rows of `WAITS` for the front."""
    before, start, rest = readme.partition(START)
    _, end, after = rest.partition(END)
    if not (start and end):
        return readme
    versions = results.about["versions"]
    machine = results.about["machine"].partition(", Linux")[0]
    measured = f"Measured with {versions}, on {machine}: [all numbers](docs/benchmarks.md)."
    numbers = f"{_waits(results, front=True)}\n\n{measured}\n"
    return f"{before}{START}\n{numbers}{END}{after}"


def _title(results: Results) -> str:
    return f"How many times faster than jax.export {results.about['subject']} is"


def charts(results: Results) -> dict[str, str]:
    """SVG by file name."""
    subject, stack = results.about["subject"], results.about["versions"]
    note = f"jax.export's median over {subject}'s; logarithmic. {stack}"
    case_names = [case.name for case in CASES]

    def ratios(*questions: str) -> dict[str, dict[str, float]]:
        found: dict[str, dict[str, float]] = {question: {} for question in questions}
        for (question, case), cell in results.cells.items():
            if question in found and cell.ratio is not None:
                found[question][case] = cell.ratio
        return {question: points for question, points in found.items() if points}

    def line(question: str, family: str, rival: str, name: str, series: int, dashed: bool = False) -> chart.Line:
        sizes = {case.name: case.size for case in CASES if case.family == family}
        cells = [cell for (asked, case), cell in results.cells.items() if asked == question and case in sizes]
        points = {float(sizes[cell.case]): median for cell in cells if (median := cell.median(rival)) is not None}
        return chart.Line(name, series, points, dashed)

    def panel(question: str, families: tuple[str, ...], floor: str = "", meaning: str = "") -> chart.Panel:
        plain, *others = families
        lines = [line(question, plain, floor, "for comparison", chart.FLOOR)] if floor else []
        for name, series, rival in (("jax.export", 1, ORACLE), (subject, 0, SUBJECT)):
            lines.append(line(question, plain, rival, name, series))
            lines += [line(question, other, rival, f"{name}, {other}", series, dashed=True) for other in others]
        return chart.Panel(f"{question}; grey: {meaning}" if floor else question, lines)

    by_arguments = partial(panel, families=("parameters", "sharded"))
    by_module = partial(panel, families=("constant",))

    medians = f"Medians; both axes are logarithmic. {stack}"
    drawn = {}
    if series := ratios("serialize, first time", "deserialize, first time", "save", "load"):
        drawn["ratio-files"] = chart.dots(f"{_title(results)}: to bytes and files, and back", note, case_names, series)
    if series := ratios("call", "jit call", "trace", "export"):
        drawn["ratio-use"] = chart.dots(f"{_title(results)}: export and use", note, case_names, series)
    arguments = [
        by_arguments("serialize, first time"),
        by_arguments("deserialize, first time", floor="objects", meaning="building the objects"),
        by_arguments("trace", floor="live", meaning="the live function"),
        by_arguments("export", floor="jit", meaning="tracing and lowering"),
    ]
    if any(line.points for panel in arguments for line in panel.lines):
        drawn["arguments"] = chart.panels("Time against the number of arguments", medians, arguments, "arguments")
    modules = [
        by_module("serialize again", floor="memcpy", meaning="one memcpy of the module"),
        by_module("deserialize, first time", floor="objects", meaning="building the objects"),
        by_module("save", floor="write(2)", meaning="write(2)"),
        by_module("load", floor="mmap", meaning="open and mmap"),
    ]
    if any(line.points for panel in modules for line in panel.lines):
        drawn["module"] = chart.panels("Time against the size of the module", medians, modules, "MiB of constants")
    found = {place: results.cells[place].ratio for place in HEADLINES if place in results.cells}
    headlines = {", ".join(place): ratio for place, ratio in found.items() if ratio is not None}
    if headlines:
        drawn["headline"] = chart.bars(_title(results), note, headlines)
    return drawn


def page(results: Results, again: Results | None = None) -> str:
    about = results.about
    drawn = charts(results)
    captions = {
        "ratio-files": "The ratio of each case: serialize, deserialize, save, load",
        "ratio-use": "The ratio of each case: call, call under jit, trace, export",
        "arguments": "Time against the number of arguments",
        "module": "Time against the size of the module",
    }
    parts = [
        "<!-- Written by `python -m bench render`: change bench/, not this page. -->",
        f"# {about['subject']} beside jax.export",
        _first(results),
        *([f"![{_title(results)}](benchmarks/headline.svg)"] if "headline" in drawn else []),
        f"## How it is measured\n\n{_how(results)}",
        f"## Goals\n\n{_goals(results, again)}",
        "## Charts",
        *(f"![{caption}](benchmarks/{name}.svg)" for name, caption in captions.items() if name in drawn),
        *(section for question in QUESTIONS if (section := _section(question, results))),
        *([f"## Measured again\n\n{_again(results, again)}"] if again else []),
    ]
    if results.mistakes:
        lines = [f"- {mistake}" for mistake in results.mistakes]
        parts.append("\n".join(["## Empty cells", "", *lines]))
    return "\n\n".join(parts) + "\n"


def _first(results: Results) -> str:
    """What somebody needs who wonders whether to switch."""
    subject = results.about["subject"]
    after = (
        f"The ratio is how many times faster {subject} is the first time; the last column has it for the next times in "
        "the same process. XLA compiles the same code from both, so calls of a large model gain nothing. `export` "
        "gains nothing either: it waits for JAX's tracing and lowering."
    )
    return f"{_waits(results)}\n\n{after}"


def _waits(results: Results, front: bool = False) -> str:
    """A table of what people wait for; for the README, of the rows for the front, without how it is the next times."""
    rows = []
    for wait in WAITS:
        cell = results.cell(wait.question, wait.case)
        if cell is None or (ours := cell.median(wait.rival)) is None or (theirs := cell.median(wait.than)) is None:
            continue
        if front and not wait.front:
            continue
        next_times = results.cell(wait.again, wait.case)
        again = "" if next_times is None else times(next_times.ratio)
        took = shown(cell, wait.than), shown(cell, wait.rival)
        rows.append((wait.text, wait.in_place_of, *took, times(over(theirs, ours)), again))
    first, subject = "what you wait for, the first time", results.about["subject"]
    header = (first, "compared with", "it takes", f"{subject} takes", "ratio", "next times")
    columns = len(header) - front
    return _table(header[:columns], [row[:columns] for row in rows], left=2)


def _how(results: Results) -> str:
    about = results.about
    subject, disk_type = about["subject"], f" ({about['file system']})" if about["file system"] else ""
    lines = [
        f"Measured on {about['date']} with {about['versions']}, on: {about['machine']}. The load average at the start "
        f"was {about['load average'] or 'unknown'}. The samples are in [result.json](benchmarks/result.json), which "
        "`pyperf stats` reads. `make bench` measures again and writes this page; `python -m bench compare` compares "
        "two results.",
        "",
        "- Both libraries run in one process, with the same bytes and the same objects. After a warm-up they take "
        "turns, one sample in each round. Before each sample, the garbage collector runs (it is off during samples), "
        "and an allocation of 64 KiB makes the C library merge freed blocks. Then the code runs once without being "
        "timed, unless each run needs new objects. So the effects of other samples on caches and free memory do not "
        "count.",
        f"- A sample is the mean over {amount(FULL.sample)} of runs, or one run if that takes longer. There are "
        f"{FULL.fewest} to {FULL.samples} rounds, fewer if a run takes long.",
        "- Times are medians. IQR is the interquartile range, divided by the median. The ratio is jax.export's median, "
        f"divided by {subject}'s: above {times(1)}, {subject} is faster, or its result is smaller. The columns to the "
        "right of it are explained above each table.",
        "- The results of both libraries are compared before anything is timed. A wrong result leaves its cells empty.",
        f"- Peak memory of the large cases, {subject} / jax.export: {memory.HOW}.",
        f"- Files are written to and read from the checkout's disk{disk_type}, through the page cache.",
    ]
    return "\n".join(lines)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> str:
    rule = [":--" if i < left else "--:" for i in range(len(head))]
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, rule, *rows))


def _goals(results: Results, again: Results | None) -> str:
    def verdict(goal: Goal, measured: Sequence[float | None]) -> str:
        met = [goal.met(value) for value in measured if value is not None]
        if not met:
            return "not measured"
        if not all(map(goal.is_clear, runs)):
            return "unclear"
        if all(met) and len(met) == len(measured):
            return "met"
        return "met once" if any(met) else "**missed**"

    runs = [results] if again is None else [results, again]
    rows = []
    for goal in GOALS:
        measured = [goal.measured(run) for run in runs]
        values = ("" if value is None else goal.show(value) for value in measured)
        rows.append((goal.about, goal.bound(), *values, verdict(goal, measured)))
    verdicts = Counter(row[-1] for row in rows)
    both = f" in both runs, and {verdicts['met once']} in one of them" if again else ""
    if verdicts["unclear"]:
        both += f". {verdicts['unclear']} are unclear: samples have an IQR above {MOST_SPREAD:.0%}"
    other = "" if results.about["jax"] == JAX else f" They are for JAX {JAX}; this run used {results.about['jax']}."
    head = ("goal", "limit", "measured", *(["again"] if again else []), "")
    return f"Of {len(rows)} goals, {verdicts['met']} are met{both}.{other}\n\n{_table(head, rows)}"


def _again(results: Results, again: Results) -> str:
    """How far a second run agrees."""
    about = again.about
    found = changes(results, again)
    count = Counter(change.verdict for change in found)
    text = (
        f"The second run was on {about['date']} with {about['versions']}, on: {about['machine']}. The load average at "
        f"its start was {about['load average'] or 'unknown'}. Its samples are in [again.json](benchmarks/again.json). "
        f"{count[SAME]} of {len(found)} ratios to jax.export are the same. In the second run, {count[IMPROVEMENT]} are "
        f"higher and {count[REGRESSION]} are lower, each by more than {THRESHOLD:.0%} and significantly in pyperf's "
        "test."
    )
    if count[GONE]:
        text += f" {count[GONE]} were not measured again."
    if once := _measured_once(results, again):
        text += f" Only the first run measured {', '.join(map(repr, once))}."
    text += " All sections above show the first run."
    rows = [
        (change.question, change.case, times(change.old), times(change.new), change.percent)
        for change in found
        if change.verdict != SAME
    ]
    if not rows:
        return text
    return f"{text}\n\n" + _table(("question", "case", "ratio", "again", "change"), rows, left=2)


def _measured_once(results: Results, again: Results) -> list[str]:
    """The rivals that are in cells of the first run, and not in those of the second."""
    both = ((cell, again.cells[place]) for place, cell in results.cells.items() if place in again.cells)
    return sorted({rival for cell, other in both for rival in cell.rivals if rival not in other.rivals})


def _section(question: Question, results: Results) -> str:
    cells = {case.name: cell for case in CASES if (cell := results.cell(question.name, case.name)) is not None}
    if not cells:
        return ""
    peaks = {case: found for case, cell in cells.items() if (found := peaks_of(results, cell)) is not None}
    subject = results.about["subject"]
    head = ["case", subject, "IQR", "jax.export", "IQR", "ratio", *question.beside]
    rows = [_row(cell, question.beside) for cell in cells.values()]
    if peaks:
        head.append("peak memory")
        for row, case in zip(rows, cells, strict=True):
            row.append(pair(peaks.get(case)))
    beside = "".join(f"\n- {name}: {text}." for name, text in question.beside.items())
    text = f"## {question.title or question.name}\n\n{question.asks}\n{beside}".replace("the subject", subject)
    return f"{text}\n\n{_table(head, rows)}".replace("\n\n\n", "\n\n")


def _row(cell: Cell, beside: Mapping[str, str]) -> list[str]:
    ours, theirs = ([shown(cell, rival), percent(cell, rival)] for rival in (SUBJECT, ORACLE))
    return [cell.case, *ours, *theirs, times(cell.ratio), *(shown(cell, name) for name in beside)]

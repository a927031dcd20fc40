"""`python -m bench render RESULT.json`: writes docs/benchmarks.md, its charts, and the README's numbers from a result.

With `--again OTHER.json`, the page also says how far a second run agrees with it.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from bench import bench_growth, chart, disk, growth, memory, waits
from bench.cases import CASES
from bench.compare import GONE, IMPROVEMENT, REGRESSION, SAME, THRESHOLD, changes
from bench.measure import FULL
from bench.question import Question
from bench.questions import QUESTIONS
from bench.report import amount, pair, peaks_of, percent, shown, times
from bench.results import ORACLE, SUBJECT, Cell, Results

START, END = "<!-- benchmarks: start -->", "<!-- benchmarks: end -->"


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
    measured = folder / waits.ACCELERATOR
    third = Results.load(measured) if measured.exists() else None
    (docs / "benchmarks.md").write_text(page(results, second, third), encoding="utf-8")
    readme = root / "README.md"
    readme.write_text(with_numbers(readme.read_text(encoding="utf-8"), results), encoding="utf-8")


def with_numbers(readme: str, results: Results) -> str:
    """A README whose text between the two markers, if it has them, has its rows of the first table."""
    before, start, rest = readme.partition(START)
    _, end, after = rest.partition(END)
    if not (start and end):
        return readme
    versions = results.about["versions"]
    machine = results.about["machine"].partition(", Linux")[0]
    measured = f"Measured with {versions}, on {machine}: [all numbers](docs/benchmarks.md)."
    numbers = f"{_table(*waits.front(results))}\n\n{measured}\n"
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

    drawn = {}
    if series := ratios("serialize, first time", "deserialize, first time", "save", "load"):
        drawn["ratio-files"] = chart.dots(f"{_title(results)}: to bytes and files, and back", note, case_names, series)
    if series := ratios("call", "jit call", "trace", "export"):
        drawn["ratio-use"] = chart.dots(f"{_title(results)}: export and use", note, case_names, series)
    return drawn


def page(results: Results, again: Results | None = None, on_accelerator: Results | None = None) -> str:
    about = results.about
    drawn = charts(results)
    captions = {
        "ratio-files": "The ratio of each case: serialize, deserialize, save, load",
        "ratio-use": "The ratio of each case: call, call under jit, trace, export",
    }
    parts = [
        "<!-- Written by `python -m bench render`: change bench/, not this page. -->",
        f"# {about['subject']} beside jax.export",
        _first(results, again),
        f"## On an accelerator\n\n{_accelerated(on_accelerator)}",
        f"## How it is measured\n\n{_how(results)}",
        "## Appendix: every question, case by case",
        *(f"![{caption}](benchmarks/{name}.svg)" for name, caption in captions.items() if name in drawn),
        *([f"## Growth\n\n{grown}"] if (grown := _growth(results)) else []),
        *(
            section
            for question in QUESTIONS
            if question not in bench_growth.QUESTIONS and (section := _section(question, results))
        ),
        *([f"## Measured again\n\n{_again(results, again)}"] if again else []),
    ]
    if results.mistakes:
        lines = [f"- {mistake}" for mistake in results.mistakes]
        parts.append("\n".join(["## Empty cells", "", *lines]))
    return "\n\n".join(parts) + "\n"


def _first(results: Results, again: Results | None) -> str:
    """What somebody needs who wonders whether to switch."""
    head, rows = waits.table(results, again)
    verdicts = Counter(row[-2].partition(": ")[2] for row in rows)
    subject = results.about["subject"]
    both = " in both runs" if again else ""
    left = (
        f" {verdicts['not measured']} are not measured: a package was not installed, or samples spread by more than "
        f"{waits.MOST_SPREAD:.0%}."
    )
    return (
        "Each row is something that people wait for. `jax.export` is set up as its users can make it fastest; another "
        "way or package that they might take instead stands beside it, where there is one. The limit is a part of the "
        "work that no library on JAX can avoid, or the same by hand. A goal is what each release has to keep: it was "
        f"set after a measurement, and below {times(1)} it says how much slower a release may be. Peak memory is that "
        f"of a whole process, with Python, all libraries and what it prepares, of jax.export / {subject}. "
        f"Of {len(rows)}, {verdicts['met']} are met{both}.{left if verdicts['not measured'] else ''}\n\n"
        f"{_table(head, rows)}\n\n"
        f"In JAX, XLA compiles the same code from both, so calls in a `jax.jit` gain nothing from {subject}. Without "
        "JAX, a plugin with another XLA compiles the function. `export` gains little: it waits for JAX's tracing and "
        "lowering."
    )


def _accelerated(results: Results | None) -> str:
    if results is None:
        return "Not measured yet: `make accelerator PLATFORM=cuda` does it, on a machine that has one."
    about = results.about
    where = f"Measured on {about['date']} with {about['versions']}, on: {about['device']}, {about['machine']}."
    return f"{where}\n\n{_table(*waits.Wait.table(waits.ON_ACCELERATOR, results))}"


def _how(results: Results) -> str:
    about = results.about
    subject, disk_type = about["subject"], f" ({about['file system']})" if about["file system"] else ""
    others = f" The other packages were {about['versions of others']}." if about.get("versions of others") else ""
    lines = [
        f"Measured on {about['date']} with {about['versions']}, on: {about['machine']}. The load average at the start "
        f"was {about['load average'] or 'unknown'}.{others} The samples are in "
        "[result.json](benchmarks/result.json), which `pyperf stats` reads. `make bench` measures again and writes "
        "this page; `python -m bench compare` compares two results.",
        "",
        "- Where a section below says so, each sample is the first run in a new process. Otherwise both libraries run "
        "in one process, with the same bytes and the same objects: before each sample, the garbage collector runs (it "
        "is off during samples), an allocation of 64 KiB makes the C library merge freed blocks, and the code runs "
        "once without being timed, unless each run needs new objects. Then a sample is the mean over "
        f"{amount(FULL.sample)} of runs, or one run if that takes longer.",
        f"- All take turns, one sample in each round. There are {FULL.fewest} to {FULL.samples} rounds, fewer if a run "
        f"takes long; {waits.FEWEST} or more for the rows of the first table.",
        "- Times are medians. IQR is the interquartile range, divided by the median. The ratio is jax.export's median, "
        f"divided by {subject}'s: above {times(1)}, {subject} is faster, or its result is smaller. The columns to the "
        "right of it are explained above each table.",
        "- What both libraries return is compared before anything is timed; of thousands of functions, about a hundred "
        "are. A wrong result leaves its cells empty.",
        f"- Peak memory of the large cases, {subject} / jax.export: {memory.HOW}.",
        f"- Files are written to and read from the checkout's disk{disk_type}, through the page cache.",
    ]
    return "\n".join(lines)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> str:
    rule = [":--" if i < left else "--:" for i in range(len(head))]
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, rule, *rows))


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


def _growth(results: Results) -> str:
    found = growth.tables(results)
    if not found:
        return ""
    how = (
        "The first run in a new process, for several sizes. The slope is the exponent that fits all of them best: 1 "
        "where time grows as size does. Fixed costs make it smaller, so the last step, from the second largest size to "
        "the largest, is beside it, and what that would be if time were n log n."
    )
    return "\n\n".join([how, *(f"By the number of {text}:\n\n{_table(*_split(rows), left=2)}" for text, rows in found)])


def _split(rows: list[tuple[str, ...]]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    return rows[0], rows[1:]


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

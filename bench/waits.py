"""What people wait for: the rows of the first table of docs/benchmarks.md, each with its goal."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from bench.bench_cold import CACHED_ORACLE, JAXS_CODE
from bench.bench_weights import MAPPED
from bench.measure import spread
from bench.report import shown, times
from bench.results import ALONE, ORACLE, SUBJECT, Cell, Results, over

MOST_SPREAD = 0.25  # samples that spread more, relative to their median, measure nothing
FEWEST = 7  # rounds


@dataclass(frozen=True)
class Wait:
    """What somebody waits for, and how long it takes in several ways: rivals of one cell.

    Attributes:
        text: what it is, as its user would say it.
        question: the cell's question.
        case: the cell's case.
        ours: how jaxexp does it.
        theirs: the fastest way with jax.export.
        setup: what jax.export needs for it, besides itself.
        others: other packages that a user might take.
        bound: what no library can be faster than, or none.
        meaning: what the bound is.
        goal: how many times faster jaxexp has to be than jax.export.
        front: whether the README has this row, too.
    """

    text: str
    question: str
    case: str
    goal: float
    ours: str = SUBJECT
    theirs: str = ORACLE
    setup: str = ""
    others: tuple[str, ...] = ()
    bound: str = ""
    meaning: str = ""
    front: bool = False

    @staticmethod
    def table(waits: Iterable[Wait], results: Results) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        """The head and the rows of a table without goals, of what was measured."""
        rows = [
            (
                wait.text,
                wait.took(cell, wait.theirs, wait.setup),
                wait.took(cell, wait.ours),
                times(wait.ratio(results)),
            )
            for wait in waits
            if (cell := wait.cell(results)) is not None
        ]
        return ("what you wait for", "jax.export", results.about["subject"], "times faster"), rows

    def with_case(self, what: str, case: str, goal: float) -> Wait:
        """The row below: the same, of another case."""
        return replace(self, text=f"the same, {what}", case=case, goal=goal, front=False)

    def cell(self, results: Results) -> Cell | None:
        """The cell, if it tells how long both take."""
        found = results.cell(self.question, self.case)
        return found if found is not None and {self.ours, self.theirs} <= found.rivals.keys() else None

    def ratio(self, results: Results) -> float | None:
        """How many times faster jaxexp is; None if this was not measured, or if its samples spread too much."""
        cell = self.cell(results)
        if cell is None or any(spread(cell.rivals[name]) > MOST_SPREAD for name in (self.ours, self.theirs)):
            return None
        return over(cell.median(self.theirs), cell.median(self.ours))

    def verdict(self, ratios: list[float | None]) -> str:
        """Whether each run meets the goal, as far as it was measured."""
        met = [ratio >= self.goal for ratio in ratios if ratio is not None]
        if not met:
            return "not measured"
        if not all(met):
            return "met once" if any(met) else "**missed**"
        return "met" if len(met) == len(ratios) else "met, measured once"

    def memory(self, results: Results) -> str:
        """The peak memory of the processes of both."""
        cell = results.cell(ALONE + self.question, self.case)
        return "" if cell is None else " / ".join(shown(cell, rival) or "-" for rival in (self.theirs, self.ours))

    def took(self, cell: Cell, rival: str, name: str = "") -> str:
        """A time, and in parentheses what it is of."""
        time = shown(cell, rival)
        return f"{time} ({name})" if time and name else time


_CACHE = "JAX's compilation cache"
_AS_ARGUMENT = f"{_CACHE}, weights as an argument, mapped arrays of NumPy"
_ZIP = "a zip file"
_JITTED = "in a `jax.jit`"
_WITHOUT_JAX = "without JAX, compiled code in a file"
_PYTHON = "Python and JAX"

_STARTED = Wait(
    "the same, with compiled code in a file",
    "cold start",
    "convnet",
    goal=1.1,
    ours="executables",
    theirs=CACHED_ORACLE,
    setup=_CACHE,
    others=(JAXS_CODE,),
    bound="no function",
    meaning=_PYTHON,
)
_SERVED = Wait(
    f"a server in Python answers its first request to a convnet, {_WITHOUT_JAX}",
    "served, cold start",
    "served convnet",
    goal=4.0,
    ours="session, executables",
    theirs=CACHED_ORACLE,
    setup=_CACHE,
    others=("ONNX Runtime", "pypjrt"),
    bound="C++, executables",
    meaning="C++",
)
_FROM_CPP = Wait(
    f"a program in C++ loads a convnet and calls it, {_WITHOUT_JAX}",
    "served, cold start",
    "served convnet",
    goal=8.0,
    ours="C++, executables",
    theirs=CACHED_ORACLE,
    setup=f"in Python, of which most is the import of JAX; {_CACHE}",
    others=("ONNX Runtime",),
    front=True,
)
_LOADED = Wait(
    "a model with 512 MiB of weights is loaded and called, with compiled code in a file",
    "load weights, first call",
    "512 MiB of weights",
    goal=1.0,
    ours="executables",
    theirs=MAPPED,
    setup=_AS_ARGUMENT,
    others=("arguments, warm cache",),
    front=True,
)
_FLEET = Wait(
    "10,000 functions are read when a server starts: 50 versions of 200",
    "load all, first time",
    "10,000 versions",
    goal=45.0,
    front=True,
)
_ANSWERED = Wait(
    "a server answers one request after another: 16 numbers",
    "served, 1 thread",
    "served 16 numbers",
    goal=1.0,
    ours="session",
    setup=_JITTED,
    others=("ONNX Runtime", "AOTInductor", "pypjrt"),
    bound="PJRT by hand",
    meaning="PJRT by hand",
)
WAITS = (
    Wait(
        "a process starts, loads a convnet and calls it",
        "cold start",
        "convnet",
        goal=1.05,
        bound="no function",
        meaning=_PYTHON,
    ),
    _STARTED,
    _STARTED.with_case("a transformer", "transformer", goal=1.08),
    _STARTED.with_case("a training step", "train step", goal=1.08),
    _SERVED,
    _SERVED.with_case("a transformer", "served transformer", goal=2.0),
    _FROM_CPP,
    _FROM_CPP.with_case("a transformer", "served transformer", goal=2.0),
    _LOADED,
    Wait(
        "a model with 512 MiB of weights is saved",
        "save weights",
        "512 MiB of weights",
        goal=0.9,
        theirs="arguments",
        setup="weights in safetensors",
    ),
    Wait(
        "a function with 512 MiB of constants is serialized",
        "serialize, first time",
        "512 MiB constant",
        goal=1.1,
        bound="memcpy",
        meaning="one copy into new memory",
    ),
    _FLEET,
    _FLEET.with_case("each with its own signature", "10,000 distinct", goal=18.0),
    Wait(
        "one of 10,000 functions is found, and its signature read",
        "cold signature",
        "10,000 distinct",
        goal=5.0,
        setup="its own file",
        others=("zip file",),
    ),
    Wait(
        "10,000 functions are checked for damage",
        "verify",
        "10,000 versions",
        goal=5.0,
        setup=f"{_ZIP}, its checksums only",
        bound="read and digest",
        meaning="reading and digesting",
    ),
    Wait(
        "one function is appended to an archive of a million",
        "append",
        "1,000,000 members",
        goal=100.0,
        setup=_ZIP,
        others=("SQLite",),
    ),
    Wait(
        "200 functions are loaded after an upgrade, and a recorded call of each is checked",
        "check after an upgrade",
        "200 recorded",
        goal=0.95,
        setup="a loop, results in files of NumPy",
    ),
    Wait(
        "a function of 2,000 arrays is serialized",
        "serialize, first time",
        "2,000 parameters",
        goal=100.0,
        bound="trees",
        meaning="JAX's description of its trees",
    ),
    Wait(
        "its bytes are deserialized",
        "deserialize, first time",
        "2,000 parameters",
        goal=80.0,
        bound="objects",
        meaning="making the objects",
    ),
    Wait(
        "a function of 20 sharded arrays is deserialized",
        "deserialize, first time",
        "20 sharded",
        goal=3.0,
        bound="objects",
        meaning="making the objects",
    ),
    Wait(
        "a function with 50 symbolic sizes is deserialized",
        "deserialize, first time",
        "50 symbolic",
        goal=3.0,
        bound="objects",
        meaning="making the objects",
    ),
    _ANSWERED,
    replace(_ANSWERED.with_case("a convnet", "served convnet", goal=1.0), bound=""),
    replace(_ANSWERED.with_case("a transformer", "served transformer", goal=0.7), bound=""),
    Wait(
        "a function of 2,000 arrays is exported",
        "export",
        "2,000 parameters",
        goal=1.0,
        bound="jit",
        meaning="tracing and lowering",
    ),
)

# Measured by `python -m bench accelerator`, in a file of its own.
ACCELERATOR = "accelerator.json"
ON_ACCELERATOR = (
    Wait("a function of 200 arrays is read from a file", "load", "200 parameters", goal=1.0),
    Wait("a process starts, loads a transformer and calls it", "cold start", "transformer", goal=1.0),
    replace(_STARTED, case="transformer"),
    Wait("a function of 200 arrays is called in a `jax.jit`", "jit call", "200 parameters", goal=1.0),
    Wait(
        "a model gets other weights, of 64 MiB, from a file, and is called",
        "swap weights",
        "64 MiB of weights",
        goal=1.0,
        setup="weights as an argument",
    ),
)


def rivals_of(question: str, case: str) -> set[str]:
    """Those that rows show of a cell."""
    of_cell = (wait for wait in WAITS if (wait.question, wait.case) == (question, case))
    return {rival for wait in of_cell for rival in (wait.ours, wait.theirs)}


def table(results: Results, again: Results | None) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """The head and the rows: how long each takes, and whether the goal is met in one run, or in both."""
    runs = [results] if again is None else [results, again]
    rows = []
    for wait in WAITS:
        cell = wait.cell(results)
        ratios = [wait.ratio(run) for run in runs]
        took = ("", "", "", "")
        if cell is not None:
            took = (
                wait.took(cell, wait.theirs, wait.setup),
                ", ".join(filter(None, (wait.took(cell, other, other) for other in wait.others))),
                wait.took(cell, wait.bound, wait.meaning),
                wait.took(cell, wait.ours),
            )
        goal = f"{times(wait.goal)}: {wait.verdict(ratios)}"
        rows.append((wait.text, *took, *map(times, ratios), goal, wait.memory(results)))
    again_too = ("again",) if again is not None else ()
    subject = results.about["subject"]
    names = "jax.export", "another way", "limit", subject, "times faster", *again_too, "goal", "peak memory of both"
    return ("what you wait for", *names), rows


def front(results: Results) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """The head and the rows for the README."""
    return Wait.table((wait for wait in WAITS if wait.front), results)

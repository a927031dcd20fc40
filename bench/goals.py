"""Limits that jaxexp is meant to keep. docs/benchmarks.md shows each one, the value of a run, and whether it is met."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from bench.report import amount, short, times
from bench.results import ORACLE, PEAK, SUBJECT, Cell, Results, over

JAX = "0.12.0.1"  # the version that the goals are about
NOISE = 0.05  # "no slower" means at most this much slower

Measure = Callable[[Cell], float | None]


def faster(cell: Cell) -> float | None:
    return cell.ratio


def share(cell: Cell) -> float | None:
    return over(cell.median(SUBJECT), cell.median(ORACLE))


def value(cell: Cell) -> float | None:
    return cell.median(SUBJECT)


def first(cell: Cell) -> float | None:
    return over(cell.median("first time"), cell.median(SUBJECT))


def rate_of(name: str) -> Measure:
    """The subject's rate, as a part of the rate at which `name`, which stands beside it, handles the same bytes."""
    return lambda cell: over(cell.median(name), cell.median(SUBJECT))


def faster_with(name: str) -> Measure:
    """How many times faster than jax.export `name` is, which stands beside the subject."""
    return lambda cell: over(cell.median(ORACLE), cell.median(name))


def against(*names: str) -> Measure:
    """The subject, divided by the sum of `names`, which stand beside it."""

    def measure(cell: Cell) -> float | None:
        medians = [cell.median(name) for name in names]
        return None if None in medians else over(cell.median(SUBJECT), sum(m for m in medians if m is not None))

    return measure


def _seconds(seconds: float) -> str:
    return amount(seconds)


def _bytes(count: float) -> str:
    return amount(count, "byte")


def _percent(part: float) -> str:
    return f"{part:.1%}"


@dataclass(frozen=True)
class Goal:
    """A limit on the worst of some cells of a question; without names of cases, on the worst of all cells.

    With `over`, the value is divided by the value of that case.
    """

    about: str
    question: str
    cases: tuple[str, ...]
    measure: Measure
    limit: float
    at_least: bool
    show: Callable[[float], str]
    over: str = ""

    def bound(self) -> str:
        return f"{'at least' if self.at_least else 'at most'} {short(self.show(self.limit))}"

    def measured(self, results: Results) -> float | None:
        """The value of the worst cell; None if one of the cells is empty."""
        cells = [cell for (question, _), cell in results.cells.items() if question == self.question]
        found = {cell.case: self.measure(cell) for cell in cells}
        wanted = [found.get(case) for case in self.cases or found]
        values = [number for number in wanted if number is not None]
        if not values or len(values) < len(wanted):
            return None
        worst = min(values) if self.at_least else max(values)
        return over(worst, found.get(self.over)) if self.over else worst

    def met(self, measured: float) -> bool:
        return measured >= self.limit if self.at_least else measured <= self.limit


def _times_faster(question: str, case: str, limit: float, about: str = "") -> Goal:
    text = about or f"{question}, {case}: times faster than jax.export"
    return Goal(text, question, (case,), faster, limit, True, times)


_FASTER = {
    "serialize": {
        "tiny": 60,
        "2,000 parameters": 200,
        "2,000 sharded": 300,
        "20,000 parameters": 150,
        "50 symbolic": 60,
    },
    "serialize, first time": {"2,000 parameters": 100, "2,000 sharded": 200, "20,000 parameters": 60},
    "deserialize": {
        "tiny": 40,
        "2,000 parameters": 100,
        "2,000 sharded": 150,
        "2,000 distinct shapes": 40,
        "VJP order 3": 40,
    },
}
_OWN_FLOOR = ("tiny", "2,000 parameters", "2,000 sharded", "2,000 distinct shapes")
_LARGE = "512 MiB constant"
_ANONYMOUS = "anonymous memory of that"
_FLEETS = ("10,000 versions", "10,000 distinct")

GOALS = (
    *(
        Goal(
            f"deserialize, {case}, opened: times faster than jax.export, before a look at the fields",
            "deserialize",
            (case,),
            faster_with("opened"),
            limit,
            True,
            times,
        )
        for case, limit in (("tiny", 60), ("50 symbolic", 40))
    ),
    *(_times_faster(question, case, limit) for question, limits in _FASTER.items() for case, limit in limits.items()),
    *(
        Goal(
            f"deserialize, {case}: divided by its floor, verify + objects",
            "deserialize",
            (case,),
            against("verify", "objects"),
            1.5,
            False,
            times,
        )
        for case in _OWN_FLOOR
    ),
    Goal(
        f"serialize, {_LARGE}: divided by one memcpy of the module",
        "serialize",
        (_LARGE,),
        against("memcpy"),
        1.3,
        False,
        times,
    ),
    Goal(
        f"save, {_LARGE}: divided by write(2) of the same bytes",
        "save",
        (_LARGE,),
        against("write(2)"),
        1.15,
        False,
        times,
    ),
    Goal(f"load, {_LARGE}: time to the signature", "load", (_LARGE,), value, 1e-3, False, _seconds),
    Goal(f"load, {_LARGE}: new memory", "load, new memory", (_LARGE,), value, 2e6, False, _bytes),
    Goal(
        "metadata size, 2,000 sharded: part of jax.export's",
        "metadata size",
        ("2,000 sharded",),
        share,
        0.15,
        False,
        _percent,
    ),
    Goal("call, tiny: divided by the dispatch of plain jit", "call", ("tiny",), against("jit"), 2.0, False, times),
    Goal(
        f"jit(e.call), every case: divided by plain jit (no slower; {NOISE:.0%} is noise)",
        "jit call",
        (),
        against("jit"),
        1 + NOISE,
        False,
        times,
    ),
    *(
        Goal(f"check, {case}: divided by the call itself", "check", (case,), share, 1.2, False, times)
        for case in ("convnet", "transformer", "train step")
    ),
    # What jit does with the arguments is nearly all of it, whatever is called.
    Goal(
        "trace, 2,000 parameters: divided by tracing one primitive of the same arguments",
        "trace",
        ("2,000 parameters",),
        against("one bind"),
        1.05,
        False,
        times,
    ),
    Goal("vjp(), every case: first time divided by second", "vjp again", (), first, 100, True, times),
    Goal(
        "serialize(vjp_order=k), every case: first time divided by second",
        "serialize VJPs again",
        (),
        first,
        100,
        True,
        times,
    ),
    Goal(
        "export, every case: times faster than jax.export (both wait for JAX's lowering; 3% is noise)",
        "export",
        (),
        faster,
        0.97,
        True,
        times,
    ),
    _times_faster("export", "64 MiB constant", 1.5),
    _times_faster("export", _LARGE, 1.5),
    *(
        _times_faster(question, case, 5)
        for question in ("export weights", "save weights", "load weights, first call")
        for case in ("512 MiB of weights", "512 MiB, VJP order 1")
    ),
    *(
        Goal(f"anonymous memory, {case}: of a process that loads it", _ANONYMOUS, (case,), value, 150e6, False, _bytes)
        for case in ("512 MiB of weights", "512 MiB, VJP order 1", "1 GiB of weights", "4 GiB of weights")
    ),
    *(
        Goal(
            f"disk, {case}: divided by the weights", "disk for weights", (case,), against("weights"), 1.01, False, times
        )
        for case in ("512 MiB of weights", "512 MiB, VJP order 1")
    ),
    *(
        Goal(f"save weights, {case}: peak memory", PEAK + "save weights", (case,), value, 64e6, False, _bytes)
        for case in ("512 MiB of weights", "512 MiB, VJP order 1")
    ),
    Goal(
        "3 GiB of weights, in memory for twice as much: from arrays to files to a gradient",
        "round trip in little memory",
        ("3 GiB in little memory",),
        value,
        60.0,
        False,
        _seconds,
    ),
    Goal(
        "call, 40 weights: divided by the same function with constants",
        "call with weights",
        ("40 weights",),
        against("embedded"),
        1.1,
        False,
        times,
    ),
    Goal(
        "call, 400 weights: divided by jit's dispatch + 0.3 \N{MICRO SIGN}s for each",
        "call with weights",
        ("400 weights",),
        lambda cell: over(cell.median(SUBJECT), (cell.median("dispatch") or 0.0) + 400 * 0.3e-6),
        2.0,
        False,
        times,
    ),
    *(
        Goal(f"open, {case}: time to the names", "open archive", (case,), value, 2e-3, False, _seconds)
        for case in _FLEETS
    ),
    Goal(
        f"open, {_FLEETS[0]}: divided by that of 100",
        "open archive",
        (_FLEETS[0],),
        value,
        1.2,
        False,
        times,
        over="100 versions",
    ),
    *(
        Goal(f"signature of one of {case}, cold", "cold signature", (case,), value, 1e-3, False, _seconds)
        for case in _FLEETS
    ),
    *(
        _times_faster(question, case, limit, f"{question}, {case}: times faster than jax.export over files")
        for question in ("load all", "load all, first")
        for case, limit in zip(_FLEETS, (150, 40), strict=True)
    ),
    *(
        Goal(
            f"load all, {case}, opened: times faster with 2 workers than with 1",
            "load all",
            (case,),
            lambda cell: over(cell.median("1 worker"), cell.median("2 workers")),
            1.6,
            True,
            times,
        )
        for case in _FLEETS[1:]
    ),
    *(
        Goal(
            f"verify, {case}: part of the bandwidth of reading",
            "verify",
            (case,),
            rate_of("read(2)"),
            limit,
            True,
            _percent,
        )
        for case, limit in zip(_FLEETS, (0.8, 0.6), strict=True)
    ),
    *(
        Goal(f"memory for the handles of {case}", "memory of handles", (case,), value, 50e6, False, _bytes)
        for case in _FLEETS
    ),
    Goal(
        f"cold start, every case: times faster than jax.export (no slower; {NOISE:.0%} is noise)",
        "cold start",
        (),
        faster,
        1 - NOISE,
        True,
        times,
    ),
    *(
        Goal(
            f"{question}, {case}, {name}: times faster than jax.export",
            question,
            (case,),
            faster_with(name),
            limit,
            True,
            times,
        )
        for question, name, limits in (
            ("cold start", "executables", (1.8, 1.8)),
            ("cold first call", "executables", (10, 10)),
            ("cold start", "C++, executables", (5, 2.5)),
        )
        for case, limit in zip(("convnet", "transformer"), limits, strict=True)
    ),
    Goal(
        "served calls of 16 numbers, from C++, reads included: divided by hand-written calls of PJRT",
        "served, 1 thread",
        ("served 16 numbers",),
        lambda cell: over(cell.median("C++"), cell.median("PJRT by hand")),
        1.1,
        False,
        times,
    ),
    *(
        Goal(
            f"{question}, every case: divided by jax.vmap of the live function",
            question,
            (),
            against("live"),
            limit,
            False,
            times,
        )
        for question, limit in (("vmap", 1.15), ("eager vmap", 1.5), ("first vmap", 1.3))
    ),
    Goal("read back, 5,000 operations: time", "read back", ("5,000 operations",), value, 0.150, False, _seconds),
    Goal("import, after `import jax`", "import", ("tiny",), value, 0.020, False, _seconds),
)

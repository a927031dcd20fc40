"""Limits that jaxexp is meant to keep. docs/benchmarks.md shows each one, the value of a run, and whether it is met."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from bench.bench_cold import CACHED_ORACLE
from bench.measure import spread
from bench.report import amount, short, times
from bench.results import ORACLE, PEAK, SUBJECT, Cell, Results, over

JAX = "0.12.0.1"  # the version that the goals are about
NOISE = 0.05  # "no slower" means at most this much slower

MOST_SPREAD = 0.25  # a row whose samples spread more neither meets a goal nor misses it


@dataclass(frozen=True)
class Measure:
    """A rival's median, divided by the sum of `plus` and others' medians, each times a factor, if there are any."""

    of: str
    divided_by: Mapping[str, float] = field(default_factory=dict)
    plus: float = 0.0

    def value(self, cell: Cell) -> float | None:
        if any(name not in cell.rivals or cell.is_nothing(name) for name in self.divided_by):
            return None
        divisor = self.plus + sum(factor * cell.rivals[name].median() for name, factor in self.divided_by.items())
        return over(cell.median(self.of), divisor if self.divided_by else 1.0)

    def spread(self, cell: Cell) -> float:
        """The largest of the rivals' interquartile ranges, relative to their medians."""
        rivals = [name for name in (self.of, *self.divided_by) if name in cell.rivals and not cell.is_nothing(name)]
        return max((spread(cell.rivals[name]) for name in rivals), default=0.0)


def against(*names: str, of: str = SUBJECT) -> Measure:
    """The subject, or `of`, divided by the sum of `names`."""
    return Measure(of, dict.fromkeys(names, 1.0))


FASTER, SHARE, VALUE = against(SUBJECT, of=ORACLE), against(ORACLE), Measure(SUBJECT)


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
        cells = self._cells(results)
        found = {cell.case: self.measure.value(cell) for cell in cells}
        wanted = [found.get(case) for case in self.cases or found]
        values = [number for number in wanted if number is not None]
        if not values or len(values) < len(wanted):
            return None
        worst = min(values) if self.at_least else max(values)
        return over(worst, found.get(self.over)) if self.over else worst

    def is_clear(self, results: Results) -> bool:
        """Whether the samples of all its cells agree well enough for a verdict."""
        named = {*self.cases, self.over}
        cells = [cell for cell in self._cells(results) if not self.cases or cell.case in named]
        return all(self.measure.spread(cell) <= MOST_SPREAD for cell in cells)

    def _cells(self, results: Results) -> list[Cell]:
        return [cell for (question, _), cell in results.cells.items() if question == self.question]

    def met(self, measured: float) -> bool:
        return measured >= self.limit if self.at_least else measured <= self.limit


def _times_faster(question: str, case: str, limit: float, about: str = "", measure: Measure = FASTER) -> Goal:
    text = about or f"{question}, {case}: times faster than jax.export"
    return Goal(text, question, (case,), measure, limit, True, times)


_FASTER = {
    "serialize, first time": {"2,000 parameters": 120, "2,000 sharded": 220, "20,000 parameters": 120},
    "deserialize, first time": {"tiny": 15, "2,000 parameters": 80, "VJP order 3": 20},
    "serialize again": {
        "tiny": 60,
        "2,000 parameters": 200,
        "2,000 sharded": 300,
        "20,000 parameters": 150,
        "50 symbolic": 60,
    },
    "deserialize again": {
        "tiny": 40,
        "2,000 parameters": 100,
        "2,000 sharded": 150,
        "2,000 distinct shapes": 40,
        "VJP order 3": 40,
    },
}
_LARGE = "512 MiB constant"
_ANONYMOUS = "anonymous memory of that"
_FLEETS = ("10,000 versions", "10,000 distinct")

GOALS = (
    *(_times_faster(question, case, limit) for question, limits in _FASTER.items() for case, limit in limits.items()),
    *(
        _times_faster(
            "deserialize again",
            case,
            limit,
            f"deserialize again, {case}, opened: times faster than jax.export, before a look at the fields",
            against("opened", of=ORACLE),
        )
        for case, limit in (("tiny", 60), ("50 symbolic", 40))
    ),
    Goal(
        f"serialize again, {_LARGE}: divided by one memcpy of the module",
        "serialize again",
        (_LARGE,),
        against("memcpy"),
        1.1,
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
    Goal(f"load, {_LARGE}: time to the signature", "load", (_LARGE,), VALUE, 1e-3, False, _seconds),
    Goal(f"load, {_LARGE}: new memory", "load, new memory", (_LARGE,), VALUE, 2e6, False, _bytes),
    Goal(
        "metadata size, 2,000 sharded: part of jax.export's",
        "metadata size",
        ("2,000 sharded",),
        SHARE,
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
        Goal(f"check, {case}: divided by the call itself", "check", (case,), SHARE, 1.2, False, times)
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
    *(
        Goal(
            f"{call}, every case: first time divided by second",
            question,
            (),
            against(SUBJECT, of="first time"),
            100,
            True,
            times,
        )
        for call, question in (("vjp()", "vjp again"), ("serialize(vjp_order=k)", "serialize VJPs again"))
    ),
    Goal(
        "export, every case: times faster than jax.export (both wait for JAX's lowering; 3% is noise)",
        "export",
        (),
        FASTER,
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
        Goal(f"anonymous memory, {case}: of a process that loads it", _ANONYMOUS, (case,), VALUE, 150e6, False, _bytes)
        for case in ("512 MiB of weights", "512 MiB, VJP order 1", "1 GiB of weights", "4 GiB of weights")
    ),
    *(
        Goal(
            f"disk, {case}: divided by the weights", "disk for weights", (case,), against("weights"), 1.01, False, times
        )
        for case in ("512 MiB of weights", "512 MiB, VJP order 1")
    ),
    *(
        Goal(f"save weights, {case}: peak memory", PEAK + "save weights", (case,), VALUE, 64e6, False, _bytes)
        for case in ("512 MiB of weights", "512 MiB, VJP order 1")
    ),
    Goal(
        "3 GiB of weights, in memory for twice as much: from arrays to files to a gradient",
        "round trip in little memory",
        ("3 GiB in little memory",),
        VALUE,
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
        Measure(SUBJECT, {"dispatch": 1.0}, plus=400 * 0.3e-6),
        2.0,
        False,
        times,
    ),
    *(
        Goal(f"open, {case}: time to the names", "open archive", (case,), VALUE, 2e-3, False, _seconds)
        for case in _FLEETS
    ),
    Goal(
        f"open, {_FLEETS[0]}: divided by that of 100",
        "open archive",
        (_FLEETS[0],),
        VALUE,
        1.2,
        False,
        times,
        over="100 versions",
    ),
    *(
        Goal(f"signature of one of {case}, cold", "cold signature", (case,), VALUE, 1e-3, False, _seconds)
        for case in _FLEETS
    ),
    *(
        _times_faster(question, _FLEETS[1], 40, f"{question}, {_FLEETS[1]}: times faster than jax.export over files")
        for question in ("load all, first time", "load all again")
    ),
    # Every function is verified, which alone takes longer than the goal of 150 times allowed.
    *(
        Goal(
            f"{question}, {_FLEETS[0]}: divided by verification alone",
            question,
            (_FLEETS[0],),
            against("verify"),
            1.5,
            False,
            times,
        )
        for question in ("load all, first time", "load all again")
    ),
    # Workers verify. Python's objects are made in one thread, so that much is left.
    *(
        Goal(
            f"load all again, {case}, opened, 2 workers: divided by 1 worker without half of the verification",
            "load all again",
            (case,),
            Measure("2 workers", {"1 worker": 1.0, "verify": -0.5}),
            1.15,
            False,
            times,
        )
        for case in _FLEETS[1:]
    ),
    # Every byte has to be read and digested, and every artifact verified.
    *(
        Goal(
            f"verify, {case}: divided by reading, digesting and half of the verification in one thread",
            "verify",
            (case,),
            Measure(SUBJECT, {"read and digest": 1.0, "verify": 0.5}),
            1.25,
            False,
            times,
        )
        for case in _FLEETS
    ),
    *(
        Goal(f"memory for the handles of {case}", "memory of handles", (case,), VALUE, 50e6, False, _bytes)
        for case in _FLEETS
    ),
    Goal(
        f"cold start, every case: times faster than jax.export (no slower; {NOISE:.0%} is noise)",
        "cold start",
        (),
        FASTER,
        1 - NOISE,
        True,
        times,
    ),
    # Importing JAX, which JAX's own cache also waits for, is most of what is left.
    *(
        Goal(
            f"{question}, {case}, executables: times faster than jax.export with JAX's compilation cache",
            question,
            (case,),
            against("executables", of=CACHED_ORACLE),
            1.0,
            True,
            times,
        )
        for question in ("cold start", "cold first call")
        for case in ("convnet", "transformer")
    ),
    *(
        _times_faster(
            "cold start",
            case,
            limit,
            f"cold start, {case}, C++, executables: times faster than jax.export",
            against("C++, executables", of=ORACLE),
        )
        for case, limit in (("convnet", 5), ("transformer", 2.5))
    ),
    Goal(
        "served calls of 16 numbers, from C++, reads included: divided by hand-written calls of PJRT",
        "served, 1 thread",
        ("served 16 numbers",),
        against("PJRT by hand", of="C++"),
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
    Goal("read back, 5,000 operations: time", "read back", ("5,000 operations",), VALUE, 0.150, False, _seconds),
    Goal("import, after `import jax`", "import", ("tiny",), VALUE, 0.020, False, _seconds),
)

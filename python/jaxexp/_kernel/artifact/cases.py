"""Cases: calls that were recorded, with their results, as a trailer has them. Nothing here needs JAX."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import numbers
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxexp import _native
from jaxexp._errors import ExportError, ExportTypeError, WeightsError, cause
from jaxexp._public import part_of, public

from .scalars import numpy_dtype

# --- random numbers that every release draws alike, bit for bit: docs/formats/cases.md defines them -------------------
# They come from Philox4x32-10, whose counter is the number of a block, so that each number can be drawn by itself.


NORMAL, UNIFORM, INTEGERS = "normal", "uniform", "integers"
DISTRIBUTIONS = (NORMAL, UNIFORM, INTEGERS)  # by their numbers in a trailer

_MULTIPLIERS = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_WEYL = 0x9E3779B9, 0xBB67AE85
_ROUNDS = 10
_LOW, _HALF, _16, _32 = np.uint64(0xFFFFFFFF), np.uint64(0xFFFF), np.uint64(16), np.uint64(32)
_SCALE = float.fromhex("0x1.3988e1409212ep+0")  # the root of 3/2, for a deviation of 1
_AT_ONCE = 1 << 14  # numbers, so that what is computed of them stays in caches


def philox(counter: Sequence[np.ndarray], key: tuple[int, int]) -> list[np.ndarray]:
    """Four words of 32 bits for each counter of four such words; all of them in arrays of uint64."""
    a, b, c, d = counter
    left, right = key
    for _ in range(_ROUNDS):
        first, second = a * _MULTIPLIERS[0], c * _MULTIPLIERS[1]
        a, b, c, d = (
            (second >> _32) ^ b ^ np.uint64(left),
            second & _LOW,
            (first >> _32) ^ d ^ np.uint64(right),
            first & _LOW,
        )
        left, right = (left + _WEYL[0]) & 0xFFFFFFFF, (right + _WEYL[1]) & 0xFFFFFFFF
    return [a, b, c, d]


def _blocks(seed: int, start: int, count: int) -> list[np.ndarray]:
    number = np.arange(start, start + count, dtype=np.uint64)
    zero = np.zeros_like(number)
    return philox((number & _LOW, number >> _32, zero, zero), (seed & 0xFFFFFFFF, seed >> 32))


def _some(distribution: str, seed: int, first: float, second: float, start: int, count: int) -> np.ndarray:
    """The numbers from `start` on: float64, or int64 for integers."""
    if distribution == NORMAL:
        halves = [half for word in _blocks(seed, start, count) for half in (word & _HALF, word >> _16)]
        total = sum(halves[1:], start=halves[0]).astype(np.int64) + (4 - (1 << 18))
        standard: np.ndarray = total.astype(np.float64) * 2.0**-16 * _SCALE
        return first + second * standard
    block = start // 2  # which has two numbers of 64 bits
    a, b, c, d = _blocks(seed, block, (start + count + 1) // 2 - block)
    wide = np.stack((a | (b << _32), c | (d << _32)), axis=1).reshape(-1)[start % 2 :][:count]
    if distribution == UNIFORM:
        return first + (second - first) * ((wide >> np.uint64(11)).astype(np.float64) * 2.0**-53)
    low, high = int(first), int(second)
    return (wide % np.uint64(high - low)).astype(np.int64) + low


def draw(distribution: str, seed: int, first: float, second: float, shape: Sequence[int], dtype: Any) -> np.ndarray:
    """An array of a dtype of NumPy, or of `ml_dtypes`."""
    dtype = np.dtype(dtype)
    array = np.empty(shape, dtype)
    flat: Any = array.reshape(-1)
    if dtype.kind == "c":  # real and imaginary parts are numbers of their own
        flat = flat.view(np.float32 if dtype.itemsize == 8 else np.float64)
    # What has less than 32 bits is rounded to float32 first.
    is_narrow = flat.dtype.kind not in "biu" and flat.dtype.itemsize < 4
    for start in range(0, flat.size, _AT_ONCE):
        count = min(_AT_ONCE, flat.size - start)
        some = _some(distribution, seed, first, second, start, count)
        with np.errstate(over="ignore"):
            flat[start : start + count] = (some.astype(np.float32) if is_narrow else some).astype(flat.dtype)
    return array


# --- the arrays of a case, and how they are described -----------------------------------------------------------------


Array = np.ndarray[Any, Any]
# The bytes of a tensor, by its name, and what compares them with their digest.
Source = Callable[[str], tuple[Any, Callable[[], object]]]

_KINDS = {_native.dtype_name(kind): kind for kind in range(30)}
_KEY_WORDS = {"key<fry>": 2, "key<rbg>": 4, "key<urbg>": 4}
FLOAT0 = "float0"
# What a case says, among where it was recorded, of tolerances that were measured then: the indices of their results,
# which runs they come from, and what rounding may change.
OF_TOLERANCES = MEASURED, MEASURED_BY, UNSTABLE = "measured", "measured by", "unstable"


class Held(NamedTuple):
    """How an array of a dtype of JAX is held: as one of NumPy or `ml_dtypes`, of which a random key has several
    numbers.
    """

    dtype: np.dtype[Any]
    beyond: tuple[int, ...] = ()

    @property
    def size(self) -> int:
        return self.dtype.itemsize * math.prod(self.beyond)


def storage(dtype: str) -> Held:
    """How arrays of a dtype of JAX are held, by its name."""
    if dtype in _KEY_WORDS:
        return Held(np.dtype(np.uint32), (_KEY_WORDS[dtype],))
    if dtype == FLOAT0:
        return Held(np.dtype([(FLOAT0, "V")]))
    if dtype not in _KINDS:
        raise ExportError(f"cases have arrays of dtypes that artifacts have, not of {dtype}")
    return Held(numpy_dtype(dtype))


@public
class Tolerance(NamedTuple):
    """How far a number of a result may be from the recorded one: ``absolute + relative * |recorded|``.

    With zeros, every number must be equal.
    """

    relative: float = 0.0
    absolute: float = 0.0

    @classmethod
    def of(cls, given: Any) -> Tolerance:
        """Makes a tolerance from a Tolerance, a number (the relative tolerance), or a pair (relative, absolute).

        Raises:
            ExportError: a number is negative or not finite.
            TypeError: `given` has another type.
        """
        try:
            made = cls(*map(float, given)) if isinstance(given, (tuple, list)) else cls(float(given))
        except (TypeError, ValueError) as error:
            raise ExportTypeError(
                f"a tolerance is a relative one as a number, or Tolerance(relative, absolute), not {given!r}"
            ) from cause(error)
        if not all(math.isfinite(one) and one >= 0 for one in made):
            raise ExportError(f"a tolerance has finite numbers that are not negative, not {given!r}")
        return made


@public
@dataclasses.dataclass(frozen=True, slots=True)
class Drawn:
    """An array of random numbers, as an argument of a case. The artifact holds only this description.

    All releases of jaxexp draw the same numbers from it, bit for bit, with all releases of JAX and NumPy.

    Attributes:
        shape: its shape.
        dtype: the name of its dtype, such as ``"float32"``.
        distribution: ``"normal"``: the sum of eight uniform numbers, scaled to mean `first` and standard deviation
            `second`. ``"uniform"``: numbers x with `first` <= x < `second`. ``"integers"``: the same, but whole
            numbers. The default is ``"normal"`` for floats and complex numbers, and ``"integers"`` for other dtypes.
        seed: the seed, from 0 to below 2^64.
        first: the first parameter of the distribution, by default 0.
        second: the second parameter, by default 1; for integers 8, or less if the dtype has fewer; for random keys
            2^32.

    Raises:
        ExportError: the dtype does not have this distribution, or a number is out of range.

    Example:
        >>> exported.save("model.jaxexp", cases=[(Drawn((8, 784), "float32", seed=1),)])
    """

    shape: tuple[int, ...]
    dtype: str
    distribution: str = ""
    seed: int = 0
    first: float = 0.0
    second: float | None = None

    def __post_init__(self) -> None:
        try:
            shape = tuple(map(operator.index, self.shape))
        except TypeError:
            raise ExportTypeError(
                f"Drawn takes a shape, such as (8, 784), and then a dtype, such as 'float32'; found {self.shape!r:.80} "
                "as the shape"
            ) from None
        dtype = _name_of(self.dtype)
        integers = integers_of(dtype)
        distribution = self.distribution or (NORMAL if integers is None else INTEGERS)
        second = self.second
        if second is None:
            second = 1.0 if distribution != INTEGERS else 8.0
            if distribution == INTEGERS and integers is not None:
                second = float(integers[1]) if dtype in _KEY_WORDS else min(second, float(integers[1]))
        for name, value in (("shape", shape), ("dtype", dtype), ("distribution", distribution), ("second", second)):
            object.__setattr__(self, name, value)
        first = self.first
        what = f"Drawn({self.shape}, {self.dtype!r}, {self.distribution!r}, {self.seed}, {first}, {second})"
        if storage(self.dtype).size == 0 or any(size < 0 for size in self.shape) or len(self.shape) > _MOST_RANK:
            raise ExportError(f"{what} is not an array of numbers")
        if self.distribution not in DISTRIBUTIONS or (integers and self.distribution != INTEGERS):
            known = ("integers",) if integers else DISTRIBUTIONS
            raise ExportError(f"{what}: the distribution of {self.dtype} is one of {', '.join(known)}")
        for name, kinds in (("seed", numbers.Integral), ("first", numbers.Real), ("second", numbers.Real)):
            if not isinstance(value := getattr(self, name), kinds):
                raise ExportTypeError(f"{what}: {name} is a number, not {value!r:.80}")
        if not 0 <= self.seed < 1 << 64:
            raise ExportError(f"{what}: a seed is a number from 0 to 2^64 - 1")
        if not (math.isfinite(first) and math.isfinite(second)):
            raise ExportError(f"{what}: its numbers have to be finite")
        if self.distribution == NORMAL:
            is_fit, rule = second >= 0, "the deviation, second, has to be at least 0"
        elif self.distribution == UNIFORM:
            is_fit, rule = first <= second, "first must not be larger than second"
        else:
            least, most = integers or (-(1 << 53), 1 << 53)
            is_fit = least <= first < second <= most and first == int(first) and second == int(second)
            rule = f"first and second have to be whole numbers from {least} to {most}, and first below second"
        if not is_fit:
            raise ExportError(f"{what}: {rule}")

    @property
    def nbytes(self) -> int:
        """The size of the array in bytes."""
        return math.prod(self.shape) * storage(self.dtype).size

    def array(self) -> Array:
        """The numbers, as an array of NumPy. A random key is two or four ``uint32`` numbers, in one more dimension."""
        held, second = storage(self.dtype), self.second
        assert second is not None
        shape = (*self.shape, *held.beyond)
        return draw(self.distribution, self.seed, self.first, second, shape, held.dtype)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        array = self.array()
        return array if dtype is None else array.astype(dtype)


def _name_of(dtype: Any) -> str:
    """The name of a dtype, also of one that a class stands for, such as `numpy.float32`."""
    if isinstance(dtype, str):
        return dtype
    if dtype is not None and not hasattr(dtype, "name"):
        with contextlib.suppress(TypeError, ValueError):
            return np.dtype(dtype).name
    return str(getattr(dtype, "name", dtype))


_MOST_RANK = 64
_BITS = {"bool": 1, "int4": 4, "uint4": 4} | {f"{u}int{n}": n for u in ("", "u") for n in (8, 16, 32, 64)}


def integers_of(dtype: str) -> tuple[int, int] | None:
    """The least integer of a dtype, and the first one above; both within 2^53. None for other dtypes."""
    if dtype in _KEY_WORDS:
        return 0, 1 << 32
    if (bits := _BITS.get(dtype)) is None:
        return None
    is_signed = dtype.startswith("int")
    most = 1 << min(bits - is_signed, 53)
    return (-most if is_signed else 0), most


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Value:
    """An argument or a result.

    Attributes:
        dtype: the name of its dtype.
        shape: its shape.
        drawn: the description of random numbers; None for other arrays.
        tolerance: the tolerance for a new result; None for the default of the dtype.
    """

    dtype: str
    shape: tuple[int, ...]
    drawn: Drawn | None = None
    tolerance: Tolerance | None = None
    _bytes: Any = dataclasses.field(default=None, repr=False)  # a buffer
    # Or its name in a file, and what reads it.
    _tensor: tuple[str, Source] | None = dataclasses.field(default=None, repr=False)

    @property
    def nbytes(self) -> int:
        """Its size in bytes."""
        return math.prod(self.shape) * storage(self.dtype).size

    @property
    def tensor(self) -> str | None:
        """The name of its tensor in a file beside the artifact; None if it is in the artifact."""
        return None if self._tensor is None else self._tensor[0]

    def buffer(self) -> Any:
        """Its elements in memory, row by row."""
        if self._tensor is not None:
            name, source = self._tensor
            data, check = source(name)
            check()
            return data
        return self.array().tobytes() if self._bytes is None else self._bytes

    def array(self) -> Array:
        """Its elements, as a read-only array of NumPy.

        Random keys are ``uint32`` numbers in one more dimension; ``float0`` is ``bool``.

        Raises:
            WeightsError: it is in a file that is missing, damaged or replaced.
            ImportError: its dtype is one of `ml_dtypes`, which is not installed.
            OSError: the file cannot be opened.
        """
        if self.drawn is not None:
            return self.drawn.array()
        if self.dtype == FLOAT0:
            return np.zeros(self.shape, np.bool_)
        return self._of(self.buffer())

    def _of(self, data: Any) -> Array:
        held = storage(self.dtype)
        return np.frombuffer(data, held.dtype).reshape((*self.shape, *held.beyond))


@public
@dataclasses.dataclass(frozen=True, slots=True)
class Case:
    """A recorded call, which `check` repeats.

    Attributes:
        name: its name, which is unique among the cases of the function.
        vjp_order: 0 for a call of the function, 1 for a call of its VJP, and so on.
        arguments: the arrays that were passed, flat and without weights, each a `Case.Value`.
        results: the arrays that were returned, flat, each a `Case.Value`.
        recorded: where it was recorded, such as ``{"jax": "0.10.2", "platform": "cpu", ...}``.
        trace: a table of ``uint32`` numbers, with a row for each result of an operation; None if it was not recorded.
    """

    name: str
    vjp_order: int
    arguments: tuple[Value, ...]
    results: tuple[Value, ...]
    recorded: Mapping[str, str] = dataclasses.field(hash=False)
    trace: Value | None = None

    @property
    def measured(self) -> frozenset[int]:
        """The indices of the results whose tolerances were measured when the case was recorded."""
        return frozenset(
            int(word) for word in self.recorded.get(MEASURED, "").split() if re.fullmatch("[0-9]{1,9}", word)
        )


part_of(Case, Value)


class Table(NamedTuple):
    """What a trailer says of files: each (name, size, content), and tensors (name, index of the file, size, digest)."""

    files: Sequence[Any] = ()
    tensors: Sequence[Any] = ()


NO_FILES = Table()


@dataclasses.dataclass(frozen=True, slots=True)
class Cases:
    """The cases of a function and its VJPs, and the files that arrays of them are in."""

    all: tuple[Case, ...]
    table: Table = NO_FILES

    @classmethod
    def of_trailer(cls, said: Any, source: Source | None = None) -> Cases:
        """What `_native.Artifact.cases` returned. `source` reads tensors from the files beside the artifact."""
        cases, recordings, files, tensors = said
        recorded = [dict(facts) for facts in recordings]
        read = source or _nowhere([name for name, *_ in files])

        def value(one: Any) -> Value:
            kind, shape, data, tensor, drawn, tolerance = one
            dtype, shape = _native.dtype_name(kind), tuple(shape)
            if drawn is not None:
                number, seed, first, second = drawn
                drawn = Drawn(shape, dtype, DISTRIBUTIONS[number], seed, first, second)
            tolerance = None if tolerance is None else Tolerance(*tolerance)
            at = None if tensor is None else (tensors[tensor][0], read)
            return Value(dtype, shape, drawn, tolerance, data, at)

        made = tuple(
            Case(
                name,
                order,
                tuple(map(value, arguments)),
                tuple(map(value, results)),
                recorded[recording],
                None if trace is None else value(trace),
            )
            for name, order, arguments, results, recording, trace in cases
        )
        return cls(made, Table(tuple(files), tuple(tensors)))

    def for_trailer(self, keep: Callable[[Case], bool] = lambda case: True) -> Any:
        """What `_native.Notes` takes, of those cases that are kept; None if there are none."""
        kept = [case for case in self.all if keep(case)]
        if not kept:
            return None
        recordings: dict[tuple[tuple[str, str], ...], int] = {}
        index_of = {tensor[0]: index for index, tensor in enumerate(self.table.tensors)}

        def value(one: Value) -> Any:
            drawn = one.drawn
            described = None
            if drawn is not None:
                described = (DISTRIBUTIONS.index(drawn.distribution), drawn.seed, drawn.first, drawn.second)
            at = None if one._tensor is None else index_of[one._tensor[0]]
            data = None if one._bytes is None else bytes(one._bytes)
            return _KINDS[one.dtype], list(one.shape), data, at, described, one.tolerance

        def recording(case: Case) -> int:
            return recordings.setdefault(tuple(sorted(case.recorded.items())), len(recordings))

        made = [
            (
                c.name,
                c.vjp_order,
                [value(v) for v in c.arguments],
                [value(v) for v in c.results],
                recording(c),
                None if c.trace is None else value(c.trace),
            )
            for c in kept
        ]
        # Tensors that no case has stay in the table, which says what the files are.
        files, tensors = self.table if any(map(is_in_files, kept)) else NO_FILES
        return made, list(map(list, recordings)), list(files), list(tensors)

    def beside(self, source: Source) -> Cases:
        """The same, whose arrays in files are read by this."""

        def moved(value: Value) -> Value:
            return value if value._tensor is None else dataclasses.replace(value, _tensor=(value._tensor[0], source))

        return dataclasses.replace(self, all=tuple(with_values(case, moved) for case in self.all))


def read(value: Value) -> tuple[Array, Callable[[], object]]:
    """`Value.array` before it is compared with its digest, and what does that, for who may not have to."""
    if value._tensor is None:
        return value.array(), lambda: None
    name, source = value._tensor
    data, check = source(name)
    return value._of(data), check


def values_of(case: Case) -> tuple[Value, ...]:
    """Its arguments, its results, and its trace."""
    return *case.arguments, *case.results, *(() if case.trace is None else (case.trace,))


def with_values(case: Case, change: Callable[[Value], Value]) -> Case:
    """A case with a change in its arguments, its results, and its trace."""
    return dataclasses.replace(
        case,
        arguments=tuple(map(change, case.arguments)),
        results=tuple(map(change, case.results)),
        trace=None if case.trace is None else change(case.trace),
    )


def is_in_files(case: Case) -> bool:
    return any(value.tensor is not None for value in values_of(case))


def _nowhere(names: Iterable[str]) -> Source:
    """What reads tensors of an artifact that was in no file."""
    files = ", ".join(map(repr, names))

    def read(tensor: str) -> Any:
        raise WeightsError(
            tensor, "an artifact in a file, with the arrays of its cases beside it", f"one in memory, without {files}"
        )

    return read

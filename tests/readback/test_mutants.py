"""The tests of values notice it when an entry of the table is wrong: each entry is made wrong, in each way that it has.

A mutant reads one attribute of one operation as something else, takes two operands in the other order, or gives another
result. Some snippet has to come out different, or be refused.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar

import jax
import numpy as np
import pytest
from jax import lax

from jaxexp import _jax
from jaxexp._readback import reader, table
from jaxexp._readback.operation import Function, Many, Operation
from jaxexp._readback.placement import Sharding
from jaxexp._readback.program import Block
from kit.raising import assert_same_bits
from kit.snippets import SNIPPETS

pytestmark = [
    pytest.mark.once(reason="it is about the tests, which are the same for every JAX"),
    pytest.mark.sampled(one_in=6, reason="many cases go the same way"),
]

# What changes no value on the CPU; `test_hints` looks at these.
HINTS = {
    ("stablehlo.convolution", "precision_config"),
    ("stablehlo.dot_general", "precision_config"),
    ("stablehlo.gather", "indices_are_sorted"),
    ("stablehlo.scatter", "indices_are_sorted"),
    ("stablehlo.scatter", "unique_indices"),
    ("stablehlo.sort", "is_stable"),
    ("chlo.top_k", "is_stable"),  # of which some releases of jaxlib know only one
    ("sdy.sharding_constraint", "sharding"),
}
# These say what something is called that is also given in full.
NAMES = {("stablehlo.composite", "name"), ("stablehlo.composite", "version")}


class Mutant(Operation):
    """An operation that reads one attribute as something else."""

    __slots__ = ()
    target: tuple[str, str] = ("", "")
    seen: ClassVar[set[tuple[str, str]]] = set()

    def _read(self, name: str, default: Any, read: Callable[[Any], Any]) -> Any:
        value = super()._read(name, default, read)
        self.seen.add((self.name, name))
        if (self.name, name) == self.target:
            value = self.said[name] = wrong(value)
        return value

    def structure(self, name: str, kind: Any) -> Any:
        value = super().structure(name, kind)
        self.seen.discard((self.name, name))
        for part in parts(value):
            self.seen.add((self.name, f"{name}.{part}"))
            if (self.name, f"{name}.{part}") == self.target:
                return Structure(value, part)
        return value

    def keyword(self, name: str, known: Mapping[str, Any], default: Any = None) -> Any:
        value = super().keyword(name, known, *([] if default is None else [default]))
        if (self.name, name) == self.target:
            value = self.said[name] = next(other for other in known.values() if other is not value)
        return value


def parts(structure: Any) -> list[str]:
    """The parts of an attribute that say something."""
    names = [name for name in dir(structure) if name.endswith(("_dims", "_dim", "_dimension", "_dimensions", "_map"))]
    return [name for name in names if getattr(structure, name) not in ([], None)]


class Structure:
    """An attribute with one part read as something else."""

    def __init__(self, structure: Any, part: str) -> None:
        self._structure, self._part = structure, part

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._structure, name)
        value = tuple(value) if isinstance(value, list) else value
        return wrong(value) if name == self._part else value


def wrong(value: Any) -> Any:
    """Another value of the same kind."""
    if isinstance(value, str):
        return f"another {value}"
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    if isinstance(value, tuple) and value and isinstance(value[0], bool):
        return tuple(not v for v in value)
    if isinstance(value, Sharding):
        return value._replace(dimensions=value.dimensions[::-1])
    if isinstance(value, tuple) and value and isinstance(value[0], Sharding):
        return tuple(map(wrong, value))
    if isinstance(value, tuple) and value and isinstance(value[0], str):
        return value[1:]
    if isinstance(value, tuple) and sorted(itertools.chain(*filter(is_tuple, value))) == list(range(8)):
        return tuple(tuple((device + 1) % 8 for device in devices) for devices in value)  # other groups of devices
    if isinstance(value, tuple) and value and isinstance(value[0], tuple):
        return tuple((low + 1, high) for low, high in value)
    if isinstance(value, tuple) and value:
        return (value[0] + 1, *value[1:])
    if isinstance(value, dict):
        return {name: wrong(entry) for name, entry in value.items()}
    if isinstance(value, np.generic):
        return value + 1
    return value


def is_tuple(value: Any) -> bool:
    return isinstance(value, tuple)


def values(name: str) -> list[np.ndarray]:
    """The results of a snippet, raised anew."""
    snippet = SNIPPETS[name]
    with jax.enable_x64(True), _jax.make_ir_context() as context, _jax.ir.Location.unknown(context):
        module = _jax.ir.Module.parse(snippet.text, context)
        block = reader.Reader(module, table.OPERATIONS, partitioned=snippet.devices > 1).main()
        return list(map(np.asarray, jax.jit(lambda *xs: block(xs))(*snippet.placed(*snippet.arguments()))))


def differs(name: str, expected: list[np.ndarray]) -> bool:
    try:
        assert_same_bits(values(name), expected)
    except Exception:
        return True
    return False


@pytest.fixture(scope="module")
def right() -> Mapping[str, list[np.ndarray]]:
    return {name: values(name) for name in SNIPPETS}


def users(operation: str) -> Iterator[str]:
    return (name for name, snippet in SNIPPETS.items() if operation in snippet.text)


def attributes() -> list[tuple[str, str]]:
    """Every attribute that the snippets have, with its operation."""
    Mutant.seen.clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reader, "Operation", Mutant)
        for snippet in SNIPPETS.values():
            with jax.enable_x64(True), _jax.make_ir_context() as context, _jax.ir.Location.unknown(context):
                module = _jax.ir.Module.parse(snippet.text, context)
                reader.Reader(module, table.OPERATIONS, partitioned=snippet.devices > 1).main()
    return sorted(Mutant.seen)


@pytest.mark.parametrize("target", [pair for pair in attributes() if pair not in HINTS | NAMES], ids=" ".join)
def test_attributes(target: tuple[str, str], right: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Mutant, "target", target)
    monkeypatch.setattr(reader, "Operation", Mutant)
    assert any(differs(name, right[name]) for name in users(target[0]))


READ = sorted(
    name for name in table.OPERATIONS.keys() - table.REFUSED.keys() if any(True for _ in users(f"{name} "))
    or any(True for _ in users(f"{name}(")) or any(True for _ in users(f'{name}"'))
)  # fmt: skip


def other(x: Any) -> Any:
    if x.dtype == bool:
        return lax.bitwise_not(x)
    if x.size == 0:
        return x
    return lax.add(x, np.ones((), x.dtype)) if jax.dtypes.issubdtype(x.dtype, np.number) else x


def mutated(operation: str, change: Callable[[Any], Any], swap: bool) -> Mapping[str, Any]:
    """The table with one entry that takes its operands, or gives its result, in another way."""
    original = table.OPERATIONS[operation]

    def read(found: Operation) -> Any:
        made = original(found)
        if made is None or isinstance(made, Block):
            return made
        run = made.jitted if isinstance(made, Function) else made.run if isinstance(made, Many) else made
        many = isinstance(made, (Function, Many))

        def run_mutant(*xs: Any) -> Any:
            if swap and len(xs) > 1 and xs[0].shape == xs[1].shape and xs[0].dtype == xs[1].dtype:
                xs = (xs[1], xs[0], *xs[2:])
            results = list(run(*xs)) if many else [run(*xs)]
            results = [change(x) for x in results]
            return results if many else results[0]

        return Many(run_mutant, made.captures if isinstance(made, Many) else ()) if many else run_mutant

    return {**table.OPERATIONS, operation: read}


@pytest.mark.parametrize("operation", READ)
def test_results(operation: str, right: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "OPERATIONS", mutated(operation, other, swap=False))
    assert any(differs(name, right[name]) for name in users(operation))


def of_two(operation: str) -> bool:
    """Whether a snippet gives an operation two operands of one type, which it does not treat alike."""
    short = operation.partition(".")[2]
    binary = {"subtract", "divide", "remainder", "power", "atan2", "shift_left", "shift_right_arithmetic",
              "shift_right_logical", "compare", "complex", "next_after", "polygamma", "zeta"}  # fmt: skip
    return short in binary


@pytest.mark.parametrize("operation", list(filter(of_two, READ)))
def test_operands(operation: str, right: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "OPERATIONS", mutated(operation, lambda x: x, swap=True))
    assert any(differs(name, right[name]) for name in users(operation))


# --- what changes no value here

HINTED = {
    "dot_general with precisions": ("", "", "precision = [HIGHEST, HIGH]"),
    "convolution of groups": ("", "", "precision_config = [#stablehlo<precision HIGHEST>, #stablehlo"),
    "gather": ("indices_are_sorted = false", "indices_are_sorted = true", "indices_are_sorted = true"),
    "scatter: add": ("indices_are_sorted = false", "indices_are_sorted = true", "indices_are_sorted = true"),
    "scatter: differences": ("unique_indices = false", "unique_indices = true", "unique_indices = true"),
    "sort: smaller first": ("", "", "is_stable = true"),
    "sort: smaller first, in any order": ("", "", "is_stable = false"),
    "sort: larger first": ("", "", "is_stable = true"),
    "sort: by size": ("is_stable = true", "is_stable = false", "is_stable = false"),
}  # fmt: skip


@pytest.mark.parametrize("name", HINTED)
def test_hints(name: str) -> None:
    """They are in what the raised code is lowered to, as they were in the module."""
    old, new, expected = HINTED[name]
    text = SNIPPETS[name].text.replace(old, new) if old else SNIPPETS[name].text
    with _jax.make_ir_context() as context, _jax.ir.Location.unknown(context):
        block = reader.Reader(_jax.ir.Module.parse(text, context), table.OPERATIONS).main()
    lowered = jax.jit(lambda *xs: block(xs)).lower(*SNIPPETS[name].arguments()).as_text()
    assert expected in lowered

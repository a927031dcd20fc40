"""The facts about a function that cards and pages show: values with types, sizes, shardings and notes."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from jaxexp._kernel.artifact import words
from jaxexp._kernel.artifact.inspect import shown_node
from jaxexp._kernel.artifact.inspection import facts_of, notes_of
from jaxexp._kernel.artifact.words import bytes_in_words, counted, cut, dtype_and_shape

if TYPE_CHECKING:
    from jaxexp._kernel.artifact.inspection import Inspection, Weight
    from jaxexp._kernel.function.data import ExportedData
    from jaxexp._native import Artifact

# The most values in a list. The others are only counted.
MOST_VALUES = 2_000
# The most names in a text about the whole function, and characters of that text.
_MOST_NAMES, _LONGEST_TEXT = 50, 2_000
# A step of a path: a key, an attribute, or the number of a child; or the rest of a path that was cut.
STEP = re.compile(r"\['(?:[^'\\]|\\.)*'\]|\[\"(?:[^\"\\]|\\.)*\"\]|\[[^\]]*\]|\.\w+|<\d+>|/?[^\[./<]+|.", re.DOTALL)


@dataclasses.dataclass(frozen=True, slots=True)
class Placement:
    """How an array is divided among the devices of a mesh.

    Attributes:
        axes: the names and sizes of the mesh's axes.
        spec: for each dimension of the array, the axes that divide it.
        memory: the kind of memory, if it is not the device's.
    """

    axes: tuple[tuple[str, int], ...]
    spec: tuple[tuple[str, ...], ...]
    memory: str | None

    def __str__(self) -> str:
        return cut(f"P({words.spec(self.spec)})")

    @property
    def mesh(self) -> str:
        return cut(words.mesh(self.axes))


@dataclasses.dataclass(frozen=True, slots=True)
class Leaf:
    """An argument or a result.

    Attributes:
        path: where it is in the tree, as in ``"args[0]['w']"``.
        type: dtype and shape, as in ``"float32[batch,4]"``.
        shape: its dimensions as texts.
        bytes: its size; None if that depends on a dimension variable.
        sharding: how it is divided, in words; None if that is not specified.
        placement: the same as data, if it is a NamedSharding.
        notes: other facts.
        digest: the digest of its value, if it is a weight.
    """

    path: str
    type: str
    shape: tuple[str, ...]
    bytes: int | None
    sharding: str | None
    placement: Placement | None
    notes: tuple[str, ...]
    digest: str | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """A function, as cards and pages show it. Of many arguments, results and weights it has only the first ones, and
    counts the others. Arguments are those of a call: without the weights, which are in files.
    """

    name: str
    rows: tuple[tuple[str, str], ...]
    arguments: tuple[Leaf, ...]
    argument_count: int
    results: tuple[Leaf, ...]
    result_count: int
    weights: tuple[Leaf, ...] = ()
    weight_count: int = 0


def of_artifact(artifact: Artifact, found: Inspection, donated: Sequence[bool]) -> Facts:
    """The facts of an artifact, given what `inspect` returns, and whether the memory of each argument that the module
    takes may be used; nothing if that is not known.
    """
    described: dict[str, Any] = artifact.describe(shown_node)
    kept = [i for i, value in enumerate(found.arguments) if value.kept]
    flags = dict(zip(kept, donated[-len(kept) :] if kept else (), strict=False))
    first = len(found.weights)
    in_leaves = [
        _leaf(value, raw, "donated" if flags.get(i) else "", found.weights[i].bytes if i < first else None)
        for i, (value, raw) in enumerate(
            zip(found.arguments[: first + MOST_VALUES], described["arguments"], strict=False)
        )
    ]
    results = [
        _leaf(value, raw, "", None)
        for value, raw in zip(found.results[:MOST_VALUES], described["results"], strict=False)
    ]
    for i, weight in enumerate(found.weights[:MOST_VALUES]):
        notes = (*in_leaves[i].notes, *_ties(weight))
        in_leaves[i] = dataclasses.replace(in_leaves[i], path=cut(weight.name), notes=notes, digest=cut(weight.digest))
    rows = facts_of(found, _MOST_NAMES)
    return _facts(found.fun_name, rows, first, in_leaves, len(found.arguments), results, len(found.results))


def of_exported(exported: ExportedData, weights: int = 0) -> Facts:
    """The facts of a function in this process, without its module: this parses nothing and reads no file. Its first
    arguments are weights.
    """
    from jaxexp._kernel.function import data, vjps
    from jaxexp._kernel.function.paths import argument_paths, result_paths

    paths = argument_paths(exported.in_tree, weights)
    used, weak = {*exported.module_kept_var_idx}, {*data.weak_arguments(exported)}
    arguments = [
        _leaf_of_aval(path, aval, sharding, ("" if i in used else "not used", "weakly typed" if i in weak else ""))
        for i, (path, aval, sharding) in enumerate(
            zip(paths, exported.in_avals, exported._in_named_shardings, strict=False)
        )
        if i < weights + MOST_VALUES
    ]
    results = [
        _leaf_of_aval(path, aval, sharding, ())
        for path, aval, sharding in zip(
            result_paths(exported.out_tree)[:MOST_VALUES],
            exported.out_avals,
            exported._out_named_shardings,
            strict=False,
        )
    ]
    size = sum(leaf.bytes or 0 for leaf in arguments[:weights])
    cases = data.cases_of(exported)
    is_live = exported.has_vjp() and not data.is_loaded(exported)
    rows = {
        "platforms": words.lowered_for(exported.platforms, exported.nr_devices),
        "weights": f"{counted(weights, 'array')}, {bytes_in_words(size)}" if weights else "",
        "cases": f"{len(cases.all):,}, which check() makes again" if cases is not None else "",
        "module": bytes_in_words(data.module_size(exported)),
        "derivatives": "VJPs of any order" if is_live else words.derivatives(vjps.stored_orders(exported)),
        "effects": words.effects(exported.ordered_effects, exported.unordered_effects),
    }
    shown = [row for row in rows.items() if row[1]]
    return _facts(
        exported.fun_name, shown, weights, arguments, len(exported.in_avals), results, len(exported.out_avals)
    )


def _facts(
    name: str,
    rows: words.Facts,
    weights: int,
    arguments: Sequence[Leaf],
    argument_count: int,
    results: Sequence[Leaf],
    result_count: int,
) -> Facts:
    """The first arguments are the weights."""
    return Facts(
        name=cut(name),
        rows=tuple((label, cut(text, _LONGEST_TEXT)) for label, text in rows),
        arguments=tuple(arguments[weights:]),
        argument_count=argument_count - weights,
        results=tuple(results),
        result_count=result_count,
        weights=tuple(arguments[: min(weights, MOST_VALUES)]),
        weight_count=weights,
    )


def _ties(weight: Weight) -> tuple[str, ...]:
    return (cut(f"also {', '.join(weight.other_names)}"),) if weight.other_names else ()


def _leaf(value: Any, raw: Any, donated: str, size: int | None) -> Leaf:
    sharding = raw[3]
    placement = None
    if isinstance(sharding, tuple):
        mesh, spec, memory = sharding
        axes = tuple((cut(name), axis) for name, axis in mesh[:16])
        placement = Placement(axes, tuple(tuple(map(cut, axes)) for axes in spec[:16]), memory and cut(memory))
    shape = tuple(cut(str(dim), 40) for dim in value.shape[:16])
    return _made(value.path, value.dtype, shape, value.sharding, placement, [donated, *notes_of(value)], size)


def _leaf_of_aval(path: str, aval: Any, sharding: Any, notes: Sequence[str]) -> Leaf:
    placement = None
    if sharding is not None:
        spec = tuple(
            tuple(map(str, axes)) if isinstance(axes, tuple) else () if axes is None else (str(axes),)
            for axes in (*sharding.spec, *[None] * (len(aval.shape) - len(sharding.spec)))
        )
        axes = tuple((str(name), int(size)) for name, size in sharding.mesh.shape.items())
        placement = Placement(axes, spec, None)
    shape = tuple(cut(str(dim), 40) for dim in aval.shape)
    return _made(path, str(aval.dtype), shape, None if placement is None else str(placement), placement, notes, None)


def _made(
    path: str,
    dtype: str,
    shape: tuple[str, ...],
    sharding: str | None,
    placement: Placement | None,
    notes: Sequence[str],
    size: int | None,
) -> Leaf:
    size = size if size is not None else _bytes(dtype, shape)
    text = None if sharding is None else cut(sharding)
    return Leaf(cut(path), cut(dtype_and_shape(dtype, shape)), shape, size, text, placement, tuple(filter(None, notes)))


def _bytes(dtype: str, shape: tuple[str, ...]) -> int | None:
    bits = 8 if dtype == "bool" else int(found[1]) if (found := re.match(r"[a-z]+(\d+)", dtype)) else None
    if bits is None or not all(dim.isascii() and dim.isdecimal() for dim in shape):
        return None
    return (math.prod(map(int, shape)) * bits + 7) // 8

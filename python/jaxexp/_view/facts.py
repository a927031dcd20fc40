"""The facts about a function that cards and pages show: values with types, sizes, shardings and notes; and for `repr`,
a function in one line.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from jaxexp._kernel.artifact import words
from jaxexp._kernel.artifact.inspection import facts_of, notes_of, shown_node
from jaxexp._kernel.artifact.words import bytes_in_words, counted, cut, dtype_and_shape

if TYPE_CHECKING:
    from jaxexp._kernel.artifact.inspection import Inspection
    from jaxexp._kernel.function.data import ExportedData
    from jaxexp._native import Artifact

# The most values in a list. The others are only counted.
MOST_VALUES = 2_000
# The most names in a text about the whole function, and characters of that text.
_MOST_NAMES, _LONGEST_TEXT = 50, 2_000
# A step of a path: a key, an attribute, or the number of a child; or the rest of a path that was cut.
STEP = re.compile(r"\['(?:[^'\\]|\\.)*'\]|\[\"(?:[^\"\\]|\\.)*\"\]|\[[^\]]*\]|\.\w+|<\d+>|/?[^\[./<]+|.", re.DOTALL)


@dataclasses.dataclass(frozen=True, slots=True)
class MeshPlacement:
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
class CardLeaf:
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
    placement: MeshPlacement | None
    notes: tuple[str, ...]
    digest: str | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CardFacts:
    """A function, as cards and pages show it. Of many arguments, results and weights it has only the first ones, and
    counts the others. Arguments are those of a call: without the weights, which are in files.
    """

    name: str
    rows: tuple[tuple[str, str], ...]
    arguments: tuple[CardLeaf, ...]
    argument_count: int
    results: tuple[CardLeaf, ...]
    result_count: int
    weights: tuple[CardLeaf, ...] = ()
    weight_count: int = 0


def of_artifact(artifact: Artifact, found: Inspection, donated: Sequence[bool]) -> CardFacts:
    """The facts of an artifact, given what `inspect` returns, and whether the memory of each argument that the module
    takes may be used; nothing if that is not known.
    """
    described: dict[str, Any] = artifact.describe(shown_node)
    kept = [i for i, value in enumerate(found.arguments) if value.kept]
    flags = dict(zip(kept, donated[-len(kept) :] if kept else (), strict=False))
    first = len(found.weights)
    sizes = dict(enumerate(weight.bytes for weight in found.weights))
    arguments = [
        _leaf(value, raw, "donated" if flags.get(i) else "", sizes.get(i))
        for i, (value, raw) in enumerate(
            zip(found.arguments[: first + MOST_VALUES], described["arguments"], strict=False)
        )
    ]
    results = [_leaf(*one) for one in zip(found.results[:MOST_VALUES], described["results"], strict=False)]
    for i, weight in enumerate(found.weights[:MOST_VALUES]):
        ties = (cut(f"also {', '.join(weight.other_names)}"),) if weight.other_names else ()
        leaf = arguments[i]
        arguments[i] = dataclasses.replace(
            leaf, path=cut(weight.name), notes=(*leaf.notes, *ties), digest=cut(weight.digest)
        )
    counts = len(found.arguments), len(found.results)
    return _facts(found.fun_name, facts_of(found, _MOST_NAMES), first, arguments, results, counts)


def of_exported(exported: ExportedData, weights: int = 0) -> CardFacts:
    """The facts of a function in this process, without its module: this parses nothing and reads no file. Its first
    arguments are weights.
    """
    from jaxexp._kernel.function import data, vjps
    from jaxexp._kernel.function.paths import argument_paths, result_paths

    paths = argument_paths(exported.in_tree, weights)[: weights + MOST_VALUES]
    of_results = result_paths(exported.out_tree)[:MOST_VALUES]
    used, weak = {*exported.module_kept_var_idx}, {*data.weak_arguments(exported)}
    arguments = [
        _leaf_of_aval(*one, ("" if i in used else "not used", "weakly typed" if i in weak else ""))
        for i, one in enumerate(zip(paths, exported.in_avals, exported._in_named_shardings, strict=False))
    ]
    results = [
        _leaf_of_aval(*one, ())
        for one in zip(of_results, exported.out_avals, exported._out_named_shardings, strict=False)
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
    shown, counts = [row for row in rows.items() if row[1]], (len(exported.in_avals), len(exported.out_avals))
    return _facts(exported.fun_name, shown, weights, arguments, results, counts)


def _facts(
    name: str,
    rows: words.Facts,
    weights: int,
    arguments: Sequence[CardLeaf],
    results: Sequence[CardLeaf],
    counts: tuple[int, int],
) -> CardFacts:
    """The first arguments are the weights; the counts are those of all arguments and results."""
    return CardFacts(
        name=cut(name),
        rows=tuple((label, cut(text, _LONGEST_TEXT)) for label, text in rows),
        arguments=tuple(arguments[weights:]),
        argument_count=counts[0] - weights,
        results=tuple(results),
        result_count=counts[1],
        weights=tuple(arguments[: min(weights, MOST_VALUES)]),
        weight_count=weights,
    )


def _leaf(value: Any, raw: Any, donated: str = "", size: int | None = None) -> CardLeaf:
    sharding = raw[3]
    placement = None
    if isinstance(sharding, tuple):
        mesh, spec, memory = sharding
        axes = tuple((cut(name), axis) for name, axis in mesh[:16])
        placement = MeshPlacement(axes, tuple(tuple(map(cut, axes)) for axes in spec[:16]), memory and cut(memory))
    text, notes = value.sharding, [donated, *notes_of(value)]
    return _made(value.path, value.dtype, value.shape[:16], text, placement, notes, size)


def _leaf_of_aval(path: str, aval: Any, sharding: Any, notes: Sequence[str]) -> CardLeaf:
    placement = None
    if sharding is not None:
        spec = tuple(
            tuple(map(str, axes)) if isinstance(axes, tuple) else () if axes is None else (str(axes),)
            for axes in (*sharding.spec, *[None] * (len(aval.shape) - len(sharding.spec)))
        )
        axes = tuple((str(name), int(size)) for name, size in sharding.mesh.shape.items())
        placement = MeshPlacement(axes, spec, None)
    return _made(path, str(aval.dtype), aval.shape, None if placement is None else str(placement), placement, notes)


def _made(
    path: str,
    dtype: str,
    dims: Sequence[object],
    sharding: str | None,
    placement: MeshPlacement | None,
    notes: Sequence[str],
    size: int | None = None,
) -> CardLeaf:
    shape = tuple(cut(str(dim), 40) for dim in dims)
    size = size if size is not None else _bytes(dtype, shape)
    text = None if sharding is None else cut(sharding)
    type_ = cut(dtype_and_shape(dtype, shape))
    return CardLeaf(cut(path), type_, shape, size, text, placement, tuple(filter(None, notes)))


def _bytes(dtype: str, shape: tuple[str, ...]) -> int | None:
    bits = 8 if dtype == "bool" else int(found[1]) if (found := re.match(r"[a-z]+(\d+)", dtype)) else None
    if bits is None or not all(dim.isascii() and dim.isdecimal() for dim in shape):
        return None
    return (math.prod(map(int, shape)) * bits + 7) // 8


def common(sequences: Iterable[tuple[Any, ...] | None]) -> tuple[Any, ...] | None:
    """What sequences begin with; None if there are no sequences but None."""
    found = [one for one in sequences if one is not None]
    if not found:
        return None
    first, last = min(found), max(found)  # all others begin with what these have in common
    same = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(first, last, strict=False))
    return first[: sum(1 for _ in same)]


# --- in one line, which ends up in jaxprs and logs, so it is always short

# Values in a line, dimensions of a value, characters of a dimension.
_VALUES, _DIMS, _LONGEST_DIM = 4, 6, 24


def line(exported: ExportedData, weights: int) -> str:
    """A function with the types of its first arguments and results, and the size of its module. The arguments before
    them are weights.
    """
    from jaxexp._kernel.function import data

    before = f"{counted(weights, 'weight')}; " if weights else ""
    types = f"{_types(exported.in_avals[weights:])} -> {_types(exported.out_avals)}"
    name, size = cut(exported.fun_name, 80), bytes_in_words(data.module_size(exported))
    return f"{type(exported).__name__}({name}: {before}{types}, module of {size})"


def _types(avals: Sequence[Any]) -> str:
    shown = [_type(aval) for aval in itertools.islice(avals, _VALUES)]
    if len(avals) > _VALUES:
        shown.append(f"... {len(avals) - _VALUES:,} more")
    return ", ".join(shown) or "nothing"


def _type(aval: Any) -> str:
    dims = [cut(str(dim), _LONGEST_DIM) for dim in aval.shape[:_DIMS]] + ["..."] * (len(aval.shape) > _DIMS)
    return f"{aval.dtype}[{','.join(dims)}]"

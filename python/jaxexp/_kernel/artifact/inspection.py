"""`Inspection`: what an artifact says about itself, read from its bytes without JAX, as data and in words.

Texts, the command line, cards and pages show the list that `facts_of` returns.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from jaxexp import _native
from jaxexp._errors import DeserializationError
from jaxexp._kernel.io.files import Mapped
from jaxexp._public import part_of, public

from . import module_head, op_sharding, words
from .chain import chain
from .opened import opened, recorded, writer_in
from .operations import not_understood
from .words import Facts, counted, listed

if TYPE_CHECKING:
    from .cases import Case as RecordedCase


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """An argument or a result.

    Attributes:
        dtype: the name of its dtype.
        weak_type: whether its type is weak in JAX's type promotion; None if the artifact has no trailer to say so.
        shape: its dimensions; a symbolic dimension is an expression in dimension variables, as text.
        memory_space: the memory that holds it: "device", "host" or "any".
        sharding: its sharding, as text; None if it is not specified, or if its mesh has no axes.
        kept: whether the module has it. The module may lack unused arguments, but no results.
        path: its place in the tree, as in ``"args[0]['weights']"``, ``"kwargs['x']"`` or ``"result[1].mu"``. Children
            of registered pytree nodes have numbers, as in ``"args[0]<2>"``; a long path is cut. Paths of weights look
            like ``"weights['layers/0/w']"``; the other arguments are counted as `call` takes them.
    """

    dtype: str
    weak_type: bool | None
    shape: tuple[int | str, ...]
    memory_space: str
    sharding: str | None
    kept: bool
    path: str

    def __str__(self) -> str:
        return ", ".join(filter(None, (type_of(self), self.sharding, *notes_of(self))))


def type_of(value: Value) -> str:
    """As in "float32[batch,4]"."""
    return words.dtype_and_shape(value.dtype, value.shape)


def notes_of(value: Value) -> list[str]:
    """Remarks on a value, besides its type and sharding."""
    notes = {
        "weakly typed": value.weak_type,
        f"in {value.memory_space} memory": value.memory_space != "device",
        "not used": not value.kept,
    }
    return [note for note, holds in notes.items() if holds]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Weight:
    """A weight: one of the first arguments, whose value is in a file beside the artifact.

    Attributes:
        name: its name in the file.
        file: the name of the file.
        bytes: its size in bytes.
        digest: the XXH3 digest of its bytes, as a hexadecimal number.
        other_names: for a tied weight, its other places in the pytree.
    """

    name: str
    file: str
    bytes: int
    digest: str
    other_names: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A recorded call.

    Attributes:
        name: its name.
        vjp_order: 0 for a call of the function, 1 for a call of its VJP, and so on.
        bytes: the size of its arrays in bytes, without random arguments.
        drawn_bytes: the size of its random arguments, when they are drawn, in bytes.
        file: the name of the file with its arrays; None if they are in the artifact.
        recorded: where it was recorded, such as ``{"jax": "0.10.2", "platform": "cpu", ...}``.
    """

    name: str
    vjp_order: int
    bytes: int
    drawn_bytes: int
    file: str | None
    recorded: Mapping[str, str] = dataclasses.field(hash=False)


@public
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Inspection:
    """The facts that an artifact states about itself. `print` shows them as text.

    They are not compared with the modules, which would need JAX. A `Policy` checks the modules.

    Attributes:
        fun_name: the name of the function.
        jax_version: the release of JAX that wrote it; None if the artifact does not say so (before JAX 0.11.1).
        writer: the releases of JAX that write such an artifact.
        serialization_version: the version number in its first slot.
        calling_convention_version: the version of the calling convention.
        platforms: the platforms that the module was lowered for.
        nr_devices: how many devices it was lowered for.
        arguments: the arguments, in the order of the leaves of `in_tree`.
        results: the results, in the order of the leaves of `out_tree`.
        in_tree: the tree structure of the pair (args, kwargs), as JAX prints it, with the classes of nodes.
        out_tree: the tree structure of the result.
        ordered_effects: the types of its ordered effects.
        unordered_effects: the types of its other effects.
        disabled_checks: the safety checks that the export left out.
        vjp_order: how many VJPs it holds.
        total_bytes: the size of the buffer or file, in bytes.
        module_bytes: the size of its module, then the sizes of its VJPs' modules, in bytes.
        producer: the writer of the module, such as ``"StableHLO_v1.13.0"``; None if the module is not MLIR bytecode.
        stablehlo: the version of StableHLO that the module was written for; None if the producer does not say.
        dialects: the dialects of the module.
        operations: the kinds of operations in the module.
        operation_counts: for each module, in the order of `module_bytes`, how many operations of each kind it has; None
            for a module that is damaged or too new to be read here.
        custom_calls: how many operations call each custom call target, in the form of `operation_counts`.
        absolute_paths: the absolute paths of source files that its modules name. Every receiver of the artifact can
            read them.
        unknown_operations: the kinds of operations in its modules that jaxexp does not know. A `Policy` refuses them.
        trailer: the writer of the trailer, which holds `module_digests`, `constraints` and `metadata`; None without a
            trailer.
        first_writer: the writer of the artifact that this one was made from, as in ``"JAX 0.4.30"``; None if unknown.
        module_digests: digests of the modules as hexadecimal numbers (XXH3, 128 bits), in the order of `module_bytes`.
        modules_checked: whether `inspect` compared the modules with their digests. If there is a trailer, the metadata
            is always compared.
        constraints: the constraints on dimension variables.
        metadata: the `metadata` that the artifact was written with; None without metadata.
        sizes: the `sizes` that the artifact was written with: sets of sizes of its symbolic dimensions.
        padded: the names of the dimensions along which `jaxexp.runtime.Session` may pad arguments.
        weights: the weights in files beside it, which are the first arguments. The files are not read.
        cases: the recorded calls.
        sha256, meaning: as in `Digests`; None without ``digests=True``.
    """

    fun_name: str
    jax_version: str | None
    writer: str
    serialization_version: int
    calling_convention_version: int
    platforms: tuple[str, ...]
    nr_devices: int
    arguments: tuple[Value, ...]
    results: tuple[Value, ...]
    in_tree: str
    out_tree: str
    ordered_effects: tuple[str, ...]
    unordered_effects: tuple[str, ...]
    disabled_checks: tuple[str, ...]
    vjp_order: int
    total_bytes: int
    module_bytes: tuple[int, ...]
    producer: str | None
    stablehlo: str | None
    dialects: tuple[str, ...]
    operations: tuple[str, ...]
    operation_counts: tuple[dict[str, int] | None, ...] = dataclasses.field(hash=False)
    custom_calls: tuple[dict[str, int] | None, ...] = dataclasses.field(hash=False)
    absolute_paths: tuple[str, ...]
    unknown_operations: tuple[str, ...]
    trailer: str | None
    first_writer: str | None
    module_digests: tuple[str, ...]
    modules_checked: bool
    constraints: tuple[str, ...]
    metadata: dict[str, Any] | None = dataclasses.field(hash=False)
    sizes: tuple[dict[str, int], ...] = dataclasses.field(hash=False)
    padded: tuple[str, ...]
    weights: tuple[Weight, ...]
    cases: tuple[Case, ...]
    sha256: str | None = None
    meaning: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """The facts as a dict of strings, numbers, tuples and dicts, which `json.dumps` accepts."""
        return dataclasses.asdict(self)

    def __str__(self) -> str:
        return words.text(
            self.fun_name,
            [
                *facts_of(self),
                ("in tree", in_tree_of(self)),
                *_numbered("argument", self.arguments[len(self.weights) :]),
                ("out tree", self.out_tree),
                *_numbered("result", self.results),
            ],
        )


part_of(Inspection, Value)
part_of(Inspection, Weight)
part_of(Inspection, Case)


def facts_of(found: Inspection, most: int | None = None) -> Facts:
    """All facts about an artifact but its trees, arguments and results. A text lists at most `most` names."""
    kinds = found.operation_counts[0]
    counts = f"{words.operations(kinds)}, " if kinds else ""
    by = f" with {found.trailer}" if found.trailer else ""
    by += f" from an artifact of {found.first_writer}" if found.first_writer else ""
    sizes = [" ".join(f"{name}={size}" for name, size in one.items()) for one in found.sizes]
    facts = [
        ("platforms", words.lowered_for(found.platforms, found.nr_devices, most)),
        (
            "written by",
            f"JAX {found.jax_version or found.writer}{by}, serialization version {found.serialization_version}, "
            f"calling convention {found.calling_convention_version}",
        ),
        ("size", _sizes(found, most)),
        ("weights", _weights(found, most) if found.weights else ""),
        ("cases", _cases(found, most) if found.cases else ""),
        ("module", f"{counts}{found.producer or 'not MLIR bytecode'}, dialects {listed(found.dialects, most=most)}"),
        *_custom_calls(found, most),
        ("source paths", listed(found.absolute_paths, most=1) if found.absolute_paths else ""),
        ("not known", listed(found.unknown_operations, most=most) if found.unknown_operations else ""),
        ("derivatives", words.derivatives(found.vjp_order)),
        ("effects", words.effects(found.ordered_effects, found.unordered_effects, most)),
        ("not checked", listed(found.disabled_checks, most=most) if found.disabled_checks else ""),
        ("constraints", listed(found.constraints, most=most) if found.constraints else ""),
        ("sizes", listed(sizes, most=most) if sizes else ""),
        ("padded", listed(found.padded, most=most) if found.padded else ""),
        ("metadata", _metadata(found.metadata, most) if found.metadata else ""),
        ("digests", _digests(found)),
        ("SHA-256", found.sha256 or ""),
        ("meaning", found.meaning or ""),
    ]
    return [(label, text) for label, text in facts if text]


def in_tree_of(found: Inspection) -> str:
    """The tree structure of the arguments, as in "(({2 weights}, *), {})": weights are listed elsewhere."""
    weights = ", ".join(f"{weight.name!r}: *" for weight in found.weights)
    return found.in_tree.replace(f"(({{{weights}}}", f"(({{{counted(len(found.weights), 'weight')}}}", bool(weights))


def _sizes(found: Inspection, most: int | None) -> str:
    names = enumerate(found.module_bytes)
    parts = listed([*names], lambda one: f"VJP {one[0]} {one[1]:,}" if one[0] else f"module {one[1]:,}", most=most)
    return f"{found.total_bytes:,} bytes: {parts}, the rest {found.total_bytes - sum(found.module_bytes):,}"


def _weights(found: Inspection, most: int | None) -> str:
    size = sum(weight.bytes for weight in found.weights)
    files = listed(dict.fromkeys(weight.file for weight in found.weights), most=most)
    return f"{counted(len(found.weights), 'array')}, {size:,} bytes, in {files}"


def _cases(found: Inspection, most: int | None) -> str:
    """As in "3 recorded with JAX 0.10.2 on cpu, 2,048 bytes, in model.cases.safetensors"."""
    where = dict.fromkeys(map(where_recorded, found.cases))
    files = listed(dict.fromkeys(case.file for case in found.cases if case.file), most=most)
    size = f"{sum(case.bytes for case in found.cases):,} bytes"
    said = f"{len(found.cases):,} recorded with {listed(where, most=most)}, {size}"
    return said if files == "none" else f"{said}, in {files}"


def where_recorded(case: Case) -> str:
    """As in "JAX 0.10.2 on cpu"."""
    jax, platform = (case.recorded.get(key, "unknown") for key in ("jax", "platform"))
    return f"JAX {jax} on {platform}"


def _custom_calls(found: Inspection, most: int | None) -> Facts:
    """The custom call targets of the function, and of each VJP whose targets differ."""
    all_calls = found.custom_calls[:most]
    return [
        ("custom calls" if order == 0 else f"  of VJP {order}", words.custom_calls(calls, most))
        for order, calls in enumerate(all_calls)
        if order == 0 or calls != all_calls[order - 1]
    ]


def _metadata(metadata: dict[str, Any], most: int | None) -> str:
    import json  # slow to import, and few artifacts have metadata

    return listed(metadata, lambda key: f"{key} = {json.dumps(metadata[key], ensure_ascii=False)}", most=most)


def _digests(found: Inspection) -> str:
    if not found.module_digests:
        return "none: damage to this artifact may go unnoticed"
    return f"module {found.module_digests[0]}" + (", compared and right" if found.modules_checked else "")


def _numbered(name: str, values: tuple[Value, ...]) -> Facts:
    shown = [(f"{name} {i}", str(value)) for i, value in enumerate(values[:_SHOWN])]
    return shown if len(values) <= _SHOWN else [*shown, (f"{name}s", f"{len(values) - _SHOWN} more")]


_SHOWN = 20


# --- an inspection of bytes -------------------------------------------------------------------------------------------

T = TypeVar("T")

# Artifacts from before memory spaces have 0.
_MEMORY_SPACES = ("device", "device", "host", "any")
_CHECKS = ("platform", "", "shape_assertions")


def described(buffer: Any, check_modules: bool, image_modules: Sequence[Any] = ()) -> Inspection:
    """The `Inspection` of a buffer. If modules are given, the buffer is what `_native.cut` left of an artifact."""
    artifact = opened(buffer, image_modules, in_place=isinstance(buffer, Mapped))
    _, nodes = artifact.texts()
    if nodes:  # as few artifacts have
        from . import texts

        texts.check({}, nodes)
    facts = artifact.describe(shown_node)
    modules = [link.unchecked_module() for link in chain(artifact)]
    places = [link.module_place for link in chain(artifact)]
    trailer: dict[str, Any] = artifact.trailer() or {"writer": None, "functions": (), "constraints": ()}
    functions = trailer["functions"]
    if check_modules:
        for link in chain(artifact):
            link.module()  # compares it with its digest
    weights = _weights_in(artifact)
    arguments, results = values_of(artifact, facts, weights=[weight.name for weight in weights])
    for key in ("kept", "arguments", "results", "in_leaves", "out_leaves"):
        del facts[key]
    # The functions of a hostile artifact may all share one large module.
    modules_of = dict(zip(places, modules, strict=True))
    contents_of = {p: _if_readable(_native.contents, m) or (None, None) for p, m in modules_of.items()}
    paths_of = [_if_readable(_native.absolute_paths, module) or () for module in modules_of.values()]
    contents = [contents_of[place] for place in places]
    head = _if_readable(module_head.read, modules[0])  # a damaged module is described as far as possible
    checks = facts.pop("disabled_checks")
    return Inspection(
        **facts,
        arguments=arguments,
        results=results,
        disabled_checks=tuple(f"custom_call:{target}" if kind == 1 else _CHECKS[kind] for kind, target in checks),
        vjp_order=len(modules) - 1,
        total_bytes=artifact.size if image_modules else memoryview(buffer).nbytes,
        module_bytes=tuple(map(len, modules)),
        producer=module_head.producer(modules[0]),
        stablehlo=None if head is None else head.stablehlo,
        dialects=() if head is None else tuple(sorted(head.dialects)),
        operations=() if head is None else tuple(sorted(head.operations)),
        operation_counts=tuple(operations for operations, _ in contents),
        custom_calls=tuple(calls for _, calls in contents),
        absolute_paths=tuple(sorted({path for paths in paths_of for path in paths})),
        unknown_operations=not_understood(name for operations, _ in contents_of.values() for name in operations or ()),
        trailer=None if trailer["writer"] is None else writer_in(trailer["writer"]),
        first_writer=recorded(artifact),
        module_digests=tuple(function["module_digest"].hex() for function in functions),
        modules_checked=check_modules and bool(functions),
        constraints=trailer["constraints"],
        metadata=_metadata_in(artifact.metadata()),
        sizes=artifact.sizes(),
        padded=artifact.padded(),
        weights=weights,
        cases=_cases_in(artifact),
    )


def values_of(
    artifact: _native.Artifact, facts: dict[str, Any], most: int | None = None, weights: Sequence[str] = ()
) -> tuple[tuple[Value, ...], tuple[Value, ...]]:
    """The arguments and the results in what `Artifact.describe` returned, all of them or the first `most`.

    The first arguments are the weights of these names.
    """
    trailer: dict[str, Any] | None = artifact.trailer()
    weak_arguments, weak_results = (
        None if trailer is None else frozenset(trailer["functions"][0][key])
        for key in ("weak_arguments", "weak_results")
    )
    kept = frozenset(facts["kept"])
    shape = _once(lambda dims: tuple(int(dim) if dim.isascii() and dim.isdecimal() else dim for dim in dims))
    sharding = _once(functools.partial(_sharding, _once(words.spec), _once(words.mesh)))

    def value(described: Any, is_kept: bool, weak: frozenset[int] | None, index: int, path: str) -> Value:
        dtype, dims, memory_space, stored = described
        return Value(
            dtype=dtype,
            weak_type=None if weak is None else index in weak,
            shape=shape(dims),
            memory_space=_MEMORY_SPACES[memory_space],
            sharding=sharding(stored),
            kept=is_kept,
            path=path,
        )

    arguments = zip(facts["arguments"][:most], facts["in_leaves"], strict=False)
    results = zip(facts["results"][:most], facts["out_leaves"], strict=False)
    return (
        tuple(
            value(said, i in kept, weak_arguments, i, _argument_path(path, i, weights))
            for i, (said, path) in enumerate(arguments)
        ),
        tuple(value(said, True, weak_results, i, f"result{path}") for i, (said, path) in enumerate(results)),
    )


def shown_node(auxdata: bytes, name: str | None) -> tuple[str | None, tuple[str, ...]] | None:
    """For `Artifact.describe`: what a custom node's auxiliary data says about its class and children."""
    from . import node  # few artifacts need it

    return node.shown_node(auxdata, name)


def _metadata_in(texts: dict[str, str] | None) -> dict[str, Any] | None:
    if texts is None:
        return None
    from .metadata import from_json  # slow to import, and few artifacts have metadata

    return from_json(texts)


def _weights_in(artifact: _native.Artifact) -> tuple[Weight, ...]:
    files, tensors, tied = artifact.weights() or ([], [], [])
    others: dict[int, list[str]] = {}
    for name, number in tied:
        others.setdefault(number, []).append(name)
    return tuple(
        Weight(
            name=name,
            file=files[file][0],
            bytes=size,
            digest=digest.hex(),
            other_names=tuple(others.get(number, ())),
        )
        for number, (name, file, size, digest) in enumerate(tensors)
    )


def _cases_in(artifact: _native.Artifact) -> tuple[Case, ...]:
    if (said := artifact.cases()) is None:
        return ()
    from . import cases  # few artifacts have some

    file_of = {name: said[2][file][0] for name, file, _, _ in said[3]}

    def of(case: RecordedCase) -> Case:
        values = cases.values_of(case)
        drawn = sum(value.nbytes for value in values if value.drawn is not None)
        files = [file_of[value.tensor] for value in values if value.tensor is not None]
        size = sum(value.nbytes for value in values) - drawn
        return Case(
            name=case.name,
            vjp_order=case.vjp_order,
            bytes=size,
            drawn_bytes=drawn,
            file=files[0] if files else None,
            recorded=case.recorded,
        )

    return tuple(map(of, cases.Cases.of_trailer(said).all))


def _if_readable(read: Callable[[Any], Any], module: memoryview) -> Any:
    with contextlib.suppress(DeserializationError):
        return read(module)
    return None


# The number of a positional argument in `in_tree`, the tree of the pair (args, kwargs).
_POSITIONAL = re.compile(r"\[0\]\[(\d+)\]")


def _argument_path(path: str, index: int, weights: Sequence[str]) -> str:
    """The path in a call, which does not take the dict of weights."""
    if index < len(weights):
        return f"weights[{weights[index]!r}]"
    if weights and (found := _POSITIONAL.match(path)):
        return f"args[{int(found[1]) - 1}]{path[found.end() :]}"
    for start, name in (("[0]", "args"), ("[1]", "kwargs")):
        if path.startswith(start):
            return name + path[len(start) :]
    return path


# The text of a sharding has two parts: a mesh and a spec.
_LONGEST = 256


def _once(make: Callable[[Any], T]) -> Callable[[Any], T]:
    """`make` for objects that many values share, called once for each."""
    made: dict[int, T] = {}

    def found(described: Any) -> T:
        if id(described) not in made:
            made[id(described)] = make(described)
        return made[id(described)]

    return found


def _sharding(spec: Callable[[Any], str], mesh: Callable[[Any], str], described: Any) -> str | None:
    if not isinstance(described, tuple):
        return None if described is None else op_sharding.text(described)
    axes, dims, memory_kind = described
    if not axes and memory_kind in (None, "device"):  # a mesh without axes, as `migrate` writes it for one device
        return None
    said, on = (text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..." for text in (spec(dims), mesh(axes)))
    return f"P({said}) on Mesh({on})" + ("" if memory_kind is None else f" in {memory_kind:.{_LONGEST}}")

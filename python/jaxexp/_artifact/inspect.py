"""What an artifact says of itself, told without JAX."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from jaxexp import _native
from jaxexp._errors import DeserializationError, ExportTypeError
from jaxexp._io import files as _files

from . import module_head as _bytecode
from . import op_sharding as _op_sharding

if TYPE_CHECKING:
    from typing_extensions import Buffer


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """An argument or a result.

    Attributes:
        dtype: the name of its dtype.
        weak_type: whether its type gives way to others in JAX's type promotion; None where that is not known, because
            the artifact has no trailer.
        shape: its dimensions; symbolic ones are expressions in dimension variables, as text.
        memory_space: where it lies: "device", "host" or "any".
        sharding: how it is divided among devices; None where that is left open.
        kept: whether the module takes it. Arguments that the function does not use may be left out; results are in
            the module always.
        path: where it is in the tree, as in ``"args[0]['weights']"``, ``"kwargs['x']"`` or ``"result[1]"``. Children
            of custom nodes have numbers, as in ``"args[0]<2>"``; a long path is cut.
    """

    dtype: str
    weak_type: bool | None
    shape: tuple[int | str, ...]
    memory_space: str
    sharding: str | None
    kept: bool
    path: str

    def __str__(self) -> str:
        text = f"{self.dtype}[{','.join(map(str, self.shape))}]"
        if self.weak_type:
            text += ", weakly typed"
        if self.memory_space != "device":
            text += f" in {self.memory_space} memory"
        if self.sharding is not None:
            text += f", {self.sharding}"
        return text if self.kept else f"{text}, not used"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Inspection:
    """What an artifact says of itself; its text fits a terminal.

    Nothing of this is checked against the modules: that takes JAX, and is what `Policy` is for.

    Attributes:
        fun_name: the name of the function.
        jax_version: the JAX that wrote it, where the artifact says so (since JAX 0.11.1).
        writer: the releases of JAX that write such an artifact.
        serialization_version: the version number in its first slot.
        calling_convention_version: the version of the calling convention.
        platforms: what the module was lowered for.
        nr_devices: how many devices it was lowered for.
        arguments: the arguments, in the order of the leaves of `in_tree`.
        results: the results, in the order of the leaves of `out_tree`.
        in_tree: the tree structure of the pair (args, kwargs), as JAX prints it.
        out_tree: the tree structure of the result.
        ordered_effects: the types of its ordered effects.
        unordered_effects: the types of its other effects.
        disabled_checks: the safety checks that were left out when it was exported.
        vjp_order: how many VJPs it holds.
        total_bytes: the size of the buffer or file.
        module_bytes: the size of its module, then of those of its VJPs.
        producer: what wrote the module, such as ``"StableHLO_v1.13.0"``; None if the module is no MLIR bytecode.
        stablehlo: the version of StableHLO that the module was written for; None where the producer names none.
        dialects: the dialects of the module.
        operations: the kinds of operations in the module.
        operation_counts: how many operations of each kind there are in each of the modules, in the order of
            `module_bytes`; None for a module that is damaged, or newer than what can be read here.
        custom_calls: likewise how many operations call each target of custom calls.
        trailer: who wrote the trailer, which is where all that follows comes from; None where there is none.
        module_digests: digests of the modules as hexadecimal numbers (XXH3, 128 bits), in the order of `module_bytes`.
        modules_checked: whether `inspect` was told to compare them. The digest of everything else always is.
        constraints: the constraints on dimension variables.
        metadata: what the user had to say of the artifact; None for nothing.
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
    trailer: str | None
    module_digests: tuple[str, ...]
    modules_checked: bool
    constraints: tuple[str, ...]
    metadata: dict[str, Any] | None = dataclasses.field(hash=False)

    def to_dict(self) -> dict[str, Any]:
        """The same as a dict of strings, numbers, tuples and dicts, which `json.dumps` takes."""
        return dataclasses.asdict(self)

    def __str__(self) -> str:
        vjps = [f"{size:,} for order {order}" for order, size in enumerate(self.module_bytes[1:], start=1)]
        facts = {
            "written by": f"JAX {self.jax_version or self.writer}, serialization version {self.serialization_version}, "
            f"calling convention {self.calling_convention_version}",
            "runs on": f"{self.nr_devices} device{'s' * (self.nr_devices != 1)} of {_listed(self.platforms, ' or ')}",
            "in_tree": self.in_tree,
            **_numbered("argument", self.arguments),
            "out_tree": self.out_tree,
            **_numbered("result", self.results),
            "effects": _listed((*(f"{e} (ordered)" for e in self.ordered_effects), *self.unordered_effects)),
            "not checked": _listed(self.disabled_checks),
            "module": f"{self.module_bytes[0]:,} bytes by {self.producer or 'no producer that is known'}, dialects "
            f"{_listed(self.dialects)}, {len(self.operations)} kinds of operations",
            "custom calls": _calls(self.custom_calls[0]),
            "VJPs": _listed(vjps),
            "size": f"{self.total_bytes:,} bytes",
            "trailer": "none" if self.trailer is None else f"by {self.trailer}, {self._digests()}",
            "constraints": _listed(self.constraints),
            "metadata": "none" if self.metadata is None else _listed(f"{k} = {v!r}" for k, v in self.metadata.items()),
        }
        return "\n".join([f"{self.fun_name}:", *(f"  {name:<13}{text}" for name, text in facts.items())])

    def _digests(self) -> str:
        shown = f"digest of the module {self.module_digests[0]}"
        return f"{shown}, which is right" if self.modules_checked else shown


def inspect(path_or_buffer: str | os.PathLike[str] | Buffer, *, check_modules: bool = False) -> Inspection:
    """Says what is in an artifact without loading it, and without JAX: its signature, its age, its modules' sizes.

    The bytes are verified as in `deserialize`. What takes JAX to find out is left open: whether symbolic shapes parse,
    whether pytree nodes and effects are known, and what is in the module beside the names in its head.

    Args:
        path_or_buffer: a path as a str or an object such as `pathlib.Path`; or a buffer, as for `deserialize`.
        check_modules: whether to read the modules, too, and to compare them with their digests. Otherwise a large
            file is not read beyond its ends.

    Raises:
        DeserializationError: the bytes are no artifact, or damaged; it names the file, if there is one.
        OSError: the file cannot be opened.
        TypeError: it is neither a path nor a buffer.

    Example:
        >>> print(jaxexp.inspect("model.jaxexp"))
    """
    if not isinstance(path_or_buffer, (str, os.PathLike)):
        return described(path_or_buffer, check_modules)
    try:
        return described(_files.mapped(path_or_buffer), check_modules)
    except DeserializationError as error:
        error.file = os.fsdecode(path_or_buffer)
        raise


# Artifacts from before memory spaces have 0.
_MEMORY_SPACES = ("device", "device", "host", "any")


def described(buffer: Any, check_modules: bool, image_modules: Sequence[Any] = ()) -> Inspection:
    """`inspect` of a buffer; with modules, of what `_native.cut` left of an artifact."""
    try:
        artifact = _native.Artifact(buffer, image_modules)
    except TypeError as error:
        raise ExportTypeError(
            f"inspect takes a path, or a buffer such as bytes, bytearray, memoryview or mmap, not {type(buffer)}"
        ) from error
    facts = artifact.describe()
    modules, link = [facts.pop("module")], artifact
    while (vjp := link.vjp()) is not None:
        link = vjp
        modules.append(link.describe()["module"])
    trailer: dict[str, Any] = artifact.trailer() or {"writer": None, "functions": (), "constraints": ()}
    functions = trailer["functions"]
    if check_modules:
        _check_modules(artifact)
    arguments, results = values_of(artifact, facts)
    for key in ("kept", "arguments", "results", "in_leaves", "out_leaves"):
        del facts[key]
    contents = [_contents(module) for module in modules]
    checks = facts.pop("disabled_checks")
    return Inspection(
        **facts,
        arguments=arguments,
        results=results,
        disabled_checks=tuple(_check(kind, target) for kind, target in checks),
        vjp_order=len(modules) - 1,
        total_bytes=artifact.size if image_modules else memoryview(buffer).nbytes,
        module_bytes=tuple(map(len, modules)),
        **_head(modules[0]),
        operation_counts=tuple(operations for operations, _ in contents),
        custom_calls=tuple(calls for _, calls in contents),
        trailer=trailer["writer"],
        module_digests=tuple(function["module_digest"].hex() for function in functions),
        modules_checked=check_modules and bool(functions),
        constraints=trailer["constraints"],
        metadata=_metadata(artifact.metadata()),
    )


def values_of(
    artifact: _native.Artifact, facts: dict[str, Any], most: int | None = None
) -> tuple[tuple[Value, ...], tuple[Value, ...]]:
    """The arguments and the results of what `Artifact.describe` returned, all or the first ones."""
    trailer: dict[str, Any] | None = artifact.trailer()
    weak_arguments, weak_results = (
        None if trailer is None else frozenset(trailer["functions"][0][key])
        for key in ("weak_arguments", "weak_results")
    )
    kept = frozenset(facts["kept"])
    arguments = zip(facts["arguments"][:most], facts["in_leaves"], strict=False)
    results = zip(facts["results"][:most], facts["out_leaves"], strict=False)
    return (
        tuple(
            _value(v, i in kept, _is_in(weak_arguments, i), _argument_path(path))
            for i, (v, path) in enumerate(arguments)
        ),
        tuple(_value(v, True, _is_in(weak_results, i), f"result{path}") for i, (v, path) in enumerate(results)),
    )


def _check_modules(artifact: _native.Artifact | None) -> None:
    while artifact is not None:
        artifact.module()  # compares it with its digest
        artifact = artifact.vjp()


def _metadata(texts: dict[str, str] | None) -> dict[str, Any] | None:
    if texts is None:
        return None
    from . import metadata as _metadata  # takes a while to import, for what few artifacts have

    return _metadata.from_json(texts)


def _head(module: memoryview) -> dict[str, Any]:
    """What the head of a module tells; a module that is damaged is still described, by what there is."""
    try:
        head = _bytecode.read(module)
    except DeserializationError:
        return {"producer": _bytecode.producer(module), "stablehlo": None, "dialects": (), "operations": ()}
    return {
        "producer": head.producer,
        "stablehlo": head.stablehlo,
        "dialects": tuple(sorted(head.dialects)),
        "operations": tuple(sorted(head.operations)),
    }


def _contents(module: memoryview) -> tuple[dict[str, int] | None, dict[str, int] | None]:
    try:
        return _native.contents(module) or (None, None)
    except DeserializationError:
        return None, None


def _calls(counts: dict[str, int] | None) -> str:
    if counts is None:
        return "not known, because the module cannot be read here"
    return _listed(f"{target} ({count})" for target, count in counts.items())


def _argument_path(path: str) -> str:
    """`in_tree` is the pair (args, kwargs)."""
    for start, name in (("[0]", "args"), ("[1]", "kwargs")):
        if path.startswith(start):
            return name + path[len(start) :]
    return path


def _is_in(indices: frozenset[int] | None, index: int) -> bool | None:
    return None if indices is None else index in indices


def _value(described: tuple[str, tuple[str, ...], int, Any], kept: bool, weak_type: bool | None, path: str) -> Value:
    dtype, dims, memory_space, sharding = described
    return Value(
        dtype=dtype,
        weak_type=weak_type,
        shape=tuple(int(dim) if dim.isdecimal() else dim for dim in dims),
        memory_space=_MEMORY_SPACES[memory_space],
        sharding=_sharding(sharding),
        kept=kept,
        path=path,
    )


def _sharding(sharding: tuple[Any, Any, str | None] | bytes | None) -> str | None:
    if sharding is None:
        return None
    if isinstance(sharding, bytes):
        return _op_sharding.text(sharding)
    mesh, spec, memory_kind = sharding
    parts = ["None" if not axes else repr(axes[0]) if len(axes) == 1 else repr(axes) for axes in spec]
    axes = ", ".join(f"{name!r}: {size}" for name, size in mesh)
    text = f"P({', '.join(parts)}) on Mesh({axes})"
    return text if memory_kind is None else f"{text} in {memory_kind}"


def _check(kind: int, target: str | None) -> str:
    return f"custom_call:{target}" if kind == 1 else ("platform", "", "shape_assertions")[kind]


def _numbered(name: str, values: tuple[Value, ...]) -> dict[str, str]:
    shown = {f"{name} {i}": str(value) for i, value in enumerate(values[:_SHOWN])}
    if len(values) > _SHOWN:
        shown[f"{name}s"] = f"{len(values) - _SHOWN} more"
    return shown


_SHOWN = 20


def _listed(names: Any, separator: str = ", ") -> str:
    return separator.join(names) or "none"

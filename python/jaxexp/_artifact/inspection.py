"""`Inspection`: what an artifact says about itself, as data and as text."""

from __future__ import annotations

import dataclasses
from typing import Any

from jaxexp._errors import shown
from jaxexp._public import part_of, public


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """An argument or a result.

    Attributes:
        dtype: the name of its dtype.
        weak_type: whether its type is weak in JAX's type promotion; None if that is not known, because the artifact has
            no trailer.
        shape: its dimensions; symbolic ones are expressions in dimension variables, as text.
        memory_space: where it is stored: "device", "host" or "any".
        sharding: how it is divided among devices; None if that is not specified.
        kept: whether the module has it. Arguments that the function does not use may be missing there; results never
            are.
        path: where it is in the tree, as in ``"args[0]['weights']"``, ``"kwargs['x']"`` or ``"result[1].mu"``. Children
            of registered pytree nodes have numbers, as in ``"args[0]<2>"``; a long path is cut. Where there are
            weights, theirs are as in ``"weights['layers/0/w']"``, and others are counted as `call` takes them.
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
class Weight:
    """A weight: the value of one of the first arguments, which is in a file beside the artifact.

    Attributes:
        name: its name there.
        file: the name of the file.
        bytes: how many bytes it has.
        digest: the XXH3 digest of these bytes, as a hexadecimal number.
        other_names: of a tied weight, the further places that it had in the pytree.
    """

    name: str
    file: str
    bytes: int
    digest: str
    other_names: tuple[str, ...] = ()


@public
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Inspection:
    """What an artifact says about itself. `print` shows it for a terminal.

    These facts are not compared with the modules, which would need JAX. A `Policy` checks the modules.

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
        disabled_checks: the safety checks that were left out when it was exported.
        vjp_order: how many VJPs it holds.
        total_bytes: the size of the buffer or file.
        module_bytes: the size of its module, then of those of its VJPs.
        producer: what wrote the module, such as ``"StableHLO_v1.13.0"``; None if the module is not MLIR bytecode.
        stablehlo: the version of StableHLO that the module was written for; None if the producer does not say.
        dialects: the dialects of the module.
        operations: the kinds of operations in the module.
        operation_counts: how many operations of each kind there are in each of the modules, in the order of
            `module_bytes`; None for a module that is damaged, or newer than what can be read here.
        custom_calls: how many operations call each custom call target, in the same form.
        unknown_operations: the kinds of operations in its modules about which jaxexp does not know what they do. A
            `Policy` refuses them.
        trailer: who wrote the trailer; None if there is none. `module_digests`, `constraints` and `metadata` are in it.
        module_digests: digests of the modules as hexadecimal numbers (XXH3, 128 bits), in the order of `module_bytes`.
        modules_checked: whether `inspect` compared the modules with their digests. Where there is a trailer, the
            metadata is always compared.
        constraints: the constraints on dimension variables.
        metadata: the `metadata` that the artifact was written with; None if there is none.
        weights: the weights in files beside it, which are the first arguments. The files are not looked at.
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
    unknown_operations: tuple[str, ...]
    trailer: str | None
    module_digests: tuple[str, ...]
    modules_checked: bool
    constraints: tuple[str, ...]
    metadata: dict[str, Any] | None = dataclasses.field(hash=False)
    weights: tuple[Weight, ...]

    def to_dict(self) -> dict[str, Any]:
        """The same as a dict of strings, numbers, tuples and dicts, which `json.dumps` accepts."""
        return dataclasses.asdict(self)

    def __str__(self) -> str:
        vjps = [f"{size:,} for order {order}" for order, size in enumerate(self.module_bytes[1:], start=1)]
        facts = {
            "written by": f"JAX {self.jax_version or self.writer}, serialization version {self.serialization_version}, "
            f"calling convention {self.calling_convention_version}",
            "runs on": f"{self.nr_devices} device{'s' * (self.nr_devices != 1)} of {_listed(self.platforms, ' or ')}",
            "in_tree": self.in_tree,
            **_numbered("argument", self.arguments[len(self.weights) :]),
            "out_tree": self.out_tree,
            **_numbered("result", self.results),
            "effects": _listed((*(f"{e} (ordered)" for e in self.ordered_effects), *self.unordered_effects)),
            "not checked": _listed(self.disabled_checks),
            "module": f"{self.module_bytes[0]:,} bytes by {self.producer or 'no producer that is known'}, dialects "
            f"{_listed(self.dialects)}, {len(self.operations)} kinds of operations",
            "custom calls": _calls(self.custom_calls[0]),
            **({"not known": _listed(self.unknown_operations)} if self.unknown_operations else {}),
            "VJPs": _listed(vjps),
            "size": f"{self.total_bytes:,} bytes",
            **({"weights": self._weights()} if self.weights else {}),
            "trailer": "none" if self.trailer is None else f"by {self.trailer}, {self._digests()}",
            "constraints": _listed(self.constraints),
            "metadata": "none" if self.metadata is None else _listed(f"{k} = {v!r}" for k, v in self.metadata.items()),
        }
        lines = [f"{self.fun_name}:", *(f"  {name:<13}{text}" for name, text in facts.items())]
        return "\n".join(map(shown, lines))

    def _weights(self) -> str:
        files = _listed(dict.fromkeys(weight.file for weight in self.weights))
        return f"{len(self.weights):,}, {sum(weight.bytes for weight in self.weights):,} bytes, in {files}"

    def _digests(self) -> str:
        shown = f"digest of the module {self.module_digests[0]}"
        return f"{shown}, which is right" if self.modules_checked else shown


part_of(Inspection, Value)
part_of(Inspection, Weight)


def _calls(counts: dict[str, int] | None) -> str:
    if counts is None:
        return "not known, because the module cannot be read here"
    return _listed(f"{target} ({count})" for target, count in counts.items())


def _numbered(name: str, values: tuple[Value, ...]) -> dict[str, str]:
    shown = {f"{name} {i}": str(value) for i, value in enumerate(values[:_SHOWN])}
    if len(values) > _SHOWN:
        shown[f"{name}s"] = f"{len(values) - _SHOWN} more"
    return shown


_SHOWN = 20


def _listed(names: Any, separator: str = ", ") -> str:
    return separator.join(names) or "none"

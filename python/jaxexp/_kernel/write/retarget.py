"""Rewrites an exported function for an older reader: its module in that reader's StableHLO, without later features."""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import jax

from jaxexp import _jax
from jaxexp._errors import TooOldReaderError, cause
from jaxexp._kernel.artifact import module_head
from jaxexp._kernel.function.data import E, ExportedData
from jaxexp._kernel.module import composites, mlir, shardy_texts
from jaxexp._kernel.releases import stablehlo, table
from jaxexp._kernel.releases.table import number

from . import reader as readers
from .reader import MAX, Reader


def for_choice(chain: Sequence[E], compatibility: str, weights: int = 0) -> tuple[Reader, list[E]]:
    """A function and its VJPs in the form for the reader that `compatibility` names."""
    if compatibility != MAX:
        reader = readers.reader_of(compatibility)
        return reader, [for_reader(exported, reader, weights) for exported in chain]
    return oldest(lambda reader: [for_reader(exported, reader, weights) for exported in chain])


def lowering_context(compatibility: str | None) -> Any:
    """The context for lowering a function for a reader: without Shardy if the reader does not know it."""
    if compatibility is None or (compatibility != MAX and readers.reader_of(compatibility).release.shardy):
        return contextlib.nullcontext()
    return _jax.shardy_flag(False)


def oldest(write: Any) -> tuple[Reader, Any]:
    """The oldest reader for which `write` succeeds, and the result of `write`; a TooOldReaderError if there is none."""
    since: table.Version = ()
    while True:
        reader = next(reader for reader in readers.readers() if reader.version >= since)
        try:
            return reader, write(reader)
        except TooOldReaderError as error:
            if error.since is None:
                raise
            since = error.since


def for_reader(exported: E, reader: Reader, weights: int = 0) -> E:
    """The same function for a reader, or a TooOldReaderError; the function itself if nothing has to change."""
    readers.check(exported, reader, weights)
    module = _Rewriting(exported, reader).module()
    convention = min(exported.calling_convention_version, reader.release.newest_convention)
    if module is None and convention == exported.calling_convention_version:
        return exported
    return dataclasses.replace(
        exported,
        mlir_module_serialized=exported.mlir_module_serialized if module is None else module,
        calling_convention_version=convention,
    )


@dataclasses.dataclass(frozen=True, slots=True)
class _Rewriting:
    """A function and the reader that its module is rewritten for."""

    exported: ExportedData
    reader: Reader

    def module(self) -> bytes | None:
        """The rewritten module; None if the module can stay as it is."""
        serialized, reader = self.exported.mlir_module_serialized, self.reader
        has_shardy = module_head.may_name(serialized, "sdy") and not reader.release.shardy
        written = module_head.stablehlo_of(module_head.producer(serialized))
        too_new = written is None or number(written) > number(reader.stablehlo)
        if not (has_shardy or too_new or module_head.may_name(serialized, "custom_call")):
            return None
        with _jax.make_ir_context() as context:
            module = mlir.parse(serialized, context)
            self._check_custom_calls(module)
            self._check_four_bits(module)
            if not (has_shardy or too_new):
                return None
            if reader.version < table.COMPOSITES:
                composites.check(module)
                mlir.expand_composites(module)
            serialized = self._serialized(module)
        return self._without_shardy(serialized) if has_shardy else serialized

    def _without_shardy(self, serialized: bytes) -> bytes:
        """A module in GSPMD's terms. It is already in the reader's StableHLO, so its collectives do not name meshes."""
        lowered = f", or export the function with compatibility={self.reader.choice!r}, which lowers it without Shardy"

        def refuse(what: str) -> NoReturn:
            raise self._refusal(what, table.SHARDY, lowered)

        with _jax.make_ir_context() as context:
            module = mlir.parse(serialized, context)
            shardy_texts.import_(module)
            shardy_texts.check_axes(module)
            without_shardy(module, refuse)
            return self._serialized(module)

    def _check_custom_calls(self, module: Any) -> None:
        """Refuses custom calls that the reader's jaxlib does not have yet."""
        for target in sorted({target for target, _ in mlir.custom_calls(module)}):
            since = table.custom_call_since(target)
            if since is not None and since > self.reader.version:
                raise self._refusal(f"its module calls {target}, which that release lacks", since)

    def _check_four_bits(self, module: Any) -> None:
        """Refuses arithmetic in 4-bit integers for compilers that only convert them."""
        if self.reader.version >= table.FOUR_BITS:
            return
        for operation in mlir.iter_operations(module):
            name = operation.name
            if name.startswith("stablehlo.") and name not in ("stablehlo.convert", "stablehlo.return"):
                values = [*operation.operands, *operation.results]
                if any(re.search(r"[x<]u?i4>", str(value.type)) for value in values):
                    raise self._refusal(f"its module computes in 4-bit integers ({name})", table.FOUR_BITS)

    def _serialized(self, module: Any) -> bytes:
        """A module in the reader's StableHLO; a TooOldReaderError names what this version lacks."""
        version = self.reader.stablehlo
        try:
            return mlir.serialize_for(module, version)
        except jax.errors.JaxRuntimeError as error:
            since = _first_to_read(module, self.reader)
            what = f"its module has {_not_in_stablehlo(str(error))} that is not in StableHLO {version}"
            raise self._refusal(
                f"{what}, which that release reads", None if since is None else since.version
            ) from cause(error)

    def _refusal(self, what: str, since: table.Version | None, advice: str = "") -> TooOldReaderError:
        return self.reader.refusal(self.exported.fun_name, what, since, advice)


def _first_to_read(module: Any, reader: Reader) -> Reader | None:
    """The first release after `reader` whose StableHLO can express a module. Later versions can express it, too."""
    newer = [r for r in readers.readers() if r.version > reader.version]
    low, high = 0, len(newer)
    while low < high:
        middle = (low + high) // 2
        try:
            mlir.serialize_for(module, newer[middle].stablehlo)
            high = middle
        except jax.errors.JaxRuntimeError:
            low = middle + 1
    return newer[low] if low < len(newer) else None


def _not_in_stablehlo(message: str) -> str:
    """The subject of jaxlib's message, with the names that modules use."""
    operation = re.search(r"failed to legalize operation 'vhlo\.(\w+?)_v\d+'", message)
    if operation is None:
        return f"something ({message.strip().splitlines()[-1]})"
    name = "a function" if operation[1] in ("func", "return") else f"stablehlo.{operation[1]}"
    if types := sorted(set(re.findall(r"!vhlo\.(\w+?)_v\d+", message)) & stablehlo.NEW_ELEMENT_TYPES):
        return f"{name} of element type {' and '.join(types)}"
    return f"{name}, or a form of it,"


# --- to gspmd ---------------------------------------------------------------------------------------------------------
# Rewrites Shardy's dialect in a module as attributes and custom calls of GSPMD, for readers older than Shardy.


_SHARDING = "sdy.sharding"
_MANUAL = "{manual}"


def without_shardy(module: Any, refuse: Callable[[str], NoReturn]) -> None:
    """Rewrites a module, in place, so that it has nothing of Shardy's dialect.

    A sharding becomes an ``mhlo.sharding``, a constraint the custom call ``Sharding``, and the body of a `shard_map`
    stands between ``SPMDFullToShardShape`` and ``SPMDShardToFullShape``.

    Args:
        module: the module, whose collectives list their replica groups.
        refuse: called with what GSPMD cannot express; raises.
    """
    with module.context, _jax.ir.Location.unknown(module.context):
        _Rewriter(module, refuse).run()


class _Rewriter:
    def __init__(self, module: Any, refuse: Callable[[str], NoReturn]) -> None:
        self.operations = [(operation.name, operation) for operation in mlir.iter_operations(module)]
        self.mesh_operations = [operation for name, operation in self.operations if name == "sdy.mesh"]
        self.meshes = {
            _jax.ir.StringAttr(operation.attributes["sym_name"]).value: operation.attributes["mesh"]
            for operation in self.mesh_operations
        }
        self.refuse = refuse

    def run(self) -> None:
        rewrite = {
            "func.func": self.function,
            "sdy.sharding_constraint": self.constraint,
            "sdy.manual_computation": self.manual_computation,
        }
        for name, operation in self.operations:
            if name in rewrite:
                rewrite[name](operation)
            elif not name.startswith("sdy."):
                self.hints(operation)
            elif name not in ("sdy.mesh", "sdy.return"):
                self.refuse(f"its module contains {name}")
        for operation in self.mesh_operations:
            operation.erase()

    def function(self, operation: Any) -> None:
        self.hints(operation)
        for key in ("arg_attrs", "res_attrs"):
            if key in operation.attributes:
                each = _jax.ir.ArrayAttr(operation.attributes[key])
                operation.attributes[key] = _jax.ir.ArrayAttr.get([self.value_attributes(a) for a in each])

    def value_attributes(self, attributes: Any) -> Any:
        """The attributes of one argument or result of a function."""
        named = {entry.name: entry.attr for entry in _jax.ir.DictAttr(attributes)}
        if _SHARDING in named:
            named["mhlo.sharding"] = self.text(named.pop(_SHARDING))
        return _jax.ir.DictAttr.get(named)

    def hints(self, operation: Any) -> None:
        """Shardings of an operation's results. They are hints and may be left out; rules are only for Shardy."""
        attributes = operation.attributes
        if "sdy.sharding_rule" in attributes:
            del attributes["sdy.sharding_rule"]
        if _SHARDING in attributes:
            shardings = _jax.sdy.TensorShardingPerValueAttr(attributes[_SHARDING]).shardings
            del attributes[_SHARDING]
            if len(shardings) == 1:
                attributes["mhlo.sharding"] = self.text(shardings[0])

    def constraint(self, operation: Any) -> None:
        sharding = operation.attributes["sharding"]
        dimensions = _jax.sdy.TensorShardingAttr(sharding).dimension_shardings
        free = [i for i, d in enumerate(dimensions) if not _jax.sdy.DimensionShardingAttr(d).is_closed]
        config = f"unspecified_dims=[{','.join(map(str, free))}]" if free else ""
        operand = operation.operands[0]
        mlir.replace(operation, [self.call("Sharding", operand, operand.type, self.text(sharding), operation, config)])

    def manual_computation(self, operation: Any) -> None:
        shardings = [
            list(_jax.sdy.TensorShardingPerValueAttr(operation.attributes[key]).shardings)
            for key in ("in_shardings", "out_shardings")
        ]
        manual = _jax.sdy.ManualAxesAttr(operation.attributes["manual_axes"])
        manual_axes = {manual[i] for i in range(len(manual))}
        for sharding in (*shardings[0], *shardings[1]):
            sizes, names = self.mesh(_jax.sdy.TensorShardingAttr(sharding))
            if left := [name for name, size in zip(names, sizes, strict=True) if size > 1 and name not in manual_axes]:
                self.refuse(f"its module contains a shard_map that leaves the mesh axes {', '.join(left)} automatic")
        (block,) = operation.regions[0].blocks
        manual_text = _jax.ir.StringAttr.get(_MANUAL)
        for operand, argument, sharding in zip(operation.operands, block.arguments, shardings[0], strict=True):
            whole = self.call("Sharding", operand, operand.type, self.text(sharding), operation)
            shard = self.call("SPMDFullToShardShape", whole, argument.type, manual_text, operation)
            argument.replace_all_uses_with(shard)
        *body, terminator = (op.operation for op in block.operations)
        for inner in body:
            inner.move_before(operation)
        results = []
        for value, result, sharding in zip(terminator.operands, operation.results, shardings[1], strict=True):
            shard = self.call("Sharding", value, value.type, manual_text, operation)
            results.append(self.call("SPMDShardToFullShape", shard, result.type, self.text(sharding), operation))
        mlir.replace(operation, results)

    def call(self, target: str, operand: Any, type_: Any, sharding: Any, before: Any, config: str = "") -> Any:
        """A custom call on one value, before an operation."""
        text = _jax.ir.StringAttr.get
        attributes = {"call_target_name": text(target), "backend_config": text(config), "mhlo.sharding": sharding}
        created = _jax.ir.Operation.create(
            "stablehlo.custom_call",
            results=[type_],
            operands=[operand],
            attributes=attributes,
            loc=before.location,
            ip=_jax.ir.InsertionPoint(before),
        )
        return created.results[0]

    def mesh(self, sharding: Any) -> tuple[tuple[int, ...], tuple[str, ...]]:
        """The sizes and names of a sharding's mesh axes."""
        mesh = sharding.mesh_or_ref
        if str(mesh).startswith("@"):  # otherwise it is written out here
            mesh = self.meshes[_jax.ir.FlatSymbolRefAttr(mesh).value]
        mesh = _jax.sdy.MeshAttr(mesh)
        if list(mesh.device_ids):
            self.refuse("its module places devices on a mesh in an order of their own")
        axes = [_jax.sdy.MeshAxisAttr(axis) for axis in mesh.axes]
        sizes = tuple(axis.size for axis in axes)
        return sizes, tuple(axis.name for axis in axes)

    def text(self, attribute: Any) -> Any:
        """A Shardy sharding as the text that GSPMD reads."""
        sharding = _jax.sdy.TensorShardingAttr(attribute)
        if list(sharding.unreduced_axes):
            self.refuse("its module contains values that are unreduced over mesh axes")
        dimensions = []
        for dimension in sharding.dimension_shardings:
            axes = [_jax.sdy.AxisRefAttr(axis) for axis in _jax.sdy.DimensionShardingAttr(dimension).axes]
            if any(axis.sub_axis_info is not None for axis in axes):
                self.refuse("its module shards over part of a mesh axis")
            dimensions.append(tuple(axis.name for axis in axes) or None)
        sizes, names = self.mesh(sharding)
        mesh = _jax.AbstractMesh(sizes, names, (_jax.AxisType.Auto,) * len(sizes))
        named = _jax.NamedSharding(mesh, _jax.PartitionSpec(*dimensions))
        return _jax.ir.StringAttr.get(repr(_jax.hlo_of_named_sharding(named, len(dimensions))))

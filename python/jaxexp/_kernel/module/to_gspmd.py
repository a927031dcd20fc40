"""Rewrites Shardy's dialect in a module as attributes and custom calls of GSPMD, for readers older than Shardy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from jaxexp import _jax

from . import mlir

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

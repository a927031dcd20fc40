"""Converts the shardings of modules from before Shardy to Shardy.

A module for several devices had its shardings as text, which says how the devices are dealt to the tiles of an array:

    {devices=[2,1,4]<=[4,2]T(1,0) last_tile_dim_replicate}

means 2x1 tiles with four devices each, taken from the devices 0 to 7 as a 4x2 matrix, transposed. Shardy names the axes
of a mesh instead. One mesh is enough for all shardings of a module if its axes are so fine that each tiling takes whole
axes: the places where the tilings cut the sequence of devices have to divide one another. A function that `shard_map`
ran on each device was a call between conversions to the parts of an array and back; it becomes a manual computation.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from jaxexp import _jax
from jaxexp._errors import ExportTypeError, ModuleError, cause
from jaxexp._kernel.artifact import op_sharding
from jaxexp._kernel.function.sharding import Cut, cuts_of

from . import mlir

_NAME = "mhlo.sharding"

# The cuts that divide each axis of an array, the coarsest first.
_Tiling = tuple[tuple[Cut, ...], ...]


class NotExpressibleError(Exception):
    """A sharding, or a part of a module, without a counterpart in Shardy; the module may be half changed."""


def to_shardy(module: Any, nr_devices: int) -> None:
    """Converts all shardings of a module for so many devices to Shardy, in place; its MLIR context is entered. If a
    part has no counterpart, a NotExpressibleError: the caller has to use the module as it was. A ModuleError if a
    sharding is no text.
    """
    try:
        _to_shardy(module, nr_devices)
    except (ModuleError, MemoryError, NotExpressibleError):
        raise
    except Exception as error:  # of several types: calls without the operands or attributes that JAX writes
        raise NotExpressibleError("a module that no release of JAX writes") from cause(error)


def _to_shardy(module: Any, nr_devices: int) -> None:
    if nr_devices == 1:
        _drop(module)
        return
    tilings = {text: _tiling(text, nr_devices) for text in _texts(module)}
    mesh = _Mesh(module, tilings, nr_devices)
    for function in mlir.functions(module):
        _change_attributes(function, mesh)
    for body in _shard_map_bodies(mlir.custom_calls(module)):
        _make_manual(body, mesh)
    for target, call in mlir.custom_calls(module):
        if target == "Sharding":
            _constrain(call, mesh)
        elif target in _OF_GSPMD:
            raise NotExpressibleError("a conversion between an array and its parts outside of a shard_map")
    for operation in mlir.iter_operations(module):
        if _NAME in operation.attributes:
            values = [mesh.sharding(_text(operation.attributes), _rank(result)) for result in operation.results]
            if len(values) != 1:
                raise NotExpressibleError(f"a sharding of {len(values)} results")
            operation.attributes["sdy.sharding"] = mesh.per_value(values)
            del operation.attributes[_NAME]


_OF_GSPMD = ("Sharding", "SPMDFullToShardShape", "SPMDShardToFullShape")
_MANUAL, _REPLICATED = "{manual}", "{replicated}"


class _Mesh:
    def __init__(self, module: Any, tilings: dict[str, _Tiling], nr_devices: int) -> None:
        self._tilings = tilings
        cuts = {1, nr_devices, *itertools.chain.from_iterable(c for t in tilings.values() for cs in t for c in cs)}
        ordered = sorted(cuts)
        if any(larger % smaller for smaller, larger in itertools.pairwise(ordered)):
            raise NotExpressibleError(f"tilings that no one mesh of {nr_devices} devices has")
        self.axes = {
            (low, high): f"_axis_{i}" for i, (low, high) in enumerate(reversed([*itertools.pairwise(ordered)]))
        }
        self._module = module
        self._name = mlir.free_name("mesh", _jax.ir.SymbolTable(module.operation))
        axes = ", ".join(f'"{name}"={high // low}' for (low, high), name in self.axes.items())
        with _jax.ir.InsertionPoint.at_block_begin(module.body), _jax.ir.Location.unknown():
            _jax.MeshOp(self._name, _jax.ir.Attribute.parse(f"#sdy.mesh<[{axes}]>"))

    def sharding(self, text: str, rank: int, unspecified: Sequence[int] = ()) -> str:
        """The text of Shardy's attribute, without its name; `unspecified` are axes that the compiler may divide."""
        tiling = self._tilings[text] or ((),) * rank
        if len(tiling) != rank:
            raise NotExpressibleError(f"the sharding {text} of an array with {rank} axes")
        axes = [self.quoted(self._names(cuts)) for cuts in tiling]
        opened = [", ?" if names else "?" for names in axes]
        dims = (f"{{{names}{opened[i] if i in unspecified else ''}}}" for i, names in enumerate(axes))
        return f"<@{self._name}, [{', '.join(dims)}]>"

    def attribute(self, sharding: str) -> Any:
        return _jax.ir.Attribute.parse(f"#sdy.sharding{sharding}")

    def per_value(self, shardings: Iterable[str]) -> Any:
        return _jax.ir.Attribute.parse(f"#sdy.sharding_per_value<[{', '.join(shardings)}]>")

    def _names(self, cuts: Iterable[Cut]) -> Iterator[str]:
        for low, high in cuts:
            yield from (name for (start, end), name in self.axes.items() if low <= start and end <= high)

    def quoted(self, names: Iterable[str]) -> str:
        return ", ".join(f'"{name}"' for name in names)


# Reading


def _texts(module: Any) -> set[str]:
    found = {_text(operation.attributes) for operation in mlir.iter_operations(module) if _NAME in operation.attributes}
    for attributes in (function.attributes for function in mlir.functions(module)):
        for name in ("arg_attrs", "res_attrs"):
            if name in attributes:
                found |= {_text(d) for d in map(_jax.ir.DictAttr, attributes[name]) if _NAME in d}
    return found - {_MANUAL}


def _text(attributes: Any) -> str:
    raw = _jax.ir.StringAttr(attributes[_NAME]).value_bytes
    if raw.startswith(b"{"):
        try:
            return str(raw, "utf-8")
        except UnicodeDecodeError as error:
            raise mlir.not_text("shardings") from cause(error)
    return op_sharding.text(raw)  # JAX wrote long ones in this form, and XLA's own reader trusts it


_NUMBERS = r"\d{1,10}+(?:,\d{1,10}+)*+"  # of devices, which have 32 bits
_PATTERN = re.compile(
    rf"\{{devices=\[(?P<tiles>{_NUMBERS})\]"
    rf"(<=\[(?P<shape>{_NUMBERS})\](T\((?P<order>{_NUMBERS})\))?|(?P<devices>{_NUMBERS}))"
    r"(?P<replicated> last_tile_dim_replicate)?\}",
    re.ASCII,
)


def _tiling(text: str, nr_devices: int) -> _Tiling:
    """How a sharding cuts the sequence of devices for each axis of an array; empty if the array is replicated."""
    if text == _REPLICATED:
        return ()
    match = _PATTERN.fullmatch(text)
    if match is None:
        raise NotExpressibleError(f"the sharding {text}")
    tiles, shape, order, devices = (
        [int(number) for number in match[name].split(",")] if match[name] else []
        for name in ("tiles", "shape", "order", "devices")
    )
    if devices and (len(devices) != nr_devices or any(device != i for i, device in enumerate(devices))):
        raise NotExpressibleError(f"the sharding {text}, whose order is not that of a mesh")
    shape = shape or [nr_devices]
    order = order or [*range(len(shape))]
    sizes = op_sharding.size_of(tiles), op_sharding.size_of(shape)
    if 0 in (*tiles, *shape) or sizes != (nr_devices, nr_devices) or sorted(order) != [*range(len(shape))]:
        raise NotExpressibleError(f"the sharding {text} of {nr_devices} devices")
    try:
        tiling = cuts_of(tiles, shape, order)
    except ExportTypeError as error:
        raise NotExpressibleError(f"the sharding {text}, which has {error}") from cause(error)
    return tiling[:-1] if match["replicated"] else tiling


def _rank(value: Any) -> int:
    return _jax.ir.RankedTensorType(value.type).rank


# Writing


def _drop(module: Any) -> None:
    """Removes all shardings from a module for one device. There, the parts of arrays are whole arrays."""
    for function in mlir.functions(module):
        _change_attributes(function, None)
    for operation in list(mlir.iter_operations(module)):
        if _NAME not in operation.attributes:
            continue
        if _is_call(operation, *_OF_GSPMD):
            mlir.replace(operation, operation.operands)
        else:
            del operation.attributes[_NAME]


def _change_attributes(function: Any, mesh: _Mesh | None) -> None:
    """Converts the attributes of a function's arguments and results; drops them if there is no mesh."""
    ir = _jax.ir
    for name, types in (("arg_attrs", function.type.inputs), ("res_attrs", function.type.results)):
        if name not in function.attributes:
            continue
        changed = []
        for type_, attributes in zip(types, map(ir.DictAttr, function.attributes[name]), strict=True):
            new = {name: value for name, value in mlir.items(attributes) if name != _NAME}
            if mesh is not None and _NAME in attributes and _text(attributes) != _MANUAL:
                sharding = mesh.sharding(_text(attributes), ir.RankedTensorType(type_).rank)
                new["sdy.sharding"] = mesh.attribute(sharding)
            changed.append(ir.DictAttr.get(new))
        function.attributes[name] = ir.ArrayAttr.get(changed)


def _constrain(call: Any, mesh: _Mesh) -> None:
    value, text = call.operands[0], _text(call.attributes)
    if text != _MANUAL:
        config = call.attributes["backend_config"] if "backend_config" in call.attributes else ""  # noqa: SIM401
        unspecified = re.fullmatch(rf"unspecified_dims=\[({_NUMBERS})?\]", str(config).strip('"'), re.ASCII)
        if str(config) not in ("", '""') and unspecified is None:
            raise NotExpressibleError(f"the option {config} of a sharding")
        dims = [int(i) for i in unspecified[1].split(",")] if unspecified and unspecified[1] else []
        sharding = mesh.attribute(mesh.sharding(text, _rank(value), dims))
        with _jax.ir.InsertionPoint(call), call.location:
            value = _jax.ir.Operation.create(
                "sdy.sharding_constraint", results=[value.type], operands=[value], attributes={"sharding": sharding}
            ).result
    mlir.replace(call, [value])


def _shard_map_bodies(calls: Iterable[tuple[str, Any]]) -> list[Any]:
    """The calls of functions that run on each device: their operands or results are parts of arrays."""
    bodies: dict[Any, None] = {}
    for target, call in calls:
        found: Iterable[Any] = ()
        if target == "SPMDFullToShardShape":
            found = (use.owner for use in call.results[0].uses)
        elif target == "SPMDShardToFullShape":
            found = (mlir.origin(_unannotated(call.operands[0])),)
        bodies.update((body.operation, None) for body in found if body is not None)
    return [*bodies]


def _calls(value: Any, target: str) -> bool:
    return (operation := mlir.origin(value)) is not None and _is_call(operation, target)


def _unannotated(value: Any) -> Any:
    """A part of an array, without the remark that it is one."""
    if _calls(value, "Sharding") and _text(value.owner.attributes) == _MANUAL:
        return value.owner.operands[0]
    return value


def _make_manual(body: Any, mesh: _Mesh) -> None:
    """Puts a call on parts of arrays into a manual computation on the whole arrays."""
    ir = _jax.ir
    if body.name != "func.call":
        raise NotExpressibleError(f"{body.name} with a part of an array")
    entering, operands, in_shardings = [], [], []
    for operand in map(_unannotated, body.operands):
        if not _calls(operand, "SPMDFullToShardShape") or not _calls(operand.owner.operands[0], "Sharding"):
            raise NotExpressibleError("a shard_map with an argument that is not a part of an array")
        whole = operand.owner.operands[0]
        entering.append(operand.owner)
        operands.append(whole.owner.operands[0])
        in_shardings.append(mesh.sharding(_text(whole.owner.attributes), _rank(whole)))
    leaving = [_leaving(result) for result in body.results]
    out_shardings = [mesh.sharding(_text(end.attributes), _rank(end.results[0])) for _, end in leaving]
    types = [end.results[0].type for _, end in leaving]
    if not all(ir.RankedTensorType(value.type).has_static_shape for value in (*body.operands, *body.results)):
        raise NotExpressibleError("a shard_map of symbolic shapes")
    with ir.InsertionPoint(body), body.location:
        attributes = {
            "in_shardings": mesh.per_value(in_shardings),
            "out_shardings": mesh.per_value(out_shardings),
            "manual_axes": ir.Attribute.parse(f"#sdy<manual_axes{{{mesh.quoted(mesh.axes.values())}}}>"),
        }
        manual = ir.Operation.create(
            "sdy.manual_computation", results=types, operands=operands, attributes=attributes, regions=1
        )
        block = manual.regions[0].blocks.append(*(operand.type for operand in body.operands))
        with ir.InsertionPoint(block):
            inner = _jax.call_op([r.type for r in body.results], body.attributes["callee"], list(block.arguments))
            ir.Operation.create("sdy.return", operands=list(inner.results))
    for (_, end), result in zip(leaving, manual.results, strict=True):
        end.results[0].replace_all_uses_with(result)
    for remark, end in leaving:
        end.erase()
        if remark is not None:
            remark.erase()
    body.erase()
    for operation in {operation.operation: None for operation in entering}:
        if not mlir.is_used(operation.results[0]):
            operation.erase()


def _leaving(result: Any) -> tuple[Any, Any]:
    """The remark that a result is a part of an array, if there is one, and its conversion to the array."""
    remark, users = None, [use.owner.operation for use in result.uses]
    if len(users) == 1 and _is_call(users[0], "Sharding"):
        remark = users[0]
        users = [use.owner.operation for use in remark.results[0].uses]
    if len(users) != 1 or not _is_call(users[0], "SPMDShardToFullShape"):
        raise NotExpressibleError("a shard_map with a result that does not become an array")
    return remark, users[0]


def _is_call(operation: Any, *targets: str) -> bool:
    return operation.name == "stablehlo.custom_call" and mlir.target_of(operation) in targets

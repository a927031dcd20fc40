"""What every artifact keeps, however it is read: apart from its modules, or only inspected."""

from __future__ import annotations

import collections
from typing import Any

import jax

import jaxexp
from jaxexp import _jax, _native
from jaxexp._api.exported import reader
from jaxexp._kernel.artifact import module_head
from jaxexp._kernel.artifact.chain import chain
from jaxexp._kernel.module import mlir

from .compare import assert_same_fields


def parts_of(blob: bytes) -> tuple[bytes, list[bytes]]:
    """The image of an artifact, and its modules."""
    return _native.cut(blob), [bytes(link.module()) for link in chain(_native.Artifact(blob))]


def assert_apart_as_in_one(blob: bytes) -> None:
    image, modules = parts_of(blob)
    assert _native.join(image, modules) == blob
    assert len(image) < len(blob) - sum(map(len, modules)) + 32
    ours, plain = reader.read(image, modules), jaxexp.deserialize(blob)
    part = ours
    for order, module in enumerate(modules):
        assert_same_fields(part, plain)
        assert part.mlir_module_serialized == plain.mlir_module_serialized == module
        assert part.has_vjp() == plain.has_vjp() == (order + 1 < len(modules))
        assert part.metadata == plain.metadata
        if part.has_vjp():
            part, plain = part.vjp(), plain.vjp()
    # Nothing that was decoded is left: written from what is loaded.
    orders = len(modules) - 1
    fresh = reader.read(image, modules)
    assert fresh.serialize(orders) == jaxexp.deserialize(blob).serialize(orders)
    assert fresh.serialize(orders, trailer=False) == jaxexp.deserialize(blob).serialize(orders, trailer=False)
    assert _native.Artifact(image, modules).size == _native.Artifact(blob).size == len(blob)


def assert_inspected_as_loaded(found: jaxexp.Inspection, loaded: jaxexp.Exported) -> None:
    assert str(found)
    assert found.fun_name == loaded.fun_name
    assert found.platforms == loaded.platforms
    assert found.nr_devices == loaded.nr_devices
    assert found.disabled_checks == tuple(map(str, loaded.disabled_safety_checks))
    assert found.ordered_effects == tuple(str(type(e)) for e in loaded.ordered_effects)
    assert found.unordered_effects == tuple(str(type(e)) for e in loaded.unordered_effects)
    for values, avals, shardings in (
        (found.arguments, loaded.in_avals, loaded._in_named_shardings),
        (found.results, loaded.out_avals, loaded._out_named_shardings),
    ):
        assert [v.dtype for v in values] == [name_of(aval.dtype) for aval in avals]
        assert [tuple(map(str, v.shape)) for v in values] == [tuple(map(str, aval.shape)) for aval in avals]
        assert [v.memory_space for v in values] == [aval.memory_space.name.lower() for aval in avals]
        assert [v.sharding is None for v in values] == [sharding is None for sharding in shardings]
    assert [i for i, v in enumerate(found.arguments) if v.kept] == list(loaded.module_kept_var_idx)
    if not any(custom in str(loaded.in_tree) for custom in ("CustomNode", "{1:")):  # which have names in artifacts
        assert f"PyTreeDef({found.in_tree})" == str(loaded.in_tree)
        assert f"PyTreeDef({found.out_tree})" == str(loaded.out_tree)


def name_of(dtype: Any) -> str:
    return "float0" if dtype == jax.dtypes.float0 else str(dtype)


def assert_calls_as_parsed(blob: bytes, found: jaxexp.Inspection) -> None:
    """The custom calls and operations that the bytes of modules tell are those that a parser finds."""
    counted, operations = [], []
    for link in chain(_native.Artifact(blob)):
        with _jax.make_ir_context() as context:
            try:
                module = mlir.parse(bytes(link.module()), context)
            except jaxexp.errors.DeserializationError as error:
                assert "StableHLO up to" in str(error)  # written by a newer JAX
                return
            counted.append(dict(collections.Counter(target for target, _ in mlir.custom_calls(module))))
            operations.append(operations_in(module))
        head = module_head.read(bytes(link.module()))
        assert {name.partition(".")[0] for name in head.operations} <= head.dialects
        assert head.operations == set(found.operation_counts[len(counted) - 1] or {})
    assert list(found.custom_calls) == counted
    assert set(found.operation_counts[0]) <= set(found.operations)
    casts = {"builtin.unrealized_conversion_cast"}  # between VHLO's types and Shardy's; they vanish on the way back
    for kinds, in_module, calls in zip(found.operation_counts, operations, counted, strict=True):
        in_bytes = {name.partition(".")[2].rpartition("_v")[0] if "vhlo" in name else name for name in kinds}
        assert in_bytes - casts == in_module
        assert any("custom_call" in name for name in kinds) == bool(calls)


def operations_in(module: Any) -> set[str]:
    """Without the dialects that VHLO stands for."""
    names: set[str] = set()
    module.operation.walk(lambda operation: names.add(operation.name) or _jax.ir.WalkResult.ADVANCE)
    return {name.partition(".")[2] if name.startswith(("stablehlo.", "func.")) else name for name in names}

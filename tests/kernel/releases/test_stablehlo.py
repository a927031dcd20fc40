"""What the bytes of a module tell about who can parse it, without an MLIR parser."""

from __future__ import annotations

import dataclasses

import jax
import pytest
from jax._src.interpreters import mlir
from jax._src.lib import _jax as jaxlib
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

import jaxexp
from jaxexp._kernel.artifact import module_head
from jaxexp._kernel.releases import table
from jaxexp._kernel.releases.stablehlo import needs, why_too_new
from kit.corpus import CASES, export_with
from kit.goldens import blob_of, every_artifact

IDENTITY = "func.func @main(%a: {0}) -> {0} {{ return %a : {0} }}"
ALL_REDUCE = """
func.func @main(%a: tensor<4xf32>) -> tensor<4xf32> {
  %0 = "stablehlo.all_reduce"(%a) <{replica_groups = #stablehlo.replica_group_mesh_axes<
    mesh = #stablehlo.mesh<axes=[#stablehlo.mesh_axis<name="x", size=2>]>, axes = [#stablehlo.axis_ref<name="x">]>}> ({
  ^bb0(%x: tensor<f32>, %y: tensor<f32>):
    %s = stablehlo.add %x, %y : tensor<f32>
    stablehlo.return %s : tensor<f32>
  }) : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}
"""


def portable(text: str, version: str | None = None) -> bytes:
    with mlir.make_ir_context() as context, ir.Location.unknown(context):
        module = ir.Module.parse(text)
        return jaxlib.mlir.serialize_portable_artifact(module, version or stablehlo.get_current_version(), False)


def needed(module: bytes) -> list[tuple[str, str]]:
    return [(first.version, what) for first, what in needs(module_head.read(module))]


@pytest.mark.parametrize(
    ("dtype", "first"),
    [
        ("f32", None), ("bf16", None), ("i4", None), ("f8E4M3FN", None), ("i2", "0.4.31"), ("ui2", "0.4.31"),
        ("tf32", "0.4.32"), ("f8E4M3", "0.4.32"), ("f8E3M4", "0.4.32"), ("f4E2M1FN", "0.4.36"),
        ("f6E2M3FN", "0.4.36"), ("f6E3M2FN", "0.4.36"), ("f8E8M0FNU", "0.4.36"),
    ],
)  # fmt: skip
def test_types(dtype: str, first: str | None) -> None:
    assert needed(portable(IDENTITY.format(f"tensor<2x{dtype}>"))) == ([(first, f"the type {dtype}")] if first else [])


def test_a_newer_type_that_is_no_element() -> None:
    assert needed(portable(IDENTITY.format("memref<2xf32>"))) == [("0.7.1", "the type buffer")]


def test_operations_and_attributes() -> None:
    text = IDENTITY.format("tensor<2xf32>").replace("return %a", "%0 = stablehlo.tan %a : tensor<2xf32> return %0")
    assert needed(portable(text)) == [("0.5.1", "the accuracy of a result"), ("0.5.3", "vhlo.tan_v2")]
    assert needed(portable(text, "1.4.0")) == [("0.4.31", "vhlo.tan_v1")]
    if jax.__version_info__ >= (0, 11, 0):  # JAX 0.10.2 knows the attribute, but not this way to write it
        needs = needed(portable(ALL_REDUCE))
        assert ("0.10.0", "groups of replicas by mesh axes") in needs
        assert ("0.4.32", "vhlo.all_reduce_v2") in needs


# Each range of versions has a format of bytecode of its own.
@pytest.mark.parametrize(
    ("version", "bytecode"),
    [("0.9.0", 0), ("0.11.0", 1), ("0.12.0", 3), ("0.13.0", 3), ("0.14.0", 4), ("0.15.0", 6), ("1.0.0", 6)],
)
def test_formats_of_bytecode(version: str, bytecode: int) -> None:
    text = IDENTITY.format("tensor<2xf32>").replace("return %a", "%0 = stablehlo.abs %a : tensor<2xf32> return %0")
    module = portable(text, version)
    assert module[4] >> 1 == bytecode
    head = module_head.read(module)
    assert head.stablehlo == version
    assert head.operations == {"builtin.module", "vhlo.abs_v1", "vhlo.func_v1", "vhlo.return_v1"}
    assert head.dialects == {"builtin", "vhlo"}
    exported = jaxexp.export(jax.jit(jax.numpy.abs))(jax.ShapeDtypeStruct((2,), "float32"))
    blob = dataclasses.replace(exported, mlir_module_serialized=module).serialize()
    report = jaxexp.compatibility(blob)
    assert report.stablehlo == jaxexp.inspect(blob).stablehlo == version
    assert report.readers


@pytest.mark.sampled(one_in=4, reason="many cases go the same way")
@every_artifact
def test_every_operation_is_found(version: str, name: str) -> None:
    """The names in the head, against the operations that jaxlib finds in the module."""
    exported = jaxexp.deserialize(blob_of(version, name))
    head = module_head.read(exported.mlir_module_serialized)
    assert head.producer == f"StableHLO_v{head.stablehlo}"
    if module_head.is_for_newer(exported.mlir_module_serialized, stablehlo.get_current_version()):
        return
    with mlir.make_ir_context() as context:
        module = jaxlib.mlir.deserialize_portable_artifact(exported.mlir_module_serialized, context)
        found: set[str] = set()
        module.operation.walk(lambda operation: found.add(operation.name) or ir.WalkResult.ADVANCE)
    casts = {"builtin.unrealized_conversion_cast"}  # between VHLO's types and Shardy's; they vanish on the way back
    in_head = {name.partition(".")[2].rpartition("_v")[0] if "vhlo" in name else name for name in head.operations}
    in_module = {
        operation.partition(".")[2] if operation.startswith(("stablehlo.", "func.")) else operation
        for operation in found
    }
    assert in_head - casts == in_module
    assert {name.partition(".")[0] for name in head.operations} <= head.dialects


@pytest.mark.parametrize("size", [0, 3, 4, 5, 10, 40, 120, 300])
def test_truncated(size: int) -> None:
    module = export_with(jaxexp, CASES["sin"].build()).mlir_module_serialized
    with pytest.raises(jaxexp.DeserializationError, match="at mlir_module_serialized: expected"):
        module_head.read(module[:size])


def test_damaged() -> None:
    """Any byte of the head may be anything: an answer, or one kind of error."""
    module = bytearray(export_with(jaxexp, CASES["sin"].build()).mlir_module_serialized)
    refused = 0
    for at in range(len(module)):
        for value in (0, 1, 0x7F, 0x80, 0xFF):
            before, module[at] = module[at], value
            try:
                module_head.read(bytes(module))
                module_head.producer(bytes(module))
            except jaxexp.DeserializationError:
                refused += 1
            module[at] = before
    assert refused > 100


def test_first_reader_of_a_version() -> None:
    module = portable(IDENTITY.format("tensor<2xf32>"))
    newest = table.first_to_read(stablehlo.get_current_version())
    assert newest is not None
    assert not module_head.is_for_newer(module, stablehlo.get_current_version())
    assert why_too_new(module, "1.4.0") == (
        f"one for StableHLO {stablehlo.get_current_version()}, which JAX {newest.version} and newer read",
        False,
    )

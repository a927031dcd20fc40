"""The table of JAX releases, and what the bytes of a module tell about who can parse it, without an MLIR parser."""

from __future__ import annotations

import dataclasses
import datetime
import importlib
import itertools
import re

import jax
import pytest
from jax import export as jax_export
from jax._src.interpreters import mlir
from jax._src.lib import _jax as jaxlib
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

import jaxexp
from jaxexp._kernel.artifact import module_head
from jaxexp._kernel.releases import table
from jaxexp._kernel.releases.table import RELEASES, needs, number, release, why_too_new
from kit.corpus import CASES, export_with
from kit.each import each
from kit.goldens import blob_of
from kit.places import ROOT


def test_what_it_says_of_the_installed_release() -> None:
    installed = release(jax.__version__)
    assert installed.stablehlo == stablehlo.get_current_version()
    assert stablehlo.get_minimum_version() == "0.9.0"  # as for every jaxlib since JAX 0.4.22
    assert installed.oldest_convention == jax_export.minimum_supported_calling_convention_version
    assert installed.newest_convention == jax_export.maximum_supported_calling_convention_version
    kinds = importlib.import_module("jax._src.export.serialization")._dtype_to_dtype_kind
    assert installed.dtypes == len(set(kinds.values()))
    assert installed.custom_nodes == hasattr(jax_export, "register_pytree_node_serialization")
    assert installed.shardy == jax.config.jax_use_shardy_partitioner


@pytest.mark.skipif(not (ROOT / "cpp" / "runtime").exists(), reason="this is no checkout, so there are no C++ sources")
def test_the_table_of_the_cpp_runtime() -> None:
    source = (ROOT / "cpp" / "runtime" / "program" / "program.cpp").read_text()
    rows = re.findall(r'\{\{(\d+), (\d+), (\d+)\}, "jax-([\d.]+)"\}', source)
    assert [(".".join(newest), name) for *newest, name in rows] == list(
        {row.stablehlo: row.version for row in RELEASES}.items()
    )


def test_order() -> None:
    assert [r.number for r in RELEASES] == sorted({r.number for r in RELEASES})
    assert RELEASES[0].version == "0.4.22"
    for older, newer in itertools.pairwise(RELEASES):
        assert number(older.stablehlo) <= number(newer.stablehlo)
        assert older.newest_convention <= newer.newest_convention
        assert older.dtypes <= newer.dtypes
        assert older.custom_nodes <= newer.custom_nodes
        assert older.shardy <= newer.shardy


def test_look_up() -> None:
    """0.8.3 came out after 0.9.0."""
    assert release("0.4.30").date == datetime.date(2024, 6, 18)
    with pytest.raises(
        jaxexp.errors.ExportError, match=r"'0\.4\.21' is not a known release of JAX: .* one of 0\.4\.22, .*0\.12\.0\.1"
    ):
        release("0.4.21")
    for date, version in ((datetime.date(2024, 6, 17), "0.4.29"), (release("0.4.30").date, "0.4.30")):
        assert table.newest_before(date) == release(version)
    assert table.newest_before(datetime.date(2026, 1, 30)) == release("0.9.0")
    assert table.newest_before(datetime.date(2023, 12, 13)) is None
    assert table.newest_before(datetime.date.max) == RELEASES[-1]
    for dialect, version in (("0.9.0", RELEASES[0].version), ("1.1.3", "0.4.30"), ("1.1.4", "0.4.31")):
        assert table.first_to_read(dialect) == release(version)
    assert table.first_to_read("99.0.0") is None


pytestmark = pytest.mark.jax
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


DTYPES = {
    None: "f32 bf16 i4 f8E4M3FN", "0.4.31": "i2 ui2", "0.4.32": "tf32 f8E4M3 f8E3M4",
    "0.4.36": "f4E2M1FN f6E2M3FN f6E3M2FN f8E8M0FNU",
}  # fmt: skip


def test_types() -> None:
    for first, dtypes in DTYPES.items():
        for dtype in dtypes.split():
            expected = [(first, f"the type {dtype}")] if first else []
            assert needed(portable(IDENTITY.format(f"tensor<2x{dtype}>"))) == expected
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
@each(
    "version, bytecode",
    [("0.9.0", 0), ("0.11.0", 1), ("0.12.0", 3), ("0.13.0", 3), ("0.14.0", 4), ("0.15.0", 6), ("1.0.0", 6)],
)
def test_formats_of_bytecode(version: str, bytecode: int) -> None:
    text = IDENTITY.format("tensor<2xf32>").replace("return %a", "%0 = stablehlo.abs %a : tensor<2xf32> return %0")
    module = portable(text, version)
    assert module[4] >> 1 == bytecode
    head = module_head.read(module)
    assert head.stablehlo == version
    assert head.producer == f"StableHLO_v{version}"
    assert head.operations == {"builtin.module", "vhlo.abs_v1", "vhlo.func_v1", "vhlo.return_v1"}
    assert head.dialects == {"builtin", "vhlo"}
    exported = jaxexp.export(jax.jit(jax.numpy.abs))(jax.ShapeDtypeStruct((2,), "float32"))
    blob = dataclasses.replace(exported, mlir_module_serialized=module).serialize()
    report = jaxexp.compatibility(blob)
    assert report.stablehlo == jaxexp.inspect(blob).stablehlo == version
    assert report.readers


def test_truncated_and_damaged() -> None:
    """Any byte of the head may be anything: an answer, or one kind of error."""
    module = bytearray(export_with(jaxexp, CASES["sin"].build()).mlir_module_serialized)
    for size in (0, 3, 4, 5, 10, 40, 120, 300):
        with pytest.raises(jaxexp.errors.DeserializationError, match="at mlir_module_serialized: expected"):
            module_head.read(bytes(module[:size]))
    refused = 0
    for at in range(len(module)):
        for value in (0, 1, 0x7F, 0x80, 0xFF):
            before, module[at] = module[at], value
            try:
                module_head.read(bytes(module))
                module_head.producer(bytes(module))
            except jaxexp.errors.DeserializationError:
                refused += 1
            module[at] = before
    assert refused > 100


def test_first_reader_of_a_version() -> None:
    sin, poly = (jaxexp.deserialize(blob_of("0.11.2", name)).mlir_module_serialized for name in ("sin", "poly"))
    assert not module_head.is_for_newer(poly, "1.18.0")
    assert module_head.is_for_newer(poly, "1.17.0")
    with_call = "one for StableHLO 1.18.0 with vhlo.custom_call_v2, which JAX 0.11.0 and newer read"
    assert why_too_new(poly, "1.17.0") == (with_call, True)
    assert why_too_new(sin, "1.17.0") == ("one for StableHLO 1.18.0, which JAX 0.11.0 and newer read", False)

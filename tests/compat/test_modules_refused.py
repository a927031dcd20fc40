"""What `from_stablehlo` refuses: each module with one clear error, and none of them ends the process."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any

import pytest

import jaxexp
from jaxexp._compat.foreign import source
from jaxexp.errors import DeserializationError, ExportError, UnsupportedError
from kit.each import each
from kit.named_devices import bytecode as portable
from kit.producers import identity, module
from kit.vhlo import bytecode

pytestmark = pytest.mark.jax

MESH = 'sdy.mesh @m = <["x"=4]>'
UNSUPPORTED = {
    "importing a module: the module is for 2 replicas": identity(of_module="mhlo.num_replicas = 2 : i32"),
    "takes a platform or dimensions as arguments": identity(of_argument='jax.global_constant = "_platform_index"'),
    'in the memory "pinned_host"': identity(of_argument='mhlo.memory_kind = "pinned_host"'),
    "argument 0 of the module has the type tuple<tensor<2xf32>>": identity("tuple<tensor<2xf32>>"),
    "argument 0 of the module has the type !stablehlo.token": identity("!stablehlo.token"),
    "argument 0 of the module has elements of type i2,": identity("tensor<2xi2>"),
    "the module has the type tensor<2xi7>, which no artifact can hold": identity("tensor<2xi7>"),
    "the module has the type tensor<*xf32>,": identity(around="func.func private @g(tensor<*xf32>)"),
    "the module has the type !shape.witness,": identity("!shape.witness"),
    "the module has the type vector<2xf32>,": identity("vector<2xf32>"),
    "the module has the type f32,": identity("f32"),
    " : tensor<2xf32> without its numbers (they were left out when it was printed): let its producer print": (
        identity(body="%c = stablehlo.constant dense_resource<__elided__> : tensor<2xf32>", returned="%c")
    ),
    " : tensor<2xf32> without its numbers (they stand apart): let its producer print all numbers": (
        identity(body="%c = stablehlo.constant dense_resource<there> : tensor<2xf32>", returned="%c")
        + '{-# dialect_resources: { builtin: { there: "0x040000000000803F00000040" } } #-}'
    ),
    "#stablehlo.bounds<5>>: JAX has no bounds": identity("tensor<?xf32, #stablehlo.bounds<5>>"),
    "the module has math.exp,": identity(body="%0 = math.exp %x : tensor<2xf32>", returned="%0"),
    "the module has a builtin.module at its top": identity(around="module @inner { }"),
    "the mesh @m has an order of devices of its own": identity(
        of_argument='sdy.sharding = #sdy.sharding<@m, [{"x"}]>',
        around='sdy.mesh @m = <["x"=2], device_ids=[1, 0]>',
    ),
    "is sharded over a part of a mesh axis": identity(
        of_argument='sdy.sharding = #sdy.sharding<@m, [{"x":(1)2}]>', around=MESH
    ),
    "has Shardy's meshes as mhlo.frontend_attributes": identity(
        of_module='mhlo.frontend_attributes = {xla.sdy.meshes = "junk"}'
    ),
    "which no mesh of Shardy's expresses": identity(
        of_argument='mhlo.sharding = "{devices=[2]1,0}"', of_module="mhlo.num_partitions = 2 : i32"
    ),
}
DAMAGED = {
    "found tf.aliasing_output = 3 : i32": identity(of_argument="tf.aliasing_output = 3 : i32"),
    'found tf.aliasing_output = "x"': identity(of_argument='tf.aliasing_output = "x"'),
    'expected shardings as text, such as {replicated}, found "junk"': identity(of_argument='mhlo.sharding = "junk"'),
    "expected shardings as text, such as {replicated}, found 5 : i32": identity(of_result="mhlo.sharding = 5 : i32"),
    'expected a number of devices as mhlo.num_partitions, found "x"': identity(of_module='mhlo.num_partitions = "x"'),
    "found 0 : i32": identity(of_module="mhlo.num_partitions = 0 : i32"),
    "found one for 9,223,372,036,854,775,807": identity(
        of_module="mhlo.num_partitions = 9223372036854775807 : i64"
    ),
    "found a mesh of more than 1048576 devices": identity(around='sdy.mesh @m = <["x"=1000000, "y"=1000000]>'),
    "found #sdy.sharding<mesh<": identity(of_argument='sdy.sharding = #sdy.sharding<mesh<["x"=2]>, [{"x"}]>'),
    "found a function that calls itself": identity(
        body="%0 = call @main(%x) : (tensor<2xf32>) -> tensor<2xf32>"
    ),
    "found an operation func_v1 without code": identity(
        around="func.func private @g(tensor<2xf32>) -> tensor<2xf32>",
        body="%0 = call @g(%x) : (tensor<2xf32>) -> tensor<2xf32>",
    ),
    "2 of them, @f, @g: choose one with entry=": "func.func @f() { return } func.func @g() { return }",
    "found none": "func.func private @f() { return }",
}  # fmt: skip


@each("message", UNSUPPORTED)
def test_what_no_artifact_can_hold(message: str) -> None:
    for given in (UNSUPPORTED[message], bytecode(UNSUPPORTED[message])):
        with pytest.raises(UnsupportedError, match=re.escape(message)):
            jaxexp.from_stablehlo(given)


def test_newer_and_portable_artifacts() -> None:
    with pytest.raises(UnsupportedError, match=r"has the type !vhlo\.unranked_tensor_v1<"):
        jaxexp.from_stablehlo(portable(identity("tensor<*xf32>")))
    newer = module("torch_xla-2.9.0/mlp.mlirbc").path.read_bytes().replace(b"StableHLO_v1.13.0", b"StableHLO_v9.13.0")
    newer = newer.replace(b"vhlo", b"vhlp")
    with pytest.raises(ExportError):
        jaxexp.from_stablehlo(newer)


@each("message", DAMAGED)
def test_what_is_no_function(message: str, tmp_path: Path) -> None:
    path = tmp_path / "m.mlirbc"
    path.write_bytes(bytecode(DAMAGED[message]))
    with pytest.raises(DeserializationError) as error:
        jaxexp.from_stablehlo(path)
    assert str(error.value).startswith(f"cannot import the module {str(path)!r}: expected ")
    assert message in str(error.value)


@each(
    "text, kind, message",
    [
        (identity(body='%0 = "tf.Neg"(%x) : (tensor<2xf32>) -> tensor<2xf32>'), UnsupportedError, "has tf.Neg,"),
        (identity(body="%0 = linalg.x %x : tensor<2xf32>"), UnsupportedError, "the module has linalg.*,"),
        (
            identity(body="%0 = arith.addf %x, %x : tensor<2xf32>", returned="%0"),
            UnsupportedError,
            "the module has arith.addf,",
        ),
        ("module {\n  hello\n}", DeserializationError, "text that jaxlib does not parse: \"-\":2:3: "),
    ],
)  # fmt: skip
def test_text(text: str, kind: Any, message: str) -> None:
    with pytest.raises(kind, match=re.escape(message)):
        jaxexp.from_stablehlo(text)


@pytest.mark.processes(reason="text is parsed in a process of its own")
def test_text_that_ends_or_stops_a_parser() -> None:
    with pytest.raises(DeserializationError, match="text that ends the process that parses it"):
        jaxexp.from_stablehlo("module {" * 50_000 + "}" * 50_000)
    assert "stablehlo.negate" in jaxexp.from_stablehlo(MHLO).mlir_module()
    with pytest.raises(UnsupportedError, match=r"the module has quant\.\*,"):
        jaxexp.from_stablehlo(identity("tensor<2x!quant.uniform<i8:f32, 1.0>>"))


MHLO = identity(body="%0 = mhlo.negate %x : tensor<2xf32>", returned="%0")


def test_mhlo_becomes_stablehlo() -> None:
    for given in (MHLO, bytecode(MHLO)):
        assert "stablehlo.negate" in jaxexp.from_stablehlo(given).mlir_module()


def test_names_of_any_bytes(tmp_path: Path) -> None:
    for attribute in (r'jax.result_info = "\FF\FE"', f'jax.result_info = "result{"[0]" * 3000}"'):
        exported = jaxexp.from_stablehlo(bytecode(identity(of_result=attribute)))
        assert exported.out_tree.num_leaves == 1
    whole = bytecode(identity(of_module="name.of_it", around="func.func private @unused() { return }"))
    for old in (b"name.of_it", b"main", b"unused"):
        with pytest.raises(DeserializationError, match="UTF-8"):
            jaxexp.from_stablehlo(whole.replace(old, b"\xff\xfe" + old[2:]))
    for given in (5, None, [1]):
        with pytest.raises(TypeError, match=r"a module is StableHLO text, MLIR bytecode or the path"):
            jaxexp.from_stablehlo(given)
    with pytest.raises(FileNotFoundError):
        jaxexp.from_stablehlo(tmp_path / "model.mlir")


@each(
    "content, found",
    [
        (b"", "nothing"),
        (b" \n", "only white space"),
        (b"ML\xefR", "found 0 bytes where 1 have to follow at byte 4"),
        (b"ML\xefR\x0dStableHLO_v1.0.0\0", "found no section of kind 0"),
    ],
)
def test_bytes_that_are_none(content: bytes, found: str) -> None:
    with pytest.raises(DeserializationError, match=found):
        jaxexp.from_stablehlo(content)


def test_text_where_no_process_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source.sys, "executable", "")
    with pytest.raises(ExportError, match="pass the module as MLIR bytecode"):
        jaxexp.from_stablehlo("module { }")


@each("name", ["tensorflow-2.21.0/recurrent.mlirbc", "torch_xla-2.9.0/mlp.mlirbc"])
def test_damaged_modules_are_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each changed byte gives a function or one of jaxexp's errors. No other process gets a second look."""
    monkeypatch.setattr(source, "_portable", lambda content: content)
    whole, rng = module(name).path.read_bytes(), random.Random(3)
    refused = 0
    for _ in range(60):
        damaged = bytearray(whole)
        damaged[rng.randrange(len(whole))] = rng.randrange(256)
        try:
            jaxexp.from_stablehlo(bytes(damaged))
        except ExportError:
            refused += 1
    assert refused > 15

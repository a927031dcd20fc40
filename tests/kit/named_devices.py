"""Modules with meshes and shardings in each form that modules have, in each place, and in forms that are unknown."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp

import jaxexp
from jaxexp import _jax
from kit.corpus import arr

T = "tensor<8xf32>"
ADD = f"%r = stablehlo.add %arg0, %arg0 : {T}"


def escaped(data: bytes) -> str:
    """A string of MLIR's text."""
    return '"' + "".join(f"\\{byte:02X}" for byte in data) + '"'


# Each module names Shardy: from others, shardings of XLA are dropped if the function is for one device.
def module(
    body: str = ADD, *, of_module: str = "", before: str = "", argument: str = "", result: str = "", function: str = ""
) -> str:
    return f"""module @f attributes {{{of_module}}} {{
      sdy.mesh @one = <["x"=1]>
      {before}
      func.func public @main(%arg0: {T} {{{argument}}}) -> ({T} {{{result}}}) attributes {{{function}}} {{
        {body}
        return %r : {T}
      }}
    }}"""


def bytecode(module: Any) -> bytes:
    """A module, or its text, as a portable artifact."""
    if isinstance(module, str):
        with _jax.make_ir_context():
            return bytecode(_jax.ir.Module.parse(module))
    return _jax.serialize_portable_artifact(module, _jax.newest_stablehlo(), True)


@functools.cache
def _sine() -> jaxexp.Exported:
    return jaxexp.export(jax.jit(jnp.sin))(arr(8))


def with_bytecode(module: bytes) -> bytes:
    """An artifact of a function float32[8] -> float32[8] whose module is another one."""
    return bytes(dataclasses.replace(_sine(), mlir_module_serialized=module).serialize())


def artifact(text: str) -> bytes:
    return with_bytecode(bytecode(text))


def proto(**fields: object) -> bytes:
    made = _jax.OpSharding()
    made.type = _jax.OpSharding.Type.OTHER
    for name, value in fields.items():
        setattr(made, name, value)
    return made.SerializeToString()


LISTED = proto(tile_assignment_dimensions=[8], tile_assignment_devices=list(range(8)))
IOTA = proto(tile_assignment_dimensions=[8], iota_reshape_dims=[8], iota_transpose_perm=[0])
ONE = b"\x08\x01\x22\x01\x07"  # maximal, on device 7
TUPLE = b"\x08\x02" + b"\x2a\x00" + b"\x2a" + bytes([len(LISTED)]) + LISTED
FRONTEND = "mhlo.frontend_attributes"
MESHES = b'{m = #sdy.mesh<["x"=8]>}'
# Each says 8 devices.
SHARDINGS = {
    "mhlo.sharding of XLA's text": ("mhlo.sharding", b"{devices=[8]<=[8]}"),
    "mhlo.sharding of a list": ("mhlo.sharding", b"{devices=[4,2]7,6,5,4,3,2,1,0 last_tile_dims={replicated}}"),
    "mhlo.sharding on one device": ("mhlo.sharding", b"{maximal device=7}"),
    "mhlo.sharding of an OpSharding": ("mhlo.sharding", LISTED),
    "mhlo.sharding of an OpSharding in order": ("mhlo.sharding", IOTA),
    "mhlo.sharding of an OpSharding on one device": ("mhlo.sharding", ONE),
    "mhlo.sharding of a tuple": ("mhlo.sharding", TUPLE),
    "Shardy": ("sdy.note", '#sdy.sharding<mesh<["x"=8]>, [{"x"}]>'),
    "Shardy's devices": ("sdy.note", "#sdy.sharding<mesh<[], device_ids=[7]>, []>"),
    "Shardy's results": ("sdy.note", '#sdy.sharding_per_value<[<@one, [{}]>, <mesh<["x"=8]>, [{"x"}]>]>'),
    "Shardy's mesh": ("sdy.note", '#sdy.mesh<["x"=2, "y"=4]>'),
    "Shardy's text as an attribute": ("xla.sdy.sharding", b'#sdy.sharding<mesh<["x"=8]>, [{"x"}]>'),
    "meshes": (FRONTEND, {"xla.sdy.meshes": MESHES}),
    "meshes, escaped": (FRONTEND, {"xla.sdy.meshes": MESHES.replace(b'"', b'\\"')}),
    "the last of meshes": (
        FRONTEND,
        {"xla.sdy.meshes": b'{m = #sdy.mesh<["x"=1]>, "n o" = #sdy.mesh<["x"=2,"]"=4],device_ids=[7,6,5,4,3,2,1,0]>}'},
    ),
    "a mesh of one device": (FRONTEND, {"xla.sdy.meshes": b"{m = #sdy.mesh<[], device_ids=[7]>}"}),
    "a mesh in a sharding": (FRONTEND, {"xla.sdy.sharding": b'#sdy.sharding<mesh<["x"=8]>, [{"x", ?}p1]>'}),
    "a mesh in shardings": (
        FRONTEND,
        {"xla.sdy.in_shardings": b'#sdy.sharding_per_value<[<@m, [{}]>, <mesh<["a"=2,"b"=4]>, [{"a":(1)2}]>]>'},
    ),
    "pairs": (FRONTEND, {"_xla_send_recv_source_target_pairs": b"{{0,1},{1,7}}"}),
}


Value = bytes | str | dict[str, bytes]


def attribute_of(name: str, value: Value) -> str:
    if isinstance(value, bytes):
        return f"{name} = {escaped(value)}"
    if isinstance(value, str):
        return f"{name} = {value}"
    return f"{name} = {{{', '.join(f'{key} = {escaped(text)}' for key, text in value.items())}}}"


def on(target: str, attribute: str) -> str:
    return module(f"%r = stablehlo.custom_call @{target}(%arg0) {{{attribute}}} : ({T}) -> {T}")


PLACES = {
    "the module": lambda attribute: module(of_module=attribute),
    "a function": lambda attribute: module(function=attribute),
    "an argument": lambda attribute: module(argument=attribute),
    "a result": lambda attribute: module(result=attribute),
    "an operation": lambda attribute: module(f"%r = stablehlo.add %arg0, %arg0 {{{attribute}}} : {T}"),
    "Sharding": lambda attribute: on("Sharding", attribute),
    "SPMDFullToShardShape": lambda attribute: on("SPMDFullToShardShape", attribute),
    "another custom call": lambda attribute: on("mine", attribute),
    "a branch": lambda attribute: module(
        "%i = stablehlo.constant dense<0> : tensor<i32>\n"
        f'%r = "stablehlo.case"(%i) ({{ %a = stablehlo.add %arg0, %arg0 {{{attribute}}} : {T}\n'
        f"stablehlo.return %a : {T} }}) : (tensor<i32>) -> {T}"
    ),
}


# Forms that are unknown.
DIGITS = b"1" * 9999
UNKNOWN_FORMS: dict[str, tuple[str, Value]] = {
    "a text that XLA may know one day": ("mhlo.sharding", b"{mesh['x'=8], [{'x'}]}"),
    "a text without braces": ("mhlo.sharding", b" {devices=[8]<=[8]}"),
    "more devices than the sizes say": ("mhlo.sharding", b"{devices=[2]0,1,2}"),
    "sizes that differ": ("mhlo.sharding", b"{devices=[2]<=[4]}"),
    "a size of zero": ("mhlo.sharding", b"{devices=[0,2]7,6}"),
    "a size of zero twice": ("mhlo.sharding", b"{devices=[0]<=[0]}"),
    "a text with more": ("mhlo.sharding", b"{devices=[1]<=[1] of 8}"),
    "a field that XLA may have one day": ("mhlo.sharding", b"\x08\x03\x72\x00"),
    "a message that was cut": ("mhlo.sharding", LISTED[:-1]),
    "a message with a size of zero": ("mhlo.sharding", b"\x08\x03\x1a\x02\x00\x02\x22\x02\x07\x06"),
    "a message with more sizes than devices": ("mhlo.sharding", b"\x08\x03\x1a\x02\x02\x02\x22\x02\x07\x06"),
    "a number that does not end": ("mhlo.sharding", b"\x08" + b"\x80" * 3000),
    "a tuple in a tuple": ("mhlo.sharding", b"\x08\x02\x2a" + bytes([len(TUPLE)]) + TUPLE),
    "a number that is no text": ("xla.sdy.meshes", '{m = "x"}'),
    "another escape": (FRONTEND, {"xla.sdy.meshes": b'{m = #sdy.mesh<["x"\\0758]>}'}),
    "a comment": (FRONTEND, {"xla.sdy.meshes": b'{// "\nm = #sdy.mesh<["x"=8]>// "\n}'}),
    "a comment in a mesh": (FRONTEND, {"xla.sdy.meshes": b'{m = #sdy.mesh<//\n["x"=8]>}'}),
    "a hexadecimal number": (FRONTEND, {"xla.sdy.meshes": b'{m = #sdy.mesh<["x"=0x8]>}'}),
    "a number of many digits": (FRONTEND, {"xla.sdy.meshes": b'{m = #sdy.mesh<["x"=%b]>}' % DIGITS}),
    "another mesh": (FRONTEND, {"xla.sdy.meshes": b'{m = #sdy.grid<["x"=8]>}'}),
    "a string that does not end": (FRONTEND, {"xla.sdy.sharding": b'#sdy.sharding<@m, [{"x}]>'}),
    "no string": (FRONTEND, '{xla.sdy.meshes = 8 : i64}'),
    "another name": (FRONTEND, {"mesh_of_the_future": b"x=8"}),
}  # fmt: skip

NO_DEVICES: list[tuple[str, Value]] = [
    ("mhlo.sharding", b""),
    ("mhlo.sharding", b"{replicated}"),
    ("mhlo.sharding", b"{unknown shard_as 3}"),
    ("mhlo.sharding", b"\x08\x04"),
    ("sdy.sharding", '#sdy.sharding<@one, [{"x"}]>'),
    ("sdy.note", "#sdy<manual_axes{}>"),
    ("sdy.sharding_rule", "#sdy.op_sharding_rule<([i])->([i]) {i=8}>"),
    (FRONTEND, {"xla.sdy.sharding": b'#sdy.sharding<@m, [{"x", ?}p3], replicated={"y":(2)4}, unreduced={"z"}>'}),
    (FRONTEND, {"xla.sdy.sharding_rule": b"#sdy.op_sharding_rule<([i])->([i]) {i=8}>"}),
    (FRONTEND, {"_xla_compute_type": b"host", "my_note": b"x=8"}),
]

"""`Policy(max_devices=...)`: meshes and shardings in each form that modules have, and forms that are unknown."""

from __future__ import annotations

import dataclasses
import io
import math
import random

import jax
import jax.numpy as jnp
import pytest

import jaxexp
from jaxexp import _jax
from jaxexp._kernel.artifact import op_sharding
from jaxexp._policy import devices
from kit.corpus import arr
from kit.other_modules import with_module
from kit.places import GOLDEN

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


def bytecode(text: str) -> bytes:
    with _jax.make_ir_context():
        file = io.BytesIO()
        _jax.ir.Module.parse(text).operation.write_bytecode(file)
    return file.getvalue()


def artifact(text: str) -> bytes:
    exported = jaxexp.export(jax.jit(jnp.sin))(arr(8))
    return bytes(dataclasses.replace(exported, mlir_module_serialized=bytecode(text)).serialize())


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
    "meshes": ("mhlo.frontend_attributes", {"xla.sdy.meshes": MESHES}),
    "meshes, escaped": ("mhlo.frontend_attributes", {"xla.sdy.meshes": MESHES.replace(b'"', b'\\"')}),
    "the last of meshes": (
        "mhlo.frontend_attributes",
        {"xla.sdy.meshes": b'{m = #sdy.mesh<["x"=1]>, "n o" = #sdy.mesh<["x"=2,"]"=4],device_ids=[7,6,5,4,3,2,1,0]>}'},
    ),
    "a mesh of one device": ("mhlo.frontend_attributes", {"xla.sdy.meshes": b"{m = #sdy.mesh<[], device_ids=[7]>}"}),
    "a mesh in a sharding": (
        "mhlo.frontend_attributes",
        {"xla.sdy.sharding": b'#sdy.sharding<mesh<["x"=8]>, [{"x", ?}p1]>'},
    ),
    "a mesh in shardings": (
        "mhlo.frontend_attributes",
        {"xla.sdy.in_shardings": b'#sdy.sharding_per_value<[<@m, [{}]>, <mesh<["a"=2,"b"=4]>, [{"a":(1)2}]>]>'},
    ),
    "pairs": ("mhlo.frontend_attributes", {"_xla_send_recv_source_target_pairs": b"{{0,1},{1,7}}"}),
}


def attribute_of(name: str, value: bytes | str | dict[str, bytes]) -> str:
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


def check(blob: bytes) -> None:
    with pytest.raises(jaxexp.PolicyError) as error:
        jaxexp.deserialize(blob, policy=jaxexp.Policy(custom_calls=("mine",), max_devices=7))
    assert error.value.field == "max_devices"
    assert "8 devices" in error.value.found
    jaxexp.deserialize(blob, policy=jaxexp.Policy(custom_calls=("mine",), max_devices=8))
    jaxexp.deserialize(blob)


@pytest.mark.sampled(one_in=5, reason="many cases go the same way")
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("form", SHARDINGS)
def test_each_form_in_each_place(form: str, place: str) -> None:
    check(artifact(PLACES[place](attribute_of(*SHARDINGS[form]))))


@pytest.mark.parametrize("form", SHARDINGS)
def test_each_form(form: str) -> None:
    check(artifact(PLACES["an argument"](attribute_of(*SHARDINGS[form]))))


def test_meshes_that_nothing_uses() -> None:
    check(artifact(module(before='sdy.mesh @m = <["x"=8]>')))
    check(artifact(module(before="sdy.mesh @m = <[], device_ids=[7]>")))
    manual = f"""%r = sdy.manual_computation(%arg0) in_shardings=[<mesh<["x"=8]>, [{{"x"}}]>]
      out_shardings=[<mesh<["x"=8]>, [{{"x"}}]>] manual_axes={{"x"}} (%a: tensor<1xf32>) {{
        sdy.return %a : tensor<1xf32>
      }} : ({T}) -> {T}"""
    check(artifact(module(manual)))


def test_vjps() -> None:
    text = module(of_module=attribute_of(*SHARDINGS["meshes"])).replace("(%arg0", f"(%arg1: {T}, %arg0")
    exported = jaxexp.export(jax.jit(jnp.sin))(arr(8))
    vjp = dataclasses.replace(exported.vjp(), mlir_module_serialized=bytecode(text))
    blob = dataclasses.replace(exported, _get_vjp=lambda _: vjp).serialize(vjp_order=1)
    with pytest.raises(jaxexp.PolicyError, match=r"the VJP of order 1 of sin has 8 devices in mhlo"):
        jaxexp.deserialize(blob, policy=jaxexp.Policy(max_devices=7))


# --- what is not understood -------------------------------------------------------------------------------------------

DIGITS = b"1" * 9999
UNKNOWN: dict[str, tuple[str, bytes | str | dict[str, bytes]]] = {
    "a text that XLA may know one day": ("mhlo.sharding", b"{mesh['x'=8], [{'x'}]}"),
    "a text without braces": ("mhlo.sharding", b" {devices=[8]<=[8]}"),
    "a text with more": ("mhlo.sharding", b"{devices=[1]<=[1] of 8}"),
    "a field that XLA may have one day": ("mhlo.sharding", b"\x08\x03\x72\x00"),
    "a message that was cut": ("mhlo.sharding", LISTED[:-1]),
    "a number that does not end": ("mhlo.sharding", b"\x08" + b"\x80" * 3000),
    "a tuple in a tuple": ("mhlo.sharding", b"\x08\x02\x2a" + bytes([len(TUPLE)]) + TUPLE),
    "a number that is no text": ("xla.sdy.meshes", '{m = "x"}'),
    "another escape": ("mhlo.frontend_attributes", {"xla.sdy.meshes": b'{m = #sdy.mesh<["x"\\0758]>}'}),
    "a comment": ("mhlo.frontend_attributes", {"xla.sdy.meshes": b'{// "\nm = #sdy.mesh<["x"=8]>// "\n}'}),
    "a comment in a mesh": ("mhlo.frontend_attributes", {"xla.sdy.meshes": b'{m = #sdy.mesh<//\n["x"=8]>}'}),
    "a hexadecimal number": ("mhlo.frontend_attributes", {"xla.sdy.meshes": b'{m = #sdy.mesh<["x"=0x8]>}'}),
    "a number of many digits": ("mhlo.frontend_attributes", {"xla.sdy.meshes": b'{m = #sdy.mesh<["x"=%b]>}' % DIGITS}),
    "another mesh": ("mhlo.frontend_attributes", {"xla.sdy.meshes": b'{m = #sdy.grid<["x"=8]>}'}),
    "a string that does not end": ("mhlo.frontend_attributes", {"xla.sdy.sharding": b'#sdy.sharding<@m, [{"x}]>'}),
    "no string": ("mhlo.frontend_attributes", '{xla.sdy.meshes = 8 : i64}'),
    "another name": ("mhlo.frontend_attributes", {"mesh_of_the_future": b"x=8"}),
}  # fmt: skip


@pytest.mark.parametrize("case", UNKNOWN)
def test_unknown_forms_are_refused_by_a_limit(case: str) -> None:
    name, value = UNKNOWN[case]
    blob = artifact(module(argument=attribute_of(name, value)))
    with pytest.raises(jaxexp.PolicyError) as error:
        jaxexp.deserialize(blob, policy=jaxexp.Policy(max_devices=1000))
    assert error.value.field == "max_devices"
    assert name in error.value.found
    assert "in a form that is unknown here" in str(error.value)
    assert "func.func in its function @main" in str(error.value)
    assert len(str(error.value)) < 400
    jaxexp.deserialize(blob, policy=jaxexp.Policy())


NO_DEVICES: list[tuple[str, bytes | str | dict[str, bytes]]] = [
    ("mhlo.sharding", b""),
    ("mhlo.sharding", b"{replicated}"),
    ("mhlo.sharding", b"{unknown shard_as 3}"),
    ("mhlo.sharding", b"\x08\x04"),
    ("sdy.sharding", '#sdy.sharding<@one, [{"x"}]>'),
    ("sdy.note", "#sdy<manual_axes{}>"),
    ("sdy.sharding_rule", "#sdy.op_sharding_rule<([i])->([i]) {i=8}>"),
    (
        "mhlo.frontend_attributes",
        {"xla.sdy.sharding": b'#sdy.sharding<@m, [{"x", ?}p3], replicated={"y":(2)4}, unreduced={"z"}>'},
    ),
    ("mhlo.frontend_attributes", {"xla.sdy.sharding_rule": b"#sdy.op_sharding_rule<([i])->([i]) {i=8}>"}),
    ("mhlo.frontend_attributes", {"_xla_compute_type": b"host", "my_note": b"x=8"}),
]


@pytest.mark.parametrize("attribute", NO_DEVICES, ids=str)
def test_what_names_no_devices(attribute: tuple[str, bytes | str | dict[str, bytes]]) -> None:
    blob = artifact(module(argument=attribute_of(*attribute)))
    jaxexp.deserialize(blob, policy=jaxexp.Policy(max_devices=1))


def test_attributes_of_custom_calls_are_up_to_their_targets() -> None:
    blob = artifact(on("mine", 'mesh = "x=8", sharding = 8 : i64, replica_groups = dense<[[0, 9]]> : tensor<1x2xi64>'))
    jaxexp.deserialize(blob, policy=jaxexp.Policy(custom_calls=("mine",), max_devices=1))


def test_op_shardings_have_the_devices_that_xla_finds() -> None:
    source = random.Random(3)
    for _ in range(500):
        sizes = [source.choice([1, 2, 3, 4]) for _ in range(source.randrange(1, 4))]
        count = math.prod(sizes)
        order = source.sample(range(len(sizes)), len(sizes))
        numbers = source.sample(range(count), count)
        for data in (
            proto(tile_assignment_dimensions=sizes, tile_assignment_devices=numbers),
            proto(tile_assignment_dimensions=[count], iota_reshape_dims=sizes, iota_transpose_perm=order),
        ):
            assert op_sharding.devices(data) == count
            made = _jax.OpSharding()
            made.ParseFromString(data)
            text = str(_jax.HloSharding.from_proto(made))
            if "devices" in text:
                assert devices.of_hlo(text.encode()) == count


def test_artifacts_of_all_releases_pass() -> None:
    """With as many devices as they say."""
    everything = {"custom_calls": None, "effects": None, "callbacks": None, "operations": None}
    passed = 0
    for path in sorted(GOLDEN.rglob("*.bin")):
        try:
            count = jaxexp.load(path).nr_devices
            jaxexp.load(path, policy=jaxexp.Policy(**everything))
        except jaxexp.ExportError:
            continue  # one that was damaged on purpose, or is for a newer JAX
        jaxexp.load(path, policy=jaxexp.Policy(**everything, max_devices=count))
        passed += 1
    assert passed > 100


# --- other limits -----------------------------------------------------------------------------------------------------


def test_versioned_operations_are_what_they_stand_for() -> None:
    """Parsing turns vhlo into stablehlo, so the target is seen."""
    call = f"""%r = "vhlo.custom_call_v1"(%arg0) <{{api_version = #vhlo<api_version_v1 API_VERSION_ORIGINAL>,
      backend_config = #vhlo.string_v1<"">, call_target_name = #vhlo.string_v1<"mine">,
      called_computations = #vhlo.array_v1<[]>, has_side_effect = #vhlo.bool_v1<false>,
      operand_layouts = #vhlo.array_v1<[]>, output_operand_aliases = #vhlo.array_v1<[]>,
      result_layouts = #vhlo.array_v1<[]>}}> : ({T}) -> {T}"""
    blob = artifact(module(call))
    with pytest.raises(jaxexp.PolicyError, match="custom call 'mine'"):
        jaxexp.deserialize(blob, policy=jaxexp.Policy())
    jaxexp.deserialize(blob, policy=jaxexp.Policy(custom_calls=("mine",)))


def test_side_effects_of_stable_targets_need_no_entry() -> None:
    text = """module @f { func.func public @main(%arg0: tensor<2xf32>) -> tensor<2xf32> {
      %r = stablehlo.custom_call @NAME(%arg0) {has_side_effect = true} : (tensor<2xf32>) -> tensor<2xf32>
      return %r : tensor<2xf32> } }"""
    jaxexp.deserialize(with_module(text.replace("NAME", "tpu_custom_call")), policy=jaxexp.Policy())
    with pytest.raises(jaxexp.PolicyError) as error:
        jaxexp.deserialize(with_module(text.replace("NAME", "mine")), policy=jaxexp.Policy(custom_calls=("mine",)))
    assert error.value.field == "effects"
    strict = jaxexp.Policy(stable_custom_calls=False)
    with pytest.raises(jaxexp.PolicyError, match="tpu_custom_call"):
        jaxexp.deserialize(with_module(text.replace("NAME", "tpu_custom_call")), policy=strict)

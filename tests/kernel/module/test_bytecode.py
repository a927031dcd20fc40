"""Modules that are damaged or made to do harm: refused before jaxlib's parser, which some of them would crash."""

from __future__ import annotations

import random

import jax
import jax.numpy as jnp
import pytest

import jaxexp
from jaxexp import _native
from jaxexp._kernel.module import mlir
from kit import in_forks, mlir_bytes, named_devices
from kit.corpus import arr
from kit.each import each
from kit.mlir_bytes import number
from kit.operations import OPERATIONS
from kit.other_modules import context, serialized
from kit.places import GOLDEN

pytestmark = pytest.mark.jax


def refused(module: bytes, match: str) -> None:
    with pytest.raises(jaxexp.errors.DeserializationError, match=match):
        _native.check_bytecode(module)


def modules(pattern: str = "**/*.bin") -> dict[str, bytes]:
    """Of all artifacts in the tree, VJPs included."""
    found = {}
    for path in sorted(GOLDEN.glob(pattern)):
        link, order = _native.Artifact(path.read_bytes()), 0
        while link is not None:
            found[f"{path.parent.name}/{path.stem}/{order}"] = bytes(link.module())
            link, order = link.vjp(), order + 1
    return found


def test_genuine_modules_pass() -> None:
    found = modules()
    assert len(found) > 300
    for name, module in found.items():
        try:
            _native.check_bytecode(module)
        except jaxexp.errors.DeserializationError as error:
            pytest.fail(f"{name}: {error}")


def test_operations_of_all_kinds_pass() -> None:
    """What the corpus has too little of: loops, reductions, convolutions, sorting, random numbers, transforms.

    And attributes with numbers that are encoded in another way than most; and what JAX writes seldom or never.
    """

    def function(x, key):
        x = jax.lax.conv(x[None, None], jnp.ones((1, 1, 3, 3)), (1, 1), "SAME")[0, 0]
        x = jnp.sort(x, axis=0) + jax.random.normal(key, x.shape) + jnp.fft.irfft(jnp.fft.rfft(x))
        x = jax.lax.scan(lambda c, row: (c + row, c * row), x[0], x)[1]
        x = jax.lax.fori_loop(0, 3, lambda _, x: jnp.sin(x) @ x, x)
        x = jax.lax.cond(x[0, 0] > 0, jnp.cumsum, jnp.cumprod, x.ravel()).reshape(x.shape)
        x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (2, 2), (1, 1), "SAME")
        x = jax.lax.dot(x, x, precision=jax.lax.DotAlgorithmPreset.F32_F32_F32)
        x = x.at[jnp.array([0, 2])].add(1.0)[jnp.array([3, 1, 2, 0])]
        values, indices = jax.lax.top_k(x, 2)
        return jnp.linalg.qr(x), values, jnp.argmax(x), indices, jnp.round(x).astype(jnp.int8), jax.lax.erf(x)

    exported = jaxexp.export(jax.jit(function))(arr(4, 4), jax.random.key(0))
    tolerance = jax.lax.Tolerance(atol=1e-300, rtol=0.1, ulps=2**40)
    accurate = jaxexp.export(jax.jit(lambda x: jax.lax.exp(x, accuracy=tolerance)))(arr(3))
    for one in (exported, accurate):
        _native.check_bytecode(one.mlir_module_serialized)
    for text in (SELDOM, *(operation.module() for operation in OPERATIONS)):
        _native.check_bytecode(serialized(text))


# Which are neither in kit/operations.py nor in the tests of policies.
SELDOM = """func.func @main(%x: tensor<4x4xf32>, %i: tensor<4xi32>, %p: tensor<1x2xi32>, %y: tensor<1x8x1xf32>) {
  %0 = "stablehlo.dynamic_conv"(%y, %y, %p) {batch_group_count = 1 : i64, feature_group_count = 1 : i64,
    dimension_numbers = #stablehlo.conv<[b, 0, f]x[i, 0, o]->[b, 0, f]>}
    : (tensor<1x8x1xf32>, tensor<1x8x1xf32>, tensor<1x2xi32>) -> tensor<1x?x1xf32>
  %2 = "stablehlo.unary_einsum"(%x) {einsum_config = "ab->a"} : (tensor<4x4xf32>) -> tensor<4xf32>
  %3 = stablehlo.tuple %2, %x : tuple<tensor<4xf32>, tensor<4x4xf32>>
  %4 = stablehlo.get_tuple_element %3[0] : (tuple<tensor<4xf32>, tensor<4x4xf32>>) -> tensor<4xf32>
  %5 = "stablehlo.torch_index_select"(%x, %i) {dim = 0 : i64, batch_dims = 0 : i64}
    : (tensor<4x4xf32>, tensor<4xi32>) -> tensor<4x4xf32>
  return
}"""


@pytest.fixture(scope="module")
def module() -> bytes:
    return jaxexp.export(jax.jit(lambda x: jnp.tanh(x @ x) + jnp.arange(9.0).reshape(3, 3)))(
        arr(3, 3)
    ).mlir_module_serialized


def test_every_shortened_module(module) -> None:
    for end in range(len(module)):
        with pytest.raises(jaxexp.errors.DeserializationError) as error:
            _native.check_bytecode(module[:end])
        assert error.value.path == "mlir_module_serialized"
    for bad in (b"", b"ML", b"module {}", bytes(100), b"ML\xefR" + b"\xff" * 50):
        refused(bad, "MLIR bytecode")


def numbers(*values: int) -> bytes:
    return b"".join(map(number, values))


def of_sections(*contents: bytes) -> bytes:
    """A module of these strings, dialects, attributes and types, their sizes, and code."""
    sections = b"".join(bytes([kind]) + number(len(content)) + content for kind, content in enumerate(contents))
    return b"ML\xefR" + number(6) + b"test\0" + sections


def strings(*texts: bytes) -> bytes:
    sizes = [len(text) + 1 for text in reversed(texts)]
    return numbers(len(texts), *sizes) + b"".join(text + b"\0" for text in texts)


def entry(kind: int, *fields: int | bytes) -> bytes:
    return number(kind) + b"".join(f if isinstance(f, bytes) else number(f) for f in fields)


UNKNOWN_LOCATION = entry(15)


def bytecode(
    vhlo: list[bytes] = (),
    types: list[bytes] = (),
    code: bytes = number(0),
    more_attributes: int = 0,
    kind: tuple[int, bytes] = (0, b"module"),
    names: tuple[bytes, ...] = (),
    of_types: int = 1,
) -> bytes:
    """A module with an unknown location, these attributes and types of VHLO, and operations of one kind. If `of_types`
    is 0, the types are builtin ones.
    """
    attributes = [UNKNOWN_LOCATION, *vhlo]
    groups = [(0, attributes[:1]), *([(1, vhlo)] if vhlo else [])]
    offsets = [number(len(attributes) + more_attributes), number(len(types))]
    for dialect, entries in [*groups, *([(of_types, types)] if types else [])]:
        offsets += [number(dialect), number(len(entries)), *(number(2 * len(e) + 1) for e in entries)]
    return of_sections(
        strings(b"builtin", b"vhlo", kind[1], *names, b"module"),
        numbers(2, 0, 2, 2, kind[0], 1, 2 * 2 + 1, 0, 1, (3 + len(names)) * 2 + 1),
        b"".join([*attributes, *types]),
        b"".join(offsets),
        code,
    )


FLOAT32, FUNCTION, TENSOR, TUPLE = 4, 8, 20, 23  # kinds of types
INT2 = 31
ARRAY, DICTIONARY, FLOAT, INTEGER, STRING, TENSOR_DATA = 1, 6, 8, 9, 14, 15  # and of attributes


def tensor(*shape: int, element: int = 0) -> bytes:
    return entry(TENSOR, len(shape), *(2 * size for size in shape), element)


def nested(depth: int) -> list[bytes]:
    """Attributes 1 to `depth`: arrays, each of which holds the one before, and the first one a string."""
    return [entry(STRING, 0), *(entry(ARRAY, 1, i) for i in range(1, depth))]


def regions(depth: int) -> bytes:
    """Operations in each other's only region; the outermost is at the top of the module."""
    return (numbers(2, 0) + bytes([16]) + numbers(0, 2, 1, 0)) * depth + numbers(2, 0) + bytes([0]) + number(0)


def of_text(text: bytes) -> bytes:
    """A module with one attribute, which is a text."""
    sizes = numbers(1, 0, 0, 1, 2 * (len(text) + 1))
    return of_sections(strings(b"builtin"), numbers(1, 0, 0), text + b"\0", sizes, number(0))


def of_shardy(kind: int) -> bytes:
    """A module with one attribute, of Shardy, that holds itself."""
    mesh_first = kind == 15
    return mlir_bytes.module(["sdy"], [(0, [])], [entry(kind, *([] if mesh_first else [1]), 0, 0, 0, 0)], number(0))


HARMLESS = {
    "nothing": bytecode(),
    "a constant": bytecode([entry(TENSOR_DATA, 1, 12, bytes(12))], [entry(FLOAT32), tensor(3)]),
    "a constant of equal elements": bytecode([entry(TENSOR_DATA, 1, 4, bytes(4))], [entry(FLOAT32), tensor(3)]),
    "some nesting": bytecode(nested(100)),
    "a buffer": bytecode(types=[entry(FLOAT32), entry(41, 1, 8, 0)]),
    "a mesh": bytecode([entry(14, 0), entry(24, 1, 4), entry(ARRAY, 1, 2), entry(25, 3, 0)]),
    "a mesh of a million devices": bytecode(
        [entry(14, 0), entry(24, 1, 2 << 10), entry(ARRAY, 2, 2, 2), entry(25, 3, 0)]
    ),
    "an axis of Shardy in a list": mlir_bytes.module(["sdy"], [(0, [])], [entry(4, 0, 0), entry(11, 1, 0)], number(0)),
    "some regions": bytecode(code=regions(100)),
}
HARMFUL = {
    "more attributes than there are": bytecode(more_attributes=1 << 60),
    "an array that holds itself": bytecode([entry(ARRAY, 1, 1)]),
    "arrays that hold each other": bytecode([entry(ARRAY, 1, 2), entry(ARRAY, 1, 1)]),
    "a tuple type that holds itself": bytecode(types=[entry(TUPLE, 1, 0)]),
    "an accuracy that holds itself": bytecode([entry(20, 0, 0, 0, 1)]),
    "a reference to an axis that holds itself": bytecode([entry(22, 0, 1, 1)]),
    "axes of a mesh that hold themselves": bytecode([entry(23, 1, 1)]),
    "a quantized type, which may hold itself": bytecode(types=[entry(24, 1, 0, 0, *[0] * 6)]),
    **{f"an attribute of Shardy, kind {kind}, that holds itself": of_shardy(kind) for kind in range(11, 17)},
    "an attribute of an unknown kind": bytecode([entry(99, 1)]),
    "an array of what is not there": bytecode([entry(ARRAY, 1, 7)]),
    "an array of too many": bytecode([entry(ARRAY, 1 << 60)]),
    "deep nesting": bytecode(nested(100_000)),
    "exponential nesting": bytecode([entry(STRING, 0), *(entry(ARRAY, 2, i, i) for i in range(1, 60))]),
    "an attribute of another dialect in an array": bytecode([entry(ARRAY, 1, 0)]),
    "an axis whose name is a location": bytecode([entry(22, 0, 0)]),
    "an axis whose name is an array": bytecode([entry(STRING, 0), entry(ARRAY, 1, 1), entry(22, 2, 0)]),
    "a part of an axis that is a string": bytecode([entry(STRING, 0), entry(22, 1, 1, 1)]),
    "a mesh of strings": bytecode([entry(STRING, 0), entry(ARRAY, 1, 1), entry(25, 2, 0)]),
    "a mesh of an axis and a string": bytecode(
        [entry(STRING, 0), entry(24, 1, 4), entry(ARRAY, 3, 2, 1, 2), entry(25, 3, 0)]
    ),
    "a mesh of an axis without devices": bytecode([entry(STRING, 0), entry(24, 1, 0)]),
    "a mesh of too many devices": bytecode(
        [entry(STRING, 0), entry(24, 1, 2 << 11), entry(24, 1, 2 << 10), entry(ARRAY, 2, 2, 3), entry(25, 4, 0)]
    ),
    "a part of an axis without devices": bytecode([entry(21, 0, 2)]),
    "groups of devices by strings": bytecode([entry(STRING, 0), entry(ARRAY, 1, 1), entry(23, 1, 2)]),
    "a constant that is too short": bytecode([entry(TENSOR_DATA, 1, 8, bytes(8))], [entry(FLOAT32), tensor(3)]),
    "a constant that is too long": bytecode([entry(TENSOR_DATA, 1, 16, bytes(16))], [entry(FLOAT32), tensor(3)]),
    "a constant of a type that is none": bytecode([entry(TENSOR_DATA, 0, 4, bytes(4))], [entry(FUNCTION, 0, 0)]),
    "a number of a function's type": bytecode([entry(FLOAT, 0, 0)], [entry(FUNCTION, 0, 0)]),
    "a tensor of functions": bytecode(types=[entry(FUNCTION, 0, 0), tensor(3)]),
    "a tensor without end": bytecode(types=[entry(FLOAT32), tensor(1 << 40, 1 << 40)]),
    "a negative dimension": bytecode(types=[entry(FLOAT32), entry(TENSOR, 1, 3, 0)]),
    "an operation that is not there": bytecode(code=numbers(2, 9)),
    "a location that is not there": bytecode(code=numbers(2, 0) + bytes([0]) + number(9)),
    "results without end": bytecode(code=numbers(2, 0) + bytes([2]) + numbers(0, 1 << 60)),
    "an operand that is not there": bytecode(code=numbers(2, 0) + bytes([4]) + numbers(0, 1, 0)),
    "values that nothing defines": bytecode(code=numbers(2, 0) + bytes([16]) + numbers(0, 2, 1, 3, 0) + bytes(3)),
    "arguments outside of all operations": bytecode(code=numbers(1, 0) + bytes(8)),
    "deep regions": bytecode(code=regions(100_000)),
    "an attribute as text": of_text(b"unit"),
    "a convolution as text": of_text(b"#stablehlo.conv<[b,200000000,f]x[0,i,o]->[b,0,f]>"),
    "a range of a wide integer as text": of_text(b"#llvm.constant_range<i16777215, 0, 1>"),
    "a dictionary with a name twice": bytecode([entry(STRING, 0), entry(DICTIONARY, 2, 1, 1, 1, 1)]),
    "a dictionary with equal names": bytecode(
        [entry(STRING, 0), entry(STRING, 3), entry(DICTIONARY, 2, 1, 1, 2, 1)], names=(b"builtin",)
    ),
    "a dictionary with a name that is no string": bytecode([entry(DICTIONARY, 1, 0, 0)]),
    "complex numbers of an array": bytecode(types=[entry(FLOAT32), tensor(3), entry(1, 1)]),
    "complex numbers of a function": bytecode(types=[entry(FUNCTION, 0, 0), entry(1, 0)]),
    "complex numbers of complex numbers": bytecode(types=[entry(FLOAT32), entry(1, 0), entry(1, 1)]),
    "complex numbers of 8 bits": bytecode(types=[entry(27), entry(1, 0)]),
    "a buffer of functions": bytecode(types=[entry(FUNCTION, 0, 0), entry(41, 1, 8, 0)]),
    **{
        f"a builtin type of kind {kind}": bytecode(types=[entry(5), entry(kind, 0, 0, 0, 0)], of_types=0)
        for kind in (10, 11, 16, 17, 18, 19, 20)
    },
    "a number of two bits": bytecode([entry(INTEGER, 0, 1)], [entry(INT2)]),
    "a sharding on no mesh": mlir_bytes.module(["sdy"], [(0, [])], [entry(6, 0, 0, 0, 0)], number(0)),
    "a type of no known rank": bytecode(types=[entry(FLOAT32), entry(25, 0)]),
    **{
        f"an attribute of the dialect {dialect} that holds itself": mlir_bytes.module(
            [dialect], [(0, [])], [entry(kind, 0, 0, 0, 0)], number(0)
        )
        for dialect, kind in [("stablehlo", 17), ("mhlo", 18), ("mhlo", 19), ("chlo", 1), ("quant", 1)]
    },
}


@each("what", HARMLESS)
def test_harmless(what: str) -> None:
    _native.check_bytecode(HARMLESS[what])


@each("what", HARMFUL)
def test_harmful(what: str) -> None:
    refused(HARMFUL[what], "MLIR bytecode")
    with pytest.raises(jaxexp.errors.DeserializationError):
        mlir.parse(HARMFUL[what], context())


NOT_UTF_8 = {
    "an attribute of the module": named_devices.module(of_module=r'"jax.\FF" = 1 : i32'),
    "an attribute of an argument": named_devices.module(argument=r'"jax.\FF" = 1 : i32'),
    "a frontend attribute": named_devices.module(argument=r'mhlo.frontend_attributes = {"\FF" = "x"}'),
    "a scope": named_devices.module() + r' loc("\FF"(unknown))',
    "a function": named_devices.module() + r' loc(callsite("f" at "\C3"("f.py":1:2)))',
    "a file": named_devices.module() + r' loc("\ED\A0\80":1:2)',
}


@each("what", NOT_UTF_8)
def test_names_that_are_not_utf_8(what: str) -> None:
    """jaxlib's bindings end the process when they are asked for some of them."""
    module = named_devices.bytecode(NOT_UTF_8[what])
    blob = named_devices.with_bytecode(module)
    for use in (
        lambda: _native.check_bytecode(module),
        lambda: jaxexp.deserialize(blob, policy=jaxexp.Policy(max_devices=1)),
        lambda: jaxexp.deserialize(blob).serialize(locations="names"),
    ):
        with pytest.raises(jaxexp.errors.DeserializationError, match="a name that is not UTF-8"):
            use()
    values = named_devices.module(argument=r'jax.x = "\FF", mhlo.sharding = "\FF"')  # which may be anything
    _native.check_bytecode(named_devices.bytecode(values))


ATTRIBUTES = {
    "batch_norm_training_v1": "epsilon feature_index",
    "composite_v1": "composite_attributes decomposition name version",
    "fft_v1": "fft_length fft_type",
    "reduce_window_v1": "base_dilations padding window_dilations window_dimensions window_strides",
    "sort_v1": "dimension is_stable",
}


@each("operation", ATTRIBUTES)
def test_attributes_of_other_operations(operation: str) -> None:
    """jaxlib's parser converts them as what their operation should have."""
    names = ATTRIBUTES[operation].split()
    strings, transpose = [entry(14, 2 + i) for i in range(len(names))], entry(16, 0)
    pairs = b"".join(number(i) + number(len(names)) for i in range(len(names)))
    module = mlir_bytes.module(
        ["vhlo", operation, *names],
        [(0, [1])],
        [*strings, transpose, entry(6, len(names), pairs)],
        number(2) + number(0) + bytes([1]) + number(0) + number(len(names) + 1),
    )
    refused(module, f"operation {operation} with attributes of another one")


def test_a_function_of_another_type() -> None:
    for of_type, what in ((entry(FUNCTION, 0, 0), "regions"), (tensor(3), "attributes")):
        places = [part for i, value in enumerate([6, 7, 6, 1, 1]) for part in (1 + i, value)]
        function = bytecode(
            [*[entry(14, 3 + i) for i in range(5)], entry(ARRAY, 0), entry(17, 1), entry(6, 5, *places)],
            [entry(FLOAT32), of_type],
            numbers(2, 1) + bytes([16]) + numbers(0, 2, 1, 0, 2, 0) + bytes([1]) + numbers(0, 8),
            kind=(1, b"func_v1"),
            names=(b"arg_attrs", b"function_type", b"res_attrs", b"sym_name", b"sym_visibility"),
        )
        refused(function, f"operation func_v1 with {what} of another one")


def test_properties_of_operations_that_their_writer_did_not_know() -> None:
    """They are an attribute, which may have anything, though jaxlib knows the operation."""
    code = numbers(2, 0) + bytes([64]) + numbers(0, 0)
    module = mlir_bytes.module(["vhlo", "reverse_v1"], [(0, [1])], [entry(6, 0)], code)
    refused(module, "found properties")


def test_accuracies() -> None:
    mode, whole, without_mode = entry(19, 0), entry(20, 0, 0, 0, 2), entry(20, 0, 0, 0, 1)
    for accuracy, what in (
        (4, "operands or results"),
        (2, "attributes"),  # a mode instead
        (3, "attributes"),  # no mode inside
    ):
        sine = bytecode(
            [entry(14, 3), mode, without_mode, whole, entry(6, 1, 1, accuracy)],
            code=numbers(2, 0) + bytes([1]) + numbers(0, 5),
            kind=(1, b"sine_v2"),
            names=(b"result_accuracy",),
        )
        refused(sine, f"operation sine_v2 with {what} of another one")


def test_a_constant_of_other_elements() -> None:
    """Dimensions are 64-bit integers, and jaxlib's parser reads others as such."""
    for kind, size, what in (
        (14, 8, "operands or results"),
        (0, 1, "attributes"),  # truth values
        (5, 8, "attributes"),  # 64-bit floats
        (13, 4, "attributes"),  # 32-bit integers
    ):
        reverse = bytecode(
            [entry(14, 3), entry(TENSOR_DATA, 1, size, bytes(size)), entry(6, 1, 1, 2)],
            [entry(kind), tensor(1)],
            numbers(2, 0) + bytes([1]) + numbers(0, 3),
            kind=(1, b"reverse_v1"),
            names=(b"dimensions",),
        )
        refused(reverse, f"operation reverse_v1 with {what} of another")


DAMAGE = """
import json, random, sys
import jaxexp
from jaxexp import _jax
from jaxexp._kernel.module import mlir

parsed = refused = 0
with _jax.make_ir_context() as context:
    for line in open({!r}):
        try:
            mlir.parse(bytes.fromhex(line), context)
            parsed += 1
        except jaxexp.errors.DeserializationError:
            refused += 1
print(refused, parsed)
"""


@pytest.mark.processes(reason="damage that is not noticed may end the process")
def test_damage_never_crashes(tmp_path, subprocess_env) -> None:
    lines = []
    for name, whole in modules("jax-*/*.bin").items():
        source = random.Random(name)  # so that other modules do not change what happens to this one
        for _ in range(3):
            data = bytearray(whole)
            at = source.randrange(len(data))
            if source.random() < 0.6:
                data[at] ^= 1 << source.randrange(8)
            else:
                data[at : at + 8] = source.randbytes(len(data[at : at + 8]))
            lines.append(data.hex())
    (tmp_path / "damaged").write_text("\n".join(lines))
    done = in_forks.run({"damage": DAMAGE.format(str(tmp_path / "damaged"))}, subprocess_env())
    status, out, err = done["damage"]
    assert status == 0, err[-2000:]
    refused, parsed = map(int, out.split())
    assert refused > 150
    assert parsed > 50


ONE_MESH = "{0} func.func public @main(%x: tensor<8xf32> {{{1}}}) -> tensor<8xf32> {{ return %x : tensor<8xf32> }}"


@each("form", ["sdy.mesh @mesh = <[{}]>", "sdy.sharding = #sdy.sharding<mesh<[{}]>, [{{}}]>"])
def test_the_most_devices_of_a_mesh(form: str) -> None:
    """XLA takes a mesh for one of 4 devices if its sizes are that modulo 2**64, and divides by 0 if they are 0."""

    def module(x: int, y: int) -> bytes:
        mesh = form.format(f'"x"={x}, "y"={y}')
        return serialized(ONE_MESH.format(mesh, "") if "@mesh" in mesh else ONE_MESH.format("", mesh))

    _native.check_bytecode(module(1024, 1024))
    part = '#sdy.sharding<mesh<["x"=8]>, [{"x":(4611686018427387905)4}]>'  # 4 modulo 2**64
    sizes = [(2048, 1024), (1 << 32, 1 << 32), ((1 << 62) + 1, 4), (4, (1 << 62) + 1), (1 << 21, 1)]
    for bad in (serialized(ONE_MESH.format("", f"sdy.sharding = {part}")), *(module(*size) for size in sizes)):
        refused(bad, r"found a (part of a )?mesh of .* devices")


def test_cumulative_sums_for_other_platforms() -> None:
    """For GPUs, JAX 0.12 writes a scan as a composite, with a builtin array among its attributes."""
    exported = jaxexp.export(jax.jit(jnp.cumsum), platforms=("cpu", "cuda"))(arr(6))
    loaded = jaxexp.deserialize(exported.serialize(vjp_order=1), policy=jaxexp.Policy())
    assert loaded.call(jnp.ones(6)).tolist() == [1, 2, 3, 4, 5, 6]
    assert jax.grad(lambda x: loaded.call(x).sum())(jnp.ones(6)).tolist() == [6, 5, 4, 3, 2, 1]

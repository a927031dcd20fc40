"""Operations with other values, regions or numbers of dimensions than they have: jaxlib's verifiers crash on some."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import jaxexp
from jaxexp import _native
from jaxexp._kernel.module import mlir
from jaxexp.errors import DeserializationError
from kit import other_modules, vhlo
from kit.compare import assert_same_values
from kit.corpus import arr, mesh
from kit.each import each

pytestmark = pytest.mark.jax


def refused(module: bytes, match: str) -> None:
    with pytest.raises(DeserializationError, match=match):
        _native.check_bytecode(module)


FLOAT, TRUTH, FOUR = (f"!vhlo.tensor_v1<{of}>" for of in ("!vhlo.f32_v1", "!vhlo.bool_v1", "4x!vhlo.f32_v1"))

FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "while": lambda x: jax.lax.while_loop(lambda s: s[0] < 3.0, lambda s: (s[0] + 1.0, s[1] * 2.0), (0.0, x)),
    "sort": lambda x: jax.lax.sort((x, x), num_keys=1),
    "case": lambda x: jax.lax.cond(x[0] > 0, lambda x: -x, lambda x: x + 1, x),
    "reduce": lambda x: x.sum(0),
    "convolution": lambda x: jax.lax.conv(x.reshape(1, 1, 4), jnp.ones((1, 1, 2)), (1,), "SAME"),
    "dot": lambda x: x.reshape(2, 2) @ x.reshape(2, 2),
    "gather": lambda x: x.reshape(2, 2)[jnp.array([1, 0, 1])],
    "scatter": lambda x: x.at[jnp.array([1, 0, 1])].add(1.0),
    "window": lambda x: jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (2,), (1,), "VALID"),
    "transpose": lambda x: x.reshape(2, 2).T,
    "concatenate": lambda x: jax.lax.concatenate([x, x], 0),
    "slice": lambda x: x[1:3],
    "pad": lambda x: jax.lax.pad(x, 0.0, ((1, 1, 1),)),
    "iota": lambda x: x.reshape(2, 2) + jax.lax.broadcasted_iota(x.dtype, (2, 2), 1),
    "broadcast": lambda x: jnp.broadcast_to(x, (3, 4)),
    "reverse": lambda x: x[::-1],
    "fft": jnp.fft.fft,
    "fft2": lambda x: jnp.fft.fft2(x.reshape(2, 2)),
    "rfft": jnp.fft.rfft,
    "irfft": lambda x: jnp.fft.irfft(x + 0j),
}

TOKEN = r'%token = "vhlo.create_token_v1"() : () -> !vhlo.token_v1 "vhlo.return_v1"(%token) : (!vhlo.token_v1) -> ()'
PREDICATE = rf'"vhlo.return_v1"\(%\w+\) : \({re.escape(TRUTH)}\) -> \(\)'
RETURN = r'"vhlo.return_v1"\(%\w+\) : \({}\) -> \(\)'
INTEGERS = "#vhlo.tensor_v1<dense<{}> : tensor<{}xi64>>"
ALL_TO_ALL = f"""%there = "vhlo.all_to_all_v2"(%arg0) <{{channel_id = #vhlo.integer_v1<0 : i64>,
  concat_dimension = #vhlo.integer_v1<0 : i64>, replica_groups = #vhlo.tensor_v1<dense<> : tensor<0x2xi64>>,
  split_count = #vhlo.integer_v1<2 : i64>, split_dimension = #vhlo.integer_v1<0 : i64>}}> : ({FOUR}) -> {FOUR}"""


def dimension(name: str, number: int) -> tuple[str, str]:
    return rf"\b{name} = #vhlo.integer_v1<\d+ :", f"{name} = #vhlo.integer_v1<{number} :"


def dimensions(name: str, numbers: str, shape: str) -> tuple[str, str]:
    return rf"\b{name} = #vhlo.tensor_v1<dense<[^>]*> : tensor<\w+>>", f"{name} = {INTEGERS.format(numbers, shape)}"


REGIONS, VALUES, NUMBERS = "regions of another one", "operands or results of another one", "numbers of dimensions"
# What is exported, what is put in the place of what, and what the error says.
CHANGES = {
    "a condition that is a token": ("while", [(PREDICATE, TOKEN)], f"while_v1 with {REGIONS}"),
    "a condition that is a float": (
        "while", [(PREDICATE, f'"vhlo.return_v1"(%arg3) : ({FLOAT}) -> ()')], f"while_v1 with {REGIONS}"
    ),
    "a loop that returns less": (
        "while",
        [(r'"vhlo.return_v1"\((%\w+), %\w+\) : \(([^,]*), [^,]*\) -> \(\)', r'"vhlo.return_v1"(\1) : (\2) -> ()')],
        f"while_v1 with {REGIONS}",
    ),
    "a comparator that is a token": ("sort", [(PREDICATE, TOKEN)], "a sort that compares by more than numbers"),
    "a branch that returns a token": ("case", [(RETURN.format(re.escape(FOUR)), TOKEN)], f"case_v1 with {REGIONS}"),
    "a reduction of one argument": (
        "reduce", [(r"(\^bb0\(%arg1: [^,]*), %arg2: [^)]*\)", r"\1)"), (r"\(%arg1, %arg2\)", "(%arg1, %arg1)")],
        f"reduce_v1 with {REGIONS}",
    ),
    "a reduction that returns nothing": (
        "reduce", [(RETURN.format(re.escape(FLOAT)), '"vhlo.return_v1"() : () -> ()')], f"reduce_v1 with {REGIONS}"
    ),
    "nothing to concatenate": (
        "concatenate", [(r"\(%arg0, %arg0\)", "()"), (rf": \({re.escape(FOUR)}, {re.escape(FOUR)}\) ->", ": () ->")],
        f"concatenate_v1 with {VALUES}",
    ),
    "a token to reverse": (
        "reverse",
        [
            (r'(%\w+) = "vhlo.reverse', r'%token = "vhlo.create_token_v1"() : () -> !vhlo.token_v1 \1 = "vhlo.reverse'),
            (r'("vhlo.reverse_v1")\(%arg0\)(.*) : \([^)]*\)', r"\1(%token)\2 : (!vhlo.token_v1)"),
        ],
        f"reverse_v1 with {VALUES}",
    ),
    "a dot with a number for a precision": (
        "dot",
        [(r'"vhlo.dot_general_v2"(.*) <\{.*\}>', r'"vhlo.dot_v1"\1 <{precision_config = #vhlo.integer_v1<1 : i64>}>')],
        "dot_v1 with attributes of another one",
    ),
    "groups of no devices": ("reverse", [(r'(%\w+ = "vhlo.reverse)', rf"{ALL_TO_ALL} \1")], NUMBERS),
    "a dimension of an image out of range": ("convolution", [dimension("input_batch_dimension", 40)], NUMBERS),
    "a dimension of an image below 0": ("convolution", [dimension("output_feature_dimension", -1)], NUMBERS),
    "a dimension of an image twice": ("convolution", [dimension("input_batch_dimension", 1)], NUMBERS),
    "a dimension of a kernel twice": ("convolution", [dimensions("kernel_spatial_dimensions", "0", "1")], NUMBERS),
    "too few dimensions of an image": ("convolution", [dimensions("input_spatial_dimensions", "", "0")], NUMBERS),
    "too many strides": ("convolution", [dimensions("window_strides", "1", "2")], NUMBERS),
    "too little padding": ("convolution", [dimensions("padding", "0", "1x1")], NUMBERS),
    "a contraction out of range": ("dot", [dimensions("lhs_contracting_dimensions", "2", "1")], NUMBERS),
    "a contraction of a batch": ("dot", [dimensions("rhs_batching_dimensions", "0", "1")], NUMBERS),
    "indices out of range": ("gather", [dimension("index_vector_dim", 3)], NUMBERS),
    "a slice out of range": ("gather", [dimensions("collapsed_slice_dims", "7", "1")], NUMBERS),
    "an offset out of range": ("gather", [dimensions("offset_dims", "2", "1")], NUMBERS),
    "an operand's dimension twice": ("gather", [dimensions("start_index_map", "0", "2")], NUMBERS),
    "too many sizes of slices": ("gather", [dimensions("slice_sizes", "1", "3")], NUMBERS),
    "a scattered dimension below 0": ("scatter", [dimensions("scatter_dims_to_operand_dims", "-1", "1")], NUMBERS),
    "an update out of range": ("scatter", [dimensions("update_window_dims", "1", "1")], NUMBERS),
    "a window of two dimensions": ("window", [dimensions("window_dimensions", "2", "2")], NUMBERS),
    "a reduced dimension out of range": ("reduce", [dimensions("dimensions", "1", "1")], NUMBERS),
    "a permutation that repeats": ("transpose", [dimensions("permutation", "1", "2")], NUMBERS),
    "a concatenation out of range": ("concatenate", [dimension("dimension", 1)], NUMBERS),
    "an order out of range": ("sort", [dimension("dimension", 1)], NUMBERS),
    "an order below its range": ("sort", [dimension("dimension", -2)], NUMBERS),
    "too many limits": ("slice", [dimensions("limit_indices", "3", "2")], NUMBERS),
    "too much padding": ("pad", [dimensions("interior_padding", "1", "2")], NUMBERS),
    "a count out of range": ("iota", [dimension("iota_dimension", 2)], NUMBERS),
    "a dimension of no result": ("while", [dimensions("broadcast_dimensions", "4", "1")], NUMBERS),
    "a broadcast without dimensions": ("broadcast", [dimensions("broadcast_dimensions", "", "0")], NUMBERS),
    "a broadcast to more dimensions": ("broadcast", [dimensions("broadcast_dimensions", "[0, 1]", "2")], NUMBERS),
    "an FFT of less than there is": ("fft", [dimensions("fft_length", "1", "1")], NUMBERS),
    "an FFT of more than there is": ("fft", [dimensions("fft_length", "8", "1")], NUMBERS),
    "an FFT without lengths": ("fft", [dimensions("fft_length", "", "0")], NUMBERS),
    "an FFT of another first length": ("fft2", [dimensions("fft_length", "[3, 2]", "2")], NUMBERS),
    "a real FFT of another length": ("rfft", [dimensions("fft_length", "3", "1")], NUMBERS),
    "an inverse of another length": ("irfft", [dimensions("fft_length", "4", "1")], NUMBERS),
}  # fmt: skip


@functools.cache
def text_of(name: str) -> str:
    text = vhlo.text_of(FUNCTIONS[name], arr(4))
    _native.check_bytecode(vhlo.bytecode(text))
    return text


@each("what", CHANGES)
def test_other_values_and_numbers(what: str) -> None:
    name, changes, message = CHANGES[what]
    text = text_of(name)
    for old, new in changes:
        text, count = re.subn(old, new, text, count=1)
        assert count == 1, text
    with pytest.raises(DeserializationError, match=message):
        mlir.parse(vhlo.bytecode(text), other_modules.context())


def test_lengths_of_an_fft_of_open_size() -> None:
    """Sizes that only a call knows: those in front of the lengths may be open, and half of a spectrum; no others."""
    open_, text = "?x!vhlo.complex_v1<!vhlo.f32_v1>", text_of("fft2")
    batch = jax.jit(lambda x: jnp.fft.rfft2(jnp.fft.irfft2(x, (4, 5))))
    spec = jax.ShapeDtypeStruct(jaxexp.symbolic_shape("b, 4, 3"), jnp.complex64)
    exported = jaxexp.deserialize(jaxexp.export(batch)(spec).serialize())
    x = jnp.fft.rfft2(arr(7, 4, 5))
    assert_same_values(exported.call(x), batch(x))
    half = jax.jit(lambda x: jax.lax.fft(x, jax.lax.FftType.IRFFT, (5,)))
    spec = jax.ShapeDtypeStruct(jaxexp.symbolic_shape("b, h"), jnp.complex64)
    exported = jaxexp.deserialize(jaxexp.export(half)(spec).serialize())
    assert_same_values(exported.call(x[0]), half(x[0]))
    with pytest.raises(ValueError, match="IRFFT requires innermost dimension"):
        exported.call(x[0, :, :2])
    assert "2x2x!vhlo.complex_v1<!vhlo.f32_v1>" in text
    changed = text.replace("2x2x!vhlo.complex_v1<!vhlo.f32_v1>", f"2x{open_}")
    refused(vhlo.bytecode(changed), NUMBERS)


def test_what_may_be_missing() -> None:
    """A loop without values, a branch without results, the last dimension for a sort."""
    text = text_of("sort")
    old, new = dimension("dimension", -1)
    _native.check_bytecode(vhlo.bytecode(re.sub(old, new, text)))
    empty = f"""%truth = "vhlo.constant_v1"() <{{value = #vhlo.tensor_v1<dense<true> : tensor<i1>>}}> : () -> {TRUTH}
      "vhlo.while_v1"() ({{ "vhlo.return_v1"(%truth) : ({TRUTH}) -> () }}, {{ "vhlo.return_v1"() : () -> () }})
        : () -> ()
      "vhlo.if_v1"(%truth) ({{ "vhlo.return_v1"() : () -> () }}, {{ "vhlo.return_v1"() : () -> () }}) : ({TRUTH}) -> ()
      %0"""
    text = re.sub(r"%0\b", empty, text_of("reverse"), count=1)
    _native.check_bytecode(vhlo.bytecode(text))


CAST = '%r = "builtin.unrealized_conversion_cast"({}) : ({}) -> !vhlo.tensor_v1<!vhlo.f32_v1>'
THERE_AND_BACK = f"""%there = "builtin.unrealized_conversion_cast"(%arg0) : ({FOUR}) -> tensor<OTHER>
  %back = "builtin.unrealized_conversion_cast"(%there) : (tensor<OTHER>) -> {FOUR}"""
# Of nothing, of two values; to another size, rank or element.
WRONG_CASTS = [CAST.format("", ""), CAST.format("%arg0, %arg0", f"{FOUR}, {FOUR}")]
OTHERS = ("400xf32", "?xf32", "4x1xf32", "4xi32", "4xui32", "4xcomplex<f32>")
WRONG_CASTS += [THERE_AND_BACK.replace("OTHER", other) for other in OTHERS]


def test_casts_change_nothing() -> None:
    """They are between a type of VHLO and the same builtin one. jaxlib's passes crash at others."""

    def check(casts: str) -> None:
        _native.check_bytecode(vhlo.bytecode(re.sub(r"%0\b", f"{casts}\n%0", text_of("reverse"), count=1)))

    check(THERE_AND_BACK.replace("OTHER", "4xf32"))
    for wrong in WRONG_CASTS:
        with pytest.raises(DeserializationError, match="unrealized_conversion_cast with operands or results"):
            check(wrong)


@each("dtype", ["bool", "int4", "uint8", "int64", "bfloat16", "float64", "complex64"])
def test_casts_of_sharded_functions(dtype: str) -> None:
    """What Shardy says of an array needs builtin types."""
    devices = mesh((2,), ("x",))
    sharding = jax.sharding.NamedSharding(devices, jax.sharding.PartitionSpec("x"))
    with jax.enable_x64(True):
        x = jax.ShapeDtypeStruct((4, 3), dtype, sharding=sharding)
        exported = jaxexp.export(jax.jit(lambda x: jax.lax.with_sharding_constraint(x.T.T, sharding)))(x)
    assert "sdy.sharding_constraint" in exported.mlir_module()
    _native.check_bytecode(exported.mlir_module_serialized)


def test_operations_of_other_dialects() -> None:
    """Nothing is known about their values, and no export has them."""
    for text, message in (
        ("module { %0 = sdy.constant dense<1.0> : tensor<f32> }", "where it cannot be"),
        ("module { func.func @main() { return } }", "which no export has"),
        ("module { %0 = arith.constant 1 : i32 }", "which no export has"),
        ("module { llvm.func @puts(!llvm.ptr) -> i32 }", "which no export has"),
    ):
        refused(vhlo.bytecode(text), message)


FLOAT_MODULE = """module @m {{
  func.func public @main(%x: tensor<f32>) -> tensor<f32> {{ {0}\n return %r : tensor<f32> }}
  {1}
}}"""
CALL = "%r = call @f1(%x) : (tensor<f32>) -> tensor<f32>"


def chain(length: int, last: str = "%r = stablehlo.sine %x : tensor<f32>", around: str = "{0}") -> str:
    """Functions that call one another, and what the last one does."""
    inner = "%s" if around != "{0}" else "%r"
    bodies = [around.format(CALL.replace("@f1", f"@f{i + 1}").replace("%r", inner)) for i in range(1, length)]
    return FLOAT_MODULE.format(
        CALL,
        "\n".join(
            f"func.func private @f{i}(%x: tensor<f32>) -> tensor<f32> {{ {body}\n return %r : tensor<f32> }}"
            for i, body in enumerate([*bodies, last], 1)
        ),
    )


IN_LOOP = """%r = "stablehlo.while"(%x) ({{
      ^bb0(%a: tensor<f32>): %p = stablehlo.constant dense<false> : tensor<i1> stablehlo.return %p : tensor<i1>
    }}, {{
      ^bb0(%b: tensor<f32>): {0} stablehlo.return %s : tensor<f32>
    }}) : (tensor<f32>) -> tensor<f32>"""
CALLS = {
    "itself": chain(1, CALL),
    "itself, by others": chain(3, CALL),
    "itself, in a composite": chain(1, '%r = stablehlo.composite "my.one" %x {decomposition = @f1} : (tensor<f32>) -> '
                                       "tensor<f32>"),
    "itself, in a custom call": chain(1, "%r = stablehlo.custom_call @mine(%x) {called_computations = [@f1]} : "
                                         "(tensor<f32>) -> tensor<f32>"),
    "too deeply": chain(200),
    "too deeply, in loops": chain(100, around=IN_LOOP),
}  # fmt: skip


@each("how", CALLS)
def test_functions_that_call_one_another(how: str) -> None:
    message = "functions that call one another too deeply" if "deeply" in how else "a function that calls itself"
    refused(other_modules.serialized(CALLS[how]), message)
    _native.check_bytecode(other_modules.serialized(chain(150)))


@each("target", ["Sharding", "SPMDFullToShardShape", "SPMDShardToFullShape", "annotate_device_placement"])
def test_hints_about_no_array_or_several(target: str) -> None:
    """XLA ends the process at these. Only where sizes are open may these stand behind the array."""
    for operands in ("() : ()", "(%x, %x) : (tensor<f32>, tensor<f32>)"):
        call = f"%r = stablehlo.custom_call @{target}{operands} -> tensor<f32>"
        if "%x" in operands and target == "annotate_device_placement":
            return
        refused(other_modules.serialized(FLOAT_MODULE.format(call, "")), f"a custom call {target} with operands")
    sized = f"""%i = stablehlo.constant dense<4> : tensor<1xi64>
      %y = "stablehlo.dynamic_iota"(%i) <{{iota_dimension = 0 : i64}}> : (tensor<1xi64>) -> tensor<?xf32>
      %z = stablehlo.custom_call @{target}(%y, %i) {{indices_of_shape_operands = dense<1> : tensor<1xi64>}}
        : (tensor<?xf32>, tensor<1xi64>) -> tensor<?xf32>
      %r = stablehlo.sine %x : tensor<f32>"""
    _native.check_bytecode(other_modules.serialized(FLOAT_MODULE.format(sized, "")))


REPLACED = {
    "constant_v1": ("value", "#vhlo.integer_v1<3 : i64>"),
    "reverse_v1": ("dimensions", "#vhlo.integer_v1<3 : i64>"),
    r"custom_call_v\d": ("call_target_name", '#vhlo.string_v1<"another">'),
}


def constant_call_and_reverse(x: Any) -> Any:
    return jax.lax.rev(jax.lax.linalg.cholesky(x.reshape(2, 2)) + 1.5, (0,))


@each("operation", REPLACED)
def test_attributes_over_properties(operation: str) -> None:
    """MLIR would take the attribute."""
    name, value = REPLACED[operation]
    same_length = name[:-1] + "#"
    text = vhlo.text_of(constant_call_and_reverse, arr(4))
    pattern = rf'("vhlo.{operation}"\([^)]*\) <{{.*?}}>)(?: {{(.*?)}})?(?= :)'
    text, count = re.subn(
        pattern,
        lambda found: f'{found[1]} {{{f"{found[2]}, " if found[2] else ""}"{same_length}" = {value}}}',
        text,
        count=1,
    )
    assert count == 1, text
    module = vhlo.bytecode(text)
    _native.check_bytecode(module)
    refused(module.replace(same_length.encode(), name.encode()), f"an operation {operation} with an attribute twice")


def test_values_of_shared_tuples() -> None:
    """Each type has the one before it twice: a value of the last one has 2**16 parts."""
    names = "\n".join(f"!t{i + 1} = tuple<!t{i}, !t{i}>" for i in range(16))
    calls = "\n".join(
        f"%y{i} = stablehlo.custom_call @mine(%x) {{has_side_effect = true}} : (tensor<f32>) -> !t16" for i in range(8)
    )
    text = FLOAT_MODULE.format(f"{calls} %r = stablehlo.sine %x : tensor<f32>", "")
    refused(
        other_modules.serialized(f"!t0 = tuple<tensor<f32>>\n{names}\n{text}"), "share large attributes over and over"
    )


@each("taken, given", [("64xi8", "64x8xi1"), ("64x8xi1", "64xi8")])
def test_bits_are_no_truth_values(taken: str, given: str) -> None:
    """JAX casts none, and a compiler of a plugin crashes at them."""
    text = f"""func.func @main(%x: tensor<{taken}>) -> tensor<{given}> {{
        %0 = stablehlo.bitcast_convert %x : (tensor<{taken}>) -> tensor<{given}>
        return %0 : tensor<{given}> }}"""
    refused(other_modules.serialized(text), "bitcast_convert_v1 with operands or results of another one")

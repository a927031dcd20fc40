"""Operations of StableHLO, one of each kind with types as JAX would write them."""

from __future__ import annotations

import dataclasses
import re
import string
from collections.abc import Iterator

_ELEMENT = re.compile(r"(?:\d+x)*(.*)")


@dataclasses.dataclass(frozen=True)
class Operation:
    """An operation, with the types of its operands and results as in "9x7xf32"."""

    name: str
    operands: tuple[str, ...]
    results: tuple[str, ...]
    attributes: str = ""
    regions: str = ""

    def module(self) -> str:
        """The text of a module whose function does this alone."""
        taken, given = (", ".join(f"tensor<{type_}>" for type_ in types) for types in (self.operands, self.results))
        arguments = ", ".join(f"%a{i}: tensor<{type_}>" for i, type_ in enumerate(self.operands))
        values = ", ".join(f"%a{i}" for i in range(len(self.operands)))
        properties = f"<{{{self.attributes}}}>" if self.attributes else ""
        results = ", ".join(f"%r#{i}" for i in range(len(self.results)))
        return f"""module @f {{ func.func public @main({arguments}) -> ({given}) {{
          %r:{len(self.results)} = "{self.name}"({values}) {properties} {self.regions} : ({taken}) -> ({given})
          return {results} : {given} }} }}"""

    def changes(self) -> Iterator[Operation]:
        """The same with other types: of one value, of all with the same elements, in the regions."""
        for group in ("operands", "results"):
            types = getattr(self, group)
            for i, type_ in enumerate(types):
                for other in _other_types(type_):
                    yield dataclasses.replace(self, **{group: (*types[:i], other, *types[i + 1 :])})
        for group in ("operands", "results"):
            for others in zip(*map(_other_types, getattr(self, group)), strict=False):
                yield dataclasses.replace(self, **{group: others})
        for was in sorted({element_of(type_) for type_ in (*self.operands, *self.results)}):
            for element in _ELEMENTS:
                for groups in (("operands",), ("results",), ("operands", "results")):
                    for regions in {self.regions, self.regions.replace(f"tensor<{was}>", f"tensor<{element}>")}:
                        changed = {
                            group: tuple(_with(t, was, element) for t in getattr(self, group)) for group in groups
                        }
                        yield dataclasses.replace(self, regions=regions, **changed)


_ELEMENTS = ("f64", "f16", "bf16", "i32", "ui32", "i64", "ui64", "i8", "i4", "i1", "complex<f32>")


def element_of(type_: str) -> str:
    """Such as "f32" of "9x7xf32"."""
    found = _ELEMENT.fullmatch(type_)
    assert found
    return found[1]


def shape_of(type_: str) -> tuple[int, ...]:
    """Such as (9, 7) of "9x7xf32"."""
    return tuple(map(int, type_.removesuffix(element_of(type_)).split("x")[:-1]))


def _with(type_: str, was: str, element: str) -> str:
    return type_.removesuffix(was) + element if element_of(type_) == was else type_


def _other_types(type_: str) -> Iterator[str]:
    element, shape = element_of(type_), shape_of(type_)
    shapes = [
        (*shape[:i], size, *shape[i + 1 :]) for i in range(len(shape)) for size in (shape[i] + 1, 2 * shape[i], 1, 0)
    ]
    shapes += [(*shape, 1), (*shape, 4), (1, *shape), shape[:-1], shape[1:], shape[::-1]]
    for other in shapes:
        if other != shape:
            yield "".join(f"{size}x" for size in other) + element
    for other in _ELEMENTS:
        if other != element:
            yield type_.removesuffix(element) + other


def _region(operation: str, *elements: str) -> str:
    """A region that combines its first arguments, and returns the second ones of all others."""
    arguments = [f"%{side}{i}: tensor<{element}>" for side in "xy" for i, element in enumerate(elements)]
    returned = ["%s", *(f"%y{i}" for i in range(1, len(elements)))]
    types = ", ".join(f"tensor<{element}>" for element in elements)
    return f"""({{ ^bb0({", ".join(arguments)}): %s = stablehlo.{operation} %x0, %y0 : tensor<{elements[0]}>
      stablehlo.return {", ".join(returned)} : {types} }})"""


def _comparison(direction: str, *elements: str) -> str:
    arguments = ", ".join(f"%x{i}: tensor<{one}>, %y{i}: tensor<{one}>" for i, one in enumerate(elements))
    return f"""({{ ^bb0({arguments}):
      %s = stablehlo.compare {direction}, %x0, %y0 : (tensor<{elements[0]}>, tensor<{elements[0]}>) -> tensor<i1>
      stablehlo.return %s : tensor<i1> }})"""


def _elementwise() -> Iterator[Operation]:
    for names, element in (
        ("abs cbrt ceil cosine exponential exponential_minus_one floor log log_plus_one logistic negate "
         "optimization_barrier round_nearest_afz round_nearest_even rsqrt sign sine sqrt tan tanh", "f32"),
        ("count_leading_zeros not popcnt negate sign abs", "i32"),
    ):  # fmt: skip
        for name in names.split():
            yield Operation(f"stablehlo.{name}", (f"9x7x{element}",), (f"9x7x{element}",))
    for names, element in (
        ("add atan2 divide maximum minimum multiply power remainder subtract", "f32"),
        ("add and divide maximum minimum multiply or power remainder shift_left shift_right_arithmetic "
         "shift_right_logical subtract xor", "i32"),
    ):  # fmt: skip
        for name in names.split():
            yield Operation(f"stablehlo.{name}", (f"9x7x{element}",) * 2, (f"9x7x{element}",))


_ATTRIBUTES = {
    "permuted": "source_target_pairs = dense<[[0, 0]]> : tensor<1x2xi64>",
    "group": "replica_groups = dense<0> : tensor<1x1xi64>",
    "window": "window_dimensions = array<i64: 2, 1>, window_strides = array<i64: 2, 1>",
    "scattered": """scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1], inserted_window_dims = [0],
      scatter_dims_to_operand_dims = [0], index_vector_dim = 1>""",
    "dotted": """dot_dimension_numbers = #stablehlo.dot<lhs_batching_dimensions = [0], rhs_batching_dimensions = [0],
      lhs_contracting_dimensions = [2], rhs_contracting_dimensions = [2]>""",
    "normalized": "epsilon = 0.001 : f32, feature_index = 2 : i64",
    "convolved": """window_strides = array<i64: 1, 2>, padding = dense<[[1, 1], [0, 0]]> : tensor<2x2xi64>,
      dimension_numbers = #stablehlo.conv<[b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f]>, feature_group_count =
      1 : i64, batch_group_count = 1 : i64""",
    "solved": """left_side = true, lower = true, unit_diagonal = false, transpose_a = #stablehlo<transpose
      NO_TRANSPOSE>""",
    "gathered": """dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map
      = [0], index_vector_dim = 1>, slice_sizes = array<i64: 1, 7>""",
    "padded": """edge_padding_low = array<i64: 1, -1>, edge_padding_high = array<i64: 4, 2>, interior_padding =
      array<i64: 1, 0>""",
    "sliced": "start_indices = array<i64: 1, 0>, limit_indices = array<i64: 7, 5>, strides = array<i64: 2, 1>",
}
_BRANCHES = """({ %x = stablehlo.constant dense<1.0> : tensor<9x7xf32> stablehlo.return %x : tensor<9x7xf32> },
  { %x = stablehlo.constant dense<2.0> : tensor<9x7xf32> stablehlo.return %x : tensor<9x7xf32> })"""
_LOOP = """({ ^bb0(%i: tensor<i32>, %x: tensor<9x7xf32>):
    %n = stablehlo.constant dense<3> : tensor<i32>
    %s = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %s : tensor<i1> },
  { ^bb0(%i: tensor<i32>, %x: tensor<9x7xf32>): stablehlo.return %i, %x : tensor<i32>, tensor<9x7xf32> })"""

_REGIONS = {
    "": "",
    "add f32": _region("add", "f32"),
    "add f32 i32": _region("add", "f32", "i32"),
    "less f32 i32": _comparison("LT", "f32", "i32"),
    "choose f32": f"({_comparison('GE', 'f32')[1:-1]}, {_region('add', 'f32')[1:-1]})",
    "branches": _BRANCHES,
    "loop": _LOOP,
}
# Name, operands, results, region, and attributes, with $word for what has that name above.
_TABLE = """
all_gather | 9x7xf32 | 9x7xf32 |  | all_gather_dim = 1 : i64, $group
all_gather | 9x7xf32 5x3xf32 | 9x7xf32 5x3xf32 |  | all_gather_dim = 1 : i64, $group
all_reduce | 9x7xf32 5xf32 | 9x7xf32 5xf32 | add f32 | $group
all_to_all | 9x7xf32 | 9x7xf32 |  | split_dimension = 1 : i64, concat_dimension = 0 : i64, split_count = 1 : i64, $group
batch_norm_grad | 4x9x7xf32 7xf32 7xf32 7xf32 4x9x7xf32 | 4x9x7xf32 7xf32 7xf32 |  | $normalized
batch_norm_inference | 4x9x7xf32 7xf32 7xf32 7xf32 7xf32 | 4x9x7xf32 |  | $normalized
batch_norm_training | 4x9x7xf32 7xf32 7xf32 | 4x9x7xf32 7xf32 7xf32 |  | $normalized
bitcast_convert | 9x7xf32 | 9x7xi32 |  |
bitcast_convert | 9x7xf32 | 9x7x4xi8 |  |
bitcast_convert | 9x7x2xf32 | 9x7xf64 |  |
broadcast | 7xf32 | 9x7xf32 |  | broadcast_sizes = array<i64: 9>
broadcast_in_dim | 1x7xf32 | 9x7xf32 |  | broadcast_dimensions = array<i64: 0, 1>
case | i32 | 9x7xf32 | branches |
cholesky | 3x5x5xf32 | 3x5x5xf32 |  | lower = true
clamp | f32 9x7xf32 f32 | 9x7xf32 |  |
collective_broadcast | 9x7xf32 | 9x7xf32 |  | $group
collective_permute | 9x7xf32 | 9x7xf32 |  | $permuted
compare | 9x7xf32 9x7xf32 | 9x7xi1 |  | comparison_direction = #stablehlo<comparison_direction LT>
complex | 9x7xf32 9x7xf32 | 9x7xcomplex<f32> |  |
concatenate | 9x7xf32 9x3xf32 | 9x10xf32 |  | dimension = 1 : i64
constant |  | 9x7xf32 |  | value = dense<1.0> : tensor<9x7xf32>
convert | 9x7xf32 | 9x7xi32 |  |
convolution | 2x9x7x4xf32 3x2x4x6xf32 | 2x9x3x6xf32 |  | $convolved
dot | 9x7xf32 7x5xf32 | 9x5xf32 |  |
dot_general | 3x9x7xf32 3x5x7xf32 | 3x9x5xf32 |  | $dotted
dynamic_slice | 9x7xf32 i32 i32 | 3x5xf32 |  | slice_sizes = array<i64: 3, 5>
dynamic_update_slice | 9x7xf32 3x5xf32 i32 i32 | 9x7xf32 |  |
fft | 4x16xcomplex<f32> | 4x16xcomplex<f32> |  | fft_type = #stablehlo<fft_type FFT>, fft_length = array<i64: 16>
fft | 4x16xf32 | 4x9xcomplex<f32> |  | fft_type = #stablehlo<fft_type RFFT>, fft_length = array<i64: 16>
fft | 4x9xcomplex<f32> | 4x16xf32 |  | fft_type = #stablehlo<fft_type IRFFT>, fft_length = array<i64: 16>
gather | 9x7xf32 4x1xi32 | 4x7xf32 |  | $gathered
get_dimension_size | 9x7xf32 | i32 |  | dimension = 1 : i64
if | i1 | 9x7xf32 | branches |
imag | 9x7xcomplex<f32> | 9x7xf32 |  |
iota |  | 9x7xi32 |  | iota_dimension = 1 : i64
is_finite | 9x7xf32 | 9x7xi1 |  |
map | 9x7xf32 9x7xf32 | 9x7xf32 | add f32 | dimensions = array<i64: 0, 1>
pad | 9x7xf32 f32 | 22x8xf32 |  | $padded
partition_id |  | ui32 |  |
real | 9x7xcomplex<f32> | 9x7xf32 |  |
reduce | 9x7xf32 f32 | 9xf32 | add f32 | dimensions = array<i64: 1>
reduce | 9x7xf32 9x7xi32 f32 i32 | 9xf32 9xi32 | add f32 i32 | dimensions = array<i64: 1>
reduce_precision | 9x7xf32 | 9x7xf32 |  | exponent_bits = 5 : i32, mantissa_bits = 10 : i32
reduce_scatter | 9x7xf32 | 9x7xf32 | add f32 | scatter_dimension = 1 : i64, $group
reduce_window | 9x7xf32 f32 | 4x7xf32 | add f32 | $window
reduce_window | 9x7xf32 9x7xi32 f32 i32 | 4x7xf32 4x7xi32 | add f32 i32 | $window
replica_id |  | ui32 |  |
reshape | 9x7xf32 | 63xf32 |  |
reverse | 9x7xf32 | 9x7xf32 |  | dimensions = array<i64: 0, 1>
rng | f32 f32 2xi64 | 9x7xf32 |  | rng_distribution = #stablehlo<rng_distribution UNIFORM>
rng_bit_generator | 2xui64 | 2xui64 9x7xui32 |  | rng_algorithm = #stablehlo<rng_algorithm THREE_FRY>
scatter | 9x7xf32 4x1xi32 4x7xf32 | 9x7xf32 | add f32 | $scattered
scatter | 9x7xf32 9x7xi32 4x1xi32 4x7xf32 4x7xi32 | 9x7xf32 9x7xi32 | add f32 i32 | $scattered
select | 9x7xi1 9x7xf32 9x7xf32 | 9x7xf32 |  |
select_and_scatter | 9x7xf32 4x7xf32 f32 | 9x7xf32 | choose f32 | $window
slice | 9x7xf32 | 3x5xf32 |  | $sliced
sort | 9x7xf32 9x7xi32 | 9x7xf32 9x7xi32 | less f32 i32 | dimension = 1 : i64, is_stable = true
transpose | 9x7x3xf32 | 3x9x7xf32 |  | permutation = array<i64: 2, 0, 1>
triangular_solve | 3x5x5xf32 3x5x2xf32 | 3x5x2xf32 |  | $solved
while | i32 9x7xf32 | i32 9x7xf32 | loop |
"""


def _row(line: str) -> Operation:
    name, operands, results, region, *attributes = (part.strip() for part in line.split("|"))
    said = string.Template(attributes[0] if attributes else "").substitute(_ATTRIBUTES)
    return Operation(f"stablehlo.{name}", tuple(operands.split()), tuple(results.split()), said, _REGIONS[region])


OPERATIONS = (*_elementwise(), *map(_row, _TABLE.strip().splitlines()))

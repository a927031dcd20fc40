"""Modules in which operations combine or compare single elements: in a reduction, a sort, and others with a region."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from kit.operations import OPERATIONS, Operation, element_of, shape_of

_ADD = """^bb0(%a: tensor<f32>, %b: tensor<f32>):
  %s = stablehlo.add %a, %b : tensor<f32>
  stablehlo.return %s : tensor<f32>"""
_COMPARE = _ADD.replace("add %a, %b : tensor<f32>", "compare GE, %a, %b : (tensor<f32>, tensor<f32>) -> tensor<i1>")
_COMPARE = _COMPARE.replace("return %s : tensor<f32>", "return %s : tensor<i1>")
_WINDOW = "<{window_dimensions = array<i64: 2, 1>, window_strides = array<i64: 2, 1>}>"
_SCATTERED = """<{scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1], inserted_window_dims = [0],
  scatter_dims_to_operand_dims = [0], index_vector_dim = 1>}>"""
_GROUP = "replica_groups = dense<0> : tensor<1x1xi64>"
_LOOP = """({ ^bb0(%i: tensor<i1>, %x: tensor<f32>): stablehlo.return %i : tensor<i1> },
  { ^bb0(%i: tensor<i1>, %x: tensor<f32>):
    %n = stablehlo.constant dense<false> : tensor<i1>
    stablehlo.return %n, %x : tensor<i1>, tensor<f32> })"""
_BRANCH = "{ %one = stablehlo.constant dense<1.0> : tensor<f32> stablehlo.return %one : tensor<f32> }"
_SUM = f"({{ {_ADD.replace('%a', '%y').replace('%b', '%z').replace('%s', '%w')} }})"
_CALLED = "func.func private @called(%given: tensor<f32>) -> tensor<f32> {{ {0} return {1} : tensor<f32> }}"


@dataclasses.dataclass(frozen=True)
class Holder:
    """An operation with a region: the types of its operands and of its result, and its text around a body."""

    operands: Sequence[str]
    result: str
    text: str
    compares: bool = False

    def module(self, body: Body) -> str:
        """A module whose function does this alone."""
        lines, value = list(body.lines), body.value
        if self.compares:
            lines.append(f"%last = stablehlo.compare LT, {value}, %b : (tensor<f32>, tensor<f32>) -> tensor<i1>")
        returned = "%last : tensor<i1>" if self.compares else f"{value} : tensor<f32>"
        region = "\n".join(["^bb0(%a: tensor<f32>, %b: tensor<f32>):", *lines, f"stablehlo.return {returned}"])
        arguments = ", ".join(f"%in{i}: tensor<{type_}>" for i, type_ in enumerate(self.operands))
        taken = ", ".join(f"tensor<{type_}>" for type_ in self.operands)
        values = ", ".join(f"%in{i}" for i in range(len(self.operands)))
        said = self.text.replace("BODY", "{ " + region + " }").replace("VALUES", values)
        return f"""module @f {{ func.func public @main({arguments}) -> tensor<{self.result}> {{
          %out = {said} : ({taken}) -> tensor<{self.result}>
          return %out : tensor<{self.result}> }}
          {body.called} }}"""


HOLDERS = {
    "reduce": Holder(("9x7xf32", "f32"), "9xf32", '"stablehlo.reduce"(VALUES) <{dimensions = array<i64: 1>}> (BODY)'),
    "reduce_window": Holder(("9x7xf32", "f32"), "4x7xf32", f'"stablehlo.reduce_window"(VALUES) {_WINDOW} (BODY)'),
    "scatter": Holder(
        ("9x7xf32", "4x1xi32", "4x7xf32"), "9x7xf32", f'"stablehlo.scatter"(VALUES) {_SCATTERED} (BODY)'
    ),
    "map": Holder(("9x7xf32",) * 2, "9x7xf32", '"stablehlo.map"(VALUES) <{dimensions = array<i64: 0, 1>}> (BODY)'),
    "what selects": Holder(
        ("9x7xf32", "4x7xf32", "f32"), "9x7xf32",
        f'"stablehlo.select_and_scatter"(VALUES) {_WINDOW} (BODY, {{ {_ADD} }})', compares=True,
    ),
    "what scatters": Holder(
        ("9x7xf32", "4x7xf32", "f32"), "9x7xf32",
        f'"stablehlo.select_and_scatter"(VALUES) {_WINDOW} ({{ {_COMPARE} }}, BODY)',
    ),
    "sort": Holder(("9x7xf32",), "9x7xf32", '"stablehlo.sort"(VALUES) <{dimension = 1 : i64}> (BODY)', compares=True),
    "all_reduce": Holder(("9x7xf32",), "9x7xf32", f'"stablehlo.all_reduce"(VALUES) <{{{_GROUP}}}> (BODY)'),
    "reduce_scatter": Holder(
        ("9x7xf32",), "9x7xf32",
        f'"stablehlo.reduce_scatter"(VALUES) <{{scatter_dimension = 1 : i64, {_GROUP}}}> (BODY)',
    ),
}  # fmt: skip


class Body:
    """What computes a number of the numbers %a and %b."""

    def __init__(self, *operations: Operation) -> None:
        self.lines, self.value, self.called, self._count = list[str](), "%a", "", 0
        for operation in operations:
            self._apply(operation)
        self._line("stablehlo.add %b, VALUE : tensor<f32>")  # a map of one call is an error of XLA

    def in_function(self, *, composite: bool = False) -> Body:
        """The same by a call."""
        outer, call = Body(), "func.call @called(%a)"
        if composite:
            call = 'stablehlo.composite "my.own" %a {decomposition = @called}'
        lines = " ".join(self.lines).replace("%a", "%given").replace("%b", "%given")
        outer.called = _CALLED.format(lines, self.value) + self.called
        outer.lines, outer.value = [f"%c = {call} : (tensor<f32>) -> tensor<f32>"], "%c"
        outer._line("stablehlo.add %b, VALUE : tensor<f32>")
        return outer

    def _line(self, text: str) -> None:
        self._count += 1
        self.lines.append(f"%v{self._count} = {text.replace('VALUE', self.value)}")
        self.value = f"%v{self._count}"

    def _apply(self, operation: Operation) -> None:
        outside, operands = self.value, []
        for type_ in operation.operands:
            self.value = outside
            self._convert_to(type_)
            operands.append(self.value)
        taken, given = (
            ", ".join(f"tensor<{type_}>" for type_ in types) for types in (operation.operands, operation.results)
        )
        properties = f"<{{{operation.attributes}}}>" if operation.attributes else ""
        self._count += 1
        self.lines.append(
            f'%v{self._count}:{len(operation.results)} = "{operation.name}"({", ".join(operands)}) {properties} '
            f"{operation.regions} : ({taken}) -> ({given})"
        )
        self.value = f"%v{self._count}#0"
        self._convert_from(operation.results[0])

    def _convert_to(self, type_: str) -> None:
        element = element_of(type_)
        if element == "complex<f32>":
            self._line("stablehlo.complex VALUE, VALUE : tensor<complex<f32>>")
        elif element != "f32":
            self._line(f"stablehlo.convert VALUE : (tensor<f32>) -> tensor<{element}>")
        if shape_of(type_):
            self._line(f"stablehlo.broadcast_in_dim VALUE, dims = [] : (tensor<{element}>) -> tensor<{type_}>")

    def _convert_from(self, type_: str) -> None:
        element, rank = element_of(type_), len(shape_of(type_))
        if rank:
            one = "1x" * rank + element
            self._line(f"stablehlo.slice VALUE [{', '.join(['0:1'] * rank)}] : (tensor<{type_}>) -> tensor<{one}>")
            self._line(f"stablehlo.reshape VALUE : (tensor<{one}>) -> tensor<{element}>")
        if element == "complex<f32>":
            self._line("stablehlo.real VALUE : (tensor<complex<f32>>) -> tensor<f32>")
        elif element != "f32":
            self._line(f"stablehlo.convert VALUE : (tensor<{element}>) -> tensor<f32>")


def _of_numbers() -> Iterator[Operation]:
    """Those of the table whose arrays have one shape, with numbers in their places; and others of numbers."""
    for one in OPERATIONS:
        types = *one.operands, *one.results
        if len({shape_of(type_) for type_ in types}) == 1 and not one.regions and one.operands:
            scalars = [tuple(map(element_of, group)) for group in (one.operands, one.results)]
            if one.name.partition(".")[2] not in ("all_gather", "all_to_all", "cholesky", "fft", "reverse"):
                yield dataclasses.replace(one, operands=scalars[0], results=scalars[1])
        elif not any(map(shape_of, types)):
            yield one
    for name, operands, results, attributes, regions in (
        ("broadcast_in_dim", ("f32",), ("f32",), "broadcast_dimensions = array<i64>", ""),
        ("reshape", ("f32",), ("f32",), "", ""),
        ("bitcast_convert", ("f32",), ("i32",), "", ""),
        ("clamp", ("f32",) * 3, ("f32",), "", ""),
        ("constant", (), ("f32",), "value = dense<1.0> : tensor<f32>", ""),
        ("if", ("i1",), ("f32",), "", f"({_BRANCH}, {_BRANCH})"),
        ("case", ("i32",), ("f32",), "", f"({_BRANCH}, {_BRANCH})"),
        ("while", ("i1", "f32"), ("i1", "f32"), "", _LOOP),
        ("custom_call", ("f32",), ("f32",), 'call_target_name = "Sharding"', ""),
        ("all_reduce", ("f32",), ("f32",), _GROUP, _SUM),
    ):
        yield Operation(f"stablehlo.{name}", operands, results, attributes, regions)


OF_NUMBERS = tuple(_of_numbers())

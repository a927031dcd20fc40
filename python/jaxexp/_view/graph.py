"""A module as a graph: its operations with their operands, types, name scopes and source lines, as plain data.

Nothing here grows faster than the module: types and attributes are made into text once each, texts are cut, and a
module of more than `MOST_OPERATIONS` operations is not taken apart.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from jaxexp._kernel.artifact.words import cut

from . import locations
from .locations import Call

# Limits: operations of all modules of an artifact, and operands and results of one module.
MOST_OPERATIONS, MOST_VALUES = 10_000, 100_000
# Limits: nested blocks, and characters of a text.
_DEEPEST, LONGEST = 48, 160
# Operations whose operands are the results of the block that they end.
_TERMINATORS = frozenset(("func.return", "stablehlo.return", "sdy.return"))

_Key = tuple[str, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Graph:
    """The graph of a module.

    A block is a dict of the types of its arguments (`a`), its operations (`o`) and the values that it returns (`r`).
    A function's block also has the numbers and names of the arguments that are dimensions, if there are any (`d`).
    An operation is a list: its kind, its name scope, its source line, its operands, the types of its results, other
    facts, the blocks inside of it, 1 if it has no counterpart in the module that this one is compared with, and its
    calls. All but operands and blocks are indices into `texts`, or into `calls`. Values are numbered within a function:
    in each block first its arguments, then the results of each operation, followed by the values inside of it; -1 is a
    value from elsewhere.

    Attributes:
        texts: the distinct texts; the first one is empty.
        functions: the block of each function by its name, `main` first.
        donated: for each argument of `main`, whether its memory may be used for results.
        calls: the distinct chains of calls that led to operations, outermost call first.
    """

    texts: tuple[str, ...]
    functions: dict[str, dict[str, Any]]
    donated: tuple[bool, ...]
    calls: tuple[tuple[Call, ...], ...] = ((),)


def read(module: bytes | memoryview) -> Graph:
    """Takes a module apart. This imports JAX.

    Args:
        module: the bytes of a module that has at most `MOST_OPERATIONS` operations.

    Raises:
        DeserializationError: jaxlib cannot parse it, or it has too many values.
    """
    from jaxexp import _jax
    from jaxexp._kernel.module import mlir

    with _jax.make_ir_context() as context:
        blob = bytes(module)
        return _Reader(mlir.parse(blob, context), blob).read()


def compare(old: Graph, new: Graph) -> None:
    """Marks the operations of each graph that the other lacks: same kind, types and attributes. Those of one scope
    are paired first. Then scopes do not matter: another JAX may have other ones.
    """
    graphs = (old, new)
    left = [list(operations(graph.functions.values())) for graph in graphs]
    for with_scope in (True, False):
        keys = [
            [_key(graph, operation, with_scope) for operation in some] for graph, some in zip(graphs, left, strict=True)
        ]
        both = collections.Counter(keys[0]) & collections.Counter(keys[1])
        left = [_unpaired(*pair, both.copy()) for pair in zip(left, keys, strict=True)]
    for operation in itertools.chain(*left):
        operation[7] = 1


def _unpaired(some: list[list[Any]], keys: list[_Key], both: collections.Counter[_Key]) -> list[list[Any]]:
    found = []
    for operation, key in zip(some, keys, strict=True):
        if both[key]:
            both[key] -= 1
        else:
            found.append(operation)
    return found


def operations(blocks: Iterable[dict[str, Any]]) -> Iterator[list[Any]]:
    """The operations in blocks, and in the blocks inside of them."""
    waiting = list(blocks)
    while waiting:
        for operation in waiting.pop()["o"]:
            yield operation
            waiting += operation[6]


def _key(graph: Graph, operation: list[Any], with_scope: bool) -> _Key:
    kind, scope, _, operands, types, more, inner, _, _ = operation
    texts = (graph.texts[i] for i in (kind, scope if with_scope else 0, more, *types))
    return (*texts, f"{len(operands)} {len(inner)}")


def numbered(text: str, numbers: dict[str, int]) -> int:
    """The number of a text, which is cut if it is long; a new text gets the next number."""
    return numbers.setdefault(text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…", len(numbers))


class _Reader:
    """A module that is being taken apart."""

    def __init__(self, module: Any, blob: bytes) -> None:
        from jaxexp import _jax

        self.module, self.blob, self.ir = module, blob, _jax.ir
        self.texts = {"": 0}
        self.calls: dict[tuple[Call, ...], int] = {(): 0}
        self.types: dict[Any, int] = {}
        self.names: dict[str, str] = {}  # of functions, on the page
        self.attributes: dict[Any, str] = {}
        self.values_left = MOST_VALUES
        self.only_arrays = True

    def read(self) -> Graph:
        found = {
            self.ir.StringAttr(view.operation.attributes["sym_name"]).value: view.operation
            for view in self.module.body.operations
            if view.operation.name == "func.func"
        }
        self.names = _different(found)
        functions: dict[str, dict[str, Any]] = {}
        order: list[tuple[Any, list[Any]]] = []  # operations, each with its item in the graph
        for name in sorted(found, key=lambda name: name != "main"):
            blocks = list(found[name].regions[0])
            made = self._block(blocks[0], {}, order, 0) if blocks else {"a": [], "o": [], "r": []}
            if dimensions := self._dimensions(found[name]):
                made["d"] = dimensions
            functions[self.names[name]] = made
        self._place(order)
        donated = self._donated(found["main"]) if "main" in found else ()
        return Graph(tuple(self.texts), functions, donated, tuple(self.calls))

    def _block(self, block: Any, numbers: dict[Any, int], order: list[tuple[Any, list[Any]]], depth: int) -> Any:
        for argument in block.arguments:
            numbers[argument] = len(numbers)
        made: dict[str, Any] = {"a": [self._type(argument.type) for argument in block.arguments], "o": [], "r": []}
        for view in block.operations:
            operation = view.operation
            name = operation.name
            operands = [numbers.get(operand, -1) for operand in operation.operands]
            self._spend(len(operands) + len(operation.results))
            if name in _TERMINATORS:
                made["r"] = operands
                continue
            types = [self._type(result.type) for result in operation.results]
            kind = self._number(name.removeprefix("stablehlo."))
            one = [kind, 0, 0, operands, types, self._number(self._more(operation, name)), [], 0, 0]
            made["o"].append(one)
            order.append((operation, one))
            for result in operation.results:
                numbers[result] = len(numbers)
            if depth < _DEEPEST:
                one[6] = [
                    self._block(inner, numbers, order, depth + 1) for region in operation.regions for inner in region
                ]
        return made

    def _number(self, text: str) -> int:
        return numbered(text, self.texts)

    def _spend(self, values: int) -> None:
        from jaxexp._errors import ModuleError

        self.values_left -= values
        if self.values_left < 0:
            raise ModuleError(
                "mlir_module_serialized", f"at most {MOST_VALUES:,} operands and results to draw", "more of them"
            )

    def _type(self, type_: Any) -> int:
        if type_ not in self.types:
            self.types[type_] = self._number(self._text_of_type(type_))
        return self.types[type_]

    def _text_of_type(self, type_: Any) -> str:
        """A type of arrays as JAX writes it. Other types can be nested so deeply that their texts are endless."""
        ir = self.ir
        if isinstance(type_, ir.RankedTensorType):
            dims = ("?" if type_.is_dynamic_dim(i) else str(type_.get_dim_size(i)) for i in range(type_.rank))
            return f"{_element(ir, type_.element_type)}[{','.join(dims)}]"
        from jaxexp import _jax

        if type_ == _jax.token_type():
            return "token"
        self.only_arrays = False
        return "tuple" if isinstance(type_, ir.TupleType) else "another type"

    def _more(self, operation: Any, name: str) -> str:
        """The facts that distinguish an operation from others of its kind: its callee, its value, its attributes."""
        attributes = operation.attributes
        if name == "stablehlo.constant" and "value" in attributes:
            try:
                return self._constant(attributes["value"])
            except TypeError:  # MLIR's bindings have no class for complex constants
                return ""
        called = _CALLED.get(name)
        if called is not None and called in attributes:
            attribute = attributes[called]
            if isinstance(attribute, self.ir.StringAttr):
                return _text(attribute)
            name = str(attribute.value)
            return self.names.get(name, name)
        parts: list[str] = []
        left = LONGEST
        for attribute in sorted(map(_name_of, attributes)):
            if left > 0 and not attribute.startswith(("jax.", "mhlo.frontend")):
                text = self._attribute(attributes[attribute])
                parts += [f"{attribute} = {text}"] if text else []
                left -= len(text)
        return ", ".join(parts)

    def _constant(self, value: Any) -> str:
        ir = self.ir
        if isinstance(value, (ir.DenseIntElementsAttr, ir.DenseFPElementsAttr)) and value.is_splat:
            try:
                splat = value.get_splat_value()
                return f"{splat.value:g}" if isinstance(splat, ir.FloatAttr) else str(ir.IntegerAttr(splat).value)
            except (TypeError, ValueError, AttributeError):  # kinds of numbers without a counterpart in Python
                return ""
        return ""

    def _attribute(self, attribute: Any) -> str:
        found = self.attributes.get(attribute)
        if found is None:
            ir = self.ir
            if isinstance(attribute, ir.StringAttr):
                found = _text(attribute)[:LONGEST]
            elif isinstance(attribute, (ir.DenseElementsAttr, ir.TypeAttr)):
                found = ""
            else:
                found = _tidy(str(attribute)[: 4 * LONGEST])
            self.attributes[attribute] = found
        return found

    def _donated(self, main: Any) -> tuple[bool, ...]:
        found = self._attributes_of_arguments(main)
        return tuple("tf.aliasing_output" in one or "jax.buffer_donor" in one for one in found)

    def _dimensions(self, function: Any) -> list[tuple[int, int]]:
        """The arguments that are the same in the whole module: dimension variables, and the platform."""
        return [
            (i, self._number("platform" if name == "_platform_index" else name))
            for i, one in enumerate(self._attributes_of_arguments(function))
            if _CONSTANT in one and (name := self._attribute(one[_CONSTANT]))
        ]

    def _attributes_of_arguments(self, function: Any) -> list[Any]:
        attributes = function.attributes
        return [*map(self.ir.DictAttr, self.ir.ArrayAttr(attributes["arg_attrs"]))] if "arg_attrs" in attributes else []

    def _place(self, order: list[tuple[Any, list[Any]]]) -> None:
        """Adds its name scope and its line to each operation."""
        if not self.only_arrays:  # the text of a module has all types in full
            return
        found = locations.of_operations(self.module, self.blob)
        if found is None:
            return
        for operation, one in order:
            if operation in found:
                place, calls = found[operation]
                one[1], one[2] = self._number(place.scope), self._number(place.source)
                one[8] = self.calls.setdefault(calls, len(self.calls))


def _different(names: Iterable[str]) -> dict[str, str]:
    """What a page calls functions: names that are escaped and cut get numbers where they would be equal."""
    found: dict[str, str] = {}
    taken, numbers = set[str](), collections.Counter[str]()
    for name in names:
        short = beginning = cut(name, LONGEST)
        while short in taken:
            numbers[beginning] += 1
            short = f"{beginning[: LONGEST - 12]} ({numbers[beginning] + 1})"
        taken.add(short)
        found[name] = short
    return found


def _text(attribute: Any) -> str:
    """A string, which may have any bytes."""
    return str(attribute.value_bytes, "utf-8", "backslashreplace")


# The attribute that marks an argument as a dimension variable, or as the platform.
_CONSTANT = "jax.global_constant"
# The attribute that names the target of a call.
_CALLED = {
    "func.call": "callee",
    "stablehlo.custom_call": "call_target_name",
    "stablehlo.composite": "name",
}


def _name_of(attribute: Any) -> str:
    """The key of an entry in a map of attributes: a name, or in older releases an attribute with its name."""
    return attribute if isinstance(attribute, str) else str(attribute.name)


def _tidy(text: str) -> str:
    """The text of an attribute with as little MLIR syntax as is needed to understand it."""
    text = _WHOLE.sub(r"\1", _ARRAY.sub(r"[\1]", text))
    return _DIALECT.sub("", text)


_ARRAY = re.compile(r"array<\w+(?:: )?([^<>]*)>")
_WHOLE = re.compile(r"^#\w+(?:\.\w+)?<(?:comparison_direction |comparison_type |precision )?(.*)>$")
_DIALECT = re.compile(r"#(?:stablehlo|chlo|sdy)\b\.?")


def _element(ir: Any, element: Any) -> str:
    if isinstance(element, ir.ComplexType):
        return f"complex{2 * _width(ir, ir.ComplexType(element).element_type)}"
    if isinstance(element, ir.IntegerType):
        width = ir.IntegerType(element).width
        if width == 1:
            return "bool"
        return f"{'uint' if ir.IntegerType(element).is_unsigned else 'int'}{width}"
    if isinstance(element, ir.FloatType):
        text = str(element)
        return "bfloat16" if text == "bf16" else f"float{text[1:]}"
    return "another"


def _width(ir: Any, element: Any) -> int:
    return int(ir.FloatType(element).width) if isinstance(element, ir.FloatType) else 0


def labels(count: int, kept: Sequence[tuple[str, str]], before: Sequence[str]) -> list[tuple[str, str]]:
    """Names and kinds for all arguments of a module's main function, given those of the arrays that it takes, and the
    names of the others, which come before them. One that is not an array is a kind of its own.
    """
    if count != len(before) + len(kept):
        return [(f"argument {i}", "") for i in range(count)]
    return [*((name, name) for name in before), *((name[:LONGEST], kind) for name, kind in kept)]

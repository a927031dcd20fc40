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
from typing import Any, NamedTuple

from jaxexp._errors import ModuleError
from jaxexp._kernel.artifact.operations import OF_ELEMENTS
from jaxexp._kernel.artifact.words import cut

# Limits: operations of all modules of an artifact, and operands and results of one module.
MOST_OPERATIONS, MOST_VALUES = 10_000, 100_000
# Limits: nested blocks, and characters of a text.
_DEEPEST, LONGEST = 48, 160
# Operations whose operands are the results of the block that they end.
_TERMINATORS = frozenset(("func.return", "stablehlo.return", "sdy.return"))


class Origin(NamedTuple):
    """The origin of an operation.

    Attributes:
        scope: its name scopes, outermost first, with slashes between; without the primitive.
        source: file and line, with the name of the function, as in ``"model.py:12 in attention"``; only
            ``"in attention"`` if the module has no files and lines.
    """

    scope: str
    source: str


class SourceCall(NamedTuple):
    """A function that ran when the module was traced, and where it was: file, line and column, or empty."""

    function: str
    at: str


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
    calls: tuple[tuple[SourceCall, ...], ...] = ((),)


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
        return _GraphReader(mlir.parse(blob, context), blob).read()


def compare(old: Graph, new: Graph) -> None:
    """Marks the operations of each graph that the other lacks: same kind, types and attributes. Those of one scope
    are paired first. Then scopes do not matter: another JAX may have other ones.
    """
    left = [[(graph.texts, operation) for operation in operations(graph.functions.values())] for graph in (old, new)]
    for with_scope in (True, False):
        keys = [[_key(*one, with_scope) for one in some] for some in left]
        both = collections.Counter(keys[0]) & collections.Counter(keys[1])
        left = [_unpaired(*pair, both.copy()) for pair in zip(left, keys, strict=True)]
    for _, operation in itertools.chain(*left):
        operation[7] = 1


def _unpaired(some: list[Any], keys: list[_Key], both: collections.Counter[_Key]) -> list[Any]:
    found = []
    for one, key in zip(some, keys, strict=True):
        both[key] -= 1
        if both[key] < 0:
            found.append(one)
    return found


def operations(blocks: Iterable[dict[str, Any]]) -> Iterator[list[Any]]:
    """The operations in blocks, and in the blocks inside of them."""
    waiting = list(blocks)
    while waiting:
        for operation in waiting.pop()["o"]:
            yield operation
            waiting += operation[6]


def values_in(block: dict[str, Any]) -> int:
    """How many values are numbered in a block and the blocks inside of it."""
    return len(block["a"]) + sum(len(one[4]) + sum(map(values_in, one[6])) for one in block["o"])


def _key(texts: Sequence[str], operation: list[Any], with_scope: bool) -> _Key:
    kind, scope, _, operands, types, more, inner, _, _ = operation
    said = (texts[i] for i in (kind, scope if with_scope else 0, more, *types))
    return (*said, f"{len(operands)} {len(inner)}")


def numbered(text: str, numbers: dict[str, int]) -> int:
    """The number of a text, which is cut if it is long; a new text gets the next number."""
    return numbers.setdefault(text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…", len(numbers))


class _GraphReader:
    """A module that is being taken apart."""

    def __init__(self, module: Any, blob: bytes) -> None:
        from jaxexp import _jax
        from jaxexp._kernel.module import mlir

        self.module, self.blob = module, blob
        self.ir, self.token, self.items = _jax.ir, _jax.token_type(), mlir.readable_items
        self.texts = {"": 0}
        self.calls: dict[tuple[SourceCall, ...], int] = {(): 0}
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
        # Each operation gets its name scope and its line, unless the text of the module has endless types.
        places = _origins(self.module, self.blob) if self.only_arrays else None
        for operation, one in order:
            if places and operation in places:
                place, calls = places[operation]
                one[1], one[2] = self._number(place.scope), self._number(place.source)
                one[8] = self.calls.setdefault(calls, len(self.calls))
        of_main = self._attributes_of_arguments(found["main"]) if "main" in found else []
        donated = tuple("tf.aliasing_output" in one or "jax.buffer_donor" in one for one in of_main)
        return Graph(tuple(self.texts), functions, donated, tuple(self.calls))

    def _block(self, block: Any, numbers: dict[Any, int], order: list[tuple[Any, list[Any]]], depth: int) -> Any:
        for argument in block.arguments:
            numbers[argument] = len(numbers)
        made: dict[str, Any] = {"a": [self._type(argument.type) for argument in block.arguments], "o": [], "r": []}
        for view in block.operations:
            operation = view.operation
            name = operation.name
            operands = [numbers.get(operand, -1) for operand in operation.operands]
            self.values_left -= len(operands) + len(operation.results)
            if self.values_left < 0:
                most = f"at most {MOST_VALUES:,} operands and results to draw"
                raise ModuleError("mlir_module_serialized", most, "more of them")
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

    def _type(self, type_: Any) -> int:
        """A type of arrays as JAX writes it. Other types can be nested so deeply that their texts are endless."""
        if (known := self.types.get(type_)) is not None:
            return known
        ir = self.ir
        if isinstance(type_, ir.RankedTensorType):
            dims = ("?" if type_.is_dynamic_dim(i) else str(type_.get_dim_size(i)) for i in range(type_.rank))
            text = f"{_element(ir, type_.element_type)}[{','.join(dims)}]"
        elif type_ == self.token:
            text = "token"
        else:
            self.only_arrays = False
            text = "tuple" if isinstance(type_, ir.TupleType) else "another type"
        number = self.types[type_] = self._number(text)
        return number

    def _more(self, operation: Any, name: str) -> str:
        """The facts that distinguish an operation from others of its kind: its callee, its value, its attributes."""
        attributes = operation.attributes
        if name == "stablehlo.constant":
            try:
                return self._constant(attributes["value"])
            except (TypeError, ValueError, AttributeError):  # numbers that MLIR's bindings or Python lack
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
        for key, attribute in sorted(self.items(attributes), key=lambda item: item[0]):
            if left > 0 and not key.startswith(("jax.", "mhlo.frontend")):
                text = self._attribute(attribute)
                parts += [f"{key} = {text}"] if text else []
                left -= len(text)
        return ", ".join(parts)

    def _constant(self, value: Any) -> str:
        ir = self.ir
        if not isinstance(value, (ir.DenseIntElementsAttr, ir.DenseFPElementsAttr)) or not value.is_splat:
            return ""
        splat = value.get_splat_value()
        return f"{splat.value:g}" if isinstance(splat, ir.FloatAttr) else str(ir.IntegerAttr(splat).value)

    def _attribute(self, attribute: Any) -> str:
        if (known := self.attributes.get(attribute)) is not None:
            return known
        found = ""
        if isinstance(attribute, self.ir.StringAttr):
            found = _text(attribute)[:LONGEST]
        elif not isinstance(attribute, (self.ir.DenseElementsAttr, self.ir.TypeAttr)):
            # With as little MLIR syntax as is needed to understand it.
            text = _ARRAY.sub(r"[\1]", str(attribute)[: 4 * LONGEST])
            found = _DIALECT.sub("", _WHOLE.sub(r"\1", text))
        self.attributes[attribute] = found
        return found

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


_ARRAY = re.compile(r"array<\w+(?:: )?([^<>]*)>")
_WHOLE = re.compile(r"^#\w+(?:\.\w+)?<(?:comparison_direction |comparison_type |precision )?(.*)>$")
_DIALECT = re.compile(r"#(?:stablehlo|chlo|sdy)\b\.?")


def _element(ir: Any, element: Any) -> str:
    if isinstance(element, ir.ComplexType):
        part = ir.ComplexType(element).element_type
        return f"complex{2 * ir.FloatType(part).width if isinstance(part, ir.FloatType) else 0}"
    if isinstance(element, ir.IntegerType):
        one = ir.IntegerType(element)
        return "bool" if one.width == 1 else f"{'uint' if one.is_unsigned else 'int'}{one.width}"
    if isinstance(element, ir.FloatType):
        text = str(element)
        return "bfloat16" if text == "bf16" else f"float{text[1:]}"
    return "another"


# --- the origin of operations: the name scopes of their function, and lines of its source

# Releases of jaxlib differ in what their bindings say about locations, and a location can share its parts so often that
# its text is endless. The text of a whole module names each location once, and is the same in all releases.
_NAMED = re.compile(r"^(#loc\d*) = loc\((.*)\)$")
_LAST = re.compile(r"loc\((#loc\d*|unknown)\)$")
_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"')
_ESCAPED = re.compile(rb"\\([0-9A-Fa-f]{2}|.)")
_LINE = re.compile(r":(\d+):(\d+)")
_CALLSITE = re.compile(r"callsite\((#loc\d*) at (#loc\d*)\)")
_FIRST_IN = re.compile(r"(?:callsite\(|fused(?:<[^>]*>)?\[)(#loc\d*|unknown)")
_ALIAS = re.compile(r"#loc\d*")
_TRANSFORMED = re.compile(r"((?:(?:vmap|jvp|transpose)\()+)([^()]*)(\)+)")
_MOST_STEPS = 32  # from an operation to its line
_MOST_CALLS = 100  # that an operation is inside of
# Bytes of a name that are many, and of a text that takes too much memory.
_LONG, _LONGEST_TEXT = 1 << 12, 1 << 27
_KEPT = 64  # elements of a constant in the text


def _origins(module: Any, blob: bytes) -> dict[Any, tuple[Origin, tuple[SourceCall, ...]]] | None:
    """The places of all operations of a module, and the calls that led to them, outermost first; None if its text is
    not as expected, or would be too long. `blob` is the bytes of the module.
    """
    from jaxexp._kernel.module import mlir

    if _is_endless(module, blob):
        return None
    text = module.operation.get_asm(enable_debug_info=True, print_generic_op_form=True, large_elements_limit=_KEPT)
    named: dict[str, str] = {}
    last: list[str] = []
    for line in text.splitlines():
        if (alias := _NAMED.match(line)) is not None:
            named[alias[1]] = alias[2]
        elif (end := _LAST.search(line)) is not None:
            last.append(end[1])
    operations = list(mlir.iter_operations(module, innermost_first=True))  # in the order in which their texts end
    if len(operations) != len(last):
        return None
    known: dict[str, tuple[SourceCall, ...]] = {}
    places = {name: (place_of(name, named), calls_of(name, named, known)) for name in {*last}}
    return {operation: places[name] for operation, name in zip(operations, last, strict=True)}


def _is_endless(module: Any, blob: bytes) -> bool:
    """Whether the text of a module, which repeats the names in its locations, may be much longer than the module."""
    from jaxexp._kernel.artifact import module_head
    from jaxexp._kernel.module import mlir

    long = collections.Counter(length for length in module_head.lengths_of_strings(blob) if length > _LONG)
    if not long:
        return False
    operations = list(mlir.iter_operations(module))  # most long texts are in their attributes
    long -= collections.Counter(map(len, {text for operation in operations for text in mlir.texts(operation)}))
    return max(long, default=0) * len(operations) > _LONGEST_TEXT


def place_of(name: str, named: dict[str, str]) -> Origin:
    """The place that the name of a location stands for, in the text of a module."""
    text, names = named.get(name, ""), list[str]()
    for _ in range(_MOST_STEPS):
        if (quoted := _QUOTED.match(text)) is not None:
            rest = text[quoted.end() :]
            if (line := _LINE.match(rest)) is not None:
                function = f" in {names[-1]}" if len(names) > 1 else ""
                return Origin(_scope(names), f"{plain(quoted[1])}:{line[1]}{function}")
            names.append(plain(quoted[1]))
            text = rest[1:-1] if rest.startswith("(") else ""
        elif (first := _FIRST_IN.match(text)) is not None:
            text = first[1]
        elif _ALIAS.fullmatch(text):
            text = named.get(text, "")
        else:
            break
    functions = names[2 if names and names[0].endswith(":") else 1 :]
    return Origin(_scope(names), f"in {functions[0]}" if functions else "")


def calls_of(name: str, named: dict[str, str], known: dict[str, tuple[SourceCall, ...]]) -> tuple[SourceCall, ...]:
    """The calls that the name of a location stands for, in the text of a module, outermost first. Chains of calls that
    were read before are known by their names.
    """
    for _ in range(_MOST_STEPS):
        text = named.get(name, "")
        if text.startswith("callsite"):
            break
        name = _inner(text)
        if text.startswith('"'):  # the name of the operation
            break
    inside: list[tuple[str, str]] = []
    while name not in known and len(inside) < _MOST_CALLS:
        both = _CALLSITE.match(named.get(name, ""))
        if both is None:
            known[name] = _call(name, named)
        else:
            inside.append((name, both[1]))
            name = both[2]
    chain = known.get(name, ())
    for name, inner in reversed(inside):
        if inner not in known:
            known[inner] = _call(inner, named)
        # A function that is inlined names its caller once more.
        chain = known[name] = chain if chain[-1:] == known[inner] or len(chain) == _MOST_CALLS else chain + known[inner]
    return chain


def _call(name: str, named: dict[str, str]) -> tuple[SourceCall, ...]:
    """A function with its place; nothing if the location is another one."""
    text = named.get(name, "")
    function = _QUOTED.match(text)
    if function is None:
        return ()
    if function.end() == len(text):
        return (SourceCall(plain(function[1]), ""),)
    file = named.get(_inner(text), "")
    quoted = _QUOTED.match(file)
    place = None if quoted is None else _LINE.match(file, quoted.end())
    if quoted is None or place is None:
        return ()
    return (SourceCall(plain(function[1]), f"{plain(quoted[1])}:{place[1]}:{place[2]}"),)


def _inner(text: str) -> str:
    """The location in a name, or the first one of many; empty if there is none."""
    if (first := _FIRST_IN.match(text)) is not None:
        return first[1]
    inner = _ALIAS.match(text, text.rfind("(") + 1)
    return "" if inner is None else inner[0]


def plain(text: str) -> str:
    """A name without the escapes that MLIR printed."""
    if "\\" not in text:
        return text
    found = _ESCAPED.sub(lambda one: bytes.fromhex(one[1].decode()) if len(one[1]) == 2 else one[1], text.encode())
    return found.decode(errors="replace")


def _scope(names: list[str]) -> str:
    """The scopes in the name of an operation, as in ``jit(f)/layer0/attention/dot_general``."""
    if not names:
        return ""
    parts = itertools.dropwhile(lambda part: part.startswith("jit("), names[0].rstrip(":").split("/")[:-1])
    return "/".join(filter(None, map(_shown, parts)))


def _shown(part: str) -> str:
    """A scope with JAX's transformations after its name; nothing for a `vmap` without a scope."""
    if (found := _TRANSFORMED.fullmatch(part)) is None or found[1].count("(") != len(found[3]):
        return part
    transformations = found[1].rstrip("(").split("(")
    if found[2]:
        return f"{found[2]} ({' of '.join(transformations)})"
    kept = [name for name in transformations if name != "vmap"]
    return f"{'('.join(kept)}({')' * len(kept)}" if kept else ""


# --- names: modules have sizes, question marks and uint32, signatures have expressions and key<fry>

_ANY = "?"


class SignatureType(NamedTuple):
    """The type of an argument or a result in the signature, with its dimensions as texts."""

    dtype: str
    dims: tuple[str, ...]

    def fits(self, text: str) -> bool:
        """Whether it agrees with a type in the graph, and says more."""
        dtype, _, rest = text.partition("[")
        found = rest.removesuffix("]").split(",") if rest != "]" else []
        is_key = self.dtype.startswith("key<") and dtype == "uint32"  # with a dimension more: the words of the key
        if is_key:
            found = found[:-1]
        return (
            (is_key or (_ANY in found and dtype == self.dtype))
            and len(found) == len(self.dims)
            and all(now in (_ANY, dim) for now, dim in zip(found, self.dims, strict=True))
        )

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(self.dims)}]"


def named(graph: Graph, arguments: Sequence[SignatureType], results: Sequence[SignatureType]) -> Graph:
    """The same graph with names of dimensions: those of arguments and results, and of each operation whose result has
    the dimensions of its operands, or of sizes that the module computes. The arguments are the last ones of `main`,
    which may have others before them.
    """
    if "main" not in graph.functions:
        return graph
    naming = _Naming(graph)
    main = graph.functions["main"]
    taken = len(main["a"])
    naming.function("main", _last(arguments, taken), [None] * taken, _last(results, len(main["r"])))
    functions = {name: block for name, block in naming.named.items() if block is not None}
    return dataclasses.replace(graph, texts=tuple(naming.numbers), functions=graph.functions | functions)


# Types of values, and the elements of small integer arrays, as far as they are known.
_Types = Sequence[SignatureType | None]
_Sizes = Sequence[tuple[str, ...] | None]

_SHAPED_BY_LAST = ("dynamic_broadcast_in_dim", "dynamic_reshape", "dynamic_iota")
_SHAPED_AS_OPERANDS = OF_ELEMENTS - {"broadcast_in_dim", "call", "case", "constant", "if", "reshape"} | {
    "dynamic_update_slice", "reverse", "scatter", "sdy.sharding_constraint", "sort", "while"
}  # fmt: skip
_OF_CONVOLUTION = re.compile(r"dimension_numbers = \[(.*?)\]x.*->\[(.*?)\]")
_NUMBERS = re.compile(r"(\w+) = \[?([\d, ]*)")
# How many operations are looked at: a function is, once for each kind of its arguments.
_MOST_NAMED, _DEEPEST_CALL = 200_000, 100


class _Naming:
    """A graph whose dimensions are being named.

    Attributes:
        numbers: the texts, with their numbers.
        named: the functions with names; None for one that is called with different dimensions.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph, self.texts = graph, graph.texts
        self.numbers = {text: number for number, text in enumerate(graph.texts)}
        self.named: dict[str, Any] = {}
        self._results: dict[Any, _Types] = {}
        self._left, self._depth = _MOST_NAMED, 0

    def function(self, name: str, arguments: _Types, sizes: _Sizes, results: _Types = ()) -> _Types:
        """Names the known dimensions in a function that is called so, and returns the types of its results."""
        key = name, tuple(arguments), tuple(sizes)
        block = self.graph.functions.get(name)
        if key in self._results or block is None or self._depth == _DEEPEST_CALL:
            return self._results.get(key, ())
        self._results[key] = ()  # while it is looked at: a damaged module may say that it calls itself
        self._depth += 1
        known = {value: one for value, one in (*zip(block["r"], results, strict=False), *enumerate(arguments)) if one}
        elements = {value: one for value, one in enumerate(sizes) if one}
        elements |= {value: (self.texts[number],) for value, number in block.get("d", ())}
        done = self._block(block, 0, known, elements)
        self.named[name] = None if name in self.named else done
        self._depth -= 1
        returned = [known.get(value) for value in block["r"]]
        self._results[key] = returned
        return returned

    def _block(self, block: Any, first: int, known: dict[int, SignatureType], elements: dict[int, Any]) -> Any:
        """The block with names. Its values have numbers from `first` on, and what is found about them is added."""
        types, operations = list(block["a"]), []
        self._name(types, range(first, first + len(types)), known)
        first += len(types)
        for operation in block["o"]:
            self._left -= 1
            made = range(first, first + len(operation[4]))
            first = made.stop
            if self._left > 0:
                known |= {
                    value: one
                    for value, one in zip(made, self._made(operation, made, known, elements), strict=False)
                    if one is not None and value not in known
                }
                if (found := self._elements(operation, known, elements)) is not None:
                    elements[made[0]] = found
            types_made, blocks = list(operation[4]), list(operation[6])
            self._name(types_made, made, known)
            for place, inner in enumerate(blocks):
                if self.texts[operation[0]] == "while":
                    carried = zip(range(first, first + len(inner["a"])), operation[3], strict=False)
                    known |= {value: known[given] for value, given in carried if given in known}
                blocks[place] = self._block(inner, first, known, elements)
                first += values_in(inner)
            operations.append([*operation[:4], types_made, operation[5], blocks, *operation[7:]])
        return {**block, "a": types, "o": operations}

    def _name(self, types: list[int], values: range, known: dict[int, SignatureType]) -> None:
        for place, value in enumerate(values):
            one = known.get(value)
            if one is not None and one.fits(self.texts[types[place]]):
                types[place] = numbered(str(one), self.numbers)
            elif one is not None and str(one) != self.texts[types[place]]:
                del known[value]

    def _made(
        self, operation: list[Any], made: range, known: dict[int, SignatureType], elements: dict[int, Any]
    ) -> _Types:
        """The types of an operation's results, as far as they follow from its operands."""
        kind, more, operands = self.texts[operation[0]], self.texts[operation[5]], operation[3]
        if kind == "func.call":
            takes, returns = ([known.get(value) for value in values] for values in (operands, made))
            return self.function(more, takes, [elements.get(value) for value in operands], returns)
        dtype, _, rest = self.texts[operation[4][0]].partition("[") if operation[4] else ("", "", "")
        if _ANY not in rest:
            return ()
        if kind in _SHAPED_BY_LAST:
            dims = elements.get(operands[-1])
        elif kind in _SHAPED_AS_OPERANDS:
            types = [known.get(value) for value in operands]
            if kind == "while":
                return types
            dims = next((one.dims for one in types if one is not None and len(one.dims) == rest.count(",") + 1), None)
        else:
            given = [known[value].dims if value in known else None for value in operands]
            said = {name: [int(n) for n in found.split(", ") if n] for name, found in _NUMBERS.findall(more)}
            dims = _rearranged(kind, given, said, rest.count(",") + 1)
            if (labels := _OF_CONVOLUTION.search(more)) and given[0] is not None:
                of_operand, of_result = (part.split(", ") for part in labels.groups())
                dims = [given[0][of_operand.index("b")] if label == "b" else _ANY for label in of_result]
        if dims is None:
            return ()
        here = rest.removesuffix("]").split(",")
        return (SignatureType(dtype, tuple(now if dim == _ANY else dim for now, dim in zip(here, dims, strict=False))),)

    def _elements(self, operation: list[Any], known: dict[int, SignatureType], elements: dict[int, Any]) -> Any:
        """The elements of an operation's result, if it is a small integer array of sizes."""
        kind, more, operands = self.texts[operation[0]], self.texts[operation[5]], operation[3]
        type_ = re.fullmatch(r"int(?:32|64)\[(\d?)\]", self.texts[operation[4][0]]) if operation[4] else None
        if type_ is None:
            return None
        if kind == "constant":
            return (more,) * int(type_[1] or 1) if more.isdecimal() else None
        if kind == "get_dimension_size":
            of, axis = known.get(operands[0]), int(re.sub(r"\D*(\d+) : .*", r"\1", more))
            return of.dims[axis : axis + 1] if of is not None else None
        given = [elements.get(value) for value in operands]
        every = [one for one in given if one is not None]
        if len(every) < len(given) or not given:
            return None
        if kind == "concatenate":
            return tuple(itertools.chain(*every))
        if kind in ("convert", "reshape"):
            return every[0]
        if kind in ("add", "multiply") and all(len(one) == 1 for one in every):
            (left,), (right,) = every
            if left.isdecimal() and right.isdecimal():
                return (str(int(left) + int(right) if kind == "add" else int(left) * int(right)),)
            if kind == "add":
                return (f"{left} + {right}",)
            return None if " " in left + right else (f"{right}*{left}" if right.isdecimal() else f"{left}*{right}",)
        return None


def _rearranged(
    kind: str, given: Sequence[tuple[str, ...] | None], said: dict[str, list[int]], rank: int
) -> Sequence[str] | None:
    """The dimensions of a result that has those of its operands in another order, or some of them."""
    first, second, *_ = (*given, None, None)
    try:
        if kind == "gather" and second is not None:
            (of_index,), sliced, gone = said["index_vector_dim"], said["slice_sizes"], said["collapsed_slice_dims"]
            offsets = iter(str(size) for axis, size in enumerate(sliced) if axis not in gone)
            batch = iter(dim for axis, dim in enumerate(second) if axis != of_index)
            return [next(offsets if axis in said["offset_dims"] else batch) for axis in range(rank)]
        if first is None:
            return None
        if kind == "transpose":
            return [first[axis] for axis in said["permutation"]]
        if kind == "reduce":
            return [dim for axis, dim in enumerate(first) if axis not in said["dimensions"]]
        if kind == "concatenate":
            return [_ANY if axis in said["dimension"] else dim for axis, dim in enumerate(first)]
        if kind == "reduce_window":
            windows = zip(first, said["window_dimensions"], said.get("window_strides", [1] * rank), strict=True)
            return [dim if size == stride == 1 else _ANY for dim, size, stride in windows]
        if kind == "dot_general" and second is not None:
            batch, gone = said.get("lhs_batching_dimensions", []), said.get("lhs_contracting_dimensions", [])
            others = said.get("rhs_batching_dimensions", []) + said.get("rhs_contracting_dimensions", [])
            free = [dim for axis, dim in enumerate(first) if axis not in batch + gone]
            return [first[axis] for axis in batch] + free + [d for axis, d in enumerate(second) if axis not in others]
    except (IndexError, KeyError, ValueError, StopIteration):  # of another form
        pass
    return None


def _last(known: Sequence[SignatureType], count: int) -> list[SignatureType | None]:
    """What is known of the last values, with None for those before them; nothing if there are too many."""
    return [] if len(known) > count else [*[None] * (count - len(known)), *known]

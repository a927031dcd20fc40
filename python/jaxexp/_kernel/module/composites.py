"""Composites of CHLO: what each one means, its operation or the function that comes with it.

A portable artifact has an operation of CHLO, such as `chlo.erf`, as a composite: the operation's name, a version, and a
function that computes the same. By StableHLO's specification, the function is the meaning. XLA goes by the name
instead, if it knows the name in this version, and does not look at the function.
"""

from __future__ import annotations

import enum
import functools
import hashlib
import re
from collections.abc import Callable, Iterator
from typing import Any

from jaxexp import _jax
from jaxexp._errors import ModuleError

from . import mlir

_COMPOSITE = "stablehlo.composite"
_NAME = re.compile(r"chlo\.\w+")


class Meaning(enum.Enum):
    """What a composite means: to XLA, and to those that go by its function."""

    OPERATION = "the operation of its name, which its function computes"
    FUNCTION = "its function"
    TWO = "the operation of its name to XLA, and its function to others"


def check(module: Any) -> None:
    """Refuses a module in which a composite has two meanings."""
    for _, name, meaning in of_chlo(module):
        if meaning is Meaning.TWO:
            raise two_meanings(name)


def call_functions(module: Any) -> None:
    """Replaces composites that mean their functions by calls of these, in place. The others mean their operations."""
    for operation, name, meaning in of_chlo(module):
        if meaning is Meaning.TWO:
            raise two_meanings(name)
        if meaning is Meaning.FUNCTION:
            with _jax.ir.InsertionPoint(operation), operation.location:
                types = [result.type for result in operation.results]
                call = _jax.call_op(types, operation.attributes["decomposition"], list(operation.operands))
            mlir.replace(operation, call.results)


def two_meanings(name: str) -> ModuleError:
    return ModuleError(
        "mlir_module_serialized",
        f"the function of each composite {name} to be one that StableHLO is known to write for {name}",
        "another one: XLA computes the operation of that name, and everything else the function. Migrate the artifact "
        "with the JAX that exported it, or do not trust it",
    )


class Budget:
    """How many kinds of composites are compared with what StableHLO writes, which takes milliseconds for each."""

    def __init__(self) -> None:
        self._kinds: set[tuple[str, ...]] = set()
        self._left = _KINDS

    def add(self, operations: int) -> None:
        """What one more module of this size allows."""
        self._left += operations // _OPERATIONS_OF_KIND

    def spend(self, kind: tuple[str, ...], is_written: bool) -> None:
        """Takes a kind from it, if that is new. A ModuleError if nothing is left."""
        if kind in self._kinds:
            return
        self._kinds.add(kind)
        self._left -= 1 if is_written else _COST_OF_UNKNOWN
        if self._left < 0:
            expected = f"at most {len(self._kinds) - 1:,} kinds of composites of CHLO in modules of this size"
            raise ModuleError("mlir_module_serialized", expected, "more: to compare them all would take too long")


# JAX writes no composites that jaxlib does not know, unless it is newer.
_KINDS, _OPERATIONS_OF_KIND, _COST_OF_UNKNOWN = 512, 200, 8


def of_chlo(
    module: Any, budget: Budget | None = None, is_trusted: Callable[[str], bool] = lambda name: False
) -> Iterator[tuple[Any, str, Meaning]]:
    """Each composite with the name of an operation of CHLO, that name, and what the composite means. Those whose name
    is trusted are left out.
    """
    found = list(mlir.iter_operations(module))
    functions = _jax.ir.SymbolTable(module.operation)
    # By the text: there is a function for each composite, and many are the same.
    digests: dict[tuple[str, bool], str] = {}

    @functools.cache
    def digest_of(name: str, order_matters: bool) -> str:
        function = functions[name].operation
        key = function.get_asm(print_generic_op_form=True).partition("\n")[2], order_matters
        if key not in digests:
            digests[key] = _digest(function, order_matters)
        return digests[key]

    budget = Budget() if budget is None else budget
    budget.add(len(found))
    for operation in found:
        if operation.name != _COMPOSITE:
            continue
        attributes = operation.attributes
        name = attributes["name"].value
        if not _NAME.fullmatch(name) or is_trusted(name):
            continue
        if _VERSIONS.get(name, version := attributes["version"].value) != version:
            yield operation, name, Meaning.FUNCTION
            continue
        said = str(attributes["composite_attributes"]) if "composite_attributes" in attributes else "{}"
        types = [", ".join(str(value.type) for value in values) for values in (operation.operands, operation.results)]
        known, written = _written(name, said, *types)
        budget.spend((name, said, *types), known is not None)
        if known != version:
            yield operation, name, Meaning.FUNCTION
            continue
        digest = digest_of(attributes["decomposition"].value, _order_matters(said))
        yield operation, name, Meaning.OPERATION if digest in written else Meaning.TWO


def _order_matters(said: str) -> bool:
    """Whether equal numbers must keep their order. If not, some releases still write a function that keeps it."""
    return "is_stable = false" not in said


# Functions of other releases than the installed one, for floating-point numbers: until JAX 0.11, and since then.
_ALSO_WRITTEN = {
    "chlo.asin": (
        """%4 = stablehlo.add %one, %3 : {type}
           %5 = stablehlo.atan2 %x, %4 : {type}
           %6 = stablehlo.add %5, %5 : {type}""",
        "%6 = stablehlo.atan2 %x, %3 : {type}",
    )
}
_ASIN = """func.func @main(%x: {type}) -> {type} {{
    %one = "chlo.constant_like"(%x) {{value = 1.0 : {element}}} : ({type}) -> {type}
    %0 = stablehlo.subtract %one, %x : {type}
    %1 = stablehlo.add %one, %x : {type}
    %2 = stablehlo.multiply %0, %1 : {type}
    %3 = stablehlo.sqrt %2 : {type}
    ROOT
    return %6 : {type}
}}"""


def portable(name: str, said: str, operands: str, results: str) -> Any:
    """A module whose main function is one operation of CHLO, as jaxlib has it in portable artifacts: a composite or an
    expansion. The MLIR context is entered.
    """
    arguments = [f"%{i}: {type_}" for i, type_ in enumerate(_split(operands))]
    values = ", ".join(f"%{i}" for i in range(len(arguments)))
    count = len(_split(results))
    returned = ", ".join(f"%r#{i}" for i in range(count))
    text = f"""func.func @main({", ".join(arguments)}) -> ({results}) {{
        %r:{count} = "{name}"({values}) {said} : ({operands}) -> ({results})
        return {returned} : {results}
    }}"""
    return mlir.parse(mlir.serialize(_jax.ir.Module.parse(text)), _jax.ir.Context.current)


# The versions in which jaxlib writes operations as composites, as far as it wrote some.
_VERSIONS: dict[str, int] = {}


@functools.lru_cache(1024)
def _written(name: str, said: str, operands: str, results: str) -> tuple[int | None, frozenset[str]]:
    """The version of an operation's composite, and the digests of the functions that StableHLO writes for it; no
    version if the installed jaxlib has no such composite. XLA knows the names that jaxlib writes.
    """
    ir, order_matters = _jax.ir, _order_matters(said)
    try:
        module = portable(name, said, operands, results)
    except Exception:  # of several types: jaxlib does not know the operation, or not with these types
        return None, frozenset()
    found = [operation for operation in mlir.iter_operations(module) if operation.name == _COMPOSITE]
    if len(found) != 1 or found[0].attributes["name"].value != name:
        return None, frozenset()
    _VERSIONS[name] = found[0].attributes["version"].value
    attributes = found[0].attributes
    decomposition = attributes["decomposition"].value
    # When jaxlib writes a module again, it takes complex logarithms and others apart, also in these functions.
    modules = [module, mlir.parse(mlir.serialize(module), ir.Context.current)] if "complex<" in operands else [module]
    digests = {_digest(ir.SymbolTable(one.operation)[decomposition].operation, order_matters) for one in modules}
    for root in _ALSO_WRITTEN.get(name, ()):
        element = str(ir.RankedTensorType(ir.Type.parse(operands)).element_type)
        if element.startswith("complex"):
            continue
        other = ir.Module.parse(_ASIN.replace("ROOT", root).format(type=operands, element=element))
        mlir.run_passes(other, "func.func(chlo-legalize-to-stablehlo)")
        digests.add(_digest(ir.SymbolTable(other.operation)["main"].operation, order_matters))
    return attributes["version"].value, frozenset(digests)


def _split(types: str) -> list[str]:
    return re.split(r", (?=tensor<)", types) if types else []


def _digest(function: Any, order_matters: bool) -> str:
    """A digest of what a function computes: equal for functions that differ only in the order of their operations, in
    operations that are there twice, and in names.
    """
    return " ".join(_of_block(block, {}, order_matters) for block in function.regions[0].blocks)


def _of_block(block: Any, known: dict[Any, str], order_matters: bool, depth: int = 0) -> str:
    """Adds its values to `known`: those of an inner block are not used outside of it."""
    known.update((argument, f"{depth}.{i}") for i, argument in enumerate(block.arguments))
    said = ""
    for operation in block.operations:
        mlir_operation = operation.operation
        attributes = mlir_operation.attributes
        said_of_it = [attributes[i] for i in range(len(attributes))]
        parts = [
            mlir_operation.name,
            # As a whole: the bindings have no class for the value of a complex constant.
            *(str(named) for named in said_of_it if order_matters or named.name != "is_stable"),
            *(known.get(value, "?") for value in mlir_operation.operands),
            *(str(result.type) for result in mlir_operation.results),
            *(
                _of_block(inner, known, order_matters, depth + 1)
                for region in mlir_operation.regions
                for inner in region.blocks
            ),
        ]
        said = hashlib.sha256(repr(parts).encode(errors="surrogateescape")).hexdigest()
        known.update((result, f"{said}.{i}") for i, result in enumerate(mlir_operation.results))
    return said  # of the last operation, which returns

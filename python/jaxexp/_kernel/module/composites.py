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
from collections.abc import Iterator
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
    """Refuses a module in which a composite has two meanings.

    Raises:
        ModuleError: the function of a composite is not the one that StableHLO writes for its operation.
    """
    for _, name, meaning in of_chlo(module):
        if meaning is Meaning.TWO:
            raise two_meanings(name)


def call_functions(module: Any) -> None:
    """Replaces composites that mean their functions by calls of these, in place. The others mean their operations.

    Raises:
        ModuleError: as `check` does.
    """
    for operation, name, meaning in of_chlo(module):
        if meaning is Meaning.TWO:
            raise two_meanings(name)
        if meaning is Meaning.FUNCTION:
            with _jax.ir.InsertionPoint(operation), operation.location:
                types = [result.type for result in operation.results]
                call = _jax.call_op(types, operation.attributes["decomposition"], list(operation.operands))
            mlir.replace(operation, call.results)


def two_meanings(name: str) -> ModuleError:
    """The error for a composite of this name."""
    return ModuleError(
        "mlir_module_serialized",
        f"the function of each composite {name} to be one that StableHLO is known to write for {name}",
        "another one: XLA computes the operation of that name, and everything else the function. Migrate the artifact "
        "with the JAX that exported it, or do not trust it",
    )


def of_chlo(module: Any) -> Iterator[tuple[Any, str, Meaning]]:
    """Each composite with the name of an operation of CHLO, that name, and what the composite means."""
    functions = _jax.ir.SymbolTable(module.operation)
    digests: dict[tuple[str, bool], str] = {}  # by the text: there is a function for each operation
    for operation in mlir.iter_operations(module):
        if operation.name != _COMPOSITE:
            continue
        attributes = operation.attributes
        name = attributes["name"].value
        if not _NAME.fullmatch(name):
            continue
        said = str(attributes["composite_attributes"]) if "composite_attributes" in attributes else "{}"
        types = [", ".join(str(value.type) for value in values) for values in (operation.operands, operation.results)]
        version, written = _written(name, said, *types)
        if attributes["version"].value != version:
            yield operation, name, Meaning.FUNCTION
            continue
        function = functions[attributes["decomposition"].value].operation
        order_matters = _order_matters(said)
        key = function.get_asm(print_generic_op_form=True).partition("\n")[2], order_matters
        if key not in digests:
            digests[key] = _digest(function, order_matters)
        yield operation, name, Meaning.OPERATION if digests[key] in written else Meaning.TWO


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


@functools.lru_cache(1024)
def _written(name: str, said: str, operands: str, results: str) -> tuple[int | None, frozenset[str]]:
    """The version of an operation's composite, and the digests of the functions that StableHLO writes for it; no
    version if the installed jaxlib has no such composite. XLA knows the names that jaxlib writes.
    """
    arguments = [f"%{i}: {type_}" for i, type_ in enumerate(_split(operands))]
    values = ", ".join(f"%{i}" for i in range(len(arguments)))
    count = len(_split(results))
    returned = ", ".join(f"%r#{i}" for i in range(count))
    text = f"""func.func @main({", ".join(arguments)}) -> ({results}) {{
        %r:{count} = "{name}"({values}) {said} : ({operands}) -> ({results})
        return {returned} : {results}
    }}"""
    ir, order_matters = _jax.ir, _order_matters(said)
    with _jax.make_ir_context() as context:
        try:
            module = mlir.parse(mlir.serialize(ir.Module.parse(text)), context)
        except Exception:  # of several types: jaxlib does not know the operation, or not with these types
            return None, frozenset()
        found = [operation for operation in mlir.iter_operations(module) if operation.name == _COMPOSITE]
        if len(found) != 1 or found[0].attributes["name"].value != name:
            return None, frozenset()
        attributes = found[0].attributes
        functions = ir.SymbolTable(module.operation)
        digests = {_digest(functions[attributes["decomposition"].value].operation, order_matters)}
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
                _of_block(inner, dict(known), order_matters, depth + 1)
                for region in mlir_operation.regions
                for inner in region.blocks
            ),
        ]
        said = hashlib.sha256(repr(parts).encode(errors="surrogateescape")).hexdigest()
        known.update((result, f"{said}.{i}") for i, result in enumerate(mlir_operation.results))
    return said  # of the last operation, which returns

"""Converts StableHLO modules between bytes and MLIR; general helpers for their operations."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import Any

import jax

from jaxexp import _jax, _native
from jaxexp._errors import ExportError, ExportRuntimeError, ModuleError, UnsupportedModuleError, cause
from jaxexp._kernel.artifact import module_head

_MODULE = "mlir_module_serialized"
_MOST_SAID = 500  # characters of a diagnostic


def serialize(module: Any) -> bytes:
    """The module as a StableHLO portable artifact, readable by every consumer of the last four weeks."""
    target = _jax.hlo.get_version_from_compatibility_requirement(_jax.stablehlo_four_weeks)
    return serialize_for(module, target)


def parse(serialized: bytes, context: Any) -> Any:
    """The inverse of `serialize`, in an MLIR context that is already entered: the module as it was written.
    `runnable.parse` has the module of a function as it can run, checked against the signature. An
    UnsupportedModuleError if it is for a newer StableHLO than the installed jaxlib knows.
    """
    _native.check_bytecode(serialized)  # jaxlib's parser crashes on some of what this refuses
    newest = _jax.newest_stablehlo()
    too_new, certain = "", False
    why: BaseException | None = None
    if module_head.is_for_newer(serialized, newest):
        from jaxexp._kernel.releases import table

        too_new, certain = table.why_too_new(serialized, newest)
    if not certain:  # a module for a newer version may not use anything new
        try:
            return _deserialized(serialized, context)
        except (MemoryError, ModuleError):
            raise
        except Exception as error:  # of several types, such as RuntimeError and ValueError
            if not too_new:
                found = f"one that jaxlib does not parse: {what_is_wrong(error)}"
                raise ModuleError(_MODULE, "a StableHLO module", found) from cause(error)
            why = cause(error)
    from jaxexp._kernel.releases import table

    here = table.at(_jax.installed_release).version
    advice = f"; on a JAX that reads it, jaxexp.migrate(artifact, to={here!r}) writes it for this one, or says why not"
    raise UnsupportedModuleError(
        _MODULE, f"a module that JAX {jax.__version__} reads, for StableHLO up to {newest}", f"{too_new}{advice}"
    ) from why


@contextlib.contextmanager
def reading() -> Generator[None]:
    """Raises a ModuleError for whatever jaxlib's bindings raise about a part of a module: they have no class for that.

    A module that no JAX wrote may lack attributes and operands, or have others than its operations need.
    """
    try:
        yield
    except (ExportError, MemoryError):
        raise
    except Exception as error:
        first_line = str(error).partition("\n")[0]
        expected = "a module whose operations have the attributes and operands that JAX writes"
        raise ModuleError(_MODULE, expected, f"{type(error).__name__}: {first_line}") from cause(error)


def _deserialized(serialized: bytes, context: Any) -> Any:
    """What jaxlib's `deserialize_portable_artifact` returns, with its diagnostics in the error.

    That function prints them, with names from the module as they are. But MLIR's bindings end the process at a
    diagnostic that is no text. So a module with strings of bytes, such as options of old custom calls, is left to it
    when the same module with texts in their places was parsed.
    """
    if (in_text := module_head.in_text(serialized)) is None:
        raise not_text("most of its strings")
    with _listening(context):
        module = _jax.ir.Module.parse(in_text, context)
    run_passes(module, f"vhlo-to-version{{target={_jax.newest_stablehlo()}}}", "vhlo-legalize-to-stablehlo")
    if in_text is not serialized:
        module = _jax.deserialize_portable_artifact(serialized, context)
        try:  # values of attributes may be any bytes, but names of functions are text everywhere else
            for operation in iter_operations(module):
                if "sym_name" in operation.attributes:
                    _jax.ir.StringAttr(operation.attributes["sym_name"]).value  # noqa: B018  (decodes it)
        except RuntimeError as error:
            raise not_text("functions whose names") from cause(error)
    return module


def as_portable(content: bytes) -> bytes | None:
    """A module of StableHLO, as text or as MLIR bytecode, as a portable artifact; None if it is no such module.

    Only for modules of this process, and not from an artifact: jaxlib's parser trusts them.
    """
    try:
        with _jax.make_ir_context() as context:
            module = _jax.deserialize_portable_artifact(content, context)
            return serialize(module) if "main" in _jax.ir.SymbolTable(module.operation) else None
    except MemoryError:
        raise
    except Exception:  # of several types, as in `parse`
        return None


def shown_module(name: str, module: bytes, as_text: bool) -> Any:
    if as_text:
        with _jax.make_ir_context() as context:
            return _jax.module_to_string(parse(module, context))
    if (current := _jax.ir.Context.current) is None:
        raise ExportRuntimeError(
            f"mlir_module(serialized=False) of {name} makes the module in the current MLIR context, and there is none: "
            "call it inside `with jax.interpreters.mlir.make_ir_context():`, or take the text of the module, "
            "mlir_module()"
        )
    return parse(module, current)


def text_of(module: bytes, elements: int | None = None) -> str:
    """The text of a module, with constants of more than so many elements cut."""
    with _jax.make_ir_context() as context:
        return str(parse(module, context).operation.get_asm(large_elements_limit=elements))


def what_is_wrong(error: Exception) -> str:
    """The first diagnostic of an error of MLIR, whose first line names only what failed; otherwise the first line. A
    diagnostic may have a whole operation in it, of which the beginning is enough."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    found = next((line for line in lines if line.startswith("error: ")), "").removeprefix("error: ")
    found = found or next(iter(lines), type(error).__name__)
    return found if len(found) <= _MOST_SAID else f"{found[:_MOST_SAID]}..."


def argument_attributes(module: Any) -> list[Any]:
    main = _jax.ir.SymbolTable(module.operation)["main"]
    return _of_each(main, "arg_attrs", len(main.type.inputs))


def result_attributes(function: Any) -> list[Any]:
    return _of_each(function, "res_attrs", len(function.type.results))


def _of_each(function: Any, group: str, count: int) -> list[Any]:
    """MLIR leaves the list out if all of it is empty."""
    if group in function.attributes:
        return list(_jax.ir.ArrayAttr(function.attributes[group]))
    return [_jax.ir.DictAttr.get({})] * count


def copy(module: Any) -> Any:
    """A copy in an MLIR context of its own: a lowering may sit in JAX's caches and must not be changed."""
    context = _jax.make_ir_context()
    with context, _jax.ir.Location.unknown(context):
        return _jax.ir.Module.parse(_jax.module_to_bytecode(module))


def run_passes(module: Any, *passes: str) -> None:
    _jax.hlo.register_stablehlo_passes()
    with module.context as context, _listening(context):
        pipeline = _jax.passmanager.PassManager.parse(f"builtin.module({','.join(passes)})")
        pipeline.run(module.operation)


@contextlib.contextmanager
def _listening(context: Any) -> Generator[None]:
    """Raises errors of MLIR with their first diagnostic. MLIR's bindings would end the process at one that is no text,
    which numbers in attributes may cause, too.
    """
    said: list[str] = []

    def note(diagnostic: Any) -> bool:
        if not said and diagnostic.severity == _jax.ir.DiagnosticSeverity.ERROR:
            try:
                said.append(diagnostic.message)
            except Exception:  # of a type that depends on the release
                said.append("something that is not UTF-8")
        return True

    before, context.emit_error_diagnostics = context.emit_error_diagnostics, True
    handler = context.attach_diagnostic_handler(note)
    try:
        yield
    except _jax.ir.MLIRError as error:
        if not said:
            raise
        raise RuntimeError(f"error: {said[0]}") from cause(error)
    finally:
        handler.detach()
        context.emit_error_diagnostics = before


def free_name(stem: str, *tables: Any) -> str:
    """A symbol name that is free in all these symbol tables: `stem`, perhaps with a number after it."""
    names = (f"{stem}_{i}" if i else stem for i in itertools.count())
    return next(name for name in names if not any(name in table for table in tables))


def converted(value: Any, type_: Any) -> Any:
    """An MLIR value as one of `type_`, which may differ from its own type only in how much of the shape is known."""
    return value if value.type == type_ else _jax.hlo.convert(type_, value)


def why_not_refined(error: Exception) -> str | None:
    """Why a module refuses shapes, if `error` is about that; otherwise None.

    JAX finds out while it compiles, and keeps the reason as the cause of its error.
    """
    if error.__cause__ is None or not str(error).startswith("Error refining shapes"):
        return None
    first_line = str(error.__cause__).partition("\n")[0]  # the other lines quote the source that traced the module
    return first_line.rpartition(" error: ")[2]


def functions(module: Any) -> list[Any]:
    return [operation for operation in module.body.operations if isinstance(operation, _jax.func_op)]


def type_of(value: Any) -> Any:
    """The type of a value that is an array."""
    return _jax.ir.RankedTensorType(value.type)


def iter_operations(module: Any, *, innermost_first: bool = False) -> Iterator[Any]:
    """Every operation of a module: before the operations inside it, or after them."""
    found: list[Any] = []

    def visit(operation: Any) -> Any:
        found.append(operation)
        return _jax.ir.WalkResult.ADVANCE

    order = _jax.ir.WalkOrder.POST_ORDER if innermost_first else _jax.ir.WalkOrder.PRE_ORDER
    module.operation.walk(visit, order)
    return iter(found)


def items(attributes: Any) -> list[tuple[str, Any]]:
    """The attributes of an operation, or those in a dictionary, by name: maps of MLIR differ between releases."""
    names = [attributes[i].name for i in range(len(attributes))]
    return [(name, attributes[name]) for name in names]


def readable_items(attributes: Any) -> list[tuple[str, Any]]:
    """`items` without the numbers of complex constants, for which jaxlib's bindings have no class."""
    found = []
    for i in range(len(attributes)):
        name = attributes[i].name
        with contextlib.suppress(TypeError):
            found.append((name, attributes[name]))
    return found


def texts(operation: Any) -> Iterator[bytes]:
    """The texts in the attributes of an operation, also those in arrays and dictionaries; not its own name."""
    ir = _jax.ir
    left = [value for key, value in readable_items(operation.attributes) if key != "sym_name"]
    while left:
        value = left.pop()
        if isinstance(value, ir.StringAttr):
            yield value.value_bytes
        elif isinstance(value, ir.ArrayAttr):
            left += value
        elif isinstance(value, ir.DictAttr):
            left += (part for _, part in readable_items(value))


def origin(value: Any) -> Any | None:
    """The operation that has this result; None for an argument of a block."""
    owner = value.owner
    return None if isinstance(owner, _jax.ir.Block) else owner.operation


def is_used(value: Any) -> bool:
    return next(iter(value.uses), None) is not None


def replace(operation: Any, values: Iterable[Any]) -> None:
    """Removes an operation. These values stand in for its results."""
    for old, new in zip(operation.results, values, strict=True):
        old.replace_all_uses_with(new)
    operation.erase()


def serialize_for(module: Any, version: str) -> bytes:
    """The module as a StableHLO portable artifact of a given version; a JaxRuntimeError if that version lacks a part of
    it.
    """
    return _jax.serialize_portable_artifact(module, version, _jax.serializes_with_shardy())


def custom_calls(module: Any) -> list[tuple[str, Any]]:
    """The target of each custom call in a module, and the operation, outermost first."""
    return [
        (target_of(operation), operation)
        for operation in iter_operations(module)
        if operation.name == "stablehlo.custom_call"
    ]


def target_of(custom_call: Any) -> str:
    try:
        return _jax.ir.StringAttr(custom_call.attributes["call_target_name"]).value
    except RuntimeError as error:
        raise not_text("custom calls whose targets") from cause(error)


def not_text(what: str) -> ModuleError:
    """The error about names in a module of which jaxlib cannot decode one."""
    return ModuleError(_MODULE, f"{what} are text", "one that is not UTF-8")


# --- assertions -------------------------------------------------------------------------------------------------------
# Assertions about sizes that a module leaves open, in the form of those that JAX makes for dimension variables.


def assert_all(holds: Sequence[Any], message: str) -> None:
    """Adds an assertion that all of some truth values hold, at the current insertion point and location."""
    ir, hlo = _jax.ir, _jax.hlo
    all_hold, *others = holds
    for other in others:
        all_hold = hlo.and_(all_hold, other)
    attributes = {
        "call_target_name": ir.StringAttr.get("shape_assertion"),
        "api_version": ir.IntegerAttr.get(ir.IntegerType.get_signless(32), 2),
        "has_side_effect": ir.BoolAttr.get(True),
        "error_message": ir.StringAttr.get(message),
    }
    ir.Operation.create("stablehlo.custom_call", results=[], operands=[all_hold], attributes=attributes)

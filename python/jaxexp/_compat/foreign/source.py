"""What a caller gives as a module: text, bytes or a path. All become MLIR bytecode."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import jax

from jaxexp import _jax, _native
from jaxexp._errors import (
    DeserializationError,
    ExportRuntimeError,
    ExportTypeError,
    ForeignModuleError,
    UnsupportedError,
    cause,
)
from jaxexp._kernel.artifact import module_head
from jaxexp._kernel.io import files
from jaxexp._kernel.io.other_files import HEAD, MARK, MARK_AT, instead_of_module
from jaxexp._kernel.module import mlir

BYTECODE = b"ML\xefR"  # with these bytes, MLIR bytecode begins

# MLIR's messages about an operation, and about a type or an attribute.
# One that is long is not looked through from each of its quotes.
_UNKNOWN = re.compile(r"[Dd]ialect [`'](\w{1,99})|[`'][!#]\"?(\w{1,99})\"?[^']{0,999} created with unregistered")

_QUOTED = re.compile(rb"\"(\w+\.[\w.]+)\"\s*\(")  # an operation in MLIR's generic form
_MOST_NAMED = 6

# The exit status of the process that parses a module, if it can say what no artifact holds.
_UNHELD = 3

#: Those of modules that are compiled.
DIALECTS = {"builtin", "func", "stablehlo", "chlo", "sdy", "vhlo"}

# How long jaxlib may take to parse a text, which some texts without end make use of: many times what it takes.
_SECONDS, _BYTES_PER_SECOND = 60, 100_000
# What the process takes of the time of a machine that has other work, too.
_TIMES_LONGER = 10

# Starts a process that finds what this one finds.
_CHILD = (
    "import sys; sys.path[:] = sys.argv[2:]; from jaxexp._compat.foreign.source import child; child(int(sys.argv[1]))"
)


class _UnheldError(UnsupportedError):
    """A module with a type or a constant that no artifact can hold; the message names it."""


def contents(module: Any) -> tuple[bytes, str | None]:
    """The bytes of a module, text or bytecode, and the name of its file."""
    if isinstance(module, str) and ("\n" in module or "{" in module):
        return module.encode(), None
    if isinstance(module, (str, os.PathLike)):
        with files.regular(module) as file:
            return file.read(), os.fsdecode(module)
    try:
        return bytes(memoryview(module)), None
    except TypeError:
        raise ExportTypeError(
            f"a module is StableHLO text, MLIR bytecode or the path of a file with one of them, not a "
            f"{type(module).__name__}. Of a jax.stages.Lowered, pass as_text(); of an MLIR module, pass str(module)"
        ) from None


def bytecode(content: bytes) -> bytes:
    """A module as MLIR bytecode, which may still be refused."""
    if content[4:8] == b"jaxe" or content[MARK_AT] == MARK:
        raise ForeignModuleError(
            "",
            "a StableHLO module",
            "an artifact, which load reads: its module is mlir_module_serialized of the result",
        )
    if content[:4] == BYTECODE:
        # What only portable artifacts and JAX's modules have is parsed here.
        if _is_taken(content) and module_head.read(content).dialects <= DIALECTS:
            return content
        try:
            made = _portable(content)
        except _UnheldError:
            raise
        except (ForeignModuleError, UnsupportedError):
            return content  # `parse` says what is wrong
        return content if _is_portable(content) else made  # a portable artifact that is refused is not mended
    if not content.strip():
        raise ForeignModuleError("", "a StableHLO module", "nothing" if not content else "only white space")
    return _portable(content)


def _is_taken(bytecode: bytes) -> bool:
    """Whether jaxexp's own check takes it."""
    try:
        _native.check_bytecode(bytecode)
    except DeserializationError:
        return False
    return True


def _is_portable(bytecode: bytes) -> bool:
    return module_head.stablehlo_of(module_head.producer(bytecode)) is not None


def _portable(content: bytes) -> bytes:
    """A module as the bytecode of a portable artifact, if it can be one, made in a process of its own."""
    if not sys.executable:
        raise ExportRuntimeError(
            "StableHLO text is parsed in a second Python process, which cannot start, because sys.executable is empty: "
            "pass the module as MLIR bytecode"
        )
    seconds = _SECONDS + len(content) // _BYTES_PER_SECOND
    command = [sys.executable, "-c", _CHILD, str(seconds), *sys.path]
    try:
        done = subprocess.run(command, input=content, capture_output=True, check=False, timeout=_TIMES_LONGER * seconds)
    except subprocess.TimeoutExpired as error:
        raise ForeignModuleError("", "StableHLO text", f"text that takes more than {seconds} s to parse") from cause(
            error
        )
    if done.returncode == 0 and done.stdout[:4] == BYTECODE:
        return done.stdout
    if done.returncode < 0:
        raise ForeignModuleError("", "StableHLO text", "text that ends the process that parses it")
    said = str(done.stdout or done.stderr, errors="replace").strip()
    if done.returncode == _UNHELD:
        raise _UnheldError(said)
    if (dialect := _UNKNOWN.search(said)) is not None:
        raise UnsupportedError(other_dialects([f"{dialect[1] or dialect[2]}.*"], said))
    if "unregistered dialect" in said:
        quoted = {str(name, errors="replace") for name in _QUOTED.findall(content)}
        if others := sorted(name for name in quoted if name.partition(".")[0] not in DIALECTS):
            raise UnsupportedError(other_dialects(others[:_MOST_NAMED], said))
    if content.lstrip().startswith(b"HloModule"):
        raise ForeignModuleError(
            "",
            "StableHLO text",
            "HLO, the text of a compiled program: pass that of jax.jit(f).lower(...), not compiled",
        )
    if other := instead_of_module(content[:HEAD]):
        raise ForeignModuleError("", "StableHLO, as text or as MLIR bytecode", other)
    raise ForeignModuleError("", "StableHLO text", f"text that jaxlib does not parse: {_reason(said)}")


def other_dialects(names: list[str], where: str = "") -> str:
    """The message for operations or types of dialects that are not compiled."""
    at = "" if not where else f" ({_reason(where)})"
    return (
        f"the module has {', '.join(names)}, which is not of the dialects stablehlo, chlo, func and sdy{at}. Let its "
        "producer convert all of it to StableHLO"
    )


def _reason(said: str) -> str:
    """The first of MLIR's diagnostics; without it, the last line."""
    errors = re.findall(r"error: (.*)", said)
    return (errors or said.splitlines()[-1:] or ["no reason is given"])[0].partition(". If this is intended")[0].strip()


def child(seconds: int) -> None:
    """Runs in the process that parses text: reads it from stdin, and writes bytecode or why there is none to stdout.

    If the process that started it has ended, the system ends it after these seconds of CPU time.
    """
    with contextlib.suppress(ImportError, ValueError, OSError):  # Windows; a lower limit is set already
        import resource

        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
    text = sys.stdin.buffer.read()
    try:
        with _jax.make_ir_context():
            module = _jax.ir.Module.parse(text)
            made = _jax.module_to_bytecode(module)
            with contextlib.suppress(jax.errors.JaxRuntimeError):  # it has other dialects, which the caller names
                made = _jax.serialize_portable_artifact(module, _jax.newest_stablehlo(), True)
            unheld = "" if _is_portable(made) and _is_taken(made) else _unheld(module)
        sys.stdout.buffer.write(unheld.encode() or made)
        sys.exit(_UNHELD if unheld else 0)
    except Exception as error:  # of several types, as in `mlir.parse`
        sys.stdout.buffer.write(str(error).encode())
        sys.exit(1)


def _unheld(module: Any) -> str:
    """The message for the first type or constant of a module that no artifact can hold; empty if there is none."""
    known = set[str]()
    for operation in mlir.iter_operations(module):
        value = _attribute(operation, "value")
        # jaxlib's bindings have no class for constants that stand apart from their operations.
        if type(value) is _jax.ir.Attribute and (text := str(value)).startswith("dense_resource<"):
            why = "they were left out when it was printed" if "<__elided__" in text else "they stand apart"
            return (
                f"the module has the constant {text} without its numbers ({why}): let its producer print all numbers, "
                "as dense<...>"
            )
        for type_ in {*map(str, _types(operation))} - known:
            known.add(type_)
            if not _is_type_held(type_):
                return f"the module has the type {type_}, which no artifact can hold"
    return ""


def _types(operation: Any) -> Iterator[Any]:
    """The types of what an operation makes, and of the arguments of functions and blocks in it."""
    yield from (value.type for value in operation.results)
    yield from (argument.type for region in operation.regions for block in region for argument in block.arguments)
    type_ = _attribute(operation, "function_type")
    if isinstance(type_, _jax.ir.TypeAttr) and isinstance(type_.value, _jax.ir.FunctionType):
        yield from (*type_.value.inputs, *type_.value.results)


def _attribute(operation: Any, name: str) -> Any:
    """An attribute of an operation; None if it has none of this name, or one for which jaxlib has no class. Others are
    not looked at: their names may be no text, which ends the process.
    """
    with contextlib.suppress(TypeError):
        return operation.attributes.get(name)
    return None


def _is_type_held(type_: str) -> bool:
    try:
        alone = _jax.ir.Module.parse(f"func.func @main(%x: {type_}) {{ return }}")
        return _is_taken(_jax.serialize_portable_artifact(alone, _jax.newest_stablehlo(), True))
    except Exception:  # of several types, as in `mlir.parse`
        return False

"""Modules of exports as VHLO's text, and what they become when the text is changed: MLIR verifies little of VHLO."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import jax

import jaxexp
from jaxexp import _jax
from jaxexp._kernel.artifact import module_head
from kit.other_modules import context


def text_of(function: Callable[..., Any], *arguments: Any) -> str:
    """The module of an exported function, in MLIR's generic form."""
    exported = jaxexp.export(jax.jit(function))(*arguments)
    with _jax.make_ir_context():
        module = _jax.ir.Module.parse(bytes(exported.mlir_module_serialized))
        return str(module.operation.get_asm(print_generic_op_form=True))


def bytecode(text: str) -> bytes:
    """Text as MLIR bytecode, with the operations that it has."""
    with context():
        file = io.BytesIO()
        _jax.ir.Module.parse(text).operation.write_bytecode(file)
        return file.getvalue()


def for_version(blob: bytearray, version: str, operation: str = "") -> bytearray:
    """Says that a module is for another version of StableHLO, and optionally that it holds an operation unheard of."""
    module = bytes(jaxexp.deserialize(bytes(blob)).mlir_module_serialized)
    was = module_head.stablehlo_of(module_head.producer(module))
    assert was is not None
    assert len(was) == len(version)
    changed = module.replace(was.encode(), version.encode(), 1)
    if operation:
        assert operation.encode() in changed
        changed = changed.replace(operation.encode(), operation[:-1].encode() + b"9")
    return bytearray(bytes(blob).replace(module, changed))

"""The digest of what a function means: equal for equal programs, whatever their names are and wherever they were
written.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
from collections.abc import Sequence
from typing import Any

import jax

from jaxexp import _jax, _native
from jaxexp._kernel.codec import binding
from jaxexp._kernel.function import vjps
from jaxexp._kernel.module import locations, mlir
from jaxexp._kernel.releases.table import RELEASES, number

_FIRST_BYTES = b"meaning of a jaxexp artifact, 1"
_CALLING_CONVENTION = 10  # one for all: it only says which readers an artifact is for


def meaning_of(exported: Any, weights: Sequence[bytes]) -> str:
    """The SHA-256 digest of a function with its VJPs, and of its weights' digests, as a hexadecimal number."""
    binding.bind()
    chain = [
        dataclasses.replace(
            function,
            fun_name="",
            calling_convention_version=_CALLING_CONVENTION,
            mlir_module_serialized=canonical(bytes(function.mlir_module_serialized)),
            _get_vjp=None,
        )
        for function in vjps.stored_chain(exported)
    ]
    found = hashlib.sha256(_FIRST_BYTES)
    parts: list[bytes | bytearray] = [_native.encode(chain, "", _native.Form(), None), *weights]
    for part in parts:
        found.update(len(part).to_bytes(8, "little"))
        found.update(part)
    return found.hexdigest()


# What the names of the user's arguments are written as.
_NAMES_OF_VALUES = ("jax.result_info", "jax.arg_info")


def canonical(serialized: bytes) -> bytes:
    """A serialized module without names, in the oldest version of StableHLO that can express it."""
    with mlir.reading(), _jax.make_ir_context() as context:
        module = mlir.parse(serialized, context)
        locations.reduce(module, "none")
        _rename(module)
        return _oldest(module)


def _rename(module: Any) -> None:
    """Numbers the functions of a module, but not main; and takes away its name and those of values.

    A name that is also a text in some attribute stays: custom calls have the names of functions as texts.
    """
    ir, attributes = _jax.ir, module.operation.attributes
    if "sym_name" in attributes:
        del attributes["sym_name"]
    functions = [operation for operation in module.body.operations if operation.operation.name == "func.func"]
    names = [ir.StringAttr(function.attributes["sym_name"]).value for function in functions]
    for function in functions:
        for key in ("arg_attrs", "res_attrs"):
            if key in function.attributes:
                function.attributes[key] = _attributes_without_names(function.attributes[key])
    operations = list(mlir.iter_operations(module))
    texts = {text for operation in operations for text in mlir.texts(operation)}
    kept = {name for name in names if name == "main" or name.encode() in texts}
    free = (number for number in map("function.{}".format, itertools.count()) if number not in kept)
    numbered = {name: next(free) for name in names if name not in kept}
    for function, name in zip(functions, names, strict=True):
        if name in numbered:
            function.attributes["sym_name"] = ir.StringAttr.get(numbered[name])
    for operation in operations:
        for key, value in mlir.readable_items(operation.attributes):
            if (renamed := _renamed(value, numbered)) is not value:
                operation.attributes[key] = renamed


def _attributes_without_names(values: Any) -> Any:
    ir = _jax.ir
    kept = [
        {key: value for key, value in mlir.items(ir.DictAttr(one)) if key not in _NAMES_OF_VALUES} for one in values
    ]
    return ir.ArrayAttr.get([ir.DictAttr.get(one) for one in kept])


def _renamed(value: Any, names: dict[str, str]) -> Any:
    """An attribute with other names of functions in it; itself if it has none."""
    ir = _jax.ir
    if isinstance(value, ir.FlatSymbolRefAttr):
        return ir.FlatSymbolRefAttr.get(names[value.value]) if value.value in names else value
    if isinstance(value, ir.ArrayAttr):
        parts = [(part, _renamed(part, names)) for part in value]
        return ir.ArrayAttr.get([new for _, new in parts]) if any(new is not old for old, new in parts) else value
    if isinstance(value, ir.DictAttr):
        items = [(key, part, _renamed(part, names)) for key, part in mlir.readable_items(value)]
        changed = {key: new for key, old, new in items if new is not old}
        return ir.DictAttr.get({**dict(mlir.items(value)), **changed}) if changed else value
    return value


def _oldest(module: Any) -> bytes:
    """A module in the oldest version of StableHLO that can express it. Later versions can express it, too."""
    versions = sorted({release.stablehlo for release in RELEASES}, key=number)
    versions = [version for version in versions if number(version) <= number(_jax.newest_stablehlo())]
    found = mlir.serialize_for(module, versions.pop())
    low, high = 0, len(versions)
    while low < high:
        middle = (low + high) // 2
        try:
            found = mlir.serialize_for(module, versions[middle])
            high = middle
        except jax.errors.JaxRuntimeError:
            low = middle + 1
    return found

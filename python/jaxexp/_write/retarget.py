"""An exported function for an older reader: its module in that reader's StableHLO, without what came later."""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import jax

from jaxexp import _jax
from jaxexp._artifact import module_head as _bytecode
from jaxexp._module import to_gspmd as _to_gspmd
from jaxexp._releases import table as _releases

from . import reader as _reader
from .reader import MAX, Reader, TooOldReaderError

if TYPE_CHECKING:
    from jaxexp._exported import Exported


def for_choice(chain: Sequence[Exported], compatibility: str) -> tuple[Reader, list[Exported]]:
    """A function and its VJPs as the reader can have them, which the parameter `compatibility` names.

    Raises:
        ExportError: the choice names no reader, or the reader cannot be told of one of the functions.
    """
    if compatibility != MAX:
        reader = _reader.reader_of(compatibility)
        return reader, [for_reader(exported, reader) for exported in chain]
    return oldest(lambda reader: [for_reader(exported, reader) for exported in chain])


def lowering_context(compatibility: str | None) -> Any:
    """In which a function is lowered for a reader: without Shardy for one that does not know it."""
    if compatibility is None or (compatibility != MAX and _reader.reader_of(compatibility).has_shardy):
        return contextlib.nullcontext()
    return _jax.shardy_flag(False)


def oldest(write: Any) -> tuple[Reader, Any]:
    """The oldest reader for which `write` succeeds, and what that returns.

    Raises:
        TooOldReaderError: there is none.
    """
    since: tuple[int, ...] = ()
    while True:
        reader = next(reader for reader in _reader.readers() if reader.version >= since)
        try:
            return reader, write(reader)
        except TooOldReaderError as error:
            if error.since is None:
                raise
            since = error.since


def for_reader(exported: Exported, reader: Reader) -> Exported:
    """The same function for a reader; itself where nothing is to be changed.

    Raises:
        TooOldReaderError: names what the reader cannot be told.
    """
    _reader.check(exported, reader)
    module = _module_for(exported, reader)
    convention = min(exported.calling_convention_version, reader.release.newest_convention)
    if module is None and convention == exported.calling_convention_version:
        return exported
    return dataclasses.replace(
        exported,
        mlir_module_serialized=exported.mlir_module_serialized if module is None else module,
        calling_convention_version=convention,
    )


def _module_for(exported: Exported, reader: Reader) -> bytes | None:
    """None where the module can stay as it is."""
    serialized = exported.mlir_module_serialized
    has_shardy = _bytecode.may_name(serialized, "sdy") and not reader.has_shardy
    written = _bytecode.stablehlo_of(_bytecode.producer(serialized))
    too_new = written is None or _releases.number(written) > _releases.number(reader.stablehlo)
    if not (has_shardy or too_new or _bytecode.may_name(serialized, "custom_call")):
        return None
    with _jax.make_ir_context() as context:
        module = _jax.deserialize_module(serialized, context)
        _check_custom_calls(module, reader, exported.fun_name)
        _check_four_bits(module, reader, exported.fun_name)
        if not (has_shardy or too_new):
            return None
        if not reader.has_composites:
            _jax.expand_composites(module)
        serialized = _serialized(module, reader, exported.fun_name)
    return _without_shardy(serialized, reader, exported.fun_name) if has_shardy else serialized


def _without_shardy(serialized: bytes, reader: Reader, fun_name: str) -> bytes:
    """A module in GSPMD's terms. It comes in the reader's StableHLO, so that its collectives name no meshes."""

    def refuse(what: str) -> NoReturn:
        advice = f", or export the function with compatibility={reader.choice!r}, which lowers it without Shardy"
        raise reader.refusal(fun_name, what, _reader.SHARDY, advice)

    with _jax.make_ir_context() as context:
        module = _jax.deserialize_module(serialized, context)
        _jax.import_shardy_attributes(module)
        _to_gspmd.without_shardy(module, refuse)
        return _serialized(module, reader, fun_name)


def _check_custom_calls(module: Any, reader: Reader, fun_name: str) -> None:
    """Refuses custom calls that the reader's jaxlib does not have yet."""
    for target in sorted({target for target, _ in _jax.custom_calls(module)}):
        since = _reader.custom_call_since(target)
        if since is not None and since > reader.version:
            raise reader.refusal(fun_name, f"its module calls {target}, which that release lacks", since)


def _check_four_bits(module: Any, reader: Reader, fun_name: str) -> None:
    """Refuses arithmetic in 4-bit integers for compilers that only convert them."""
    if reader.computes_in_four_bits:
        return
    for operation in _jax.iter_operations(module):
        if operation.name.startswith("stablehlo.") and operation.name not in ("stablehlo.convert", "stablehlo.return"):
            values = [*operation.operands, *operation.results]
            if any(re.search(r"[x<]u?i4>", str(value.type)) for value in values):
                what = f"its module computes in 4-bit integers ({operation.name})"
                raise reader.refusal(fun_name, what, _reader.FOUR_BITS)


def _serialized(module: Any, reader: Reader, fun_name: str) -> bytes:
    """A module in the reader's StableHLO.

    Raises:
        TooOldReaderError: names the operation or the type that this version does not have.
    """
    try:
        return _jax.serialize_module_for(module, reader.stablehlo)
    except jax.errors.JaxRuntimeError as error:
        since = _first_to_read(module, reader)
        raise reader.refusal(
            fun_name,
            f"its module has {_not_in_stablehlo(str(error))} that is not in StableHLO {reader.stablehlo}, which that "
            "release reads",
            None if since is None else since.version,
        ) from error


def _first_to_read(module: Any, reader: Reader) -> Reader | None:
    """The first release after `reader` whose StableHLO can say a module. What one version can say, later ones can."""
    newer = [r for r in _reader.readers() if r.version > reader.version]
    low, high = 0, len(newer)
    while low < high:
        middle = (low + high) // 2
        try:
            _jax.serialize_module_for(module, newer[middle].stablehlo)
            high = middle
        except jax.errors.JaxRuntimeError:
            low = middle + 1
    return newer[low] if low < len(newer) else None


# What StableHLO has called element types that came after its version 1.0.
_NEW_TYPES = {"i2", "ui2", "f8E3M4", "f8E4M3", "f4E2M1FN", "f6E2M3FN", "f6E3M2FN", "f8E8M0FNU"}


def _not_in_stablehlo(message: str) -> str:
    """What jaxlib's message is about, by the names that it has in a module."""
    operation = re.search(r"failed to legalize operation 'vhlo\.(\w+?)_v\d+'", message)
    if operation is None:
        return f"something ({message.strip().splitlines()[-1]})"
    name = "a function" if operation[1] in ("func", "return") else f"stablehlo.{operation[1]}"
    if types := sorted(set(re.findall(r"!vhlo\.(\w+?)_v\d+", message)) & _NEW_TYPES):
        return f"{name} of element type {' and '.join(types)}"
    return f"{name}, or a form of it,"

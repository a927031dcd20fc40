"""Rewrites an exported function for an older reader: its module in that reader's StableHLO, without later features."""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Sequence
from typing import Any, NoReturn

import jax

from jaxexp import _jax
from jaxexp._errors import TooOldReaderError, cause
from jaxexp._kernel.artifact import module_head
from jaxexp._kernel.function.data import E, ExportedData
from jaxexp._kernel.module import composites, mlir, shardy_texts, to_gspmd
from jaxexp._kernel.releases import features, stablehlo
from jaxexp._kernel.releases.table import number

from . import reader as readers
from .reader import MAX, Reader


def for_choice(chain: Sequence[E], compatibility: str, weights: int = 0) -> tuple[Reader, list[E]]:
    """A function and its VJPs in the form for the reader that `compatibility` names."""
    if compatibility != MAX:
        reader = readers.reader_of(compatibility)
        return reader, [for_reader(exported, reader, weights) for exported in chain]
    return oldest(lambda reader: [for_reader(exported, reader, weights) for exported in chain])


def lowering_context(compatibility: str | None) -> Any:
    """The context for lowering a function for a reader: without Shardy if the reader does not know it."""
    if compatibility is None or (compatibility != MAX and readers.reader_of(compatibility).release.shardy):
        return contextlib.nullcontext()
    return _jax.shardy_flag(False)


def oldest(write: Any) -> tuple[Reader, Any]:
    """The oldest reader for which `write` succeeds, and the result of `write`; a TooOldReaderError if there is none."""
    since: features.Version = ()
    while True:
        reader = next(reader for reader in readers.readers() if reader.version >= since)
        try:
            return reader, write(reader)
        except TooOldReaderError as error:
            if error.since is None:
                raise
            since = error.since


def for_reader(exported: E, reader: Reader, weights: int = 0) -> E:
    """The same function for a reader, or a TooOldReaderError; the function itself if nothing has to change."""
    readers.check(exported, reader, weights)
    module = _Rewriting(exported, reader).module()
    convention = min(exported.calling_convention_version, reader.release.newest_convention)
    if module is None and convention == exported.calling_convention_version:
        return exported
    return dataclasses.replace(
        exported,
        mlir_module_serialized=exported.mlir_module_serialized if module is None else module,
        calling_convention_version=convention,
    )


@dataclasses.dataclass(frozen=True, slots=True)
class _Rewriting:
    """A function and the reader that its module is rewritten for."""

    exported: ExportedData
    reader: Reader

    def module(self) -> bytes | None:
        """The rewritten module; None if the module can stay as it is."""
        serialized, reader = self.exported.mlir_module_serialized, self.reader
        has_shardy = module_head.may_name(serialized, "sdy") and not reader.release.shardy
        written = module_head.stablehlo_of(module_head.producer(serialized))
        too_new = written is None or number(written) > number(reader.stablehlo)
        if not (has_shardy or too_new or module_head.may_name(serialized, "custom_call")):
            return None
        with _jax.make_ir_context() as context:
            module = mlir.parse(serialized, context)
            self._check_custom_calls(module)
            self._check_four_bits(module)
            if not (has_shardy or too_new):
                return None
            if reader.version < features.COMPOSITES:
                composites.check(module)
                mlir.expand_composites(module)
            serialized = self._serialized(module)
        return self._without_shardy(serialized) if has_shardy else serialized

    def _without_shardy(self, serialized: bytes) -> bytes:
        """A module in GSPMD's terms. It is already in the reader's StableHLO, so its collectives do not name meshes."""
        lowered = f", or export the function with compatibility={self.reader.choice!r}, which lowers it without Shardy"

        def refuse(what: str) -> NoReturn:
            raise self._refusal(what, features.SHARDY, lowered)

        with _jax.make_ir_context() as context:
            module = mlir.parse(serialized, context)
            shardy_texts.import_(module)
            shardy_texts.check_axes(module)
            to_gspmd.without_shardy(module, refuse)
            return self._serialized(module)

    def _check_custom_calls(self, module: Any) -> None:
        """Refuses custom calls that the reader's jaxlib does not have yet."""
        for target in sorted({target for target, _ in mlir.custom_calls(module)}):
            since = features.custom_call_since(target)
            if since is not None and since > self.reader.version:
                raise self._refusal(f"its module calls {target}, which that release lacks", since)

    def _check_four_bits(self, module: Any) -> None:
        """Refuses arithmetic in 4-bit integers for compilers that only convert them."""
        if self.reader.version >= features.FOUR_BITS:
            return
        for operation in mlir.iter_operations(module):
            name = operation.name
            if name.startswith("stablehlo.") and name not in ("stablehlo.convert", "stablehlo.return"):
                values = [*operation.operands, *operation.results]
                if any(re.search(r"[x<]u?i4>", str(value.type)) for value in values):
                    raise self._refusal(f"its module computes in 4-bit integers ({name})", features.FOUR_BITS)

    def _serialized(self, module: Any) -> bytes:
        """A module in the reader's StableHLO; a TooOldReaderError names what this version lacks."""
        version = self.reader.stablehlo
        try:
            return mlir.serialize_for(module, version)
        except jax.errors.JaxRuntimeError as error:
            since = _first_to_read(module, self.reader)
            what = f"its module has {_not_in_stablehlo(str(error))} that is not in StableHLO {version}"
            raise self._refusal(
                f"{what}, which that release reads", None if since is None else since.version
            ) from cause(error)

    def _refusal(self, what: str, since: features.Version | None, advice: str = "") -> TooOldReaderError:
        return self.reader.refusal(self.exported.fun_name, what, since, advice)


def _first_to_read(module: Any, reader: Reader) -> Reader | None:
    """The first release after `reader` whose StableHLO can express a module. Later versions can express it, too."""
    newer = [r for r in readers.readers() if r.version > reader.version]
    low, high = 0, len(newer)
    while low < high:
        middle = (low + high) // 2
        try:
            mlir.serialize_for(module, newer[middle].stablehlo)
            high = middle
        except jax.errors.JaxRuntimeError:
            low = middle + 1
    return newer[low] if low < len(newer) else None


def _not_in_stablehlo(message: str) -> str:
    """The subject of jaxlib's message, with the names that modules use."""
    operation = re.search(r"failed to legalize operation 'vhlo\.(\w+?)_v\d+'", message)
    if operation is None:
        return f"something ({message.strip().splitlines()[-1]})"
    name = "a function" if operation[1] in ("func", "return") else f"stablehlo.{operation[1]}"
    if types := sorted(set(re.findall(r"!vhlo\.(\w+?)_v\d+", message)) & stablehlo.NEW_ELEMENT_TYPES):
        return f"{name} of element type {' and '.join(types)}"
    return f"{name}, or a form of it,"

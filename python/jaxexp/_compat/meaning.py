"""The digest of what a function means: equal for equal programs, whatever their names are and wherever they were
written.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Sequence
from typing import Any

from jaxexp import _native
from jaxexp._kernel.codec import binding
from jaxexp._kernel.function import vjps
from jaxexp._kernel.function.data import ExportedData
from jaxexp._kernel.module.canonical import canonical

_FIRST_BYTES = b"meaning of a jaxexp artifact, 1"
_CALLING_CONVENTION = 10  # one for all: it only says which readers an artifact is for


def meaning_of(exported: Any, weights: Sequence[bytes]) -> str:
    """The SHA-256 digest of a function with its VJPs, and of its weights' digests, as a hexadecimal number."""
    binding.bind()
    chain = [_without_names(function) for function in vjps.stored_chain(exported)]
    found = hashlib.sha256(_FIRST_BYTES)
    parts: list[bytes | bytearray] = [_native.encode(chain, "", _native.Form(), None), *weights]
    for part in parts:
        found.update(len(part).to_bytes(8, "little"))
        found.update(part)
    return found.hexdigest()


def _without_names(function: ExportedData) -> ExportedData:
    return dataclasses.replace(
        function,
        fun_name="",
        calling_convention_version=_CALLING_CONVENTION,
        mlir_module_serialized=canonical(bytes(function.mlir_module_serialized)),
        _get_vjp=None,
    )

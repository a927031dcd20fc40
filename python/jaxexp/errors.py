"""The errors that jaxexp raises on purpose.

`ExportError`, a ValueError, is the base of all. Each one is also an instance of the built-in type that `jax.export`
raises in the same situation.
"""

from __future__ import annotations

import importlib

# The names and where each one lives, as in `__init__.py`. Type checkers read `errors.pyi`, which is made from this
# table: run `make format` after a change.
_HOMES = {
    "BusyError": "_errors",
    "ChangedArtifactError": "_errors",
    "DeserializationError": "_errors",
    "ExecutablesError": "_errors",
    "ExportBufferError": "_errors",
    "ExportError": "_errors",
    "ExportPicklingError": "_errors",
    "ExportRuntimeError": "_errors",
    "ExportTypeError": "_errors",
    "FatalArtifactError": "_errors",
    "ForeignModuleError": "_errors",
    "JournalError": "_errors",
    "ModuleError": "_errors",
    "PolicyError": "_errors",
    "RefusedError": "_readback.refused",
    "RunError": "_errors",
    "SerializationError": "_errors",
    "SerializationKeyError": "_errors",
    "SerializationTypeError": "_errors",
    "SignatureError": "_errors",
    "TooOldReaderError": "_errors",
    "UnexpectedDimError": "_kernel.function.specs",
    "UnfitWorkerError": "_errors",
    "UnknownCustomCallError": "_kernel.module.custom_calls",
    "UnsupportedArtifactError": "_errors",
    "UnsupportedError": "_errors",
    "UnsupportedModuleError": "_errors",
    "UnsupportedSerializationError": "_errors",
    "WeightsError": "_errors",
    "WorkerError": "_errors",
}

__all__ = list(_HOMES)  # pyright: ignore[reportUnsupportedDunderAll]  # it is written out in the stub


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f".{_HOMES[name]}", __package__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})

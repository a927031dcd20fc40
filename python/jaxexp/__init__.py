"""jaxexp: `jax.export` at native speed. Use it as ``import jaxexp as export``.

Each public name is loaded when it is first used; JAX is loaded with the first name that needs it.
"""

from __future__ import annotations

import importlib
import sys

__version__ = "0.1.0"

# The public names and where each one lives: "module", or "module:name" where it has another name there.
# Type checkers and editors read `__init__.pyi`, which is made from this table: run `make format` after a change.
_HOMES = {
    "Archive": "_archive",
    "ArchiveWriter": "_archive_writer",
    "Compatibility": "_compatibility",
    "DeserializationError": "_errors",
    "DisabledSafetyCheck": "_disabled_check",
    "ExportError": "_errors",
    "Exported": "_exported",
    "Handle": "_archive",
    "Inspection": "_inspect",
    "Policy": "_policy",
    "PolicyError": "_errors",
    "SerializationError": "_errors",
    "Summary": "_summary",
    "SymbolicScope": "_jax",
    "UnsupportedError": "_errors",
    "compatibility": "_compatibility",
    "default_export_platform": "_export",
    "deserialize": "_load",
    "export": "_export",
    "inspect": "_inspect",
    "install": "_install",
    "is_symbolic_dim": "_jax",
    "load": "_load",
    "load_many": "_bulk",
    "maximum_supported_calling_convention_version": "_convention:NEWEST_VERSION",
    "maximum_supported_serialization_version": "_convention:NEWEST_VERSION",  # its name before 2024
    "migrate": "_migrate",
    "minimum_supported_calling_convention_version": "_convention:OLDEST_VERSION",
    "minimum_supported_serialization_version": "_convention:OLDEST_VERSION",  # its name before 2024
    "prefetch": "_prefetch",
    "register_namedtuple_serialization": "_registry",
    "register_pytree_node_serialization": "_registry",
    "symbolic_args_specs": "_jax",
    "symbolic_dim_bounds": "_jax",
    "symbolic_shape": "_jax",
    "uninstall": "_install",
}

__all__ = list(_HOMES)


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, _, name_there = home.partition(":")
    value = getattr(importlib.import_module(f".{module}", __name__), name_there or name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


if "jax" in sys.modules:
    # A JAX that cannot be supported is refused here, and jax.export learns to read jaxexp's own nodes.
    importlib.import_module("._registry", __name__)

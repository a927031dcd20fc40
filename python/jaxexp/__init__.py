"""jaxexp: `jax.export` at native speed. Use it as ``import jaxexp as export``.

The names below load JAX when the first of them is used, unless the process has loaded it already.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

from ._convention import NEWEST_VERSION as maximum_supported_calling_convention_version
from ._convention import OLDEST_VERSION as minimum_supported_calling_convention_version
from ._errors import DeserializationError as DeserializationError
from ._errors import ExportError as ExportError
from ._errors import PolicyError as PolicyError
from ._errors import SerializationError as SerializationError
from ._errors import UnsupportedError as UnsupportedError

if TYPE_CHECKING:
    from ._bulk import load_many as load_many
    from ._compatibility import Compatibility as Compatibility
    from ._compatibility import compatibility as compatibility
    from ._disabled_check import DisabledSafetyCheck as DisabledSafetyCheck
    from ._export import default_export_platform as default_export_platform
    from ._export import export as export
    from ._exported import Exported as Exported
    from ._inspect import Inspection as Inspection
    from ._inspect import inspect as inspect
    from ._install import install as install
    from ._install import uninstall as uninstall
    from ._jax import SymbolicScope as SymbolicScope
    from ._jax import is_symbolic_dim as is_symbolic_dim
    from ._jax import symbolic_args_specs as symbolic_args_specs
    from ._jax import symbolic_dim_bounds as symbolic_dim_bounds
    from ._jax import symbolic_shape as symbolic_shape
    from ._load import deserialize as deserialize
    from ._load import load as load
    from ._migrate import migrate as migrate
    from ._policy import Policy as Policy
    from ._prefetch import prefetch as prefetch
    from ._registry import register_namedtuple_serialization as register_namedtuple_serialization
    from ._registry import register_pytree_node_serialization as register_pytree_node_serialization

__version__ = "0.1.0"

# Names that JAX gave these two before 2024.
maximum_supported_serialization_version = maximum_supported_calling_convention_version
minimum_supported_serialization_version = minimum_supported_calling_convention_version

_HOME = {
    "Archive": "_archive",
    "ArchiveWriter": "_archive_writer",
    "Compatibility": "_compatibility",
    "DisabledSafetyCheck": "_disabled_check",
    "Exported": "_exported",
    "Handle": "_archive",
    "Inspection": "_inspect",
    "Policy": "_policy",
    "Summary": "_summary",
    "SymbolicScope": "_jax",
    "compatibility": "_compatibility",
    "default_export_platform": "_export",
    "deserialize": "_load",
    "export": "_export",
    "inspect": "_inspect",
    "install": "_install",
    "is_symbolic_dim": "_jax",
    "load": "_load",
    "load_many": "_bulk",
    "migrate": "_migrate",
    "prefetch": "_prefetch",
    "register_namedtuple_serialization": "_registry",
    "register_pytree_node_serialization": "_registry",
    "symbolic_args_specs": "_jax",
    "symbolic_dim_bounds": "_jax",
    "symbolic_shape": "_jax",
    "uninstall": "_install",
}

__all__ = [
    "Archive",
    "ArchiveWriter",
    "Compatibility",
    "DeserializationError",
    "DisabledSafetyCheck",
    "ExportError",
    "Exported",
    "Handle",
    "Inspection",
    "Policy",
    "PolicyError",
    "SerializationError",
    "Summary",
    "SymbolicScope",
    "UnsupportedError",
    "compatibility",
    "default_export_platform",
    "deserialize",
    "export",
    "inspect",
    "install",
    "is_symbolic_dim",
    "load",
    "load_many",
    "maximum_supported_calling_convention_version",
    "maximum_supported_serialization_version",
    "migrate",
    "minimum_supported_calling_convention_version",
    "minimum_supported_serialization_version",
    "prefetch",
    "register_namedtuple_serialization",
    "register_pytree_node_serialization",
    "symbolic_args_specs",
    "symbolic_dim_bounds",
    "symbolic_shape",
    "uninstall",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f".{_HOME[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


if "jax" in sys.modules:
    # A JAX that cannot be supported is refused here, and jax.export learns to read jaxexp's own nodes.
    importlib.import_module("._registry", __name__)

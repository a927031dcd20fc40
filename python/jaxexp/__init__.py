"""jaxexp: `jax.export` at native speed. Use it as ``import jaxexp as export``.

The names below load JAX when the first of them is used, unless the process has loaded it already.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

from ._errors import DeserializationError as DeserializationError
from ._errors import ExportError as ExportError
from ._errors import PolicyError as PolicyError
from ._errors import SerializationError as SerializationError
from ._errors import UnsupportedError as UnsupportedError
from ._function.convention import NEWEST_VERSION as maximum_supported_calling_convention_version
from ._function.convention import OLDEST_VERSION as minimum_supported_calling_convention_version
from ._version import __version__ as __version__

if TYPE_CHECKING:
    from ._artifact.inspect import inspect as inspect
    from ._artifact.inspection import Inspection as Inspection
    from ._call.prefetch import prefetch as prefetch
    from ._codec.nodes import register_namedtuple_serialization as register_namedtuple_serialization
    from ._codec.nodes import register_pytree_node_serialization as register_pytree_node_serialization
    from ._compat.compatibility import Compatibility as Compatibility
    from ._compat.compatibility import compatibility as compatibility
    from ._compat.install import install as install
    from ._compat.install import uninstall as uninstall
    from ._compat.migrate import migrate as migrate
    from ._export.export import default_export_platform as default_export_platform
    from ._export.export import export as export
    from ._exported import Exported as Exported
    from ._function.safety_check import DisabledSafetyCheck as DisabledSafetyCheck
    from ._jax import SymbolicScope as SymbolicScope
    from ._jax import is_symbolic_dim as is_symbolic_dim
    from ._jax import symbolic_args_specs as symbolic_args_specs
    from ._jax import symbolic_dim_bounds as symbolic_dim_bounds
    from ._jax import symbolic_shape as symbolic_shape
    from ._read.load import deserialize as deserialize
    from ._read.load import load as load
    from ._read.many import load_many as load_many
    from ._read.policy import Policy as Policy

# Names that JAX gave these two before 2024.
maximum_supported_serialization_version = maximum_supported_calling_convention_version
minimum_supported_serialization_version = minimum_supported_calling_convention_version

_HOME = {
    "Archive": "_archive.archive",
    "ArchiveWriter": "_archive.writer",
    "Compatibility": "_compat.compatibility",
    "DisabledSafetyCheck": "_function.safety_check",
    "Exported": "_exported",
    "Handle": "_archive.handle",
    "Inspection": "_artifact.inspection",
    "Policy": "_read.policy",
    "Summary": "_archive.summary",
    "SymbolicScope": "_jax",
    "compatibility": "_compat.compatibility",
    "default_export_platform": "_export.export",
    "deserialize": "_read.load",
    "export": "_export.export",
    "inspect": "_artifact.inspect",
    "install": "_compat.install",
    "is_symbolic_dim": "_jax",
    "load": "_read.load",
    "load_many": "_read.many",
    "migrate": "_compat.migrate",
    "prefetch": "_call.prefetch",
    "register_namedtuple_serialization": "_codec.nodes",
    "register_pytree_node_serialization": "_codec.nodes",
    "symbolic_args_specs": "_jax",
    "symbolic_dim_bounds": "_jax",
    "symbolic_shape": "_jax",
    "uninstall": "_compat.install",
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
    importlib.import_module("._codec.nodes", __name__)

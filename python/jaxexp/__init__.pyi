# Made from the table in __init__.py: run `make format` after a change there.
from ._archive import Archive as Archive
from ._archive import Handle as Handle
from ._archive_writer import ArchiveWriter as ArchiveWriter
from ._bulk import load_many as load_many
from ._compatibility import Compatibility as Compatibility
from ._compatibility import compatibility as compatibility
from ._convention import NEWEST_VERSION as maximum_supported_calling_convention_version
from ._convention import NEWEST_VERSION as maximum_supported_serialization_version
from ._convention import OLDEST_VERSION as minimum_supported_calling_convention_version
from ._convention import OLDEST_VERSION as minimum_supported_serialization_version
from ._disabled_check import DisabledSafetyCheck as DisabledSafetyCheck
from ._errors import DeserializationError as DeserializationError
from ._errors import ExportError as ExportError
from ._errors import PolicyError as PolicyError
from ._errors import SerializationError as SerializationError
from ._errors import UnsupportedError as UnsupportedError
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
from ._summary import Summary as Summary

__version__: str

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

# Made from the table in __init__.py: run `make format` after a change there.
from . import errors as errors
from ._api.cases.report import CheckReport as CheckReport
from ._api.export import export as export
from ._api.exported import BoundExported as BoundExported
from ._api.exported import Exported as Exported
from ._api.load import deserialize as deserialize
from ._api.load import load_many as load_many
from ._compat.compatibility import Compatibility as Compatibility
from ._compat.foreign.from_stablehlo import from_stablehlo as from_stablehlo
from ._compat.install import install as install
from ._compat.install import uninstall as uninstall
from ._executables.executables import Executable as Executable
from ._fleet.archive.archive import Archive as Archive
from ._fleet.archive.archive import Handle as Handle
from ._fleet.archive.summary import Summary as Summary
from ._fleet.archive.writer import ArchiveWriter as ArchiveWriter
from ._fleet.passes.many import check_many as check_many
from ._fleet.passes.many import compatibility_many as compatibility_many
from ._fleet.passes.many import digests_many as digests_many
from ._fleet.passes.many import spread as spread
from ._fleet.passes.many import verify_many as verify_many
from ._fleet.passes.migrate_many import migrate_many as migrate_many
from ._fleet.places.inspect import Digests as Digests
from ._fleet.places.inspect import compatibility as compatibility
from ._fleet.places.inspect import digests as digests
from ._fleet.places.inspect import inspect as inspect
from ._fleet.places.inspect import migrate as migrate
from ._fleet.places.load import check as check
from ._fleet.places.load import load as load
from ._fleet.places.load import record as record
from ._fleet.places.sign import sign as sign
from ._fleet.places.verify import verify as verify
from ._jax import SymbolicScope as SymbolicScope
from ._jax import is_symbolic_dim as is_symbolic_dim
from ._jax import symbolic_args_specs as symbolic_args_specs
from ._jax import symbolic_dim_bounds as symbolic_dim_bounds
from ._jax import symbolic_shape as symbolic_shape
from ._kernel.artifact.cases import Case as Case
from ._kernel.artifact.cases import Drawn as Drawn
from ._kernel.artifact.cases import Tolerance as Tolerance
from ._kernel.artifact.inspection import Inspection as Inspection
from ._kernel.codec.nodes import GenericNode as GenericNode
from ._kernel.codec.nodes import register_namedtuple_serialization as register_namedtuple_serialization
from ._kernel.codec.nodes import register_pytree_node_serialization as register_pytree_node_serialization
from ._kernel.export.export import default_export_platform as default_export_platform
from ._kernel.function.convention import NEWEST_VERSION as maximum_supported_calling_convention_version
from ._kernel.function.convention import NEWEST_VERSION as maximum_supported_serialization_version
from ._kernel.function.convention import OLDEST_VERSION as minimum_supported_calling_convention_version
from ._kernel.function.convention import OLDEST_VERSION as minimum_supported_serialization_version
from ._kernel.function.safety_check import DisabledSafetyCheck as DisabledSafetyCheck
from ._kernel.io.compile_cache import compile_cache as compile_cache
from ._policy.policy import Policy as Policy
from ._signing.signed_by import SignedBy as SignedBy

__version__: str

__all__ = [
    "Archive",
    "ArchiveWriter",
    "BoundExported",
    "Case",
    "CheckReport",
    "Compatibility",
    "Digests",
    "DisabledSafetyCheck",
    "Drawn",
    "Executable",
    "Exported",
    "GenericNode",
    "Handle",
    "Inspection",
    "Policy",
    "SignedBy",
    "Summary",
    "SymbolicScope",
    "Tolerance",
    "check",
    "check_many",
    "compatibility",
    "compatibility_many",
    "compile_cache",
    "default_export_platform",
    "deserialize",
    "digests",
    "digests_many",
    "errors",
    "export",
    "from_stablehlo",
    "inspect",
    "install",
    "is_symbolic_dim",
    "load",
    "load_many",
    "maximum_supported_calling_convention_version",
    "maximum_supported_serialization_version",
    "migrate",
    "migrate_many",
    "minimum_supported_calling_convention_version",
    "minimum_supported_serialization_version",
    "record",
    "register_namedtuple_serialization",
    "register_pytree_node_serialization",
    "sign",
    "spread",
    "symbolic_args_specs",
    "symbolic_dim_bounds",
    "symbolic_shape",
    "uninstall",
    "verify",
    "verify_many",
]

"""Says, as JSON, what the JAX that runs it reads and writes. It runs with releases from 0.4.22 on."""

import importlib
import json

import jax
from jaxlib.mlir.dialects import stablehlo


def module(*candidates):
    for name in candidates:
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if not name.startswith(error.name):
                raise
    raise ModuleNotFoundError(candidates)


# It became jax.export in 0.4.30.
export = module(
    "jax.export", "jax._src.export._export", "jax.experimental.export._export", "jax.experimental.export.export"
)
serialization = module(
    "jax._src.export.serialization", "jax.experimental.export.serialization", "jax.experimental.export._serialization"
)
kinds = serialization._dtype_to_dtype_kind
names = {str(dtype): kind for dtype, kind in kinds.items()}


def first(*candidates):
    for candidate in candidates:
        if hasattr(export, candidate):
            return getattr(export, candidate)
    raise LookupError(candidates)


found = {
    "version": jax.__version__,
    "stablehlo": stablehlo.get_current_version(),
    "oldest_stablehlo": stablehlo.get_minimum_version(),
    "shardy": getattr(jax.config, "jax_use_shardy_partitioner", False),
    "conventions": [
        first(f"{end}_supported_calling_convention_version", f"{end}_supported_serialization_version")
        for end in ("minimum", "maximum")
    ],
    "dtypes": sorted(set(names.values())),
    "custom_nodes": hasattr(export, "register_pytree_node_serialization"),
}
print(json.dumps(found))

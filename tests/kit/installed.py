"""What jax.export is, to see whether it has become something else."""

from __future__ import annotations

from jax import export as jax_export
from jax._src.export import _export as private

REGISTRIES = {"serialization_registry", "deserialization_registry"}  # shared with jaxexp, on purpose
STOCK = jax_export.Exported


def everything() -> dict[str, int]:
    """The identity of every attribute of jax.export and of the module behind it."""
    return {
        f"{module.__name__}.{name}": id(value)
        for module in (jax_export, private)
        for name, value in vars(module).items()
        if name not in REGISTRIES
    }

"""Artifacts that jax.export wrote, to be damaged."""

from __future__ import annotations

import dataclasses

from jax import export as jax_export
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from kit.corpus import CASES, export_with


def jax_blob(name: str, vjp_order: int = 0) -> bytearray:
    """A case as jax.export writes it: damage to it does not depend on how jaxexp lays tables out."""
    if name == "two_meshes":
        theirs = export_with(jax_export, CASES["sharded_1d"].build())
        first, second = (AbstractMesh((8,), (axis,), axis_types=(AxisType.Auto,)) for axis in "xy")
        shardings = NamedSharding(first, P("x")), NamedSharding(second, P("y"))
        return bytearray(dataclasses.replace(theirs, _in_named_shardings=shardings).serialize())
    case = CASES[name]
    with case.context():
        return bytearray(export_with(jax_export, case.build()).serialize(vjp_order=vjp_order))

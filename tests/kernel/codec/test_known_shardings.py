"""Equal NamedShardings are made once in a process, and are told apart from all others."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractDevice, AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxexp
from kit.corpus import f32, spec

AUTO, EXPLICIT = (AxisType.Auto, AxisType.Auto), (AxisType.Auto, AxisType.Explicit)


def a_mesh(
    sizes: tuple[int, ...] = (4, 2),
    names: tuple[str, ...] = ("x", "y"),
    types: tuple[Any, ...] = AUTO,
    device: Any = None,
) -> AbstractMesh:
    return AbstractMesh(sizes, names, types, abstract_device=device)


def cpu(**changes: Any) -> AbstractDevice:
    return AbstractDevice(**{"device_kind": "cpu", "num_cores": None, "platform": "cpu", **changes})


ON_MESHES = {
    "sizes": a_mesh((2, 4)),
    "types": a_mesh(types=EXPLICIT),
    "more axes": a_mesh((4, 2, 1), ("x", "y", "z"), (*AUTO, AxisType.Auto)),
    "an axis of one": a_mesh((4, 1)),
    "names": a_mesh(names=("x", "yy")),
    "names that are alike together": a_mesh(names=("x", "y" * 1023)),
    "names that are too long": a_mesh(names=("x", "y" * 1024)),
    "a device": a_mesh(device=cpu()),
    "a kind": a_mesh(device=cpu(device_kind="cpu2")),
    "cores": a_mesh(device=cpu(num_cores=0)),
    "more cores": a_mesh(device=cpu(num_cores=1)),
    "a platform": a_mesh(device=cpu(platform="tpu")),
}
SPECS = {
    "one axis": P("x"),
    "rank 2": P("x", None),
    "second": P(None, "x"),
    "two axes": P("x", "y"),
    "turned": P("y", "x"),
    "together": P(("x", "y")),
    "together, turned": P(("y", "x")),
    "none": P(),
    "none of two": P(None, None),
    "reduced": P(None, None, reduced={"x"}),
    "unreduced": P(None, None, unreduced={"x"}),
    "unreduced along the other": P(None, None, unreduced={"y"}),
    "both": P(None, None, reduced={"y"}, unreduced={"x"}),
}
SHARDINGS = {
    **{name: NamedSharding(mesh, P("x")) for name, mesh in ON_MESHES.items()},
    **{name: NamedSharding(a_mesh(types=(AxisType.Explicit,) * 2), spec) for name, spec in SPECS.items()},
    "memory": NamedSharding(a_mesh(), P("x"), memory_kind="pinned_host"),
    "other memory": NamedSharding(a_mesh(), P("x"), memory_kind="device"),
    "no memory": NamedSharding(a_mesh(), P("x")),
}


def artifact(sharding: NamedSharding) -> bytes:
    exported = jaxexp.export(jax.jit(jnp.sin))(spec((8, 8), f32))
    devices = sharding.mesh.size
    return bytes(dataclasses.replace(exported, nr_devices=devices, _in_named_shardings=(sharding,)).serialize())


def test_shardings_that_differ_in_one_thing() -> None:
    artifacts = {name: artifact(sharding) for name, sharding in SHARDINGS.items()}
    for _ in range(2):  # made, and known
        for name in SHARDINGS:
            (found,) = jaxexp.deserialize(artifacts[name])._in_named_shardings
            assert found == SHARDINGS[name], name
            assert (repr(found), found.memory_kind) == (repr(SHARDINGS[name]), SHARDINGS[name].memory_kind), name
            assert found.mesh.abstract_device == SHARDINGS[name].mesh.abstract_device, name
            assert (found.spec.reduced, found.spec.unreduced) == (
                SHARDINGS[name].spec.reduced,
                SHARDINGS[name].spec.unreduced,
            ), name


@pytest.mark.parametrize("name", ["a device", "both", "memory"])
def test_equal_shardings_are_one_object(name: str) -> None:
    blobs = [artifact(SHARDINGS[name]) for _ in range(2)]
    one, other = (jaxexp.deserialize(blob)._in_named_shardings[0] for blob in blobs)
    assert one is other

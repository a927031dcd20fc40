"""OpShardings of artifacts from before JAX 0.9: the mesh that their numbers describe, without a look at the devices."""

from __future__ import annotations

import math
import random

import pytest

from jaxexp import _jax
from jaxexp._errors import DeserializationError, ExportTypeError
from jaxexp._kernel.function import sharding

OTHER = _jax.OpSharding.Type.OTHER
REPLICATED = _jax.OpSharding.Type.REPLICATED


def tiled(tiles: list[int], lengths: list[int], order: list[int], replicas: str = "") -> _jax.OpSharding:
    proto = _jax.OpSharding()
    proto.type = OTHER
    proto.tile_assignment_dimensions = tiles
    proto.iota_reshape_dims = lengths
    proto.iota_transpose_perm = order
    if replicas == "last":
        proto.replicate_on_last_tile_dim = True
    elif replicas == "subgroup":
        proto.last_tile_dims = [REPLICATED]
    return proto


def factors(source: random.Random, number: int) -> list[int]:
    found = []
    while number > 1:
        found.append(source.choice([d for d in range(2, number + 1) if number % d == 0]))
        number //= found[-1]
    for _ in range(source.randrange(2)):
        found.insert(source.randrange(len(found) + 1), 1)
    return found or [1]


def test_axes_are_those_that_xla_finds() -> None:
    """JAX lists the devices and XLA their axes; both agree with what is computed from the numbers."""
    source, compared = random.Random(7), 0
    for _ in range(3000):
        devices = source.choice([2, 4, 6, 8, 12, 16, 24, 36])
        lengths = factors(source, devices)
        order = source.sample(range(len(lengths)), len(lengths))
        proto = tiled(factors(source, devices), lengths, order, source.choice(["", "", "last", "subgroup"]))
        hlo = _jax.HloSharding.from_proto(proto)
        if hlo.is_replicated() or (hlo.is_maximal() and not hlo.is_tiled()):
            continue
        try:
            sizes, spec = sharding._axes_of_iota(proto)
        except ExportTypeError:
            continue  # XLA would end the process
        sharding._check_tiles(hlo)
        assert list(sizes) == list(hlo.get_axis_sizes()), proto
        mesh = _jax.AbstractMesh(sizes, sharding._axis_names(sizes), (_jax.AxisType.Auto,) * len(sizes))
        assert [spec] == _jax.partition_specs_of_hlo(hlo, mesh), proto
        compared += 1
    assert compared > 1000


def test_parts_of_axes_are_refused() -> None:
    """XLA 2026 ends the process when it is asked for the axes of this one."""
    proto = tiled([18, 2], [3, 4, 3], [1, 0, 2])
    with pytest.raises(ExportTypeError, match="divides an axis"):
        sharding._axes_of_iota(proto)
    with pytest.raises(DeserializationError, match="that a mesh can express"):
        sharding.from_proto(proto.SerializeToString(), _jax.ShapedArray((36, 2), "float32"))


@pytest.mark.parametrize("order", [[0, 1], [1, 0]])
def test_devices_are_not_listed(order: list[int]) -> None:
    lengths = [2**15, 2**16]
    proto = tiled([2**31], lengths, order)
    sizes, spec = sharding._axes_of_iota(proto)
    assert math.prod(sizes) == 2**31
    assert len(sizes) == (1 if order == [0, 1] else 2)
    assert len(spec) == 1

"""Finds `jax.lax.axis_index` again, which JAX lowers to arithmetic on the number of the device."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from jax import lax

from .program import Block, Step

_INDEX, _NUMBER, _DIVIDE, _REMAINDER = "axis_index", "stablehlo.partition_id", "stablehlo.divide", "stablehlo.remainder"


def with_axis_indices(
    steps: list[Step], results: Sequence[int], constants: Mapping[int, np.ndarray[Any, Any]], mesh: Any
) -> list[Step]:
    """Steps in which places along mesh axes are not computed from the number of the device.

    Args:
        steps: the steps of a block.
        results: what the block returns.
        constants: the scalar constants, by their numbers.
        mesh: the mesh of the `jax.shard_map` around the block.
    """
    if mesh is None or all(step.name != _NUMBER for step in steps):
        return steps
    axes: dict[Any, str] = {
        (math.prod(mesh.axis_sizes[i + 1 :]), size): name
        for i, (name, size) in enumerate(zip(mesh.axis_names, mesh.axis_sizes, strict=True))
    }
    makers = {number: step for step in steps for number in step.outputs}

    def made_from(number: int, name: str) -> tuple[int, int | None]:
        """The first operand of the step of this name that makes a value, and the second, a constant."""
        step = makers.get(number)
        if step is None or step.name != name:
            return -1, None
        second = constants.get(step.inputs[-1])
        return step.inputs[0] if step.inputs else number, None if second is None else int(second)

    changed = []
    for step in steps:
        if step.name == "stablehlo.convert" and step.types[0].dtype == np.int32:
            divided, size = made_from(step.inputs[0], _REMAINDER)
            device, stride = made_from(divided, _DIVIDE)
            maker = makers.get(device)
            if maker is not None and maker.name == _NUMBER and (stride, size) in axes:
                step = _index(axes[stride, size], step)
        changed.append(step)
    return _used(changed, results)


def makes_only(block: Block, axes: Collection[str]) -> bool:
    """Whether a block makes nothing but places along some of these axes, and constants."""
    others = [step for step in block.steps if step.name != "stablehlo.constant"]
    return all(step.name == _INDEX and step.attributes["axis"] in axes for step in others)


def _index(name: str, step: Step) -> Step:
    return Step(_INDEX, lambda: (lax.axis_index(name),), (), step.outputs, step.types, {"axis": name})


def _used(steps: Sequence[Step], results: Sequence[int]) -> list[Step]:
    """Steps without the arithmetic that no step uses."""
    used, kept = set(results), []
    for step in reversed(steps):
        if step.name not in (_NUMBER, _DIVIDE, _REMAINDER) or used.intersection(step.outputs):
            used.update(step.inputs)
            kept.append(step)
    return kept[::-1]

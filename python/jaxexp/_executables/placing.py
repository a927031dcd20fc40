"""Where arrays are, as text: the placement that code was compiled for, and the placement of its results."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxexp import _jax


class UnknownPlacementError(Exception):
    """A sharding or a layout that has no text."""


def described(sharding: Any) -> list[Any]:
    """A sharding as JSON; an UnknownPlacementError if its kind is not known here."""
    kind = sharding.memory_kind
    if isinstance(sharding, _jax.SingleDeviceSharding):
        (device,) = sharding.device_set
        return ["device", _id(device), kind]
    if isinstance(sharding, _jax.NamedSharding) and isinstance(sharding.mesh, _jax.Mesh):
        mesh, spec = sharding.mesh, sharding.spec
        if _jax.has_logical_devices(sharding):
            raise UnknownPlacementError("a sharding with logical device ids")
        partitions = [list(entry) if isinstance(entry, tuple) else _name(entry) for entry in spec.partitions]
        return [
            "mesh",
            kind,
            list(mesh.axis_sizes),
            list(mesh.axis_names),
            [type_.name for type_ in mesh.axis_types],
            list(map(_id, mesh.devices.flat)),
            partitions,
            sorted(spec.unreduced),
            sorted(spec.reduced),
        ]
    if isinstance(sharding, _jax.GSPMDSharding):
        proto = _jax.proto_of_hlo_sharding(_jax.hlo_of_gspmd_sharding(sharding)).hex()
        return ["hlo", kind, proto, list(map(_id, _jax.device_assignment(sharding)))]
    raise UnknownPlacementError(f"a {type(sharding).__name__}")


def _id(device: Any) -> int:
    number: int = device.id
    return number


def _name(entry: Any) -> str | None:
    if entry is None or isinstance(entry, str):
        return entry
    raise UnknownPlacementError(f"{entry} in a PartitionSpec")


def restored(text: list[Any], devices: Mapping[int, Any]) -> Any:
    """What `described` described, on devices by their ids."""
    kind, *rest = text
    if kind == "device":
        number, memory = rest
        return _jax.SingleDeviceSharding(devices[number], memory_kind=memory)
    if kind == "hlo":
        memory, proto, ids = rest
        op_sharding = _jax.OpSharding()
        op_sharding.ParseFromString(bytes.fromhex(proto))
        return _jax.GSPMDSharding([devices[i] for i in ids], op_sharding, memory_kind=memory)
    memory, sizes, names, types, ids, partitions, unreduced, reduced = rest
    mesh = _jax.Mesh(
        np.array([devices[i] for i in ids], object).reshape(sizes),
        tuple(names),
        axis_types=tuple(getattr(_jax.AxisType, name) for name in types),
    )
    spec = _jax.PartitionSpec(
        *(tuple(entry) if isinstance(entry, list) else entry for entry in partitions),
        unreduced=frozenset(unreduced),
        reduced=frozenset(reduced),
    )
    return _jax.NamedSharding(mesh, spec, memory_kind=memory)


class Placement(NamedTuple):
    """Where the arguments of a call are.

    Attributes:
        text: a line for each argument; empty for a call on one device. The device is a separate condition, because the
            code is the same whether arrays were placed there or not.
        devices: the devices that the call runs on.
        is_committed: whether its results stay there.
    """

    text: str
    devices: list[Any]
    is_committed: bool


def placement_of(leaves: Sequence[Any]) -> Placement:
    """Where arrays, or specs of them, are. An UnknownPlacementError if a placement or a layout has no text."""
    placed = [_sharding_of(leaf) for leaf in leaves]
    known = [sharding for sharding in placed if sharding is not None]
    if not known:
        return Placement("", [_default_device()], False)
    devices = _jax.device_assignment(known[0])
    if any(set(sharding.device_set) != set(devices) for sharding in known):
        raise UnknownPlacementError("arguments on different devices")
    if all(isinstance(sharding, _jax.SingleDeviceSharding) and _has_default_memory(sharding) for sharding in known):
        return Placement("", devices, True)
    text = "\n".join("" if s is None else json.dumps(described(s)) for s in placed)
    return Placement(text, devices, True)


def _sharding_of(leaf: Any) -> Any:
    """Where an array was placed; None if it was not placed."""
    if isinstance(leaf, jax.Array):
        if not leaf.committed:
            return None
        format_: Any = getattr(leaf, "format")  # noqa: B009  (JAX's stubs lack it)
        if not _jax.is_default_layout(format_.layout, leaf.sharding, jax.typeof(leaf)):
            raise UnknownPlacementError("an argument in a layout of its own")
        return leaf.sharding
    return leaf.sharding if isinstance(leaf, jax.ShapeDtypeStruct) else None


def _has_default_memory(sharding: Any) -> bool:
    (device,) = sharding.device_set
    kind = sharding.memory_kind
    return kind is None or kind == device.default_memory().kind


def _default_device() -> Any:
    config: Any = jax.config  # its types lack its attributes
    device = config.jax_default_device
    if isinstance(device, str):
        return jax.local_devices(backend=device)[0]
    return jax.local_devices()[0] if device is None else device

"""The conditions that decide what a compiler makes of a call: code is used only if all of them are the same.

XLA checks hardly any of them when it reads code. Code from another release, or for another processor, may load and then
compute something else or end the process.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxexp import _jax, _native
from jaxexp._kernel.artifact.words import where_they_differ
from jaxexp._kernel.function import data
from jaxexp._kernel.function.data import ExportedData
from jaxexp._version import __version__

# --- where arrays are, as text: the placement that code was compiled for, and the placement of its results ------------


class UnknownPlacementError(Exception):
    """A sharding or a layout that has no text."""


def described(sharding: Any) -> list[Any]:
    """A sharding as JSON; an UnknownPlacementError if its kind is not known here."""
    kind = sharding.memory_kind
    if isinstance(sharding, _jax.SingleDeviceSharding):
        device: Any = next(iter(sharding.device_set))
        return ["device", device.id, kind]
    if isinstance(sharding, _jax.NamedSharding) and isinstance(sharding.mesh, _jax.Mesh):
        mesh, spec = sharding.mesh, sharding.spec
        devices: list[Any] = list(mesh.devices.flat)  # its types know no device
        if _jax.has_logical_devices(sharding):
            raise UnknownPlacementError("a sharding with logical device ids")
        partitions = [list(entry) if isinstance(entry, tuple) else _name(entry) for entry in spec.partitions]
        return [
            "mesh",
            kind,
            list(mesh.axis_sizes),
            list(mesh.axis_names),
            [type_.name for type_ in mesh.axis_types],
            [device.id for device in devices],
            partitions,
            sorted(spec.unreduced),
            sorted(spec.reduced),
        ]
    if isinstance(sharding, _jax.GSPMDSharding):
        proto = _jax.proto_of_hlo_sharding(_jax.hlo_of_gspmd_sharding(sharding)).hex()
        return ["hlo", kind, proto, [device.id for device in _jax.device_assignment(sharding)]]
    raise UnknownPlacementError(f"a {type(sharding).__name__}")


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
        config: Any = jax.config  # its types lack its attributes
        device = config.jax_default_device
        if device is None or isinstance(device, str):
            device = jax.local_devices(backend=device)[0]
        return Placement("", [device], False)
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


# --- the conditions ---------------------------------------------------------------------------------------------------


def of_function(exported: ExportedData) -> dict[str, str]:
    signature = data.signature(exported, without_scope=True, weak_types=False)
    described = [str(part) for i, part in enumerate(signature) if i not in (1, 3)]  # the trees only arrange arguments
    conditions = {
        "function": data.described(exported),
        "module": module_of(exported),
        "signature": hashlib.sha256("\n".join(described).encode()).hexdigest(),
    }
    if data.is_under_policy(exported):  # it runs another module
        conditions["policy"] = "allowed"
    return conditions


def module_of(exported: ExportedData) -> str:
    """The SHA-256 of a module: nobody may make one that gets, or gives, the code of another one."""
    return data.kept(exported, "module_sha256", lambda e: hashlib.sha256(data.module_view(e)).hexdigest())


def of_call(leaves: Sequence[Any], placement: Placement, results: Sequence[int] | None) -> dict[str, str]:
    """The conditions that a call sets, with flat arguments or specs of them. `results` are as in `Executables.find`."""
    return {
        "results": "all" if results is None else ",".join(map(str, results)),
        "arguments": "\n".join(map(_type_of, leaves)),
        "placement": placement.text,
        "devices": ",".join(str(device.id) for device in placement.devices),
    }


def _type_of(leaf: Any) -> str:
    aval = leaf if isinstance(leaf, jax.ShapeDtypeStruct) else jax.typeof(leaf)
    return f"{aval.dtype}[{','.join(map(str, aval.shape))}]"  # whole: `dtype_and_shape`, for people, cuts long ones


def of(exported: ExportedData, placement: Placement, call: Mapping[str, str]) -> dict[str, str]:
    return {**of_function(exported), **of_machine(placement.devices), **call}


def of_machine(devices: Sequence[Any]) -> dict[str, str]:
    """The conditions that a process sets: releases, settings, and the machine to compile for."""
    client, processes = devices[0].client, jax.process_count()
    target, options = compilation_for(devices)
    return {
        "jaxexp": __version__,
        "jax": jax.__version__,
        "jaxlib": _jax.jaxlib_release,
        "build of jaxlib": _build(),
        "platform": client.platform,
        "platform version": client.platform_version,
        "device": devices[0].device_kind,
        "processor": _native.cpu_features(),
        "XLA_FLAGS": _flags("XLA_FLAGS"),
        "LIBTPU_INIT_ARGS": _flags("LIBTPU_INIT_ARGS"),
        "target": target,
        "compile options": options,
        "partitioner": "Shardy" if _jax.shardy_flag.value else "GSPMD",
        # Of several processes, each has code for its own devices.
        "processes": "1" if processes == 1 else f"{jax.process_index()} of {processes}",
    }


def compilation_for(devices: Sequence[Any]) -> tuple[str, str]:
    """Digests of what the code for some devices depends on: the target in detail, and the compiler's options."""
    assignment = np.array(devices, object).reshape(1, -1)
    options = _jax.compile_options(1, len(devices), assignment, backend=devices[0].client)
    # Where JAX's own cache is does not change the code.
    for place in ("xla_gpu_per_fusion_autotune_cache_dir", "xla_gpu_kernel_cache_file"):
        with contextlib.suppress(AttributeError):  # as in another release of XLA
            setattr(options.executable_build_options.debug_options, place, "")
    hashed = hashlib.sha256()
    _jax.hash_options(hashed, options)
    return f"{_jax.topology_of(list(devices)).fingerprint():016x}", hashed.hexdigest()[:32]


def _flags(name: str) -> str:
    return " ".join(os.environ.get(name, "").split())  # of two flags of one name, the last one counts


@functools.cache
def _build() -> str:
    """A digest of jaxlib's libraries: builds of one version may differ."""
    folder, ends = Path(_jax.jaxlib_folder), (".so", ".dylib", ".dll", ".pyd")
    hashed = hashlib.sha256()
    try:  # a wheel lists its files with their digests
        lines = (folder.parent / f"jaxlib-{_jax.jaxlib_release}.dist-info" / "RECORD").read_text().splitlines()
    except OSError:
        lines = []
    if listed := sorted(line for line in lines if "sha256=" in line and any(f"{end}," in line for end in ends)):
        hashed.update("\n".join(listed).encode())
    else:
        for library in sorted(path for path in folder.rglob("*") if path.suffix in ends):
            hashed.update(library.read_bytes())
    return hashed.hexdigest()[:32]


def of_sessions(record: Mapping[str, str]) -> str | None:
    """That code is not for JAX, and whether this processor is the one that it is for: a session compares the rest, when
    it has started its plugin. None for code of JAX.
    """
    if "jaxlib" in record:
        return None
    why = difference(record, {"processor": _native.cpu_features()})
    return f"for sessions (jaxexp.runtime) {'on this processor' if why is None else f'elsewhere: {why}'}"


def difference(
    record: Mapping[str, str], here: Mapping[str, str], paths: Callable[[], Sequence[str]] = tuple
) -> str | None:
    """The first condition in which a record differs from this process; None if there is none.

    `paths` returns the paths of the arguments: a condition with a line for each argument names the one that differs.
    """
    for name, value in here.items():
        if (compiled_for := record.get(name)) == value:
            continue
        if compiled_for is None:
            return f"{name}: compiled for an unknown value, here it is {_in_one_line(value)}"
        if name in ("arguments", "placement"):
            pairs = zip(paths(), compiled_for.split("\n"), value.split("\n"), strict=False)
            for path, theirs, ours in pairs:
                if theirs != ours:
                    return _compared(path if name == "arguments" else f"{name} of {path}", theirs, ours)
        return _compared(name, compiled_for, value)
    return None


def _compared(what: str, theirs: str, ours: str) -> str:
    theirs, ours = where_they_differ(_in_one_line(theirs), _in_one_line(ours))
    return f"{what}: compiled for {theirs}, here it is {ours}"


def _in_one_line(value: str) -> str:
    return value.replace("\n", ", ") or "none"

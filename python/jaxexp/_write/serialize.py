"""Between `Exported` objects and bytes: the only caller of the native encoder and decoder."""

from __future__ import annotations

import functools
import numbers
import os
import types
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax

from jaxexp import __version__, _jax, _native
from jaxexp._artifact import metadata as _metadata
from jaxexp._codec import nodes as _registry
from jaxexp._errors import ExportError, ExportTypeError, UnsupportedArtifactError, UnsupportedSerializationError
from jaxexp._function import sharding as _sharding
from jaxexp._function.safety_check import DisabledSafetyCheck
from jaxexp._io import files as _files

from . import retarget as _retarget

if TYPE_CHECKING:
    from jaxexp._exported import Exported


# What most artifacts are written with.
_TODAY = _native.Form()
_WRITER = f"jaxexp {__version__}"
_NOTES = _native.Notes(_WRITER, {})


def serialize(
    exported: Exported, vjp_order: int, compatibility: str | None, trailer: bool, metadata: Mapping[str, Any] | None
) -> bytearray:
    return _native.encode(*_encoder_arguments(exported, vjp_order, compatibility, trailer, metadata))


def save(
    exported: Exported,
    path: str | os.PathLike[str],
    vjp_order: int,
    compatibility: str | None,
    trailer: bool,
    metadata: Mapping[str, Any] | None,
) -> None:
    arguments = _encoder_arguments(exported, vjp_order, compatibility, trailer, metadata)
    _files.replace(path, _native.encode_parts(*arguments))


def _encoder_arguments(
    exported: Exported, vjp_order: int, compatibility: str | None, trailer: bool, metadata: Mapping[str, Any] | None
) -> tuple[Any, ...]:
    _bind()
    chain = _chain(exported, vjp_order)
    notes = _notes(exported, trailer, metadata)
    if compatibility is None:
        compatibility = exported.__dict__.get("_compatibility")  # asked for by name, an absent one takes longer
    if compatibility is None:
        return chain, jax.__version__, _TODAY, notes
    reader, chain = _retarget.for_choice(chain, compatibility)
    return chain, jax.__version__, reader.form, notes


def _notes(exported: Exported, trailer: bool, metadata: Mapping[str, Any] | None) -> _native.Notes | None:
    """What a trailer says of the whole artifact. A function that was loaded keeps its metadata, unless there is new."""
    if not trailer:
        if metadata is None:
            return None
        raise ExportError(
            f"{_described(exported)} cannot be serialized with metadata and trailer=False: metadata is in the trailer"
        )
    if metadata is None:
        metadata = exported.__dict__.get("_metadata")
        if not metadata:
            return _NOTES
    return _native.Notes(_WRITER, _metadata.to_json(metadata))


def read(buffer: Any, modules: Sequence[Any] = ()) -> _native.Artifact:
    """Verifies a buffer; `decode` of what this returns gives the fields of an Exported.

    Where there are modules, one for each function, the buffer is what `_native.cut` left of an artifact.
    """
    _bind()
    try:
        return _native.Artifact(buffer, modules)
    except TypeError as error:
        raise ExportTypeError(
            f"an artifact is read from a buffer such as bytes, bytearray, memoryview or mmap, not {type(buffer)}"
        ) from error


def reader_of_many(makes: Any, workers: int, stop: bool) -> _native.ReadMany:
    """Reads many buffers or files at once, and makes Exported objects of them, or exceptions."""
    _bind()
    return _native.ReadMany(makes, workers, stop)


def _chain(exported: Exported, vjp_order: int) -> list[Exported]:
    """The function, its VJP, the VJP of that, and so on."""
    # A negative one is as good as 0. The first question is the quick one.
    if type(vjp_order) is not int and not isinstance(vjp_order, numbers.Integral):
        raise ExportTypeError(
            f"{_described(exported)} cannot be serialized with vjp_order={vjp_order!r}: "
            "it is the number of VJPs to include, an int"
        )
    chain = [exported]
    for order in range(1, vjp_order + 1):
        if not chain[-1].has_vjp():
            raise ExportError(
                f"{_described(exported)} cannot be serialized with vjp_order={vjp_order}: it was loaded from an "
                f"artifact that holds its VJPs up to order {order - 1}. Serialize the original with "
                f"vjp_order={exported._origin[1] + vjp_order} or more"
            )
        chain.append(chain[-1].vjp())
    return chain


def _described(exported: Exported) -> str:
    name, order = exported._origin
    return f"the VJP of order {order} of {name}" if order else name


@functools.cache
def _bind() -> None:
    """Hands the native module what it builds JAX's objects with."""
    _native.bind(
        types.SimpleNamespace(
            ShapedArray=_jax.ShapedArray,
            create_aval=_jax.create_aval,
            plain_avals=_jax.plain_avals,
            with_sharding=_jax.with_sharding,
            with_weak_type=lambda aval: aval.update(weak_type=True),
            SymbolicScope=_jax.SymbolicScope,
            constraints_of=_jax.constraints_of,
            dimension_variable=_jax.dimension_variable,
            dimension_operation=_jax.dimension_operation,
            NamedSharding=_jax.NamedSharding,
            PartitionSpec=_jax.PartitionSpec,
            AbstractMesh=_jax.AbstractMesh,
            AbstractDevice=_jax.AbstractDevice,
            axis_types=(_jax.AxisType.Auto, _jax.AxisType.Explicit, _jax.AxisType.Manual),
            memory_spaces=(_jax.MemorySpace.Device, _jax.MemorySpace.Host, _jax.MemorySpace.Any),
            dtypes=_registry.DTYPES,
            dtype_of_kind=_registry.dtype_of_kind,
            kind_of_dtype=_registry.kind_of_dtype,
            PyTreeDef=_jax.PyTreeDef,
            tree_registry=_jax.tree_registry,
            tree_state_known=_jax.tree_state_known,
            tree_structure=jax.tree_util.tree_structure,
            custom_node_name=_registry.custom_node_name,
            build_custom_node=_registry.build_custom_node,
            effect_name=_effect_name,
            effect_of_name=_effect_of_name,
            safety_check_target=_safety_check_target,
            safety_check=_safety_check,
            sharding_of_proto=_sharding.from_proto,
            proto_of_sharding=_jax.proto_of_hlo_sharding,
        )
    )


def _effect_name(effect: Any) -> str:
    """What stands for an effect in the bytes: its type, so any two effects of that type have to be equal."""
    effect_type = type(effect)
    try:
        same = effect_type() == effect and hash(effect_type()) == hash(effect)
    except Exception as error:
        raise UnsupportedSerializationError(
            f"the effect {effect} cannot be serialized: its type {effect_type} must be hashable and constructible "
            f"without arguments, but that raises {type(error).__name__}: {error}"
        ) from error
    if not same:
        raise UnsupportedSerializationError(
            f"the effect {effect} cannot be serialized: only its type is stored, and {effect_type}() does not equal it"
        )
    return str(effect_type)


def _effect_of_name(name: str) -> Any:
    for effect_type in _jax.lowerable_effect_types:
        if str(effect_type) == name:
            try:
                return effect_type()
            except Exception as error:
                raise UnsupportedArtifactError(
                    "", "an effect type that is constructed without arguments", f"{name}: {error}"
                ) from error
    raise UnsupportedArtifactError(
        "", "an effect type that JAX knows in this process", f"{name}; import the module that registers it first"
    )


def _safety_check_target(check: Any) -> str | None:
    target: str | None = check.is_custom_call()
    if target is None and str(check) != "platform":
        raise UnsupportedSerializationError(f"the disabled safety check {check} has no serialized form")
    return target


def _safety_check(kind: int, target: str | None) -> Any:
    if kind == 0:
        return DisabledSafetyCheck.platform()
    # Kind 2 was a switch for shape assertions, retired in 2024; its readers treat it as any other directive.
    return DisabledSafetyCheck.custom_call(target or "") if kind == 1 else DisabledSafetyCheck("shape_assertions")

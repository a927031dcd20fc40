"""The module of a function: where its bytes are, whether two functions have the same, and which arguments it takes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from jaxexp import _native
from jaxexp._errors import ExportError

from .kept import attributes_of

if TYPE_CHECKING:
    from jaxexp._native import Artifact


def artifact_of(exported: Any) -> Artifact | None:
    """The artifact that a function was loaded from."""
    return attributes_of(exported).get("_artifact")


def module_view(exported: Any) -> bytes | memoryview:
    """The module without a copy: a view into the loaded artifact, or the bytes once they were made.

    Raises:
        DeserializationError: the module is damaged.
    """
    artifact = _artifact_with_module(exported)
    return exported.mlir_module_serialized if artifact is None else artifact.module()


def module_size(exported: Any) -> int:
    """How many bytes the module has. This does not read it."""
    artifact = _artifact_with_module(exported)
    return len(exported.mlir_module_serialized) if artifact is None else artifact.module_size


def _artifact_with_module(exported: Any) -> Artifact | None:
    """The artifact that holds the module; None once the module was made as bytes."""
    return None if "mlir_module_serialized" in attributes_of(exported) else artifact_of(exported)


def have_equal_modules(one: Any, other: Any) -> bool:
    """Whether two functions have the same modules, damaged or not. If their digests differ, nothing is read. If these
    are equal, the bytes decide: somebody can make others of the same digest.
    """
    digests = _digest(one), _digest(other)
    return (None in digests or digests[0] == digests[1]) and _native.equal_bytes(_unchecked(one), _unchecked(other))


def _digest(exported: Any) -> bytes | None:
    """What the trailer says of the module; None if there is no trailer, or the module was made as bytes."""
    artifact = _artifact_with_module(exported)
    said: Any = None if artifact is None else artifact.trailer()
    if artifact is None or said is None:
        return None
    _, order = artifact.origin or ("", 0)
    digest: bytes = said["functions"][order]["module_digest"]
    return digest


def _unchecked(exported: Any) -> bytes | memoryview:
    artifact = _artifact_with_module(exported)
    return exported.mlir_module_serialized if artifact is None else artifact.unchecked_module()


def kept_indices(named: Iterable[int], count: int) -> tuple[int, ...]:
    """The indices of the arguments that a module takes, each once and ascending, whatever order names them.

    Raises:
        ExportError: one of them is no index of the `count` arguments.
    """
    kept = set(named)
    if wrong := kept.difference(range(count)):
        raise ExportError(
            f"module_kept_var_idx has indices of the {count} arguments in in_avals, found {wrong.pop()!r}"
        )
    return tuple(i for i in range(count) if i in kept)

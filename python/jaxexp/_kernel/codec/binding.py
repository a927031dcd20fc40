"""The functions with which the native codec builds JAX's objects: effects, safety checks, symbolic dimensions."""

from __future__ import annotations

import functools
import itertools
import operator
import types
from collections.abc import Sequence
from typing import Any

import jax

from jaxexp import _jax, _native
from jaxexp._errors import UnsupportedArtifactError, UnsupportedSerializationError, cause
from jaxexp._kernel.function.safety_check import DisabledSafetyCheck
from jaxexp._kernel.function.sharding import from_proto

from . import dtypes, nodes, treedefs


@functools.cache
def bind() -> None:
    """Gives the native module the functions with which it builds JAX's objects."""
    _native.bind(
        types.SimpleNamespace(
            ShapedArray=_jax.ShapedArray,
            create_aval=_jax.create_aval,
            plain_avals=_jax.plain_avals,
            with_sharding=_jax.with_sharding,
            SymbolicScope=LoadedScope,
            constraints_of=_jax.constraints_of,
            add_constraint=_jax.add_constraint,
            dimension_of_terms=_from_terms,
            dimension_layout=_jax.dimension_layout,
            dimension_variable=_jax.dimension_variable,
            dimension_operation=_jax.dimension_operation,
            NamedSharding=_jax.NamedSharding,
            PartitionSpec=_jax.PartitionSpec,
            AbstractMesh=_jax.AbstractMesh,
            AbstractDevice=_jax.AbstractDevice,
            axis_types=(_jax.AxisType.Auto, _jax.AxisType.Explicit, _jax.AxisType.Manual),
            memory_spaces=(_jax.MemorySpace.Device, _jax.MemorySpace.Host, _jax.MemorySpace.Any),
            dtypes=dtypes.DTYPES,
            dtype_of_kind=dtypes.dtype_of_kind,
            kind_of_dtype=dtypes.kind_of_dtype,
            PyTreeDef=_jax.PyTreeDef,
            tree_registry=_jax.tree_registry,
            tree_state_known=treedefs.state_is_known,
            tree_structure=jax.tree_util.tree_structure,
            custom_node_name=nodes.custom_node_name,
            build_custom_node=nodes.build_custom_node,
            resolve_library_nodes=nodes.resolved,
            effect_name=_effect_name,
            effect_of_name=_effect_of_name,
            safety_check_target=_safety_check_target,
            safety_check=_safety_check,
            sharding_of_proto=from_proto,
            proto_of_sharding=_jax.proto_of_hlo_sharding,
        )
    )


def _effect_name(effect: Any) -> str:
    """The name of an effect in the bytes. It names only the type, so all effects of that type must be equal."""
    effect_type = type(effect)
    try:
        same = effect_type() == effect and hash(effect_type()) == hash(effect)
    except Exception as error:
        raise UnsupportedSerializationError(
            f"the effect {effect} cannot be serialized: its type {effect_type} must be hashable and constructible "
            f"without arguments, but that raises {type(error).__name__}: {error}"
        ) from cause(error)
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
                ) from cause(error)
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


# --- symbolic dimensions from their terms, without JAX's arithmetic ---------------------------------------------------
# Multiplying factors and adding terms one by one takes some ten microseconds each. The terms of a printed dimension
# only have to be put in JAX's order. The native codec does that and fills the slots of JAX's objects, if it knows them.


# A factor: a variable's name, or an operation's name with its operands; then its exponent.
Factor = tuple[str, Sequence["Terms"], int]
Terms = Sequence[tuple[int, Sequence[Factor]]]


class LoadedScope(_jax.SymbolicScope):
    """The scope of dimensions that were read from an artifact.

    `jax.export` reads no constraints. So they bound dimensions here, but a traced call leaves them to the assertions in
    the module, which check the sizes of what runs.
    """


def _from_terms(terms: Terms, scope: Any) -> Any:
    """The symbolic dimension that is the sum of these terms, or an int; no equality substitutes anything in its scope.
    Raises a ValueError if two terms, or two factors of a term, are equal: all releases print such terms as one.
    """
    pairs = [(_jax.DimTerm(tuple(_sorted([_factor(f, scope) for f in factors]))), number) for number, factors in terms]
    if len(pairs) == 1 and not terms[0][1]:
        return terms[0][0]
    return _jax.dimension_of_sorted_terms(tuple(_sorted(pairs)), scope)


def _factor(factor: Factor, scope: Any) -> tuple[Any, int]:
    name, operands, exponent = factor
    if not operands:
        return _jax.DimFactor.from_var(name), exponent
    return _jax.DimFactor.from_operation(name, *(_from_terms(o, scope) for o in operands), scope=scope), exponent


def _sorted(pairs: list[tuple[Any, int]]) -> list[tuple[Any, int]]:
    if len(pairs) < 2:
        return pairs
    # In linear time for the order in which today's releases print them.
    pairs.sort(key=operator.itemgetter(0), reverse=True)
    for one, other in itertools.pairwise(pairs):
        if one[0] == other[0]:
            raise ValueError(f"{one[0]} twice")
    return pairs

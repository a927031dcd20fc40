"""The specs that stand for arguments, and the errors of their symbolic dimensions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jaxexp import _jax
from jaxexp._errors import ExportError
from jaxexp._public import public

from .data import ExportedData


@public
class UnexpectedDimError(ExportError, _jax.UnexpectedDimVar):
    """Symbolic dimensions that JAX refuses with an error of its own, which is no ValueError: a constraint has a name
    that no shape has.
    """


def error_of_dims(error: Exception, message: str) -> ExportError:
    """An error of jaxexp that is also an instance of JAX's."""
    return (UnexpectedDimError if isinstance(error, _jax.UnexpectedDimVar) else ExportError)(message)


def check_dims(fun_name: str, args_specs: Sequence[Any], kwargs_specs: dict[str, Any]) -> None:
    """Refuses argument specs with negative sizes, and with symbolic dimensions from several scopes, which cannot be
    compared.
    """
    first: tuple[Any, Any] | None = None
    for path, spec in jax.tree_util.tree_flatten_with_path((tuple(args_specs), kwargs_specs))[0]:
        for index, dim in enumerate(getattr(spec, "shape", ())):
            if not _jax.is_symbolic_dim(dim):
                if isinstance(dim, (int, np.integer)) and dim < 0:
                    raise ExportError(
                        f"{fun_name} needs sizes of at least 0, but {_jax.describe_key_path(path)}.shape[{index}] is "
                        f"{dim}: a size that calls may choose is a symbolic dimension, as in symbolic_shape('batch, 4')"
                    )
            elif first is None:
                first = dim, path
            elif dim.scope is not first[0].scope:
                raise ExportError(
                    f"{fun_name} needs all symbolic dimensions in one scope, but "
                    f"{first[0]} in {_jax.describe_key_path(first[1])} and {dim} in {_jax.describe_key_path(path)} "
                    "come from two scopes: make them with one call of symbolic_shape or symbolic_args_specs, or pass "
                    "scope="
                )


def is_taken_as(dtype: Any, wanted: Any) -> bool:
    """Whether JAX takes arrays of a dtype for those of another one: without 64 bits, NumPy's int64 for int32."""
    return bool(dtype == wanted) or (
        isinstance(dtype, np.dtype) and isinstance(wanted, np.dtype) and jax.dtypes.canonicalize_dtype(dtype) == wanted
    )


def dimension_variables(exported: ExportedData) -> tuple[str, ...]:
    """The names of the dimension variables in the shapes of a function's arguments."""
    return tuple(_jax.all_dim_vars(exported.in_avals))


def of_sizes(exported: ExportedData, sizes: Mapping[str, int]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Specs for all arguments of a function, with a size for each of its dimension variables."""
    names = dimension_variables(exported)
    values: list[Any] = [sizes[name] for name in names]
    specs = [jax.ShapeDtypeStruct(_jax.evaluate_shape(a.shape, names, *values), a.dtype) for a in exported.in_avals]
    args, kwargs = jax.tree_util.tree_unflatten(exported.in_tree, specs)
    return args, kwargs

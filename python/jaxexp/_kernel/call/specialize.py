"""`Exported.specialize`: the same function with symbolic dimensions replaced, as a new Exported."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax

from jaxexp import _jax
from jaxexp._errors import ExportError
from jaxexp._kernel.function import data
from jaxexp._kernel.function.convention import OLDEST_VERSION
from jaxexp._kernel.function.data import E, ExportedData
from jaxexp._kernel.function.paths import argument_path
from jaxexp._kernel.function.specs import check_one_scope, is_taken_as
from jaxexp._kernel.function.vjps import DerivedVjp
from jaxexp._kernel.module import batch_dim, main, mlir

from . import trees
from .primitive import SPECIALIZING, abstract_eval, check


def specialize(exported: E, args_specs: tuple[Any, ...], kwargs_specs: dict[str, Any]) -> E:
    in_avals = specialized_avals(exported, args_specs, kwargs_specs)
    check(exported, in_avals, SPECIALIZING)
    out_avals, _ = abstract_eval(*in_avals, exported=exported)
    if in_avals == exported.in_avals:
        return exported

    still_symbolic = _jax.any_symbolic(in_avals)
    module = main.for_shapes(exported, in_avals, out_avals, still_symbolic)
    # With several platforms, the caller still chooses between them.
    needs_refinement = still_symbolic or (exported.uses_global_constants and len(exported.platforms) > 1)
    main.say_whether_polymorphic(module, needs_refinement)
    batch = batch_dim.declare_again(module, exported, in_avals, out_avals) if still_symbolic else None
    version = exported.calling_convention_version
    return dataclasses.replace(
        exported,
        in_avals=in_avals,
        out_avals=out_avals,
        mlir_module_serialized=mlir.serialize(module),
        # Old conventions differ only in their tokens.
        calling_convention_version=version if exported.ordered_effects else max(version, OLDEST_VERSION),
        uses_global_constants=needs_refinement,
        _facts=data.facts_of(exported)._replace(sizes=None, padded=None if batch is None else (batch,)),
        _get_vjp=_SpecializedVjp(exported) if exported.has_vjp() else None,
    )


def specialized_avals(
    exported: ExportedData, args_specs: tuple[Any, ...], kwargs_specs: dict[str, Any]
) -> tuple[Any, ...]:
    """The abstract values of the arguments, with the shapes of specs."""
    check_one_scope(exported.fun_name, args_specs, kwargs_specs)
    given, in_tree = jax.tree_util.tree_flatten((args_specs, kwargs_specs))
    wrong = next((spec for spec in given if not hasattr(spec, "shape")), None)
    if wrong is not None and in_tree != exported.in_tree:
        raise ExportError(
            f"specializing {exported.fun_name}: for each argument, pass something with its new shape, as in "
            f"specialize(jax.ShapeDtypeStruct((8, 3), 'float32')), not {wrong!r}"
        )
    specs = trees.fit(exported, in_tree, given, SPECIALIZING[0]).arranged(given)
    return tuple(_with_shape_of(spec, exported, index) for index, spec in enumerate(specs))


def _with_shape_of(spec: Any, exported: ExportedData, index: int) -> Any:
    """The abstract value of an argument, in the shape of `spec`, whose dtype must be the argument's own."""
    aval = exported.in_avals[index]
    shape, dtype = getattr(spec, "shape", None), getattr(spec, "dtype", None)
    if shape is None or dtype is None:
        raise ExportError(
            f"specializing {exported.fun_name}: for {argument_path(exported.in_tree, index)}, pass something with a "
            f"shape and a dtype, such as a jax.ShapeDtypeStruct, not {spec!r}"
        )
    if not is_taken_as(dtype, aval.dtype):
        raise ExportError(
            f"specializing {exported.fun_name}: {argument_path(exported.in_tree, index)} has dtype {aval.dtype}, the "
            f"spec says {dtype}{trees.about_dtypes(aval.dtype, dtype)}"
        )
    plain = _jax.ShapedArray(tuple(shape), aval.dtype, aval.weak_type, memory_space=aval.memory_space)
    if len(shape) != aval.ndim:
        return plain  # refused like an argument of that rank
    return _jax.with_sharding(plain, aval.sharding)


class _SpecializedVjp(DerivedVjp):
    __slots__ = ()

    def __call__(self, primal: Any) -> Any:
        (origin,) = self.of
        cotangents = [aval.to_ct_aval() for aval in primal.out_avals]
        return specialize(origin.vjp(), (*primal.in_avals, *cotangents), {})

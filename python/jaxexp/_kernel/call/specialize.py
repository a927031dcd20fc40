"""`Exported.specialize`: the same function with symbolic dimensions replaced, as a new Exported; sets of sizes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

import jax

from jaxexp import _jax
from jaxexp._errors import ExportError, ExportTypeError, cause
from jaxexp._kernel.artifact.scalars import sizes_by_name
from jaxexp._kernel.function import data
from jaxexp._kernel.function.convention import OLDEST_VERSION
from jaxexp._kernel.function.data import E, ExportedData
from jaxexp._kernel.function.paths import argument_path
from jaxexp._kernel.function.specs import check_dims, dimension_variables, is_taken_as
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
    check_dims(exported.fun_name, args_specs, kwargs_specs)
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


# --- sets of sizes of dimension variables, which are saved with a function for those who compile it -------------------


_MOST = 64  # as in cpp/wire/artifact/trailer.h
_SAVING = "saving", "saved for"


def checked_sizes(exported: ExportedData, sizes: Iterable[Mapping[str, int]] | None) -> list[dict[str, int]] | None:
    """`sizes` of `Exported.save`, each set once; None for None."""
    if sizes is None:
        return None
    if not isinstance(sizes, Iterable):
        raise ExportTypeError(
            f"saving {exported.fun_name}: sizes takes a list of sets such as {{'batch': 8}}, not {sizes!r:.80}"
        )
    names = sorted(dimension_variables(exported))
    found: list[dict[str, int]] = []
    for given in sizes:
        try:
            one = dict(sorted(sizes_by_name(given).items()))
        except TypeError as error:
            raise ExportTypeError(f"saving {exported.fun_name}: {error}") from cause(error)
        if not names or list(one) != names or not all(0 < size < 1 << 63 for size in one.values()):
            expected = "it takes no sizes, because it has no symbolic dimensions"
            if names:
                expected = f"a set of sizes has a size from 1 to 2^63 - 1 for each of {', '.join(names)}"
            raise ExportError(f"saving {exported.fun_name}: {expected}, found {given!r}")
        _check_constraints(exported, one)
        if one not in found:
            found.append(one)
    if len(found) > _MOST:
        raise ExportError(f"saving {exported.fun_name}: there is room for {_MOST} sets of sizes, found {len(found)}")
    return found


def padded_names(exported: ExportedData, pad: str | Iterable[str]) -> tuple[str, ...]:
    """`pad` of `Exported.save`, each name once, in ascending order."""
    names = sorted(dimension_variables(exported))
    found = [*pad] if isinstance(pad, Iterable) and not isinstance(pad, str) else [pad]
    if not all(isinstance(name, str) for name in found):
        raise ExportTypeError(
            f"saving {exported.fun_name}: pad takes names of symbolic dimensions, as in pad=('batch',), not {pad!r}"
        )
    if unknown := [name for name in found if name not in names]:
        takes = f"takes names of its symbolic dimensions, {', '.join(names)}"
        if not names:
            takes = "is not possible, because it has no symbolic dimensions"
        raise ExportError(f"saving {exported.fun_name}: pad {takes}, found {unknown[0]!r}")
    return tuple(sorted(set(found)))


def sizes_fit(exported: ExportedData, sizes: Mapping[str, int]) -> bool:
    """Whether sizes of all dimension variables satisfy the constraints of a function."""
    try:
        _check_constraints(exported, sizes)
    except ExportError:
        return False
    return True


def _check_constraints(exported: ExportedData, sizes: Mapping[str, int]) -> None:
    values: list[Any] = [*sizes.values()]
    shapes = (_jax.evaluate_shape(aval.shape, tuple(sizes), *values) for aval in exported.in_avals)
    avals = [_jax.ShapedArray(shape, aval.dtype) for shape, aval in zip(shapes, exported.in_avals, strict=True)]
    check(exported, avals, _SAVING)

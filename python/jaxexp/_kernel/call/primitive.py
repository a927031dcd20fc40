"""The primitives that call an exported function, and their types.

`call_exported_p` calls the function. `pushforward_p` is its derivative in a direction. It is linear in the direction,
so it transposes to a call of the VJP, as reverse mode needs. If forward mode really runs it, it is computed from the
VJP of the VJP: the results for the cotangents are the pushforward.

The parameter `results` says which results are wanted, if not all. The compiler then drops the code for the others: a
gradient by the inputs of a model does not compute the gradient by its weights.

Their rules are in `lowering` and `derivatives`; `call` has the one of `jax.vmap`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from jaxexp import _jax
from jaxexp._errors import ExportError, ExportTypeError, cause, in_one_line
from jaxexp._kernel.artifact.words import cut
from jaxexp._kernel.codec.binding import LoadedScope
from jaxexp._kernel.function import data, specs
from jaxexp._kernel.function.data import ExportedData
from jaxexp._kernel.function.paths import argument_path, taking_placeholders
from jaxexp._kernel.function.sharding import in_call, meshes_of_call
from jaxexp._kernel.io import compile_cache

from . import trees

call_exported_p = _jax.Primitive("call_exported")
call_exported_p.multiple_results = True

pushforward_p = _jax.Primitive("call_exported_pushforward")
pushforward_p.multiple_results = True


def call(arguments: Sequence[Any], exported: ExportedData, results: Sequence[int] | None = None) -> Any:
    """The results of a function, or those at some indices."""
    if results is None or len(results) == len(exported.out_avals):
        return call_exported_p.bind(*arguments, exported=exported)
    return call_exported_p.bind(*arguments, exported=exported, results=tuple(results))


def abstract_eval(
    *in_avals: Any, exported: ExportedData, results: tuple[int, ...] | None = None
) -> tuple[tuple[Any, ...], set[Any]]:
    """The types of the results, and the effects, for arguments of these types."""
    types, effects = _types_and_effects(exported, in_avals)
    return types if results is None else tuple(types[i] for i in results), effects


@_jax.cached_with_first()
def _types_and_effects(exported: ExportedData, in_avals: tuple[Any, ...]) -> tuple[tuple[Any, ...], set[Any]]:
    names, sizes = check(exported, in_avals, is_traced=True)
    meshes = meshes_of_call(exported._in_named_shardings, in_avals)
    out_avals = []
    for aval, sharding in zip(exported.out_avals, exported._out_named_shardings, strict=True):
        shape = _jax.evaluate_shape(aval.shape, names, *sizes)
        plain = _jax.ShapedArray(shape, aval.dtype, aval.weak_type, memory_space=aval.memory_space)
        out_avals.append(_jax.with_sharding(plain, in_call(sharding, meshes)))
    return tuple(out_avals), {*exported.ordered_effects, *exported.unordered_effects}


call_exported_p.def_effectful_abstract_eval(abstract_eval)


# jit takes NumPy scalars of these dtypes, and fails late.
_OF_TIME = np.datetime64, np.timedelta64

# What messages say before the name of the function, and before a type that it was given.
CALLING = "calling", "called with"
SPECIALIZING = "specializing", "specialized to"


def check(
    exported: ExportedData, in_avals: Sequence[Any], doing: tuple[str, str] = CALLING, *, is_traced: bool = False
) -> tuple[Sequence[str], list[Any]]:
    """The dimension variables of a function, and their values for arguments of these types.

    Args:
        exported: the function.
        in_avals: the types.
        doing: what messages say.
        is_traced: whether it is a call inside of another function, of which nobody knows yet with which sizes it will
            run. Constraints that the function was loaded with are left to its module then.

    Raises:
        ExportError: the types do not fit.
    """
    with _jax.outside_of_traces():  # arguments are named by making their trees, and flax.nnx then asks for a trace
        _check_arguments(in_avals, exported, doing)
        return _solve_dim_vars(in_avals, exported, doing, is_traced)


def _check_arguments(in_avals: Sequence[Any], exported: ExportedData, doing: tuple[str, str]) -> None:
    """Compares ranks, dtypes and constant dimensions; symbolic ones are left to `_solve_dim_vars`."""
    for index, (expected, actual) in enumerate(zip(exported.in_avals, in_avals, strict=True)):
        if expected is actual:  # JAX interns abstract values
            continue
        if not isinstance(actual, _jax.ShapedArray):
            _mismatch(exported, doing, index, None, "an array", str(actual))
        if expected.dtype != actual.dtype and any(_jax.issubdtype(actual.dtype, kind) for kind in _OF_TIME):
            where = argument_path(exported.in_tree, index)
            raise ExportTypeError(
                f"{doing[0]} {data.described(exported)}: {where} must have dtype {expected.dtype}, found {actual.dtype}"
                ", which is not a dtype of JAX"
            )
        if len(expected.shape) != len(actual.shape):
            _mismatch(exported, doing, index, None, f"rank {expected.ndim}", f"rank {actual.ndim}", expected, actual)
        if expected.dtype != actual.dtype:
            _mismatch(
                exported, doing, index, None, f"dtype {expected.dtype}", f"dtype {actual.dtype}", expected, actual
            )
        for axis, (wanted, given) in enumerate(zip(expected.shape, actual.shape, strict=True)):
            if _jax.is_constant_dim(wanted) and not (_jax.is_constant_dim(given) and wanted == given):
                _mismatch(exported, doing, index, axis, f"size {wanted}", f"size {given}", expected, actual)


def _mismatch(
    exported: ExportedData,
    doing: tuple[str, str],
    index: int,
    axis: int | None,
    expected: str,
    found: str,
    *avals: Any,
) -> None:
    where = argument_path(exported.in_tree, index, axis)
    hint = trees.about_dtypes(*(aval.dtype for aval in avals)) if avals else ""
    whole = f" (exported with {cut(str(avals[0]))}, {doing[1]} {cut(str(avals[1]))}){hint}" if avals else ""
    raise ExportError(f"{doing[0]} {data.described(exported)}: {where} must have {expected}, found {found}{whole}")


def _solve_dim_vars(
    in_avals: Sequence[Any], exported: ExportedData, doing: tuple[str, str], is_traced: bool
) -> tuple[Sequence[str], list[Any]]:
    """The dimension variables of an exported function, and their values for these arguments."""
    names = _jax.all_dim_vars(exported.in_avals)
    if not names:
        return names, []
    try:
        (in_tree,) = taking_placeholders(exported.in_tree)
        solution, checks, sources = _jax.solve_dim_vars(exported.in_avals, args_kwargs_tree=in_tree)
        sizes: Any = _jax.ShapeEvaluator({name: in_avals[index].shape[axis] for name, index, axis in sources})
        try:
            checks.check_statically(sizes)
        except ValueError as error:
            if not (is_traced and _has_loaded_scope(exported) and is_about_a_constraint(error)):
                raise
        return names, [sizes.evaluate(solution[name]) for name in names]
    except _jax.dim_vars_errors as error:
        reason = broken(error, exported, in_avals)
        raise specs.error_of_dims(error, f"{doing[0]} {data.described(exported)}: {reason}") from cause(error)


def _has_loaded_scope(exported: ExportedData) -> bool:
    dims = (dim for aval in exported.in_avals for dim in aval.shape if _jax.is_symbolic_dim(dim))
    return isinstance(next(dims).scope, LoadedScope)


def executables_of(exported: ExportedData) -> Any:
    """The executables that were given with a function when it was loaded; None if there are none."""
    return vars(exported._kept).get("executables")


def code_of(
    executables: Any,
    exported: Any,
    leaves: Sequence[Any],
    compiled: Callable[[], Any],
    results: tuple[int, ...] | None = None,
) -> Any:
    """The code of a call, if it is among a function's executables, or in the compile cache; else None.

    Args:
        compiled: makes the `jax.stages.Compiled` of the call, for the compile cache.

    Raises:
        ExportError: the arguments do not fit.
    """
    in_avals = tuple(map(jax.typeof, leaves))
    out_avals, _ = abstract_eval(*in_avals, exported=exported, results=results)
    call = exported, leaves, in_avals, out_avals, results
    code = None if executables is None else executables.find(*call)
    if code is None and compile_cache.current() is not None:
        code = exported._code_in_cache(*call, compiled)
    return code


_BROKEN = re.compile(r"do not match the symbolic shape constraint (.*)\. Expected '")
_DIFFERS = re.compile(r"between dimension size (.+?) \(= (.+?)\) and the specification '(.+?)' \(= (.+?)\)\. Using")
_TOO_SMALL = re.compile(r"Expected value >= 1 for dimension variable '(\w+)'\.")
_NOT_WHOLE = re.compile(r"Division had remainder .+? when computing the value of '(\w+)'\.")
_VARIABLE = re.compile(r"'(\w+)' = (.+?) from specification '(.+?)' for dimension (.+?) \(= (.+?)\), ")

# The forms that say something about the size of one dimension.
_FORMS = [
    (re.compile(r"(\w+) *<= *([0-9]+)"), "at most {}"),
    (re.compile(r"(\w+) *>= *([0-9]+)"), "at least {}"),
    (re.compile(r"mod\((\w+), *([0-9]+)\) *== *0"), "a multiple of {}"),
    (re.compile(r"([0-9]+)\*floordiv\((\w+), *\1\) *== *\2"), "a multiple of {}"),  # what JAX makes of mod
]


def is_about_a_constraint(error: Exception) -> bool:
    """Whether JAX's error about sizes is about a constraint, which JAX checks after everything else."""
    return _BROKEN.search(in_one_line(error)) is not None


def broken(error: Exception, exported: Any, in_avals: Sequence[Any]) -> str:
    """What JAX's error about the sizes of arguments says, in our words if its form is known."""
    message = in_one_line(error)
    variables: list[tuple[str, ...]] = _VARIABLE.findall(message)
    if found := _NOT_WHOLE.search(message):
        return f"{found[1]} must be a whole number, found {_sizes_with(found[1], exported, in_avals)}"
    if not variables:
        return message
    if found := _TOO_SMALL.search(message):
        return (
            _must_be(found[1], "at least 1", variables)
            or f"{found[1]} must be at least 1, found {_said(variables, found[1])}"
        )
    if found := _DIFFERS.search(message):
        place, size, specification, expected = found.groups()
        return (
            f"{place} must have size {expected}, found size {size} (exported with {specification}, here "
            f"{_said(variables, specification)})"
        )
    if found := _BROKEN.search(message):
        constraint = found[1]
        for form, words in _FORMS:
            if match := form.fullmatch(constraint):
                number, name = sorted(match.groups(), key=str.isidentifier)
                if said := _must_be(name, words.format(number), variables):
                    return f"{said} (exported with the constraint {constraint})"
        return f"the sizes of the arguments must satisfy {constraint}, found {_said(variables, constraint)}"
    return message


def _must_be(name: str, what: str, variables: Sequence[tuple[str, ...]]) -> str | None:
    """The end of a message, if a variable is the size of a dimension by itself."""
    for variable, value, size, place, _ in variables:
        if variable == size == name:
            return f"{place} must be {what}, found {value}"
    return None


def _said(variables: Sequence[tuple[str, ...]], formula: str) -> str:
    """The values of the variables in a formula, and the dimensions that they come from."""
    return ", ".join(
        f"{variable} = {value} ({place}{'' if size == variable else f' is {size} = {whole}'})"
        for variable, value, size, place, whole in variables
        if re.search(rf"\b{variable}\b", formula)
    )


def _sizes_with(variable: str, exported: Any, in_avals: Sequence[Any]) -> str:
    """The sizes of the dimensions in which a variable is."""
    return ", ".join(
        f"{wanted} = {size} ({argument_path(exported.in_tree, index, axis)})"
        for index, (expected, actual) in enumerate(zip(exported.in_avals, in_avals, strict=True))
        for axis, (wanted, size) in enumerate(zip(expected.shape, actual.shape, strict=True))
        if re.search(rf"\b{variable}\b", str(wanted))
    )

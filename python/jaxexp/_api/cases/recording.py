"""Makes calls, and keeps what they took and returned as cases."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jaxexp._errors import ExportError, ExportTypeError, WeightsError
from jaxexp._kernel.artifact import scalars
from jaxexp._kernel.artifact.cases import FLOAT0, MEASURED, Array, Case, Drawn, Tolerance, Value, storage
from jaxexp._kernel.artifact.words import dtype_and_shape, is_text, listed, listed_cases, why_no_numbers
from jaxexp._kernel.call import first_argument, trees
from jaxexp._kernel.function import data
from jaxexp._kernel.function.paths import argument_paths, result_paths
from jaxexp._kernel.function.specs import is_taken_as
from jaxexp._kernel.write.fitting import fits, fits_aval, name_of

from . import measuring
from .calling import Chain, environment
from .machine import explained
from .replaying import MOST_DRAWN, replayed
from .report import OF_DTYPE, CheckReport

_OPTIONS = ("args", "kwargs", "name", "tolerance", "vjp_order", "cotangents", "trace")


def cases_of(exported: Any) -> tuple[Case, ...]:
    """The cases of a function that fit it and its VJPs."""
    return _fitting(Chain(exported))


def _fitting(chain: Chain) -> tuple[Case, ...]:
    found = data.cases_of(chain.exported.unbound)
    return tuple(
        case
        for case in (() if found is None else found.all)
        if chain.has(case.vjp_order) and fits(case, chain.program(case.vjp_order), chain.weights)
    )


def check(exported: Any, tolerance: Any, max_drawn_bytes: int = MOST_DRAWN) -> CheckReport:
    """`Exported.check`."""
    chain = Chain(exported)
    cases = _fitting(chain)
    paths = functools.cache(lambda order: result_paths(chain.program(order).out_tree))
    here = environment()
    exact = functools.partial(measuring.exact, chain)
    return replayed(
        exported.fun_name,
        cases,
        chain.call,
        paths,
        here,
        explained,
        tolerance,
        max_drawn_bytes,
        chain.trace,
        exact,
        functools.cache(lambda: _changed_weights(exported.weights)),
    )


def _changed_weights(weights: Any) -> str:
    if not weights:
        return ""
    try:
        weights.check_digests()
    except WeightsError as error:
        return f"the weights have changed since the recording: {explained(error)}; 'verify' compares all of them"
    except ExportError:  # they were not loaded
        pass
    return ""


def recorded(exported: Any, given: Iterable[Any], *, add: bool = True) -> tuple[Case, ...]:
    """The new cases for what a user gave to `save` as `cases`; behind those of the function, if they are added.

    Raises:
        ExportError: the arguments of a case do not fit, an option is unknown, or a name is taken; or the function has
            effects, or cannot run here.
        TypeError: a case is neither a tuple nor a dict.
    """
    chain = Chain(exported)
    made = list(_fitting(chain)) if add else []
    here = functools.cache(environment)
    for one in listed_cases(given):
        made.append(_made(chain, one, {case.name for case in made}, here()))
    return tuple(made)


def _made(chain: Chain, given: Any, names: set[str], here: Mapping[str, str]) -> Case:
    name = chain.exported.fun_name
    options = _options(name, given)
    own = options.get("name")
    if own is None:
        own = next(text for text in map(str, itertools.count(len(names))) if text not in names)
    if not isinstance(own, str):
        raise ExportTypeError(f"recording a case of {name}: its name has to be text, found {own!r:.200}")
    if not is_text(own) or own in names:
        raise ExportError(f"recording a case of {name}: expected a name that no other case has, found {own!r:.200}")
    where = f"recording case {own!r} of {name}"
    order = options.get("vjp_order", 0)
    if type(order) is not int or order < 0:
        raise ExportError(f"{where}: vjp_order is 0 for the function, 1 for its VJP, and so on; found {order!r}")
    if not order and options.get("cotangents") is not None:
        raise ExportError(f"{where}: cotangents are for a call of the VJP: pass vjp_order=1, too, or leave them out")
    program = chain.program(order)  # before anything is called
    arguments = _arguments(chain, where, options.get("args", ()), options.get("kwargs", {}))
    arrays = [value.array() for value in arguments]
    results = chain.call(0, arrays)
    for lower in range(order):
        cotangents = options.get("cotangents") if lower == order - 1 else None
        more = cotangents_of(chain, where, lower, results, cotangents)
        arguments += more
        arrays += [value.array() for value in more]
        results = chain.call(lower + 1, arrays)
    paths = result_paths(program.out_tree)
    asked = _asked(where, options.get("tolerance"), paths)
    found = [None if one is None or isinstance(one, str) else Tolerance.of(one) for one in asked]
    if any(wanted := [isinstance(one, str) and one == MEASURED for one in asked]):
        measured = measuring.measured(chain, order, arrays, results, paths, wanted, where)
        found = [one or other for one, other in zip(found, measured.tolerances, strict=True)]
        here = {**here, **measured.facts}
    kept = [
        _value(result, name_of(aval.dtype), tolerance)
        for result, aval, tolerance in zip(results, program.out_avals, found, strict=True)
    ]
    trace = None
    if options.get("trace", False):
        (_, first), (_, again) = chain.trace(order, arrays), chain.trace(order, arrays)
        trace = _value(first.where_as(again).words, "uint32")
    return Case(own, order, tuple(arguments), tuple(kept), here, trace)


def flat_arguments(chain: Chain, where: str, given: Any) -> list[Value]:
    """The flat arguments of a case that a user gave to `save`."""
    options = _options(chain.exported.fun_name, given)
    return _arguments(chain, where, options.get("args", ()), options.get("kwargs", {}))


# To somebody who passes the arguments of one case as if they were several cases.
_ONE_CASE = "cases= takes a list of cases, so a single one with the arguments x and y is cases=[(x, y)]"


def _options(name: str, given: Any) -> Mapping[str, Any]:
    if isinstance(given, tuple):
        return {"args": given}
    if not isinstance(given, Mapping):
        raise ExportTypeError(
            f"recording a case of {name}: a case is a tuple of the positional arguments, or a dict with "
            f"{listed(_OPTIONS)}, not {type(given)}: {_ONE_CASE}"
        )
    if unknown := [key for key in given if key not in _OPTIONS]:
        raise ExportError(
            f"recording a case of {name}: a dict of a case has {listed(_OPTIONS)}, not "
            f"{listed(unknown, repr, most=5)}: {_ONE_CASE}"
        )
    return given


def _arguments(chain: Chain, where: str, args: Any, kwargs: Any) -> list[Value]:
    """The flat arguments that a user gave, in the order of the signature."""
    if not isinstance(args, (tuple, list)) or not isinstance(kwargs, Mapping):
        found = f"{type(args)} and {type(kwargs)}"
        raise ExportTypeError(f"{where}: args is a tuple of positional arguments, and kwargs a dict, found {found}")
    called = first_argument.as_called(chain.exported)
    leaves, in_tree = jax.tree_util.tree_flatten((tuple(args), dict(kwargs)))
    arranged = trees.fit(called, in_tree, leaves, "recording a case of").arranged(leaves)
    made = [_argument(leaf, aval) for leaf, aval in zip(arranged, called.in_avals, strict=True)]
    for value, aval, path in zip(made, called.in_avals, argument_paths(called.in_tree), strict=True):
        if not fits_aval(value, aval):
            expected = dtype_and_shape(name_of(aval.dtype), aval.shape)
            raise ExportError(f"{where}: {path} is {expected}, found {dtype_and_shape(value.dtype, value.shape)}")
    return made


def _argument(leaf: Any, aval: Any) -> Value:
    if isinstance(leaf, Drawn):
        return Value(leaf.dtype, leaf.shape, leaf)
    if why_not := why_no_numbers(leaf):
        raise ExportError(
            f"recording a case: expected an array, found {why_not}. Drawn(shape, dtype) stands for random numbers"
        )
    dtype = getattr(leaf, "dtype", None)
    if dtype is not None and jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key):
        return _value(np.asarray(jax.random.key_data(leaf)), name_of(dtype))
    if dtype is None:
        return _value(_of_python(leaf, name_of(aval.dtype)), name_of(aval.dtype))
    if is_taken_as(dtype, aval.dtype):
        return _value(np.asarray(leaf, aval.dtype), name_of(aval.dtype))
    return _value(np.asarray(leaf), name_of(dtype))


def _of_python(leaf: Any, dtype: str) -> Array:
    stored = storage(dtype).dtype
    if type(leaf) not in scalars.KINDS:
        return np.asarray(leaf, stored)
    if (array := scalars.array_of(leaf, stored, dtype)) is None:
        raise ExportError(f"recording a case: expected an array of dtype {dtype}, found the number {leaf!r:.40}")
    return array


def _value(array: Array, dtype: str, tolerance: Tolerance | None = None) -> Value:
    """An array of the host as a part of a case, which has no copy of it."""
    beyond = storage(dtype).beyond
    shape = array.shape[: array.ndim - len(beyond)]
    data = b"" if dtype == FLOAT0 else np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
    return Value(dtype, tuple(map(int, shape)), None, tolerance, data)


def cotangents_of(chain: Chain, where: str, order: int, results: Sequence[Array], given: Any) -> list[Value]:
    """The cotangents for the results of a function: those that were given, or random ones."""
    avals = chain.program(order + 1).in_avals[-len(results) :] if results else ()
    if given is not None:
        leaves = list(given)
        if len(leaves) != len(results):
            raise ExportError(f"{where}: expected {len(results)} cotangents, one for each result, found {len(leaves)}")
        return [_argument(leaf, aval) for leaf, aval in zip(leaves, avals, strict=True)]
    made = []
    for index, (aval, result) in enumerate(zip(avals, results, strict=True)):
        dtype, shape = name_of(aval.dtype), result.shape[: len(aval.shape)]
        if dtype == FLOAT0:
            made.append(_value(np.zeros(shape, np.bool_), FLOAT0))
        else:
            made.append(Value(dtype, shape, Drawn(shape, dtype, seed=(order << 32) + index)))
    return made


def _asked(where: str, given: Any, paths: Sequence[str]) -> list[Any]:
    """What was given as the tolerance of each result: one for all, or some by the paths of results."""
    if isinstance(given, Mapping) and (unknown := [path for path in given if path not in paths]):
        raise ExportError(f"{where}: tolerances are for {listed(paths, most=8)}, not for {listed(unknown, repr)}")
    asked = list(map(given.get, paths)) if isinstance(given, Mapping) else [given] * len(paths)
    if wrong := [one for one in asked if isinstance(one, str) and one not in (OF_DTYPE, MEASURED)]:
        raise ExportTypeError(f"{where}: a tolerance is a number, {OF_DTYPE!r} or {MEASURED!r}, not {wrong[0]!r:.200}")
    return asked

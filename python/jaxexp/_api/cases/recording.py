"""Makes calls: keeps what they took and returned as cases, and checks cases."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jaxexp import _jax
from jaxexp._errors import ExportError, ExportTypeError, WeightsError
from jaxexp._kernel.artifact import scalars
from jaxexp._kernel.artifact.cases import FLOAT0, MEASURED, Array, Case, Drawn, Tolerance, Value, integers_of, storage
from jaxexp._kernel.artifact.words import dtype_and_shape, is_text, listed, listed_cases, why_traced
from jaxexp._kernel.call import first_argument, trees
from jaxexp._kernel.function.paths import argument_paths, result_paths
from jaxexp._kernel.function.specs import is_taken_as
from jaxexp._kernel.write.fitting import fits_aval, name_of

from . import measuring
from .calling import Chain, environment
from .machine import explained
from .replaying import UNRECORDED, replayed
from .report import DIFFERS, OF_DTYPE, Checked, CheckReport, Compared

_OPTIONS = ("args", "kwargs", "name", "tolerance", "vjp_order", "cotangents", "trace")

# --- cases that are checked -------------------------------------------------------------------------------------------


@_jax.outside_of_traces()
def check(exported: Any, tolerance: Any, max_drawn_bytes: int) -> CheckReport:
    """`Exported.check`."""
    chain = Chain(exported)
    paths = functools.cache(lambda order: result_paths(chain.program(order).out_tree))
    changed = functools.cache(lambda: _changed_weights(exported.weights))

    def more(case: Case, found: Checked) -> Checked:
        arguments = _arrays(case.arguments)
        with contextlib.suppress(Exception):  # as of a function that cannot be read back
            wide = measuring.exact(chain, case.vjp_order, arguments, _arrays(case.results))
            found = dataclasses.replace(found, results=tuple(map(_with_exact, found.results, wide)))
        if changed():
            why = "not looked for, because the weights have changed"
            return dataclasses.replace(found, changed=changed(), unnamed=why)
        try:
            return dataclasses.replace(found, **_first(chain, case, arguments))
        except Exception as error:
            return dataclasses.replace(found, unnamed=f"tracing failed: {explained(error)}")

    return replayed(
        exported.fun_name, chain.cases(), chain.call, paths, environment(), tolerance, max_drawn_bytes, more
    )


def _changed_weights(weights: Any) -> str:
    """How the weights differ from those that the function was saved with; empty if they do not."""
    try:
        if weights:
            weights.check_digests()
    except WeightsError as error:
        return f"the weights have changed since the recording: {explained(error)}; 'verify' compares all of them"
    except ExportError:  # they were not loaded
        pass
    return ""


def _with_exact(one: Compared, wide: Array) -> Compared:
    """A comparison that also has the worst number in float64, if it differs."""
    if one.verdict != DIFFERS or one.at is None or one.dtype == FLOAT0 or integers_of(one.dtype) is not None:
        return one
    return dataclasses.replace(one, in_float64=f"{wide[one.at]:.9g}")


def _first(chain: Chain, case: Case, arguments: Sequence[Array]) -> dict[str, Any]:
    """The fields of a report on the first operation at which a case differs, or on why none is named."""
    if case.trace is None:
        return {"unnamed": UNRECORDED}
    from jaxexp._view.sides import Errors

    from . import culprit

    if (recorded := culprit.Trace.of_case(case.trace)) is None:
        return {"unnamed": "another release of jaxexp recorded the trace, in another form: record it again"}
    traced, here = chain.trace(case.vjp_order, arguments)
    compared = culprit.Comparison(traced.rows, here, recorded)
    about = {"changed": "the module has changed since the recording" if compared.is_changed else ""}
    if (named := compared.first()) is None:
        why = "the module has changed" if compared.is_changed else "the compiler combines them in another way"
        return about | {"unnamed": f"no single one; {why}"}
    found = named.culprit
    if found.expected is not None:
        with contextlib.suppress(Exception):  # as of an operation that has no float64
            found = culprit.with_exact(named, *chain.trace(case.vjp_order, arguments, found.at), here, recorded)
    return about | {"culprit": found, "differences": Errors(traced.module, compared.differences(found), found.at)}


def _arrays(values: Iterable[Value]) -> list[Array]:
    return [value.array() for value in values]


# --- cases that are recorded ------------------------------------------------------------------------------------------


@_jax.outside_of_traces()
def recorded(exported: Any, given: Iterable[Any], *, add: bool = True) -> tuple[Case, ...]:
    """The new cases for what a user gave to `save` as `cases`; behind those of the function, if they are added.

    Raises:
        ExportError: the arguments of a case do not fit, an option is unknown, or a name is taken; or the function has
            effects, or cannot run here.
        TypeError: a case is neither a tuple nor a dict.
    """
    chain = Chain(exported)
    made = list(chain.cases()) if add else []
    here = functools.cache(environment)
    for one in listed_cases(given):
        made.append(_made(chain, one, {case.name for case in made}, here()))
    return tuple(made)


def _made(chain: Chain, given: Any, names: set[str], here: Mapping[str, str]) -> Case:
    name = chain.exported.fun_name
    options = options_of(name, given)
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
    arguments = flat_arguments(chain, where, options)
    arrays = _arrays(arguments)
    results = chain.call(0, arrays)
    for lower in range(order):
        cotangents = options.get("cotangents") if lower == order - 1 else None
        more = cotangents_of(chain, where, lower, results, cotangents)
        arguments += more
        arrays += _arrays(more)
        results = chain.call(lower + 1, arrays)
    paths = result_paths(program.out_tree)
    asked = _asked(where, options.get("tolerance"), paths)
    tolerances = [None if one is None or isinstance(one, str) else Tolerance.of(one) for one in asked]
    if any(wanted := [isinstance(one, str) and one == MEASURED for one in asked]):
        measured, facts = measuring.measured(chain, order, arrays, results, paths, wanted, where)
        tolerances = [one or other for one, other in zip(tolerances, measured, strict=True)]
        here = {**here, **facts}
    kept = [
        _value(result, name_of(aval.dtype), tolerance)
        for result, aval, tolerance in zip(results, program.out_avals, tolerances, strict=True)
    ]
    trace = None
    if options.get("trace", False):
        (_, first), (_, again) = chain.trace(order, arrays), chain.trace(order, arrays)
        trace = _value(first.where_as(again).words, "uint32")
    return Case(own, order, tuple(arguments), tuple(kept), here, trace)


# To somebody who passes the arguments of one case as if they were several cases.
_ONE_CASE = "cases= takes a list of cases, so a single one with the arguments x and y is cases=[(x, y)]"


def options_of(name: str, given: Any) -> Mapping[str, Any]:
    """What a user gave to `save` for a case of a function."""
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


def flat_arguments(chain: Chain, where: str, options: Mapping[str, Any]) -> list[Value]:
    """The flat arguments of a case, in the order of the signature."""
    args, kwargs = options.get("args", ()), options.get("kwargs", {})
    if not isinstance(args, (tuple, list)) or not isinstance(kwargs, Mapping):
        found = f"{type(args)} and {type(kwargs)}"
        raise ExportTypeError(f"{where}: args is a tuple of positional arguments, and kwargs a dict, found {found}")
    called = first_argument.as_called(chain.exported)
    leaves, in_tree = jax.tree_util.tree_flatten((tuple(args), dict(kwargs)))
    arranged = trees.fit(called, in_tree, leaves, "recording a case of").arranged(leaves)
    made = list(map(_argument, arranged, called.in_avals))
    for value, aval, path in zip(made, called.in_avals, argument_paths(called.in_tree), strict=True):
        if not fits_aval(value, aval):
            expected = dtype_and_shape(name_of(aval.dtype), aval.shape)
            raise ExportError(f"{where}: {path} is {expected}, found {dtype_and_shape(value.dtype, value.shape)}")
    return made


def _argument(leaf: Any, aval: Any) -> Value:
    if isinstance(leaf, Drawn):
        return Value(leaf.dtype, leaf.shape, leaf)
    if why_not := why_traced(leaf):
        raise ExportError(
            f"recording a case: expected an array, found {why_not}. Drawn(shape, dtype) stands for random numbers"
        )
    dtype, wanted = getattr(leaf, "dtype", None), name_of(aval.dtype)
    if dtype is None:
        stored = storage(wanted).dtype
        is_number = type(leaf) in scalars.KINDS
        array = scalars.array_of(leaf, stored, wanted) if is_number else np.asarray(leaf, stored)
        if array is None:
            raise ExportError(f"recording a case: expected an array of dtype {wanted}, found the number {leaf!r:.40}")
        return _value(array, wanted)
    if jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key):
        return _value(np.asarray(jax.random.key_data(leaf)), name_of(dtype))
    if is_taken_as(dtype, aval.dtype):
        return _value(np.asarray(leaf, aval.dtype), wanted)
    return _value(np.asarray(leaf), name_of(dtype))


def _value(array: Array, dtype: str, tolerance: Tolerance | None = None) -> Value:
    """An array of the host as a part of a case, which has no copy of it."""
    shape = array.shape[: array.ndim - len(storage(dtype).beyond)]
    data = b"" if dtype == FLOAT0 else np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
    return Value(dtype, tuple(map(int, shape)), None, tolerance, data)


def cotangents_of(chain: Chain, where: str, order: int, results: Sequence[Array], given: Any = None) -> list[Value]:
    """The cotangents for the results of a function: those that were given, or random ones."""
    avals = chain.program(order + 1).in_avals[-len(results) :] if results else ()
    if given is not None:
        leaves = list(given)
        if len(leaves) != len(results):
            raise ExportError(f"{where}: expected {len(results)} cotangents, one for each result, found {len(leaves)}")
        return list(map(_argument, leaves, avals))
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

"""`Exported.call`: takes a fast path if nothing is being traced."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from jaxexp import _jax, _native
from jaxexp._errors import DeserializationError, ExportError, cause, shown
from jaxexp._kernel.function import data
from jaxexp._kernel.function.data import ExportedData
from jaxexp._kernel.function.paths import argument_path
from jaxexp._kernel.io import compile_cache
from jaxexp._kernel.module import custom_calls, mlir

from . import first_argument, trees
from .first_argument import apart, as_called, flattened, program_of
from .primitive import (
    call,
    call_exported_p,
    check,
    code_of,
    executables_of,
    explain_devices,
    explaining_devices,
    pushforward_p,
)
from .shared import MAKING, first_of_equals, have_same_nodes

# --- the callables behind calls: made once for a function, and shared by equal functions ------------------------------


def call_traced(
    program: ExportedData, is_apart: bool, args: tuple[Any, ...], kwargs: dict[str, Any], *, is_eager: bool = False
) -> Any:
    """A call while JAX is tracing: one equation. If JAX traces nothing but an eager call, it `is_eager`."""
    leaves, out_tree = flattened(program, is_apart, args, kwargs)
    if is_apart:  # the primitive's own errors would count the first argument's arrays, too
        _check(first_argument.without(program), leaves[len(args[0]) :], is_traced=not is_eager)
    elif is_eager:
        _check(program, leaves)
    return jax.tree_util.tree_unflatten(out_tree, call_exported_p.bind(*leaves, exported=program))


def _check(called: ExportedData, leaves: Sequence[Any], *, is_traced: bool = False) -> None:
    check(called, list(map(jax.typeof, leaves)), is_traced=is_traced)


def eager_callable(exported: ExportedData) -> Any:
    return data.kept(exported, "eager_call", _make_eager_callable)


def _make_eager_callable(exported: ExportedData) -> Any:
    given = first_argument.given_with(exported)
    if given is None:
        return _callable(exported, is_apart=False)
    eager_apart = data.kept(given.program, "eager_apart", functools.partial(_callable, is_apart=True))
    return functools.partial(eager_apart, given.arrays())


def _callable(program: ExportedData, *, is_apart: bool) -> Any:
    """The function as a callable with the dispatch of `jax.jit`. It uses code from a file if one was given."""
    if (executables := executables_of(program)) is None:
        return shared_callable(program, is_apart)
    own: Any = data.bare(program)  # what JAX keeps with a callable must not lead back to the function
    code = functools.partial(code_of, executables, own)
    if not trees.has_generic_nodes(own):
        split = functools.partial(flattened, own, is_apart)
        return executables.callable_of(own.fun_name, lambda: shared_callable(own, is_apart), split, code)
    out_tree = jax.tree_util.tree_structure([0] * len(own.out_avals))
    of_leaves = executables.callable_of(
        own.fun_name, lambda: _shared_of_leaves(first_of_equals(own)), lambda leaves, _: (leaves, out_tree), code
    )
    return _of_own_leaves(own, is_apart, of_leaves)


def shared_callable(program: ExportedData, is_apart: bool) -> Any:
    """The jitted callable that all equal functions share, with results in this function's own tree."""
    first = first_of_equals(program)
    has_generic_nodes = trees.has_generic_nodes(program)
    with MAKING:
        if has_generic_nodes:
            return _of_own_leaves(data.bare(program), is_apart, _shared_of_leaves(first))
        made = _shared_callables(first)
        if is_apart not in made:
            jitted = _jitted_as(
                first, lambda traced, args, kwargs: call_traced(traced, is_apart, args, kwargs, is_eager=True)
            )
            made[is_apart] = _with_cache(first, jitted, lambda own: functools.partial(flattened, own, is_apart))
    jitted = made[is_apart]
    return jitted if have_same_nodes(program.out_tree, first.out_tree) else _in_own_tree(program.out_tree, jitted)


def _shared_callables(first: ExportedData) -> dict[bool, Any]:
    """Jitted callables by whether the first argument is apart; the one that was made first comes first."""
    return data.kept(first, "jitted", lambda _: {})


def _shared_of_leaves(first: ExportedData) -> Callable[..., Any]:
    return data.kept(first, "jitted_leaves", _jitted_leaves)


def _jitted_leaves(exported: ExportedData) -> Callable[..., Any]:
    out_tree = jax.tree_util.tree_structure([0] * len(exported.out_avals))
    return _with_cache(exported, jitted_leaves(exported), lambda _: lambda leaves, _: (leaves, out_tree))


def jitted_leaves(exported: ExportedData, results: Sequence[int] | None = None) -> Any:
    """The function as a jitted callable that takes leaves, and returns those of its results, or some of them."""

    def apply(traced: ExportedData, leaves: tuple[Any, ...], _: Any) -> Any:
        _check(traced, leaves)
        return call(leaves, traced, results)

    return _jitted_as(exported, apply)


def _with_cache(exported: Any, jitted: Any, flattened_by: Callable[[Any], Any]) -> Any:
    """A jitted callable that looks into the compile cache before it compiles, if there is such a cache.

    `flattened_by` returns what takes the arguments of a call apart, given a function that may be kept with it.
    """
    if compile_cache.current() is None:
        return jitted
    own: Any = data.bare(exported)
    code = functools.partial(code_of, None, own)
    cached = own._callable_with_cache(lambda: jitted, flattened_by(own), code)
    cached.lower = jitted.lower
    return cached


def _jitted_as(exported: ExportedData, apply: Callable[..., Any]) -> Callable[..., Any]:
    """A jitted callable under the function's name; `apply` takes a function, and positional and keyword arguments."""
    # JAX keeps what it traced as long as `call`. If that led back to `call`, neither would ever be freed.
    traced = data.bare(exported)

    def call(*args: Any, **kwargs: Any) -> Any:
        return apply(traced, args, kwargs)

    call.__name__ = call.__qualname__ = str(exported.fun_name)  # which may be anything
    return jax.jit(call)


def _in_own_tree(out_tree: Any, jitted: Any) -> Any:
    """A jitted callable that returns its results in another tree structure, which is equal but not the same."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return jax.tree_util.tree_unflatten(out_tree, jax.tree_util.tree_leaves(jitted(*args, **kwargs)))

    made: Any = call
    made.lower = jitted.lower
    return made


def _of_own_leaves(program: ExportedData, is_apart: bool, jitted_leaves: Any) -> Any:
    """A callable with generic nodes in its signature. How arguments fit, and which classes results have, may change
    when a module is imported, so each call checks it.
    """

    def call(*args: Any, **kwargs: Any) -> Any:
        leaves, out_tree = flattened(program, is_apart, args, kwargs)
        return jax.tree_util.tree_unflatten(out_tree, jitted_leaves(*leaves))

    return call


# --- the primitive outside of jit


def _run(*args: Any, exported: ExportedData, **results: tuple[int, ...]) -> Any:
    """Runs the primitive outside of jit, as a gradient does: with the code of eager calls, if possible."""

    def made() -> Any:
        return jitted_leaves(exported, **results).lower(*args).compile()

    with explaining_devices(exported):
        executables = executables_of(exported)
        if executables is not None and (code := code_of(executables, exported, args, made, **results)) is not None:
            return code.unsafe_call(*args)
        first = first_of_equals(exported)
        # The Python code of the callable would lead back here.
        if not results and not any(mode.value for mode in _jax.python_modes):
            of_leaves: Callable[..., Any] | None = data.kept(first, "of_leaves", _of_leaves)
            if of_leaves is not None:
                return of_leaves(*args)
        if compile_cache.current() is not None and (code := code_of(None, first, args, made, **results)) is not None:
            return code.unsafe_call(*args)
        return _jax.apply_primitive(call_exported_p, *args, exported=first, **results)


def _of_leaves(first: ExportedData) -> Callable[..., Any] | None:
    """A callable that takes and returns leaves, with the code of eager calls. None if that would make instances of user
    classes, which nobody expects during a gradient.
    """
    if trees.has_generic_nodes(first):
        return _shared_of_leaves(first)
    if not trees.has_only_containers(first):
        return None
    is_apart = [*_shared_callables(first), False][0]
    jitted = shared_callable(first, is_apart)
    in_tree = first_argument.tree_apart(first.in_tree) if is_apart else first.in_tree

    def of_leaves(*leaves: Any) -> Any:
        args, kwargs = jax.tree_util.tree_unflatten(in_tree, leaves)
        return jax.tree_util.tree_leaves(jitted(*args, **kwargs))

    return of_leaves


call_exported_p.def_impl(_run)


# --- calls ------------------------------------------------------------------------------------------------------------


_are_plain = _native.Arguments(
    _jax.ArrayImpl, np.ndarray, np.number, _jax.tree_registry, _jax.registered_pytree_nodes
).are_plain


def call_exported(exported: ExportedData, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if _jax.trace_state_clean():
        if not _are_plain(args, kwargs):
            _refuse_misread(exported, args, kwargs)
        # JAX's own dispatch finds the compiled function, and compares trees and types, faster than Python could. This
        # looks up what `eager_callable` keeps, because calling it takes longer than the look-up.
        try:
            return (exported._kept.eager_call or eager_callable(exported))(*args, **kwargs)
        except TypeError:
            # Report a wrong tree structure first: jit looks at the leaves before that, and names another argument.
            _refuse_misread(exported, args, kwargs)
            raise
        except (ValueError, jax.errors.JaxRuntimeError) as error:
            _explain(exported, error)
            raise
    return call_traced(*apart(exported, args), kwargs)


def call_leaves(program: ExportedData, leaves: Sequence[Any]) -> Sequence[Any]:
    """The flat results of a call with flat arguments, all of them, also those that are given with the function."""
    try:
        results: Sequence[Any] = _shared_of_leaves(first_of_equals(program))(*leaves)
    except (ValueError, jax.errors.JaxRuntimeError) as error:
        _explain(program, error)
        raise
    return results


def compiled(exported: ExportedData, program: Any) -> Any:
    """The `jax.stages.Compiled` of a lowered call of a function."""
    try:
        return program.compile()
    except (ValueError, jax.errors.JaxRuntimeError) as error:
        _explain(exported, error)
        raise


def _explain(exported: ExportedData, error: Exception) -> None:
    """Raises a clearer error in place of one of JAX's, if there is more to say; an error about the module gets the name
    of its file.
    """
    if isinstance(error, DeserializationError):
        error.file = error.file or exported._kept.file
    elif isinstance(error, ValueError):
        explain_devices(exported, error)
        if (reason := mlir.why_not_refined(error)) is not None:
            raise ExportError(
                f"calling {data.described(exported)}: its module refuses these shapes: {reason}"
            ) from cause(error)
    elif (reason := custom_calls.why_not_compiled(program_of(exported), error)) is not None:
        raise custom_calls.UnknownCustomCallError(f"calling {data.described(exported)}: {reason}") from cause(error)


def _refuse_misread(exported: ExportedData, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raises JAX's own error for an argument that is not an array for JAX, with a note that names the argument.

    JAX raises it while it traces a function. But once the function is compiled, jit misreads big-endian and masked
    arrays: it takes their bytes for plain numbers.
    """
    called = as_called(exported)
    leaves, _ = trees.leaves_and_out_tree(called, args, kwargs)
    for index, leaf in enumerate(leaves):
        try:
            jax.typeof(leaf)
        except (TypeError, ValueError) as error:
            where = argument_path(called.in_tree, index)
            error.add_note(shown(f"calling {called.fun_name}: this is {where}, exported as {called.in_avals[index]}"))
            raise


def _batch(primitive: Any, *mapped: Any, exported: Any, **params: Any) -> Any:
    """The rule of `jax.vmap`: a method of the function's class."""
    return exported._batch(primitive, *mapped, exported=exported, **params)


for _primitive in (call_exported_p, pushforward_p):
    _jax.fancy_primitive_batchers[_primitive] = functools.partial(_batch, _primitive)

"""Calls of a function together with its weights: they go in front of the arguments, as arrays on devices."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import jax

from jaxexp import _jax
from jaxexp._function import data
from jaxexp._function.data import ExportedData

from . import first_argument, trees
from .call import are_plain, explain, jitted_as, refuse_misread, shared_callable
from .primitive import abstract_eval, call_exported_p
from .specialize import specialize, specialized_avals


class Arrays(Protocol):
    """The weights, in the order of the program's arguments."""

    def arrays(self) -> tuple[Any, ...]:
        """The arrays, on their devices."""
        ...

    def specs(self) -> tuple[Any, ...]:
        """Arrays, or specs of those that were not read yet."""
        ...


@dataclasses.dataclass(frozen=True, slots=True)
class Bound:
    """A program, whose first argument is a dict of weights, and the weights."""

    program: ExportedData
    weights: Arrays

    @property
    def rest(self) -> ExportedData:
        """The signature of a call, which takes the other arguments."""
        return data.kept(self.program, "rest", first_argument.without)

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not _jax.trace_state_clean():
            return _call_traced(self.program, self.rest, self.weights.arrays(), args, kwargs)
        if not are_plain(args, kwargs):
            refuse_misread(self.rest, args, kwargs)
        try:
            return _eager_callable(self.program)(self.weights.arrays(), *args, **kwargs)
        except TypeError:
            trees.leaves_and_out_tree(self.rest, args, kwargs)
            raise
        except (ValueError, jax.errors.JaxRuntimeError) as error:
            explain(self.program, error)
            raise

    def lowered(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The `jax.stages.Lowered` of a call; no weight is read for it."""
        return _shared_callable(self.program).lower(self.weights.specs(), *args, **kwargs)

    def specialize(self, args_specs: tuple[Any, ...], kwargs_specs: dict[str, Any]) -> ExportedData:
        """The program for other shapes of the other arguments."""
        n = first_argument.count(self.program.in_tree)
        # Here, because the errors for all arguments would count the weights, too.
        abstract_eval(*specialized_avals(self.rest, args_specs, kwargs_specs), exported=self.rest)
        return specialize(self.program, (self._first(self.program.in_avals[:n]), *args_specs), kwargs_specs)

    def raised(self) -> Callable[..., Any]:
        """The function of the other arguments, read back into JAX."""
        from .read_back import raised

        function = raised(self.program)

        def with_weights(*args: Any, **kwargs: Any) -> Any:
            trees.leaves_and_out_tree(self.rest, args, kwargs)  # whose errors do not count the weights
            return function(self._first(self.weights.arrays()), *args, **kwargs)

        with_weights.__name__ = with_weights.__qualname__ = self.program.fun_name
        return with_weights

    def jaxpr(self, args_specs: tuple[Any, ...], kwargs_specs: dict[str, Any]) -> Any:
        """The jaxpr of the program, for specs of the other arguments."""
        from .read_back import jaxpr

        if not args_specs and not kwargs_specs:
            return jaxpr(self.program, (), {})
        trees.leaves_and_out_tree(self.rest, args_specs, kwargs_specs)
        return jaxpr(self.program, (self._first(self.weights.specs()), *args_specs), kwargs_specs)

    def _first(self, leaves: Sequence[Any]) -> Any:
        """The program's first argument."""
        args, _ = self.program.in_tree.children()
        return jax.tree_util.tree_unflatten(args.children()[0], leaves)


def bound_of(exported: ExportedData) -> Bound | None:
    """The weights of a function, where it has them."""
    found: Bound | None = data.attributes_of(exported).get("_bound")
    return found


def _call_traced(
    program: ExportedData,
    rest: ExportedData,
    weights: Sequence[Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    leaves, out_tree = trees.leaves_and_out_tree(rest, args, kwargs)
    # Here, because the primitive's own errors would count the weights, too.
    abstract_eval(*map(jax.typeof, leaves), exported=rest)
    return jax.tree_util.tree_unflatten(out_tree, call_exported_p.bind(*weights, *leaves, exported=program))


def _eager_callable(program: ExportedData) -> Any:
    """A callable that takes the weights as one tuple, and the other arguments as they are."""
    return data.kept(program, "eager_bound", _callable_of)


def _callable_of(program: ExportedData) -> Any:
    if "executables" not in vars(program._kept):
        return _shared_callable(program)
    from . import from_file

    rest = first_argument.without(program)

    def split(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Sequence[Any], Any]:
        weights, *others = args
        leaves, out_tree = trees.leaves_and_out_tree(rest, tuple(others), kwargs)
        return [*weights, *leaves], out_tree

    return from_file.callable_of(program, _shared_callable, split, lambda _, leaves: _OfLeaves(rest, leaves))


def _shared_callable(program: ExportedData) -> Any:
    return shared_callable(
        program, "jitted_bound", _jitted, _flat, lambda leaves: _OfLeaves(first_argument.without(program), leaves)
    )


def _jitted(program: ExportedData) -> Callable[..., Any]:
    rest = first_argument.without(program)

    def apply(traced: ExportedData, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        weights, *others = args
        return _call_traced(traced, rest, weights, tuple(others), kwargs)

    return jitted_as(program, apply)


def _flat(program: ExportedData, jitted: Any) -> Callable[..., Any]:
    in_tree, count = first_argument.without(program).in_tree, first_argument.count(program.in_tree)

    def of_leaves(*leaves: Any) -> Any:
        args, kwargs = jax.tree_util.tree_unflatten(in_tree, leaves[count:])
        return jax.tree_util.tree_leaves(jitted(leaves[:count], *args, **kwargs))

    return of_leaves


@dataclasses.dataclass(frozen=True, slots=True)
class _OfLeaves:
    """A callable in whose signature are generic nodes, which looks at the classes of the arguments at each call."""

    rest: ExportedData
    jitted_leaves: Any

    def __call__(self, weights: Sequence[Any], /, *args: Any, **kwargs: Any) -> Any:
        leaves, out_tree = trees.leaves_and_out_tree(self.rest, args, kwargs)
        return jax.tree_util.tree_unflatten(out_tree, self.jitted_leaves(*weights, *leaves))

    def lower(self, weights: Sequence[Any], /, *args: Any, **kwargs: Any) -> Any:
        leaves, _ = trees.leaves_and_out_tree(self.rest, args, kwargs)
        return self.jitted_leaves.lower(*weights, *leaves)

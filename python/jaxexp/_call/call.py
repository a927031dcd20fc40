"""`Exported.call`: takes a fast path if nothing is being traced."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax

from jaxexp import _jax
from jaxexp._artifact import module_head
from jaxexp._errors import ExportError
from jaxexp._function import data
from jaxexp._function.convention import Arguments
from jaxexp._function.data import ExportedData
from jaxexp._module import mlir

from . import batching, derivatives, lowering, trees  # noqa: F401  (the first three give the primitives their rules)
from .primitive import call_exported_p

# How a module says that a result may take the memory of an argument: of which result, or of any.
_DONATION = "tf.aliasing_output", "jax.buffer_donor"


def call_exported(exported: ExportedData, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if _jax.trace_state_clean():
        # JAX's own dispatch finds the compiled function, and compares trees and types, faster than Python could. What
        # `_eager_callable` keeps is looked up here: its detour takes longer than the look-up.
        try:
            return (exported.__dict__.get("_eager_call") or _eager_callable(exported))(*args, **kwargs)
        except TypeError:
            # Another structure comes first: jit looks at the leaves before.
            trees.leaves_and_out_tree(exported, args, kwargs)
            raise
        except ValueError as error:
            if (reason := mlir.why_not_refined(error)) is None:
                raise
            raise ExportError(f"calling {exported.fun_name}: its module refuses these shapes: {reason}") from error
    return _call_traced(exported, args, kwargs)


def lowered(exported: ExportedData, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The `jax.stages.Lowered` of a call with these arguments or specs. If it is compiled, the same call uses the
    result.
    """
    return _eager_callable(exported).lower(*args, **kwargs)


def _eager_callable(exported: ExportedData) -> Any:
    """The function as one jitted callable; the function keeps it."""
    return data.kept(exported, "_eager_call", _jitted)


def _jitted(exported: ExportedData) -> Callable[..., Any]:
    """The function as one jitted callable, which donates the arguments that were donated in the export."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return _call_traced(exported, args, kwargs)

    call.__name__ = call.__qualname__ = exported.fun_name
    donated = _donated_arguments(exported)
    # With generic nodes, how arguments fit and which classes results have may change when a module is imported.
    if not donated and not trees.has_generic_nodes(exported):
        jitted: Callable[..., Any] = jax.jit(call)
        return jitted

    # jit donates whole arguments; these are leaves.
    def call_flat(*leaves: Any) -> Any:
        return call_exported_p.bind(*leaves, exported=exported)

    call_flat.__name__ = call_flat.__qualname__ = exported.fun_name
    jitted_flat = jax.jit(call_flat, donate_argnums=donated)

    return _OfLeaves(exported, jitted_flat)


@dataclasses.dataclass(frozen=True, slots=True)
class _OfLeaves:
    exported: ExportedData
    jitted_flat: Any

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        leaves, out_tree = trees.leaves_and_out_tree(self.exported, args, kwargs)
        return jax.tree_util.tree_unflatten(out_tree, self.jitted_flat(*leaves))

    def lower(self, *args: Any, **kwargs: Any) -> Any:
        leaves, _ = trees.leaves_and_out_tree(self.exported, args, kwargs)
        return self.jitted_flat.lower(*leaves)


def _donated_arguments(exported: ExportedData) -> tuple[int, ...]:
    """The arguments whose buffers the module may use for its results."""
    serialized = exported.mlir_module_serialized
    if not module_head.may_name(serialized, *_DONATION):
        return ()
    context = _jax.make_ir_context()
    with context:
        attributes = mlir.argument_attributes(mlir.parse(serialized, context))
    arrays = attributes[Arguments.of_exported(exported).array]
    return tuple(
        index
        for index, attribute in zip(exported.module_kept_var_idx, arrays, strict=True)
        if any(name in _jax.ir.DictAttr(attribute) for name in _DONATION)
    )


def _call_traced(exported: ExportedData, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    leaves, out_tree = trees.leaves_and_out_tree(exported, args, kwargs)
    return jax.tree_util.tree_unflatten(out_tree, call_exported_p.bind(*leaves, exported=exported))

"""`Exported.precompile`: compiles a call, and adds the code to a file of executables."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from jaxexp import _jax
from jaxexp._errors import ExportError, ExportTypeError, UnsupportedError, cause
from jaxexp._kernel.call.call import compiled
from jaxexp._kernel.call.callables import jitted_leaves
from jaxexp._kernel.call.derivatives import is_differentiable
from jaxexp._kernel.call.first_argument import apart, flattened
from jaxexp._kernel.call.primitive import abstract_eval
from jaxexp._kernel.function import data
from jaxexp._kernel.function.data import ExportedData
from jaxexp._kernel.module import custom_calls

from . import conditions, executables, placing, reuse
from .executables import Executable
from .file import GrowingFile
from .prefetch import arguments_of


def precompile(
    exported: ExportedData,
    args: tuple[Any, ...] | None,
    kwargs: dict[str, Any] | None,
    into: str | os.PathLike[str],
    mesh_or_device: Any,
    vjp_order: int,
) -> tuple[Executable, ...]:
    """`Exported.precompile`."""
    if (missing := reuse.why_not()) is not None:
        raise UnsupportedError(f"precompiling {exported.fun_name}: {missing}")
    if args is None:
        args, given = arguments_of(
            exported,
            mesh_or_device,
            f"precompiling {exported.fun_name}",
            "Pass the tuple of the arguments, precompile(args, into=...)",
        )
        kwargs = given if kwargs is None else kwargs
    elif not isinstance(args, tuple):
        raise ExportError(f"precompiling {exported.fun_name}: args is the tuple of its arguments, found {type(args)}")
    if not isinstance(vjp_order, (int, np.integer)) or vjp_order < 0:
        raise ExportTypeError(
            f"precompiling {exported.fun_name}: vjp_order is the number of VJPs to compile, an int of 0 or more, found "
            f"{vjp_order!r}"
        )
    program, is_apart, args = apart(exported, args, as_specs=True)
    leaves, _ = flattened(program, is_apart, args, kwargs or {})

    made = [_Call(program, leaves, None, len(args[0]) if is_apart else 0)]
    for _ in range(vjp_order):
        made.append(made[-1].vjp())
    file = into if isinstance(into, GrowingFile) else GrowingFile(into)
    return tuple(one.write(file) for one in made)


class _Call:
    """A call to be compiled. `results` are indices, None for all; the first `weights` of the leaves are weights."""

    def __init__(
        self, exported: ExportedData, leaves: Sequence[Any], results: Sequence[int] | None, weights: int
    ) -> None:
        self.exported, self.leaves, self.results, self.weights = exported, leaves, results, weights

    def vjp(self) -> _Call:
        """The call of the VJP that an eager gradient with respect to all arguments makes."""
        vjp = self.exported.vjp()
        avals = [_aval_of(leaf) for leaf in self.leaves]
        out_avals, _ = abstract_eval(*avals, exported=self.exported)
        leaves = [*self.leaves, *map(_spec_of, (aval.to_ct_aval() for aval in out_avals))]
        wanted = [i for i, aval in enumerate(self.exported.in_avals) if is_differentiable(aval)]
        results = None if len(wanted) == len(vjp.out_avals) else wanted
        return _Call(vjp, leaves, results, self.weights)

    def write(self, into: GrowingFile) -> Executable:
        """Compiles the call and adds its code, unless the file already has it."""
        name = data.described(self.exported)
        try:
            placement = placing.placement_of(self.leaves)
            found = {
                **conditions.of_function(self.exported),
                **conditions.of_machine(placement.devices),
                **conditions.of_call(self.leaves, placement, self.results),
            }
            size = into.size_of(found)
            if size is None:
                code, call = self._compile(placement.devices)
                into.append(found, call, code)
                size = len(code)
        except placing.UnknownPlacementError as error:
            raise UnsupportedError(
                f"precompiling {name}: it has {error}, which a file of executables cannot express"
            ) from cause(error)
        return Executable(found, size, False, executables.NOT_CALLED, self.weights)

    def _compile(self, devices: Sequence[Any]) -> tuple[bytes, dict[str, str]]:
        if effects := (*self.exported.ordered_effects, *self.exported.unordered_effects):
            raise UnsupportedError(
                f"precompiling {self.exported.fun_name}: it has effects ({', '.join(map(str, effects))}), which need "
                "the process that compiles it"
            )
        # A new function, so that JAX really compiles it.
        called = jitted_leaves(self.exported, self.results)
        with reuse.compiling_anew():
            executable = _jax.executable_of(compiled(self.exported, reuse.lowered(called, *self.leaves)))
        code, used = executables.serialized(executable)
        if used != list(devices):
            raise UnsupportedError(
                f"precompiling {self.exported.fun_name}: JAX compiles it for {used}, and not for {list(devices)}, "
                "where its arguments are"
            )
        targets = custom_calls.targets_on(self.exported, devices[0].client.platform)
        return code, executables.described(executable, sorted(targets))


def _aval_of(leaf: Any) -> Any:
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return _jax.ShapedArray(tuple(leaf.shape), leaf.dtype)
    return jax.typeof(leaf)


def _spec_of(aval: Any) -> Any:
    if aval.dtype == _jax.float0:
        return np.zeros(aval.shape, _jax.float0)
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype)

"""`Exported.precompile`: compiles a call, and adds the code to a file of executables, or to the compile cache."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, SingleDeviceSharding

from jaxexp import _jax
from jaxexp._errors import ExportError, ExportTypeError, UnsupportedError, cause
from jaxexp._kernel.call.call import compiled, jitted_leaves
from jaxexp._kernel.call.first_argument import apart, as_called, flattened
from jaxexp._kernel.call.primitive import abstract_eval, check_called, is_differentiable
from jaxexp._kernel.function import data
from jaxexp._kernel.function.data import ExportedData
from jaxexp._kernel.function.paths import argument_paths
from jaxexp._kernel.function.vjps import chain_up_to
from jaxexp._kernel.io import compile_cache
from jaxexp._kernel.io.compile_cache import CompileCache
from jaxexp._kernel.module import meshes

from . import conditions, executables
from .executables import Executable, compiling_anew, lowered, why_not_reusable
from .file import GrowingFile


def precompile(
    exported: ExportedData,
    args: tuple[Any, ...] | None,
    kwargs: dict[str, Any] | None,
    into: str | os.PathLike[str] | None,
    mesh_or_device: Any,
    vjp_order: int,
) -> tuple[Executable, ...]:
    """`Exported.precompile`."""
    if (missing := why_not_reusable()) is not None:
        raise UnsupportedError(f"precompiling {exported.fun_name}: {missing}")
    place = compile_cache.current() if into is None else into if isinstance(into, GrowingFile) else GrowingFile(into)
    if place is None:
        raise ExportError(
            f"precompiling {exported.fun_name}: there is no place for the code. Name a file, as in precompile(args, "
            "into='model.exe'), or first call jaxexp.compile_cache(folder)"
        )
    if args is None:
        args, given = _arguments_of(exported, mesh_or_device)
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
    called = as_called(exported)
    for i, leaf in enumerate(leaves[len(leaves) - len(called.in_avals) :]):
        _check_shape(exported, called, i, np.shape(leaf))
    check_called(
        exported, [_jax.ShapedArray(np.shape(leaf), a.dtype) for leaf, a in zip(leaves, program.in_avals, strict=True)]
    )

    chain_up_to(program, int(vjp_order))  # before the first compilation
    made = [_CallToCompile(program, leaves, None, len(args[0]) if is_apart else 0)]
    for _ in range(vjp_order):
        made.append(made[-1].vjp())
    return tuple(one.write(place) for one in made)


def _arguments_of(exported: ExportedData, place: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Specs of the arguments of a call, from the signature, on a mesh or a device if one is given."""
    shardings: Sequence[Any]
    exported, doing = as_called(exported), f"precompiling {exported.fun_name}"
    if isinstance(place, Mesh):
        shardings = meshes.shardings_on(exported, place)
    elif place is None or isinstance(place, jax.Device):
        shardings = (None if place is None else SingleDeviceSharding(place),) * len(exported.in_avals)
    else:
        raise ExportTypeError(f"{doing}: expected a jax.sharding.Mesh, a device or None, found {type(place)}")
    specs, weak = [], set(data.weak_arguments(exported))
    for i, (aval, placed) in enumerate(zip(exported.in_avals, shardings, strict=True)):
        _check_shape(exported, exported, i, aval.shape)
        specs.append(jax.ShapeDtypeStruct(aval.shape, aval.dtype, sharding=placed, weak_type=i in weak))
    args, kwargs = jax.tree_util.tree_unflatten(exported.in_tree, specs)
    return args, kwargs


def _check_shape(exported: ExportedData, program: ExportedData, index: int, shape: Sequence[Any]) -> None:
    """Refuses a symbolic shape of an argument of a program."""
    if any(map(_jax.is_symbolic_dim, shape)):
        raise ExportError(
            f"precompiling {exported.fun_name}: {argument_paths(program.in_tree)[index]} has the symbolic shape "
            f"{tuple(shape)}, but code is compiled for known sizes. Pass the tuple of the arguments, precompile(args, "
            "into=...), with arrays or jax.ShapeDtypeStruct of these sizes"
        )


class _CallToCompile:
    """A call to be compiled. `results` are indices, None for all; the first `weights` of the leaves are weights."""

    def __init__(
        self, exported: ExportedData, leaves: Sequence[Any], results: Sequence[int] | None, weights: int
    ) -> None:
        self.exported, self.leaves, self.results, self.weights = exported, leaves, results, weights

    def vjp(self) -> _CallToCompile:
        """The call of the VJP that an eager gradient with respect to all arguments makes."""
        vjp = self.exported.vjp()
        avals = [
            _jax.ShapedArray(tuple(leaf.shape), leaf.dtype)
            if isinstance(leaf, jax.ShapeDtypeStruct)
            else jax.typeof(leaf)
            for leaf in self.leaves
        ]
        out_avals, _ = abstract_eval(*avals, exported=self.exported)
        leaves = [
            np.zeros(aval.shape, aval.dtype)
            if aval.dtype == _jax.float0
            else jax.ShapeDtypeStruct(aval.shape, aval.dtype)
            for aval in (aval.to_ct_aval() for aval in out_avals)
        ]
        leaves = [*self.leaves, *leaves]
        wanted = [i for i, aval in enumerate(self.exported.in_avals) if is_differentiable(aval)]
        results = None if len(wanted) == len(vjp.out_avals) else wanted
        return _CallToCompile(vjp, leaves, results, self.weights)

    def write(self, into: GrowingFile | CompileCache) -> Executable:
        """Compiles the call and adds its code, unless it is there already."""
        name = data.described(self.exported)
        try:
            placement = conditions.placement_of(self.leaves)
            found = conditions.of(self.exported, placement, conditions.of_call(self.leaves, placement, self.results))
            with into.finding(found) as entry:
                if entry is None:
                    entry = self._compile(placement.devices)
                    into.put(found, *entry)
        except conditions.UnknownPlacementError as error:
            raise UnsupportedError(
                f"precompiling {name}: it has {error}, which a file of executables cannot express"
            ) from cause(error)
        return Executable(found, len(entry[1]), False, executables.NOT_CALLED, self.weights)

    def _compile(self, devices: Sequence[Any]) -> tuple[dict[str, str], bytes]:
        if effects := (*self.exported.ordered_effects, *self.exported.unordered_effects):
            raise UnsupportedError(
                f"precompiling {self.exported.fun_name}: it has effects ({', '.join(map(str, effects))}), which need "
                "the process that compiles it"
            )
        # A new function, so that JAX really compiles it.
        called = jitted_leaves(self.exported, self.results)
        with compiling_anew():
            executable = _jax.executable_of(compiled(self.exported, lowered(called, *self.leaves)))
        return executables.for_record(executable, self.exported, devices)

"""Lowers a call of an exported function: merges its module into the caller's module, and calls it there."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Generator, Sequence
from typing import Any

import jax
import numpy as np

from jaxexp import _jax
from jaxexp._errors import ExportError, UnsupportedError, cause
from jaxexp._kernel.function.convention import NEWEST_VERSION, OLDEST_VERSION, Arguments
from jaxexp._kernel.function.data import ExportedData
from jaxexp._kernel.function.sharding import line_of
from jaxexp._kernel.module import call_arrays, custom_calls, meshes, mlir, runnable, shardy_texts

from .primitive import call_exported_p


def _lower(ctx: Any, *operands: Any, exported: ExportedData, results: Sequence[int] | None = None) -> Sequence[Any]:
    module_context = ctx.module_context
    if exported.uses_global_constants:
        module_context.shape_poly_state.uses_dim_vars = True
    platforms = check_call(module_context, exported)

    function, function_type = _merged_function(module_context, exported, platforms)
    arguments = Arguments.of_exported(exported)
    types = function_type.inputs
    platform_indices = [_platform_index(ctx, platforms, types[0])] if arguments.platform_indices else []
    tokens = [ctx.tokens_in.get(effect) for effect in exported.ordered_effects]
    kept = exported.module_kept_var_idx
    array_types = types[arguments.array]
    arrays = [
        mlir.converted(_constrained(ctx, operands[i], ctx.avals_in[i], exported._in_named_shardings[i]), type_)
        for i, type_ in zip(kept, array_types, strict=True)
    ]
    call = _jax.call_op(
        function_type.results, _jax.ir.FlatSymbolRefAttr.get(function), [*platform_indices, *tokens, *arrays]
    )
    if tokens:
        out = zip(exported.ordered_effects, call.results[: len(tokens)], strict=True)
        ctx.set_tokens_out(_jax.TokenSet({effect: (token,) for effect, token in out}))
    wanted = range(len(exported.out_avals)) if results is None else results
    returned = []
    for i, aval in zip(wanted, ctx.avals_out, strict=True):
        result = mlir.converted(call.results[len(tokens) + i], _jax.aval_to_ir_type(module_context, _physical(aval)))
        returned.append(_constrained(ctx, result, aval, exported._out_named_shardings[i]))
    return returned


_jax.register_lowering(call_exported_p, _lower)


def check_call(module_context: Any, exported: ExportedData) -> list[int]:
    """Refuses a call that the function was not exported for.

    Args:
        module_context: the lowering of the caller.
        exported: the function.

    Returns:
        For each platform of the lowering, the index of the function's platform to take.

    Raises:
        ExportError: the platforms, the number of devices or the calling convention do not fit.
    """
    check_device_count(module_context.axis_context, exported)
    _check_convention(exported)
    return _callee_platforms(module_context.platforms, exported)


def check_device_count(axis_context: Any, exported: ExportedData) -> None:
    """The part of `check_call` about devices."""
    if isinstance(axis_context, _jax.ShardingContext):
        nr_devices = axis_context.num_devices
    elif isinstance(axis_context, _jax.SPMDAxisContext):
        nr_devices = axis_context.mesh.size
        if axis_context.manual_axes:
            _check_manual(axis_context, exported)
    else:
        kind = type(axis_context).__name__
        raise UnsupportedError(f"calling {exported.fun_name}: calls under {kind} are not supported")
    # A function for one device has no shardings to respect, so it runs replicated on any number of devices.
    if exported.nr_devices not in (1, nr_devices):
        raise _wrong_devices(exported, nr_devices)


def explain_devices(exported: ExportedData, error: ValueError) -> None:
    """Raises the same error as `check_device_count` if this is JAX's own about a result on a mesh with Explicit axes:
    JAX looks at the types of results before it lowers a call.
    """
    found = re.match(r"Length of device assignment (\d+) is not equal to the size of the mesh", str(error))
    if found is not None and exported.nr_devices != int(found[1]):
        raise _wrong_devices(exported, int(found[1])) from cause(error)


@contextlib.contextmanager
def explaining_devices(exported: ExportedData) -> Generator[None]:
    """The same for a call outside of jit, in a block."""
    try:
        yield
    except ValueError as error:
        explain_devices(exported, error)
        raise


def _wrong_devices(exported: ExportedData, found: int) -> ExportError:
    return ExportError(
        f"calling {exported.fun_name}: it was exported for {exported.nr_devices} devices, and is called on {found}. "
        f"{_how_to_have_devices(exported)}"
    )


def _how_to_have_devices(exported: ExportedData) -> str:
    needed, there = exported.nr_devices, jax.device_count()
    if there >= needed:
        mesh = meshes.of(exported)
        is_said = any(one is not None for one in exported._in_named_shardings)
        whole = "jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())"
        return (
            f"Place its arguments with jax.device_put(argument, "
            f"{'exported.in_shardings_jax(mesh)[i]' if is_said else whole}), where mesh is exported.make_mesh(), or "
            f"{line_of(mesh.axis_sizes, mesh.axis_names, mesh.axis_types)}"
        )
    return (
        f"This process has {there} {jax.default_backend()} device{'s' if there > 1 else ''}: call it where there are "
        f'{needed}. A CPU can stand for several, with jax.config.update("jax_num_cpu_devices", {needed}) before JAX '
        "is first used"
    )


def _check_convention(exported: ExportedData) -> None:
    version = exported.calling_convention_version
    if version > NEWEST_VERSION:
        raise ExportError(
            f"calling {exported.fun_name}: its module has calling convention {version}, and {NEWEST_VERSION} is the "
            "newest that this jaxexp knows; use a newer jaxexp"
        )
    # Older modules kept tokens inside. Nothing else about arguments and results has changed.
    if version < OLDEST_VERSION and exported.ordered_effects:
        raise ExportError(
            f"calling {exported.fun_name}: its module has calling convention {version}, in which no tokens are passed, "
            f"so that its ordered effects ({', '.join(map(str, exported.ordered_effects))}) cannot be kept in order "
            f"with the caller's effects; export it with calling convention {OLDEST_VERSION} or newer"
        )


def _check_manual(axis_context: Any, exported: ExportedData) -> None:
    """Inside `jax.shard_map`, each device works on its own: this refuses functions that divide data among devices.

    The compiler would raise its own error for some of these calls, and abort the process for others.
    """
    shardings = (*exported._in_named_shardings, *exported._out_named_shardings)
    sharded = any(sharding is not None and not sharding.mesh.empty for sharding in shardings)
    partly = axis_context.manual_axes != set(axis_context.mesh.axis_names)
    if sharded or (exported.nr_devices > 1 and (partly or _has_manual_part(exported))):
        raise ExportError(
            f"calling {exported.fun_name} inside jax.shard_map, where the mesh axes "
            f"{', '.join(map(repr, sorted(axis_context.manual_axes, key=str)))} are manual: it was exported with "
            f"shardings, for {exported.nr_devices} devices together. Call it outside of jax.shard_map"
        )


def _has_manual_part(exported: ExportedData) -> bool:
    with _jax.make_ir_context() as context:
        module = runnable.parse(exported, context)
        return any(operation.name == "sdy.manual_computation" for operation in mlir.iter_operations(module))


def _merged_function(module_context: Any, exported: ExportedData, platforms: Sequence[int]) -> tuple[str, Any]:
    """The name and type of the exported function inside the caller's module. It is merged in once."""
    key = (call_exported_p, exported)
    known = module_context.cached_primitive_lowerings.get(key)
    if known is None:
        with module_context.module.context as context:
            callee = runnable.parse(exported, context)
            call_arrays.assert_open_sizes(exported, callee)
            if runnable.may_call_lapack(exported):
                _jax.initialize_lapack()  # imports SciPy: a fifth of a second that other functions save
            custom_calls.refuse_callbacks(exported, callee, platforms)
        _prepare_shardy(callee, exported)
        _rename_meshes(callee, module_context.symbol_table)
        function_type = _jax.ir.SymbolTable(callee.operation)["main"].type
        name = _jax.merge_modules(
            module_context.module,
            f"call_exported_{exported.fun_name}",
            callee,
            dst_symtab=module_context.symbol_table,
        )
        known = module_context.cached_primitive_lowerings[key] = name, function_type
    name, function_type = known
    return name, function_type


# The name that JAX's lowering gives to the meshes at the top of a module.
_MESH_SYMBOLS = ("mesh", "empty_mesh", "single_device_0", "maximal_mesh_0")


def _prepare_shardy(callee: Any, exported: ExportedData) -> None:
    """Converts the shardings in a module to the form of the caller's module: Shardy, with named meshes."""
    symbols = _jax.ir.SymbolTable(callee.operation)
    are_texts = shardy_texts.are_in(callee)
    has_mesh = any(name in symbols and isinstance(symbols[name], _jax.MeshOp) for name in _MESH_SYMBOLS)
    if (has_mesh or are_texts) and not _jax.shardy_flag.value:
        raise ExportError(
            f"calling {exported.fun_name}: it was exported with Shardy, which is turned off here. "
            "If you passed compatibility= to export, for a release without Shardy, pass it to save or serialize "
            "instead. Otherwise set jax_use_shardy_partitioner to True"
        )
    if are_texts and not has_mesh:
        shardy_texts.import_(callee)
    else:
        if are_texts:
            shardy_texts.check(callee)
        mlir.run_passes(callee, "sdy-lift-inlined-meshes")
    shardy_texts.check_axes(callee)


def _rename_meshes(callee: Any, taken: Any) -> None:
    """Gives the meshes of a module names that are free in the caller's module.

    Merging would rename them too, but not in the shardings of the module's functions. These would refer to a mesh of
    the caller that happens to have the same name.
    """
    symbols = _jax.ir.SymbolTable(callee.operation)
    for operation in list(callee.body.operations):
        if not isinstance(operation, _jax.MeshOp):
            continue
        name = operation.sym_name.value
        if name in taken:
            new = mlir.free_name(name, taken, symbols)
            symbols.set_symbol_name(operation, new)
            symbols.replace_all_symbol_uses(name, new, callee.operation)


def _callee_platforms(platforms: Sequence[str], exported: ExportedData) -> list[int]:
    """For each platform of the lowering, the index of the exported function's platform to take."""
    indices = []
    for platform in platforms:
        if platform in exported.platforms:
            indices.append(exported.platforms.index(platform))
        elif any(str(check) == "platform" for check in exported.disabled_safety_checks):
            indices.append(0)
        else:
            names = ", ".join(map(str, exported.platforms))
            raise ExportError(
                f"calling {exported.fun_name}: it was exported for {names}, and is called on {platform}. "
                "Export it for that platform too, with platforms=(...)"
            )
    return indices


def _platform_index(ctx: Any, platforms: Sequence[int], type_: Any) -> Any:
    """The platform index argument, for a function of several platforms; `platforms` is from `_callee_platforms`."""
    if len(platforms) == 1:
        return mlir.converted(_jax.ir_constant(np.int32(platforms[0])), type_)
    int32 = _jax.ir.RankedTensorType.get((), _jax.ir.IntegerType.get_signless(32))
    choice = _jax.hlo.CaseOp([int32], index=mlir.converted(ctx.dim_var_values[0], int32), num_branches=len(platforms))
    for region, index in zip(choice.regions, platforms, strict=True):
        with _jax.ir.InsertionPoint(region.blocks.append()):
            _jax.hlo.return_([_jax.ir_constant(np.int32(index))])
    return mlir.converted(choice.result, type_)


def _physical(aval: Any) -> Any:
    """The type of an array inside a module: PRNG keys are arrays of integers there."""
    return _jax.physical_aval(aval) if _jax.issubdtype(aval.dtype, _jax.extended_dtype) else aval


def _constrained(ctx: Any, value: Any, aval: Any, sharding: Any) -> Any:
    if sharding is None:
        return value
    physical = _physical(aval)
    return _jax.wrap_with_sharding_op(
        ctx, value, physical, _jax.sdy_of_named_sharding(sharding, physical.ndim), allow_shardy_lowering=True
    )

"""The primitive that calls an exported function: typing, lowering, differentiation and batching.

`call_exported_p` calls the function. `pushforward_p` is its derivative in a direction; being linear in the
direction, it transposes to a call of the VJP, which is what reverse mode needs. Where forward mode really runs it, it
is computed from the VJP of the VJP, whose part that belongs to the cotangents is the pushforward.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from jaxexp import _jax
from jaxexp._errors import ExportError, UnsupportedError
from jaxexp._function import sharding as _sharding
from jaxexp._function.convention import NEWEST_VERSION, OLDEST_VERSION, Arguments
from jaxexp._module import custom_calls as _targets
from jaxexp._module import lapack as _legacy

from . import batching as _batch

if TYPE_CHECKING:
    from jaxexp._exported import Exported

call_exported_p = _jax.Primitive("call_exported")
call_exported_p.multiple_results = True

pushforward_p = _jax.Primitive("call_exported_pushforward")
pushforward_p.multiple_results = True


# Typing


@_jax.cached()
def abstract_eval(*in_avals: Any, exported: Exported) -> tuple[tuple[Any, ...], set[Any]]:
    _check_arguments(in_avals, exported)
    names, sizes = _solve_dim_vars(in_avals, exported)
    meshes = _sharding.meshes_of_call(exported._in_named_shardings, in_avals)
    out_avals = []
    for aval, sharding in zip(exported.out_avals, exported._out_named_shardings, strict=True):
        shape = _jax.evaluate_shape(aval.shape, names, *sizes)
        plain = _jax.ShapedArray(shape, aval.dtype, aval.weak_type, memory_space=aval.memory_space)
        out_avals.append(_jax.with_sharding(plain, _sharding.in_call(sharding, meshes)))
    return tuple(out_avals), {*exported.ordered_effects, *exported.unordered_effects}


call_exported_p.def_effectful_abstract_eval(abstract_eval)


def _check_arguments(in_avals: Sequence[Any], exported: Exported) -> None:
    """Compares ranks, dtypes and constant dimensions; symbolic ones are left to `_solve_dim_vars`."""
    for index, (expected, actual) in enumerate(zip(exported.in_avals, in_avals, strict=True)):
        if expected is actual:  # JAX interns abstract values
            continue
        if not isinstance(actual, _jax.ShapedArray):
            _mismatch(exported, index, None, "an array", str(actual))
        if len(expected.shape) != len(actual.shape):
            _mismatch(exported, index, None, f"rank {expected.ndim}", f"rank {actual.ndim}", expected, actual)
        if expected.dtype != actual.dtype:
            _mismatch(exported, index, None, f"dtype {expected.dtype}", f"dtype {actual.dtype}", expected, actual)
        for axis, (wanted, given) in enumerate(zip(expected.shape, actual.shape, strict=True)):
            if _jax.is_constant_dim(wanted) and not (_jax.is_constant_dim(given) and wanted == given):
                _mismatch(exported, index, axis, f"size {wanted}", f"size {given}", expected, actual)


def _mismatch(exported: Exported, index: int, axis: int | None, expected: str, found: str, *avals: Any) -> None:
    where = _jax.describe_argument(exported.in_tree, index, axis)
    whole = f" (exported with {avals[0]}, called with {avals[1]})" if avals else ""
    raise ExportError(f"calling {exported.fun_name}: {where} must have {expected}, found {found}{whole}")


def _solve_dim_vars(in_avals: Sequence[Any], exported: Exported) -> tuple[Sequence[str], list[Any]]:
    """The dimension variables of an exported function, and their values for these arguments.

    All constraints are checked here, so that a call has to satisfy them wherever it is traced.
    """
    names = _jax.all_dim_vars(exported.in_avals)
    if not names:
        return names, []
    try:
        solution, constraints, sources = _jax.solve_dim_vars(exported.in_avals, args_kwargs_tree=exported.in_tree)
        sizes: Any = _jax.ShapeEvaluator({name: in_avals[index].shape[axis] for name, index, axis in sources})
        constraints.check_statically(sizes)
        return names, [sizes.evaluate(solution[name]) for name in names]
    except ValueError as error:
        raise ExportError(f"calling {exported.fun_name}: {error}") from error


# Lowering


def _lower(ctx: Any, *operands: Any, exported: Exported) -> Sequence[Any]:
    module_context = ctx.module_context
    if "cpu" in exported.platforms:
        _jax.initialize_lapack()
    if exported.uses_global_constants:
        module_context.shape_poly_state.uses_dim_vars = True
    _check_device_count(module_context.axis_context, exported)
    _check_convention(exported)

    function, function_type = _merged_function(module_context, exported)
    arguments = Arguments.of_exported(exported)
    types = function_type.inputs
    platform_indices = _platform_index(ctx, exported, types[0]) if arguments.platform_indices else []
    if not platform_indices:
        _callee_platforms(module_context.platforms, exported)
    tokens = [ctx.tokens_in.get(effect) for effect in exported.ordered_effects]
    kept = exported.module_kept_var_idx
    array_types = types[arguments.array]
    arrays = [
        _jax.converted(_constrained(ctx, operands[i], ctx.avals_in[i], exported._in_named_shardings[i]), type_)
        for i, type_ in zip(kept, array_types, strict=True)
    ]
    call = _jax.call_op(
        function_type.results, _jax.ir.FlatSymbolRefAttr.get(function), [*platform_indices, *tokens, *arrays]
    )
    if tokens:
        out = zip(exported.ordered_effects, call.results[: len(tokens)], strict=True)
        ctx.set_tokens_out(_jax.TokenSet({effect: (token,) for effect, token in out}))
    return [
        _constrained(ctx, _jax.converted(result, _jax.aval_to_ir_type(module_context, _physical(aval))), aval, sharding)
        for result, aval, sharding in zip(
            call.results[len(tokens) :], ctx.avals_out, exported._out_named_shardings, strict=True
        )
    ]


_jax.register_lowering(call_exported_p, _lower)


def _check_device_count(axis_context: Any, exported: Exported) -> None:
    if isinstance(axis_context, _jax.ShardingContext):
        nr_devices = axis_context.num_devices
    elif isinstance(axis_context, _jax.SPMDAxisContext):
        nr_devices = axis_context.mesh.size
        if axis_context.manual_axes:
            _check_manual(axis_context, exported)
    else:
        raise UnsupportedError(f"calling {exported.fun_name} under {type(axis_context).__name__}")
    # A function for one device has no shardings to respect, so it runs replicated on any number of devices.
    if exported.nr_devices not in (1, nr_devices):
        raise ExportError(
            f"calling {exported.fun_name}: it was exported for {exported.nr_devices} devices, and is called on "
            f"{nr_devices}. Place its arguments with jax.device_put(argument, exported.in_shardings_jax(mesh)[i])"
        )


def _check_convention(exported: Exported) -> None:
    version = exported.calling_convention_version
    if version > NEWEST_VERSION:
        raise ExportError(
            f"calling {exported.fun_name}: its module has calling convention {version}, and this jaxexp knows those up "
            f"to {NEWEST_VERSION}; use a newer jaxexp"
        )
    # Before, tokens stayed inside of the module. All else about its arguments and results has not changed.
    if version < OLDEST_VERSION and exported.ordered_effects:
        raise ExportError(
            f"calling {exported.fun_name}: its module has calling convention {version}, in which no tokens are passed, "
            f"so that its ordered effects ({', '.join(map(str, exported.ordered_effects))}) cannot be kept in order "
            f"with those of the caller; export it with calling convention {OLDEST_VERSION} or newer"
        )


def _check_manual(axis_context: Any, exported: Exported) -> None:
    """Refuses, inside `jax.shard_map`, what wants to divide data among devices that each are on their own there.

    The compiler would stop on some of these calls with an error of its own, and on others abort the process.
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


def _has_manual_part(exported: Exported) -> bool:
    with _jax.make_ir_context() as context:
        module = _legacy.parse(exported, context)
        return any(operation.name == "sdy.manual_computation" for operation in _jax.iter_operations(module))


def _merged_function(module_context: Any, exported: Exported) -> tuple[str, Any]:
    """The name and type of the exported function inside the module that is being built; merged in once."""
    key = (call_exported_p, exported)
    known = module_context.cached_primitive_lowerings.get(key)
    if known is None:
        with module_context.module.context as context:
            callee = _legacy.parse(exported, context)
            _targets.check(exported, callee, module_context)
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


# What JAX's lowering calls the meshes that it puts at the top of a module.
_MESH_SYMBOLS = ("mesh", "empty_mesh", "single_device_0", "maximal_mesh_0")


def _prepare_shardy(callee: Any, exported: Exported) -> None:
    """Brings the shardings inside a module into the form that the module around it has: Shardy, with named meshes."""
    symbols = _jax.ir.SymbolTable(callee.operation)
    as_attributes = _jax.has_shardy_attributes(callee)
    has_mesh = any(name in symbols and isinstance(symbols[name], _jax.MeshOp) for name in _MESH_SYMBOLS)
    if (has_mesh or as_attributes) and not _jax.shardy_flag.value:
        raise ExportError(
            f"calling {exported.fun_name}: it was exported with Shardy, which is turned off here; "
            "set jax_use_shardy_partitioner to True"
        )
    round_trip = ["xla-sdy-round-trip-import-shardy-attrs"] if as_attributes and not has_mesh else []
    _jax.run_passes(callee, *round_trip, "sdy-lift-inlined-meshes")


def _rename_meshes(callee: Any, taken: Any) -> None:
    """Gives the meshes of a module names that are free in the module it goes into.

    Merging would rename them too, but not in the shardings of the module's functions: those would refer to a mesh of
    the caller that happens to have the same name.
    """
    symbols = _jax.ir.SymbolTable(callee.operation)
    for operation in list(callee.body.operations):
        if not isinstance(operation, _jax.MeshOp):
            continue
        name = operation.sym_name.value
        if name in taken:
            new = _jax.free_name(name, taken, symbols)
            symbols.set_symbol_name(operation, new)
            symbols.replace_all_symbol_uses(name, new, callee.operation)


def _callee_platforms(platforms: Sequence[str], exported: Exported) -> list[int]:
    """For each platform that is being lowered for, the index of the exported function's platform to take."""
    indices = []
    for platform in platforms:
        if platform in exported.platforms:
            indices.append(exported.platforms.index(platform))
        elif any(str(check) == "platform" for check in exported.disabled_safety_checks):
            indices.append(0)
        else:
            raise ExportError(
                f"calling {exported.fun_name}: it was exported for {', '.join(exported.platforms)}, and is called on "
                f"{platform}. Export it for that platform too, with platforms=(...)"
            )
    return indices


def _platform_index(ctx: Any, exported: Exported, type_: Any) -> list[Any]:
    """The platform index argument, for a function of several platforms."""
    indices = _callee_platforms(ctx.module_context.platforms, exported)
    if len(indices) == 1:
        return [_jax.converted(_jax.ir_constant(np.int32(indices[0])), type_)]
    int32 = _jax.ir.RankedTensorType.get((), _jax.ir.IntegerType.get_signless(32))
    choice = _jax.hlo.CaseOp([int32], index=_jax.converted(ctx.dim_var_values[0], int32), num_branches=len(indices))
    for region, index in zip(choice.regions, indices, strict=True):
        with _jax.ir.InsertionPoint(region.blocks.append()):
            _jax.hlo.return_([_jax.ir_constant(np.int32(index))])
    return [_jax.converted(choice.result, type_)]


def _physical(aval: Any) -> Any:
    """The type that an array has inside a module: PRNG keys are arrays of integers there."""
    return _jax.physical_aval(aval) if _jax.issubdtype(aval.dtype, _jax.extended_dtype) else aval


def _constrained(ctx: Any, value: Any, aval: Any, sharding: Any) -> Any:
    if sharding is None:
        return value
    physical = _physical(aval)
    return _jax.wrap_with_sharding_op(
        ctx, value, physical, _jax.sdy_of_named_sharding(sharding, physical.ndim), allow_shardy_lowering=True
    )


def _run(*args: Any, exported: Exported) -> Any:
    return _jax.apply_primitive(call_exported_p, *args, exported=exported)


call_exported_p.def_impl(_run)


# Differentiation


def _is_differentiable(aval: Any) -> bool:
    return bool(aval.to_tangent_aval().dtype != _jax.float0)


def _differentiable(avals: Sequence[Any]) -> list[int]:
    return [i for i, aval in enumerate(avals) if _is_differentiable(aval)]


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], *, exported: Exported) -> tuple[Any, Any]:
    results = call_exported_p.bind(*primals, exported=exported)
    wrt = tuple(i for i, tangent in enumerate(tangents) if not isinstance(tangent, _jax.Zero))
    out_tangents: list[Any] = [_jax.Zero(jax.typeof(result).to_tangent_aval()) for result in results]
    differentiable = _differentiable(exported.out_avals)
    if wrt and differentiable:
        pushed = pushforward_p.bind(*primals, *(tangents[i] for i in wrt), exported=exported, wrt=wrt)
        for i, tangent in zip(differentiable, pushed, strict=True):
            out_tangents[i] = tangent
    return results, out_tangents


def _transpose(cotangents: Any, *args: Any, exported: Exported) -> Any:
    raise UnsupportedError(
        f"jax.linear_transpose of {exported.fun_name}: nothing says that an exported function is linear. For one that "
        "is, jax.vjp at any point gives its transpose"
    )


_jax.primitive_jvps[call_exported_p] = _jvp
_jax.primitive_transposes[call_exported_p] = _transpose


def _pushforward(*primals_and_tangents: Any, exported: Exported, wrt: tuple[int, ...]) -> list[Any]:
    """The tangents of the differentiable results, given the tangents of the arguments `wrt`."""
    n = len(exported.in_avals)
    function, operands = _pushforward_call(primals_and_tangents[:n], primals_and_tangents[n:], exported, wrt)
    pulled = call_exported_p.bind(*operands, exported=function)[n:]
    return [pulled[i] for i in _differentiable(exported.out_avals)]


def _pushforward_call(
    primals: Sequence[Any], tangents: Sequence[Any], exported: Exported, wrt: tuple[int, ...]
) -> tuple[Exported, list[Any]]:
    """The function, and its arguments, that computes a pushforward.

    It is the VJP of the VJP. Its results for the VJP's own cotangent arguments, which come after one for each primal
    argument, do not depend on what these arguments are, and are linear in the directions, which come last.
    """
    in_avals = list(map(jax.typeof, primals))
    out_avals, _ = abstract_eval(*in_avals, exported=exported)
    cotangents = _cotangents(out_avals, {})
    # Cotangents of cotangents are tangents.
    directions = _filled([a.to_tangent_aval() for a in in_avals], dict(zip(wrt, tangents, strict=True)))
    return _vjp_of_vjp(exported), [*primals, *cotangents, *directions]


def _vjp_of_vjp(exported: Exported) -> Exported:
    vjps: list[Exported] = []
    while len(vjps) < 2:
        link = vjps[-1] if vjps else exported
        if not link.has_vjp():
            name, order = exported._origin
            raise ExportError(
                f"forward-mode differentiation of {name} takes its VJPs up to order {order + 2}, and it was serialized "
                f"with vjp_order={order + len(vjps)}: serialize it with vjp_order={order + 2} or more. Each derivative "
                "in forward mode takes two orders, each one in reverse mode, such as jax.grad, takes one"
            )
        vjps.append(link.vjp())
    return vjps[-1]


def _cotangents(avals: Sequence[Any], known: dict[int, Any]) -> list[Any]:
    """A cotangent for each primal value: the one that is known by its index, or zero."""
    return _filled([aval.to_ct_aval() for aval in avals], known)


def _filled(avals: Sequence[Any], known: dict[int, Any]) -> list[Any]:
    return [known[i] if i in known else _zeros(aval) for i, aval in enumerate(avals)]


def _zeros(aval: Any) -> Any:
    if aval.dtype == _jax.float0:
        return np.zeros(aval.shape, _jax.float0)
    # On no mesh, even where the type has one: eagerly there may be no way to its devices. The call puts it in place.
    return jax.numpy.zeros(aval.shape, aval.dtype)


def _pushforward_abstract_eval(*avals: Any, exported: Exported, wrt: tuple[int, ...]) -> Any:
    out_avals, effects = abstract_eval(*avals[: len(exported.in_avals)], exported=exported)
    return tuple(aval.to_tangent_aval() for aval in out_avals if _is_differentiable(aval)), effects


def _pushforward_jvp(
    primals: Sequence[Any], tangents: Sequence[Any], *, exported: Exported, wrt: tuple[int, ...]
) -> tuple[Any, Any]:
    n = len(exported.in_avals)
    moved = [i for i, tangent in enumerate(tangents) if not isinstance(tangent, _jax.Zero)]
    if moved and moved[0] >= n:  # directions alone, in which it is linear
        results = pushforward_p.bind(*primals, exported=exported, wrt=wrt)
        moved_wrt = tuple(wrt[i - n] for i in moved)
        directions = [tangents[i] for i in moved]
        return results, pushforward_p.bind(*primals[:n], *directions, exported=exported, wrt=moved_wrt)
    function, operands = _pushforward_call(primals[:n], primals[n:], exported, wrt)
    moves = [_jax.Zero(jax.typeof(operand).to_tangent_aval()) for operand in operands]
    moves[:n] = tangents[:n]
    for i, tangent in zip(wrt, tangents[n:], strict=True):
        moves[len(operands) - n + i] = tangent
    results, pushed = _jvp(operands, moves, exported=function)
    differentiable = [n + i for i in _differentiable(exported.out_avals)]
    return [results[i] for i in differentiable], [pushed[i] for i in differentiable]


def _pushforward_transpose(
    cotangents: Sequence[Any], *primals_and_tangents: Any, exported: Exported, wrt: tuple[int, ...]
) -> list[Any]:
    n = len(exported.in_avals)
    primals, tangents = primals_and_tangents[:n], primals_and_tangents[n:]
    out_avals, _ = abstract_eval(*map(jax.typeof, primals), exported=exported)
    given = zip(_differentiable(out_avals), cotangents, strict=True)
    known = {i: cotangent for i, cotangent in given if not isinstance(cotangent, _jax.Zero)}
    pulled = call_exported_p.bind(*primals, *_cotangents(out_avals, known), exported=exported.vjp())
    of_tangents = [
        _as_type(pulled[i], tangent.aval, exported) if _jax.is_undefined_primal(tangent) else None
        for i, tangent in zip(wrt, tangents, strict=True)
    ]
    return [None] * n + of_tangents


def _as_type(cotangent: Any, aval: Any, exported: Exported) -> Any:
    """A cotangent with the sharding that JAX expects of it, where that is part of its type (Explicit axes)."""
    found = jax.typeof(cotangent)
    if _jax.same_type(found, aval):
        return cotangent
    if found.sharding.mesh != aval.sharding.mesh or found.memory_space != aval.memory_space:
        raise ExportError(
            f"differentiating {exported.fun_name}: a cotangent comes out as {found} on {found.sharding.mesh}, and has "
            f"to be {aval} on {aval.sharding.mesh}, like the argument. Place the arguments as in_shardings_jax(mesh) "
            "says, on a mesh with the axis types of the export"
        )
    return jax.sharding.reshard(cotangent, aval.sharding)


pushforward_p.def_effectful_abstract_eval(_pushforward_abstract_eval)
_jax.primitive_jvps[pushforward_p] = _pushforward_jvp
_jax.primitive_transposes[pushforward_p] = _pushforward_transpose
_jax.register_lowering(pushforward_p, _jax.lower_as_function(_pushforward))


def _run_pushforward(*args: Any, exported: Exported, wrt: tuple[int, ...]) -> Any:
    return _jax.apply_primitive(pushforward_p, *args, exported=exported, wrt=wrt)


pushforward_p.def_impl(_run_pushforward)


# Batching


def _batching_rule(primitive: Any) -> Callable[..., Any]:
    def rule(
        axis_data: Any, args: Sequence[Any], dims: Sequence[Any], *, exported: Exported, **params: Any
    ) -> tuple[Any, Any]:
        wrt, batch = params.get("wrt"), exported._batch
        led = None if batch is None else (batch.arguments, batch.results)
        if led is not None and wrt is not None:  # element i of a tangent goes with element i of what it is a tangent of
            led = (*led[0], *(led[0][i] for i in wrt)), (True,) * len(_differentiable(exported.out_avals))

        def fits(avals: Sequence[Any]) -> bool:
            assert batch is not None  # asked only of declared dimensions
            try:
                abstract_eval(*avals[: len(exported.in_avals)], exported=batch.constrained)
            except ExportError:
                return False
            return True

        bind = functools.partial(primitive.bind, exported=exported, **params)
        return _batch.run(bind, axis_data, args, dims, led, fits, exported)

    return rule


_jax.fancy_primitive_batchers[call_exported_p] = _batching_rule(call_exported_p)
_jax.fancy_primitive_batchers[pushforward_p] = _batching_rule(pushforward_p)

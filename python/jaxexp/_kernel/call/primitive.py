"""The primitives that call an exported function, and their rules: types, lowering, derivatives.

`call_exported_p` calls the function. `pushforward_p` is its derivative in a direction. It is linear in the direction,
so it transposes to a call of the VJP, as reverse mode needs. If forward mode really runs it, it is computed from the
VJP of the VJP: the results for the cotangents are the pushforward.

The parameter `results` says which results are wanted, if not all. The compiler then drops the code for the others: a
gradient by the inputs of a model does not compute the gradient by its weights.

`call` has the rule of `jax.vmap`.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Generator, Sequence
from typing import Any, NoReturn

import jax
import numpy as np

from jaxexp import _jax
from jaxexp._errors import ExportError, ExportTypeError, UnsupportedError, cause, in_one_line
from jaxexp._kernel.artifact.words import cut
from jaxexp._kernel.codec.binding import LoadedScope
from jaxexp._kernel.function import data, specs
from jaxexp._kernel.function.convention import NEWEST_VERSION, OLDEST_VERSION, Arguments
from jaxexp._kernel.function.data import ExportedData
from jaxexp._kernel.function.paths import argument_path, taking_placeholders
from jaxexp._kernel.function.sharding import in_call, line_of, meshes_of_call
from jaxexp._kernel.function.vjps import chain_up_to
from jaxexp._kernel.io import compile_cache
from jaxexp._kernel.module import custom_calls, meshes, mlir, runnable

from . import trees
from .first_argument import as_called
from .shared import first_of_equals

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
    """The dimension variables of a function, and their values for arguments of these types. Nobody knows yet with which
    sizes a traced call will run: constraints that the function was loaded with are left to its module then. Raises an
    ExportError if the types do not fit.
    """
    with _jax.outside_of_traces():  # arguments are named by making their trees, and flax.nnx then asks for a trace
        _check_arguments(in_avals, exported, doing)
        return _solve_dim_vars(in_avals, exported, doing, is_traced)


def check_called(exported: ExportedData, in_avals: Sequence[Any]) -> None:
    """As `check`, given the types of all arguments; messages count them as the caller does, without those that are
    given with the function.
    """
    called = as_called(exported)
    check(called, in_avals[len(in_avals) - len(called.in_avals) :])


def _check_arguments(in_avals: Sequence[Any], exported: ExportedData, doing: tuple[str, str]) -> None:
    """Compares ranks, dtypes and constant dimensions; symbolic ones are left to `_solve_dim_vars`."""

    def refuse(wanted: str, found: str, axis: int | None = None) -> NoReturn:
        whole = ""
        if isinstance(actual, _jax.ShapedArray):
            hint = trees.about_dtypes(expected.dtype, actual.dtype)
            whole = f" (exported with {cut(str(expected))}, {doing[1]} {cut(str(actual))}){hint}"
        where = argument_path(exported.in_tree, index, axis)
        raise ExportError(f"{doing[0]} {data.described(exported)}: {where} must have {wanted}, found {found}{whole}")

    for index, (expected, actual) in enumerate(zip(exported.in_avals, in_avals, strict=True)):
        if expected is actual:  # JAX interns abstract values
            continue
        if not isinstance(actual, _jax.ShapedArray):
            refuse("an array", str(actual))
        if expected.dtype != actual.dtype and any(_jax.issubdtype(actual.dtype, kind) for kind in _OF_TIME):
            where = argument_path(exported.in_tree, index)
            raise ExportTypeError(
                f"{doing[0]} {data.described(exported)}: {where} must have dtype {expected.dtype}, found {actual.dtype}"
                ", which is not a dtype of JAX"
            )
        if len(expected.shape) != len(actual.shape):
            refuse(f"rank {expected.ndim}", f"rank {actual.ndim}")
        if expected.dtype != actual.dtype:
            refuse(f"dtype {expected.dtype}", f"dtype {actual.dtype}")
        for axis, (wanted, given) in enumerate(zip(expected.shape, actual.shape, strict=True)):
            if _jax.is_constant_dim(wanted) and not (_jax.is_constant_dim(given) and wanted == given):
                refuse(f"size {wanted}", f"size {given}", axis)


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
            dims = (dim for aval in exported.in_avals for dim in aval.shape if _jax.is_symbolic_dim(dim))
            is_loaded = isinstance(next(dims).scope, LoadedScope)
            # JAX checks constraints after everything else.
            if not (is_traced and is_loaded and _BROKEN.search(in_one_line(error))):
                raise
        return names, [sizes.evaluate(solution[name]) for name in names]
    except _jax.dim_vars_errors as error:
        reason = broken(error, exported, in_avals)
        raise specs.error_of_dims(error, f"{doing[0]} {data.described(exported)}: {reason}") from cause(error)


def executables_of(exported: ExportedData) -> Any:
    return vars(exported._kept).get("executables")


def code_of(
    executables: Any,
    exported: Any,
    leaves: Sequence[Any],
    compiled: Callable[[], Any],
    results: tuple[int, ...] | None = None,
) -> Any:
    """The code of a call, if it is among a function's executables, or in the compile cache, for which `compiled` makes
    the `jax.stages.Compiled` of the call; else None.
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


def broken(error: Exception, exported: Any, in_avals: Sequence[Any]) -> str:
    """What JAX's error about the sizes of arguments says, in our words if its form is known."""
    message = in_one_line(error)
    variables: list[tuple[str, ...]] = _VARIABLE.findall(message)
    if found := _NOT_WHOLE.search(message):
        sizes = (
            f"{wanted} = {size} ({argument_path(exported.in_tree, index, axis)})"
            for index, (expected, actual) in enumerate(zip(exported.in_avals, in_avals, strict=True))
            for axis, (wanted, size) in enumerate(zip(expected.shape, actual.shape, strict=True))
            if re.search(rf"\b{found[1]}\b", str(wanted))
        )
        return f"{found[1]} must be a whole number, found {', '.join(sizes)}"
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


# --- lowering: merges the function's module into the caller's module, and calls it there ------------------------------


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
    """Refuses a call that the function was not exported for. Returns the index of the function's platform for each
    platform of the lowering.
    """
    check_device_count(module_context.axis_context, exported)
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
    return _callee_platforms(module_context.platforms, exported)


def check_device_count(axis_context: Any, exported: ExportedData) -> None:
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
    needed, there = exported.nr_devices, jax.device_count()
    if there >= needed:
        mesh = meshes.of(exported)
        is_said = any(one is not None for one in exported._in_named_shardings)
        whole = "jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())"
        advice = (
            f"Place its arguments with jax.device_put(argument, "
            f"{'exported.in_shardings_jax(mesh)[i]' if is_said else whole}), where mesh is exported.make_mesh(), or "
            f"{line_of(mesh.axis_sizes, mesh.axis_names, mesh.axis_types)}"
        )
    else:
        advice = (
            f"This process has {there} {jax.default_backend()} device{'s' if there > 1 else ''}: call it where there "
            f'are {needed}. A CPU can stand for several, with jax.config.update("jax_num_cpu_devices", {needed}) '
            "before JAX is first used"
        )
    return ExportError(
        f"calling {exported.fun_name}: it was exported for {needed} devices, and is called on {found}. {advice}"
    )


def _check_manual(axis_context: Any, exported: ExportedData) -> None:
    """Inside `jax.shard_map`, each device works on its own: this refuses functions that divide data among devices.

    The compiler would raise its own error for some of these calls, and abort the process for others.
    """
    shardings = (*exported._in_named_shardings, *exported._out_named_shardings)
    sharded = any(sharding is not None and not sharding.mesh.empty for sharding in shardings)
    is_wrong = sharded or (exported.nr_devices > 1 and axis_context.manual_axes != {*axis_context.mesh.axis_names})
    if not is_wrong and exported.nr_devices > 1:
        with _jax.make_ir_context() as context:
            operations = mlir.iter_operations(runnable.parse(exported, context))
            is_wrong = any(operation.name == "sdy.manual_computation" for operation in operations)
    if is_wrong:
        raise ExportError(
            f"calling {exported.fun_name} inside jax.shard_map, where the mesh axes "
            f"{', '.join(map(repr, sorted(axis_context.manual_axes, key=str)))} are manual: it was exported with "
            f"shardings, for {exported.nr_devices} devices together. Call it outside of jax.shard_map"
        )


def _merged_function(module_context: Any, exported: ExportedData, platforms: Sequence[int]) -> tuple[str, Any]:
    """The name and type of the exported function inside the caller's module. It is merged in once."""
    key = (call_exported_p, exported)
    known = module_context.cached_primitive_lowerings.get(key)
    if known is None:
        from jaxexp._kernel.module import call_arrays  # calls whose code is in a file do without

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
    from jaxexp._kernel.module import shardy_texts

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


# --- derivatives: the pushforward, and its transpose, which is a call of the VJP --------------------------------------


def is_differentiable(aval: Any) -> bool:
    return bool(aval.to_tangent_aval().dtype != _jax.float0)


def _jvp(
    primals: Sequence[Any], tangents: Sequence[Any], *, exported: ExportedData, results: Sequence[int] | None = None
) -> tuple[Any, Any]:
    wanted = range(len(exported.out_avals)) if results is None else results
    values = call(primals, exported, results)
    wrt = tuple(i for i, tangent in enumerate(tangents) if not isinstance(tangent, _jax.Zero))
    out_tangents: list[Any] = [_jax.Zero(jax.typeof(value).to_tangent_aval()) for value in values]
    moving = tuple(i for i in wanted if is_differentiable(exported.out_avals[i]))
    if wrt and moving:
        directions = (tangents[i] for i in wrt)
        pushed = pushforward_p.bind(*primals, *directions, exported=exported, wrt=wrt, results=moving)
        by_result = dict(zip(moving, pushed, strict=True))
        out_tangents = [by_result.get(i, tangent) for i, tangent in zip(wanted, out_tangents, strict=True)]
    return values, out_tangents


def _transpose(cotangents: Any, *args: Any, exported: ExportedData, **_: Any) -> Any:
    raise UnsupportedError(
        f"jax.linear_transpose of {exported.fun_name}: an exported function is not known to be linear. If this one is, "
        "jax.vjp at any point gives its transpose"
    )


_jax.primitive_jvps[call_exported_p] = _jvp
_jax.primitive_transposes[call_exported_p] = _transpose


def _pushforward(
    *primals_and_tangents: Any, exported: ExportedData, wrt: tuple[int, ...], results: tuple[int, ...]
) -> Any:
    """The tangents of some differentiable results, given the tangents of the arguments `wrt`."""
    n = len(exported.in_avals)
    function, operands = pushforward_call(primals_and_tangents[:n], primals_and_tangents[n:], exported, wrt)
    return call(operands, function, [n + i for i in results])


def pushforward_call(
    primals: Sequence[Any], tangents: Sequence[Any], exported: ExportedData, wrt: tuple[int, ...]
) -> tuple[ExportedData, list[Any]]:
    """The function that computes a pushforward, and its arguments.

    It is the VJP of the VJP. After one result for each primal argument come the tangents, one for each cotangent
    argument of the VJP. They do not depend on the values of these, and are linear in the directions, which come last.
    """
    in_avals = list(map(jax.typeof, primals))
    out_avals, _ = abstract_eval(*in_avals, exported=exported)
    cotangents = cotangents_of(out_avals, {})
    # Cotangents of cotangents are tangents.
    directions = _filled([a.to_tangent_aval() for a in in_avals], dict(zip(wrt, tangents, strict=True)))
    return _vjp_of_vjp(exported), [*primals, *cotangents, *directions]


def _vjp_of_vjp(exported: ExportedData) -> ExportedData:
    def error(found: int) -> ExportError:
        name, order = data.origin(exported)
        return ExportTypeError(  # jax.export has no forward mode, and JAX says so with a TypeError
            f"forward-mode differentiation of {name} needs its VJPs up to order {order + 2}, but it was serialized "
            f"with vjp_order={order + found}: export it again from its code, and serialize it with "
            f"vjp_order={order + 2} or more. Each derivative in forward mode needs two orders; each one in reverse "
            "mode, such as jax.grad, needs one"
        )

    return chain_up_to(exported, 2, error)[-1]


def cotangents_of(avals: Sequence[Any], known: dict[int, Any]) -> list[Any]:
    """A cotangent for each primal value: the known one at its index, otherwise zero."""
    return _filled([aval.to_ct_aval() for aval in avals], known)


def _filled(avals: Sequence[Any], known: dict[int, Any]) -> list[Any]:
    return [known[i] if i in known else _zeros(aval) for i, aval in enumerate(avals)]


def _zeros(aval: Any) -> Any:
    if aval.dtype == _jax.float0:
        return np.zeros(aval.shape, _jax.float0)
    # Without a mesh, even if the type has one: an eager call may not reach its devices. The call places it.
    return jax.numpy.zeros(aval.shape, aval.dtype)


def _pushforward_abstract_eval(
    *avals: Any, exported: ExportedData, wrt: tuple[int, ...], results: tuple[int, ...]
) -> Any:
    out_avals, effects = abstract_eval(*avals[: len(exported.in_avals)], exported=exported, results=results)
    return tuple(aval.to_tangent_aval() for aval in out_avals), effects


def _pushforward_jvp(
    primals: Sequence[Any],
    tangents: Sequence[Any],
    *,
    exported: ExportedData,
    wrt: tuple[int, ...],
    results: tuple[int, ...],
) -> tuple[Any, Any]:
    n = len(exported.in_avals)
    moved = [i for i, tangent in enumerate(tangents) if not isinstance(tangent, _jax.Zero)]
    if moved and moved[0] >= n:  # only directions, and it is linear in these
        values = pushforward_p.bind(*primals, exported=exported, wrt=wrt, results=results)
        moved_wrt = tuple(wrt[i - n] for i in moved)
        directions = [tangents[i] for i in moved]
        return values, pushforward_p.bind(*primals[:n], *directions, exported=exported, wrt=moved_wrt, results=results)
    function, operands = pushforward_call(primals[:n], primals[n:], exported, wrt)
    moves = [_jax.Zero(jax.typeof(operand).to_tangent_aval()) for operand in operands]
    moves[:n] = tangents[:n]
    for i, tangent in zip(wrt, tangents[n:], strict=True):
        moves[len(operands) - n + i] = tangent
    values, pushed = _jvp(operands, moves, exported=function, results=[n + i for i in results])
    return values, pushed


def _pushforward_transpose(
    cotangents: Sequence[Any],
    *primals_and_tangents: Any,
    exported: ExportedData,
    wrt: tuple[int, ...],
    results: tuple[int, ...],
) -> list[Any]:
    n = len(exported.in_avals)
    primals, tangents = primals_and_tangents[:n], primals_and_tangents[n:]
    out_avals, _ = abstract_eval(*map(jax.typeof, primals), exported=exported)
    given = zip(results, cotangents, strict=True)
    known = {i: cotangent for i, cotangent in given if not isinstance(cotangent, _jax.Zero)}
    wanted = {i: t.aval for i, t in zip(wrt, tangents, strict=True) if _jax.is_undefined_primal(t)}
    pulled = call([*primals, *cotangents_of(out_avals, known)], exported.vjp(), sorted(wanted))
    found = dict(zip(sorted(wanted), pulled, strict=True))
    of_tangents = [as_type(found[i], wanted[i], exported) if i in wanted else None for i in wrt]
    return [None] * n + of_tangents


def as_type(cotangent: Any, aval: Any, exported: ExportedData) -> Any:
    """A cotangent with the sharding that JAX expects, if that is part of its type (Explicit axes)."""
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


def _run_pushforward(*args: Any, exported: ExportedData, **params: tuple[int, ...]) -> Any:
    with explaining_devices(exported):
        return _jax.apply_primitive(pushforward_p, *args, exported=first_of_equals(exported), **params)


pushforward_p.def_impl(_run_pushforward)

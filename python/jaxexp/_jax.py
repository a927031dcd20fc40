"""The only place that imports private JAX: the version gate, the names that jaxexp needs, and small shims.

Every other module takes these names from here. So if a JAX release moves one of them, only this file changes.
"""

from __future__ import annotations

import copy
import functools
import importlib
import itertools
import operator
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, cast

import jax

from jaxexp._public import public

_F = TypeVar("_F", bound=Callable[..., Any])

OLDEST_JAX = (0, 10, 2)
NEWEST_JAX = (0, 12, 0, 1)
_RANGE = f"JAX {'.'.join(map(str, OLDEST_JAX))} to {'.'.join(map(str, NEWEST_JAX))}"


def _release(version: str) -> tuple[int, ...]:
    """The leading integers of a version string: (0, 12, 0, 1) for "0.12.0.1", (0, 13, 0) for "0.13.0.dev20270101"."""
    digits = itertools.takewhile(str.isdigit, version.split("+")[0].split("."))
    return tuple(map(int, digits))


def _missing(error: Exception) -> str:
    if isinstance(error, AttributeError):
        return f"{getattr(error.obj, '__name__', type(error.obj).__name__)}.{error.name}"
    if isinstance(error, ImportError):
        # "from a import b" reports the missing b only in its message.
        name = str(error).removeprefix("cannot import name ").split(" ")[0].strip("'")
        return f"{error.name}.{name}" if error.name and "cannot import name" in str(error) else f"{error.name}"
    return str(error)


installed_release = _release(jax.__version__)

if _release(jax.__version__) < OLDEST_JAX:
    raise ImportError(f"jaxexp supports {_RANGE}; the installed JAX {jax.__version__} is too old: upgrade it.")
if _release(jax.__version__) > NEWEST_JAX:
    warnings.warn(
        f"jaxexp is tested with {_RANGE}; the installed JAX is {jax.__version__}.", RuntimeWarning, stacklevel=2
    )

try:
    from jax import export as jax_export
    from jax._src import (
        ad_util,
        array,
        config,
        core,
        dispatch,
        dtypes,
        effects,
        mesh,
        sharding_impls,
        source_info_util,
        stages,
        tree_util,
        util,
        xla_bridge,
    )
    from jax._src.export import _export as _exporter  # its registries and classes, never its functions
    from jax._src.export import shape_poly
    from jax._src.interpreters import ad, batching, mlir, pxla
    from jax._src.lax import lax, linalg
    from jax._src.lib import _jax as jaxlib
    from jax._src.lib import version_str as jaxlib_version
    from jax._src.lib import xla_client
    from jax._src.lib.mlir import ir as _ir
    from jax._src.lib.mlir import passmanager as passmanager
    from jax._src.lib.mlir.dialects import func as _func
    from jax._src.lib.mlir.dialects import hlo as hlo
    from jax._src.lib.mlir.dialects import sdy as sdy
    from jax._src.random import prng

    jax_export_module = jax_export
    jaxlib_release, jaxlib_folder = jaxlib_version, os.path.dirname(xla_client.__file__)
    jax_exporter = _exporter

    ir: Any = _ir  # its stubs know only the generated half of each operation

    # Since then, `jax.export` leaves `in_shardings_hlo` of what it loads empty, as of what it exports.
    loads_hlo_shardings = installed_release < (0, 11, 1)

    # Types and enums that appear in an Exported.
    AbstractDevice, AbstractMesh, AxisType = mesh.AbstractDevice, mesh.AbstractMesh, mesh.AxisType
    ArrayImpl = array.ArrayImpl
    GSPMDSharding = sharding_impls.GSPMDSharding
    HloSharding = xla_client.HloSharding
    OpSharding = xla_client.OpSharding
    Mesh = mesh.Mesh
    MemorySpace = core.MemorySpace
    NamedSharding = sharding_impls.NamedSharding
    PartitionSpec = sharding_impls.PartitionSpec
    PyTreeDef = tree_util.PyTreeDef
    ShapedArray = core.ShapedArray
    hlo_of_named_sharding = NamedSharding._to_xla_hlo_sharding
    sdy_of_named_sharding = NamedSharding._to_sdy_sharding
    SingleDeviceSharding = sharding_impls.SingleDeviceSharding
    UnspecifiedValue = sharding_impls.UnspecifiedValue
    UNSPECIFIED = sharding_impls.UNSPECIFIED
    Wrapped = stages.Wrapped
    empty_abstract_mesh = mesh.empty_abstract_mesh
    float0 = dtypes.float0
    issubdtype = dtypes.issubdtype
    extended_dtype = dtypes.extended
    with_sharding = core.update_aval_with_sharding
    partition_specs_of_hlo = sharding_impls.parse_flatten_op_sharding
    lowerable_effect_types = effects.lowerable_effects._effect_types
    tree_registry = tree_util.default_registry
    flatten_for_tracing = tree_util.tracing_registry.flatten
    tree_equality_errors = tree_util.equality_errors
    registered_pytree_nodes = tree_util._registry

    # Shape polymorphism, which belongs to JAX's tracing.
    SymbolicScope = shape_poly.SymbolicScope
    symbolic_shape = shape_poly.symbolic_shape
    symbolic_args_specs = shape_poly.symbolic_args_specs
    is_symbolic_dim = shape_poly.is_symbolic_dim
    ShapeEvaluator = shape_poly.ShapeEvaluator
    all_dim_vars = shape_poly.all_dim_vars
    solve_dim_vars = shape_poly.solve_dim_vars
    UnexpectedDimVar = shape_poly.UnexpectedDimVar  # of a constraint on what no argument has; no ValueError
    dim_vars_errors = ValueError, UnexpectedDimVar
    describe_argument = shape_poly.pretty_print_dimension_descriptor
    describe_key_path = shape_poly.args_kwargs_path_to_str
    dimension_of_sorted_terms = shape_poly._DimExpr._normalize_sorted_terms
    DimExpr, DimTerm, DimFactor = shape_poly._DimExpr, shape_poly._DimTerm, shape_poly._DimFactor
    dim_term_one = shape_poly._DimTerm_one
    _SymbolicConstraint = shape_poly._SymbolicConstraint
    _Comparator = shape_poly.Comparator
    dimension_variable, _dimension_of_operation = shape_poly._DimExpr._from_var, shape_poly._DimExpr._from_operation
    is_constant_dim = core.is_constant_dim
    evaluate_shape = core.evaluate_shape

    # Modules record where their functions were called. jaxexp's own lines, and its installation folder, mean nothing to
    # users, and would make equal modules differ.
    source_info_util.register_exclusion(os.path.join(os.path.dirname(__file__), ""))

    # Tracing, lowering and MLIR.
    Primitive = core.Primitive
    Zero = ad_util.Zero
    apply_primitive = dispatch.apply_primitive
    _weak_cache = util.weakref_lru_cache
    clear_with_other_caches = util.register_cache
    kept_weakly_in_caches = util.weakref_cache_key_types
    primitive_jvps, primitive_transposes = ad.primitive_jvps, ad.primitive_transposes
    define_jvp, define_bilinear = ad.defjvp, ad.defbilinear
    primitive_batchers = batching.primitive_batchers
    fancy_primitive_batchers = batching.fancy_primitive_batchers
    is_undefined_primal = ad.is_undefined_primal
    trace_state_clean, jaxpr_as_fun = core.trace_state_clean, core.jaxpr_as_fun
    outside_of_traces = core.eval_context
    mapped_aval, unmapped_aval = core.mapped_aval, core.unmapped_aval
    Jaxpr, Literal, Variable, JaxprInputEffect = core.Jaxpr, core.Literal, core.Var, effects.JaxprInputEffect
    ClosedJaxpr: Any = getattr(core, "ClosedJaxpr", core.Jaxpr)  # since JAX 0.11, a jaxpr has its own constants
    new_equation = core.new_jaxpr_eqn
    stop_gradient_p = ad_util.stop_gradient_p
    function_name = util.fun_name
    jaxprs_in_params = core.jaxprs_in_params
    user_frames, new_name_stack = source_info_util.user_frames, source_info_util.new_name_stack
    current_source, jit_cache = source_info_util.current, config.jax_jit_cpp_cache_obj
    MeshComputation = pxla.MeshComputation
    LoweringRuleContext, ModuleContext = mlir.LoweringRuleContext, mlir.ModuleContext
    ShardingContext, SPMDAxisContext = sharding_impls.ShardingContext, sharding_impls.SPMDAxisContext
    TokenSet = mlir.TokenSet
    MeshOp = sdy.MeshOp
    call_op, func_op, return_op = _func.CallOp, _func.FuncOp, _func.ReturnOp
    aval_to_ir_type, dtype_to_ir_type = mlir.aval_to_ir_type, mlir.dtype_to_ir_type
    dump_module_to_file = mlir.dump_module_to_file
    initialize_lapack, known_platforms = linalg.initialize_lapack, xla_bridge.known_platforms
    flatten_ir = mlir.ir_tree_registry.flatten
    ir_constant, make_ir_context = mlir.ir_constant, mlir.make_ir_context
    merge_modules = mlir.merge_mlir_modules
    module_to_bytecode, module_to_string = mlir.module_to_bytecode, mlir.module_to_string
    physical_aval = core.physical_aval
    refine_shapes = mlir.refine_polymorphic_shapes
    register_lowering, JitCache = mlir.register_lowering, jaxlib.PjitFunctionCache
    token_type, wrap_with_sharding_op = mlir.token_type, mlir.wrap_with_sharding_op
    calling_convention_flag = config.jax_export_calling_convention_version
    ignore_forward_compatibility_flag = config.export_ignore_forward_compatibility
    shardy_flag = config.use_shardy_partitioner

    # What tracing and lowering take from their surroundings. JAX 0.10 keeps two of these in another place.
    names_of_surroundings: Any = config.trace_context_names
    config_states = config.config_states
    thread_resources = mesh.thread_resources
    not_set: Any = config.config_ext.unset
    other_surroundings: Any = (
        config.mesh_context_manager,
        config.compute_on_context_manager,
        config.xla_metadata_context_manager,
        *(getattr(config, n, None) or getattr(mesh, n) for n in ("abstract_mesh_context_manager", "device_context")),
    )
    mesh_in_context = other_surroundings[-1]  # the mesh with devices

    compare_for_sort = lax._sort_lt_comparator
    wrap_keys = prng.random_wrap
    _key_dtype, _key_implementations = prng.KeyTy, prng.prngs
    _memory_kind_of_space = core.mem_space_to_kind
    _xla_platform_names = xla_client.xla_platform_names
    serialize_portable_artifact = jaxlib.mlir.serialize_portable_artifact
    deserialize_portable_artifact = jaxlib.mlir.deserialize_portable_artifact
    # In these, JAX may run the Python code of a jitted function.
    python_modes = config.debug_nans, config.debug_infs, config.disable_jit
    stablehlo_four_weeks = hlo.StablehloCompatibilityRequirement.WEEK_4
except (ImportError, AttributeError) as error:
    raise ImportError(
        f"jaxexp supports {_RANGE}; the installed JAX {jax.__version__} has no {_missing(error)}, which jaxexp needs."
    ) from error

# Bases of classes that stand in their place, or are caught as they are. To type checkers they are empty.
if TYPE_CHECKING:

    class Exported: ...

    class DisabledSafetyCheck: ...

    class JaxRuntimeError(RuntimeError): ...

else:
    Exported, DisabledSafetyCheck = jax_exporter.Exported, jax_exporter.DisabledSafetyCheck
    JaxRuntimeError = jax.errors.JaxRuntimeError

# Names for reusing code that was compiled earlier (`_executables`). A JAX that lacks one of them compiles as usual.
try:
    from jax._src import cache_key, compiler, pjit

    UnloadedMeshExecutable, is_default_layout = pxla.UnloadedMeshExecutable, pxla.is_default_layout
    DeviceList, topology_of = xla_client.DeviceList, xla_client.get_topology_for_devices
    compile_options, hash_options = compiler.get_compile_options, cache_key._hash_serialized_compile_options
    jit_dispatch, jit_keys, shard_argument = jaxlib.pjit, pxla.JitGlobalCppCacheKeys, pxla.cc_shard_arg
    dispatch_registry, for_dispatch = tree_util.dispatch_registry, pjit._get_fastpath_data
    modes, callers_in_locations = (*python_modes, config.no_execution), config.traceback_in_locations_limit
    missing_for_reuse = None
except (ImportError, AttributeError) as error:
    missing_for_reuse = _missing(error)


def cached_with_first() -> Callable[[_F], _F]:
    """A decorator that keeps a function's results while its first argument lives, or until JAX's caches are cleared."""
    decorator: Any = _weak_cache()  # annotated differently from release to release
    return cast(Callable[[_F], _F], decorator)


@public
def symbolic_dim_bounds(dimension: Any) -> tuple[float, float]:
    """The inclusive bounds that JAX can prove for a dimension, as floats. A bound that it cannot prove is infinite.

    Args:
        dimension: an integer or a symbolic dimension.

    Raises:
        TypeError: `dimension` is neither.
        jax.errors.InconclusiveDimensionOperation: an operation inside the expression cannot be shown to be defined.
    """
    bounds: Any = getattr(shape_poly, "symbolic_dim_bounds", None)  # since JAX 0.11
    if bounds is None:
        resolved = core.concrete_dim_or_error(dimension, "dimension given to symbolic_dim_bounds")
        return shape_poly._bounds_decision(resolved, shape_poly.BoundsPrecision.BEST)
    return bounds(dimension)


# What JAX's objects do not say in public.
key_implementation = operator.attrgetter("_impl")  # of a dtype of PRNG keys: has a `name`, and the `key_shape` of data
executable_of = operator.attrgetter("_executable")  # of a `Compiled`; its `unsafe_call` takes and returns flat arrays
parts_of_executable = operator.attrgetter("_unloaded_executable")  # of that; has the fields of `UnloadedMeshExecutable`
hlo_of_gspmd_sharding = operator.attrgetter("_hlo_sharding")
closed_over = operator.attrgetter("_consts")  # of a `Traced`: arrays from outside of the function, also tracers
computation_of = operator.attrgetter("_lowering")  # of a `Lowered`: the module, and facts about it in `compile_args`
platforms_of = operator.attrgetter("_platforms")  # of such a computation
name_of_mode = operator.attrgetter("_name")  # of a setting in `modes`
# Whether JAX takes one abstract value for the other, dtypes aside: shapes, memory spaces, Explicit shardings.
same_type = functools.partial(core.typematch, no_dtype_check=True)


def key_dtype(implementation: str) -> Any:
    """The dtype of PRNG keys made by a built-in implementation, such as "threefry2x32"."""
    return _key_dtype(_key_implementations[implementation])


def device_assignment(sharding: Any) -> list[Any]:
    return list(sharding._device_assignment)


def has_logical_devices(sharding: Any) -> bool:
    """Whether a NamedSharding numbers its devices otherwise than its mesh does."""
    return getattr(sharding, "_logical_device_ids", None) is not None


def platform_name(backend: str | None = None) -> str:
    return str(xla_bridge.canonicalize_platform(backend or xla_bridge.default_backend()))


def any_symbolic(avals: Sequence[Any]) -> bool:
    return not all(core.is_constant_shape(aval.shape) for aval in avals)


def _fields_of_aval(rank: int) -> tuple[Any, ...] | None:
    """The fields that are equal in all abstract values of a rank; None if this JAX makes them in an unknown way."""
    shape, dtype = (2,) * rank, jax.numpy.dtype("float32")
    aval = ShapedArray(shape, dtype)
    names = ("sharding", "manual_axis_type", "memory_space", "layout")
    fields = tuple(getattr(aval, name) for name in names if hasattr(aval, name))
    try:
        return fields if ShapedArray._create(shape, dtype, False, *fields) is aval else None
    except (AttributeError, TypeError):
        return None


# `create_aval(shape, dtype, False, *plain_avals[len(shape)])` makes the same object as `ShapedArray(shape, dtype)` in
# half the time. The shape must be a tuple of integers, which JAX otherwise makes sure of first.
plain_avals = [_fields_of_aval(rank) for rank in range(8)]
create_aval = getattr(ShapedArray, "_create", None)


def dim_vars(dimension: Any) -> set[str]:
    names: set[str] = dimension._get_vars() if is_symbolic_dim(dimension) else set()
    return names


def dimension_operation(operation: str, left: Any, right: Any, scope: Any) -> Any:
    """The symbolic dimension floordiv, mod, max or min of two others, as it is.

    JAX's parser first tries to prove that one side of a maximum is never the larger one, which takes time exponential
    in the nesting. For a printed dimension, this proof has already failed.
    """
    return _dimension_of_operation(operation, left, right, scope=scope)


_SLOTS_OF_DIMENSIONS = [
    {"_sorted_terms", "_scope", "_hash", "_size"},
    {"_factors", "_hash", "_size"},
    {"var", "operation", "operands", "_hash", "_size"},
]
# Of `c + a*b^2 - 2*max(a - 3, 0) + 5`: the terms with their sizes and coefficients, then the size of the whole.
_FACTOR: tuple[Any, ...] = ("a", None, [], 1)
_KNOWN_DIMENSION = (
    [
        ([(None, "max", [([([(*_FACTOR, 1)], 2, 1), ([], 0, -3)], 4), ([([], 0, 0)], 1)], 6, 1)], 7, -2),
        ([("b", None, [], 1, 2), (*_FACTOR, 1)], 5, 1),
        ([("c", None, [], 1, 1)], 2, 1),
        ([], 0, 5),
    ],
    25,
)


@functools.cache
def dimension_layout() -> tuple[type, type, type, Any] | None:
    """JAX's classes of dimensions, terms and factors, and the term 1; None if their slots are unknown."""
    scope = SymbolicScope()
    try:
        a, b, c = (dimension_variable(name, scope) for name in "abc")
        dimension: Any = c + a * b**2 - 2 * dimension_operation("max", a - 3, 0, scope) + 5  # JAX's parser is slow
        names = [{*cls.__slots__} for cls in (DimExpr, DimTerm, DimFactor)]
        known = names == _SLOTS_OF_DIMENSIONS and _slots_of(dimension) == _KNOWN_DIMENSION and dimension._scope is scope
    except MemoryError:
        raise
    except Exception:
        return None
    return (DimExpr, DimTerm, DimFactor, dim_term_one) if known else None


def _slots_of(dimension: Any) -> Any:
    terms = [
        (
            [
                (f.var, f.operation, [_slots_of(o) for o in f.operands], f._size, exponent)
                for f, exponent in term._factors
            ],
            term._size,
            coefficient,
        )
        for term, coefficient in dimension._sorted_terms
    ]
    return terms, dimension._size


def add_constraint(scope: Any, text: str, is_equality: bool, left: Any, right: Any) -> tuple[int, int, int]:
    """Adds the constraint `left == right`, or `left >= right`, to a symbolic scope.

    The scope's own parser would first try to simplify maxima and minima in the text, as above.

    Returns:
        The size of the right side: how many terms it has, about how many factors are in them, and how many bits the
        largest coefficient has.
    """
    comparator = _Comparator.EQ if is_equality else _Comparator.GEQ
    constraint = _SymbolicConstraint(debug_str=text, cmp=comparator, e1=left, e2=right, diff=left - right)
    scope._process_explicit_constraint(constraint)
    scope._bounds_cache.clear()
    if not is_equality or not is_symbolic_dim(right):
        return 1, 1, int(right).bit_length() if is_equality else 1
    numbers = [abs(number) for _, number in right._sorted_terms]
    return len(numbers), len(str(right)) // 2 + 1, max(numbers).bit_length()


def explicit_constraints(avals: Sequence[Any]) -> tuple[str, ...]:
    """The constraints that the symbolic scope of abstract values was made with, as text."""
    dims = (dim for aval in avals for dim in aval.shape if is_symbolic_dim(dim))
    return next(map(constraints_of, dims), ())


def constraints_of(dimension: Any) -> tuple[str, ...]:
    """The constraints that the scope of a symbolic dimension was made with, as text."""
    # JAX adds what follows from some of them, and would add it again in a scope made from these constraints.
    return tuple(dict.fromkeys(constraint.debug_str for constraint in dimension.scope._explicit_constraints))


def lowering_parameters(override_lowering_rules: Any, *, global_constants: bool = False) -> Any:
    return mlir.LoweringParameters(
        override_lowering_rules=override_lowering_rules,
        global_constant_computation=global_constants,
        for_export=True,
        hoist_constants_as_args=False,
        export_ignore_forward_compatibility=ignore_forward_compatibility_flag.value,
    )


def with_more_scan_constants(params: dict[str, Any], count: int) -> dict[str, Any]:
    """The parameters of a scan whose body takes this many more constants, in front of the others."""
    if "num_consts" in params:
        return {**params, "num_consts": count + params["num_consts"]}
    flattree: Any = importlib.import_module("jax._src.flattree")
    constants, *others = params["ft_in"].unpack()
    return {**params, "ft_in": flattree.pack((flattree.nones(count + len(constants)), *others))}


def abstract_mesh_like(sharding: Any, sizes: tuple[int, ...], names: tuple[str, ...]) -> Any:
    """A mesh for the devices of a sharding that has none, with the axis types that JAX gives by default."""
    device_from = getattr(mesh, "abstract_device_from", None)  # since JAX 0.11: a mesh can say what its devices are
    if device_from is None:
        return AbstractMesh(sizes, names)
    return AbstractMesh(sizes, names, abstract_device=device_from(sharding._device_assignment[0]))


def with_jaxpr(traced: Any, jaxpr: Any) -> Any:
    """A `jax.stages.Traced` with another jaxpr, which takes and returns the same."""
    made = copy.copy(traced)
    made._params = dict(traced._params, jaxpr=jaxpr)
    made._lojax = None
    return made


def with_first_argument(
    traced: Any, jaxpr: Any, first: dict[str, Any], in_front: Callable[[dict[str, Any], int], None]
) -> Any:
    """A `jax.stages.Traced` with another jaxpr, which takes a dict of arrays, of these specs, before the other
    arguments. `in_front` adds so many entries in front of what parameters have for each argument, in place.
    """
    # What JAX knows of an argument besides its type: above all, its devices.
    alone: Any = jax.jit(lambda first: None, keep_unused=True).trace(first)
    args, kwargs = tree_util.tree_unflatten(traced._in_tree, range(traced._in_tree.num_leaves))
    made = with_jaxpr(traced, jaxpr)
    in_front(made._params, len(first))
    made._in_tree = flatten_for_tracing(((dict.fromkeys(first, 0), *args), kwargs))[1]
    made._meta_tys_flat = [*alone._meta_tys_flat, *traced._meta_tys_flat]
    return made


def lower_as_function(function: Callable[..., Any]) -> Callable[..., Any]:
    """A lowering rule that inlines what `function`, returning a sequence, lowers to."""
    rule: Callable[..., Any] = mlir.lower_fun(function, multiple_results=True)
    return rule


def dimension_size(array: Any, axis: int) -> Any:
    """A size, as a value of the module: what `solve_dim_vars` solves for."""
    return shape_poly.dimension_size_p.bind(array, dimension=axis)


def variable_of(dimension: Any) -> str | None:
    """The name of a dimension that is only a variable."""
    return dimension._to_var() if isinstance(dimension, DimExpr) else None


def memory_kind(aval: Any) -> str | None:
    kind: str | None = None if aval.memory_space is None else _memory_kind_of_space(aval.memory_space)
    return kind


def jax_dtype_kinds() -> dict[Any, int]:
    """The dtypes that were registered with `jax.export` at run time; none if its serializer is not loaded."""
    serialization = sys.modules.get("jax._src.export.serialization")
    kinds: dict[Any, int] = getattr(serialization, "_dtype_to_dtype_kind", {})
    return kinds


def proto_of_hlo_sharding(sharding: Any) -> bytes:
    proto: bytes = sharding.to_proto().SerializeToString()
    return proto


def newest_stablehlo() -> str:
    return str(hlo.get_current_version())


def serializes_with_shardy() -> bool:
    """Whether the default backend's plugin takes modules with Shardy in them."""
    return bool(xla_bridge.get_backend().serialize_with_sdy)


def stable_custom_calls() -> set[str]:
    """What JAX itself takes for stable custom calls now: plugins add their own."""
    targets: set[str] = getattr(jax_exporter, "_CUSTOM_CALL_TARGETS_GUARANTEED_STABLE", set())
    return targets


def registered_custom_calls(platform: str) -> Any:
    """The targets of the custom calls that were registered for a platform, typed and untyped."""
    # Untyped ones are under XLA's own name for the platform, typed ones under each of its names.
    return xla_client.custom_call_targets(_xla_platform_names.get(platform, platform))


def dispatched(name: str, plain: Callable[..., Any], miss: Callable[..., Any]) -> Any:
    """A callable with the dispatch of `jax.jit`.

    `plain` is called if jit is disabled. `miss` is called with arguments of new types: it returns the results, and the
    code for such arguments, as `for_dispatch` returns it, or None.
    """

    def asked(*args: Any, **kwargs: Any) -> tuple[Any, Any, bool]:
        return *miss(args, kwargs), False

    made = jit_dispatch(name, plain, asked, [], [], jit_keys(), dispatch_registry, shard_argument)
    made._fun = plain  # JAX calls it again if there is a NaN in the results and somebody looks for NaNs
    return made

"""An exported function read back into a JAX function of flat arrays, once for each set of shapes; with it,
`Exported.raised` and `Exported.make_jaxpr`, for tracing and for reading.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn, cast

import jax
import numpy as np

from jaxexp import _jax
from jaxexp._errors import ExportError, ModuleError, UnsupportedError, cause
from jaxexp._kernel.call.first_argument import apart, flattened, program_of
from jaxexp._kernel.call.primitive import abstract_eval, check, check_called, check_device_count
from jaxexp._kernel.function import data
from jaxexp._kernel.function.data import ExportedData
from jaxexp._kernel.function.specs import is_taken_as
from jaxexp._kernel.module import composites, main, runnable

from . import arrays, control, custom_calls, devices, elementwise, reductions
from .array_type import plain
from .devices import constraint
from .program import Block, jitted, jitted_block
from .reader import ModuleReader, Operation, Read
from .refused import RefusedError, too_deep

# --- the table of operations: how each one is read, and which ones are refused and why --------------------------------


_REFUSED_BECAUSE: Mapping[str, str] = {
    "devices exchange data in it": """
        stablehlo.collective_broadcast stablehlo.collective_reduce stablehlo.cross-replica-sum sdy.all_gather
        sdy.all_reduce sdy.all_slice sdy.all_to_all sdy.collective_permute sdy.reduce_scatter
        sdy.replicated_to_unreduced sdy.reshard sdy.sharded_to_unreduced
    """,
    "JAX does not lower anything to it": """
        stablehlo.batch_norm_grad stablehlo.batch_norm_inference stablehlo.batch_norm_training stablehlo.broadcast
        stablehlo.dot stablehlo.einsum stablehlo.map stablehlo.rng stablehlo.torch_index_select stablehlo.unary_einsum
        chlo.broadcast_add chlo.broadcast_and chlo.broadcast_atan2 chlo.broadcast_compare chlo.broadcast_complex
        chlo.broadcast_divide chlo.broadcast_maximum chlo.broadcast_minimum chlo.broadcast_multiply
        chlo.broadcast_next_after chlo.broadcast_or chlo.broadcast_polygamma chlo.broadcast_power
        chlo.broadcast_remainder chlo.broadcast_select chlo.broadcast_shift_left chlo.broadcast_shift_right_arithmetic
        chlo.broadcast_shift_right_logical chlo.broadcast_subtract chlo.broadcast_xor chlo.broadcast_zeta chlo.constant
        chlo.constant_like chlo.is_neg_inf chlo.is_pos_inf sdy.constant sdy.data_flow_edge sdy.func_data_flow_edge
        sdy.named_computation sdy.propagation_barrier sdy.sharding_group
    """,
    "its shapes are known only when it runs": """
        stablehlo.dynamic_broadcast_in_dim stablehlo.dynamic_conv stablehlo.dynamic_gather stablehlo.dynamic_iota
        stablehlo.dynamic_pad stablehlo.dynamic_reshape stablehlo.get_dimension_size stablehlo.real_dynamic_slice
        stablehlo.set_dimension_size
    """,
    "it exchanges data with the outside": """
        stablehlo.after_all stablehlo.async_done stablehlo.async_start stablehlo.create_token stablehlo.infeed
        stablehlo.outfeed stablehlo.recv stablehlo.send
    """,
    "JAX has no quantized types": "stablehlo.uniform_dequantize stablehlo.uniform_quantize",
    "JAX has no tuples": "stablehlo.get_tuple_element stablehlo.tuple",
    "artifacts have it as operations of StableHLO": "chlo._asin_acos_kernel chlo.ragged_dot chlo.scan",
}
REFUSED = {name: why for why, names in _REFUSED_BECAUSE.items() for name in names.split()}


OPERATIONS: dict[str, Read] = {
    **{name: functools.partial(Operation.refuse, why=why) for name, why in REFUSED.items()},
    **arrays.OPERATIONS,
    **control.OPERATIONS,
    **custom_calls.OPERATIONS,
    **devices.OPERATIONS,
    **elementwise.OPERATIONS,
    **reductions.OPERATIONS,
}

# How a module is read that is differentiated.
DIFFERENTIABLE: Mapping[str, Read] = {
    **OPERATIONS,
    **{
        name: elementwise.keeping_zeros(OPERATIONS[name])
        for name in (*elementwise.CURVED, "stablehlo.composite", "stablehlo.custom_call")
    },
    "stablehlo.abs": elementwise.keeping_zeros(elementwise.absolute),
    "stablehlo.bitcast_convert": elementwise.bits,
    "stablehlo.reduce": reductions.differentiable_reduce,
    "stablehlo.sign": elementwise.sign,
}


# How many pairs of shapes and platform are kept for one function.
_MOST = 16


# --- a module read back -----------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class Raised:
    """A function, raised for arguments of known shapes. It takes and returns flat arrays, as the signature has them.

    Attributes:
        exported: the function.
        in_avals: its arguments in these shapes.
        out_avals: its results.
        block: its code, which takes the module's arguments.
        jitted: the same as a jitted function.
        platform: the index of the platform, which the module takes before them; None if it takes none.
        placed: for each argument, a function that shards it over devices as the signature says.
        placed_results: the same for results.
        counts: how often each operation occurs.
        foreign: the targets of the foreign functions that it calls, which exist on its platform only.
        is_wide: whether it computes in 64 bits.
    """

    exported: ExportedData
    in_avals: tuple[Any, ...]
    out_avals: tuple[Any, ...]
    block: Block
    jitted: Callable[..., Any]
    platform: np.ndarray[Any, Any] | None
    placed: Sequence[Callable[[Any], Any]]
    placed_results: Sequence[Callable[[Any], Any]]
    counts: dict[str, int]
    foreign: frozenset[str]
    is_wide: bool

    def __call__(self, *arrays: Any) -> list[Any]:
        """Runs as a jitted function: one operation in the program around it."""
        return self._run(arrays, self._as_one)

    def inline(self, *arrays: Any) -> list[Any]:
        """Runs as operations in the program around it. An error about one of them names it."""
        return self._run(arrays, self.block)

    def _as_one(self, arguments: Sequence[Any]) -> Sequence[Any]:
        try:
            return cast(Sequence[Any], self.jitted(*arguments))
        except NotImplementedError:  # JAX cannot map an operation, and does not say which one
            return self.block(arguments)

    def _run(self, arrays: Sequence[Any], run: Callable[[Sequence[Any]], Sequence[Any]]) -> list[Any]:
        kept = self.exported.module_kept_var_idx
        prefix = () if self.platform is None else (self.platform,)
        is_wide = self.is_wide or bool(jax.config.read("jax_enable_x64"))
        with contextlib.ExitStack() as stack:
            stack.enter_context(jax.enable_x64(is_wide))
            if self.has_shard_map:  # which cannot have another mesh than the caller has set
                stack.enter_context(jax.sharding.use_abstract_mesh(_jax.empty_abstract_mesh))
            arguments = [_entering(self.placed[i](arrays[i]), self.in_avals[i]) for i in kept]
            results = run((*prefix, *arguments))
            left = [_leaving(result, aval) for result, aval in zip(results, self.out_avals, strict=True)]
            return [place(result) for place, result in zip(self.placed_results, left, strict=True)]

    @property
    def has_shard_map(self) -> bool:
        """Whether a part of it is a `jax.shard_map` over several devices."""
        return self.exported.nr_devices > 1 and "sdy.manual_computation" in self.counts


def _entering(array: Any, aval: Any) -> Any:
    """An argument in the form that the module takes."""
    if aval.dtype == _jax.float0:
        return np.zeros(aval.shape, bool)
    if _jax.issubdtype(aval.dtype, _jax.extended_dtype):
        return jax.random.key_data(array)
    return array


def _leaving(array: Any, aval: Any) -> Any:
    """A result of the module in the form that the function returns."""
    if aval.dtype == _jax.float0:
        return np.zeros(aval.shape, _jax.float0)
    if _jax.issubdtype(aval.dtype, _jax.extended_dtype):
        return _jax.wrap_keys(array, impl=_jax.key_implementation(aval.dtype))
    return array


def raised_for(
    exported: ExportedData, in_avals: Sequence[Any], platform: str, *, differentiable: bool = False
) -> Raised:
    """A function for arguments of these shapes.

    Args:
        exported: the function.
        in_avals: its arguments. Their shapes are constant and fit its signature.
        platform: where it will run: one of the function's platforms; any, if it has only one and its check is disabled.
        differentiable: whether it will be differentiated, as `DIFFERENTIABLE` says.

    Raises:
        RefusedError: an operation in the module cannot be raised.
    """
    read_or_refused = data.kept(exported, "raised", lambda _: functools.lru_cache(_MOST)(_raised_or_refused))
    found = read_or_refused(exported, tuple(map(plain, in_avals)), platform, differentiable)
    if isinstance(found, RefusedError):
        raise RefusedError(found.operation, found.why, found.location)
    return found


def _raised_or_refused(
    exported: ExportedData, in_avals: tuple[Any, ...], platform: str, differentiable: bool
) -> Raised | RefusedError:
    try:
        return _raise(exported, in_avals, platform, differentiable)
    except RefusedError as error:
        return error.with_traceback(None)
    except RecursionError:
        return too_deep()


def _raise(exported: ExportedData, in_avals: tuple[Any, ...], platform: str, differentiable: bool) -> Raised:
    out_avals = tuple(map(plain, abstract_eval(*in_avals, exported=exported)[0]))
    if exported.ordered_effects:
        raise RefusedError("an ordered effect")
    index = None
    if len(exported.platforms) > 1:
        index = exported.platforms.index(platform) if platform in exported.platforms else 0
    if _jax.any_symbolic(in_avals):
        raise RefusedError("an argument of symbolic shape")
    if any(aval.memory_space != _jax.MemorySpace.Device for aval in (*in_avals, *out_avals)):
        raise RefusedError("an argument or a result that is not in the memory of the device")
    context = _jax.make_ir_context()
    with context, _jax.ir.Location.unknown(context):
        # A static function may also have dynamic parts: calls of functions of symbolic shape.
        if exported.uses_global_constants:
            try:
                module = main.for_shapes(exported, in_avals, out_avals, False)
            except ExportError as error:  # a call in the module reports it
                raise RefusedError("the module", str(error)) from error
        else:
            module = runnable.parse(exported, context)
        try:
            composites.call_functions(module)
        except ModuleError as error:
            found = f"expected {error.expected}, found {error.found}"
            raise RefusedError("stablehlo.composite", found) from cause(error)
        if runnable.may_call_lapack(exported):
            _jax.initialize_lapack()
        table = DIFFERENTIABLE if differentiable else OPERATIONS
        reader = ModuleReader(module, table, index, partitioned=exported.nr_devices > 1)
        block = reader.main()
        chosen = None if index is None else np.asarray(index, reader.types[block.parameters[0]].dtype)
    placed = _placed(exported._in_named_shardings), _placed(exported._out_named_shardings)
    whole, foreign = jitted_block(block, exported.fun_name), frozenset(reader.foreign)
    return Raised(exported, in_avals, out_avals, block, whole, chosen, *placed, reader.counts, foreign, reader.is_wide)


def _placed(shardings: Sequence[Any]) -> list[Callable[[Any], Any]]:
    anywhere = lambda array: array  # noqa: E731
    return [anywhere if s is None or s.mesh.empty or s.mesh.size == 1 else constraint(s) for s in shardings]


# --- the public functions


def raised(exported: ExportedData) -> Callable[..., Any]:
    """`Exported.raised`."""
    program = program_of(exported)

    flat = elementwise.undifferentiable(
        lambda *leaves: on_any_platform(program, leaves),
        f"differentiating {exported.fun_name}.raised(): its derivatives would be wrong, because a module does not "
        "keep stop_gradient and custom derivatives. Differentiate the function's call, which uses its stored VJPs",
    )
    # On several devices, JAX places arrays only in a trace, if their meshes do not say which devices.
    run = flat if program.nr_devices == 1 else jitted(flat, exported.fun_name)

    def function(*args: Any, **kwargs: Any) -> Any:
        leaves, out_tree = flattened(*apart(exported, args), kwargs)
        arrays = list(map(jax.numpy.asarray, leaves))
        if program is not exported:  # otherwise `on_any_platform` says the same
            check_called(exported, list(map(jax.typeof, arrays)))
        return out_tree.unflatten(run(*arrays))

    function.__name__ = function.__qualname__ = str(exported.fun_name)
    return function


def make_jaxpr(exported: ExportedData, args_specs: tuple[Any, ...], kwargs_specs: dict[str, Any]) -> Any:
    """`Exported.make_jaxpr`."""
    program = program_of(exported)
    if args_specs or kwargs_specs:
        specs, _ = flattened(*apart(exported, args_specs, as_specs=True), kwargs_specs)
    else:
        specs = list(program.in_avals)
        if _jax.any_symbolic(specs):
            raise ExportError(
                f"the jaxpr of {exported.fun_name}: its arguments have symbolic shapes, and a jaxpr has constant ones. "
                "Pass an array or a jax.ShapeDtypeStruct for each argument"
            )
    types = [
        jax.ShapeDtypeStruct(spec.shape, aval.dtype if is_taken_as(spec.dtype, aval.dtype) else spec.dtype)
        for spec, aval in zip(specs, program.in_avals, strict=True)
    ]
    platform, platforms = _jax.platform_name(), program.platforms
    with jax.enable_x64(True):  # for the types of the arguments; the module decides about the rest
        avals = jax.make_jaxpr(lambda *leaves: leaves)(*types).in_avals
        check_called(exported, avals)
        function = raised_for(program, avals, platform if platform in platforms else platforms[0])
        return jax.make_jaxpr(function.inline)(*types)


# Stands for a function on platforms without the foreign functions that it calls: it cannot be lowered.
elsewhere_p = _jax.Primitive("raised_elsewhere")
elsewhere_p.multiple_results = True
elsewhere_p.def_abstract_eval(lambda *, types, **_: [_jax.ShapedArray(shape, dtype) for shape, dtype in types])


def _refuse_platform(ctx: Any, *, name: str, platforms: Sequence[str], foreign: Sequence[str], **_: Any) -> NoReturn:
    wanted = ", ".join(p for p in ctx.module_context.platforms if p not in platforms)
    there = ", ".join(platforms)
    raise UnsupportedError(
        f"lowering {name}.raised() for {wanted}: it calls {', '.join(foreign)}, available only on {there}. "
        f"Lower it for {there} only, or export the original function for {wanted}"
    )


_jax.register_lowering(elsewhere_p, _refuse_platform)


# Stands before and behind a function with a `jax.shard_map`: its mesh has no devices, and takes those of the caller's
# arrays. The types inside are on its mesh, and those outside on the caller's; this makes types without a mesh.
border_p = _jax.Primitive("raised_border")
border_p.multiple_results = True
border_p.def_abstract_eval(lambda *avals, **_: list(map(plain, avals)))
border_p.def_impl(lambda *arrays, **params: _jax.apply_primitive(border_p, *arrays, **params))
_jax.primitive_batchers[border_p] = lambda arrays, dims, **params: (border_p.bind(*arrays, **params), dims)


def _check_devices(ctx: Any, *arrays: Any, exported: ExportedData) -> Sequence[Any]:
    check_device_count(ctx.module_context.axis_context, exported)
    return arrays


_jax.register_lowering(border_p, _check_devices)


def on_any_platform(exported: ExportedData, leaves: Sequence[Any], *, differentiable: bool = False) -> Sequence[Any]:
    """The function, for lowering on any platform; only on its own platforms if it calls foreign functions.

    If it is `differentiable`, its derivatives are those of the module as it is written, but zero stays zero.
    """
    in_avals = list(map(jax.typeof, leaves))
    check(exported, in_avals)
    each = {
        platform: raised_for(exported, in_avals, platform, differentiable=differentiable)
        for platform in exported.platforms
    }
    if any(function.has_shard_map for function in each.values()):
        results = _one_of(each, exported, border_p.bind(*leaves, exported=exported))
        return border_p.bind(*results, exported=exported)
    return _one_of(each, exported, leaves)


def _one_of(each: Mapping[str, Raised], exported: ExportedData, leaves: Sequence[Any]) -> Sequence[Any]:
    """The function that is raised for the platform for which it is lowered."""
    first, name, platforms = each[exported.platforms[0]], exported.fun_name, exported.platforms
    foreign = tuple(sorted(set().union(*(function.foreign for function in each.values()))))
    if not foreign and len(each) == 1:
        return first(*leaves)
    types = tuple((aval.shape, aval.dtype) for aval in first.out_avals)
    refused = functools.partial(elsewhere_p.bind, types=types, name=name, platforms=platforms, foreign=foreign)
    return jax.lax.platform_dependent(*leaves, default=(lambda *_: refused()) if foreign else first, **each)

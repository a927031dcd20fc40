"""`jax.vmap` of a call.

If the function has a `batch_dim`, a mapped call is one longer call. Otherwise it is a primitive of its own. When that
is lowered, the module is read back and mapped; if that is not possible, it is a loop, and the log says why. In any
case, its derivatives are those of each call, from the stored VJPs, mapped over the same batch.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
from collections.abc import Callable, Generator, Sequence
from typing import Any

import jax
import numpy as np
from jax import lax

from jaxexp import _jax
from jaxexp._errors import ExportError, UnsupportedError, cause, shown
from jaxexp._kernel.call.primitive import (
    abstract_eval,
    as_type,
    call,
    call_exported_p,
    check,
    check_call,
    cotangents_of,
    explaining_devices,
    is_differentiable,
    pushforward_call,
    pushforward_p,
)
from jaxexp._kernel.call.shared import first_of_equals
from jaxexp._kernel.function import data
from jaxexp._kernel.function.data import ExportedData
from jaxexp._kernel.module import batch_dim

from .array_type import is_wide, plain
from .refused import RefusedError

# The name that docs/guide/read_back.md has for it.
logger = logging.getLogger("jaxexp._readback.vmap.mapped_lowering")

mapped_p = _jax.Primitive("call_exported_mapped")
mapped_p.multiple_results = True


@dataclasses.dataclass(frozen=True, slots=True)
class Level:
    """One mapped axis of a call. It is the leading one of the arguments and results that have it.

    Attributes:
        size: its length.
        batched: which arguments have it.
        summed: which results are sums over it; the others have it.
        spmd: the mesh axes that the caller of `jax.vmap` wants it sharded over, or None.
    """

    size: Any
    batched: tuple[bool, ...]
    summed: tuple[bool, ...]
    spmd: Any = None


@dataclasses.dataclass(frozen=True, slots=True)
class Element:
    """The operation for each element of a batch: a call, or the derivative of one, with some of its results.

    Attributes:
        exported: the function.
        wrt: for a pushforward, the arguments that have a tangent; None for a call.
        results: which of the function's results are wanted, or which of their tangents.
    """

    exported: ExportedData
    wrt: tuple[int, ...] | None
    results: tuple[int, ...]

    def bind(self, *arguments: Any) -> list[Any]:
        if self.wrt is None:
            return call(arguments, self.exported, self.results)
        return pushforward_p.bind(*arguments, exported=self.exported, wrt=self.wrt, results=self.results)

    def types(self, avals: Sequence[Any]) -> tuple[list[Any], set[Any]]:
        """The types of the results, and the effects."""
        rule = abstract_eval if self.wrt is None else functools.partial(pushforward_p.abstract_eval, wrt=self.wrt)
        types, effects = rule(*avals, exported=self.exported, results=self.results)
        return list(types), effects


def of_element(avals: Sequence[Any], levels: Sequence[Level]) -> list[Any]:
    """The types of an element's arguments, given the types of the whole batch's arguments."""
    avals = list(avals)
    for level in levels:
        avals = [
            _jax.mapped_aval(level.size, 0, aval) if is_batched else aval
            for aval, is_batched in zip(avals, level.batched, strict=True)
        ]
    return avals


def _abstract_eval(*avals: Any, element: Element, levels: tuple[Level, ...]) -> tuple[list[Any], set[Any]]:
    types, effects = element.types(of_element(avals, levels))
    for level in reversed(levels):
        types = [
            type_ if is_summed else _jax.unmapped_aval(level.size, 0, type_)
            for type_, is_summed in zip(types, level.summed, strict=True)
        ]
    return types, effects


_Function = Callable[..., Sequence[Any]]  # of arrays, that returns arrays


def each(
    function: _Function, levels: Sequence[Level], along: Callable[[_Function, Level, Sequence[Any]], list[Any]]
) -> _Function:
    """Turns a function of an element's arrays into one of the whole batch's arrays, `along` one axis at a time."""
    for level in reversed(levels):
        function = functools.partial(_over, function, level, along)
    return function


def _over(function: _Function, level: Level, along: Callable[..., list[Any]], *arrays: Any) -> list[Any]:
    if any(level.batched):
        return along(function, level, arrays)
    return _summed([lax.broadcast(result, (level.size,)) for result in function(*arrays)], level)


def mapped(function: _Function, level: Level, arrays: Sequence[Any]) -> list[Any]:
    """The function mapped by JAX along one axis."""
    in_axes = [0 if is_batched else None for is_batched in level.batched]
    named = {} if level.spmd is None else {"spmd_axis_name": level.spmd}
    return _summed(jax.vmap(function, in_axes, axis_size=level.size, **named)(*arrays), level)


def _summed(results: Sequence[Any], level: Level) -> list[Any]:
    return [lax.reduce_sum(x, (0,)) if is_summed else x for x, is_summed in zip(results, level.summed, strict=True)]


def _run(*arrays: Any, element: Element, levels: tuple[Level, ...]) -> Any:
    check(element.exported, of_element(list(map(jax.typeof, arrays)), levels)[: len(element.exported.in_avals)])
    shared = dataclasses.replace(element, exported=first_of_equals(element.exported))
    with explaining_devices(element.exported):
        return _jax.apply_primitive(mapped_p, *arrays, element=shared, levels=levels)


mapped_p.def_effectful_abstract_eval(_abstract_eval)
mapped_p.def_impl(_run)


# --- the batching rules


def batch_call(
    primitive: Any, axis_data: Any, args: Sequence[Any], dims: Sequence[Any], *, exported: ExportedData, **params: Any
) -> tuple[Any, Any]:
    """The rule of `call_exported_p` and of `pushforward_p`."""
    wrt, batch = params.get("wrt"), batch_dim.of(exported)
    led = None if batch is None else (batch.arguments, batch.results)
    results = params.get("results")
    if led is not None and wrt is not None:  # element i of a tangent belongs to element i of its primal
        led = (*led[0], *(led[0][i] for i in wrt)), led[1]
    if led is not None and results is not None:
        led = led[0], tuple(led[1][i] for i in results)
    bind = functools.partial(primitive.bind, exported=exported, **params)
    element = Element(exported, wrt, tuple(range(len(exported.out_avals)) if results is None else results))
    return _run_batch(bind, axis_data, args, dims, led, element, ())


def _batch_mapped(
    axis_data: Any, args: Sequence[Any], dims: Sequence[Any], *, element: Element, levels: tuple[Level, ...]
) -> tuple[Any, Any]:
    """Adds one axis around the axes that are already mapped."""
    bind = functools.partial(mapped_p.bind, element=element, levels=levels)
    return _run_batch(bind, axis_data, args, dims, None, element, levels)


def _run_batch(
    bind: _Function,
    axis_data: Any,
    args: Sequence[Any],
    dims: Sequence[int | None],
    led: tuple[Sequence[bool], Sequence[bool]] | None,
    element: Element,
    levels: tuple[Level, ...],
) -> tuple[Sequence[Any], Sequence[int | None]]:
    """Applies `bind` to each element of a batch: the common part of the batching rules.

    Args:
        bind: the operation without the axis.
        axis_data: what JAX says about the mapped axis.
        args: the arguments, some of them batched.
        dims: the mapped axis of each argument, None for those that are not batched.
        led: which arguments and results have the batch dimension in front; None without one.
        element: what `bind` does for each element.
        levels: the axes that are already mapped.
    """
    exported = element.exported
    if args:
        args, dims = zip(*map(_without_batch_of_float0, args, dims), strict=True)
    batched = [dim is not None for dim in dims]
    if not any(batched):
        results = bind(*args)
        return results, [None] * len(results)
    if exported.ordered_effects:
        effects = ", ".join(sorted(type(effect).__name__ for effect in exported.ordered_effects))
        raise UnsupportedError(
            f"vmap of {exported.fun_name}: it has ordered effects ({effects}), "
            "and the elements of a batch have no order. Call it in a loop, such as jax.lax.scan"
        )
    mesh = next(jax.typeof(arg).sharding.mesh for arg, dim in zip(args, dims, strict=True) if dim is not None)
    axis = _MappedAxis(axis_data.size, mesh, axis_data.explicit_mesh_axis, axis_data.spmd_name)
    stacked = [arg if dim is None else jax.numpy.moveaxis(arg, dim, 0) for arg, dim in zip(args, dims, strict=True)]
    if led is not None and _can_fold(exported, axis.size, stacked, batched, led[0]):
        results = _fold(bind, axis, stacked, batched, *led)
    else:
        level = Level(axis.size, tuple(batched), (False,) * len(element.results), axis.spmd)
        results = list(map(axis.place, mapped_p.bind(*stacked, element=element, levels=(level, *levels))))
    return results, [0] * len(results)


def _without_batch_of_float0(arg: Any, dim: int | None) -> tuple[Any, int | None]:
    """All arrays of dtype float0 are alike, because they have no content."""
    if dim is None or arg.dtype != _jax.float0:
        return arg, dim
    return np.zeros((*arg.shape[:dim], *arg.shape[dim + 1 :]), _jax.float0), None


@dataclasses.dataclass(frozen=True, slots=True)
class _MappedAxis:
    size: Any
    mesh: Any  # of the batched arguments; an empty one if they have none
    explicit: Any  # the axes of an Explicit mesh that it is sharded over, or None
    spmd: Any  # the axes of an Auto mesh that the caller of vmap wants it sharded over, or None

    def place(self, result: Any) -> Any:
        """A stacked result, sharded over this axis as JAX would shard it."""
        if self.explicit is not None:
            return reshaped(result, result.shape, self.explicit, *partitions(result)[1:], mesh=self.mesh)
        mesh = jax.sharding.get_abstract_mesh()
        types = dict(zip(mesh.axis_names, mesh.axis_types, strict=True))
        if self.spmd is not None and all(types.get(name) == _jax.AxisType.Auto for name in self.spmd):
            unconstrained = [_jax.PartitionSpec.UNCONSTRAINED] * (result.ndim - 1)
            return jax.lax.with_sharding_constraint(result, _jax.PartitionSpec(self.spmd, *unconstrained))
        return result


def _can_fold(
    exported: ExportedData, size: Any, args: Sequence[Any], batched: Sequence[bool], led: Sequence[bool]
) -> bool:
    """Whether the function takes a batch that is `size` times as long."""
    avals = []
    for arg, is_batched, is_led in zip(args, batched, led, strict=True):
        if is_batched and not is_led:
            return False
        shape = arg.shape[1:] if is_batched else np.shape(arg)
        shape = (size * shape[0], *shape[1:]) if is_led else shape
        avals.append(_jax.ShapedArray(shape, jax.typeof(arg).dtype))
    try:
        check(exported, avals[: len(exported.in_avals)])
    except ExportError:
        return False
    return True


def _fold(
    bind: _Function,
    axis: _MappedAxis,
    args: Sequence[Any],
    batched: Sequence[bool],
    led_args: Sequence[bool],
    led_results: Sequence[bool],
) -> Sequence[Any]:
    """One call, with the mapped axis folded into the batch dimension."""
    length = next(arg.shape[is_batched] for arg, is_batched, led in zip(args, batched, led_args, strict=True) if led)

    def folded(arg: Any, is_batched: bool, is_led: bool) -> Any:
        if not is_led:
            return arg
        inner = arg.shape[1 + is_batched :]
        if arg.dtype == _jax.float0:
            return np.zeros((axis.size * length, *inner), _jax.float0)
        if not is_batched:
            arg = jax.numpy.broadcast_to(arg, (axis.size, *arg.shape))
        over_axis, over_batch, *rest = partitions(arg)
        return reshaped(arg, (axis.size * length, *inner), over_axis or over_batch, *rest, mesh=axis.mesh)

    def unfolded(result: Any, is_led: bool) -> Any:
        if not is_led or result.dtype == _jax.float0:
            return np.zeros((axis.size, *([length, *result.shape[1:]] if is_led else result.shape)), _jax.float0)
        shape = axis.size, length, *result.shape[1:]
        return axis.place(reshaped(result, shape, axis.explicit, *partitions(result), mesh=axis.mesh))

    return list(map(unfolded, bind(*map(folded, args, batched, led_args)), led_results))


_jax.fancy_primitive_batchers[mapped_p] = _batch_mapped


# --- derivatives


def _levels_of(levels: Sequence[Level], like: Sequence[int], results: Sequence[int]) -> tuple[Level, ...]:
    """Levels for other arguments, each mapped like an existing one, and for some of the results."""
    return tuple(
        Level(level.size, tuple(level.batched[i] for i in like), tuple(level.summed[i] for i in results), level.spmd)
        for level in levels
    )


def _jvp(
    primals: Sequence[Any], tangents: Sequence[Any], *, element: Element, levels: tuple[Level, ...]
) -> tuple[Any, Any]:
    moved = [i for i, tangent in enumerate(tangents) if not isinstance(tangent, _jax.Zero)]
    if element.wrt is not None:
        return _jvp_of_pushforward(primals, tangents, moved, element, levels)
    results = mapped_p.bind(*primals, element=element, levels=levels)
    out_tangents: list[Any] = [_jax.Zero(jax.typeof(result).to_tangent_aval()) for result in results]
    wanted = [i for i, result in enumerate(element.results) if is_differentiable(element.exported.out_avals[result])]
    if moved and wanted:
        pushforward = Element(element.exported, tuple(moved), tuple(element.results[i] for i in wanted))
        over = _levels_of(levels, [*range(len(primals)), *moved], wanted)
        pushed = mapped_p.bind(*primals, *(tangents[i] for i in moved), element=pushforward, levels=over)
        for i, tangent in zip(wanted, pushed, strict=True):
            out_tangents[i] = tangent
    return results, out_tangents


def _jvp_of_pushforward(
    primals: Sequence[Any], tangents: Sequence[Any], moved: Sequence[int], element: Element, levels: tuple[Level, ...]
) -> tuple[Any, Any]:
    assert element.wrt is not None
    n = len(element.exported.in_avals)
    results = mapped_p.bind(*primals, element=element, levels=levels)
    if moved and moved[0] >= n:  # only directions: it is linear in them
        linear = dataclasses.replace(element, wrt=tuple(element.wrt[i - n] for i in moved))
        fewer = _levels_of(levels, [*range(n), *moved], range(len(results)))
        return results, mapped_p.bind(*primals[:n], *(tangents[i] for i in moved), element=linear, levels=fewer)

    def pushed(*arrays: Any) -> Sequence[Any]:
        known = dict(zip(moved, arrays[len(primals) :], strict=True))
        values = arrays[: len(primals)]
        moves = [known.get(i, _jax.Zero(jax.typeof(value).to_tangent_aval())) for i, value in enumerate(values)]
        _, out = _jax.primitive_jvps[pushforward_p](
            values, moves, exported=element.exported, wrt=element.wrt, results=element.results
        )
        return list(map(_instantiated, out))

    over = _levels_of(levels, [*range(len(primals)), *moved], range(len(results)))
    return results, each(pushed, over, mapped)(*primals, *(tangents[i] for i in moved))


def _instantiated(tangent: Any) -> Any:
    if not isinstance(tangent, _jax.Zero):
        return tangent
    aval: Any = tangent.aval
    return jax.numpy.zeros(aval.shape, aval.dtype)


def _transpose(cotangents: Sequence[Any], *args: Any, element: Element, levels: tuple[Level, ...]) -> list[Any]:
    exported, wrt = element.exported, element.wrt
    if wrt is None:
        return _jax.primitive_transposes[call_exported_p](cotangents, *args, exported=exported)
    n = len(exported.in_avals)
    primals, tangents = args[:n], args[n:]
    of_primals = of_element(list(map(jax.typeof, primals)), _levels_of(levels, range(n), ()))
    out_avals, _ = abstract_eval(*of_primals, exported=exported)
    known = {
        result: (cotangent, i)
        for i, (result, cotangent) in enumerate(zip(element.results, cotangents, strict=True))
        if not isinstance(cotangent, _jax.Zero)
    }
    given = cotangents_of(out_avals, {result: cotangent for result, (cotangent, _) in known.items()})

    def has_axis(result: int, level: Level) -> bool:
        """Whether the cotangent of a result has a mapped axis; a sum's cotangent is the same for all elements."""
        return result in known and not level.summed[known[result][1]]

    linear = [i for i, tangent in enumerate(tangents) if _jax.is_undefined_primal(tangent)]
    pulling = tuple(
        dataclasses.replace(
            level,
            batched=(*level.batched[:n], *(has_axis(result, level) for result in range(len(out_avals)))),
            # An argument that all elements share gets the sum of their cotangents.
            summed=tuple(not level.batched[n + i] for i in linear),
        )
        for level in levels
    )
    pull = Element(exported.vjp(), None, tuple(wrt[i] for i in linear))
    pulled = iter(mapped_p.bind(*primals, *given, element=pull, levels=pulling))
    of_tangents: list[Any] = [None] * len(tangents)
    for i in linear:
        of_tangents[i] = as_type(next(pulled), tangents[i].aval, exported)
    return [None] * n + of_tangents


_jax.primitive_jvps[mapped_p] = _jvp
_jax.primitive_transposes[mapped_p] = _transpose


# --- lowering: the function raised and mapped as a whole, or a loop of calls


# How many mapped forms of one function are kept.
_MOST = 32


def _lower(ctx: Any, *operands: Any, element: Element, levels: tuple[Level, ...]) -> Sequence[Any]:
    check_call(ctx.module_context, element.exported)
    # The compiler shards raised code as it likes, whatever the outer types and the current mesh say.
    inner = ctx.replace(avals_in=tuple(map(plain, ctx.avals_in)), avals_out=list(map(plain, ctx.avals_out)))
    # Equal functions are raised and traced once.
    element = dataclasses.replace(element, exported=first_of_equals(element.exported))
    raised = data.kept(element.exported, "mapped", lambda _: functools.lru_cache(_MOST)(_raised))
    try:
        with _without_meshes():
            batch = raised(inner.avals_in, element, levels, tuple(ctx.module_context.platforms))
            return _jax.lower_as_function(batch)(inner, *operands)
    except RefusedError as refused:
        said, text = data.kept(element.exported, "reasons_logged", lambda _: set[str]()), str(refused)
        if text not in said:  # once for each function and reason
            said.add(text)
            name = shown(data.described(element.exported))
            logger.warning("jax.vmap of %s is a loop, one call after the other: %s", name, text)
        return _jax.lower_as_function(each(element.bind, levels, _looped))(ctx, *operands)


_jax.register_lowering(mapped_p, _lower)


def _raised(avals: Sequence[Any], element: Element, levels: tuple[Level, ...], platforms: Sequence[str]) -> _Function:
    """The mapped element, raised; a jitted function, so that JAX traces it once and finds it again.

    Raises:
        RefusedError: it cannot be raised, or JAX cannot map it.
    """
    function = each(_one(element, platforms), levels, mapped)

    def batch(*arrays: Any) -> Sequence[Any]:
        return function(*arrays)

    batch.__name__ = batch.__qualname__ = f"mapped_{element.exported.fun_name}"
    jitted = jax.jit(batch)
    try:
        jitted.trace(*(jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in avals))
    except ExportError:  # a RefusedError among them
        raise
    except Exception as error:  # JAX's errors for things that it cannot map have any type
        raise RefusedError("an operation", f"{type(error).__name__}: {error}") from cause(error)
    return jitted


def _one(element: Element, platforms: Sequence[str]) -> _Function:
    """The operation for one element, raised when it is traced."""
    exported, wrt = element.exported, element.wrt
    n = len(exported.in_avals)

    def called(*arrays: Any) -> Sequence[Any]:
        results = _call_raised(exported, arrays, platforms)
        return [results[i] for i in element.results]

    def pushed(*arrays: Any) -> Sequence[Any]:
        assert wrt is not None
        function, operands = pushforward_call(arrays[:n], arrays[n:], exported, wrt)
        results = _call_raised(function, operands, platforms)
        return [results[n + i] for i in element.results]

    return called if wrt is None else pushed


def _call_raised(exported: ExportedData, arrays: Sequence[Any], platforms: Sequence[str]) -> Sequence[Any]:
    from .read_back import raised_for  # only batches need it

    in_avals = list(map(jax.typeof, arrays))
    if len(exported.platforms) == 1 or len(platforms) == 1:
        return raised_for(exported, in_avals, platforms[0]).inline(*arrays)
    choices = {platform: raised_for(exported, in_avals, platform).inline for platform in platforms}
    return jax.lax.platform_dependent(*arrays, **choices)


@contextlib.contextmanager
def _without_meshes() -> Generator[None]:
    """A context in which no mesh of the caller is set."""
    before = _jax.mesh_in_context.swap_local(_jax.not_set)
    try:
        with jax.sharding.use_abstract_mesh(_jax.empty_abstract_mesh):
            yield
    finally:
        _jax.mesh_in_context.set_local(before)


# --- a loop, one call after the other


def _looped(call: _Function, level: Level, arrays: Sequence[Any]) -> list[Any]:
    """Runs `call` for each element along one axis, and stacks or sums its results."""

    def element(slices: Sequence[Any]) -> Sequence[Any]:
        rest = iter(slices)
        return call(*(next(rest) if has_axis else array for array, has_axis in zip(arrays, level.batched, strict=True)))

    whole = [array for array, has_axis in zip(arrays, level.batched, strict=True) if has_axis]
    mesh = jax.typeof(whole[0]).sharding.mesh
    # A loop runs over an axis that is not sharded.
    whole = [reshaped(array, array.shape, None, *partitions(array)[1:], mesh=mesh) for array in whole]
    types = jax.make_jaxpr(element)([jax.ShapeDtypeStruct(array.shape[1:], array.dtype) for array in whole]).out_avals

    def step(carry: list[Any], at: tuple[Any, list[Any]]) -> tuple[list[Any], list[Any]]:
        index, slices = at

        def carried(before: Any, result: Any, is_summed: bool) -> Any:
            if before is None or is_summed:
                return None if before is None else lax.add(before, result)
            return lax.dynamic_update_index_in_dim(before, result, index, 0)

        results = element(slices)
        stacked = [x if before is None else None for before, x in zip(carry, results, strict=True)]
        return list(map(carried, carry, results, level.summed)), stacked

    # A function may return 64-bit arrays although JAX is set to make 32-bit ones.
    with jax.enable_x64(bool(jax.config.read("jax_enable_x64")) or any(map(is_wide, types))):
        begun = [
            jax.numpy.zeros(type_.shape, type_.dtype) if is_summed else _rows(level.size, whole, type_)
            for type_, is_summed in zip(types, level.summed, strict=True)
        ]
        filled, stacked = lax.scan(step, begun, (jax.numpy.arange(level.size), whole))
    return [s if f is None else f for f, s in zip(filled, stacked, strict=True)]


def _rows(size: Any, arrays: Sequence[Any], result: Any) -> Any:
    """An array for the loop to fill with results; None leaves it to JAX, which makes one of zeros.

    It is made from the values of an argument, so the compiler, which follows the data flow, shards both over a mesh in
    the same way.
    """
    if any(_jax.AxisType.Explicit in jax.typeof(array).sharding.mesh.axis_types for array in arrays):
        return None
    like = next((array for array in arrays if _is_number(jax.typeof(array)) and 0 not in array.shape), None)
    if like is None or not _is_number(result):
        return None
    like = lax.slice(like, [0] * like.ndim, [size, *[1] * (like.ndim - 1)]).reshape(size)
    if _jax.issubdtype(like.dtype, np.complexfloating):
        like = like.real
    return lax.broadcast_in_dim(like.astype(result.dtype), (size, *result.shape), (0,))


def _is_number(aval: Any) -> bool:
    """Whether arrays contain numbers and are on the device."""
    on_device = aval.memory_space == _jax.MemorySpace.Device
    return on_device and (aval.dtype == bool or _jax.issubdtype(aval.dtype, np.number))


def partitions(array: Any) -> tuple[Any, ...]:
    """For each dimension of an array, the axes of an Explicit mesh that it is sharded over, or None."""
    partitions = tuple(jax.typeof(array).sharding.spec)
    return (*partitions, *[None] * (np.ndim(array) - len(partitions)))


def reshaped(array: Any, shape: Sequence[Any], *partitions: Any, mesh: Any) -> Any:
    """An array in another shape and, if types say how arrays are sharded over the mesh, with another sharding.

    If a mesh axis would appear twice, the first dimension gets it.
    """
    if _jax.AxisType.Explicit not in mesh.axis_types or array.dtype == _jax.float0:
        return array.reshape(shape)
    seen: set[Any] = set()
    unique = []
    for names in partitions:
        names = names if isinstance(names, tuple) else (names,)
        unique.append(tuple(name for name in names if name is not None and name not in seen) or None)
        seen.update(names)
    sharding = jax.typeof(array).sharding
    wanted = _jax.NamedSharding(mesh, sharding.spec.update(partitions=tuple(unique)))
    if array.shape != tuple(shape):
        return jax.lax.reshape(array, shape, out_sharding=wanted)
    return array if sharding == wanted else jax.sharding.reshard(array, wanted)

"""`Exported.raised` and `Exported.make_jaxpr`: the function read back from its module, for tracing and for reading."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import jax

from jaxexp import _jax
from jaxexp._errors import ExportError, UnsupportedError
from jaxexp._kernel.call.first_argument import apart, flattened, program_of
from jaxexp._kernel.call.lowering import check_device_count
from jaxexp._kernel.call.primitive import check
from jaxexp._kernel.function.data import ExportedData
from jaxexp._kernel.function.specs import is_taken_as

from .array_type import plain
from .function import Raised
from .function import raised as raise_function
from .staged import jitted


def raised(exported: ExportedData) -> Callable[..., Any]:
    """`Exported.raised`."""
    program = program_of(exported)

    @jax.custom_jvp
    def flat(*leaves: Any) -> Sequence[Any]:
        return on_any_platform(program, leaves)

    def refuse(primals: Any, tangents: Any) -> NoReturn:
        raise UnsupportedError(
            f"differentiating {exported.fun_name}.raised(): its derivatives would not be those of {exported.fun_name}, "
            "because a module no longer has its stop_gradient and its custom derivatives. Differentiate the function's "
            "call, which uses its stored VJPs"
        )

    flat.defjvp(refuse)
    # On several devices, JAX places arrays only in a trace, if their meshes do not say which devices.
    run = flat if program.nr_devices == 1 else jitted(flat, exported.fun_name)

    def function(*args: Any, **kwargs: Any) -> Any:
        leaves, out_tree = flattened(*apart(exported, args), kwargs)
        return out_tree.unflatten(run(*map(jax.numpy.asarray, leaves)))

    function.__name__ = function.__qualname__ = exported.fun_name
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
        check(program, avals)
        function = raise_function(program, avals, platform if platform in platforms else platforms[0])
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
        platform: raise_function(exported, in_avals, platform, differentiable=differentiable)
        for platform in exported.platforms
    }
    if any(function.has_shard_map for function in each.values()):
        results = _one_of(each, exported, border_p.bind(*leaves, exported=exported))
        return border_p.bind(*results, exported=exported)
    return _one_of(each, exported, leaves)


def _one_of(each: Mapping[str, Raised], exported: ExportedData, leaves: Sequence[Any]) -> Sequence[Any]:
    """The function that is raised for the platform for which it is lowered."""
    first = each[exported.platforms[0]]
    if foreign := sorted(set().union(*(function.foreign for function in each.values()))):
        types = tuple((aval.shape, aval.dtype) for aval in first.out_avals)

        def elsewhere(*_: Any) -> Sequence[Any]:
            return elsewhere_p.bind(
                types=types, name=exported.fun_name, platforms=exported.platforms, foreign=tuple(foreign)
            )

        return jax.lax.platform_dependent(*leaves, default=elsewhere, **each)
    if len(each) > 1:
        return jax.lax.platform_dependent(*leaves, default=first, **each)
    return first(*leaves)

"""Functions for the commands that call, compile or specialize them. All of this imports JAX."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import TYPE_CHECKING, Any

import click

from jaxexp._errors import ExportError
from jaxexp._kernel.artifact.words import counted

from . import inputs, sizes

if TYPE_CHECKING:
    from jaxexp._api.exported import Exported

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


def loaded(source: inputs.Source, **options: Any) -> Exported:
    """The function in an artifact, with its weights; options as in `jaxexp.load`."""
    from jaxexp._fleet.places.load import load

    return load(source.given, **options)


def as_called(exported: Exported) -> Any:
    """The function with the signature of its calls: without weights."""
    from jaxexp._kernel.call import first_argument

    return first_argument.as_called(exported)


def with_dtypes_of(exported: Exported) -> contextlib.AbstractContextManager[Any]:
    """A context in which JAX has arrays of 64-bit dtypes if the function has some."""
    import jax

    dtypes = {str(aval.dtype) for aval in (*exported.in_avals, *exported.out_avals)}
    is_wide = dtypes & {"float64", "int64", "uint64", "complex128"}
    return jax.enable_x64(True) if is_wide else contextlib.nullcontext()


def arguments(file: str, exported: Exported, given: sizes.Sizes, why: str, instead: str = "") -> Arguments:
    """Specs of the arguments of a call, with these sizes for the symbolic dimensions.

    Raises:
        click.ClickException: a dimension has no size, or a size has no dimension; the message says why sizes are
            needed, and what else can be done.
    """
    from jaxexp._kernel.function import specs

    called = as_called(exported)
    sizes.check(file, specs.dimension_variables(called), given, why, instead)
    return specs.of_sizes(called, given)


def written_for(exported: Exported, reader: str) -> Exported:
    """The same function, written for a release by default."""
    from jaxexp._kernel.function import data

    program = exported.unbound
    made = dataclasses.replace(program, _facts=data.facts_of(program)._replace(compatibility=reader))
    return type(exported).of(made, exported.weights) if exported.weights else made  # type: ignore[attr-defined]


def specialized(file: str, exported: Exported, given: sizes.Sizes) -> Exported:
    """The function with these sizes for its symbolic dimensions.

    Raises:
        click.ClickException: it has none, or other ones; or the sizes do not fit its constraints.
    """
    args, kwargs = arguments(file, exported, given, "a specialized function has constant ones")
    if not given:
        raise click.ClickException(f"{file!r} has no symbolic dimensions: its shapes are constant already")
    try:
        return exported.specialize(*args, **kwargs)
    except ExportError as error:
        raise click.ClickException(f"{file!r} with {sizes.shown(given)}: {error}") from error


def on_devices(file: str, exported: Exported) -> tuple[Exported, list[Any]]:
    """A function with its weights where the export had them, on the first devices, and the shardings of the arguments
    of its calls; for a function of one device, these are None.

    Raises:
        click.ClickException: there are fewer devices.
    """
    import jax

    from jaxexp._kernel.module import meshes

    needed, devices, called = exported.nr_devices, jax.devices(), as_called(exported)
    if needed == 1:
        return exported, [None] * len(called.in_avals)
    if len(devices) < needed:
        on_cpu = f"; JAX_NUM_CPU_DEVICES={needed} makes as many of a CPU" if devices[0].platform == "cpu" else ""
        raise click.ClickException(f"{file!r} is for {counted(needed, 'device')}, here are {len(devices)}{on_cpu}")
    mesh = exported.make_mesh()
    return (exported.with_mesh(mesh) if exported.weights else exported), list(meshes.shardings_on(called, mesh))


def placed(file: str, exported: Exported, arguments: Arguments) -> tuple[Exported, Arguments]:
    """A function as `on_devices` returns it, and the arguments of a call, placed as in the export.

    Raises:
        click.ClickException: there are fewer devices.
    """
    import jax

    exported, shardings = on_devices(file, exported)
    leaves, tree = jax.tree_util.tree_flatten(arguments)
    on = [leaf if one is None else jax.device_put(leaf, one) for leaf, one in zip(leaves, shardings, strict=True)]
    args, kwargs = jax.tree_util.tree_unflatten(tree, on)
    return exported, (args, kwargs)

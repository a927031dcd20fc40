"""Functions for the commands that call, compile or specialize them, and the arguments of a call, from files and numbers
on the command line. All of this imports JAX."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from jaxexp._errors import ExportError
from jaxexp._kernel.artifact.words import counted, listed, near

from . import inputs, options
from .complaints import misused

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


def arguments(file: str, exported: Exported, given: options.Sizes, why: str, instead: str = "") -> Arguments:
    """Specs of the arguments of a call, with these sizes for the symbolic dimensions. If a dimension has no size, the
    message says why sizes are needed, and what else can be done.
    """
    from jaxexp._kernel.function import specs

    called = as_called(exported)
    options.check_sizes(file, specs.dimension_variables(called), given, why, instead)
    return specs.of_sizes(called, given)


def check_reader(to: str | None) -> None:
    """Refuses a reader of `--to` that there is not."""
    if to is not None:
        from jaxexp._kernel.write.reader import check_choice

        with misused():
            check_choice(to, "--to")


def specialized(file: str, exported: Exported, given: options.Sizes) -> Exported:
    """The function with these sizes for its symbolic dimensions."""
    args, kwargs = arguments(file, exported, given, "a specialized function has constant ones")
    if not given:
        raise click.ClickException(f"{file!r} has no symbolic dimensions: its shapes are constant already")
    try:
        return exported.specialize(*args, **kwargs)
    except ExportError as error:
        raise click.ClickException(f"{file!r} with {options.shown_sizes(given)}: {error}") from error


def on_devices(file: str, exported: Exported) -> tuple[Exported, list[Any]]:
    """A function with its weights where the export had them, on the first devices, and the shardings of the arguments
    of its calls; for a function of one device, these are None.
    """
    import jax

    from jaxexp._kernel.module import meshes

    needed, devices, called = exported.nr_devices, jax.devices(), as_called(exported)
    if needed == 1:
        return exported, [None] * len(called.in_avals)
    if len(devices) < needed:
        on_cpu = f"; set JAX_NUM_CPU_DEVICES={needed} in the environment" if devices[0].platform == "cpu" else ""
        raise click.ClickException(
            f"{file!r} is for {counted(needed, 'device')}, and this process has {len(devices)}{on_cpu}"
        )
    mesh = exported.make_mesh()
    return (exported.with_mesh(mesh) if exported.weights else exported), list(meshes.shardings_on(called, mesh))


def placed(file: str, exported: Exported, arguments: Arguments) -> tuple[Exported, Arguments]:
    """A function as `on_devices` returns it, and the arguments of a call, placed as in the export."""
    import jax

    exported, shardings = on_devices(file, exported)
    leaves, tree = jax.tree_util.tree_flatten(arguments)
    on = [leaf if one is None else jax.device_put(leaf, one) for leaf, one in zip(leaves, shardings, strict=True)]
    args, kwargs = jax.tree_util.tree_unflatten(tree, on)
    return exported, (args, kwargs)


class CallArguments:
    """The arguments of a call, by their indices."""

    def __init__(self, file: str, called: Any) -> None:
        """`file` is the name of the artifact, and `called` the function with the signature of its calls."""
        from jaxexp._kernel.function.paths import argument_paths

        self._file, self._called, self._avals = file, called, called.in_avals
        self._paths = argument_paths(called.in_tree)
        # A shell takes quotes away: args[0]['w'] arrives as args[0][w].
        unquoted = {path.replace("'", ""): i for i, path in enumerate(self._paths)}
        self._index = {**unquoted, **{path: i for i, path in enumerate(self._paths)}}
        self._found: dict[int, Any] = {}

    def take(self, given: Sequence[str]) -> None:
        """Takes what is on the command line: first by path, then in order."""
        in_order = []
        for text in given:
            if (named := self._split(text)) is None:
                in_order.append(text)
            else:
                self._add(named[0], self._value(*named), text)
        for text in in_order:
            left = [i for i in range(len(self._avals)) if i not in self._found]
            if text.endswith(".npz"):
                self._take_all(text, left)
            elif left:
                self._add(left[0], self._value(left[0], text), repr(text))
            else:
                raise self._one_more(repr(text))

    def fill(self, chosen: options.Sizes, seed: int, make: Callable[[Any, int, int], Any]) -> None:
        """Random arrays for what is not given, each made from its spec, the seed and the index of the argument.
        Dimensions have the sizes of the given arrays, or the chosen ones.
        """
        import jax

        from jaxexp._kernel.function import specs

        names = specs.dimension_variables(self._called)
        known = dict(chosen)
        for i, array in self._found.items():
            for dimension, size in zip(map(str, self._avals[i].shape), array.shape, strict=False):
                if chosen.get(dimension, size) != size:
                    raise click.UsageError(
                        f"--size {dimension}={chosen[dimension]} is not the size of {self._paths[i]}, which has "
                        f"{dimension}={size}"
                    )
                if dimension in names:
                    known[dimension] = size
        options.check_sizes(self._file, names, known, "random arrays need constant ones")
        for i, spec in enumerate(jax.tree_util.tree_leaves(specs.of_sizes(self._called, known))):
            if i not in self._found:
                self._found[i] = make(spec, seed, i)

    def all(self) -> Arguments:
        """Positional arguments, and those by keyword."""
        import jax

        if missing := [i for i in range(len(self._avals)) if i not in self._found]:
            are, each = ("is", "") if len(missing) == 1 else ("are", " for each")
            raise click.UsageError(
                f"{listed(missing, self._described, most=8)} {are} not given: pass a .npy file{each}, or --random"
            )
        from jaxexp._cli import arrays

        leaves = arrays.values(self._called, [self._found[i] for i in range(len(self._avals))])
        args, kwargs = jax.tree_util.tree_unflatten(self._called.in_tree, leaves)
        return args, kwargs

    def _split(self, text: str) -> tuple[int, str] | None:
        """The argument of PATH=ARG, and the ARG; None for an ARG without a path."""
        for place in (i for i, character in enumerate(text) if character == "="):
            if text[:place] in self._index:
                return self._index[text[:place]], text[place + 1 :]
        path, equals, _ = text.rpartition("=")
        if equals and (path.startswith(("args[", "kwargs[")) or not os.path.lexists(text)):
            similar = near(path, self._paths, 1)
            did = f": did you mean {similar[0]}?" if similar else f"; it has {listed(self._paths, most=8)}"
            raise click.UsageError(f"{self._file!r} has no argument {path}{did}")
        return None

    def _value(self, index: int, text: str) -> Any:
        from jaxexp._cli import arrays

        aval = self._avals[index]
        if aval.shape == () and not text.endswith(".npy"):
            try:
                return arrays.parsed(text, aval)
            except ValueError as error:
                raise click.UsageError(
                    f"{self._described(index)} takes {error}, or a .npy file, not {text!r}"
                ) from None
        try:
            return arrays.as_argument(arrays.read(text), aval)
        except FileNotFoundError:
            if text.endswith(".npy"):
                raise
            raise click.UsageError(f"{self._described(index)} takes a .npy file, not {text!r}") from None

    def _take_all(self, path: str, left: Sequence[int]) -> None:
        """Takes the arrays in a .npz file by their paths, or in order."""
        from jaxexp._cli import arrays

        for name, stored in arrays.read_all(path).items():
            where = f"{path!r}, {name!r},"
            numbered = re.fullmatch(r"arr_([0-9]{1,9})", name)
            if name in self._index:
                index = self._index[name]
            elif numbered is None:
                raise click.ClickException(
                    f"{where} is not an argument of {self._file!r}: name arrays by the paths of the arguments, "
                    f"{listed(self._paths, most=8)}; or arr_0, arr_1, ... in this order, as numpy.savez(FILE, *arrays) "
                    "names them"
                )
            elif int(numbered[1]) >= len(left):
                raise self._one_more(where)
            else:
                index = left[int(numbered[1])]
            self._add(index, arrays.as_argument(stored, self._avals[index]), where)

    def _add(self, index: int, value: Any, where: str) -> None:
        if index in self._found:
            raise click.UsageError(f"{where} gives {self._paths[index]} a second time")
        self._found[index] = value

    def _one_more(self, where: str) -> click.UsageError:
        return click.UsageError(f"{self._file!r} takes {counted(len(self._avals), 'argument')}; {where} is one more")

    def _described(self, index: int) -> str:
        return f"{self._paths[index]} ({self._avals[index].str_short(short_dtypes=False)})"

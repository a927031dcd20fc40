"""`jaxexp run`: calls a function with arrays from files."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from jaxexp._cli import completing, functions, headers, importing, inputs, outputs, sizes
from jaxexp._cli.complaints import FAILED, complain, misused
from jaxexp._cli.page import Column, Page, say
from jaxexp._errors import WeightsError
from jaxexp._kernel.artifact.words import counted, listed

if TYPE_CHECKING:
    from jaxexp._api.exported import Exported
    from jaxexp._cli.arrays import Array

_EXAMPLE = """\b
Example:
  jaxexp run model.jaxexp x.npy -o y.npy
  jaxexp run model.jaxexp "args[0]['w']=w.npy" "args[1]=x.npy"
  jaxexp run step.jaxexp state.npz 0.01 -o new_state.npz
  jaxexp run model.jaxexp --random --size batch=4"""

_NUMBER = re.compile(r"-[0-9.]|-inf|-nan", re.IGNORECASE)


def _check_arguments(ctx: click.Context, _: click.Parameter, given: tuple[str, ...]) -> tuple[str, ...]:
    """Negative numbers look like options."""
    for text in given:
        if text.startswith("-") and not _NUMBER.match(text):
            known = [name for parameter in ctx.command.params for name in parameter.opts if name.startswith("--")]
            raise click.NoSuchOption(text, possibilities=difflib.get_close_matches(text, known), ctx=ctx)
    return given


@click.command(
    epilog=_EXAMPLE,
    short_help="Call a function with arrays from files.",
    context_settings={"ignore_unknown_options": True},
)
@click.argument("file", metavar="FILE", type=completing.Artifact())
@click.argument(
    "given",
    metavar="[ARG]...",
    nargs=-1,
    type=click.Path(),
    callback=_check_arguments,
)
@click.option(
    "-o",
    "--output",
    metavar="OUT",
    type=click.Path(),
    help="Write the results to this file: .npy for one, .npz for any number, by their paths.",
)
@click.option(
    "--expect",
    metavar="FILE",
    type=click.Path(),
    help="Compare the results with those in this .npz or .npy file, as -o writes it. The exit status is 1 if a number "
    "differs by more than rounding.",
)
@click.option("--random", "is_random", is_flag=True, help="Use random numbers for all arguments that are not given.")
@click.option(
    "--seed", type=click.IntRange(0), metavar="SEED", help="With --random, other numbers than those of seed 0."
)
@sizes.option("With --random, the size of a symbolic dimension, as in batch=4; once for each dimension.")
@click.option(
    "--weights",
    metavar="SAFETENSORS",
    type=click.Path(),
    help="Use the weights in this file, or index, in place of those beside the function.",
)
@click.option(
    "--cast",
    "is_cast",
    is_flag=True,
    help="With --weights, round floats, and cast integers, to the dtypes of the function.",
)
@click.option(
    "--executables",
    metavar="EXE",
    type=click.Path(),
    help="Use the compiled code in this file, if it fits. It is native code: trust it as you trust a program.",
)
@click.option("--policy", metavar="TOML", type=click.Path(), help="Refuse a function that this policy does not allow.")
@click.option("--force", is_flag=True, help="Replace OUT if it exists.")
@importing.option
@headers.option
def command(
    file: str,
    given: tuple[str, ...],
    output: str | None,
    expect: str | None,
    is_random: bool,
    seed: int | None,
    sized: tuple[str, ...],
    weights: str | None,
    is_cast: bool,
    executables: str | None,
    policy: str | None,
    force: bool,
) -> int:
    """Call a function with arrays from files, and write its results to a file, or show them.

    ARG is a .npy file, or a number for a scalar (for a random key, its seed). ARGs are the arguments in the order in
    which 'inspect' lists them; PATH=ARG is the argument that 'inspect' calls PATH. A .npz file has arguments by their
    paths, or in their order as arr_0, arr_1, ... Sizes of symbolic dimensions are those of the arrays. Without OUT,
    shapes and ranges are shown, and the numbers of small results. This imports JAX, and runs the function: run only
    what you trust.
    """
    if not is_random and (sized or seed is not None):
        raise click.UsageError(f"{'--size' if sized else '--seed'} is for random numbers: add --random")
    if is_cast and weights is None:
        raise click.UsageError("--cast is for the weights of a file: add --weights")
    if output is not None:
        if not output.endswith((".npy", ".npz")):
            raise click.UsageError(f"-o takes a file .npy or .npz, not {output!r}")
        if not force:
            outputs.refuse_existing(output)
    chosen = sizes.parsed(sized)
    source = inputs.artifact(file)
    exported = _loaded(source, executables, policy)
    if weights is not None:
        exported = _with_weights(exported, weights, is_cast)
    paths = _result_paths(exported)
    if output is not None and output.endswith(".npy") and len(paths) != 1:
        raise click.UsageError(f"{file!r} has {counted(len(paths), 'result')}, and {output!r} holds one: use .npz")
    arguments = _Arguments(source.name, functions.as_called(exported))
    with functions.with_dtypes_of(exported):
        arguments.take(given)
        if is_random:
            arguments.fill(chosen, seed or 0)
        results = dict(zip(paths, _called(source.name, exported, arguments.all(), executables), strict=True))
    if output is not None:
        from jaxexp._cli import arrays

        arrays.write(output, results)
        say(f"{output}: {counted(len(results), 'result')}, {os.path.getsize(output):,} bytes")
    elif expect is None:
        _show(exported.fun_name, source.name, results)
    return FAILED if expect is not None and not _are_expected(source.name, results, expect) else 0


def _loaded(source: inputs.Source, executables: str | None, policy: str | None) -> Exported:
    allowed = None
    if policy is not None:
        from jaxexp._policy.policy import Policy

        with misused("--policy "):
            allowed = Policy.from_toml(policy)
    return functions.loaded(source, policy=allowed, executables=executables)


def _with_weights(exported: Exported, path: str, is_cast: bool) -> Exported:
    """The function with the weights in a file. Errors advise what can be done on a command line."""
    from jaxexp._weights.arrays import casting, names

    try:
        return exported.with_weights(path, cast=is_cast)
    except WeightsError as error:
        for advice, here in (
            (casting.ADVICE, "; --cast casts it"),
            (casting.REFUSED, casting.REFUSED.replace("cast=True", "--cast")),
            (names.RENAME_ADVICE, ". If the weights have other names there, use with_weights in Python, with rename="),
        ):
            error.found = error.found.replace(advice, here)
        raise


def _result_paths(exported: Exported) -> list[str]:
    from jaxexp._kernel.function.paths import result_paths

    return result_paths(exported.out_tree)


class _Arguments:
    """The arguments of a call, by their indices."""

    def __init__(self, file: str, called: Any) -> None:
        """Args:
        file: the name of the artifact, for messages.
        called: the function, with the signature of its calls.
        """
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
            named = self._split(text)
            if named is None:
                in_order.append(text)
            else:
                self._add(named[0], self._value(named[0], named[1]), text)
        for text in in_order:
            left = [i for i in range(len(self._avals)) if i not in self._found]
            if text.endswith(".npz"):
                self._take_all(text, left)
            elif left:
                self._add(left[0], self._value(left[0], text), repr(text))
            else:
                raise self._one_more(repr(text))

    def fill(self, chosen: sizes.Sizes, seed: int) -> None:
        """Random arrays for what is not given. Dimensions have the sizes of the given arrays, or the chosen ones.

        Raises:
            click.UsageError: an array has another size than the chosen one.
        """
        from jaxexp._cli import arrays
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
        sizes.check(self._file, names, known, "random arrays need constant ones")
        import jax

        for i, spec in enumerate(jax.tree_util.tree_leaves(specs.of_sizes(self._called, known))):
            if i not in self._found:
                self._found[i] = arrays.example(spec, seed, i)

    def all(self) -> functions.Arguments:
        """Positional arguments, and those by keyword."""
        import jax

        if missing := [i for i in range(len(self._avals)) if i not in self._found]:
            are, each = ("is", "") if len(missing) == 1 else ("are", " for each")
            raise click.UsageError(
                f"{listed(missing, self._described, most=8)} {are} not given: pass a .npy file{each}, or --random"
            )
        leaves = [self._found[i] for i in range(len(self._avals))]
        args, kwargs = jax.tree_util.tree_unflatten(self._called.in_tree, leaves)
        return args, kwargs

    def _split(self, text: str) -> tuple[int, str] | None:
        """The argument of PATH=ARG, and the ARG; None for an ARG without a path."""
        for place in (i for i, character in enumerate(text) if character == "="):
            if text[:place] in self._index:
                return self._index[text[:place]], text[place + 1 :]
        path, equals, _ = text.rpartition("=")
        if equals and path.startswith(("args[", "kwargs[")):
            near = difflib.get_close_matches(path, self._paths, 1)
            did = f": did you mean {near[0]}?" if near else f"; it has {listed(self._paths, most=8)}"
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
            return arrays.as_argument(repr(text), arrays.read(text), aval)
        except FileNotFoundError:
            if text.endswith(".npy"):
                raise
            raise click.UsageError(f"{self._described(index)} takes a .npy file, not {text!r}") from None

    def _take_all(self, path: str, left: Sequence[int]) -> None:
        """Takes the arrays in a .npz file by their paths, or in order."""
        from jaxexp._cli import arrays

        for name, array in arrays.read_all(path).items():
            where = f"{path!r}, {name!r},"
            numbered = re.fullmatch(r"arr_([0-9]{1,9})", name)
            if name in self._index:
                index = self._index[name]
            elif numbered is None:
                raise click.ClickException(
                    f"{where} is no argument of {self._file!r}: {listed(self._paths, most=8)}. Name arrays by these "
                    "paths; or arr_0, arr_1, ... in this order, as numpy.savez(FILE, *arrays) names them"
                )
            elif int(numbered[1]) >= len(left):
                raise self._one_more(where)
            else:
                index = left[int(numbered[1])]
            self._add(index, arrays.as_argument(f"{path!r}, {name!r}", array, self._avals[index]), where)

    def _add(self, index: int, value: Any, where: str) -> None:
        if index in self._found:
            raise click.UsageError(f"{where} gives {self._paths[index]} a second time")
        self._found[index] = value

    def _one_more(self, where: str) -> click.UsageError:
        return click.UsageError(f"{self._file!r} takes {counted(len(self._avals), 'argument')}; {where} is one more")

    def _described(self, index: int) -> str:
        return f"{self._paths[index]} ({self._avals[index].str_short(short_dtypes=False)})"


def _are_expected(file: str, results: Mapping[str, Array], path: str) -> bool:
    """Compares results with those in a file, and says how they differ.

    Raises:
        click.ClickException: the file has other names.
    """
    from jaxexp._cli import arrays

    expected = arrays.read_named(path, list(results), "results")
    wrong = {name: why for name, found in results.items() if (why := arrays.difference(expected[name], found))}
    if not wrong:
        say(f"{file}: {counted(len(results), 'result')} as in {path}")
        return True
    complain(f"{file!r} and {path!r} differ in {listed(wrong, lambda name: f'{name}: {wrong[name]}', most=4)}")
    return False


def _called(
    file: str, exported: Exported, arguments: tuple[tuple[Any, ...], dict[str, Any]], executables: str | None
) -> list[Array]:
    """The results of a call. For several devices, arguments are placed on them as in the export."""
    import jax

    from jaxexp._cli import arrays

    exported, (args, kwargs) = functions.placed(file, exported, arguments)
    results = jax.tree_util.tree_leaves(exported.call(*args, **kwargs))
    if executables is not None and not any(one.used for one in exported.executables):
        why = [f"{one.arguments}: {one.why}" for one in exported.executables] or ["none is for this function"]
        complain(f"no code in {executables!r} was used: {listed(why, most=4, separator='; ')}")
    return [arrays.of_result(result) for result in results]


_SMALL = 32  # results of at most so many numbers are shown


def _show(name: str, file: str, results: Mapping[str, Array]) -> None:
    """Prints types and ranges of all results, and the numbers of small ones."""
    import numpy as np

    page = Page()
    page.title(name, file)
    numbers = (Column(title, right=True) for title in ("min", "max", "mean", "not finite"))
    columns = [Column("result", style="name"), Column("type"), *numbers]
    page.table(columns, [(path, _type_of(array), *_range_of(array)) for path, array in results.items()])
    for path, array in results.items():
        if 0 < array.size <= _SMALL:
            page.blank()
            page.line(path, "name")
            page.lines(_indented(np.array2string(array, max_line_width=96)))
    page.write()


def _type_of(array: Array) -> str:
    return f"{array.dtype}[{','.join(map(str, array.shape))}]"


def _range_of(array: Array) -> tuple[str, str, str, str]:
    """The least and the greatest of the finite numbers, their mean, and how many others there are."""
    import jax
    import numpy as np

    if array.size < 2 or np.issubdtype(array.dtype, np.complexfloating):
        return "", "", "", ""
    finite = np.isfinite(array)
    others = array.size - int(np.count_nonzero(finite))
    found = array[finite] if others else array
    if not found.size:
        return "", "", "", f"{others:,}"
    is_whole = jax.numpy.issubdtype(array.dtype, jax.numpy.integer) or array.dtype == bool  # int4's kind is "V"
    least, most = (str(found.min()), str(found.max())) if is_whole else (_short(found.min()), _short(found.max()))
    return least, most, _short(found.mean(dtype=np.float64)), f"{others:,}" if others else ""


def _short(number: Any) -> str:
    return f"{float(number):.6g}"


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.split("\n"))

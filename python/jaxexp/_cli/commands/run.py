"""`jaxexp run`: calls a function with arrays from files."""

from __future__ import annotations

import difflib
import os
import re
import textwrap
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from jaxexp._cli import functions, inputs, options, outputs
from jaxexp._cli.complaints import FAILED, complain
from jaxexp._cli.functions import CallArguments
from jaxexp._cli.options import argument, option
from jaxexp._cli.page import Column, Page, say
from jaxexp._errors import WeightsError
from jaxexp._kernel.artifact.words import counted, dtype_and_shape, listed
from jaxexp._kernel.io.other_files import kind_of_arrays

if TYPE_CHECKING:
    from jaxexp._api.exported import Exported
    from jaxexp._cli.arrays import Array


_NUMBER = re.compile(r"-[0-9.]|-inf|-nan", re.IGNORECASE)


def _check_arguments(ctx: click.Context, _: click.Parameter, given: tuple[str, ...]) -> tuple[str, ...]:
    """Negative numbers look like options."""
    for text in given:
        if text.startswith("-") and not _NUMBER.match(text):
            known = [name for parameter in ctx.command.params for name in parameter.opts if name.startswith("--")]
            raise click.NoSuchOption(text, possibilities=difflib.get_close_matches(text, known), ctx=ctx)
    return given


@options.command(
    "Call a function with arrays from files.",
    options.IMPORTS,
    options.HEADERS,
    context_settings={"ignore_unknown_options": True},
)
def command(
    file: str = options.FILE,
    given: tuple[options.File, ...] = argument("[ARG]...", callback=_check_arguments),
    output: options.File | None = option(
        "-o, --output OUT", "Write the results to this file: .npy for one result, .npz for any number, by their paths."
    ),
    expect: options.File | None = option(
        "--expect FILE",
        "Compare the results with those in this .npz or .npy file, as -o writes it. The exit status is 1 if a number "
        "differs by more than rounding.",
    ),
    is_random: bool = option("--random", "Use random numbers for all other arguments."),
    seed: int | None = option("--seed SEED", "With --random, the seed of the numbers; by default 0."),
    sized: tuple[str, ...] = options.size(),
    weights: options.File | None = option(
        "--weights SAFETENSORS", "Use the weights in this file or index, in place of the function's own."
    ),
    is_cast: bool = option("--cast", "With --weights, round floats, and cast integers, to the dtypes of the function."),
    executables: options.File | None = option(
        "--executables EXE",
        "Use the compiled code in this file, if it fits. It is native code: trust it as you trust a program.",
    ),
    policy: options.File | None = option("--policy TOML", "Refuse a function that this policy does not allow."),
    force: bool = option("--force", "Replace OUT if it exists."),
) -> int:
    """Call a function with arrays from files, and write its results to a file, or show them.

    ARG is a .npy file, or a number for a scalar (for a random key, its seed). ARGs are in the order in which 'inspect'
    lists the arguments; PATH=ARG is the argument with this path there. A .npz file has arguments by their paths, or in
    their order as arr_0, arr_1, ... The arrays decide the sizes of symbolic dimensions. Without OUT, shapes and ranges
    are shown, and the numbers of small results. This imports JAX, and runs the function: run only functions that you
    trust.

    Example:
      jaxexp run model.jaxexp x.npy -o y.npy
      jaxexp run model.jaxexp "args[0]['w']=w.npy" "args[1]=x.npy"
      jaxexp run step.jaxexp state.npz 0.01 -o new_state.npz
      jaxexp run model.jaxexp --random --size batch=4
    """
    if not is_random and (sized or seed is not None):
        raise click.UsageError(f"{'--size' if sized else '--seed'} is for random numbers: add --random")
    if is_cast and weights is None:
        raise click.UsageError("--cast is for the weights of a file: add --weights")
    if output is not None:
        if not output.endswith((".npy", ".npz")):
            raise click.UsageError(f"-o takes a file .npy or .npz, not {output!r}")
        outputs.refuse_to_replace(output, kind_of_arrays(output), force=force)
    chosen = options.parsed_sizes(sized)
    import jax

    from jaxexp._cli import arrays
    from jaxexp._kernel.function.paths import result_paths

    source = inputs.artifact(file)
    exported = functions.loaded(source, policy=inputs.policy(policy), executables=executables)
    if weights is not None:
        exported = _with_weights(exported, weights, is_cast)
    paths = result_paths(exported.out_tree)
    if output is not None and output.endswith(".npy") and len(paths) != 1:
        raise click.UsageError(f"{file!r} has {counted(len(paths), 'result')}, and {output!r} holds one: use .npz")
    arguments = CallArguments(source.name, functions.as_called(exported))
    with functions.with_dtypes_of(exported):
        arguments.take(given)
        if is_random:
            arguments.fill(chosen, seed or 0, arrays.example)
        # For several devices, arguments are placed on them as in the export.
        exported, (args, kwargs) = functions.placed(source.name, exported, arguments.all())
        leaves = jax.tree_util.tree_leaves(exported.call(*args, **kwargs))
        if executables is not None and not any(one.used for one in exported.executables):
            said = [f"{one.arguments}: {one.why}" for one in exported.executables]
            lacks = vars(exported.unbound._kept)["executables"].lacks
            reasons = listed(said or [f"it {lacks}"], most=4, separator="; ")
            complain(f"no code in {executables!r} was used: {reasons}")
        results = {path: arrays.of_result(leaf) for path, leaf in zip(paths, leaves, strict=True)}
    if output is not None:
        arrays.write(output, results)
        say(f"{output}: {counted(len(results), 'result')}, {os.path.getsize(output):,} bytes")
    elif expect is None:
        _show(exported.fun_name, source.name, results)
    if expect is None:
        return 0
    expected = arrays.read_named(expect, paths, "results")
    wrong = {path: why for path, one in results.items() if (why := arrays.difference(expected[path], one))}
    if wrong:
        differing = listed(wrong, lambda path: f"{path}: {wrong[path]}", most=4)
        complain(f"{source.name!r} and {expect!r} differ in {differing}")
        return FAILED
    say(f"{source.name}: {counted(len(results), 'result')} as in {expect}")
    return 0


def _with_weights(exported: Exported, path: str, is_cast: bool) -> Exported:
    """The function with the weights in a file. Errors advise what can be done on a command line."""
    from jaxexp._weights.arrays.weights import ADVICE, REFUSED
    from jaxexp._weights.files import names

    try:
        return exported.with_weights(path, cast=is_cast)
    except WeightsError as error:
        for advice, here in (
            (ADVICE, "; --cast casts it"),
            (REFUSED, REFUSED.replace("cast=True", "--cast")),
            (names.RENAME_ADVICE, ". If the weights have other names there, use with_weights in Python, with rename="),
        ):
            error.found = error.found.replace(advice, here)
        raise


_SMALL = 32  # results of at most so many numbers are shown


def _show(name: str, file: str, results: Mapping[str, Array]) -> None:
    """Prints types and ranges of all results, and the numbers of small ones."""
    import numpy as np

    page = Page()
    page.title(name, file)
    numbers = (Column(title, right=True) for title in ("min", "max", "mean", "not finite"))
    columns = [Column("result", style="name"), Column("type"), *numbers]
    rows = [(path, dtype_and_shape(one.dtype, one.shape), *_range_of(one)) for path, one in results.items()]
    page.table(columns, rows)
    for path, array in results.items():
        if 0 < array.size <= _SMALL:
            page.blank()
            page.line(path, "name")
            page.lines(textwrap.indent(np.array2string(array, max_line_width=96), "  "))
    page.write()


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

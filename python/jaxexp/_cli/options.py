"""What commands are made of: their arguments and options, those that several have, and what these mean.

A command is a function whose defaults declare arguments and options. Its docstring is the help, up to `Example:`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import inspect
import itertools
import json
import os
import re
import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, MutableMapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import click

from jaxexp._errors import ExportError, WorkerError

from . import completing, inputs
from .page import progress

if TYPE_CHECKING:
    from jaxexp._fleet.engine.engine import Means, Unusable, Workers
    from jaxexp._fleet.passes.many import Place
    from jaxexp._kernel.artifact.cases import Tolerance

File = str  # in an annotation of a command: its values are completed as paths


def argument(shown: str, **settings: Any) -> Any:
    """Declares an argument as help shows it: "FILE", "FILE..." for several, "[FILE]" if it may be missing. Settings
    are those of `click.Argument`."""

    def declared(name: str, annotation: str) -> click.Parameter:
        several = -1 if shown.endswith("...") else 1
        known: dict[str, Any] = {"nargs": several, "required": not shown.startswith("["), **_of_type(annotation)}
        return click.Argument([name], metavar=shown, **{**known, **settings})

    return declared


def option(shown: str, help: str, **settings: Any) -> Any:
    """Declares an option as help shows it, as in "-o, --output OUT". The annotation says what it is: a flag for `bool`,
    a number that is not negative for `int`, and one that may be repeated for `tuple`. Settings are those of
    `click.Option`."""

    def declared(name: str, annotation: str) -> click.Parameter:
        names = [word.rstrip(",") for word in shown.split() if word.startswith("-")]
        known: dict[str, Any] = {"is_flag": annotation == "bool" or None, "multiple": annotation.startswith("tuple")}
        last = shown.split()[-1]
        known["metavar"] = None if last.startswith("-") else last
        return click.Option([*names, name], help=help, **{**known, **_of_type(annotation), **settings})

    return declared


def _of_type(annotation: str) -> dict[str, Any]:
    if annotation.startswith("int"):
        return {"type": click.IntRange(0)} | ({"default": 0} if annotation == "int" else {})
    return {"type": click.Path()} if "File" in annotation else {}


class _Several(NamedTuple):
    """Declares one argument that is made of several options, which the defaults of `make` declare."""

    make: Callable[..., Any]


def command(short_help: str, *more: click.Parameter, **settings: Any) -> Callable[[Callable[..., Any]], click.Command]:
    """Makes a command of a function. `more` are options whose values it does not get; settings are those of
    `click.Command`."""

    def made(function: Callable[..., Any]) -> click.Command:
        text, _, example = inspect.cleandoc(function.__doc__ or "").partition("\n\nExample:\n")
        settings.update(short_help=short_help, help=text, epilog=f"\b\nExample:\n{example}")
        params = [*_parameters(function), *more]
        return _Command(function.__name__, callback=function, params=params, **settings)

    return made


def _parameters(function: Callable[..., Any]) -> Iterator[click.Parameter]:
    for name, one in inspect.signature(function).parameters.items():
        if isinstance(one.default, _Several):
            yield from _parameters(one.default.make)
        else:
            yield one.default(name, one.annotation)


class _Command(click.Command):
    def invoke(self, ctx: click.Context) -> Any:
        for name, one in inspect.signature(cast("Callable[..., Any]", self.callback)).parameters.items():
            if isinstance(one.default, _Several):
                make = one.default.make
                ctx.params[name] = make(**{part: ctx.params.pop(part) for part in inspect.signature(make).parameters})
        return super().invoke(ctx)


FILE = argument("FILE", type=completing.Artifact())
FILES = argument("FILE...", type=completing.Artifact())


_FORM = "'NAME: VALUE', or @FILE with such lines"
# These protocols share one file system in fsspec, which uses what is set for either; the last one counts.
_PROTOCOLS = ("http", "https")


def _take_headers(ctx: click.Context, _: click.Parameter, given: tuple[str, ...]) -> None:
    """Adds headers to the requests of this process, and of processes that it starts, until the command ends."""
    if not given or ctx.resilient_parsing:
        return
    given_headers = dict(header for text in given for header in _headers(text))
    try:
        from fsspec import config
    except ImportError:  # opening a URL will say so
        return
    said = {name.lower() for name in given_headers}
    merged: dict[str, Any] = {}
    for protocol in _PROTOCOLS:
        merged |= config.conf.get(protocol, {})
    known = merged.get("headers")
    others = {k: v for k, v in known.items() if k.lower() not in said} if isinstance(known, dict) else {}
    merged["headers"] = {**others, **given_headers}
    ctx.with_resource(_set(config.conf, dict.fromkeys(_PROTOCOLS, merged)))
    # Where fsspec looks for them when a process starts.
    environment = {f"FSSPEC_{protocol.upper()}": json.dumps(merged) for protocol in _PROTOCOLS}
    ctx.with_resource(_set(os.environ, environment))


@contextlib.contextmanager
def _set(known: MutableMapping[str, Any], values: Mapping[str, Any]) -> Generator[None]:
    """Changes values until the block ends."""
    before = {name: known[name] for name in values if name in known}
    known.update(values)
    try:
        yield
    finally:
        for name in values:
            known.pop(name, None)
        known.update(before)


def _headers(text: str) -> list[tuple[str, str]]:
    """The headers in the option, or in a file; at least one."""
    if not text.startswith("@"):
        return [_header(text, "--header")]
    try:
        with click.open_file(text[1:], encoding="utf-8") as file:
            lines = file.read().splitlines()
    except OSError as error:
        raise click.UsageError(f"--header {text}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise click.UsageError(f"--header {text}: the file is not UTF-8 text") from None
    found = [_header(line, f"--header {text}: line {i}") for i, line in enumerate(lines, 1) if line.strip()]
    if not found:
        raise click.UsageError(f"--header {text}: the file has no header")
    return found


def _header(text: str, where: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon or not re.fullmatch(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", name):  # RFC 9110, section 5.6.2
        raise click.UsageError(f"{where} is not {_FORM} (its text is not shown)")
    if not value.strip().replace("\t", " ").isprintable():
        raise click.UsageError(f"{where} has a character that no header can have (it is not shown)")
    return name, value.strip()


# For commands that read URLs: headers, such as a token, that HTTP servers get with every request, as in curl. No
# message shows any of the text, which may be a secret. A redirect to another server, which gets none, is an error.
HEADERS: click.Parameter = option(
    "--header HEADER",
    "A header for each request for an http URL: 'NAME: VALUE', @FILE for a file with such lines, or @- for "
    "stdin. Other users of this machine can see a command line, so use @FILE or @- for secrets.",
    expose_value=False,
    callback=_take_headers,
)("header", "tuple[str, ...]")


def import_module(option: str, name: str) -> ModuleType:
    """The module that an option names."""
    here = os.getcwd()
    if not sys.flags.safe_path and here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except Exception as error:
        missing = (
            isinstance(error, ModuleNotFoundError)
            and error.name is not None
            and f"{name}.".startswith(f"{error.name}.")
        )
        if missing or not all(part.isidentifier() for part in name.split(".")):
            hint = f": say {option} {name.removesuffix('.py')}" if name.endswith(".py") and "/" not in name else ""
            raise click.UsageError(f"{option} {name}: there is no module of this name{hint}") from error
        raise click.ClickException(f"{option} {name}: {type(error).__name__}: {error}") from error


_KEY = "jaxexp.imports"


def _take_imports(ctx: click.Context, _: click.Parameter, given: tuple[str, ...]) -> None:
    if not ctx.resilient_parsing:
        for name in given:
            import_module("--import", name)
        ctx.meta[_KEY] = given


# For commands that decode the trees of artifacts: modules that they and their workers import first, because these
# register types.
IMPORTS: click.Parameter = option(
    "--import MODULE",
    "Import this module first, for the classes in the trees that it has or registers. As with `python -m`, "
    "it may be in the current folder. May be repeated.",
    expose_value=False,
    callback=_take_imports,
)("import", "tuple[str, ...]")


def imported() -> tuple[str, ...]:
    """The modules that the running command has imported."""
    context = click.get_current_context(silent=True)
    return () if context is None else context.meta.get(_KEY, ())


# Sizes by the names of dimensions.
Sizes = dict[str, int]


def size(of: str = "With --random") -> Any:
    """The option for `parsed_sizes`: sizes for the symbolic dimensions of a function."""
    text = f"{of}, the size of a symbolic dimension, as in batch=4; once for each dimension."
    return option("--size DIMENSION=SIZE", text)


def sizes(done: str) -> Any:
    """The option for `combinations`; `done` says what is done with them."""
    return option(
        "--size DIMENSION=SIZE[,SIZE...]",
        "The sizes of a symbolic dimension, as in batch=1,8; once for each dimension. For several dimensions, all "
        f"combinations are {done}.",
    )


def parsed_sizes(given: Iterable[str]) -> Sizes:
    """One size for each dimension that is named."""
    return {name: size for name, (size,) in _parsed(given, several=False).items()}


def combinations(given: Iterable[str]) -> list[Sizes]:
    """Every combination of the sizes that the dimensions have, in order; one without sizes if there are none."""
    found = _parsed(given, several=True)
    return [dict(zip(found, chosen, strict=True)) for chosen in itertools.product(*found.values())]


def _parsed(given: Iterable[str], *, several: bool) -> dict[str, list[int]]:
    parsed: dict[str, list[int]] = {}
    for text in given:
        found = re.fullmatch(r"\s*(\w+)\s*=\s*([0-9]{1,18}(?:\s*,\s*[0-9]{1,18})*)\s*", text)
        if found is None or ("," in text and not several):
            raise click.UsageError(f"--size {text!r} is not DIMENSION=SIZE, as in batch=4")
        name, sizes = found[1], [int(size) for size in found[2].split(",")]
        if name in parsed:
            raise click.UsageError(f"--size gives {name} twice")
        if len(set(sizes)) < len(sizes):
            raise click.UsageError(f"--size {text!r} has a size twice")
        parsed[name] = sizes
    return parsed


def check_sizes(file: str, names: Sequence[str], sizes: Iterable[str], why: str, instead: str = "") -> None:
    """Compares the dimensions that have sizes with those of a function.

    Args:
        file: the artifact.
        names: the symbolic dimensions of the function.
        sizes: the dimensions that have sizes.
        why: what the sizes are needed for.
        instead: what else the user can do.
    """
    given = list(sizes)
    if unknown := [one for one in given if one not in names]:
        has = f"its symbolic dimensions are {', '.join(names)}" if names else "it has no symbolic dimensions"
        raise click.ClickException(f"{file!r} has no symbolic dimension {', '.join(unknown)}: {has}")
    if missing := [one for one in names if one not in given]:
        raise click.ClickException(
            f"{file!r} has symbolic shapes, and {why}: say how large {', '.join(missing)} "
            f"{'is' if len(missing) == 1 else 'are'}, as in {' '.join(f'--size {one}=4' for one in missing)}{instead}"
        )


def shown_sizes(sizes: Mapping[str, int]) -> str:
    """As in "batch=4, n=2"."""
    return ", ".join(f"{name}={size}" for name, size in sizes.items())


def tolerance(help: str, *words: str) -> Any:
    """The option for a tolerance with this help, which also takes some words."""
    metavar = "|".join(("RELATIVE[,ABSOLUTE]", *words))
    return option(f"--tolerance {metavar}", help, callback=functools.partial(_parsed_tolerance, words))


def _parsed_tolerance(
    words: Sequence[str], ctx: click.Context, parameter: click.Parameter, text: str | None
) -> Tolerance | str | None:
    if text is None or text in words:
        return text
    from jaxexp._kernel.artifact.cases import Tolerance

    try:
        return Tolerance.of(tuple(map(float, text.split(","))))
    except (ExportError, ValueError):
        raise click.UsageError(
            f"--tolerance takes one number or two, such as 1e-5 or 1e-5,1e-8, that are not negative, not {text!r}"
        ) from None


def _folders(
    recursive: bool = option(
        "-r/-R, --recursive/--no-recursive",
        "Whether to search folders inside folders.",
        default=True,
        show_default=True,
    ),
    include: tuple[str, ...] = option(
        "--include GLOB",
        "In folders, take all files with matching names, except weights. By default, take artifacts, and "
        "archives if the command takes archives.",
    ),
) -> inputs.Folders:
    return inputs.Folders(include, recursive)


FOLDERS: Any = _Several(_folders)  # of commands that look into folders


def quiet(good: str) -> Any:
    """The option `--quiet` of commands that look at many artifacts."""
    return option("-q, --quiet", f"Show only artifacts that are not {good}, and totals.")


def _executor(ctx: click.Context, param: click.Parameter, given: str | None) -> Workers | None:
    """What `--executor` names, called."""
    if given is None or ctx.resilient_parsing:
        return None
    name, _, function = given.partition(":")
    if not function.isidentifier():
        raise click.BadParameter(f"expected MODULE:FUNCTION, as in my_cluster:executor, found {given!r}", ctx, param)
    module = import_module("--executor", name)
    make = getattr(module, function, None)
    if not callable(make):
        raise click.BadParameter(f"{name} has no function {function!r}", ctx, param)
    return cast("Workers", make())


# As Python's option -P: processes import nothing from the current folder, unless this one does.
_SAFE_PATH = "PYTHONSAFEPATH"


@dataclasses.dataclass(frozen=True)
class Spread:
    """The workers of a command, and its journal."""

    workers: int | None
    executor: Workers | None = option(
        "--executor MODULE:FUNCTION",
        "Use the workers of the concurrent.futures.Executor that this function returns, for example of a "
        "cluster. They need the same jaxexp and the same paths.",
        callback=_executor,
    )
    journal: str | None = option(
        "--journal FILE",
        "Record finished work in this file. If the command is interrupted, run it again to continue; inputs "
        "that have changed since then are done again.",
        type=click.Path(dir_okay=False),
    )
    timeout: float | None = option(
        "--timeout SECONDS",
        "Give up if no worker finishes anything for this long. By default, wait forever.",
        type=click.FloatRange(0),
    )

    @property
    def is_asked_for(self) -> bool:
        """Whether any of the first three was given."""
        return (self.workers, self.executor, self.journal) != (None, None, None)

    @contextlib.contextmanager
    def means(self, resumed: Callable[[int], None], *, processes: bool) -> Generator[Means]:
        """The workers and the journal, until the block ends. Processes are for work under Python's global lock. Other
        work uses threads by itself. `resumed` is told how many results the journal had.
        """
        from jaxexp._fleet.engine import engine

        with contextlib.ExitStack() as stack:
            executor = self.executor
            if executor is None and processes and self.workers is not None and self.workers > 1:
                stack.enter_context(_set(os.environ, {_SAFE_PATH: "1"}))
                executor = engine.processes(self.workers)
            try:
                yield engine.Means(executor, self.workers, self.journal, self.timeout, imported(), resumed)
            except WorkerError as error:
                raise type(error)(self._in_options(str(error))) from error

    def results(
        self,
        files: Sequence[str],
        folders: inputs.Folders,
        command: str,
        look: Callable[[Iterable[Place | Unusable], Means], Iterable[tuple[Place, str, Any]]],
    ) -> list[tuple[str, Any]]:
        """What a pass that needs JAX says about each artifact, or its error, by name and in the order of the files."""
        given, steps = inputs.given(files, folders, command)
        found: list[tuple[int, str, Any]] = []
        doing = {"check": "checking", "migrate": "migrating"}.get(command, "reading")
        with progress(doing, steps) as advance, self.means(advance.resumed, processes=True) as means:
            for place, name, one in look(given, means):
                found.append((place.order, name, one))
                advance(1, isinstance(one, Exception))
        return [(name, one) for _, name, one in sorted(found, key=lambda one: one[:2])]

    def _in_options(self, message: str) -> str:
        """A message of the workers, with options in place of arguments and the command in place of the pass."""
        kept = "Finished work is in the journal: run the same command again to go on"
        if self.journal is None:
            kept = "Finished work is lost; --journal FILE keeps it"
        return (
            message.replace("compatibility: ", "compat: ", 1)
            .replace("(timeout)", "(--timeout)")
            .replace("Finished work is in the journal, if there is one", kept)
        )


def workers(help: str) -> Any:
    """The options of commands that have workers, `--workers` with this help. They make one argument, a `Spread`."""
    return _Several(functools.partial(Spread, workers=option("-j, --workers", help, type=click.IntRange(1))))

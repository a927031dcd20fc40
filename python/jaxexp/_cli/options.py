"""Options that several commands have, and what they mean."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import itertools
import json
import os
import re
import sys
from collections.abc import Callable, Generator, Iterable, Mapping, MutableMapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

import click

from jaxexp._errors import WorkerError

from . import inputs
from .page import progress

if TYPE_CHECKING:
    from jaxexp._fleet.engine.engine import Means, Unusable, Workers
    from jaxexp._fleet.passes.given import Place
    from jaxexp._fleet.places.folders import Folders
    from jaxexp._kernel.artifact.cases import Tolerance

_FORM = "'NAME: VALUE', or @FILE with such lines"
# These protocols share one file system in fsspec, which uses what is set for either; the last one counts.
_PROTOCOLS = ("http", "https")


def headers(command: Callable[..., Any]) -> Callable[..., Any]:
    """The option `--header`, for a command that reads URLs: headers, such as a token, that HTTP servers get with every
    request, as in curl. No message shows any of the text, which may be a secret. If the server redirects to another
    one, which gets no headers, that is an error.
    """
    decorated: Callable[..., Any] = click.option(
        "--header",
        multiple=True,
        metavar="HEADER",
        expose_value=False,
        callback=_take_headers,
        help="A header for each request for an http URL: 'NAME: VALUE', @FILE for a file with such lines, or @- for "
        "stdin. Other users of this machine can see a command line, so use @FILE or @- for secrets.",
    )(command)
    return decorated


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
    for protocol in _PROTOCOLS:
        _set(ctx, config.conf, protocol, merged)
        # Where fsspec looks for them when a process starts.
        _set(ctx, os.environ, f"FSSPEC_{protocol.upper()}", json.dumps(merged))


def _set(ctx: click.Context, known: MutableMapping[str, Any], name: str, value: Any) -> None:
    """Changes a value until the command ends."""
    before = known.get(name)

    def restore() -> None:
        if before is None:
            known.pop(name, None)
        else:
            known[name] = before

    ctx.call_on_close(restore)
    known[name] = value


def _headers(text: str) -> list[tuple[str, str]]:
    """The headers in the option, or in a file; at least one."""
    if not text.startswith("@"):
        return [_header(text, "--header")]
    try:
        if text == "@-":
            lines = sys.stdin.read().splitlines()
        else:
            with open(text[1:], encoding="utf-8") as file:
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


_KEY = "jaxexp.imports"


def imports(command: Callable[..., Any]) -> Callable[..., Any]:
    """The option `--import`, for a command that decodes the trees of artifacts: modules that it and its workers import
    first, because these register types."""
    decorate = click.option(
        "--import",
        multiple=True,
        metavar="MODULE",
        expose_value=False,
        callback=_take_imports,
        help="Import this module first, for the classes in the trees that it has or registers. As with `python -m`, "
        "it may be in the current folder. May be repeated.",
    )
    decorated: Callable[..., Any] = decorate(command)
    return decorated


def imported() -> tuple[str, ...]:
    """The modules that the running command has imported."""
    context = click.get_current_context(silent=True)
    return () if context is None else context.meta.get(_KEY, ())


def _take_imports(ctx: click.Context, _: click.Parameter, given: tuple[str, ...]) -> None:
    if not given or ctx.resilient_parsing:
        return
    for name in given:
        import_module("--import", name)
    ctx.meta[_KEY] = given


def import_module(option: str, name: str) -> ModuleType:
    """The module that an option names.

    Raises:
        click.UsageError: there is none of this name.
        click.ClickException: it cannot be imported.
    """
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


# Sizes by the names of dimensions.
Sizes = dict[str, int]


def size(text: str, form: str = "DIMENSION=SIZE") -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The option `--size`, with this help: sizes for the symbolic dimensions of a function. Its argument is `sized`."""
    decorated: Callable[..., Any] = click.option("--size", "sized", multiple=True, metavar=form, help=text)
    return decorated


def sizes(done: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The option for `combinations`; `done` says what is done with them."""
    return size(
        "The sizes of a symbolic dimension, as in batch=1,8; once for each dimension. For several dimensions, all "
        f"combinations are {done}.",
        "DIMENSION=SIZE[,SIZE...]",
    )


def parsed_sizes(given: Iterable[str]) -> Sizes:
    """One size for each dimension that is named."""
    found: Sizes = {}
    for text in given:
        name, sizes = _parsed_size(text, found)
        if len(sizes) > 1:
            raise click.UsageError(f"--size {text!r} is not DIMENSION=SIZE, as in batch=4")
        found[name] = sizes[0]
    return found


def combinations(given: Iterable[str]) -> list[Sizes]:
    """Every combination of the sizes that the dimensions have, in order; one without sizes if there are none."""
    found: dict[str, list[int]] = {}
    for text in given:
        name, sizes = _parsed_size(text, found)
        found[name] = sizes
    return [dict(zip(found, chosen, strict=True)) for chosen in itertools.product(*found.values())]


def _parsed_size(text: str, before: Mapping[str, Any]) -> tuple[str, list[int]]:
    found = re.fullmatch(r"\s*(\w+)\s*=\s*([0-9]{1,18}(?:\s*,\s*[0-9]{1,18})*)\s*", text)
    if found is None:
        raise click.UsageError(f"--size {text!r} is not DIMENSION=SIZE, as in batch=4")
    name, sizes = found[1], [int(size) for size in found[2].split(",")]
    if name in before:
        raise click.UsageError(f"--size gives {name} twice")
    if len(set(sizes)) < len(sizes):
        raise click.UsageError(f"--size {text!r} has a size twice")
    return name, sizes


def check_sizes(file: str, names: Sequence[str], sizes: Iterable[str], why: str, instead: str = "") -> None:
    """Compares the dimensions that have sizes with those of a function.

    Args:
        file: the artifact.
        names: the symbolic dimensions of the function.
        sizes: the dimensions that have sizes.
        why: what the sizes are needed for.
        instead: what else the user can do.

    Raises:
        click.ClickException: a dimension has no size, or a size has no dimension.
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


def tolerance(help: str, *words: str) -> Callable[..., Any]:
    """The option `--tolerance` with this help, which also takes some words; it makes an argument, `tolerance`."""
    metavar = "|".join(("RELATIVE[,ABSOLUTE]", *words))
    return click.option("--tolerance", metavar=metavar, callback=functools.partial(_parsed_tolerance, words), help=help)


def _parsed_tolerance(
    words: Sequence[str], ctx: click.Context, parameter: click.Parameter, text: str | None
) -> Tolerance | str | None:
    if text is None or text in words:
        return text
    from jaxexp._errors import ExportError
    from jaxexp._kernel.artifact.cases import Tolerance

    try:
        return Tolerance.of(tuple(map(float, text.split(","))))
    except (ExportError, ValueError):
        raise click.UsageError(
            f"--tolerance takes one number or two, such as 1e-5 or 1e-5,1e-8, that are not negative, not {text!r}"
        ) from None


def tolerance_text(found: Tolerance) -> str:
    """What the option takes for it."""
    return f"{found.relative!r},{found.absolute!r}"


def folders(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options of commands that look into folders. They make one argument, `folders`."""

    @click.option(
        "-r/-R",
        "--recursive/--no-recursive",
        default=True,
        show_default=True,
        help="Whether to search folders inside folders.",
    )
    @click.option(
        "--include",
        multiple=True,
        metavar="GLOB",
        help="In folders, take all files with matching names, except weights. By default, take artifacts, and "
        "archives if the command takes archives.",
    )
    @functools.wraps(command)
    def with_folders(*args: Any, recursive: bool, include: tuple[str, ...], **kwargs: Any) -> Any:
        return command(*args, folders=inputs.Folders(include, recursive), **kwargs)

    return with_folders


def quiet(good: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The option `--quiet` of commands that look at many artifacts."""
    return click.option("-q", "--quiet", is_flag=True, help=f"Show only artifacts that are not {good}, and totals.")


_SAFE_PATH = "PYTHONSAFEPATH"  # as Python's option -P


@dataclasses.dataclass(frozen=True)
class Spread:
    """The values of `--workers`, `--executor`, `--journal` and `--timeout`."""

    workers: int | None
    executor: Workers | None
    journal: str | None
    timeout: float | None

    @property
    def is_asked_for(self) -> bool:
        """Whether any of the first three was given."""
        return (self.workers, self.executor, self.journal) != (None, None, None)

    @contextlib.contextmanager
    def means(self, resumed: Callable[[int], None], *, processes: bool) -> Generator[Means]:
        """The workers and the journal, until the block ends. Processes are for work under Python's global lock. Other
        work uses threads by itself. `resumed` is told how many results the journal had.

        Raises:
            WorkerError: there are none for too long, or they cannot do it.
        """
        from jaxexp._fleet.engine import engine

        with contextlib.ExitStack() as stack:
            executor = self.executor
            if executor is None and processes and self.workers is not None and self.workers > 1:
                stack.enter_context(_safe_path())
                executor = engine.processes(self.workers)
            try:
                yield engine.Means(executor, self.workers, self.journal, self.timeout, imported(), resumed)
            except WorkerError as error:
                raise type(error)(self._in_options(str(error))) from error

    def results(
        self,
        files: Sequence[str],
        folders: Folders,
        command: str,
        look: Callable[[Iterable[Place | Unusable], Means], Iterable[tuple[Place, str, Any]]],
    ) -> list[tuple[str, Any]]:
        """What a pass that needs JAX says about each artifact, or its error, by name and in the order of the files.

        Raises:
            click.ClickException: folders and archives hold nothing.
            Exception: as `means`.
        """
        given, steps = inputs.given(files, folders, command)
        found: list[tuple[int, str, Any]] = []
        doing = "checking" if command == "check" else "reading"
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


@contextlib.contextmanager
def _safe_path() -> Generator[None]:
    """Python's processes that start meanwhile import nothing from the current folder, unless this one does."""
    before = os.environ.get(_SAFE_PATH)
    os.environ[_SAFE_PATH] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_SAFE_PATH]
        else:
            os.environ[_SAFE_PATH] = before


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


def workers(help: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The options `--workers`, with this help, and those beside it. They make one argument, `spread`."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @click.option("-j", "--workers", type=click.IntRange(1), help=help)
        @click.option(
            "--executor",
            metavar="MODULE:FUNCTION",
            callback=_executor,
            help="Use the workers of the concurrent.futures.Executor that this function returns, for example of a "
            "cluster. They need the same jaxexp and the same paths.",
        )
        @click.option(
            "--journal",
            type=click.Path(dir_okay=False),
            help="Record finished work in this file. If the command is interrupted, run it again to continue; inputs "
            "that have changed since then are done again.",
        )
        @click.option(
            "--timeout",
            type=click.FloatRange(0),
            metavar="SECONDS",
            help="Give up if no worker finishes anything for this long. By default, wait forever.",
        )
        @functools.wraps(command)
        def with_spread(
            *args: Any,
            workers: int | None,
            executor: Workers | None,
            journal: str | None,
            timeout: float | None,
            **kwargs: Any,
        ) -> Any:
            return command(*args, spread=Spread(workers, executor, journal, timeout), **kwargs)

        return with_spread

    return decorate

"""The group of commands, and everything that they share."""

from __future__ import annotations

import importlib
import io
import os
import sys
from collections.abc import Sequence
from typing import Any

import click

from jaxexp._version import __version__

from . import completing
from .complaints import INTERRUPTED, UNREAD, complain, said_of_any, status_of

_COMMANDS = (
    "inspect", "view", "verify", "sign", "run", "record", "check", "diff", "compat", "migrate", "specialize",
    "from-stablehlo", "precompile", "pack", "ls", "unpack"
)  # fmt: skip
_GONE = {
    "archive": "'jaxexp pack ARCHIVE --remove NAME' removes members, and --compact frees their bytes",
    "bench": "'python -m bench', in a checkout of jaxexp, times it beside jax.export",
    "completion": "'jaxexp --completion SHELL' prints the script",
    "digest": "'jaxexp inspect --digests' prints the digests",
}
# As in diff(1): 1 says that two things differ.
_FAILED = {"diff": 2}


class _UnreadError(Exception):
    """Replaces BrokenPipeError, which releases of click handle in different ways."""


class _Commands(click.Group):
    """Imports the file of a command on demand, so that no command waits for the imports of another."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        command: click.Command = importlib.import_module(f".commands.{cmd_name.replace('-', '_')}", __package__).command
        return command

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:  # after which click prints an empty line
            raise click.Abort from None
        except BrokenPipeError:
            raise _UnreadError from None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if not ctx.resilient_parsing and args[0] not in _COMMANDS:
            if args[0] in _GONE:
                raise click.UsageError(f"There is no command {args[0]!r} any more: {_GONE[args[0]]}", ctx)
            import difflib

            for near in difflib.get_close_matches(args[0], _COMMANDS, 1):
                raise click.UsageError(f"No such command {args[0]!r}. Did you mean {near!r}?", ctx)
        found = super().resolve_command(ctx, args)
        ctx.find_root().obj["command"] = found[0]
        return found


def _print_completion(ctx: click.Context, _: click.Parameter, shell: str | None) -> None:
    if shell is not None and not ctx.resilient_parsing:
        click.echo(completing.shell(shell, ctx.command).source(), nl=False)
        ctx.exit()


@click.group(
    cls=_Commands,
    invoke_without_command=True,
    subcommand_metavar="COMMAND [ARGS]...",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="A FILE may be a member of an archive, as in fleet.zip::resnet/b8, or several, as in "
    "'fleet.zip::resnet/*'. 'jaxexp COMMAND --help' has examples.",
)
@click.version_option(__version__, prog_name="jaxexp", message="%(prog)s %(version)s")
@click.option("--traceback", is_flag=True, help="Show the Python traceback of an error.")
@click.option(
    "--completion",
    type=click.Choice(completing.SHELLS),
    is_eager=True,
    expose_value=False,
    callback=_print_completion,
    help="Print the completion script of a shell, and exit.",
)
@click.pass_context
def commands(ctx: click.Context, traceback: bool) -> None:
    """Look at exported JAX functions, check them, compare them, pack them."""
    ctx.obj["traceback"] = traceback
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def run(arguments: Sequence[str]) -> int:
    """Runs a command; any error becomes one line on stderr."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by who started the process: nobody reads it
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):  # a terminal with another encoding gets \N escapes, not an error
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    state: dict[str, Any] = {"command": None, "traceback": False}
    if completing.VARIABLE in os.environ:
        completing.register()
    try:
        status = commands.main(list(arguments), prog_name="jaxexp", standalone_mode=False, obj=state)
        sys.stdout.flush()
        return int(status or 0)
    except (click.Abort, KeyboardInterrupt):
        complain("interrupted")
        return INTERRUPTED
    except (BrokenPipeError, _UnreadError):  # the reader of the output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return UNREAD
    except Exception as error:
        if state["traceback"]:
            raise
        complain(said_of_any(error, state["command"]))
        return _FAILED.get(state["command"], status_of(error))

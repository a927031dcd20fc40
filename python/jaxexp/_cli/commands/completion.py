"""`jaxexp completion`: prints the code that makes a shell complete commands, options, files and members of archives."""

from __future__ import annotations

import click

from jaxexp._cli import completing

_EXAMPLE = """\b
Example:
  jaxexp completion bash >> ~/.bashrc
  jaxexp completion zsh >> ~/.zshrc
  jaxexp completion fish > ~/.config/fish/completions/jaxexp.fish"""


@click.command(epilog=_EXAMPLE, short_help="Print the completion script of a shell.")
@click.argument("shell", type=click.Choice(completing.SHELLS))
@click.pass_context
def command(ctx: click.Context, shell: str) -> None:
    """Print the script that makes a shell complete commands, options, files, and members behind 'fleet.zip::'."""
    click.echo(completing.shell(shell, ctx.find_root().command).source(), nl=False)

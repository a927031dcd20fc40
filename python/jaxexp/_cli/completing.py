"""Completion in shells: files, and members behind `archive.zip::`."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import click
from click.shell_completion import (
    BashComplete,
    CompletionItem,
    ShellComplete,
    add_completion_class,
    get_completion_class,
    split_arg_string,
)

from jaxexp._fleet.places.source import MEMBER
from jaxexp._kernel.io.files import is_url

VARIABLE = "_JAXEXP_COMPLETE"  # a shell sets it to ask
SHELLS = ("bash", "zsh", "fish")
_MOST = 1000  # members of an archive


class Artifact(click.Path):
    """A path, or a member of an archive."""

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        archive, found, beginning = incomplete.rpartition(MEMBER)
        if not found or is_url(archive):
            return super().shell_complete(ctx, param, incomplete)
        return _items(f"{archive}{MEMBER}{name}" for name in _members(archive, beginning))


def of_archive(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Members of the archive in the first argument."""
    # click takes arguments apart only if no option lacks its value.
    archive = ctx.params.get("archive", ctx.params.get("place")) or next(iter(ctx.args), None)
    return _items(_members(archive, incomplete)) if isinstance(archive, str) and not is_url(archive) else []


def _members(archive: str, beginning: str) -> list[str]:
    from jaxexp._fleet.archive.archive import Archive

    try:
        with Archive.open(os.path.expanduser(archive)) as opened:
            return [name for name in opened if name.startswith(beginning)][:_MOST]
    except Exception:  # a shell has no place for messages
        return []


def _items(values: Iterable[str]) -> list[CompletionItem]:
    return [CompletionItem(value) for value in values]


def shell(name: str, commands: click.Command) -> ShellComplete:
    """The completion class for a shell."""
    register()
    found = get_completion_class(name)
    assert found is not None
    return found(commands, {}, "jaxexp", VARIABLE)


def register() -> None:
    """Makes bash complete words with colons, which it splits, and quotes characters that are special to it."""

    class Bash(BashComplete):
        source_template = _BASH

        def source(self) -> str:
            return self.source_template % self.source_vars()

        def get_completion_args(self) -> tuple[list[str], str]:
            line = os.environ["COMP_WORDS"]
            words = split_arg_string(line)[1:]
            return (words, "") if not words or line[-1:].isspace() else (words[:-1], words[-1])

        def format_completion(self, item: CompletionItem[Any]) -> str:
            return f"{item.type},{item.value}"

    add_completion_class(Bash)


# `COMP_WORDS` has the line up to the cursor: bash itself splits fleet.zip::resnet into three words.
_BASH = """\
%(complete_func)s() {
    local current="${COMP_WORDS[COMP_CWORD]}" line="${COMP_LINE:0:COMP_POINT}" word type value before
    COMPREPLY=()
    local quote=""
    before=""
    word="${line##*[[:space:]]}"
    if [[ $current == [\\'\\"]* ]]; then
        quote="${current:0:1}"
    elif [[ $word == *:* && $COMP_WORDBREAKS == *:* ]]; then
        before="${word%%"${word##*:}"}"
    fi
    while IFS=, read -r type value; do
        case $type in
            dir) compopt -o dirnames ;;
            file) compopt -o default ;;
            plain)
                case $quote in
                    "") printf -v value '%%q' "${value#"$before"}" ;;
                    \\') [[ $value == *\\'* ]] && continue ;;
                    *) value="$(printf %%s "$value" | sed 's/[\\\\"$`]/\\\\&/g')" ;;
                esac
                COMPREPLY+=("$value") ;;
        esac
    done < <(env COMP_WORDS="$line" %(complete_var)s=bash_complete "$1")
    return 0
}

complete -o nosort -F %(complete_func)s %(prog_name)s
"""

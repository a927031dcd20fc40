"""A policy in a file, for commands that take one: the fields of `Policy` in TOML."""

from __future__ import annotations

import tomllib
from typing import TYPE_CHECKING

import click

from jaxexp._errors import ExportError

if TYPE_CHECKING:
    from jaxexp._read.policy import Policy


def read(path: str) -> Policy:
    """The policy in a file. This imports JAX.

    Raises:
        click.UsageError: the file cannot be read, is not TOML, or has what is no field of a policy; the message names
            the file and the field.
    """
    from jaxexp._read.policy import Policy

    try:
        with open(path, "rb") as file:
            fields = tomllib.load(file)
        return Policy(**fields)
    except OSError as error:
        raise click.UsageError(f"--policy {path!r}: {error.strerror}") from error
    except ExportError as error:
        raise click.UsageError(f"--policy {path!r}: {error}") from error
    except (ValueError, RecursionError) as error:  # of TOML, and of text that is not UTF-8
        raise click.UsageError(f"--policy {path!r} is no TOML file: {error}") from error

"""Reads a policy from a file, for commands that take one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from jaxexp._errors import ExportError

if TYPE_CHECKING:
    from jaxexp._policy.policy import Policy


def read(path: str) -> Policy:
    """Reads a policy from a file. This imports JAX.

    Raises:
        click.UsageError: the file cannot be read, is not TOML, or has a key that is not a field of a policy; the
            message names the file and the field.
    """
    from jaxexp._policy.policy import Policy

    try:
        return Policy.from_toml(path)
    except OSError as error:
        raise click.UsageError(f"--policy {path!r}: {error.strerror}") from error
    except ExportError as error:
        raise click.UsageError(f"--policy {error}") from error

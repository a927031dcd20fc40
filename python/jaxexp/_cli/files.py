"""Files that are written whole or not at all."""

from __future__ import annotations

import contextlib
import os
import secrets
from typing import Any

import click


def write(path: str, data: Any, *, force: bool) -> None:
    """Writes a file next to its final place, then gives it its name.

    Args:
        path: the file.
        data: its bytes.
        force: whether it may replace a file.

    Raises:
        click.ClickException: there is one, and `force` is not set.
        OSError: it cannot be written.
    """
    if not force:
        refuse_existing(path)
    folder = os.path.dirname(path)
    temporary = os.path.join(folder, f".{secrets.token_hex(8)}.tmp")
    try:
        with open(temporary, "xb") as file:
            file.write(data)
        if force:
            os.replace(temporary, path)
        else:
            _give_name(temporary, path)
    except BaseException as error:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        if isinstance(error, OSError) and error.filename == temporary:
            raise OSError(error.errno, error.strerror, path) from None
        raise


def refuse_existing(path: str) -> None:
    if os.path.lexists(path):
        raise click.ClickException(f"{path!r} exists: --force replaces it")


def _give_name(temporary: str, path: str) -> None:
    """Renames without replacing a file that appeared meanwhile, where the file system can do that."""
    try:
        os.link(temporary, path)
    except FileExistsError:
        refuse_existing(path)
    except (OSError, AttributeError, NotImplementedError):
        os.replace(temporary, path)
    else:
        os.unlink(temporary)

"""Files that are written whole or not at all."""

from __future__ import annotations

import os
from typing import Any

import click

from jaxexp._kernel.io import files


def write(path: str, data: Any, *, force: bool) -> None:
    """Writes a file whole or not at all; replaces another one only with `force`."""
    if not force:
        refuse_existing(path)
    files.replace(path, [data])


def refuse_existing(path: str) -> None:
    if os.path.lexists(path):
        raise click.ClickException(f"{path!r} exists: --force replaces it")

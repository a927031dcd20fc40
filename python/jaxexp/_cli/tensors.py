"""What `inspect` shows of a file of tensors: their names, which `rename` needs, their types and sizes."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from jaxexp._kernel.artifact.words import counted

from .page import Column, Page

if TYPE_CHECKING:
    from jaxexp._weights.files.reading import Tensors


def show(page: Page, path: str, found: Tensors) -> None:
    """Prints a table of the tensors, in the order of their names."""
    page.title("tensors", path)
    page.fields([("size", f"{sum(file.size for file in found.files):,} bytes: {counted(len(found), 'tensor')}")])
    if not found:
        return
    page.blank()
    columns = [Column("tensor", style="name"), Column("type"), Column("bytes", right=True), Column("file")]
    where = {name: os.path.basename(found.file_of(name).name) if len(found.files) > 1 else "" for name in found}
    page.table(columns, [(name, str(found[name]), f"{found[name].size:,}", where[name]) for name in sorted(found)])


def to_dict(path: str, found: Tensors) -> dict[str, Any]:
    """The same for JSON."""
    tensors = [
        {
            "name": name,
            "dtype": found[name].dtype,
            "shape": list(found[name].shape),
            "bytes": found[name].size,
            "file": os.path.basename(found.file_of(name).name),
        }
        for name in sorted(found)
    ]
    return {"file": path, "tensors": tensors}

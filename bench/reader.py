"""A library's way from a path to an Exported. New processes import this, so it imports nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any


def reader(library: ModuleType) -> Callable[[Path | str], Any]:
    load: Callable[[Path | str], Any] | None = getattr(library, "load", None)
    return load or (lambda path: library.deserialize(Path(path).read_bytes()))

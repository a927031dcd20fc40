"""Runs one part of a story in a process of its own: ``story.py FILE PART FOLDER [MODULE ...]``.

A story is a test file with functions `write`, `go_on` and `without`, which are called with the folder. The modules
cannot be imported, as if they were not installed.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any


class _NotInstalled:
    """The first of the finders of modules: some are not there."""

    def __init__(self, names: list[str]) -> None:
        self.names = names

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if any(name == missing or name.startswith(missing + ".") for missing in self.names):
            raise ModuleNotFoundError(f"No module named {name!r}, because the test says so", name=name)


def main(file: str, part: str, folder: str, *missing: str) -> None:
    assert not set(missing) & set(sys.modules)
    sys.meta_path.insert(0, _NotInstalled(list(missing)))  # type: ignore[arg-type]
    spec = importlib.util.spec_from_file_location("story", file)
    assert spec is not None and spec.loader is not None
    story = importlib.util.module_from_spec(spec)
    sys.modules["story"] = story
    spec.loader.exec_module(story)
    getattr(story, part)(Path(folder))
    assert not set(missing) & set(sys.modules)


if __name__ == "__main__":
    main(*sys.argv[1:])

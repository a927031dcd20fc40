"""A folder in the checkout for the files of a run: the system's folder for temporary files may not be on a disk."""

from __future__ import annotations

import functools
import os
import shutil
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent


@functools.cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    (ROOT / "build").mkdir(exist_ok=True)
    return tempfile.TemporaryDirectory(prefix="bench-", dir=ROOT / "build")


def new_path() -> Path:
    """The path of a file that does not exist yet."""
    return Path(tempfile.mkdtemp(dir=_folder().name)) / "artifact"


def clear() -> None:
    for folder in Path(_folder().name).iterdir():
        shutil.rmtree(folder)


def sync(path: Path) -> None:
    """Removes a file. After a large one, also writes out what is pending, which would delay the next large write."""
    if path.exists():
        large = path.stat().st_size > 2**22
        path.unlink()
        if large and hasattr(os, "sync"):
            os.sync()


def file_system() -> str:
    """The type of the folder's file system, such as ext4; empty where /proc does not tell."""
    mounts = Path("/proc/mounts")
    if not mounts.exists():
        return ""
    found = "", ""
    for line in mounts.read_text().splitlines():
        _, where, kind, *_ = line.split()
        if ROOT.is_relative_to(where) and len(where) >= len(found[0]):
            found = where, kind
    return found[1]

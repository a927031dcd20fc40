"""A folder for the files of a run, in the checkout: where the system keeps temporary files need not be on a disk."""

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
    """Removes a file. After a large one, writes all that waits to be written: it would hold up the next large write."""
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

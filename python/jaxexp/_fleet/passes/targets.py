"""Target files named like members: each lies inside of its folder, and nowhere else."""

from __future__ import annotations

import os
import re
from pathlib import PurePosixPath

from jaxexp._errors import ExportError

_ON_WINDOWS = os.name == "nt"
# Parts of a path that mean something else on Windows: drives, streams, other folders, devices, ends that are cut off.
_ELSEWHERE_ON_WINDOWS = re.compile(
    r'[<>:"|?*\\]|[. ]$|^(con|prn|aux|nul|conin\$|conout\$|(com|lpt)[0-9¹²³]) *(\.|$)', re.IGNORECASE
)


def stem(name: str) -> str:
    """The name of a file without its suffix."""
    return PurePosixPath(name).with_suffix("").as_posix()


def inside(directory: str, name: str, suffix: str) -> str:
    """The path of a member's file.

    Raises:
        ExportError: it would lie outside of the directory, on this or another system.
    """
    parts = PurePosixPath(name).parts
    elsewhere = PurePosixPath(name).is_absolute() or ".." in parts or os.sep in suffix or "/" in suffix
    if _ON_WINDOWS:
        elsewhere = elsewhere or any(_ELSEWHERE_ON_WINDOWS.search(part) for part in parts)
    if elsewhere or not parts or "\0" in name:
        raise ExportError(f"the member {name!r} would not lie inside {directory!r}")
    return os.path.join(directory, *parts) + suffix


def make_folder(directory: str, target: str) -> None:
    """Makes the folders that a file needs; links in the directory must not lead out of it.

    Raises:
        ExportError: one leads out of it.
        OSError: a folder cannot be made.
    """
    os.makedirs(directory, exist_ok=True)
    root = os.path.realpath(directory)
    if os.path.commonpath([os.path.realpath(target), root]) != root:
        raise ExportError(f"{target!r} is a link that leads out of {directory!r}, or lies behind one")
    os.makedirs(os.path.dirname(target), exist_ok=True)

"""Files of executables: whether a file is one, and what is in it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jaxexp._kernel.io.files import regular
from jaxexp._kernel.io.other_files import EXECUTABLES

if TYPE_CHECKING:
    from jaxexp._executables.executables import Executable as Executable


def is_file_of_executables(path: str) -> bool:
    """Whether a path leads to a file of executables, by its first bytes."""
    try:
        with regular(path) as file:
            return file.read(len(EXECUTABLES)) == EXECUTABLES
    except OSError:
        return False


def executables_in(path: str, *, check: bool) -> tuple[Executable, ...]:
    """Everything in a file of executables; `why` is None for code that this process could use. This imports JAX.

    Args:
        path: the file.
        check: whether to compare the code with its digests.

    Raises:
        ExecutablesError: the file is damaged.
        OSError: it cannot be opened.
    """
    from jaxexp._executables.executables import Executables

    return Executables(path).all(check=check)

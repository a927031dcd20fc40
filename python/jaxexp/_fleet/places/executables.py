"""Files of executables: whether a file is one, and what is in it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jaxexp._kernel.io.files import file_bytes, regular
from jaxexp._kernel.io.other_files import EXECUTABLES

if TYPE_CHECKING:
    from jaxexp._executables.executables import Executable as Executable

    from .cases import Check


def is_file_of_executables(path: str) -> bool:
    """Whether a path leads to a file of executables, by its first bytes."""
    try:
        with regular(path) as file:
            return file.read(len(EXECUTABLES)) == EXECUTABLES
    except OSError:
        return False


def check_executables(path: str, check_file: Check | None = None) -> None:
    """Checks that a file is one of executables, all but their code, which is compared with its digest when it is used.

    Args:
        path: the file.
        check_file: refuses the file, before anything looks at it, if it has to be signed and is not.

    Raises:
        ExecutablesError: it is something else, or damaged.
        OSError: it cannot be opened.
    """
    from jaxexp._executables.file import ExecutablesFile

    content: Any = None  # a buffer, which types can say since Python 3.12
    if check_file is not None:
        content = file_bytes(path, at_once=True)
        check_file(path, content)
    ExecutablesFile(path, content)


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

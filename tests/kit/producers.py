"""Modules of other producers, in tests/golden/producers, and texts of modules as they write them."""

from __future__ import annotations

import dataclasses
import io
import types
from pathlib import Path
from typing import Any

import pytest

from jaxexp._compat.foreign import source

from .goldens import stored
from .places import GOLDEN

FOLDER = GOLDEN / "producers"


@dataclasses.dataclass(frozen=True)
class Module:
    """A module with what its producer computed: the module's arguments, its results and the gradients."""

    path: Path
    arguments: tuple[Any, ...]
    results: tuple[Any, ...]
    gradients: tuple[Any, ...]


NAMES = [path.relative_to(FOLDER).as_posix() for path in sorted(FOLDER.glob("*/*.mlir*"))]


def module(name: str) -> Module:
    path = FOLDER / name
    return Module(path, *(tuple(stored(path.with_suffix(".npz"), kind)) for kind in ("in", "out", "grad")))


def identity(
    argument: str = "tensor<2xf32>",
    *,
    of_argument: str = "",
    of_result: str = "",
    of_module: str = "",
    body: str = "",
    returned: str = "%x",
    around: str = "",
) -> str:
    """The text of a module whose main function returns its argument `%x`, with attributes and other parts."""
    return (
        f"module @m attributes {{{of_module}}} {{ {around} func.func @main(%x: {argument} {{{of_argument}}}) -> "
        f"({argument} {{{of_result}}}) {{ {body} return {returned} : {argument} }} }}"
    )


def parsed_here(command: list[str], *, input: bytes, **_: Any) -> Any:
    """In place of `subprocess.run`: does what the process that parses text does, in this process."""
    stdin, stdout = (types.SimpleNamespace(buffer=io.BytesIO(content)) for content in (input, b""))
    status = 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(source.sys, "stdin", stdin)
        patch.setattr(source.sys, "stdout", stdout)
        patch.setitem(source.sys.modules, "resource", None)  # no limit of CPU time
        try:
            source.child(int(command[3]))
        except SystemExit as end:
            status = int(end.code or 0)
    return types.SimpleNamespace(returncode=status, stdout=stdout.buffer.getvalue(), stderr=b"")

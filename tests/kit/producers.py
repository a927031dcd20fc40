"""Modules of other producers, in tests/golden/producers, and how texts of modules become bytecode."""

from __future__ import annotations

import dataclasses
import io
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxexp import _jax
from jaxexp._compat.foreign import source

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
    with np.load(path.with_suffix(".npz")) as arrays:
        found = [
            tuple(arrays[f"{kind}_{i}"] for i in range(sum(key.startswith(f"{kind}_") for key in arrays)))
            for kind in ("in", "out", "grad")
        ]
    return Module(path, *found)


def bytecode(text: str) -> bytes:
    """A module of text that is trusted, as MLIR bytecode: `from_stablehlo` would start a process for it."""
    with _jax.make_ir_context():
        return bytes(_jax.module_to_bytecode(_jax.ir.Module.parse(text)))


def portable(text: str) -> bytes:
    """The same as a portable artifact."""
    with _jax.make_ir_context():
        module = _jax.ir.Module.parse(text)
        return bytes(_jax.serialize_portable_artifact(module, _jax.newest_stablehlo(), True))


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

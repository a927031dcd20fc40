"""Files of executables to begin fuzzing with: records as jaxexp and the C++ runtime write them, with little code."""

from __future__ import annotations

import tempfile
from pathlib import Path

import jax
import numpy as np

import jaxexp
from jaxexp._executables.file import ExecutablesFile, GrowingFile

CODE = 70  # bytes that are left of it
# What the runtime says of a call on four devices: xla.OpShardings, of which the last one is replicated.
RUNTIME = (
    {"function": "double", "module": "ab" * 16, "plugin": "1 bytes, cd", "compile options": "1a04080110"},
    {"parameter 0": "0803" "1a0104" "220400010203", "parameter 1": "0803" "1a020202" "520104" "5a0100", "result 0": ""},
)  # fmt: skip


def write_executables(folder: Path) -> None:
    """Fills a folder with files of no record, of one, and of many."""
    folder.mkdir(parents=True, exist_ok=True)
    records = [RUNTIME, *_of_jax()]
    for count in (1, 2, len(records)):
        file = GrowingFile(folder / f"of_{count}")
        for number, (conditions, call) in enumerate(records[-count:]):
            file.append(conditions, call, bytes(range(CODE * (number % 3))))
    whole = (folder / "of_1").read_bytes()
    (folder / "of_0").write_bytes(whole[:64])
    (folder / "not_finished").write_bytes(whole[:-64])


def _of_jax() -> list[tuple[dict[str, str], dict[str, str]]]:
    x = np.ones((4, 2), np.float32)
    exported = jaxexp.export(jax.jit(lambda x, y: {"product": x @ y["z"], "sum": x.sum()}))(x, {"z": x.T})
    with tempfile.TemporaryDirectory() as name:
        path = Path(name, "model.exe")
        exported.precompile(into=path, vjp_order=1)
        return [(dict(one.conditions), dict(one.call)) for one in ExecutablesFile(path).records]

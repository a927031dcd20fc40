"""The first call in a process loads what it needs, and no more."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import jaxexp
from kit.command_line import started

FIRST_CALL = """
import json, sys
import numpy as np
import jaxexp

function = jaxexp.load(sys.argv[1])
print(np.asarray(function.call(np.eye(3, dtype="float32"))).tolist())
print(json.dumps(sorted(sys.modules)))
"""


def first_call(function: Any, folder: Path) -> tuple[Any, set[str]]:
    """What a function makes of the identity in a fresh process, and which modules are loaded then."""
    path = folder / "function.jaxexp"
    jaxexp.export(jax.jit(function))(np.eye(3, dtype="float32")).save(path)
    done = started(FIRST_CALL, path, env={**os.environ, "JAX_PLATFORMS": "cpu"})
    assert done.returncode == 0, done.stderr
    result, modules = done.stdout.splitlines()
    return json.loads(result), set(json.loads(modules))


@pytest.mark.processes(reason="what is loaded already would not be loaded again")
def test_what_a_call_does_not_need_is_not_loaded(tmp_path: Path) -> None:
    result, modules = first_call(lambda x: x @ x + 1, tmp_path)
    assert result == (np.eye(3) + 1).tolist()
    # SciPy is where jaxlib looks for LAPACK, which takes longer than the rest of a small function's first call.
    assert not {name for name in modules if name == "scipy.linalg" or name.startswith("numpy.f2py")}
    rooms = {".".join(name.split(".")[1:3]) for name in modules if name.startswith("jaxexp.")}
    boxes = {room.split(".")[0] for room in rooms}
    assert not boxes & {"_cli", "_compat", "_weights", "_policy"}
    assert not rooms & {"_fleet.archive", "_fleet.passes", "_kernel.export", "_kernel.releases"}
    assert not modules & {
        "jaxexp._kernel.module.lapack",
        "jaxexp._kernel.module.from_gspmd",
        "jaxexp._readback.function",
    }


@pytest.mark.processes(reason="LAPACK is not there yet only in a fresh process")
def test_lapack_is_there_when_a_function_calls_it(tmp_path: Path) -> None:
    result, modules = first_call(lambda x: jax.numpy.linalg.eigvalsh(x * 2), tmp_path)
    assert result == [2.0, 2.0, 2.0]
    assert "scipy.linalg" in modules

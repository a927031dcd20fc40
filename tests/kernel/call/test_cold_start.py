"""The first call in a process loads what it needs, and no more."""

from __future__ import annotations

import json
import os
from pathlib import Path

import jax
import numpy as np
import pytest

import jaxexp
from kit import in_forks

pytestmark = pytest.mark.jax

FIRST_CALL = """
import json, sys
import numpy as np
import jaxexp

print(np.asarray(jaxexp.load({!r}).call(np.eye(3, dtype="float32"))).tolist())
print(json.dumps(sorted(sys.modules)))
"""


@pytest.mark.processes(reason="what is loaded already would not be loaded again")
def test_what_a_call_does_not_need_is_not_loaded(tmp_path: Path) -> None:
    functions = {"plain": lambda x: x @ x + 1, "lapack": lambda x: jax.numpy.linalg.eigvalsh(x * 2)}
    for name, function in functions.items():
        jaxexp.export(jax.jit(function))(np.eye(3, dtype="float32")).save(tmp_path / name)
    programs = {name: FIRST_CALL.format(str(tmp_path / name)) for name in functions}
    found = {}
    for name, (status, out, err) in in_forks.run(programs, {**os.environ, "JAX_PLATFORMS": "cpu"}).items():
        assert status == 0, err
        result, modules = out.splitlines()
        found[name] = json.loads(result), set(json.loads(modules))
    assert [found[name][0] for name in functions] == [(np.eye(3) + 1).tolist(), [2.0, 2.0, 2.0]]
    assert "scipy.linalg" in found["lapack"][1]
    modules = found["plain"][1]
    # SciPy is where jaxlib looks for LAPACK, which takes longer than the rest of a small function's first call.
    assert not {name for name in modules if name == "scipy.linalg" or name.startswith("numpy.f2py")}
    rooms = {".".join(name.split(".")[1:3]) for name in modules if name.startswith("jaxexp.")}
    assert not {room.split(".")[0] for room in rooms} & {"_cli", "_compat", "_weights", "_policy"}
    assert not rooms & {"_fleet.archive", "_fleet.passes", "_kernel.export", "_kernel.releases"}
    others = "_kernel.module.lapack _kernel.module.from_gspmd _readback.read_back".split()
    assert not modules & {f"jaxexp.{name}" for name in others}

"""Three gigabytes of weights, in a process that may have no more memory than twice that."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from kit.command_line import started

# A process saves, another one loads; each prints its anonymous memory at its peak, in megabytes.
CHILD = """
import resource, sys
from pathlib import Path
import jax, jax.numpy as jnp, numpy as np
import jaxexp
mode, path = sys.argv[1], Path(sys.argv[2])
LAYERS, SIDE = 12, 8192  # of 256 MiB each
limit = 2 * LAYERS * SIDE * SIDE * 4
def anonymous():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) // 1024 for line in lines if line.startswith("RssAnon"))
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
x = np.ones((2, SIDE), np.float32)
if mode == "save":
    params = [jnp.full((SIDE, SIDE), (i + 1) / SIDE / 4, jnp.float32) for i in range(LAYERS)]
    def model(x):
        for w in params:
            x = x @ w
        return x
    exported = jaxexp.export(jax.jit(model), weights=params)(x)
    before = anonymous()
    exported.save(path, vjp_order=1)
    print(anonymous() - before)
else:
    before = anonymous()
    model = jaxexp.load(path)
    expected = np.prod([(i + 1) / 4 for i in range(LAYERS)])
    np.testing.assert_allclose(model.call(x), np.full(x.shape, expected), rtol=1e-3)
    np.testing.assert_allclose(jax.grad(lambda x: model.call(x).sum())(x), np.full(x.shape, expected), rtol=1e-3)
    print(anonymous() - before)
"""


@pytest.mark.slow(reason="writes and reads three gigabytes")
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits memory in this way")
def test_three_gigabytes(tmp_path: Path, subprocess_env: Any) -> None:
    env = {**subprocess_env(), "XLA_FLAGS": ""}
    path = tmp_path / "model.jaxexp"
    try:
        for mode, most in (("save", 64), ("load", 150)):
            result = started(CHILD, mode, path, env=env)
            assert result.returncode == 0, result.stderr
            assert int(result.stdout) < most, mode
        assert path.stat().st_size < 100_000
        assert path.with_suffix(".safetensors").stat().st_size < 1.01 * 12 * 8192**2 * 4
    finally:
        path.with_suffix(".safetensors").unlink(missing_ok=True)

"""A thousand functions of one model in an archive: one set of weights on the disk, and one in memory."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxexp

pytestmark = [
    pytest.mark.slow(reason="a thousand artifacts, and 32 MB of weights"),
    pytest.mark.skipif(sys.platform != "linux", reason="asks Linux how much memory is mapped"),
]

WIDTH, LAYERS, COUNT = 1024, 8, 1000
SIZE = LAYERS * WIDTH * (WIDTH + 1) * 4

# Prints how many bytes of files are in memory: before, with all functions loaded, after a call of one, and of another.
CHILD = """
import json, sys
import jax, numpy as np
import jaxexp
def mapped():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("RssFile"))
def call(name):
    model = by_name[name]
    return jax.block_until_ready(model.call(np.ones(model.in_avals[-1].shape, np.float32)))
other = jaxexp.Archive.open(sys.argv[1])["other"].load()
by_name = {"other": other}
call("other")  # with all the code that is loaded late
found = [mapped()]
archive = jaxexp.Archive.open(sys.argv[1])
names = [name for name in archive if name != "other"]
by_name = dict(zip(names, archive.load_all(names)))
found.append(mapped())
for name in names[:2]:
    call(name)
    found.append(mapped())
print(json.dumps(found))
"""


def test_a_thousand_functions_of_one_model(tmp_path: Path, subprocess_env: Any) -> None:
    random = np.random.default_rng(0)
    weights = {
        f"{i}": {"w": jnp.asarray(random.standard_normal((WIDTH, WIDTH)), jnp.float32), "b": jnp.zeros(WIDTH) + i}
        for i in range(LAYERS)
    }

    def model(x: Any) -> Any:
        for layer in weights.values():
            x = jnp.tanh(x @ layer["w"] + layer["b"])
        return x

    spec = jax.ShapeDtypeStruct(jaxexp.symbolic_shape(f"b, {WIDTH}"), np.float32)
    exported = jaxexp.export(jax.jit(model), weights=weights)(spec)
    shapes = [exported.specialize(jax.ShapeDtypeStruct((b, WIDTH), np.float32)) for b in (1, 2)]
    small = {"w": jnp.ones((8, 8))}
    with jaxexp.Archive.create(tmp_path / "fleet.zip") as archive:
        for i in range(COUNT):
            archive.add(f"v{i:04}", shapes[i % 2], metadata={"version": i})
        archive.add(
            "other", jaxexp.export(jax.jit(lambda x: x @ small["w"]), weights=small)(np.ones((1, 8), np.float32))
        )
    size = (tmp_path / "fleet.zip").stat().st_size
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", CHILD, str(tmp_path / "fleet.zip")],
        env=subprocess_env(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    before, loaded, one, two = json.loads(done.stdout.splitlines()[-1])
    after_load, after_one, after_two = ((found - before) / SIZE for found in (loaded, one, two))
    print(f"{COUNT:,} functions take {size / SIZE:.4f} times the weights of {SIZE:,} bytes")
    print(
        f"in memory: {after_load:.3f} times after load_all, {after_one:.3f} after a call, {after_two:.3f} after another"
    )
    assert size <= 1.05 * SIZE
    assert after_load < 0.2
    assert 0.9 < after_two < 1.3

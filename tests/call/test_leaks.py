"""Memory stays flat over many rounds: nothing that a round makes outlives it."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref

import jax
import pytest

import jaxexp
from kit.corpus import CASES, export_with

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/statm")

PROGRAM = """
import gc, os, sys
import jax, numpy as np
import jaxexp
from kit.corpus import CASES, export_with

def resident():
    gc.collect()
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

name, rounds = sys.argv[1], int(sys.argv[2])
program = CASES[name].build()
kept = jaxexp.deserialize(export_with(jaxexp, program).serialize(vjp_order=CASES[name].vjp_order))
blob = bytes(kept.serialize(CASES[name].vjp_order))

def a_round():
    loaded = jaxexp.deserialize(blob)
    assert len(loaded.serialize(CASES[name].vjp_order)) == len(blob)
    if loaded.has_vjp():
        loaded.vjp().in_avals
    jax.block_until_ready(kept.call(*program.args, **program.kwargs))
    try:
        jaxexp.deserialize(blob[:-8])
    except jaxexp.DeserializationError:
        pass

for _ in range(rounds // 10):
    a_round()
before = resident()
for _ in range(rounds):
    a_round()
print(resident() - before)
"""


at_length = pytest.mark.slow(reason="tens of thousands of rounds")


@pytest.mark.parametrize(
    ("name", "rounds"),
    [
        ("sin", 20_000),
        pytest.param("sin", 100_000, marks=at_length),
        pytest.param("nested_containers", 5_000, marks=at_length),
        pytest.param("sharded_2d", 5_000, marks=at_length),
    ],
)
def test_resident_memory_is_flat(name: str, rounds: int, subprocess_env) -> None:
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM, name, str(rounds)],
        env=subprocess_env(),
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert result.returncode == 0, result.stderr
    # 100 bytes a round would be two million here; what varies is the allocators' own.
    assert int(result.stdout) < max(1 << 20, 20 * rounds), result.stdout


def test_a_loaded_function_is_freed_after_its_call() -> None:
    """Functions that come and go leave no compiled code, no module and no buffer behind."""
    p = CASES["sin"].build()
    blob = bytes(export_with(jaxexp, p).serialize())
    loaded = jaxexp.deserialize(blob)
    loaded.call(*p.args)
    reference = weakref.ref(loaded)
    del loaded
    jax.clear_caches()
    gc.collect()
    assert reference() is None

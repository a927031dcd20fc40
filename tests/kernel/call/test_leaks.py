"""Memory stays flat over many rounds: nothing that a round makes outlives it."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref

import jax
import pytest

import jaxexp
from jaxexp._kernel.call import shared
from kit.corpus import CASES, export_with

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/statm")

PROGRAM = """
import gc, os, sys
import jax, numpy as np
import jaxexp
from jaxexp._kernel.call import shared
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


CALLS = """
import gc, os, sys
import jax, numpy as np
from jax import monitoring
import jaxexp
from jaxexp._kernel.call import shared
from kit.corpus import CASES, export_with

def resident():
    gc.collect()
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

name, rounds = sys.argv[1], int(sys.argv[2])
case = CASES[name]
program = case.build()
blob = bytes(export_with(jaxexp, program).serialize(vjp_order=case.vjp_order))
compiled = 0

def listen(event, duration, **_):
    global compiled
    compiled += event == "/jax/core/compile/backend_compile_duration"

monitoring.register_event_duration_secs_listener(listen)
for done in range(rounds):
    if done == rounds // 10:
        before = resident()
    jax.block_until_ready(jaxexp.deserialize(blob).call(*program.args, **program.kwargs))
print(resident() - before, compiled)
"""


@pytest.mark.parametrize(
    ("name", "rounds"),
    [
        ("symbolic_batch", 1_500),
        *(pytest.param(n, 10_000, marks=at_length) for n in ("sin", "symbolic_batch", "nested_containers", "donated")),
    ],
)
def test_loading_and_calling_again_and_again(name: str, rounds: int, subprocess_env) -> None:
    """One compilation, and no memory for each further round."""
    result = subprocess.run(
        [sys.executable, "-c", CALLS, name, str(rounds)],
        env=subprocess_env(),
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert result.returncode == 0, result.stderr
    grown, compiled = map(int, result.stdout.split())
    assert compiled == 1
    assert grown < max(1 << 20, 50 * rounds)


def test_a_function_that_nobody_has_is_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    """With its code, once others were called after it; JAX's caches do not keep it."""
    monkeypatch.setattr(shared, "MOST_FUNCTIONS", 1)
    references = []
    for c in range(4):
        loaded = jaxexp.deserialize(jaxexp.export(jax.jit(lambda x, c=c: x * c))(2.0).serialize())
        loaded.call(1.0)
        references.append(weakref.ref(loaded))
    del loaded
    gc.collect()
    assert [reference() is None for reference in references] == [True, True, True, False]


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

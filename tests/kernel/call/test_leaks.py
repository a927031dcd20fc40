"""Memory stays flat over many rounds: nothing that a round makes outlives it."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from kit.command_line import started

pytestmark = [pytest.mark.jax, pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/status")]

# What grows in so many rounds, after a tenth of them: of loading and writing, of loading many, of loading and calling.
ROUNDS = """
import gc, pathlib, tempfile
import jax
import jaxexp
from kit.corpus import CASES, export_with
from kit.costs import kilobytes
from kit.steps import counted

def grown(what, name, rounds):
    case = CASES[name]
    program, order = case.build(), case.vjp_order
    kept = jaxexp.deserialize(export_with(jaxexp, program).serialize(vjp_order=order))
    blob = bytes(kept.serialize(order))

    def resident():
        gc.collect()
        return 1024 * kilobytes("VmRSS")

    def reading():
        loaded = jaxexp.deserialize(blob)
        assert len(loaded.serialize(order)) == len(blob)
        if loaded.has_vjp():
            loaded.vjp().in_avals
        try:
            jaxexp.deserialize(blob[:-8])
        except jaxexp.errors.DeserializationError:
            pass

    def reading_many():
        found = jaxexp.load_many([path, blob, blob[:-8], "missing", 3] * 10, workers=3, on_error="return")
        assert sum(isinstance(one, Exception) for one in found) == 30
        assert found[0].vjp().in_avals
        assert found[0].mlir_module_serialized

    def calling():
        jax.block_until_ready(jaxexp.deserialize(blob).call(*program.args, **program.kwargs))

    with tempfile.TemporaryDirectory() as folder, counted() as steps:
        path = pathlib.Path(folder, name)
        path.write_bytes(blob)
        for done in range(rounds):
            if done == rounds // 10:
                before = resident()
            {"reading": reading, "reading many": reading_many, "calling": calling}[what]()
        return resident() - before, steps["compiled"]
"""


MOST_OF_ALLOCATORS = 1 << 20  # what varies is their own


def check(what: str, rounds: int, grown: int, compiled: int) -> None:
    # 100 bytes a round would be millions in the end.
    assert grown < max(MOST_OF_ALLOCATORS, (50 if what == "calling" else 20) * rounds)
    assert compiled <= 1


@pytest.mark.parametrize(("what", "name"), [("reading", "sin"), ("calling", "symbolic_batch")])
def test_memory_is_flat(what: str, name: str) -> None:
    space: dict[str, Any] = {}
    exec(ROUNDS, space)
    for _ in range(3):  # a leak grows each time; what other tests left to the allocators does not
        found = space["grown"](what, name, 1000)
        if found[0] < MOST_OF_ALLOCATORS:
            break
    check(what, 1000, *found)


MANY = {
    "reading": {"sin": 100_000, "nested_containers": 5_000, "sharded_2d": 5_000},
    "reading many": {"sin": 1_000},
    "calling": dict.fromkeys(("sin", "symbolic_batch", "nested_containers", "donated"), 10_000),
}


@pytest.mark.processes(reason="memory of a process that does nothing else")
@pytest.mark.long(
    promise="memory stays flat over tens of thousands of rounds, and one compilation is enough for all of them",
    sibling="test_leaks.py::test_memory_is_flat",
)
@pytest.mark.parametrize(("what", "name"), [(what, name) for what in MANY for name in MANY[what]])
def test_loading_and_calling_again_and_again(what: str, name: str, subprocess_env) -> None:
    rounds = MANY[what][name]
    code = f"{ROUNDS}\nprint(*grown({what!r}, {name!r}, {rounds}))"
    done = started(code, env=subprocess_env())
    assert done.returncode == 0, done.stderr
    check(what, rounds, *map(int, done.stdout.split()))

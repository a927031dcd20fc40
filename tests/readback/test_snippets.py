"""Each operation by itself: what is raised computes the bits that XLA computes from the module, also for a batch."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

from jaxexp import _jax
from jaxexp._readback import reader
from jaxexp._readback.read_back import OPERATIONS, raised_for
from kit.raising import assert_same_bits, said_of_loops
from kit.snippets import SNIPPETS

pytestmark = pytest.mark.jax

# JAX maps no reduction that starts from a batch: with the start mapped, these are loops.
STARTS = {"reduce from an argument": (1,), "reduce of pairs": (2, 3)}


@pytest.mark.parametrize("devices", [1, 8])
def test_values(devices: int) -> None:
    """All as one program, which the compiler does not optimize much."""
    # Without float16, for which XLA has no code on old CPUs.
    names = [name for name, one in SNIPPETS.items() if one.devices == devices and "xf16" not in one.text]
    arguments = [SNIPPETS[name].placed(*SNIPPETS[name].arguments()) for name in names]
    blocks = []
    with _jax.make_ir_context() as context, _jax.ir.Location.unknown(context):
        for name in names:
            module = _jax.ir.Module.parse(SNIPPETS[name].text, context)
            blocks.append(reader.ModuleReader(module, OPERATIONS, partitioned=devices > 1).main())
    calls = [SNIPPETS[name].exported().call for name in names]

    def raised_and_called(given: Any) -> Any:
        return [(block(xs), call(*xs)) for block, call, xs in zip(blocks, calls, given, strict=True)]

    wrong = {}
    with jax.enable_x64(True):
        lowered = jax.jit(raised_and_called).lower(arguments)
        compiled = lowered.compile(compiler_options={"xla_backend_optimization_level": 0})
        for name, results in zip(names, compiled(arguments), strict=True):
            try:
                for found, expected in zip(*results, strict=True):
                    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
                    assert_close(found, np.asarray(expected))
            except AssertionError as error:
                wrong[name] = str(error)
    assert wrong == {}


def assert_close(found: Any, expected: np.ndarray) -> None:
    kind = complex if expected.dtype.kind == "c" else float
    np.testing.assert_allclose(np.asarray(found).astype(kind), expected.astype(kind), rtol=2e-5, atol=1e-5)


@pytest.mark.wide(one_in=48, promise="each operation that is read back gives the bits of a call, and maps as a whole")
@pytest.mark.parametrize("name", SNIPPETS)
def test_batches(name: str) -> None:
    """Not mapped, as one operation and as those that it has; mapped over all arguments and over each one."""
    snippet = SNIPPETS[name]
    exported, args = snippet.exported(), snippet.arguments()
    function, placed = raised_for(exported, exported.in_avals, "cpu"), snippet.placed(*args)
    batches = [np.stack([_other(x, i) for i in range(3)]) for x in args]
    every = tuple(range(len(args)))
    with jax.enable_x64(True):
        wanted = exported.call(*placed)
        for run in (function, function.inline):
            found = jax.jit(lambda *xs, run=run: run(*xs))(*placed)
            if name.startswith("triangular_solve"):  # LAPACK's zeros have other signs
                found, wanted = ([x + 0 for x in results] for results in (found, wanted))
            assert_same_bits(found, wanted)
        for mapped in dict.fromkeys([every, *((i,) for i in every)]):
            rows = [[batches[i][k] if i in mapped else x for i, x in enumerate(args)] for k in range(3)]
            expected = [
                np.stack(column) for column in zip(*(exported.call(*snippet.placed(*row)) for row in rows), strict=True)
            ]
            in_axes = [0 if i in mapped else None for i in every]
            given = [batches[i] if i in mapped else x for i, x in enumerate(args)]
            with said_of_loops() as said:
                results = jax.vmap(exported.call, in_axes)(*snippet.placed(*given))
            assert not said or {*mapped} & {*STARTS.get(name, ())}, said
            for one, other in zip(results, expected, strict=True):
                assert_close(one, other)


def _other(array: np.ndarray, i: int) -> np.ndarray:
    """Another array of the same kind, which the snippet takes too."""
    if array.ndim:
        return np.roll(array, i, -1)
    if array.dtype == bool:
        return np.asarray(bool(array) ^ bool(i % 2))
    return np.asarray(array + i).astype(array.dtype)

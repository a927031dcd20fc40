"""Whole functions of every age: raised, they give the bits of a call; mapped, the values of a call for each element."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

import jaxexp
from jaxexp import _jax
from jaxexp._kernel.module import runnable
from kit.corpus import CASES, export_with
from kit.goldens import RELEASES, arguments, blob_of, every_artifact, release
from kit.harnesses import numbers
from kit.linear_algebra import ARTIFACTS as LAPACK
from kit.linear_algebra import close, load, precision, stored
from kit.raising import assert_same_bits, no_loops

pytestmark = pytest.mark.jax


def batch(leaf: Any) -> Any:
    return jax.numpy.stack([leaf, leaf, leaf])


def runs_here(exported: Any, version: str) -> bool:
    """Whether the installed compiler knows the module; newer ones may not be known."""
    try:
        with _jax.make_ir_context() as context:
            runnable.parse(exported, context)
    except jaxexp.errors.DeserializationError:
        assert release(RELEASES[version]) > jax.__version_info__
        return False
    return True


@pytest.mark.wide(one_in=40, promise="golden artifacts of all releases are raised and mapped")
@every_artifact
def test_golden_artifacts(version: str, name: str) -> None:
    exported = jaxexp.deserialize(blob_of(version, name))
    if not runs_here(exported, version):
        return
    args, kwargs = arguments(exported, version, name)
    results = numbers(exported.call(*args, **kwargs))
    assert_same_bits(numbers(jax.jit(exported.raised())(*args, **kwargs)), results)
    if not exported.in_avals:
        return
    with no_loops():
        mapped = jax.vmap(lambda a: exported.call(*a[0], **a[1]))(jax.tree.map(batch, (args, kwargs)))
    for found, expected in zip(numbers(mapped), results, strict=True):
        for row in np.asarray(found):
            np.testing.assert_allclose(row.astype(complex), np.asarray(expected).astype(complex), rtol=1e-5)


# What is in these cannot be read back.
REFUSED = {
    "memory_kinds": "not in the memory of the device",
    "reduced_argument": "reduced",
    "unreduced_result": "not reduced",
}
# These cannot be called here.
ELSEWHERE = {"other_platform", "custom_call_allowed"}


@pytest.mark.wide(one_in=24, promise="functions of all kinds give the bits of a call when they are raised")
@pytest.mark.parametrize("name", [name for name in CASES if name not in ELSEWHERE])
def test_corpus(name: str) -> None:
    case = CASES[name]
    with case.context():
        program = case.build()
        exported = jaxexp.deserialize(bytes(export_with(jaxexp, program).serialize(vjp_order=min(case.vjp_order, 1))))
        results = exported.call(*program.args, **program.kwargs)
        if exported.ordered_effects or name in REFUSED:
            with pytest.raises(jaxexp.errors.UnsupportedError, match=REFUSED.get(name, "ordered effect")):
                exported.raised()(*program.args, **program.kwargs)
            return
        found = jax.jit(exported.raised())(*program.args, **program.kwargs)
        assert_same_bits(numbers(found), numbers(results))


@pytest.mark.wide(one_in=80, promise="linear algebra of old releases is mapped")
@pytest.mark.parametrize("name", LAPACK)
def test_linear_algebra_of_old_releases(name: str) -> None:
    with precision(name):
        exported = load(name)
        argument, _ = stored(name)
        results = exported.call(argument)
        with no_loops():
            mapped = jax.vmap(exported.call)(jax.tree.map(batch, argument))
        for found, expected in zip(jax.tree.leaves(mapped), jax.tree.leaves(results), strict=True):
            for row in np.asarray(found):
                close(row, expected)

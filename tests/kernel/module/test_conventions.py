"""Calling conventions of old releases and of future ones."""

from __future__ import annotations

import dataclasses

import jax
import numpy as np
import pytest
from jax import export as jax_export

import jaxexp
from kit.corpus import FirstOrderedEffect
from kit.linear_algebra import close
from kit.places import GOLDEN

# Calling conventions before 9

CONVENTIONS = GOLDEN / "conventions" / "jax-0.4.23"


@pytest.mark.parametrize("convention", [6, 7, 8])
@pytest.mark.parametrize("name", ["constant", "symbolic", "platforms", "symbolic_platforms", "dropped"])
def test_calling_conventions_before_9(name: str, convention: int) -> None:
    exported = jaxexp.deserialize((CONVENTIONS / f"{name}_{convention}.bin").read_bytes())
    assert exported.calling_convention_version == convention
    with np.load(CONVENTIONS / f"{name}.npz") as file:
        values = dict(file)
    args = values["in_0"], values["in_1"]
    results = jax.tree.leaves(exported.call(*args))
    assert len(values) == len(args) + len(results)
    for i, result in enumerate(results):
        close(result, values[f"out_{i}"])
    if name == "constant":
        grad = jax.grad(lambda x: exported.call(x, args[1])["product"].sum())(args[0])
        close(grad, (1 - np.tanh(args[0]) ** 2) * args[1].sum(axis=1))
    if name == "symbolic":
        # Below 7 the module does not assert that its first dimension is even: the call does.
        with pytest.raises(jaxexp.ExportError, match=r"b must be a whole number, found 2\*b = 3"):
            exported.call(args[0][:3], args[1])


def test_specialized_artifact_has_a_convention_of_today() -> None:
    exported = jaxexp.deserialize((CONVENTIONS / "symbolic_6.bin").read_bytes())
    with np.load(CONVENTIONS / "symbolic.npz") as file:
        values = dict(file)
    specialized = exported.specialize(values["in_0"], values["in_1"])
    assert specialized.calling_convention_version == 9
    for library in (jaxexp, jax_export):
        results = library.deserialize(specialized.serialize()).call(values["in_0"], values["in_1"])
        for i, result in enumerate(results):
            close(result, values[f"out_{i}"])


def test_ordered_effects_need_tokens() -> None:
    exported = jaxexp.deserialize((CONVENTIONS / "dropped_8.bin").read_bytes())
    effectful = dataclasses.replace(exported, ordered_effects=(FirstOrderedEffect(),))
    with pytest.raises(jaxexp.ExportError, match=r"calling dropped: .* convention 8, in which no tokens are passed"):
        jax.jit(effectful.call).lower(*exported.in_tree.unflatten(exported.in_avals)[0])


def test_conventions_of_the_future_are_refused() -> None:
    exported = jaxexp.deserialize((CONVENTIONS / "dropped_8.bin").read_bytes())
    args = exported.in_tree.unflatten(exported.in_avals)[0]
    with pytest.raises(jaxexp.ExportError, match="calling convention 11, and this jaxexp knows those up to 10"):
        jax.jit(dataclasses.replace(exported, calling_convention_version=11).call).lower(*args)

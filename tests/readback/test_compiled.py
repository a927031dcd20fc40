"""What a batch costs: the compiler makes the same program of it as of a batch of the live function."""

from __future__ import annotations

import collections
import re
from typing import Any

import jax
import numpy as np
import pytest

import jaxexp
from bench.batches import BATCHES
from kit.batches import reload


def operations(fun: Any, *args: Any) -> collections.Counter[str]:
    """The operations of the compiled program, each with the type of its result."""
    text = jax.jit(fun).lower(*args).compile().as_text()
    assert text is not None
    return collections.Counter(re.findall(r" = (\S+ [\w-]+)\(", text))


@pytest.mark.jax
@pytest.mark.wide(one_in=6, promise="a batch compiles to the program of a batch of the live function")
@pytest.mark.parametrize("name", BATCHES)
def test_same_program(name: str) -> None:
    function, arguments, mapped = BATCHES[name]
    is_gradient = name == "gradients of each"
    args = arguments()
    exported = reload(jaxexp.export(jax.jit(function))(*args), int(is_gradient))
    axes = [0 if is_mapped else None for is_mapped in mapped]
    rows = [np.stack([arg, arg]) if is_mapped else arg for arg, is_mapped in zip(args, mapped, strict=True)]
    ours, live = (
        operations(jax.vmap(jax.grad(fun) if is_gradient else fun, axes), *rows) for fun in (exported.call, function)
    )
    if is_gradient:  # the outer products of the live function are copied into another order
        assert ours.total() < live.total()
    else:
        assert ours == live

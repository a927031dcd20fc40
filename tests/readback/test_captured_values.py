"""Regions that use values from around them, where StableHLO has them and nobody else.

JAX does not make such a region, and no compiler takes it: there is nothing that it could be read back as.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

import jaxexp
from kit.compiled import compiling
from kit.each import each
from kit.snippets.snippet import Snippet

pytestmark = pytest.mark.jax


def region(captured: int, last: str = "add %a, %c : tensor<f32>", result: str = "f32") -> str:
    """a + b * c, of two numbers and one from around them."""
    return f"""({{
^bb0(%a: tensor<f32>, %b: tensor<f32>):
%c = stablehlo.multiply %b, %arg{captured} : tensor<f32>
%s = stablehlo.{last}
stablehlo.return %s : tensor<{result}> }})"""


def predicate(captured: int) -> str:
    """a < b * c"""
    return region(captured, "compare LT, %a, %c : (tensor<f32>, tensor<f32>) -> tensor<i1>", "i1")


NUMBERS = "#stablehlo.scatter<inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>"
PROGRAMS = {
    "stablehlo.reduce": Snippet(
        ("4xf32", "f32", "f32"),
        ("f32",),
        f'%r = "stablehlo.reduce"(%0, %1) <{{dimensions = array<i64: 0>}}> {region(2)} :'
        " (<<4xf32>>, <<f32>>) -> <<f32>>",
    ),
    "stablehlo.reduce_window": Snippet(
        ("4xf32", "f32", "f32"),
        ("3xf32",),
        f'%r = "stablehlo.reduce_window"(%0, %1) <{{window_dimensions = array<i64: 2>}}> {region(2)} :'
        " (<<4xf32>>, <<f32>>) -> <<3xf32>>",
    ),
    "stablehlo.scatter": Snippet(
        ("4xf32", "2x1xi32", "2xf32", "f32"),
        ("4xf32",),
        f'%r = "stablehlo.scatter"(%0, %1, %2) <{{scatter_dimension_numbers = {NUMBERS}}}> {region(3)} :'
        " (<<4xf32>>, <<2x1xi32>>, <<2xf32>>) -> <<4xf32>>",
    ),
    "stablehlo.select_and_scatter": Snippet(
        ("4xf32", "2xf32", "f32", "f32"),
        ("4xf32",),
        '%r = "stablehlo.select_and_scatter"(%0, %1, %2)'
        " <{window_dimensions = array<i64: 2>, window_strides = array<i64: 2>}>"
        f" ({predicate(3)[1:-1]}, {region(3)[1:-1]}) : (<<4xf32>>, <<2xf32>>, <<f32>>) -> <<4xf32>>",
    ),
    "stablehlo.sort": Snippet(
        ("4xf32", "f32"),
        ("4xf32",),
        f'%r = "stablehlo.sort"(%0) {predicate(1)} : (<<4xf32>>) -> <<4xf32>>',
    ),
}


@each("name", PROGRAMS)
def test_refused_by_name(name: str) -> None:
    exported, args = PROGRAMS[name].exported(), PROGRAMS[name].arguments()
    with pytest.raises(jaxexp.UnsupportedError, match=rf"{name} \(whose region uses values from around it\)"):
        exported.raised()(*args)
    with compiling(), pytest.raises(Exception, match="in the parent region"):
        exported.call(*args)


def test_jax_makes_no_such_region() -> None:
    def scaled(x: Any, factor: Any) -> Any:
        return jax.lax.reduce(x, np.float32(0), lambda a, b: a + b * factor, (0,))

    with pytest.raises(NotImplementedError, match="close over"):
        jax.jit(scaled).lower(np.ones(4, np.float32), np.float32(2))

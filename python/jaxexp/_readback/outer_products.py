"""Makes outer products in the order in which they are used.

The derivative of `x @ w` with respect to `w` is, as JAX writes it, the outer product of a cotangent and `x`,
transposed. For one element the compiler does both at once. For a batch it writes the products of the cotangent and `x`,
and copies them into the other order, which takes up to four times as long as writing the products of `x` and the
cotangent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from jax import lax

from .array_type import Type
from .program import Step

_DOT, _TRANSPOSE = "stablehlo.dot_general", "stablehlo.transpose"
# A product of complex numbers is a sum, which the compiler may round differently in another order.
_KINDS = "biuf"

Run = Callable[..., Sequence[Any]]


def in_order(
    steps: list[Step], results: Sequence[int], types: Sequence[Type], turned: dict[Run, Run]
) -> Sequence[Step]:
    """Steps in which outer products are made in the other order if they are only transposed.

    Args:
        steps: the steps of a block.
        results: what the block returns.
        types: the types of all values, by their numbers.
        turned: filled with what steps run instead, so that steps that are alike stay alike.
    """
    transposed = [step for step in steps if step.name == _TRANSPOSE]
    if not transposed:
        return steps
    maker = {number: step for step in steps if step.name == _DOT for number in step.outputs}
    uses = Counter(number for step in steps for number in step.inputs)
    uses.update(results)
    instead: dict[Step, Step | None] = {}
    for step in transposed:
        product = maker.get(step.inputs[0])
        if product is not None and uses[step.inputs[0]] == 1 and _is_turned(step, product, types):
            run = turned.setdefault(product.run, _other_way_round(product))
            instead[product] = None
            instead[step] = Step(_DOT, run, product.inputs[::-1], step.outputs, step.types, product.attributes)
    return [new for step in steps if (new := instead.get(step, step)) is not None]


def _is_turned(transpose: Step, product: Step, types: Sequence[Type]) -> bool:
    """Whether a step only moves the dimensions of the second factor of an outer product to the front."""
    left, right = (types[number] for number in product.inputs)
    n, m = len(left.shape), len(right.shape)
    is_outer = product.attributes["dimension_numbers"] == (((), ()), ((), ()))
    is_plain = left.dtype == right.dtype and left.kind in _KINDS and product.attributes["algorithm"] is None
    return is_outer and is_plain and transpose.attributes["permutation"] == (*range(n, n + m), *range(n))


def _other_way_round(product: Step) -> Run:
    precision, dtype = product.attributes["precision"][::-1], product.types[0].dtype
    numbers = product.attributes["dimension_numbers"]
    return lambda x, y: (lax.dot_general(x, y, numbers, precision, preferred_element_type=dtype),)

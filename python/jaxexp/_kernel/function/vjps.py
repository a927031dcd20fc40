"""The VJPs of a function: how the first is made, and the chain of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Self

from jaxexp._errors import ExportError
from jaxexp._kernel.artifact.chain import chain

from .data import E, ExportedData, artifact_of, facts_of, no_vjp


class LaterVjp:
    """Makes the VJP of a function, as its `_get_vjp`.

    `copy` and `dataclasses.asdict` keep it as it is.
    """

    __slots__ = ()

    def __call__(self, primal: Any) -> Any:
        raise NotImplementedError

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self


class DerivedVjp(LaterVjp):
    """Makes a VJP from other things; equal to one of the same class that makes it from equal things."""

    __slots__ = ("of",)

    def __init__(self, *of: Any) -> None:
        self.of = of

    def __eq__(self, other: object) -> bool:
        return self.of == other.of if isinstance(other, type(self)) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.of)


def chain_up_to(exported: E, vjp_order: int, error: Callable[[int], ExportError] | None = None) -> list[E]:
    """A function, its VJP, the VJP of that, and so on. `error` makes the error for a chain that ends early, given how
    many VJPs it has; by default, and if it was made without any, it is `data.no_vjp`.
    """
    chain = [exported]
    for order in range(vjp_order):
        if not exported.has_vjp():
            if error is None or facts_of(chain[0]).why_no_vjp is not None:
                raise no_vjp(chain[0], order, vjp_order)
            raise error(order)
        exported = exported.vjp()
        chain.append(exported)
    return chain


def stored_chain(exported: E) -> Iterator[E]:
    """A function and the VJPs in its artifact; only the function if it was exported in this process."""
    yield exported
    for _ in range(stored_orders(exported)):
        exported = exported.vjp()
        yield exported


def stored_orders(exported: ExportedData) -> int:
    """How many VJPs there are in the artifact that a function was loaded from."""
    artifact = artifact_of(exported)
    return 0 if artifact is None else sum(1 for _ in chain(artifact)) - 1

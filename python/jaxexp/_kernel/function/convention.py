"""The order in which a module's main function takes its arguments and returns its results.

Versions 9 and 10 agree on it ("Module calling convention" in https://docs.jax.dev/en/latest/export/export.html):

    arguments   [platform index] [dimension variables] [one token per ordered effect] [kept arrays]
    results                                            [one token per ordered effect] [arrays]

The dimension variables are there while JAX lowers a function; an exported module computes them from the shapes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from .data import ExportedData

OLDEST_VERSION = 9
NEWEST_VERSION = 10


class Arguments(NamedTuple):
    """How many arguments of each group a main function takes; the properties say where each group lies."""

    platform_indices: int
    dim_vars: int
    tokens: int
    arrays: int

    @classmethod
    def of_exported(cls, exported: ExportedData) -> Arguments:
        return cls(
            platform_indices=int(len(exported.platforms) > 1),
            dim_vars=0,
            tokens=len(exported.ordered_effects),
            arrays=len(exported.module_kept_var_idx),
        )

    @property
    def platform_index(self) -> slice:
        return slice(0, self.platform_indices)

    @property
    def dim_var(self) -> slice:
        return slice(self.platform_indices, self.platform_indices + self.dim_vars)

    @property
    def token(self) -> slice:
        return slice(self.dim_var.stop, self.dim_var.stop + self.tokens)

    @property
    def array(self) -> slice:
        return slice(self.token.stop, self.token.stop + self.arrays)

"""What is measured: one function with what it is exported for and called with, or several of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import jax


@dataclass(frozen=True)
class Program:
    """One function with what it is exported for and called with; or several, `members`, that are one unit of work."""

    function: Callable[..., Any]
    specs: tuple[Any, ...]
    args: tuple[Any, ...]
    members: tuple[Program, ...] = ()
    _artifacts: dict[Any, bytes] = field(default_factory=dict, repr=False)

    @property
    def parts(self) -> tuple[Program, ...]:
        return self.members or (self,)

    def fresh(self) -> Any:
        """A jitted function that JAX has never traced: no cache of an earlier export serves it."""
        return jax.jit(lambda *args: self.function(*args))

    def artifact(self, library: ModuleType, vjp_order: int = 0) -> bytes:
        """What a library writes, made once for all questions.

        It returns bytes, which both libraries accept. An Exported would keep its abstract values alive, and JAX would
        find them there when the artifact is read.
        """
        key = library.__name__, vjp_order
        if key not in self._artifacts:
            self._artifacts[key] = bytes(library.export(self.fresh())(*self.specs).serialize(vjp_order=vjp_order))
        return self._artifacts[key]

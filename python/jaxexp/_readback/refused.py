"""The one exception for modules that cannot be read back into JAX."""

from __future__ import annotations

import sys

from jaxexp._errors import UnsupportedError, shown
from jaxexp._public import public

# What to do about a module that is too large or too deep to be a jaxpr.
SHOWN_AS_TEXT = "mlir_module() or `jaxexp inspect --mlir` shows its text, with each function once"


@public
class RefusedError(UnsupportedError):
    """An operation without an exact counterpart among JAX's primitives that jaxexp knows.

    Attributes:
        operation: the name of the operation, such as ``"stablehlo.infeed"``.
        why: the reason; may be empty.
        location: the source location of the operation; empty if the module has none.
    """

    def __init__(self, operation: str, why: str = "", location: str = "") -> None:
        super().__init__(operation, why, location)
        self.operation = operation
        self.why = why
        self.location = location

    def __str__(self) -> str:
        why = f" ({self.why})" if self.why else ""
        at = f" at {self.location}" if self.location else ""
        return shown(f"{self.operation}{why}{at} cannot be read back into JAX")


def too_deep() -> RefusedError:
    """The error for a RecursionError: each level of a module takes several levels of Python's stack."""
    limit = f"Python's recursion limit of {sys.getrecursionlimit():,}"
    return RefusedError("the module", f"its calls and regions are nested too deeply for {limit}; {SHOWN_AS_TEXT}")

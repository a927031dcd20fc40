"""Derivatives of a module as it is written, but zero stays zero: it is read back into JAX, which differentiates it."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any

import jax

from jaxexp import _jax
from jaxexp._errors import UnsupportedError, cause, in_one_line
from jaxexp._kernel.export.export import Exporting
from jaxexp._kernel.function import sharding
from jaxexp._kernel.function.data import E
from jaxexp._kernel.function.vjps import DerivedVjp
from jaxexp._kernel.module import locations
from jaxexp._readback.array_type import is_wide
from jaxexp._readback.read_back import on_any_platform


class _ReadBackVjp(DerivedVjp):
    """The VJP of a function that was exported again from what was read back."""

    __slots__ = ()

    def __call__(self, primal: Any) -> Any:
        (again,) = self.of
        return again.vjp()


def as_written(exported: E) -> E:
    """The function with VJPs of any order. The first is made now, so that a function without one is refused here.

    Raises:
        UnsupportedError: an operation has no derivative, or cannot be read back.
    """
    if _jax.any_symbolic(exported.in_avals):
        raise UnsupportedError("differentiable=True needs constant shapes: give sizes in shapes=, or leave it out")

    def flat(*leaves: Any) -> Any:
        return tuple(on_any_platform(exported, leaves, differentiable=True))

    flat.__name__ = flat.__qualname__ = exported.fun_name
    jitted: Any = jax.jit(
        flat,
        in_shardings=tuple(map(sharding.for_jit, exported._in_named_shardings)),
        out_shardings=tuple(map(sharding.for_jit, exported._out_named_shardings)),
    )
    checks = exported.disabled_safety_checks
    # Without the lines of code that led here.
    how = Exporting(type(exported), exported.platforms, checks, None, None, None, True, (locations.callers(),))
    wide = any(map(is_wide, (*exported.in_avals, *exported.out_avals)))
    try:
        with jax.enable_x64(True) if wide else contextlib.nullcontext():
            again = how.export(jitted, exported.in_avals, {})
            differentiable = dataclasses.replace(exported, _get_vjp=_ReadBackVjp(again))
            differentiable.vjp()
            return differentiable
    except UnsupportedError as error:
        raise UnsupportedError(f"differentiable=True: {error}") from cause(error)
    except (ValueError, NotImplementedError, TypeError) as error:
        raise UnsupportedError(f"differentiable=True: JAX has no derivative of it: {in_one_line(error)}") from cause(
            error
        )

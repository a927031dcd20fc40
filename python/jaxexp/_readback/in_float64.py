"""An exported function compiled in float64, with rounding errors as they are asked for."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from jaxexp import _jax
from jaxexp._kernel.function.data import ExportedData

from . import noise, widened
from .function import raised

_QUICKLY = {"xla_backend_optimization_level": 0}  # it runs a few times only


@dataclasses.dataclass(frozen=True)
class InFloat64:
    """A function in float64, for arguments of known shapes.

    Attributes:
        nbytes: how many bytes its numbers in between take.
    """

    _program: ExportedData
    _closed: Any
    _compiled: Any
    nbytes: int

    def errors(self, signs: Callable[[int], np.ndarray[Any, Any]], size: float) -> np.ndarray[Any, Any]:
        """Rounding errors for a run, as `noise.table_of` makes them."""
        return noise.table_of(self._closed.jaxpr, signs, size)

    def __call__(self, leaves: Sequence[Any], errors: np.ndarray[Any, Any]) -> list[Any]:
        """The flat results for flat arguments, both in float64; None for results of float0."""
        given = [leaf for leaf, aval in zip(leaves, self._program.in_avals, strict=True) if aval.dtype != _jax.float0]
        with jax.enable_x64(True):
            found = iter(self._compiled(errors, *given))
        return [None if aval.dtype == _jax.float0 else next(found) for aval in self._program.out_avals]


def in_float64(program: ExportedData, leaves: Sequence[Any]) -> InFloat64:
    """Compiles a function for flat arguments like these, on a CPU if JAX has one.

    Raises:
        UnsupportedError: it cannot be read back, or has too many equations.
        Exception: whatever JAX raises.
    """
    # JAX takes no arguments of float0.
    given = [index for index, aval in enumerate(program.in_avals) if aval.dtype != _jax.float0]

    def flat(*arrays: Any) -> list[Any]:
        every = list(leaves)
        for index, array in zip(given, arrays, strict=True):
            every[index] = array
        results = read(*every)
        return [result for result, aval in zip(results, program.out_avals, strict=True) if aval.dtype != _jax.float0]

    with jax.enable_x64(True), jax.default_device(_cpu()):
        avals = [_jax.ShapedArray(jax.numpy.shape(leaf), leaf.dtype) for leaf in leaves]
        read = raised(program, avals, "cpu" if "cpu" in program.platforms else program.platforms[0]).inline
        closed = jax.make_jaxpr(flat)(*[jax.ShapeDtypeStruct(avals[i].shape, avals[i].dtype) for i in given])
        specs = [jax.ShapeDtypeStruct(avals[i].shape, widened.dtype_of(avals[i].dtype)) for i in given]
        errors = noise.table_of(closed.jaxpr, lambda count: np.zeros(count, bool), 0.0)
        lowered: Any = jax.jit(lambda errors, *arrays: widened.evaluated(closed, errors, arrays)).lower(errors, *specs)
        compiled: Any = lowered.compile(_QUICKLY)
    return InFloat64(program, closed, compiled, getattr(compiled.memory_analysis(), "temp_size_in_bytes", 0))


def _cpu() -> Any:
    """A device that has float64; None, which is the default one, if there is no CPU for JAX."""
    try:
        return jax.local_devices(backend="cpu")[0]
    except RuntimeError:
        return None

"""Calls with flat arguments, placed as in the export, and their flat results in host memory."""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from jaxexp import _jax
from jaxexp._errors import ExportError, UnsupportedError
from jaxexp._kernel.artifact.cases import FLOAT0, Array, Case, storage
from jaxexp._kernel.artifact.words import counted
from jaxexp._kernel.call.call import call_leaves
from jaxexp._kernel.export.export import platform_of
from jaxexp._kernel.function import data
from jaxexp._kernel.function.data import described
from jaxexp._kernel.function.vjps import chain_up_to
from jaxexp._kernel.write.fitting import DTYPE_OF_FLOAT0, fits, name_of

from . import machine

if TYPE_CHECKING:
    from jaxexp._readback.in_float64 import InFloat64
    from jaxexp._readback.traced import Traced

    from .culprit import Trace

_WIDE = frozenset(("float64", "int64", "uint64", "complex128"))


def environment() -> dict[str, str]:
    """Where a case is recorded or checked by JAX: on the default device, or on others of its kind."""
    (device,) = jax.device_put(np.int32(0)).devices()
    return machine.described(
        {
            "jax": jax.__version__,
            "jaxlib": _jaxlib(),
            "platform": platform_of(device),
            "platform version": " ".join(device.client.platform_version.split()),
            "device": device.device_kind,
            "devices": str(len(jax.devices(device.platform))),
        }
    )


@functools.cache
def _jaxlib() -> str:
    return importlib.metadata.version("jaxlib")  # which reads a file


class Chain:
    """A function and its VJPs, with weights on the devices of the export, for calls without them.

    Attributes:
        exported: the function.
        weights: how many of the first arguments are weights.
    """

    def __init__(self, exported: Any) -> None:
        self.exported, self.weights = exported, len(exported.weights)
        self._programs: list[Any] = [exported.unbound]
        self._traced: dict[Any, Traced] = {}
        self._in_float64: dict[Any, InFloat64] = {}

    def program(self, order: int) -> Any:
        """The function or its VJP of this order, which takes the weights, too. An ExportError if there is none."""
        if len(self._programs) <= order:
            self._programs = chain_up_to(self._programs[0], order)
        return self._programs[order]

    def has(self, order: int) -> bool:
        try:
            self.program(order)
        except ExportError:
            return False
        return True

    def cases(self) -> tuple[Case, ...]:
        """The cases of the function that fit it and its VJPs."""
        found = data.cases_of(self.exported.unbound)
        return tuple(
            case
            for case in (() if found is None else found.all)
            if self.has(case.vjp_order) and fits(case, self.program(case.vjp_order), self.weights)
        )

    def call(self, order: int, arguments: Sequence[Array], weights: Sequence[Array] | None = None) -> list[Array]:
        """The results of a call with arrays of the host; with other weights than those of the function, if there are.

        Raises:
            ExportError: they do not fit; the function has effects; there are not enough devices; or it cannot run here.
        """
        return self._called(self.program(order), arguments, weights)

    def trace(self, order: int, arguments: Sequence[Array], at: tuple[str, int] | None = None) -> tuple[Traced, Trace]:
        """The function that was called, with what each row of a trace is about; and the trace of a call. `at` is as
        `traced` takes it.
        """
        from jaxexp._readback.traced import traced

        from .culprit import Trace

        program = self.program(order)
        shapes = *(a.shape for a in program.in_avals[: self.weights]), *(array.shape for array in arguments)
        key = order, shapes, at
        if key not in self._traced:
            self._traced[key] = traced(program, shapes, at)
        found = self._traced[key]
        *_, table = self._called(found.function, arguments)
        return found, Trace.of(program.mlir_module_serialized, found.rows, table)

    def in_float64(self, order: int, leaves: Sequence[Any]) -> InFloat64:
        """The program for flat arguments like these in float64, which is compiled once for their shapes."""
        from jaxexp._readback.in_float64 import in_float64

        key = order, tuple(map(np.shape, leaves))
        if key not in self._in_float64:
            self._in_float64[key] = in_float64(self.program(order), leaves)
        return self._in_float64[key]

    def _called(self, program: Any, arguments: Sequence[Array], weights: Sequence[Array] | None = None) -> list[Array]:
        if effects := [*program.ordered_effects, *program.unordered_effects]:
            raise ExportError(
                f"{described(program)} has effects ({', '.join(map(str, effects))}): its cases can be neither recorded "
                "nor checked, because a case holds only results"
            )
        avals = program.in_avals[self.weights :]
        if len(arguments) != len(avals):
            raise ExportError(
                f"{described(program)} takes {counted(len(avals), 'array')} besides weights, not {len(arguments)}"
            )
        is_wide = any(name_of(aval.dtype) in _WIDE for aval in (*program.in_avals, *program.out_avals))
        with jax.enable_x64(True) if is_wide else contextlib.nullcontext():
            given = list(map(for_jax, arguments, avals))
            if self._mesh is not None:
                whole = jax.sharding.NamedSharding(self._mesh, jax.sharding.PartitionSpec())
                shardings = program.in_shardings_jax(self._mesh)[self.weights :]
                given = [
                    jax.device_put(array, whole if one is None else one)
                    for array, one in zip(given, shardings, strict=True)
                ]
            results = call_leaves(program, [*(self.arrays if weights is None else weights), *given])
            return list(map(of_result, results, program.out_avals))

    @functools.cached_property
    def _mesh(self) -> Any:
        """The devices of a function for several."""
        if (count := self.exported.nr_devices) == 1:
            return None
        devices: list[Any] = jax.devices()
        if len(devices) < count:
            on_cpu = f"; set JAX_NUM_CPU_DEVICES={count} in the environment" if devices[0].platform == "cpu" else ""
            raise ExportError(
                f"the function is for {counted(count, 'device')}, and this process has {len(devices)}{on_cpu}"
            )
        return self.exported.make_mesh(devices[:count])

    @functools.cached_property
    def arrays(self) -> Sequence[Any]:
        """The weights, on the devices of the export."""
        if not self.weights:
            return ()
        placed = self.exported if self._mesh is None else self.exported.with_mesh(self._mesh)
        found: Sequence[Any] = placed.weights.arrays()
        return found


def for_jax(array: Array, aval: Any) -> Any:
    """An array of the host as JAX takes it."""
    name = name_of(aval.dtype)
    if name == FLOAT0:
        return np.zeros(array.shape, DTYPE_OF_FLOAT0)
    if storage(name).beyond:
        return jax.random.wrap_key_data(jax.numpy.asarray(array), impl=_jax.key_implementation(aval.dtype).name)
    return array


def of_result(result: Any, aval: Any) -> Array:
    """A result in host memory: random keys as their numbers, float0 as bool.

    Raises:
        UnsupportedError: parts of it are in other processes, or it is a sum that was not taken.
    """
    if not getattr(result, "is_fully_addressable", True):
        raise UnsupportedError(
            "a result is spread over several processes, and a case holds whole results: record and check such cases in "
            "one process"
        )
    name = name_of(aval.dtype)
    if name == FLOAT0:
        return np.zeros(np.shape(result), np.bool_)
    spec = getattr(getattr(result, "sharding", None), "spec", None)
    if spec is not None and spec.unreduced:
        raise UnsupportedError(
            f"a result is not yet reduced over devices ({spec}), and a case holds whole results: reduce it in the "
            "function"
        )
    return np.asarray(jax.random.key_data(result) if storage(name).beyond else result)

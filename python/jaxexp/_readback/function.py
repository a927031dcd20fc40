"""An exported function as a JAX function of flat arrays: raised from its module, once for each set of shapes."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, cast

import jax
import numpy as np

from jaxexp import _jax
from jaxexp._errors import ExportError, ModuleError, cause
from jaxexp._kernel.call.primitive import abstract_eval
from jaxexp._kernel.function import data
from jaxexp._kernel.function.data import ExportedData
from jaxexp._kernel.module import composites, runnable, specialized

from .array_type import plain
from .placement import constraint
from .program import Block
from .reader import Reader
from .refused import RefusedError, too_deep
from .staged import jitted_block
from .table import DIFFERENTIABLE, OPERATIONS

# How many pairs of shapes and platform are kept for one function.
_MOST = 16


@dataclasses.dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class Raised:
    """A function, raised for arguments of known shapes. It takes and returns flat arrays, as the signature has them.

    Attributes:
        exported: the function.
        in_avals: its arguments in these shapes.
        out_avals: its results.
        block: its code, which takes the module's arguments.
        jitted: the same as a jitted function.
        platform: the index of the platform, which the module takes before them; None if it takes none.
        placed: for each argument, a function that shards it over devices as the signature says.
        placed_results: the same for results.
        counts: how often each operation occurs.
        foreign: the targets of the foreign functions that it calls, which exist on its platform only.
        is_wide: whether it computes in 64 bits.
    """

    exported: ExportedData
    in_avals: tuple[Any, ...]
    out_avals: tuple[Any, ...]
    block: Block
    jitted: Callable[..., Any]
    platform: np.ndarray[Any, Any] | None
    placed: Sequence[Callable[[Any], Any]]
    placed_results: Sequence[Callable[[Any], Any]]
    counts: dict[str, int]
    foreign: frozenset[str]
    is_wide: bool

    def __call__(self, *arrays: Any) -> list[Any]:
        """Runs as a jitted function: one operation in the program around it."""
        return self._run(arrays, self._as_one)

    def inline(self, *arrays: Any) -> list[Any]:
        """Runs as operations in the program around it. An error about one of them names it."""
        return self._run(arrays, self.block)

    def _as_one(self, arguments: Sequence[Any]) -> Sequence[Any]:
        try:
            return cast(Sequence[Any], self.jitted(*arguments))
        except NotImplementedError:  # JAX cannot map an operation, and does not say which one
            return self.block(arguments)

    def _run(self, arrays: Sequence[Any], run: Callable[[Sequence[Any]], Sequence[Any]]) -> list[Any]:
        kept = self.exported.module_kept_var_idx
        prefix = () if self.platform is None else (self.platform,)
        is_wide = self.is_wide or bool(jax.config.read("jax_enable_x64"))
        with jax.enable_x64(is_wide), self._own_meshes():
            arguments = [_entering(self.placed[i](arrays[i]), self.in_avals[i]) for i in kept]
            results = run((*prefix, *arguments))
            left = [_leaving(result, aval) for result, aval in zip(results, self.out_avals, strict=True)]
            return [place(result) for place, result in zip(self.placed_results, left, strict=True)]

    @property
    def has_shard_map(self) -> bool:
        """Whether a part of it is a `jax.shard_map` over several devices."""
        return self.exported.nr_devices > 1 and "sdy.manual_computation" in self.counts

    def _own_meshes(self) -> contextlib.AbstractContextManager[Any]:
        """A context for tracing on its meshes: a `jax.shard_map` cannot have another one than the caller has set."""
        if not self.has_shard_map:
            return contextlib.nullcontext()
        return jax.sharding.use_abstract_mesh(_jax.empty_abstract_mesh)


def _entering(array: Any, aval: Any) -> Any:
    """An argument in the form that the module takes."""
    if aval.dtype == _jax.float0:
        return np.zeros(aval.shape, bool)
    if _jax.issubdtype(aval.dtype, _jax.extended_dtype):
        return jax.random.key_data(array)
    return array


def _leaving(array: Any, aval: Any) -> Any:
    """A result of the module in the form that the function returns."""
    if aval.dtype == _jax.float0:
        return np.zeros(aval.shape, _jax.float0)
    if _jax.issubdtype(aval.dtype, _jax.extended_dtype):
        return _jax.wrap_keys(array, impl=_jax.key_implementation(aval.dtype))
    return array


def raised(exported: ExportedData, in_avals: Sequence[Any], platform: str, *, differentiable: bool = False) -> Raised:
    """A function for arguments of these shapes.

    Args:
        exported: the function.
        in_avals: its arguments. Their shapes are constant and fit its signature.
        platform: where it will run: one of the function's platforms; any, if it has only one and its check is disabled.
        differentiable: whether it will be differentiated, as `table.DIFFERENTIABLE` says.

    Raises:
        RefusedError: an operation in the module cannot be raised.
    """
    raise_or_refuse = data.kept(exported, "raised", lambda _: functools.lru_cache(_MOST)(_raised_or_refused))
    found = raise_or_refuse(exported, tuple(map(plain, in_avals)), platform, differentiable)
    if isinstance(found, RefusedError):
        raise RefusedError(found.operation, found.why, found.location)
    return found


def _raised_or_refused(
    exported: ExportedData, in_avals: tuple[Any, ...], platform: str, differentiable: bool
) -> Raised | RefusedError:
    try:
        return _raise(exported, in_avals, platform, differentiable)
    except RefusedError as error:
        return error.with_traceback(None)
    except RecursionError:
        return too_deep()


def _raise(exported: ExportedData, in_avals: tuple[Any, ...], platform: str, differentiable: bool) -> Raised:
    out_avals = tuple(map(plain, abstract_eval(*in_avals, exported=exported)[0]))
    if exported.ordered_effects:
        raise RefusedError("an ordered effect")
    index = None
    if len(exported.platforms) > 1:
        index = exported.platforms.index(platform) if platform in exported.platforms else 0
    if _jax.any_symbolic(in_avals):
        raise RefusedError("an argument of symbolic shape")
    if any(aval.memory_space != _jax.MemorySpace.Device for aval in (*in_avals, *out_avals)):
        raise RefusedError("an argument or a result that is not in the memory of the device")
    context = _jax.make_ir_context()
    with context, _jax.ir.Location.unknown(context):
        # A static function may also have dynamic parts: calls of functions of symbolic shape.
        if exported.uses_global_constants:
            try:
                module = specialized.parse(exported, in_avals, out_avals, False)
            except ExportError as error:  # a call in the module reports it
                raise RefusedError("the module", str(error)) from error
        else:
            module = runnable.parse(exported, context)
        try:
            composites.call_functions(module)
        except ModuleError as error:
            found = f"expected {error.expected}, found {error.found}"
            raise RefusedError("stablehlo.composite", found) from cause(error)
        if runnable.may_call_lapack(exported):
            _jax.initialize_lapack()
        reader = Reader(
            module, DIFFERENTIABLE if differentiable else OPERATIONS, index, partitioned=exported.nr_devices > 1
        )
        block = reader.main()
        chosen = None if index is None else np.asarray(index, reader.type_of_number(block.parameters[0]).dtype)
    placed = _placed(exported._in_named_shardings), _placed(exported._out_named_shardings)
    foreign = frozenset(reader.foreign)
    whole = jitted_block(block, exported.fun_name)
    return Raised(exported, in_avals, out_avals, block, whole, chosen, *placed, reader.counts, foreign, reader.is_wide)


def _placed(shardings: Sequence[Any]) -> list[Callable[[Any], Any]]:
    return [_anywhere if s is None or s.mesh.empty or s.mesh.size == 1 else constraint(s) for s in shardings]


def _anywhere(array: Any) -> Any:
    return array

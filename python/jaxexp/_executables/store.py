"""The compile cache for calls: code that another process compiled, or else that this one compiles and adds."""

from __future__ import annotations

import functools
import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jaxexp import _jax
from jaxexp._errors import shown
from jaxexp._kernel.function import data
from jaxexp._kernel.function.data import ExportedData
from jaxexp._kernel.io import compile_cache
from jaxexp._kernel.io.compile_cache import CompileCache

from . import calls, conditions, executables, placing, reuse
from .calls import Code, CodeOf, Flattened

logger = logging.getLogger("jaxexp.executables")

# Codes of one function that are kept for gradients, which have no dispatch of their own.
_MOST = 64


def find(
    exported: ExportedData,
    leaves: Sequence[Any],
    in_avals: Sequence[Any],
    out_avals: Sequence[Any],
    results: Sequence[int] | None,
    compiled: Callable[[], Any],
) -> Code | None:
    """The code of a call, as `Executables.find` returns it. If the compile cache has none, `compiled` makes it. None if
    this call cannot use the cache, or if there is none.
    """
    cache = compile_cache.current()
    if cache is None or _say_why_not(data.described(exported)) is not None:
        return None
    if exported.ordered_effects or exported.unordered_effects:  # they need the process that compiles the call
        return None
    try:
        placement = placing.placement_of(leaves)
    except placing.UnknownPlacementError as error:
        _say(f"{data.described(exported)}: not in the compile cache: the call has {error}")
        return None
    if placement.devices[0].platform != "cpu" and len({device.process_index for device in placement.devices}) > 1:
        # XLA divides autotuning among the processes, and whoever compiles would wait for those that found their code.
        _say(f"{data.described(exported)}: not in the compile cache: it runs in several processes")
        return None
    call = conditions.of_call(leaves, placement, results)
    kept: OrderedDict[Any, Code] = data.kept(exported, "stored_code", lambda _: OrderedDict())
    key = (placement.devices[0].client, placement.is_committed, *call.values())
    code = kept.get(key)
    if code is None:
        code = kept[key] = _Wanted(cache, exported, call, placement, in_avals, out_avals).code(compiled)
        if len(kept) > _MOST:
            kept.popitem(last=False)
    return code


def callable_of(name: str, jitted: Callable[[], Any], flattened: Flattened, code_of: CodeOf) -> Any:
    """What `calls.callable_of` returns."""
    return calls.callable_of(_say_why_not, name, jitted, flattened, code_of)


class _Wanted:
    """The code of a call that this process has not used yet."""

    def __init__(
        self,
        cache: CompileCache,
        exported: ExportedData,
        call: Mapping[str, str],
        placement: placing.Placement,
        in_avals: Sequence[Any],
        out_avals: Sequence[Any],
    ) -> None:
        self._cache, self._exported, self._placement = cache, exported, placement
        self._avals = in_avals, out_avals
        self._name = data.described(exported)
        self._conditions = {
            **conditions.of_function(exported),
            **conditions.of_machine(placement.devices),
            **call,
        }

    def code(self, compiled: Callable[[], Any]) -> Code:
        entry, turn = self._cache.find(self._conditions)
        try:
            code = None if entry is None else self._loaded(*entry)
            return self._added(compiled) if code is None else code
        finally:
            if turn is not None:
                turn.end()

    def _loaded(self, call: Mapping[str, str], code: bytes) -> Code | None:
        if (why := executables.lacking(call, self._placement.devices[0])) is not None:  # others may have them
            self._log(f"code in {self._cache.folder!r} is not used: {why}")
            return None
        try:
            made = executables.made_of(code, self._name, call, self._placement, *self._avals)
        except Exception as error:  # of any kind: the function can still be compiled
            self._give_up(f"it cannot be loaded: {error}")
            return None
        self._log(f"uses code from {self._cache.folder!r}")
        return Code(made, self._give_up)

    def _added(self, compiled: Callable[[], Any]) -> Code:
        with reuse.compiling_anew():
            executable = _jax.executable_of(compiled())
        try:
            code, call = executables.for_record(executable, self._exported, self._placement.devices)
            self._cache.add(self._conditions, call, code)
        except Exception as error:  # of any kind: it was compiled, and can be called
            self._log(f"was compiled, and is not added to {self._cache.folder!r}: the call has {error}")
        else:
            self._log(f"was compiled, and is added to {self._cache.folder!r}")
        return Code(executable, None)

    def _give_up(self, why: str) -> None:
        """Stops using code of the cache."""
        vars(data.kept_by(self._exported)).pop("stored_code", None)
        self._cache.remove(self._conditions)
        self._log(f"code in {self._cache.folder!r} is not used: {why}")

    def _log(self, what: str) -> None:
        arguments = executables.shown_arguments(
            self._conditions["arguments"], executables.weights_of(self._exported), 200
        )
        logger.info("%s", shown(f"{self._name} of {arguments}: {what}"))


def _say_why_not(name: str) -> str | None:
    if (why := reuse.why_not()) is not None:
        _say(f"{name}: the compile cache is not used: {why}")
    return why


@functools.lru_cache(1024)
def _say(message: str) -> None:
    """Logs why calls cannot use the cache: once, because a reason may hold for each of a million calls."""
    logger.info("%s", shown(message))

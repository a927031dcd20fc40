"""`Executables`: code from a file for the calls of a function, used if every condition is met."""

from __future__ import annotations

import dataclasses
import functools
import json
import logging
import os
import types
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from jaxexp import _jax, _native
from jaxexp._errors import shown
from jaxexp._kernel.artifact.words import counted
from jaxexp._kernel.function import data
from jaxexp._kernel.function.data import ExportedData
from jaxexp._kernel.function.paths import argument_paths
from jaxexp._kernel.io import compile_cache, lock
from jaxexp._kernel.io.compile_cache import CompileCache
from jaxexp._public import public

from . import conditions, reuse
from .file import ExecutablesFile, Record
from .reuse import Code, CodeOf, Flattened

logger = logging.getLogger("jaxexp.executables")

NOT_CALLED = "no call with these arguments so far"


@public
@dataclasses.dataclass(frozen=True, slots=True, repr=False)
class Executable:
    """Code in a file of executables, and whether this process uses it.

    Attributes:
        conditions: the function, the arguments, the machine and the releases that the code was compiled for. The code
            is used only if all of them are the same.
        size: the size of the code in bytes.
        used: whether calls use the code.
        why: why the code is not used; None if nothing prevents it.
    """

    conditions: Mapping[str, str]
    size: int
    used: bool
    why: str | None
    _weights: int = dataclasses.field(default=0, compare=False)  # how many of the first arguments are weights

    @property
    def arguments(self) -> str:
        """The dtypes and shapes of the arguments in one line. A long line is cut, and weights are only counted."""
        return shown_arguments(self.conditions.get("arguments", ""), self._weights)

    def __repr__(self) -> str:
        state = "used" if self.used else "usable" if self.why is None else f"not used: {self.why}"
        return shown(f"Executable({self.conditions.get('function')} of {self.arguments}: {state})")


class Executables:
    """A file of executables that the user named, for a function that was loaded, and for its VJPs."""

    def __init__(self, path: str | os.PathLike[str], file: _native.FileBytes | None = None) -> None:
        self._file = ExecutablesFile(path, file)
        self._lock = lock.reentrant()
        self._functions: dict[str, list[Record]] = {}
        for record in self._file.records:
            if conditions.of_sessions(record.conditions) is not None:
                continue
            self._functions.setdefault(record.conditions.get("module", ""), []).append(record)
        self._machines: dict[tuple[Any, ...], dict[str, str]] = {}
        self._made: dict[tuple[Any, ...], tuple[Any, Record] | None] = {}
        self._why: dict[int, str] = {}  # by the position of the code
        self._calls: dict[int, str] = {}  # of another call: how the last one differed
        self._used: set[int] = set()
        self._said: set[str] = set()
        if self.unfinished_bytes:
            behind = f"{counted(self.unfinished_bytes, 'byte')} of a record that was not finished"
            self._say(f"{self.name!r} ends with {behind}: the file was cut, or is being written")

    @property
    def unfinished_bytes(self) -> int:
        """How many bytes are behind the last whole record."""
        return self._file.unfinished_bytes

    @property
    def name(self) -> str:
        return self._file.name

    def find(
        self,
        exported: ExportedData,
        leaves: Sequence[Any],
        in_avals: Sequence[Any],
        out_avals: Sequence[Any],
        results: Sequence[int] | None = None,
    ) -> Code | None:
        """The code of a call, ready to run; None if the file has none that fits.

        The types are those of the arguments and of the wanted results, whose indices are `results`; None for all.
        """
        name = data.described(exported)
        candidates = self._functions.get(conditions.module_of(exported))
        if not candidates:
            self._say(f"{name}: {self.name!r} has no code of this function")
            return None
        if (why := self._say_why_not(name)) is not None:
            self._note(candidates, why)
            return None
        try:
            placement = conditions.placement_of(leaves)
        except conditions.UnknownPlacementError as error:
            self._say(f"{name}: code in {self.name!r} is not used: the call has {error}")
            return None
        call = conditions.of_call(leaves, placement, results)
        key = (placement.devices[0].client, placement.is_committed, conditions.module_of(exported), *call.values())
        with self._lock:
            if key not in self._made:
                self._made[key] = self._first_that_fits(exported, candidates, call, placement, in_avals, out_avals)
            made = self._made[key]
            return None if made is None else Code(made[0], functools.partial(self._give_up, made[0]))

    def callable_of(self, name: str, jitted: Callable[[], Any], flattened: Flattened, code_of: CodeOf) -> Any:
        """What `calls.callable_of` returns, which says why code from the file is not used."""
        return reuse.callable_of(self._say_why_not, name, jitted, flattened, code_of)

    def _give_up(self, code: Any, why: str) -> None:
        """Stops using code that `find` returned."""
        with self._lock:
            for key, made in self._made.items():
                if made is not None and made[0] is code:
                    self._made[key] = None
                    self._used.discard(made[1].position)
                    self._note([made[1]], why)
                    self._say(f"{made[1].conditions['function']}: code in {self.name!r} is not used: {why}")

    def _say_why_not(self, name: str) -> str | None:
        """Why no code can be used at the moment, which is logged; None if it can."""
        if (why := reuse.why_not_reusable()) is not None:
            self._say(f"{name}: code in {self.name!r} is not used: {why}")
        return why

    def _say(self, message: str) -> None:
        """Logs why code is not used: once, because a reason may hold for each of a million calls."""
        with self._lock:
            if message not in self._said:
                self._said.add(message)
                logger.info("%s", shown(message))

    def listed(self, exported: ExportedData) -> tuple[Executable, ...]:
        """The records for a function, or for another one of its name, and whether they are used."""
        own, weights = conditions.of_function(exported), weights_of(exported)
        named = [r for r in self._file.records if r.conditions.get("function") == own["function"]]
        records = {record.position: record for record in (*named, *self._functions.get(own["module"], ()))}
        with self._lock:
            return tuple(self._state(record, own, weights) for record in records.values())

    def all(self, *, check: bool = False) -> tuple[Executable, ...]:
        """Everything in the file, whatever function it is for; `why` is None for code that this process could use.

        Args:
            check: whether to compare the code with its digests.

        Raises:
            ExecutablesError: some code is damaged.
        """
        if check:
            for record in self._file.records:
                self._file.code(record)
        return tuple(
            Executable(types.MappingProxyType(dict(one.conditions)), one.size, False, self._why_not_usable(one))
            for one in self._file.records
        )

    def _why_not_usable(self, record: Record) -> str | None:
        if (why := conditions.of_sessions(record.conditions) or self._why_not_here(record)) is not None:
            return why
        return lacking(record.call, _devices_by_id()[record.conditions["devices"].split(",")[0]])

    def _state(self, record: Record, own: Mapping[str, str], weights: int) -> Executable:
        recorded = types.MappingProxyType(dict(record.conditions))
        if record.position in self._used:
            return Executable(recorded, record.size, True, None, weights)
        why = (
            self._why.get(record.position)
            or self._mismatch(record, own)
            or self._calls.get(record.position, NOT_CALLED)
        )
        return Executable(recorded, record.size, False, why, weights)

    def _mismatch(self, record: Record, own: Mapping[str, str]) -> str | None:
        """The first difference in the function or the machine, whatever the arguments are."""
        why = conditions.of_sessions(record.conditions) or conditions.difference(record.conditions, own)
        return why or self._why_not_here(record)

    def _why_not_here(self, record: Record) -> str | None:
        """The first difference in the machine."""
        if (why := reuse.why_not_reusable()) is not None:
            return why
        by_id = _devices_by_id()
        ids = record.conditions.get("devices", "")
        devices = [by_id.get(number) for number in ids.split(",")]
        if None in devices:
            return f"devices: compiled for {ids}, here there are {','.join(by_id)}"
        return conditions.difference(record.conditions, self._machine(devices))

    def _machine(self, devices: Sequence[Any]) -> dict[str, str]:
        # These include settings that may change while a process runs, but code stays as it was when it was first used.
        key = (devices[0].client, *(device.id for device in devices))
        if key not in self._machines:
            self._machines[key] = conditions.of_machine(devices)
        return self._machines[key]

    def _first_that_fits(
        self,
        exported: ExportedData,
        candidates: Sequence[Record],
        call: Mapping[str, str],
        placement: conditions.Placement,
        in_avals: Sequence[Any],
        out_avals: Sequence[Any],
    ) -> tuple[Any, Record] | None:
        own = conditions.of_function(exported)
        name = shown(data.described(exported))
        weights = weights_of(exported)
        arguments = shown(shown_arguments(call["arguments"], weights, 200))
        is_vjp = data.origin(exported)[1] > 0  # which takes weights one by one
        paths = functools.partial(argument_paths, exported.in_tree, 0 if is_vjp else weights)
        others = []
        for record in reversed(candidates):
            if (why := conditions.difference(record.conditions, call, paths)) is not None:
                others.append(why)
                self._calls[record.position] = why
                continue
            why = self._mismatch(record, own) or lacking(record.call, placement.devices[0])
            if why is None:
                try:
                    made = made_of(self._file.code(record), name, record.call, placement, in_avals, out_avals)
                except Exception as error:  # of any kind: the function can still be compiled
                    why = f"it cannot be loaded: {error}"
                else:
                    self._used.add(record.position)
                    self._why.pop(record.position, None)
                    logger.info("%s: uses code from %r for %s", name, self.name, arguments)
                    return made, record
            self._note([record], why)
            logger.info("%s: code in %r for %s is not used: %s", name, self.name, arguments, shown(why))
        if others and len(others) == len(candidates):
            logger.info("%s: no code in %r is for this call: %s", name, self.name, shown(others[0]))
        return None

    def _note(self, records: Sequence[Record], why: str) -> None:
        with self._lock:
            self._why.update((record.position, why) for record in records if record.position not in self._used)


def attach(exported: ExportedData, path: str | os.PathLike[str], file: _native.FileBytes | None = None) -> None:
    """Makes a function use the code in a file; `file` is its bytes, if they were read already."""
    vars(data.kept_by(exported))["executables"] = Executables(path, file)


def weights_of(exported: ExportedData) -> int:
    """How many of the first arguments of a loaded function are weights."""
    found = data.weights_in_trailer(exported)
    return 0 if found is None else len(found[1])


def shown_arguments(arguments: str, weights: int, most: int = 100) -> str:
    """The condition `arguments` in one line. Weights are only counted, because they are the same in all calls."""
    types = arguments.split("\n")
    if not 0 < weights <= len(types):
        return _shortened(types, most)
    return f"{counted(weights, 'weight')}; {_shortened(types[weights:], most) or 'nothing'}"


def _shortened(types: Sequence[str], most: int) -> str:
    """Types in one line. The last one stays: calls of a model mostly differ in what follows its parameters."""
    line = ", ".join(types)
    if len(line) <= most:
        return line
    head = line[: max(0, most - len(types[-1]))].rpartition(", ")[0]
    return f"{head}, ..., {types[-1]}" if head else f"{line[:most]}..."


def _devices_by_id() -> dict[str, Any]:
    return {str(device.id): device for device in jax.devices()}


def lacking(call: Mapping[str, str], device: Any) -> str | None:
    """The custom calls that the code needs and this process lacks, after LAPACK's are registered; None if all exist."""
    targets = call.get("custom calls", "").split()
    if not targets:
        return None
    from jaxexp._kernel.module import custom_calls

    if any(target.startswith(("lapack_", "blas_")) for target in targets):
        _jax.initialize_lapack()
    missing = [target for target in targets if not custom_calls.is_known(target, device.client.platform)]
    return f"custom calls: nothing in this process implements {', '.join(missing)}" if missing else None


def made_of(
    code: bytes,
    name: str,
    needed: Mapping[str, str],
    placement: conditions.Placement,
    in_avals: Sequence[Any],
    out_avals: Sequence[Any],
) -> Any:
    """JAX's object for code of a function of this name, given what a call needs."""
    call: dict[str, Any] = json.loads(needed["jax"])
    by_id = {device.id: device for device in jax.devices()}
    kept: list[int] = call["kept"]
    return reuse.executable_from(
        code,
        placement.devices,
        name=name,
        committed=placement.is_committed or call["committed"],
        kept_var_idx=set(kept),
        input_avals=[in_avals[i] for i in kept],
        input_shardings=[conditions.restored(s, by_id) for s in call["arguments"]],
        output_avals=list(out_avals),
        output_shardings=[conditions.restored(s, by_id) for s in call["results"]],
    )


def for_record(executable: Any, exported: ExportedData, devices: Sequence[Any]) -> tuple[bytes, dict[str, str]]:
    """The code of JAX's object for a function on some devices, and what a call needs: `made_of` reads both. An
    UnknownPlacementError if a placement has no text.
    """
    from jaxexp._kernel.module import custom_calls

    parts = _jax.parts_of_executable(executable)
    if parts.host_callbacks or parts.keepalive or parts.mut is not None:
        raise conditions.UnknownPlacementError("something tied to this process, such as a callback or a mutable array")
    if any(layout is not None for layout in parts.dispatch_in_layouts):
        raise conditions.UnknownPlacementError("an argument in a layout of its own")
    if (used := list(parts.device_list)) != list(devices):
        raise conditions.UnknownPlacementError(f"arguments on other devices than {used}, for which JAX compiles it")
    call = {
        "committed": parts.committed,
        "kept": sorted(parts.kept_var_idx),
        "arguments": [conditions.described(s) for s in parts.input_shardings],
        "results": [conditions.described(s) for s in parts.output_shardings],
    }
    targets = custom_calls.targets_on(exported, devices[0].client.platform)
    return parts.xla_executable.serialize(), {"jax": json.dumps(call), "custom calls": " ".join(sorted(targets))}


# --- the compile cache for calls: code that another process compiled, or else that this one compiles and adds ---------


logger = logging.getLogger("jaxexp.executables")

# Codes of one function that are kept for gradients, which have no dispatch of their own.
_MOST_KEPT = 64


def code_in_cache(
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
        placement = conditions.placement_of(leaves)
    except conditions.UnknownPlacementError as error:
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
        if len(kept) > _MOST_KEPT:
            kept.popitem(last=False)
    return code


def callable_with_cache(name: str, jitted: Callable[[], Any], flattened: Flattened, code_of: CodeOf) -> Any:
    """What `calls.callable_of` returns."""
    return reuse.callable_of(_say_why_not, name, jitted, flattened, code_of)


class _Wanted:
    """The code of a call that this process has not used yet."""

    def __init__(
        self,
        cache: CompileCache,
        exported: ExportedData,
        call: Mapping[str, str],
        placement: conditions.Placement,
        in_avals: Sequence[Any],
        out_avals: Sequence[Any],
    ) -> None:
        self._cache, self._exported, self._placement = cache, exported, placement
        self._avals = in_avals, out_avals
        self._name = data.described(exported)
        self._conditions = conditions.of(exported, placement, call)

    def code(self, compiled: Callable[[], Any]) -> Code:
        with self._cache.finding(self._conditions) as entry:
            code = None if entry is None else self._loaded(*entry)
            return self._added(compiled) if code is None else code

    def _loaded(self, call: Mapping[str, str], code: bytes) -> Code | None:
        if (why := lacking(call, self._placement.devices[0])) is not None:  # others may have them
            self._log(f"code in {self._cache.folder!r} is not used: {why}")
            return None
        try:
            made = made_of(code, self._name, call, self._placement, *self._avals)
        except Exception as error:  # of any kind: the function can still be compiled
            self._give_up(f"it cannot be loaded: {error}")
            return None
        self._log(f"uses code from {self._cache.folder!r}")
        return Code(made, self._give_up)

    def _added(self, compiled: Callable[[], Any]) -> Code:
        with reuse.compiling_anew():
            executable = _jax.executable_of(compiled())
        try:
            code, call = for_record(executable, self._exported, self._placement.devices)
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
        arguments = shown_arguments(self._conditions["arguments"], weights_of(self._exported), 200)
        logger.info("%s", shown(f"{self._name} of {arguments}: {what}"))


def _say_why_not(name: str) -> str | None:
    if (why := reuse.why_not_reusable()) is not None:
        _say(f"{name}: the compile cache is not used: {why}")
    return why


@functools.lru_cache(1024)
def _say(message: str) -> None:
    """Logs why calls cannot use the cache: once, because a reason may hold for each of a million calls."""
    logger.info("%s", shown(message))

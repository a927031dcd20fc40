"""`Executables`: code from a file for the calls of a function, used if every condition is met; and the same for code in
the compile cache. JAX's objects for compiled code are taken apart here, and put together again without a trace.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import logging
import os
import types
from collections import OrderedDict
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
from jax.experimental.compilation_cache import compilation_cache

from jaxexp import _jax, _native
from jaxexp._errors import shown
from jaxexp._kernel.artifact.words import counted
from jaxexp._kernel.function import data
from jaxexp._kernel.function.data import ExportedData
from jaxexp._kernel.function.paths import argument_paths
from jaxexp._kernel.io import compile_cache, lock
from jaxexp._kernel.io.compile_cache import CompileCache
from jaxexp._public import public

from . import conditions
from .file import ExecutablesFile, Record

logger = logging.getLogger("jaxexp.executables")

NOT_CALLED = "no call with these arguments so far"
# A reason why code is not used may hold for each of a million calls, and is logged once.
_once = functools.lru_cache(1024)
_warned_of = set[str]()  # files of executables

Flattened = Callable[[tuple[Any, ...], dict[str, Any]], tuple[Sequence[Any], Any]]
# Given flat arguments, and what compiles the call to a `jax.stages.Compiled`.
CodeOf = Callable[[Sequence[Any], Callable[[], Any]], "Code | None"]


class Code(NamedTuple):
    """The code of a call.

    Attributes:
        executable: JAX's object, as `_jax.executable_of` returns it.
        give_up: called with the reason if the code fails to run; None if this process compiled it.
    """

    executable: Any
    give_up: Callable[[str], None] | None

    def unsafe_call(self, *leaves: Any) -> Any:
        return self.executable.unsafe_call(*leaves)


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
        self.name, self.unfinished_bytes = self._file.name, self._file.unfinished_bytes
        self._lock = lock.reentrant()
        self._functions: dict[str, list[Record]] = {}
        for record in self._file.records:
            if conditions.of_sessions(record.conditions) is None:
                self._functions.setdefault(record.conditions.get("module", ""), []).append(record)
        # These include settings that may change while a process runs, but code stays as it was when it was first used.
        self._machine = functools.cache(lambda *devices: conditions.of_machine(devices))
        self._made: dict[tuple[Any, ...], Code | None] = {}
        self._why: dict[int, str | None] = {}  # why code is not used, by its position; None for code that is
        self._calls: dict[int, str] = {}  # of another call: how the last one differed
        self._say, self._warn = _once(_log), _once(self._say_or_warn)
        self.lacks = "has no code of this function"  # what is said where there is none
        if self.unfinished_bytes:
            behind = f"ends with {counted(self.unfinished_bytes, 'byte')} of a record that was not finished"
            self._say(f"{self.name!r} {behind}: the file was cut, or is being written")
            self.lacks += f", and {behind}: the file was cut, or is being written"

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
            say = self._say if data.origin(exported)[1] else self._warn  # few files have code of VJPs
            say(f"{name}: {self.name!r} {self.lacks}")
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

        def give_up(record: Record, why: str) -> None:
            with self._lock:
                self._made[key], self._why[record.position] = None, why
                self._say(f"{record.conditions['function']}: code in {self.name!r} is not used: {why}")

        with self._lock:
            if key not in self._made:
                made = self._first_that_fits(exported, candidates, call, placement, in_avals, out_avals)
                self._made[key] = None if made is None else Code(made[0], functools.partial(give_up, made[1]))
            return self._made[key]

    def _say_or_warn(self, message: str) -> None:
        """Says why code is not used; for the first time of a file, as a warning: compiling makes a slow start."""
        logger.log(logging.INFO if self.name in _warned_of else logging.WARNING, "%s", shown(message))
        _warned_of.add(self.name)

    def callable_of(self, name: str, jitted: Callable[[], Any], flattened: Flattened, code_of: CodeOf) -> Any:
        """What `callable_of` returns, which says why code from the file is not used."""
        return callable_of(self._say_why_not, name, jitted, flattened, code_of)

    def _say_why_not(self, name: str) -> str | None:
        """Why no code can be used at the moment, which is logged; None if it can."""
        if (why := why_not_reusable()) is not None:
            self._say(f"{name}: code in {self.name!r} is not used: {why}")
        return why

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
        return tuple(_as_listed(one, False, self._why_not_usable(one)) for one in self._file.records)

    def _why_not_usable(self, record: Record) -> str | None:
        if (why := self._mismatch(record, {})) is not None:
            return why
        return lacking(record.call, _devices_by_id()[record.conditions["devices"].split(",")[0]])

    def _state(self, record: Record, own: Mapping[str, str], weights: int) -> Executable:
        why = self._why.get(record.position, "")
        if why == "":
            why = self._mismatch(record, own) or self._calls.get(record.position, NOT_CALLED)
        return _as_listed(record, why is None, why, weights)

    def _mismatch(self, record: Record, own: Mapping[str, str]) -> str | None:
        """The first difference in the function's own conditions or the machine, whatever the arguments are."""
        why = conditions.of_sessions(record.conditions) or conditions.difference(record.conditions, own)
        if (why := why or why_not_reusable()) is not None:
            return why
        by_id = _devices_by_id()
        ids = record.conditions.get("devices", "")
        devices = [by_id.get(number) for number in ids.split(",")]
        if None in devices:
            return f"devices: compiled for {ids}, here there are {','.join(by_id)}"
        return conditions.difference(record.conditions, self._machine(*devices))

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
                    self._why[record.position] = None
                    logger.info("%s: uses code from %r for %s", name, self.name, arguments)
                    return made, record
            self._note([record], why)
            self._warn(f"{name}: code in {self.name!r} for {arguments} is not used: {why}")
        if others and len(others) == len(candidates):
            logger.info("%s: no code in %r is for this call: %s", name, self.name, shown(others[0]))
        return None

    def _note(self, records: Sequence[Record], why: str) -> None:
        with self._lock:
            self._why.update((r.position, why) for r in records if self._why.get(r.position, "") is not None)


def _as_listed(record: Record, used: bool, why: str | None, weights: int = 0) -> Executable:
    return Executable(types.MappingProxyType(dict(record.conditions)), record.size, used, why, weights)


def _log(message: str) -> None:
    logger.info("%s", shown(message))


def attach(exported: ExportedData, path: str | os.PathLike[str], file: _native.FileBytes | None = None) -> None:
    """Makes a function use the code in a file; `file` is its bytes, if they were read already."""
    vars(data.kept_by(exported))["executables"] = Executables(path, file)


def weights_of(exported: ExportedData) -> int:
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
    """JAX's object for code of a function of this name, given what a call needs. All layouts are the default ones."""
    call: dict[str, Any] = json.loads(needed["jax"])
    by_id = {device.id: device for device in jax.devices()}
    kept: list[int] = call["kept"]
    devices, client = _jax.DeviceList(tuple(placement.devices)), placement.devices[0].client
    in_layouts = [None] * len(kept)
    return _jax.UnloadedMeshExecutable(
        xla_executable=client.deserialize_executable(code, executable_devices=devices),
        device_list=devices,
        backend=client,
        name=name,
        committed=placement.is_committed or call["committed"],
        kept_var_idx=set(kept),
        input_avals=[in_avals[i] for i in kept],
        input_shardings=[conditions.restored(s, by_id) for s in call["arguments"]],
        output_avals=list(out_avals),
        output_shardings=[conditions.restored(s, by_id) for s in call["results"]],
        unordered_effects=[],
        ordered_effects=[],
        keepalive=(),
        host_callbacks=[],
        mut=None,
        xla_in_layouts=in_layouts,
        dispatch_in_layouts=in_layouts,
        xla_out_layouts=[None] * len(out_avals),
        all_args_info=None,
        pgle_profiler=None,
    ).load()


def for_record(executable: Any, exported: ExportedData, devices: Sequence[Any]) -> tuple[dict[str, str], bytes]:
    """What a call needs, and the code of JAX's object for a function on some devices: `made_of` reads both. An
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
    return {"jax": json.dumps(call), "custom calls": " ".join(sorted(targets))}, parts.xla_executable.serialize()


# --- the compile cache for calls: code that another process compiled, or else that this one compiles and adds ---------


# Codes of one function that are kept for gradients, which have no dispatch of their own.
_MOST_KEPT = 64

_say = _once(_log)


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
    cache, name = compile_cache.current(), data.described(exported)
    if cache is None or _say_why_not(name) is not None:
        return None
    if exported.ordered_effects or exported.unordered_effects:  # they need the process that compiles the call
        return None
    try:
        placement = conditions.placement_of(leaves)
    except conditions.UnknownPlacementError as error:
        _say(f"{name}: not in the compile cache: the call has {error}")
        return None
    if placement.devices[0].platform != "cpu" and len({device.process_index for device in placement.devices}) > 1:
        # XLA divides autotuning among the processes, and whoever compiles would wait for those that found their code.
        _say(f"{name}: not in the compile cache: it runs in several processes")
        return None
    call = conditions.of_call(leaves, placement, results)
    kept: OrderedDict[Any, Code] = data.kept(exported, "stored_code", lambda _: OrderedDict())
    key = (placement.devices[0].client, placement.is_committed, *call.values())
    code = kept.get(key)
    if code is None:
        code = kept[key] = _found_or_added(cache, exported, call, placement, in_avals, out_avals, compiled)
        if len(kept) > _MOST_KEPT:
            kept.popitem(last=False)
    return code


def callable_with_cache(name: str, jitted: Callable[[], Any], flattened: Flattened, code_of: CodeOf) -> Any:
    return callable_of(_say_why_not, name, jitted, flattened, code_of)


def _say_why_not(name: str) -> str | None:
    if (why := why_not_reusable()) is not None:
        _say(f"{name}: the compile cache is not used: {why}")
    return why


def _found_or_added(
    cache: CompileCache,
    exported: ExportedData,
    call: Mapping[str, str],
    placement: conditions.Placement,
    in_avals: Sequence[Any],
    out_avals: Sequence[Any],
    compiled: Callable[[], Any],
) -> Code:
    """The code of a call that this process has not used yet."""
    name, key = data.described(exported), conditions.of(exported, placement, call)
    arguments = shown_arguments(call["arguments"], weights_of(exported), 200)

    def log(what: str) -> None:
        _log(f"{name} of {arguments}: {what}")

    def give_up(why: str) -> None:
        vars(data.kept_by(exported)).pop("stored_code", None)
        cache.remove(key)
        log(f"code in {cache.folder!r} is not used: {why}")

    with cache.finding(key) as entry:
        if entry is not None and (why := lacking(entry[0], placement.devices[0])) is not None:  # others may have them
            log(f"code in {cache.folder!r} is not used: {why}")
        elif entry is not None:
            try:
                made = made_of(entry[1], name, entry[0], placement, in_avals, out_avals)
            except Exception as error:  # of any kind: the function can still be compiled
                give_up(f"it cannot be loaded: {error}")
            else:
                log(f"uses code from {cache.folder!r}")
                return Code(made, give_up)
        with compiling_anew():
            executable = _jax.executable_of(compiled())
        try:
            cache.add(key, *for_record(executable, exported, placement.devices))
        except Exception as error:  # of any kind: it was compiled, and can be called
            log(f"was compiled, and is not added to {cache.folder!r}: the call has {error}")
        else:
            log(f"was compiled, and is added to {cache.folder!r}")
        return Code(executable, None)


# --- calls with code that was compiled earlier, and the dispatch of `jax.jit` -----------------------------------------


def why_not_reusable() -> str | None:
    """Why code that was compiled earlier cannot be used in this JAX, or in its current mode; None if it can."""
    if _jax.missing_for_reuse is not None:
        return f"this JAX has no {_jax.missing_for_reuse}"
    for mode in _jax.modes:
        if mode.value:
            return f"{_jax.name_of_mode(mode)} is set"
    if not (_jax.thread_resources.env.physical_mesh.empty and jax.sharding.get_abstract_mesh().empty):
        return "there is a mesh in context"
    return None


_anew = lock.reentrant()  # the setting is one for all threads


@contextlib.contextmanager
def compiling_anew() -> Generator[None]:
    """A context without JAX's persistent cache. Code from the cache, or from a file of executables, runs here, but
    if XLA serializes it again, the result does not run anywhere.
    """
    config: Any = jax.config  # its types lack its attributes
    if config.jax_compilation_cache_dir is None:
        yield
        return
    with _anew:
        if not config.jax_enable_compilation_cache:
            yield
            return
        _set_cache(False)
        try:
            yield
        finally:
            _set_cache(True)


def _set_cache(enabled: bool) -> None:
    jax.config.update("jax_enable_compilation_cache", enabled)
    # Otherwise it remembers whether it is in use (https://github.com/jax-ml/jax/issues/25768).
    compilation_cache.reset_cache()


def lowered(jitted: Any, *args: Any, **kwargs: Any) -> Any:
    """What `jitted.lower` returns, without the places of callers: code goes to others, who have no use for paths."""
    with _jax.callers_in_locations(0):
        return jitted.lower(*args, **kwargs)


def callable_of(
    why_not: Callable[[str], str | None],
    name: str,
    jitted: Callable[[], Any],
    flattened: Flattened,
    code_of: CodeOf,
) -> Any:
    """A callable whose first call with arguments of some types looks for code, without a trace. Later calls use the
    dispatch of `jax.jit`.

    Args:
        why_not: why no code can be used at the moment, given the function's name; None if it can.
        name: of the function.
        jitted: makes the function's jitted callable, for calls that have no code.
        flattened: returns the flat arguments of a call, and the structure of its results.
        code_of: returns the code of a call; None if there is none.
    """

    def plain(*args: Any, **kwargs: Any) -> Any:
        why_not(name)
        return jitted()(*args, **kwargs)

    def miss(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
        if why_not_reusable() is not None:
            return plain(*args, **kwargs), None
        leaves, out_tree = flattened(args, kwargs)

        def compiled() -> Any:
            return lowered(jitted(), *args, **kwargs).compile()

        try:
            code = code_of(leaves, compiled)
        except (TypeError, ValueError):  # the call itself explains these
            code = None
        flat = None
        if code is not None:
            try:
                flat = code.unsafe_call(*leaves)
            except jax.errors.JaxRuntimeError as error:
                if code.give_up is None:
                    raise
                code.give_up(f"it does not run: {error}")
        if code is None or flat is None:
            code = Code(_jax.executable_of(compiled()), None)
            flat = code.unsafe_call(*leaves)
        results = jax.tree_util.tree_unflatten(out_tree, flat)
        # None if the dispatch cannot keep what calls the code again.
        return results, _jax.for_dispatch(code.executable, out_tree, leaves, flat, (), (), None, [])

    if _jax.missing_for_reuse is None:
        return _jax.dispatched(name, plain, miss)
    why_not(name)
    return jitted()

"""What a module says about its source: takes files and lines out of locations, or the locations as a whole.

JAX gives each operation the name scopes around it, and the calls that led to it, each with a function, a file and a
line.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from jaxexp import _jax
from jaxexp._errors import ExportError
from jaxexp._kernel.artifact import module_head

from . import mlir

CHOICES = "full", "names", "none"

_LONGEST_CHAIN = 64
# Comprehensions are functions of their own before Python 3.12.
_COMPREHENSIONS = ("<listcomp>", "<setcomp>", "<dictcomp>")


class Frame(NamedTuple):
    function: str
    line: int


def check_choice(locations: str) -> None:
    if locations not in CHOICES:
        raise ExportError(f"locations={locations!r} has to be one of {', '.join(map(repr, CHOICES))}")


def callers() -> tuple[Frame, ...]:
    """The functions that are running now, innermost first, without those of JAX and jaxexp."""
    frames = _jax.user_frames(_jax.current_source().traceback)
    return tuple(Frame(frame.function_name, frame.start_line) for frame in frames)


def rewritten(serialized: bytes, keep: str) -> bytes:
    """A serialized module with "names" or "none" in its locations; the same bytes if they have no more than that."""
    with _jax.make_ir_context() as context:
        module = mlir.parse(serialized, context)
        if not reduce(module, keep):
            return serialized
        version = module_head.stablehlo_of(module_head.producer(serialized))
        if version is None or module_head.is_for_newer(serialized, _jax.newest_stablehlo()):
            return mlir.serialize(module)
        return mlir.serialize_for(module, version)


def reduce(module: Any, keep: str, outside: Sequence[Sequence[Frame]] = ()) -> bool:
    """Takes files and lines out of a module's locations, in place; with "none", all that is in them. Returns whether
    one changed. `outside` is what `callers` found around the tracing: calls that do not belong to the function.
    """
    with module.context:
        reduced = _Reduced(keep == "names", outside)
        for operation in mlir.iter_operations(module):
            if (location := reduced.of(operation.location)) is not None:
                operation.location = location
            for region in operation.regions:
                for block in region:
                    for argument in block.arguments:
                        if (location := reduced.of(argument.location)) is not None:
                            argument.set_location(location)
    return reduced.has_changes


class _Reduced:
    """Locations with less in them. Locations share their parts, so each part is looked at once."""

    def __init__(self, keeps_names: bool, outside: Sequence[Sequence[Frame]]) -> None:
        self._keeps_names, self._outside = keeps_names, outside
        self._unknown = _jax.ir.Location.unknown()
        self._known: dict[Any, Any] = {}
        self.has_changes = False

    def of(self, location: Any) -> Any:
        """The location to replace this one, or None if it may stay."""
        found = self._reduced(location) if self._keeps_names else self._unknown
        if found == location:
            return None
        self.has_changes = True
        return found

    def _reduced(self, location: Any) -> Any:
        pending = [location]  # no recursion: they may have thousands of levels
        while pending:
            at = pending[-1]
            parts = [] if at.attr in self._known else _parts(at)
            if missing := [part for part in parts if part.attr not in self._known]:
                pending += missing
            else:
                pending.pop()
                if at.attr not in self._known:
                    self._known[at.attr] = self._made(at, [self._known[part.attr] for part in parts])
        return self._known[location.attr]

    def _made(self, location: Any, parts: list[Any]) -> Any:
        """A location of these parts: the names of scopes, outermost first, and then of calls, innermost first."""
        ir = _jax.ir
        if isinstance(location, ir.FusedLoc):
            return ir.Location.fused(parts)
        is_scope = isinstance(location, ir.NameLoc) and bool(parts)
        if not is_scope and self._is_outside(location):
            return self._unknown
        if isinstance(location, ir.NameLoc):
            name = location.name_str
            if is_scope:
                return ir.Location.name(name, *parts)
            return self._unknown if name.endswith(_COMPREHENSIONS) else ir.Location.name(name)
        named = [part for part in parts if part != self._unknown]
        if len(named) < 2:
            return named[0] if named else self._unknown
        # One chain, unless it is long: calls that share their parts may be any number.
        links = list(itertools.islice(_links(named[0]), _LONGEST_CHAIN + 1))
        first, *others = links if len(links) <= _LONGEST_CHAIN else named[:1]
        return ir.Location.callsite(first, [*others, named[1]])

    def _is_outside(self, location: Any) -> bool:
        """Whether these are calls around the function. JAX may have cut the chain of calls at its end."""
        for outside in self._outside:
            named = (link for link in _links(location) if isinstance(link, _jax.ir.NameLoc))
            calls = list(map(_frame, itertools.islice(named, len(outside))))
            if calls and calls == list(outside[: len(calls)]):
                return True
        return False


def _parts(location: Any) -> list[Any]:
    ir = _jax.ir
    if isinstance(location, ir.FusedLoc):
        return list(location.locations)
    if isinstance(location, ir.CallSiteLoc):
        return [location.callee, location.caller]
    is_scope = isinstance(location, ir.NameLoc) and not isinstance(location.child_loc, ir.FileLineColLoc)
    return [location.child_loc] if is_scope else []


def _links(location: Any) -> Iterator[Any]:
    """The parts of calls in calls, innermost first."""
    pending = [location]
    while pending:
        at = pending.pop()
        if isinstance(at, _jax.ir.CallSiteLoc):
            pending += at.caller, at.callee
        else:
            yield at


def _frame(location: Any) -> Frame:
    line = location.child_loc.start_line if isinstance(location.child_loc, _jax.ir.FileLineColLoc) else 0
    return Frame(location.name_str, line)

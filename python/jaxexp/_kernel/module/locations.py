"""What a module says about its source: takes files and lines out of locations, or the locations as a whole.

JAX gives each operation the name scopes around it, and the calls that led to it, each with a function, a file and a
line.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from jaxexp import _jax
from jaxexp._errors import ExportError
from jaxexp._kernel.artifact import module_head

from . import mlir

CHOICES = "full", "names", "none"

# Comprehensions are functions of their own before Python 3.12.
_COMPREHENSIONS = ("<listcomp>", "<setcomp>", "<dictcomp>")


class Frame(NamedTuple):
    """A call that was under way when an operation was traced."""

    function: str
    line: int


def check_choice(locations: str) -> None:
    """Raises an ExportError if there is no such choice of what to keep."""
    if locations not in CHOICES:
        raise ExportError(f"locations={locations!r} has to be one of {', '.join(map(repr, CHOICES))}")


def callers() -> tuple[Frame, ...]:
    """The functions that are running now, innermost first, without those of JAX and jaxexp."""
    frames = _jax.user_frames(_jax.current_source().traceback)
    return tuple(Frame(frame.function_name, frame.start_line) for frame in frames)


def rewritten(serialized: bytes, keep: str) -> bytes:
    """A serialized module with less in its locations; the same bytes if they have no more than that.

    Args:
        serialized: a StableHLO portable artifact.
        keep: "names" or "none".
    """
    with _jax.make_ir_context() as context:
        module = mlir.parse(serialized, context)
        if not reduce(module, keep):
            return serialized
        version = module_head.stablehlo_of(module_head.producer(serialized))
        if version is None or module_head.is_for_newer(serialized, _jax.newest_stablehlo()):
            return mlir.serialize(module)
        return mlir.serialize_for(module, version)


def reduce(module: Any, keep: str, outside: Sequence[Sequence[Frame]] = ()) -> bool:
    """Takes files and lines out of a module's locations, in place, or all that is in them.

    Args:
        module: the module.
        keep: "names" for scopes, functions and arguments; "none" for nothing.
        outside: what `callers` found around the tracing of the module. These calls do not belong to the function, so
            their names are taken out, too.

    Returns:
        Whether a location changed.
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
    """Locations with less in them. Locations share their parts, so each is looked at once."""

    def __init__(self, keeps_names: bool, outside: Sequence[Sequence[Frame]]) -> None:
        self._keeps_names, self._outside = keeps_names, outside
        self._unknown = _jax.ir.Location.unknown()
        self._known: dict[Any, Any] = {}
        self._frames: dict[Any, list[Frame]] = {}
        self.has_changes = False

    def of(self, location: Any) -> Any:
        """The location to replace this one, or None if it may stay."""
        key = location.attr
        if key not in self._known:
            found = self._made(location) if self._keeps_names else self._unknown
            self._known[key] = None if found == location else found
            self.has_changes = self.has_changes or self._known[key] is not None
        return self._known[key]

    def _made(self, location: Any) -> Any:
        """The names in a location: those of scopes, outermost first, and then of calls, innermost first."""
        ir = _jax.ir
        scopes = []
        while isinstance(location, ir.NameLoc) and not isinstance(location.child_loc, ir.FileLineColLoc):
            scopes.append(location.name_str)
            location = location.child_loc
        if isinstance(location, ir.FusedLoc):
            made = ir.Location.fused([self.of(part) or part for part in location.locations])
        else:
            calls = [ir.Location.name(frame.function) for frame in self._without_outside(self._calls(location))]
            made = ir.Location.callsite(calls[0], calls[1:]) if len(calls) > 1 else calls[0] if calls else self._unknown
        for scope in reversed(scopes):
            made = ir.Location.name(scope, made)
        return made

    def _calls(self, location: Any) -> list[Frame]:
        """The calls in a location, innermost first."""
        found, pending = list[Frame](), [location]
        while pending:
            at = pending.pop()
            if isinstance(at, _jax.ir.CallSiteLoc):
                pending += at.caller, at.callee
            elif isinstance(at, _jax.ir.NameLoc):
                line = at.child_loc.start_line if isinstance(at.child_loc, _jax.ir.FileLineColLoc) else 0
                found.append(Frame(at.name_str, line))
        return found

    def _without_outside(self, calls: list[Frame]) -> Iterator[Frame]:
        end = len(calls)
        for outside in self._outside:
            # JAX may have cut the chain of calls at its end.
            at = (i for i in range(end) if calls[i : i + len(outside)] == list(outside[: len(calls) - i]))
            end = next(at, end)
        return (call for call in calls[:end] if not call.function.endswith(_COMPREHENSIONS))

"""The surroundings that JAX reads when it traces and lowers: meshes in context, precision, widths of numbers.

The VJP of a function is exported when somebody asks for it. It belongs to the function, so it is exported in the
surroundings of the function's own export.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Generator
from typing import Any

from jaxexp import _jax

# Not in the keys of JAX's caches, but `export` reads them.
_OF_EXPORT = ("jax_export_calling_convention_version", "jax_export_ignore_forward_compatibility")
# JAX's defaults.
_OF_LOCATIONS = {"jax_include_full_tracebacks_in_locations": True, "jax_traceback_in_locations_limit": 10}


@dataclasses.dataclass(frozen=True, slots=True)
class Surroundings:
    """The state of a thread, and of JAX's configuration, at one moment."""

    configured: tuple[tuple[Any, Any], ...]  # each state of the configuration, and its value
    others: tuple[Any, ...]  # the thread's settings in `_jax.other_surroundings`
    meshes: tuple[Any, ...]  # from `with mesh:`, the innermost last

    @classmethod
    def now(cls) -> Surroundings:
        names = (*_jax.names_of_surroundings(), *_OF_EXPORT)
        states = [_jax.config_states[name] for name in names if name in _jax.config_states]
        return cls(
            configured=tuple((state, state.value) for state in states),
            others=tuple(context.get_local() for context in _jax.other_surroundings),
            meshes=tuple(_jax.thread_resources.stack),
        )

    @contextlib.contextmanager
    def restored(self) -> Generator[None]:
        """A context that restores these surroundings."""
        with contextlib.ExitStack() as undo:
            for state, value in self.configured:
                if state.value != value:
                    undo.enter_context(state(value))
            for context, value in zip(_jax.other_surroundings, self.others, strict=True):
                undo.callback(context.set_local, context.swap_local(value))
            resources = _jax.thread_resources
            undo.callback(_set_meshes, resources.stack)
            _set_meshes(list(self.meshes))
            yield


@contextlib.contextmanager
def anew() -> Generator[None]:
    """A context in which JAX's caches have no trace and no lowering from outside of it, and locations have the same
    calls whatever is set.
    """
    # Each value of the first setting has entries of its own.
    with _jax.jit_cache(_jax.JitCache(capacity=256)), contextlib.ExitStack() as settings:
        for name, value in _OF_LOCATIONS.items():
            settings.enter_context(_jax.config_states[name](value))
        yield


def _set_meshes(stack: list[Any]) -> None:
    _jax.thread_resources.stack, _jax.thread_resources.env = stack, stack[-1]

"""What JAX does for a call, as its own events tell."""

from __future__ import annotations

import collections
import contextlib
from collections.abc import Iterator
from typing import Any

from jax import monitoring

STEPS = {
    "/jax/core/compile/jaxpr_trace_duration": "traced",
    "/jax/core/compile/jaxpr_to_mlir_module_duration": "lowered",
    "/jax/core/compile/backend_compile_duration": "compiled",
}


@contextlib.contextmanager
def counted() -> Iterator[collections.Counter[str]]:
    """How often JAX traced, lowered and compiled inside."""
    found: collections.Counter[str] = collections.Counter()

    def listen(event: str, _: float, **__: Any) -> None:
        if event in STEPS:
            found[STEPS[event]] += 1

    monitoring.register_event_duration_secs_listener(listen)
    try:
        yield found
    finally:
        monitoring.unregister_event_duration_listener(listen)

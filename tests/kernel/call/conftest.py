"""What JAX compiles."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
from jax import monitoring


class Count(list[str]):
    """The events of JAX's own monitoring."""

    @property
    def compiled(self) -> int:
        return self.count("/jax/core/compile/backend_compile_duration")

    @property
    def lowered(self) -> int:
        return self.count("/jax/core/compile/jaxpr_to_mlir_module_duration")


@pytest.fixture
def count() -> Iterator[Count]:
    seen = Count()

    def listen(event: str, duration: float, **_: Any) -> None:
        seen.append(event)

    monitoring.register_event_duration_secs_listener(listen)
    yield seen
    seen.clear()
    with contextlib.suppress(AttributeError):
        monitoring.unregister_event_duration_listener(listen)

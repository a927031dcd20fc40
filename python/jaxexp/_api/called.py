"""What calls of a function ask the wings: `jax.vmap`, and the compile cache."""

from __future__ import annotations

from typing import Any

from jaxexp._kernel.exported import Function


class Called(Function):
    """A function whose calls can be mapped, and that shares compiled code with other processes."""

    def _batch(self, primitive: Any, *mapped: Any, **params: Any) -> Any:
        from jaxexp._readback.vmap import batch_call

        return batch_call(primitive, *mapped, **params)

    def _code_in_cache(self, *call: Any) -> Any:
        from jaxexp._executables import store

        return store.find(*call)

    def _callable_with_cache(self, jitted: Any, flattened: Any, code_of: Any) -> Any:
        from jaxexp._executables import store

        return store.callable_of(self.fun_name, jitted, flattened, code_of)

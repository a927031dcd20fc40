"""Many artifacts, to be loaded together."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

import jaxexp
from kit.compare import assert_same_fields


def alone(read: Any, item: Any) -> Any:
    """What one artifact gives by itself: an Exported, or the exception."""
    try:
        return read(item)
    except Exception as error:
        return error


def assert_alike(found: Any, expected: Any, file: str | None) -> None:
    assert type(found) is type(expected), (found, expected)
    if not isinstance(expected, Exception):
        assert_same_fields(found, expected)
        assert found.metadata == expected.metadata
        assert found.has_vjp() == expected.has_vjp()
        # `load` keeps the name of the file.
        assert vars(found).keys() - {"_kept"} == vars(expected).keys() - {"_kept"}
        return
    if isinstance(expected, jaxexp.DeserializationError):
        assert found.file == file
        expected.file = file
    assert str(found) == str(expected)


def versions(function: Any, *args: Any, count: int, **how: Any) -> list[bytes]:
    """Artifacts that differ in the constants of their modules alone."""
    exporteds = [jaxexp.export(jax.jit(lambda *a, c=i: function(np.float32(c + 2), *a)))(*args) for i in range(count)]
    return [bytes(e.serialize(**how)) for e in exporteds]

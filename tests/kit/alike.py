"""The same mistake made with both libraries."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from jax import export as jax_export

import jaxexp

LIBRARIES = {"jaxexp": jaxexp, "jax": jax_export}


def raises_alike(provoke: Callable[[Any], Any], match: str = "") -> jaxexp.errors.ExportError:
    """Provokes an error with both: jaxexp's is an ExportError, and an instance of the built-in type of jax.export's."""
    with pytest.raises(Exception) as theirs:
        provoke(jax_export)
    with pytest.raises(jaxexp.errors.ExportError) as ours:
        provoke(jaxexp)
    for builtin in (ValueError, TypeError, NotImplementedError):
        if isinstance(theirs.value, builtin):
            assert isinstance(ours.value, builtin), f"jax.export raises {type(theirs.value)}"
    assert re.search(match, str(ours.value), re.S), str(ours.value)
    return ours.value


def reload(library: Any, exported: Any, vjp_order: int = 0) -> Any:
    return library.deserialize(exported.serialize(vjp_order=vjp_order))

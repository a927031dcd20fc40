"""The code that runs in a worker: it compares releases, then does a share of a pass."""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import pickle
import traceback
from collections.abc import Sequence
from typing import Any, Literal

from jaxexp._errors import shown_lines
from jaxexp._kernel.io import files

from .errors import packed

Outcome = tuple[Literal["done", "other", "raised"], Any]


@functools.cache
def releases(with_jax: bool) -> dict[str, str]:
    """The releases that have to be the same everywhere. This does not import JAX."""
    found = {"jaxexp": files.RELEASE}
    if with_jax:
        found["jax"] = importlib.metadata.version("jax")
    return found


def alive() -> bool:
    """Whether a worker runs anything at all."""
    return True


def run(
    attempt: str,
    expected: dict[str, str],
    home: str,
    options: bytes,
    parts: Sequence[tuple[Any, Any]],
    imports: Sequence[str] = (),
) -> Outcome:
    """Does a share. Arguments have built-in types, so that a worker of any release can look at them.

    Args:
        attempt: different for each call, because some engines run equal calls only once.
        expected: the caller's releases.
        home: the module of the pass below jaxexp, and its function, which takes `parts` and `options`.
        options: the pickled options of the pass.
        parts: places and numbers.
        imports: modules to import first, which register types that the artifacts need.

    Returns:
        "done" with a pair for each part: its result, or the packed error of a part that cannot be read; "other" with
            the releases here; or "raised" with an exception that the pass does not expect.
    """
    if (here := releases("jax" in expected)) != expected:
        return "other", here
    module, _, name = home.partition(":")
    try:
        for needed in imports:
            importlib.import_module(needed)
        function = getattr(importlib.import_module(f"jaxexp.{module}"), name)
        found = function(parts, pickle.loads(options))
        return "done", [(None, packed(one)) if isinstance(one, Exception) else (one, None) for one in found]
    except MemoryError:  # as if the worker had died: a smaller share may fit
        raise
    except Exception as error:
        return "raised", _crossing(error)


def _crossing(error: Exception) -> Exception:
    """An exception that survives the way to another process, with a note about its origin."""
    where = shown_lines("".join(traceback.format_exception(error)))
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        error = RuntimeError(f"{type(error).__name__}: {error}")
    error.add_note(f"In a worker:\n{where}")
    return error

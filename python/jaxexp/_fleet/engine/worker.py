"""The code that runs in a worker: it compares releases, then does a share of a pass."""

from __future__ import annotations

import builtins
import functools
import importlib
import pickle
import traceback
from collections.abc import Sequence
from typing import Any, Literal

from jaxexp import _errors
from jaxexp._errors import DeserializationError, ExportError, PolicyError, SignatureError, shown_lines
from jaxexp._kernel.io import files
from jaxexp._kernel.releases.table import installed

# What makes an error, besides its file, if that is not its text.
_FIELDS = {
    DeserializationError: ("path", "expected", "found"),
    PolicyError: ("field", "found", "where", "advice"),
    SignatureError: ("file", "expected", "found"),
}


def packed(error: Exception) -> list[Any]:
    """Packs an error that is the result for an artifact; any other error is raised again. If `unpacked` cannot make its
    class, the nearest base class takes its place, with the same message.
    """
    for kind in type(error).__mro__:
        if _known(kind.__name__) is kind:
            return [kind.__name__, _arguments(kind, error), getattr(error, "file", None)]
    raise error


def unpacked(said: Any) -> Exception:
    name, arguments, *file = said
    kind = _known(name)
    if kind is None:
        raise ValueError(f"not a packed error: {name!r}")
    error: Any = kind(*(tuple(one) if isinstance(one, list) else one for one in arguments))
    if hasattr(error, "file"):
        (error.file,) = file
    return error


def _known(name: Any) -> type[Exception] | None:
    """The class of an error that can be a result: one of jaxexp's, or one of Python's for files and imports."""
    if not isinstance(name, str):
        return None
    for home, base in ((_errors, ExportError), (builtins, OSError), (builtins, ImportError)):
        kind = getattr(home, name, None)
        if isinstance(kind, type) and issubclass(kind, base):
            return kind
    return None


def _arguments(kind: type[Exception], error: Any) -> list[Any]:
    if issubclass(kind, OSError):
        text, file = error.strerror or str(error), error.filename and str(error.filename)
        return [text] if error.errno is None else [error.errno, text, *filter(None, [file])]
    if kind is _errors.TooOldReaderError:
        return [str(error), error.since]
    names = next((names for base, names in _FIELDS.items() if issubclass(kind, base)), ())
    return [getattr(error, name) for name in names] or [str(error)]


Outcome = tuple[Literal["done", "other", "raised"], Any]


@functools.cache
def releases(with_jax: bool) -> dict[str, str]:
    """The releases that have to be the same everywhere. This does not import JAX."""
    found = {"jaxexp": files.RELEASE}
    if with_jax:
        found["jax"] = installed()
    return found


def alive() -> bool:
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

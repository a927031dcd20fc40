"""What the calls of cases returned elsewhere, as `jaxexp-run --cases` writes it. Without JAX."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jaxexp import _native
from jaxexp._errors import ExportError, cause
from jaxexp._kernel.artifact.cases import Array, Case, storage

from .machine import explained, split
from .replaying import Returned, judged
from .report import CheckReport

# The array with a text in JSON that says what the others are, and in which version of that text.
_ABOUT, _VERSION = "about", 1
_FLAGS = "XLA_FLAGS"


def check_results(
    file: str,
    arrays: Mapping[str, Callable[[], Array]],
    cases: Sequence[Case],
    artifact: Any,
    tolerance: Any = None,
) -> CheckReport:
    """Compares the results in a file with those that an artifact has, as `replayed` does with those of calls.

    Args:
        file: its name, for messages.
        arrays: what makes its arrays, by their names.
        cases: those of the artifact.
        artifact: its bytes, which were verified.
        tolerance: for all results, in place of theirs.

    Raises:
        ExportError: the file says something else; or it is about another artifact, or other cases; or the tolerance is
            negative, or not finite. It is also a TypeError if that is no number.
        ImportError: an array has a dtype of `ml_dtypes`, which is not installed.
        Exception: as making an array does.
    """
    try:
        said = json.loads(arrays[_ABOUT]().tobytes().decode("utf-8", "replace"))  # flags may have any bytes
        if said["version"] != _VERSION:
            raise ValueError(said["version"])
        name, digest = str(said["function"]), str(said["artifact"])
        facts = {str(key): str(value) for key, value in said["checked"].items() if value}
        returned = [_returned(one, arrays) for one in said["cases"]]
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise ExportError(
            f"{file!r}: expected a file of 'jaxexp-run --cases' with version {_VERSION} of the array {_ABOUT!r}, found "
            "another file or version: make the calls again with the 'jaxexp-run' of this release"
        ) from cause(error)
    if _FLAGS in facts:
        facts[_FLAGS] = " ".join(sorted(split(facts[_FLAGS])))
    expected = _native.artifact_digest(artifact).hex() if cases else "none"
    if digest != expected or len(returned) != len(cases):
        wanted = f"results of the artifact's cases (digest {expected})"
        if not cases:
            wanted = "no results, because the artifact has no cases"
        raise ExportError(
            f"{file!r}: expected {wanted}, found results of another artifact or of other cases (digest {digest}): make "
            "the calls again with 'jaxexp-run --cases'"
        )
    return judged(name, cases, returned, facts, explained, tolerance)


def _returned(said: Mapping[str, Any], arrays: Mapping[str, Callable[[], Array]]) -> Returned:
    results = functools.partial(_results, [arrays[name] for name in said["results"]])
    error = None if said["error"] is None else str(said["error"])
    return Returned([str(path) for path in said["results"].values()], results, error)


def _results(makes: Sequence[Callable[[], Array]], case: Case) -> list[Array]:
    return [_as_held(make(), value.dtype) for make, value in zip(makes, case.results, strict=False)]


def _as_held(array: Array, dtype: str) -> Array:
    """The array of a dtype that NumPy's files have no name for: they have its bytes."""
    held = storage(dtype).dtype
    are_bytes = array.dtype.char == "V" and array.dtype.names is None and array.dtype.itemsize == held.itemsize
    return array.view(held) if are_bytes else array

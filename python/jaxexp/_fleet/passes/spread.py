"""`spread`: a function of one artifact, called with many of them, with many workers."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from jaxexp._errors import ExportTypeError
from jaxexp._fleet.engine.crew import Means
from jaxexp._public import public

from . import one_by_one
from .given import places

if TYPE_CHECKING:
    from jaxexp._fleet.archive.handle import Handle
    from jaxexp._fleet.engine.crew import Workers
    from jaxexp._fleet.places.source import Source

    from .given import GivenToMany


@public
def spread(
    function: Callable[[str | Handle], Any],
    artifacts: Iterable[GivenToMany],
    *,
    executor: Workers | None = None,
    journal: str | os.PathLike[str] | None = None,
    timeout: float | None = None,
) -> Iterator[tuple[str, Any]]:
    """Calls a function with each of many artifacts, with the workers of an executor.

    Args:
        function: it takes a path or a URL, or the `Handle` of a member, and returns a JSON value: None, a bool, a
            number, a text, or a list or dict of these. Workers have to find it by its name in its module.
        artifacts: as in `verify_many`; each member of an archive is one.
        executor: as in `compatibility_many`.
        journal: as in `verify_many`; it has the results, too. It does not notice that the function has changed.
        timeout: as in `verify_many`.

    Returns:
        An iterator of names, each with what the function returned for it. An ExportError, OSError or ImportError that
            it raised takes the place of that; any other exception ends the iteration.

    Raises:
        TypeError: the function has no name, as a lambda; or, while the iterator is used, it returns something else.
        Exception: as in `verify_many`, while the iterator is used.

    Example:
        >>> def size(artifact):
        ...     return jaxexp.inspect(artifact).total_bytes
        >>> largest = max(spread(size, ["models/"]), key=lambda found: found[1])
    """
    name = getattr(function, "__qualname__", "<")
    if "<" in name:
        raise ExportTypeError(f"spread takes a function that workers find by its name in a module, not {function!r}")
    given = one_by_one.inputs(places(artifacts, "spread"))
    means = Means(executor, journal=journal, timeout=timeout)
    found = one_by_one.results(
        f"{function.__module__}.{name}", _called, given, means, lambda said: said, options={"function": function}
    )
    return ((name, one) for _, name, one in found)


def _called(source: Source, kind: str, name: str, *, function: Callable[[Any], Any]) -> Any:
    found = function(source.given)
    return json.loads(json.dumps(found))  # the same as from a journal; a TypeError says what is no JSON value

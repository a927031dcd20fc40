"""`compatibility_many`: tells who reads many artifacts, with many workers."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from jaxexp._fleet.engine.crew import Means
from jaxexp._public import public

from . import one_by_one
from .given import Place, places

if TYPE_CHECKING:
    from jaxexp._compat.compatibility import Compatibility
    from jaxexp._fleet.engine.crew import Workers
    from jaxexp._fleet.engine.work import Unusable
    from jaxexp._fleet.places.source import Source

    from .given import GivenToMany


@public
def compatibility_many(
    artifacts: Iterable[GivenToMany],
    *,
    executor: Workers | None = None,
    journal: str | os.PathLike[str] | None = None,
    timeout: float | None = None,
) -> Iterator[tuple[str, Compatibility | Exception]]:
    """Tells who can load each of many artifacts, as `compatibility` does, with the workers of an executor.

    Args:
        artifacts: as in `verify_many`; each member of an archive is one.
        executor: as in `verify_many`. Modules are parsed under Python's global lock, so processes help, and threads do
            not.
        journal: as in `verify_many`; it has the results, too.
        timeout: as in `verify_many`.

    Returns:
        An iterator of names, each with its result, or with the error if it cannot be read, in the order in which they
            are found. Only a few shares of the work are read ahead: a million artifacts need no more memory than a
            thousand.

    Raises:
        Exception: as in `verify_many`, while the iterator is used.

    Example:
        >>> for name, found in compatibility_many(["fleet.zip"], executor=client.get_executor()):
        ...     print(name, found.readable_by("0.6.2"))
    """
    given = places(artifacts, "compatibility_many")
    means = Means(executor, journal=journal, timeout=timeout)
    return ((name, one) for _, name, one in described(given, means))


def described(given: Iterable[Place | Unusable], means: Means) -> Iterator[one_by_one.Result]:
    """The same, with the place of each artifact."""
    from jaxexp._compat.compatibility import from_json

    inputs = one_by_one.inputs(given)
    return one_by_one.results("compatibility", _facts, inputs, means, from_json)


def _facts(source: Source, kind: str, name: str) -> Any:
    from jaxexp._compat.compatibility import compatibility_of, to_json

    with source.named():
        return to_json(compatibility_of(source.read()))

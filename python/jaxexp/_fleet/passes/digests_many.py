"""`digests_many`: what many artifacts can be known by, with many workers."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from jaxexp._fleet.engine.crew import Means
from jaxexp._fleet.places.digests import Digests, digests_of
from jaxexp._public import public

from . import one_by_one
from .given import Place, places

if TYPE_CHECKING:
    from jaxexp._fleet.engine.crew import Workers
    from jaxexp._fleet.engine.work import Unusable
    from jaxexp._fleet.places.source import Source

    from .given import GivenToMany


@public
def digests_many(
    artifacts: Iterable[GivenToMany],
    *,
    executor: Workers | None = None,
    journal: str | os.PathLike[str] | None = None,
    timeout: float | None = None,
) -> Iterator[tuple[str, Digests | Exception]]:
    """The digests of many artifacts and of their meanings, as `digests` returns them, with the workers of an executor.

    Args:
        artifacts: as in `verify_many`; each member of an archive is one.
        executor: as in `compatibility_many`.
        journal: as in `verify_many`; it has the results, too.
        timeout: as in `verify_many`.

    Returns:
        An iterator of names, each with its result or its error, as in `compatibility_many`.

    Raises:
        Exception: as in `verify_many`, while the iterator is used.

    Example:
        >>> names = collections.defaultdict(list)
        >>> for name, found in digests_many(["fleet.zip"], executor=client.get_executor()):
        ...     if not isinstance(found, Exception):
        ...         names[found.meaning].append(name)
    """
    given = places(artifacts, "digests_many")
    means = Means(executor, journal=journal, timeout=timeout)
    return ((name, one) for _, name, one in digested(given, means))


def digested(given: Iterable[Place | Unusable], means: Means) -> Iterator[one_by_one.Result]:
    """The same, with the place of each artifact."""
    inputs = one_by_one.inputs(given)
    return one_by_one.results("digest", _facts, inputs, means, _of_json, reads_files=True)


def _of_json(said: dict[str, Any]) -> Digests:
    return Digests(str(said["sha256"]), str(said["meaning"]))


def _facts(source: Source, kind: str, name: str) -> dict[str, Any]:
    return dataclasses.asdict(digests_of(source))

"""`digests_many`: what many artifacts can be known by, with many workers."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from jaxexp._fleet.engine.crew import Means
from jaxexp._fleet.places.digests import Digests, digests_and_files
from jaxexp._public import public

from . import files_beside, one_by_one
from .given import Place, places

if TYPE_CHECKING:
    from jaxexp._fleet.engine.crew import Workers
    from jaxexp._fleet.engine.work import Part, Parts, Unusable
    from jaxexp._fleet.places.source import Source

    from .given import GivenToMany


@public
def digests_many(
    artifacts: Iterable[GivenToMany],
    *,
    executor: Workers | None = None,
    journal: str | os.PathLike[str] | None = None,
    wait_for_workers: float | None = 60,
) -> Iterator[tuple[str, Digests | Exception]]:
    """The digests of many artifacts and of their meanings, as `digests` returns them, with the workers of an executor.

    Args:
        artifacts: as in `verify_many`; each member of an archive is one.
        executor: as in `compatibility_many`.
        journal: as in `verify_many`; it has the results, too.
        wait_for_workers: as in `verify_many`.

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
    means = Means(executor, journal=journal, wait_for_workers=wait_for_workers)
    return ((name, one) for _, name, one in digested(given, means))


def digested(given: Iterable[Place | Unusable], means: Means) -> Iterator[one_by_one.Result]:
    """The same, with the place of each artifact."""
    home, inputs = "_fleet.passes.digests_many:in_worker", one_by_one.inputs(given)
    for place, name, one in one_by_one.results("digest", home, inputs, means, _Found.of, still_holds=_is_current):
        yield place, name, one.digests if isinstance(one, _Found) else one


@dataclasses.dataclass(frozen=True, slots=True)
class _Found:
    """The digests of an artifact, and the files of weights beside it that were read."""

    digests: Digests
    weights: files_beside.Stamped

    @classmethod
    def of(cls, said: dict[str, Any]) -> _Found:
        return cls(Digests(str(said["sha256"]), str(said["meaning"])), files_beside.of_json(said["weights"]))


def _is_current(part: Part, inside: str, found: _Found) -> bool:
    return files_beside.are_unchanged(part, found.weights)


# --- in workers -----------------------------------------------------------------------------------------------------


def in_worker(parts: Parts, options: None) -> list[Any]:
    """Reads artifacts and their weights: returns the fields of a `_Found` for each."""
    return one_by_one.looked_at(parts, _facts)


def _facts(source: Source, kind: str, name: str) -> dict[str, Any]:
    digests, files = digests_and_files(source, lambda names: files_beside.stamped(source.path, names))
    return {**dataclasses.asdict(digests), "weights": files}

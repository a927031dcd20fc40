"""`compatibility_many`: who reads many artifacts, found out by many workers."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from jaxexp._bulk.engine import Task, findings
from jaxexp._bulk.work import Unusable
from jaxexp._public import public

from . import one_by_one
from .folders import Folders
from .given import Place, places, several

if TYPE_CHECKING:
    from jaxexp._bulk.crew import Workers
    from jaxexp._compat.compatibility import Compatibility

    from .given import GivenToMany


@public
def compatibility_many(
    artifacts: Iterable[GivenToMany],
    *,
    executor: Workers | None = None,
    journal: str | os.PathLike[str] | None = None,
) -> Iterator[tuple[str, Compatibility | Exception]]:
    """Says of many artifacts who can load them, as `compatibility` does, by the workers of an executor.

    Args:
        artifacts: as in `verify_many`; each member of an archive counts.
        executor: as in `verify_many`. Modules are parsed under Python's global lock, so processes help, and threads do
            not.
        journal: as in `verify_many`; it has the results, too.

    Returns:
        An iterator of names with results, or with the error of what cannot be read, in the order in which they are
        found. A limited number of shares is ahead of it, so a million artifacts need no more memory than a thousand.

    Raises:
        Exception: as in `verify_many`, while the iterator is used.

    Example:
        >>> for name, found in compatibility_many(["fleet.zip"], executor=client.get_executor()):
        ...     print(name, found.readable_by("0.6.2"))
    """
    given = several(artifacts, "compatibility_many")
    found = described(places(given, Folders(), "compatibility_many"), executor=executor, journal=journal)
    return ((name, one) for _, name, one in found)


def described(
    given: Iterable[Place | Unusable],
    *,
    executor: Workers | None,
    journal: str | os.PathLike[str] | None,
) -> Iterator[one_by_one.Result]:
    """The same, with the place of each artifact."""
    from jaxexp._compat.compatibility import from_json

    task = Task(
        "compatibility",
        "_sources.passes:compatible",
        options={},
        about={},
        with_jax=True,
        share_bytes=one_by_one.SHARE_BYTES,
        unit_bytes=one_by_one.UNIT_BYTES,
        decoded=one_by_one.decoder(from_json),
        is_current=one_by_one.is_current,
    )
    with task.journal(journal) as remembered:
        for finding in findings(task, one_by_one.inputs(given), executor, remembered):
            yield from one_by_one.results(finding)

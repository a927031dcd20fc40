"""`check_many`: whether many artifacts still compute what was recorded in them, with many workers."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from jaxexp._fleet.engine.crew import Means
from jaxexp._fleet.places.check import check
from jaxexp._public import public

from . import one_by_one
from .given import Place, places

if TYPE_CHECKING:
    from jaxexp._api.cases.report import CheckReport
    from jaxexp._fleet.engine.crew import Workers
    from jaxexp._fleet.engine.work import Unusable
    from jaxexp._fleet.places.source import Source

    from .given import GivenToMany


@public
def check_many(
    artifacts: Iterable[GivenToMany],
    *,
    tolerance: Any = None,
    max_drawn_bytes: int = 1 << 32,
    executor: Workers | None = None,
    journal: str | os.PathLike[str] | None = None,
    timeout: float | None = None,
) -> Iterator[tuple[str, CheckReport | Exception]]:
    """Checks many artifacts as `check` does, with the workers of an executor.

    Args:
        artifacts: as in `verify_many`; each member of an archive is one.
        tolerance, max_drawn_bytes: as in `Exported.check`.
        executor: as in `compatibility_many`.
        journal: as in `verify_many`; it has the reports, too, and forgets them when JAX, the machine or flags change.
        timeout: as in `verify_many`.

    Returns:
        An iterator of names, each with its report, or its error if it cannot be loaded, as in `compatibility_many`.

    Raises:
        ExportError: the tolerance is negative, or not finite.
        Exception: as in `verify_many`, while the iterator is used.

    Example:
        >>> broken = [name for name, found in check_many(["models/"]) if isinstance(found, Exception) or not found.ok]
    """
    given = places(artifacts, "check_many")
    means = Means(executor, journal=journal, timeout=timeout)
    return ((name, one) for _, name, one in checked(given, means, tolerance, max_drawn_bytes))


def checked(
    given: Iterable[Place | Unusable], means: Means, tolerance: Any, max_drawn_bytes: int
) -> Iterator[one_by_one.Result]:
    """The same, with the place of each artifact."""
    from jaxexp._api.cases.report import CheckReport
    from jaxexp._kernel.artifact.cases import Tolerance

    within = None if tolerance is None else Tolerance.of(tolerance)
    about: dict[str, Any] = {"tolerance": None if within is None else list(within), "max_drawn_bytes": max_drawn_bytes}
    if means.journal is not None:
        from jaxexp._api.cases.calling import environment

        about["environment"] = environment()
    return one_by_one.results(
        "check", _report, one_by_one.inputs(given), means, CheckReport.from_json,
        options={"tolerance": within, "max_drawn_bytes": max_drawn_bytes}, about=about, reads_files=True,
    )  # fmt: skip


def _report(source: Source, kind: str, name: str, *, tolerance: Any, max_drawn_bytes: int) -> Any:
    return check(source.given, tolerance=tolerance, max_drawn_bytes=max_drawn_bytes).to_json()

"""`check_many`: whether many artifacts still compute what was recorded in them, with many workers."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from jaxexp import _native
from jaxexp._fleet.engine.crew import Means
from jaxexp._fleet.places.check import check
from jaxexp._kernel.artifact.opened import tables_of
from jaxexp._public import public

from . import files_beside, one_by_one
from .given import Place, places

if TYPE_CHECKING:
    from jaxexp._api.cases.report import CheckReport
    from jaxexp._fleet.engine.crew import Workers
    from jaxexp._fleet.engine.work import Part, Parts, Unusable
    from jaxexp._fleet.places.source import Source
    from jaxexp._kernel.artifact.cases import Tolerance

    from .given import GivenToMany


@public
def check_many(
    artifacts: Iterable[GivenToMany],
    *,
    tolerance: Any = None,
    max_drawn_bytes: int = 1 << 32,
    executor: Workers | None = None,
    journal: str | os.PathLike[str] | None = None,
    wait_for_workers: float | None = 60,
) -> Iterator[tuple[str, CheckReport | Exception]]:
    """Checks many artifacts as `check` does, with the workers of an executor.

    Args:
        artifacts: as in `verify_many`; each member of an archive is one.
        tolerance, max_drawn_bytes: as in `Exported.check`.
        executor: as in `compatibility_many`.
        journal: as in `verify_many`; it has the reports, too, and forgets them when JAX, the machine or flags change.
        wait_for_workers: as in `verify_many`.

    Returns:
        An iterator of names, each with its report, or its error if it cannot be loaded, as in `compatibility_many`.

    Raises:
        ExportError: the tolerance is negative, or not finite.
        Exception: as in `verify_many`, while the iterator is used.

    Example:
        >>> broken = [name for name, found in check_many(["models/"]) if isinstance(found, Exception) or not found.ok]
    """
    given = places(artifacts, "check_many")
    means = Means(executor, journal=journal, wait_for_workers=wait_for_workers)
    how = How.of(tolerance, max_drawn_bytes)
    return ((name, one) for _, name, one in checked(given, means, how))


@dataclasses.dataclass(frozen=True, slots=True)
class How:
    """The options of a check."""

    tolerance: Tolerance | None
    max_drawn_bytes: int

    @classmethod
    def of(cls, tolerance: Any, max_drawn_bytes: int) -> How:
        from jaxexp._kernel.artifact.cases import Tolerance

        return cls(None if tolerance is None else Tolerance.of(tolerance), max_drawn_bytes)


def checked(given: Iterable[Place | Unusable], means: Means, how: How) -> Iterator[one_by_one.Result]:
    """The same, with the place of each artifact."""
    tolerance = None if how.tolerance is None else list(how.tolerance)
    about: dict[str, Any] = {"tolerance": tolerance, "max_drawn_bytes": how.max_drawn_bytes}
    if means.journal is not None:
        from jaxexp._api.cases.calling import environment

        about["environment"] = environment()
    home, inputs = "_fleet.passes.check_many:in_worker", one_by_one.inputs(given)
    found = one_by_one.results(
        "check", home, inputs, means, _Found.of, options=how, about=about, still_holds=_is_current
    )
    for place, name, one in found:
        yield place, name, one.report if isinstance(one, _Found) else one


@dataclasses.dataclass(frozen=True, slots=True)
class _Found:
    """A report, and the files beside the artifact that it depends on."""

    report: CheckReport
    files: files_beside.Stamped

    @classmethod
    def of(cls, said: dict[str, Any]) -> _Found:
        from jaxexp._api.cases.report import CheckReport

        return cls(CheckReport.from_json(said["report"]), files_beside.of_json(said["files"]))


def _is_current(part: Part, inside: str, found: _Found) -> bool:
    return files_beside.are_unchanged(part, found.files)


# --- in workers -----------------------------------------------------------------------------------------------------


def in_worker(parts: Parts, options: How) -> list[Any]:
    """Checks artifacts: returns the fields of a `_Found` for each."""

    def facts(source: Source, kind: str, name: str) -> dict[str, Any]:
        given: Any = source.path if source.handle is None else source.handle
        files = () if source.path is None else files_beside.stamped(source.path, _files(source))
        report = check(given, tolerance=options.tolerance, max_drawn_bytes=options.max_drawn_bytes)
        return {"report": report.to_json(), "files": files}

    return one_by_one.looked_at(parts, facts)


def _files(source: Source) -> list[str]:
    """The names of the files of weights and cases beside an artifact."""
    with source.named():
        return [name for files, *_ in tables_of(_native.Artifact(source.read())) for name, *_ in files]

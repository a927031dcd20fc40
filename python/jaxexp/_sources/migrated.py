"""`migrate_many`: many artifacts for another reader, written into a folder by many workers."""

from __future__ import annotations

import dataclasses
import itertools
import os
from collections.abc import Iterable, Iterator
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from jaxexp import _native
from jaxexp._bulk.engine import Task, findings
from jaxexp._bulk.work import Input, Part, Unusable
from jaxexp._errors import ExportError
from jaxexp._io import files
from jaxexp._public import public

from . import one_by_one, targets
from .folders import Folders
from .given import Place, places, several

if TYPE_CHECKING:
    from jaxexp._bulk.crew import Workers
    from jaxexp._read.policy import Policy

    from .given import GivenToMany


@public
def migrate_many(
    artifacts: Iterable[GivenToMany],
    into: str | os.PathLike[str],
    to: str | None = None,
    *,
    executor: Workers | None = None,
    journal: str | os.PathLike[str] | None = None,
    policy: Policy | None = None,
) -> dict[str, Exception]:
    """Rewrites many artifacts, as `migrate` does, by the workers of an executor.

    The new artifacts are files in a folder, named like the members of an archive and like the files below a folder
    that was given, with the suffix ``.jaxexp``. If several are given, the members of an archive lie in a folder of its
    name. Workers write the files, each complete or not at all. Weights of members are written beside them;
    an artifact with weights in files beside it can only be written into the same folder.

    Args:
        artifacts: as in `verify_many`; each member of an archive counts.
        into: the folder, which workers have to find by this name. Files in it are replaced.
        to: for which release to write, as in `migrate`.
        executor: as in `verify_many`. Modules are parsed under Python's global lock, so processes help, and threads do
            not.
        journal: as in `verify_many`. What it says is done is done again if the new file is not there as it was written.
        policy: what the artifacts may contain, as in `deserialize`.

    Returns:
        The errors of the artifacts that were not migrated, by their names.

    Raises:
        ExportError: `to` names no reader; or as in `verify_many`.
        OSError: the folder cannot be made.
        Exception: as in `verify_many`.

    Example:
        >>> failed = migrate_many(["old.zip"], "new/", executor=client.get_executor(), journal="migrate.journal")
    """
    given = places(several(artifacts, "migrate_many"), Folders(), "migrate_many")
    found = migrated(given, into, to, executor=executor, journal=journal, policy=policy)
    return {name: one for _, name, one in found if isinstance(one, Exception)}


def migrated(
    given: Iterable[Place | Unusable],
    into: str | os.PathLike[str],
    to: str | None,
    *,
    executor: Workers | None,
    journal: str | os.PathLike[str] | None,
    policy: Policy | None,
) -> Iterator[one_by_one.Result]:
    """The same, artifact by artifact: what was found is the file that was written."""
    from jaxexp._compat.migrate import check_reader

    check_reader(to, "to=")
    folder = os.path.abspath(os.fsdecode(into))
    os.makedirs(folder, exist_ok=True)
    task = Task(
        "migrate",
        "_sources.passes:migrated",
        options={"into": folder, "to": to, "policy": policy},
        about={"into": folder, "to": to, "policy": None if policy is None else repr(policy)},
        with_jax=True,
        share_bytes=one_by_one.SHARE_BYTES,
        unit_bytes=one_by_one.UNIT_BYTES,
        decoded=one_by_one.decoder(Written.of),
        is_current=_is_current,
    )
    with task.journal(journal) as remembered:
        for finding in findings(task, _Names().checked(given), executor, remembered):
            yield from one_by_one.results(finding)


@dataclasses.dataclass(frozen=True, slots=True)
class Written:
    """A new file, and the digest of its bytes."""

    file: str
    size: int
    digest: str
    weights: tuple[tuple[str, int], ...] = ()

    @classmethod
    def of(cls, said: dict[str, Any]) -> Written:
        weights = tuple((str(name), int(size)) for name, size in said["weights"])
        return cls(str(said["file"]), int(said["size"]), str(said["digest"]), weights)

    def is_there(self) -> bool:
        try:
            whole = (
                self.size == os.path.getsize(self.file) and _native.digest(files.mapped(self.file)).hex() == self.digest
            )
            return whole and all(os.path.getsize(name) == size for name, size in self.weights)
        except (OSError, ValueError):
            return False


def _is_current(part: Part, found: list[Any]) -> bool:
    written = (one for one in found if isinstance(one, Written))
    return one_by_one.is_current(part, found) and all(one.is_there() for one in written)


class _Names:
    """The files that will be written: no two artifacts may have one."""

    def __init__(self) -> None:
        self._files: set[str] = set()
        self._parents: set[str] = set()
        self._folders: set[str] = set()

    def checked(self, given: Iterable[Place | Unusable]) -> Iterator[Input | Unusable]:
        """The artifacts as inputs; what would be written to the file of another is unusable."""
        found = iter(given)
        first, second = next(found, None), next(found, None)
        if first is not None and second is None and not isinstance(first, Unusable) and not first.inside:
            yield from one_by_one.inputs([first])  # one archive: its members lie in the folder itself
            return
        rest = [one for one in (first, second) if one is not None]
        yield from one_by_one.inputs((self._named(one) for one in itertools.chain(rest, found)), _folder_of)

    def _named(self, place: Place | Unusable) -> Place | Unusable:
        if isinstance(place, Unusable):
            return place
        if place.archive is not None:
            name = _folder_of(place)
            taken = name in self._folders or name in self._parents
            self._folders.add(name)
        else:
            name = targets.stem(place.inside)
            parents = {str(parent) for parent in PurePosixPath(name).parents}
            taken = name in self._files or bool(parents & self._folders)
            self._files.add(name)
            self._parents |= parents
        if taken:
            error = ExportError(f"{place.name!r} would be written to the same place as another: {name!r}")
            return Unusable(place.name, error, place)
        return place


def _folder_of(place: Place) -> str:
    return place.inside or os.path.basename(place.name)

"""`migrate_many`: many artifacts for another reader, written into a folder by many workers."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from jaxexp import _native
from jaxexp._errors import ExportError
from jaxexp._fleet.archive.archive import Archive, parts_of
from jaxexp._fleet.engine.crew import Means
from jaxexp._fleet.engine.work import FILE, Input, Parts, Unusable
from jaxexp._fleet.places.source import link_of_file
from jaxexp._kernel.io import files
from jaxexp._public import public

from . import one_by_one, targets
from .folders import Folders
from .given import Place, places

if TYPE_CHECKING:
    from jaxexp._fleet.engine.crew import Workers
    from jaxexp._fleet.places.source import Source
    from jaxexp._policy.policy import Policy
    from jaxexp._weights.arrays.stored import WithDigests

    from .given import GivenToMany

_SUFFIX = ".jaxexp"


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
    name, also if they are named one by one. Workers write the files, each complete or not at all. Weights of members
    are written beside them; an artifact with weights in files beside it can only be written into the same folder.

    Args:
        artifacts: as in `verify_many`; each member of an archive counts. What would be written to the place of one
            before it is an error.
        into: the folder, which workers have to find by this name. Files in it are replaced. If it lies in a folder that
            is given, it is left out there.
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
    from jaxexp._api.load import check_policy

    check_policy(policy)
    given = places(artifacts, "migrate_many", Folders(without=os.fsdecode(into)))
    found = migrated(given, into, to, Means(executor, journal=journal), policy)
    return {name: one for _, name, one in found if isinstance(one, Exception)}


def migrated(
    given: Iterable[Place | Unusable],
    into: str | os.PathLike[str],
    to: str | None,
    means: Means,
    policy: Policy | None = None,
) -> Iterator[one_by_one.Result]:
    """The same, artifact by artifact: what was found is the file that was written."""
    from jaxexp._compat.migrate import check_reader

    check_reader(to, "to=")
    folder = os.path.abspath(os.fsdecode(into))
    os.makedirs(folder, exist_ok=True)
    return one_by_one.results(
        "migrate",
        "_fleet.passes.migrate_many:in_worker",
        _Names().checked(given),
        means,
        Written.of,
        options={"into": folder, "to": to, "policy": policy},
        about={"into": folder, "to": to, "policy": None if policy is None else repr(policy)},
        still_holds=Written.is_there,
    )


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


class _Names:
    """Where artifacts will be written: no two of them to one place."""

    def __init__(self) -> None:
        self._files: set[str] = set()
        self._folders: dict[str, _Folder] = {}
        self._parents: set[str] = set()  # of files and of folders

    def checked(self, given: Iterable[Place | Unusable]) -> Iterator[Input | Unusable]:
        """The artifacts as inputs; what would be written to the place of another is unusable."""
        found = iter(given)
        first, second = next(found, None), next(found, None)
        if first is not None and second is None and not isinstance(first, Unusable) and not first.inside:
            yield from _told_apart(
                one_by_one.inputs([first]), lambda _: ""
            )  # one archive: its members lie in the folder
            return
        rest = [one for one in (first, second) if one is not None]
        named = (self._named(one) for one in itertools.chain(rest, found))
        yield from _told_apart(one_by_one.inputs(named, _folder_of), _target)

    def _named(self, place: Place | Unusable) -> Place | Unusable:
        if isinstance(place, Unusable):
            return place
        name = _target(place)
        parents = {str(parent) for parent in PurePosixPath(name).parents} - {"."}
        if parents & self._folders.keys() or not self._takes(name, place.archive):
            label = place.name if place.archive is None else _label(place.archive)
            error = ExportError(f"{label!r} would be written to the same place as another: {name!r}")
            return Unusable(label, error, place)
        self._parents |= parents
        return place

    def _takes(self, name: str, archive: Archive | None) -> bool:
        """Takes the name of a file, or of a folder for members of an archive, if nobody else has it."""
        if archive is None:
            is_free = name not in self._files
            self._files.add(name)
            return is_free
        if name in self._folders:
            return self._folders[name].takes(archive)
        if name in self._parents:
            return False
        self._folders[name] = _Folder(archive)
        return True


class _Folder:
    """The folder of an archive's members, which may be named in several turns."""

    def __init__(self, archive: Archive) -> None:
        opened, names = parts_of(archive)
        self._address = opened.source.address
        self._names = None if names is None else set(names)

    def takes(self, archive: Archive) -> bool:
        """Whether members can be written there, too: they are of the same archive, and others."""
        opened, names = parts_of(archive)
        if self._names is None or names is None or opened.source.address != self._address:
            return False
        if not self._names.isdisjoint(names):
            return False
        self._names.update(names)
        return True


def _told_apart(inputs: Iterable[Input | Unusable], target: Callable[[Place], str]) -> Iterator[Input | Unusable]:
    """Inputs that are others where they are written to another place."""
    for one in inputs:
        yield one if isinstance(one, Unusable) else dataclasses.replace(one, identity=[one.identity, target(one.about)])


def _target(place: Place) -> str:
    """The folder for the members of an archive; the name of a file, without the suffix."""
    return targets.stem(place.inside) if place.archive is None else _folder_of(place)


def _label(archive: Archive) -> str:
    """The name of an archive, or of its member if that is all that is meant."""
    opened, names = parts_of(archive)
    return archive.name if names is None or len(names) != 1 else opened.label(names[0])


def _folder_of(place: Place) -> str:
    assert place.archive is not None
    return place.inside or os.path.basename(link_of_file(place.archive.name))


# --- in workers -----------------------------------------------------------------------------------------------------


def in_worker(parts: Parts, options: dict[str, Any]) -> list[Any]:
    """Writes artifacts anew: what `Written` says of each."""
    return one_by_one.looked_at(parts, functools.partial(_write, **options))


def _write(source: Source, kind: str, name: str, *, into: str, to: str | None, policy: Policy | None) -> dict[str, Any]:
    """Migrates an artifact.

    Args:
        source: where it is.
        kind: whether it is a file, or a member.
        name: what it is called below the folder.
        into: the folder.
        to: for which release.
        policy: what the artifact may contain.

    Raises:
        ExportError: it cannot be migrated.
        OSError: it cannot be read, or not be written.
    """
    from jaxexp._compat.migrate import migrated

    path = targets.inside(into, targets.stem(name) if kind == FILE else name, _SUFFIX)
    with source.named():
        buffer = source.read(None if policy is None else policy.check_size)
        if policy is not None:
            from jaxexp._api.load import deserialize

            deserialize(buffer, policy=policy)
        if (folders := apart(source, buffer, path)) is not None:
            raise ExportError(
                f"{source.name!r} has weights in files beside it, so it has to be written into the same folder, "
                f"{folders[0]!r}, and not into {folders[1]!r}"
            )
        blob = migrated(buffer, to, None)
        targets.make_folder(into, path)
        weights = source.stored_weights()  # first: no program is without its weights
        beside = [] if weights is None else _write_weights(os.path.dirname(path), weights)
    files.replace(path, [blob])
    return dataclasses.asdict(Written(path, len(blob), _native.digest(blob).hex(), tuple(beside)))


def apart(source: Source, buffer: Any, path: str) -> tuple[str, str] | None:
    """The folder with the weights of an artifact and the folder of a path, if they are two; None if that is no
    matter."""
    if source.path is None or _native.Artifact(buffer).weights() is None:
        return None
    folder, other = (os.path.realpath(os.path.dirname(file)) for file in (source.path, path))
    return None if folder == other else (folder, other)


def _write_weights(folder: str, weights: WithDigests) -> list[tuple[str, int]]:
    """Writes files of weights under the names that say what is in them: so workers are not in each other's way."""
    from jaxexp._weights.arrays.unpacking import Unpacking
    from jaxexp._weights.files import content, places

    planned: list[tuple[str, int]] = []
    for number, file in enumerate(weights.table.files):
        places.check_name(file.name)
        planned.append((os.path.join(folder, content.second_name(file.name, file.content)), number))
    Unpacking().write(planned, weights)
    return [(path, weights.table.files[number].size) for path, number in planned]

"""`migrate_many`: rewrites many artifacts for another release, into a folder, with many workers."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from jaxexp import _native
from jaxexp._errors import ExportError
from jaxexp._fleet.archive.archive import Archive, parts_of
from jaxexp._fleet.engine.engine import Input, Means, Unusable
from jaxexp._fleet.places.folders import Folders
from jaxexp._fleet.places.source import Source, path_in
from jaxexp._fleet.places.verify import files_of
from jaxexp._kernel.io import files
from jaxexp._kernel.io.other_files import ARTIFACT
from jaxexp._public import public

from . import many
from .many import Place, places

if TYPE_CHECKING:
    from jaxexp._fleet.engine.engine import Workers
    from jaxexp._fleet.places.source import Opened
    from jaxexp._policy.policy import Policy
    from jaxexp._weights.files.reading import Tensors

    from .many import GivenToMany


_ON_WINDOWS = os.name == "nt"
# Parts of a path that mean something else on Windows: drives, streams, other folders, devices, ends that are cut off.
_ELSEWHERE_ON_WINDOWS = re.compile(
    r'[<>:"|?*\\]|[. ]$|^(con|prn|aux|nul|conin\$|conout\$|(com|lpt)[0-9¹²³]) *(\.|$)', re.IGNORECASE
)


def inside(directory: str, name: str, suffix: str) -> str:
    """The path of a member's file; an ExportError if it would lie outside of the directory, here or on Windows."""
    parts = PurePosixPath(name).parts
    elsewhere = PurePosixPath(name).is_absolute() or ".." in parts or os.sep in suffix or "/" in suffix
    if _ON_WINDOWS:
        elsewhere = elsewhere or any(_ELSEWHERE_ON_WINDOWS.search(part) for part in parts)
    if elsewhere or not parts or "\0" in name:
        raise ExportError(f"the member {name!r} would not lie inside {directory!r}")
    return os.path.join(directory, *parts) + suffix


def make_folder(directory: str, target: str) -> None:
    """Makes the folders that a file needs; an ExportError if a link in the directory leads out of it."""
    os.makedirs(directory, exist_ok=True)
    root = os.path.realpath(directory)
    if os.path.commonpath([os.path.realpath(target), root]) != root:
        raise ExportError(f"{target!r} is a link that leads out of {directory!r}, or lies behind one")
    os.makedirs(os.path.dirname(target), exist_ok=True)


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
    timeout: float | None = None,
    locations: str = "full",
) -> dict[str, Exception]:
    """Rewrites many artifacts, as `migrate` does, with the workers of an executor.

    The new artifacts are files in a folder, with the names of the members of the archive or of the files in the given
    folder, and the suffix ``.jaxexp``. With several inputs, the members of an archive go into a folder with the
    archive's name. Workers write each file completely or not at all. Weights and cases of members are written beside
    them, into files whose names end in a digest of the content. An artifact with weights in files beside it can only be
    written into the same folder.

    Args:
        artifacts: as in `verify_many`. Each member of an archive is an artifact. If two artifacts have the same new
            path, the second is an error.
        into: the folder, by a path that is valid for all workers. Files in it are replaced. If it is inside a folder in
            `artifacts`, it is not read.
        to: the release to write for, as in `migrate`.
        executor: as in `verify_many`. Modules are parsed under Python's global lock, so processes help, and threads do
            not.
        journal: as in `verify_many`. New files that are missing or have changed are written again.
        policy: the allowed contents of the artifacts, as in `deserialize`.
        timeout: as in `verify_many`.
        locations: the source locations that the new artifacts keep, as in `Exported.serialize`.

    Returns:
        The errors of the artifacts that were not migrated, by name.

    Raises:
        ExportError: `into` is a file, `to` does not name a release, or `locations` is not one of its choices; or as in
            `verify_many`.
        OSError: the folder cannot be made.
        Exception: as in `verify_many`.

    Example:
        >>> failed = migrate_many(["old.zip"], "new/", executor=client.get_executor(), journal="migrate.journal")
    """
    from jaxexp._api.load import check_policy

    check_policy(policy)
    folder = files.path_of(into, "into=")
    if not os.path.isdir(folder) and (os.path.exists(folder) or folder.endswith((".jaxexp", ".zip"))):
        raise ExportError(f"into= takes a folder for the new artifacts, and {folder!r} is a file, or the name of one")
    given = places(artifacts, "migrate_many", Folders(without=folder))
    means = Means(executor, journal=journal, timeout=timeout)
    found = migrated(given, folder, to, means, policy, locations)
    return {name: one for _, name, one in found if isinstance(one, Exception)}


def migrated(
    given: Iterable[Place | Unusable],
    into: str,
    to: str | None,
    means: Means,
    policy: Policy | None = None,
    locations: str = "full",
) -> Iterator[many.Result]:
    """The same, artifact by artifact: each result is the file that was written."""
    from jaxexp._kernel.module.locations import check_choice as check_locations
    from jaxexp._kernel.write.reader import check_choice

    check_choice(to, "to=")
    check_locations(locations)
    folder = os.path.abspath(into)
    os.makedirs(folder, exist_ok=True)
    return many.results(
        "migrate",
        functools.partial(_write, into=folder, to=to, policy=policy, locations=locations),
        given,
        means,
        Written.of,
        about={"into": folder, "to": to, "policy": None if policy is None else repr(policy), "locations": locations},
        inputs=_Names().checked,
        still_holds=lambda name, found: found.is_there(inside(folder, name, _SUFFIX)),
    )


@dataclasses.dataclass(frozen=True, slots=True)
class Written:
    """A new file, the digest of its bytes, and the files that were written beside it."""

    file: str
    size: int
    digest: str
    weights: tuple[tuple[str, int], ...] = ()

    @classmethod
    def of(cls, said: dict[str, Any]) -> Written:
        weights = tuple((str(name), int(size)) for name, size in said["weights"])
        return cls(str(said["file"]), int(said["size"]), str(said["digest"]), weights)

    def is_there(self, path: str) -> bool:
        """Whether this is the file at a path, with its weights and cases beside it. A journal may say anything."""
        try:
            if self.file != path or not self.size == os.path.getsize(path) > 0:
                return False
            found = Source(path, path).opened()
            return _native.digest(found.buffer).hex() == self.digest and self.weights in ((), files_of(found))
        except (OSError, ValueError):
            return False


class _Names:
    """The places that artifacts are written to, all different."""

    def __init__(self) -> None:
        self._files: set[str] = set()
        # The archive of each folder, and its members that are written there; None for all.
        self._folders: dict[str, tuple[Any, set[str] | None]] = {}
        self._parents: set[str] = set()  # the parents of files and of folders

    def checked(self, given: Iterable[Place | Unusable]) -> Iterator[Input | Unusable]:
        """The artifacts as inputs; one that would be written to the place of another is unusable."""
        found = iter(given)
        first = list(itertools.islice(found, 2))
        # The members of a single archive lie in the folder itself.
        is_single = len(first) == 1 and not isinstance(first[0], Unusable) and not first[0].inside
        target: Callable[[Place], str] = (lambda place: "") if is_single else _target
        for one in many.members(first if is_single else map(self._named, itertools.chain(first, found)), target):
            if isinstance(one, Unusable):
                yield one
            else:  # written to another place, an input is a different one
                yield dataclasses.replace(one, identity=[one.identity, target(one.about)])

    def _named(self, place: Place | Unusable) -> Place | Unusable:
        if isinstance(place, Unusable):
            return place
        name = _target(place)
        parents = {str(parent) for parent in PurePosixPath(name).parents} - {"."}
        if parents & self._folders.keys() or not self._takes(name, place.archive):
            label = place.name if place.archive is None else _label(place.archive)
            error = ExportError(
                f"{label!r} would be written to the same place as another: {name!r}; migrate one into another folder"
            )
            return Unusable(label, error, place)
        self._parents |= parents
        return place

    def _takes(self, name: str, archive: Archive | None) -> bool:
        """Takes the name of a file, or of a folder for members of an archive, if it is free."""
        if archive is None:
            is_free = name not in self._files
            self._files.add(name)
            return is_free
        opened, names = parts_of(archive)
        new = None if names is None else set(names)
        if name not in self._folders:
            if name in self._parents:
                return False
            self._folders[name] = opened.source.address, new
            return True
        # The members of one archive may be given in several parts.
        address, there = self._folders[name]
        if there is None or new is None or address != opened.source.address or there & new:
            return False
        there |= new
        return True


def _target(place: Place) -> str:
    """The folder for the members of an archive; the name of a file, without the suffix."""
    if place.archive is None:
        return many.stem(place.inside)
    return place.inside or os.path.basename(path_in(place.archive.name))


def _label(archive: Archive) -> str:
    """The name of an archive, or of its member if only one is meant."""
    opened, names = parts_of(archive)
    return archive.name if names is None or len(names) != 1 else opened.label(names[0])


# --- in workers -----------------------------------------------------------------------------------------------------


def _write(found: Opened, name: str, *, into: str, **how: Any) -> dict[str, Any]:
    """Migrates an artifact. The name is where it goes below the folder `into`."""
    path = inside(into, name, _SUFFIX)
    _, blob, beside = write(found.source, path, into, **how)
    return dataclasses.asdict(Written(path, len(blob), _native.digest(blob).hex(), tuple(beside)))


def write(
    source: Source,
    path: str,
    into: str | None,
    to: str | None,
    *,
    policy: Policy | None = None,
    locations: str = "full",
    inputs: tuple[Any, Any] | None = None,
    sizes: Sequence[Mapping[str, int]] | None = None,
    only_new: bool = False,
) -> tuple[Opened, bytearray, list[tuple[str, int]]]:
    """Migrates an artifact, and writes it to a path. Folders are only made below `into`.

    Returns:
        The old and the new artifact, and the paths and sizes of the files that were written beside it.
    """
    from jaxexp._compat.migrate import migrated

    if not only_new:
        files.refuse_to_lose(path, ARTIFACT)  # before anything is written beside it
    found = source.opened(None if policy is None else policy.check_size)
    with source.named():
        if policy is not None:
            from jaxexp._api.load import deserialize

            deserialize(found.buffer, policy=policy)
        is_beside = source.is_file and _folder(source.name) == _folder(path)  # where the files are that it uses
        if source.path is not None and not is_beside and found.artifact.weights() is not None:
            raise ExportError(
                f"{source.name!r}: it has weights in files beside it, so it has to be written into the same folder, "
                f"{_folder(source.path)!r}, and not into {_folder(path)!r}; or 'jaxexp pack' makes an archive of such "
                "artifacts, whose members can be written anywhere"
            )
        stored = None if source.handle is None else source.handle.stored_files()
        rename = (lambda name, _: name) if stored is None else _named_by_content
        written = {} if stored is None else {file.name for file in stored.table.files}
        _, _, case_files, _ = found.artifact.cases() or ((), (), (("none",),), ())
        with_cases = is_beside or {name for name, *_ in case_files} <= set(written)
        own = source.own_metadata()
        blob = migrated(found.buffer, to, inputs, locations, sizes, with_cases, own, rename)
        if into is None:
            into = os.path.dirname(path) or os.curdir
            os.stat(into)
        else:
            make_folder(into, path)
        # First the files beside it, so that no program lacks them.
        beside = [] if stored is None else _write_files(into, path, stored)
    files.replace(path, [blob], ARTIFACT, only_new=only_new)
    return found, blob, beside


def _folder(path: str) -> str:
    return os.path.realpath(os.path.dirname(path))


def _named_by_content(name: str, digest: bytes) -> str:
    """The name of a file beside a new artifact, so that workers do not get in each other's way."""
    from jaxexp._weights.files import places

    places.check_name(name)
    return places.own_name(name, digest)


def _write_files(into: str, path: str, stored: Tensors) -> list[tuple[str, int]]:
    from jaxexp._weights.files.saving import Unpacking

    folder = os.path.dirname(path)
    places = [
        (os.path.join(folder, _named_by_content(file.name, file.content)), file.size) for file in stored.table.files
    ]
    for file, _ in places:
        make_folder(into, file)
    Unpacking().write([(file, number) for number, (file, _) in enumerate(places)], stored)
    return places

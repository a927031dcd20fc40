"""`jaxexp pack`: puts many artifacts into one archive, and takes members out of it."""

from __future__ import annotations

import fnmatch
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

import click

from jaxexp._cli import complaints, completing, inputs, options, outputs
from jaxexp._cli.options import argument, option
from jaxexp._cli.page import progress, say
from jaxexp._errors import ExportError, WeightsError
from jaxexp._fleet.archive.archive import Archive, only
from jaxexp._fleet.passes.many import Place, verified
from jaxexp._fleet.places.source import Opened, path_in
from jaxexp._kernel.artifact.words import counted
from jaxexp._kernel.io import files
from jaxexp._kernel.io.other_files import ARCHIVE, ARTIFACT
from jaxexp._kernel.io.remote import stamp

if TYPE_CHECKING:
    from jaxexp._weights.files.reading import Tensors


@options.command("Pack artifacts into an archive, or remove members of one.", options.HEADERS)
def command(
    archive: options.File = argument("ARCHIVE"),
    paths: tuple[str, ...] = argument("[FILE|FOLDER|NAME=FILE]...", type=completing.Artifact()),
    append: bool = option("--append", "Add to an archive that exists."),
    remove: tuple[str, ...] = option(
        "--remove NAME|GLOB",
        "Remove members from an archive that exists, before the artifacts are added.",
        shell_complete=completing.of_archive,
    ),
    compact: bool = option("--compact", "Then write the archive again, without the bytes of removed members."),
    whole: bool = option("--whole", "Share no modules: every member is an artifact that jax.export reads."),
    force: bool = option("--force", "Replace the archive, or with --append its members, if they exist."),
    keep_going: bool = option(
        "-k, --keep-going",
        "Pack the artifacts that are whole, and list the others last. The exit status is then 1 or 75.",
    ),
    folders: inputs.Folders = options.FOLDERS,
    metadata: tuple[str, ...] = option("-m, --metadata KEY=JSON", "Metadata for each member."),
    spread: options.Spread = options.workers(
        "The number of threads that verify the artifacts before the archive is written; with --executor, the number "
        "in each worker."
    ),
) -> int:
    """Pack artifacts into an archive: a ZIP file from which one member is loaded without reading the others.

    The name of a member is the path of its file without the suffix; for a file in a FOLDER, the path inside that
    folder. In a FOLDER, files with the names or first bytes of artifacts are packed; the last line counts the skipped
    files. Weights in files beside artifacts are packed, too, each tensor once.

    If an artifact is damaged or cannot be read, nothing is packed; with --keep-going, the others are. With
    --keep-going, --workers, --executor or --journal, all artifacts are verified first; then one process writes. The
    archive appears, or changes, when everything is written. Metadata goes into the artifacts; for artifacts of
    jax.export, only the archive's index has it. JAX is not imported.

    If a pattern of --remove matches no member, nothing changes. --compact verifies every artifact first; if one is
    damaged, nothing is freed. Programs that have the archive open keep seeing the old members.

    Example:
      jaxexp pack fleet.zip models/
      jaxexp pack fleet.zip resnet/b8=new.bin --append -m 'commit="0e3c650"'
      jaxexp pack fleet.zip --remove 'resnet/*' --compact
    """
    kind = files.kind_at(archive)
    if kind == ARTIFACT or (kind != ARCHIVE and archive.endswith(".jaxexp")):  # somebody forgot the archive's name
        raise click.UsageError(
            f"the name of the archive comes first, and {archive!r} is {'' if kind else 'the name of '}an artifact: "
            f"jaxexp pack fleet.zip {archive}"
        )
    if os.path.isdir(archive):
        raise click.UsageError(f"the name of the archive comes first, and {archive!r} is a folder")
    files.refuse_to_lose(archive, ARCHIVE)
    if not paths and not remove and not compact:
        raise click.UsageError("there is nothing to pack: name artifacts or folders behind the archive")
    append = append or bool(remove) or compact
    if not append and not force:
        outputs.refuse_existing(archive)
    notes = dict(map(_entry, metadata)) or None
    found = _named(paths, folders) if paths else {}
    failed, stamps = _verified(found, spread, keep_going) if spread.is_asked_for or keep_going else ({}, {})
    done: list[str] = []
    if found or remove:
        with progress("packing", len(found)) as advance, outputs.archive(archive, append, whole) as writer:
            if remove:
                removed = _matching(archive, remove, writer.names())
                writer.remove(*removed)
                advice = "" if compact else "; --compact frees the bytes"
                done.append(f"{counted(len(removed), 'member')} removed, {len(writer):,} left{advice}")
            if not force:
                outputs.refuse_members(archive, found, writer)
            for name, source in found.items():
                advance(1)
                if name in failed:
                    continue
                try:
                    if name in stamps and stamps[name] == _stamp(source):  # it was verified before
                        with source.named():
                            artifact = Opened(source, source.read())
                    else:
                        artifact = inputs.checked(source)
                    weights = _weights(artifact, folders)
                except (ExportError, OSError, click.ClickException) as error:
                    if not keep_going:
                        raise _with_advice(error, found) from error
                    failed[name] = error
                    continue
                if force and name in writer:
                    writer.remove(name)
                try:
                    own = source.own_metadata() if notes is None else notes
                    writer.add_with_weights(name, artifact.buffer, artifact.artifact, weights, own)
                except WeightsError as error:  # a tensor is compared with its digest when it is written
                    if keep_going:  # and was before: it has changed since
                        raise
                    raise _with_advice(error, found) from error
            if found and len(failed) == len(found):
                complaints.complain_of(failed.items())
                # Something that will not go better the next time, if there is such an error.
                why = min(failed.values(), key=complaints.is_temporary)
                raise click.ClickException("nothing was packed") from why
    size = os.path.getsize(archive)
    if found:
        verb = "added" if append else "packed"
        done.append(f"{counted(len(found) - len(failed), 'artifact')} {verb}, {size:,} bytes{folders.said()}")
    if compact:
        Archive.compact(archive, share_modules=not whole)
        done.append(f"{size:,} bytes -> {os.path.getsize(archive):,} bytes")
    for one in done:
        say(f"{archive}: {one}")
    return complaints.ended_with(failed.items())


def _matching(archive: str, patterns: Iterable[str], names: Sequence[str]) -> dict[str, None]:
    """The members that a name or a pattern stands for; each has to stand for one at least."""
    found: dict[str, None] = {}
    for pattern in patterns:  # a name is a pattern for itself
        matching = [pattern] if pattern in names else [n for n in names if fnmatch.fnmatchcase(n, pattern)]
        if not matching:
            raise inputs.no_member(archive, pattern, names)
        found.update(dict.fromkeys(matching))
    return found


def _with_advice(error: Exception, found: dict[str, inputs.Source]) -> click.ClickException:
    """The error of one of several artifacts, with what can be done about the others."""
    others = "; nothing was packed: --keep-going packs all others, and names what is damaged"
    return click.ClickException(f"{complaints.said(error)}{others if len(found) > 1 else ''}")


def _verified(
    found: dict[str, inputs.Source], spread: options.Spread, keep_going: bool
) -> tuple[dict[str, Exception], dict[str, Any]]:
    """Has workers verify artifacts. Returns the errors of some, and for each a value that changes with its file."""
    names, failed = list(found), dict[int, Exception]()
    stamps = {name: _stamp(source) for name, source in found.items()}
    places = [
        Place(source.name, order, "", None if source.handle is None else only(source.handle))
        for order, source in enumerate(found.values())
    ]
    with progress("verifying", len(places)) as advance, spread.means(advance.resumed, processes=False) as means:
        for one in verified(places, means, None):
            for error in one.errors.values():
                if not keep_going:
                    raise _with_advice(error, found) from error
                failed[one.place.order] = error
            advance(one.count, len(one.errors))
    return {names[order]: failed[order] for order in sorted(failed)}, stamps


def _stamp(source: inputs.Source) -> Any:
    """A value that changes when a file changes; the reader says why a file cannot be read."""
    if source.path is None or not source.is_file:
        return None
    try:
        return stamp(source.path)
    except OSError:
        return ()


def _weights(found: Opened, folders: inputs.Folders) -> Tensors | None:
    """The weights and cases of an artifact: for a file, in files beside it; for a member, in its archive."""
    from jaxexp._fleet.archive.writer import files_beside

    source = found.source
    if source.handle is not None:
        return source.handle.stored_files()
    assert source.path is not None
    if not source.is_file:
        if found.names():
            raise click.ClickException(
                f"{source.name!r} has weights or cases in files beside it, which pack does not fetch from a URL: copy "
                "all files into a folder"
            )
        return None
    weights = files_beside(source.path, found.artifact)
    if weights is not None:
        folder = os.path.dirname(source.path)
        names = [(file.name, file.second_name) for file in weights.table.files]
        folders.used(os.path.join(folder, name) for either in names for name in either)
    return weights


def _entry(text: str) -> tuple[str, Any]:
    key, found, value = text.partition("=")
    if not found or not key:
        raise click.UsageError(f"--metadata {text!r} is not KEY=JSON")
    try:
        return key, json.loads(value)
    except ValueError as error:
        raise click.UsageError(f"--metadata {text!r}: {value!r} is not JSON ({error}); a text needs quotes") from error


def _named(paths: tuple[str, ...], folders: inputs.Folders) -> dict[str, inputs.Source]:
    """Artifacts by the names that they will have."""
    found: dict[str, inputs.Source] = {}
    for path in paths:
        for name, source in _of(path, folders):
            if any("\ud800" <= c <= "\udfff" for c in name):  # bytes that are not text, as Python has them in paths
                raise click.ClickException(
                    f"the name of {source.name!r} is not UTF-8, and the name of a member has to be: pass NAME=FILE"
                )
            if name in found:
                raise click.ClickException(
                    f"{found[name].name!r} and {source.name!r} would both be {name!r}: pass NAME=FILE for one of them"
                )
            found[name] = source
    if not found:
        raise click.ClickException(f"there is nothing to pack{folders.said()}")
    return found


def _of(path: str, folders: inputs.Folders) -> Iterator[tuple[str, inputs.Source]]:
    name, given, file = path.partition("=")
    if given and name and not os.path.lexists(path):
        yield name, inputs.artifact(file)
    elif os.path.isdir(path):
        for inside, kind in folders.files(path):
            if kind is inputs.Kind.ARCHIVE:  # perhaps the one that is being written
                folders.skipped.append(str(inside))
            else:
                yield inside.relative_to(path).with_suffix("").as_posix(), inputs.Source(str(inside), str(inside))
    else:
        for source in inputs.artifacts(path):
            yield _name(source, path), source


def _name(source: inputs.Source, given: str) -> str:
    """The name of what was found under a path or URL that was given."""
    if source.path is None:  # a member keeps its name
        assert source.handle is not None
        return source.handle.name
    if files.is_url(source.path):  # which may have a password
        place, folder = path_in(source.path), path_in(given)
        is_in_folder = folder.endswith("/") and place.startswith(folder)
        below = PurePath(place[len(folder) :] if is_in_folder else place.rpartition("/")[2])
        if not below.name:
            raise click.ClickException(f"{source.name!r} does not end in a name for the member: pass NAME=FILE")
        return below.with_suffix("").as_posix()
    path = PurePath(source.path).with_suffix("")
    # A member name is a path inside of the archive. A file elsewhere gets only its last part.
    inside = not path.is_absolute() and ".." not in path.parts
    return path.as_posix() if inside else path.name

"""`jaxexp migrate`: rewrites old artifacts."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import click

from jaxexp._cli import completing, functions, options, outputs
from jaxexp._cli.complaints import DAMAGED, REFUSED, UNREADABLE, ended_with, is_temporary, state_of
from jaxexp._cli.complaints import said as complaint_of
from jaxexp._cli.inputs import Folders, artifact, is_archive, opened, split
from jaxexp._cli.options import argument, option
from jaxexp._cli.page import print_summary, say
from jaxexp._errors import ExportError
from jaxexp._fleet.passes.migrate_many import Written, migrated, write
from jaxexp._kernel.artifact.words import counted, listed
from jaxexp._kernel.io.other_files import ARTIFACT
from jaxexp._native import Artifact

if TYPE_CHECKING:
    from jaxexp._api.exported import Exported

MIGRATED = "migrated"
_NAMED = 4  # inputs in a line


@options.command("Rewrite old artifacts.", options.IMPORTS, options.HEADERS)
def command(
    old: tuple[str, ...] = argument("IN...", type=completing.Artifact()),
    new: options.File = argument("OUT"),
    to: str | None = option(
        "--to READER",
        "The reader to write for: a release such as 0.6.2, the newest release some weeks ago, as in 12w, or max for "
        "the oldest release that can read the artifact; by default the installed JAX.",
    ),
    inputs: str | None = option(
        "--inputs NPZ",
        "Call both functions with the arrays in this file, and compare the results. The arrays have the paths of the "
        "arguments as names, or the order of the arguments, as in numpy.savez(NPZ, *arrays).",
        type=click.Path(exists=True, dir_okay=False),
    ),
    locations: str = option(
        "--locations",
        "The source locations to keep: all; the names of scopes and functions, without the paths and lines of source "
        "files; or none.",
        type=click.Choice(["full", "names", "none"]),
        default="full",
    ),
    sized: tuple[str, ...] = options.sizes("saved with the artifact, and compiled by programs that run it without JAX"),
    force: bool = option("--force", "Replace OUT if it exists; if it is a folder, files in it."),
    as_json: bool = option("--json", "Print a JSON object with a list of all artifacts."),
    folders: Folders = options.FOLDERS,
    spread: options.Spread = options.workers(
        "The number of processes for several artifacts; by default only this one."
    ),
) -> int:
    """Rewrite artifacts of any age, so that the installed JAX, or another release, can load them.

    IN is an artifact, or a folder, an archive or a pattern of members. For several artifacts, OUT is a folder, in which
    they keep their names; 'pack' makes an archive of it. Before a file appears, the new artifact is read again and
    compared with the old one. The weights of a member of an archive are written beside OUT. This imports JAX.

    The exit status is 0 if everything is migrated, and 1 if something is not. It is 75 if the only problem was a server
    or cluster that could not be reached, or a journal that another process uses: try again.

    Example:
      jaxexp migrate old.bin new.jaxexp
      jaxexp migrate --to 0.6.2 model.jaxexp for_old_servers.jaxexp
      jaxexp migrate --size batch=1,8 old.bin new.jaxexp
      jaxexp migrate --inputs samples.npz old.bin new.jaxexp
      jaxexp migrate models-2024/ models-2025/ new/
      jaxexp migrate fleet.zip new/ --workers 8 --journal migrate.journal
    """
    functions.check_reader(to)
    first, *others = old
    several = bool(others) or _stands_for_several(first)
    notes: Iterable[str] = ()
    if several:
        if inputs is not None or sized:
            option = "--size" if sized else "--inputs"
            why = "there are several" if others else f"{first!r} stands for several"
            raise click.UsageError(f"{option} is for one artifact, and {why}")
        if new.endswith((".jaxexp", ".zip")) and not os.path.isdir(new):
            raise click.UsageError(f"several artifacts go to a folder, and {new!r} names a file: name a folder last")
        goes_on = spread.journal is not None and os.path.exists(spread.journal)
        if not force and not goes_on and os.path.lexists(new) and not (os.path.isdir(new) and not os.listdir(new)):
            raise click.ClickException(f"{new!r} exists: --force replaces files in it")
        folders = dataclasses.replace(folders, without=new)
        found = spread.results(
            old, folders, "migrate", lambda given, means: migrated(given, new, to, means, locations=locations)
        )
    else:
        if spread.is_asked_for:
            raise click.UsageError(
                f"--workers, --executor and --journal are for several artifacts, and {first!r} is one"
            )
        outputs.refuse_to_replace(new, ARTIFACT, force=force)
        source = artifact(first)
        done: Written | Exception
        try:
            with contextlib.ExitStack() as stack:
                arguments = None
                if inputs is not None:
                    loaded = functions.loaded(source)
                    stack.enter_context(functions.with_dtypes_of(loaded))
                    arguments = _arguments(source.name, loaded, inputs)
                how: dict[str, Any] = {"locations": locations, "inputs": arguments, "only_new": not force}
                how["sizes"] = options.combinations(sized) if sized else None
                before, blob, beside = write(source, new, None, to, **how)
            notes = _notes(before.artifact, Artifact(blob), [path for path, _ in beside])
            done = Written(new, len(blob), "", tuple(beside))
        except (ExportError, OSError) as error:
            if not as_json:
                raise
            done = error
        found = [(source.name, done)]
    found.sort(key=lambda one: one[0])
    sizes = [one.size for _, one in found if not isinstance(one, Exception)]
    if as_json:
        results = [Result.of(name, one) for name, one in found]
        states = (MIGRATED, REFUSED, DAMAGED, UNREADABLE)
        print_summary(results, results, states, sum(sizes), folders, into=new)
    elif several:
        what = f"{counted(len(sizes), 'artifact')}, {sum(sizes):,} bytes{folders.said()}"
        say(f"{listed(old, most=_NAMED)} -> {new}: {what}")
    else:
        for line in (f"{found[0][0]} -> {new}: {sum(sizes):,} bytes", *notes):
            say(line)
    return ended_with([(name, one) for name, one in found if isinstance(one, Exception)])


@dataclasses.dataclass(frozen=True)
class Result:
    """What became of one artifact."""

    file: str
    state: str  # "refused" if it cannot be written for the reader
    written: str | None = None
    bytes: int = 0
    weights: tuple[str, ...] = ()  # the files that were written beside it
    error: str | None = None
    try_again: bool = False  # whether a server was busy or could not be reached

    @classmethod
    def of(cls, name: str, found: Written | Exception) -> Result:
        if isinstance(found, Exception):
            return cls(name, state_of(found), error=complaint_of(found), try_again=is_temporary(found))
        return cls(name, MIGRATED, found.file, found.size, tuple(path for path, _ in found.weights))


def _notes(old: Artifact, new: Artifact, written: list[str]) -> Iterator[str]:
    """What there is to say about the cases and weights of a new artifact, and the files that were written beside it."""
    before, now = (len((one.cases() or ((),))[0]) for one in (old, new))
    if now < before:
        yield f"cases: {before - now} left out, with arrays that are not in files beside it"
    if written:
        yield f"files: written to {listed(written)}, which the new artifact needs beside it"
    elif files := [name for name, *_ in (new.weights() or ((),))[0]]:
        yield f"weights: in {listed(files)}, which stay{'s' * (len(files) == 1)} beside it and which it needs"


def _stands_for_several(old: str) -> bool:
    path, member = split(old)
    if member is None:
        return is_archive(path) or path.endswith("/") or os.path.isdir(path)
    return any(c in member for c in "*?[") and member not in opened(path)


def _arguments(file: str, exported: Exported, path: str) -> functions.Arguments:
    """Arguments of the program, from a call's arrays by their paths, or in their order. They, and the weights of the
    function in front of them, are placed as in the export.
    """
    import jax

    from jaxexp._cli import arrays
    from jaxexp._kernel.function.paths import argument_paths

    called = functions.as_called(exported)
    found = arrays.read_named(path, argument_paths(called.in_tree), "arguments")
    given = [arrays.as_argument(array, aval) for array, aval in zip(found.values(), called.in_avals, strict=True)]
    leaves = arrays.values(called, given)
    exported, placed = functions.placed(file, exported, jax.tree_util.tree_unflatten(called.in_tree, leaves))
    weights: Any = exported.weights
    if not weights:
        return placed
    whole = [*weights.arrays(), *jax.tree_util.tree_leaves(placed)]
    return jax.tree_util.tree_unflatten(exported.unbound.in_tree, whole)

"""`jaxexp verify`: checks that artifacts are whole."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import itertools
import os
import pathlib
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from jaxexp._cli import complaints, inputs, options
from jaxexp._cli.options import option
from jaxexp._cli.page import Column, Page, print_summary, progress
from jaxexp._errors import (
    DeserializationError,
    ExportError,
    FatalArtifactError,
    PolicyError,
    SignatureError,
    WeightsError,
)
from jaxexp._fleet.passes.many import verified
from jaxexp._kernel.artifact.words import counted, listed

if TYPE_CHECKING:
    from jaxexp._fleet.archive.archive import Archive
    from jaxexp._fleet.engine.engine import Unusable
    from jaxexp._fleet.passes.many import Place
    from jaxexp._fleet.places.verify import Verified
    from jaxexp._policy.policy import Policy
    from jaxexp._signing.reading import SignedFiles
    from jaxexp._signing.signed_by import SignedBy


@dataclasses.dataclass(frozen=True)
class Verdict:
    """The result for one artifact, or for an archive that was not opened, because it is damaged, unreadable or not
    signed: then `archive` is the same as `file`."""

    file: str
    state: str  # "whole", or one of `_BAD`
    bytes: int  # without the weights beside it
    digests: bool | None  # whether it has digests, which reveal any damage; None if that is not known
    error: str | None
    archive: str | None = None  # that it is a member of
    unfinished_bytes: int = 0  # which an interrupted append left after the end of that archive; they do no harm
    archive_bytes: int | None = None  # if all members of that archive were asked for
    weights: tuple[str, ...] = ()  # the files of weights beside it, which were read, too
    weight_bytes: int = 0
    more_bytes: int = 0  # which follow its end in the file, and are not part of it
    what: str | None = None  # what is in a file that is no artifact
    absolute_paths: tuple[str, ...] = ()  # of source files that its modules name; not searched in archives
    try_again: bool = False  # whether a server was busy or could not be reached


@options.command("Check that artifacts are whole.", options.IMPORTS, options.HEADERS)
def command(
    paths: tuple[str, ...] = options.FILES,
    folders: inputs.Folders = options.FOLDERS,
    quiet: bool = options.quiet("whole"),
    as_json: bool = option("--json", "Print a JSON object with a list of all artifacts."),
    policy: options.File | None = option(
        "--policy TOML",
        "Also refuse artifacts that this policy does not allow: a file with fields of Policy, such as custom_calls = "
        "['my_*']. This imports JAX.",
    ),
    pem: tuple[options.File, ...] = option(
        "--signed-by PEM",
        "Refuse files without a signature by the owner of this public key, or by a signer with one of these trusted "
        "certificates.",
    ),
    identity: str | None = option("--identity NAME", "Refuse files without a signature by this identity of Sigstore."),
    issuer: str | None = option("--issuer URL", "With --identity, the identity provider that must have confirmed it."),
    signature: options.File | None = option("--signature SIG", "One signature for all files, in place of FILE.sig."),
    spread: options.Spread = options.workers(
        "The number of threads; by default one for each processor. With --executor, the number in each worker; by "
        "default 1."
    ),
) -> int:
    """Check that artifacts are whole: their structure, all digests, and for files also the bytecode of the modules.

    FILE is an artifact, an archive (index, directory and all members), or a folder. In a folder, files with the names
    or first bytes of artifacts or archives are checked; the last line counts the skipped files. A file of executables
    or a safetensors file must be named itself. Weights in files beside an artifact are compared with their digests,
    too. JAX is imported only for a policy.

    The exit status is 0 if everything is whole, and 1 if something is damaged, unreadable, not allowed or not signed.
    It is 75 if the only problem was a server or cluster that could not be reached: try again.

    With --signed-by or --identity, each file and its weights need a signature, by default FILE.sig. Signatures are
    checked first. Every file that they list is read.

    Example:
      jaxexp verify model.jaxexp fleet.zip
      jaxexp verify --include '*.bin' models/ && echo all good
      jaxexp verify --policy policy.toml uploaded.jaxexp
      jaxexp verify --signed-by release.pub model.jaxexp model.exe
    """
    by = _signed_by(pem, identity, issuer, signature)
    allowed = inputs.policy(policy)
    if by is not None and spread.is_asked_for:
        raise click.UsageError(
            "--signed-by and --identity read one file after the other: leave out options for workers"
        )
    if by is not None:
        with contextlib.redirect_stdout(sys.stderr):  # the package may print a warning
            verdicts = list(_verified_signed(paths, folders, by, allowed))
    else:
        verdicts = _verified(*inputs.given(paths, folders, "verify"), spread, allowed)
    folders.used(file for verdict in verdicts for file in verdict.weights)
    wrong = [verdict for verdict in verdicts if verdict.error is not None]
    if as_json:
        shown = [one for one in verdicts if not quiet or one.error is not None]
        print_summary(verdicts, shown, ("whole", *_BAD), _total(verdicts)[0], folders)
    else:
        words = ["whole"] + ["signed"] * (by is not None) + ["allowed"] * (allowed is not None)
        *others, last = words
        _print(verdicts, folders, quiet, f"{listed(others)} and {last}" if others else last)
    counts = collections.Counter({"refused": "allowed", "unsigned": "signed"}.get(one.state, "whole") for one in wrong)
    for what in ("whole", "allowed", "signed"):
        if count := counts[what]:
            are = "is" if count == 1 else "are"
            complaints.complain(f"{count:,} of {counted(len(verdicts), 'artifact')} {are} not {what}")
    return complaints.status([verdict.try_again for verdict in wrong])


def _signed_by(
    pem: tuple[str, ...], identity: str | None, issuer: str | None, signature: str | None
) -> SignedBy | None:
    """Who has to have signed the files, if anybody."""
    if not (pem or identity or issuer):
        if signature is not None:
            raise click.UsageError("--signature needs --signed-by or --identity, which say who has to have signed")
        return None
    from jaxexp._signing.signed_by import SignedBy

    how: dict[str, Any] = {"identity": identity, "issuer": issuer, "signature": signature}
    with complaints.misused("--signed-by " if pem else "--identity "):
        if any(b"-----BEGIN CERTIFICATE-----" in pathlib.Path(path).read_bytes() for path in pem):
            return SignedBy(certificates=pem, **how)
        if len(pem) > 1:
            raise click.UsageError("--signed-by names one public key, or several files of certificates")
        return SignedBy(public_key=pem[0] if pem else None, **how)


def _verified(
    found: list[Place | Unusable], steps: int, spread: options.Spread, policy: Policy | None
) -> list[Verdict]:
    """A verdict for each artifact, in the same order."""
    verdicts: dict[int, list[Verdict]] = {}
    errors: dict[int, dict[str, Exception]] = {}
    with progress("verifying", steps) as advance, spread.means(advance.resumed, processes=False) as means:
        for one in verified(found, means, policy):
            advance(one.count, len(one.errors))
            order = one.place.order
            if one.place.archive is None:
                (error,) = one.errors.values() or (None,)
                verdicts[order] = [_of_file(one.place.name, one.file, error)]
                continue
            errors.setdefault(order, {}).update(one.errors)
            if one.is_last:
                verdicts[order] = list(_of_members(one.place.archive, errors.pop(order)))
    for order, left in errors.items():  # of archives that could not be read to their end
        verdicts[order] = []
        for name, error in left.items():
            archive, _, member = name.partition(inputs.MEMBER)
            verdicts[order].append(_verdict(name, 0 if member else _size(name), error, archive=archive))
    return [verdict for order in sorted(verdicts) for verdict in verdicts[order]]


def _verified_signed(
    paths: tuple[str, ...], folders: inputs.Folders, by: SignedBy, policy: Policy | None
) -> Iterator[Verdict]:
    """The same for files that have to be signed. Only what is signed is looked at."""
    from jaxexp._signing.reading import SignedFiles

    signed = SignedFiles(by)
    for text in paths:
        path, pattern = inputs.split(text)
        for name in folders.files_of(path):
            is_archive = pattern is not None or inputs.is_archive(name)
            try:
                if is_archive:
                    yield from _signed_archive(name, pattern, by, policy)
                else:
                    yield _signed_file(name, signed, policy)
            except (ExportError, OSError) as error:
                yield _verdict(name, _size(name), error, archive=name if is_archive else None)


def _signed_file(path: str, signed: SignedFiles, policy: Policy | None) -> Verdict:
    from jaxexp._fleet.places.verify import verify_signed

    found, buffer = verify_signed(path, signed, None if policy is None else policy.check_size)
    if policy is not None and not found.what:
        from jaxexp._api.load import deserialize

        deserialize(buffer, policy=policy)
    return _of_file(path, found, None)


def _signed_archive(path: str, pattern: str | None, by: SignedBy, policy: Policy | None) -> Iterator[Verdict]:
    from jaxexp._fleet.archive.archive import Archive

    archive = Archive.open(path, signed_by=by)
    archive._opened.check_listed()
    archive = inputs.part_of(archive, path, pattern)
    errors: dict[str, Exception] = dict(archive.verify())
    if policy is not None:
        whole = [name for name in archive if name not in errors]
        found = zip(whole, archive.load_all(whole, policy=policy, on_error="return"), strict=True)
        errors.update((name, one) for name, one in found if isinstance(one, Exception))
    yield from _of_members(archive, {f"{path}{inputs.MEMBER}{name}": error for name, error in errors.items()})


def _of_file(name: str, file: Verified, error: Exception | None) -> Verdict:
    """The verdict for a file, with the files of weights beside it; or for an archive that cannot be opened."""
    return _verdict(
        name,
        file.size or _size(name),
        error,
        file.has_digests,
        weights=tuple(name for name, _ in file.files),
        weight_bytes=sum(size for _, size in file.files),
        more_bytes=file.bytes_behind,
        what=file.what or None,
        archive=name if error is not None and inputs.is_archive(name) else None,
        absolute_paths=tuple(file.absolute_paths),
    )


def _of_members(archive: Archive, errors: dict[str, Exception]) -> Iterator[Verdict]:
    """The verdicts for the members of an archive; digests cover every byte."""
    if archive.name in errors:
        yield _verdict(archive.name, 0, errors[archive.name], archive=archive.name)
        return
    from jaxexp._fleet.archive.archive import parts_of

    opened, names = parts_of(archive)
    left, all_bytes = opened.unfinished_bytes, opened.source.size if names is None else None
    for name, handle in archive.items():
        shown = f"{archive.name}{inputs.MEMBER}{name}"
        about: dict[str, Any] = {"archive": archive.name, "unfinished_bytes": left, "archive_bytes": all_bytes}
        yield _verdict(shown, handle.size, errors.get(shown), True, **about)


def _size(name: str) -> int:
    return os.path.getsize(name) if os.path.isfile(name) else 0


def _verdict(name: str, size: int, error: Exception | None, digests: bool | None = None, **more: Any) -> Verdict:
    if error is None:
        return Verdict(name, "whole", size, digests, None, **more)
    state, said = _wrong(name, error)
    size = size if isinstance(error, (DeserializationError, PolicyError, SignatureError)) else 0
    return Verdict(name, state, size, None, said, try_again=complaints.is_temporary(error), **more)


def _wrong(name: str, error: Exception) -> tuple[str, str]:
    """The state of an artifact with this error, and what is wrong with it."""
    if isinstance(error, PolicyError):
        return "refused", f"{error.where} {error.found}. {error.advice}"
    if not isinstance(error, (DeserializationError, SignatureError)):
        return "unreadable", complaints.said(error)
    said = f"expected {error.expected}, found {error.found}"
    if isinstance(error, FatalArtifactError):
        return "unreadable", said
    if isinstance(error, (WeightsError, SignatureError)) and error.file != name:  # perhaps a file beside it
        said = str(error)
    elif isinstance(error, DeserializationError) and error.path:
        where = f"{_WEIGHTS}{error.path[:300]}" if isinstance(error, WeightsError) else f"at {error.path}"
        said = f"{where}: {said}"
    return "unsigned" if isinstance(error, SignatureError) else "damaged", said


def _print(verdicts: list[Verdict], folders: inputs.Folders, quiet: bool, whole: str) -> None:
    page = Page()
    rows = [row for row in _rows(verdicts) if not quiet or row[2].startswith(_BAD)]
    if rows:
        state = Column("state", marks={"whole": "good", **dict.fromkeys(_BAD, "bad")})
        note = Column("note", words=True)
        page.table([Column("artifact", style="name"), Column("bytes", right=True), state, note], rows)
    if not quiet or len(verdicts) > 1:
        page.blank()
        size, weights = _total(verdicts)
        more = f", and {weights:,} bytes of weights" if weights else ""
        page.line(f"{_totals(verdicts, whole)}, {size:,} bytes{more}{folders.said()}", "heading")
    page.write()


def _totals(verdicts: list[Verdict], whole: str) -> str:
    """As in "4 of 6 artifacts whole (1 without digests), 1 damaged, 1 unsigned (1 archive, not opened)"."""
    states = collections.Counter(verdict.state for verdict in verdicts)
    without = sum(1 for verdict in verdicts if verdict.error is None and verdict.digests is False)
    said = f"{states['whole']:,} of {counted(len(verdicts), 'artifact')} {whole}"
    closed = collections.Counter(verdict.state for verdict in verdicts if verdict.archive == verdict.file)
    archives = {state: f" ({counted(count, 'archive')}, not opened)" for state, count in closed.items()}
    bad = "".join(f", {states[state]:,} {state}{archives.get(state, '')}" for state in _BAD if states[state])
    return f"{said}{f' ({without:,} without digests)' if without else ''}{bad}"


# There is no such file, or it cannot be opened; it is whole, but the policy does not allow it; it has no signature that
# is asked for, or is not what was signed.
_BAD = ("damaged", "unreadable", "refused", "unsigned")


def _total(verdicts: list[Verdict]) -> tuple[int, int]:
    """The sizes of all artifacts and archives, and of the files of weights beside them."""
    archives = {v.archive: v.archive_bytes for v in verdicts if v.archive_bytes is not None}
    weights = {v.weights: v.weight_bytes for v in verdicts}
    return sum(v.bytes for v in verdicts if v.archive not in archives) + sum(archives.values()), sum(weights.values())


def _rows(verdicts: list[Verdict]) -> Iterator[tuple[str, str, str, str]]:
    """A row for each artifact. For an archive, one for members that are whole, and one for those that use damaged
    weights."""
    for archive, group in itertools.groupby(verdicts, key=lambda verdict: verdict.archive):
        found = list(group)
        yield from map(_row, found) if archive is None else _rows_of_archive(archive, found)


def _rows_of_archive(archive: str, found: list[Verdict]) -> Iterator[tuple[str, str, str, str]]:
    if whole := [verdict for verdict in found if verdict.error is None]:
        size = whole[0].archive_bytes
        size = sum(verdict.bytes for verdict in whole) if size is None else size
        left = whole[0].unfinished_bytes
        note = f"{left:,} bytes after its end are from an append that was not finished" if left else ""
        yield archive, f"{size:,}", f"whole: {counted(len(whole), 'member')}", note
    users = collections.Counter(v.error for v in found if v.error is not None and v.error.startswith(_WEIGHTS))
    said = set[str]()
    for verdict in found:
        if verdict.error is None:
            continue
        if (count := users[verdict.error]) <= 1:
            yield _row(verdict)
        elif verdict.error not in said:
            said.add(verdict.error)
            weights, _, why = verdict.error.partition(": ")
            yield archive, "", f"damaged: {count:,} members", f"{weights}, used by {count:,} members: {why}"


_WEIGHTS = "weights "


def _row(verdict: Verdict) -> tuple[str, str, str, str]:
    notes = [note for note in (verdict.error, verdict.what) if note is not None]
    if verdict.weights:
        names = ", ".join(map(os.path.basename, verdict.weights))
        notes.append(f"{verdict.weight_bytes:,} bytes of weights in {names}")
    if verdict.absolute_paths and verdict.error is None:
        notes.append("names source files")
    state = "whole, without digests" if verdict.digests is False else verdict.state
    if verdict.more_bytes:
        state = f"whole, and {counted(verdict.more_bytes, 'byte')} more"
    return verdict.file, f"{verdict.bytes:,}", state, "; ".join(notes)

"""Verifying an archive: its index, its members, their weights, and the directory that `unzip` uses. This process does
it, or the workers of a pass do parts of it."""

from __future__ import annotations

import functools
import itertools
import os
import threading
import weakref
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from jaxexp import _native
from jaxexp._errors import DeserializationError, PolicyError, WeightsError, of_file
from jaxexp._fleet.engine.engine import Finding, Input, Part, Parts, Task, each, findings
from jaxexp._fleet.engine.worker import packed, unpacked
from jaxexp._kernel.artifact import texts
from jaxexp._kernel.io.files import named_in_errors
from jaxexp._kernel.io.sources import open_source
from jaxexp._weights.files import header
from jaxexp._weights.files.header import damaged

from .opened import OpenArchive, batches, bytes_in, cases_of, load_all, of_artifact

if TYPE_CHECKING:
    from jaxexp._fleet.engine.engine import Means
    from jaxexp._policy.policy import Policy
    from jaxexp._weights.files.reading import Tensors


ARCHIVE = "archive"


def place_of(opened: OpenArchive, what: str) -> tuple[Any, ...]:
    """How workers find an archive; an ExportError if they cannot, because it is in a file object."""
    if opened.source.address is None:
        opened.__reduce__()
    assert opened.source.address is not None
    path, options = opened.source.address
    _opened[_key(path, opened.pointer.root_digest.hex())] = opened
    return ARCHIVE, what, path, options, opened.pointer.root_digest.hex()


def identity_of(opened: OpenArchive, numbers: Sequence[int]) -> list[Any]:
    """A value that changes when the archive changes, or when other members of it are asked for."""
    changed = os.stat(opened.source.name).st_mtime_ns if opened.source.whole is not None else 0
    chosen: list[Any] = [len(numbers), numbers[0] if numbers else 0]
    if not isinstance(numbers, range):
        chosen.append(_native.digest(b"".join(number.to_bytes(8, "little") for number in numbers)).hex())
    return [opened.source.size, changed, opened.pointer.root_digest.hex(), chosen]


def input_of(opened: OpenArchive, numbers: Sequence[int], what: str, about: Any) -> Input:
    """Some members of an archive whose index was checked. `what` is for workers, and `about` for the maker."""

    def sizes(start: int, stop: int) -> Iterable[int]:
        return map(bytes_in, opened.index.extents(list(numbers[start:stop])))

    return Input(opened.source.name, identity_of(opened, numbers), place_of(opened, what), numbers, sizes, about)


def opened_in_worker(path: str, options: dict[str, Any], root_digest: str) -> OpenArchive:
    """The archive of a place. It is an error if it has changed since the pass began, unless it is still open here."""
    key = _key(path, root_digest)
    known = _opened.get(key)
    if known is None or known.source.is_closed or known.source.address != (path, options):
        known = OpenArchive(open_source(path, options))
        if known.pointer.root_digest.hex() != root_digest:
            expected = "the archive as it was when the pass began"
            raise DeserializationError("", expected, "another one: begin again", known.source.name)
        if known.source.takes_requests:  # the whole index was read, which the next share needs, too
            _opened[key] = _here.kept = known
    return known


_here = threading.local()  # keeps one archive open
# Open archives by process and thread: a forked process and other threads open archives for themselves.
_opened: weakref.WeakValueDictionary[tuple[int, int, str, str], OpenArchive] = weakref.WeakValueDictionary()


def _key(path: str, root_digest: str) -> tuple[int, int, str, str]:
    return os.getpid(), threading.get_ident(), path, root_digest


_PIECE = 1 << 24


class InWeights(NamedTuple):
    """The result for files of weights.

    Attributes:
        seen: how many tensors the files have.
        bad: the digests of damaged tensors, each with the digest of the bytes in its place.
    """

    seen: int
    bad: dict[bytes, bytes]


def damaged_members(
    opened: OpenArchive, numbers: Iterable[int], bad: dict[bytes, bytes] | None
) -> Iterator[tuple[str, Exception]]:
    """The members whose weights or cases are damaged, with their errors.

    `bad` are the damaged tensors of all files; None to read only the tensors that these members use.
    """
    if not opened.has_weights or bad == {}:
        return
    numbers, good = list(numbers), set[bytes]()
    found: dict[int, DeserializationError | None] = {}
    for number, owner in zip(numbers, opened.index.owners(numbers), strict=True):
        label = opened.label(name := opened.index.name(number))
        if owner not in found:  # many members may share the bytes of one
            found[owner] = None
            try:
                with named_in_errors(label):
                    artifact = _native.Artifact(*opened.parts(number))
                    for of in (of_artifact, cases_of):
                        if (tensors := of(opened, label, artifact)) is not None:
                            _compare(tensors, bad, good)
            except DeserializationError as error:
                found[owner] = error
        if (damage := found[owner]) is not None:
            yield name, of_file(damage, label)


def _compare(tensors: Tensors, bad: dict[bytes, bytes] | None, good: set[bytes]) -> None:
    for stored in tensors.table.tensors:
        tensor = tensors.find(stored.name)
        if bad is not None:
            found = bad.get(stored.digest, stored.digest)
        elif stored.digest in good:
            continue
        else:
            found = _native.digest(tensor.data())
        if found != stored.digest:
            raise damaged("", stored.name, stored.digest, found)
        good.add(stored.digest)


def damaged_in_files(opened: OpenArchive, numbers: Iterable[int]) -> InWeights:
    """Reads some of the files of weights. Damage outside of tensors is raised."""
    places = {digest: place for digest, *place in opened.index.tensors()}
    files = opened.index.weights_files()
    seen, bad = 0, dict[bytes, bytes]()
    for number in numbers:
        name = _native.archive_weights_name(number)
        with named_in_errors(opened.label(name)):
            seen += _look(opened, name, files[number], places, bad)
    return InWeights(seen, bad)


def _look(
    opened: OpenArchive,
    name: str,
    file: tuple[int, int, int, int],
    places: dict[bytes, list[int]],
    bad: dict[bytes, bytes],
) -> int:
    """Reads a file of weights: removes its tensors from `places`, and adds damaged ones to `bad`."""
    position, size, crc32, header_size = file
    zip_header = opened.source.read(position - header_size, header_size)
    if zip_header != _native.zip_local_header(name, size, crc32, position - header_size):
        raise DeserializationError("", "its header in the ZIP file", "a different one; get another copy of the archive")
    length = header.size_of_header(opened.source.read(position, min(size, header.LENGTH_SIZE)), size)
    head = opened.source.read(position, length)
    found_crc = zlib.crc32(head)
    wrong = False
    tensors = header.read(head, size).tensors
    for tensor in tensors.values():
        try:
            digest = bytes.fromhex(tensor.name)
        except ValueError:
            raise WeightsError(tensor.name, "a digest as its name", "another name") from None
        start, end, digester = position + length + tensor.start, position + length + tensor.end, _native.Digester()
        for at in range(start, end, _PIECE):
            piece = opened.source.read(at, min(_PIECE, end - at))
            digester.update(piece)
            found_crc = zlib.crc32(piece, found_crc)
        if places.pop(digest, None) != [start, tensor.size]:
            raise WeightsError(tensor.name, "an entry of the index with its place and size", "no such entry")
        if (found := digester.digest()) != digest:
            wrong = True
            bad[digest] = found
    if found_crc != crc32 and not wrong:
        raise DeserializationError("", "the bytes as they were written", "other bytes in its header")
    return len(tensors)


# Reading is quick, so a share has to be large: its other costs should not matter.
SHARE_BYTES, UNIT_BYTES = 1 << 27, 1 << 14
# The two kinds of work for a worker.
_MEMBERS, _WEIGHTS = "members", "weights"
_MOST_HEADER = 128


def verify(opened: OpenArchive, names: Sequence[str] | None, means: Means) -> dict[str, Any]:
    """See `Archive.verify`."""
    verification = Verification(opened, names)
    if means.executor is None and means.journal is None:
        return verification.here(means.threads)
    errors: dict[str, Any] = {}
    for finding in findings(task(means, None), verification.inputs(), means):
        _, damaged = verification.take(finding)
        errors.update(damaged)
    return errors


def task(means: Means, policy: Policy | None) -> Task:
    return Task(
        "verify",
        "_fleet.archive.verification:in_worker",
        options={"threads": means.threads, "policy": policy},
        about={"policy": None if policy is None else repr(policy)},
        with_jax=policy is not None,
        share_bytes=SHARE_BYTES,
        unit_bytes=UNIT_BYTES,
        decoded=decoded,
    )


def in_worker(parts: Parts, options: dict[str, Any]) -> list[Any]:
    return each(parts, functools.partial(read_part, **options))


def read_part(place: tuple[Any, ...], numbers: Sequence[int], *, threads: int, policy: Policy | None) -> Any:
    """Reads all bytes of members, or of files of weights: returns the numbers and packed errors of members that are
    damaged or refused; or the parts of `InWeights`, with digests as hexadecimal numbers. Other errors are raised.
    """
    _, what, *address = place
    opened = opened_in_worker(*address)
    if what == _WEIGHTS:
        seen, bad = damaged_in_files(opened, numbers)
        return seen, {digest.hex(): found.hex() for digest, found in bad.items()}
    wrong: dict[int, Exception] = {}
    if policy is not None:  # which may not let anybody read a member
        for number, extent in zip(numbers, opened.index.extents(list(numbers)), strict=True):
            try:
                policy.check_size(bytes_in(extent))
            except PolicyError as error:
                error.file = opened.label_of(number)
                wrong[number] = error
    wrong.update(_damaged(opened, [number for number in numbers if number not in wrong], threads))
    if policy is not None:
        from jaxexp._api.load import Manner  # imports JAX

        whole = [number for number in numbers if number not in wrong]
        found = load_all(opened, map(opened.index.name, whole), Manner(1, "return", policy))
        wrong.update((number, one) for number, one in zip(whole, found, strict=True) if isinstance(one, Exception))
    return [(number, packed(error)) for number, error in wrong.items()]


def decoded(part: Part, result: Any) -> Any:
    """The result of `read_part`, with errors unpacked. In a journal, it may be anything."""
    if part.input.place[1] == _WEIGHTS:
        seen, bad = result
        return InWeights(int(seen), {bytes.fromhex(digest): bytes.fromhex(found) for digest, found in bad.items()})
    numbers = set(part.numbers)
    if unknown := [number for number, _ in result if number not in numbers]:
        raise ValueError(unknown)
    return [(number, unpacked(error)) for number, error in result]


class Verification:
    """An archive while it is verified: members that share their bytes are verified once."""

    def __init__(self, opened: OpenArchive, names: Sequence[str] | None, about: Any = None) -> None:
        """Checks the index, and for a whole archive, without names, also the ZIP file's directory."""
        self.about = about  # whatever the caller needs
        self._opened = opened
        index = opened.index
        opened.check()
        if names is None:
            _check_directory(opened)
        self._numbers = opened.numbers(names)
        with opened.placed():
            owners = index.owners(list(self._numbers))
        self._others: dict[int, list[int]] = {}  # members with the bytes of another one, by that one
        for number, owner in zip(self._numbers, owners, strict=True):
            if number != owner:
                self._others.setdefault(owner, []).append(number)
        # The members to read, and the files of weights. Slices read only the tensors that they use.
        self._units: Sequence[int] = sorted(set(owners)) if self._others else self._numbers
        self._files = index.weights_files() if names is None else []
        self._left = len(self._units) + len(self._files)
        self._broken: set[int] = set()
        self._tensors: InWeights | None = InWeights(0, {}) if names is None else None
        self._are_weights_known = True

    @property
    def is_done(self) -> bool:
        return not self._left

    def here(self, threads: int) -> dict[str, Any]:
        """Reads everything in this process, and returns the errors of members by name."""
        errors = self._errors(_damaged(self._opened, self._units, threads))
        if self._files:
            self._tensors = damaged_in_files(self._opened, range(len(self._files)))
        return dict(errors + self._errors_by_weights())

    def inputs(self) -> Iterator[Input]:
        """The members to read, and for a whole archive its files of weights."""
        opened, sizes = self._opened, [size for _, size, *_ in self._files]
        yield input_of(opened, self._units, _MEMBERS, self)
        if sizes:
            name, numbers = f"{opened.source.name} (weights)", range(len(sizes))
            identity, place = identity_of(opened, numbers), place_of(opened, _WEIGHTS)
            yield Input(name, identity, place, numbers, lambda start, stop: sizes[start:stop], self)

    def take(self, finding: Finding) -> tuple[int, list[tuple[str, Any]]]:
        """How many members a finding covers, and errors of members by name. The errors that need all other findings
        come with the last one. An error about a file of weights is raised.
        """
        part = finding.part
        assert part is not None
        self._left -= part.units
        count, errors = 0, list[tuple[str, Any]]()
        if part.input.place[1] == _WEIGHTS:
            if finding.error is not None:
                self._are_weights_known = False
                raise finding.error
            assert self._tensors is not None
            self._tensors = InWeights(self._tensors.seen + finding.found.seen, self._tensors.bad | finding.found.bad)
        else:
            count = sum(1 + len(self._others.get(number, ())) for number in part.numbers)
            wrong = finding.found if finding.error is None else [(number, finding.error) for number in part.numbers]
            errors = self._errors(wrong)
        if self.is_done and self._are_weights_known:
            errors += self._errors_by_weights()
        return count, errors

    def _errors(self, damaged: Iterable[tuple[int, Exception]]) -> list[tuple[str, Any]]:
        """The errors of members by name, also for members that share the bytes of a damaged one."""
        found = []
        for unit, error in damaged:
            for number in (unit, *self._others.get(unit, ())):
                self._broken.add(number)
                name = self._opened.index.name(number)
                found.append((name, of_file(error, self._opened.label(name))))
        return found

    def _errors_by_weights(self) -> list[tuple[str, Any]]:
        """The errors of members whose weights are damaged, except members with another error."""
        if self._tensors is not None and (others := len(self._opened.index.tensors()) - self._tensors.seen):
            with self._opened.placed():
                expected, found = "only tensors that lie in a file of weights", f"{others:,} that do not"
                raise DeserializationError("index.weights", expected, found)
        whole = (number for number in self._numbers if number not in self._broken)
        return list(damaged_members(self._opened, whole, None if self._tensors is None else self._tensors.bad))


def _damaged(opened: OpenArchive, numbers: Sequence[int], threads: int) -> Iterator[tuple[int, DeserializationError]]:
    """The damaged members with their errors. Members that share their bytes are not looked at."""
    for number, wrong, said in _verified(opened, list(numbers), threads):
        try:
            if wrong is not None:
                raise DeserializationError(*wrong)
            texts.check(*said)
        except DeserializationError as error:
            yield number, error


def _verified(opened: OpenArchive, numbers: list[int], threads: int) -> Iterator[Any]:
    verification, file, first = _native.ArchiveVerification(opened.index), opened.source.whole, 0
    if file is not None:
        while first < len(numbers):
            first, found = verification.step_of_file(file, numbers, first, threads)
            yield from found
        return
    pending = iter(numbers)
    # Members that are in one step are not in the next one, so extents are asked for step by step.
    for extents in batches(map(verification.extent, numbers)):
        step = list(itertools.islice(pending, len(extents)))
        yield from verification.step(step, opened.parts_of(extents), threads)


def _check_directory(opened: OpenArchive) -> None:
    """Compares the bytes after the index with what they must be."""
    pointer = opened.pointer
    start = pointer.index_position + pointer.index_size
    with opened.placed():
        crc32 = zlib.crc32(opened.source.read(pointer.index_position, pointer.index_size))
        most = min(_MOST_HEADER, pointer.index_position)
        before = opened.source.read(pointer.index_position - most, most)
        behind = opened.source.read(start, opened.end - start)
        for header in range(most, 0, -1):  # its first bytes say how long it is
            begin = pointer.index_position - header
            if before[most - header :] == _native.zip_local_header(
                _native.ARCHIVE_INDEX_NAME, pointer.index_size, crc32, begin
            ):
                place = _native.MemberPlace(pointer.index_position, pointer.index_size, crc32, header)
                if behind == opened.index.last_bytes(place, start, pointer.comment(), opened.section):
                    return
        raise DeserializationError(
            "", "the directory of a ZIP file with these members", "a different one; get another copy of the archive"
        )

"""Verifying an archive: its index, its members, their weights, and the directory that `unzip` uses. This process does
it, or the workers of a pass do parts of it."""

from __future__ import annotations

import functools
import itertools
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from jaxexp import _native
from jaxexp._errors import DeserializationError, PolicyError, of_file
from jaxexp._fleet.engine import work
from jaxexp._fleet.engine.engine import Finding, Task, findings
from jaxexp._fleet.engine.errors import packed, unpacked
from jaxexp._fleet.engine.work import Input, Part, Parts
from jaxexp._kernel.artifact import texts

from .opened import Opened, batches
from .parts import identity_of, input_of, opened_in_worker, place_of
from .verify_weights import InWeights, check_seen, damaged_in_files, damaged_members

if TYPE_CHECKING:
    from jaxexp._fleet.engine.crew import Means
    from jaxexp._policy.policy import Policy

# Reading is quick, so a share has to be large: its other costs should not matter.
SHARE_BYTES, UNIT_BYTES = 1 << 27, 1 << 14
# The two kinds of work for a worker.
_MEMBERS, _WEIGHTS = "members", "weights"
_MOST_HEADER = 128


def verify(opened: Opened, names: Sequence[str] | None, means: Means) -> dict[str, Any]:
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
    """The pass over parts of archives."""
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
    """Reads parts of archives: returns the result of `read_part` for each."""
    return work.each(parts, functools.partial(read_part, **options))


def read_part(place: tuple[Any, ...], numbers: Sequence[int], *, threads: int, policy: Policy | None) -> Any:
    """Reads all bytes of members, or of files of weights: returns the numbers and packed errors of members that are
    damaged or refused; or `InWeights`, with digests as text.

    Raises:
        DeserializationError: the archive has changed since the pass began, or is damaged outside of its members.
        OSError: it cannot be read.
    """
    _, what, *address = place
    with opened_in_worker(*address) as opened:
        if what == _WEIGHTS:
            seen, bad = damaged_in_files(opened, numbers)
            return InWeights(seen, {digest.hex(): found.hex() for digest, found in bad.items()})
        too_large = {} if policy is None else _too_large(opened, numbers, policy)
        admitted = [number for number in numbers if number not in too_large]
        wrong: list[tuple[int, Exception]] = [*too_large.items(), *_damaged(opened, admitted, threads)]
        if policy is not None:
            wrong += _refused(opened, admitted, {number for number, _ in wrong}, policy)
        return [(number, packed(error)) for number, error in wrong]


def decoded(part: Part, result: Any) -> Any:
    """The result of `read_part`, with errors and digests unpacked."""
    if part.input.place[1] == _WEIGHTS:
        seen, bad = result
        return InWeights(int(seen), {bytes.fromhex(digest): bytes.fromhex(found) for digest, found in bad.items()})
    numbers = set(part.numbers)
    if unknown := [number for number, _ in result if number not in numbers]:
        raise ValueError(unknown)
    return [(number, unpacked(error)) for number, error in result]


class Verification:
    """An archive while it is verified: members that share their bytes are verified once."""

    def __init__(self, opened: Opened, names: Sequence[str] | None, about: Any = None) -> None:
        """Checks the index, and for a whole archive, without names, also the ZIP file's directory.

        Raises:
            DeserializationError: one of the two is damaged.
        """
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
        """Whether all parts were read."""
        return not self._left

    def here(self, threads: int) -> dict[str, Any]:
        """Reads everything in this process, and returns the errors of members by name.

        Raises:
            DeserializationError: a file of weights is damaged outside of its tensors.
        """
        errors = self._errors(_damaged(self._opened, self._units, threads))
        if self._files:
            self._tensors = damaged_in_files(self._opened, range(len(self._files)))
        return dict(errors + self._errors_by_weights())

    def inputs(self) -> Iterator[Input]:
        """The members to read, and for a whole archive its files of weights.

        Raises:
            ExportError: it is in a file object.
        """
        opened, files = self._opened, self._files
        yield input_of(opened, self._units, _MEMBERS, self)
        if files:

            def sizes(start: int, stop: int) -> Iterable[int]:
                return [size for _, size, *_ in files[start:stop]]

            name, numbers = f"{opened.source.name} (weights)", range(len(files))
            yield Input(name, identity_of(opened, numbers), place_of(opened, _WEIGHTS), numbers, sizes, self)

    def take(self, finding: Finding) -> tuple[int, list[tuple[str, Any]]]:
        """How many members a finding covers, and errors of members by name. The errors that need all other findings
        come with the last one.

        Raises:
            DeserializationError: a file of weights is damaged outside of its tensors, or cannot be read.
            OSError: a file of weights cannot be read.
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
            each = None if finding.error is None else [(number, finding.error) for number in part.numbers]
            errors = self._errors(finding.found if each is None else each)
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
        if self._tensors is not None:
            check_seen(self._opened, self._tensors.seen)
        whole = (number for number in self._numbers if number not in self._broken)
        return list(damaged_members(self._opened, whole, None if self._tensors is None else self._tensors.bad))


def _damaged(opened: Opened, numbers: Sequence[int], threads: int) -> list[tuple[int, DeserializationError]]:
    """The damaged members with their errors. Members that share their bytes are not looked at."""
    damaged = _damaged_in_file if opened.source.whole is not None else _damaged_in_ranges
    found = []
    for number, wrong, said in damaged(opened, list(numbers), threads):
        try:
            if wrong is not None:
                raise DeserializationError(*wrong)
            texts.check(*said)
        except DeserializationError as error:
            found.append((number, error))
    return found


def _damaged_in_file(opened: Opened, numbers: list[int], threads: int) -> Iterator[Any]:
    verification, first = _native.ArchiveVerification(opened.index), 0
    while first < len(numbers):
        first, damaged = verification.step_of_file(opened.source.whole, numbers, first, threads)
        yield from damaged


def _damaged_in_ranges(opened: Opened, numbers: list[int], threads: int) -> Iterator[Any]:
    verification, pending = _native.ArchiveVerification(opened.index), iter(numbers)
    # Members that are in one step are not in the next one, so extents are asked for step by step.
    for extents in batches(verification.extent(number) for number in numbers):
        step = list(itertools.islice(pending, len(extents)))
        yield from verification.step(step, opened.parts_of(extents), threads)


def _too_large(opened: Opened, numbers: Sequence[int], policy: Policy) -> dict[int, Exception]:
    """The members that the policy does not let anybody read, with their errors."""
    found: dict[int, Exception] = {}
    for number, (_, size, modules) in zip(numbers, opened.index.extents(list(numbers)), strict=True):
        try:
            policy.check_size(size + sum(module for _, module in modules))
        except PolicyError as error:
            error.file = opened.label_of(number)
            found[number] = error
    return found


def _refused(opened: Opened, numbers: Sequence[int], damaged: set[int], policy: Policy) -> list[tuple[int, Exception]]:
    """The members that the policy refuses, with their errors."""
    from jaxexp._api.many import Manner  # imports JAX

    from .load_all import load_all

    whole = [number for number in numbers if number not in damaged]
    found = load_all(opened, [opened.index.name(number) for number in whole], Manner(1, "return", policy))
    return [(number, error) for number, error in zip(whole, found, strict=True) if isinstance(error, Exception)]


def _check_directory(opened: Opened) -> None:
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

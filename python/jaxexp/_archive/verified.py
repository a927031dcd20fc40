"""An archive that is verified by workers: what they read, and what their findings mean for its members."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from jaxexp._bulk.engine import Finding, Task, findings
from jaxexp._bulk.errors import unpacked
from jaxexp._bulk.work import Input, Part
from jaxexp._io.workers import worker_count

from .opened import Opened
from .parts import identity_of, input_of, place_of
from .verify import Verification
from .verify_share import MEMBERS, UNREAD, WEIGHTS
from .verify_weights import check_seen

if TYPE_CHECKING:
    from jaxexp._bulk.crew import Workers

# Reading is quick: what a share costs beside it should not matter.
SHARE_BYTES, UNIT_BYTES = 1 << 27, 1 << 14


def verify_in_parts(
    opened: Opened,
    names: Sequence[str] | None,
    workers: int | None,
    executor: Workers | None,
    journal: str | os.PathLike[str] | None,
) -> dict[str, Any]:
    """What `Archive.verify` returns, with an executor or a journal."""
    task = Task(
        "verify",
        "_archive.verify_share:verify_archives",
        options={"threads": threads_of(workers, executor), "policy": None},
        about={"policy": None},
        with_jax=False,
        share_bytes=SHARE_BYTES,
        unit_bytes=UNIT_BYTES,
        decoded=InParts.decoded,
        is_current=InParts.is_current,
    )
    parts, errors = InParts(opened, names), dict[str, Any]()
    with task.journal(journal) as remembered:
        for finding in findings(task, parts.inputs(), executor, remembered):
            _, damaged = parts.take(finding)
            errors.update(damaged)
    return errors


def threads_of(workers: int | None, executor: Workers | None) -> int:
    """How many threads verify a share: all CPUs are for one process, not for each of an executor's."""
    return worker_count(workers) if workers is not None or executor is None else 1


class InParts:
    """An archive, of which workers read parts.

    Attributes:
        about: whatever its maker needs.
        is_done: whether all parts were read.
    """

    def __init__(self, opened: Opened, names: Sequence[str] | None, about: Any = None) -> None:
        """Checks the index, and of a whole archive the ZIP file's directory.

        Args:
            opened: the archive.
            names: the members; None for all.
            about: whatever the caller needs.

        Raises:
            DeserializationError: one of the two is damaged.
            ExportError: it is in a file object.
        """
        self.about = about
        self._opened, self._verification = opened, Verification(opened, names)
        self._files = opened.index.weights_files() if names is None else []
        self._bad: dict[bytes, bytes] | None = {} if names is None else None
        self._seen = 0
        self._left = len(self._verification.units) + len(self._files)
        self._are_weights_known = True

    @property
    def is_done(self) -> bool:
        return not self._left

    def inputs(self) -> Iterator[Input]:
        """The members that are read, and of a whole archive its files of weights."""
        opened, files = self._opened, self._files
        yield input_of(opened, self._verification.units, MEMBERS, self)
        if files:

            def sizes(start: int, stop: int) -> Iterable[int]:
                return [size for _, size, *_ in files[start:stop]]

            name, numbers = f"{opened.source.name} (weights)", range(len(files))
            yield Input(name, identity_of(opened, numbers), place_of(opened, WEIGHTS), numbers, sizes, self)

    @staticmethod
    def decoded(part: Part, result: Any) -> Any:
        """What a worker found: an error; the errors of members by their numbers; or how many tensors are in files of
        weights, and what is damaged."""
        if result and result[0] == UNREAD:
            return unpacked(result[1])
        if part.input.place[1] == WEIGHTS:
            seen, bad = result
            return int(seen), {bytes.fromhex(digest): bytes.fromhex(found) for digest, found in bad.items()}
        found, numbers = [], set(part.numbers)
        for number, error in result:
            if number not in numbers:
                raise ValueError(number)
            found.append((number, unpacked(error)))
        return found

    @staticmethod
    def is_current(_: Part, found: Any) -> bool:
        """Whether what a journal says still holds: what could not be read is tried again."""
        return not isinstance(found, Exception)

    def take(self, finding: Finding) -> tuple[int, list[tuple[str, Any]]]:
        """How many members a finding is about, and the errors of some by their names. With the last finding come the
        errors that need all others.

        Raises:
            DeserializationError: a file of weights is damaged outside of its tensors, or cannot be read.
            OSError: a file of weights cannot be read.
        """
        part = finding.part
        assert part is not None
        self._left -= part.units
        count, errors = 0, list[tuple[str, Any]]()
        failed = finding.error if finding.error is not None else finding.found
        if part.input.place[1] == WEIGHTS:
            if isinstance(failed, Exception):
                self._are_weights_known = False
                raise failed
            seen, bad = finding.found
            self._seen += seen
            assert self._bad is not None
            self._bad.update(bad)
        else:
            count = self._verification.verified(part.numbers)
            each = isinstance(failed, Exception)
            for number, error in ((n, failed) for n in part.numbers) if each else finding.found:
                errors += self._verification.error(number, error)
        if self.is_done and self._are_weights_known:
            if self._bad is not None:
                check_seen(self._opened, self._seen)
            errors += self._verification.finish(self._bad)
        return count, errors

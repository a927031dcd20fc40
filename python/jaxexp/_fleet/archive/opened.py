"""An open archive: its file and its index, which slices and handles share; its tensors, and loading members."""

from __future__ import annotations

import contextlib
import copy
import functools
import gc
import json
import mmap
import os
import weakref
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from jaxexp import _native
from jaxexp._errors import ChangedArtifactError, DeserializationError, ExportError, PolicyError, WeightsError, cause
from jaxexp._kernel.artifact.words import is_text, meant
from jaxexp._kernel.io.files import Identity, empty, identity_of, is_url, named_in_errors, written_to
from jaxexp._kernel.io.other_files import HEAD, instead_of_archive
from jaxexp._kernel.io.sources import Storage

if TYPE_CHECKING:
    from jaxexp._api.exported import Exported
    from jaxexp._api.load import Manner
    from jaxexp._policy.policy import Policy
    from jaxexp._signing.reading import SignedFiles
    from jaxexp._signing.signed_by import SignedBy
    from jaxexp._weights.files.header import Source, Table, Tensor
    from jaxexp._weights.files.reading import Tensors


# How much to read from both ends of a file that takes a request for each range: often the whole index.
_FIRST_FETCH = 1 << 16
# How many requests it may take to find the end.
_MOST_FETCHES = 1000
# How much to fetch at once from an archive that is not in memory, and to verify without a sign of life.
_AT_ONCE = 1 << 26
# How many members messages look at, whatever their folders are.
_FEW = 500


class OpenArchive:
    """An open file and its index, which an archive, its slices and its handles share."""

    def __init__(
        self,
        source: Storage,
        open_again: Callable[..., Any] | None = None,
        signed: SignedFiles | None = None,
        stable: bool = False,
    ) -> None:
        """Finds the end of the archive, and reads the root of the index. Unpickling calls `open_again` with the address
        of the source. `signed` are the files that may be used with it; None for all. With `stable`, weights are read,
        and never mapped, as they are anyway if the source is no local file.
        """
        self.source = source
        self.signed = signed
        self.stable = stable or source.whole is None
        self.loaded: weakref.WeakValueDictionary[int, Exported] = weakref.WeakValueDictionary()
        self._open_again = open_again
        with self.placed():
            # The end of the archive in its file; where its last section begins; and whether an append left all that
            # follows.
            self.end, self.pointer, self.section, self.rest_is_known, self._index = _find_index(source)

    @property
    def index(self) -> _native.ArchiveIndex:
        self.source.check_open()
        return self._index

    @functools.cached_property
    def tensors(self) -> ArchivedTensors:
        with self.placed():
            return ArchivedTensors(self.source, self.index, self.end, self.stable)

    @functools.cached_property
    def has_weights(self) -> bool:
        with self.placed():
            return bool(self.index.weights_files())

    def has_tensors(self, weights: Any) -> bool:
        """Whether all tensors that a trailer names are here. If an artifact was added as bytes, they are elsewhere."""
        return self.has_weights and all(self.index.tensor(digest) is not None for _, _, _, digest in weights[1])

    @property
    def unfinished_bytes(self) -> int:
        return self.source.size - self.end

    def label(self, name: str) -> str:
        return f"{self.source.name}::{name}"

    def label_of(self, number: int) -> str:
        return self.label(self.index.name(number))

    def placed(self, name: str | None = None) -> named_in_errors:
        """A context that adds the name of the file, and of the member, to errors."""
        return named_in_errors(self.source.name if name is None else self.label(name))

    def check_listed(self) -> None:
        """Reads every file in the signature of a signed archive, as `SignedFiles.check_listed` does."""
        if self.signed is not None:
            self.signed.check_listed(self.source.name)

    def check(self) -> None:
        with self.placed():
            self.index.check()

    def find(self, name: object) -> int | None:
        if not (isinstance(name, str) and is_text(name)):
            return None
        with self.placed():
            return self.index.find(name)

    def missing(self, name: object, names: Sequence[str] | None, said: str) -> KeyError:
        """The error for a name that no member has, or none of these. `said` is what the message calls the archive."""
        known = meant(name, self.names_around(name) if names is None else names)
        path = self.source.address[0] if self.source.address is not None else self.source.name
        with contextlib.suppress(OSError, ValueError):  # behind a URL, or gone
            if os.path.getsize(path) != self.source.size:
                known += " (the file has changed since it was opened: open it again to see what was added)"
        return KeyError(f"{name!r} is not in {said}{known}")

    def names_around(self, name: object) -> list[str]:
        """The names that messages compare with one that no member has: of many, those in the same folder."""
        folder = name[: name.rfind("/") + 1] if isinstance(name, str) and is_text(name) else ""
        return self.names_in(folder if len(self.index) > _FEW else "")

    @functools.cached_property
    def names(self) -> list[str]:
        with self.placed():
            return self.index.names()

    def names_in(self, beginning: str) -> list[str]:
        """The names that begin with a text, without a look at others."""
        self.source.check_open()
        with self.placed():
            return self.index.names(beginning) if beginning else self.names

    def numbers(self, names: Sequence[str] | None) -> Sequence[int]:
        with self.placed():
            return range(len(self.index)) if names is None else self.index.find_all(list(names))

    def own_metadata(self, number: int) -> dict[str, Any] | None:
        """The metadata that a member has in place of its artifact's; None if it has those of the artifact."""
        member = self.index.member(number)
        return self.object(member.metadata or "{}") if member.own_metadata else None

    def metadata(self, number: int) -> dict[str, Any]:
        if (own := self.own_metadata(number)) is not None:
            return own
        if (text := self.index.member(number).metadata) is not None:
            return self.object(text)
        from jaxexp._kernel.artifact.metadata import from_json  # slow to import, and rarely needed

        return from_json(_native.Artifact(*self.parts(number)).metadata() or {})

    @staticmethod
    def object(text: str) -> dict[str, Any]:
        try:
            value = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise DeserializationError("index.metadata", "JSON", str(error)) from cause(error)
        if not isinstance(value, dict):
            raise DeserializationError("index.metadata", "a JSON object", f"a {type(value).__name__}")
        return value

    def parts(self, number: int) -> tuple[bytes, list[bytes]]:
        """The bytes of a member, and of its modules if they are stored apart."""
        position, size, modules = self.index.extent(number)
        image, *parts = self.source.read_many([(position, size), *modules])
        self.check_digest(number, self.fetched_digest(image, parts))
        return image, parts

    def parts_of(self, extents: Sequence[Any]) -> list[tuple[bytes, list[bytes]]]:
        """The bytes of several members and of their modules, by their extents. What several have is read once."""
        places = list(dict.fromkeys(place for extent in extents for place in _places_of(extent)))
        found = dict(zip(places, self.source.read_many(places), strict=True))
        parts = ([found[place] for place in _places_of(extent)] for extent in extents)
        return [(image, modules) for image, *modules in parts]

    def artifact_bytes(self, number: int) -> bytes:
        image, modules = self.parts(number)
        if modules:
            return bytes(_native.join(image, modules))
        file = self.source.whole
        if file is not None and file.is_changed():
            self.check_digest(number, _native.digest(image))
        return image

    def fetched_digest(self, image: bytes, modules: Sequence[bytes]) -> bytes | None:
        """The digest of a member that was fetched; None if it was read from a file on this machine."""
        if self.source.whole is not None:
            return None
        return _native.digest(_native.join(image, modules) if modules else image)

    def check_digest(self, number: int, found: bytes | None) -> None:
        """Compares the digest of a member, if it is known, with the index: if the file was replaced or written to
        meanwhile, the bytes may be another artifact, and a whole one. An append leaves old bytes alone.
        """
        if found is None or found == (expected := self.index.member(number).digest):
            return
        if self.source.whole is not None:
            raise ChangedArtifactError("", "the file as it was when it was opened", "a changed one: open it again")
        raise ChangedArtifactError(
            "", f"an artifact of digest {expected.hex()}, as the index says",
            f"one of {found.hex()}: it is damaged, or the file has changed since it was opened; open it again",
        )  # fmt: skip

    def close(self) -> None:
        self.source.close()

    def __reduce__(self) -> tuple[Any, ...]:
        """Unpickling opens the whole archive again."""
        if self.signed is not None:
            raise ExportError(
                f"{self.source.name!r} was opened with signed_by, and is in the memory of this process only: open it "
                "in the other process, too, with signed_by"
            )
        if self.source.address is None or self._open_again is None:
            raise ExportError(
                f"an archive in a file object cannot be pickled: another process could not open {self.source.name}. "
                "Open it by its path or URL"
            )
        path, options = self.source.address
        return functools.partial(self._open_again, **options) if options else self._open_again, (path,)


class ArchivedTensors:
    """Finds the tensors of an archive. It outlives the archive, because functions look for weights later."""

    def __init__(self, source: Storage, index: _native.ArchiveIndex, end: int, stable: bool) -> None:
        """Maps the file up to the end of the archive, without reading any of it, unless bytes are to be stable."""
        self.name = source.name
        self.identity: Identity | None = None
        self.stable = stable
        self.index = index
        self._mapping: mmap.mmap | None = None
        if stable:
            self._source = copy.copy(source)  # a copy, which is never closed
        else:
            assert source.address is not None  # a file on this machine has one
            with open(source.address[0], "rb") as file:
                identity = identity_of(file.fileno())
                if identity[2] >= end:
                    self._mapping = mmap.mmap(file.fileno(), end, access=mmap.ACCESS_READ)
            last = end - _native.ARCHIVE_END_SIZE
            if self._mapping is None or self._mapping[last:] != source.read(last, _native.ARCHIVE_END_SIZE):
                raise ChangedArtifactError("", "the file as it was when it was opened", "another one: open it again")
            self.identity = identity
            self._path, self._end = source.address[0], end

    def may_have_others(self) -> bool:
        """Whether the bytes of tensors may be others than when the archive was opened."""
        if self.identity is None:  # the file is not mapped, and another one may have been put in its place
            return True
        size = written_to(self._path, self.identity)
        if size is not None and size < self._end:  # reading what is gone would end the process
            raise ChangedArtifactError(
                "", "the file as it was when it was opened", "a shorter one: open it again", self.name
            )
        return size is not None

    def bytes_of(self, tensor: Tensor) -> memoryview:
        """The bytes of a tensor at a position in the archive: a part of the mapped file, or fetched bytes."""
        if self._mapping is not None:
            return memoryview(self._mapping)[tensor.start : tensor.end]
        return memoryview(self._source.read(tensor.start, tensor.size))


def batches(extents: Iterable[Any]) -> Iterator[list[Any]]:
    """Groups of members, of a limited size, by their extents. The next group begins when this one is done. What several
    of a group have counts once.
    """
    batch: list[Any] = []
    seen: set[tuple[int, int]] = set()
    size = 0
    for extent in extents:
        batch.append(extent)
        new = set(_places_of(extent)) - seen
        seen |= new
        size += sum(count for _, count in new)
        if size >= _AT_ONCE:
            yield batch
            batch, seen, size = [], set(), 0
    if batch:
        yield batch


def _places_of(extent: Any) -> list[tuple[int, int]]:
    """Where a member is: its own bytes, and its modules that are stored apart."""
    position, size, modules, *_ = extent
    return [(position, size), *modules]


def _find_index(source: Storage) -> tuple[int, _native.ArchiveEnd, int, bool, _native.ArchiveIndex]:
    """Where the archive ends; its last bytes; where its last section begins; whether an append left the rest of the
    file; and its index.
    """
    if source.size == 0:
        raise empty("an archive of artifacts")
    ranges = _Fetched(source)
    try:
        end, pointer, section, rest_is_known = _native.find_archive_end(source.size, ranges, not source.takes_requests)
    except DeserializationError as error:
        if other := instead_of_archive(ranges(0, min(HEAD, source.size))):
            error.found = other
        raise
    start, size, digest = pointer.index_position, pointer.index_size, pointer.root_digest
    if source.whole is not None:
        root = source.read(start + pointer.root_position, pointer.root_size)
        index = _native.ArchiveIndex.of_file(source.whole, start, size, root, digest)
    else:
        last = ranges(start, size)
        root = last[pointer.root_position : pointer.root_position + pointer.root_size]
        index = _native.ArchiveIndex(last, root, digest, start)
        if index.is_of_changes:
            index = _native.ArchiveIndex.of_parts(ranges.many, start, size, root, digest)
    return end, pointer, section, rest_is_known, index


class _Fetched:
    """Ranges of a file, taken from bytes that were read before if possible."""

    def __init__(self, source: Storage) -> None:
        self._source = source
        self._blocks: list[tuple[int, bytes]] = []
        self._fetches = 0
        if source.takes_requests:  # both ends are needed anyway, and come at once
            head, size = _native.ARCHIVE_SECTION_HEAD_SIZE, source.size
            tail = _FIRST_FETCH - head
            places = [(0, head), (size - tail, tail)] if size > _FIRST_FETCH else [(0, size)]
            blocks = source.read_many(places)
            self._blocks = [(position, block) for (position, _), block in zip(places, blocks, strict=True)]

    def many(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Several ranges, with few requests."""
        found = {place: block for place in ranges if (block := self._known(*place)) is not None}
        unknown = [place for place in ranges if place not in found]
        found.update(zip(unknown, self._source.read_many(unknown), strict=True))
        return [found[place] for place in ranges]

    def _known(self, position: int, size: int) -> bytes | None:
        for start, block in self._blocks:
            if start <= position and position + size <= start + len(block):
                return block[position - start : position - start + size]
        return None

    def __call__(self, position: int, size: int) -> bytes:
        if (known := self._known(position, size)) is not None:
            return known
        self._fetches += 1
        if self._fetches > _MOST_FETCHES and self._source.takes_requests:
            raise DeserializationError(
                "", f"an archive of at most {_MOST_FETCHES} appends, because each takes a request",
                "more: `Archive.compact` makes one section of them",
            )  # fmt: skip
        return self._source.read(position, size)


def opened_signed(source: Any, by: SignedBy) -> OpenArchive:
    from jaxexp._signing.reading import SignedFiles, unnamed

    if not isinstance(source, (str, os.PathLike)):
        raise unnamed(f"{type(source).__name__}")
    path = os.fsdecode(source)
    if is_url(path):
        raise unnamed("a URL: copy the file here with its signature")
    signed = SignedFiles(by)
    return OpenArchive(_InMemory(path, signed.opened(path)), signed=signed)


class _InMemory(Storage):
    """The bytes of a file that was read at once. Other processes cannot have them, so there is no address."""

    def __init__(self, name: str, content: Any) -> None:
        self.name = name
        self.size = len(content)
        self.content = content

    def read(self, position: int, size: int) -> bytes:
        self.check_open()
        found: bytes = self.content.read(position, size)
        return found

    def close(self) -> None:
        super().close()
        self.content = None


def of_table(opened: OpenArchive, label: str, table: Table, types: Mapping[str, Any]) -> Tensors:
    """The tensors in the table of a member's trailer, looked up when they are used: the archive has no names for them.

    `types` have the dtype and the shape of each, by its name; the bytes do not say these.
    """
    from jaxexp._weights.files.dtypes import held_as, size_of, type_of, unnamed
    from jaxexp._weights.files.header import Source, Tensor, damaged
    from jaxexp._weights.files.reading import Tensors, in_pieces

    archive = opened.tensors  # it outlives the archive
    may_have_others = functools.cache(archive.may_have_others)  # asked when the first of them is used

    def find(place: int) -> Source:
        stored = table.tensors[place]
        name, type_ = stored.name, types[stored.name]
        there = archive.index.tensor(stored.digest)
        if there is None or there[1] != stored.size:
            found = "none" if there is None else f"one of {there[1]:,} bytes"
            expected = f"a tensor of {stored.size:,} bytes with the digest {stored.digest.hex()}"
            raise WeightsError(name, expected, found, file=label)
        held = held_as(str(type_.dtype), type_.shape)
        if held is None or size_of(*held) != stored.size:
            expected = f"as many bytes as {type_of(type_)} has"
            raise WeightsError(name, expected, f"{stored.size:,}", file=label)
        start, end = there[0], there[0] + there[1]
        of, identity = unnamed(str(type_.dtype), type_.shape), archive.identity

        def whole() -> memoryview:
            found = archive.bytes_of(Tensor(name, *held, start, end))
            if may_have_others() and (digest := _native.digest(found)) != stored.digest:
                error = damaged(archive.name, name, stored.digest, digest)
                error.found += ": it is damaged, or the file has changed since it was opened; open it again"
                raise error
            return found

        origin = None if identity is None else (*identity, start, end)
        return Source(name, *held, lambda: in_pieces(whole()), origin, stored.digest, of, archive.name, whole)

    names = (tensor.name for tensor in table.tensors)
    return Tensors(names, find, repr(label), stable=archive.stable, table=table)


def of_artifact(opened: OpenArchive, label: str, artifact: _native.Artifact) -> Tensors | None:
    """The same for an artifact that is not a function yet; None if it has no weights in the archive."""
    found = artifact.weights()
    if found is None or not opened.has_tensors(found):
        return None
    from jaxexp._kernel.artifact.inspection import shown_node, values_of
    from jaxexp._weights.files.header import Table

    arguments, _ = values_of(artifact, artifact.describe(shown_node), len(found[1]))
    types = {name: value for (name, *_), value in zip(found[1], arguments, strict=True)}
    return of_table(opened, label, Table.of_trailer(*found), types)


def cases_of(opened: OpenArchive, label: str, artifact: _native.Artifact | None) -> Tensors | None:
    """The arrays of cases of a member, looked up when they are used; None if they are not in the archive."""
    if artifact is None or (said := artifact.cases()) is None or not said[2]:
        return None
    from jaxexp._api.cases import files

    table = files.of_trailer(said)
    if table is None or not opened.has_tensors(table):
        return None
    return of_table(opened, label, table, files.types_of(said))


def files_of_artifact(opened: OpenArchive, label: str, artifact: _native.Artifact) -> Tensors | None:
    """Both, for whoever moves them; None if the archive has neither."""
    from jaxexp._weights.files.reading import together

    return together(of_artifact(opened, label, artifact), cases_of(opened, label, artifact))


def load_one(opened: OpenArchive, name: str, policy: Policy | None = None) -> Exported:
    from jaxexp._api.load import Manner
    from jaxexp._kernel.function.data import kept_by

    loaded: Exported = load_all(opened, [name], Manner(1, "raise", policy))[0]
    for one in (loaded, loaded.unbound):  # of a function with weights, two
        vars(kept_by(one))["file"] = opened.label(name)
    return loaded


@contextlib.contextmanager
def _no_collections() -> Generator[None]:
    """Thousands of new objects start no collection of Python's garbage, which would find nothing. Several threads may
    be here at once: each turns on again what it turned off.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@_no_collections()
def load_all(opened: OpenArchive, names: Iterable[str] | None, manner: Manner) -> list[Any]:
    from jaxexp._api.load import load_slices  # imports JAX

    wanted = None if names is None else list(names)
    with opened.placed():
        try:
            numbers = list(opened.numbers(wanted))
        except KeyError:
            lacking = next(name for name in wanted or () if opened.find(name) is None)
            raise opened.missing(lacking, None, repr(opened.source.name)) from None
        if len(numbers) > 1:
            opened.index.check()
        extents = opened.index.extents(numbers)
    if manner.policy is None and opened.source.whole is not None:
        loaded = load_slices(opened.source.whole, extents, lambda i: opened.label_of(numbers[i]), manner)
        if opened.source.whole.is_changed():
            _check_digests(opened, numbers, loaded, manner)
    else:
        loaded = _load_copies(opened, numbers, extents, manner)
    _remember_metadata(opened, numbers, loaded)
    if opened.has_weights:
        _bind_weights(opened, numbers, loaded, manner)
    return loaded


@contextlib.contextmanager
def _refusing(opened: OpenArchive, number: int, loaded: list[Any], i: int, manner: Manner) -> Generator[None]:
    """Puts an error about a member into its place, unless errors are raised."""
    try:
        yield
    except (DeserializationError, PolicyError) as error:
        error.file = error.file or opened.label_of(number)
        if manner.raises:
            raise
        loaded[i] = error


def _bind_weights(opened: OpenArchive, numbers: list[int], loaded: list[Any], manner: Manner) -> None:
    """Replaces programs by functions with their weights and cases. This reads no weights."""
    from jaxexp._api.exported import BoundExported
    from jaxexp._api.load import give_cases
    from jaxexp._kernel.function.data import artifact_of, note, weights_in_trailer
    from jaxexp._weights.bound.program import stored

    weights: dict[int, Any] = {}  # members that share their bytes share these, and cases, too
    with_cases: dict[int, Any] = {}  # the first of them, if its cases are here

    def bound(label: str, owner: int, program: Any) -> Any:
        artifact = artifact_of(program)
        if owner not in with_cases:
            cases = give_cases(program, lambda _: cases_of(opened, label, artifact))
            with_cases[owner] = None if cases is None else program
        elif (first := with_cases[owner]) is not None and artifact is not None:
            note(program, first, metadata=artifact.noted)
        if owner not in weights:
            found = weights_in_trailer(program)
            has_weights = found is not None and opened.has_tensors(found)
            weights[owner] = stored(program, functools.partial(of_table, opened, label)) if has_weights else None
        own = weights[owner]
        return program if own is None else BoundExported.of(program, own)

    for i, (number, owner) in enumerate(zip(numbers, opened.index.owners(numbers), strict=True)):
        if not isinstance(loaded[i], Exception):
            with _refusing(opened, number, loaded, i, manner):
                loaded[i] = bound(opened.label_of(number), owner, loaded[i])


def _remember_metadata(opened: OpenArchive, numbers: list[int], loaded: Sequence[Any]) -> None:
    """Notes the metadata that members have of their own. Members can share one text: each text is parsed once."""
    from jaxexp._kernel.function.data import artifact_of

    parsed: dict[str, dict[str, Any]] = {}
    for i, text in opened.index.own_metadata(numbers):
        if isinstance(loaded[i], Exception):
            continue
        if text not in parsed:
            with opened.placed(opened.index.name(numbers[i])):
                parsed[text] = opened.object(text)
        artifact = artifact_of(loaded[i])
        assert artifact is not None
        artifact.noted = parsed[text]


def _load_copies(opened: OpenArchive, numbers: Sequence[int], extents: Sequence[Any], manner: Manner) -> list[Any]:
    """Loads members from buffers that they are copied into: with a policy, the code that runs has to be the code that
    was checked. Members that are too large, or not what the index says, become errors. Members with the same bytes
    share a copy.
    """
    from jaxexp._api.load import load_slices

    loaded: list[Any] = [None] * len(numbers)
    sharing: dict[Any, list[int]] = {}
    for i, extent in enumerate(extents):
        with _refusing(opened, numbers[i], loaded, i, manner):
            if manner.policy is not None:
                manner.policy.check_size(bytes_in(extent))
            sharing.setdefault(extent, []).append(i)
    for batch in batches(sharing):
        found = opened.parts_of(batch)
        owner, places = _in_one_buffer(found)
        kept: list[int] = []
        for extent, parts in zip(batch, found, strict=True):
            digest = opened.fetched_digest(*parts)
            for i in sharing[extent]:
                with _refusing(opened, numbers[i], loaded, i, manner):
                    opened.check_digest(numbers[i], digest)
                    kept.append(i)
        place_of = dict(zip(batch, places, strict=True))
        labels = [opened.label_of(numbers[i]) for i in kept]
        functions = load_slices(owner, [place_of[extents[i]] for i in kept], labels.__getitem__, manner)
        for i, function in zip(kept, functions, strict=True):
            loaded[i] = function
    return loaded


def bytes_in(extent: Any) -> int:
    return sum(size for _, size in _places_of(extent))


def _check_digests(opened: OpenArchive, numbers: Sequence[int], loaded: list[Any], manner: Manner) -> None:
    """Compares members that have no digests of their own with the digests of the index: the file has been written to
    since it was opened."""
    for i, (number, program) in enumerate(zip(numbers, loaded, strict=True)):
        if not isinstance(program, Exception) and program._artifact.trailer() is None:
            with _refusing(opened, number, loaded, i, manner):
                opened.check_digest(number, program._artifact.digest())


def _in_one_buffer(members: Sequence[tuple[bytes, Sequence[bytes]]]) -> tuple[bytes, list[Any]]:
    """Copies members and their modules into one buffer, an object once. Returns it, and their places in it."""
    pieces: list[Any] = []
    known: dict[int, tuple[int, int]] = {}  # by the identity of an object
    end = 0

    def place(data: Any) -> tuple[int, int]:
        nonlocal end
        if (there := known.get(id(data))) is not None:
            return there
        position, size = end, len(data)
        padding = -size % 8  # numbers in artifacts are read in place
        pieces.extend((data, bytes(padding)))
        end += size + padding
        known[id(data)] = position, size
        return position, size

    places = [(*place(member), tuple(place(module) for module in modules)) for member, modules in members]
    return b"".join(pieces), places

"""Writing archives: new ones, appending, and compacting; and the weights in them, each tensor once."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import warnings
import weakref
import zlib
from collections.abc import Generator, Iterable, Mapping, Sequence
from typing import IO, TYPE_CHECKING, Any

from jaxexp import _native
from jaxexp._errors import SUFFIX_OF_CASES, DeserializationError, ExportError, ExportTypeError, cause
from jaxexp._kernel.artifact import texts
from jaxexp._kernel.artifact.metadata import to_json
from jaxexp._kernel.artifact.opened import opened as artifact_in
from jaxexp._kernel.artifact.opened import tables_of
from jaxexp._kernel.artifact.words import check_flags, cut, is_text, listed_cases, meant
from jaxexp._kernel.io import files, lock
from jaxexp._kernel.io.sources import open_source
from jaxexp._public import public, public_dir
from jaxexp._weights.files.header import Source, content_of, plan, xxh3

from .opened import OpenArchive, files_of_artifact
from .summary import metadata_text, stored_metadata, to_store

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from jaxexp._api.exported import Exported
    from jaxexp._kernel.artifact.cases import Case
    from jaxexp._kernel.write.options import Writing
    from jaxexp._weights.files.header import Table
    from jaxexp._weights.files.reading import Tensors


class Output:
    """The file, its members, and where the next bytes go in it.

    Attributes:
        in_place: whether readers may have the file open.
        is_published: whether readers may have seen the new section.
    """

    def __init__(self, file: IO[bytes], records: _native.ArchiveRecords, end: int, *, in_place: bool) -> None:
        self._file = file
        self.records = records
        self.end = end
        self.in_place = in_place
        self.is_published = False

    def write_at(self, position: int, *parts: Any) -> None:
        self._file.seek(position)
        for part in parts:
            left = memoryview(part).cast("B")
            while left:  # a raw file may write only a part
                left = left[self._file.write(left) :]

    def read(self, position: int, size: int) -> bytes:
        self._file.seek(position)
        parts = []
        while size and (part := self._file.read(size)):  # a raw file may read only a part
            parts.append(part)
            size -= len(part)
        return b"".join(parts)

    def sync(self) -> None:
        """Makes later bytes reach the disk later, if that matters to a reader."""
        self._file.flush()
        if self.in_place:
            os.fsync(self._file.fileno())


class Pieces:
    """Writes bytes that come piece by piece.

    Attributes:
        end: behind the last piece.
        crc32: of all of them.
    """

    def __init__(self, output: Output, position: int) -> None:
        self._output = output
        self.end = position
        self.crc32 = 0

    def take(self, piece: Any) -> None:
        self._output.write_at(self.end, piece)
        self.end += memoryview(piece).nbytes
        self.crc32 = zlib.crc32(piece, self.crc32)


@contextlib.contextmanager
def new(context: contextlib.AbstractContextManager[IO[bytes]]) -> Generator[Output]:
    with context as file:
        yield Output(file, _native.ArchiveRecords(), 0, in_place=False)


@contextlib.contextmanager
def appended(path: str | os.PathLike[str]) -> Generator[Output]:
    """An archive whose file is locked. After an exception the file is as it was, unless the new section was
    published.
    """
    with lock.locked(path) as file:
        records = _native.ArchiveRecords()
        with open_for_writing(path) as opened:
            refuse_unknown_rest(opened)
            end = opened.end
        file.truncate(end)  # an earlier append was interrupted
        # OpenArchive again, because blocks of a large index are read later, with what is close to them in the file.
        with open_for_writing(path) as opened, opened.placed():
            records.build_on(opened.index)
        output, process = Output(file, records, end, in_place=True), os.getpid()
        try:
            yield output
        except BaseException:
            if not output.is_published and process == os.getpid():
                file.truncate(end)
            raise


def refuse_unknown_rest(opened: OpenArchive) -> None:
    """Refuses to write if that would cut off bytes that no append has left, unless all of them are zeros."""
    if opened.rest_is_known or not opened.unfinished_bytes:
        return
    position, size = opened.end, opened.source.size
    while position < size:
        part = min(size - position, 1 << 20)
        if opened.source.read(position, part).strip(b"\0"):
            raise DeserializationError(
                "",
                f"an archive that ends at byte {opened.end}, perhaps with the rest of an unfinished append after it",
                f"{opened.unfinished_bytes} bytes of other data after it; cut them off if you do not need them",
                opened.source.name,
            )
        position += part


def open_for_writing(path: str | os.PathLike[str]) -> contextlib.closing[OpenArchive]:
    return contextlib.closing(OpenArchive(open_source(path, {})))


class WeightsWriter:
    """Adds files of tensors to an archive. In the archive, the name of a tensor is the digest of its bytes."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self._records = output.records
        # Digests of tensors in the archive, by their sources: the next function may have the same ones.
        self._of_files: dict[tuple[Any, ...], bytes] = {}
        self._of_arrays: dict[int, tuple[weakref.ref[Any], bytes]] = {}

    def add(self, sources: Sequence[Source]) -> dict[str, bytes]:
        """Writes the tensors that are not in the archive yet, and returns the digests of all by name."""
        digests: dict[str, bytes] = {}
        unseen: list[Source] = []
        new: dict[bytes, Source] = {}
        for source in sources:
            digest = self._seen(source)
            if digest is None or source.digest not in (None, digest):
                digest = source.checked(xxh3(source.pieces()))
                unseen.append(source)
                if self._records.tensor(digest) is None:
                    new.setdefault(digest, source)
            digests[source.name] = digest
        if new:
            self._write(new)
        for source in unseen:
            digest = digests[source.name]
            if new.get(digest) is not source:
                place = self._records.tensor(digest)
                assert place is not None
                self._compare(source, *place)
            if isinstance(source.origin, tuple):
                self._of_files[source.origin] = digest
            elif source.origin is not None:
                self._of_arrays[id(source.origin)] = weakref.ref(source.origin), digest
        return digests

    def _seen(self, source: Source) -> bytes | None:
        if isinstance(source.origin, tuple):
            return self._of_files.get(source.origin)
        found = self._of_arrays.get(id(source.origin))
        return found[1] if found is not None and found[0]() is source.origin else None

    def _write(self, new: dict[bytes, Source]) -> None:
        names = {digest.hex(): digest for digest in new}
        named = (dataclasses.replace(new[digest], name=name, of=None) for name, digest in names.items())
        (planned,) = plan("weights.safetensors", named)
        head = planned.head(content_of(planned.tensors, names).hex())
        size = len(head) + planned.data_size
        name, start = _native.archive_weights_name(self._records.weights_file_count), self._output.end
        header = len(_native.zip_local_header(name, size, 0, start))
        file, places = Pieces(self._output, start + header), []
        file.take(head)
        for tensor in planned.tensors:
            digest = names[tensor.name]
            places.append((digest, file.end, tensor.size))
            source, digester, end = new[digest], _native.Digester(), file.end + tensor.size
            for piece in source.pieces():
                digester.update(piece)
                file.take(piece)
            if file.end != end or digester.digest() != digest:
                raise ExportError(f"the weight {source.name!r} changed while it was written to an archive")
        self._output.write_at(start, _native.zip_local_header(name, size, file.crc32, start))
        self._records.add_weights(start + header, size, file.crc32, header, places)
        self._output.end = file.end

    def _compare(self, source: Source, position: int, size: int) -> None:
        """Compares the bytes, because equal digests can be forged."""
        if size != source.size:
            raise _forged(source)
        for piece in source.pieces():
            count = memoryview(piece).nbytes
            if not _native.equal_bytes(self._output.read(position, count), piece):
                raise _forged(source)
            position += count


def _forged(source: Source) -> ExportError:
    return ExportError(
        f"the weight {source.name!r} has the same digest as another tensor in the archive, but other bytes. This does "
        "not happen by accident: find out where the weight comes from"
    )


def _undo(context: contextlib.AbstractContextManager[Any], path: str, process: int) -> None:
    """Undoes what a writer began that is gone, or whose process ends, as an exception in its block would."""
    if process != os.getpid():
        return
    dropped = ExportError("a writer that is no longer used")
    with contextlib.suppress(Exception):
        context.__exit__(type(dropped), dropped, None)
    warnings.warn(
        f"nothing was written to {path!r}: the writer was used without a `with` block, and changes appear when the "
        "block ends",
        ResourceWarning,
        stacklevel=2,
    )


@public
class ArchiveWriter:
    """Writes an archive in a `with` block. `Archive.create` and `Archive.append` return one.

    Other programs see the changes when the block ends. An exception in the block undoes them. Several threads may add
    and remove members at once. A process that is forked inside the block cannot use the writer.

    Equal artifacts are stored once: their names refer to the same bytes. If `share_modules` is true, equal modules of
    different artifacts are stored once, too. The rest of such an artifact is in the folder ``.jaxexp/apart``, and
    `Handle.load` and `Handle.read` join the parts. A member that is stored under its own name is always an artifact
    that `jax.export` reads.

    Equal weights are stored once, in safetensors files in the folder ``.jaxexp/weights``. Weights of removed members
    stay there until `Archive.compact`.

    Args:
        share_modules: whether modules are shared between different artifacts.
    """

    def __init__(
        self,
        output: contextlib.AbstractContextManager[Output] | None = None,
        path: str | os.PathLike[str] | None = None,
        share_modules: bool = True,
    ) -> None:
        if path is None or not isinstance(output, contextlib.AbstractContextManager):
            raise ExportTypeError(
                "Archive.create returns a writer for a new archive, and Archive.append returns one that adds to an "
                f"archive: pass {'the path' if output is None else f'{output!r:.200}'} to one of these, and not to the "
                "class"
            )
        check_flags(share_modules=share_modules)
        self._path = os.fsdecode(path)
        self._share_modules = share_modules
        self._is_inside = False  # inside of the block, the only place to use it
        self._lock = lock.reentrant()
        self._process = os.getpid()
        with contextlib.ExitStack() as stack:
            self._output = stack.enter_context(output)
            self._records = self._output.records
            self._weights = WeightsWriter(self._output)
            self._start = self._output.end  # of the section that this writes
            # A section is incomplete until its end is written. Until then, readers ignore all that is in it.
            self._output.write_at(self._start, head := _native.archive_section_head(self._start))
            self._output.sync()
            self._output.end += len(head)
            self._context = stack.pop_all()  # of the file; its exit sees how the block ended
        self._is_pending = True  # whether the block still has to end
        self._undo = weakref.finalize(self, _undo, self._context, self._path, self._process)

    @contextlib.contextmanager
    def _changing(self) -> Generator[None]:
        """A context for one change at a time. Raises an ExportError outside of the block."""
        self._require_inside()  # in a forked process, nobody may release the lock
        with self._lock:
            self._require_inside()
            yield

    def _require_inside(self) -> None:
        if self._process != os.getpid():
            raise ExportError(
                f"{self._path!r} is being written by the process that this one was forked from: only that process can "
                "add artifacts"
            )
        if not self._is_inside:
            how = "append" if self._output.in_place else "create"
            raise ExportError(
                "an archive is written in a block, and the changes appear when the block ends: "
                f"`with Archive.{how}({self._path!r}) as archive:`, and archive.add(...) inside it"
            )

    def add(
        self,
        name: str,
        exported_or_bytes: Exported | Buffer,
        *,
        vjp_order: int = 0,
        metadata: Mapping[str, Any] | None = None,
        strict: bool = False,
        sizes: Iterable[Mapping[str, int]] | None = None,
        pad: str | Iterable[str] | None = None,
        cases: Iterable[Any] = (),
    ) -> None:
        """Adds a function under a name.

        Args:
            name: a relative path with ``/`` between its parts. It must not exist already, and must not be a folder of
                other names. ``..``, backslashes and control characters are refused.
            exported_or_bytes: a `jaxexp.Exported`, with its weights and cases; or a buffer with an artifact, which is
                stored as it is except for its metadata. For an artifact with files beside it, use `add_file`.
            vjp_order: how many VJPs of an Exported to store, as in `Exported.serialize`.
            metadata: your own notes, a mapping of strings to JSON values, at most 64 kB. The default is the metadata of
                the function or the artifact. The trailer of the stored artifact holds it; the other bytes stay the
                same. For a buffer without a trailer, as `jax.export` writes it, only the index holds it: the `Handle`
                and functions loaded from it have the metadata, but `Handle.read` and unpacked files do not.
            strict: refuse an Exported with pytree nodes that only jaxexp reads, as in `Exported.serialize`.
            sizes, pad, cases: for an Exported, as in `Exported.save`.

        Raises:
            ExportError: the name cannot be used, `metadata` is not JSON or is too long, the function cannot be
                serialized, or the `with` block has not begun or has ended.
            DeserializationError: the buffer is not an artifact, or is damaged.
            TypeError: `exported_or_bytes` is neither an Exported nor a buffer.
        """
        self._require_inside()
        if (blob := _bytes_in(exported_or_bytes)) is not None:
            options = {
                "vjp_order": vjp_order,
                "strict": strict,
                "sizes": sizes,
                "pad": pad,
                "cases": listed_cases(cases),
            }
            if given := next((f"{key}={value!r}" for key, value in options.items() if value), None):
                raise ExportError(f"{given} is for an Exported: an artifact in a buffer is stored as it is")
            with self._changing():
                self._add(name, *_noted(blob, metadata))
            return
        from jaxexp._api.exported import cases_to_write

        if metadata is not None:
            metadata_text(metadata)  # which refuses what is too long
        function = _exported(exported_or_bytes)
        cases = list(cases)
        how = function._writing(vjp_order, None, True, metadata, strict, "full", sizes, pad, cases)
        recorded = cases_to_write(function, how, cases)
        with self._changing():
            self._check_name(name)  # before tensors are written
            self._add(name, *_noted(serialized(function, how, recorded, self._weights), None))

    def add_file(self, name: str, path: str | os.PathLike[str], *, metadata: Mapping[str, Any] | None = None) -> None:
        """Adds an artifact's file, with the weights and cases in files beside it.

        Args:
            name: as in `add`.
            path: the file.
            metadata: as in `add`.

        Raises:
            ExportError: the name cannot be used, `metadata` is not JSON or is too long, or the `with` block has not
                begun or has ended.
            DeserializationError: the file is not an artifact or is damaged, or its weights are missing or damaged.
            OSError: a file cannot be read.
        """
        self._require_inside()
        with files.named_in_errors(path):
            blob: Any = files.opened(path)  # a buffer, which types can say since Python 3.12
            artifact = artifact_in(blob)
            weights = files_beside(path, artifact)
            self.add_with_weights(name, blob, artifact, weights, metadata)

    def add_with_weights(
        self,
        name: str,
        blob: Any,
        artifact: _native.Artifact,
        weights: Tensors | None,
        metadata: Mapping[str, Any] | None,
    ) -> None:
        """Adds an opened artifact, with the tensors that its trailer names."""
        with self._changing():
            self._check_name(name)  # both before weights are written
            noted = _noted(memoryview(blob), metadata, artifact)
            if weights is not None:
                self._weights.add(weights.sources())
            self._add(name, *noted)

    def _add(self, name: str, blob: Any, artifact: _native.Artifact, own_metadata: str | None) -> bytes:
        """Adds an artifact from a buffer that does not change meanwhile. Returns the digest of what was added."""
        self._check_name(name)
        texts.check(*artifact.texts())
        modules = artifact.modules()
        size = artifact.size
        blob = memoryview(blob)[:size]  # the rest of the buffer is not part of it
        digest = _native.digest(blob)
        member = _native.Member(
            summary=to_store(artifact),
            digest=digest,
            size=size,
            metadata=own_metadata if own_metadata is not None else stored_metadata(artifact),
            own_metadata=own_metadata is not None,
        )
        if (equal := self._equal(blob, digest, size)) is not None:
            self._put(name, member.at(equal.place.as_shared(), equal.modules))
        elif self._share_modules and (apart := self._apart(artifact, blob, modules)) is not None:
            image, places = apart
            self._put(name, member.at(self._write(name, image, apart=True), places))
        else:
            self._store(name, blob, member, modules)
        return digest

    def _check_name(self, name: str) -> None:
        try:
            if not isinstance(name, str):
                raise ValueError(f"it is a {type(name).__name__}, not a str")
            if not is_text(name):
                raise ValueError("it is not UTF-8")
            with files.named_in_errors(self._path):  # it may read parts of the index
                self._records.check_name(name)
        except DeserializationError:  # which is a ValueError, too
            raise
        except ValueError as error:
            raise ExportError(f"{cut(repr(name))} cannot be the name of an archive's member: {error}") from cause(error)

    def remove(self, *names: str) -> None:
        """Removes members from the index. `Archive.compact` frees their bytes.

        Raises:
            KeyError: there is no such member. Then no member is removed.
            ExportError: the `with` block has not begun or has ended.
        """
        members = {}
        with self._changing(), files.named_in_errors(self._path):
            for name in names:
                if name not in self:
                    raise KeyError(f"{name!r} is not in {self._path!r}{meant(name, self._records.names())}")
                members[name] = self._member(name).place
            # First the members that use bytes of others: bytes that are no longer used need not be moved.
            for name in sorted(members, key=lambda name: (not members[name].shared, not members[name].apart)):
                self._remove(name)

    def _remove(self, name: str) -> None:
        member = self._member(name)
        self._records.remove(name)
        if member.place.shared:
            return
        # One of the members that share its bytes becomes their owner.
        if heirs := self._records.sharing(member.place.position):
            self._move(member, heirs[0], heirs[1:])
        elif not member.place.apart:
            self._give_modules(member)

    def _member(self, name: str) -> _native.Member:
        member = self._records.get(name)
        assert member is not None
        return member

    def __contains__(self, name: object) -> bool:
        with self._lock:
            return isinstance(name, str) and is_text(name) and self._records.get(name) is not None

    def __len__(self) -> int:
        with self._lock:
            return len(self._records)

    def names(self) -> list[str]:
        """The names of the members, in ascending order."""
        with self._lock:
            return self._records.names()

    __dir__ = public_dir

    def __enter__(self) -> ArchiveWriter:
        if not self._is_pending:
            raise ExportError(
                "the block of this writer has ended: begin another one, "
                f"`with Archive.append({self._path!r}) as archive:`"
            )
        self._is_inside = True
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if self._process != os.getpid():  # it was forked from the one that writes
            return
        with self._lock:
            self._is_inside = self._is_pending = False
            self._undo.detach()
            if error is None:
                try:
                    self._finish()
                except BaseException as failure:
                    self._context.__exit__(type(failure), failure, failure.__traceback__)
                    raise
            self._context.__exit__(kind, error, trace)

    def _put(self, name: str, member: _native.Member) -> None:
        try:
            self._records.put(name, member)
        except ValueError as error:
            raise ExportError(f"{name!r} cannot be stored in the archive: {error}") from cause(error)

    def _store(self, name: str, blob: Any, member: _native.Member, modules: list[tuple[int, int, bytes]]) -> None:
        place = self._write(name, blob)
        inside = [(place.position + offset, size, digest) for offset, size, digest in modules]
        self._put(name, member.at(place, inside))

    def _write(self, name: str, data: Any, *, apart: bool = False) -> _native.MemberPlace:
        if apart:
            name = _native.ARCHIVE_APART_FOLDER + name
        crc32, size, start = zlib.crc32(data), memoryview(data).nbytes, self._output.end
        header = _native.zip_local_header(name, size, crc32, start)
        self._output.write_at(start, header, data)
        position = start + len(header)
        self._output.end = position + size
        return _native.MemberPlace(position, size, crc32, len(header), apart=apart)

    def _equal(self, blob: Any, digest: bytes, size: int) -> _native.Member | None:
        """A member with the same content. The bytes are compared, because equal digests can be forged."""
        name = self._records.of_content(digest, size)
        member = None if name is None else self._records.get(name)
        return member if member is not None and self._artifact_bytes(member) == bytes(blob) else None

    def _apart(
        self, artifact: _native.Artifact, blob: memoryview, modules: list[tuple[int, int, bytes]]
    ) -> tuple[bytes, list[tuple[int, int, bytes]]] | None:
        """The artifact without its modules, and the places of these; only if other members have all of them."""
        if artifact.trailer() is None:
            return None
        places = []
        for offset, size, digest in modules:
            position = self._records.module(digest, size)
            if position is None or not self._has(position, blob[offset : offset + size]):
                return None
            places.append((position, size, digest))
        with contextlib.suppress(DeserializationError):  # its layout cannot be cut
            return _native.cut(blob), places
        return None

    def _has(self, position: int, module: Any) -> bool:
        """Whether a module lies there. The bytes are compared, because equal digests can be forged."""
        return self._output.read(position, len(module)) == bytes(module)

    def _artifact_bytes(self, member: _native.Member) -> bytes | bytearray:
        stored = self._output.read(member.place.position, member.place.size)
        if not member.place.apart:
            return stored
        return _native.join(stored, [self._output.read(position, size) for position, size, _ in member.modules])

    def _move(self, removed: _native.Member, heir: str, others: list[str]) -> None:
        """Writes the bytes of a removed member again, for the members that share them."""
        old, modules = removed.place, removed.modules
        place = self._write(heir, self._output.read(old.position, old.size), apart=old.apart)
        if not old.apart:
            moved = place.position - old.position
            modules = [(position + moved, size, digest) for position, size, digest in modules]
        for name in [heir, *others]:
            self._put(name, self._member(name).at(place if name == heir else place.as_shared(), modules))
        if not old.apart:
            self._give_modules(removed)

    def _give_modules(self, removed: _native.Member) -> None:
        """Finds new places for the modules of a removed member that others use, or makes one of these members whole."""
        for name in self._records.using(removed.place.position, removed.place.size):
            member = self._member(name)
            if member.place.shared or not member.place.apart:  # members that share bytes follow their owner
                continue
            sharing = self._records.sharing(member.place.position)
            modules = []
            for old, size, digest in member.modules:
                position = self._records.owned_module(digest, size)
                if position is not None and self._has(position, self._output.read(old, size)):
                    modules.append((position, size, digest))
            if len(modules) < len(member.modules):
                blob = self._artifact_bytes(member)
                self._store(name, blob, member, _native.Artifact(blob).modules())
            else:
                self._put(name, member.at(member.place, modules))
            owner = self._member(name)
            for other in sharing:
                self._put(other, self._member(other).at(owner.place.as_shared(), owner.modules))

    def _finish(self) -> None:
        """Writes the index and the ZIP file's own directory, and when they are on the disk, the section's end."""
        start = self._output.end + len(_native.zip_local_header(_native.ARCHIVE_INDEX_NAME, 0, 0, self._output.end))
        try:
            index = Pieces(self._output, start)
            with files.named_in_errors(self._path):
                size, root_position, root_size, root_digest = self._records.write(files.WRITER, start, index.take)
        except DeserializationError:
            raise
        except ValueError as error:
            raise ExportError(f"the archive cannot be finished: {error}") from cause(error)
        header = _native.zip_local_header(_native.ARCHIVE_INDEX_NAME, size, index.crc32, self._output.end)
        self._output.write_at(self._output.end, header)
        pointer = _native.ArchiveEnd(start, size, root_position, root_size, root_digest)
        place = _native.MemberPlace(start, size, index.crc32, len(header))
        directory = Pieces(self._output, index.end)
        self._records.write_directory(place, index.end, pointer.comment(), self._start, directory.take)
        self._output.end = directory.end
        self._output.sync()
        end = self._output.read(directory.end - _native.ARCHIVE_END_SIZE, _native.ARCHIVE_END_SIZE)
        head = _native.archive_section_head(self._start, self._output.end, end)
        self._output.is_published = True  # from the first byte on: a reader may have seen it
        self._output.write_at(self._start, head)
        self._output.sync()


def compact(path: str | os.PathLike[str], share_modules: bool) -> None:
    """See `Archive.compact`."""
    with lock.locked(path), open_for_writing(path) as old:
        old.check()
        refuse_unknown_rest(old)
        with ArchiveWriter(new(files.replacing(path, None)), path, share_modules) as writer:
            for number, name in enumerate(old.names):
                with old.placed(name):
                    member = old.index.member(number)
                    blob = old.artifact_bytes(number)
                    artifact = _native.Artifact(blob)
                    weights = files_of_artifact(old, old.label(name), artifact)
                    if weights is not None:
                        writer._weights.add(weights.sources())
                    own = member.metadata if member.own_metadata else None
                    if (digest := writer._add(name, blob, artifact, own)) != member.digest:
                        raise DeserializationError(
                            "", f"an artifact of digest {member.digest.hex()}", f"one of {digest.hex()}"
                        )


def serialized(function: Any, how: Writing, cases: Sequence[Case] | None, tensors: WeightsWriter) -> memoryview:
    """The artifact of a function that is about to become a member; its weights and large arrays of cases are stored."""
    from jaxexp._kernel.write.serialize import serialize

    if cases is not None:
        from jaxexp._api.cases import files

        sources = files.sources_of(cases)
        tables = [_table(sources, tensors, f"weights{SUFFIX_OF_CASES}")] if sources else []
        how = how._replace(cases=files.with_files(cases, *tables), case_files=True)
    if weights := function.weights:
        table = _table(weights.sources(), tensors, "weights.safetensors")
        how = how._replace(weights=table.with_other_names(weights.other_names))
    return memoryview(serialize(function.unbound, how)).toreadonly()


def _table(sources: Sequence[Source], stored: WeightsWriter, name: str) -> Table:
    """The table for the trailer of a member, whose tensors are put into its archive. It has one file for them when they
    are taken out, called like `name`, and the same for all functions that have these tensors.
    """
    from jaxexp._weights.files.header import StoredFile, StoredTensor, Table
    from jaxexp._weights.files.places import own_name

    digests = stored.add(sources)
    content = content_of(sources, digests)
    (planned,) = plan(own_name(name, content), sources)
    file = StoredFile(planned.name, planned.size, content)
    tensors = (StoredTensor(source.name, 0, source.size, digests[source.name]) for source in sources)
    return Table((file,), tuple(tensors))


def files_beside(path: str | os.PathLike[str], artifact: _native.Artifact) -> Tensors | None:
    """The weights and cases of an artifact that is about to become a member, in files beside it; None if it has none.
    It is an error if these files have other tensors, too, which would be lost.
    """
    if not (said := tables_of(artifact)):
        return None
    from jaxexp._weights.files.header import Table
    from jaxexp._weights.files.reading import Opening, StoredTensors, together

    found = [StoredTensors(path, Table.of_trailer(*one), Opening("in pieces")) for one in said]
    for stored in found:
        stored.check_whole()
    return together(*found)


def _bytes_in(exported_or_bytes: Any) -> memoryview | None:
    """An artifact in memory that cannot change: the bytes that are stored are those that were verified. None for what
    is no buffer.
    """
    try:
        view = memoryview(exported_or_bytes).cast("B")
    except TypeError:
        return None
    return view if isinstance(view.obj, (bytes, _native.FileBytes)) else memoryview(bytes(view))


def _noted(
    blob: Any, metadata: Mapping[str, Any] | None, artifact: _native.Artifact | None = None
) -> tuple[Any, _native.Artifact, str | None]:
    """An artifact with other metadata, or its own; `artifact`, if it is open already. Without a trailer, it stays as it
    is, and the metadata are returned, too: only the index has a place for them.
    """
    text = None if metadata is None else metadata_text(metadata)
    if artifact is None:
        artifact = _native.Artifact(blob, in_place=True)
    if text is None or artifact.trailer() is None:
        return blob, artifact, text
    assert metadata is not None
    blob = _native.with_metadata(blob, to_json(metadata))
    return blob, _native.Artifact(blob, in_place=True), None


def _exported(given: Any) -> Any:
    from jaxexp._api.exported import Exported

    if isinstance(given, Exported):
        return Exported.from_jax(given)  # of either library
    advice = "; add_file(name, path) adds a file" if isinstance(given, (str, os.PathLike)) else ""
    raise ExportTypeError(
        f"an Exported, or a buffer with an artifact, can be added to an archive, not {type(given)}{advice}"
    )

"""`Archive`: many artifacts in one file, each a few microseconds away; and `Handle`, a member."""

from __future__ import annotations

import bisect
import dataclasses
import fnmatch
import functools
import itertools
import operator
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal, NoReturn, overload

from jaxexp import _native
from jaxexp._errors import DeserializationError, ExportError, ExportTypeError
from jaxexp._kernel.artifact.words import bytes_in_words, check_flags, counted, cut, derivatives, is_text, lowered_for
from jaxexp._kernel.io.files import in_archive, is_url, named_in_errors
from jaxexp._kernel.io.sources import open_source
from jaxexp._public import PublicNames, no_attribute, public, public_dir

from .opened import OpenArchive, files_of_artifact, load_all, load_one, of_artifact
from .summary import Summary, of_member

if TYPE_CHECKING:
    from jaxexp._api.exported import Exported
    from jaxexp._api.load import OnError
    from jaxexp._executables.executables import Executable
    from jaxexp._fleet.engine.engine import Workers
    from jaxexp._kernel.artifact.inspection import Inspection
    from jaxexp._kernel.io.sources import BinaryFile
    from jaxexp._policy.policy import Policy
    from jaxexp._signing.signed_by import SignedBy
    from jaxexp._weights.files.reading import Tensors

    from .writer import ArchiveWriter


@public
@dataclasses.dataclass(frozen=True, slots=True, repr=False)
class Handle:
    """A member of an archive. Its artifact is read on demand.

    Attributes:
        name: its name in the archive.
    """

    _opened: OpenArchive
    _number: int
    name: str

    if not TYPE_CHECKING:  # type checkers would no longer report missing attributes

        def __getattr__(self, name: str) -> NoReturn:
            advice = "; its method load returns the function, as in archive[name].load().call(x)"
            raise no_attribute(self, name, advice)

    @property
    def label(self) -> str:
        """The archive and the name, as in ``"fleet.zip::resnet/b8"``: `load` takes it, and errors show it."""
        return self._opened.label(self.name)

    @property
    def summary(self) -> Summary:
        """The summary of the function in the index. The artifact is not read."""
        return of_member(self._member)

    @property
    def size(self) -> int:
        """The size of the artifact in bytes."""
        return self._member.size

    @property
    def digest(self) -> str:
        """The digest of the artifact as a hexadecimal number (XXH3, 128 bits). Equal artifacts have equal digests."""
        return self._member.digest.hex()

    @property
    def metadata(self) -> dict[str, Any]:
        """The metadata that was passed to `ArchiveWriter.add`, or else the artifact's metadata."""
        with self._placed():
            return self._opened.metadata(self._number)

    def own_metadata(self) -> dict[str, Any] | None:
        """The metadata, if only the index has it; else None."""
        with self._placed():
            return self._opened.own_metadata(self._number)

    @property
    def shares_modules(self) -> bool:
        """Whether its modules are stored with another member, so that `unzip` does not extract a complete artifact."""
        return self._member.place.apart

    def load(
        self,
        *,
        policy: Policy | None = None,
        verify: bool = False,
        executables: str | os.PathLike[str] | None = None,
    ) -> Exported:
        """Loads the function, as `jaxexp.load` does. From a local file, a large module is read when the function is
        called.

        If its weights are in the archive, the function is a `BoundExported`. Weights are mapped, or fetched from a URL,
        when they are first used. If the archive was opened with `stable`, they are copied instead of mapped.

        Without a policy or executables, this returns the same object, with its compiled code, as long as it is in use.

        Args:
            policy: the allowed contents of the artifact, as in `deserialize`.
            verify: as in `jaxexp.load`.
            executables: a file that `Archive.precompile` or `Exported.precompile` wrote, as in `jaxexp.load`. If the
                archive was opened with `signed_by`, the file must be signed, too.

        Raises:
            DeserializationError: the artifact is damaged. The error names the archive and the member.
            PolicyError: the artifact contains something that the policy does not allow.
            SignatureError: the file of executables is not signed, and the archive was opened with `signed_by`.
            ExportError: both `policy` and `executables` are given.
            OSError: a file cannot be read.
        """
        self._opened.source.check_open()
        if executables is not None:
            from jaxexp._api.load import refuse_both
            from jaxexp._executables.executables import attach

            refuse_both(self.label, policy, executables)
            signed = self._opened.signed
            code = None if signed is None else signed.opened(executables, self._opened.source.name)
            exported = load_one(self._opened, self.name)
            attach(exported.unbound, executables, code)
        elif policy is not None:
            exported = load_one(self._opened, self.name, policy)
        elif (known := self._opened.loaded.get(self._number)) is not None:
            exported = known
        else:
            exported = self._opened.loaded[self._number] = load_one(self._opened, self.name)
        if verify:
            from jaxexp._kernel.read.decode import verify_modules

            with self._placed():
                verify_modules(exported)
            if (stored := self.stored_files()) is not None:
                stored.check_digests()
        return exported

    def read(self) -> bytes:
        """The bytes of the artifact, for any `jax.export`. They are not verified.

        Raises:
            DeserializationError: its modules are stored with another member, but are missing there.
        """
        with self._placed():
            return self._opened.artifact_bytes(self._number)

    def stored_weights(self) -> Tensors | None:
        """The weights of the function in the archive, without JAX; None if the archive has none."""
        return self._stored(of_artifact)

    def stored_files(self) -> Tensors | None:
        """The weights and the arrays of cases in the archive, for a copy of the member; None if there are none."""
        return self._stored(files_of_artifact)

    def _stored(self, tensors_of: Callable[[OpenArchive, str, _native.Artifact], Tensors | None]) -> Tensors | None:
        with self._placed():
            return tensors_of(self._opened, self.label, _native.Artifact(*self._opened.parts(self._number)))

    def inspect(self, *, check_modules: bool = False) -> Inspection:
        """Inspects the artifact, as `jaxexp.inspect` does."""
        from jaxexp._kernel.artifact.inspection import described  # slow to import

        with self._placed():
            image, modules = self._opened.parts(self._number)
            found = described(image, check_modules, modules)
        own = self.own_metadata()
        return found if own is None else dataclasses.replace(found, metadata=own or None)

    @property
    def _member(self) -> _native.Member:
        with self._placed():
            return self._opened.index.member(self._number)

    def _placed(self) -> named_in_errors:
        return self._opened.placed(self.name)

    def __repr__(self) -> str:
        place = f"{self.name!r} in {self._opened.source.name!r}"
        try:
            return f"Handle({place}: {cut(str(self.summary))}, {bytes_in_words(self.size)})"
        except (ExportError, OSError):  # the index is read when it is needed; or the archive is closed
            return f"Handle({place})"

    def _repr_html_(self) -> str:
        from jaxexp._view.card import rows_card

        summary = self.summary
        rows = {
            "function": summary.fun_name,
            "platforms": lowered_for(summary.platforms, summary.nr_devices),
            "written by": f"JAX {summary.jax_version or summary.writer}",
            "size": bytes_in_words(self.size),
            "derivatives": derivatives(summary.vjp_order),
            **({"weights": f"{summary.weight_count:,}"} if summary.weight_count else {}),
            counted(summary.argument_count, "argument"): ", ".join(summary.arguments),
            counted(summary.result_count, "result"): ", ".join(summary.results),
            "digest": self.digest,
        }
        return rows_card(self.name, rows.items())

    __dir__ = public_dir

    def __copy__(self) -> Handle:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return operator.getitem, (self._opened, self.name)  # unpickling makes an archive of `_opened`: see OpenArchive


def _several(names: Any) -> Any:
    """Names of members, which are no single one."""
    if isinstance(names, str):
        raise ExportTypeError(f"names takes the names of members in a list, as in [{names!r}]")
    return names


# Rows of a card in a notebook.
_SHOWN = 50


@public
class Archive(Mapping[str, "Handle"], metaclass=PublicNames):
    """The artifacts in one file: a read-only mapping of their names to handles, in the order of the names.

    The file is a ZIP file. Its members are artifacts without compression: `unzip` extracts a member that is stored
    under its own name, and `jax.export` reads it. The last member is an index. Opening a local file reads only the root
    of the index. The rest is read and checked on demand, and a large module when its function is called. Opening a URL
    or a file object reads the whole index.

    The file stays open as long as a function from it is in use. An archive shows the file as it was when it was opened:
    appending overwrites nothing, and compacting makes a new file.

    Attributes:
        name: the path or URL.
        unfinished_bytes: how many bytes follow the end of the archive, because an append was interrupted or is still
            running; nearly always 0.

    Example:
        >>> with jaxexp.Archive.create("fleet.zip") as archive:
        ...     archive.add("resnet/b8", exported)
        >>> jaxexp.Archive.open("fleet.zip")["resnet/b8"].load().call(x)
    """

    __slots__ = ("_names", "_opened")

    def __init__(self, opened: OpenArchive, names: tuple[str, ...] | None = None) -> None:
        if not isinstance(opened, OpenArchive):
            raise ExportTypeError(
                "Archive.open opens an archive for reading, and Archive.create and Archive.append write one: pass "
                f"{opened!r:.200} to one of these, and not to the class"
            )
        self._opened = opened
        self._names = names  # only for a slice; in ascending order

    @staticmethod
    def open(
        source: str | os.PathLike[str] | BinaryFile,
        *,
        signed_by: SignedBy | None = None,
        stable: bool = False,
        **storage_options: Any,
    ) -> Archive:
        """Opens an archive for reading.

        Args:
            source: a path; a binary file object with `read` and `seek`, which must stay open; or a URL that fsspec
                supports, such as ``"s3://bucket/fleet.zip"`` (extra ``jaxexp[remote]``). URLs and file objects are read
                in ranges: first the end with the index, then the members that you ask for.
            signed_by: the trusted signer of the archive, as in `load`. The whole archive, with its weights, is then
                read into memory, and members are loaded from there. Files of executables for its members must be
                signed, too.
            stable: whether weights in a local file are copied to memory when they are first used, and compared with
                their digests, instead of mapped. Later changes of the file then cannot end the process or change
                results.
            storage_options: for fsspec, such as credentials. ``headers`` for http URLs go only to the server of the
                URL: a redirection to another server is an error.

        Raises:
            DeserializationError: it is not an archive, or its index is damaged.
            SignatureError: as in `load`.
            ExportError: `signed_by` is given, and `source` is not a file on this machine; or it is a member.
            OSError: it cannot be opened.
            ImportError: `source` is a URL, and fsspec or its package for this kind of URL is not installed; or
                `signed_by` is given, and ``model-signing`` is not installed.
            TypeError: `source` is something else.
        """
        check_flags(stable=stable)
        if signed_by is not None:
            from .opened import opened_signed

            return Archive(opened_signed(source, signed_by))
        if isinstance(source, (str, os.PathLike)):
            found = in_archive(path := os.fsdecode(source))
            if found is not None and not os.path.lexists(path):
                raise ExportError(f"{source!r} is a member: open it by Archive.open({found[0]!r})[{found[1]!r}]")
        again = functools.partial(Archive.open, stable=True) if stable else Archive.open
        return Archive(OpenArchive(open_source(source, storage_options), again, stable=stable))

    @staticmethod
    def create(path: str | os.PathLike[str], *, share_modules: bool = True) -> ArchiveWriter:
        """A writer for a new archive, for a `with` block. At the end of the block, the file appears or replaces the old
        one.

        Args:
            path: the file.
            share_modules: as in `ArchiveWriter`.

        Raises:
            ExportError: another process is changing the old archive, or makes one at this path before the block ends;
                or the path is a URL; or it is a file of another kind, such as an artifact or weights, which stays.
            OSError: the file cannot be written.
        """
        from jaxexp._kernel.io.lock import replacing_locked
        from jaxexp._kernel.io.other_files import ARCHIVE

        from .writer import ArchiveWriter, new

        return ArchiveWriter(new(replacing_locked(_on_this_machine(path), ARCHIVE)), path, share_modules)

    @staticmethod
    def append(path: str | os.PathLike[str], *, share_modules: bool = True) -> ArchiveWriter:
        """A writer that adds members to an archive or removes members, for a `with` block.

        Nothing in the file is overwritten: new members, then an index, are written after the old end. Until the block
        ends, and if it is interrupted, programs that open the archive see the old one. Only one process at a time can
        append.

        In an archive of more than 1,000 members, the new index has only the changes, so an append takes milliseconds.
        Until `compact`, `unzip` then sees only the members of this append, and older releases of jaxexp refuse the
        archive. Removing members reads the whole index.

        Args:
            path: the file.
            share_modules: as in `ArchiveWriter`.

        Raises:
            DeserializationError: it is not an archive, its index is damaged, or it is followed by bytes that are not
                from an interrupted append.
            ExportError: another process is changing it.
            OSError: the file cannot be opened or written.

        Example:
            >>> with jaxexp.Archive.append("fleet.zip") as archive:
            ...     archive.add("resnet/b16", exported)
            ...     archive.remove("resnet/b8")
        """
        from .writer import ArchiveWriter, appended

        return ArchiveWriter(appended(_on_this_machine(path)), path, share_modules)

    @staticmethod
    def compact(path: str | os.PathLike[str], *, share_modules: bool = True) -> None:
        """Rewrites an archive without removed members and old indices, and with a ZIP directory of all members.

        Every artifact is verified first: if one is damaged, nothing changes. At the end, the new file replaces the old
        one. Programs that have the old file open keep it.

        Args:
            path: the file.
            share_modules: as in `ArchiveWriter`; False makes every member an artifact that `jax.export` reads.

        Raises:
            DeserializationError: the archive, or an artifact in it, is damaged.
            ExportError: another process is changing it.
            OSError: the file cannot be read or written.
        """
        from .writer import compact

        compact(_on_this_machine(path), share_modules)

    @property
    def name(self) -> str:
        return self._opened.source.name

    @property
    def unfinished_bytes(self) -> int:
        return self._opened.unfinished_bytes

    @property
    def weight_bytes(self) -> int:
        """The size of all weights in the file, in bytes. Each tensor counts once."""
        with self._opened.placed():
            return sum(size for _, _, size in self._opened.index.tensors())

    def __getitem__(self, name: str) -> Handle:
        number = self._opened.find(name) if self._includes(name) else None
        if number is None:
            raise self._opened.missing(name, self._names, str(self))
        return Handle(self._opened, number, name)

    def get(self, name: str, /, default: Any = None) -> Any:
        """The member of this name, or the default."""
        return self[name] if name in self else default  # noqa: SIM401  (this is that method)

    def __contains__(self, name: object) -> bool:
        return self._includes(name) and self._opened.find(name) is not None

    def __iter__(self) -> Iterator[str]:
        return iter(self._listed())

    def __len__(self) -> int:
        index = self._opened.index
        return len(index) if self._names is None else len(self._names)

    def __repr__(self) -> str:
        if self._opened.source.is_closed:
            return f"Archive({self.name!r}: closed)"
        size = f", {bytes_in_words(self._opened.end)}" if self._names is None else ""
        return f"Archive({self.name!r}: {counted(len(self), 'artifact')}{size})"

    def _repr_html_(self) -> str:
        from jaxexp._view.card import table_card

        lines = [
            (name, str(handle.summary), bytes_in_words(handle.size))
            for name, handle in itertools.islice(self.items(), _SHOWN)
        ]
        return table_card(repr(self), ("name", "function", "size"), lines, len(self) - len(lines))

    __dir__ = public_dir

    def glob(self, pattern: str) -> Archive:
        """The members whose names match a pattern, as an archive of the same file.

        Args:
            pattern: as in `fnmatch.fnmatchcase`: ``*`` matches anything, slashes included, ``?`` one character, and
                ``[ab]`` one of the characters in brackets.

        Example:
            >>> functions = jaxexp.Archive.open("fleet.zip").glob("resnet/*").load_all()
        """
        # Not `fnmatch.filter`, which takes backslashes for slashes on Windows.
        matches = re.compile(fnmatch.translate(pattern := os.fspath(pattern))).match
        beginning = re.split(r"[*?[]", pattern, maxsplit=1)[0]  # of all names that match
        names: Iterable[str] = self._names or ()
        if self._names is None:
            names = self._opened.names_in(beginning if is_text(beginning) else "")
        return Archive(self._opened, tuple(filter(matches, names)))

    @overload
    def load_all(
        self,
        names: Iterable[str] | None = None,
        *,
        workers: int | None = None,
        on_error: Literal["raise"] = "raise",
        policy: Policy | None = None,
    ) -> list[Exported]: ...
    @overload
    def load_all(
        self,
        names: Iterable[str] | None = None,
        *,
        workers: int | None = None,
        on_error: Literal["return"],
        policy: Policy | None = None,
    ) -> list[Exported | Exception]: ...
    def load_all(
        self,
        names: Iterable[str] | None = None,
        *,
        workers: int | None = None,
        on_error: OnError = "raise",
        policy: Policy | None = None,
    ) -> list[Exported] | list[Exported | Exception]:
        """Loads many members at once, as `load_many` does for files.

        Args:
            names: the members, in this order; None for all, in the order of the archive.
            workers: as in `load_many`.
            on_error: as in `load_many`. A missing member always raises an error.
            policy: as in `load_many`.

        Returns:
            The functions, as from `load_many`.

        Raises:
            KeyError: there is no member with such a name.
            DeserializationError: a member or the index is damaged. The error names the archive and the member.
            PolicyError: the policy does not allow something in a member. The error names the archive and the member.
        """
        from jaxexp._api.load import Manner  # imports JAX

        wanted = self._names if names is None else _several(names)
        return load_all(self._opened, wanted, Manner(workers, on_error, policy))

    def precompile(
        self,
        names: Iterable[str] | Mapping[str, tuple[Any, ...] | None] | None = None,
        *,
        into: str | os.PathLike[str] | None = None,
        mesh_or_device: Any = None,
        policy: Policy | None = None,
    ) -> dict[str, tuple[Executable, ...]]:
        """Compiles functions, and adds their code to a file of executables for `Handle.load`, or to the folder of
        `compile_cache`.

        Args:
            names: the members; None for all. If a member has symbolic dimensions, pass a dict with the tuple of
                arguments of each member; None stands for the arguments of constant shapes.
            into: the file, or None for the compile cache, as in `Exported.precompile`.
            mesh_or_device: as in `Exported.precompile`.
            policy: as in `Handle.load`. It is checked before a function is compiled.

        Returns:
            The executables of each member.

        Raises:
            KeyError: there is no member with such a name.
            ExportError: as in `Exported.precompile`.
            PolicyError: a member contains something that the policy does not allow.
            DeserializationError: a member, or the file, is damaged.
            OSError: a file cannot be read or written.
        """
        from jaxexp._executables.file import GrowingFile

        file = None if into is None else GrowingFile(into)  # reads its records once for all members
        wanted = self._listed() if names is None else _several(names)
        given = wanted if isinstance(wanted, Mapping) else dict.fromkeys(wanted)
        compiled: dict[str, tuple[Executable, ...]] = {}
        for name, args in given.items():
            handle = self[name]
            function = handle.load(policy=policy)
            if args is None:
                _refuse_unknown_sizes(handle, function)
            compiled[name] = function.precompile(args, into=file, mesh_or_device=mesh_or_device)
        return compiled

    def verify(
        self,
        *,
        workers: int | None = None,
        executor: Workers | None = None,
        journal: str | os.PathLike[str] | None = None,
        timeout: float | None = None,
    ) -> dict[str, DeserializationError]:
        """Checks every byte of the archive, without JAX: the index, each artifact (the digest of its bytes, then all
        checks of `deserialize`), the weights, and the ZIP directory. In an archive from `glob`, only its members and
        their weights are checked.

        Args:
            workers: the number of threads; by default one per CPU. With an executor, the number of threads in each of
                its workers; by default one.
            executor, journal, timeout: as in `verify_many`.

        Returns:
            The errors of damaged members, by name.

        Raises:
            DeserializationError: the index, the ZIP directory or the journal is damaged.
            ExportError: the archive is in a file object, which other processes cannot open; or as in `verify_many`.
        """
        from jaxexp._fleet.engine.engine import Means  # few processes need it

        from .verification import verify

        return verify(self._opened, self._names, Means(executor, workers, journal, timeout))

    def close(self) -> None:
        """Closes the archive. Loaded functions stay usable, and keep the file open as long as they need it. Any other
        use of the archive, its slices and its handles raises an ExportError from now on.
        """
        self._opened.close()

    def __enter__(self) -> Archive:
        self._opened.source.check_open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        reopen, address = self._opened.__reduce__()
        return (reopen, address) if self._names is None else (reopen, address, self._names)

    def __setstate__(self, names: tuple[str, ...]) -> None:
        self._names = names

    def _includes(self, name: object) -> bool:
        """Whether a slice has it."""
        if self._names is None or not isinstance(name, str):
            return self._names is None
        place = bisect.bisect_left(self._names, name)
        return place < len(self._names) and self._names[place] == name

    def _listed(self) -> Any:
        self._opened.source.check_open()
        return self._opened.names if self._names is None else self._names


def matching(archive: Archive, pattern: str) -> Archive:
    """Like `Archive.glob`, but a name also stands for itself."""
    return Archive(archive._opened, (pattern,)) if pattern in archive else archive.glob(pattern)


def only(handle: Handle) -> Archive:
    """A member as an archive with nothing else."""
    return Archive(handle._opened, (handle.name,))


def parts_of(archive: Archive) -> tuple[OpenArchive, tuple[str, ...] | None]:
    """The open archive, and the names of the members; None for all."""
    return archive._opened, archive._names


def _refuse_unknown_sizes(handle: Handle, function: Exported) -> None:
    """Refuses a member that needs arguments to be compiled for."""
    dims = {str(dim): None for aval in function.in_avals for dim in aval.shape if not isinstance(dim, int)}
    if dims:
        raise ExportError(
            f"precompiling {handle.label!r}: code is compiled for known sizes, but the function has the symbolic "
            f"dimensions {cut(', '.join(dims))}. Pass a dict with the tuple of its arguments, "
            f"precompile({{{handle.name!r}: args}}, into=...), and None for members without symbolic dimensions"
        )


def _on_this_machine(path: str | os.PathLike[str]) -> str:
    """Returns a path that is neither a URL nor a file descriptor, which `open` would close."""
    if isinstance(path, str) and is_url(path):
        raise ExportError(
            f"{path} is a URL, from which archives are only read: write a file on this machine, and copy it there"
        )
    return os.fspath(path)

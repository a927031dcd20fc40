"""`Handle`: a member of an archive, before it is loaded."""

from __future__ import annotations

import dataclasses
import functools
import operator
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from jaxexp import _native
from jaxexp._errors import DeserializationError, PolicyError
from jaxexp._kernel.artifact.words import bytes_in_words, counted, cut, derivatives, lowered_for
from jaxexp._kernel.io.files import named_in_errors
from jaxexp._public import public, public_dir

from .opened import Opened, batches, files_of_artifact, of_artifact
from .summary import Summary, of_member

if TYPE_CHECKING:
    from jaxexp._api.exported import Exported
    from jaxexp._api.load import Manner
    from jaxexp._kernel.artifact.inspection import Inspection
    from jaxexp._policy.policy import Policy
    from jaxexp._weights.files.reading import Tensors


def load_one(opened: Opened, name: str, policy: Policy | None = None) -> Exported:
    """A member as a function."""
    from jaxexp._api.load import Manner
    from jaxexp._kernel.function.kept import kept_by

    loaded: Exported = load_all(opened, [name], Manner(1, "raise", policy))[0]
    vars(kept_by(loaded))["file"] = opened.label(name)
    return loaded


def load_all(opened: Opened, names: Iterable[str] | None, manner: Manner) -> list[Any]:
    """See `Archive.load_all`."""
    from jaxexp._api.load import load_slices  # imports JAX

    wanted = None if names is None else list(names)
    with opened.placed():
        try:
            numbers = list(range(len(opened.index))) if wanted is None else opened.index.find_all(wanted)
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


def _bind_weights(opened: Opened, numbers: list[int], loaded: list[Any], manner: Manner) -> None:
    """Replaces programs by functions with their weights and cases. This reads no weights."""
    from jaxexp._api.exported import BoundExported
    from jaxexp._api.load import give_cases
    from jaxexp._kernel.function.data import artifact_of, note, weights_in_trailer
    from jaxexp._weights.bound.program import stored

    from .opened import cases_of, of_table

    owners = dict(zip(numbers, opened.index.owners(numbers), strict=True))
    weights: dict[int, Any] = {}  # members that share their bytes share these, and cases, too
    with_cases: dict[int, Any] = {}  # the first of them, if its cases are here

    def bound(number: int, program: Any) -> Any:
        label, owner = opened.label_of(number), owners[number]
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

    _replace(opened, numbers, loaded, manner, bound)


def _replace(
    opened: Opened, numbers: Sequence[int], loaded: list[Any], manner: Manner, new: Callable[[int, Any], Any]
) -> None:
    """Replaces members by the results of a function, or by their errors."""
    for i, number in enumerate(numbers):
        if isinstance(loaded[i], Exception):
            continue
        try:
            loaded[i] = new(number, loaded[i])
        except DeserializationError as error:
            error.file = error.file or opened.label_of(number)
            if manner.raises:
                raise
            loaded[i] = error


def _remember_metadata(opened: Opened, numbers: list[int], loaded: Sequence[Any]) -> None:
    """Notes the metadata that members have of their own. Members can share one text: each text is checked once."""
    from jaxexp._kernel.function.data import artifact_of

    texts: dict[str, str] = {}
    for i, text in opened.index.own_metadata(numbers):
        if isinstance(loaded[i], Exception):
            continue
        if text not in texts:
            with opened.placed(opened.index.name(numbers[i])):
                opened.object(text)
            texts[text] = text
        artifact = artifact_of(loaded[i])
        assert artifact is not None
        artifact.noted = _Values(texts[text])


class _Values(Mapping[str, Any]):
    """The values in a JSON text of the index, parsed at the first use."""

    def __init__(self, text: str) -> None:
        self._text = text

    @functools.cached_property
    def _values(self) -> dict[str, Any]:
        return Opened.object(self._text)

    def __getitem__(self, key: str) -> Any:
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return repr(self._values)


def _load_copies(opened: Opened, numbers: Sequence[int], extents: Sequence[Any], manner: Manner) -> list[Any]:
    """Loads members from buffers that they are copied into: with a policy, the code that runs has to be the code that
    was checked. Members that are too large, or not what the index says, become errors. Members with the same bytes
    share a copy.
    """
    from jaxexp._api.load import load_slices

    loaded: list[Any] = [None] * len(numbers)
    sharing: dict[Any, list[int]] = {}
    for i, extent in enumerate(extents):
        sharing.setdefault(extent, []).append(i)

    def passing(extent: Any, check: Callable[[int], None]) -> list[int]:
        """The members at this place that pass a check; the others become its errors."""
        passed = []
        for i in sharing[extent]:
            try:
                check(numbers[i])
                passed.append(i)
            except (DeserializationError, PolicyError) as error:
                error.file = opened.label_of(numbers[i])
                if manner.raises:
                    raise
                loaded[i] = error
        return passed

    def load(batch: list[Any]) -> None:
        found = opened.parts_of(batch)
        owner, places = _in_one_buffer(found)
        kept: list[tuple[int, Any]] = []
        for extent, place, parts in zip(batch, places, found, strict=True):
            check = functools.partial(opened.check_fetched, found=opened.fetched_digest(*parts))
            kept += [(i, place) for i in passing(extent, check)]
        functions = load_slices(
            owner, [place for _, place in kept], lambda i: opened.label_of(numbers[kept[i][0]]), manner
        )
        for (i, _), function in zip(kept, functions, strict=True):
            loaded[i] = function

    def check_size(extent: Any, number: int) -> None:
        if manner.policy is not None:
            manner.policy.check_size(extent[1] + sum(size for _, size in extent[2]))

    for batch in batches([extent for extent in sharing if passing(extent, functools.partial(check_size, extent))]):
        load(batch)
    return loaded


def _check_digests(opened: Opened, numbers: Sequence[int], loaded: list[Any], manner: Manner) -> None:
    """Compares members that have no digests of their own with the digests of the index: the file has been written to
    since it was opened."""

    def checked(number: int, program: Any) -> Any:
        if program._artifact.trailer() is None:
            opened.check_digest(number, program._artifact.digest())
        return program

    _replace(opened, numbers, loaded, manner, checked)


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


@public
@dataclasses.dataclass(frozen=True, slots=True, repr=False)
class Handle:
    """A member of an archive. Its artifact is read when you ask for it.

    Attributes:
        name: its name in the archive.
    """

    _opened: Opened
    _number: int
    name: str

    @property
    def label(self) -> str:
        """The archive and the name, as in ``"fleet.zip::resnet/b8"``: `load` takes it, and errors show it."""
        return self._opened.label(self.name)

    @property
    def summary(self) -> Summary:
        """What the index says about the function; the artifact is not read."""
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
        """The metadata that was passed to `ArchiveWriter.add`, or else that of the artifact."""
        with self._placed():
            return self._opened.metadata(self._number)

    def own_metadata(self) -> dict[str, Any] | None:
        """The metadata, if the artifact does not have it."""
        with self._placed():
            return self._opened.own_metadata(self._number)

    @property
    def shares_modules(self) -> bool:
        """Whether its modules are stored with another member. Then `unzip` does not extract a complete artifact."""
        return self._member.place.apart

    def load(
        self,
        *,
        policy: Policy | None = None,
        verify: bool = False,
        executables: str | os.PathLike[str] | None = None,
    ) -> Exported:
        """The function, as from `jaxexp.load`. In a local file, a large module is read when the function is called.

        If its weights are in the archive, it is a `BoundExported`. They are mapped, or fetched from a URL, when they
        are first used; if the archive was opened with `stable`, they are read.

        Without a policy or executables, the same object is returned again as long as it is in use, with the code that
        was compiled for it.

        Args:
            policy: what the artifact may contain, as in `deserialize`.
            verify: as in `jaxexp.load`.
            executables: as in `jaxexp.load`: a file that `Archive.precompile` or `Exported.precompile` wrote. If the
                archive was opened with `signed_by`, the file has to be signed, too.

        Raises:
            DeserializationError: the artifact is damaged. The error names the archive and the member.
            PolicyError: the artifact contains something that the policy does not allow.
            SignatureError: the file of executables is not signed, and the archive was opened with `signed_by`.
            ExportError: both `policy` and `executables` are given.
            OSError: a file cannot be read.
        """
        if executables is not None:
            from jaxexp._api.load import give_executables, refuse_both

            refuse_both(self.label, policy, executables)
            signed = self._opened.signed
            code = None if signed is None else signed.opened(executables, self._opened.source.name)
            exported = load_one(self._opened, self.name)
            give_executables(exported.unbound, executables, code)
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
        """The bytes of the artifact, for any `jax.export`.

        They are not verified.

        Raises:
            DeserializationError: its modules are stored with another member, but are not found there.
        """
        with self._placed():
            return self._opened.artifact_bytes(self._number)

    def stored_weights(self) -> Tensors | None:
        """The weights of the function, if they are in the archive; else None. Without JAX.

        Raises:
            DeserializationError: as in `read`.
        """
        with self._placed():
            artifact = _native.Artifact(*self._opened.parts(self._number))
            return of_artifact(self._opened, self._opened.label(self.name), artifact)

    def stored_files(self) -> Tensors | None:
        """The weights and the arrays of cases that are in the archive, for whoever moves them; else None.

        Raises:
            DeserializationError: as in `read`.
        """
        with self._placed():
            artifact = _native.Artifact(*self._opened.parts(self._number))
            return files_of_artifact(self._opened, self._opened.label(self.name), artifact)

    def inspect(self, *, check_modules: bool = False) -> Inspection:
        """Shows what the artifact says about itself, as `jaxexp.inspect` does."""
        from jaxexp._kernel.artifact.inspect import described  # slow to import

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
        except (DeserializationError, OSError):  # the index is read when it is needed
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
        return operator.getitem, (self._opened, self.name)  # unpickling makes an archive of `_opened`: see Opened

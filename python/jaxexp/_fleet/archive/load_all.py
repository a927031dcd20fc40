"""Loading many members of an archive, wherever it is."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from jaxexp._errors import DeserializationError, PolicyError

from .opened import Opened, batches

if TYPE_CHECKING:
    from jaxexp._api.exported import Exported
    from jaxexp._api.many import Manner
    from jaxexp._policy.policy import Policy


def load_one(opened: Opened, name: str, policy: Policy | None = None) -> Exported:
    """A member as a function."""
    from jaxexp._api.many import Manner
    from jaxexp._kernel.function.kept import kept_by

    loaded: Exported = load_all(opened, [name], Manner(1, "raise", policy))[0]
    vars(kept_by(loaded))["file"] = opened.label(name)
    return loaded


def load_all(opened: Opened, names: Iterable[str] | None, manner: Manner) -> list[Any]:
    """See `Archive.load_all`."""
    from jaxexp._api.many import load_slices  # imports JAX

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

    from .member_weights import cases_of, of_table

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
    from jaxexp._api.many import load_slices

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

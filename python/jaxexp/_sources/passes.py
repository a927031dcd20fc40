"""What workers do in passes over many artifacts: each function takes places with numbers, and returns values of JSON.

An artifact's error is part of its result. Any other one ends the pass.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from jaxexp import _native
from jaxexp._bulk.errors import packed
from jaxexp._bulk.work import FILE
from jaxexp._errors import DeserializationError, ExportError
from jaxexp._io.other_files import instead_of_artifact
from jaxexp._io.version import described

from . import verify as verifying
from .source import Source, is_url

if TYPE_CHECKING:
    from jaxexp._read.policy import Policy

Parts = Sequence[tuple[tuple[Any, ...], Sequence[int]]]
# Errors that are about an artifact, and not about the pass.
OF_ARTIFACTS = (ExportError, OSError, ImportError)


# --- verify ---------------------------------------------------------------------------------------------------------


def verify(parts: Parts, options: dict[str, Any]) -> list[Any]:
    """Reads all bytes.

    Args:
        parts: what to verify.
        options: "threads", and "policy" or None.

    Returns:
        For a file: its size, whether it has digests, the files of weights beside it with what `stamp` says of them, its
        error or None, and how many bytes follow its end. For a part of an archive, what `verify_members` returns.
    """
    from jaxexp._archive.verify_share import verify_members

    threads, policy = options["threads"], options["policy"]
    files = [place[1] for place, _ in parts if place[0] == FILE and not is_url(place[1])]
    said = iter(_native.verify_files(files, threads))
    results: list[Any] = []
    for place, numbers in parts:
        if place[0] == FILE:
            found = _of_remote(place[1]) if is_url(place[1]) else _of_file(place[1], *next(said))
            results.append(found if found[3] is not None or policy is None else _allowed(place[1], found, policy))
        else:
            results.append(verify_members(place, numbers, options))
    return results


def _of_file(path: str, size: int, has_digests: bool, has_weights: bool, wrong: Any) -> list[Any]:
    weights: list[Any] = []
    behind = 0
    try:
        if isinstance(wrong, int):
            raise OSError(wrong, os.strerror(wrong), path)
        if wrong is not None:
            where, expected, found = wrong
            raise DeserializationError(where, expected, found if where else found + _advice(path))
        if has_weights:
            weights = _stamped(verifying.weights_beside(path))
        if has_digests:
            with open(path, "rb") as file:
                behind = verifying.bytes_behind(file.read(verifying.HEAD), size)
    except (DeserializationError, OSError) as error:
        return [size, has_digests, weights, packed(error), 0]
    return [size, has_digests, weights, None, behind]


def _advice(path: str) -> str:
    """What to do with a file that is no artifact, if it is one of another program."""
    try:
        with open(path, "rb") as file:
            return instead_of_artifact(file.read(16))
    except OSError:  # it was there a moment ago
        return ""


def _stamped(files: Sequence[tuple[str, int]]) -> list[list[Any]]:
    return [[file, *stamp(file)] for file, _ in files]


def stamp(path: str) -> list[Any]:
    """The size of a file, and what is different when it was written again."""
    if is_url(path):
        return list(described(path))
    found = os.stat(path)
    return [found.st_size, found.st_mtime_ns]


def _of_remote(url: str) -> list[Any]:
    source = Source(url, url)
    size = 0
    try:
        checked = verifying.checked(source)
        view = memoryview(checked.buffer)
        size = view.nbytes
        weights = _stamped(verifying.weights_of(url, checked.artifact))
    except OF_ARTIFACTS as error:
        return [size, False, [], packed(error), 0]
    behind = verifying.bytes_behind(bytes(view[: verifying.HEAD]), size) if checked.has_digests else 0
    return [size, checked.has_digests, weights, None, behind]


def _allowed(path: str, found: list[Any], policy: Policy) -> list[Any]:
    """The same, after a look at the function under a policy."""
    from jaxexp._read.load import deserialize

    source = Source(path, path)
    try:
        with source.named():
            # The program is enough: its weights were verified, and nobody calls it.
            deserialize(source.read(policy.check_size), policy=policy)
    except OF_ARTIFACTS as error:
        return [*found[:3], packed(error), 0]
    return found


# --- passes with JAX, one artifact after the other ------------------------------------------------------------------


def compatible(parts: Parts, options: dict[str, Any]) -> list[Any]:
    """Who reads artifacts.

    Returns:
        For each part a list with an object for each unit: the fields of a `Compatibility`, or a list: its error.
    """
    from jaxexp._compat.compatibility import compatibility_of
    from jaxexp._compat.facts import facts_of

    def described(source: Source, kind: str, name: str) -> Any:
        with source.named():
            return facts_of(compatibility_of(source.read()))

    return _one_by_one(parts, described)


def migrated(parts: Parts, options: dict[str, Any]) -> list[Any]:
    """Writes artifacts anew.

    Args:
        parts: what to migrate.
        options: those of `writing.Writing`.

    Returns:
        For each part a list with an item for each unit: an object with the file, its size and its digest; or a list:
        its error.
    """
    from .writing import Writing

    return _one_by_one(parts, Writing(**options).write)


def _one_by_one(parts: Parts, do: Callable[[Source, str, str], Any]) -> list[Any]:
    """Has a function look at each artifact, given where it is, whether it is a file, and its name below what was
    given."""
    results = []
    for place, numbers in parts:
        if place[0] == FILE:
            _, path, inside = place
            results.append([_result(do, Source(path, path), FILE, inside)])
        else:
            results.append(_members(place, numbers, do))
    return results


def _members(place: tuple[Any, ...], numbers: Sequence[int], do: Callable[[Source, str, str], Any]) -> list[Any]:
    from jaxexp._archive.handle import Handle
    from jaxexp._archive.parts import opened_in_worker

    kind, prefix, *address = place
    try:
        with opened_in_worker(*address) as opened:
            names = [opened.index.name(number) for number in numbers]
            handles = [Handle(opened, n, name) for n, name in zip(numbers, names, strict=True)]
            inside = f"{prefix}/{{}}" if prefix else "{}"
            return [_result(do, Source(h.label, handle=h), kind, inside.format(h.name)) for h in handles]
    except (DeserializationError, OSError) as error:  # the archive is another one, or is gone
        return [packed(error)] * len(numbers)


def _result(do: Callable[[Source, str, str], Any], source: Source, kind: str, name: str) -> Any:
    try:
        return do(source, kind, name)
    except OF_ARTIFACTS as error:
        return packed(error)

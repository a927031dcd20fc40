"""The reader: the oldest release of JAX that an artifact is for, what it knows, and what it cannot read."""

from __future__ import annotations

import dataclasses
import datetime
import functools
import re
from collections.abc import Callable, Iterator
from typing import Any

from jaxexp import _jax, _native
from jaxexp._errors import ExportError, ExportTypeError, TooOldReaderError
from jaxexp._kernel.artifact.node import GenericNode
from jaxexp._kernel.codec import nodes, treedefs
from jaxexp._kernel.codec.dtypes import DTYPES
from jaxexp._kernel.function.data import ExportedData
from jaxexp._kernel.function.paths import argument_paths, result_paths
from jaxexp._kernel.releases import table
from jaxexp._kernel.releases.table import Release, Version

MAX = "max"

_KINDS = {dtype: kind for kind, dtype in enumerate(DTYPES)}


@dataclasses.dataclass(frozen=True, slots=True)
class Reader:
    """The oldest release of JAX that an artifact is for."""

    release: Release
    stablehlo: str  # the newest version that it reads and that the installed jaxlib writes

    @property
    def version(self) -> Version:
        return self.release.number

    @property
    def name(self) -> str:
        return f"JAX {self.release.version}"

    @property
    def form(self) -> _native.Form:
        """The slots to fill: the slots that this reader needs, in addition to today's."""
        return _native.Form(
            serialization_version=table.serialization_version(self.release).written,
            short_device_count=self.version < table.LONG_DEVICE_COUNT,
            hlo_shardings=self.version < table.NAMED_SHARDINGS,
        )

    @property
    def choice(self) -> str:
        """The `compatibility` that chooses it."""
        return f"jax-{self.release.version}"

    def refusal(self, fun_name: str, what: str, since: Version | None, advice: str = "") -> TooOldReaderError:
        """The error for a function with something that this reader cannot read.

        `since` is the first release that knows it, or None; `advice` says what else can be done, from the comma on.
        """
        todo = f"write for JAX {_text(since)} or newer" if since else "no release is known to read it"
        return TooOldReaderError(f"{fun_name} cannot be written for {self.name}: {what}; {todo}{advice}", since)


def check_choice(compatibility: Any, parameter: str = "compatibility=") -> None:
    """Raises an ExportError, or an ExportTypeError, for what is not a value of the parameter `compatibility`."""
    if compatibility is not None and not (isinstance(compatibility, str) and compatibility == MAX):
        reader_of(compatibility, parameter)


def reader_of(compatibility: Any, parameter: str = "compatibility=", *, or_max: bool = True) -> Reader:
    """The reader for a release, or for a number of weeks.

    Args:
        compatibility: ``"0.6.2"`` or ``"jax-0.6.2"``; or ``"12w"`` for the newest release twelve weeks before the
            installed one came out.
        parameter: its name in messages.
        or_max: whether the caller also takes ``"max"``, so that messages say it.

    Raises:
        ExportError: it is neither, or the release or the span of weeks is not known.
    """
    known = readers()
    accepted = (
        f"a release from {known[0].release.version!r} to {known[-1].release.version!r}, or a span of weeks back "
        'from the installed release such as "4w" or "12w"'
    )
    if or_max:
        accepted += ', or "max" for the oldest release that can read it'
    if not isinstance(compatibility, str):
        raise ExportTypeError(f"{parameter} takes {accepted}; found {compatibility!r}")
    if match := re.fullmatch(r"([0-9]+)w", compatibility):
        return _weeks_back(int(match[1][:9]))  # more weeks than that are too many anyway
    if match := re.fullmatch(r"(?:jax-)?([0-9]{1,9}(?:\.[0-9]{1,9})+)", compatibility):
        version = table.number(match[1])
        for reader in known:
            if reader.version == version:
                return reader
        older = [reader.name for reader in known if reader.version < version][-1:]
        newer = [reader.name for reader in known if reader.version > version][:1]
        raise ExportError(
            f"{compatibility!r} is not a known release of JAX; next to it are {' and '.join(older + newer)}. "
            f"{parameter} takes {accepted}"
        )
    raise ExportError(f"{parameter} takes {accepted}; found {compatibility!r}")


def _weeks_back(weeks: int) -> Reader:
    """The newest release this many weeks before the installed release came out."""
    installed = table.at(_jax.installed_release)
    first = min(table.RELEASES, key=lambda release: release.date)
    # A calendar does not go back further, and `timedelta` has limits.
    then = installed.date - datetime.timedelta(weeks=min(weeks, 52 * 100))
    release = table.newest_before(then)
    if release is None:
        raise ExportError(
            f'compatibility="{weeks}w" goes back to before {first.date}, the date of JAX {first.version}, which is the '
            f"oldest release to write for; the installed JAX {installed.version} is of {installed.date}"
        )
    return _reader(release)


@functools.cache
def readers() -> tuple[Reader, ...]:
    """Every release that an artifact can be written for, oldest first."""
    return tuple(map(_reader, table.RELEASES))


def _reader(release: Release) -> Reader:
    versions = table.stablehlo_that_compiles(release), _jax.newest_stablehlo()
    return Reader(release, min(versions, key=table.number))


def check(exported: ExportedData, reader: Reader, weights: int = 0) -> None:
    """Refuses a function whose signature the reader cannot read. This does not check the module."""
    for find, what, since in _features(exported, weights):
        if reader.version < since:
            is_key = what.startswith("has dtype key<")
            raise reader.refusal(exported.fun_name, f"{find()} {what}", since, _KEY_DATA if is_key else "")


_KEY_DATA = (
    ", or export a function that takes jax.random.key_data(key), an array of uint32, and begins with "
    "jax.random.wrap_key_data"
)


def _features(exported: ExportedData, weights: int) -> Iterator[tuple[Callable[[], str], str, Version]]:
    """Features of a signature that not every reader knows: where, what, and the first release that knows it."""
    for which, avals, shardings in (
        ("argument", exported.in_avals, exported._in_named_shardings),
        ("result", exported.out_avals, exported._out_named_shardings),
    ):
        for index, (aval, sharding) in enumerate(zip(avals, shardings, strict=True)):

            def where(which: str = which, index: int = index) -> str:
                if which == "argument":
                    return argument_paths(exported.in_tree, weights)[index]
                return result_paths(exported.out_tree)[index]

            for dim in aval.shape:
                if not isinstance(dim, int) and re.search(r"\b(max|min)\(", str(dim)):
                    yield where, f"has a symbolic dimension {dim}", table.MAX_AND_MIN
            yield where, f"has dtype {aval.dtype}", table.dtype_since(_KINDS.get(aval.dtype))
            if aval.memory_space is not _jax.MemorySpace.Device:
                yield where, f"is in memory space {aval.memory_space}", table.MEMORY_SPACES
            if sharding is None:
                continue
            if sharding.memory_kind not in (None, "device") and aval.memory_space is _jax.MemorySpace.Device:
                yield where, f"is in memory of kind {sharding.memory_kind!r}", table.NAMED_SHARDINGS
            if sharding.spec.unreduced or sharding.spec.reduced:
                yield where, f"is unreduced or reduced over mesh axes ({sharding.spec})", table.NAMED_SHARDINGS
    for node in (*treedefs.nodes_of(exported.in_tree), *treedefs.nodes_of(exported.out_tree)):
        if node.type is not None and node.type not in treedefs.BUILTIN:
            name = node.data.class_name if node.type is GenericNode else node.type
            yield _in_trees, f"nodes of {name}", table.CUSTOM_NODES
    if nodes.has_other_keys((exported.in_tree, exported.out_tree)):
        yield _in_trees, "dicts with keys that are not strings, so that only jaxexp reads it", _jax.OLDEST_JAX
    for name, (nodetype, auxdata) in nodes.unregistered((exported.in_tree, exported.out_tree)).items():
        line = nodes.registration_line(name, nodetype, auxdata)
        what = f"nodes of {name}, which is not registered for serialization, so that only jaxexp reads it ({line})"
        yield _in_trees, what, _jax.OLDEST_JAX


def _in_trees() -> str:
    return "its trees hold"


def _text(version: Version) -> str:
    return ".".join(map(str, version))

"""For whom an artifact is written: an old release of JAX, what it knows, and what cannot be said to it."""

from __future__ import annotations

import dataclasses
import datetime
import functools
import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from jaxexp import _jax, _native
from jaxexp._codec import nodes as _registry
from jaxexp._errors import ExportError, ExportTypeError, UnsupportedSerializationError
from jaxexp._releases import table as _releases
from jaxexp._releases.table import Release

if TYPE_CHECKING:
    from jaxexp._exported import Exported

Version = tuple[int, ...]

MAX = "max"

_KINDS = {dtype: kind for kind, dtype in enumerate(_registry.DTYPES)}

# The first release whose reader knows a thing, where `_releases` does not say it.
SHARDY: Version = (0, 7, 0)  # it could be switched on before, but a reader that has it off refuses the module
_MAX_AND_MIN: Version = (0, 4, 24)  # in symbolic dimensions
FOUR_BITS: Version = (0, 4, 36)
_COMPOSITES: Version = (0, 4, 32)
_REGISTERED_DTYPES: Version = (0, 7, 0)
_MEMORY_SPACES: Version = (0, 8, 2)
_LONG_DEVICE_COUNT: Version = (0, 8, 2)
_NAMED_SHARDINGS: Version = (0, 9, 0)
# What a jaxlib parses is not always what its compiler takes: releases from the first to the second get no newer
# StableHLO than this, as `tests/interop` has shown.
_STABLEHLO_THAT_COMPILES: tuple[tuple[Version, Version, str], ...] = (
    ((0, 4, 29), (0, 4, 31), "1.0.0"),  # batching dimensions of gather and scatter came with 1.1
    ((0, 4, 32), (0, 4, 34), "1.5.0"),  # an algorithm in a dot_general, from 1.6 on, crashes these
    ((0, 10, 0), (0, 10, 2), "1.15.1"),  # replica groups that name mesh axes came with 1.16
)
# Custom calls that JAX promises to keep came with one release or another. Where the typed form of a LAPACK routine was
# still taking shape, this is the first release from which on it stayed as it is.
_CUSTOM_CALLS: tuple[tuple[str, Version], ...] = (
    (r"lapack_[sdcz](potrf|getrf)_ffi", (0, 4, 31)),
    (r"lapack_[sdcz](geqrf|orgqr|ungqr|geev|gehrd|gesdd|syevd|heevd)_ffi", (0, 4, 32)),
    (r"lapack_[sdcz](gees|sytrd|hetrd)_ffi", (0, 4, 35)),
    (r"lapack_[sdcz](gtsv|geqp3)_ffi", (0, 5, 0)),
    (r"lapack_[sdcz](gesvd|trsm)_ffi", (0, 5, 3)),  # trsm took one argument more before
    (r"lapack_[sdcz](ormqr|unmqr)_ffi", (0, 10, 0)),
    (r"cu_threefry2x32_ffi", (0, 4, 31)),
    (r"cusolver_(geqrf|getrf|orgqr|syevd)_ffi", (0, 4, 32)),
    (r"cusolver_(gesvd|gesvdj)_ffi", (0, 4, 34)),
    (r"cusolver_sytrd_ffi", (0, 4, 38)),
    (r"cusparse_gtsv2_ffi", (0, 6, 1)),
    (r"cusolver_potrf_ffi", (0, 8, 0)),
)


class TooOldReaderError(UnsupportedSerializationError):
    """Something that the chosen release cannot read.

    Attributes:
        since: the first release that can, None where no release can.
    """

    def __init__(self, message: str, since: Version | None) -> None:
        super().__init__(message)
        self.since = since


@dataclasses.dataclass(frozen=True, slots=True)
class Reader:
    """The oldest release of JAX that an artifact is for."""

    release: Release
    stablehlo: str  # the newest version that it can be given, and that the installed jaxlib writes

    @property
    def version(self) -> Version:
        return self.release.number

    @property
    def name(self) -> str:
        return f"JAX {self.release.version}"

    @property
    def has_shardy(self) -> bool:
        return self.version >= SHARDY

    @property
    def has_composites(self) -> bool:
        """Whether its compiler takes composites, which came into StableHLO before they came into XLA."""
        return self.version >= _COMPOSITES

    @property
    def computes_in_four_bits(self) -> bool:
        """Whether its compiler takes other operations on 4-bit integers than conversions."""
        return self.version >= FOUR_BITS

    @property
    def form(self) -> _native.Form:
        """The slots to fill: those that this reader needs, beside those of today's readers."""
        if self.version < (0, 4, 24):
            number = 1
        elif self.version < (0, 8, 2):
            number = 2
        else:
            number = 3 if self.version < (0, 11, 1) else 12
        return _native.Form(
            serialization_version=number,
            short_device_count=self.version < _LONG_DEVICE_COUNT,
            hlo_shardings=self.version < _NAMED_SHARDINGS,
        )

    @property
    def choice(self) -> str:
        """What chooses it: a value of the parameter `compatibility`."""
        return f"jax-{self.release.version}"

    def refusal(self, fun_name: str, what: str, since: Version | None, advice: str = "") -> TooOldReaderError:
        """The error for a function that this reader cannot be told of.

        Args:
            fun_name: the function's name.
            what: the feature.
            since: the first release that knows it; None where there is none.
            advice: what else can be done, from the comma on.
        """
        todo = f"write for JAX {_text(since)} or newer" if since else "no release is known to read it"
        return TooOldReaderError(f"{fun_name} cannot be written for {self.name}: {what}; {todo}{advice}", since)


def check_choice(compatibility: Any) -> None:
    """Refuses what is no value of the parameter `compatibility`.

    Raises:
        ExportTypeError: it is neither None nor a string.
        ExportError: it is a string of another form, or names no release that is known.
    """
    if compatibility is not None and compatibility != MAX:
        reader_of(compatibility)


def reader_of(compatibility: Any) -> Reader:
    """The reader that a release or a span stands for.

    Args:
        compatibility: ``"jax-0.6.2"``, or ``"12w"`` for what was the newest release twelve weeks before the installed
            one came out.

    Raises:
        ExportError: it says neither, or a release or span that is not known; `check_choice` says more.
    """
    known = readers()
    accepted = (
        f"a release from {known[0].choice!r} to {known[-1].choice!r}, a span of weeks back "
        'from the installed release such as "4w" or "12w", or "max" for the oldest reader that can be'
    )
    if not isinstance(compatibility, str):
        raise ExportTypeError(f"compatibility= takes {accepted}; found {compatibility!r}")
    if match := re.fullmatch(r"(\d+)w", compatibility):
        return _weeks_back(int(match[1]))
    if match := re.fullmatch(r"jax-(\d+(?:\.\d+)*)", compatibility):
        version = _releases.number(match[1])
        for reader in known:
            if reader.version == version:
                return reader
        older = [reader.name for reader in known if reader.version < version][-1:]
        newer = [reader.name for reader in known if reader.version > version][:1]
        raise ExportError(
            f"compatibility={compatibility!r} names no release that is known here; next to it are "
            f"{' and '.join(older + newer)}. It takes {accepted}"
        )
    raise ExportError(f"compatibility= takes {accepted}; found {compatibility!r}")


def _weeks_back(weeks: int) -> Reader:
    """What somebody has who updated last so many weeks before the installed release came out."""
    installed = _releases.at(_jax.installed_release)
    first = min(_releases.RELEASES, key=lambda release: release.date)
    # No calendar goes back further than this, and `timedelta` knows its limits.
    then = installed.date - datetime.timedelta(weeks=min(weeks, 52 * 100))
    release = _releases.newest_before(then)
    if release is None:
        raise ExportError(
            f'compatibility="{weeks}w" goes back to before {first.date}, when the first release that can be written '
            f"for came out, JAX {first.version}; the installed one, JAX {installed.version}, is of {installed.date}"
        )
    return _reader(release)


@functools.cache
def readers() -> tuple[Reader, ...]:
    """Every release that an artifact can be written for, oldest first."""
    return tuple(map(_reader, _releases.RELEASES))


def _reader(release: Release) -> Reader:
    versions = [release.stablehlo, _jax.newest_stablehlo()]
    versions += [newest for first, last, newest in _STABLEHLO_THAT_COMPILES if first <= release.number <= last]
    return Reader(release, min(versions, key=_releases.number))


def check(exported: Exported, reader: Reader) -> None:
    """Refuses a function whose signature the reader cannot be told of; its module is another matter.

    Raises:
        TooOldReaderError: names the feature and the first release that knows it.
    """
    for what, since in _features(exported):
        if reader.version < since:
            raise reader.refusal(exported.fun_name, what, since)


def _features(exported: Exported) -> Iterator[tuple[str, Version]]:
    """What a signature uses that not every reader knows, and the first release that does."""
    for which, avals, shardings in (
        ("argument", exported.in_avals, exported._in_named_shardings),
        ("result", exported.out_avals, exported._out_named_shardings),
    ):
        for index, (aval, sharding) in enumerate(zip(avals, shardings, strict=True)):
            where = f"{which} {index}"
            for dim in aval.shape:
                if not isinstance(dim, int) and re.search(r"\b(max|min)\(", str(dim)):
                    yield f"{where} has a symbolic dimension {dim}", _MAX_AND_MIN
            yield f"{where} has dtype {aval.dtype}", _dtype_since(aval.dtype)
            if aval.memory_space is not _jax.MemorySpace.Device:
                yield f"{where} is in memory space {aval.memory_space}", _MEMORY_SPACES
            if sharding is None:
                continue
            if sharding.memory_kind not in (None, "device") and aval.memory_space is _jax.MemorySpace.Device:
                yield f"{where} is in memory of kind {sharding.memory_kind!r}", _NAMED_SHARDINGS
            if sharding.spec.unreduced or sharding.spec.reduced:
                yield f"{where} is unreduced or reduced over mesh axes ({sharding.spec})", _NAMED_SHARDINGS
    for tree in (exported.in_tree, exported.out_tree):
        for node in _custom_nodes(tree):
            yield f"its trees hold nodes of {node}", _since(lambda release: release.custom_nodes)


def _dtype_since(dtype: Any) -> Version:
    kind = _KINDS.get(dtype)
    return _REGISTERED_DTYPES if kind is None else _since(lambda release: release.dtypes > kind)


def _since(knows: Callable[[Release], bool]) -> Version:
    """The first release that knows a thing, which the newest one does."""
    return next(release.number for release in _releases.RELEASES if knows(release))


def _custom_nodes(tree: Any) -> Iterator[Any]:
    """The types of pytree nodes that are stored by a name of their own."""
    node = tree.node_data()
    if node is None:
        return
    type_, data = node
    if type_ not in (type(None), tuple, list, dict) or (type_ is dict and not all(isinstance(k, str) for k in data)):
        yield type_
    for child in tree.children():
        yield from _custom_nodes(child)


def custom_call_since(target: str) -> Version | None:
    """The first release whose jaxlib has a custom call; None where all have it, or nobody knows."""
    return next((since for pattern, since in _CUSTOM_CALLS if re.fullmatch(pattern, target)), None)


def _text(version: Version) -> str:
    return ".".join(map(str, version))

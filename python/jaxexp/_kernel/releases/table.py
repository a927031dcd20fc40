"""What each release of JAX with an exporter writes and reads: a table of measured facts, and look-ups in it.

`tests/interop/measure_releases.py` asks the released wheels and prints these rows. This module needs no JAX.
"""

from __future__ import annotations

import dataclasses
import datetime
import functools
import importlib.metadata
import re
from typing import NamedTuple

from jaxexp._errors import ExportError
from jaxexp._kernel.artifact import module_head
from jaxexp._kernel.artifact.module_head import Bytecode


@functools.cache
def installed() -> str:
    """The installed release of JAX, which this does not import; an ImportError that says so if there is none."""
    try:
        return importlib.metadata.version("jax")
    except importlib.metadata.PackageNotFoundError:
        import jax  # raises the error

        return jax.__version__


@dataclasses.dataclass(frozen=True, slots=True)
class Release:
    """A release of JAX."""

    version: str  # as in `jax.__version__`
    date: datetime.date  # of the upload to PyPI
    stablehlo: str  # the newest version that its jaxlib reads and writes
    oldest_convention: int  # the oldest calling convention that its `jax.export` calls
    newest_convention: int  # the newest one; releases from 0.4.24 on write it
    dtypes: int  # how many kinds of dtypes its `jax.export` knows; they are counted from 0, without gaps
    custom_nodes: bool  # whether its `jax.export` knows custom pytree nodes
    shardy: bool  # whether its exported functions may contain the Shardy dialect unless it is configured otherwise

    @property
    def number(self) -> tuple[int, ...]:
        return number(self.version)


def number(version: str) -> tuple[int, ...]:
    """A dotted version as integers, which can be compared."""
    return tuple(map(int, version.split(".")))


def _row(version: str, date: str, *facts: object) -> Release:
    return Release(version, datetime.date.fromisoformat(date), *facts)  # type: ignore[arg-type]


# In the order of their numbers, which is not quite the order of their dates. The columns: the date, StableHLO, calling
# conventions, kinds of dtypes, custom pytree nodes, Shardy.
RELEASES = (
    _row("0.4.22", "2023-12-14", "0.16.1", 6, 9, 22, False, False),
    _row("0.4.23", "2023-12-14", "0.16.1", 6, 9, 22, False, False),
    _row("0.4.24", "2024-02-06", "0.17.6", 6, 9, 23, False, False),
    _row("0.4.25", "2024-02-26", "0.18.2", 6, 9, 23, False, False),
    _row("0.4.26", "2024-04-03", "0.19.4", 9, 9, 23, False, False),
    _row("0.4.27", "2024-05-07", "0.19.9", 9, 9, 23, False, False),
    _row("0.4.28", "2024-05-09", "0.19.10", 9, 9, 23, False, False),
    _row("0.4.29", "2024-06-10", "1.1.2", 9, 9, 23, False, False),
    _row("0.4.30", "2024-06-18", "1.1.3", 9, 9, 23, False, False),
    _row("0.4.31", "2024-07-30", "1.4.2", 9, 9, 23, False, False),
    _row("0.4.32", "2024-09-11", "1.7.1", 9, 9, 23, False, False),
    _row("0.4.33", "2024-09-16", "1.7.1", 9, 9, 23, False, False),
    _row("0.4.34", "2024-10-04", "1.7.5", 9, 9, 23, False, False),
    _row("0.4.35", "2024-10-22", "1.7.8", 9, 9, 23, True, False),
    _row("0.4.36", "2024-12-05", "1.8.5", 9, 9, 25, True, False),
    _row("0.4.37", "2024-12-10", "1.8.5", 9, 9, 25, True, False),
    _row("0.4.38", "2024-12-17", "1.8.7", 9, 9, 25, True, False),
    _row("0.5.0", "2025-01-17", "1.8.9", 9, 9, 25, True, False),
    _row("0.5.1", "2025-02-24", "1.9.3", 9, 9, 26, True, False),
    _row("0.5.2", "2025-03-05", "1.9.3", 9, 9, 26, True, False),
    _row("0.5.3", "2025-03-19", "1.10.0", 9, 9, 27, True, False),
    _row("0.6.0", "2025-04-17", "1.10.4", 9, 9, 30, True, False),
    _row("0.6.1", "2025-05-21", "1.10.9", 9, 9, 30, True, False),
    _row("0.6.2", "2025-06-17", "1.11.0", 9, 9, 30, True, False),
    _row("0.7.0", "2025-07-22", "1.12.1", 9, 10, 30, True, True),
    _row("0.7.1", "2025-08-20", "1.13.0", 9, 10, 30, True, True),
    _row("0.7.2", "2025-09-16", "1.13.0", 9, 10, 30, True, True),
    _row("0.8.0", "2025-10-15", "1.13.1", 9, 10, 30, True, True),
    _row("0.8.1", "2025-11-18", "1.13.3", 9, 10, 30, True, True),
    _row("0.8.2", "2025-12-18", "1.13.5", 9, 10, 30, True, True),
    _row("0.8.3", "2026-01-29", "1.13.5", 9, 10, 30, True, True),
    _row("0.9.0", "2026-01-20", "1.13.7", 9, 10, 30, True, True),
    _row("0.9.0.1", "2026-02-05", "1.13.7", 9, 10, 30, True, True),
    _row("0.9.1", "2026-03-02", "1.13.8", 9, 10, 30, True, True),
    _row("0.9.2", "2026-03-18", "1.14.0", 9, 10, 30, True, True),
    _row("0.10.0", "2026-04-16", "1.16.0", 9, 10, 30, True, True),
    _row("0.10.1", "2026-05-20", "1.17.0", 9, 10, 30, True, True),
    _row("0.10.2", "2026-06-17", "1.17.0", 9, 10, 30, True, True),
    _row("0.11.0", "2026-07-16", "1.18.0", 9, 10, 30, True, True),
    _row("0.11.1", "2026-08-17", "1.19.0", 9, 10, 30, True, True),
    _row("0.11.2", "2026-09-17", "1.20.0", 9, 10, 30, True, True),
    _row("0.12.0", "2026-10-19", "1.22.0", 9, 10, 30, True, True),
    _row("0.12.0.1", "2026-10-21", "1.22.0", 9, 10, 30, True, True),
)

_BY_VERSION = {release.version: release for release in RELEASES}


def release(version: str) -> Release:
    """The facts of a release, such as "0.4.30"; an ExportError if it is not in the table."""
    try:
        return _BY_VERSION[version]
    except KeyError:
        raise ExportError(
            f"{version!r} is not a known release of JAX: expected one of {', '.join(_BY_VERSION)}"
        ) from None


def at(version: tuple[int, ...]) -> Release:
    """The release of this number; if it is not in the table, the newest before it."""
    return max((r for r in RELEASES if r.number <= version), key=lambda r: r.number, default=RELEASES[0])


def newest_before(date: datetime.date) -> Release | None:
    """The newest release, by number, on a given day; None before the first one."""
    return max((r for r in RELEASES if r.date <= date), key=lambda r: r.number, default=None)


def first_to_read(stablehlo: str) -> Release | None:
    """The first release whose jaxlib reads a version of StableHLO; None if all of them are older."""
    return next((r for r in RELEASES if number(r.stablehlo) >= number(stablehlo)), None)


# --- features ---------------------------------------------------------------------------------------------------------
# What readers and compilers of JAX releases know, in addition to the table, by the first release that knows it.
#
# `tests/interop` compares this with real releases. This module needs no JAX.


Version = tuple[int, ...]

# The format of artifacts
MAX_AND_MIN: Version = (0, 4, 24)  # in symbolic dimensions
REGISTERED_DTYPES: Version = (0, 7, 0)
MEMORY_SPACES: Version = (0, 8, 2)
LONG_DEVICE_COUNT: Version = (0, 8, 2)  # of 32 bits; older readers know only 16 bits
NAMED_SHARDINGS: Version = (0, 9, 0)
INDICES: Version = (0, 10, 0)  # avals and shardings by index into tables; older readers need them listed
REFUSAL_OF_EXPIRED: Version = (0, 11, 1)  # artifacts with HloShardings, or only a device count of 16 bits

CUSTOM_NODES: Version = next(r.number for r in RELEASES if r.custom_nodes)

# Modules
SHARDY: Version = next(r.number for r in RELEASES if r.shardy)  # older readers refuse it unless it is switched on
COMPOSITES: Version = (0, 4, 32)  # StableHLO had them before XLA
FOUR_BITS: Version = (0, 4, 36)  # operations on 4-bit integers other than conversions


class SerializationVersion(NamedTuple):
    """The number in the first slot of an artifact, for the releases from `since` to the next entry."""

    since: Version
    accepted: tuple[int, ...] | None  # None for any
    written: int


_SERIALIZATION_VERSIONS = (
    SerializationVersion((0, 4, 22), (1,), 1),
    SerializationVersion((0, 4, 24), (2,), 2),
    SerializationVersion((0, 4, 35), (2, 3), 2),
    SerializationVersion((0, 8, 2), None, 3),
    SerializationVersion((0, 11, 1), None, 12),
)

# A jaxlib's compiler does not always take what the jaxlib parses: releases from the first to the second get StableHLO
# up to this version, as `tests/interop` has shown.
_STABLEHLO_THAT_COMPILES: tuple[tuple[Version, Version, str], ...] = (
    ((0, 4, 29), (0, 4, 31), "1.0.0"),  # batching dimensions of gather and scatter came with 1.1
    ((0, 4, 32), (0, 4, 34), "1.5.0"),  # an algorithm in a dot_general, from 1.6 on, crashes these
    ((0, 10, 0), (0, 10, 2), "1.15.1"),  # replica groups that name mesh axes came with 1.16
)

# The first release that has each custom call that JAX promises to keep. If the typed form of a LAPACK routine changed
# at first, this is the release from which on it stayed the same.
_CUSTOM_CALLS: tuple[tuple[str, Version], ...] = (
    (r"lapack_[sdcz](potrf|getrf)_ffi", (0, 4, 31)),
    (r"lapack_[sdcz](geqrf|orgqr|ungqr|geev|gehrd|gesdd|syevd|heevd)_ffi", (0, 4, 32)),
    (r"lapack_[sdcz](gees|sytrd|hetrd)_ffi", (0, 4, 35)),
    (r"lapack_[sdcz](gtsv|geqp3)_ffi", (0, 5, 0)),
    (r"lapack_[sdcz](gesvd|trsm)_ffi", (0, 5, 3)),  # before, trsm took one more argument
    (r"lapack_[sdcz](ormqr|unmqr)_ffi", (0, 10, 0)),
    (r"cu_threefry2x32_ffi", (0, 4, 31)),
    (r"cusolver_(geqrf|getrf|orgqr|syevd)_ffi", (0, 4, 32)),
    (r"cusolver_(gesvd|gesvdj)_ffi", (0, 4, 34)),
    (r"cusolver_sytrd_ffi", (0, 4, 38)),
    (r"cusparse_gtsv2_ffi", (0, 6, 1)),
    (r"cusolver_potrf_ffi", (0, 8, 0)),
)


def serialization_version(release: Release) -> SerializationVersion:
    return next(entry for entry in reversed(_SERIALIZATION_VERSIONS) if entry.since <= release.number)


def stablehlo_that_compiles(release: Release) -> str:
    """The newest version of StableHLO that a release parses and compiles."""
    limits = [newest for first, last, newest in _STABLEHLO_THAT_COMPILES if first <= release.number <= last]
    return min([release.stablehlo, *limits], key=number)


def custom_call_since(target: str) -> Version | None:
    """The first release whose jaxlib has a custom call; None if all have it, or if unknown."""
    return next((since for pattern, since in _CUSTOM_CALLS if re.fullmatch(pattern, target)), None)


def dtype_since(kind: int | None) -> Version:
    """The first release that reads a dtype, by its number in the format; None for one that was registered."""
    return REGISTERED_DTYPES if kind is None else next(r.number for r in RELEASES if r.dtypes > kind)


# --- which releases can parse a module: the first for each operation, type and attribute of StableHLO -----------------
# The version of StableHLO that a module was written for is a promise: every release whose jaxlib knows that version
# reads it. The real requirement is often lower, because most operations are old. `tests/interop/measure_stablehlo.py`
# finds the names in the released jaxlibs.


# By the first release whose jaxlib knows them; JAX 0.4.22 knows all others. Portable artifacts hold operations of the
# dialect VHLO, which gives a changed operation a new number.
_OPERATIONS = {
    "0.4.26": "composite_v1",
    "0.4.29": "dynamic_conv_v2 dynamic_gather_v2 gather_v2 scatter_v2",
    "0.4.31": "tan_v1",
    "0.4.32": "all_gather_v2 all_reduce_v2 all_to_all_v2 dot_general_v2",
    "0.5.1": "exponential_v2",
    "0.5.3": "cbrt_v2 cosine_v2 exponential_minus_one_v2 log_plus_one_v2 log_v2 logistic_v2 rsqrt_v2 sine_v2 sqrt_v2 "
    "tan_v2 tanh_v2",
    "0.7.0": "recv_v2 send_v2",
    "0.9.2": "composite_v2",
    "0.10.0": "async_done_v1 async_start_v1",
    "0.11.0": "custom_call_v2",
    "0.11.1": "collective_reduce_v1",
    "0.11.2": "collective_broadcast_v2",
}
_FIRST_WITH_OPERATION = {f"vhlo.{name}": first for first, names in _OPERATIONS.items() for name in names.split()}

# Types and attributes have numbers in bytecode.
_TYPES = {
    "0.4.25": {30: "quantized per axis"},
    "0.4.31": {31: "i2", 32: "ui2"},
    "0.4.32": {33: "none", 34: "tf32", 35: "f8E4M3", 36: "f8E3M4"},
    "0.4.36": {37: "f4E2M1FN", 38: "f6E2M3FN", 39: "f6E3M2FN", 40: "f8E8M0FNU"},
    "0.7.1": {41: "buffer"},
    "0.10.0": {42: "future"},
}
# Element types that came after StableHLO 1.0, as modules call them.
NEW_ELEMENT_TYPES = frozenset(
    name for names in _TYPES.values() for name in names.values() if re.fullmatch(r"u?i\d|f\dE\w+", name)
)
_FIRST_WITH_TYPE = {
    ("vhlo", code): (first, f"the type {name}") for first, names in _TYPES.items() for code, name in names.items()
}
_FIRST_WITH_ATTRIBUTE = {
    ("builtin", 22): ("0.4.36", "ranges in source locations"),
    ("vhlo", 19): ("0.5.1", "the accuracy of a result"),
    ("vhlo", 20): ("0.5.1", "the accuracy of a result"),
    **{("vhlo", code): ("0.10.0", "groups of replicas by mesh axes") for code in range(21, 26)},
}


def needs(head: Bytecode) -> list[tuple[Release, str]]:
    """Things in a module that not every release can parse: the first release that can, and a name; oldest first."""
    found = {(_FIRST_WITH_OPERATION[name], name) for name in head.operations & _FIRST_WITH_OPERATION.keys()}
    found |= {_FIRST_WITH_TYPE[code] for code in head.type_codes & _FIRST_WITH_TYPE.keys()}
    found |= {_FIRST_WITH_ATTRIBUTE[code] for code in head.attribute_codes & _FIRST_WITH_ATTRIBUTE.keys()}
    if "sdy" in head.dialects:
        found.add((".".join(map(str, SHARDY)), "the Shardy dialect"))
    return sorted(((release(first), what) for first, what in found), key=lambda need: (need[0].number, need[1]))


def why_too_new(module: bytes | memoryview, newest: str) -> tuple[str, bool]:
    """What is too new for a jaxlib in a module for a StableHLO newer than `newest`, which the jaxlib knows.

    The text describes the module and its readers. The bool says whether this jaxlib certainly cannot read it: a module
    for a newer version need not use anything new.
    """
    head = module_head.read(module)
    too_new = [(first, what) for first, what in needs(head) if number(first.stablehlo) > number(newest)]
    version = head.stablehlo
    assert version is not None
    reader = too_new[-1][0] if too_new else first_to_read(version)
    contains = f" with {', '.join(what for _, what in too_new)}" if too_new else ""
    takes = "needs a JAX that is newer than this jaxexp" if reader is None else f"JAX {reader.version} and newer read"
    return f"one for StableHLO {version}{contains}, which {takes}", bool(too_new)

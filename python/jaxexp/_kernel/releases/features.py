"""What readers and compilers of JAX releases know, in addition to the table, by the first release that knows it.

`tests/interop` compares this with real releases. This module needs no JAX.
"""

from __future__ import annotations

import dataclasses
import re

from .table import RELEASES, Release, number

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


@dataclasses.dataclass(frozen=True, slots=True)
class SerializationVersion:
    """The number in the first slot of an artifact, for the releases from `since` to the next entry.

    Attributes:
        since: the first of these releases.
        accepted: the numbers that their reader accepts; None for any.
        written: the number that they write.
    """

    since: Version
    accepted: tuple[int, ...] | None
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
    """The numbers that a release reads and writes in the first slot."""
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

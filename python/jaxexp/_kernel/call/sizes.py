"""Sets of sizes of dimension variables, which are saved with a function for those who compile it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from jaxexp import _jax
from jaxexp._errors import ExportError, ExportTypeError, cause
from jaxexp._kernel.artifact.scalars import sizes_by_name
from jaxexp._kernel.function.data import ExportedData
from jaxexp._kernel.function.specs import dimension_variables

from .primitive import check

_MOST = 64  # as in cpp/wire/artifact/trailer.h
_SAVING = "saving", "saved for"


def checked_sizes(exported: ExportedData, sizes: Iterable[Mapping[str, int]] | None) -> list[dict[str, int]] | None:
    """`sizes` of `Exported.save`, each set once; None for None."""
    if sizes is None:
        return None
    if not isinstance(sizes, Iterable):
        raise ExportTypeError(
            f"saving {exported.fun_name}: sizes takes a list of sets such as {{'batch': 8}}, not {sizes!r:.80}"
        )
    names = sorted(dimension_variables(exported))
    found: list[dict[str, int]] = []
    for given in sizes:
        try:
            one = dict(sorted(sizes_by_name(given).items()))
        except TypeError as error:
            raise ExportTypeError(f"saving {exported.fun_name}: {error}") from cause(error)
        if not names or list(one) != names or not all(0 < size < 1 << 63 for size in one.values()):
            expected = "it takes no sizes, because it has no symbolic dimensions"
            if names:
                expected = f"a set of sizes has a size from 1 to 2^63 - 1 for each of {', '.join(names)}"
            raise ExportError(f"saving {exported.fun_name}: {expected}, found {given!r}")
        _check_constraints(exported, one)
        if one not in found:
            found.append(one)
    if len(found) > _MOST:
        raise ExportError(f"saving {exported.fun_name}: there is room for {_MOST} sets of sizes, found {len(found)}")
    return found


def padded_names(exported: ExportedData, pad: str | Iterable[str]) -> tuple[str, ...]:
    """`pad` of `Exported.save`, each name once, in ascending order."""
    names = sorted(dimension_variables(exported))
    found = [*pad] if isinstance(pad, Iterable) and not isinstance(pad, str) else [pad]
    if not all(isinstance(name, str) for name in found):
        raise ExportTypeError(
            f"saving {exported.fun_name}: pad takes names of symbolic dimensions, as in pad=('batch',), not {pad!r}"
        )
    if unknown := [name for name in found if name not in names]:
        takes = f"takes names of its symbolic dimensions, {', '.join(names)}"
        if not names:
            takes = "is not possible, because it has no symbolic dimensions"
        raise ExportError(f"saving {exported.fun_name}: pad {takes}, found {unknown[0]!r}")
    return tuple(sorted(set(found)))


def sizes_fit(exported: ExportedData, sizes: Mapping[str, int]) -> bool:
    """Whether sizes of all dimension variables satisfy the constraints of a function."""
    try:
        _check_constraints(exported, sizes)
    except ExportError:
        return False
    return True


def _check_constraints(exported: ExportedData, sizes: Mapping[str, int]) -> None:
    values: list[Any] = [*sizes.values()]
    shapes = (_jax.evaluate_shape(aval.shape, tuple(sizes), *values) for aval in exported.in_avals)
    avals = [_jax.ShapedArray(shape, aval.dtype) for shape, aval in zip(shapes, exported.in_avals, strict=True)]
    check(exported, avals, _SAVING)

"""What weights are called where they come from: names that are given, and those that are missing. Without JAX."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Mapping, Sequence

from jaxexp._errors import ExportError, ExportTypeError, WeightsError
from jaxexp._kernel.artifact import words

RENAME_ADVICE = ". If the weights have other names there, pass rename="
NOT_USED = "given arrays that are not used"
_OF_VARIABLE = "/value"  # the end of names in the state of a flax.nnx model, which a pure dict of it does not have

Rename = Mapping[str, str] | Callable[[str], str]


def names_given(names: Sequence[str], other_names: Mapping[str, str], rename: Rename | None) -> dict[str, str]:
    """What weights, and the other places of tied weights, are called among given arrays, by their own names.

    An ExportError if `rename` has a name that is no weight of the function, or is of another type.
    """
    own = [*names, *other_names]
    known = set(own)
    if rename is None:
        return dict(zip(own, own, strict=True))
    if isinstance(rename, Mapping):
        for name in rename:
            if name not in known:
                near = _nearest(name, own) if isinstance(name, str) else []
                raise ExportError(
                    f"rename= maps {words.cut(repr(name), 80)}, which is not the name of a weight of the function"
                    f"{f': did you mean {near[0]!r}?' if near else ''} (it maps names in the function to given names)"
                )
        given = {name: rename.get(name, name) for name in own}
    elif callable(rename):
        given = {name: rename(name) for name in own}
    else:
        raise ExportTypeError(f"rename= takes a mapping or a function of names, not {type(rename)}")
    for name, found in given.items():
        if not isinstance(found, str):
            raise ExportTypeError(f"rename= has to give the name of an array for {name!r}, found {found!r}")
    return given


def check_names(
    needed: Mapping[str, str],
    given: Collection[str],
    file: str | None = None,
    *,
    is_mapping: bool = False,
    can_rename: bool = False,
    expected: str = "an array of this name",
    advice: str = "",
) -> None:
    """Raises a WeightsError if an array is missing; it suggests similar names.

    `needed` says what each weight is called among the given arrays, by its own name. With `is_mapping`, these are in a
    mapping of arrays by name, to which the user can add others. With `can_rename`, the user can say what weights are
    called there, and has not done so. `advice` is for a user who gave none of them.
    """
    missing = {own: name for own, name in needed.items() if name not in given}
    if not missing:
        return
    own, first = next(iter(missing.items()))
    found = f"no such name among {len(given):,}"
    is_none = len(missing) == len(needed)
    needed_names = set(needed.values())
    unused = dict.fromkeys(name for name in given if name not in needed_names)
    if near := _nearest(first, list(unused)) or (list(unused) if len(unused) <= _FEW else []):
        found += f", of which {' and '.join(map(repr, near))} {'is' if len(near) == 1 else 'are'} not used"
    if others := list(missing.values())[1:]:
        found += f". Also missing: {listed_names(others)}"
    if advice and is_none:
        found += advice
    elif can_rename and len(unused) >= len(missing):
        found += RENAME_ADVICE
        if all(name.removesuffix(_OF_VARIABLE) in unused for name in missing.values()):
            found += f"lambda name: name.removesuffix({_OF_VARIABLE!r})"
    elif is_mapping and not is_none:
        found += ". To change only some weights, pass {**loaded.weights, ...}"
    renamed = "" if own == first else f" for the weight {words.cut(repr(own), 80)}"
    raise WeightsError(first, f"{expected}{renamed}", found, file=file)


_FEW = 5  # names that are listed all


def _nearest(name: str, others: Sequence[str]) -> list[str]:
    """Up to two similar names; first of all, those of the same place in a larger tree."""
    if inside := [other for other in others if other.endswith((f"/{name}", f".{name}"))]:
        return inside[:2]
    return words.near(name, others)


def warn_of_others(
    what: str,
    names: Sequence[str],
    why: str = "a name may be misspelt, or they are part of the program or of another model. Leave them out to avoid "
    "this warning",
) -> None:
    """Warns of arrays that are not weights of the function, at the caller's caller's caller."""
    if names:
        text = f"{what}: {listed_names(names)}. They are not weights of the function: {why}"
        warnings.warn(text, UserWarning, stacklevel=4)


def listed_names(names: Sequence[str]) -> str:
    return words.listed(names, lambda name: words.cut(repr(name), 80), most=8)

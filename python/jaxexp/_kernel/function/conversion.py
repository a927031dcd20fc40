"""Converts functions between the two libraries: an `Exported` of `jax.export`, and one of jaxexp."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from jaxexp import _jax

from .data import E, ExportedData, facts_of
from .facts import NO_FACTS
from .vjps import DerivedVjp

_FACTS = "_jaxexp_facts"  # the attribute of a converted function that keeps its facts for the way back


class ConvertedVjp(DerivedVjp):
    """The VJP of an Exported that came from the other library."""

    __slots__ = ()

    def __call__(self, primal: Any) -> Any:
        exported, convert = self.of
        return convert(exported.vjp())


def from_jax(cls: type[E], exported: Any, convert: Callable[[Any], Any]) -> E:
    """A function of the class `cls`, from one of the other library. `convert` converts its VJP."""
    names = [field.name for field in dataclasses.fields(cls)]
    fields = {name: getattr(exported, name) for name in names if name != "_get_vjp"}
    fields["_get_vjp"] = ConvertedVjp(exported, convert) if exported.has_vjp() else None
    return cls(**fields, _facts=getattr(exported, _FACTS, NO_FACTS))


def to_jax(exported: ExportedData) -> Any:
    """A function as a `jax.export.Exported`."""
    # Not from jax.export itself: `install` may have put jaxexp's own classes there.
    exported_type, check_type = _jax.jax_exporter.Exported, _jax.jax_exporter.DisabledSafetyCheck
    names = [field.name for field in dataclasses.fields(exported_type)]
    fields = {name: getattr(exported, name) for name in names if name != "_get_vjp"}
    fields["disabled_safety_checks"] = tuple(check_type(str(check)) for check in exported.disabled_safety_checks)
    fields["_get_vjp"] = ConvertedVjp(exported, to_jax) if exported.has_vjp() else None
    converted = exported_type(**fields)
    object.__setattr__(converted, _FACTS, facts_of(exported))
    return converted

"""Converts functions between the two libraries: an `Exported` of `jax.export`, and one of jaxexp."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

from jaxexp import _jax
from jaxexp._errors import ExportTypeError

from .data import E, ExportedData, facts_of
from .facts import NO_FACTS
from .vjps import DerivedVjp

# Not from jax.export: `install` may have put jaxexp's own class there.
ExportedOfJax = _jax.Exported

_FACTS = "_jaxexp_facts"  # the attribute of a converted function that keeps its facts for the way back


class ConvertedVjp(DerivedVjp):
    """The VJP of an Exported that came from the other library."""

    __slots__ = ()

    def __call__(self, primal: Any) -> Any:
        exported, convert = self.of
        return convert(exported.vjp())


def from_jax(cls: type[E], exported: Any, convert: Callable[[Any], Any]) -> E:
    """A function of the class `cls`, from one of the other library. `convert` converts its VJP."""
    if not issubclass(type(exported), ExportedOfJax):
        raise ExportTypeError(f"from_jax takes a jax.export.Exported, not {type(exported)}")
    names = [field.name for field in dataclasses.fields(cls)]
    fields = {name: getattr(exported, name) for name in names if name != "_get_vjp"}
    fields["_get_vjp"] = ConvertedVjp(exported, convert) if exported.has_vjp() else None
    return cls(**fields, _facts=getattr(exported, _FACTS, NO_FACTS))


def to_jax(exported: ExportedData, module_of: Callable[[Any], bytes]) -> Any:
    """A function as a `jax.export.Exported`. `module_of` has the module that JAX may run, of it and of its VJPs."""
    exporter: Any = _jax.jax_exporter
    names = [field.name for field in dataclasses.fields(exporter.Exported)]
    fields = {name: getattr(exported, name) for name in names if name not in ("_get_vjp", "mlir_module_serialized")}
    fields["mlir_module_serialized"] = module_of(exported)
    checks = map(str, exported.disabled_safety_checks)
    fields["disabled_safety_checks"] = tuple(map(exporter.DisabledSafetyCheck, checks))
    convert = functools.partial(to_jax, module_of=module_of)
    fields["_get_vjp"] = ConvertedVjp(exported, convert) if exported.has_vjp() else None
    converted = exporter.Exported(**fields)
    object.__setattr__(converted, _FACTS, facts_of(exported))
    return converted

"""A `Compatibility` as a value of JSON, and back."""

from __future__ import annotations

import dataclasses
import datetime
from typing import Any

from .compatibility import Compatibility, Refusal


def facts_of(found: Compatibility) -> dict[str, Any]:
    """The fields, of JSON types."""
    until = found.promised_until
    return {**dataclasses.asdict(found), "promised_until": None if until is None else until.isoformat()}


def of_facts(facts: dict[str, Any]) -> Compatibility:
    """The same `Compatibility` again.

    Raises:
        TypeError: there are other fields.
        ValueError: a field is of another kind.
    """
    made: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in facts.items()}
    for name in ("readers", "jaxexp_readers"):
        made[name] = tuple((first, last) for first, last in facts[name])
    made["refusals"] = tuple(Refusal(**refusal) for refusal in facts["refusals"])
    if (until := facts["promised_until"]) is not None:
        made["promised_until"] = datetime.date.fromisoformat(until)
    return Compatibility(**made)

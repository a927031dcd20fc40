"""What `inspect` shows of a file of executables: for which functions its code is, and whether it can be used here."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from jaxexp._kernel.artifact.words import counted

from .page import Column, Page

if TYPE_CHECKING:
    from jaxexp._fleet.places.executables import Executable

# Conditions that the table has; the others are those of a machine.
_OF_CALL = ("function", "module", "signature", "results", "arguments", "placement", "devices")
_DIGITS = 12  # of a digest, on a terminal: arguments need the room, because they tell executables apart


def show(page: Page, path: str, found: tuple[Executable, ...]) -> None:
    """Prints the conditions of each machine, and a table of the code for it."""
    page.title("executables", path)
    usable = sum(1 for one in found if one.why is None)
    page.fields(
        [("size", f"{os.path.getsize(path):,} bytes: {counted(len(found), 'executable')}, {usable:,} usable here")]
    )
    machines: dict[tuple[tuple[str, str], ...], list[Executable]] = {}
    for one in found:
        machine = tuple((name, text) for name, text in one.conditions.items() if name not in _OF_CALL)
        machines.setdefault(machine, []).append(one)
    columns = [
        Column("function", style="name"),
        Column("module", words=True),
        Column("arguments", cut=True, both_ends=True),
        Column("results"),
        Column("devices"),
        Column("bytes", right=True),
        Column("here", marks={"usable": "good"}, style="bad"),
    ]
    for machine, code in machines.items():
        page.blank()
        page.fields([(name, text or "none") for name, text in machine])
        page.blank()
        page.table(columns, [_row(one, _DIGITS if page.is_terminal else None) for one in code])


def _row(one: Executable, digits: int | None) -> tuple[str, ...]:
    of_call = one.conditions
    results = of_call.get("results", "")
    return (
        of_call.get("function", ""),
        of_call.get("module", "")[:digits],
        one.arguments,
        "" if results == "all" else results,
        of_call.get("devices", ""),
        f"{one.size:,}",
        "usable" if one.why is None else one.why,
    )


def to_dict(path: str, found: tuple[Executable, ...]) -> dict[str, Any]:
    """The same for JSON."""
    code = [
        {"bytes": one.size, "usable": one.why is None, "why": one.why, "conditions": dict(one.conditions)}
        for one in found
    ]
    return {"file": path, "executables": code}

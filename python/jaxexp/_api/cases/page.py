"""A report as a part of a page about the artifact."""

from __future__ import annotations

from jaxexp._view.sides import Check, Errors

from .report import HEADS, MOST_LINES, CheckReport, in_short, table_lines


def of_report(found: CheckReport) -> Check:
    """What the page shows of a report. The first case that differs gives the module of its VJP the colours."""
    errors: dict[int, Errors] = {}
    words = []
    for case in found.cases:
        words += [f"{case.name}: {line}" for line in case.lines()]
        if case.differences is not None and case.culprit is not None:
            errors.setdefault(case.vjp_order, Errors(*case.differences, case.culprit.at))
    lines = [line for case in found.cases for line in table_lines(case)]
    if len(lines) > MOST_LINES:
        words.insert(0, f"and {len(lines) - MOST_LINES:,} more")
    title = f"{found.verdict}, checked with {in_short(found.checked)}"
    return Check(title, HEADS, lines[:MOST_LINES], words, errors)

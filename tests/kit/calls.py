"""Functions of the corpus with calls of them, as cases are recorded."""

from __future__ import annotations

from typing import Any

import pytest

import jaxexp

from .cases.case import Case, export_with


def exported_with_calls(case: Case, **options: Any) -> tuple[jaxexp.Exported, list[dict[str, Any]]]:
    """The function of a case whose context is entered, and a call of it and of its VJP, if the case has one."""
    program = case.build()
    if not program.callable_here:
        pytest.skip("nothing here implements what it calls")
    calls = [
        {"args": program.args, "kwargs": program.kwargs, "vjp_order": order, "name": f"order {order}", **options}
        for order in range(min(case.vjp_order, 1) + 1)
    ]
    return export_with(jaxexp, program), calls

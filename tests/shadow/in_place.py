"""A pytest plugin for JAX's own tests: jaxexp runs in the place of `jax.export`, from before they are imported.

jaxexp says in its own words what went wrong. So where a test expects the text of an error, jaxexp's error of the
expected type is taken as well; the test's report then has the property "reworded".
"""

from __future__ import annotations

import types
import unittest.case
from collections.abc import Iterator
from typing import Any

import jax  # noqa: F401  (jaxexp meets it when it is imported)
import pytest
from jax._src.export import _export
from jax._src.internal_test_util import export_back_compat_test_util

import jaxexp

jaxexp.install()


class _Private(types.ModuleType):
    """JAX's private exporter with the public names of jaxexp, for tests that take them from there."""

    def __getattr__(self, name: str) -> object:
        return getattr(jaxexp if name in jaxexp.__all__ else _export, name)


_private = _Private(_export.__name__)


def pytest_collection_finish(session: pytest.Session) -> None:
    tests = {parent.obj for item in session.items if (parent := item.getparent(pytest.Module)) is not None}
    for module in {export_back_compat_test_util, *tests}:
        for name, value in list(vars(module).items()):
            if value is _export:
                setattr(module, name, _private)


_reworded: list[str] = []


class _AnyWords(unittest.case._AssertRaisesContext):  # type: ignore[type-arg]
    """`assertRaisesRegex`, which leaves the words of its own errors to jaxexp."""

    def __exit__(self, kind: Any, value: Any, traceback: Any) -> bool:
        try:
            return bool(super().__exit__(kind, value, traceback))
        except AssertionError:
            if not (isinstance(value, jaxexp.ExportError) and isinstance(value, self.expected)):
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

"""A pytest plugin for JAX's own tests: jaxexp runs in the place of `jax.export`, from before they are imported."""

from __future__ import annotations

import types

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

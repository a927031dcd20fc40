"""Artifacts of cases of the corpus, and a codec that calls other functions than JAX's."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import jaxexp
from jaxexp._kernel.codec import binding
from kit.corpus import CASES, export_with

CHOSEN = [*list(CASES)[::6], "custom_node", "ordered_effect", "sharded_2d", "mixed_nodes"]


@pytest.fixture(scope="session")
def blobs() -> dict[str, bytes]:
    """Artifacts of a part of the cases, of each kind, with as many VJPs as their tests take."""
    made = {}
    for name in CHOSEN:
        with CASES[name].context():
            exported = export_with(jaxexp, CASES[name].build())
            made[name] = bytes(exported.serialize(vjp_order=CASES[name].vjp_order))
    return made


@contextlib.contextmanager
def _bound_with(**changed: Any) -> Iterator[None]:
    """While it is open, the codec calls other functions than JAX's. It has nothing in its caches."""
    given: list[Any] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(binding._native, "bind", given.append)
        binding.bind.__wrapped__()
    vars(given[0]).update(changed)
    binding._native.bind(given[0])
    try:
        yield
    finally:
        binding.bind.__wrapped__()


@pytest.fixture
def bound_with() -> Callable[..., contextlib.AbstractContextManager[None]]:
    return _bound_with

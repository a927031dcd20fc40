"""Raised functions: how they are compared, and whether a batch was a loop."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np


def assert_same_bits(found: Sequence[Any], expected: Sequence[Any]) -> None:
    """Equal dtypes, shapes and bits: 0.0 is not -0.0 here, and a NaN is equal to itself."""
    for a, b in zip(map(np.asarray, found), map(np.asarray, expected), strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        np.testing.assert_array_equal(a.reshape(-1).view(f"V{a.itemsize}"), b.reshape(-1).view(f"V{b.itemsize}"))


@contextlib.contextmanager
def said_of_loops() -> Iterator[list[str]]:
    """What is logged about batches that become loops."""
    messages: list[str] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            messages.append(record.getMessage())

    logger, handler = logging.getLogger("jaxexp._readback.vmap.mapped_lowering"), Handler()
    logger.addHandler(handler)
    try:
        yield messages
    finally:
        logger.removeHandler(handler)


@contextlib.contextmanager
def no_loops() -> Iterator[None]:
    """Fails if a batch became a loop."""
    with said_of_loops() as messages:
        yield
    assert not messages, messages

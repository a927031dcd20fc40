"""Artifacts of every case of the corpus."""

from __future__ import annotations

import pytest

import jaxexp
from kit.corpus import CASES, export_with


@pytest.fixture(scope="module")
def blobs() -> list[bytes]:
    """One artifact of every case that exports here, with as many VJPs as its tests take."""
    made = []
    for case in CASES.values():
        with case.context():
            made.append(bytes(export_with(jaxexp, case.build()).serialize(vjp_order=case.vjp_order)))
    return made

"""Exports the corpus reproducibly, and prints a digest for each case; a process of test_reproducible.py.

reproducible.py FOLDER HISTORY    with the corpus from FOLDER; with HISTORY "after", other exports come before each
"""

from __future__ import annotations

import hashlib
import json
import sys

folder, history = sys.argv[1:]
sys.path.insert(0, folder)

from kit.devices import DEVICES  # noqa: E402, F401  (before JAX)

# isort: split
import jaxexp  # noqa: E402
from kit.corpus import CASES, export_with  # noqa: E402


def digest(name: str) -> str:
    case = CASES[name]
    with case.context():
        exported = export_with(jaxexp, case.build(), reproducible=True)
        written = exported.serialize(vjp_order=min(case.vjp_order, 1))
    assert folder.encode() not in written, name
    assert jaxexp.inspect(bytes(written)).absolute_paths == (), name
    return hashlib.sha256(written).hexdigest()


def later(name: str, depth: int) -> str:
    """The same from other callers, after exports of other kinds."""
    if depth:
        return later(name, depth - 1)
    for options in ({}, {"reproducible": True}):
        case = CASES[name]
        with case.context():
            export_with(jaxexp, case.build(), **options).serialize(vjp_order=min(case.vjp_order, 1))
    return digest(name)


if history == "after":
    print(json.dumps({name: later(name, depth=12) for name in reversed(CASES)}))
else:
    print(json.dumps({name: digest(name) for name in CASES}))

"""`make shadow`: how outcomes are compared."""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType
from typing import Any

import pytest

from kit.places import TESTS

pytestmark = pytest.mark.jax


@pytest.fixture(scope="module")
def shadow() -> Any:
    """tests/shadow/run.py, which finds the files beside it."""
    sys.path.insert(0, str(TESTS / "shadow"))
    try:
        spec = importlib.util.spec_from_file_location("shadow_run", TESTS / "shadow" / "run.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        yield module
    finally:
        sys.path.remove(str(TESTS / "shadow"))


def test_only_failures_of_jaxexp_count(shadow: ModuleType) -> None:
    jax = [{"test": f"t::{name}", "outcome": "passed"} for name in "abc"] + [{"test": "t::d", "outcome": "failed"}]
    jaxexp = [
        {"test": "t::a", "outcome": "crashed"},
        {"test": "t::a", "outcome": "passed", "reworded": 1},  # the last line of a test is what came of it
        {"test": "t::b", "outcome": "failed", "why": "because"},
        {"test": "t::c", "outcome": "crashed"},
        {"test": "t::d", "outcome": "failed"},
    ]
    row, found = shadow.summary({"jax": jax, "jaxexp": jaxexp}, {"tests": {"c": "can do more"}, "functions": {}})
    assert row == [4, 3, 1, 0, 1, 1, 1, 0, 0, 0]
    assert found == ["t::b\nbecause"]
    both = dict.fromkeys(["export", "serialize", "read jax's", "call jax's", "read jaxexp's", "call jaxexp's"], "ok")
    line = {"function": "f", "of": "t", "jax": both, "jaxexp": both, "differ": []}
    failed = {"export": "NotImplementedError: no"}
    assert shadow.functions_alone([line, {**line, "jax": failed, "jaxexp": failed}, {**line, "jax": failed}]) == []
    assert len(shadow.functions_alone([{**line, "jaxexp": {**both, "export": "ValueError: no"}}])) == 1
    assert len(shadow.functions_alone([{**line, "jaxexp": {**both, "call jax's": "ValueError: no"}}])) == 1
    assert len(shadow.functions_alone([{**line, "differ": ["jaxexp call jax's: other values"]}])) == 1

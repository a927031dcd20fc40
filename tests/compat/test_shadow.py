"""`make shadow`: how outcomes are compared; and the examples in JAX's documents, where a checkout of JAX is named."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from kit.places import TESTS

pytestmark = pytest.mark.jax

SOURCE = os.environ.get("JAX_SOURCE")


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


def test_tests_are_rewritten(shadow: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "jax" / "tests" / "pallas").mkdir(parents=True)
    before = "import jax\nfrom jax import export\nx, = jax.export.symbolic_shape('x')\nexport.export(jax.jit(f))\n"
    (tmp_path / "jax" / "tests" / "pallas" / "a_test.py").write_text(before)
    (tmp_path / "jax" / "tests" / "b_test.py").write_text("import jax\nimport jax.export\n")
    copy = shadow.rewritten(tmp_path / "jax", tmp_path)
    after = "import jax\nimport jaxexp\nimport jaxexp as export\nx, = jaxexp.symbolic_shape('x')\n"
    after += "export.export(jax.jit(f))\n"
    assert (copy / "tests" / "pallas" / "a_test.py").read_text() == after
    assert (copy / "tests" / "b_test.py").read_text() == "import jax\nimport jaxexp\nimport jaxexp\n"
    assert shadow.rewritten(tmp_path / "jax", tmp_path) == copy


def test_functions_are_compared_stage_by_stage(shadow: ModuleType) -> None:
    ok = {"export": "ok", "serialize": "ok", "read jax's": "ok", "call jax's": "ok"}
    both = {**ok, "read jaxexp's": "ok", "call jaxexp's": "ok"}
    line = {"function": "f", "of": "t", "jax": both, "jaxexp": both, "differ": []}
    failed = {"export": "NotImplementedError: no"}
    assert shadow.functions_alone([line, {**line, "jax": failed, "jaxexp": failed}]) == []
    assert shadow.functions_alone([{**line, "jax": failed}]) == [], "jaxexp can do more"
    assert len(shadow.functions_alone([{**line, "jaxexp": {**both, "export": "ValueError: no"}}])) == 1
    assert shadow.functions_alone([{**line, "jaxexp": {**both, "export": "ValueError: no"}}], ["Error: no"]) == []
    assert len(shadow.functions_alone([{**line, "jax": {**both, "read jaxexp's": "ValueError: no"}}])) == 1
    assert len(shadow.functions_alone([{**line, "jaxexp": {**both, "call jax's": "ValueError: no"}}])) == 1
    assert shadow.functions_alone([{**line, "differ": ["jaxexp call jax's: other values"]}]) == [
        "t f: jaxexp call jax's: other values"
    ]


@pytest.mark.long(
    promise="examples of documents are compared between both libraries",
    sibling="test_shadow.py::test_only_failures_of_jaxexp_count",
)
@pytest.mark.processes(reason="examples run with each library")
def test_examples_are_compared(shadow: ModuleType, tmp_path) -> None:
    """Of a document of our own: jaxexp's errors count as the built-in type that jax.export raises."""
    document = tmp_path / "document.md"
    document.write_text(
        """
>>> from jax import export
>>> import numpy as np
>>> exported = export.export(jax.jit(lambda x: x + 1))(np.ones(2, np.float32))
>>> exported.call(np.ones(2, np.float32))
>>> export.export(jax.numpy.sin.__wrapped__)
>>> exported.call(np.ones(3, np.float32))
>>> export.__name__
>>> type(exported).__module__
"""
    )
    count, found = shadow.documents.differences(document)
    assert count == 8
    assert [difference.partition(": ")[0] for difference in found] == ["document.md line 9"], found


@pytest.mark.skipif(not SOURCE, reason="JAX's wheels have no documents; JAX_SOURCE names a checkout of JAX")
@pytest.mark.parametrize("name", ["docs/export/export.md", "docs/export/shape_poly.md"])
def test_examples_of_jax(name: str, shadow: ModuleType) -> None:
    count, found = shadow.documents.differences(Path(SOURCE) / name)
    assert count > 50
    assert found == []

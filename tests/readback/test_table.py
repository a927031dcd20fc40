"""Every operation that the installed jaxlib knows is in the table, or refused for a reason, and on the page."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import jax
import jaxlib.mlir.dialects._chlo_ops_gen as chlo
import jaxlib.mlir.dialects._sdy_ops_gen as sdy
import jaxlib.mlir.dialects._stablehlo_ops_gen as stablehlo
import pytest

from jaxexp import _jax
from jaxexp._readback import reader
from jaxexp._readback.read_back import OPERATIONS, REFUSED
from jaxexp._readback.reader import _REQUIRED, Operation
from jaxexp._readback.refused import RefusedError
from kit.each import each
from kit.places import ROOT
from kit.snippets import SNIPPETS

pytestmark = pytest.mark.jax

# These end blocks, and are read with them.
TERMINATORS = {"stablehlo.return", "sdy.return"}
# Some releases of jaxlib do not know this attribute.
TOP_K = ("chlo.top_k", "is_stable")
# At the top of a module, and read with it.
TOP = {"sdy.mesh"}


def known(dialect: Any) -> set[str]:
    return {value.OPERATION_NAME for value in vars(dialect).values() if hasattr(value, "OPERATION_NAME")}


@each("dialect", [stablehlo, chlo, sdy])
def test_every_operation_is_read_or_refused(dialect: Any) -> None:
    assert len(known(dialect)) > 15
    assert known(dialect) - OPERATIONS.keys() - TERMINATORS - TOP == set()
    assert all(REFUSED.values()), "each has a reason"


def test_every_operation_that_is_read_has_a_snippet() -> None:
    """So that its values are looked at."""
    text = "\n".join(snippet.text for snippet in SNIPPETS.values())
    elsewhere = {"stablehlo.custom_call", "stablehlo.cholesky", "chlo.mulhi"}
    assert OPERATIONS.keys() - REFUSED.keys() - elsewhere <= set(re.findall(r"\b\w+\.\w+", text))


@pytest.fixture(scope="module")
def context() -> Iterator[Any]:
    with _jax.make_ir_context() as context, _jax.ir.Location.unknown(context):
        yield context


class Recorder(Operation):
    """An operation that notes for each attribute that may be left out what was read."""

    left_out: ClassVar[set[tuple[str, str]]] = set()
    said_otherwise: ClassVar[set[tuple[str, str]]] = set()

    def read(self, name: str, read: Callable[[Any], Any], default: Any = _REQUIRED) -> Any:
        is_there = self.has(name)
        value = super().read(name, read, default)
        if default is not _REQUIRED:
            if not is_there:
                self.left_out.add((self.name, name))
            elif value != default:
                self.said_otherwise.add((self.name, name))
        return value


def test_defaults(monkeypatch: pytest.MonkeyPatch, context: Any) -> None:
    """What an attribute means where it is left out is tried by a snippet, and so is something else."""
    monkeypatch.setattr(reader, "Operation", Recorder)
    for snippet in SNIPPETS.values():
        with jax.enable_x64(True):
            module = _jax.ir.Module.parse(snippet.text, context)
            reader.ModuleReader(module, OPERATIONS, partitioned=snippet.devices > 1).main()
    assert len(Recorder.left_out) > 15
    assert Recorder.left_out ^ Recorder.said_otherwise == {TOP_K}


def operations_of(module: Any) -> Iterator[Any]:
    pending = [module.operation]
    while pending:
        operation = pending.pop()
        yield operation
        pending += [inner.operation for region in operation.regions for block in region for inner in block]


def test_an_attribute_that_nobody_knows_is_refused(context: Any) -> None:
    """On any operation, functions and ends of blocks included."""
    tried: set[str] = set()
    for snippet in SNIPPETS.values():
        module = _jax.ir.Module.parse(snippet.text, context)
        for operation in operations_of(module):
            if operation.name in tried:
                continue
            operation.attributes["tests.unknown"] = _jax.ir.UnitAttr.get(context)
            try:
                with jax.enable_x64(True):
                    reader.ModuleReader(module, OPERATIONS, partitioned=snippet.devices > 1).main()
            except RefusedError as refused:
                assert "tests.unknown" in str(refused)
                tried.add(operation.name)
            del operation.attributes["tests.unknown"]
        # What is left was not read: branches that are never taken, and decompositions that have a name.
        left = {operation.name for operation in operations_of(module)} - tried
        assert not left or "case" in str(module) or "composite" in str(module), left
    assert tried >= {"builtin.module", "func.func", "func.return", "stablehlo.return", "sdy.mesh", "sdy.return"}
    assert len(tried) > 90


# What changes no value here.
HINTED = {
    "dot_general with precisions": ("", "", "precision = [HIGHEST, HIGH]"),
    "convolution of groups": ("", "", "precision_config = [#stablehlo<precision HIGHEST>, #stablehlo"),
    "gather": ("indices_are_sorted = false", "indices_are_sorted = true", "indices_are_sorted = true"),
    "scatter: add": ("indices_are_sorted = false", "indices_are_sorted = true", "indices_are_sorted = true"),
    "scatter: differences": ("unique_indices = false", "unique_indices = true", "unique_indices = true"),
    "sort: smaller first, in any order": ("", "", "is_stable = false"),
    "sort: larger first": ("", "", "is_stable = true"),
    "sort: by size": ("is_stable = true", "is_stable = false", "is_stable = false"),
}  # fmt: skip


@each("name", HINTED)
def test_hints(name: str, context: Any) -> None:
    """They are in what the raised code is lowered to, as they were in the module."""
    old, new, expected = HINTED[name]
    text = SNIPPETS[name].text.replace(old, new) if old else SNIPPETS[name].text
    block = reader.ModuleReader(_jax.ir.Module.parse(text, context), OPERATIONS).main()
    lowered = jax.jit(lambda *xs: block(xs)).lower(*SNIPPETS[name].arguments()).as_text()
    assert expected in lowered


PAGE = ROOT / "docs" / "guide" / "read_back.md"
of_page = pytest.mark.skipif(not PAGE.exists(), reason="the documentation is not beside the tests")


@of_page
def test_the_example(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    page = PAGE.read_text(encoding="utf-8")
    found = re.search(r"<!-- example: read_back -->\n```python\n(.*?)```.*?```\n(.*?)```", page, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    exec(found[1], {"__name__": "__main__"})
    printed = capsys.readouterr().out
    if jax.__version_info__ >= (0, 12):  # each release prints jaxprs in its own way
        assert printed == found[2]
    assert "= scan[" in printed


@of_page
def test_every_operation_that_is_refused_is_listed() -> None:
    """With its reason; the others of that table are not refused."""
    table = PAGE.read_text(encoding="utf-8").partition("These are not:")[2].partition("\n\nCustom calls")[0]
    rows = re.findall(r"^\| (`.*?) \| (.*?) \|$", table, re.MULTILINE)
    listed = {name: reason for names, reason in rows for name in re.findall(r"`([^`]*)`", names)}
    wanted = {name.partition(".")[2]: why for name, why in REFUSED.items() if not name.startswith("chlo.broadcast_")}
    assert {name: listed.get(name, "").partition(";")[0].replace("`", "") for name in wanted} == wanted
    assert listed.keys() - wanted.keys() == {"broadcast_add"}
    assert OPERATIONS.keys() > REFUSED.keys()

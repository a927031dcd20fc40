"""What a page costs: at most four times what other looks at an artifact may take, and no more than 4 MB of HTML."""

from __future__ import annotations

import dataclasses
import sys

import pytest

import jaxexp
from jaxexp import _jax
from jaxexp._cli.commands.view import page_of
from jaxexp._cli.inputs import Source
from jaxexp._kernel.module import mlir
from jaxexp.errors import DeserializationError
from kit import costs, hostile

pytestmark = pytest.mark.jax
SIZE, LARGE = 30_000, 300_000
READINGS, MOST_HTML = 4, 4_000_000
sys.setrecursionlimit(max(sys.getrecursionlimit(), 30_000))  # nested trees are written by recursion


def check(blob: bytes, path) -> None:
    path.write_bytes(blob)

    def look() -> str:
        try:
            return page_of(Source(str(path), str(path)))
        except DeserializationError as error:
            return str(error)

    slowness = costs.slowness()
    page, seconds, memory = costs.measured(look)
    assert seconds <= READINGS * costs.allowed_seconds(len(blob), slowness)
    assert memory <= READINGS * costs.allowed_memory(len(blob))
    assert isinstance(page, str)
    assert len(page) < MOST_HTML


FEW = ["shared_leaves", "specs_of_long_names", "vjps_that_share_a_module"]


def test_cost_of_pages(tmp_path) -> None:
    for family in FEW:
        check(hostile.FAMILIES[family](SIZE), tmp_path / "a.jaxexp")


@pytest.mark.long(promise="a page costs little, whatever is drawn", sibling="test_view_costs.py::test_cost_of_pages")
@pytest.mark.parametrize("family", hostile.FAMILIES)
def test_cost_of_pages_of_all_families(family: str, tmp_path) -> None:
    check(hostile.FAMILIES[family](LARGE), tmp_path / "a.jaxexp")


@pytest.mark.wide(one_in=2, promise="a page costs little, also where many locations share a long name")
@pytest.mark.parametrize("begin", ["jit(/", "x"])
def test_locations_that_share_a_name(begin: str, tmp_path) -> None:
    lines = [f"%{i} = stablehlo.sine %{i - 1} : tensor<2xf32>" for i in range(1, 1500)]
    body = "\n".join(["%0 = stablehlo.sine %a : tensor<2xf32>", *lines, "return %1499 : tensor<2xf32>"])
    text = f"module @m {{ func.func public @main(%a: tensor<2xf32>) -> tensor<2xf32> {{ {body} }} }}"
    exported = jaxexp.from_stablehlo(text)
    with _jax.make_ir_context() as context:
        ir, name = _jax.ir, begin * (150_000 // len(begin))
        module = mlir.parse(exported.mlir_module_serialized, context)
        (main,) = module.body.operations
        for i, view in enumerate(main.regions[0].blocks[0].operations):
            view.operation.location = ir.Location.name(name, ir.Location.file("f.py", i + 1, 1))
        module = mlir.serialize(module)
    check(bytes(dataclasses.replace(exported, mlir_module_serialized=module).serialize()), tmp_path / "a.jaxexp")

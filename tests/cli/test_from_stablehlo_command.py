"""`jaxexp from-stablehlo`: artifacts of modules that other programs wrote."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import jaxexp
from kit.producers import bytecode, identity, module

MLP, OF_ANY_BATCH = "torch_xla-2.9.0/mlp.mlirbc", "torch_xla-2.9.0/mlp_of_any_batch.mlirbc"


def test_an_artifact_with_derivatives(tmp_path: Path, good: Any) -> None:
    of, target = module(MLP), tmp_path / "mlp.jaxexp"
    platforms = ["--platform", "cuda", "--platform", "cpu"]
    out = good("from-stablehlo", of.path, "--vjp-order", "2", *platforms, "--name", "mlp", "-o", target)
    assert out == f"{of.path} -> {target}: mlp, {target.stat().st_size:,} bytes\n"
    loaded = jaxexp.load(target)
    assert (loaded.fun_name, loaded.platforms) == ("mlp", ("cuda", "cpu"))
    np.testing.assert_allclose(loaded.call(*of.arguments), of.results[0], rtol=1e-5)
    found = jax.grad(lambda *args: loaded.call(*args).sum(), 4)(*of.arguments)
    np.testing.assert_allclose(found, of.gradients[4], rtol=1e-4, atol=1e-6)
    assert loaded.vjp().has_vjp()
    assert not loaded.vjp().vjp().has_vjp()
    assert "mlp.jaxexp" in good("inspect", target)


def test_shapes(tmp_path: Path, run: Any, good: Any) -> None:
    of, target = module(OF_ANY_BATCH), tmp_path / "mlp.jaxexp"
    status, _, err = run("from-stablehlo", of.path, "-o", target)
    assert status == 1
    assert err.startswith("jaxexp: argument 4 of the module has the shape (?, 4): ")
    assert not target.exists()
    good("from-stablehlo", of.path, "--shape", "4=batch, 4", "-o", target)
    assert str(jaxexp.load(target).out_avals[0]) == "float32[batch,3]"
    status, _, err = run("from-stablehlo", of.path, "--shape", "4=7,4", "-o", target)
    assert (status, err) == (1, f"jaxexp: {str(target)!r} exists: --force replaces it\n")
    good("from-stablehlo", of.path, "--shape", "4=7,4", "-o", target, "--force")
    assert jaxexp.load(target).out_avals[0].shape == (7, 3)


def test_an_entry_and_a_custom_call(tmp_path: Path, run: Any, good: Any) -> None:
    path, target = tmp_path / "m.mlirbc", tmp_path / "m.jaxexp"
    call = "%0 = stablehlo.custom_call @mine(%x) : (tensor<2xf32>) -> tensor<2xf32>"
    path.write_bytes(bytecode(identity(body=call, returned="%0").replace("@main", "@other")))
    status, _, err = run("from-stablehlo", path, "-o", target)
    assert status == 1
    assert "mine" in err
    status, _, err = run("from-stablehlo", path, "--entry", "main", "--allow-custom-call", "mine", "-o", target)
    assert (status, "found functions @other" in err) == (1, True)
    good("from-stablehlo", path, "--entry", "other", "--allow-custom-call", "mine", "-o", target)
    assert jaxexp.inspect(target).custom_calls == ({"mine": 1},)


@pytest.mark.parametrize("shape", ["4", "x=4", "=4", "-1=4"])
def test_shapes_that_make_no_sense(shape: str, tmp_path: Path, run: Any) -> None:
    status, _, err = run("from-stablehlo", module(MLP).path, "--shape", shape, "-o", tmp_path / "m.jaxexp")
    assert (status, f"--shape {shape!r}: expected the index of an argument" in err) == (2, True)

"""`jaxexp specialize`: functions with constant shapes, alone and in archives; `from-stablehlo`: modules of others."""

from __future__ import annotations

import shutil
import subprocess
import types
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxexp
from jaxexp._compat.foreign import source
from kit.archive_files import make
from kit.producers import identity, module, parsed_here
from kit.vhlo import bytecode
from kit.weighted import SIZE, X, apply, close, closed, params

pytestmark = pytest.mark.jax
METADATA = {"by": "me"}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A function of two dimensions, and one with weights; both with a VJP and metadata."""
    folder = tmp_path_factory.mktemp("saved")
    shape = jaxexp.symbolic_shape("batch, length", constraints=["batch <= 100"])
    exported = jaxexp.export(jax.jit(lambda x, y: jnp.sin(x).sum(1) * y))(jax.ShapeDtypeStruct(shape, "float32"), 2.0)
    exported.save(folder / "model.jaxexp", vjp_order=1, metadata=METADATA)
    given = params()
    spec = jax.ShapeDtypeStruct(jaxexp.symbolic_shape(f"batch, {SIZE}"), "float32")
    exported = jaxexp.export(jax.jit(closed(given)), weights=given)(spec)
    exported.save(folder / "weighted.jaxexp", vjp_order=1, metadata=METADATA)
    return folder


@pytest.fixture
def model(saved: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(saved / "model.jaxexp", tmp_path))


@pytest.fixture
def with_weights(saved: Path, tmp_path: Path) -> Path:
    shutil.copy(saved / "weighted.safetensors", tmp_path)
    return Path(shutil.copy(saved / "weighted.jaxexp", tmp_path))


def test_one_size_and_all_combinations(model: Path, good: Any) -> None:
    target = model.with_name("fixed.jaxexp")
    out = good("specialize", model, "--size", "batch=2", "--size", "length=5", "-o", target)
    assert out == f"{model} -> {target}: {target.stat().st_size:,} bytes\n"
    found, original = jaxexp.load(target), jaxexp.load(model)
    assert ([str(aval) for aval in found.in_avals], found.metadata) == (["float32[2,5]", "float32[]"], METADATA)
    assert (found.has_vjp(), found.vjp().has_vjp()) == (True, False)
    x = np.linspace(-1, 1, 10, dtype=np.float32).reshape(2, 5)
    np.testing.assert_allclose(found.call(x, 3.0), original.call(x, 3.0), rtol=1e-6)
    target = model.with_name("fleet.zip")
    out = good("specialize", model, "--size", "length=5,1", "--size", "batch=2,3", "-o", target)
    sizes = [(length, batch) for length in (5, 1) for batch in (2, 3)]
    names = [f"model-length-{length}-batch-{batch}" for length, batch in sizes]
    assert out == f"{target}: 4 artifacts packed, {target.stat().st_size:,} bytes: {', '.join(names)}\n"
    archive = jaxexp.Archive.open(target)
    assert sorted(archive) == sorted(names)
    for name, (length, batch) in zip(names, sizes, strict=True):
        assert archive[name].load().in_avals[0].shape == (batch, length)


def test_members_are_added(model: Path, refused: Any, good: Any) -> None:
    target = make(model.with_name("fleet.zip"), {"any/batched": model})
    arguments = ["specialize", f"{target}::any/batched", "--size", "length=5", "--size", "batch=2", "-o", target]
    refused("exists: --force replaces it", *arguments)
    good(*arguments, "--append")
    assert jaxexp.load(f"{target}::any/batched-length-5-batch-2").in_avals[0].shape == (2, 5)
    refused("'any/batched-length-5-batch-2' is in", *arguments, "--append")
    good(*arguments, "--append", "--force")
    assert list(jaxexp.Archive.open(target)) == ["any/batched", "any/batched-length-5-batch-2"]


def test_weights_are_stored_once(with_weights: Path, good: Any) -> None:
    target = with_weights.with_name("fleet.zip")
    good("specialize", with_weights, "--size", "batch=1,2,3,4", "-o", target)
    assert jaxexp.Archive.open(target).weight_bytes == sum(weight.nbytes for weight in jax.tree.leaves(params()))
    found = jaxexp.load(f"{target}::weighted-batch-4")
    close(found.call(X), apply(params(), X))
    assert (found.metadata, found.has_vjp()) == (METADATA, True)


def test_weights_in_the_same_folder_stay_where_they_are(with_weights: Path, tmp_path: Path, good: Any) -> None:
    good("specialize", with_weights, "--size", "batch=4", "-o", with_weights.with_name("fixed.jaxexp"))
    names = ["fixed.jaxexp", "weighted.jaxexp", "weighted.safetensors"]
    assert sorted(path.name for path in with_weights.parent.iterdir()) == names
    close(jaxexp.load(with_weights.with_name("fixed.jaxexp"), verify=True).call(X), apply(params(), X))
    several = tmp_path / "several"
    several.mkdir()
    jaxexp.load(with_weights).save(several / "model.jaxexp", max_weights_file_size=5000)
    before = {path: path.stat().st_ino for path in several.glob("*.safetensors*")}
    assert len(before) > 2
    good("specialize", several / "model.jaxexp", "--size", "batch=4", "-o", several / "fixed.jaxexp")
    assert {path: path.stat().st_ino for path in several.glob("*.safetensors*")} == before
    close(jaxexp.load(several / "fixed.jaxexp", verify=True).call(X), apply(params(), X))


def test_weights_go_along_to_another_folder(with_weights: Path, tmp_path: Path, good: Any, refused: Any) -> None:
    (tmp_path / "other").mkdir()
    target = tmp_path / "other" / "fixed.jaxexp"
    arguments = ["specialize", with_weights, "--size", "batch=4", "-o", target]
    target.with_suffix(".safetensors").write_text("mine")
    refused("fixed.safetensors' exists: --force replaces it", *arguments)
    refused("found one of another program", *arguments, "--force")
    assert not target.exists()
    target.with_suffix(".safetensors").unlink()
    good(*arguments)
    good(*arguments, "--force")
    close(jaxexp.load(target, verify=True).call(X), apply(params(), X))


def test_written_for_an_older_reader(with_weights: Path, tmp_path: Path, good: Any) -> None:
    """An artifact does not say what it was written for, so the option does."""
    fixed, archive = tmp_path / "fixed.jaxexp", tmp_path / "fixed.zip"
    command = "specialize", with_weights, "--size", "batch=2"
    good(*command, "--to", "0.8.1", "-o", fixed)
    good(*command, "--to", "jax-0.8.1", "-o", archive)
    (member,) = jaxexp.Archive.open(archive)
    for found in (fixed, f"{archive}::{member}"):
        assert jaxexp.compatibility(found).readable_by("0.8.1")
        assert jaxexp.inspect(found).vjp_order == 1
    good(*command, "--force", "-o", fixed)
    assert not jaxexp.compatibility(fixed).readable_by("0.8.1")


MLP, OF_ANY_BATCH = "torch_xla-2.9.0/mlp.mlirbc", "torch_xla-2.9.0/mlp_of_any_batch.mlirbc"


def test_an_artifact_with_derivatives(tmp_path: Path, good: Any) -> None:
    of, target = module(MLP), tmp_path / "mlp.jaxexp"
    platforms = ["--platform", "cuda", "--platform", "cpu"]
    out = good("from-stablehlo", of.path, "--vjp-order", "2", *platforms, "--name", "mlp", "-o", target)
    assert out == f"{of.path} -> {target}: mlp, {target.stat().st_size:,} bytes\n"
    loaded = jaxexp.load(target)
    assert (loaded.fun_name, loaded.platforms) == ("mlp", ("cuda", "cpu"))
    np.testing.assert_allclose(loaded.call(*of.arguments), of.results[0], rtol=1e-5)
    assert loaded.vjp().has_vjp() and not loaded.vjp().vjp().has_vjp()


def test_shapes(tmp_path: Path, refused: Any, good: Any) -> None:
    of, target = module(OF_ANY_BATCH), tmp_path / "mlp.jaxexp"
    refused("jaxexp: argument 4 of the module has the shape (?, 4): ", "from-stablehlo", of.path, "-o", target)
    assert not target.exists()
    good("from-stablehlo", of.path, "--shape", "4=batch, 4", "-o", target)
    assert str(jaxexp.load(target).out_avals[0]) == "float32[batch,3]"
    refused(f"{str(target)!r} exists: --force replaces it", "from-stablehlo", of.path, "--shape", "4=7,4", "-o", target)
    good("from-stablehlo", of.path, "--shape", "4=7,4", "-o", target, "--force")
    assert jaxexp.load(target).out_avals[0].shape == (7, 3)


def test_an_entry_and_a_custom_call(tmp_path: Path, refused: Any, good: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in = types.SimpleNamespace(run=parsed_here, TimeoutExpired=subprocess.TimeoutExpired)
    monkeypatch.setattr(source, "subprocess", stand_in)
    path, target = tmp_path / "m.mlirbc", tmp_path / "m.jaxexp"
    call = "%0 = stablehlo.custom_call @mine(%x) : (tensor<2xf32>) -> tensor<2xf32>"
    path.write_bytes(bytecode(identity(body=call, returned="%0").replace("@main", "@other")))
    refused("mine", "from-stablehlo", path, "-o", target)
    allowed = "from-stablehlo", path, "--allow-custom-call", "mine", "-o", target
    refused("found functions @other", *allowed, "--entry", "main")
    good(*allowed, "--entry", "other")
    assert jaxexp.inspect(target).custom_calls == ({"mine": 1},)

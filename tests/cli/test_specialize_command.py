"""`jaxexp specialize`: functions with constant shapes, alone and in archives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxexp
from kit.weighted import SIZE, X, apply, bound, close, closed, params

METADATA = {"by": "me"}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A function of two dimensions, with a VJP and metadata."""
    shape = jaxexp.symbolic_shape("batch, length", constraints=["batch <= 100"])
    exported = jaxexp.export(jax.jit(lambda x, y: jnp.sin(x).sum(1) * y))(jax.ShapeDtypeStruct(shape, "float32"), 2.0)
    exported.save(tmp_path / "model.jaxexp", vjp_order=1, metadata=METADATA)
    return tmp_path / "model.jaxexp"


@pytest.fixture
def with_weights(tmp_path: Path) -> Path:
    given = params()
    spec = jax.ShapeDtypeStruct(jaxexp.symbolic_shape(f"batch, {SIZE}"), "float32")
    exported = jaxexp.export(jax.jit(closed(given)), weights=given)(spec)
    exported.save(tmp_path / "weighted.jaxexp", vjp_order=1, metadata=METADATA)
    return tmp_path / "weighted.jaxexp"


def check(found: Any, original: Any, *shape: int) -> None:
    """A function is the original one for arrays of this shape."""
    assert [aval.shape for aval in found.in_avals] == [shape, ()]
    assert all(isinstance(size, int) for aval in (*found.in_avals, *found.out_avals) for size in aval.shape)
    assert (found.metadata, found.weak_arguments, found.fun_name) == (METADATA, (1,), original.fun_name)
    x = np.linspace(-1, 1, int(np.prod(shape)), dtype=np.float32).reshape(shape)
    np.testing.assert_allclose(found.call(x, 3.0), original.call(x, 3.0), rtol=1e-6)
    by_both = [jax.grad(lambda *args, f=f: f.call(*args).sum(), (0, 1))(x, 3.0) for f in (found, original)]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), *by_both)
    assert not found.vjp().has_vjp()


def test_one_size(model: Path, good: Any) -> None:
    target = model.with_name("fixed.jaxexp")
    out = good("specialize", model, "--size", "batch=2", "--size", "length=5", "-o", target)
    assert out == f"{model} -> {target}: {target.stat().st_size:,} bytes\n"
    check(jaxexp.load(target), jaxexp.load(model), 2, 5)


def test_all_combinations(model: Path, good: Any) -> None:
    target = model.with_name("fleet.zip")
    out = good("specialize", model, "--size", "length=5,1", "--size", "batch=2,3", "-o", target)
    names = [f"model-length-{length}-batch-{batch}" for length in (5, 1) for batch in (2, 3)]
    assert out == f"{target}: 4 artifacts packed, {target.stat().st_size:,} bytes: {', '.join(names)}\n"
    archive = jaxexp.Archive.open(target)
    assert sorted(archive) == sorted(names)
    for length in (5, 1):
        for batch in (2, 3):
            check(archive[f"model-length-{length}-batch-{batch}"].load(), jaxexp.load(model), batch, length)


def test_members_are_added(model: Path, run: Any, good: Any) -> None:
    target = model.with_name("fleet.zip")
    with jaxexp.Archive.create(target) as archive:
        archive.add("any/batched", model.read_bytes())
    arguments = ["specialize", f"{target}::any/batched", "--size", "length=5", "--size", "batch=2", "-o", target]
    status, _, err = run(*arguments)
    assert status == 1
    assert "exists: --force replaces it" in err
    good(*arguments, "--append")
    check(jaxexp.load(f"{target}::any/batched-length-5-batch-2"), jaxexp.load(model), 2, 5)
    status, _, err = run(*arguments, "--append")
    assert status == 1
    assert "'any/batched-length-5-batch-2' is in" in err
    good(*arguments, "--append", "--force")
    assert list(jaxexp.Archive.open(target)) == ["any/batched", "any/batched-length-5-batch-2"]


def test_weights_are_stored_once(with_weights: Path, good: Any) -> None:
    target = with_weights.with_name("fleet.zip")
    sizes = ",".join(str(size) for size in range(1, 9))
    good("specialize", with_weights, "--size", f"batch={sizes}", "-o", target)
    weights = with_weights.with_suffix(".safetensors").stat().st_size
    artifacts = sum(handle.size for handle in jaxexp.Archive.open(target).values())
    assert target.stat().st_size < artifacts + 2 * weights
    found = jaxexp.load(f"{target}::weighted-batch-4")
    close(found.call(X), apply(params(), X))
    assert found.metadata == METADATA
    gradient = jax.grad(lambda model: found.with_weights(model.weights).call(X).sum())(found)
    close(gradient.weights["head"], jax.grad(lambda given: apply(given, X).sum())(params())["head"])


def test_weights_in_the_same_folder_stay_where_they_are(with_weights: Path, good: Any) -> None:
    good("specialize", with_weights, "--size", "batch=4", "-o", with_weights.with_name("fixed.jaxexp"))
    names = ["fixed.jaxexp", "weighted.jaxexp", "weighted.safetensors"]
    assert sorted(path.name for path in with_weights.parent.iterdir()) == names
    close(jaxexp.load(with_weights.with_name("fixed.jaxexp"), verify=True).call(X), apply(params(), X))


def test_several_files_of_weights_stay_where_they_are(tmp_path: Path, good: Any) -> None:
    given = params()
    spec = jax.ShapeDtypeStruct(jaxexp.symbolic_shape(f"batch, {SIZE}"), "float32")
    exported: Any = jaxexp.export(jax.jit(closed(given)), weights=given)(spec)
    exported.save(tmp_path / "model.jaxexp", max_weights_file_size=5000)
    before = {path: path.stat().st_ino for path in tmp_path.glob("*.safetensors*")}
    assert len(before) > 2
    good("specialize", tmp_path / "model.jaxexp", "--size", "batch=4", "-o", tmp_path / "fixed.jaxexp")
    assert {path: path.stat().st_ino for path in tmp_path.glob("*.safetensors*")} == before
    close(jaxexp.load(tmp_path / "fixed.jaxexp", verify=True).call(X), apply(given, X))


def test_weights_go_along_to_another_folder(with_weights: Path, tmp_path: Path, good: Any, run: Any) -> None:
    (tmp_path / "other").mkdir()
    target = tmp_path / "other" / "fixed.jaxexp"
    arguments = ["specialize", with_weights, "--size", "batch=4", "-o", target]
    target.with_suffix(".safetensors").write_text("mine")
    status, _, err = run(*arguments)
    assert status == 1
    assert "fixed.safetensors' exists: --force replaces it" in err
    status, _, err = run(*arguments, "--force")
    assert status == 1
    assert "found one of another program" in err
    assert not target.exists()
    target.with_suffix(".safetensors").unlink()
    good(*arguments)
    good(*arguments, "--force")
    close(jaxexp.load(target, verify=True).call(X), apply(params(), X))


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        ([], 1, "say how large batch, length are, as in --size batch=4 --size length=4"),
        (["--size", "batch=4"], 1, "say how large length is"),
        (["--size", "batch=4", "--size", "length=1", "--size", "n=1"], 1, "has no symbolic dimension n: its symbolic"),
        (["--size", "batch=101", "--size", "length=1"], 1, "with batch=101, length=1: "),
        (["--size", "batch=0", "--size", "length=1"], 1, "shape[0] must be at least 1, found 0"),
        (["--size", "batch=1,2", "--size", "length=1"], 2, "2 functions need an archive: name one, as in -o fleet.zip"),
        (["--size", "batch=1,1", "--size", "length=1"], 2, "--size 'batch=1,1' has a size twice"),
        (["--size", "batch=1", "--size", "batch=2"], 2, "--size gives batch twice"),
        (["--size", "batch"], 2, "--size 'batch' is not DIMENSION=SIZE, as in batch=4"),
        (["--size", "batch=-1"], 2, "is not DIMENSION=SIZE"),
        (["--append", "--size", "batch=1", "--size", "length=1"], 1, "No such file"),
    ],
)
def test_what_is_refused(model: Path, run: Any, arguments: list[str], status: int, said: str) -> None:
    target = model.with_name("fixed.jaxexp")
    found, out, err = run("specialize", model, *arguments, "-o", target)
    assert (found, out) == (status, "")
    assert said in err
    assert err.count("\n") == 1
    assert list(model.parent.iterdir()) == [model]


def test_an_archive_appears_whole_or_not_at_all(model: Path, run: Any) -> None:
    target = model.with_name("fleet.zip")
    status, _, err = run("specialize", model, "--size", "batch=1,101", "--size", "length=1", "-o", target)
    assert status == 1
    assert "batch <= 100" in err
    assert list(model.parent.iterdir()) == [model]


def test_constant_shapes_have_nothing_to_fix(tmp_path: Path, run: Any) -> None:
    bound()[0].save(tmp_path / "model.jaxexp")
    status, _, err = run("specialize", tmp_path / "model.jaxexp", "-o", tmp_path / "fixed.jaxexp")
    assert status == 1
    assert "has no symbolic dimensions: its shapes are constant already" in err


def test_written_for_an_older_reader(model: Path, with_weights: Path, tmp_path: Path, good: Any, run: Any) -> None:
    """An artifact does not say what it was written for, so the option does."""
    sizes = ["--size", "batch=2", "--size", "length=5"]
    for file, given in ((model, sizes), (with_weights, sizes[:2])):
        fixed, archive = tmp_path / f"{file.stem}_fixed.jaxexp", tmp_path / f"{file.stem}.zip"
        good("specialize", file, *given, "--to", "0.8.1", "-o", fixed)
        good("specialize", file, *given, "--to", "jax-0.8.1", "-o", archive)
        (member,) = jaxexp.Archive.open(archive)
        for found in (fixed, f"{archive}::{member}"):
            assert jaxexp.compatibility(found).readable_by("0.8.1")
            assert jaxexp.inspect(found).vjp_order == 1
        good("specialize", file, *given, "--force", "-o", fixed)
        assert not jaxexp.compatibility(fixed).readable_by("0.8.1")
    status, _, err = run("specialize", model, *sizes, "--to", "0.8", "-o", tmp_path / "no")
    assert status == 2 and "--to takes a release" in err

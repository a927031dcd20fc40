"""Tied weights: an array that a pytree has in several places is one weight, and stays one."""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy

import jaxexp
from jaxexp._cli import start
from jaxexp._errors import WeightsError
from kit.each import each
from kit.weighted import X, close

DIFFERENT = r"tensor 'head': expected the same array as 'embed', .* found other values\. Leave out one"


def tied(seed: int = 0) -> dict[str, Any]:
    w = jnp.asarray(np.random.default_rng(seed).standard_normal((32, 32)), jnp.float32)
    return {"embed": w, "head": w}


def apply(given: dict[str, Any], x: Any) -> Any:
    return jnp.tanh(x @ given["embed"]) @ given["head"].T


def exported(given: dict[str, Any]) -> Any:
    return jaxexp.export(jax.jit(lambda x: apply(given, x)), weights=given)(X)


def loaded(made: Any, folder: Path) -> Any:
    made.save(folder / "m.jaxexp")
    jaxexp.load(folder / "m.jaxexp").save(folder / "again.jaxexp")
    return jaxexp.load(folder / "again.jaxexp")


WAYS: list[Callable[[Any, Path], Any]] = [
    lambda made, folder: made,
    loaded,
    lambda made, folder: pickle.loads(pickle.dumps(loaded(made, folder))),
    lambda made, folder: jax.tree.map(lambda w: w + 0, made),
    lambda made, folder: made.with_weights(tied(2)),
    # As after `dataclasses.replace` of the program.
    lambda made, folder: dataclasses.replace(loaded(made, folder).unbound, fun_name="again").bind(made.weights),
]


@each("way", WAYS)
def test_a_differing_value_is_an_error(way: Callable[[Any, Path], Any], tmp_path: Path) -> None:
    model = way(exported(tied()), tmp_path)
    assert list(model.weights) == ["embed"]
    assert model.weights.other_names == exported(tied()).weights.other_names
    different = {**tied(1), "head": tied(3)["head"]}
    with pytest.raises(WeightsError, match=DIFFERENT):
        model.with_weights(different)
    with pytest.raises(WeightsError, match=r"'head': expected the same array as 'embed'.* found one of another type"):
        model.with_weights({**tied(1), "head": jnp.ones(3)})
    for one in (tied(1), {"embed": tied(1)["embed"]}, {**tied(1), "head": np.array(tied(1)["head"])}):
        close(model.with_weights(one).call(X), apply(tied(1), X))
    both, file = {name: np.array(w) for name, w in tied(1).items()}, tmp_path / "both.safetensors"
    safetensors.numpy.save_file(both, file)
    close(model.with_weights(file).call(X), apply(tied(1), X))
    both["head"][3, 4] += 1
    safetensors.numpy.save_file(both, file)
    with pytest.raises(WeightsError, match=rf"both\.safetensors': {DIFFERENT}"):
        model.with_weights(file)


def test_traced_values_cannot_be_compared() -> None:
    model = exported(tied())
    with pytest.raises(WeightsError, match=r"'head'.* cannot be compared while it is traced.* Leave out one of them"):
        jax.jit(lambda given: model.with_weights(given).call(X))(tied(1))
    result = jax.jit(lambda w: model.with_weights({"embed": w, "head": w}).call(X))(tied(1)["embed"])
    close(result, apply(tied(1), X))


def test_inspection_and_view_show_ties(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "model.jaxexp"
    exported(tied()).save(path)
    (weight,) = jaxexp.inspect(path).weights
    assert (weight.name, weight.other_names) == ("embed", ("head",))
    assert start.main(["inspect", "--all", str(path)]) == 0
    (row,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("  embed ")]
    assert row.endswith(" head")
    exported(tied(1)).save(tmp_path / "other.jaxexp")
    page = tmp_path / "page.html"
    assert start.main(["view", str(path), str(tmp_path / "other.jaxexp"), "-o", str(page)]) == 0
    text = page.read_text()
    for part in ("also head", ">1 array, 4,096 bytes, in model.safetensors<", 'class="leaf changed"'):
        assert part in text


def test_weights_of_another_function_tie_nothing() -> None:
    """It has a weight of its own under each name."""
    given = {"embed": tied()["embed"], "head": tied(1)["head"]}
    spec = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), given)
    other = jaxexp.export(jax.jit(apply))(spec, X).bind(given)
    assert other.weights.other_names == {}
    with pytest.raises(WeightsError):
        jaxexp.export(jax.jit(apply))(spec, X).bind(exported(tied()).weights)

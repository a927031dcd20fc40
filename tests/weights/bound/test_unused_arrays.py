"""Arrays of a model that `with_weights` does not use: a warning, where the whole model was passed."""

from __future__ import annotations

import warnings
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy

from kit.weighted import bound, named, params


def test_another_architecture_warns() -> None:
    model, _ = bound(layers=2)
    with pytest.warns(UserWarning, match="not used of the given arrays: 'layers/2/b', 'layers/2/w'") as warned:
        tuned = model.with_weights(params(layers=3, seed=1))
    assert [one.filename for one in warned] == [__file__]
    assert list(tuned.weights) == list(model.weights)


def test_a_mapping_of_a_model_and_more_warns() -> None:
    model, _ = bound(layers=2)
    larger = {**params(layers=3, seed=1), "step": 7}
    with pytest.warns(UserWarning, match=r"not used of the given arrays: 'layers/2/b', 'layers/2/w'\. They"):
        model.with_weights(larger)


def test_what_may_have_more_is_quiet(tmp_path: Path) -> None:
    model, _ = bound(layers=2)
    larger = params(layers=3, seed=1)
    arrays = {name: np.asarray(array) for name, array in named(larger).items()}
    safetensors.numpy.save_file(arrays, tmp_path / "larger.safetensors")
    same = {**params(layers=2, seed=1), "name": "mlp", "rate": 0.5, "activation": jnp.tanh}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        checkpoint = {**arrays, "step": 7, "optimizer": "adam", "schedule": jnp.tanh}
        for given in (arrays, checkpoint, tmp_path / "larger.safetensors", same, model.weights, dict(model.weights)):
            model.with_weights(given)

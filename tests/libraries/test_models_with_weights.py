"""Models: saved with their weights, used in another process, differentiated, swapped."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxexp
from kit.command_line import started
from kit.weighted import close

pytestmark = pytest.mark.jax

RNG = np.random.default_rng(0)
WIDTH, WORDS, LENGTH = 16, 32, 8


def array(*shape: int) -> jax.Array:
    return jnp.asarray(RNG.standard_normal(shape) / np.sqrt(shape[0]), jnp.float32)


def attention(p: dict[str, Any], x: Any) -> Any:
    q, k, v = (x @ p[name] for name in ("query", "key", "value"))
    scores = jnp.where(np.tri(LENGTH, dtype=bool), q @ k.T / 4, -1e9)
    return jax.nn.softmax(scores) @ v @ p["out"]


def transformer() -> tuple[Callable[..., Any], Any, Any]:
    """A plain dict, whose embedding is also its head."""
    block = lambda: {  # noqa: E731
        "attention": {name: array(WIDTH, WIDTH) for name in ("query", "key", "value", "out")},
        "mlp": {"up": array(WIDTH, 32), "down": array(32, WIDTH)},
    }
    embedding = array(WORDS, WIDTH)
    params = {"embed": embedding, "blocks": [block() for _ in range(2)], "head": embedding}

    def forward(params: Any, mask: Any) -> Any:
        x = mask @ params["embed"]
        for block in params["blocks"]:
            x = x + attention(block["attention"], x)
            x = x + jax.nn.gelu(x @ block["mlp"]["up"]) @ block["mlp"]["down"]
        return jax.nn.log_softmax(x @ params["head"].T)

    return forward, params, RNG.standard_normal((LENGTH, WORDS)).astype(np.float32)


def convnet() -> tuple[Callable[..., Any], Any, Any]:
    params = [{"kernel": array(3, 3, 3, 8), "bias": array(8)}, {"kernel": array(3, 3, 8, 8), "bias": array(8)}]

    def forward(params: Any, x: Any) -> Any:
        for layer in params:
            x = jax.lax.conv_general_dilated(
                x, layer["kernel"], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
            )
            x = jax.nn.relu(x + layer["bias"])
        return x.mean((1, 2))

    return forward, params, RNG.standard_normal((2, 8, 8, 3)).astype(np.float32)


# What another process does, which has neither the libraries nor the functions.
ELSEWHERE = """
import sys
from pathlib import Path
import jax
import numpy as np
import jaxexp
folder = Path(sys.argv[1])
expected = np.load(folder / "expected.npz")
model = jaxexp.load(folder / "model.jaxexp")
def loss(model, x):
    return (model.call(x) ** 2).sum()
x = expected["x"]
def close(found, name):
    np.testing.assert_allclose(found, expected[name], rtol=1e-3, atol=1e-4, err_msg=name)
close(model.call(x), "y")
close(jax.grad(loss, 1)(model, x), "by x")
for name, gradient in jax.grad(loss)(model, x).weights.items():
    close(gradient, "by " + name)
close(model.with_weights(folder / "tuned.safetensors").call(x), "tuned")
"""


@pytest.mark.wide(one_in=2, promise="models are used where their code is not")
@pytest.mark.parametrize("model", [transformer, convnet])
@pytest.mark.processes(reason="loads where the model's code is not")
def test_saved_here_and_used_elsewhere(
    model: Callable[[], tuple[Callable[..., Any], Any, Any]], tmp_path: Path, subprocess_env: Any
) -> None:
    apply, params, x = model()
    exported = jaxexp.export(jax.jit(lambda x: apply(params, x)), weights=params)(x)
    assert isinstance(exported, jaxexp.BoundExported)
    exported.save(tmp_path / "model.jaxexp", vjp_order=1)
    count = len({id(leaf) for leaf in jax.tree.leaves(params)})
    assert len(exported.weights) == count
    size = sum(array.nbytes for array in exported.weights.values())
    assert (tmp_path / "model.safetensors").stat().st_size < size + 8192

    by_params, by_x = jax.grad(lambda p, x: (apply(p, x) ** 2).sum(), (0, 1))(params, x)
    found = jax.grad(lambda model: (model.call(x) ** 2).sum())(exported).weights
    if model is transformer:  # a weight that is used at two places has the sum of both gradients
        by_params["embed"] = by_params["embed"] + by_params.pop("head")
    expected = jax.tree.leaves(by_params)
    names = list(jaxexp.export(jax.jit(lambda p: p))(by_params).bind(by_params).weights)
    given = dict(zip(names, (found[name] for name in names), strict=True))
    close(sum((g**2).sum() for g in given.values()), sum((g**2).sum() for g in expected))

    tuned = {name: array * 0.5 for name, array in exported.weights.items()}
    exported.with_weights(tuned).save(tmp_path / "tuned.jaxexp")
    half = jax.tree.map(lambda array: array * 0.5, params)
    np.savez(
        tmp_path / "expected.npz",
        x=x,
        y=apply(params, x),
        tuned=apply(half, x),
        **{"by x": by_x},
        **{f"by {name}": gradient for name, gradient in found.items()},
    )
    result = started(ELSEWHERE, tmp_path, env=subprocess_env())
    assert result.returncode == 0, result.stderr

"""`export(..., reproducible=True)`: equal source, equal bytes."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxexp
from jaxexp import _jax
from kit.corpus import CASES
from kit.places import GOLDEN, TESTS, WORKERS

X = np.ones((4, 4), np.float32)
DIFFERENT = {
    "calls_an_exported",  # the function that it calls is exported in the same process, and not reproducibly
    "several_effects",  # JAX takes the order of several ordered effects from a set
    "effects_and_symbolic_shapes",
}


def exported_in(folder: Path, history: str, **environment: str) -> dict[str, str]:
    done = subprocess.run(
        [sys.executable, str(WORKERS / "reproducible.py"), str(folder), history],
        env={**os.environ, **environment},
        cwd=folder,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


@pytest.mark.slow(reason="exports the corpus three times")
def test_another_folder_user_hash_seed_history_and_a_comment(tmp_path: Path) -> None:
    """Each function of the corpus and its VJP, first in their process, and last after exports of all kinds."""
    folder = tmp_path / "a longer name" / "tests"
    shutil.copytree(TESTS / "kit", folder / "kit", ignore=shutil.ignore_patterns("__pycache__"))
    for file in (folder / "kit" / "cases").glob("*.py"):
        text = file.read_text().replace("\ndef ", "\n# An inserted comment.\n\n\ndef ")
        file.write_text(text.replace("\n    return ", "\n    # Another one.\n    return "))
    here = exported_in(TESTS, "first", PYTHONHASHSEED="1")
    there = exported_in(folder, "after", PYTHONHASHSEED="2", HOME=str(tmp_path), USER="somebody")
    assert here.keys() == CASES.keys()
    assert {name for name in here if here[name] != there[name]} <= DIFFERENT


@jax.jit
def layer(w: jax.Array, x: jax.Array) -> jax.Array:
    with jax.named_scope("dense"):
        return jnp.tanh(x @ w)


def model(params: list[jax.Array], x: jax.Array) -> jax.Array:
    for y in [layer(w, x) for w in params]:  # a function of its own before Python 3.12
        x = x + jnp.where(y > 0, y, jax.nn.gelu(y))
    return jax.lax.scan(lambda carry, row: (carry * row, None), x, x)[0]


def test_the_bytes_are_known() -> None:
    """What another machine exported with this JAX: in another folder, at another time, perhaps with another Python."""
    exported = jaxexp.export(jax.jit(model), platforms=["cpu"], reproducible=True)([X, X], X)
    modules = [exported.mlir_module_serialized, exported.vjp().mlir_module_serialized]
    known = json.loads((GOLDEN / "reproducible.json").read_text())
    if jax.__version__ not in known:
        pytest.skip(f"nobody has exported it with JAX {jax.__version__} yet")
    assert [hashlib.sha256(module).hexdigest() for module in modules] == known[jax.__version__]


def test_names_stay_and_callers_do_not() -> None:
    text = jaxexp.export(jax.jit(model), reproducible=True)([X, X], X).mlir_module()
    for name in ("jit(model)", "dense/", 'loc("layer")', 'loc("model")', 'loc("model.<locals>.<lambda>")'):
        assert name in text
    for name in (__file__, ".py", "test_names_stay", "pytest", "<listcomp>"):
        assert name not in text


def test_it_computes_the_same() -> None:
    plain, reproducible = (jaxexp.export(jax.jit(model), reproducible=choice)([X, X], X) for choice in (False, True))
    np.testing.assert_array_equal(plain.call([X, X], X), reproducible.call([X, X], X))
    np.testing.assert_array_equal(
        jax.grad(lambda x: plain.call([X, X], x).sum())(X), jax.grad(lambda x: reproducible.call([X, X], x).sum())(X)
    )


def test_with_weights_symbolic_shapes_and_an_old_reader() -> None:
    (batch,) = jaxexp.symbolic_shape("batch")
    spec = jax.ShapeDtypeStruct((batch, 4), np.float32)
    params = [jnp.asarray(X), jnp.asarray(X) * 2]

    def one() -> bytes:
        function = jax.jit(lambda x: jnp.where(x > 0, x @ params[0] @ params[1], x))
        made = jaxexp.export(function, weights=params, compatibility="jax-0.8.1", reproducible=True)(spec)
        return bytes(made.serialize(vjp_order=1))

    first, second = one(), (lambda: one())()
    assert first == second
    assert jaxexp.inspect(first).absolute_paths == ()


def test_settings_of_locations_make_no_difference() -> None:
    @jax.custom_vjp
    def scaled(x: jax.Array) -> jax.Array:
        return x * 2

    scaled.defvjp(lambda x: (scaled(x), None), lambda _, cotangent: (cotangent * 2,))

    def bytes_of() -> bytes:
        function = jax.jit(lambda x: scaled(model([x, x], x)))
        return bytes(jaxexp.export(function, reproducible=True)(X).serialize(vjp_order=1))

    expected = bytes_of()
    with _jax.config_states["jax_include_full_tracebacks_in_locations"](False):
        assert bytes_of() == expected
    for limit in (1, 3, 100, -1):
        with _jax.config_states["jax_traceback_in_locations_limit"](limit):
            assert bytes_of() == expected


def test_functions_are_not_traced_again_afterwards() -> None:
    traces = []

    @jax.jit
    def counted(x: jax.Array) -> jax.Array:
        traces.append(1)
        return x * 2

    counted(X)
    jaxexp.export(counted, reproducible=True)(X)
    counted(X)
    assert len(traces) == 2

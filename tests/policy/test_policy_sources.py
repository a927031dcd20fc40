"""What a policy allowed is compiled without the names of files that are here, which XLA would read for its errors."""

from __future__ import annotations

import os
import pickle
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import jaxexp
from kit.each import each

pytestmark = pytest.mark.jax

SECRET = "password of this machine"
W, X = np.ones(4, np.float32), np.ones((2, 4), np.float32)
REFUSED = (jaxexp.errors.ExportError, ValueError)  # of `jax.jit`, for what XLA says

# Ways to make something compile a function that takes W and X.
WAYS: dict[str, Callable[[jaxexp.Exported, Path], Any]] = {
    "call": lambda f, _: f.call(W, X),
    "specialize": lambda f, _: f.specialize(W, X),
    "vmap": lambda f, _: jax.vmap(f.call, (None, 0))(W, np.stack([X, X])),
    "raised": lambda f, _: jax.jit(f.raised())(W, X),
    "precompile": lambda f, folder: f.precompile((W, X), into=folder / "f.jaxexe"),
    "pickle": lambda f, _: pickle.loads(pickle.dumps(f)).call(W, X),
    "pytree": lambda f, _: jax.jit(lambda bound: bound.call(X))(f.bind(W)),
}


def named(source: Path | str, code: str) -> Any:
    """A function whose operations say that they come from this file."""
    scope = {"jax": jax, "np": np}
    exec(compile(code, os.fspath(source), "exec"), scope)
    return jax.jit(scope["f"])


def refusing(source: Path | str) -> bytes:
    """The artifact of a function that XLA refuses for every size, with an error about an operation of this file."""
    function = named(source, "def f(w, x): return jax.lax.bitcast_convert_type(w * x, np.uint8)")
    spec = jax.ShapeDtypeStruct(jaxexp.symbolic_shape("b, 4"), np.float32)
    return bytes(jaxexp.export(function)(W, spec).serialize())


def words_of(way: str, function: jaxexp.Exported, folder: Path) -> str:
    with pytest.raises(REFUSED) as caught:
        WAYS[way](function, folder)
    return "".join(traceback.format_exception(caught.value))


@pytest.fixture(scope="module")
def of_secret(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    source = tmp_path_factory.mktemp("secret") / "model.py"
    source.write_text(SECRET)
    return refusing(source)


@each("way", WAYS)
def test_no_error_shows_a_file(way: str, of_secret: bytes, tmp_path: Path) -> None:
    words = words_of(way, jaxexp.deserialize(of_secret, policy=jaxexp.Policy()), tmp_path)
    assert "bitcast_convert" in words
    assert SECRET not in words


def test_errors_of_trusted_functions_show_their_source(of_secret: bytes, tmp_path: Path) -> None:
    """As those of `jax.jit` do. Otherwise the test above would show nothing."""
    assert SECRET in words_of("call", jaxexp.deserialize(of_secret), tmp_path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no pipes with names")
def test_no_call_waits_for_a_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    function = jaxexp.deserialize(refusing(tmp_path / "pipe"), policy=jaxexp.Policy())
    assert "bitcast_convert" in words_of("call", function, tmp_path)


def test_modules_are_written_as_they_were(tmp_path: Path) -> None:
    """Only compilers see other locations."""
    source = tmp_path / "model.py"
    source.write_text("x * x")
    exported = jaxexp.export(named(source, "def f(x): return x * x"))(jax.ShapeDtypeStruct((2, 4), np.float32))
    blob = bytes(exported.serialize())
    allowed = jaxexp.deserialize(blob, policy=jaxexp.Policy())
    np.testing.assert_array_equal(allowed.call(X), X * X)
    assert str(source) in allowed.mlir_module()
    assert bytes(allowed.serialize()) == blob
    assert allowed == jaxexp.deserialize(blob, policy=jaxexp.Policy())

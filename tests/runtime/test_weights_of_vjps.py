"""VJPs of functions with weights in the C++ runtime: their first arguments are the function's."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy

import jaxexp
from kit import runtime as built
from kit.run_c import Handle, Library, RunError
from kit.weighted import X, apply, bound, close, named, params

pytestmark = [
    pytest.mark.slow(reason="builds the C++ runtime, which takes minutes"),
    pytest.mark.once(reason="what is built in C++ is the same for every pair of Python and JAX"),
    pytest.mark.usefixtures("plugin"),
]

Call = Callable[..., list[np.ndarray]]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    bound()[0].save(tmp_path / "model.jaxexp", compatibility=built.READER, vjp_order=2)
    return tmp_path / "model.jaxexp"


def test_a_vjp_of_any_order_gets_other_weights(
    library: Library, runtime: Handle, call: Call, model: Path, tmp_path: Path
) -> None:
    other = params(seed=7)
    arrays = {name: np.asarray(array) for name, array in named(other).items()}
    safetensors.numpy.save_file(arrays, tmp_path / "other.safetensors")
    file = str(tmp_path / "other.safetensors").encode()

    def flat(cotangents: tuple[dict[str, jax.Array], jax.Array]) -> list[jax.Array]:
        of_weights, of_x = cotangents
        return [*(array for _, array in sorted(named(of_weights).items())), of_x]

    expected, pullback = jax.vjp(apply, other, X)
    cotangent = jnp.ones_like(expected)
    first, pullback_of_pullback = jax.vjp(lambda p, x, ct: jax.vjp(apply, p, x)[1](ct), other, X, cotangent)
    vjp = library.changed("vjp", library.load(runtime, model))
    close(call(library.changed("with_weights", vjp, file), X, cotangent), flat(pullback(cotangent)))
    *second, of_cotangent = pullback_of_pullback(jax.tree.map(jnp.ones_like, first))
    vjp_of_vjp = library.changed("with_weights", library.changed("vjp", vjp), file)
    close(
        call(vjp_of_vjp, X, cotangent, *map(np.ones_like, flat(first))), [*flat((second[0], second[1])), of_cotangent]
    )


def test_a_vjp_of_a_function_without_weights_takes_none(library: Library, runtime: Handle, tmp_path: Path) -> None:
    plain = jaxexp.export(jax.jit(jnp.sin))(X)
    (tmp_path / "f.jaxexp").write_bytes(plain.serialize(vjp_order=1, compatibility=built.READER))
    vjp = library.changed("vjp", library.load(runtime, tmp_path / "f.jaxexp"))
    with pytest.raises(RunError, match="takes no weights: its first argument is no dict of arrays"):
        library.changed("with_weights", vjp, b"any.safetensors")


@pytest.mark.parametrize("order", [0, 1, 2])
def test_inspected(order: int, model: Path, tmp_path: Path) -> None:
    with jaxexp.Archive.create(tmp_path / "all.zip") as archive:
        archive.add_file("model", model)
    for artifact, place in ((model, "model.safetensors"), (f"{tmp_path}/all.zip::model", "the archive")):
        done = subprocess.run([built.RUN, "--inspect", artifact, "--vjp", str(order)], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert f"weights: the first 7 arguments, 13696 bytes in {place}\n" in done.stdout

"""Uses an installed jaxexp as a new user would: export, save, load, call, differentiate, batch, archive, commands.

Run with `python -I` in an environment that has the wheel, JAX, and no compiler; `--with-compilers` where there may be
one. With `--keep`, it leaves a function for `smoke_without_jax.py`.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import jaxexp


def model(weights: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    return jnp.tanh(x @ weights["w"] + weights["b"]).sum()


def main() -> None:
    installed = Path(sysconfig.get_path("purelib"))
    assert installed in Path(jaxexp.__file__).parents, f"{jaxexp.__file__} is not what was installed in {installed}"
    if "--with-compilers" not in sys.argv:
        compilers = [name for name in ("cc", "c++", "gcc", "g++", "clang", "cl") if shutil.which(name)]
        assert not compilers, f"{compilers} are here; the wheel was to be tried without"

    weights = {"w": jnp.arange(12.0).reshape(4, 3) / 10, "b": jnp.ones(3)}
    (batch,) = jaxexp.symbolic_shape("batch")
    exported = jaxexp.export(jax.jit(model))(
        jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), weights),
        jax.ShapeDtypeStruct((batch, 4), np.float32),
    )
    x = np.linspace(0, 1, 20, dtype=np.float32).reshape(5, 4)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.jaxexp")
        exported.save(path, vjp_order=1)
        loaded = jaxexp.load(path)
        for value, live in (
            (loaded.call(weights, x), model(weights, x)),
            (jax.grad(loaded.call)(weights, x)["w"], jax.grad(model)(weights, x)["w"]),
            (jax.vmap(loaded.call, (None, 0))(weights, x[:, None]), jax.vmap(model, (None, 0))(weights, x[:, None])),
        ):
            np.testing.assert_allclose(value, live, rtol=1e-6)
        archive = Path(folder, "fleet.zip")
        with jaxexp.Archive.create(archive) as writer:
            writer.add("models/one", exported)
        (again,) = jaxexp.Archive.open(archive).load_all()
        np.testing.assert_allclose(again.call(weights, x), model(weights, x), rtol=1e-6)
        command = Path(sysconfig.get_path("scripts"), "jaxexp")
        for arguments in (["verify", path], ["inspect", path], ["ls", archive]):
            subprocess.run([command, *map(str, arguments)], check=True, capture_output=True)
    if "--keep" in sys.argv:
        exported.specialize(weights, x).save("model.jaxexp")
    print(f"jaxexp {jaxexp.__version__} works with Python {sys.version.split()[0]} and JAX {jax.__version__}")


if __name__ == "__main__":
    main()

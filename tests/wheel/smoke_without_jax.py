"""Uses an installed jaxexp without JAX: looks into an artifact, and runs it where there is a plugin.

Run with `python -I` in an environment that has the wheel and no JAX, on what `smoke.py --keep` left.
"""

from __future__ import annotations

import importlib.util
import sys

import numpy as np

import jaxexp
from jaxexp.runtime import Session, find_plugin


def main(path: str) -> None:
    assert importlib.util.find_spec("jax") is None, "JAX is here; the wheel was to be tried without"
    jaxexp.verify(path)
    assert jaxexp.inspect(path).fun_name == "model"
    try:
        jaxexp.load(path)
    except ModuleNotFoundError as error:
        assert "jaxexp.load needs JAX" in str(error), error
    else:
        raise AssertionError("load works without JAX")
    try:
        find_plugin("cpu")
    except jaxexp.errors.RunError:
        print("there is no plugin for this platform, so nothing was run")
        return
    weights = {"w": np.arange(12, dtype=np.float32).reshape(4, 3) / 10, "b": np.ones(3, np.float32)}
    x = np.linspace(0, 1, 20, dtype=np.float32).reshape(5, 4)
    expected = np.tanh(x @ weights["w"] + weights["b"]).sum()
    np.testing.assert_allclose(Session(path)(weights, x), expected, rtol=1e-5)
    print(f"jaxexp {jaxexp.__version__} works with Python {sys.version.split()[0]} and without JAX")


if __name__ == "__main__":
    main(sys.argv[1])

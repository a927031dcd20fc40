"""What the README says of who reads the bytes: by default and with `compatibility`, on the tested releases of JAX."""

from __future__ import annotations

import re
import subprocess
import sys

import jax
import numpy as np
import pytest
from jax import export as jax_export

import jaxexp
from jaxexp import _jax
from kit.places import GOLDEN, ROOT

TESTED = ("0.10.2", "0.11.2", "0.12.0.1")
OLDEST = f"jax-{TESTED[0]}"
FILES = {"default": "jax-0.12.0.1.bin", "for the oldest": f"for-{OLDEST}.bin"}
each_file = pytest.mark.parametrize("name", FILES)


def number(release: str) -> tuple[int, ...]:
    return tuple(map(int, release.split(".")))


def reads(release: str, blob: bytes) -> bool:
    """Whether `jaxexp.compatibility` says that a release reads an artifact."""
    spans = jaxexp.compatibility(blob).readers
    return any(number(first) <= number(release) <= number(last) for first, last in spans)


@each_file
def test_the_example_is_read_by_jax_export(name: str) -> None:
    """Written on JAX 0.12.0.1: 0.10.2 does not read it, unless it was written for it."""
    blob = (GOLDEN / "readme" / FILES[name]).read_bytes()
    assert [release for release in TESTED if reads(release, blob)] == [
        release for release in TESTED if name == "for the oldest" or release != TESTED[0]
    ]
    weights = {"w": np.eye(4, 3, dtype=np.float32), "b": np.zeros(3, np.float32)}
    x = np.ones((2, 4), np.float32)
    loaded = jax_export.deserialize(bytearray(blob))
    if not reads(jax.__version__, blob):
        with pytest.raises(RuntimeError):
            loaded.call(weights, x)
        return
    np.testing.assert_allclose(loaded.call(weights, x), np.full((2, 3), 1 / 3), rtol=1e-6)
    gradient = jax.grad(lambda weights: loaded.call(weights, x)[0, 0])(weights)["b"]
    np.testing.assert_allclose(gradient, [2 / 9, -1 / 9, -1 / 9], rtol=1e-5)


def test_the_example_as_it_is_written_here(tmp_path) -> None:
    """For this release and newer ones by default; with the README's `compatibility`, for all tested ones."""
    producer = re.search(r"<!-- example: producer -->\n```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    assert producer
    program = producer[1] + f'\nexported.save("oldest", vjp_order=1, compatibility="{OLDEST}")\n'
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=True)
    default, oldest = ((tmp_path / file).read_bytes() for file in ("scores.jaxexp", "oldest"))
    assert all(reads(release, default) for release in TESTED if number(release) >= number(jax.__version__))
    assert all(reads(release, oldest) for release in TESTED)
    assert jax_export.deserialize(bytearray(oldest)).fun_name == "scores"


def test_the_readme_names_the_oldest_tested_release() -> None:
    text = (ROOT / "README.md").read_text()
    assert ".".join(map(str, _jax.OLDEST_JAX)) == TESTED[0]
    assert ".".join(map(str, _jax.NEWEST_JAX)) == TESTED[-1]
    assert set(re.findall(r'compatibility="(jax-[\d.]+)"', text)) >= {OLDEST}
    assert "the `jax.export` of every tested JAX reads them" in text

"""Every dtype of JAX: which arguments, results, states and weights can have it, as the guide says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxexp
from jaxexp._kernel.codec.dtypes import DTYPES
from jaxexp._kernel.releases import table
from jaxexp._weights.files.dtypes import held_as
from kit.each import each
from kit.places import ROOT
from kit.raising import assert_same_bits
from kit.tensor_files import in_numpy

pytestmark = pytest.mark.jax

# By their classes: some have several names in jax.numpy, and others are kinds of dtypes.
OF_JAX = {
    np.dtype(value).name for value in (getattr(jnp, name) for name in dir(jnp)) if type(value) is type(jnp.float32)
}
KEYS = {"key<fry>": "threefry2x32", "key<rbg>": "rbg", "key<urbg>": "unsafe_rbg"}
# What the format has no number for: integers of 1 and 2 bits, floats of 6 bits.
WITHOUT = {name for name in OF_JAX if np.dtype(getattr(jnp, name)) not in DTYPES}
EXPORTABLE = sorted(OF_JAX - WITHOUT)


def array(dtype: str) -> np.ndarray:
    return np.asarray([1, 0.5, 2, 1]).astype(jnp.dtype(dtype))  # which 8 bits without a zero have, too


def widened(x: Any) -> Any:
    wide = jnp.complex64 if jnp.issubdtype(x.dtype, jnp.complexfloating) else jnp.float32
    return x.astype(wide) * 2


def rows() -> list[tuple[set[str], list[str]]]:
    page = (ROOT / "docs" / "guide" / "versions.md").read_text()
    section = page.partition("\n## Dtypes\n")[2].partition("\n## ")[0]
    lines = re.findall(r"^\| (`.*) \|$", section, re.MULTILINE)
    cells = [line.split(" | ") for line in lines]
    return [(set(re.findall(r"`([^`]+)`", first)), rest) for first, *rest in cells]


def test_the_guide_lists_all() -> None:
    named = [name for names, _ in rows() for name in names]
    assert len(named) == len(set(named))
    assert set(named) >= {*OF_JAX, *KEYS, "float0"}
    *_, (last, (oldest, *_)) = rows()
    assert oldest == "none"
    assert last >= WITHOUT
    assert set(named) - last <= {*OF_JAX, *KEYS, "float0"}


def test_the_guide_says_who_reads_them() -> None:
    for names, (oldest, *_) in rows():
        for name in names & {*OF_JAX, *KEYS, "float0"}:
            kind = next((kind for kind, dtype in enumerate(DTYPES) if dtype == dtype_of(name)), None)
            since = "none" if kind is None else ".".join(map(str, table.dtype_since(kind)))
            assert since == oldest.partition(";")[0], name


def test_the_guide_says_what_files_of_weights_have() -> None:
    for names, (_, in_files, *_) in rows():
        held = {name: held_as(name, (4,)) for name in names - WITHOUT}
        as_it_is = {name for name, one in held.items() if one is not None and in_numpy(one[0]) == dtype_of(name)}
        if in_files == "as it is":
            assert as_it_is == names
        else:
            said = set(re.findall(r"`(\w+)`", in_files))
            assert said == {one[0] for one in held.values() if one is not None}
            assert not as_it_is and (said or in_files.startswith("none"))


def dtype_of(name: str) -> Any:
    if name in KEYS:
        return jax.random.key(0, impl=KEYS[name]).dtype
    return jax.dtypes.float0 if name == "float0" else np.dtype(jnp.dtype(name))


@pytest.mark.wide(one_in=4, promise="arguments, results and states may have each dtype of JAX")
@pytest.mark.parametrize("dtype", EXPORTABLE)
def test_arguments_results_and_states(dtype: str) -> None:
    with jax.enable_x64(True):
        state = {"x": array(dtype), "step": np.int32(3)}

        def step(state: Any) -> Any:
            return {**state, "step": state["step"] + 1}, widened(state["x"])

        new, wide = jaxexp.deserialize(jaxexp.export(jax.jit(step))(state).serialize()).call(state)
        assert_same_bits([new["x"], wide], [state["x"], widened(jnp.asarray(state["x"]))])
        assert new["step"] == 4


@pytest.mark.wide(one_in=7, promise="weights may have each dtype of JAX")
@pytest.mark.parametrize("dtype", EXPORTABLE)
def test_weights(dtype: str, tmp_path: Path) -> None:
    with jax.enable_x64(True):
        weights = {"w": jnp.asarray(array(dtype))}
        function = jax.jit(lambda x: (widened(weights["w"]) + x, weights["w"]))
        exported = jaxexp.export(function, weights=weights)(np.float32(1))
        exported.save(tmp_path / "f.jaxexp")
        loaded = jaxexp.load(tmp_path / "f.jaxexp", verify=True)
        assert isinstance(loaded, jaxexp.BoundExported)
        found, expected = (call(np.float32(1)) for call in (loaded.call, function))
        assert_same_bits([loaded.weights["w"], *found], [weights["w"], *expected])


@each("key", KEYS.values())
def test_keys(key: str) -> None:
    given = jax.random.key(7, impl=key)
    loaded = jaxexp.deserialize(jaxexp.export(jax.jit(lambda k: jax.random.fold_in(k, 1)))(given).serialize())
    found = loaded.call(given)
    assert found.dtype == given.dtype
    assert_same_bits([jax.random.key_data(found)], [jax.random.key_data(jax.random.fold_in(given, 1))])


@each("dtype", ["int2", "uint2"])
def test_what_no_artifact_has(dtype: str) -> None:
    """Inside of a function it stays possible."""
    assert dtype in WITHOUT
    exported = jaxexp.export(jax.jit(lambda x: x))(array(dtype))
    with pytest.raises(jaxexp.errors.SerializationError, match=dtype) as error:
        exported.serialize()
    assert isinstance(error.value, KeyError)  # as in jax.export
    inside = jaxexp.export(jax.jit(lambda x: x.astype(dtype).astype(jnp.int8)))(np.ones(2, np.int8))
    assert (jaxexp.deserialize(inside.serialize()).call(np.ones(2, np.int8)) == 1).all()

"""Files of tensors have no names for some dtypes: their metadata say which tensors have them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import jaxexp
from jaxexp._weights.files import header
from kit.compare import assert_same_values

VALUES = [1, 2, 3, 7]


def dtype_of(name: str) -> Any:
    return np.dtype(getattr(ml_dtypes, name, name))


def bound(dtype: str, values: Any = VALUES) -> jaxexp.BoundExported:
    """A function that makes float32 of its weights."""
    w = jnp.asarray(np.array(values, np.float32).astype(dtype_of(dtype)))
    return jaxexp.export(jax.jit(lambda p: p["w"].astype(jnp.float32)))({"w": w}).bind({"w": w})


def metadata_of(path: Path) -> dict[str, str]:
    content = path.read_bytes()
    head: dict[str, Any] = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    found: dict[str, str] = head["__metadata__"]
    return found


def without_dtypes(path: Path) -> None:
    """Rewrites a file as jaxexp wrote it before metadata said dtypes: of the same size and content."""
    content = path.read_bytes()
    size = 8 + int.from_bytes(content[:8], "little")
    found = header.read(content[:size], len(content))
    plain = [header.dataclasses.replace(tensor, of=None) for tensor in found.tensors.values()]
    metadata = {key: value for key, value in found.metadata.items() if not key.startswith("dtype:")}
    path.write_bytes(header.compose(plain, metadata, size) + content[size:])


UNNAMED = ["int4", "uint4", "float8_e3m4", "float8_e4m3", "float8_e4m3b11fnuz"]


@pytest.mark.parametrize("dtype", UNNAMED)
def test_what_a_file_says(dtype: str, tmp_path: Path) -> None:
    values = [1, 0, 1, 1]
    function = bound(dtype, values)
    function.save(tmp_path / "f.jaxexp")
    assert metadata_of(tmp_path / "f.safetensors")["dtype:w"] == dtype
    assert_same_values(function.with_weights(tmp_path / "f.safetensors").call(), np.float32(values))
    loaded = jaxexp.load(tmp_path / "f.jaxexp")
    loaded.save(tmp_path / "again.jaxexp")
    assert (tmp_path / "again.safetensors").read_bytes() == (tmp_path / "f.safetensors").read_bytes()


def test_what_a_file_does_not_say(tmp_path: Path) -> None:
    """Dtypes that the format has names for need no words."""
    bound("float32").save(tmp_path / "f.jaxexp")
    assert metadata_of(tmp_path / "f.safetensors").keys() == {"writer", "content"}


PAIRS = [(a, b) for a in (*UNNAMED, "int8", "uint8") for b in (*UNNAMED, "int8", "uint8") if a != b]


@pytest.mark.parametrize(("file", "needed"), PAIRS)
def test_no_bits_become_other_numbers(file: str, needed: str, tmp_path: Path) -> None:
    """A file is cast, or refused, as arrays are."""
    values = [1, 0, 1, 1]
    other = bound(file, values)
    other.save(tmp_path / "f.jaxexp")
    function = bound(needed, [0, 0, 0, 0])
    with pytest.raises(jaxexp.WeightsError, match=rf"expected {needed}\[4\]"):
        function.with_weights(tmp_path / "f.safetensors")
    try:
        expected = function.with_weights(dict(other.weights), cast=True).call()
    except jaxexp.WeightsError:
        with pytest.raises(jaxexp.WeightsError):
            function.with_weights(tmp_path / "f.safetensors", cast=True)
    else:
        cast = function.with_weights(tmp_path / "f.safetensors", cast=True)
        assert_same_values(cast.call(), expected)
        cast.save(tmp_path / "cast.jaxexp")
        assert_same_values(jaxexp.load(tmp_path / "cast.jaxexp").call(), expected)


def test_integers_that_do_not_fit(tmp_path: Path) -> None:
    bound("int8", [100, -3, 9, 7]).save(tmp_path / "f.jaxexp")
    cast = bound("int4").with_weights(tmp_path / "f.safetensors", cast=True)
    with pytest.raises(jaxexp.WeightsError, match=r"integers that fit into int4, found int8.* from -3 to 100"):
        cast.call()


@pytest.mark.parametrize("dtype", UNNAMED)
def test_files_from_before(dtype: str, tmp_path: Path) -> None:
    """The artifact that they were saved with knows what they are; for others, I8 is int8 and U8 is uint8."""
    function = bound(dtype, [1, 0, 1, 1])
    function.save(tmp_path / "f.jaxexp")
    without_dtypes(tmp_path / "f.safetensors")
    loaded = jaxexp.load(tmp_path / "f.jaxexp", verify=True)
    assert_same_values(loaded.call(), function.call())
    loaded.save(tmp_path / "again.jaxexp")
    assert_same_values(jaxexp.load(tmp_path / "again.jaxexp").call(), function.call())
    with pytest.raises(jaxexp.WeightsError, match=r"found [IU]8\[4\] of u?int8"):
        function.with_weights(tmp_path / "f.safetensors")


@pytest.mark.parametrize("dtype", ["int4", "float8_e3m4"])
def test_archives(dtype: str, tmp_path: Path) -> None:
    """Tensors in an archive have no dtypes; the file that is unpacked says them."""
    function = bound(dtype, [1, 0, 1, 1])
    function.save(tmp_path / "f.jaxexp")
    run = [sys.executable, "-m", "jaxexp"]
    subprocess.run([*run, "pack", "a.zip", "f.jaxexp"], cwd=tmp_path, check=True)
    assert_same_values(jaxexp.load(f"{tmp_path}/a.zip::f").call(), function.call())
    subprocess.run([*run, "unpack", "a.zip", "-d", "there"], cwd=tmp_path, check=True)
    (file,) = (tmp_path / "there").glob("*.safetensors")
    assert metadata_of(file)["dtype:w"] == dtype
    assert_same_values(function.with_weights(file).call(), function.call())
    assert_same_values(jaxexp.load(tmp_path / "there" / "f.jaxexp").call(), function.call())


def test_words_of_others(tmp_path: Path) -> None:
    """What is no dtype, or one that cannot be held so, is not taken for one."""
    bound("uint8", VALUES).save(tmp_path / "f.jaxexp")
    content = (tmp_path / "f.safetensors").read_bytes()
    size = 8 + int.from_bytes(content[:8], "little")
    found = header.read(content[:size], len(content))
    for said in ("float32", "complex128", "int4", "", "nonsense", "float8_e5m2"):
        head = header.compose(found.tensors.values(), {"dtype:w": said, "dtype:": "int4", "dtype:v": "int4"})
        (tmp_path / "g.safetensors").write_bytes(head + content[size:])
        assert_same_values(bound("uint8").with_weights(tmp_path / "g.safetensors").call(), np.float32(VALUES))


def test_complex_numbers(tmp_path: Path) -> None:
    """Their shape in a file is another one, so other programs need not say it; but real numbers stay real."""
    with jax.enable_x64(True):
        w = np.array([1 + 2j, 3 - 4j])
        function = jaxexp.export(jax.jit(lambda p: p["w"].conj()))({"w": w}).bind({"w": w})
        function.save(tmp_path / "f.jaxexp")
        assert metadata_of(tmp_path / "f.safetensors")["dtype:w"] == "complex128"
        real = jaxexp.export(jax.jit(lambda p: p["w"] * 2))({"w": w.view(np.float64).reshape(2, 2)})
        with pytest.raises(jaxexp.WeightsError, match="of complex128"):
            real.bind(tmp_path / "f.safetensors")
        without_dtypes(tmp_path / "f.safetensors")
        assert_same_values(function.with_weights(tmp_path / "f.safetensors").call(), w.conj())

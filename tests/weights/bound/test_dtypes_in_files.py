"""What files of weights have: dtypes that the format has no names for, what earlier versions wrote, gigabytes."""

from __future__ import annotations

import functools
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import jaxexp
from bench.little_memory import MODES, PROGRAM, SIDE
from jaxexp._cli import start
from jaxexp._weights.files import header
from kit.command_line import started
from kit.compare import assert_same_values
from kit.each import each
from kit.places import GOLDEN

VALUES = (1, 2, 3, 7)


@functools.cache
def bound(dtype: str, values: Any = VALUES) -> jaxexp.BoundExported:
    """A function that makes float32 of its weights."""
    w = jnp.asarray(np.array(values, np.float32).astype(getattr(ml_dtypes, dtype, dtype)))
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


@each("dtype", UNNAMED)
def test_what_a_file_says(dtype: str, tmp_path: Path) -> None:
    values = (1, 0, 1, 1)
    function = bound(dtype, values)
    function.save(tmp_path / "f.jaxexp")
    assert metadata_of(tmp_path / "f.safetensors")["dtype:w"] == dtype
    bound("float32").save(tmp_path / "named.jaxexp")
    assert metadata_of(tmp_path / "named.safetensors").keys() == {"writer", "content"}
    assert_same_values(function.with_weights(tmp_path / "f.safetensors").call(), np.float32(values))
    loaded = jaxexp.load(tmp_path / "f.jaxexp")
    loaded.save(tmp_path / "again.jaxexp")
    assert (tmp_path / "again.safetensors").read_bytes() == (tmp_path / "f.safetensors").read_bytes()


NAMES = [*UNNAMED, "int8", "uint8"]
PAIRS = [(one, other) for i, one in enumerate(NAMES) for j, other in enumerate(NAMES) if i != j and (i + j) % 2]


@each("file, needed", PAIRS)
def test_no_bits_become_other_numbers(file: str, needed: str, tmp_path: Path) -> None:
    values = (1, 0, 1, 1)
    other = bound(file, values)
    other.save(tmp_path / "f.jaxexp")
    function = bound(needed, (0, 0, 0, 0))
    with pytest.raises(jaxexp.errors.WeightsError, match=rf"expected {needed}\[4\]") as refused:
        function.with_weights(tmp_path / "f.safetensors")
    assert (", held as " in str(refused.value)) == (needed in UNNAMED)
    try:
        expected = function.with_weights(dict(other.weights), cast=True).call()
    except jaxexp.errors.WeightsError:
        with pytest.raises(jaxexp.errors.WeightsError):
            function.with_weights(tmp_path / "f.safetensors", cast=True)
    else:
        cast = function.with_weights(tmp_path / "f.safetensors", cast=True)
        assert_same_values(cast.call(), expected)
        cast.save(tmp_path / "cast.jaxexp")
        assert_same_values(jaxexp.load(tmp_path / "cast.jaxexp").call(), expected)


def test_integers_that_do_not_fit(tmp_path: Path) -> None:
    bound("int8", (100, -3, 9, 7)).save(tmp_path / "f.jaxexp")
    cast = bound("int4").with_weights(tmp_path / "f.safetensors", cast=True)
    with pytest.raises(jaxexp.errors.WeightsError, match=r"integers that fit into int4, found int8.* from -3 to 100"):
        cast.call()


@each("dtype", UNNAMED)
def test_files_from_before(dtype: str, tmp_path: Path) -> None:
    """The artifact that they were saved with knows what they are; for others, I8 is int8 and U8 is uint8."""
    function = bound(dtype, (1, 0, 1, 1))
    function.save(tmp_path / "f.jaxexp")
    without_dtypes(tmp_path / "f.safetensors")
    loaded = jaxexp.load(tmp_path / "f.jaxexp", verify=True)
    assert_same_values(loaded.call(), function.call())
    loaded.save(tmp_path / "again.jaxexp")
    assert_same_values(jaxexp.load(tmp_path / "again.jaxexp").call(), function.call())
    with pytest.raises(jaxexp.errors.WeightsError, match=r"found [IU]8\[4\] of u?int8"):
        function.with_weights(tmp_path / "f.safetensors")


@each("dtype", ["int4", "float8_e3m4"])
def test_archives(dtype: str, tmp_path: Path) -> None:
    function = bound(dtype, (1, 0, 1, 1))
    function.save(tmp_path / "f.jaxexp")
    assert start.main(["pack", str(tmp_path / "a.zip"), str(tmp_path / "f.jaxexp")]) == 0
    assert_same_values(jaxexp.load(f"{tmp_path}/a.zip::f").call(), function.call())
    assert start.main(["unpack", str(tmp_path / "a.zip"), "-d", str(tmp_path / "there")]) == 0
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
        with pytest.raises(jaxexp.errors.WeightsError, match="of complex128"):
            real.bind(tmp_path / "f.safetensors")
        without_dtypes(tmp_path / "f.safetensors")
        assert_same_values(function.with_weights(tmp_path / "f.safetensors").call(), w.conj())


FOLDERS = sorted((GOLDEN / "weights").iterdir())


def assert_is_it(loaded: jaxexp.Exported, golden: Path) -> None:
    arrays = np.load(golden / "model.npz")
    np.testing.assert_allclose(loaded.call(arrays["x"]), arrays["y"], rtol=1e-5)
    assert loaded.check().ok or not loaded.cases  # an archive has those of files only
    for name in loaded.weights:
        np.testing.assert_array_equal(loaded.weights[name], arrays[name])


@each("folder", FOLDERS)
def test_golden_weights(folder: Path, tmp_path: Path) -> None:
    golden = Path(shutil.copytree(folder, tmp_path / "golden"))
    for file in ("model.jaxexp", "model.safetensors"):
        jaxexp.verify(golden / file)
    loaded = jaxexp.load(golden / "model.jaxexp")
    assert_is_it(loaded, golden)
    loaded.save(golden / "model.jaxexp", vjp_order=1)  # in place of itself, with what this version writes
    assert_is_it(jaxexp.load(golden / "model.jaxexp"), golden)
    jaxexp.verify(golden / "model.safetensors")
    with jaxexp.Archive.open(golden / "fleet.zip") as archive:
        assert archive.verify() == {}
        for name in archive:
            assert_is_it(archive[name].load(), golden)
    assert start.main(["unpack", str(golden / "fleet.zip"), "-d", str(golden / "out")]) == 0
    assert_is_it(jaxexp.load(golden / "out" / "from" / "files.jaxexp"), golden)
    assert_is_it(jaxexp.load(golden / "out" / "alone.jaxexp"), golden)
    with jaxexp.Archive.append(golden / "fleet.zip") as archive:
        archive.add_file("again", golden / "out" / "alone.jaxexp")
    with jaxexp.Archive.open(golden / "fleet.zip") as archive:
        assert archive.verify() == {}
        assert_is_it(archive["again"].load(), golden)


LAYERS = 12


@pytest.mark.long(
    promise="a process needs no memory for gigabytes of weights",
    sibling="test_beside.py::test_on_a_cpu_weights_are_the_mapped_file",
)
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits memory in this way")
def test_three_gigabytes(tmp_path: Path, subprocess_env: Any) -> None:
    env = {**subprocess_env(), "XLA_FLAGS": ""}
    path = tmp_path / "model.jaxexp"
    try:
        for mode, most in zip(MODES, (64, 150), strict=True):
            result = started(PROGRAM, mode, path, LAYERS, SIDE, env=env)
            assert result.returncode == 0, result.stderr
            assert int(result.stdout) < most, mode
        assert path.stat().st_size < 100_000
        assert path.with_suffix(".safetensors").stat().st_size < 1.01 * LAYERS * SIDE**2 * 4
    finally:
        path.with_suffix(".safetensors").unlink(missing_ok=True)

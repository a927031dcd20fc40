"""Calls with arguments of another kind, and in processes of another kind: what to do about it."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxexp
from kit.alike import raises_alike, reload
from kit.corpus import arr


def of(library: Any, fun: Any, *args: Any) -> Any:
    return reload(library, library.export(jax.jit(fun))(*args))


def test_a_list_for_an_array() -> None:
    error = raises_alike(lambda library: of(library, jnp.sin, arr(2, 2)).call([1.0, 2.0]))
    assert "args[0]: expected an array, float32[2,2], found <class 'list'>; make an array of it" in str(error)
    assert "int" not in str(error)
    error = raises_alike(
        lambda library: of(library, lambda d: d["a"], {"a": arr(3), "b": arr(2)}).call({"a": (1,), "b": arr(2)})
    )
    assert "args[0]['a']: expected an array, float32[3], found <class 'tuple'>; make an array of it" in str(error)


def test_an_array_for_a_list() -> None:
    error = raises_alike(lambda library: of(library, lambda xs: xs[0], [arr(2), arr(2)]).call(arr(2, 2)))
    assert "args[0]: expected <class 'list'>, found one array; take it apart, as in list(array)" in str(error)
    error = raises_alike(lambda library: of(library, lambda xs: xs[0], (arr(2), arr(2))).call({"a": arr(2)}))
    assert "expected <class 'tuple'>, found <class 'dict'>; their Python types differ" in str(error)


def test_the_same_in_specialize() -> None:
    exported = jaxexp.export(jax.jit(jnp.sin))(jax.ShapeDtypeStruct(jaxexp.symbolic_shape("b"), np.float32))
    with pytest.raises(jaxexp.ExportError, match=r"expected an array, float32\[b\], found <class 'list'>"):
        exported.specialize([arr(2)])


@pytest.mark.parametrize("dtype", ["float64", "int64", "complex128", "uint64"])
def test_64_bits_in_a_process_of_32(dtype: str) -> None:
    jax.config.update("jax_enable_x64", True)
    try:
        blob = jaxexp.export(jax.jit(lambda x: x * 2))(np.ones(2, dtype)).serialize()
    finally:
        jax.config.update("jax_enable_x64", False)
    for how in (lambda call: call, jax.jit):
        with pytest.raises(
            jaxexp.ExportError, match=f"must have dtype {dtype}.*jax_enable_x64.*arrays of dtype {dtype}"
        ):
            how(jaxexp.deserialize(blob).call)(np.ones(2, dtype))
    with pytest.raises(jaxexp.ExportError, match="jax_enable_x64"):
        jaxexp.deserialize(blob).specialize(jax.ShapeDtypeStruct((2,), np.float32))
    jax.config.update("jax_enable_x64", True)
    try:
        assert jaxexp.deserialize(blob).call(np.ones(2, dtype)).dtype == dtype, "what the advice says"
        with pytest.raises(jaxexp.ExportError) as error:
            jaxexp.deserialize(blob).call(np.ones(2, np.int8))
    finally:
        jax.config.update("jax_enable_x64", False)
    assert "x64" not in str(error.value), "it is on"


def test_keys_and_their_numbers() -> None:
    of_key = of(jaxexp, jax.random.key_data, jax.random.key(0))
    of_numbers = of(jaxexp, lambda x: x, jax.random.PRNGKey(0))
    with pytest.raises(jaxexp.ExportError, match="wrap_key_data"):
        of_key.call(np.uint32(3))
    with pytest.raises(jaxexp.ExportError, match=r"wrap_key_data"):
        of_key.call(jax.random.PRNGKey(0))
    with pytest.raises(jaxexp.ExportError, match=r"jax\.random\.key_data\(key\)"):
        of_numbers.call(jax.random.key(0))
    key = jax.random.wrap_key_data(jax.random.PRNGKey(0))
    assert (of_key.call(key) == of_numbers.call(jax.random.key_data(key))).all()


def test_a_path_for_an_artifact(tmp_path) -> None:
    for path in ("model.jaxexp", tmp_path):
        with pytest.raises(TypeError, match=r"load\(path\) reads a file"):
            jaxexp.deserialize(path)
    with pytest.raises(TypeError, match=r"not <class 'int'>$"):
        jaxexp.deserialize(3)


@pytest.mark.parametrize("devices", [1, 8])
def test_fewer_devices_than_the_function_needs(devices: int, tmp_path, subprocess_env) -> None:
    """In a process with one device, `device_put` cannot help; with eight, it does."""
    mesh = jax.make_mesh((8,), ("x",), axis_types=(AxisType.Auto,))
    exported = jaxexp.export(jax.jit(jnp.sin, in_shardings=NamedSharding(mesh, P("x"))))(arr(8))
    exported.save(tmp_path / "f")
    program = f"""
import jax, numpy as np, jaxexp
jax.config.update("jax_num_cpu_devices", {devices})
try:
    jaxexp.load({str(tmp_path / "f")!r}).call(np.ones(8, np.float32))
except jaxexp.ExportError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], env=subprocess_env(XLA_FLAGS=""), capture_output=True, text=True, check=True
    )
    assert "exported for 8 devices, and is called on 1" in done.stdout
    if devices == 1:
        assert "This process has 1 cpu device: call it where there are 8." in done.stdout
        assert 'jax.config.update("jax_num_cpu_devices", 8)' in done.stdout
        assert "device_put" not in done.stdout
    else:
        assert "jax.device_put(argument" in done.stdout
        assert "jax.make_mesh((8,), ('x',), axis_types=(jax.sharding.AxisType.Auto,))" in done.stdout

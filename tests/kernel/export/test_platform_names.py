"""Names of platforms: `export` accepts what `jax.export` accepts, and explains the names that mean nothing here."""

from __future__ import annotations

import logging
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export as jax_export

import jaxexp

X = np.ones(3, np.float32)


def has_gpu() -> bool:
    return any(device.platform == "gpu" for device in jax.devices())


@pytest.mark.parametrize("platforms", [["gpu"], ["cpu", "gpu"], "gpu"])
@pytest.mark.skipif(has_gpu(), reason="here it stands for the kind of GPU")
def test_gpu_without_one(platforms: Any) -> None:
    with pytest.raises(jaxexp.ExportError, match="'cuda' for GPUs of NVIDIA, or 'rocm'") as caught:
        jaxexp.export(jax.jit(jnp.sin), platforms=platforms)(X)
    with pytest.raises(RuntimeError) as of_jax:
        jax_export.export(jax.jit(jnp.sin), platforms=["gpu"])(X)
    assert isinstance(caught.value, type(of_jax.value))


def test_gpu_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """What JAX then makes of the name is up to JAX, which is asked as always."""
    monkeypatch.setattr("jax.devices", lambda *_: ["a GPU"])
    with pytest.raises(RuntimeError, match="Unknown backend: 'gpu'"):
        jaxexp.export(jax.jit(jnp.sin), platforms=["gpu"])(X)


@pytest.mark.parametrize("platforms", [["nonsense"], ("cpu", "GPU"), ["Cuda", "tpu"], [3]])
def test_names_that_jax_does_not_know(platforms: Any, caplog: pytest.LogCaptureFixture) -> None:
    exported = jaxexp.export(jax.jit(jnp.sin), platforms=platforms)(X)
    assert exported.platforms == jax_export.export(jax.jit(jnp.sin), platforms=platforms)(X).platforms
    (record,) = caplog.records
    assert record.levelno == logging.WARNING and record.name.startswith("jaxexp.")
    said = record.getMessage()
    assert repr(next(p for p in platforms if p not in ("cpu", "tpu"))) in said
    assert all(name in said for name in ("cpu", "cuda", "rocm", "tpu"))


def test_known_names_are_not_mentioned(caplog: pytest.LogCaptureFixture) -> None:
    jaxexp.export(jax.jit(jnp.sin), platforms=["cpu", "cuda", "rocm", "tpu"])(X)
    assert not caplog.records


def test_a_call_of_a_function_for_something_else() -> None:
    exported = jaxexp.export(jax.jit(jnp.sin), platforms=[3])(X)  # type: ignore[list-item]
    with pytest.raises(jaxexp.ExportError, match="it was exported for 3, and is called on"):
        exported.call(X)


@pytest.mark.parametrize("order", ["1", None, [1], float("nan")])
def test_vjp_orders_that_are_no_numbers(order: Any) -> None:
    exported = jaxexp.export(jax.jit(jnp.sin))(X)
    with pytest.raises(jaxexp.ExportError, match="the number of VJPs to include, an int") as caught:
        exported.serialize(vjp_order=order)
    assert isinstance(caught.value, TypeError)


@pytest.mark.parametrize("order", [-1, True, 0.5])
def test_vjp_orders_that_jax_takes(order: Any) -> None:
    ours, theirs = (library.export(jax.jit(jnp.sin))(X).serialize(vjp_order=order) for library in (jaxexp, jax_export))
    assert jax_export.deserialize(ours).has_vjp() == jax_export.deserialize(theirs).has_vjp()

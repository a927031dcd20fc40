"""What surrounds the code that asks for a VJP is nothing to the VJP: it belongs to the export."""

from __future__ import annotations

import contextlib
import functools
import re
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export as jax_export
from jax.experimental.xla_metadata import set_xla_metadata

import jaxexp
from jaxexp import _jax
from jaxexp._kernel.export.export import Surroundings
from kit.each import each

pytestmark = pytest.mark.jax
DEVICES = np.array(jax.devices()[:4])
AUTO = jax.sharding.Mesh(DEVICES, ("a",), axis_types=(jax.sharding.AxisType.Auto,))
EXPLICIT = jax.sharding.Mesh(DEVICES, ("a",), axis_types=(jax.sharding.AxisType.Explicit,))


@contextlib.contextmanager
def old_mesh_context() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # newer releases of JAX
        with AUTO:
            yield


SURROUNDINGS = {
    "nothing": contextlib.nullcontext,
    "set_mesh": lambda: jax.set_mesh(AUTO),
    "set_mesh, Explicit": lambda: jax.set_mesh(EXPLICIT),
    "with mesh": old_mesh_context,
    "x64": lambda: jax.enable_x64(True),
    "precision": lambda: jax.default_matmul_precision("highest"),
    "metadata of operations": lambda: set_xla_metadata(a="b"),
    "old calling convention": lambda: _jax.calling_convention_flag(9),
}


def exported_in(name: str) -> jaxexp.Exported:
    with SURROUNDINGS[name]():
        x = np.ones((4, 4), np.float64 if name == "x64" else np.float32)
        return jaxexp.export(jax.jit(lambda x: jnp.sin(x @ x).sum()))(x)


def program(exported: Any) -> Any:
    """What a function is, without the places in the source that its module mentions."""
    module = re.sub(r"#loc.*\n|loc\(.*\)", "", exported.mlir_module())
    return exported.nr_devices, exported.calling_convention_version, exported.in_avals, exported.out_avals, module


@functools.cache
def vjps_asked_for_outside(name: str) -> list[Any]:
    exported = exported_in(name)
    return [program(exported.vjp()), program(exported.vjp().vjp())]


@each(
    "outside, inside",
    [
        *(("nothing", name) for name in SURROUNDINGS if name != "nothing"),
        *((name, "nothing") for name in ("set_mesh, Explicit", "with mesh", "x64", "precision")),
        ("set_mesh", "with mesh"),
    ],
)
def test_a_vjp_belongs_to_the_export(outside: str, inside: str) -> None:
    exported = exported_in(outside)
    with SURROUNDINGS[inside]():
        found = exported.vjp(), exported.vjp().vjp()
    assert list(map(program, found)) == vjps_asked_for_outside(outside)
    assert found[0].nr_devices == exported.nr_devices
    assert found[0].calling_convention_version == exported.calling_convention_version
    if outside == "x64":  # whoever asks for it
        assert [str(aval.dtype) for aval in (*found[0].in_avals, *found[0].out_avals)] == ["float64"] * 3
        assert "f32" not in found[0].mlir_module()


def test_a_vjp_that_is_serialized_inside_a_mesh() -> None:
    """On one device, where the function is. jax.export gives it the devices of `with mesh:`."""
    x = np.ones((4, 4), np.float32)
    for inside in (lambda: jax.set_mesh(AUTO), old_mesh_context):
        exported = exported_in("nothing")
        with inside():
            blob = exported.serialize(vjp_order=1)
        for loaded in (jaxexp.deserialize(blob), jax_export.deserialize(blob)):
            assert loaded.vjp().nr_devices == loaded.nr_devices == 1
            found = jax.grad(loaded.call)(x)
            np.testing.assert_allclose(found, jax.grad(lambda x: jnp.sin(x @ x).sum())(x), rtol=1e-5)


def test_surroundings_come_back() -> None:
    """Also after an error."""
    with jax.set_mesh(AUTO), jax.default_matmul_precision("highest"):
        then = Surroundings.now()
    before = Surroundings.now()
    assert before != then
    with pytest.raises(KeyError), then.restored():
        assert Surroundings.now() == then
        raise KeyError
    assert Surroundings.now() == before

"""Where weights are first used makes no difference to them: they stay, and other code uses them later."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh
from jax.sharding import PartitionSpec as P

import jaxexp
from kit.devices import DEVICES
from kit.each import each

pytestmark = pytest.mark.jax
EXPLICIT = Mesh(np.array(jax.devices()), ("d",), axis_types=(AxisType.Explicit,))
AUTO = Mesh(np.array(jax.devices()), ("d",), axis_types=(AxisType.Auto,))
X = np.ones((DEVICES, 4), np.float32)
WEIGHTS = {"w": np.arange(16, dtype=np.float32).reshape(4, 4), "b": np.ones(4, np.float32)}


def apply(weights: Any, x: Any) -> Any:
    return x @ weights["w"] + weights["b"]


@pytest.fixture(scope="module")
def program() -> jaxexp.Exported:
    return jaxexp.export(jax.jit(apply))(WEIGHTS, jax.ShapeDtypeStruct(jaxexp.symbolic_shape("n, 4"), np.float32))


ORIGINS = ["NumPy", "file", "jax.Array"]


def made(origin: str, program: jaxexp.Exported, folder: Path) -> Any:
    if origin == "jax.Array":
        return program.bind(jax.tree.map(jnp.asarray, WEIGHTS))
    if origin == "NumPy":
        return program.bind(WEIGHTS)
    program.bind(WEIGHTS).save(folder / "model.jaxexp")
    return jaxexp.load(folder / "model.jaxexp")


Use = Callable[[Any], Any]


def inside(context: Callable[[], AbstractContextManager[Any]]) -> Callable[[Use], Any]:
    def function(use: Use) -> None:
        x = jax.device_put(X)
        with context():
            use(x)

    return function


def shard_mapped(use: Use, mesh: Mesh) -> Any:
    return jax.shard_map(use, mesh=mesh, in_specs=P("d"), out_specs=P("d"))


def with_derivative(use: Use) -> None:
    function = jax.custom_vjp(use)
    function.defvjp(lambda x: (use(x), None), lambda _, cotangent: (cotangent,))
    jax.grad(lambda x: function(x).sum())(X)


def in_a_thread(use: Use) -> None:
    with ThreadPoolExecutor(1) as thread:
        thread.submit(use, X).result()


PLACES: dict[str, Callable[[Use], Any]] = {
    "shard_map": lambda use: shard_mapped(use, AUTO)(X),
    "shard_map, Explicit": lambda use: shard_mapped(use, EXPLICIT)(
        jax.device_put(X, jax.NamedSharding(EXPLICIT, P("d")))
    ),
    "shard_map in jit": lambda use: jax.jit(shard_mapped(use, AUTO))(X),
    "mesh": inside(lambda: AUTO),
    "set_mesh": inside(lambda: jax.set_mesh(AUTO)),
    "set_mesh, Explicit": inside(lambda: jax.set_mesh(EXPLICIT)),
    "abstract mesh": inside(lambda: jax.sharding.use_abstract_mesh(EXPLICIT.abstract_mesh)),
    "jit": lambda use: jax.jit(use)(X),
    "vmap": lambda use: jax.vmap(use)(X[None]),
    "vmap over a mesh": lambda use: jax.vmap(use, spmd_axis_name="d")(X[None]),
    "pmap": lambda use: jax.pmap(use)(X[:, None]),
    "grad": lambda use: jax.grad(lambda x: use(x).sum())(X),
    "jvp": lambda use: jax.jvp(use, (X,), (X,)),
    "checkpoint": lambda use: jax.grad(lambda x: jax.checkpoint(use)(x).sum())(X),
    "custom_vjp": with_derivative,
    "scan": lambda use: jax.lax.scan(lambda x, _: (use(x), None), X, None, length=2),
    "make_jaxpr": lambda use: jax.make_jaxpr(use)(X),
    "without jit": inside(jax.disable_jit),
    "64 bits": inside(lambda: jax.enable_x64(True)),
    "checked for leaks": inside(jax.checking_leaks),
    "without transfers": inside(lambda: jax.transfer_guard("disallow")),
    "thread": in_a_thread,
}


@pytest.mark.filterwarnings("ignore:.with mesh.:DeprecationWarning")
@pytest.mark.parametrize("origin", ORIGINS)
@each("place", PLACES)
def test_weights_are_the_same_wherever_they_are_first_used(
    place: str, origin: str, program: jaxexp.Exported, tmp_path: Path
) -> None:
    model = made(origin, program, tmp_path)

    def use(x: Any) -> Any:
        model.weights["w"], model.weights["b"]
        return x

    PLACES[place](use)
    for name, array in model.weights.items():
        expected = jax.device_put(WEIGHTS[name])
        assert not isinstance(array, jax.core.Tracer)
        assert (array.sharding, array.committed) == (expected.sharding, expected.committed)
        assert jax.typeof(array) == jax.typeof(expected)
        np.testing.assert_array_equal(array, expected)
    np.testing.assert_allclose(model.call(X), apply(WEIGHTS, X))


@each("origin", ORIGINS)
def test_a_first_call_in_an_eager_shard_map(origin: str, program: jaxexp.Exported, tmp_path: Path) -> None:
    model = made(origin, program, tmp_path)
    for call in (model.call, jax.jit(model.call)):
        np.testing.assert_allclose(shard_mapped(call, AUTO)(X), apply(WEIGHTS, X))
    np.testing.assert_allclose(model.call(X), apply(WEIGHTS, X))


@each("origin", ["NumPy", "file"])
def test_weights_of_64_bits_keep_them(origin: str, tmp_path: Path) -> None:
    weights = {name: array / 3.0 for name, array in WEIGHTS.items()}
    with jax.enable_x64(True):
        weights = {name: array.astype(np.float64) for name, array in weights.items()}
        model = jaxexp.export(jax.jit(apply))(weights, X.astype(np.float64)).bind(weights)
    if origin == "file":
        model.save(tmp_path / "model.jaxexp")
        model = jaxexp.load(tmp_path / "model.jaxexp")
    assert model.weights["w"].dtype == np.float64
    with jax.enable_x64(True):
        np.testing.assert_allclose(model.call(X.astype(np.float64)), apply(weights, X), rtol=1e-12)


def test_the_default_device_is_that_of_the_first_use(program: jaxexp.Exported) -> None:
    model = program.bind(WEIGHTS)
    with jax.default_device(jax.devices()[3]):
        np.testing.assert_allclose(model.call(X), apply(WEIGHTS, X))
    assert {array.device for array in model.weights.values()} == {jax.devices()[3]}
    assert not any(array.committed for array in model.weights.values())
    np.testing.assert_allclose(model.call(X), apply(WEIGHTS, X))

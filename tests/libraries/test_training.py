"""Training steps of libraries: one process exports and trains, one goes on, and one goes on without the library."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxexp
from jaxexp.errors import ExportError
from kit import in_forks, stories

pytestmark = pytest.mark.jax

# By the first word of the functions below: what has to be installed, and what is missing for `without`.
LIBRARIES: dict[str, tuple[str, list[str]]] = {
    "optax": ("optax", ["optax", "chex"]),
    "equinox": ("equinox", ["equinox", "jaxtyping"]),
    "linalg": ("jax", []),
    "linen": ("flax.linen", ["flax", "optax"]),
    "nnx": ("flax.nnx", ["flax", "optax"]),
    "sparse": ("jax", ["jax.experimental.sparse"]),
}
INPUTS = np.linspace(-1, 1, 8, dtype="f4").reshape(4, 2)


@pytest.mark.wide(one_in=6, promise="training goes on with each library, and without it")
@pytest.mark.processes(reason="one writes, one goes on with a library, one without it")
@pytest.mark.parametrize("library", LIBRARIES)
def test_training_goes_on(library: str, tmp_path: Path, subprocess_env: Any) -> None:
    installed, missing = LIBRARIES[library]
    pytest.importorskip(installed, reason="comes with the group 'test', where its releases fit this JAX")
    parts = {f"{library}_write": [], f"{library}_go_on": [], f"{library}_without": missing}
    found = in_forks.run(
        {
            part: f"from kit import stories; stories.main({__file__!r}, {part!r}, {str(tmp_path)!r}, *{without})"
            for part, without in parts.items()
        },
        subprocess_env(),
    )
    for part, (status, _, error) in found.items():
        assert status == 0, f"{part}: {error[-6000:]}"


# --- equinox: a module with fields that are static: numbers, and a function


def equinox_training(activation: Callable[[Any], Any] = jnp.tanh, width: int = 4) -> tuple[Any, Any]:
    import equinox as eqx

    class Net(eqx.Module):
        layers: list[eqx.nn.Linear]
        scale: jax.Array
        activation: Callable[[Any], Any] = eqx.field(static=True)
        power: int = eqx.field(static=True, default=2)

        def __call__(self, x: Any) -> Any:
            for layer in self.layers:
                x = self.activation(layer(x))
            return self.scale * x**self.power

    Net.__qualname__ = "Net"  # so that it can be found
    globals()["Net"] = Net

    keys = jax.random.split(jax.random.key(0), 2)
    layers = [eqx.nn.Linear(2, width, key=keys[0]), eqx.nn.Linear(width, 1, use_bias=False, key=keys[1])]

    def step(net: Any) -> Any:
        loss, gradient = jax.value_and_grad(lambda net: jnp.mean((jax.vmap(net)(INPUTS) - 0.1) ** 2))(net)
        return (eqx.apply_updates(net, jax.tree.map(lambda g: -0.05 * g, gradient)),), loss

    return step, Net(layers, jnp.ones(()), activation)


def equinox_write(folder: Path) -> None:
    import equinox as eqx

    step, net = equinox_training()
    stories.write_training(folder, step, net)
    # A module without functions among its static fields is all data.
    mlp = eqx.filter(eqx.nn.MLP(2, 1, 4, 1, key=jax.random.key(0)), eqx.is_array)
    jaxexp.export(jax.jit(lambda key: jax.tree.map(lambda x: jax.random.normal(key, x.shape), mlp)))(
        jax.ShapeDtypeStruct((), jax.random.key(0).dtype)
    ).save(folder / "init.jaxexp")


def equinox_go_on(folder: Path) -> None:
    early = jaxexp.load(folder / "init.jaxexp")
    assert type(early.call(jax.random.key(0))) is jaxexp.GenericNode

    import equinox as eqx

    late = jaxexp.load(folder / "init.jaxexp")
    for loaded in (early, late):  # the same arguments, but now the class is there
        assert type(loaded.call(jax.random.key(0))) is eqx.nn.MLP

    _, net = equinox_training()
    (net,) = stories.go_on(folder, net)
    assert type(net).__name__ == "Net"
    assert net.activation is jnp.tanh
    assert net(INPUTS[0]).shape == (1,)
    loaded = jaxexp.load(folder / "step.jaxexp")
    _, other = equinox_training(jnp.sin)
    with pytest.raises(ExportError, match=r"auxiliary data of story\.Net is .*tanh.* in export and .*sin"):
        loaded.call(other)
    _, other = equinox_training(width=5)
    with pytest.raises(ExportError):
        loaded.call(other)


def equinox_without(folder: Path) -> None:
    (net,) = stories.go_on_without(folder)
    assert net._class_name == "story.Net"
    assert net._names == ("layers", "scale")
    assert net.layers[1].bias is None
    assert "jax.numpy.tanh" in net._static or "tanh" in net._static
    with pytest.raises(AttributeError, match="has no 'activation'; it has layers, scale"):
        net.activation  # noqa: B018
    mlp = jaxexp.load(folder / "init.jaxexp").call(jax.random.key(0))
    assert mlp.layers[0].weight.shape == (4, 2)


# --- linalg: results of jax.numpy.linalg, which are namedtuples, and functions with their arguments (`Partial`)

MATRIX = np.array([[2, 1, 0], [1, 3, 1], [0, 1, 4]], "f4")


FUNCTIONS = ("eigh", "qr", "svd", "slogdet")


def decomposed(x: Any) -> Any:
    return {name: getattr(jnp.linalg, name)(x) for name in FUNCTIONS}


def linalg_training() -> tuple[Any, Any]:
    def step(eigh: Any) -> Any:
        """One step of making a matrix, which is given by its decomposition, one of unit determinant."""
        matrix = (eigh.eigenvectors * eigh.eigenvalues) @ eigh.eigenvectors.T
        loss, gradient = jax.value_and_grad(lambda m: jnp.linalg.slogdet(m).logabsdet ** 2)(matrix)
        return (jnp.linalg.eigh(matrix - 0.02 * gradient),), loss

    return step, jnp.linalg.eigh(MATRIX)


def scaled(scale: Any, x: Any) -> Any:
    return scale * x


def linalg_write(folder: Path) -> None:
    stories.write_training(folder, *linalg_training())
    jaxexp.export(jax.jit(decomposed))(MATRIX).save(folder / "decomposed")
    function = jax.tree_util.Partial(scaled, jnp.float32(3))
    jaxexp.export(jax.jit(lambda f, x: (f(x), f)))(function, MATRIX).save(folder / "partial")


def linalg_go_on(folder: Path) -> None:
    _, state = linalg_training()
    stories.go_on(folder, state)
    found, expected = jaxexp.load(folder / "decomposed").call(MATRIX), decomposed(MATRIX)
    assert {name: type(part) for name, part in found.items()} == {name: type(part) for name, part in expected.items()}
    stories.assert_equal(found, jax.jit(decomposed)(MATRIX))

    loaded = jaxexp.load(folder / "partial")
    result, function = loaded.call(jax.tree_util.Partial(scaled, jnp.float32(5)), MATRIX)
    np.testing.assert_array_equal(result, 5 * MATRIX)
    assert function.func is scaled
    assert function.args == (5,)
    with pytest.raises(ExportError, match=r"scaled in export and .*decomposed in the call"):
        loaded.call(jax.tree_util.Partial(decomposed, jnp.float32(5)), MATRIX)


def linalg_without(folder: Path) -> None:
    """Without jaxexp's registrations there is still jax.export, where jaxexp is only imported."""
    from jax import export as jax_export

    _, state = linalg_training()
    loaded = jax_export.deserialize(bytearray((folder / "step.jaxexp").read_bytes()))
    assert type(loaded).__module__.startswith("jax.")
    (found,), _ = loaded.call(state)
    assert type(found) is type(state)


def of_any_batch() -> jaxexp.Exported:
    from flax import nnx

    graph, state = nnx.split(nnx.Linear(2, 1, rngs=nnx.Rngs(0)))
    x = jax.ShapeDtypeStruct(jaxexp.symbolic_shape("batch, 2"), jnp.float32)
    return jaxexp.export(jax.jit(lambda state, x: nnx.merge(graph, state)(x)))(state, x)


def test_wrong_arguments_are_named() -> None:
    """Although flax.nnx makes no state where JAX has no trace, as in the rule for the types of results."""
    nnx = pytest.importorskip("flax.nnx", reason="comes with the group 'test', where its releases fit this JAX")
    state = nnx.state(nnx.Linear(2, 1, rngs=nnx.Rngs(0)))
    loaded = jaxexp.deserialize(of_any_batch().serialize())
    with pytest.raises(ExportError, match=r"args\[1\].shape\[1\] must have size 2, found size 1 "):
        loaded.call(state, INPUTS[:, :1])
    with pytest.raises(ExportError, match=r"args\[0\]\['kernel'\].*must have size 2, found size 3 "):
        loaded.call(nnx.state(nnx.Linear(3, 1, rngs=nnx.Rngs(0))), INPUTS)


# --- optax: states that are namedtuples

FEATURES = np.linspace(-1, 1, 12, dtype="f4").reshape(4, 3)


TARGETS = FEATURES.sum(1, keepdims=True) ** 2


def loss_of(params: Any) -> Any:
    return jnp.mean((jnp.tanh(FEATURES @ params["w"]) @ params["v"] - TARGETS) ** 2)


def optax_training() -> tuple[Any, Any, Any]:
    import optax

    schedule = optax.exponential_decay(0.1, 10, 0.9)
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(schedule))
    params = {"w": jnp.full((3, 4), 0.3), "v": jnp.full((4, 1), 0.2)}

    def step(params: Any, state: Any) -> Any:
        loss, gradient = jax.value_and_grad(loss_of)(params)
        updates, state = optimizer.update(gradient, state, params)
        return (optax.apply_updates(params, updates), state), loss

    return step, params, optimizer.init(params)


def optax_write(folder: Path) -> None:
    stories.write_training(folder, *optax_training())


def optax_go_on(folder: Path) -> None:
    late = jaxexp.load(folder / "step.jaxexp")  # before optax
    assert "GenericNode" in str(late.in_tree)
    _, params, state = optax_training()
    stories.go_on(folder, params, state)
    assert "GenericNode" not in str(jaxexp.load(folder / "step.jaxexp").in_tree)
    (_, after), _ = late.call(params, state)
    assert jax.tree.structure(after) == jax.tree.structure(state)
    (_, after), _ = jax.jit(late.call)(params, state)
    assert type(after[1][0]) is type(state[1][0])


def optax_without(folder: Path) -> None:
    params, state = stories.go_on_without(folder)
    adam = state[1][0]
    assert isinstance(adam, jaxexp.GenericNode)
    assert adam._class_name == "optax._src.transform.ScaleByAdamState"
    assert adam._names == ("count", "mu", "nu")
    assert int(adam.count) == adam["count"] == 2 * stories.STEPS
    assert adam.mu["w"].shape == (3, 4)
    assert repr(adam).startswith("GenericNode(optax._src.transform.ScaleByAdamState, count=Array(6")

    # Dicts with the same keys do as well, in whatever order.
    loaded = jaxexp.load(folder / "step.jaxexp")
    plain = (*state[:1], ({"nu": adam.nu, "mu": adam.mu, "count": adam.count}, *state[1][1:]), *state[2:])
    stories.assert_equal(loaded.call(params, plain), loaded.call(params, state))
    with pytest.raises(ExportError, match="with the children count, mu, nu"):
        loaded.call(params, (*state[:1], ({"nu": adam.nu, "mu": adam.mu}, *state[1][1:]), *state[2:]))

    assert ".jaxexp" not in str(jaxexp.inspect(folder / "step.jaxexp"))
    assert "ScaleByAdamState(count=*, mu={'v': *, 'w': *}" in jaxexp.inspect(folder / "step.jaxexp").in_tree


# --- others, of which every part does the same


def linen_training() -> tuple[Any, Any]:
    """Parameters in dicts, and a TrainState that holds functions."""
    import optax
    from flax import linen
    from flax.training import train_state

    def step(state: Any) -> Any:
        loss, gradient = jax.value_and_grad(lambda p: jnp.mean((state.apply_fn(p, INPUTS) - 0.1) ** 2))(state.params)
        return (state.apply_gradients(grads=gradient),), loss

    model, tx = linen.Dense(1), optax.sgd(0.05, momentum=0.9)
    params = model.init(jax.random.key(0), INPUTS)
    return step, train_state.TrainState.create(apply_fn=model.apply, params=params, tx=tx)


def nnx_training() -> tuple[Any, Any, Any]:
    """The state of a model and of its optimizer, and the graph that they belong to."""
    import optax
    from flax import nnx

    def step(graph: Any, state: Any) -> Any:
        model, optimizer = nnx.merge(graph, state)
        loss, gradient = nnx.value_and_grad(lambda model: jnp.mean((model(INPUTS) - 0.1) ** 2))(model)
        optimizer.update(model, gradient)
        return nnx.split((model, optimizer)), loss

    model = nnx.Linear(2, 1, rngs=nnx.Rngs(0))
    return step, *nnx.split((model, nnx.Optimizer(model, optax.adam(0.01), wrt=nnx.Param)))


def sparse_training() -> tuple[Any, Any, Any]:
    """Arrays whose shapes and flags are auxiliary data."""
    from jax.experimental import sparse

    def step(matrices: Any, x: Any) -> Any:
        loss, gradient = jax.value_and_grad(lambda x: sum(jnp.sum((m.todense() @ x - 1) ** 2) for m in matrices))(x)
        return (matrices, x - 0.01 * gradient), loss

    kinds = (sparse.BCOO, sparse.BCSR, sparse.COO, sparse.CSR)  # codespell:ignore coo
    return step, [kind.fromdense(np.arange(9, dtype="f4").reshape(3, 3) % 2) for kind in kinds], jnp.zeros(3)


for _library, _training in (("linen", linen_training), ("nnx", nnx_training), ("sparse", sparse_training)):
    globals()[f"{_library}_write"] = lambda folder, of=_training: stories.write_training(folder, *of())
    globals()[f"{_library}_go_on"] = lambda folder, of=_training: stories.go_on(folder, *of()[1:])
    globals()[f"{_library}_without"] = stories.go_on_without

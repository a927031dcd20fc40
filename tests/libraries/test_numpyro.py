"""NumPyro: steps of variational inference and of Hamiltonian Monte Carlo."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import jaxexp
from kit import stories

DATA = np.linspace(2, 4, 6, dtype="f4")


def model(data: Any) -> None:
    import numpyro
    from numpyro import distributions as dist

    mean = numpyro.sample("mean", dist.Normal(0, 5))
    numpyro.sample("data", dist.Normal(mean, 1), obs=data)


def inference() -> tuple[Any, Any]:
    import numpyro
    from numpyro.infer import SVI, Trace_ELBO
    from numpyro.infer.autoguide import AutoNormal

    svi = SVI(model, AutoNormal(model), numpyro.optim.Adam(0.5), Trace_ELBO(num_particles=8))

    def step(state: Any) -> Any:
        state, loss = svi.update(state, DATA)
        return (state,), loss

    return step, svi.init(jax.random.PRNGKey(0), DATA)


def sampling() -> tuple[Any, Any]:
    from numpyro.infer import NUTS

    kernel = NUTS(model)
    state = kernel.init(jax.random.PRNGKey(1), 5, None, (DATA,), {})
    return (lambda state: kernel.sample(state, (DATA,), {})), state


def write(folder: Path) -> None:
    stories.write_training(folder, *inference())
    step, state = sampling()
    jaxexp.export(jax.jit(step))(state).save(folder / "sample.jaxexp")
    stories.save_leaves(folder / "sample.npz", jax.jit(step)(state))


def go_on(folder: Path) -> None:
    _, state = inference()
    (after,) = stories.go_on(folder, state)
    assert type(after).__name__ == "SVIState"
    _, state = sampling()
    found = jaxexp.load(folder / "sample.jaxexp").call(state)
    assert type(found) is type(state)
    stories.assert_equal(found, stories.load_leaves(folder / "sample.npz", jax.tree.structure(found)))


def without(folder: Path) -> None:
    (after,) = stories.go_on_without(folder)
    assert after._class_name == "numpyro.infer.svi.SVIState"
    assert after._names == ("optim_state", "mutable_state", "rng_key")
    sample = jaxexp.load(folder / "sample.jaxexp").out_tree
    found = stories.load_leaves(folder / "sample.npz", sample)
    assert found._class_name == "numpyro.infer.hmc.HMCState"
    assert set(found.z) == {"mean"}
    assert found.adapt_state.step_size > 0


@pytest.mark.slow(reason="compiles a sampler and an inference in three processes")
@pytest.mark.processes(reason="one writes, one goes on with numpyro, one without it")
def test_training_goes_on(tmp_path: Path, subprocess_env: Any) -> None:
    pytest.importorskip("numpyro", reason="comes with the extra 'test', where its releases fit this JAX")
    stories.run_all(__file__, tmp_path, subprocess_env(), ["numpyro"])

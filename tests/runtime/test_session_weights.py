"""Sessions of programs with weights: beside them, in archives, and exchanged; and sessions that threads share."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy

import jaxexp
from jaxexp.runtime import Session
from kit import without_jax
from kit.weighted import X, apply, bound, close, named, params

without_jax.skip_without_plugin()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("weights")
    model = bound()[0]
    model.save(folder / "model.jaxexp", vjp_order=1)
    other = {name: np.asarray(array) for name, array in named(params(seed=7)).items()}
    safetensors.numpy.save_file(other, folder / "other.safetensors")
    with jaxexp.Archive.create(folder / "fleet.zip") as archive:
        archive.add("model", model)
        archive.add("sin", jaxexp.export(jax.jit(jnp.sin))(X))
    return folder


def test_weights_are_found(folder: Path) -> None:
    session = Session(folder / "model.jaxexp", plugin="cpu")
    close([session(X)], [apply(params(), X)])
    assert [value.path for value in session.arguments] == ["args[0]"]
    assert session.weights.keys() == named(params()).keys()
    close([np.asarray(session.weights[name]) for name in sorted(session.weights)], _sorted(params()))
    with pytest.raises(jaxexp.RunError, match="takes 1 positional argument beside its weights, and not 2"):
        session(X, X)


def test_other_weights(folder: Path) -> None:
    expected = apply(params(seed=7), X)
    changed = Session(folder / "model.jaxexp", plugin="cpu").with_weights(folder / "other.safetensors")
    close([changed(X)], [expected])
    close([Session(folder / "model.jaxexp", plugin="cpu", weights=folder / "other.safetensors")(X)], [expected])
    data = (folder / "model.jaxexp").read_bytes()
    close([Session(data, plugin="cpu", weights=str(folder / "other.safetensors"))(X)], [expected])
    with pytest.raises(jaxexp.RunError, match="takes no weights"):
        Session(folder / "fleet.zip::sin", plugin="cpu").with_weights(folder / "other.safetensors")


def test_bytes_take_weights_as_their_first_argument(folder: Path) -> None:
    session = Session((folder / "model.jaxexp").read_bytes(), plugin="cpu")
    given = {name: np.asarray(array) for name, array in named(params()).items()}
    close([session(given, X)], [apply(params(), X)])


def test_a_vjp_is_given_the_weights(folder: Path) -> None:
    expected, pullback = jax.vjp(apply, params(), X)
    of_weights, of_x = pullback(jnp.ones_like(expected))
    vjp = Session(folder / "model.jaxexp", plugin="cpu").vjp()
    close(list(vjp(X, np.ones_like(expected))), [*_sorted(of_weights), of_x])
    first = len(named(params()))
    with pytest.raises(jaxexp.RunError, match=rf"args\[{first}\] must have dtype float32"):
        vjp(X.astype(np.int32), np.ones_like(expected))


def test_members_of_archives(folder: Path) -> None:
    name = f"{folder / 'fleet.zip'}::model"
    for session in (
        Session(name, plugin="cpu"),
        Session(name, plugin="cpu", stable=True),
        Session(jaxexp.Archive.open(folder / "fleet.zip")["model"], plugin="cpu"),
    ):
        close([session(X)], [apply(params(), X)])
    close([Session(folder / "fleet.zip::sin", plugin="cpu")(X)], [np.sin(X)])
    with pytest.raises(KeyError, match="nobody"):
        Session(folder / "fleet.zip::nobody", plugin="cpu")
    with pytest.raises(jaxexp.DeserializationError, match=r"name one of them, as in '.*fleet\.zip::NAME'"):
        Session(folder / "fleet.zip", plugin="cpu")


def test_a_session_of_an_archive_outlives_its_file(folder: Path, tmp_path: Path) -> None:
    copy = tmp_path / "fleet.zip"
    copy.write_bytes((folder / "fleet.zip").read_bytes())
    weights = Session(f"{copy}::model", plugin="cpu", stable=True).weights
    copy.unlink()
    close([np.asarray(weights[name]) for name in sorted(weights)], _sorted(params()))


def test_weights_that_are_missing(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "model.jaxexp").write_bytes((folder / "model.jaxexp").read_bytes())
    session = Session(tmp_path / "model.jaxexp", plugin="cpu")
    with pytest.raises(jaxexp.WeightsError) as missing:
        session(X)
    assert missing.value.file == str(tmp_path / "model.safetensors")


def test_eight_threads(folder: Path) -> None:
    """They load, compile, call and read at once, each its own session and one that all share."""
    shared = Session(folder / "model.jaxexp", plugin="cpu")
    rows = [np.full_like(X, n) for n in range(40)]
    expected = [np.asarray(apply(params(), row)) for row in rows]

    def work(n: int) -> bool:
        own = Session(folder / ("model.jaxexp" if n % 2 else "fleet.zip::model"), plugin="cpu")
        found = [session(row) for row in rows for session in (shared, own)]
        return all(np.allclose(one, expected[i // 2], rtol=1e-5) for i, one in enumerate(found))

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(work, range(8)))


def _sorted(tree: object) -> list[jax.Array]:
    return [array for _, array in sorted(named(tree).items())]

"""Sessions of programs with weights and with cases: beside them, in archives, and exchanged; and shared by threads."""

from __future__ import annotations

import dataclasses
import functools
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy

import jaxexp
from jaxexp import Drawn
from jaxexp.errors import DeserializationError, ExportError, PolicyError, RunError, WeightsError
from jaxexp.runtime import Session
from kit import without_jax
from kit.archive_files import make
from kit.each import each
from kit.weighted import X, apply, bound, close, named, params

without_jax.skip_without_plugin()
pytestmark = pytest.mark.jax


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("weights")
    model = bound()[0]
    model.save(folder / "model.jaxexp", vjp_order=1)
    other = {name: np.asarray(array) for name, array in named(params(seed=7)).items()}
    safetensors.numpy.save_file(other, folder / "other.safetensors")
    with jaxexp.Archive.create(folder / "fleet.zip") as archive:
        archive.add("model", model)
        archive.add("tuned", model.with_weights(other), cases=[(X,)])
        archive.add("sin", jaxexp.export(jax.jit(jnp.sin))(X))
        weights = params()
        archive.add("tanh", jaxexp.export(jax.jit(lambda x: jnp.tanh(apply(weights, x))), weights=weights)(X))
    return folder


def in_order(tree: object) -> list[jax.Array]:
    return [array for _, array in sorted(named(tree).items())]


def test_weights(folder: Path, tmp_path: Path) -> None:
    """They are found beside the artifact; others can be named; VJPs have them, too."""
    path, other = folder / "model.jaxexp", folder / "other.safetensors"
    session = Session(path, plugin="cpu")
    assert [value.path for value in session.arguments] == ["args[0]"]
    close([np.asarray(array) for _, array in sorted(session.weights.items())], in_order(params()))
    with pytest.raises(RunError, match="takes 1 positional argument beside its weights, and not 2"):
        session(X, X)
    data, unbound = path.read_bytes(), jaxexp.load(path).unbound.serialize()
    for found, seed in (
        (session, 0),
        (session.with_weights(other), 7),
        (Session(path, plugin="cpu", weights=other), 7),
        (Session(data, plugin="cpu", weights=str(other)), 7),
        (Session(unbound, plugin="cpu", weights=other), 7),
    ):
        close([found(X)], [apply(params(seed=seed), X)])
    safetensors.numpy.save_file({"other": X}, folder / "wrong.safetensors")
    for use in (session.with_weights, lambda file: Session(path, plugin="cpu", weights=file)):
        with pytest.raises(WeightsError, match=r"wrong\.safetensors.*expected a tensor of this name, found none"):
            use(folder / "wrong.safetensors")
    with pytest.raises(TypeError, match=r"weights= takes the path of a file \(Session\.with_weights takes arrays\)"):
        Session(path, plugin="cpu", weights={"w": X})  # type: ignore[arg-type]
    for wrong in (None, X, 3):
        with pytest.raises(TypeError, match="with_weights takes a file, a member of an archive, or arrays by name"):
            session.with_weights(wrong)
    given = {name: np.asarray(array) for name, array in named(params()).items()}
    with pytest.warns(UserWarning, match="given arrays that are not used: 'misspelt'") as warned:
        session.with_weights({**given, "misspelt": X})
    assert [one.filename for one in warned] == [__file__]
    close([Session(data, plugin="cpu")(given, X)], [apply(params(), X)])  # bytes take them as an argument
    with pytest.raises(RunError, match="takes no weights: its first argument is not a dict of arrays"):
        Session(folder / "fleet.zip::sin", plugin="cpu").with_weights(other)
    close([Session(folder / "fleet.zip::tanh", plugin="cpu")(X)], [jnp.tanh(apply(params(), X))])
    for one in (session, session.with_weights(folder / "fleet.zip::tuned")):
        with pytest.raises(RunError, match=r"has another program than .*::tanh.*: open that by Session"):
            one.with_weights(folder / "fleet.zip::tanh")
    (tmp_path / "model.jaxexp").write_bytes(data)
    for use in (lambda session: session(X), Session.compile):  # type: ignore[misc, assignment]
        with pytest.raises(WeightsError) as missing:
            use(Session(tmp_path / "model.jaxexp", plugin="cpu"))
        assert missing.value.file == str(tmp_path / "model.safetensors")
    expected, pullback = jax.vjp(apply, params(), X)
    of_weights, of_x = pullback(jnp.ones_like(expected))
    vjp = session.vjp()
    close(list(vjp(X, np.ones_like(expected))), [*in_order(of_weights), of_x])
    with pytest.raises(RunError, match=rf"args\[{len(given)}\] must have dtype float32"):
        vjp(X.astype(np.int32), np.ones_like(expected))


GIVEN: dict[str, Any] = {
    "a pytree": lambda folder: params(seed=7),
    "arrays by name": lambda folder: named(params(seed=7)),
    "of another byte order": lambda folder: {k: np.asarray(v, ">f4") for k, v in named(params(seed=7)).items()},
    "a session's": lambda folder: Session(folder / "fleet.zip::tuned", plugin="cpu").weights,
    "a member": lambda folder: f"{folder / 'fleet.zip'}::tuned",
    "a handle": lambda folder: jaxexp.Archive.open(folder / "fleet.zip")["tuned"],
    "a file": lambda folder: folder / "other.safetensors",
}


@each("what", GIVEN)
def test_weights_from_anywhere(what: str, folder: Path) -> None:
    session, given = Session(folder / "fleet.zip::model", plugin="cpu"), GIVEN[what](folder)
    expected = apply(params(seed=7), X)
    for found in (session.with_weights(given), session.with_weights(given, rename={}).with_weights(given)):
        close([found(X)], [expected])
        if what in ("a member", "a handle"):
            assert found.check().ok
            assert repr(found).startswith(f"<Session <lambda> of '{folder / 'fleet.zip'}::tuned' on cpu")
        else:
            place = repr(str(given)) if what == "a file" else "arrays"
            assert f"fleet.zip::model' with weights from {place} on cpu" in repr(found)
            with pytest.raises(RunError, match="has no cases of its own"):
                found.check()
    close([session(X)], [apply(params(), X)])


USES: dict[str, Any] = {
    "a session": lambda path: Session(path, plugin="cpu"),
    "its VJP": lambda path: (lambda vjp: lambda x: vjp(x, np.ones_like(apply(params(), X))))(
        Session(path, plugin="cpu").vjp()
    ),
    "JAX": lambda path: jaxexp.load(path).call,
    "JAX, in jit": lambda path: jax.jit(jaxexp.load(path).call),
}
WRITTEN: dict[str, tuple[Any, bool]] = {
    "over": (lambda path, other: shutil.copy(other, path), False),
    "shorter": (lambda path, other: path.write_bytes(b"oops"), False),
    "at its end": (lambda path, other: append(path), True),
    "another in its place": (lambda path, other: os.replace(other, path), True),
}


def append(path: Path) -> None:
    with jaxexp.Archive.append(path) as archive:
        archive.add("another", jaxexp.export(jax.jit(jnp.cos))(X))


@each("use, written", [(use, written) for use in USES for written in WRITTEN])
def test_an_archive_that_is_written_to_before_its_weights_are_used(use: str, written: str, tmp_path: Path) -> None:
    path, other = tmp_path / "fleet.zip", tmp_path / "other.zip"
    for file, seed in ((path, 0), (other, 7)):
        model = bound()[0].with_weights(params(seed=seed))
        with jaxexp.Archive.create(file) as archive:
            archive.add("model", model, vjp_order=1)
    expected = jax.block_until_ready(USES[use](f"{path}::model")(X))  # which reads weights until it is ready
    function = USES[use](f"{path}::model")
    write, is_right = WRITTEN[written]
    write(path, other)
    if is_right:
        close(jax.tree.leaves(function(X)), jax.tree.leaves(expected))
        return
    with pytest.raises(DeserializationError, match=r"fleet\.zip"):
        function(X)


def test_weights_that_do_not_fit(folder: Path) -> None:
    session, arrays = Session(folder / "fleet.zip::model", plugin="cpu"), named(params(seed=7))
    other = {f"m.{name}": array for name, array in arrays.items()}
    close([session.with_weights(other, rename=lambda name: f"m.{name}")(X)], [apply(params(seed=7), X)])
    wrong: list[tuple[Any, type[Exception], str]] = [
        (other, WeightsError, "'head': expected an array of this name, .* pass rename="),
        (f"{folder / 'fleet.zip'}::sin", WeightsError, r"fleet\.zip::sin': expected a member with weights"),
        (f"{folder / 'fleet.zip'}::none", KeyError, "none"),
        (folder / "missing.safetensors", FileNotFoundError, "missing"),
        (
            {**arrays, "head": np.zeros(3, np.float32)},
            WeightsError,
            r"the weights do not fit: tensor 'head': expected F32",
        ),
        ({**arrays, "head": "x"}, RunError, "the weight 'head' must be an array, found a str"),
        ({**arrays, "layers": {"0": {"w": X}}}, ExportError, "two of the given weights would be called"),
    ]
    for given, error, message in wrong:
        with pytest.raises(error, match=message):
            session.with_weights(given)
    with pytest.raises(FileNotFoundError, match="missing"):
        Session(folder / "model.jaxexp", plugin="cpu", weights=folder / "missing.safetensors")
    with pytest.raises(ExportError, match=r"rename= maps 'heads', .* did you mean 'head'"):
        session.with_weights(arrays, rename={"heads": "x"})


def test_members_of_archives(folder: Path, tmp_path: Path) -> None:
    """A session that is stable outlives the file."""
    copy = tmp_path / "fleet.zip"
    copy.write_bytes((folder / "fleet.zip").read_bytes())
    name = f"{copy}::model"
    stable = Session(name, plugin="cpu", stable=True)
    for session in (
        Session(name, plugin="cpu"),
        stable,
        Session(jaxexp.Archive.open(copy)["model"], plugin="cpu"),
    ):
        close([session(X)], [apply(params(), X)])
    close([Session(f"{copy}::sin", plugin="cpu")(X)], [np.sin(X)])
    with pytest.raises(KeyError, match="nobody"):
        Session(f"{copy}::nobody", plugin="cpu")
    with pytest.raises(DeserializationError, match=r"name one of them, as in '.*fleet\.zip::NAME'"):
        Session(copy, plugin="cpu")
    weights = Session(name, plugin="cpu", stable=True).weights
    copy.unlink()
    close([stable(X)], [apply(params(), X)])
    close([np.asarray(weights[name]) for name in sorted(weights)], in_order(params()))


def test_eight_threads(folder: Path) -> None:
    """They load, compile, call and read at once, each its own session and one that all share."""
    shared = Session(folder / "model.jaxexp", plugin="cpu")
    rows = [np.full_like(X, n) for n in range(20)]
    expected = [np.asarray(apply(params(), row)) for row in rows]

    def work(n: int) -> bool:
        own = Session(folder / ("model.jaxexp" if n % 2 else "fleet.zip::model"), plugin="cpu")
        found = [session(row) for row in rows for session in (shared, own)]
        return all(np.allclose(one, expected[i // 2], rtol=1e-5) for i, one in enumerate(found))

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(work, range(8)))


# --- cases that JAX recorded ----------------------------------------------------------------------------------------


@functools.cache
def functions() -> dict[str, tuple[Any, list[Any]]]:
    (b,) = jaxexp.symbolic_shape("b")
    spec = jax.ShapeDtypeStruct
    key = jax.random.key(3)
    symbolic = jaxexp.export(jax.jit(lambda x, n: (x @ x.T, n + 1)))(spec((b, 3), np.float32), spec((), np.int32))
    indexed = jaxexp.export(jax.jit(lambda x, i: x[i]))(spec((4,), jnp.bfloat16), spec((), np.int32))
    large = np.ones((200, 200), np.float32)
    return {
        "weights": (bound()[0], [(X,), {"args": (X,), "vjp_order": 1}]),
        "symbolic": (symbolic, [(Drawn((n, 3), "float32"), np.int32(n)) for n in (1, 4)]),
        "keys": (jaxexp.export(jax.jit(lambda k: (k, jax.random.bits(k))))(key), [(key,), (Drawn((), "key<fry>"),)]),
        "large": (jaxexp.export(jax.jit(lambda x: x + 1))(large), [(large,)]),
        "integers": (indexed, [{"args": (Drawn((4,), "bfloat16"), np.int32(2)), "vjp_order": 1}]),
    }


@each("name", ["weights", "symbolic", "keys", "large", "integers"])
def test_cases_hold_on_a_plugin(name: str, tmp_path: Path) -> None:
    function, cases = functions()[name]
    path = tmp_path / "f.jaxexp"
    function.save(path, vjp_order=1, cases=cases)
    report = Session(path, plugin="cpu").check()
    assert report.ok and len(report.cases) == len(cases), report
    assert report.checked["platform"] == "cpu"
    if not report.cases[0].vjp_order:  # VJPs are flat
        paths = [one.path for one in jaxexp.check(path).cases[0].results]
        assert [one.path for one in report.cases[0].results] == paths
    archive = make(tmp_path / "fleet.zip", {"m/f": path})
    path.unlink()
    assert Session(f"{archive}::m/f", plugin="cpu").check().ok


def test_what_a_session_says_of_cases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = Path("f.jaxexp")
    function, cases = functions()["symbolic"]
    function.save(path, vjp_order=1, cases=cases)
    session = Session(path, plugin="cpu")
    assert "allows 10 bytes" in str(session.check(max_drawn_bytes=10))
    with pytest.raises(RunError, match="has no cases of its own: check the session that was loaded"):
        session.vjp().check()
    for artifact in (path, path.read_bytes()):
        with pytest.raises(PolicyError, match="bytes of cases"):
            Session(artifact, plugin="cpu", policy=jaxexp.Policy(max_case_bytes=8))
    assert Session(path.read_bytes(), plugin="cpu").check().ok
    monkeypatch.chdir("/")
    assert len(session.check().cases) == 2, "the folder does not matter"
    monkeypatch.chdir(tmp_path)
    jaxexp.record(path, [{"args": cases[0], "trace": True, "tolerance": 0}], replace=True)
    with pytest.raises(DeserializationError, match="the file that the session was loaded from, found another"):
        session.check()
    text = jaxexp.load(path).mlir_module().replace("stablehlo.add", "stablehlo.subtract")
    dataclasses.replace(jaxexp.load(path), mlir_module_serialized=text.encode()).save(path, vjp_order=1)
    (case,) = Session(path, plugin="cpu").check().cases
    assert case.unnamed == "unknown, because only a check with JAX compares the recorded trace"
    jaxexp.load(path).save(path, trailer=False)
    assert Session(path, plugin="cpu").check().verdict == "no cases"

"""Sessions use only what is signed: artifacts, their weights, executables, archives, and files of cases."""

from __future__ import annotations

import gc
import json
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxexp
from jaxexp.errors import ExportError, SignatureError, WeightsError
from jaxexp.runtime import Session
from kit import without_jax
from kit.signing import RESULT, X, flip

without_jax.skip_without_plugin()


def session(name: Any, by: jaxexp.SignedBy, **options: Any) -> Session:
    return Session(name, plugin="cpu", signed_by=by, **options)


def member(folder: Path) -> str:
    return f"{folder / 'fleet.zip'}::models/one"


def test_signed_artifacts(keys: Path, by: jaxexp.SignedBy, tmp_path: Path) -> None:
    exported = jaxexp.export(jax.jit(jnp.sin))(X)
    exported.save(tmp_path / "sin.jaxexp")
    with jaxexp.Archive.create(tmp_path / "fleet.zip") as archive:
        archive.add("sin", exported)
    names: list[Any] = [tmp_path / "sin.jaxexp", f"{tmp_path / 'fleet.zip'}::sin"]
    for name in names:
        with pytest.raises(SignatureError):
            session(name, by)
    jaxexp.sign([tmp_path / "sin.jaxexp", tmp_path / "fleet.zip"], key=keys / "release.pem")
    for name in names:
        np.testing.assert_allclose(session(name, by)(X), np.sin(X), rtol=1e-5)
        with pytest.raises(SignatureError):
            session(name, jaxexp.SignedBy(public_key=keys / "other.pub"))
    (tmp_path / "sin.jaxexp").write_bytes((tmp_path / "sin.jaxexp").read_bytes() + b"more")
    with pytest.raises(SignatureError):
        session(tmp_path / "sin.jaxexp", by)


def test_weights(signed: Path, by: jaxexp.SignedBy, keys: Path) -> None:
    handle = jaxexp.Archive.open(signed / "fleet.zip", signed_by=by)["models/one"]
    models = [session(signed / "model.jaxexp", by), session(member(signed), by), Session(handle, plugin="cpu")]
    files = [Path(shutil.copy(signed / "model.safetensors", signed / f"{i}.safetensors")) for i in range(12)]
    jaxexp.sign(files, key=keys / "release.pem")
    with ThreadPoolExecutor(8) as threads:  # each file has its own signature
        models += threads.map(models[0].with_weights, files)
    shutil.rmtree(signed)  # all of it was read
    for model in models:
        np.testing.assert_allclose(model(X), RESULT, rtol=1e-5)


def test_a_changed_bit(signed: Path, by: jaxexp.SignedBy) -> None:
    """Also what nothing could parse is refused for its signature."""
    code = {"executables": signed / "model.exe"}
    uses: dict[str, Callable[[], Session]] = {
        "model.safetensors": lambda: session(signed / "model.jaxexp", by),
        "model.exe": lambda: session(signed / "model.jaxexp", by, **code),
        "fleet.zip": lambda: session(member(signed), by),
    }
    for name, use in uses.items():
        use()
        before = (signed / name).read_bytes()
        for wrong in (before[:-1] + bytes([before[-1] ^ 1]), b""):
            (signed / name).write_bytes(wrong)
            with pytest.raises(SignatureError, match=name):
                use()
        (signed / name).write_bytes(before)


def test_other_weights(signed: Path, by: jaxexp.SignedBy, keys: Path) -> None:
    """A file that the caller names needs a signature of its own, or a place in that of the artifact."""
    other = signed / "other.safetensors"
    shutil.copy(signed / "model.safetensors", other)
    model = session(signed / "model.jaxexp", by)
    for use in (lambda: session(signed / "model.jaxexp", by, weights=other), lambda: model.with_weights(other)):
        with pytest.raises(SignatureError, match=r"other\.safetensors"):
            use()
    jaxexp.sign([other], key=keys / "release.pem")
    for use in (lambda: session(signed / "model.jaxexp", by, weights=other), lambda: model.with_weights(other)):
        np.testing.assert_allclose(use()(X), RESULT, rtol=1e-5)


def test_weights_of_a_member(signed: Path, by: jaxexp.SignedBy, keys: Path, tmp_path: Path) -> None:
    """Its archive has to be signed, too, however it is named."""
    models = [session(signed / "model.jaxexp", by), session(member(signed), by)]
    shutil.copy(signed / "model.safetensors", signed / "other.safetensors")
    with jaxexp.Archive.create(tmp_path / "others.zip") as archive:
        archive.add("model", jaxexp.load(signed / "model.jaxexp"))
    other = f"{tmp_path / 'others.zip'}::model"
    for model in models:
        np.testing.assert_allclose(model.with_weights(member(signed))(X), RESULT, rtol=1e-5)
        with pytest.raises(SignatureError, match=r"others\.zip"):
            model.with_weights(other)
        with pytest.raises(ExportError, match=r"open its archive with Archive\.open\(path, signed_by=\.\.\.\)"):
            model.with_weights(jaxexp.Archive.open(tmp_path / "others.zip")["model"])
        with pytest.raises(SignatureError):
            model.with_weights(signed / "other.safetensors", rename={})
    jaxexp.sign([tmp_path / "others.zip"], key=keys / "release.pem")
    np.testing.assert_allclose(models[0].with_weights(other)(X), RESULT, rtol=1e-5)


def test_executables(signed: Path, by: jaxexp.SignedBy, keys: Path, tmp_path: Path) -> None:
    code = tmp_path / "session.exe"
    compiled = session(signed / "model.jaxexp", by)
    compiled(X)
    compiled.save_executable(code)
    with pytest.raises(SignatureError, match=r"session\.exe"):
        session(signed / "model.jaxexp", by, executables=code)
    jaxexp.sign([code], key=keys / "release.pem")
    model = session(signed / "model.jaxexp", by, executables=code)
    np.testing.assert_allclose(model(X), RESULT, rtol=1e-5)
    assert not model.why_compiled


def test_without_files(signed: Path, by: jaxexp.SignedBy) -> None:
    with pytest.raises(ExportError, match="signed_by is for files on this machine"):
        session((signed / "model.jaxexp").read_bytes(), by)
    (signed / "model.safetensors").unlink()
    with pytest.raises(WeightsError, match=r"model\.safetensors"):
        session(signed / "model.jaxexp", by)


def test_an_index_of_weights(signed: Path, by: jaxexp.SignedBy, keys: Path) -> None:
    """The signature of an index has the files that it names."""
    part, index = signed / "part.safetensors", signed / "all.safetensors.index.json"
    shutil.copy(signed / "model.safetensors", part)
    index.write_text(json.dumps({"metadata": {}, "weight_map": {"w": part.name}}))
    jaxexp.sign(index, key=keys / "release.pem")
    np.testing.assert_allclose(session(signed / "model.jaxexp", by, weights=index)(X), RESULT, rtol=1e-5)
    flip(part, -1)
    with pytest.raises(SignatureError, match=part.name):
        session(signed / "model.jaxexp", by, weights=index)
    with pytest.raises(WeightsError, match=part.name):
        jaxexp.sign(index, key=keys / "release.pem")


def test_cases(by: jaxexp.SignedBy, keys: Path, tmp_path: Path) -> None:
    x = np.ones((200, 200), np.float32)
    jaxexp.export(jax.jit(jnp.sin))(x).save(tmp_path / "sin.jaxexp", cases=[(x,)])
    with jaxexp.Archive.create(tmp_path / "fleet.zip") as archive:
        archive.add_file("sin", tmp_path / "sin.jaxexp")
    jaxexp.sign([tmp_path / "sin.jaxexp", tmp_path / "fleet.zip"], key=keys / "release.pem")
    models = [session(tmp_path / "sin.jaxexp", by), session(f"{tmp_path / 'fleet.zip'}::sin", by)]
    assert all(model.check().ok for model in models)
    beside = tmp_path / "sin.cases.safetensors"
    flip(beside, -1)
    with pytest.raises(SignatureError, match=beside.name):
        models[0].check()


def test_sessions_on_one_archive_have_it_once(
    by: jaxexp.SignedBy, keys: Path, tmp_path: Path, reads: list[str]
) -> None:
    """In memory, where the plugin uses the weights: of its members, and of an equal file; not of another one."""
    ones = {"w": np.ones((4, 1 << 16), np.float32)}
    exported = jaxexp.export(jax.jit(lambda w, x: x @ w["w"]))(ones, X)
    for file, value in (("one.zip", 1), ("equal.zip", 1), ("other.zip", 2)):
        with jaxexp.Archive.create(tmp_path / file) as archive:
            for name in "ab":
                archive.add(name, exported.bind({"w": value * ones["w"]}))
    shutil.copy(tmp_path / "one.zip", tmp_path / "equal.zip")
    jaxexp.sign([*tmp_path.glob("*.zip")], key=keys / "release.pem")
    first = session(f"{tmp_path / 'one.zip'}::a", by)
    others = [
        session(f"{tmp_path / name}", by) for name in ("one.zip::a", "one.zip::b", "equal.zip::b", "other.zip::a")
    ]
    places = [np.asarray(one.weights["w"]).ctypes.data for one in (first, *others)]
    assert [place == places[0] for place in places] == [True, True, True, True, False]
    assert reads == ["one.zip", "equal.zip", "other.zip"]
    before = np.asarray(first.weights["w"]).copy()
    derived = first.with_weights(f"{tmp_path / 'one.zip'}::b")
    del first, others[:3]
    gc.collect()
    np.testing.assert_array_equal(np.asarray(session(f"{tmp_path / 'one.zip'}::b", by).weights["w"]), before)
    assert len(reads) == 3, "a session that was made of another one has it, too"
    del derived
    gc.collect()
    session(f"{tmp_path / 'one.zip'}::b", by)
    assert len(reads) == 4

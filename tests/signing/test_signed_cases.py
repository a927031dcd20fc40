"""Cases of signed artifacts: their file is signed with them, and read only if it is what was signed."""

from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxexp
from jaxexp import _native
from jaxexp._weights.files.content import second_name

pytest.importorskip("model_signing", reason="comes with the extra 'sign'")


@pytest.fixture
def model(tmp_path: Path, keys: Path) -> Path:
    path = tmp_path / "model.jaxexp"
    exported = jaxexp.export(jax.jit(jnp.sin))(jax.ShapeDtypeStruct((200, 200), np.float32))
    exported.save(path, cases=[(np.ones((200, 200), np.float32),)])
    jaxexp.sign(path, key=keys / "release.pem")
    return path


def test_the_file_of_cases_is_signed(model: Path, by: jaxexp.SignedBy) -> None:
    assert jaxexp.check(model, signed_by=by).verdict == "equal"
    jaxexp.verify(model, signed_by=by)


def test_another_file_is_refused(model: Path, by: jaxexp.SignedBy) -> None:
    beside = model.with_name("model.cases.safetensors")
    blob = bytearray(beside.read_bytes())
    blob[-1] ^= 1
    beside.write_bytes(blob)
    for refused in (
        lambda: jaxexp.load(model, signed_by=by),
        lambda: jaxexp.verify(model, signed_by=by),
        lambda: jaxexp.load_many([model], signed_by=by),
    ):
        with pytest.raises(jaxexp.SignatureError, match=r"model\.cases\.safetensors"):
            refused()


def test_what_a_killed_process_left_is_not_signed(model: Path, keys: Path) -> None:
    """It moved no file to its own name, where there is an older one."""
    beside = model.with_name("model.cases.safetensors")
    before = beside.read_bytes()
    jaxexp.record(model, [(np.zeros((200, 200), np.float32),)])
    (_, _, ((name, _, content),), _) = _native.Artifact(model.read_bytes()).cases()
    beside.rename(model.with_name(second_name(name, content)))
    beside.write_bytes(before)
    model.with_name("model.jaxexp.sig").unlink()
    assert jaxexp.check(model).ok
    with pytest.raises(jaxexp.WeightsError, match="a process that died while it saved"):
        jaxexp.sign(model, key=keys / "release.pem")
    assert not model.with_name("model.jaxexp.sig").exists()
    jaxexp.record(model, [(np.ones((200, 200), np.float32),)])
    jaxexp.sign(model, key=keys / "release.pem")
    assert not list(model.parent.glob(".*"))

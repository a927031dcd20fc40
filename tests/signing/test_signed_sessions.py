"""Sessions take signed artifacts without weights; files that nobody compared with a signature are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxexp
from jaxexp.runtime import Session
from kit import without_jax
from kit.signing import X

without_jax.skip_without_plugin()


def test_signed_artifacts(keys: Path, by: jaxexp.SignedBy, tmp_path: Path) -> None:
    exported = jaxexp.export(jax.jit(jnp.sin))(X)
    exported.save(tmp_path / "sin.jaxexp")
    with jaxexp.Archive.create(tmp_path / "fleet.zip") as archive:
        archive.add("sin", exported)
    names: list[Any] = [tmp_path / "sin.jaxexp", f"{tmp_path / 'fleet.zip'}::sin"]
    for name in names:
        with pytest.raises(jaxexp.SignatureError):
            Session(name, plugin="cpu", signed_by=by)
    jaxexp.sign([tmp_path / "sin.jaxexp", tmp_path / "fleet.zip"], key=keys / "release.pem")
    for name in names:
        np.testing.assert_allclose(Session(name, plugin="cpu", signed_by=by)(X), np.sin(X), rtol=1e-5)
        with pytest.raises(jaxexp.SignatureError):
            Session(name, plugin="cpu", signed_by=jaxexp.SignedBy(public_key=keys / "other.pub"))
    (tmp_path / "sin.jaxexp").write_bytes((tmp_path / "sin.jaxexp").read_bytes() + b"more")
    with pytest.raises(jaxexp.SignatureError):
        Session(tmp_path / "sin.jaxexp", plugin="cpu", signed_by=by)


def test_what_no_signature_covers_here(signed: Path, by: jaxexp.SignedBy) -> None:
    model = signed / "model.jaxexp"
    for other in ({"executables": signed / "model.exe"}, {"weights": signed / "model.safetensors"}):
        with pytest.raises(jaxexp.ExportError, match="signed_by covers the artifact only"):
            Session(model, plugin="cpu", signed_by=by, **other)
    for name in (model, f"{signed / 'fleet.zip'}::models/one"):
        with pytest.raises(jaxexp.WeightsError, match=r"signed_by covers no weights here: jaxexp\.load reads signed"):
            Session(name, plugin="cpu", signed_by=by)
    with pytest.raises(jaxexp.ExportError, match="signed_by is for files on this machine"):
        Session(model.read_bytes(), plugin="cpu", signed_by=by)

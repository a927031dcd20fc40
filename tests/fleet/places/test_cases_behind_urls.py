"""Cases of an artifact behind a URL: their arrays are read from the file beside it."""

from __future__ import annotations

import secrets
from pathlib import Path

import fsspec
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxexp


def test_cases_behind_urls(tmp_path: Path) -> None:
    exported = jaxexp.export(jax.jit(jnp.sin))(jax.ShapeDtypeStruct((200, 200), np.float32))
    exported.save(tmp_path / "f.jaxexp", cases=[(np.ones((200, 200), np.float32),)])
    folder = f"memory://{secrets.token_hex(8)}"

    def put(name: str, data: bytes) -> str:
        with fsspec.open(f"{folder}/{name}", "wb") as file:
            file.write(data)
        return f"{folder}/{name}"

    url = put("f.jaxexp", (tmp_path / "f.jaxexp").read_bytes())
    assert jaxexp.check(url).verdict == "failed"
    beside = (tmp_path / "f.cases.safetensors").read_bytes()
    put("f.cases.safetensors", beside)
    assert jaxexp.check(url).verdict == "equal"
    jaxexp.verify(url)
    ((name, report),) = jaxexp.check_many([f"{folder}/"])
    assert (name, report.verdict) == (url, "equal")
    put("f.cases.safetensors", beside[:-1] + b"x")
    with pytest.raises(jaxexp.WeightsError, match="found the digest"):
        jaxexp.verify(url)

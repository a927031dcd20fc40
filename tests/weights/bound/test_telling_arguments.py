"""Arguments of functions with weights: whatever speaks of them counts them as a call does, without the weights."""

from __future__ import annotations

import html
import logging
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import jaxexp
from jaxexp.errors import SerializationError
from kit.archive_files import make
from kit.weighted import X, apply, params

KEY = jax.random.key(0)
TYPES = "7 weights; float32[4,32], key<fry>[], float32[]"


@pytest.fixture
def model() -> jaxexp.BoundExported:
    given = params()

    def fun(x: Any, key: Any, *, scale: Any) -> Any:
        return apply(given, x) + scale * jax.random.normal(key)

    return jaxexp.export(jax.jit(fun), weights=given)(X, KEY, scale=np.float32(1))


def test_inspection(model: jaxexp.BoundExported, tmp_path: Path) -> None:
    path = tmp_path / "model.jaxexp"
    model.save(path)
    found = jaxexp.inspect(path)
    paths = [value.path for value in found.arguments]
    assert paths[:2] == ["weights['head']", "weights['layers/0/b']"]
    assert paths[7:] == ["args[0]", "args[1]", "kwargs['scale']"]
    lines = str(found).splitlines()
    assert [line.split() for line in lines if line.startswith("  argument")] == [
        ["argument", "0", "float32[4,32]"],
        ["argument", "1", "key<fry>[]"],
        ["argument", "2", "float32[]"],
    ]
    program = jaxexp.inspect(model.unbound.serialize())
    assert [value.path for value in program.arguments][6:8] == ["args[0]['layers/2/w']", "args[1]"]


def test_cards(model: jaxexp.BoundExported) -> None:
    shown: Any = model._repr_html_()  # type: ignore[operator]
    assert "args[0]" not in model.unbound.fun_name
    for text in (">args<", ">[0]<", ">[1]<", ">layers<", ">/w<"):
        assert text in shown
    assert ">[2]<" not in shown


def test_what_an_old_release_cannot_read(model: jaxexp.BoundExported, tmp_path: Path) -> None:
    with pytest.raises(SerializationError, match=r"args\[1\] has dtype key<fry>; .*jax\.random\.wrap_key_data$"):
        model.save(tmp_path / "model.jaxexp", compatibility="0.5.0")
    given = params()
    taking = jax.jit(lambda x, key: apply(given, x) + jax.random.normal(key))
    with pytest.raises(SerializationError, match=r"args\[1\] has dtype key<fry>"):
        jaxexp.export(taking, weights=given, compatibility="0.5.0")(X, KEY)


def test_members_of_archives(model: jaxexp.BoundExported, tmp_path: Path) -> None:
    path = make(tmp_path / "fleet.zip", {"model": model, "program": model.unbound})
    with jaxexp.Archive.open(path) as fleet:
        summary = fleet["model"].summary
        assert (summary.weight_count, summary.argument_count) == (7, 3)
        assert summary.arguments == ("float32[4,32]", "key<fry>[]", "float32[]")
        assert f"({TYPES})" in str(summary)
        assert f"({TYPES})" in repr(fleet["model"])
        assert html.escape(f"({TYPES})") in fleet._repr_html_()
        card = fleet["model"]._repr_html_()
        assert "<dt>weights</dt><dd>7</dd><dt>3 arguments</dt><dd>float32[4,32], key" in card
        program = fleet["program"].summary
        assert (program.weight_count, program.argument_count) == (0, 10)
        assert program.arguments[0] == "float32[32,8]"


def test_executables(model: jaxexp.BoundExported, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path, exe = tmp_path / "model.jaxexp", tmp_path / "model.exe"
    model.save(path)
    (made,) = jaxexp.load(path).precompile(into=exe)
    assert f" of {TYPES}: not used" in repr(made)
    loaded = jaxexp.load(path, executables=exe)
    with caplog.at_level(logging.INFO, "jaxexp.executables"):
        loaded.call(X, KEY, scale=np.float32(1))
    assert f"for {TYPES}" in caplog.text
    (used,) = loaded.executables
    assert f" of {TYPES}: used" in repr(used)

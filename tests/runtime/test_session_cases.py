"""Cases that JAX recorded, checked by sessions on a plugin: with weights, VJPs, keys and symbolic shapes."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import jaxexp
from jaxexp import Drawn
from jaxexp.runtime import Session
from kit import without_jax
from kit.weighted import X, bound

without_jax.skip_without_plugin()


def functions() -> dict[str, tuple[Any, list[Any]]]:
    (b,) = jaxexp.symbolic_shape("b")
    spec = jax.ShapeDtypeStruct
    key = jax.random.key(3)
    return {
        "weights": (bound()[0], [(X,), {"args": (X,), "vjp_order": 1}]),
        "symbolic": (
            jaxexp.export(jax.jit(lambda x, n: (x @ x.T, n + 1)))(spec((b, 3), np.float32), spec((), np.int32)),
            [(Drawn((n, 3), "float32"), np.int32(n)) for n in (1, 4)],
        ),
        "keys": (jaxexp.export(jax.jit(lambda k: (k, jax.random.bits(k))))(key), [(key,), (Drawn((), "key<fry>"),)]),
        "large": (
            jaxexp.export(jax.jit(lambda x: x + 1))(spec((200, 200), np.float32)),
            [(np.ones((200, 200), np.float32),)],
        ),
        "integers": (
            jaxexp.export(jax.jit(lambda x, i: x[i]))(spec((4,), jax.numpy.bfloat16), spec((), np.int32)),
            [{"args": (Drawn((4,), "bfloat16"), np.int32(2)), "vjp_order": 1}],
        ),
    }


@pytest.mark.parametrize("name", ["weights", "symbolic", "keys", "large", "integers"])
def test_the_same_on_a_plugin(name: str, tmp_path: Path) -> None:
    function, cases = functions()[name]
    path = tmp_path / "f.jaxexp"
    function.save(path, vjp_order=1, cases=cases)
    report = Session(path, plugin="cpu").check()
    assert report.ok, report
    assert len(report.cases) == len(cases)
    assert report.checked["platform"] == "cpu"
    assert [one.path for one in report.cases[0].results] == [
        one.path for one in jaxexp.check(path).cases[0].results
    ] or report.cases[0].vjp_order  # VJPs are flat


@pytest.mark.parametrize("name", ["weights", "large"])
def test_members_of_archives(name: str, tmp_path: Path) -> None:
    function, cases = functions()[name]
    function.save(tmp_path / "f.jaxexp", vjp_order=1, cases=cases)
    with jaxexp.Archive.create(tmp_path / "fleet.zip") as archive:
        archive.add_file("m/f", tmp_path / "f.jaxexp")
    (tmp_path / "f.jaxexp").unlink()
    member = f"{tmp_path / 'fleet.zip'}::m/f"
    assert Session(member, plugin="cpu").check().ok
    with jaxexp.Archive.open(tmp_path / "fleet.zip") as archive:
        assert Session(archive["m/f"], plugin="cpu").check().ok


def test_what_a_session_says(tmp_path: Path) -> None:
    path = tmp_path / "f.jaxexp"
    function, cases = functions()["symbolic"]
    function.save(path, vjp_order=1, cases=cases)
    session = Session(path, plugin="cpu")
    assert "allows 10 bytes" in str(session.check(max_drawn_bytes=10))
    with pytest.raises(jaxexp.RunError, match="has no cases of its own: check the session that was loaded"):
        session.vjp().check()
    for artifact in (path, path.read_bytes()):
        with pytest.raises(jaxexp.PolicyError, match="bytes of cases"):
            Session(artifact, plugin="cpu", policy=jaxexp.Policy(max_case_bytes=8))
    assert Session(path.read_bytes(), plugin="cpu").check().ok
    jaxexp.record(path, [{"args": cases[0], "trace": True, "tolerance": 0}], replace=True)
    text = jaxexp.load(path).mlir_module().replace("stablehlo.add", "stablehlo.subtract")
    dataclasses.replace(jaxexp.load(path), mlir_module_serialized=text.encode()).save(path, vjp_order=1)
    (case,) = Session(path, plugin="cpu").check().cases
    assert case.unnamed == "a trace was recorded, which a check by JAX compares"
    jaxexp.load(path).save(path, trailer=False)
    assert Session(path, plugin="cpu").check().verdict == "no cases"


def test_the_file_is_another_one_now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    function, cases = functions()["large"]
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        function.save(tmp_path / folder / "f.jaxexp", cases=cases if folder == "a" else [*cases, *cases])
    monkeypatch.chdir(tmp_path / "a")
    session = Session("f.jaxexp", plugin="cpu")
    monkeypatch.chdir(tmp_path / "b")
    assert len(session.check().cases) == 1, "the folder does not matter"
    function.save(tmp_path / "a" / "f.jaxexp")
    with pytest.raises(jaxexp.DeserializationError, match="the file that the session was loaded from, found another"):
        session.check()

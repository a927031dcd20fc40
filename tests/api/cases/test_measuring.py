"""Tolerances that are measured: what other ways to compute the same do passes, and what is wrong does not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import jaxexp
from jaxexp import Case, Drawn
from jaxexp._api.cases import measuring
from jaxexp._api.cases.comparing import compared
from jaxexp._cli import start
from jaxexp._readback import in_float64
from kit.conditions import ILL, WELL, normal
from kit.weighted import X, bound

pytestmark = pytest.mark.jax
ALL = {**ILL, **WELL}


def recorded(function: Any, *arguments: Any, path: Path, **options: Any) -> Case:
    order = options.get("vjp_order", 0)
    options.setdefault("tolerance", "measured")
    jaxexp.export(jax.jit(function))(*arguments).save(
        path / "f.jaxexp", vjp_order=order, cases=[{"args": arguments, **options}]
    )
    (case,) = jaxexp.load(path / "f.jaxexp").cases
    return case


def verdict(case: Case, found: Any, index: int = 0, *, measured: bool = True) -> str:
    value = case.results[index]
    tolerance = value.tolerance if measured else None
    return compared("result", value.dtype, value.array(), np.asarray(found), tolerance, "recording").verdict


def units(case: Case, index: int = 0) -> float:
    """What is allowed of the largest number of a result, in units of the last place."""
    value = case.results[index]
    largest = float(np.abs(value.array().astype(np.complex128)).max())
    allowed = value.tolerance.absolute + value.tolerance.relative * largest
    return allowed / largest / float(jnp.finfo(value.array().dtype).eps)


@pytest.mark.wide(one_in=3, promise="measured tolerances take rounding errors, and nothing that is wrong")
@pytest.mark.parametrize("name", ALL)
def test_tolerances(name: str, tmp_path: Path) -> None:
    """Other ways to compute the same pass; with one constant for all functions, unstable ones would not. In a stable
    function, a few hundred units in the last place are too much; in others, a thousand times what rounding does here.
    """
    one = ALL[name]
    case = recorded(one.function, *one.arguments, path=tmp_path)
    found = np.asarray(jax.jit(one.other)(*one.arguments))
    assert case.recorded["measured by"].startswith("float64"), case.recorded
    assert case.measured == {0}
    assert verdict(case, found) in ("equal", "close")
    assert (verdict(case, found, measured=False) == "differs") is one.is_ill
    right = case.results[0].array()
    if name in WELL:
        assert units(case) < 100
        assert verdict(case, right * np.float32(1 + 300 * 2.0**-23)) == "differs"
        assert "unstable" not in case.recorded
    elif name in ("variance", "alternating sum", "softmax of large sums"):
        apart = np.abs(found - right.astype(np.float64)).max()
        assert verdict(case, (right + 1000 * apart).astype(np.float32)) == "differs"
        assert "rounding errors take the others" in case.recorded["unstable"]


FLAGS = [
    "--xla_disable_hlo_passes=fusion,algsimp",
    "--xla_cpu_enable_fast_math=true",
    "--xla_backend_optimization_level=0",
]
_CHECK = """
import sys, json, jaxexp
print(json.dumps({p: jaxexp.check(p, tolerance=None).verdict for p in sys.argv[1:]}))
"""


@pytest.mark.long(
    promise="what is compiled with other flags of XLA passes a check", sibling="test_measuring.py::test_tolerances"
)
@pytest.mark.parametrize("flags", FLAGS)
def test_other_flags(flags: str, tmp_path: Path) -> None:
    absorbed = lambda x: (1e8 + x) - 1e8  # noqa: E731
    simplified = type(ILL["absorbed"])(absorbed, ILL["absorbed"].arguments, absorbed)
    for name, one in {**ALL, "simplified": simplified}.items():
        for tolerance in ("measured", "dtype"):
            folder = tmp_path / f"{name} {tolerance}"
            folder.mkdir()
            recorded(one.function, *one.arguments, path=folder, tolerance=tolerance)
    found = subprocess.run(
        [sys.executable, "-c", _CHECK, *map(str, sorted(tmp_path.glob("*/*.jaxexp")))],
        env={**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=True,
    )
    verdicts = {Path(path).parent.name: one for path, one in json.loads(found.stdout).items()}
    assert {name for name, one in verdicts.items() if one == "differs" and name.endswith("measured")} == set()
    if "algsimp" in flags:
        assert verdicts["variance dtype"] == "differs"
        if jax.__version_info__ < (0, 12):  # since then, XLA does not take 1e8 away from both
            assert verdicts["simplified dtype"] == "differs"


def test_formula() -> None:
    """What docs/guide/check.md says."""
    samples = measuring._Samples(
        near=[[np.array([1.0, 8.0], np.float32)]],
        exact=[[np.array([1.0 + 2.0**-20, 8.0])], [np.array([1.0 + 2.0**-21, 8.0])]],
        noisy=lambda _: [[np.array([1.0 + 2.0**-20, 8.0 + 2.0**-18])]],
    )
    found = measuring._Result(0, np.array([1.0, 8.0], np.float32), samples).tolerance()
    assert found.absolute == pytest.approx(float(jnp.finfo(np.float32).smallest_normal), rel=0.1)
    assert 4 * 2.0**-20 + 4 * 2.0**-23 <= found.relative <= 1.15 * (4 * 2.0**-20 + 4 * 2.0**-23)
    samples = measuring._Samples(
        near=samples.near,
        exact=samples.exact,
        noisy=lambda power: [[np.array([1.0 + 2.0**-20 + 2.0 ** (power - 8), 8.0])]],
    )
    found = measuring._Result(0, np.array([1.0, 8.0], np.float32), samples).tolerance()
    exact = 4 * (2.0**-20 + 2.0**-8) + 4 * 2.0**-23
    assert exact <= found.relative + found.absolute <= 1.15 * exact + 32 * 2.0**-23


def test_decisions_are_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def decides(x: jax.Array) -> tuple[jax.Array, ...]:
        return jnp.argmax(x), jnp.round(x.sum()), jnp.where(x[0] > x[1], 100.0, 200.0) * x

    x = np.array([1, 1 - 2**-24, 0.5], np.float32)
    case = recorded(decides, x, path=tmp_path)
    assert case.measured == {1, 2}
    assert case.results[0].tolerance is None
    assert units(case, 1) < 100
    assert units(case, 2) < 100
    notes = case.recorded["unstable"].split("; ")
    assert notes[0].startswith("result[0] may change (1 of 1 numbers) when arguments change by one unit in the last")
    assert notes[1].startswith("result[1] jumps by 1 when")
    assert notes[2].startswith("result[2] jumps by 1e+02 when")
    np.save(tmp_path / "x.npy", x)
    capsys.readouterr()
    assert start.main(["record", str(tmp_path / "f.jaxexp"), str(tmp_path / "x.npy"), "--tolerance", "measured"]) == 0
    assert capsys.readouterr().out.splitlines()[1:] == [f"  {note}" for note in notes]


def test_a_kink_is_no_decision(tmp_path: Path) -> None:
    x = np.array([0.0, 1e-7, -1e-7, 3.0], np.float32) + 100
    case = recorded(lambda x: jax.nn.relu(x - 100) + 1, x, path=tmp_path)
    assert "jumps" not in case.recorded.get("unstable", "")


def test_float64(tmp_path: Path) -> None:
    """There is nothing wider: a float64 gets the default, and what perturbed arguments do. Float32 may be infinite."""
    case = recorded(lambda x: (jnp.exp(x) / jnp.exp(x).sum(), x), np.array([1.0, 100.0], np.float32), path=tmp_path)
    assert "result[0] is NaN or infinite where it is not in float64" in case.recorded["unstable"]
    assert jaxexp.check(tmp_path / "f.jaxexp").verdict == "equal"
    with jax.enable_x64(True):
        case = recorded(lambda x: (jnp.sin(x), x - 1), np.array([1.0, 1 + 1e-6]), path=tmp_path)
    assert case.recorded["measured by"] == "3 perturbed runs, not float64: the results are float64"
    assert units(case) > 64
    assert units(case, 1) > 1e6 / 4
    assert jaxexp.check(tmp_path / "f.jaxexp").verdict == "equal"


@pytest.mark.parametrize(("name", "value"), [("MOST_BYTES", 10), ("MOST_EQUATIONS", 0)])
def test_large_functions(name: str, value: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr(in_float64 if name == "MOST_EQUATIONS" else measuring, name, value)
    case = recorded(jnp.sin, normal(4), path=tmp_path)
    assert case.recorded["measured by"].startswith("3 perturbed runs, not float64: ")
    assert "more than" in case.recorded["measured by"]
    assert 64 < units(case) < 500
    capsys.readouterr()
    assert start.main(["record", str(tmp_path / "f.jaxexp"), "--random", "--tolerance", "measured"]) == 0
    said = capsys.readouterr().out.splitlines()[1]
    assert said.startswith("  tolerances measured by 3 perturbed runs, not float64: ")


def test_nothing_to_move(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without float arguments, rounding errors remain; without float64 as well, the default of the dtype does."""
    words = np.arange(1, 5, dtype=np.int32)
    case = recorded(lambda n: jnp.sin(n * 0.1), words, path=tmp_path)
    assert case.recorded["measured by"] == "float64, 3 runs with rounding errors, 0 perturbed runs"
    assert 4 <= units(case) < 100
    monkeypatch.setattr(measuring, "MOST_BYTES", 10)
    case = recorded(lambda n: jnp.sin(n * 0.1), words, path=tmp_path)
    assert (case.results[0].tolerance, case.measured) == (None, frozenset())
    assert case.recorded["measured by"].startswith("nothing: 0 perturbed runs, not float64: ")
    assert jaxexp.check(tmp_path / "f.jaxexp").cases[0].results[0].tolerance_of == "dtype"


def test_nothing_is_measured_that_was_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "_Call", None)
    for tolerance in (None, "dtype", 1e-3, {"result": 1e-3}, {}, {"result": "dtype"}):
        case = recorded(jnp.sin, normal(4), path=tmp_path, tolerance=tolerance)
        assert case.recorded.keys().isdisjoint({"measured", "measured by", "unstable"})
    case = recorded(lambda n: n + 1, np.arange(3, dtype=np.int32), path=tmp_path)
    assert "measured by" not in case.recorded


def test_some_results_are_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """And what takes long says so, as it goes on."""

    def pair(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        return jnp.sin(x), jnp.cos(x)

    assert recorded(pair, normal(4), path=tmp_path, tolerance={"result[1]": "measured"}).measured == {1}
    assert not caplog.records
    monkeypatch.setattr(measuring, "PATIENCE", 0.0)
    recorded(pair, normal(4), path=tmp_path, name="mine")
    said = [record.getMessage() for record in caplog.records if record.name == "jaxexp.cases"]
    assert said[0] == "recording case 'mine' of pair: measuring tolerances, as asked for: run 1 of about 10 is done"
    assert len(said) >= 10


def test_complex_numbers(tmp_path: Path) -> None:
    """Without a warning of NumPy, or of JAX in its words; and in float64."""
    x = (normal(64) + 1j * normal(64)).astype(np.complex64)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        case = recorded(lambda x: {"sum": x.sum(), "dot": x @ x, "fft": jnp.fft.fft(x)}, x, path=tmp_path)
        gradient = recorded(lambda x: jnp.cumsum(x) * (1 + 2j), x, path=tmp_path, vjp_order=1)
    assert [str(one.message) for one in caught if issubclass(one.category, np.exceptions.ComplexWarning)] == []
    for one in (case, gradient):
        assert one.recorded["measured by"].startswith("float64"), one.recorded
        assert all(4 < units(one, i) < 200 for i in one.measured)


def test_weights_and_derivatives(tmp_path: Path) -> None:
    model, _ = bound()
    cases = [{"args": (X,), "vjp_order": order, "tolerance": "measured"} for order in (0, 1)]
    model.save(tmp_path / "m.jaxexp", vjp_order=1, cases=cases)
    for case in jaxexp.load(tmp_path / "m.jaxexp").cases:
        assert case.recorded["measured by"].startswith("float64"), case.recorded
        assert case.measured
    assert jaxexp.check(tmp_path / "m.jaxexp").verdict == "equal"


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float32, np.float64, np.complex64])
def test_arguments_nearby(dtype: Any) -> None:
    array: Any = (Drawn((100,), "float64").array() * (1 + 0j if np.dtype(dtype).kind == "c" else 1)).astype(dtype)
    array[:3] = [0, float("inf"), float("nan")]
    near: Any = measuring.perturbed(array, 7)
    assert (near.dtype, near[:3].tobytes()) == (array.dtype, array[:3].tobytes())
    parts = [(array.real, near.real), (array.imag, near.imag)] if array.dtype.kind == "c" else [(array, near)]
    one, other = parts[0]
    apart = other[3:].astype(np.float64) - one[3:].astype(np.float64)
    units = np.abs(apart / np.spacing(np.abs(one[3:])).astype(np.float64))
    assert {*units} <= {0.5, 1.0}
    assert 20 < np.count_nonzero(apart > 0) < 77
    assert near.tobytes() == measuring.perturbed(array, 7).tobytes()
    assert np.any(near[3:] != measuring.perturbed(array, 8)[3:])
    defined = measuring.perturbed(np.ones(8, np.float32), 1 << 32)
    assert defined.tolist() == [1 + 2.0**-23 if bit else 1 - 2.0**-24 for bit in (1, 1, 0, 1, 0, 0, 0, 0)]
    for other in (np.arange(3), np.array([True]), np.zeros((0, 2), np.float32), np.array(3, ml_dtypes.int4)):
        assert measuring.perturbed(other, 1) is other


def test_dtypes(tmp_path: Path) -> None:
    for dtype in (np.float16, ml_dtypes.bfloat16, np.float32, np.complex64):
        case = recorded(lambda x: x @ x, normal(8, 8).astype(dtype), path=tmp_path)
        assert case.recorded["measured by"].startswith("float64"), dtype
        assert 4 < units(case) < 100, dtype


def test_float64_is_compiled_once_for_all_cases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_float64, "in_float64", compiled := Mock(side_effect=in_float64.in_float64))
    exported = jaxexp.export(jax.jit(jnp.sin))(jax.ShapeDtypeStruct(jaxexp.symbolic_shape("n"), np.float32))
    exported.save(tmp_path / "f.jaxexp", cases=[{"args": (normal(n),), "tolerance": "measured"} for n in (3, 4, 3)])
    assert compiled.call_count == 2
    assert jaxexp.load(tmp_path / "f.jaxexp").check().ok
    assert compiled.call_count == 2

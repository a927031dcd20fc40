"""What a check says of results that differ: which numbers, how far, and who allows it."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import jaxexp
from jaxexp import Drawn, Tolerance
from jaxexp._api.cases.comparing import compared
from jaxexp._api.cases.report import CheckReport

NAN, INF = float("nan"), float("inf")


def of(expected: Any, found: Any, dtype: Any = np.float32, tolerance: Any = None) -> Any:
    dtype = np.dtype(dtype)
    tolerance = None if tolerance is None else Tolerance.of(tolerance)
    return compared("result", dtype.name, np.array(expected, dtype), np.array(found, dtype), tolerance, "dtype")


def test_floats() -> None:
    for expected, found, tolerance, verdict in (
        ([1, NAN, INF, -INF], [1, NAN, INF, -INF], None, "equal"),
        ([1.0, 100.0], [1.0 + 2**-23, 100.0], None, "close"),
        ([1.0, 100.0], [1.001, 100.0], None, "differs"),
        ([1.0, 100.0], [1.001, 100.0], 1e-2, "close"),
        ([1.0, 100.0], [1.001, 100.0], (0, 1e-2), "close"),
        ([1.0, 100.0], [1.0 + 2**-23, 100.0], 0, "differs"),
        ([0.0], [-0.0], 0, "close"),
        ([1.0], [NAN], 1e9, "differs"),
        ([NAN], [1.0], 1e9, "differs"),
        ([INF], [-INF], 1e9, "differs"),
        ([INF], [3e38], 1e9, "differs"),
        ([], [], 0, "equal"),
    ):
        assert of(expected, found, tolerance=tolerance).verdict == verdict, (expected, found, tolerance)
    large = 1.3e308 + 1.3e308j  # whose magnitude overflows
    for tolerance in (None, 1e-6):
        assert of([large, 1], [0, 1], np.complex128, tolerance).verdict == "differs"
        assert of([large, 1], [large * (1 + 2**-52), 1], np.complex128, tolerance).verdict == "close"


def test_what_is_left_beside_a_nan() -> None:
    for expected, found, verdict in (
        (complex(NAN, 1), complex(NAN, 1.5), "differs"),
        (complex(NAN, 1), complex(NAN, 1 + 2**-23), "close"),
        (complex(1, NAN), complex(2, NAN), "differs"),
        (complex(NAN, 1), complex(1, NAN), "differs"),
        (complex(NAN, NAN), complex(NAN, 1), "differs"),
        (complex(NAN, INF), complex(NAN, -INF), "differs"),
    ):
        assert of([1, expected], [1, found], np.complex64).verdict == verdict, (expected, found)


def test_narrow_floats_have_a_default() -> None:
    """NumPy calls float8_e5m2 a float, and does not know its last place."""
    for dtype, allowed in (
        (np.float32, 64 * 2**-23),
        (np.float16, 1 / 64),
        (ml_dtypes.bfloat16, 1 / 64),
        (ml_dtypes.float8_e5m2, 1 / 4),
        (ml_dtypes.float8_e4m3fn, 1 / 8),
    ):
        one = of([1.0, 0.0], [1.5, 0.0], dtype)
        assert (one.allowed, one.verdict) == (allowed, "differs"), dtype


def test_where_and_how_far() -> None:
    one = of([[1.0, 2.0], [3.0, NAN]], [[1.0, 2.5], [NAN, NAN]])
    assert (one.verdict, one.size, one.differing, one.unequal, one.nans, one.infinities) == ("differs", 4, 2, 2, 1, 0)
    assert (one.at, one.expected, one.found) == ((1, 0), "3.0", "nan")  # a pattern is worse than a number
    assert (one.max_absolute, one.max_relative, one.max_ulps) == (0.5, 0.25, 1 << 21)
    assert "2 of 4 numbers differ by at most 0.5" in str(one)
    assert "1 NaN on one side only; at [1, 0] recorded 3.0, found nan" in str(one)
    one = of([1.0, 1000.0], [1.1, 1000.5], tolerance=(0, 0.2))
    assert (one.at, one.expected, one.found) == ((1,), "1000.0", "1000.5")
    assert one.allowed == 0.2


def test_units_in_the_last_place() -> None:
    for dtype, one, other, ulps in (
        (np.float64, 1.0, 1.0 + 2**-52, 1),
        (np.float32, 1.0, 1.0 - 2**-24, 1),
        (np.float32, -1e-45, 1e-45, 2),
        (np.float16, 1.0, 2.0, 1 << 10),
        (ml_dtypes.bfloat16, 1.0, 2.0, 1 << 7),
        (ml_dtypes.float8_e5m2, -1.0, 1.0, 2 * 15 * 4),
        (np.complex64, 1j, (1 + 2**-23) * 1j, 1),
    ):
        assert of([one], [other], dtype, tolerance=0).max_ulps == ulps, (dtype, one)


def test_integers_are_equal_or_differ() -> None:
    for dtype in (np.bool_, np.int8, np.uint64, ml_dtypes.int4):
        one = of([0, 1, 1], [0, 0, 1], dtype)
        assert (one.verdict, one.differing, one.at, one.max_absolute) == ("differs", 1, (1,), 1.0), dtype
        assert of([0, 1, 1], [0, 0, 1], dtype, tolerance=(0, 1)).verdict == "close", dtype
    one = of([2**64 - 1], [2**64 - 2], np.uint64)  # not rounded
    assert (one.verdict, one.max_absolute, one.expected) == ("differs", 1.0, str(2**64 - 1))


def test_other_types_are_said() -> None:
    one = compared("r", "float32", np.zeros(2, np.float32), np.zeros((1, 2), np.float64), None, "dtype")
    assert (one.verdict, one.why) == ("differs", "recorded float32[2], found float64[1,2]")


def f(x: jax.Array, y: jax.Array) -> dict[str, jax.Array]:
    return {"loss": jnp.sum(jnp.sin(x) @ y), "most": jnp.argmax(x, axis=1), "sum": (x + 0.125).sum(axis=0)}


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: Any) -> jaxexp.Exported:
    path = tmp_path_factory.mktemp("changed") / "f.jaxexp"
    spec = jax.ShapeDtypeStruct
    exported = jaxexp.export(jax.jit(f))(spec((3, 3), np.float32), spec((3, 2), np.float32))
    exported.save(path, cases=[{"args": (Drawn((3, 3), "float32"), Drawn((3, 2), "float32", seed=1)), "name": "drawn"}])
    return jaxexp.load(path)


@pytest.mark.jax
@pytest.mark.parametrize(
    ("old", "new", "result"),
    [
        ("stablehlo.sine", "stablehlo.cosine", "loss"),
        ("dense<1.250000e-01>", "dense<1.260000e-01>", "sum"),
        ("across dimensions = [0] :", "across dimensions = [1] :", "sum"),
    ],
)
def test_a_changed_module_is_found(loaded: jaxexp.Exported, old: str, new: str, result: str) -> None:
    text = loaded.mlir_module()
    assert old in text, text
    changed = dataclasses.replace(loaded, mlir_module_serialized=text.replace(old, new).encode())
    report = changed.check()
    assert report.verdict == "differs"
    (case,) = report.cases
    assert [one.path for one in case.results if one.verdict == "differs"] == [f"result['{result}']"]
    (wrong,) = (one for one in case.results if one.verdict == "differs")
    expected = dict(zip(("loss", "most", "sum"), loaded.cases[0].results, strict=True))[result].array()
    assert wrong.expected == str(expected[wrong.at])
    assert wrong.found != wrong.expected
    for said in ("drawn: 1 of 3 results differs", f"result['{result}']", f"recorded {wrong.expected}, found", "jax "):
        assert said in str(report)
    html = report._repr_html_()
    assert "differs" in html and f"found {wrong.found}" in html


def test_other_flags_are_said(loaded: jaxexp.Exported, monkeypatch: pytest.MonkeyPatch) -> None:
    text = loaded.mlir_module().replace("stablehlo.sine", "stablehlo.cosine")
    changed = dataclasses.replace(loaded, mlir_module_serialized=text.encode())
    assert "XLA_FLAGS" not in str(changed.check())
    before = os.environ.get("XLA_FLAGS", "")
    monkeypatch.setenv("XLA_FLAGS", "--xla_other=true")
    recorded, checked = str(changed.check()).splitlines()[-2:]
    assert f", XLA_FLAGS {' '.join(sorted(before.split()))}"[:100] in recorded  # long texts are cut
    assert checked.endswith(", XLA_FLAGS --xla_other=true")


def test_a_report_that_came_from_others(loaded: jaxexp.Exported) -> None:
    """A journal, or a process that was asked, may say anything."""
    said = loaded.check().to_json()
    for change in ({"cases": None}, {"cases": [{}]}, {"checked": 7}):
        with pytest.raises((LookupError, TypeError, ValueError, AttributeError)):
            CheckReport.from_json({**said, **change})
    wrong = {**said["cases"][0]["results"][0], "verdict": "fine"}
    with pytest.raises(ValueError, match="fine"):
        CheckReport.from_json({**said, "cases": [{**said["cases"][0], "results": [wrong]}]})


def test_names_are_escaped(tmp_path: Path) -> None:
    exported = jaxexp.export(jax.jit(lambda x: {"\x1b[2J": x}))(np.float32(1))
    exported.save(tmp_path / "f.jaxexp", cases=[{"args": (np.float32(1),), "name": "\x1b]0;title\x07"}])
    report = jaxexp.check(tmp_path / "f.jaxexp", tolerance=0)
    assert report.ok
    assert "\x1b" not in str(report) + report._repr_html_() + str(report.cases[0].results[0])

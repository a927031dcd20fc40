"""jaxexp-run --cases: the same random numbers as Python's, and results that are judged as those of a session."""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxexp
from jaxexp import Drawn, _native
from jaxexp._cli import start
from jaxexp._kernel.artifact.cases import storage
from jaxexp.runtime import Session
from kit import runtime, without_jax
from kit.archive_files import make
from kit.flips import flip
from kit.weighted import X, bound
from kit.wire import seal

pytestmark = [pytest.mark.cpp, pytest.mark.usefixtures("plugin")]

KINDS = {_native.dtype_name(kind): kind for kind in range(30)}
KEYS = [name for name in KINDS if name.startswith("key<")]
INTEGERS = [name for name in KINDS if name == "bool" or name.startswith(("int", "uint"))]
FLOATS = [name for name in KINDS if name not in (*KEYS, *INTEGERS, "float0")]
SIZE = 6

Check = Callable[..., dict[str, Any]]


@pytest.fixture
def check(capsys: pytest.CaptureFixture[str]) -> Check:
    """`jaxexp check --results`: the report."""

    def check(file: object, results: Path, *options: object) -> dict[str, Any]:
        status = start.main(list(map(str, ("check", "--json", file, "--results", results, *options))))
        out, err = capsys.readouterr()
        (found,) = json.loads(out)
        report: dict[str, Any] = found["report"]
        assert (err, status) == ("", 0 if report["verdict"] in ("equal", "close") else 1)
        return report

    return check


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """`jaxexp check` with something that is no results of the artifact."""

    def refused(*arguments: object, status: int = 1) -> str:
        assert start.main(list(map(str, ("check", *arguments)))) == status
        out, err = capsys.readouterr()
        assert (out, err.count("\n"), "not expected" in err) == ("", 1, False), (out, err)
        return err

    return refused


def called(file: object, *options: object, failing: int = 0) -> Path:
    """The results of cases, of which so many fail."""
    results = Path(str(file).replace("::", ".")).with_suffix(".npz")
    done = runtime.run("--cases", file, "-o", results, *options)
    assert (done.returncode, done.stderr.count("\n")) == (1 if failing else 0, failing), done.stderr
    assert done.stdout.startswith(f"{results}: ") and done.stdout.endswith(f", {results.stat().st_size:,} bytes\n")
    return results


def identity(dtype: str, size: int = SIZE) -> jaxexp.Exported:
    with jax.enable_x64(True):
        numbers = dtype if dtype in KEYS else storage(dtype).dtype
        spec = jax.ShapeDtypeStruct((size,), jax.random.key(0, impl=_impl(dtype)).dtype if dtype in KEYS else numbers)
        return jaxexp.export(jax.jit(lambda x: x))(spec)


def _impl(dtype: str) -> str:
    return {"key<fry>": "threefry2x32", "key<rbg>": "rbg", "key<urbg>": "unsafe_rbg"}[dtype]


def as_json(report: jaxexp.CheckReport) -> Any:
    return json.loads(json.dumps(report.to_json()))


def without_float64(report: dict[str, Any]) -> Any:
    """The cases of a report, without what only JAX can say."""
    for case in report["cases"]:
        for result in case["results"]:
            del result["in_float64"]
    return report["cases"]


# --- random numbers ---------------------------------------------------------------------------------------------------


def drawn(dtype: str) -> Iterator[Drawn]:
    sizes = (1.0, 1e-3, 300.0, 6e4, 1e30) if dtype in FLOATS else ()
    for seed, size in enumerate(sizes):
        yield Drawn((999,), dtype, "normal", seed << 60, -size / 7, size)
        yield Drawn((999,), dtype, "uniform", seed, -size, 2 * size)
    least, most = (-1000, 1000) if dtype in FLOATS else (None, None)
    yield Drawn((999,), dtype, "integers", (1 << 64) - 1, *(() if least is None else (least, most)))
    if dtype.endswith("int64"):
        yield Drawn((999,), dtype, "integers", 5, 0.0, 2.0**53)


def test_the_same_random_numbers(tmp_path: Path, check: Check) -> None:
    verdicts = {}
    for dtype in (*FLOATS, *INTEGERS, *KEYS):
        file = tmp_path / "f.jaxexp"
        identity(dtype, 999).save(file, cases=[(one,) for one in drawn(dtype)])
        verdicts[dtype] = check(file, called(file))["verdict"]
    assert {dtype for dtype, verdict in verdicts.items() if verdict != "equal"} == set()


# --- verdicts -------------------------------------------------------------------------------------------------------


def bits(dtype: str, raw: np.ndarray) -> np.ndarray:
    """Numbers of these bytes, as far as the dtype has them."""
    if dtype == "bool":
        raw = raw & 1
    elif dtype in ("uint4", "float4_e2m1fn"):
        raw = raw & 15
    elif dtype == "int4":
        raw = (raw << 4).view(np.int8) >> 4
    return raw.view(storage(dtype).dtype)


def save(file: Path, dtype: str) -> None:
    """A function that returns its argument, with cases that found one thing and recorded another."""
    identity(dtype).save(file)
    random, width = np.random.default_rng(len(dtype)), storage(dtype).size * SIZE

    def value(array: np.ndarray, tolerance: Any) -> Any:
        return KINDS[dtype], [SIZE], array.tobytes(), None, None, tolerance

    cases = []
    for i, tolerance in enumerate((None, (0.0, 0.0), (1e9, 1.0))):
        raw = random.integers(0, 256, (2, width), np.uint8)
        raw[1, : width // 2] = raw[0, : width // 2]
        found, recorded = (bits(dtype, one) for one in raw)
        cases.append((str(i), 0, [value(found, None)], [value(recorded, tolerance)], 0, None))
    file.write_bytes(_native.with_cases(file.read_bytes(), (cases, [[("jax", "0.0.0")]], [], [])))


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS, *KEYS])
def test_the_same_verdicts(dtype: str, tmp_path: Path, plugin: Path, check: Check) -> None:
    file = tmp_path / "f.jaxexp"
    save(file, dtype)
    session = Session(file, plugin=os.fspath(plugin))
    results = called(file)
    how: dict[str, Any]
    for how, options in (({}, []), ({"tolerance": (0.125, 1e-3)}, ["--tolerance", "0.125,1e-3"])):
        expected = as_json(session.check(**how))
        found = check(file, results, *options)
        assert found["cases"] == expected["cases"]
        assert (found["name"], found["verdict"]) == (expected["name"], expected["verdict"])
        del expected["checked"]["python"]
        assert found["checked"] == expected["checked"] | {"devices": "1"}
        assert without_float64(found) == without_float64(as_json(jaxexp.check(file, **how)))


# --- functions ------------------------------------------------------------------------------------------------------


def test_functions(tmp_path: Path, plugin: Path, check: Check) -> None:
    (b,) = jaxexp.symbolic_shape("b")
    spec, ones = jax.ShapeDtypeStruct, np.ones((200, 200), np.float32)
    large = jaxexp.export(jax.jit(lambda x: {"y": x + 1, "z": x.sum()}))(ones)
    indexed = jaxexp.export(jax.jit(lambda x, i: x[i]))(spec((4,), jnp.bfloat16), spec((), np.int32))
    symbolic = jaxexp.export(jax.jit(lambda x, n: (x @ x.T, n + 1)))(spec((b, 3), np.float32), spec((), np.int32))
    functions: dict[str, tuple[Any, list[Any]]] = {
        "weights": (bound()[0], [(X,), {"args": (X,), "vjp_order": 1}]),
        "symbolic": (symbolic, [(Drawn((n, 3), "float32"), np.int32(n)) for n in (1, 4)]),
        "large": (large, [(ones,), {"args": (ones,), "vjp_order": 1}, {"args": (Drawn((200, 200), "float32"),)}]),
        "float0": (indexed, [{"args": (Drawn((4,), "bfloat16"), np.int32(2)), "vjp_order": 1}]),
    }
    for name, (function, cases) in functions.items():
        file = tmp_path / f"{name}.jaxexp"
        function.save(file, vjp_order=1, cases=cases)
        found = check(file, called(file))
        assert found["verdict"] in ("equal", "close")
        assert found["cases"] == as_json(Session(file, plugin=os.fspath(plugin)).check())["cases"]
        member = f"{make(tmp_path / f'{name}.zip', {'member': file})}::member"
        assert check(member, called(member))["cases"] == found["cases"]

    file, beside = tmp_path / "large.jaxexp", tmp_path / "large.cases.safetensors"
    results = called(file)
    with np.load(results) as stored:
        assert [*stored] == [
            "0/0/result['y']", "0/0/result['z']", "1/1/result[0]", "2/0/result['y']", "2/0/result['z']", "about",
        ]  # fmt: skip
        np.testing.assert_array_equal(stored["0/0/result['y']"], ones + 1)
    good = beside.read_bytes()
    beside.unlink()
    verdicts = [case["verdict"] for case in check(file, results)["cases"]]
    assert set(verdicts) == {"failed"}, "what was recorded is not there"
    beside.write_bytes(good)
    jaxexp.load(file).save(file, trailer=False)
    done = runtime.run("--cases", file, "-o", results)
    assert (done.returncode, done.stdout) == (1, "")
    assert f"{file} has no cases: 'jaxexp record' adds calls" in done.stderr


def test_calls_that_fail(tmp_path: Path, check: Check) -> None:
    """They are reported, and those beside them are compared."""
    (b,) = jaxexp.symbolic_shape("b")
    file, ones = tmp_path / "f.jaxexp", np.ones((200, 200), np.float32)
    exported = jaxexp.export(jax.jit(lambda x: x + 1))(jax.ShapeDtypeStruct((b, 200), np.float32))
    small = (Drawn((1, 200), "float32"),)
    exported.save(file, cases=[{"args": (ones,), "name": "a file"}, {"args": small, "name": "drawn"}])
    beside = tmp_path / "f.cases.safetensors"
    beside.write_bytes(beside.read_bytes().replace(np.float32(1).tobytes(), np.float32(2).tobytes(), 1))
    found = check(file, called(file, failing=1))
    assert [case["verdict"] for case in found["cases"]] == ["failed", "equal"]
    assert "found the digest" in found["cases"][0]["error"]
    # Drawn arguments count, and those of dtype float0, which take a byte for each number when they are made.
    indexed = jaxexp.export(jax.jit(lambda x, i: x[i]))(jax.ShapeDtypeStruct((4,), jnp.bfloat16), np.int32(0))
    indexed.save(file, vjp_order=1, cases=[{"args": (Drawn((4,), "bfloat16"), np.int32(2)), "vjp_order": 1}])
    called(file, "--max-drawn-bytes", 11)
    found = check(file, called(file, "--max-drawn-bytes", 10, failing=1))
    assert found["cases"][0]["error"] == "its random arguments take 11 bytes; --max-drawn-bytes allows 10"


def test_results_of_something_else(tmp_path: Path, refused: Callable[..., str]) -> None:
    file, other, x = tmp_path / "f.jaxexp", tmp_path / "g.jaxexp", np.ones(3, np.float32)
    for path, number in ((file, 1), (other, 2)):
        jaxexp.export(jax.jit(lambda x, number=number: x + number))(x).save(path, cases=[(x,)])
    results = called(file)
    mismatch = "expected results of the artifact's cases (digest "
    assert mismatch in refused(other, "--results", results)
    jaxexp.record(file, [(x + 1,)])
    assert mismatch in refused(file, "--results", results), "older cases"
    jaxexp.export(jax.jit(lambda x: x))(x).save(other)
    assert "expected no results, because the artifact has no cases, found" in refused(other, "--results", results)
    np.savez(results, x)
    assert "expected a file of 'jaxexp-run --cases'" in refused(file, "--results", results)
    with zipfile.ZipFile(called(file)) as zipped:
        member = zipped.infolist()[0]
    flip(results, member.header_offset + 200)
    assert "is not a file of numpy.save or numpy.savez" in refused(file, "--results", results)
    assert "No such file" in refused(file, "--results", tmp_path / "missing.npz")
    for options in (["--plugin", "cpu"], ["--matrix"], ["--view", "x.html"], [other]):
        message = "--results compares what one artifact returned elsewhere: leave out --plugin"
        assert message in refused(file, "--results", results, *options, status=2)


def test_without_jax(tmp_path: Path) -> None:
    file, x = tmp_path / "f.jaxexp", np.ones(3, jnp.bfloat16)
    jaxexp.export(jax.jit(lambda x: x + 1))(x).save(file, cases=[(x,)])
    code = "from jaxexp._cli import start; import sys; assert start.main(sys.argv[1:]) == 0"
    said = without_jax.run(code, os.environ, "check", file, "--results", called(file))
    assert said == f"{file}: 1 of 1 case as recorded\n  equal    0: 1 result with the same bits\n"


def test_forged_cases(tmp_path: Path, check: Check) -> None:
    """Equal names; and a tensor in an archive of another size than the archive says, or else memory behind it would be
    read.
    """
    file, x = tmp_path / "f.jaxexp", np.ones((2, 2), np.float32)
    cases = [{"args": (x,), "name": name, "tolerance": "dtype"} for name in ("case a", "case b")]
    jaxexp.export(jax.jit(lambda x: x + 1))(x).save(file, cases=cases)
    file.write_bytes(seal(bytearray(file.read_bytes().replace(b"case b", b"case a"))))
    done = runtime.run("--cases", file, "-o", tmp_path / "f.npz")
    assert (done.returncode, done.stdout) == (1, "")
    assert "at trailer.cases.cases: expected names that are different, found 'case a' twice" in done.stderr
    count, forged, good = 20_000, 1 << 28, tmp_path / "good.jaxexp"
    spec = jax.ShapeDtypeStruct(jaxexp.symbolic_shape("b"), np.float32)
    jaxexp.export(jax.jit(lambda x: x + 1))(spec).save(good, cases=[(np.ones(count, np.float32),)])
    blob = good.read_bytes()
    for old, new in ((count, forged), (4 * count, 4 * forged)):
        blob = blob.replace(old.to_bytes(8, "little"), new.to_bytes(8, "little"))
    archive = make(tmp_path / "f.zip", {"good": good, "forged": seal(bytearray(blob))})
    assert check(f"{archive}::good", called(f"{archive}::good"))["verdict"] == "equal"
    (case,) = check(f"{archive}::forged", called(f"{archive}::forged", failing=1))["cases"]
    assert "a tensor of 1073741824 bytes with the digest" in case["error"]


def test_misused() -> None:
    gone = "is gone: '--cases -o results.npz' writes what the recorded calls return, and 'jaxexp check ARTIFACT"
    for options, message in (
        (["--cases", "x.npy", "-o", "y.npz"], "--cases takes one artifact and no inputs: a case has its own"),
        (["--cases"], "--cases needs a file for what the calls return, as in -o results.npz"),
        (["--cases", "-o", "y.npy"], "--cases needs a file for what the calls return, as in -o results.npz"),
        (["--cases", "-o", "y.npz", "--vjp", "1"], "leave out --inspect, --save-executable, --repeat and --vjp"),
        (["--check"], f"--check {gone}"),
        (["--tolerance", "1"], f"--tolerance {gone}"),
    ):
        done = runtime.run("f.jaxexp", *options)
        assert (done.returncode, message in done.stderr) == (2, True), done.stderr

"""jaxexp-run --check: the same random numbers and the same verdicts as Python's, from JAX and on the same plugin."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxexp
from jaxexp import Drawn, _native
from jaxexp._kernel.artifact.cases import storage
from jaxexp.runtime import Session
from kit import runtime
from kit.weighted import X, bound
from kit.wire import seal

pytestmark = [pytest.mark.cpp, pytest.mark.usefixtures("plugin")]

KINDS = {_native.dtype_name(kind): kind for kind in range(30)}
KEYS = [name for name in KINDS if name.startswith("key<")]
INTEGERS = [name for name in KINDS if name == "bool" or name.startswith(("int", "uint"))]
FLOATS = [name for name in KINDS if name not in (*KEYS, *INTEGERS, "float0")]
NONE, NOTHING = None, (0.0, 0.0)
SIZE = 6


def identity(dtype: str, size: int = SIZE) -> jaxexp.Exported:
    with jax.enable_x64(True):
        numbers = dtype if dtype in KEYS else storage(dtype).dtype
        spec = jax.ShapeDtypeStruct((size,), jax.random.key(0, impl=_impl(dtype)).dtype if dtype in KEYS else numbers)
        return jaxexp.export(jax.jit(lambda x: x))(spec)


def _impl(dtype: str) -> str:
    return {"key<fry>": "threefry2x32", "key<rbg>": "rbg", "key<urbg>": "unsafe_rbg"}[dtype]


def said(file: Path, *options: object, status: int | None = None) -> list[str]:
    done = runtime.run("--check", file, *options)
    assert not done.stderr, done.stderr
    assert status is None or done.returncode == status, done.stdout
    return done.stdout.splitlines()


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


def test_the_same_random_numbers(tmp_path: Path) -> None:
    wrong = {}
    for dtype in (*FLOATS, *INTEGERS, *KEYS):
        file = tmp_path / "f.jaxexp"
        identity(dtype, 999).save(file, cases=[(one,) for one in drawn(dtype)])
        lines = said(file)
        if not all(line.startswith("  equal ") for line in lines[1:]):
            wrong[dtype] = lines
    assert not wrong


# --- verdicts -------------------------------------------------------------------------------------------------------


class Pair(NamedTuple):
    """What is recorded, what is found, and the tolerance of the case."""

    recorded: np.ndarray
    found: np.ndarray
    tolerance: tuple[float, float] | None


TOLERANCES: tuple[tuple[float, float] | None, ...] = (NONE, NOTHING, (1e-2, 0.0), (0.0, 0.6), (1e9, 1.0))


def bits(dtype: str, raw: np.ndarray) -> np.ndarray:
    """Numbers of these bytes, as far as the dtype has them."""
    if dtype == "bool":
        raw = raw & 1
    elif dtype in ("uint4", "float4_e2m1fn"):
        raw = raw & 15
    elif dtype == "int4":
        raw = (raw << 4).view(np.int8) >> 4
    return raw.view(storage(dtype).dtype)


def pairs(dtype: str) -> Iterator[Pair]:
    random = np.random.default_rng(len(dtype))
    held = storage(dtype)
    width = held.size * SIZE
    for index, tolerance in enumerate(TOLERANCES):
        for _ in range(3):  # bits of any kind, of which some numbers are the same
            raw = random.integers(0, 256, (2, width), np.uint8)
            raw[1, : width // 2] = raw[0, : width // 2]
            yield Pair(*(bits(dtype, one) for one in raw), tolerance)
        near = np.array([1, 2, 3, 0, 1, 6]).astype(held.dtype) if not held.beyond else bits(dtype, raw[0])
        next_one = near.reshape(-1).view(f"u{min(held.dtype.itemsize, 8)}").copy()
        next_one[index % len(next_one)] ^= 1
        yield Pair(near, next_one.view(held.dtype), tolerance)
        if dtype in FLOATS:
            yield from patterns(held.dtype, tolerance)


def patterns(dtype: np.dtype, tolerance: tuple[float, float] | None) -> Iterator[Pair]:
    """NaN and infinities, as far as the dtype has them."""
    inf, nan = np.inf, np.nan
    table = (([nan, 1, inf, 1], [nan, 1.5, -inf, 1]), ([nan, 2, inf, 1], [2, nan, 1, inf]), ([0, 0], [-0.0, 1]))
    for before, after in table:
        with np.errstate(invalid="ignore"):
            sides = [np.array([*side, 1, 1, 2, 4][:SIZE]).astype(np.float32).astype(dtype) for side in (before, after)]
        yield Pair(sides[0], sides[1], tolerance)
    if dtype.kind == "c":
        parts = [np.array([complex(nan, 1), complex(1, inf), 1 + 1j, 1, 2, 3]).astype(dtype) for _ in range(2)]
        parts[1].imag[2] += 1e-5
        parts[1].real[0] = 3
        yield Pair(parts[0], parts[1], tolerance)
        beside = [complex(nan, 1), complex(1, nan), complex(nan, inf), complex(nan, nan), 1, 2]
        for i, other in enumerate((complex(nan, 1 + 2**-23), complex(2, nan), complex(nan, -inf), complex(nan, 0))):
            changed = [other if i == j else one for j, one in enumerate(beside)]
            yield Pair(np.array(beside, dtype), np.array(changed, dtype), tolerance)


def save(file: Path, dtype: str, table: list[Pair]) -> None:
    """A function that returns its argument, with cases that found one thing and recorded another."""
    identity(dtype).save(file)

    def value(array: np.ndarray, tolerance: Any) -> Any:
        return KINDS[dtype], [SIZE], array.tobytes(), None, None, tolerance

    cases = [
        (f"{i} {pair.tolerance}", 0, [value(pair.found, None)], [value(pair.recorded, pair.tolerance)], 0, None)
        for i, pair in enumerate(table)
    ]
    file.write_bytes(_native.with_cases(file.read_bytes(), (cases, [[("jax", "0.0.0")]], [], [])))


def comparable(lines: Iterable[str], dtype: str) -> list[str]:
    """Lines without the environment and float64, and with numbers for texts, which differ between releases of NumPy."""
    kept = [line for line in [*lines][1:] if not line.lstrip().startswith(("recorded with", "checked with"))]
    kept = [re.sub(r", float64 gives [^;]*", "", line) for line in kept]
    number = re.compile(r"(recorded|found) (\(?[-+.\w]+\)?)(?=[,;])")
    return [number.sub(lambda found: f"{found[1]} {as_number(found[2], dtype)}", line) for line in kept]


def as_number(text: str, dtype: str) -> Any:
    if text in ("True", "False"):
        return text
    return (np.complex64 if dtype in ("float32", "complex64") else complex)(text)


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS, *KEYS])
def test_the_same_verdicts(dtype: str, tmp_path: Path, plugin: Path) -> None:
    file = tmp_path / "f.jaxexp"
    table = list(pairs(dtype))
    save(file, dtype, table)
    session = Session(file, plugin=os.fspath(plugin))
    how: dict[str, Any]
    for how, options in (({}, []), ({"tolerance": (0.125, 1e-3)}, ["--tolerance", "0.125,1e-3"])):
        expected = jaxexp.check(file, **how)
        assert len(expected.cases) == len(table)
        lines = said(file, *options, status=0 if expected.ok else 1)
        good = sum(case.verdict in ("equal", "close") for case in expected.cases)
        assert lines[0] == f"{file}: {good} of {len(table)} cases as recorded"
        found = comparable(lines, dtype)
        assert found == comparable(session.check(**how).lines(), dtype) == comparable(expected.lines(), dtype)
        verdicts = {case.verdict for case in expected.cases}
        assert {"close", "differs"} <= verdicts or dtype in KEYS or how


# --- functions ------------------------------------------------------------------------------------------------------


def test_functions(tmp_path: Path) -> None:
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
        lines = said(file, status=0)
        assert lines[0].startswith(f"{file}: {len(cases)} of {len(cases)} case")
        with jaxexp.Archive.create(tmp_path / f"{name}.zip") as writer:
            writer.add_file("member", file)
        assert said(Path(f"{tmp_path / name}.zip::member"), status=0)[1:] == lines[1:]

    file, beside = tmp_path / "large.jaxexp", tmp_path / "large.cases.safetensors"
    good = beside.read_bytes()
    beside.write_bytes(good[:-1] + b"x")  # the last array
    lines = said(file, status=1)
    assert lines[0] == f"{file}: 2 of 3 cases as recorded"
    assert "the file is damaged" in next(line for line in lines if line.startswith("  failed "))
    beside.unlink()
    assert sum(line.startswith("  failed ") for line in said(file, status=1)) == 3
    beside.write_bytes(good)
    # Drawn arguments count, and those of dtype float0, which take a byte for each number when they are made.
    for name, count in (("large", 160_004), ("float0", 11)):
        file = tmp_path / f"{name}.jaxexp"
        refused = f"random arguments take {count:,} bytes; --max-drawn-bytes allows {count - 1:,}"
        assert any(line.endswith(refused) for line in said(file, "--max-drawn-bytes", str(count - 1), status=1))
        said(file, "--max-drawn-bytes", str(count), status=0)
    jaxexp.load(file).save(file, trailer=False)
    assert said(file, status=1) == [f"{file}: no cases"]


def test_forged_cases(tmp_path: Path) -> None:
    """Equal names; and a tensor in an archive of another size than the archive says, or else memory behind it would be
    read.
    """
    file, x = tmp_path / "f.jaxexp", np.ones((2, 2), np.float32)
    cases = [{"args": (x,), "name": name, "tolerance": "dtype"} for name in ("case a", "case b")]
    jaxexp.export(jax.jit(lambda x: x + 1))(x).save(file, cases=cases)
    file.write_bytes(seal(bytearray(file.read_bytes().replace(b"case b", b"case a"))))
    done = runtime.run("--check", file)
    assert (done.returncode, done.stdout) == (1, "")
    assert "at trailer.cases.cases: expected names that are different, found 'case a' twice" in done.stderr
    count, forged, good = 20_000, 1 << 28, tmp_path / "good.jaxexp"
    spec = jax.ShapeDtypeStruct(jaxexp.symbolic_shape("b"), np.float32)
    jaxexp.export(jax.jit(lambda x: x + 1))(spec).save(good, cases=[(np.ones(count, np.float32),)])
    blob = good.read_bytes()
    for old, new in ((count, forged), (4 * count, 4 * forged)):
        blob = blob.replace(old.to_bytes(8, "little"), new.to_bytes(8, "little"))
    with jaxexp.Archive.create(tmp_path / "f.zip") as archive:
        archive.add_file("good", good)
        archive.add("forged", seal(bytearray(blob)))
    assert said(Path(f"{tmp_path / 'f.zip'}::good"), status=0)
    lines = said(Path(f"{tmp_path / 'f.zip'}::forged"), status=1)
    assert any("a tensor of 1073741824 bytes with the digest" in line for line in lines), lines


def test_misused() -> None:
    tolerance = "--tolerance takes one number or two"
    for options, message in (
        (["x.npy"], "--check takes one artifact and no inputs: a case has its own"),
        (["--vjp", "1"], "leave out --inspect, --out, --save-executable, --repeat and --vjp"),
        (["--tolerance", "-1"], f"{tolerance} that are not negative, as in 1e-4,1e-6"),
        (["--tolerance", "1,2,3"], tolerance),
        (["--tolerance", "nan"], tolerance),
    ):
        done = runtime.run("--check", "f.jaxexp", *options)
        assert (done.returncode, message in done.stderr) == (2, True), done.stderr

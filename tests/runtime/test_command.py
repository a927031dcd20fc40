"""jaxexp-run: files of NumPy, options, and what it says when something is wrong."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import io
import os
import re
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax import export as jax_export

import jaxexp
from kit import runtime, vhlo
from kit.archive_files import make
from kit.flips import flip
from kit.saved import saved

pytestmark = [pytest.mark.cpp, pytest.mark.usefixtures("plugin")]

X = np.arange(6, dtype=np.float32).reshape(2, 3)
B = np.array([10, 20, 30], np.float32)
READER = {"reader": runtime.READER}


@pytest.fixture
def artifact(tmp_path: Path) -> Path:
    """{"x": float32[2,3]}, float32[3] -> {"sum": float32[2,3]}"""
    return saved(tmp_path, lambda tree, b: {"sum": tree["x"] + b}, {"x": X}, B, vjp_order=1, **READER)


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    np.save(tmp_path / "x.npy", X)
    np.save(tmp_path / "b.npy", B)
    return tmp_path / "x.npy", tmp_path / "b.npy"


def result(path: Path) -> Any:
    if path.suffix == ".npy":
        return np.load(path)
    with np.load(path) as file:
        return dict(file)


def succeeds(*arguments: object) -> str:
    done = runtime.run(*arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def fails(*arguments: object, status: int = 1) -> str:
    done = runtime.run(*arguments)
    assert done.returncode == status
    assert done.stderr.startswith("jaxexp-run: ")
    return done.stderr


def test_ways_to_give_arguments(artifact: Path, files: tuple[Path, Path], tmp_path: Path) -> None:
    """Positions skip what is given by its path."""
    x, b = files
    for name, arrays in {
        "positions": {"arr_0": X, "arr_1": B},
        "paths": {"args[1]": B, "args[0]['x']": X},
        "rest": {"arr_0": B},
        "second": {"args[1]": B},
        "first": {"arr_0": X},
    }.items():
        np.savez(tmp_path / f"{name}.npz", **arrays)
    for given in (
        (x, b),
        ("positions.npz",),
        ("paths.npz",),
        (x, f"args[1]={b}"),
        (f"args[1]={b}", x),
        (f"args[1]={b}", f"args[0][x]={x}"),  # as a shell leaves it
        (f"args[0]['x']={x}", b),
        (f"args[0]['x']={x}", "rest.npz"),
        ("second.npz", x),
        ("first.npz", b),
        ("first.npz", "rest.npz"),
        (x, "rest.npz"),
    ):
        arguments = [tmp_path / one if str(one).endswith(".npz") else one for one in given]
        succeeds(artifact, *arguments, "--out", tmp_path / "y.npy")
        np.testing.assert_array_equal(result(tmp_path / "y.npy"), X + B)
    said = succeeds(artifact, x, b, "-o", tmp_path / "y.npz")
    assert said == f"{tmp_path / 'y.npz'}: 1 result, {(tmp_path / 'y.npz').stat().st_size:,} bytes\n"
    assert result(tmp_path / "y.npz").keys() == {"result['sum']"}


def test_numbers_in_place_of_files(tmp_path: Path) -> None:
    def scaled(n: jax.Array, scale: jax.Array, is_on: jax.Array, half: jax.Array) -> tuple[jax.Array, ...]:
        return n * n, jnp.where(is_on, scale, 0), half

    path = saved(tmp_path, scaled, np.int32(0), np.float32(0), np.bool_(False), ml_dtypes.bfloat16(0), **READER)
    for given in (("-3", "-2.5", "true", "1.00391"), ("args[2]=true", "-3", "args[1]=-2.5", "1.0059")):
        assert succeeds(path, *given).endswith("\nresult[0]\n  9\n\nresult[1]\n  -2.5\n\nresult[2]\n  1.008\n")
    for is_on, printed in (("True", "1"), ("1", "1"), ("FALSE", "0"), ("0", "0")):
        assert f"\nresult[1]\n  {printed}\n" in succeeds(path, "0", "1", is_on, "0")
    integer = "takes an integer from -2147483648 to 2147483647, or a .npy file, and not"
    for given, wrong in (
        (("1.5", "0", "true"), f"args[0], int32[], {integer} '1.5'"),
        (("3000000000", "0", "true"), f"args[0], int32[], {integer} '3000000000'"),
        (("0", "x.np", "true"), "args[1], float32[], takes a number, or a .npy file, and not 'x.np'"),
        (("0", "0", "2"), "args[2], bool[], takes true or false, or a .npy file, and not '2'"),
    ):
        assert fails(path, *given, "0", status=2) == f"jaxexp-run: {wrong}\n"
    for argument in (np.complex64(0), jax.random.key(0)):
        said = fails(saved(tmp_path, lambda x: x, argument, **READER), "1", status=2)
        assert said == f"jaxexp-run: args[0], {argument.dtype}[], takes a .npy file, and not '1'\n"


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_numbers_of_16_bits_are_rounded_as_in_numpy(dtype: Any, tmp_path: Path) -> None:
    """Halfway between two, into the next power of two, too small and too large."""
    limits = ml_dtypes.finfo(dtype)
    least, most, eps = (float(x) for x in (limits.smallest_subnormal, limits.max, limits.eps))
    numbers = [0.0, 1 / 3, 1 + eps / 2, 1 + 3 * eps / 2, 2 - eps / 4, least / 2, least * 1.5, least * 2**7 / 3]
    numbers += [most * (1 + eps / 4), most * 1.01, 1e300, float("inf"), float("nan")]
    numbers += [-x for x in numbers]
    path = saved(tmp_path, lambda *x: jnp.stack(x), *[jax.ShapeDtypeStruct((), dtype)] * len(numbers), **READER)
    succeeds(path, *map(repr, numbers), "-o", tmp_path / "y.npy")
    with np.errstate(over="ignore"):
        expected = np.asarray(numbers).astype(dtype).astype(float)
    found = np.load(tmp_path / "y.npy").view(dtype).astype(float)
    assert list(map(str, found)) == list(map(str, expected)), "signs of zeros count"


def test_printed_numbers_are_those_of_results(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    with jax.enable_x64(True):
        results = [
            *(random.standard_normal((2, 3, 2)).astype(dtype) for dtype in (np.float16, np.float32, np.float64)),
            10.0 ** random.integers(-200, 200, 5),
            np.asarray([1.5, np.nan, np.inf, -np.inf], np.float32),
            random.standard_normal(6).astype(ml_dtypes.bfloat16),
            np.asarray([complex(1, np.inf), complex(np.nan, -1), 2.5 - 1j]),
            np.asarray([2**64 - 1, 7], np.uint64),
            random.integers(-100, 100, 1000).astype(np.int8),
            random.integers(0, 2, (2, 2)).astype(np.bool_),
            *(dtype(1) for dtype in (np.bool_, np.int32, np.complex128)),
            np.zeros((0, 3), np.float32),
            np.float32(1e-7),
        ]
        # As arguments: what is a constant is computed by the plugin, which may round it.
        path = saved(tmp_path, lambda *results: results, *results, **READER)
    np.savez(tmp_path / "in.npz", *(x.view("V2") if x.dtype == ml_dtypes.bfloat16 else x for x in results))
    head, *blocks = succeeds(path, tmp_path / "in.npz").split("\n\n")
    printed = {name: numbers for name, _, numbers in (block.partition("\n") for block in blocks)}
    for i, (result, row) in enumerate(zip(map(np.asarray, results), head.splitlines()[2:], strict=True)):
        name, type_, *ranges = row.split()
        assert (name, type_) == (f"result[{i}]", f"{result.dtype}[{','.join(map(str, result.shape))}]")
        if ranges and result.dtype != bool and (finite := result[np.isfinite(result)]).size:
            expected = [finite.min(), finite.max(), finite.astype(np.float64).mean()]
            np.testing.assert_allclose(list(map(float, ranges[:3])), np.asarray(expected, float), rtol=1e-5)
        if not 0 < result.size <= 32:
            assert name not in printed
            continue
        words = re.sub(r"[\[\]]", " ", printed[name]).split()
        kind = result.dtype.kind
        read = {"b": {"True": True, "False": False}.get, "i": int, "u": int, "c": complex}.get(kind, float)
        found = np.asarray(list(map(read, words)), None if kind == "V" else result.dtype)
        np.testing.assert_array_equal(found.astype(result.dtype).reshape(result.shape), result, strict=True)
    x = np.asarray([[[1, -20], [3, 4]], [[5, 6], [7, 8]]], np.int32)
    np.save(tmp_path / "x.npy", x)
    said = succeeds(saved(tmp_path, lambda x: x + 0.5, x, **READER), tmp_path / "x.npy")
    rows = ["[[[  1.5 -19.5]", " [  3.5   4.5]]", " [[  5.5   6.5]", " [  7.5   8.5]]]"]
    assert [line.strip() for line in said.splitlines()[-4:]] == [row.strip() for row in rows]


def test_forms_of_files(artifact: Path, files: tuple[Path, Path], tmp_path: Path) -> None:
    """Fortran's order, and later versions of the head; and results without numbers."""
    x, b = files
    np.save(x, np.asfortranarray(X))
    for version in ((1, 0), (2, 0), (3, 0)):
        with open(b, "wb") as file:
            np.lib.format.write_array(file, B, version=version)
        succeeds(artifact, x, b, "--out", tmp_path / "y.npy")
        np.testing.assert_array_equal(result(tmp_path / "y.npy"), X + B)
    np.save(x, np.zeros((0, 4), np.float32))
    for dtype, stored in (("bfloat16", "V2"), ("int4", "V1"), ("float32", np.float32)):
        path = saved(tmp_path, lambda x: x.astype(dtype), np.load(x), **READER)  # noqa: B023
        succeeds(path, x, "-o", tmp_path / "y.npy")
        found = np.load(tmp_path / "y.npy")
        assert (found.shape, found.dtype) == ((0, 4), stored)


def test_bytes_of_another_dtype(tmp_path: Path) -> None:
    """What NumPy has a name for is never in a file as bytes, and few bytes are numbers of four bits."""
    numbers = {"bfloat16": [1, 2], "float8_e5m2": [1, 2], "int4": [-3, 7], "int8": [-3, 7]}
    held = {name: np.asarray(values, getattr(ml_dtypes, name, name)) for name, values in numbers.items()}
    file = tmp_path / "in.npy"
    for dtype, given in (
        ("float16", "bfloat16"),
        ("int8", "float8_e5m2"),
        ("int4", "float8_e5m2"),
        ("uint4", "int8"),
        ("int4", "int4"),
        ("int4", "int8"),
    ):
        spec = jax.ShapeDtypeStruct((2,), jnp.dtype(dtype))
        path = saved(tmp_path, lambda x: x.astype(np.float32), spec, **READER)
        np.save(file, held[given].view(f"V{held[given].itemsize}"))
        if given.startswith("int") and dtype == "int4":
            assert "[-3  7]" in succeeds(path, file)
        else:
            assert f"is {dtype}[2], and not the bytes of another dtype" in fails(path, file)


def test_files_that_are_refused(artifact: Path, files: tuple[Path, Path]) -> None:
    """The unit tests of C++ have more of them."""
    x, b = files
    good = x.read_bytes()
    head = f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({'1, ' * 20_000}), }}\n".encode()
    for bad, message in {
        b"nothing at all": "it is not a .npy file",
        good[:-1]: "it ends before its last number",
        good.replace(b"<f4", b">f4"): "its dtype is '>f4', where a little-endian number is expected",
        good.replace(b"<f4", b"|V"): "its dtype is '|V'",
        good.replace(b"(2, 3)", b"(2, x)"): "its header is not in the form that NumPy writes",
        good.replace(b"(2, 3)", b"(02,3)"): "its header is not in the form that NumPy writes",
        good.replace(b"(2, 3)", b"(3, 2)"): "args[0]['x'].shape[0] must have size 2, found size 3 (exp",
        good[:8] + b"\xff\xff" + good[10:]: "its header is damaged, or of a newer version",
        good[:7] + b"\x09" + good[8:]: "its header is damaged, or of a newer version",
        good.replace(
            b"'fortran_order': False", b"'descr':         '<f4'"
        ): "its header is not in the form that NumPy writes",
        b"\x93NUMPY\2\0" + len(head).to_bytes(4, "little") + head + bytes(4): "must have rank 2, found rank 20000",
    }.items():
        x.write_bytes(bad)
        said = fails(artifact, x, b)
        assert message in said and len(said) < 600, bad[:80]


def npz(*arrays: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, *arrays)
    return buffer.getvalue()


def test_npz_files_that_are_refused(artifact: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Among them those that NumPy does not read so; and files of more than 2 GiB, or 65,535 arrays, are read."""
    path, good = tmp_path / "in.npz", npz(X, B)
    at, record, end = good.index(X.tobytes()), good.index(b"PK\1\2"), good.rindex(b"PK\5\6")
    compressed, other = io.BytesIO(), io.BytesIO()
    np.savez_compressed(compressed, X, B)
    with zipfile.ZipFile(other, "w") as file:
        file.writestr("readme.txt", "text")
    with monkeypatch.context() as patch:
        patch.setattr(zipfile, "ZIP_FILECOUNT_LIMIT", 1)
        wide = npz(X, B)
    assert b"PK\6\6" in wide
    for content in (good, wide):
        path.write_bytes(content)
        succeeds(artifact, path, "-o", tmp_path / "y.npy")
        np.testing.assert_array_equal(result(tmp_path / "y.npy"), X + B)
    twice = good[record:end] * 2 + good[end : end + 8] + b"\4\0\4\0" + good[end + 12 :]
    for content, message in {
        compressed.getvalue(): "it is compressed: save it with np.savez",
        b"PK": "it is not a .npz file",
        other.getvalue(): "its member 'readme.txt' is not an array",
        good[:record] + twice: "it is a damaged .npz file",
        good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :]: "damaged",
        good.replace(b"arr_0", b"arr_1", 1): "damaged",
        good[: record + 8] + bytes([good[record + 8] | 1]) + good[record + 9 :]: "encrypted",
        npz(X * 0, B) + good: "damaged .npz file, or contains something else",
        b"text" + good: "damaged .npz file, or contains something else",
        good + b"text": "damaged .npz file, or contains something else",
        npz(X * 0, B) + wide: "it is a damaged .npz file",
    }.items():
        path.write_bytes(content)
        assert message in fails(artifact, path)


def test_long_names_that_are_cut_to_the_same_text(tmp_path: Path) -> None:
    long = "k" * 3000
    function, tree = lambda tree: {f"{long}{name}": 2 * x for name, x in tree.items()}, dict.fromkeys("abc", B)
    saved(tmp_path / "f", function, tree, **READER)
    saved(tmp_path / "g", lambda tree: list(tree.values()), {f"{long}{name}": B for name in "ab"}, **READER)
    for i, name in enumerate("abc"):
        np.save(tmp_path / f"{name}.npy", B * i)
    succeeds(tmp_path / "f", *(tmp_path / f"{name}.npy" for name in "abc"), "-o", tmp_path / "y.npz")
    found = result(tmp_path / "y.npz")
    assert sorted(found)[:2] == ["arr_1", "arr_2"]
    np.testing.assert_array_equal(sorted(map(tuple, found.values())), [tuple(2 * B * i) for i in range(3)])
    cut = next(name for name in found if not name.startswith("arr_")).replace("result", "args[0]")
    assert "has no argument" in fails(tmp_path / "g", f"{cut}={tmp_path / 'a.npy'}", tmp_path / "b.npy", status=2)


def test_results_replace_files(artifact: Path, files: tuple[Path, Path], tmp_path: Path) -> None:
    """A file is old or new, a link stays, and what is no file is written into."""
    (tmp_path / "folder").mkdir()
    target, link = tmp_path / "folder" / "y.npy", tmp_path / "link.npy"
    target.write_bytes(b"old")
    link.symlink_to(target)
    with open(target, "rb") as old:
        succeeds(artifact, *files, "-o", link)
        assert old.read() == b"old"
    np.testing.assert_array_equal(result(target), X + B)
    assert link.is_symlink()
    assert [path.name for path in target.parent.iterdir()] == ["y.npy"]
    os.mkfifo(tmp_path / "pipe.npy")
    with concurrent.futures.ThreadPoolExecutor() as pool:
        reading = pool.submit((tmp_path / "pipe.npy").read_bytes)
        succeeds(artifact, *files, "-o", tmp_path / "pipe.npy")
        assert reading.result() == target.read_bytes()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_what_cannot_be_printed(artifact: Path, files: tuple[Path, Path]) -> None:
    for arguments in ([artifact, *files], ["--inspect", artifact], ["--version"], ["--help"]):
        with open("/dev/full", "w") as full:
            done = runtime.run(*arguments, stdout=full)
        assert done.returncode == 1
        assert "standard output: No space left on device" in done.stderr


def test_arguments_that_do_not_fit(artifact: Path, files: tuple[Path, Path], tmp_path: Path) -> None:
    """Status 2 where `jaxexp run` has it."""
    x, b = files
    for name, arrays in {"three": {"arr_0": X, "arr_1": B, "arr_2": X}, "odd": {"arr_0": X, "arr": B}}.items():
        np.savez(tmp_path / f"{name}.npz", **arrays)
    by_path, more = f"args[0]['x']={x}", f"the function takes 2 arguments; {b} is one more"
    for given, message, status in (
        ((x,), "no file gives args[1], float32[3]", 2),
        ((x, b, b), more, 2),
        ((by_path, b, b), more, 2),
        ((by_path, by_path, b), "gives args[0]['x'] a second time", 2),
        ((x, f"args[2]={x}"), "has no argument args[2] ('--inspect' lists those that it has)", 2),
        ((f"x={x}", b), f"x={x}: the function has no argument x ('--inspect' lists those that it has)\n", 2),
        (("1", b), "args[0]['x'], float32[2,3], takes a .npy file, and not '1'\n", 2),
        ((tmp_path / "three.npz",), "'arr_2' is one more", 2),
        ((tmp_path / "odd.npz",), "'arr' names no argument ('--inspect' lists them)", 1),
        ((tmp_path / "none.npy", b), "No such file", 1),
        ((x, b, "--out", tmp_path / "none" / "y.npy"), "No such file", 1),
    ):
        assert message in fails(artifact, *given, status=status)


def test_options(artifact: Path, files: tuple[Path, Path], tmp_path: Path) -> None:
    said = succeeds(artifact, *files, "--repeat", 3)
    assert re.search(
        r"compiled in [\d.]+ ms\n.*first call: [\d.]+ ms\n3 calls: median [\d.]+ ms, fastest", said, re.DOTALL
    )
    np.save(tmp_path / "ct.npy", np.ones_like(X))
    succeeds(artifact, *files, tmp_path / "ct.npy", "--vjp", 1, "--out", tmp_path / "y.npz")
    found = result(tmp_path / "y.npz")
    np.testing.assert_array_equal(found["result[1]"], [2, 2, 2])
    assert "the function has no VJP of order 2: it was saved with vjp_order=1" in fails(artifact, *files, "--vjp", 2)
    assert "there are 2 results" in fails(
        artifact, *files, tmp_path / "ct.npy", "--vjp", 1, "--out", tmp_path / "y.npy"
    )
    assert "different numbers below 1, found [1]" in fails(artifact, *files, "--device", 1)


def test_command_lines_that_make_no_sense(artifact: Path) -> None:
    """One line, which says where all options are."""
    for wrong, message in (
        (["--nothing", 1], "there is no option --nothing"),
        (["--nothing"], "there is no option --nothing"),
        (["--repeat", "x"], "--repeat takes a number, and not 'x'"),
        (["--out", "y.txt"], "--out takes a file .npy or .npz, and not 'y.txt'"),
        (["--option", "x"], "--option takes NAME=VALUE, and not 'x'"),
        (["--vjp"], "--vjp takes a value"),
    ):
        assert fails(artifact, *wrong, status=2) == f"jaxexp-run: {message}: 'jaxexp-run --help' says what there is\n"
    assert "an artifact is missing" in fails(status=2)


def test_a_plugin_from_the_environment(artifact: Path, files: tuple[Path, Path], plugin: Path) -> None:
    command = [runtime.RUN, artifact, *files]
    environment = {key: value for key, value in os.environ.items() if key != "JAXEXP_PLUGIN"}
    done = subprocess.run(command, capture_output=True, text=True, env={**environment, "JAXEXP_PLUGIN": str(plugin)})
    assert done.returncode == 0, done.stderr
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 2
    assert done.stderr.startswith("jaxexp-run: --plugin is missing, and so is $JAXEXP_PLUGIN: ")


def test_help_and_version() -> None:
    for option in ("--help", "-h"):
        said = succeeds(option)
        assert said.startswith("usage: jaxexp-run [--plugin PLUGIN] ARTIFACT")
        assert re.search(r"^  --version ", said, re.MULTILINE)
    version = re.match("[0-9.]+", jaxexp.__version__)[0]
    assert succeeds("--version") == f"jaxexp-run {version}\n"


def test_vjps(artifact: Path, files: tuple[Path, Path], tmp_path: Path) -> None:
    """Their arguments have numbers; --inspect says what these mean, and needs no plugin. Cotangents of integers are
    none.
    """
    inspected = [
        subprocess.run([runtime.RUN, "--inspect", artifact, *more], capture_output=True, text=True, check=True).stdout
        for more in ([], ["--vjp", "1"])
    ]
    inspection = jaxexp.inspect(artifact)
    for value in (*inspection.arguments, *inspection.results):
        assert f"  {value.path}: {value.dtype}[{','.join(map(str, value.shape))}]\n" in inspected[0]
    assert "VJPs: 1\n" in inspected[0] and "custom calls" not in inspected[0]
    for line in (
        "  args[0]: float32[2,3], args[0]['x'] of the function\n",
        "  args[2]: float32[2,3], the cotangent of result['sum']\n",
        "  result[1]: float32[3], the cotangent of args[1]\n",
        "VJPs: 0\n",
    ):
        assert line in inspected[1]
    said = fails(artifact, "--vjp", 1, f"args[0]['x']={files[0]}", status=2)
    assert "has no argument args[0]['x']; a VJP's are args[0], args[1], ...: those of the function, then" in said
    path = saved(tmp_path, lambda x, n: x * n, np.float32(0), np.zeros(2, np.int32), vjp_order=1, **READER)
    np.save(tmp_path / "n.npy", np.array([1, 2], np.int32))
    np.save(tmp_path / "ct.npy", np.ones(2, np.float32))
    said = succeeds(path, "3", tmp_path / "n.npy", tmp_path / "ct.npy", "--vjp", 1)
    assert said.endswith("  result[0]  float32[]\n  result[1]  float0[2]\n\nresult[0]\n  3\n")


def test_which_file_it_is(artifact: Path, files: tuple[Path, Path], tmp_path: Path) -> None:
    missing, damaged = tmp_path / "none.jaxexp", tmp_path / "damaged.jaxexp"
    archive, blob = make(tmp_path / "all.zip", {"f/2": artifact}), artifact.read_bytes()
    damaged.write_bytes(blob[:-10])
    for member in ([archive, "--member", "f/2"], [f"{archive}::f/2"]):
        succeeds(*member, *files, "--out", tmp_path / "y.npy")
        np.testing.assert_array_equal(result(tmp_path / "y.npy"), X + B)
    (tmp_path / "add::2").write_bytes(blob)  # a file's name may have colons
    succeeds(tmp_path / "add::2", *files)
    for inspects in (["--inspect"], []):
        assert re.fullmatch(f"jaxexp-run: {missing}: No such file.*\n", fails(missing, *files, *inspects))
        assert fails(damaged, *files, *inspects).startswith(f"jaxexp-run: cannot read the artifact '{damaged}': at ")
        said = fails(archive, *files, *inspects)
        assert said.startswith(f"jaxexp-run: {archive} is an archive: name a member of it, as in {archive}::")
        said = fails(f"{archive}::g", *files, *inspects)
        assert said == f"jaxexp-run: {archive}: the archive has no member 'g'; it has 'f/2'\n"
    said = fails(f"{archive}::f/2", "--member", "f/2", *files, status=2)
    assert "names a member, and so does --member" in said
    assert "a regular file" in fails(tmp_path, *files, "--member", "f")
    damaged.write_bytes(blob)
    flip(damaged, b"StableHLO_v")
    assert "at mlir_module_serialized" in fails(damaged, *files)


def test_modules_are_checked(tmp_path: Path) -> None:
    """Before the plugin sees them: the condition of this loop is a token, at which MLIR's verifier crashes."""
    function = jax.jit(lambda x: jax.lax.while_loop(lambda x: x < 3.0, lambda x: x + 1.0, x))
    truth = r'"vhlo.return_v1"\(%\w+\) : \(!vhlo.tensor_v1<!vhlo.bool_v1>\) -> \(\)'
    token = '%t = "vhlo.create_token_v1"() : () -> !vhlo.token_v1 "vhlo.return_v1"(%t) : (!vhlo.token_v1) -> ()'
    text, count = re.subn(truth, token, vhlo.text_of(function, np.float32(0)))
    assert count == 1
    raw = dataclasses.replace(jax_export.export(function)(np.float32(0)), mlir_module_serialized=vhlo.bytecode(text))
    (tmp_path / "f.jaxexp").write_bytes(raw.serialize())
    assert "operation while_v1 with regions of another one" in fails(tmp_path / "f.jaxexp", "0")

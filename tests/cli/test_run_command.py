"""`jaxexp run`: functions called with arrays from files."""

from __future__ import annotations

import pickle
import re
import warnings
import zipfile
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

import jaxexp
from jaxexp._cli import arrays
from kit.flips import flip
from kit.weighted import X, apply, bound, close, named, params

pytestmark = pytest.mark.jax
W, B = np.arange(12, dtype=np.float32).reshape(4, 3) / 12, np.ones(3, np.float32)
INPUT = np.linspace(-1, 1, 8, dtype=np.float32).reshape(2, 4)
SCORES = np.tanh(INPUT @ W + B)


@pytest.fixture(scope="module")
def place(tmp_path_factory: Any) -> Path:
    place: Path = tmp_path_factory.mktemp("run")

    def scores(weights: Any, x: Any) -> Any:
        return jnp.tanh(x @ weights["w"] + weights["b"])

    shape = jaxexp.symbolic_shape("batch, 4", constraints=["batch >= 2"])
    weights = {"w": jax.ShapeDtypeStruct((4, 3), "float32"), "b": jax.ShapeDtypeStruct((3,), "float32")}
    jaxexp.export(jax.jit(scores))(weights, jax.ShapeDtypeStruct(shape, "float32")).save(place / "scores.jaxexp")

    def several(x: Any, key: Any, scale: Any, count: Any, *, flag: Any) -> Any:
        return {
            "x": x * scale.astype(x.dtype), "bits": jax.random.bits(key, (2,)), "n": count + 1, "flag": ~flag,
            "key": key,
        }  # fmt: skip

    spec = jax.ShapeDtypeStruct(jaxexp.symbolic_shape("n, 2*n"), jnp.bfloat16)
    arguments = spec, jax.random.key(0), np.float32(1), np.int8(1)
    jaxexp.export(jax.jit(several))(*arguments, flag=True).save(place / "several.jaxexp")

    np.save(place / "w.npy", W)
    np.save(place / "b.npy", B)
    np.save(place / "x.npy", INPUT)
    np.save(place / "half.npy", np.ones((1, 2), ml_dtypes.bfloat16))
    return place


@pytest.fixture
def here(place: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(place)
    return place


def test_inputs(here: Path, tmp_path: Path, good: Any) -> None:
    np.savez(here / "in_order.npz", B, W, INPUT)
    np.savez(here / "by_path.npz", **{"args[1]": INPUT, "args[0]['w']": W, "args[0]['b']": B})
    np.savez(here / "rest.npz", W, INPUT)
    (here / "day=1").mkdir(exist_ok=True)
    np.save(here / "day=1" / "x.npy", INPUT)
    np.savez_compressed(here / "weights.npz", **{"args[0]['w']": W, "args[0]['b']": B})
    np.save(here / "big.npy", INPUT.astype(">f4"))
    for arguments in (
        "b.npy w.npy x.npy",
        "b.npy w.npy big.npy",
        "args[1]=x.npy args[0]['w']=w.npy args[0]['b']=b.npy",
        "args[0][w]=w.npy b.npy x.npy",  # the quotes are gone in a shell
        "in_order.npz",
        "by_path.npz",
        "args[1]=x.npy weights.npz",
        "weights.npz x.npy",
        "b.npy rest.npz",
        "weights.npz args[1]=day=1/x.npy",
    ):
        out = good("run", "scores.jaxexp", *arguments.split(), "-o", tmp_path / "y.npy", "--force")
        assert out == f"{tmp_path / 'y.npy'}: 1 result, {(tmp_path / 'y.npy').stat().st_size:,} bytes\n"
        np.testing.assert_allclose(np.load(tmp_path / "y.npy"), SCORES, rtol=1e-6, err_msg=arguments)


def test_results_are_shown(here: Path, tmp_path: Path, good: Any) -> None:
    out = good("run", "scores.jaxexp", "b.npy", "w.npy", "x.npy")
    heading, row = out.splitlines()[1:3]
    assert heading.split() == ["result", "type", "min", "max", "mean"]
    assert row.split()[:2] == ["result", "float32[2,3]"]
    found = list(map(float, row.split()[2:]))
    np.testing.assert_allclose(found, [SCORES.min(), SCORES.max(), SCORES.mean()], rtol=1e-4)
    assert f"{SCORES[0, 0]:.5f}"[:6] in out.partition(row)[2]
    several = jax.jit(lambda x: (jnp.log(x), x[:0], x > 0, x * 1j, x.astype(jnp.int4)))
    jaxexp.export(several)(np.zeros(4, np.float32)).save(tmp_path / "several.jaxexp")
    np.save(tmp_path / "x.npy", np.array([-1, 0, 1, np.e], np.float32))
    rows = [row.split() for row in good("run", tmp_path / "several.jaxexp", tmp_path / "x.npy").splitlines()[2:7]]
    assert (rows[0][:4], rows[0][-1]) == (["result[0]", "float32[4]", "0", "1"], "2"), "two are not finite"
    assert rows[1:4] == [["result[1]", "float32[0]"], ["result[2]", "bool[4]", "False", "True", "0.5"],
                         ["result[3]", "complex64[4]"]]  # fmt: skip
    assert rows[4][:4] == ["result[4]", "int4[4]", "-1", "2"]


def test_random_inputs(here: Path, tmp_path: Path, good: Any, run: Any, refused: Any) -> None:
    arguments = ["run", "several.jaxexp", "--random", "--size", "n=3", "args[3]=5"]
    good(*arguments, "-o", tmp_path / "y.npz")
    with np.load(tmp_path / "y.npz") as found:
        assert (found["result['x']"].shape, found["result['n']"]) == ((3, 6), 6)
    assert "5 results as in " in good(*arguments, "--seed", 0, "--expect", tmp_path / "y.npz")
    status, _, err = run(*arguments, "--seed", 1, "--expect", tmp_path / "y.npz")
    assert status == 1 and "result['bits']: 2 of 2 numbers" in err
    good("run", "scores.jaxexp", "--random", "args[1]=x.npy", "-o", tmp_path / "y.npy")
    assert np.load(tmp_path / "y.npy").shape == (2, 3), "the array says how large batch is"
    (tmp_path / "policy.toml").write_text("platforms = ['tpu']\n")
    refused("the policy does not allow the artifact", *arguments, "--policy", tmp_path / "policy.toml")


def test_numbers_and_keys(here: Path, tmp_path: Path, good: Any) -> None:
    """bfloat16 is in files as bytes; keys are numbers."""
    arguments = ["half.npy", "7", "-1.5", "-3", "kwargs['flag']=false"]
    good("run", "several.jaxexp", *arguments, "-o", tmp_path / "y.npz")
    with np.load(tmp_path / "y.npz") as found:
        assert set(found.files) == {f"result['{name}']" for name in ("x", "bits", "n", "flag", "key")}
        assert found["result['x']"].dtype == "V2"
        np.testing.assert_array_equal(found["result['x']"].view(ml_dtypes.bfloat16), [[-1.5, -1.5]])
        np.testing.assert_array_equal(found["result['bits']"], jax.random.bits(jax.random.key(7), (2,)))
        np.testing.assert_array_equal(found["result['key']"], jax.random.key_data(jax.random.key(7)))
        assert (found["result['n']"], found["result['n']"].dtype) == (-2, np.int8)
        assert found["result['flag']"] == np.True_
        key = found["result['key']"]
    np.save(tmp_path / "key.npy", key)
    again = ["half.npy", tmp_path / "key.npy", "-1.5", "-3", "false"]
    assert good("run", "several.jaxexp", *again) == good("run", "several.jaxexp", *arguments)


def test_another_dtype_for_bfloat16(here: Path, tmp_path: Path, good: Any, refused: Any) -> None:
    x = np.ones((1, 2), np.float32)
    np.save(tmp_path / "x.npy", x)
    np.savez(tmp_path / "x.npz", **{"args[0]": x})
    more = "7", "-1.5", "-3", "false"
    for file, where in (("x.npy", f"'{tmp_path}/x.npy'"), ("x.npz", f"'{tmp_path}/x.npz', 'args[0]'")):
        err = refused("NumPy's files hold the bytes", "run", "several.jaxexp", tmp_path / file, *more)
        assert err.startswith(f"jaxexp: {where}: expected dtype bfloat16, found float32.")
        assert ": numpy.save(FILE, x.astype(ml_dtypes.bfloat16).view('V2')) writes them" in err
    np.save(tmp_path / "x.npy", x.astype(ml_dtypes.bfloat16).view("V2"))
    good("run", "several.jaxexp", tmp_path / "x.npy", *more)


def test_bytes_of_another_dtype(tmp_path: Path, refused: Any) -> None:
    """What NumPy has a name for is never in a file as bytes, and few bytes are numbers of four bits."""
    for dtype, other, value in (
        ("float16", "bfloat16", 1.5), ("uint16", "bfloat16", 3), ("int8", "float8_e5m2", 1), ("int4", "float8_e5m2", 1)
    ):  # fmt: skip
        spec = jax.ShapeDtypeStruct((2,), jnp.dtype(dtype))
        jaxexp.export(jax.jit(lambda x: x.astype(np.float32)))(spec).save(tmp_path / "f.jaxexp")
        x = np.full(2, value, jnp.dtype(other))
        np.save(tmp_path / "x.npy", x.view(f"V{x.itemsize}"))
        assert dtype in refused(f"'{tmp_path}/x.npy': expected ", "run", tmp_path / "f.jaxexp", tmp_path / "x.npy")


def test_dtypes_in_files(tmp_path: Path) -> None:
    for dtype in ("bool", "int4", "uint16", "float8_e5m2", "bfloat16", "float32", "complex64"):
        array = np.arange(6).reshape(2, 3).astype(dtype)
        unpickled = pickle.loads(pickle.dumps(array))  # whose dtype is another object, and not a built-in one
        columns = np.asfortranarray(array)
        for name, value in (("rows", array), ("columns", columns), ("scalar", array[0, 1]), ("unpickled", unpickled)):
            arrays.write(str(tmp_path / "a.npy"), {name: np.asarray(value)})
            arrays.write(str(tmp_path / "a.npz"), {name: np.asarray(value)})
            aval = jax.core.ShapedArray(np.shape(value), jnp.dtype(dtype))
            for found in (arrays.read(str(tmp_path / "a.npy")), arrays.read_all(str(tmp_path / "a.npz"))[name]):
                np.testing.assert_array_equal(arrays.as_argument(found, aval).value(), np.asarray(value), strict=True)


def test_64_bits(tmp_path: Path, good: Any) -> None:
    path = tmp_path / "wide.jaxexp"
    with jax.enable_x64(True):
        arguments = jax.ShapeDtypeStruct(jaxexp.symbolic_shape("n"), "float64"), jax.ShapeDtypeStruct((), "int64")
        jaxexp.export(jax.jit(lambda x, i: (x / 3, i + 1)))(*arguments).save(path)
    np.save(tmp_path / "x.npy", np.arange(2.0))
    good("precompile", path, "--size", "n=2")
    arguments = path, tmp_path / "x.npy", 2**40, "-o", tmp_path / "y.npz", "--executables", path.with_suffix(".exe")
    good("run", *arguments)
    with np.load(tmp_path / "y.npz") as found:
        np.testing.assert_array_equal(found["result[0]"], np.arange(2.0) / 3, strict=True)
        assert found["result[1]"] == 2**40 + 1
    assert not jax.config.jax_enable_x64
    good("run", path, "--random", "--size", "n=3")


def test_weights_of_other_dtypes_and_names(tmp_path: Path, good: Any, refused: Any) -> None:
    bound()[0].save(tmp_path / "model.jaxexp")
    np.save(tmp_path / "x.npy", X)
    whole = {name: np.asarray(array) for name, array in named(params(seed=1)).items()}
    command = ["run", tmp_path / "model.jaxexp", tmp_path / "x.npy"]
    given = [*command, "--weights", tmp_path / "given.safetensors"]
    save_file({**whole, "head": whole["head"].astype(np.float64)}, tmp_path / "given.safetensors")
    refused("; --cast casts it", *given)
    good(*given, "--cast", "-o", tmp_path / "y.npy")
    close(np.load(tmp_path / "y.npy"), apply(params(seed=1), X))
    save_file({f"model.{name}": array for name, array in whole.items()}, tmp_path / "given.safetensors")
    refused("have other names there, use with_weights in Python, with rename=", *given)
    refused("--cast is for the weights of a file: add --weights", *command, "--cast", status=2)


def test_functions_of_several_devices(
    folder: Path, tmp_path: Path, good: Any, refused: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`sharded.jaxexp` is for 8 devices, which tests have."""
    x = np.arange(32, dtype=np.float32).reshape(8, 4)
    np.save(tmp_path / "x.npy", x)
    good("run", folder / "sharded.jaxexp", tmp_path / "x.npy", "-o", tmp_path / "y.npz")
    with np.load(tmp_path / "y.npz") as found:
        np.testing.assert_array_equal(found["result['b']"], x + 1)
        assert found["result['sum']"] == x.sum()
    monkeypatch.setattr(jax, "devices", lambda: [jax.local_devices()[0]])
    said = "is for 8 devices, and this process has 1; set JAX_NUM_CPU_DEVICES=8 in the environment"
    refused(said, "run", folder / "sharded.jaxexp", "--random")


def test_executables(here: Path, tmp_path: Path, good: Any, run: Any) -> None:
    exe = tmp_path / "scores.exe"
    good("precompile", "scores.jaxexp", "--size", "batch=2", "-o", exe)
    arguments = ["run", "scores.jaxexp", "b.npy", "w.npy"]
    shown = good(*arguments, "x.npy", "--executables", exe)
    assert shown == good(*arguments, "x.npy")
    np.save(tmp_path / "more.npy", np.ones((3, 4), np.float32))
    status, _, err = run(*arguments, tmp_path / "more.npy", "--executables", exe)
    assert status == 0
    assert f"no code in {str(exe)!r} was used: float32[3], float32[4,3], float32[2,4]: args[1]: compiled for" in err
    assert "compiled for float32[2,4], here it is float32[3,4]" in err


def test_results_as_expected(here: Path, tmp_path: Path, good: Any, run: Any) -> None:
    arguments = ["run", "scores.jaxexp", "b.npy", "w.npy", "x.npy"]
    good(*arguments, "-o", tmp_path / "own.npz")
    np.savez(tmp_path / "order.npz", SCORES * (1 + 1e-7))
    np.save(tmp_path / "one.npy", SCORES)
    for name in ("own.npz", "order.npz", "one.npy"):
        assert good(*arguments, "--expect", tmp_path / name) == f"scores.jaxexp: 1 result as in {tmp_path / name}\n"
    other = SCORES.copy()
    other[1, 2] += 1e-3
    for array, said in (
        (other, rf"differ in result: 1 of 6 numbers; expected {other[1, 2]}, found .* at \[1, 2\]"),
        (SCORES[:1], r"differ in result: expected shape \(1, 3\), found \(2, 3\)"),
    ):
        np.save(tmp_path / "other.npy", array)
        status, out, err = run(*arguments, "--expect", tmp_path / "other.npy", "-o", tmp_path / "new.npz")
        assert (status, (tmp_path / "new.npz").exists()) == (1, True)
        assert re.search(said, err) and "1 result, " in out
        (tmp_path / "new.npz").unlink()
    np.savez(tmp_path / "named.npz", out_0=SCORES)
    status, _, err = run(*arguments, "--expect", tmp_path / "named.npz")
    assert status == 1 and "has the arrays out_0; expected result, the paths of the results; or arr_0, arr_1, " in err


def test_nothing_is_replaced_or_left_unfinished(
    here: Path, tmp_path: Path, refused: Any, good: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "y.npz"
    out.write_text("mine")
    arguments = ["run", "scores.jaxexp", "b.npy", "w.npy", "x.npy", "-o", out]
    refused("exists: --force replaces it", *arguments)
    with monkeypatch.context() as patch:
        full = OSError(28, "No space left on device", "y")
        patch.setattr(np.lib.format, "write_array", Mock(side_effect=full))
        refused("No space", *arguments, "--force")
    assert (out.read_text(), list(tmp_path.iterdir())) == ("mine", [out])
    good(*arguments, "--force")


def _npy(descr: str, shape: str, data: bytes = b"", version: int = 1) -> bytes:
    head = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY" + bytes([version, 0]) + len(head).to_bytes(2 if version == 1 else 4, "little") + head + data


def _npz(path: Path, *members: tuple[str, bytes], compression: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", compression) as zipped, warnings.catch_warnings(action="ignore"):
        for name, content in members:
            zipped.writestr(name, content)
    return path


def test_what_does_not_fit_is_not_unpacked(tmp_path: Path, refused: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A few bytes may unpack to any number of them."""
    huge = _npy("'<f4'", "(9000000,)", bytes(36_000_000))
    path, plain, model = (tmp_path / name for name in ("huge.npz", "huge.npy", "one.jaxexp"))
    _npz(path, ("arr_0.npy", huge))
    assert path.stat().st_size < 50_000
    plain.write_bytes(huge)
    jaxexp.export(jax.jit(lambda x: x))(np.float32(1)).save(model)
    monkeypatch.setattr(np.lib.format, "read_array", lambda *_, **__: pytest.fail("it was unpacked"))
    for command in (
        ["run", model, path],
        ["run", model, plain],
        ["record", model, path],
        ["migrate", "--inputs", path, model, tmp_path / "new.jaxexp"],
    ):
        refused("must have rank 0, found rank 1", *command)
    refused("expected shape (9000000,), found ()", "run", model, "1", "--expect", path)


def test_heads_of_arrays(tmp_path: Path, refused: Any) -> None:
    jaxexp.export(jax.jit(lambda x: x))(np.ones(2, np.float32)).save(tmp_path / "two.jaxexp")
    for content, said in (
        (_npy("'|V0'", "(99999999999,)"), "expected dtype float32, found |V0"),
        (_npy("'<U7'", "(0,)"), "expected dtype float32, found <U7"),
        (_npy("'<f16'", "(0,)"), "expected dtype float32, found float128"),
        (_npy("[('a', '<f4')]", "(0,)"), "expected dtype float32, found [('a', '<f4')]"),
        (_npy("'|O'", "(2,)"), "it has Python objects"),
        (_npy("'<f4'", "(2,)", bytes(7)), "it ends before its last number"),
        (_npy("'<f4'", "(4611686018427387904, 4)"), "it ends before its last number"),
        (_npy("'<f4'", "(-2,)", bytes(8)), "NumPy writes no such header"),
        (_npy("'<f4'", "(" + "1, " * 65 + ")", bytes(8)), "NumPy writes no such header"),
        (_npy("-" * 9000 + "1", "(2,)"), "NumPy writes no such header"),
        (_npy("'\x1b[31m'", "(2,)"), r"\x1b[31m"),
        (_npy("'<f4'", "(2,)", bytes(8))[:-20], "not a file of numpy.save"),
        (b"\x93NUMPY\x02\x00\xff\xff\xff\xff{" + bytes(20), "expected 4294967295 bytes"),
        (b"\x93NUMPY\x09\x00" + bytes(20), "its format is newer than this jaxexp reads"),
        (b"", "expected 8 bytes"),
    ):
        (tmp_path / "x.npy").write_bytes(content)
        for path in (tmp_path / "x.npy", _npz(tmp_path / "x.npz", ("arr_0.npy", content))):
            err = refused(said, "run", tmp_path / "two.jaxexp", path)
            assert f"jaxexp: '{path}'" in err
            assert err.rstrip("\n").isprintable()


def test_members_that_are_refused(tmp_path: Path, refused: Any) -> None:
    jaxexp.export(jax.jit(lambda x: x))(np.ones(2, np.float32)).save(tmp_path / "two.jaxexp")
    good = _npy("'<f4'", "(2,)", bytes(8))
    for members, compression, said in (
        ([("notes.txt", b"no array")], zipfile.ZIP_DEFLATED, "its member 'notes.txt' is not an array"),
        ([("arr_0.npy", good)] * 2, zipfile.ZIP_DEFLATED, "it has 'arr_0' twice"),
        ([("arr_0.npy", good)], zipfile.ZIP_LZMA, "'arr_0' is compressed in a way that"),
    ):
        refused(said, "run", tmp_path / "two.jaxexp", _npz(tmp_path / "x.npz", *members, compression=compression))
    flip(_npz(tmp_path / "x.npz", ("arr_0.npy", good)), 60)
    refused("is not a file of numpy.save or numpy.savez", "run", tmp_path / "two.jaxexp", tmp_path / "x.npz")

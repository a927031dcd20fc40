"""`jaxexp run`: functions called with arrays from files."""

from __future__ import annotations

import pickle
import re
import warnings
import zipfile
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

import jaxexp
from jaxexp._cli import arrays
from kit.command_line import started
from kit.weighted import X, apply, bound, close, named, params

W, B = np.arange(12, dtype=np.float32).reshape(4, 3) / 12, np.ones(3, np.float32)
INPUT = np.linspace(-1, 1, 8, dtype=np.float32).reshape(2, 4)
SCORES = np.tanh(INPUT @ W + B)


@pytest.fixture(scope="module")
def place(tmp_path_factory: Any) -> Path:
    """Functions and arrays, to be read only."""
    place: Path = tmp_path_factory.mktemp("run")

    def scores(weights: Any, x: Any) -> Any:
        return jnp.tanh(x @ weights["w"] + weights["b"])

    shape = jaxexp.symbolic_shape("batch, 4", constraints=["batch >= 2"])
    weights = {"w": jax.ShapeDtypeStruct((4, 3), "float32"), "b": jax.ShapeDtypeStruct((3,), "float32")}
    jaxexp.export(jax.jit(scores))(weights, jax.ShapeDtypeStruct(shape, "float32")).save(place / "scores.jaxexp")

    def several(x: Any, key: Any, scale: Any, count: Any, *, flag: Any) -> Any:
        return {
            "x": x * scale.astype(x.dtype),
            "bits": jax.random.bits(key, (2,)),
            "n": count + 1,
            "flag": ~flag,
            "key": key,
        }

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


# --- arguments and results --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [
        ["b.npy", "w.npy", "x.npy"],
        ["args[1]=x.npy", "args[0]['w']=w.npy", "args[0]['b']=b.npy"],
        ["args[0][w]=w.npy", "b.npy", "x.npy"],  # the quotes are gone in a shell
        ["in_order.npz"],
        ["by_path.npz"],
        ["args[1]=x.npy", "weights.npz"],
        ["weights.npz", "x.npy"],
        ["b.npy", "rest.npz"],
        ["weights.npz", "args[1]=day=1/x.npy"],
    ],
)
def test_inputs(here: Path, tmp_path: Path, good: Any, arguments: list[str]) -> None:
    np.savez(here / "in_order.npz", B, W, INPUT)
    np.savez(here / "by_path.npz", **{"args[1]": INPUT, "args[0]['w']": W, "args[0]['b']": B})
    np.savez(here / "rest.npz", W, INPUT)
    (here / "day=1").mkdir(exist_ok=True)
    np.save(here / "day=1" / "x.npy", INPUT)
    np.savez_compressed(here / "weights.npz", **{"args[0]['w']": W, "args[0]['b']": B})
    out = good("run", "scores.jaxexp", *arguments, "-o", tmp_path / "y.npy")
    assert out == f"{tmp_path / 'y.npy'}: 1 result, {(tmp_path / 'y.npy').stat().st_size:,} bytes\n"
    np.testing.assert_allclose(np.load(tmp_path / "y.npy"), SCORES, rtol=1e-6)


def test_a_size_that_an_array_does_not_have(here: Path, run: Any) -> None:
    status, _, err = run("run", "scores.jaxexp", "args[1]=x.npy", "--random", "--size", "batch=4")
    assert status == 2
    assert "--size batch=4 is not the size of args[1], which has batch=2" in err


def test_results_of_four_bits_are_shown_as_integers(tmp_path: Path, good: Any) -> None:
    exported = jaxexp.export(jax.jit(lambda x: x))(jax.ShapeDtypeStruct((3,), jnp.int4))
    exported.save(tmp_path / "small.jaxexp")
    row = good("run", tmp_path / "small.jaxexp", "--random").splitlines()[2].split()
    assert row[:2] == ["result", "int4[3]"]
    assert all(text.lstrip("-").isdigit() for text in row[2:4])


def test_results_are_shown(here: Path, good: Any) -> None:
    out = good("run", "scores.jaxexp", "b.npy", "w.npy", "x.npy")
    heading, row = out.splitlines()[1:3]
    assert heading.split() == ["result", "type", "min", "max", "mean"]
    assert row.split()[:2] == ["result", "float32[2,3]"]
    np.testing.assert_allclose(
        list(map(float, row.split()[2:])), [SCORES.min(), SCORES.max(), SCORES.mean()], rtol=1e-4
    )
    assert f"{SCORES[0, 0]:.5f}"[:6] in out.partition(row)[2]


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


def test_another_dtype_for_bfloat16(here: Path, tmp_path: Path, good: Any, run: Any) -> None:
    """The error says how a file has the right one."""
    x = np.ones((1, 2), np.float32)
    np.save(tmp_path / "x.npy", x)
    np.savez(tmp_path / "x.npz", **{"args[0]": x})
    saves = "x.astype(ml_dtypes.bfloat16).view('V2')"
    for file, where in (("x.npy", f"'{tmp_path}/x.npy'"), ("x.npz", f"'{tmp_path}/x.npz', 'args[0]'")):
        status, _, err = run("run", "several.jaxexp", tmp_path / file, "7", "-1.5", "-3", "false")
        assert (status, err.count("\n")) == (1, 1)
        assert err.startswith(f"jaxexp: {where}: expected dtype bfloat16, found float32. NumPy's files hold the bytes")
        assert f": numpy.save(FILE, {saves}) writes them" in err
    np.save(tmp_path / "x.npy", x.astype(ml_dtypes.bfloat16).view("V2"))
    good("run", "several.jaxexp", tmp_path / "x.npy", "7", "-1.5", "-3", "false")


OTHER_BYTES = {
    "float16": ("bfloat16", 1.5),
    "uint16": ("bfloat16", 3),
    "int8": ("float8_e5m2", 1),
    "int4": ("float8_e5m2", 1),
}


@pytest.mark.parametrize("dtype", OTHER_BYTES)
def test_bytes_of_another_dtype(dtype: str, tmp_path: Path, run: Any) -> None:
    """What NumPy has a name for is never in a file as bytes, and few bytes are numbers of four bits."""
    spec = jax.ShapeDtypeStruct((2,), jnp.dtype(dtype))
    jaxexp.export(jax.jit(lambda x: x.astype(np.float32)))(spec).save(tmp_path / "f.jaxexp")
    other, value = OTHER_BYTES[dtype]
    x = np.full(2, value, jnp.dtype(other))
    np.save(tmp_path / "x.npy", x.view(f"V{x.itemsize}"))
    status, _, err = run("run", tmp_path / "f.jaxexp", tmp_path / "x.npy")
    assert (status, err.count("\n")) == (1, 1)
    assert f"'{tmp_path}/x.npy': expected " in err
    assert dtype in err


@pytest.mark.parametrize("dtype", ["bool", "int4", "uint16", "float8_e5m2", "bfloat16", "float32", "complex64"])
def test_dtypes_in_files(dtype: str, tmp_path: Path) -> None:
    array = np.arange(6).reshape(2, 3).astype(dtype)
    unpickled = pickle.loads(pickle.dumps(array))  # whose dtype is another object, and not a built-in one
    columns = np.asfortranarray(array)
    for name, value in (("rows", array), ("columns", columns), ("scalar", array[0, 1]), ("unpickled", unpickled)):
        arrays.write(str(tmp_path / "a.npy"), {name: np.asarray(value)})
        arrays.write(str(tmp_path / "a.npz"), {name: np.asarray(value)})
        aval = jax.core.ShapedArray(np.shape(value), jnp.dtype(dtype))
        for found in (arrays.read(str(tmp_path / "a.npy")), arrays.read_all(str(tmp_path / "a.npz"))[name]):
            np.testing.assert_array_equal(arrays.as_argument(found, aval).value(), np.asarray(value), strict=True)


def test_other_byte_orders(here: Path, tmp_path: Path, good: Any) -> None:
    np.save(tmp_path / "big.npy", INPUT.astype(">f4"))
    assert good("run", "scores.jaxexp", "b.npy", "w.npy", tmp_path / "big.npy") == good(
        "run", "scores.jaxexp", "b.npy", "w.npy", "x.npy"
    )


def test_what_is_not_finite_is_counted(tmp_path: Path, good: Any) -> None:
    jaxexp.export(jax.jit(lambda x: (jnp.log(x), x[:0], x > 0, x * 1j)))(np.zeros(40, np.float32)).save(
        tmp_path / "log.jaxexp"
    )
    np.save(tmp_path / "x.npy", np.array([-1, 0, 1, *[np.e] * 37], np.float32))
    rows = good("run", tmp_path / "log.jaxexp", tmp_path / "x.npy").splitlines()
    assert rows[2].split()[:4] == ["result[0]", "float32[40]", "0", "1"]
    assert rows[2].split()[-1] == "2"
    assert rows[3].split() == ["result[1]", "float32[0]"]
    assert rows[4].split() == ["result[2]", "bool[40]", "False", "True", "0.95"]
    assert rows[5].split() == ["result[3]", "complex64[40]"]


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


# --- random inputs ----------------------------------------------------------------------------------------------------


def test_random_inputs(here: Path, tmp_path: Path, good: Any) -> None:
    def result(*options: object) -> Any:
        good("run", "scores.jaxexp", "--random", *options, "-o", tmp_path / "y.npy", "--force")
        return np.load(tmp_path / "y.npy")

    first = result("--size", "batch=100")
    assert first.shape == (100, 3)
    assert first.std() > 0.1
    np.testing.assert_array_equal(first, result("--size", "batch=100", "--seed", "0"))
    assert (first != result("--size", "batch=100", "--seed", "1")).any()
    given = result("args[1]=x.npy")  # which says how large batch is
    assert given.shape == (2, 3)


def test_random_numbers_of_all_kinds(here: Path, tmp_path: Path, good: Any) -> None:
    good("run", "several.jaxexp", "--random", "--size", "n=3", "-o", tmp_path / "y.npz", "args[3]=5")
    with np.load(tmp_path / "y.npz") as found:
        assert found["result['x']"].shape == (3, 6)
        assert found["result['n']"] == 6


# --- where functions are ----------------------------------------------------------------------------------------------


def test_members_and_weights(tmp_path: Path, good: Any) -> None:
    model = bound()[0]
    model.save(tmp_path / "model.jaxexp")
    model.with_weights(params(seed=1)).save(tmp_path / "tuned.jaxexp")
    with jaxexp.Archive.create(tmp_path / "fleet.zip") as archive:
        archive.add("models/a", model)
    np.save(tmp_path / "x.npy", X)
    for name, options, expected in (
        ("model.jaxexp", [], params()),
        ("fleet.zip::models/a", [], params()),
        ("model.jaxexp", ["--weights", tmp_path / "tuned.safetensors"], params(seed=1)),
        ("fleet.zip::models/*", ["--weights", tmp_path / "tuned.safetensors"], params(seed=1)),
    ):
        out = tmp_path / "y.npy"
        good("run", tmp_path / name, tmp_path / "x.npy", "-o", out, "--force", *options)
        close(np.load(out), apply(expected, X))


def test_weights_of_other_dtypes_and_names(tmp_path: Path, good: Any, run: Any) -> None:
    """The advice is about options of the command line."""
    bound()[0].save(tmp_path / "model.jaxexp")
    np.save(tmp_path / "x.npy", X)
    whole = {name: np.asarray(array) for name, array in named(params(seed=1)).items()}

    def arguments(**others: Any) -> list[Any]:
        save_file({**whole, **others}, tmp_path / "given.safetensors")
        return ["run", tmp_path / "model.jaxexp", tmp_path / "x.npy", "--weights", tmp_path / "given.safetensors"]

    wide = arguments(head=whole["head"].astype(np.float64))
    status, _, err = run(*wide)
    assert (status, "; --cast casts it" in err) == (1, True)
    good(*wide, "--cast", "-o", tmp_path / "y.npy")
    close(np.load(tmp_path / "y.npy"), apply(params(seed=1), X))
    for head, said in (
        (whole["head"].astype(np.int64), "expected float32[32,8], found I64[32,8]; --cast makes floats of floats"),
        (np.full_like(whole["head"], 1e300, np.float64), "floats that fit into float32, found float64[32,8] with"),
    ):
        status, _, err = run(*arguments(head=head), "--cast")
        assert (status, said in err) == (1, True), err
    save_file({f"model.{name}": array for name, array in whole.items()}, tmp_path / "given.safetensors")
    status, _, err = run(*wide)
    assert (status, "have other names there, use with_weights in Python, with rename=" in err) == (1, True)
    status, _, err = run("run", tmp_path / "model.jaxexp", tmp_path / "x.npy", "--cast")
    assert (status, "--cast is for the weights of a file: add --weights" in err) == (2, True)


def test_functions_of_several_devices(folder: Path, tmp_path: Path, good: Any, run: Any) -> None:
    """`sharded.jaxexp` is for 8 devices, which tests have."""
    x = np.arange(32, dtype=np.float32).reshape(8, 4)
    np.save(tmp_path / "x.npy", x)
    good("run", folder / "sharded.jaxexp", tmp_path / "x.npy", "-o", tmp_path / "y.npz")
    with np.load(tmp_path / "y.npz") as found:
        np.testing.assert_array_equal(found["result['b']"], x + 1)
        assert found["result['sum']"] == x.sum()


@pytest.mark.processes(reason="a process with one device")
def test_too_few_devices(folder: Path, subprocess_env: Any) -> None:
    code = "import sys; from jaxexp._cli.start import main; sys.exit(main())"
    env = {name: value for name, value in subprocess_env().items() if name not in ("XLA_FLAGS", "JAX_NUM_CPU_DEVICES")}
    done = started(code, "run", folder / "sharded.jaxexp", "--random", env=env)
    assert done.returncode == 1
    assert "is for 8 devices, here are 1; JAX_NUM_CPU_DEVICES=8 makes as many of a CPU" in done.stderr
    done = started(code, "run", folder / "sharded.jaxexp", "--random", env={**env, "JAX_NUM_CPU_DEVICES": "8"})
    assert done.returncode == 0


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
    """By their paths or in order, in files of NumPy. Rounding is no difference."""
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


def test_expected_results_of_many_dtypes(here: Path, tmp_path: Path, good: Any, run: Any) -> None:
    arguments = ["run", "several.jaxexp", "--random", "--size", "n=3"]
    good(*arguments, "-o", tmp_path / "y.npz")
    assert "5 results as in " in good(*arguments, "--expect", tmp_path / "y.npz")
    status, _, err = run(*arguments, "--seed", 1, "--expect", tmp_path / "y.npz")
    assert status == 1 and "result['bits']: 2 of 2 numbers" in err


def test_policy(here: Path, tmp_path: Path, run: Any) -> None:
    (tmp_path / "policy.toml").write_text("platforms = ['tpu']\n")
    status, out, err = run(
        "run", "scores.jaxexp", "--random", "--size", "batch=2", "--policy", tmp_path / "policy.toml"
    )
    assert (status, out) == (1, "")
    assert "the policy does not allow the artifact" in err


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        # as calls say it
        (["b.npy", "w.npy", "b.npy"], 1, "calling scores: args[1]"),
        (["b.npy", "w.npy", "long.npy"], 1, "args[1].shape[1] must have size 4, found size 5 (exported with float32["),
        (["b.npy", "w.npy", "one.npy"], 1, "constraint batch >= 2"),
        (["b.npy", "w.npy", "ints.npy"], 1, "float32"),
        # about the command line
        (["b.npy", "w.npy"], 2, "args[1] (float32[batch,4]) is not given"),
        ([], 2, "args[0]['b'] (float32[3]), args[0]['w'] (float32[4,3]), args[1] (float32[batch,4]) are not given"),
        (["b.npy", "w.npy", "x.npy", "x.npy"], 2, "takes 3 arguments; 'x.npy' is one more"),
        (["four.npz"], 2, "takes 3 arguments; 'four.npz', 'arr_3', is one more"),
        (["args[1]=x.npy", "args[1]=x.npy"], 2, "args[1]=x.npy gives args[1] a second time"),
        (["args[0]['v']=w.npy"], 2, "has no argument args[0]['v']: did you mean args[0]['w']?"),
        (
            ["kwargs['training']=true"],
            2,
            "has no argument kwargs['training']; it has args[0]['b'], args[0]['w'], args[1]",
        ),
        (["b.npy", "w.npy", "x.npy", "--outptu", "y.npy"], 2, "No such option '--outptu'. Did you mean '--output'?"),
        (["--size", "batch=4"], 2, "--size is for random numbers: add --random"),
        (["--seed", "4"], 2, "--seed is for random numbers: add --random"),
        (["--random"], 1, "say how large batch is, as in --size batch=4"),
        (["--random", "--size", "length=4"], 1, "has no symbolic dimension length: its symbolic dimensions are batch"),
        (["--random", "-o", "y.txt"], 2, "-o takes a file .npy or .npz, not 'y.txt'"),
        # about files
        (["b.npy", "w.npy", "missing.npy"], 1, "'missing.npy': No such file"),
        (["b.npy", "2", "x.npy"], 2, "args[0]['w'] (float32[4,3]) takes a .npy file, not '2'"),
        (["b.npy", "w.npy", "text.npy"], 1, "'text.npy' is not a file of numpy.save or numpy.savez"),
        (["b.npy", "w.npy", "no_hash.npy"], 1, "'no_hash.npy' is not a file of numpy.save or numpy.savez"),
        (["b.npy", "w.npy", "no_end.npy"], 1, "'no_end.npy' is not a file of numpy.save or numpy.savez"),
        (["b.npy", "w.npy", "empty.npy"], 1, "'empty.npy' is not a file of numpy.save or numpy.savez"),
        (
            ["b.npy", "w.npy", "objects.npy"],
            1,
            "'objects.npy' is not a file of numpy.save or numpy.savez: it has Python",
        ),
        (["other.npz"], 1, "args[0]['b'], args[0]['w'], args[1]. Name arrays by these paths; or arr_0, arr_1, ..."),
        (["args[1]=four.npz"], 1, "'four.npz' is a .npz file, where one array is expected"),
    ],
)
def test_what_is_refused(here: Path, run: Any, arguments: list[str], status: int, said: str) -> None:
    for name, head in (("no_hash", b"{[]: 1}"), ("no_end", b"(")):
        Path(f"{name}.npy").write_bytes(b"\x93NUMPY\1\0" + len(head).to_bytes(2, "little") + head)
    np.save("long.npy", np.ones((2, 5), np.float32))
    np.save("one.npy", np.ones((1, 4), np.float32))
    np.save("ints.npy", np.ones((2, 4), np.int32))
    np.save("objects.npy", np.array([None, {}], object), allow_pickle=True)
    np.savez("four.npz", B, W, INPUT, INPUT)
    np.savez("other.npz", y=INPUT)
    Path("text.npy").write_text("no array")
    Path("empty.npy").touch()
    found, out, err = run("run", "scores.jaxexp", *arguments)
    assert (found, out) == (status, "")
    assert said in err
    assert err.count("\n") == 1
    assert "not expected here" not in err


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (["half.npy", "x", "1", "1", "1"], "args[1] (key<fry>[]) takes an integer, or a .npy file, not 'x'"),
        (["half.npy", "1", "one", "1", "1"], "args[2] (float32[]) takes a number, or a .npy file, not 'one'"),
        (["half.npy", "1", "1", "1.5", "1"], "args[3] (int8[]) takes an integer, or a .npy file, not '1.5'"),
        (["half.npy", "1", "1", "200", "1"], "args[3] (int8[]) takes an integer from -128 to 127"),
        (["half.npy", "1", "1", "1", "yes"], "kwargs['flag'] (bool[]) takes true or false"),
        (["half.npy", "1", "1", "1", "1", "-o", "y.npy"], "'several.jaxexp' has 5 results, and 'y.npy' holds one"),
    ],
)
def test_numbers_that_are_refused(here: Path, run: Any, number: list[str], said: str) -> None:
    status, out, err = run("run", "several.jaxexp", *number)
    assert (status, out) == (2, "")
    assert said in err


def test_nothing_is_replaced_or_left_unfinished(
    here: Path, tmp_path: Path, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "y.npz"
    out.write_text("mine")
    arguments = ["run", "scores.jaxexp", "b.npy", "w.npy", "x.npy", "-o", out]
    status, _, err = run(*arguments)
    assert (status, out.read_text()) == (1, "mine")
    assert "exists: --force replaces it" in err

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device", "y")

    with monkeypatch.context() as patch:
        patch.setattr(np.lib.format, "write_array", full)
        assert run(*arguments, "--force")[0] == 1
    assert out.read_text() == "mine"
    assert list(tmp_path.iterdir()) == [out]
    assert run(*arguments, "--force")[0] == 0


@pytest.mark.processes(reason="counts what a process imports")
def test_a_wrong_command_line_imports_no_jax(place: Path, subprocess_env: Any) -> None:
    code = "import sys; from jaxexp._cli.start import main; main(); sys.exit('jax' in sys.modules)"
    for arguments in (["--help"], ["scores.jaxexp", "--seed", "1"], ["scores.jaxexp", "-o", "y.txt"]):
        done = started(code, "run", *arguments, env=subprocess_env(), cwd=place)
        assert done.returncode == 0, arguments


def _npy(descr: str, shape: str, data: bytes = b"", version: int = 1) -> bytes:
    head = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY" + bytes([version, 0]) + len(head).to_bytes(2 if version == 1 else 4, "little") + head + data


def _npz(path: Path, *members: tuple[str, bytes], compression: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", compression) as zipped, warnings.catch_warnings(action="ignore"):
        for name, content in members:
            zipped.writestr(name, content)
    return path


HUGE = _npy("'<f4'", "(9000000,)", bytes(36_000_000))


@pytest.mark.parametrize("how", ["run", "expect", "record", "inputs", "npy"])
def test_what_does_not_fit_is_not_unpacked(
    how: str, here: Path, tmp_path: Path, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few bytes may unpack to any number of them."""
    path = _npz(tmp_path / "huge.npz", ("arr_0.npy", HUGE))
    if how == "npy":
        path = tmp_path / "huge.npy"
        path.write_bytes(HUGE)
    else:
        assert path.stat().st_size < 50_000
    jaxexp.export(jax.jit(lambda x: x))(np.float32(1)).save(tmp_path / "one.jaxexp")
    monkeypatch.setattr(np.lib.format, "read_array", lambda *_, **__: pytest.fail("it was unpacked"))
    model = tmp_path / "one.jaxexp"
    status, out, err = {
        "run": lambda: run("run", model, path),
        "npy": lambda: run("run", model, path),
        "record": lambda: run("record", model, path),
        "expect": lambda: run("run", model, "1", "--expect", path),
        "inputs": lambda: run("migrate", "--inputs", path, model, tmp_path / "new.jaxexp"),
    }[how]()
    assert (status, out, err.count("\n")) == (1, "", 1)
    found = "expected shape (9000000,), found ()" if how == "expect" else "must have rank 0, found rank 1"
    assert found in err


@pytest.mark.parametrize("kind", ["npy", "npz"])
@pytest.mark.parametrize(
    ("content", "said"),
    [
        (_npy("'|V0'", "(99999999999,)"), "expected dtype float32, found |V0"),
        (_npy("'<U7'", "(0,)"), "expected dtype float32, found <U7"),
        (_npy("'<f16'", "(0,)"), "expected dtype float32, found float128"),
        (_npy("[('a', '<f4')]", "(0,)"), "expected dtype float32, found [('a', '<f4')]"),
        (_npy("'|O'", "(2,)"), "it has Python objects"),
        (_npy("'<f4'", "(2,)", bytes(7)), "it ends before its last number"),
        (_npy("'<f4'", "(4611686018427387904, 4)"), "it ends before its last number"),
        (_npy("'<f4'", "(-2,)", bytes(8)), "its head is not one that NumPy writes"),
        (_npy("'<f4'", "(" + "1, " * 65 + ")", bytes(8)), "its head is not one that NumPy writes"),
        (_npy("-" * 9000 + "1", "(2,)"), "its head is not one that NumPy writes"),
        (_npy("'\x1b[31m'", "(2,)"), r"\x1b[31m"),
        (_npy("'<f4'", "(2,)", bytes(8))[:-20], "not a file of numpy.save"),
        (b"\x93NUMPY\x02\x00\xff\xff\xff\xff{" + bytes(20), "its head has 4,294,967,295 bytes, and NumPy reads"),
        (b"\x93NUMPY\x09\x00" + bytes(20), "it is a file of another kind, or newer"),
        (b"", "it is a file of another kind, or newer"),
    ],
)
def test_heads_of_arrays(content: bytes, said: str, kind: str, tmp_path: Path, run: Any) -> None:
    jaxexp.export(jax.jit(lambda x: x))(np.ones(2, np.float32)).save(tmp_path / "two.jaxexp")
    path = _npz(tmp_path / "x.npz", ("arr_0.npy", content))
    if kind == "npy":
        path = tmp_path / "x.npy"
        path.write_bytes(content)
    status, out, err = run("run", tmp_path / "two.jaxexp", path)
    assert (status, out, err.count("\n")) == (1, "", 1)
    assert f"jaxexp: '{path}'" in err
    assert said in err
    assert err.rstrip("\n").isprintable()


def test_members_that_are_refused(tmp_path: Path, run: Any) -> None:
    jaxexp.export(jax.jit(lambda x: x))(np.ones(2, np.float32)).save(tmp_path / "two.jaxexp")
    good = _npy("'<f4'", "(2,)", bytes(8))
    for members, compression, said in (
        ([("notes.txt", b"no array")], zipfile.ZIP_DEFLATED, "its member 'notes.txt' is no array"),
        ([("arr_0.npy", good)] * 2, zipfile.ZIP_DEFLATED, "it has 'arr_0' twice"),
        ([("arr_0.npy", good)], zipfile.ZIP_LZMA, "'arr_0' is compressed in a way that"),
    ):
        path = _npz(tmp_path / "x.npz", *members, compression=compression)
        status, _, err = run("run", tmp_path / "two.jaxexp", path)
        assert (status, err.count("\n")) == (1, 1)
        assert said in err
    damaged = bytearray(_npz(tmp_path / "x.npz", ("arr_0.npy", good)).read_bytes())
    damaged[60] ^= 255
    (tmp_path / "x.npz").write_bytes(damaged)
    status, _, err = run("run", tmp_path / "two.jaxexp", tmp_path / "x.npz")
    assert (status, err.count("\n")) == (1, 1)
    assert "is not a file of numpy.save or numpy.savez" in err

"""Functions with symbolic dimensions run for the sizes of their arguments, as they do when Python fixes the sizes."""

from __future__ import annotations

import concurrent.futures
import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaxexp
from jaxexp._executables.file import ExecutablesFile
from kit import goldens, linear_algebra, native, weighted
from kit import runtime as built
from kit.run_c import Handle, Library, Reason, RunError, pointer
from kit.symbolic_functions import FUNCTIONS

pytestmark = [
    pytest.mark.slow(reason="builds the C++ runtime, which takes minutes"),
    pytest.mark.once(reason="what is built in C++ is the same for every pair of Python and JAX"),
    pytest.mark.usefixtures("plugin"),
]

Call = Callable[..., list[np.ndarray]]


@pytest.fixture
def load(library: Library, runtime: Handle, tmp_path: Path) -> Callable[[bytes], Handle]:
    def load(blob: bytes) -> Handle:
        (tmp_path / "f.jaxexp").write_bytes(blob)
        return library.load(runtime, tmp_path / "f.jaxexp")

    return load


def specialized(exported: jaxexp.Exported, *arguments: np.ndarray) -> bytes:
    specs = [jax.ShapeDtypeStruct(x.shape, aval.dtype) for x, aval in zip(arguments, exported.in_avals, strict=True)]
    args, kwargs = exported.in_tree.unflatten(specs)
    return exported.specialize(*args, **kwargs).serialize(compatibility=built.READER)


def assert_same(found: list[np.ndarray], expected: list[np.ndarray]) -> None:
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected, strict=True):
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
        assert ours.tobytes() == theirs.tobytes()


@pytest.mark.parametrize("name", FUNCTIONS)
def test_operations(name: str, load: Any, call: Call) -> None:
    exported = FUNCTIONS[name].exported()
    function = load(exported.serialize(compatibility=built.READER))
    for argument in FUNCTIONS[name].arguments():
        assert_same(call(function, argument), call(load(specialized(exported, argument)), argument))


@pytest.mark.parametrize("version", [version for version, name in goldens.ARTIFACTS if name == "poly"])
def test_golden_artifacts_of_five_sizes(version: str, load: Any, call: Call) -> None:
    blob = goldens.blob_of(version, "poly")
    function = load(blob)
    w = np.linspace(-1, 1, 24, dtype=np.float32).reshape(8, 3)
    readable = jaxexp.compatibility(blob).unreadable_here is None
    for size in (1, 2, 5, 8, 33):
        x = np.random.default_rng(size).normal(size=(size, 8)).astype(np.float32)
        found = call(function, x, w)
        np.testing.assert_allclose(found[0], np.tanh(x @ w), rtol=1e-5)
        if readable:
            assert_same(found, call(load(specialized(jaxexp.deserialize(blob), x, w)), x, w))


@pytest.mark.parametrize("name", [name for name in linear_algebra.ARTIFACTS if "poly" in name])
def test_linear_algebra(name: str, library: Library, load: Any, call: Call) -> None:
    try:
        library.checked("use_lapack", str(built.lapack()).encode())
    except native.UnavailableError as missing:
        pytest.skip(str(missing))
    with linear_algebra.precision(name):
        exported = linear_algebra.load(name)
        arguments = jax.tree.leaves(linear_algebra.stored(name)[0])
        blob = (linear_algebra.LAPACK / f"{name}.bin").read_bytes()
        found = call(load(blob), *arguments)
        fixed = specialized(exported, *arguments)
    assert_same(found, call(load(fixed), *arguments))


def test_vjps_of_other_sizes(library: Library, load: Any, call: Call) -> None:
    (b,) = jaxexp.symbolic_shape("b")
    exported = jaxexp.export(jax.jit(lambda x: jnp.tanh(x) @ x.T))(jax.ShapeDtypeStruct((b, 4), "float32"))
    vjp = library.changed("vjp", load(exported.serialize(vjp_order=1, compatibility=built.READER)))
    for size in (1, 3, 8):
        x, ct = np.ones((size, 4), np.float32), np.eye(size, dtype=np.float32)
        np.testing.assert_allclose(call(vjp, x, ct)[0], exported.vjp().call(x, ct)[0], rtol=1e-5)


def test_all_sizes_share_the_weights(library: Library, runtime: Handle, call: Call, tmp_path: Path) -> None:
    given = weighted.params()
    (b,) = jaxexp.symbolic_shape("b")
    spec = jax.ShapeDtypeStruct((b, weighted.SIZE), "float32")
    exported = jaxexp.export(jax.jit(weighted.closed(given)), weights=given)(spec)
    exported.save(tmp_path / "model.jaxexp", compatibility=built.READER, vjp_order=1)
    function = library.load(runtime, tmp_path / "model.jaxexp")
    vjp = library.changed("vjp", function)
    for size in (1, 4, 9):
        x = np.ones((size, weighted.SIZE), np.float32)
        expected, pullback = jax.vjp(lambda x: weighted.apply(given, x), x)
        np.testing.assert_allclose(call(function, x)[0], expected, rtol=1e-4, atol=1e-5)
        cotangents = call(vjp, x, np.ones_like(expected))
        np.testing.assert_allclose(cotangents[-1], pullback(jnp.ones_like(expected))[0], rtol=1e-4, atol=1e-5)


def test_a_static_function_calls_a_symbolic_one(load: Any, call: Call) -> None:
    inner = FUNCTIONS["reductions"].exported()
    x = FUNCTIONS["reductions"].arguments()[0]
    outer = jaxexp.export(jax.jit(lambda x: inner.call(x)[0]))(jax.ShapeDtypeStruct(x.shape, x.dtype))
    np.testing.assert_allclose(call(load(outer.serialize(compatibility=built.READER)), x)[0], x.sum(0), rtol=1e-5)


def test_shapes_that_do_not_fit(load: Any, call: Call) -> None:
    a, b = jaxexp.symbolic_shape("a, b", constraints=["a >= b + 1", "mod(b, 2) == 0"])
    specs = [jax.ShapeDtypeStruct(shape, "float32") for shape in ((a, b), (a + b,))]
    exported = jaxexp.export(jax.jit(lambda x, y: x.sum() + y.sum()))(*specs)
    function = load(exported.serialize(compatibility=built.READER))
    assert call(function, np.ones((3, 2), np.float32), np.ones(5, np.float32))[0] == 11

    def message(*shapes: tuple[int, ...]) -> str:
        with pytest.raises(RunError) as error:
            call(function, *(np.ones(shape, np.float32) for shape in shapes))
        assert error.value.reason == Reason.ARGUMENT
        return str(error.value)

    assert "args[1].shape[0] must have size b + a, found size 6, where a = 3, b = 2" in message((3, 2), (6,))
    # What was refused stays refused, and harms no other sizes. The words are those of Python.
    for shapes, words in (
        (((2, 2), (4,)), "the sizes of the arguments must satisfy a >= b + 1, found a = 2 (args[0].shape[0]), b = 2 "),
        (((4, 3), (7,)), "args[0].shape[1] must be a multiple of 2, found 3 (exported with the constraint "),
    ) * 2:
        assert message(*shapes).startswith("calling <lambda>: " + words)
        with pytest.raises(jaxexp.ExportError) as refused:
            exported.call(*(np.ones(shape, np.float32) for shape in shapes))
        assert str(refused.value) == message(*shapes)
    assert call(function, np.ones((3, 2), np.float32), np.ones(5, np.float32))[0] == 11


def test_threads_with_the_same_and_other_sizes(load: Any, call: Call) -> None:
    symbolic = FUNCTIONS["products"]
    function = load(symbolic.exported().serialize(compatibility=built.READER))
    arguments = symbolic.arguments()
    expected = [call(function, x) for x in arguments]
    function = load(symbolic.exported().serialize(compatibility=built.READER))
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda i: call(function, arguments[i % len(arguments)]), range(40)))
    for i, results in enumerate(found):
        assert_same(results, expected[i % len(arguments)])


def test_more_sizes_than_are_kept(load: Any, call: Call) -> None:
    (b,) = jaxexp.symbolic_shape("b")
    exported = jaxexp.export(jax.jit(lambda x: x + 1))(jax.ShapeDtypeStruct((b,), "float32"))
    function = load(exported.serialize(compatibility=built.READER))
    for size in [*range(1, 80), *range(1, 10)]:
        assert_same(call(function, np.zeros(size, np.float32)), [np.ones(size, np.float32)])


def test_code_of_several_sizes_is_kept(
    library: Library, runtime: Handle, load: Any, call: Call, tmp_path: Path
) -> None:
    file = tmp_path / "f.exe"
    blob = FUNCTIONS["products"].exported().serialize(compatibility=built.READER)
    function = load(blob)
    with pytest.raises(RunError, match="is compiled for no sizes yet: call it first"):
        library.checked("save_executable", pointer(function), str(file).encode())
    arguments = FUNCTIONS["products"].arguments()
    expected = [call(function, x) for x in arguments[:2]]
    library.checked("save_executable", pointer(function), str(file).encode())
    library.checked("save_executable", pointer(function), str(file).encode())
    records = ExecutablesFile(file).records
    assert len(records) == 2
    again = library.load_with(runtime, tmp_path / "f.jaxexp", executables=str(file).encode())
    for x, results in zip(arguments, expected, strict=False):
        assert_same(call(again, x), results)
        assert why_compiled(library, again) == ""
    again = library.load_with(runtime, tmp_path / "f.jaxexp", executables=str(file).encode())
    call(again, arguments[2])
    assert "it has code of this function for b=5, and not for b=8" in why_compiled(library, again)


def test_compile_needs_sizes(library: Library, load: Any) -> None:
    function = load(FUNCTIONS["batched_product"].exported().serialize(compatibility=built.READER))
    with pytest.raises(RunError, match=r"has symbolic dimensions \(a, b\): it is compiled when it is first called"):
        library.checked("compile", pointer(function))


def test_what_is_not_known_is_refused_by_name(load: Any, call: Call) -> None:
    (b,) = jaxexp.symbolic_shape("b", constraints=["b >= 2"])
    nearly = jax.jit(lambda x: lax.approx_max_k(x, x.shape[0] // 2))
    exported = jaxexp.export(nearly)(jax.ShapeDtypeStruct((b,), "float32"))
    function = load(exported.serialize(compatibility=built.READER))
    message = (
        r"^<lambda> has symbolic dimensions, and of its operation vhlo.custom_call_v1 of "
        r"stablehlo.dynamic_approx_top_k it is not known what sizes it computes: fix them with 'jaxexp specialize OLD "
    )
    with pytest.raises(RunError, match=message) as error:
        call(function, np.ones(4, np.float32))
    assert error.value.reason == Reason.UNSUPPORTED


def why_compiled(library: Library, function: Handle) -> str:
    library.c.jaxexp_why_compiled.restype = ctypes.c_char_p
    return library.c.jaxexp_why_compiled(pointer(function)).decode()


def test_from_the_command_line(tmp_path: Path) -> None:
    artifact, x, file = tmp_path / "f.jaxexp", tmp_path / "x.npy", tmp_path / "f.exe"
    artifact.write_bytes(FUNCTIONS["gradient"].exported().serialize(compatibility=built.READER))
    np.save(x, FUNCTIONS["gradient"].arguments()[0])
    done = built.run(artifact, x, "--repeat", 3, "--save-executable", file)
    assert done.returncode == 0, done.stderr
    assert "first call: " in done.stdout
    assert "compiled in" not in done.stdout
    again = built.run(artifact, x, "--executables", file)
    assert (again.returncode, again.stderr) == (0, "")
    without = built.run(artifact, "--save-executable", file)
    assert without.returncode == 1
    assert "is compiled for no sizes yet: call it first" in without.stderr

"""Linear algebra without jaxlib: each of JAX's calls gives what jaxlib gives, on the same LAPACK."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import jaxlib.lapack
import numpy as np
import pytest
from jax.lax import linalg

import jaxexp
from kit import linear_algebra, native, runtime
from kit.run_c import Handle, Library, Reason, RunError

pytestmark = pytest.mark.cpp

TARGETS = [name for name, *_ in jaxlib.lapack.registrations()["cpu"] if name.startswith("lapack_")]
UNSTABLE = [
    jaxexp.DisabledSafetyCheck.custom_call(target)
    for target in (*TARGETS, "lapack_spotrf", "lapack_sgeqrf", "jaxexp_other")
]


def library_of(package: str) -> Path:
    try:
        return runtime.lapack(package)
    except native.UnavailableError as missing:
        pytest.skip(str(missing))


@pytest.fixture(scope="module")
def lapack() -> Path:
    return library_of("scipy")


@pytest.fixture(scope="module")
def loaded(library: Library, runtime: Handle, lapack: Path, tmp_path_factory: pytest.TempPathFactory):
    """Loads a function of JAX, for arguments like these, in a process that has a LAPACK."""
    folder = tmp_path_factory.mktemp("lapack")
    library.checked("use_lapack", str(lapack).encode())

    def load(function: Callable[..., Any], *arguments: Any) -> Handle:
        """Written for today's StableHLO: other releases lack `ormqr`."""
        specs = [jax.ShapeDtypeStruct(np.shape(argument), argument.dtype) for argument in arguments]
        exported = jaxexp.export(jax.jit(function), platforms=["cpu"], disabled_checks=UNSTABLE)(*specs)
        exported.save(folder / "f.jaxexp")
        return library.load(runtime, folder / "f.jaxexp")

    return load


def numbers(dtype: str, *shape: int, seed: int = 0) -> np.ndarray:
    generator = np.random.default_rng(seed)
    real = generator.standard_normal(shape)
    complex_ = real + 1j * generator.standard_normal(shape)
    return (complex_ if np.dtype(dtype).kind == "c" else real).astype(dtype)


def symmetric(x: Any) -> Any:
    return x + jnp.conj(jnp.swapaxes(x, -1, -2))


def positive(x: Any) -> Any:
    return x @ jnp.conj(jnp.swapaxes(x, -1, -2)) + x.shape[-1] * jnp.eye(x.shape[-2], dtype=x.dtype)


def diagonals(x: Any) -> tuple[Any, Any, Any]:
    below, middle, above = x[..., 0], x[..., 1] + 4, x[..., 2]
    return below.at[..., 0].set(0), middle, above.at[..., -1].set(0)


def triangular(x: Any, **how: bool) -> Any:
    return linalg.triangular_solve(x + 3 * jnp.eye(x.shape[-1], dtype=x.dtype), x, **how)


SQUARE: dict[str, tuple[str, Callable[..., Any]]] = {
    "cholesky": ("potrf", lambda x: linalg.cholesky(positive(x))),
    "lu": ("getrf", linalg.lu),
    "eigh": ("syevd heevd", lambda x: linalg.eigh(symmetric(x))),
    "eigh_upper": ("syevd heevd", lambda x: linalg.eigh(symmetric(x), lower=False, symmetrize_input=False)),
    "eig": ("geev", linalg.eig),
    "eigenvalues": ("geev", lambda x: linalg.eig(x, compute_left_eigenvectors=False, compute_right_eigenvectors=False)),
    "schur": ("gees", linalg.schur),
    "schur_form": ("gees", lambda x: linalg.schur(x, compute_schur_vectors=False)),
    "hessenberg": ("gehrd", linalg.hessenberg),
    "tridiagonal": ("sytrd hetrd", lambda x: linalg.tridiagonal(symmetric(x), lower=True)),
    "tridiagonal_upper": ("sytrd hetrd", lambda x: linalg.tridiagonal(symmetric(x), lower=False)),
    "solve": ("trsm", triangular),
    "solve_left": ("trsm", lambda x: triangular(x, left_side=True, lower=True)),
    "solve_transposed": ("trsm", lambda x: triangular(x, left_side=True, transpose_a=True)),
    "solve_conjugated": ("trsm", lambda x: triangular(x, left_side=True, transpose_a=True, conjugate_a=True)),
    "solve_unit": ("trsm", lambda x: triangular(x, unit_diagonal=True)),
    "ormqr": ("ormqr unmqr", lambda x: linalg.ormqr(x, x[..., 0], x)),
    "ormqr_right": ("ormqr unmqr", lambda x: linalg.ormqr(x, x[..., 0], x, left=False, transpose=True)),
}
ANY: dict[str, tuple[str, Callable[..., Any]]] = {
    "qr": ("geqrf orgqr ungqr", lambda x: linalg.qr(x, full_matrices=False)),
    "qr_full": ("geqrf orgqr ungqr", linalg.qr),
    "qr_pivoted": ("geqp3 orgqr ungqr", lambda x: linalg.qr(x, pivoting=True, full_matrices=False)),
    "svd": ("gesdd", linalg.svd),
    "svd_reduced": ("gesdd", lambda x: linalg.svd(x, full_matrices=False)),
    "singular_values": ("gesdd", lambda x: linalg.svd(x, compute_uv=False)),
    "svd_by_qr": ("gesvd", lambda x: linalg.svd(x, algorithm=linalg.SvdAlgorithm.QR)),
    "singular_values_by_qr": (
        "gesvd",
        lambda x: linalg.svd(x, algorithm=linalg.SvdAlgorithm.QR, compute_uv=False),
    ),
    "lu_of_any": ("getrf", linalg.lu),
    "tridiagonal_solve": ("gtsv", lambda x: linalg.tridiagonal_solve(*diagonals(x), x)),
}
FUNCTIONS = SQUARE | ANY
SHAPES = {
    **{name: [(4, 4), (3, 5, 5), (2, 2, 3, 3), (1, 1), (0, 3, 3), (2, 0, 3, 3)] for name in SQUARE},
    **{name: [(5, 3), (3, 5), (2, 4, 3), (2, 1, 3, 5), (4, 4), (0, 4, 3)] for name in ANY},
    "tridiagonal_solve": [(5, 3), (2, 4, 3), (2, 2, 3, 3), (0, 4, 3)],
}
DTYPES = ["float32", "float64", "complex64", "complex128"]
# What has no elements does not get as far as LAPACK, or JAX refuses it.
EMPTY = dict.fromkeys(("cholesky", "lu", "solve", "eigh"), (0, 0))
EMPTY |= {"qr": (0, 3), "qr_full": (3, 0), "svd": (3, 0)}


@pytest.fixture
def compare(loaded: Any, call: Any) -> Callable[..., None]:
    """Compares what the runtime computes with what JAX does."""

    def compare(function: Callable[..., Any], *arguments: Any) -> None:
        found = call(loaded(function, *arguments), *arguments)
        expected = jax.tree.leaves(jax.jit(function)(*arguments))
        assert len(found) == len(expected)
        for ours, theirs in zip(found, expected, strict=True):
            assert ours.dtype == theirs.dtype
            tolerance = 2e-4 if ours.dtype in (np.float32, np.complex64) else 1e-11
            np.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=tolerance)

    return compare


def for_all(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *arguments: [function(x) for x in arguments]


ALL_SHAPES = pytest.mark.long(
    promise="each routine of LAPACK computes what it does for jaxlib, for all types and shapes",
    sibling="test_lapack.py::test_calls",
)


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=ALL_SHAPES)])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_calls(name: str, every: bool, compare: Any) -> None:
    """All dtypes in one function, and what has no elements."""
    function, shapes = FUNCTIONS[name][1], SHAPES[name]
    with jax.enable_x64(True):
        of_dtype = dict.fromkeys(DTYPES, shapes if every else shapes[1:2])
        if not every:
            of_dtype["float32"] = [shapes[0], shapes[1], shapes[-1]]
        arguments = [numbers(dtype, *shape, seed=i) for dtype in DTYPES for i, shape in enumerate(of_dtype[dtype])]
        compare(for_all(function), *arguments)
    if name in EMPTY:
        compare(for_all(function), numbers("float32", *EMPTY[name]), numbers("float32", 2, *EMPTY[name]))


@pytest.mark.parametrize("dtype", DTYPES)
def test_matrices_that_fail(dtype: str, compare: Any) -> None:
    """Each in a batch with one that does not fail."""
    good = np.diag(np.arange(1, 5)).astype(dtype)
    not_finite, infinite = good.copy(), good.copy()
    not_finite[1, 2], infinite[0, 3] = np.nan, np.inf

    def all_functions(positive: Any, singular: Any, not_finite: Any, infinite: Any) -> Any:
        values = functools.partial(linalg.svd, compute_uv=False)
        return (
            linalg.cholesky(positive),
            linalg.lu(singular),
            [function(not_finite) for function in (values, linalg.eig, linalg.eigh, linalg.schur)],
            [function(infinite) for function in (values, linalg.eig)],
            triangular(singular - 3 * jnp.eye(4, dtype=dtype)),
        )

    with jax.enable_x64(True):
        positive = np.stack([good, -good, not_finite])
        batches = [np.stack([good, other]) for other in (np.zeros_like(good), not_finite, infinite)]
        compare(all_functions, positive, *batches)


@pytest.mark.timeout(120)
def test_what_lapack_does_not_compute(loaded: Any, call: Any) -> None:
    """Its algorithms would never end for such a matrix, in JAX and SciPy, either. And nobody sees what was in memory:
    where there is nothing to do, and in the scratch memory of old calls.
    """
    matrix = np.eye(3, dtype=np.float32)
    both = np.stack([matrix, np.diag([np.inf, 1, 1]).astype(np.float32)])
    for algorithm in (linalg.SvdAlgorithm.DEFAULT, linalg.SvdAlgorithm.QR):
        for result in call(loaded(lambda x: linalg.svd(x, algorithm=algorithm), both), both):  # noqa: B023
            assert np.isfinite(result[0]).all()
            assert np.isnan(result[1]).all()

    def nothing_to_do(x: Any) -> Any:
        results = (f32(3, 3), f32(2), i32())
        return jax.ffi.ffi_call("lapack_sgehrd_ffi", results)(x, low=np.int32(2), high=np.int32(2))[1:]

    def scratch(x: Any) -> Any:
        results = (f32(3, 3), f32(3), i32(), f32(100_000))
        sizes = [np.int32(size) for size in (1, 3, 3, 100_000)]
        return jax.ffi.ffi_call("lapack_sgeqrf", results, custom_call_api_version=2)(*sizes, x)[3]

    for function in (nothing_to_do, scratch):
        compiled = loaded(function, matrix)
        for _ in range(3):
            freed = [np.full(size, 1234.5, np.float32) for size in (2, 3, 100_000) for _ in range(10)]
            del freed
            assert not any(result.any() for result in call(compiled, matrix))


def test_all_routines_of_jaxlib_are_tested() -> None:
    tested = {routine for routines, _ in FUNCTIONS.values() for routine in routines.split()}
    assert {target.removesuffix("_ffi").removeprefix("lapack_")[1:] for target in TARGETS} == tested


def f32(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, np.float32)


def i32(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, np.int32)


L, N, A, S = (np.uint8(ord(letter)) for letter in "LNAS")
TRSM = {"side": L, "uplo": L, "trans_x": N, "diag": N}
LU = (f32(3, 3), i32(3), i32())
RANGE = {"low": np.int32(1), "high": np.int32(4)}
# Of each call: the routine, results, arguments and attributes.
WRONG: dict[str, tuple[str, Any, tuple[Any, ...], dict[str, Any]]] = {
    "a vector for a matrix": ("spotrf", (f32(3), i32()), (f32(3),), {"uplo": L}),
    "a matrix that is not square": ("spotrf", (f32(3, 2), i32()), (f32(3, 2),), {"uplo": L}),
    "another type": ("dpotrf", (f32(3, 3), i32()), (f32(3, 3),), {"uplo": L}),
    "a small result": ("spotrf", (f32(2, 3), i32()), (f32(3, 3),), {"uplo": L}),
    "a small batch of results": ("spotrf", (f32(3, 3), i32()), (f32(2, 3, 3),), {"uplo": L}),
    "few results": ("sgetrf", (f32(3, 3), i32(3)), (f32(3, 3),), {}),
    "few pivots": ("sgetrf", (f32(3, 3), i32(2), i32()), (f32(3, 3),), {}),
    "few columns to pivot": ("sgeqp3", (f32(3, 3), i32(3), f32(3)), (f32(3, 3), i32(2)), {}),
    "few factors of QR": ("sgeqrf", (f32(3, 3), f32(2)), (f32(3, 3),), {}),
    "few factors": ("ssytrd", (f32(3, 3), f32(3), f32(2), f32(1), i32()), (f32(3, 3),), {"uplo": L}),
    "few eigenvalues": ("ssyevd", (f32(3, 3), f32(2), i32()), (f32(3, 3),), {"mode": N, "uplo": L}),
    "few singular values": ("sgesvd", (f32(3, 3), f32(2), f32(3, 3), f32(3, 3), i32()), (f32(3, 3),), {"mode": A}),
    "more of a result than LAPACK knows": (
        "sgeqrf", (f32(3, 3), f32(3), jax.ShapeDtypeStruct((), np.int16)), (f32(3, 3),), {},
    ),
    "factors of an empty matrix": (
        "sgehrd", (f32(0, 0), f32(9), i32()), (f32(0, 0),), {"low": np.int32(1), "high": np.int32(0)},
    ),
    "a diagonal of an empty matrix": ("ssytrd", (f32(0, 0), f32(9), f32(0), f32(0), i32()), (f32(0, 0),), {"uplo": L}),
    "no arguments": ("sgetrf", LU, (), {}),
    "no attribute": ("spotrf", (f32(3, 3), i32()), (f32(3, 3),), {}),
    "an attribute of another type": ("spotrf", (f32(3, 3), i32()), (f32(3, 3),), {"uplo": np.int32(76)}),
    "many reflectors": ("sorgqr", f32(3, 3), (f32(3, 3), f32(4)), {}),
    "more columns than rows": ("sorgqr", f32(2, 3), (f32(2, 3), f32(2)), {}),
    "a small triangle": ("strsm", f32(3, 3), (f32(2, 2), f32(3, 3)), TRSM),
    "a large triangle": ("strsm", f32(3, 3), (f32(4, 4), f32(3, 3)), TRSM),
    "a factor with a size": ("strsm", f32(3, 3), (f32(3, 3), f32(3, 3), f32(2)), TRSM),
    "a small diagonal": ("sgtsv", (f32(3), f32(3), f32(3), f32(3, 3), i32()), (f32(3), f32(3), f32(2), f32(3, 3)), {}),
    "few left vectors": ("sgesdd", (f32(3, 3), f32(3), f32(3, 2), f32(3, 3), i32()), (f32(3, 3),), {"mode": A}),
    "real vectors": (
        "sgeev", (f32(3), f32(3), f32(3, 3), f32(3, 3), i32()), (f32(3, 3),), {"compute_left": N, "compute_right": N},
    ),
    "sorted": ("sgees", (f32(3, 3), f32(3, 3), f32(3), f32(3), i32(), i32()), (f32(3, 3),), {"mode": N, "sort": S}),
    "a range that ends behind the matrix": ("sgehrd", (f32(3, 3), f32(2), i32()), (f32(3, 3),), RANGE),
    "reflectors of another matrix": (
        "sormqr", f32(3, 3), (f32(2, 2), f32(2), f32(3, 3)), {"left": np.True_, "transpose": np.False_},
    ),
}  # fmt: skip


def test_calls_that_do_not_fit_are_refused(loaded: Any, call: Any) -> None:
    """Whoever wrote an artifact chose what it passes to LAPACK, which checks little and may end the process."""
    for what, (routine, results, specs, attributes) in WRONG.items():
        arguments = [np.ones(spec.shape, spec.dtype) for spec in specs]
        wrong = jax.ffi.ffi_call(f"lapack_{routine}_ffi", results)
        function = loaded(lambda *arguments: wrong(*arguments, **attributes), *arguments)  # noqa: B023
        with pytest.raises(RunError, match="a call of LAPACK") as raised:
            call(function, *arguments)
        assert raised.value.reason == Reason.PLUGIN, what


@pytest.mark.wide(one_in=8, promise="linear algebra of old releases runs on the LAPACK that is there")
@pytest.mark.parametrize("name", linear_algebra.ARTIFACTS)
def test_golden_artifacts(name: str, loaded: Any, library: Library, call: Any, runtime: Handle) -> None:
    """Also those from before 0.4.31, whose calls have no types, and those of any size."""
    with linear_algebra.precision(name):
        exported = linear_algebra.load(name)
        argument, _ = linear_algebra.stored(name)
        arguments = jax.tree.leaves(argument)
        function = library.load(runtime, linear_algebra.LAPACK / f"{name}.bin")
        for ours, theirs in zip(call(function, *arguments), jax.tree.leaves(exported.call(argument)), strict=True):
            linear_algebra.close(ours, theirs)
        if name == "jax-0.4.23/cholesky_vjp_32":
            cotangents = [np.ones(aval.shape, aval.dtype) for aval in exported.out_avals]
            found = call(library.changed("vjp", function), *arguments, *cotangents)
            expected = jax.tree.leaves(exported.vjp().call(*arguments, *cotangents))
            for ours, theirs in zip(found, expected, strict=True):
                linear_algebra.close(ours, theirs)


def test_untyped_calls_beside_others(loaded: Any, call: Any) -> None:
    """Only those of LAPACK become typed: the plugin is asked for a handler of the other one."""
    x = numbers("float32", 3, 3)
    results = (f32(3, 3), i32())
    lower, batch, size = np.int32(1), np.int32(1), np.int32(3)

    def function(x: Any) -> Any:
        factor, _ = jax.ffi.ffi_call("lapack_spotrf", results, custom_call_api_version=2)(lower, batch, size, x)
        return jax.ffi.ffi_call("jaxexp_other", f32(3, 3), custom_call_api_version=2)(factor)

    with pytest.raises(RunError, match="custom calls that the plugin does not compile: jaxexp_other; all its"):
        call(loaded(function, x), x)


def test_a_lapack_with_wide_integers(plugin: Path, tmp_path: Path) -> None:
    """That of NumPy. Everything that has arrays of integers, and a bit more."""
    wide = library_of("numpy")
    x = numbers("complex64", 2, 4, 3)

    def function(x: Any) -> Any:
        square = positive(x)
        eigenvalues = linalg.eigh(square)[1]
        return linalg.lu(x), linalg.qr(x, pivoting=True), linalg.svd(x, compute_uv=False), eigenvalues

    exported = jaxexp.export(jax.jit(function), platforms=["cpu"], disabled_checks=UNSTABLE)(x)
    exported.save(tmp_path / "f.jaxexp", compatibility="jax-0.8.1")
    found = runtime.results(
        tmp_path / "f.jaxexp",
        [x],
        {value.path: value.dtype for value in jaxexp.inspect(tmp_path / "f.jaxexp").results},
        "--lapack",
        wide,
    )
    for ours, theirs in zip(found.values(), jax.tree.leaves(jax.jit(function)(x)), strict=True):
        np.testing.assert_allclose(abs(ours), abs(theirs), rtol=1e-4, atol=1e-4)  # the signs are the library's choice


def test_which_lapack(loaded: Any, library: Library, plugin: Path, lapack: Path, tmp_path: Path) -> None:
    """The one of an option or of the environment, also for code that was compiled earlier; one for a process."""
    np.save(tmp_path / "x.npy", numbers("float32", 3, 3))
    exported = jaxexp.export(jax.jit(FUNCTIONS["cholesky"][1]), platforms=["cpu"])(f32(3, 3))
    exported.save(tmp_path / "f.jaxexp", compatibility="jax-0.8.1")
    code, outs = tmp_path / "code.exe", (tmp_path / "a.npy", tmp_path / "b.npy")

    def run(environment: object, *more: object) -> tuple[int, str]:
        done = runtime.run(tmp_path / "f.jaxexp", tmp_path / "x.npy", *more, lapack_file=str(environment))
        return done.returncode, done.stderr

    assert run(lapack) == (0, "")
    assert run("", "--lapack", lapack, "--save-executable", code, "--out", outs[0]) == (0, "")
    assert run("", "--lapack", lapack, "--executables", code, "--out", outs[1]) == (0, "")
    np.testing.assert_array_equal(*map(np.load, outs))
    status, said = run("")
    assert status == 1
    assert "has custom calls that the plugin does not compile: lapack_spotrf_ffi" in said
    assert "none was found here ($JAXEXP_LAPACK says that none is to be used): install OpenBLAS" in said
    for other, why in (
        (plugin, "is not a LAPACK: it does not have any of the functions dgetrf_, scipy_dgetrf_"),
        (tmp_path, "cannot be loaded"),
    ):
        for status, said in (run(other), run("", "--lapack", other)):
            assert status == 1 and str(other) in said and why in said
    library.checked("use_lapack", str(lapack).encode())  # the same one again
    with pytest.raises(RunError, match="is in use already"):
        library.checked("use_lapack", str(plugin).encode())


# LU of two matrices without rows, with its results as LAPACK lays them out.
FACTORIZED = """func.func public @main(%x: tensor<2x0x3xf32>) -> (tensor<2x0x3xf32>, tensor<2x0xi32>, tensor<2xi32>) {
  %r:3 = stablehlo.custom_call @lapack_sgetrf_ffi(%x) {api_version = 4 : i32, backend_config = {},
    operand_layouts = [dense<[1, 2, 0]> : tensor<3xindex>],
    result_layouts = [dense<[1, 2, 0]> : tensor<3xindex>, dense<[1, 0]> : tensor<2xindex>, dense<0> : tensor<1xindex>]}
    : (tensor<2x0x3xf32>) -> (tensor<2x0x3xf32>, tensor<2x0xi32>, tensor<2xi32>)
  return %r#0, %r#1, %r#2 : tensor<2x0x3xf32>, tensor<2x0xi32>, tensor<2xi32> }"""


@pytest.mark.parametrize("find", [runtime.plugin, runtime.newer_plugin])
def test_results_without_elements(find: Callable[[], Path], installed: Path, lapack: Path, tmp_path: Path) -> None:
    """Compilers that divide by their number end the process."""
    try:
        plugin = find()
    except native.UnavailableError as missing:
        pytest.skip(str(missing))
    artifact = tmp_path / "f.jaxexp"
    artifact.write_bytes(jaxexp.from_stablehlo(FACTORIZED).serialize(compatibility=runtime.READER))
    dtypes = {value.path: value.dtype for value in jaxexp.inspect(artifact).results}
    how = {"plugin_file": plugin, "lapack_file": lapack}
    found = runtime.results(artifact, [np.zeros((2, 0, 3), np.float32)], dtypes, **how)
    assert [result.tolist() for result in found.values()] == [[[], []], [[], []], [0, 0]]

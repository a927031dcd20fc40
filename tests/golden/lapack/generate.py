"""Writes artifacts of linear algebra on CPU with the `jax.export` of whatever release of JAX is installed.

usage: generate.py FOLDER [CASE ...]

`FOLDER/jax-VERSION/CASE.bin` is the artifact, `CASE.npz` its arguments (`in_0`, ...) and what the function computed
there (`out_0`, ...); `cases.json` lists the custom calls in each module, or why the release could not write it. A
case is a family of functions, applied to a real and a complex matrix and to a batch of each, in single (`_32`) or
double precision (`_64`); in the cases with `_poly` the batch is symbolic. Needs no part of jaxexp.
"""

import json
import os
import re
import sys

os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

try:
    from jax import export as jax_export

    export, Check = jax_export.export, jax_export.DisabledSafetyCheck
except (ImportError, AttributeError):  # before 0.4.30
    from jax.experimental import export as jax_export

    jax_export = getattr(jax_export, "export", None) if not hasattr(jax_export, "serialize") else jax_export
    if not hasattr(jax_export, "export"):
        from jax.experimental.export import export as jax_export
    export, Check = jax_export.export, jax_export.DisabledSafetyCheck

try:
    from jax._src.lax import linalg  # schur, hessenberg and tridiagonal were not public at first
except ImportError:
    from jax.lax import linalg

# What the guarantees of that time did not cover.
TARGETS = [
    prefix + precision + routine + suffix
    for prefix in ("lapack_", "blas_")
    for precision in "sdcz"
    for routine in "potrf geqrf orgqr ungqr syevd heevd geev gesdd getrf sytrd hetrd gehrd gees trsm gtsv".split()
    for suffix in ("", "_ffi")
] + ["ducc_fft", "dynamic_ducc_fft", "mhlo.topk", "TopK", "ApproxTopK"]

M, N = 5, 3  # a rectangle


def positive(x):
    return x @ jnp.conj(jnp.swapaxes(x, -1, -2)) + 4 * jnp.eye(x.shape[-1], dtype=x.dtype)


def square(x):
    return x[..., :N, :]


def symmetric(x):
    x = square(x)
    return x + jnp.conj(jnp.swapaxes(x, -1, -2))


def cholesky(x):
    return jnp.linalg.cholesky(positive(square(x)))


def eigh(x):
    return [*linalg.eigh(symmetric(x), lower=True), *linalg.eigh(symmetric(x), lower=False)]


def eig(x):
    return linalg.eig(square(x), compute_left_eigenvectors=True, compute_right_eigenvectors=True)


def eig_right(x):
    return linalg.eig(square(x), compute_left_eigenvectors=False, compute_right_eigenvectors=True)


def eigvals(x):
    return linalg.eig(square(x), compute_left_eigenvectors=False, compute_right_eigenvectors=False)


def qr(x):
    return [*linalg.qr(x, full_matrices=False), *linalg.qr(x, full_matrices=True)]


def qr_reduced(x):
    return linalg.qr(x, full_matrices=False)


def householder(x):
    return linalg.householder_product(x, x[..., 0, :] / 7)


def svd(x):
    return [*linalg.svd(x, full_matrices=False), *linalg.svd(x, full_matrices=True)]


def svd_wide(x):
    wide = jnp.swapaxes(x, -1, -2)
    values = linalg.svd(wide, full_matrices=True, compute_uv=False)
    return [*linalg.svd(wide, full_matrices=False), *(values if isinstance(values, (list, tuple)) else [values])]


def lu(x):
    return linalg.lu(x)


def triangular_solve(x):
    a, b = square(x) + 4 * jnp.eye(N, dtype=x.dtype), x
    bt = jnp.swapaxes(b, -1, -2)
    solve = linalg.triangular_solve
    return [
        solve(a, bt, left_side=True, lower=True),
        solve(a, bt, left_side=True, lower=False, transpose_a=True),
        solve(a, b, left_side=False, lower=True, transpose_a=True, conjugate_a=True),
        solve(a, b, left_side=False, lower=False, unit_diagonal=True),
    ]


def schur(x):
    return linalg.schur(square(x))


def schur_form(x):
    return linalg.schur(square(x), compute_schur_vectors=False)


def hessenberg(x):
    return linalg.hessenberg(jnp.concatenate([x, x * 2], axis=-1)[..., :5, :5])


def tridiagonal(x):
    y = jnp.concatenate([x, x * 2], axis=-1)[..., :5, :5]
    y = y + jnp.conj(jnp.swapaxes(y, -1, -2))
    return [*linalg.tridiagonal(y, lower=True), *linalg.tridiagonal(y, lower=False)]


def tridiagonal_solve(x):
    x = jnp.real(x)  # all that there was at first
    d = x[..., :, 0] + 5
    edge = [x[..., :, 1], x[..., :, 2]]
    first, last = jnp.arange(M) == 0, jnp.arange(M) == M - 1
    return linalg.tridiagonal_solve(jnp.where(first, 0, edge[0]), d, jnp.where(last, 0, edge[1]), x)


def top_k(x):
    return lax.top_k(jnp.real(x), 2)


def approx_top_k(x):
    return lax.approx_max_k(jnp.real(x).astype(jnp.float32), 2)


def fft(x):
    return [jnp.fft.fft(x), jnp.fft.ifft(x, axis=-2), jnp.fft.rfft(jnp.real(x)), jnp.fft.irfft(x), jnp.fft.fft2(x)]


def cholesky_sizes(x):
    return jnp.linalg.cholesky(positive(x))


def lu_sizes(x):
    return linalg.lu(x)


def eig_sizes(x):
    return linalg.eig(x, compute_left_eigenvectors=True, compute_right_eigenvectors=True)


def fft_sizes(x):
    return [jnp.fft.fft(x), jnp.fft.ifft(x, axis=-2), jnp.fft.rfft(jnp.real(x)), jnp.fft.fft2(x)]


FAMILIES = [
    cholesky, eigh, eig, eig_right, eigvals, qr, qr_reduced, householder, svd, svd_wide, lu, triangular_solve, schur,
    schur_form, hessenberg, tridiagonal, tridiagonal_solve, top_k, approx_top_k, fft,
    cholesky_sizes, lu_sizes, eig_sizes, fft_sizes,
]  # fmt: skip
DIFFERENTIATED = (cholesky, qr_reduced)
# Families of which all sizes are symbolic, not the batch's alone.
SIZES = {cholesky_sizes: "b, n, n", lu_sizes: "b, n, n", eig_sizes: "b, n, n", fft_sizes: "b, m, n"}


def arguments(double, poly):
    """A real and a complex matrix, and a batch of each; the batch alone where its size is to be symbolic."""
    rng = np.random.default_rng(5)
    x, xs = rng.standard_normal((M, N)), rng.standard_normal((2, M, N))
    y, ys = x + 1j * rng.standard_normal((M, N)), xs + 1j * rng.standard_normal((2, M, N))
    real, complex_ = (np.float64, np.complex128) if double else (np.float32, np.complex64)
    given = {"real": x, "real_batch": xs, "complex": y, "complex_batch": ys}
    return {
        name: value.astype(complex_ if "complex" in name else real)
        for name, value in given.items()
        if "batch" in name or not poly
    }


def symbolic(args, sizes):
    """Specs of the arguments, whose shapes `sizes` gives; by default the batch alone is symbolic."""
    sizes = {name: sizes or "b, " + ", ".join(map(str, value.shape[1:])) for name, value in args.items()}
    if not hasattr(jax_export, "symbolic_shape"):
        return {name: jax_export.poly_spec(value.shape, value.dtype, sizes[name]) for name, value in args.items()}
    scope = {"scope": jax_export.SymbolicScope()} if hasattr(jax_export, "SymbolicScope") else {}
    return {
        name: jax.ShapeDtypeStruct(jax_export.symbolic_shape(sizes[name], **scope), value.dtype)
        for name, value in args.items()
    }


def write(folder, family, double, variant):
    """Writes one case; the variants are "", "_poly", "_vjp" and "_platforms": lowered for TPU and CPU."""
    name = f"{family.__name__}{variant}_{64 if double else 32}"
    poly, vjp_order = variant == "_poly", int(variant == "_vjp")
    options = {"platforms": ("tpu", "cpu")} if variant == "_platforms" else {}

    def function(args):
        return {name: family(value) for name, value in args.items()}

    function.__name__ = name
    try:
        args, sizes = arguments(double, poly), SIZES.get(family)
        if sizes == "b, n, n":
            args = {name: square(value) for name, value in args.items()}
        jitted = jax.jit(function)
        checks = [Check.custom_call(target) for target in TARGETS]
        exported = export(jitted, disabled_checks=checks, **options)(symbolic(args, sizes) if poly else args)
        if hasattr(exported, "serialize"):
            blob = exported.serialize(vjp_order=vjp_order)
        elif hasattr(jax_export, "serialize"):
            blob = jax_export.serialize(exported, vjp_order=vjp_order)
        else:
            from jax.experimental.export.serialization import serialize

            blob = serialize(exported, vjp_order=vjp_order)
        text = getattr(exported, "mlir_module", "")
        text = text() if callable(text) else text
        results = jax.tree_util.tree_leaves(jitted(args))
    except Exception as error:
        return name, {"error": f"{type(error).__name__}: {str(error).splitlines()[0][:100] if str(error) else ''}"}
    with open(f"{folder}/{name}.bin", "wb") as file:
        file.write(bytes(blob))
    leaves = jax.tree_util.tree_leaves(args)
    stored = {f"in_{i}": leaf for i, leaf in enumerate(leaves)} | {
        f"out_{i}": np.asarray(r) for i, r in enumerate(results)
    }
    np.savez_compressed(f"{folder}/{name}.npz", **stored)
    return name, {"custom_calls": sorted(set(re.findall(r"custom_call @([\w.$]+)", text)))}


def main():
    folder = f"{sys.argv[1]}/jax-{jax.__version__}"
    os.makedirs(folder, exist_ok=True)
    wanted, report = sys.argv[2:], {}
    for double in (False, True):
        jax.config.update("jax_enable_x64", double)
        for family in FAMILIES:
            for variant in ("", "_poly", "_vjp", "_platforms"):
                if family in SIZES and variant != "_poly":
                    continue
                if (variant == "_vjp" and family not in DIFFERENTIATED) or (
                    variant == "_platforms" and family is not eigh
                ):
                    continue
                if wanted and family.__name__ not in wanted:
                    continue
                name, entry = write(folder, family, double, variant)
                report[name] = entry
    with open(f"{folder}/cases.json", "w") as file:
        json.dump(report, file, indent=1)
    for name, entry in report.items():
        print(name, entry.get("error") or ", ".join(entry["custom_calls"]))


if __name__ == "__main__":
    main()

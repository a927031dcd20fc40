"""What is written for old releases: programs of the corpus, and a few of operations that the corpus has no need for."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import jax
import jax.numpy as jnp
import jax.scipy as jsp
import numpy as np
from jax import lax

from kit.cases.case import plain
from kit.corpus import CASES as CORPUS
from kit.corpus import Case, Program, arr, case, spec

FROM_CORPUS = (
    "sin scalars weak_types no_arguments zero_size fifty_arguments dropped identity nested_containers "
    "empty_containers namedtuples custom_node ordered_dict unicode_keys standard_dtypes wide_dtypes "
    "four_bit_integers float4 float0 integers_and_floats complex_numbers threefry_key rbg_key unsafe_rbg_key key_batch "
    "symbolic_batch symbolic_several symbolic_expressions symbolic_division symbolic_value symbolic_unused "
    "symbolic_while symbolic_multi_platform multi_platform platform_dependent sharded_1d sharded_2d "
    "sharded_over_two_axes replicated partly_sharded constrained_inside sharded_trees_and_dropped "
    "sharded_symbolic shard_map_psum explicit_mesh ordered_effect unordered_effect several_effects "
    "effects_and_symbolic_shapes cholesky qr eigh svd lu triangular_solve linalg_symbolic_multi_platform scan "
    "while_loop cond fori_and_switch custom_vjp remat donated donated_symbolic perceptron convolution_and_gather "
    "nested_jit_and_vmap random_inside named_scopes"
).split()

CASES: dict[str, Case] = {name: CORPUS[name] for name in FROM_CORPUS}
# The corpus is also what the tests of jax.export itself run on; these stay apart from it.
_before = set(CORPUS)


def _float8(name: str, *dtypes: str) -> None:
    args = (np.asarray([1, 2, 0.5]).astype(f"float8_{dtype}") for dtype in dtypes)
    plain(name, lambda *xs: [((x.astype(np.float32) * 2).astype(x.dtype), x.astype(np.float32)) for x in xs], *args)


def _special_functions(x: Any) -> Any:
    bessel = lax.bessel_i1e(x) + jsp.special.i0(x)
    return jnp.tan(x), lax.erf_inv(x / 2), lax.digamma(x), lax.lgamma(x), jnp.arccosh(1 + x), bessel, jnp.cbrt(x)


def _windows(x: Any) -> Any:
    pooled = lax.reduce_window(x, -jnp.inf, lax.max, (2, 2), (2, 2), "VALID")
    return pooled, jnp.cumsum(x, 0), lax.cumlogsumexp(x, 1)


def _random_bits(seed: Any) -> Any:
    key = jax.random.key(seed, impl="rbg")
    return jax.random.bits(jax.random.key(seed), (5,)), jax.random.permutation(key, 6).sum()


MATRIX = arr(4, 4) + 4 * np.diag(np.arange(1, 5, dtype=np.float32))
_float8("float8_of_2023", "e4m3b11fnuz", "e4m3fn", "e4m3fnuz", "e5m2", "e5m2fnuz")
_float8("float8_of_2024", "e4m3", "e3m4")
_float8("float8_scales", "e8m0fnu")
plain("eig", jnp.linalg.eigvals, MATRIX)
plain("schur", lambda a: jsp.linalg.schur(a)[0], MATRIX)
plain("hessenberg", jsp.linalg.hessenberg, MATRIX)
plain("tridiagonal", lambda a: lax.linalg.tridiagonal(a + a.T)[1:3], MATRIX)
plain("tridiagonal_solve", lambda d, b: lax.linalg.tridiagonal_solve(d / 9, d + 2, d / 7, b), arr(5), arr(5, 2))
plain("solve_with_lu", jnp.linalg.solve, MATRIX, arr(4, 2), vjp_order=1)
plain("top_k", lambda x: lax.top_k(x, 3), arr(2, 7))
plain("sorts", lambda x: (jnp.sort(x), jnp.argsort(-x), jnp.median(x)), arr(9))
plain("fourier", lambda x: (jnp.fft.fft2(x), jnp.fft.irfft(jnp.fft.rfft(x))), arr(4, 8), vjp_order=1)
plain(
    "scatter",
    lambda x, i, v: (x.at[i].set(v), x.at[i].add(v), x.at[:, 1].multiply(2.0)),
    *(arr(6, 3), np.array([4, 1], np.int32), arr(2, 3)),
    vjp_order=1,
)
plain(
    "batched_gather",
    jax.vmap(lambda x, i: (x[i], lax.dynamic_slice(x, (i[0],), (2,)))),
    *(arr(3, 6), np.array([[1, 5], [0, 2], [4, 3]], np.int32)),
)
plain("special_functions", _special_functions, arr(4))
plain("windows", _windows, arr(4, 6), vjp_order=1)
plain("dot_algorithm", lambda a, b: lax.dot(a, b, precision=lax.DotAlgorithmPreset.F32_F32_F32), arr(3, 4), arr(4, 2))
plain("ragged_dot", lax.ragged_dot, arr(6, 4), arr(2, 4, 3), np.array([2, 4], np.int32))
plain("random_bits", _random_bits, np.uint32(5))


@case(vjp_order=1)
def nested_mlp() -> Program:
    def mlp(params: Any, x: Any) -> Any:
        for name in sorted(params["layers"]):
            layer = params["layers"][name]
            x = jax.nn.gelu(x @ layer["w"] + layer["b"])
        return {"logits": x * params["scale"]}

    layers = {f"layer{i}": {"w": arr(4, 4, seed=i), "b": arr(4, seed=i)} for i in range(3)}
    (n,) = jax.export.symbolic_shape("n")
    params = {"layers": layers, "scale": np.float32(0.5)}
    specs = (jax.tree.map(lambda x: spec(x.shape, x.dtype), params), spec((n, 4)))
    return Program(jax.jit(mlp), (params, arr(5, 4)), specs=specs)


for _name in [name for name in CORPUS if name not in _before]:
    CASES[_name] = CORPUS.pop(_name)

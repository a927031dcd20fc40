"""The targets of custom calls that have a meaning for JAX: stable ones, and callbacks to Python."""

from __future__ import annotations

import itertools
import re

# LAPACK routines that lower to a custom call on CPU, and the names of some in complex arithmetic.
_LAPACK = "potrf geqrf orgqr syevd geev gesdd getrf sytrd gehrd gees trsm gtsv".split()
_COMPLEX_LAPACK = {"orgqr": "ungqr", "syevd": "heevd", "sytrd": "hetrd"}


def _lapack_targets() -> set[str]:
    names = {f"lapack_{precision}{routine}_ffi" for precision in "sd" for routine in _LAPACK}
    return names | {
        f"lapack_{precision}{_COMPLEX_LAPACK.get(name, name)}_ffi" for precision in "cz" for name in _LAPACK
    }


def _gpu_targets() -> set[str]:
    solver = "getrf geqrf orgqr potrf syevd gesvd gesvdj sytrd".split()
    names = {f"{vendor}solver_{routine}_ffi" for vendor, routine in itertools.product(("cu", "hip"), solver)}
    names |= {f"{vendor}_lu_pivots_to_permutation" for vendor in ("cu", "hip")}
    names |= {f"{vendor}_threefry2x32_ffi" for vendor in ("cu", "hip")}
    return names | {"hipsolver_gesdd_ffi", "cusparse_gtsv2_ffi"}


# Custom calls that JAX promises to keep stable ("Compatibility guarantees for custom calls" in
# https://docs.jax.dev/en/latest/export/export.html).
STABLE_CUSTOM_CALLS = frozenset(
    _lapack_targets()
    | _gpu_targets()
    | {"Sharding", "SPMDFullToShardShape", "SPMDShardToFullShape", "annotate_device_placement"}
    | {"Eigh", "Qr", "ProductOfElementaryHouseholderReflectors", "LuDecomposition", "ApproxTopK"}  # TPU
    | {"tpu_custom_call", "mosaic_gpu_v2"}  # Pallas
    | {f"stablehlo.dynamic_{name}" for name in ("approx_top_k", "reduce_window", "rng_bit_generator", "top_k")}
    | {"tf.call_tf_function", "AllocateBuffer", "shape_assertion"}
)

# Those of them that a policy allows without being told. The others are kernels, code of their authors, which JAX parses
# with nothing but MLIR's own checks, also on a CPU.
KNOWN_CUSTOM_CALLS = STABLE_CUSTOM_CALLS - {"tpu_custom_call", "mosaic_gpu_v2"}

# Targets whose code trusts the arrays that it gets, beside LAPACK's, which `call_arrays.py` compares. XLA takes some of
# them apart, and reads operands that may be missing.
TRUSTING = frozenset(
    "Qr Eigh LuDecomposition ProductOfElementaryHouseholderReflectors cusparse_gtsv2_ffi "
    "cu_threefry2x32_ffi hip_threefry2x32_ffi".split()
)

# The targets of host callbacks in all releases. Their operands or attributes are addresses in the exporting process.
_PYTHON_CALLBACK = re.compile(r"xla_(ffi_|buffer_|partitioned_)*python_\w*callback")


def is_callback(target: str) -> bool:
    """Whether a custom call calls back to Python."""
    return _PYTHON_CALLBACK.fullmatch(target) is not None


# The stable ones that compute nothing. They say where arrays are, or assert what shapes promise; such assertions are
# decided before the function is compiled.
HINTS = frozenset(
    {"Sharding", "SPMDFullToShardShape", "SPMDShardToFullShape", "annotate_device_placement", "shape_assertion"}
)

"""What jaxexp-run computes is what JAX computes: the corpus, and VJPs."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import jaxexp
from kit import goldens, runtime
from kit.corpus import CASES, export_with
from kit.runtime_values import assert_alike, flat_arguments, flat_results

pytestmark = [
    pytest.mark.slow(reason="builds the C++ runtime, which takes minutes"),
    pytest.mark.once(reason="what is built in C++ is the same for every pair of Python and JAX"),
    pytest.mark.usefixtures("plugin"),
]


def dtypes(inspection: Any) -> dict[str, str]:
    return {value.path: value.dtype for value in inspection.results}


NEWER = (
    r"is written for StableHLO \d+\.\d+\.\d+, the plugin knows it up to 1\.13\.3, and does not compile the module: .* "
    f'compatibility="{runtime.READER}"'
)


def test_a_newer_stablehlo_explains_what_does_not_compile(tmp_path: Path) -> None:
    """Not what compiles all the same, as test_golden_everywhere.py shows; here it is an operation of the future."""
    artifact = tmp_path / "f.jaxexp"
    artifact.write_bytes(goldens.blob_of("0.12.0.1", "sin").replace(b"sine_v2", b"sine_v9"))
    np.savez(tmp_path / "in.npz", np.load(goldens.RELEASES["0.12.0.1"] / "sin.npz")["in_0"])
    done = runtime.run(artifact, tmp_path / "in.npz")
    assert done.returncode == 1
    if "JAXEXP_PJRT_PLUGIN" not in os.environ:  # another plugin may know more
        assert re.search(NEWER + ".*sine_v9", done.stderr)


REFUSED = {
    "other_platform": "was exported for rocm, and the plugin is for cpu",
    "custom_call_allowed": "custom calls that the plugin does not compile: jaxexp_corpus_no_such_target",
    "cholesky": "custom calls that the plugin does not compile: lapack_spotrf_ffi",
    "qr": "does not compile: lapack_sgeqrf_ffi; all its custom calls are lapack_sgeqrf_ffi, lapack_sorgqr_ffi",
    "eigh": "custom calls that the plugin does not compile: lapack_ssyevd_ffi",
    "svd": "custom calls that the plugin does not compile: lapack_sgesdd_ffi",
    "lu": "custom calls that the plugin does not compile: lapack_sgetrf_ffi",
    "triangular_solve": "custom calls that the plugin does not compile: lapack_strsm_ffi",
    "linalg_symbolic_multi_platform": "custom calls that the plugin does not compile: lapack_spotrf_ffi",
    "memory_kinds": "custom calls that the plugin does not compile: annotate_device_placement",
    "unreduced_result": "result is unreduced over the mesh axis y",
}
# JAX 0.8.1 cannot read them, so they are written for today's StableHLO, which is newer than the plugin's.
NEW = {"memory_kinds", "one_device_sharding", "reduced_argument", "unreduced_result"}


@pytest.mark.parametrize("name", CASES)
def test_corpus(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    artifact = tmp_path / "f.jaxexp"
    with case.context():
        program = case.build()
        exported = export_with(jaxexp, program)
        artifact.write_bytes(exported.serialize(compatibility=None if name in NEW else runtime.READER))
        arguments = flat_arguments(exported, program.args, program.kwargs)
        if name in REFUSED:
            np.savez(tmp_path / "in.npz", *arguments)
            done = runtime.run(artifact, tmp_path / "in.npz", devices=8)
            assert done.returncode == 1
            assert REFUSED[name] in done.stderr
            assert len(done.stderr) < 1000
            return
        expected = flat_results(exported, program.live(*program.args, **program.kwargs))
    assert_alike(runtime.results(artifact, arguments, dtypes(jaxexp.inspect(artifact)), devices=8), expected)


@pytest.mark.parametrize("name", ["sin", "perceptron", "sharded_2d", "dropped", "integers_and_floats", "custom_vjp"])
def test_vjps(name: str, tmp_path: Path) -> None:
    """The VJP, and the VJP's VJP, as functions of their own."""
    case = CASES[name]
    artifact = tmp_path / "f.jaxexp"
    orders = min(case.vjp_order, 2)
    with case.context():
        program = case.build()
        exported = export_with(jaxexp, program)
        artifact.write_bytes(exported.serialize(vjp_order=orders, compatibility=runtime.READER))
        for order in range(1, orders + 1):
            exported = exported.vjp()
            rng = np.random.default_rng(order)
            arguments = [
                np.zeros(aval.shape, bool)
                if aval.dtype == jax.dtypes.float0
                else rng.uniform(0.25, 1.75, aval.shape).astype(aval.dtype)
                for aval in exported.in_avals
            ]
            leaves = [
                np.zeros(aval.shape, jax.dtypes.float0) if aval.dtype == jax.dtypes.float0 else array
                for aval, array in zip(exported.in_avals, arguments, strict=True)
            ]
            args, kwargs = exported.in_tree.unflatten(leaves)
            with jax.default_device(jax.devices()[0]):
                expected = flat_results(exported, called(exported, args, kwargs))
            names = {f"result[{i}]": str(np.dtype(array.dtype)) for i, array in enumerate(expected)}
            found = runtime.results(artifact, arguments, names, "--vjp", order, devices=8)
            assert_alike(found, expected)


def called(exported: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if exported.nr_devices == 1:
        return exported.call(*args, **kwargs)
    mesh = exported.in_shardings_jax()[0].mesh
    devices = jax.make_mesh(mesh.axis_sizes, mesh.axis_names, axis_types=mesh.axis_types)
    everywhere = jax.sharding.NamedSharding(devices, jax.sharding.PartitionSpec())
    return exported.call(*jax.device_put(args, everywhere), **jax.device_put(kwargs, everywhere))

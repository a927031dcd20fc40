"""A policy without JAX allows nothing that it refuses with JAX."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxexp
from jaxexp import Policy
from jaxexp._errors import UnsupportedModuleError
from jaxexp._kernel.artifact.operations import STABLE_CUSTOM_CALLS, TRUSTING
from jaxexp._kernel.module import call_arrays
from jaxexp.errors import DeserializationError, PolicyError
from jaxexp.runtime import Session
from kit import goldens, without_jax
from kit.archive_files import make
from kit.corpus import mesh
from kit.other_modules import serialized, with_module
from kit.policies import refused

without_jax.skip_without_plugin()
pytestmark = pytest.mark.jax

X = np.ones((2, 2), np.float32)
STRICT = Policy(
    stable_custom_calls=False, max_devices=1, max_array_bytes=1 << 20, max_operations=10_000, platforms=("cpu",),
    unregistered_nodes=False,
)  # fmt: skip


@pytest.mark.wide(one_in=12, promise="what JAX refuses of an artifact of any release is refused without it, too")
@pytest.mark.parametrize("version", goldens.RELEASES)
def test_artifacts_of_all_releases(version: str) -> None:
    """Only what names devices or classes is refused without JAX only."""
    more = set()
    for name in [name for other, name in goldens.ARTIFACTS if other == version]:
        data = goldens.blob_of(version, name)
        for policy in (Policy(), Policy(stable_custom_calls=False), STRICT):
            try:
                with_jax, without = refused(data, policy)
            except UnsupportedModuleError:  # of a newer JAX
                break
            if with_jax is not None:
                assert without is not None, (name, with_jax)
            elif without is not None:
                more.add((without, policy is STRICT))
    assert more <= {("max_devices", True), ("unregistered_nodes", True)}


def made(function: Callable[..., Any], *args: Any, checks: tuple[str, ...] = (), **how: Any) -> bytes:
    disabled = [jaxexp.DisabledSafetyCheck.custom_call(target) for target in checks]
    exported = jaxexp.export(jax.jit(function), disabled_checks=disabled, **how)(*(args or (X,)))
    return bytes(exported.serialize(vjp_order=0))


def calls(target: str, **options: Any) -> Callable[[Any], Any]:
    return lambda x: jax.ffi.ffi_call(target, jax.ShapeDtypeStruct(x.shape, x.dtype), **options)(x, eps=np.float32(1))


CALLBACK = "xla_ffi_python_cpu_callback"


def test_fields() -> None:
    kernel, effect = (made(calls("kernel", **how), checks=("kernel",)) for how in ({}, {"has_side_effect": True}))
    callback, eigenvalues = made(calls(CALLBACK), checks=(CALLBACK,)), made(jnp.linalg.eigvalsh)
    twice = jaxexp.export(jax.jit(jnp.sin))(X).serialize(vjp_order=2)
    wrong = {}
    for number, (data, policy, field) in enumerate(
        [
            (made(jnp.sin), STRICT, None),
            (kernel, Policy(), "custom_calls"),
            (kernel, Policy(custom_calls=("ker*",)), None),
            (effect, Policy(custom_calls=None), "effects"),
            (effect, Policy(custom_calls=None, effects=("kernel", "FfiEffect")), None),
            (callback, Policy(custom_calls=None), "callbacks"),
            (callback, Policy(callbacks=True), None),
            (made(jnp.linalg.cholesky), Policy(), None),
            (eigenvalues, Policy(stable_custom_calls=False), "custom_calls"),
            (eigenvalues, Policy(stable_custom_calls=False, custom_calls=("lapack_*",)), None),
            (made(jnp.sin, platforms=["cpu", "cuda"]), Policy(platforms=("cpu",)), "platforms"),
            (made(lambda x: jnp.zeros((1000, 1000)) + x[0, 0]), Policy(max_array_bytes=1000), "max_array_bytes"),
            (made(lambda x: x @ x + 1), Policy(max_operations=3), "max_operations"),
            (made(jnp.sin), Policy(max_arguments=0), "max_arguments"),
            (made(jnp.sin), Policy(max_module_bytes=10), "max_module_bytes"),
            (twice, Policy(max_vjp_order=1), "max_vjp_order"),
        ]
    ):
        if (found := refused(bytes(data), policy)) != (field, field):
            wrong[number] = (found, field)
    assert not wrong


def test_shardings_are_not_read() -> None:
    sharding = jax.sharding.NamedSharding(mesh((4,), ("x",)), jax.sharding.PartitionSpec("x"))
    data = made(lambda x: jax.lax.with_sharding_constraint(x * 2, sharding), np.ones(8, np.float32))
    assert refused(data, Policy(max_devices=2)) == ("max_devices", "max_devices")
    assert refused(data, Policy(max_devices=4)) == (None, "max_devices")
    assert refused(data, Policy()) == (None, None)


def test_modules_for_no_number_of_devices() -> None:
    for count in ("0 : i32", "-1 : i32", '"4"'):
        data = with_module(f"""module @f attributes {{mhlo.num_partitions = {count}}} {{
          func.func public @main(%x: tensor<2xf32>) -> tensor<2xf32> {{ return %x : tensor<2xf32> }} }}""")
        for check in (jaxexp.deserialize, Session):
            with pytest.raises(DeserializationError, match=r"a positive number as mhlo\.num_partitions, found"):
                check(data, policy=Policy())


def test_what_devices_do_together() -> None:
    """They may not meet in branches, where a Session runs the channels as they are, which JAX makes one; nor in groups
    whose sizes are not compared.
    """
    devices, spec = mesh((2,), ("x",)), jax.sharding.PartitionSpec("x")

    def twice(x: Any) -> Any:
        return jax.lax.psum(x, "x") + jax.lax.ppermute(x, "x", [(0, 1), (1, 0)])

    def in_a_loop(x: Any) -> Any:
        return jax.lax.fori_loop(0, jax.lax.axis_index("x") * 0 + 3, lambda _, y: twice(y), x)

    def verdicts(function: Callable[..., Any], *operations: str) -> list[Any]:
        sharded = jax.shard_map(function, mesh=devices, in_specs=spec, out_specs=spec, check_vma=False)
        data = made(sharded, jax.device_put(np.ones(8, np.float32), jax.sharding.NamedSharding(devices, spec)))
        allowed = Policy(operations=[f"stablehlo.{operation}" for operation in operations])
        return [refused(data, policy) for policy in (Policy(), allowed)]

    assert verdicts(twice)[0] == (None, None)
    told = [(None, "operations"), (None, None)]
    assert verdicts(in_a_loop, "collective_permute", "all_reduce") == told
    for name, operation in (("all_gather", "all_gather"), ("psum_scatter", "reduce_scatter")):
        collective = getattr(jax.lax, name)
        assert verdicts(lambda x: collective(x, "x", tiled=True), operation) == told  # noqa: B023


LYING = {
    "stablehlo.real_dynamic_slice": """%s = stablehlo.constant dense<0> : tensor<1xi64>
      %e = stablehlo.constant dense<9> : tensor<1xi64>
      %t = stablehlo.constant dense<1> : tensor<1xi64>
      %r = stablehlo.real_dynamic_slice %x, %s, %e, %t
      : (tensor<9xf32>, tensor<1xi64>, tensor<1xi64>, tensor<1xi64>) -> tensor<4xf32>""",
    "tensor<?xf32>": """%y = "stablehlo.negate"(%x) : (tensor<9xf32>) -> tensor<?xf32>
      %r = "stablehlo.negate"(%y) : (tensor<?xf32>) -> tensor<4xf32>""",
}


@pytest.mark.parametrize("name", LYING)
def test_sizes_that_nobody_computes(name: str) -> None:
    exported = jaxexp.export(jax.jit(lambda x: x[:4] * 2))(np.ones(9, np.float32))
    text = f"module @f {{ func.func public @main(%x: tensor<9xf32>) -> tensor<4xf32> {{ {LYING[name]}"
    module = serialized(f"{text}\n return %r : tensor<4xf32> }} }}")
    data = bytes(dataclasses.replace(exported, mlir_module_serialized=module).serialize())
    assert refused(data, Policy()) == ("operations", "operations")
    assert refused(data, Policy(operations=["tensor<*", "stablehlo.real_dynamic_slice"])) == (None, None)
    if "?" not in name:  # a Session computes no sizes where none is open, whatever the artifact says
        computed = dataclasses.replace(exported, mlir_module_serialized=module, uses_global_constants=True)
        assert refused(bytes(computed.serialize()), Policy()) == (None, "operations")
    (b,) = jaxexp.symbolic_shape("b")
    symbolic = jax.jit(lambda x: (jnp.flip(x[1:]), jnp.pad(x, 1), jnp.zeros_like(x), x.reshape(-1, 1)))
    assert refused(made(symbolic, jax.ShapeDtypeStruct((b,), np.float32)), Policy()) == (None, None)


def test_a_session_takes_a_policy(tmp_path: Path, subprocess_env: Any) -> None:
    (tmp_path / "f.jaxexp").write_bytes(made(calls("kernel"), checks=("kernel",)))
    make(tmp_path / "fleet.zip", {"f": tmp_path / "f.jaxexp"})
    code = """
    import sys
    from jaxexp import Policy
    from jaxexp.errors import PolicyError
    from jaxexp.runtime import Session
    for name in sys.argv[1:]:
        for policy in (Policy(), Policy(max_artifact_bytes=10), Policy(custom_calls=("kernel",))):
            try:
                print(Session(name, policy=policy).name)
            except PolicyError as error:
                print(error.field, error.file == name)
    try:
        Session(name, policy={"platforms": ("cpu",)})
    except TypeError as error:
        print(error)
    """
    names = tmp_path / "f.jaxexp", f"{tmp_path / 'fleet.zip'}::f"
    printed = without_jax.run(code, subprocess_env(), *names).splitlines()
    assert printed[:-1] == ["custom_calls True", "max_artifact_bytes True", "<lambda>"] * 2
    assert printed[-1].startswith("policy= takes a jaxexp.Policy or None")
    with pytest.raises(PolicyError, match="is for the platform 'cpu'"):
        Session(names[0], plugin="cpu", policy=Policy(platforms=("tpu",)))


def test_targets_whose_arrays_are_not_compared() -> None:
    """The table of arrays needs JAX. LAPACK's are compared in each call."""
    known = {target for target in call_arrays._targets() if not target.startswith("lapack_")}
    assert known == TRUSTING
    for target in known & STABLE_CUSTOM_CALLS:
        data = made(calls(target), checks=(target,))
        assert refused(data, Policy())[1] == "custom_calls"

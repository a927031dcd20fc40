"""Policies: what they find in modules, whatever artifacts say of themselves."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxexp
from jaxexp import _jax
from jaxexp._kernel.artifact.operations import HINTS, KNOWN_CUSTOM_CALLS
from jaxexp._kernel.module import call_arrays, mlir
from kit.corpus import CASES, arr, export_with, f32
from kit.each import each
from kit.other_modules import with_module
from kit.places import GOLDEN, ROOT
from kit.policies import module, refusal

pytestmark = pytest.mark.jax


def call(target: str) -> str:
    return f"%call = stablehlo.custom_call @{target}(%arg0) : (tensor<2xf32>) -> tensor<2xf32>"


def calling(target: str) -> str:
    return module(call(target), result="%call")


def test_what_only_the_compiler_sees_is_no_native_code() -> None:
    x = jax.ShapeDtypeStruct(jaxexp.symbolic_shape("b, 3", constraints=["b >= 2"]), f32)
    exported = jaxexp.export(jax.jit(lambda x: jnp.sort(x, 0)))(x)
    assert b"shape_assertion" in exported.mlir_module_serialized
    jaxexp.deserialize(exported.serialize(), policy=jaxexp.Policy(stable_custom_calls=False))


@pytest.mark.wide(one_in=10, promise="without stable custom calls, only what computes nothing is allowed")
@pytest.mark.parametrize("target", sorted(KNOWN_CUSTOM_CALLS - {"shape_assertion", *call_arrays._targets()}))
def test_without_stable_custom_calls_only_what_computes_nothing(target: str) -> None:
    def f(x: Any) -> Any:
        return jax.ffi.ffi_call(target, jax.ShapeDtypeStruct(x.shape, x.dtype))(x)

    blob = jaxexp.export(jax.jit(f))(np.ones(3, np.float32)).serialize()
    of_any_types = {"operations": ("stablehlo.custom_call",)}
    jaxexp.deserialize(blob, policy=jaxexp.Policy(**of_any_types))
    strict = jaxexp.Policy(stable_custom_calls=False, **of_any_types)
    if target in HINTS:
        jaxexp.deserialize(blob, policy=strict)
        return
    assert refusal(blob, stable_custom_calls=False, **of_any_types).field == "custom_calls"
    jaxexp.deserialize(blob, policy=dataclasses.replace(strict, custom_calls=(target,)))


def test_the_guide_lists_what_stays_allowed() -> None:
    (listed,) = re.findall(
        r"Targets that compute nothing stay allowed: ([^|]*) \|", (ROOT / "docs/guide/policy.md").read_text()
    )
    assert set(re.findall(r"`(\w+)`", listed)) == HINTS


@each("given, meant", [("cpus", "'cpu'"), ("CUDA", "'cuda'"), ("gpu", "'cuda' or 'rocm'")])
def test_misspelt_platforms(given: str, meant: str) -> None:
    with pytest.raises(jaxexp.errors.ExportError, match=f"no platform '{given}'; did you mean {meant}\\? JAX's own"):
        jaxexp.Policy(platforms=("cpu", given))
    assert jaxexp.Policy(platforms=("metal", "cpu")).platforms == ("metal", "cpu"), "plugins have names of their own"


WHILE = """
  %out = stablehlo.while(%x = %arg0) : tensor<2xf32>
  cond {{
    %no = stablehlo.constant dense<false> : tensor<i1>
    stablehlo.return %no : tensor<i1>
  }} do {{
    %inner = {} : (tensor<2xf32>) -> tensor<2xf32>
    stablehlo.return %inner : tensor<2xf32>
  }}"""
PRIVATE = "func.func private @aside(%arg0: tensor<2xf32>) -> tensor<2xf32> {{ {} return %call : tensor<2xf32> }}"
PLACES = {
    "main": (calling("mine"), "main"),
    "a function that nobody calls": (module("", more=PRIVATE.format(call("mine") + "\n")), "aside"),
    "the body of a loop": (module(WHILE.format("stablehlo.custom_call @mine(%x)"), result="%out"), "main"),
    "the decomposition of a composite": (
        module(
            '%c = stablehlo.composite "my.op" %arg0 {decomposition = @aside} : (tensor<2xf32>) -> tensor<2xf32>',
            more=PRIVATE.format(call("mine") + "\n"),
            result="%c",
        ),
        "aside",
    ),
}


@each("place", PLACES)
def test_custom_calls_are_found_in(place: str) -> None:
    text, function = PLACES[place]
    blob = with_module(text)
    error = refusal(blob)
    assert error.field == "custom_calls"
    assert "'mine'" in error.found
    assert f"@{function}" in error.found
    assert "Policy(custom_calls=('mine',))" in str(error)
    refusal(blob, custom_calls=("others", "min"))
    for allowed in (("mine",), ["mine"], {"mine", "others"}, ("m*e",), ("*",), None):
        jaxexp.deserialize(blob, policy=jaxexp.Policy(custom_calls=allowed))


def test_what_the_artifact_says_allows_nothing() -> None:
    """The check that `export` left out is not one that the reader leaves out."""
    check = jaxexp.DisabledSafetyCheck.custom_call("mine")
    blob = with_module(calling("mine"), disabled_safety_checks=(check,))
    assert refusal(blob).field == "custom_calls"


def test_stable_calls_of_old_modules() -> None:
    """What runs is checked: the untyped calls of old releases become typed ones, which are stable."""
    checked = 0
    for path in sorted((GOLDEN / "lapack").glob("jax-0.4.*/*_32.bin")):
        if "top_k" in path.name:
            continue
        old = jaxexp.load(path)
        calls = b"lapack_" in old.mlir_module_serialized and b"_ffi" not in old.mlir_module_serialized
        jaxexp.load(path, policy=jaxexp.Policy())
        checked += calls
    assert checked > 5, "artifacts with untyped calls"


@each("target", ["xla_ffi_python_cpu_callback", "xla_python_gpu_callback"])
def test_callbacks(target: str) -> None:
    blob = with_module(calling(target))
    assert refusal(blob).field == "callbacks"
    assert refusal(blob, custom_calls=None).field == "callbacks", "its own field"
    for allowed in (True, None):
        jaxexp.deserialize(blob, policy=jaxexp.Policy(callbacks=allowed))


TRANSFERS = {
    "infeed": "%t = stablehlo.create_token : !stablehlo.token\n"
    '%x:2 = "stablehlo.infeed"(%t) {infeed_config = ""} : (!stablehlo.token) -> (tensor<2xf32>, !stablehlo.token)',
    "outfeed": "%t = stablehlo.create_token : !stablehlo.token\n"
    '%x = "stablehlo.outfeed"(%arg0, %t) {outfeed_config = ""} : (tensor<2xf32>, !stablehlo.token) -> !stablehlo.token',
    "send": "%t = stablehlo.create_token : !stablehlo.token\n"
    '%x = "stablehlo.send"(%arg0, %t) {channel_handle = #stablehlo.channel_handle<handle = 1, type = 2>, '
    "is_host_transfer = true} : (tensor<2xf32>, !stablehlo.token) -> !stablehlo.token",
    "recv": "%t = stablehlo.create_token : !stablehlo.token\n"
    '%x:2 = "stablehlo.recv"(%t) {channel_handle = #stablehlo.channel_handle<handle = 1, type = 3>, '
    "is_host_transfer = true} : (!stablehlo.token) -> (tensor<2xf32>, !stablehlo.token)",
}


@each("name", TRANSFERS)
def test_transfers(name: str) -> None:
    blob = with_module(module(TRANSFERS[name]))
    error = refusal(blob, custom_calls=None, callbacks=None)
    assert error.field == "effects"
    assert f"stablehlo.{name}" in error.found
    jaxexp.deserialize(blob, policy=jaxexp.Policy(effects=(name,)))


def test_declared_effects() -> None:
    blob = export_with(jaxexp, CASES["ordered_effect"].build()).serialize()
    error = refusal(blob)
    assert error.field == "effects"
    assert "corpus.FirstOrderedEffect" in error.found
    for allowed in (("FirstOrderedEffect", "SecondOrderedEffect"), ("corpus.*",), None):
        jaxexp.deserialize(blob, policy=jaxexp.Policy(effects=allowed, custom_calls=None))


def test_platforms() -> None:
    blob = jaxexp.export(jax.jit(jnp.sin), platforms=("cpu", "cuda"))(arr(2)).serialize()
    error = refusal(blob, platforms=("cpu",))
    assert error.field == "platforms"
    assert "'cuda'" in error.found
    for allowed in (("cpu", "cuda"), ("tpu", "cuda", "cpu"), None):
        jaxexp.deserialize(blob, policy=jaxexp.Policy(platforms=allowed))


def test_an_artifact_for_any_platform() -> None:
    checks = [jaxexp.DisabledSafetyCheck.platform()]
    blob = jaxexp.export(jax.jit(jnp.sin), disabled_checks=checks)(arr(2)).serialize()
    assert "DisabledSafetyCheck.platform" in refusal(blob, platforms=("cpu",)).found
    jaxexp.deserialize(blob, policy=jaxexp.Policy())


def test_sizes(tmp_path) -> None:
    exported = jaxexp.export(jax.jit(lambda x, y: (x @ y, jnp.outer(x, y))))(arr(5), arr(5))
    blob, path = bytes(exported.serialize(vjp_order=2)), tmp_path / "f"
    path.write_bytes(blob)
    with _jax.make_ir_context() as context:
        parsed = mlir.parse(exported.mlir_module_serialized, context)
        operations = len(list(mlir.iter_operations(parsed))) - 1
    limits = {
        "max_artifact_bytes": len(blob),
        "max_module_bytes": len(exported.mlir_module_serialized),
        "max_operations": operations,
        "max_arguments": 2,
        "max_results": 2,
        "max_array_bytes": 100,
        "max_vjp_order": 2,
    }
    for field, size in limits.items():
        assert refusal(blob, **{field: size - 1}).field == field
        with pytest.raises(jaxexp.errors.PolicyError, match=field) as named:
            jaxexp.load(path, policy=jaxexp.Policy(**{field: size - 1}))
        assert str(path) in str(named.value)
    primal = jaxexp.export(jax.jit(lambda x, y: (x @ y, jnp.outer(x, y))))(arr(5), arr(5)).serialize()
    small = {**limits, "max_artifact_bytes": len(primal), "max_vjp_order": 0}
    jaxexp.deserialize(primal, policy=jaxexp.Policy(**small))


@each(
    "fields, message",
    [
        ({"platforms": "cpu"}, r"found one str: say platforms=\['cpu'\]"),
        ({"custom_calls": ["mine", b"mine"]}, "found b'mine' in it, of <class 'bytes'>"),
        ({"operations": iter(["mhlo.add"])}, "expected a tuple of names, or None, found <class 'list_iterator'>"),
        ({"effects": 3}, "expected a tuple of names, or None, found <class 'int'>"),
        ({"callbacks": "no"}, "expected True, False, or None, found <class 'str'>"),
        ({"stable_custom_calls": ()}, "expected True, False, or None, found <class 'tuple'>"),
        ({"unregistered_nodes": 0}, "expected True, False, or None, found <class 'int'>"),
        ({"max_devices": 1.0}, "expected an int, or None, found <class 'float'>"),
        ({"max_devices": -1}, "max_devices"),
        ({"max_results": True}, "max_results"),
        ({"max_device": 1}, "has no field 'max_device': did you mean max_devices"),
        ({"platform": ("cpu",)}, r"has no field 'platform': did you mean platforms\?"),
        ({"xyz": 1}, "has no field 'xyz': its fields are custom_calls, callbacks, .*max_weight_bytes"),
    ],
)
def test_fields_of_other_types_and_names(fields, message) -> None:
    with pytest.raises(jaxexp.errors.ExportError, match=message) as error:
        jaxexp.Policy(**fields)
    assert isinstance(error.value, TypeError) or fields == {"max_devices": -1}


def test_policies_are_values() -> None:
    assert jaxexp.Policy(custom_calls=["a"]) == jaxexp.Policy(custom_calls=("a",))
    assert len({jaxexp.Policy(), jaxexp.Policy(), jaxexp.Policy(max_devices=1)}) == 2
    with pytest.raises(dataclasses.FrozenInstanceError):
        jaxexp.Policy().max_devices = 3
    with pytest.raises(TypeError):
        jaxexp.Policy(("mine",))
    names = {f"name{i}" for i in range(50)}
    assert jaxexp.Policy(custom_calls=names).custom_calls == tuple(sorted(names))
    policy = jaxexp.Policy(platforms=["cpu"], max_devices=1)
    assert policy == pickle.loads(pickle.dumps(policy)) == dataclasses.replace(policy) == copy.deepcopy(policy)
    assert list(inspect.signature(jaxexp.Policy).parameters) == [field.name for field in dataclasses.fields(policy)]


def test_what_was_checked_is_what_runs(tmp_path) -> None:
    path = tmp_path / "f"
    first, second = (jaxexp.export(jax.jit(f))(arr(2)).serialize(vjp_order=1) for f in (jnp.sin, jnp.cos))
    path.write_bytes(first)
    loaded = jaxexp.load(path, policy=jaxexp.Policy())
    with path.open("r+b") as file:  # in place, as no reader should have to expect
        file.write(bytes(second)[: len(first)])
    x = np.ones(2, f32)
    np.testing.assert_allclose(loaded.call(x), np.sin(x), rtol=1e-6)
    np.testing.assert_allclose(jax.grad(lambda x: loaded.call(x).sum())(x), np.cos(x), rtol=1e-6)


def test_a_module_that_is_damaged() -> None:
    """With a policy, damage shows when the artifact is loaded; otherwise when the module is used for the first time."""
    exported = jaxexp.export(jax.jit(jnp.sin))(arr(2))
    good = exported.mlir_module_serialized
    for bad in (b"no module at all", good[:-7], good[:40] + bytes(20) + good[60:]):
        blob = dataclasses.replace(exported, mlir_module_serialized=bad).serialize(trailer=False)
        with pytest.raises(jaxexp.errors.DeserializationError, match="mlir_module_serialized"):
            jaxexp.deserialize(blob, policy=jaxexp.Policy())
        with pytest.raises(jaxexp.errors.DeserializationError, match="mlir_module_serialized"):
            jaxexp.deserialize(blob).call(np.ones(2, f32))


def test_the_documentation_names_all_fields() -> None:
    page = (ROOT / "docs" / "guide" / "policy.md").read_text()
    for field in dataclasses.fields(jaxexp.Policy):
        assert f"`{field.name}`" in page
        row = next(line for line in page.splitlines() if line.startswith("|") and f"`{field.name}`" in line)
        assert str(field.default) in row


def test_what_is_no_function_of_jaxexp() -> None:
    other = jax.export.export(jax.jit(jnp.sin))(jax.ShapeDtypeStruct((2,), np.float32))
    for given in (other, "model.jaxexp", None):
        with pytest.raises(TypeError, match=r"check takes a jaxexp\.Exported, not <class"):
            jaxexp.Policy().check(given)

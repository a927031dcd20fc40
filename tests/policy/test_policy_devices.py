"""`Policy(max_devices=...)`: meshes and shardings in each form that modules have, and forms that are unknown."""

from __future__ import annotations

import math
import random

import pytest

import jaxexp
from jaxexp import _jax
from jaxexp._kernel.artifact import op_sharding
from jaxexp._policy.module.check import of_hlo
from kit.each import each
from kit.named_devices import (
    NO_DEVICES,
    PLACES,
    SHARDINGS,
    UNKNOWN_FORMS,
    T,
    Value,
    artifact,
    attribute_of,
    module,
    on,
    proto,
)  # fmt: skip
from kit.other_modules import with_module
from kit.places import GOLDEN
from kit.policies import refusal

pytestmark = pytest.mark.jax


def check(blob: bytes) -> None:
    error = refusal(blob, custom_calls=("mine",), max_devices=7)
    assert error.field == "max_devices"
    assert "8 devices" in error.found
    jaxexp.deserialize(blob, policy=jaxexp.Policy(custom_calls=("mine",), max_devices=8))
    jaxexp.deserialize(blob)


# Each form in one place, and each place with one form.
FORMS, FIRST = list(SHARDINGS), next(iter(PLACES))
CHECKED = [(form, FIRST) for form in FORMS] + [(FORMS[i % len(FORMS)], place) for i, place in enumerate(PLACES)]


@each("form, place", CHECKED)
def test_each_form_in_each_place(form: str, place: str) -> None:
    check(artifact(PLACES[place](attribute_of(*SHARDINGS[form]))))


def test_meshes_that_nothing_uses() -> None:
    check(artifact(module(before='sdy.mesh @m = <["x"=8]>')))
    check(artifact(module(before="sdy.mesh @m = <[], device_ids=[7]>")))
    manual = f"""%r = sdy.manual_computation(%arg0) in_shardings=[<mesh<["x"=8]>, [{{"x"}}]>]
      out_shardings=[<mesh<["x"=8]>, [{{"x"}}]>] manual_axes={{"x"}} (%a: tensor<1xf32>) {{
        sdy.return %a : tensor<1xf32>
      }} : ({T}) -> {T}"""
    check(artifact(module(manual)))


@each("case", UNKNOWN_FORMS)
def test_unknown_forms_are_refused_by_a_limit(case: str) -> None:
    name, value = UNKNOWN_FORMS[case]
    blob = artifact(module(argument=attribute_of(name, value)))
    error = refusal(blob, max_devices=1000)
    assert error.field == "max_devices"
    assert name in error.found
    assert "in a form that is unknown here" in str(error)
    assert "func.func in its function @main" in str(error)
    assert len(str(error)) < 400
    jaxexp.deserialize(blob, policy=jaxexp.Policy())


@each("attribute", NO_DEVICES)
def test_what_names_no_devices(attribute: tuple[str, Value]) -> None:
    blob = artifact(module(argument=attribute_of(*attribute)))
    jaxexp.deserialize(blob, policy=jaxexp.Policy(max_devices=1))


def test_attributes_of_custom_calls_are_up_to_their_targets() -> None:
    blob = artifact(on("mine", 'mesh = "x=8", sharding = 8 : i64, replica_groups = dense<[[0, 9]]> : tensor<1x2xi64>'))
    jaxexp.deserialize(blob, policy=jaxexp.Policy(custom_calls=("mine",), max_devices=1))


def test_op_shardings_have_the_devices_that_xla_finds() -> None:
    source = random.Random(3)
    for _ in range(500):
        sizes = [source.choice([1, 2, 3, 4]) for _ in range(source.randrange(1, 4))]
        count = math.prod(sizes)
        order = source.sample(range(len(sizes)), len(sizes))
        numbers = source.sample(range(count), count)
        for data in (
            proto(tile_assignment_dimensions=sizes, tile_assignment_devices=numbers),
            proto(tile_assignment_dimensions=[count], iota_reshape_dims=sizes, iota_transpose_perm=order),
        ):
            assert op_sharding.devices(data) == count
            made = _jax.OpSharding()
            made.ParseFromString(data)
            text = str(_jax.HloSharding.from_proto(made))
            if "devices" in text:
                assert of_hlo(text.encode()) == count


@pytest.mark.long(
    promise="golden artifacts of all releases have no more devices than they say",
    sibling="test_policy_devices.py::test_each_form_in_each_place",
)
def test_artifacts_of_all_releases_pass() -> None:
    everything = {"custom_calls": None, "effects": None, "callbacks": None, "operations": None}
    passed = 0
    for path in sorted(GOLDEN.rglob("*.bin")):
        try:
            count = jaxexp.load(path).nr_devices
            jaxexp.load(path, policy=jaxexp.Policy(**everything))
        except jaxexp.errors.ExportError:
            continue  # one that was damaged on purpose, or is for a newer JAX
        jaxexp.load(path, policy=jaxexp.Policy(**everything, max_devices=count))
        passed += 1
    assert passed > 100


def test_side_effects_of_stable_targets_need_no_entry() -> None:
    text = """module @f { func.func public @main(%arg0: tensor<2xf32>) -> tensor<2xf32> {
      %r = stablehlo.custom_call @NAME(%arg0) {has_side_effect = true} : (tensor<2xf32>) -> tensor<2xf32>
      return %r : tensor<2xf32> } }"""
    jaxexp.deserialize(with_module(text.replace("NAME", "AllocateBuffer")), policy=jaxexp.Policy())
    kernel = with_module(text.replace("NAME", "tpu_custom_call"))
    jaxexp.deserialize(kernel, policy=jaxexp.Policy(custom_calls=("tpu_custom_call",)))
    assert refusal(kernel).field == "custom_calls"  # JAX parses it, also on a CPU
    assert refusal(with_module(text.replace("NAME", "mine")), custom_calls=("mine",)).field == "effects"
    strict = refusal(with_module(text.replace("NAME", "AllocateBuffer")), stable_custom_calls=False)
    assert "AllocateBuffer" in str(strict)

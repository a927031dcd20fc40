"""Composites of CHLO mean their operations only if their functions are those that StableHLO writes for these."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaxexp
from jaxexp import _jax
from jaxexp._kernel.module import composites, mlir
from jaxexp._kernel.module.composites import Meaning
from jaxexp._readback.refused import RefusedError
from jaxexp.errors import DeserializationError, PolicyError
from kit import other_modules
from kit.corpus import spec
from kit.each import each

pytestmark = pytest.mark.jax
X = np.array([0.3, -0.5, 0.75, 0.1], np.float32)
NAMES = "acos acosh asin asinh atanh cosh erf erfc sinh".split()

# As JAX 0.10.2 and 0.12.0.1 write them.
ASIN = """func.func private @f(%x: TYPE) -> TYPE {
    %one = stablehlo.constant dense<1.0> : TYPE
    %0 = stablehlo.subtract %one, %x : TYPE
    %1 = stablehlo.add %one, %x : TYPE
    %2 = stablehlo.multiply %0, %1 : TYPE
    %3 = stablehlo.sqrt %2 : TYPE
"""
ASINS = {
    "0.10.2": f"""{ASIN}
    %4 = stablehlo.add %one, %3 : TYPE
    %5 = stablehlo.atan2 %x, %4 : TYPE
    %6 = stablehlo.add %5, %5 : TYPE
    return %6 : TYPE }}""",
    "0.12.0.1": f"{ASIN} %6 = stablehlo.atan2 %x, %3 : TYPE return %6 : TYPE }}",
}
NEGATE = "func.func private @f(%x: TYPE) -> TYPE { %0 = stablehlo.negate %x : TYPE return %0 : TYPE }"


def with_composite(name: str, version: int, function: str) -> jaxexp.Exported:
    """A function of 4 numbers that is a composite."""
    text = f"""{function}
        func.func @main(%x: TYPE) -> TYPE {{
            %0 = stablehlo.composite "chlo.{name}" %x {{decomposition = @f, version = {version} : i32}} : (TYPE) -> TYPE
            return %0 : TYPE
        }}"""
    serialized = other_modules.serialized(text.replace("TYPE", "tensor<4xf32>"))
    exported = jaxexp.export(jax.jit(lambda x: x * 1))(X)
    return jaxexp.deserialize(dataclasses.replace(exported, mlir_module_serialized=serialized).serialize())


def meanings(exported: jaxexp.Exported) -> dict[str, Meaning]:
    with _jax.make_ir_context() as context:
        module = mlir.parse(exported.mlir_module_serialized, context)
        return {name: meaning for _, name, meaning in composites.of_chlo(module)}


def every_function(x: Any) -> Any:
    complex_x = lax.complex(x, x)
    results: list[Any] = [getattr(lax, name)(x) for name in NAMES]
    results += [getattr(lax, name)(complex_x) for name in ("acosh", "asin", "sinh")]
    results += [lax.erf(x.astype(jnp.bfloat16)), lax.asin(x.astype(jnp.float16)), *lax.top_k(x, 2)]
    results.append(lax.erf(2 * x))  # again
    return results


def test_what_jax_writes_means_its_operations() -> None:
    (b,) = jaxexp.symbolic_shape("b")
    fixed = jaxexp.export(jax.jit(every_function))(X)
    symbolic = jaxexp.export(jax.jit(every_function))(spec((b, 4)))
    for exported in (fixed, symbolic, symbolic.specialize(spec((3, 4)))):
        found = meanings(exported)
        assert {"chlo.erf", "chlo.sinh", "chlo.top_k"} <= found.keys()
        assert set(found.values()) == {Meaning.OPERATION}
        jaxexp.Policy().check(exported)
    for shape in ((4,), (3, 4)):
        exported = fixed if shape == (4,) else symbolic
        printed = str(exported.make_jaxpr(spec(shape)))
        assert printed.count(" erf ") == 3
        assert " top_k[" in printed


@each("release", ASINS)
def test_what_other_releases_write_means_the_operation(release: str) -> None:
    exported = with_composite("asin", 1, ASINS[release])
    assert meanings(exported) == {"chlo.asin": Meaning.OPERATION}
    assert " asin " in str(exported.make_jaxpr())
    jaxexp.Policy().check(exported)
    assert np.allclose(jaxexp.deserialize(jaxexp.migrate(exported.serialize(), to="0.4.30")).call(X), np.arcsin(X))


@pytest.mark.wide(one_in=6, promise="composites that are written again mean their operations")
@pytest.mark.parametrize("name", [name for name in NAMES if not name.startswith("erf")])
def test_what_is_written_again_means_the_operation(name: str) -> None:
    """For complex numbers, jaxlib then takes apart what the function of the composite computes."""
    z = (X + 1j * X[::-1]).astype(np.complex64)
    exported = jaxexp.export(jax.jit(getattr(lax, name)))(z)
    for release in ("0.4.30", "0.10.0") if name == "sinh" else ("0.5.3",):
        written = exported.serialize(compatibility=f"jax-{release}")
        for again in (written, jaxexp.migrate(written), jaxexp.migrate(written, to="0.4.25")):
            loaded = jaxexp.deserialize(again, policy=jaxexp.Policy())
            assert set(meanings(loaded).values()) <= {Meaning.OPERATION}
            assert np.allclose(loaded.call(z), getattr(jnp, f"arc{name[1:]}" if name[0] == "a" else name)(z), rtol=1e-5)


@each("name, version", [("sinh", 2), ("erf", 2), ("tan", 1), ("lgamma", 1)])
def test_other_versions_mean_their_functions(name: str, version: int) -> None:
    """XLA knows no such composite, either."""
    exported = with_composite(name, version, NEGATE)
    assert meanings(exported) == {f"chlo.{name}": Meaning.FUNCTION}
    migrated = jaxexp.deserialize(jaxexp.migrate(exported.serialize(), to="0.4.30"))
    for call in (exported.call, migrated.call, exported.raised(), lambda x: jax.vmap(exported.call)(x[None])[0]):
        np.testing.assert_array_equal(call(X), -X)
    assert " neg " in str(exported.make_jaxpr())
    jaxexp.Policy().check(exported)


@each("name", ["sinh", "erf"])
def test_two_meanings_are_refused(name: str, caplog: pytest.LogCaptureFixture) -> None:
    exported = with_composite(name, 1, NEGATE)
    assert not np.array_equal(exported.call(X), -X)  # or XLA does not go by the name any more
    expected = f"expected the function of each composite chlo.{name} to be one that StableHLO is known to write"
    for make in (exported.make_jaxpr, lambda: exported.raised()(X)):
        with pytest.raises(RefusedError, match=expected):
            make()
    np.testing.assert_allclose(jax.vmap(exported.call)(X[None])[0], exported.call(X), rtol=1e-6)
    assert f"chlo.{name}" in caplog.text
    for to in (None, "0.4.30"):
        with pytest.raises(DeserializationError, match=expected):
            jaxexp.migrate(exported.serialize(), to=to)
    with pytest.raises(DeserializationError, match=expected):
        exported.serialize(compatibility="0.4.30")
    with pytest.raises(PolicyError, match=rf"has a composite chlo.{name} with another function"):
        jaxexp.Policy().check(exported)
    jaxexp.Policy(operations=[f"chlo.{name}"]).check(exported)


def many_composites(count: int, name: str, version: int, function: str = NEGATE, said: str = "x = {i} : i64") -> Any:
    calls = "\n".join(
        f"""%{i + 1} = stablehlo.composite "chlo.{name}" %{i} {{composite_attributes = {{{said.format(i=i)}}},
            decomposition = @f, version = {version} : i32}} : (TYPE) -> TYPE"""
        for i in range(count)
    )
    text = f"{function}\nfunc.func @main(%0: TYPE) -> TYPE {{ {calls} return %{count} : TYPE }}"
    return _jax.ir.Module.parse(text.replace("TYPE", "tensor<4xf32>"))


def test_comparing_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is compared takes longer than its bytes do: other attributes, of names that jaxlib knows or not."""
    for name, version, most in (("lgamma", 9, composites._KINDS // composites._COST_OF_UNKNOWN), ("erf", 1, 20)):
        if name == "erf":
            monkeypatch.setattr(composites, "_KINDS", most)
        with _jax.make_ir_context():
            found = [meaning for *_, meaning in composites.of_chlo(many_composites(most, name, version))]
            assert found == [Meaning.FUNCTION if name == "lgamma" else Meaning.TWO] * most
            with pytest.raises(DeserializationError, match=f"expected at most {most} kinds of composites"):
                list(composites.of_chlo(many_composites(most + 1, name, version)))
            assert len(list(composites.of_chlo(many_composites(most + 1, "erf", 9)))) == most + 1, "XLA knows no such"
            trusted = composites.of_chlo(many_composites(most + 1, name, version), is_trusted=lambda name: True)
            assert list(trusted) == []
            budget = composites.Budget()
            list(composites.of_chlo(many_composites(most, name, version), budget))
            with pytest.raises(DeserializationError, match="kinds of composites"):
                list(composites.of_chlo(many_composites(1, name, version, said="y = {i} : i64"), budget))


def test_top_k_that_may_reorder_equal_numbers() -> None:
    """Releases before JAX 0.11 write a function that keeps the order."""
    result, places = "tensor<2xf32>", "tensor<2xi32>"
    texts = [
        f"""func.func @main(%x: tensor<4xf32>) -> ({result}, {places}) {{
            %0:2 = "chlo.top_k"(%x) {{k = 2 : i64{said}}} : (tensor<4xf32>) -> ({result}, {places})
            return %0#0, %0#1 : {result}, {places}
        }}"""
        for said in ("", ", is_stable = true", ", is_stable = false")
    ]
    for text in texts:
        with _jax.make_ir_context() as context:
            module = mlir.parse(mlir.serialize(_jax.ir.Module.parse(text)), context)
            assert [meaning for *_, meaning in composites.of_chlo(module)] == [Meaning.OPERATION]

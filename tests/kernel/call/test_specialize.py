"""`Exported.specialize`: fixed dimensions, everything else as before."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export as jax_export

import jaxexp
from kit.alike import LIBRARIES
from kit.compare import assert_same_placement, assert_same_values
from kit.corpus import CASES, arr, export_with, f32, spec, touch
from kit.derivatives import pull_back
from kit.each import each

pytestmark = pytest.mark.jax


def loaded(fun: Any, *specs: Any, vjp_order: int = 0, platforms: Any = None, **kwspecs: Any) -> jaxexp.Exported:
    exported = jaxexp.export(fun, platforms=platforms)(*specs, **kwspecs)
    return jaxexp.deserialize(exported.serialize(vjp_order=vjp_order))


def is_static(exported: jaxexp.Exported) -> bool:
    return "tensor<?" not in exported.mlir_module() and "x?x" not in exported.mlir_module()


POLYMORPHIC = [
    "symbolic_batch", "symbolic_several", "symbolic_division", "symbolic_value", "symbolic_unused", "symbolic_while",
    "symbolic_multi_platform", "sharded_symbolic", "donated_symbolic", "effects_and_symbolic_shapes",
    "linalg_symbolic_multi_platform",
]  # fmt: skip


@pytest.mark.wide(one_in=5, promise="each function of symbolic sizes can be fixed to sizes, whoever wrote it")
@pytest.mark.parametrize(("name", "writer"), [(name, writer) for name in POLYMORPHIC for writer in LIBRARIES][::-1])
def test_corpus(name: str, writer: str) -> None:
    case = CASES[name]
    p = case.build()
    with case.context():
        written = export_with(LIBRARIES[writer], p).serialize(vjp_order=case.vjp_order)
        polymorphic = jaxexp.deserialize(written)
        args, kwargs = p.args, p.kwargs
        if not name.startswith("sharded"):
            args, kwargs = jax.tree.map(jnp.asarray, (args, kwargs))
        expected = p.live(*p.args, **p.kwargs) if "donated" not in name else polymorphic.call(*p.args, **p.kwargs)
        fixed = polymorphic.specialize(*args, **kwargs)

        assert [a.shape for a in fixed.in_avals] == [np.shape(x) for x in jax.tree.leaves((args, kwargs))]
        assert [a.shape for a in fixed.out_avals] == [x.shape for x in jax.tree.leaves(expected)]
        for field in ("fun_name", "in_tree", "out_tree", "platforms", "nr_devices", "ordered_effects",
                      "unordered_effects", "module_kept_var_idx", "_in_named_shardings", "_out_named_shardings",
                      "calling_convention_version", "disabled_safety_checks"):  # fmt: skip
            assert getattr(fixed, field) == getattr(polymorphic, field)
        if len(fixed.platforms) == 1:
            assert is_static(fixed)
            assert not fixed.uses_global_constants

        again = jax_export.deserialize(fixed.serialize(vjp_order=case.vjp_order))
        assert_same_values(p.finish(again.call(*p.args, **p.kwargs)), p.finish(expected))
        found = fixed.call(*args, **kwargs)
        assert_same_values(p.finish(found), p.finish(expected))
        if case.vjp_order and "donated" not in name:
            assert_same_placement(found, polymorphic.call(*p.args, **p.kwargs))
            assert_same_values(pull_back(again.call, p.args, p.kwargs), pull_back(p.live, p.args, p.kwargs))
            assert is_static(fixed.vjp()) or len(fixed.platforms) > 1


def test_second_derivative() -> None:
    """Of what was loaded, and of what was just exported. A function of fixed sizes is returned as it is."""
    (b,) = jaxexp.symbolic_shape("b")
    fresh = jaxexp.export(jax.jit(lambda x: jnp.sin(x).sum() ** 3))(spec((b,)))
    for polymorphic in (fresh, jaxexp.deserialize(fresh.serialize(vjp_order=2))):
        one, other = polymorphic.specialize(spec((3,))), polymorphic.specialize(spec((3,)))
        assert one == other != polymorphic.specialize(spec((5,)))
        assert hash(one) == hash(other)
        assert one.vjp().in_avals[0].shape == (3,)
        assert one.vjp().vjp().has_vjp() == (polymorphic is fresh)
        assert one.specialize(spec((3,))) is one
    expected = jax.hessian(lambda x: jnp.sin(x).sum() ** 3)(arr(3))
    np.testing.assert_allclose(jax.jit(jax.jacrev(jax.grad(one.call)))(arr(3)), expected, rtol=1e-5)


def test_to_other_symbolic_dimensions() -> None:
    a, b = jaxexp.symbolic_shape("a, b")
    polymorphic = loaded(jax.jit(lambda x, y: x @ y), spec((a, 3)), spec((3, b)), vjp_order=1)
    (n,) = jaxexp.symbolic_shape("n")
    partly = polymorphic.specialize(spec((2 * n, 3)), spec((3, n)))
    assert [str(a.shape) for a in (*partly.in_avals, *partly.out_avals)] == ["(2*n, 3)", "(3, n)", "(2*n, n)"]
    for library in LIBRARIES.values():
        found = library.deserialize(partly.serialize(vjp_order=1))
        np.testing.assert_allclose(found.call(arr(4, 3), arr(3, 2)), arr(4, 3) @ arr(3, 2), rtol=1e-6)
        gradient = jax.grad(lambda x, found=found: found.call(x, arr(3, 2)).sum())(arr(4, 3))
        np.testing.assert_allclose(gradient, np.broadcast_to(arr(3, 2).sum(1), (4, 3)), rtol=1e-6)
        with pytest.raises(ValueError, match="3"):
            found.call(arr(3, 3), arr(3, 2))
        with pytest.raises(ValueError, match="n"):
            found.call(arr(4, 3), arr(3, 1))

    half = polymorphic.specialize(spec((n, 3)), spec((3, 5)))
    assert half.uses_global_constants
    fixed = half.specialize(spec((2, 3)), spec((3, 5)))
    assert is_static(fixed)
    np.testing.assert_allclose(fixed.call(arr(2, 3), arr(3, 5)), arr(2, 3) @ arr(3, 5), rtol=1e-6)


def test_keys_tokens_and_dropped_arguments() -> None:
    (b,) = jaxexp.symbolic_shape("b")
    keys = spec((b,), jax.random.key(0).dtype)

    @jax.jit
    def fun(keys, x, unused):
        return jax.vmap(lambda k: jax.random.uniform(k, (2,)))(keys), touch(x, "first")

    polymorphic = loaded(fun, keys, spec((b,)), spec((b,), np.int32))
    fixed = polymorphic.specialize(spec((3,), keys.dtype), spec((3,)), spec((3,), np.int32))
    assert is_static(fixed)
    found = fixed.call(jax.random.split(jax.random.key(1), 3), arr(3), np.zeros(3, np.int32))
    assert_same_values(found, polymorphic.call(jax.random.split(jax.random.key(1), 3), arr(3), np.zeros(3, np.int32)))


WRONG = {
    "rank": (lambda e: e.specialize(spec((4,)), spec((3,))), "rank"),
    "constant": (lambda e: e.specialize(spec((4, 3)), spec((3,))), "2.*3"),
    "inconsistent": (lambda e: e.specialize(spec((4, 2)), spec((7,))), "7"),
    "dtype": (lambda e: e.specialize(spec((4, 2), np.int32), spec((8,))), "float32.*int32"),
    "tree": (lambda e: e.specialize(spec((4, 2))), "tree"),
    "keyword": (lambda e: e.specialize(spec((4, 2)), y=spec((8,))), "tree"),
    "no spec": (lambda e: e.specialize(3, spec((8,))), "shape and a dtype"),
    "constraint": (lambda e: e.specialize(spec((2, 2)), spec((4,))), ">= 3"),
    "two scopes": (lambda e: e.specialize(*[spec((*jaxexp.symbolic_shape(f"{i}*n"), 2)[:i]) for i in (2, 1)]), "scope"),
}


@pytest.fixture(scope="module")
def constrained() -> list[jaxexp.Exported]:
    """The bytes hold constraints as assertions inside the module, which specialization evaluates."""
    (a,) = jaxexp.symbolic_shape("a", constraints=["a >= 3"])
    exported = jaxexp.export(jax.jit(lambda x, y: x.sum() + y))(spec((a, 2)), spec((2 * a,)))
    both = [exported, jaxexp.deserialize(exported.serialize())]
    for one in both:
        one.specialize(spec((4, 2)), spec((8,)))
    return both


@each("mistake", WRONG)
def test_wrong_specs(mistake: str, constrained: list[jaxexp.Exported]) -> None:
    provoke, match = WRONG[mistake]
    for one in constrained:
        with pytest.raises(jaxexp.errors.ExportError, match=match):
            provoke(one)


@each("constraint", ["z >= 8", "a >= z", "mod(z, 2) == 0"])
def test_a_constraint_on_a_variable_that_no_argument_has(constraint: str) -> None:
    """`export` refuses it as JAX does; `dataclasses.replace` and artifacts bring it."""
    exported = jaxexp.export(jax.jit(lambda x: x * 2))(spec(jaxexp.symbolic_shape("a")))
    shape = jaxexp.symbolic_shape("a", constraints=[constraint])
    aval = exported.in_avals[0].update(shape=shape)
    made = dataclasses.replace(exported, in_avals=(aval,), out_avals=(aval,))
    loaded = jaxexp.deserialize(made.serialize())
    uses = [lambda e: e.call(arr(9)), lambda e: e.make_jaxpr(arr(9)), lambda e: e.specialize(spec((9,)))]
    for one, use in [(exported, lambda e: e.specialize(spec(shape))), *itertools.product((made, loaded), uses)]:
        with pytest.raises(jaxexp.errors.ExportError, match="'z' that is not appearing"):
            use(one)


def test_weak_types_and_scalars() -> None:
    (b,) = jaxexp.symbolic_shape("b")
    exported = jaxexp.export(jax.jit(lambda s, x: s * x))(2.5, spec((b,)))
    fixed = exported.specialize(f32(0), spec((3,)))
    assert fixed.in_avals[0].weak_type
    read = jaxexp.deserialize(exported.serialize())
    assert read.specialize(f32(0), spec((3,))).weak_arguments == fixed.weak_arguments == (0,)
    np.testing.assert_allclose(fixed.call(2.0, arr(3)), 2 * arr(3), rtol=1e-6)

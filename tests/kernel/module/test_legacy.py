"""Custom calls of linear algebra that old releases wrote and today's JAX has in another form."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export as jax_export

import jaxexp
from kit import goldens
from kit.corpus import FirstOrderedEffect
from kit.derivatives import pull_back
from kit.each import each
from kit.linear_algebra import ARTIFACTS, close, load, precision, stored
from kit.other_modules import with_module
from kit.places import GOLDEN

pytestmark = pytest.mark.jax

DERIVATIVES = [name for name in ARTIFACTS if "_vjp_" in name]


def family_of(name: str) -> str:
    family = name.partition("/")[2].rpartition("_")[0]
    for variant in ("_platforms", "_poly", "_vjp", "_sizes"):
        family = family.removesuffix(variant)
    return family


# The equations that define each family's results, for one argument of the function.
def adjoint(x: Any) -> Any:
    return np.conj(np.swapaxes(x, -1, -2))


def ordered(values: Any, like: Any) -> Any:
    """Eigenvalues in the order of their real parts, in the precision of what they belong to."""
    return np.sort_complex(values).astype(np.result_type(like, np.complex64))


def unitary(q: Any) -> None:
    close(adjoint(q) @ q, np.broadcast_to(np.eye(q.shape[-1]), (*q.shape[:-2], q.shape[-1], q.shape[-1])))


def square(x: Any) -> Any:
    return x[..., :3, :]


def eigh(x: Any, *results: Any) -> None:
    a = square(x) + adjoint(square(x))
    for vectors, values in (results[:2], results[2:]):
        unitary(vectors)
        close(a @ vectors, vectors * values[..., None, :])


def eig(x: Any, values: Any, left: Any = None, right: Any = None) -> None:
    a = square(x)
    if left is not None:
        close(adjoint(left) @ a, values[..., :, None] * adjoint(left))
    if right is not None:
        close(a @ right, right * values[..., None, :])
    close(ordered(values, x), ordered(np.linalg.eigvals(a), x))


def eig_right(x: Any, values: Any, right: Any) -> None:
    eig(x, values, right=right)


def qr(x: Any, *results: Any) -> None:
    for q, r in zip(results[::2], results[1::2], strict=True):
        unitary(q)
        close(np.tril(r, -1), 0 * r)
        close(q @ r, x)


def reflected(vectors: Any, taus: Any, below: int = 0) -> Any:
    """The product of Householder reflectors whose vectors are columns, each a one with what lies below it."""
    size = vectors.shape[-2]
    product = np.broadcast_to(np.eye(size, dtype=vectors.dtype), (*vectors.shape[:-2], size, size))
    for i in range(taus.shape[-1]):
        one = i + below
        v = np.where(np.arange(size) > one, vectors[..., :, i], np.arange(size) == one)[..., :, None]
        product = product @ (np.eye(size, dtype=vectors.dtype) - taus[..., i, None, None] * v @ adjoint(v))
    return product


def svd(x: Any, *results: Any) -> None:
    for u, s, vt in (results[:3], results[3:]):
        unitary(u)
        unitary(adjoint(vt))
        close(u[..., :, :3] * s[..., None, :] @ vt[..., :3, :], x)
        assert (s[..., :-1] >= s[..., 1:]).all()


def svd_wide(x: Any, u: Any, s: Any, vt: Any, values: Any) -> None:
    close(u * s[..., None, :] @ vt, np.swapaxes(x, -1, -2))
    close(values, s)


def schur(x: Any, form: Any, vectors: Any) -> None:
    unitary(vectors)
    close(vectors @ form @ adjoint(vectors), square(x))


def schur_form(x: Any, form: Any) -> None:
    close(np.trace(form, axis1=-2, axis2=-1), np.trace(square(x), axis1=-2, axis2=-1))


def wider(x: Any) -> Any:
    return np.concatenate([x, x * 2], axis=-1)[..., :5, :5]


def hessenberg(x: Any, packed: Any, taus: Any) -> None:
    form, q = np.triu(packed, -1), reflected(packed, taus, below=1)
    unitary(q)
    close(q @ form @ adjoint(q), wider(x))
    close(ordered(np.linalg.eigvals(form), x), ordered(np.linalg.eigvals(wider(x)), x))


def tridiagonal(x: Any, *results: Any) -> None:
    values = np.linalg.eigvalsh(wider(x) + adjoint(wider(x)))
    for _, d, e, _ in (results[:4], results[4:]):
        form = d[..., None, :] * np.eye(5, dtype=d.dtype)
        form[..., np.arange(4), np.arange(1, 5)] = form[..., np.arange(1, 5), np.arange(4)] = e
        close(np.linalg.eigvalsh(form), values)


# What belongs to LAPACK is the sign or phase of a vector. The results of the other families are unique.
FAMILIES = (eigh, eig, eig_right, qr, svd, svd_wide, schur, schur_form, hessenberg, tridiagonal)
EQUATIONS = {f.__name__: f for f in FAMILIES} | {"eigvals": eig, "qr_reduced": qr}


def check(name: str, results: Any, args: dict[str, Any], expected: list[Any]) -> None:
    """The equations hold, and magnitudes are as they were."""
    equations = EQUATIONS.get(family_of(name))
    for found, then in zip(jax.tree.leaves(results), expected, strict=True):
        assert (found.dtype, found.shape) == (then.dtype, then.shape)
        if family_of(name) == "hessenberg" and found.shape[-2:] != (5, 5):
            # `wider` has rank 3, so the last reflector turns the phase of rounding noise, which each processor rounds
            # its own way. The equations hold for any phase.
            found, then = found[..., :-1], then[..., :-1]
        close(np.abs(found), np.abs(then)) if equations else close(found, then)
    for key, x in args.items():
        if equations:
            equations(x, *map(np.asarray, jax.tree.leaves(results[key])))


@pytest.mark.wide(one_in=8, promise="linear algebra of old releases satisfies its equations")
@pytest.mark.parametrize("name", ARTIFACTS)
def test_linear_algebra(name: str) -> None:
    with precision(name):
        args, expected = stored(name)
        call = load(name).call
        check(name, call(args), args, expected)
        if name.startswith("jax-0.4.38/"):
            check(name, jax.jit(lambda args: call(args))(args), args, expected)


@pytest.mark.wide(one_in=2, promise="VJPs of linear algebra of old releases are those of today's")
@pytest.mark.parametrize("name", DERIVATIVES)
def test_derivatives(name: str) -> None:
    def live(args: dict[str, Any]) -> Any:
        def positive(x: Any) -> Any:
            return x @ jnp.conj(jnp.swapaxes(x, -1, -2)) + 4 * jnp.eye(x.shape[-1], dtype=x.dtype)

        if family_of(name) == "qr_reduced":
            return {key: tuple(jax.lax.linalg.qr(x, full_matrices=False)) for key, x in args.items()}
        return {key: jnp.linalg.cholesky(positive(square(x))) for key, x in args.items()}

    with precision(name):
        args, _ = stored(name)
        exported = load(name)
        assert exported.has_vjp()
        assert not exported.vjp().has_vjp()
        found, expected = (
            jax.jit(lambda args, function=function: pull_back(function, (args,), {}))(args)
            for function in (exported.call, live)
        )
        jax.tree.map(close, jax.tree.leaves(found), jax.tree.leaves(expected))


def test_any_batch_size() -> None:
    """The module was written for a symbolic batch; it was run with two matrices where it was written."""
    x = np.random.default_rng(0).standard_normal((7, 5, 3)).astype(np.float32)
    args = {"real_batch": x, "complex_batch": (x + 2j * x[::-1]).astype(np.complex64)}
    for family in ("eigh", "svd", "hessenberg"):
        results = load(f"jax-0.4.23/{family}_poly_32").call(args)
        for key, value in args.items():
            EQUATIONS[family](value, *map(np.asarray, results[key]))


def test_specialized_artifact_has_the_calls_of_today() -> None:
    """`specialize` keeps what was rewritten: stock jax.export runs the result."""
    exported = load("jax-0.4.23/eigh_poly_32")
    args, expected = stored("jax-0.4.23/eigh_poly_32")
    specialized = exported.specialize(jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), args))
    assert b"lapack_ssyevd_ffi" in specialized.mlir_module_serialized
    theirs = jax_export.deserialize(specialized.serialize())
    check("jax-0.4.23/eigh_poly_32", theirs.call(args), args, expected)


@each("policy", [None, jaxexp.Policy(max_operations=1000)])
def test_a_call_that_no_release_wrote(policy: jaxexp.Policy | None) -> None:
    """Damage of the module, as everything else in it that no export has."""
    data = with_module(
        """module @f { func.func public @main(%x: tensor<2xf32>) -> tensor<2xf32> {
      %a = stablehlo.reshape %x : (tensor<2xf32>) -> tensor<1x2xf32>
      %r:3 = stablehlo.custom_call @lapack_sgetrf(%a, %a) {api_version = 2 : i32}
        : (tensor<1x2xf32>, tensor<1x2xf32>) -> (tensor<1x2xf32>, tensor<1xi32>, tensor<i32>)
      %y = stablehlo.reshape %r#0 : (tensor<1x2xf32>) -> tensor<2xf32>
      return %y : tensor<2xf32> } }"""
    )
    with pytest.raises(
        jaxexp.errors.DeserializationError, match=r"a call of lapack_sgetrf as .* found one that has no operand_l"
    ):
        jaxexp.deserialize(data, policy=policy).call(np.ones(2, np.float32))


CONVENTIONS = GOLDEN / "conventions" / "jax-0.4.23"


NAMES = ("constant", "symbolic", "platforms", "symbolic_platforms", "dropped")
CALLED = [("symbolic", 7), *((name, convention) for name in NAMES for convention in (6, 8))]


@each("name, convention", CALLED)
def test_calling_conventions_before_9(name: str, convention: int) -> None:
    exported = jaxexp.deserialize((CONVENTIONS / f"{name}_{convention}.bin").read_bytes())
    assert exported.calling_convention_version == convention
    args, expected = (goldens.stored(CONVENTIONS / f"{name}.npz", kind) for kind in ("in", "out"))
    jax.tree.map(close, jax.tree.leaves(exported.call(*args)), expected)
    if name == "constant":
        grad = jax.grad(lambda x: exported.call(x, args[1])["product"].sum())(args[0])
        close(grad, (1 - np.tanh(args[0]) ** 2) * args[1].sum(axis=1))
    if name == "symbolic":
        # Below 7 the module does not assert that its first dimension is even: the call does.
        with pytest.raises(jaxexp.errors.ExportError, match=r"b must be a whole number, found 2\*b = 3"):
            exported.call(args[0][:3], args[1])
        specialized = exported.specialize(*args)
        assert specialized.calling_convention_version == 9
        for library in (jaxexp, jax_export) if convention == 6 else ():
            results = library.deserialize(specialized.serialize()).call(*args)
            jax.tree.map(close, jax.tree.leaves(results), expected)


CHANGES = [
    ({"ordered_effects": (FirstOrderedEffect(),)}, r"calling dropped: .* convention 8, in which no tokens are passed"),
    ({"calling_convention_version": 11}, "calling convention 11, and 10 is the newest that this jaxexp knows"),
]


@each("changes, message", CHANGES)
def test_what_a_convention_has_not_is_refused(changes: dict[str, Any], message: str) -> None:
    exported = jaxexp.deserialize((CONVENTIONS / "dropped_8.bin").read_bytes())
    args = exported.in_tree.unflatten(exported.in_avals)[0]
    with pytest.raises(jaxexp.errors.ExportError, match=message):
        jax.jit(dataclasses.replace(exported, **changes).call).lower(*args)

"""Cases of what functions do: effects, linear algebra, control flow, derivatives."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import export as jax_export
from jax import lax
from jax._src import core, effects
from jax._src.interpreters import mlir
from jaxlib.mlir.dialects import stablehlo

from .case import Program, arr, case, f32, plain, spec


class _Effect(effects.Effect):
    """Equal to every effect of its own class, as an effect must be to survive serialization."""

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other)

    def __hash__(self) -> int:
        return hash(type(self).__name__)

    def __lt__(self, other: object) -> bool:
        return type(self).__name__ < type(other).__name__


class FirstOrderedEffect(_Effect): ...


class SecondOrderedEffect(_Effect): ...


class UnorderedEffect(_Effect): ...


class EffectWithArgument(_Effect):
    """Cannot be serialized: there is no constructor without arguments."""

    def __init__(self, name: str):
        self.name = name


class UnequalEffect(_Effect):
    """Cannot be serialized: two instances differ."""

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)


EFFECTS = {
    "first": FirstOrderedEffect(),
    "second": SecondOrderedEffect(),
    "unordered": UnorderedEffect(),
    "argument": EffectWithArgument("e"),
    "unequal": UnequalEffect(),
}
for _effect in EFFECTS.values():
    # Artifacts name an effect by its class, and those in tests/golden know this one.
    type(_effect).__module__ = "corpus"
    effects.lowerable_effects.add_type(type(_effect))
    effects.control_flow_allowed_effects.add_type(type(_effect))
    effects.custom_derivatives_allowed_effects.add_type(type(_effect))
for _name in ("first", "second"):
    effects.ordered_effects.add_type(type(EFFECTS[_name]))

touch_p = core.Primitive("corpus_touch")
touch_p.def_impl(lambda x, *, effect: jnp.sin(x))


@touch_p.def_effectful_abstract_eval
def _touch_abstract_eval(x, *, effect):
    return x, {EFFECTS[effect]}


def _touch_lowering(ctx, x, *, effect):
    if effect in ("first", "second"):  # the token passes through: all that ordering needs here
        ctx.set_tokens_out(mlir.TokenSet({EFFECTS[effect]: ctx.tokens_in.get(EFFECTS[effect])}))
    return [stablehlo.sine(x)]


mlir.register_lowering(touch_p, _touch_lowering)


def touch(x: Any, effect: str) -> Any:
    """sin(x), with the named effect."""
    return touch_p.bind(x, effect=effect)


plain("ordered_effect", lambda x: touch(x, "first") * 2, arr(3))
plain("unordered_effect", lambda x: touch(x, "unordered") * 2, arr(3))
plain("several_effects", lambda x, unused: touch(touch(touch(x, "first"), "unordered"), "second"), arr(3), arr(2))
plain(
    "effects_and_symbolic_shapes",
    lambda x: touch(touch(x, "first"), "second") + x.shape[0],
    arr(4),
    shapes=["n"],
    platforms=("cpu", "cuda"),
)


def _spd(n: int) -> np.ndarray:
    a = arr(n, n)
    return a @ a.T + n * np.eye(n, dtype=f32)


plain("cholesky", lambda a: lax.linalg.cholesky(a, symmetrize_input=False), _spd(3), vjp_order=1)
plain("qr", lambda a: lax.linalg.qr(a, full_matrices=False), arr(4, 3) + np.eye(4, 3, dtype=f32))
plain("eigh", jnp.linalg.eigvalsh, _spd(3))
plain("svd", lambda a: lax.linalg.svd(a, compute_uv=False), arr(4, 3))
plain("lu", lax.linalg.lu, _spd(3))
plain(
    "triangular_solve",
    lambda a, b: lax.linalg.triangular_solve(a, b, left_side=True, lower=True),
    *(np.tril(_spd(3)), arr(3, 2)),
    vjp_order=1,
)
plain(
    "linalg_symbolic_multi_platform",
    lambda a: jnp.linalg.cholesky(a),
    np.stack([_spd(3)] * 2),
    shapes=["b, 3, 3"],
    platforms=("cpu", "tpu"),
)
plain("scan", lambda x, xs: lax.scan(lambda c, y: (jnp.sin(c * y), c + y), x, xs), f32(0.5), arr(4), vjp_order=2)
plain(
    "while_loop",
    lambda x, n: lax.while_loop(lambda c: c[1] > 0, lambda c: (c[0] * 1.5, c[1] - 1), (x, n)),
    arr(2),
    np.int32(3),
)
plain("cond", lambda p, x: lax.cond(p, jnp.sin, jnp.cos, x), np.bool_(True), arr(3), vjp_order=1)


def _chosen_and_counted(i, x):
    y = lax.switch(i, [jnp.sin, jnp.cos, lambda x: x * x], x)
    return lax.fori_loop(0, 3, lambda k, c: c * y + k, x)


plain("fori_and_switch", _chosen_and_counted, np.int32(2), arr(3), vjp_order=1)


@case(vjp_order=2)
def custom_vjp() -> Program:
    @jax.custom_vjp
    def clipped(x):
        return jnp.clip(x, -1, 1)

    # Deliberately not the true derivative: the test sees whether this rule travelled.
    clipped.defvjp(lambda x: (clipped(x), x), lambda x, ct: (ct * jnp.cos(x) * 3,))
    return Program(jax.jit(lambda x: clipped(x * 2)), (arr(4) - 1,))


@case(vjp_order=2)
def custom_jvp() -> Program:
    @jax.custom_jvp
    def softened(x):
        return jnp.log1p(jnp.exp(x))

    @softened.defjvp
    def _(primals, tangents):
        (x,), (t,) = primals, tangents
        return softened(x), t * jax.nn.sigmoid(x) * 2

    return Program(jax.jit(softened), (arr(4),))


_sines = jax.checkpoint(lambda x, w: jnp.sin(jnp.sin(x @ w)))
plain("remat", lambda x, w: _sines(x, w).sum(), arr(2, 3), arr(3, 3), vjp_order=2)


@case()
def donated() -> Program:
    # numpy arguments: the copies that JAX makes of them are what gets donated.
    fun = jax.jit(lambda state, x: ({"s": state["s"] + x}, (state["s"] * x).sum()), donate_argnums=0)
    return Program(fun, ({"s": arr(4)}, arr(4, seed=1)))


@case()
def donated_symbolic() -> Program:
    (n,) = jax_export.symbolic_shape("n")
    fun = jax.jit(lambda x, y: x + y, donate_argnums=0)
    return Program(fun, (arr(4), arr(4, seed=1)), specs=(spec((n,)), spec((n,))))


def loss(params, x, y):
    for layer in params:
        x = jnp.tanh(x @ layer["w"] + layer["b"])
    return -(jax.nn.log_softmax(x) * jax.nn.one_hot(y, 3)).sum(1).mean()


def _filtered(image, kernel, index):
    y = lax.conv_general_dilated(image, kernel, (1, 1), "SAME")
    return y[:, :, index], jnp.sort(y.reshape(-1))[::7]


_TABLE, _PARAMS = arr(64, 1024), [{"w": arr(4, 4), "b": arr(4)}, {"w": arr(4, 3), "b": arr(3)}]
_scaled_sine = jax.jit(lambda x, s: jnp.sin(x) * s, inline=False)
_three_and_zero = np.array([3, 0], np.int32)
plain("large_constant", lambda x: x @ _TABLE, arr(2, 64), vjp_order=1)
plain("perceptron", loss, _PARAMS, arr(5, 4), np.arange(5, dtype=np.int32) % 3, vjp_order=2)
plain("convolution_and_gather", _filtered, arr(1, 2, 5, 5), arr(3, 2, 3, 3), _three_and_zero, vjp_order=1)
plain(
    "nested_jit_and_vmap",
    jax.vmap(lambda x: _scaled_sine(x, 2.0) + _scaled_sine(x[::-1], 3.0)),
    arr(3, 4),
    vjp_order=1,
)


@case(vjp_order=1)
def calls_an_exported() -> Program:
    (n,) = jax_export.symbolic_shape("n")
    inner = jax_export.export(jax.jit(lambda x: jnp.sin(x) * x.shape[0]))(spec((n,)))
    blob = inner.serialize(vjp_order=1)
    loaded = jax_export.deserialize(blob)
    return Program(jax.jit(lambda x, y: loaded.call(x) + loaded.call(y).sum()), (arr(3), arr(5)))


plain("random_inside", lambda seed: jax.random.normal(jax.random.key(seed), (4,)), np.uint32(5))


def _scoped(x):
    with jax.named_scope("outer"):
        return jax.named_call(jnp.sin, name='quo"ted')(x)


plain("named_scopes", _scoped, arr(3))

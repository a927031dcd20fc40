"""`export(f, weights=...)`: what becomes a weight, and what stays as it was."""

from __future__ import annotations

import gc
import re
import weakref
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxexp
from jaxexp._errors import ExportError
from kit.weighted import SIZE, X, apply, bound, close, closed, named, params, squared


def test_the_program_takes_the_weights_first() -> None:
    exported, given = bound()
    assert list(exported.weights) == sorted(named(given))
    assert all(exported.weights[name] is leaf for name, leaf in named(given).items())
    program = exported.unbound
    assert type(program) is jaxexp.Exported
    assert program.in_tree == jax.tree.structure(((dict.fromkeys(exported.weights, 0), 0), {}))
    assert exported.in_avals == program.in_avals
    close(exported.call(X), apply(given, X))
    close(program.call(dict(exported.weights), X), apply(given, X))
    types = r"float32\[4,32\] -> float32\[4,8\]"
    assert re.fullmatch(rf"BoundExported\(<lambda>: 7 weights; {types}, module of [\d.]+ kB\)", repr(exported))


@pytest.mark.parametrize("options", [{"locations": "names"}, {"compatibility": "0.4.30"}], ids=["locations", "reader"])
def test_the_program_is_serialized_in_other_forms(options: dict[str, str]) -> None:
    exported, given = bound()
    blob = exported.serialize(**options)
    assert blob == exported.unbound.serialize(**options)
    close(jaxexp.deserialize(blob).bind(given).call(X), apply(given, X))


def test_nothing_of_the_weights_is_in_the_program() -> None:
    """In none of its VJPs, either."""
    small = len(bound(1)[0].serialize(vjp_order=2))
    given = {"layers": [{"w": jnp.ones((512, 512)), "b": jnp.ones(512)}], "head": jnp.ones((512, 8))}
    exported = jaxexp.export(jax.jit(closed(given)), weights=given)(np.ones((4, 512), np.float32))
    assert abs(len(exported.serialize(vjp_order=2)) - small) < 1000
    assert exported.serialize(vjp_order=2) == exported.unbound.serialize(vjp_order=2)


def test_a_rule_of_derivatives_that_closes_over_weights() -> None:
    """Its backward pass runs when a VJP is exported, and has the weights as constants then."""
    w = jnp.ones((512, 512)) / 512

    @jax.custom_vjp
    def product(x: Any) -> Any:
        return x @ w

    product.defvjp(lambda x: (x @ w, None), lambda _, g: (3 * g @ w.T,))
    x = np.ones((4, 512), np.float32)
    with pytest.warns(UserWarning, match="derivative rules of their own, which close over them: w"):
        exported = jaxexp.export(jax.jit(lambda x: product(jnp.sin(x))), weights={"w": w})(x)
    assert len(exported.serialize(vjp_order=2)) < 50_000
    close(jax.grad(squared(exported.call))(x), jax.grad(squared(lambda x: product(jnp.sin(x))))(x))


def test_weights_live_as_long_as_their_users() -> None:
    exported, given = bound()
    program, head = exported.unbound, weakref.ref(given["head"])
    swapped = exported.with_weights(params(seed=1))
    del exported, given
    jax.clear_caches()
    gc.collect()
    assert head() is None
    gradient = jax.grad(squared(swapped.call))(X)  # which exports the VJP
    close(gradient, jax.grad(squared(closed(params(seed=1))))(X))
    assert program.vjp() is swapped.vjp()


def test_all_large_arrays() -> None:
    given = params()
    exported = jaxexp.export(jax.jit(closed(given)), weights=True)(X)
    assert len(exported.weights) == 3  # layers/*/w; the others are smaller than 4 KiB
    assert all(name.startswith("float32-") for name in exported.weights)
    close(exported.call(X), apply(given, X))


@pytest.mark.parametrize("weights", [None, False])
def test_without_weights(weights: Any) -> None:
    exported = jaxexp.export(jax.jit(closed(params())), weights=weights)(X)
    assert type(exported) is jaxexp.Exported
    assert dict(exported.weights) == {}
    assert exported.unbound is exported
    for verb in (lambda: exported.with_weights({}), lambda: exported.with_mesh(None)):
        with pytest.raises(ExportError, match=r"has no weights: .* export it with weights=|Export it with weights="):
            verb()


def test_there_is_nothing_to_take() -> None:
    with pytest.raises(ExportError, match="closes over no array that could be a weight"):
        jaxexp.export(jax.jit(jnp.sin), weights={"w": X})(X)
    with pytest.raises(ExportError, match="If they are the first argument, export without `weights`, and call `bind`"):
        jaxexp.export(jax.jit(lambda w, x: x + w["w"]), weights={"w": X})({"w": X}, X)


def test_a_warning_is_about_the_line_that_exports() -> None:
    given = params()
    large = jnp.ones((512, 1024))
    with pytest.warns(UserWarning, match=r"stay in its module: one \(float32\[512,1024\]") as caught:
        jaxexp.export(jax.jit(lambda x: apply(given, x) + large.sum()), weights=given)(X)
    assert [w.filename for w in caught] == [__file__]


def test_everything_else_stays() -> None:
    """Keywords, static arguments, symbolic shapes, a batch dimension, donation, platforms."""
    given = params()

    def function(x: Any, *, scale: Any, power: int) -> dict[str, Any]:
        return {"y": apply(given, x) * scale**power, "x": x + 1}

    spec = jax.ShapeDtypeStruct(jaxexp.symbolic_shape(f"b, {SIZE}"), np.float32)
    scale = jax.ShapeDtypeStruct((), np.float32)
    jitted = jax.jit(function, static_argnames="power", donate_argnums=0)
    exported = jaxexp.export(jitted, weights=given, platforms=("cpu", "cuda"), batch_dim="b")(
        spec, scale=scale, power=2
    )
    close(exported.call(X, scale=np.float32(3)), {"y": apply(given, X) * 9, "x": X + 1})
    assert exported.platforms == ("cpu", "cuda")
    assert exported.batch_dim == "b"
    assert "while" not in jax.jit(jax.vmap(lambda x: exported.call(x, scale=2.0))).lower(np.stack([X, X])).as_text()
    fixed = exported.specialize(jax.ShapeDtypeStruct((4, SIZE), np.float32), scale=scale)
    assert isinstance(fixed, jaxexp.BoundExported)
    close(fixed.call(X, scale=np.float32(3)), {"y": apply(given, X) * 9, "x": X + 1})
    with pytest.raises(ExportError, match=r"args\[0\].*must have size 32, found size 31"):
        exported.specialize(jax.ShapeDtypeStruct((4, 31), np.float32), scale=scale)
    with pytest.raises(ExportError, match=r"specializing function: args\[0\] has dtype float32, the spec says int32"):
        exported.specialize(jax.ShapeDtypeStruct((4, 32), np.int32), scale=scale)


def test_an_older_reader() -> None:
    given = params()
    exported = jaxexp.export(jax.jit(closed(given)), weights=given, compatibility="jax-0.4.30")(X)
    read = jax.export.deserialize(bytearray(exported.serialize(vjp_order=1)))
    close(read.call(dict(exported.weights), X), apply(given, X))

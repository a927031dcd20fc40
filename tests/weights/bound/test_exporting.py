"""`export(f, weights=...)`: which arrays are found and become weights, what stays, and what a user is told."""

from __future__ import annotations

import gc
import re
import weakref
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxexp
from jaxexp._errors import ExportError, WeightsError
from jaxexp._weights.arrays.weights import digest
from kit import forged
from kit.each import each
from kit.weighted import SIZE, X, apply, bound, close, closed, named, params, squared

pytestmark = pytest.mark.jax


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


def test_the_program_is_serialized_in_other_forms() -> None:
    exported, given = bound()
    for options in ({"locations": "names"}, {"compatibility": "0.4.30"}):
        blob = exported.serialize(**options)
        assert blob == exported.unbound.serialize(**options)
        close(jaxexp.deserialize(blob).bind(given).call(X), apply(given, X))
    read = jax.export.deserialize(bytearray(exported.serialize(vjp_order=1, compatibility="jax-0.4.30")))
    close(read.call(dict(exported.weights), X), apply(given, X))


def test_nothing_of_the_weights_is_in_the_program() -> None:
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
    """If there is none, that is no error."""
    given = params()
    exported = jaxexp.export(jax.jit(closed(given)), weights=True)(X)
    assert len(exported.weights) == 3  # layers/*/w; the others are smaller than 4 KiB
    assert all(name.startswith("float32-") for name in exported.weights)
    close(exported.call(X), apply(given, X))
    for function in (jnp.sin, closed({"layers": [], "head": jnp.ones((SIZE, 8))})):
        exported = jaxexp.export(jax.jit(function), weights=True)(X)
        assert type(exported) is jaxexp.Exported
        close(exported.call(X), function(X))


def test_without_weights() -> None:
    for weights in (None, False):
        exported = jaxexp.export(jax.jit(closed(params())), weights=weights)(X)
        assert type(exported) is jaxexp.Exported
        assert dict(exported.weights) == {}
        assert exported.unbound is exported
        for use in (lambda exported: exported.with_weights({}), lambda exported: exported.with_mesh(None)):
            with pytest.raises(ExportError, match=r"has no weights: .* [Ee]xport it with weights=|Export it with"):
                use(exported)


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


def weights_of(function: Any, weights: Any) -> list[str]:
    return list(jaxexp.export(jax.jit(function), weights=weights)(X).weights)


def test_leaves_that_are_no_arrays_are_left_out() -> None:
    """Models have functions and numbers as leaves, too."""
    given: dict[str, Any] = {**params(), "activation": jnp.tanh, "rate": 0.5, "name": "model"}
    exported = jaxexp.export(jax.jit(closed(given)), weights=given)(X)
    assert len(exported.weights) == 7
    close(exported.with_weights({**given, **params(seed=1)}).call(X), apply(params(seed=1), X))
    with pytest.raises(WeightsError, match=r"tensor 'head': expected float32\[32,8\], found 'none'"):
        exported.with_weights({**given, "head": "none"})


def test_many_and_long_names_take_no_time_to_compare() -> None:
    given = {**{f"x{i}": X for i in range(20_000)}, "y" * 100_000: X}
    with pytest.raises(WeightsError, match=r"found no such name among 20,001\. Also missing"):
        bound()[0].with_weights(given)


def test_why_an_array_is_not_found() -> None:
    w = np.random.default_rng(0).standard_normal(SIZE * SIZE).astype(np.float32)
    view, given = w.reshape(SIZE, SIZE), {"w": w}
    for used, why in (
        (view, r"another view of 'w', float32\[1024\]"),
        (view.copy(), r"a copy of 'w', float32\[1024\]"),
        (jnp.asarray(view), r"a copy of 'w', float32\[1024\]"),
        (jnp.eye(SIZE), r"these arrays: one \(float32\[32,32\], 4,096 bytes\)$"),
    ):
        with pytest.raises(ExportError, match=f"closes over no array that could be a weight: .*{why}"):
            weights_of(lambda x, used=used: x @ used, given)
    large = np.ones((1 << 10, 1 << 9), np.float32)
    given = {"used": jnp.eye(SIZE), "large": large}
    with pytest.warns(
        UserWarning, match=re.escape("2,097,152 bytes: it is another view of 'large', float32[1024,512]")
    ):
        assert weights_of(lambda x: x @ given["used"] + jnp.sum(large.reshape(-1)), given) == ["used"]


def test_a_small_copy_of_an_unused_leaf_warns() -> None:
    used, bias, zeros = jnp.eye(SIZE), jnp.arange(SIZE, dtype=jnp.float32), jnp.zeros(SIZE)
    function = lambda x: x @ used + bias + zeros  # noqa: E731
    with pytest.warns(UserWarning, match=r"stay in its module: one \(float32\[32\], 128 bytes: it is a copy of 'b'"):
        assert weights_of(function, {"w": used, "b": bias + 0}) == ["w"]
    for given in ({"w": used, "b": bias}, {"w": used, "b": bias, "tied": bias}, {"w": used, "b": bias, "c": used + 1}):
        assert set(weights_of(function, given)) == {"w", "b"}


def test_arrays_of_one_digest_are_two_weights() -> None:
    pair = forged.pair(4096, len("uint32(4096,)"))
    one, other, again = map(jnp.asarray, (*pair, pair[0].copy()))
    assert len({digest(array, b"uint32(4096,)") for array in (one, other)}) == 1
    function = jax.jit(lambda x: (x + one, x * other, x - again))
    x = np.full(4096, 3, np.uint32)
    exported = jaxexp.export(function, weights=True)(x)
    assert len(exported.weights) == 2
    for found, expected in zip(exported.call(x), function(x), strict=True):
        np.testing.assert_array_equal(found, expected)


@each("weights", ["named", True])
def test_dtypes_that_artifacts_lack_stay_inside(weights: Any, tmp_path: Path) -> None:
    given = {"small": jnp.ones((1024, 1024), jnp.int2), "w": jnp.ones((SIZE, SIZE))}

    def function(x: Any) -> Any:
        return x @ given["w"] + given["small"][0, 0].astype(jnp.float32)

    said = r"(small \()?int2\[1024,1024\], 1,048,576 bytes"
    with pytest.warns(UserWarning, match=f"these arrays stay in its module: {said}.* or an artifact cannot store"):
        exported = jaxexp.export(jax.jit(function), weights=given if weights == "named" else weights)(X)
    assert len(exported.weights) == 1
    exported.save(tmp_path / "m.jaxexp")
    close(jaxexp.load(tmp_path / "m.jaxexp").call(X), function(X))


def test_random_keys_among_weights() -> None:
    """No file holds them."""
    key, w = jax.random.key(0), jnp.ones(3)
    noisy = jax.jit(lambda x: x + jax.random.normal(key, x.shape))
    with pytest.raises(ExportError, match=r"closes over these arrays: k \(key<fry>\[\]: take jax.random.key_data"):
        jaxexp.export(noisy, weights={"k": key, "w": w})(w)


def changing() -> dict[str, np.ndarray]:
    return {"w": np.eye(SIZE, dtype=np.float32)}


@each("how", ["export", "bind", "with_weights"])
def test_numpy_arrays_that_change_are_noticed(how: str, tmp_path: Path) -> None:
    """They are not copied before they are used. A function never computes with other weights than it was given."""
    given = changing()
    if how == "export":
        model = jaxexp.export(jax.jit(lambda x: x @ given["w"]), weights=given)(X)
    else:
        program = jaxexp.export(jax.jit(lambda given, x: x @ given["w"]))(given, X)
        model = program.bind(given) if how == "bind" else program.bind(changing()).with_weights(given)
    early = model.with_mesh(jax.sharding.Mesh(np.array(jax.devices()[:1]), ("d",)))
    early.weights["w"]
    given["w"][0, 0] = 2
    said = "the weight 'w' is a NumPy array that has changed since the function got it"
    for use in (lambda: model.call(X), lambda: model.save(tmp_path / "m.jaxexp"), lambda: model.weights["w"]):
        with pytest.raises(ExportError, match=said):
            use()
    assert not list(tmp_path.iterdir())
    close(early.call(X), X)
    given["w"][0, 0] = 1
    close(model.call(X), X)

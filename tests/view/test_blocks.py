"""The groups of a module's operations: calls, scopes and weights, and the words for what is in them."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import jaxexp
from jaxexp._view import blocks, graph
from jaxexp._view.graph import SourceCall
from kit.corpus import spec

pytestmark = pytest.mark.jax
LAYERS = 3


def norm(gain, x):
    x = x - x.mean(-1, keepdims=True)
    return gain * x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6)


def attention(layer, x):
    q, k, v = (x @ layer[name] for name in "qkv")
    return jax.nn.softmax(jnp.einsum("bid,bjd->bij", q, k)) @ v


def mlp(layer, x):
    return jnp.tanh(x @ layer["up"]) @ layer["down"]


class Block:
    def __call__(self, layer, x):
        x = x + attention(layer, norm(layer["first"], x))
        return x + mlp(layer, norm(layer["second"], x))


def transformer(params, tokens):
    x = params["embed"][tokens]
    for layer in params["layers"]:
        x = x + attention(layer, norm(layer["first"], x))
        x = x + mlp(layer, norm(layer["second"], x))
    return x @ params["head"]


def of_blocks(params, tokens):
    x, block = params["embed"][tokens], Block()
    for layer in params["layers"]:
        x = block(layer, x)
    return x @ params["head"]


def weights() -> dict[str, Any]:
    layer = {name: spec((8, 8)) for name in "qkv"}
    layer |= {"up": spec((8, 16)), "down": spec((16, 8)), "first": spec((8,)), "second": spec((8,))}
    return {"embed": spec((20, 8)), "head": spec((8, 20)), "layers": [layer] * LAYERS}


def folded(function, *args, kind: str = "argument", **options: Any) -> graph.Graph:
    exported = jaxexp.export(jax.jit(function), **options)(*args)
    found = jaxexp.inspect(exported.serialize()).arguments
    labels = [(value.path, kind) for value in found if value.kept]
    return blocks.folded(graph.read(exported.mlir_module_serialized), labels)


def groups(found: graph.Graph, inside: list[Any] | None = None) -> list[tuple[str, str, list[Any]]]:
    inside = found.functions["main"]["g"] if inside is None else inside
    return [(found.texts[one[0]], found.texts[one[1]], groups(found, [*one[5:6], []][0])) for one in inside]


def contents(function, *args) -> str:
    found = folded(function, *args)
    return found.texts[found.functions["main"]["s"]]


def titles(found: list[tuple[str, str, list[Any]]]) -> list[str]:
    return [title for title, _, _ in found]


TOKENS = jax.ShapeDtypeStruct((2, 6), "int32")


def test_a_loop_over_layers_folds_by_weights() -> None:
    found = groups(folded(transformer, weights(), TOKENS))
    layers = [one for one in found if one[0].startswith("layers")]
    assert titles(layers) == [f"layers[{i}]" for i in range(LAYERS)]
    assert {about for _, about, _ in layers} == {"attention, MLP"}
    assert titles(layers[0][2]) == ["norm", "attention", "norm", "mlp"]
    assert [about for _, about, _ in layers[0][2]] == ["normalization", "attention", "normalization", "MLP"]


def test_names_of_functions_are_enough() -> None:
    for function in (transformer, of_blocks):
        full, names = (folded(function, weights(), TOKENS, reproducible=choice) for choice in (False, True))
        two_levels = [
            [(title, about, [(inner, what) for inner, what, _ in inside]) for title, about, inside in groups(found)]
            for found in (full, names)
        ]
        assert two_levels[0] == two_levels[1]
        sources = {names.texts[operation[2]] for operation in names.functions["main"]["o"]}
        assert {"in norm", "in attention", "in mlp"} <= sources


@pytest.mark.parametrize("function", [transformer, of_blocks])
def test_without_lines_weights_are_enough(function) -> None:
    """Each layer ends where only its result goes on: with the addition."""
    limit = jax.config.jax_traceback_in_locations_limit
    jax.config.update("jax_traceback_in_locations_limit", 0)
    try:
        jax.clear_caches()
        found = folded(function, weights(), TOKENS)
    finally:
        jax.config.update("jax_traceback_in_locations_limit", limit)
        jax.clear_caches()
    main = found.functions["main"]
    layers = [one for one in main["g"] if found.texts[one[0]].startswith("layers")]
    assert [found.texts[one[0]] for one in layers] == [f"layers[{i}]" for i in range(LAYERS)]
    ends = [main["o"][one[4]] for one in layers]
    assert ({found.texts[operation[0]] for operation in ends}, layers[1][3]) == ({"add"}, layers[0][4] + 1)
    assert len({one[4] - one[3] for one in layers}) == 1


def test_scopes_are_groups_and_hold_calls() -> None:
    def scoped(params, x):
        with jax.named_scope("first"):
            x = mlp(params, norm(params["first"], x))
        with jax.named_scope("last"):
            return mlp(params, x)

    found = groups(folded(scoped, weights()["layers"][0], spec((2, 8))))
    assert (titles(found), titles(found[0][2]), found[1][1]) == (["first", "last"], ["norm", "mlp"], "MLP")


def test_repeats_are_parts() -> None:
    def long(x):
        for i in range(100):
            x = jnp.sin(x) * i + x
        return x

    found = folded(long, spec((4,)))
    assert titles(groups(found)) == ["1 to 14 of 100 repeats", *titles(groups(found))[1:-1], "99 to 100 of 100 repeats"]
    assert {about for _, about, _ in groups(found)[:-1]} == {"14 sine, 14 multiply, 14 add"}

    def twice(x):
        for _ in range(2):
            for _ in range(16):
                x = jnp.sin(x)
                x = jnp.cos(x)
            x = jnp.tanh(x)
        return x

    # Neither is as long as a part may be, and both are longer.
    assert titles(groups(folded(twice, spec((4,))))) == ["1 to 1 of 2 repeats", "2 to 2 of 2 repeats"]


def test_what_is_only_like_attention_is_not_called_so() -> None:
    def layers(params, x):
        return mlp(params, jax.nn.softmax(x @ params["q"]) @ params["k"])

    def inner(params, x):
        return layers(params, x) + 1

    found = folded(inner, weights()["layers"][0], spec((2, 8)))
    assert found.texts[found.functions["main"]["s"]] == "MLP"


def batch_norm(params, x):
    return (x - params["mean"]) * (jax.lax.rsqrt(params["var"] + 1e-5) * params["scale"]) + params["bias"]


def test_a_normalization_at_inference() -> None:
    params = {name: spec((8,)) for name in ("mean", "var", "scale", "bias")}

    def scaled(params, x, y):
        return (x - params["mean"]) * jax.lax.rsqrt(y + 1e-5)

    assert contents(batch_norm, params, spec((2, 8))) == "normalization"
    assert contents(scaled, params, spec((2, 8)), spec((2, 8))) != "normalization", "of an activation"


def test_a_gelu() -> None:
    for dtype, approximate in (("float32", True), ("bfloat16", True), ("float32", False)):
        gelu = functools.partial(jax.nn.gelu, approximate=approximate)
        assert contents(gelu, jax.ShapeDtypeStruct((2, 8), dtype)) == "GELU", dtype
    assert contents(lambda x, v, w: gelu(x @ v) @ w, spec((2, 8)), spec((8, 16)), spec((16, 8))) != "GELU"
    for function in (jnp.tanh, jax.nn.silu, lambda x: x * 0.0447, lambda x: jnp.tanh(x * 0.7071)):
        assert contents(function, spec((2, 8))) != "GELU"


def test_paths() -> None:
    for label, kind, path in (
        ("args[0]['blocks']<0>['key']['bias'].value", "argument", ("args[0]", "blocks", "[0]", "key", "bias")),
        ("args[0].blocks[0].bias", "argument", ("args[0]", "blocks", "[0]", "bias")),
        ("weights['blocks/0/key/value']", "weight", ("blocks", "[0]", "key")),
        ("weights['h.0.w']", "weight", ("h", "[0]", "w")),
        ("args[1]", "argument", None),
        ("cotangent of args[0]['w']", "cotangent", None),
    ):
        assert blocks.of_labels([(label, kind)]) == [path]
    assert blocks.dotted(("blocks", "[0]", "attention")) == "blocks[0].attention"
    assert blocks.dotted(("[0]", "w")) == "[0].w"


def test_chains_that_were_cut_are_continued() -> None:
    """Older releases of JAX keep ten calls, here three. What they are inside of is known from the operation before."""
    a, b, c, d = (SourceCall(name, f"{name}.py:1:0") for name in "abcd")
    again = SourceCall("b", "b.py:2:0")
    assert blocks.of_calls([(a, b), (b, c, d), (again, c, d)], 3) == [(a, b), (a, b, c, d), (a, again, c, d)]
    assert blocks.of_calls([(), (a, b), ()], 3) == [(a, b)] * 3
    assert blocks.of_calls([(a, b, c)], 3) == [(a, b, c)]


def test_calls_of_one_function_are_told_apart() -> None:
    found = groups(folded(of_blocks, weights(), TOKENS))
    turns = [one for one in found if "Block" in one[0]]
    assert titles(turns) == [f"layers[{i}] · Block" for i in range(LAYERS)]
    assert titles(turns[1][2]) == ["norm", "attention", "norm", "mlp"]


def test_methods_have_short_names_inside_of_their_class() -> None:
    class Attention:
        def project(self, w, x):
            return jnp.tanh(x @ w)

        def __call__(self, layer, x):
            return self.project(layer["q"], x) + self.project(layer["k"], x)

    def model(params, x):
        return Attention()(params, mlp(params, x))

    found = groups(folded(model, {name: spec((8, 8)) for name in ("q", "k", "up", "down")}, spec((2, 8))))
    assert (titles(found), titles(found[1][2])) == (["mlp", "Attention"], ["project", "project"])


def test_a_function_that_is_called_has_its_contents() -> None:
    found = folded(lambda params, x: jax.jit(attention)(params, x), weights()["layers"][0], spec((2, 4, 8)))
    assert found.texts[found.functions["main"]["s"]] == "attention"
    assert found.texts[found.functions["attention"]["s"]] == "attention"


def test_a_call_alone_in_its_caller_has_the_name_of_that() -> None:
    def outer(layer, x):
        return jax.jit(attention)(layer, x)

    found = folded(lambda layer, x: outer(layer, jnp.sin(x)) * 2, weights()["layers"][0], spec((2, 4, 8)))
    assert groups(found) == [("outer", "attention", [])]


def test_complex_numbers_are_drawn() -> None:
    found = folded(lambda x: x * (1 + 2j) + jnp.zeros((4,), jnp.complex64), jax.ShapeDtypeStruct((4,), "complex64"))
    assert found.functions["main"]["o"]


def test_sizes_are_drawn_inside_of_their_users() -> None:
    """Numbers that follow from dimension variables: the types that they make have the names of these."""

    def function(x):
        wide = jnp.concatenate([x, x])
        return jnp.where(jnp.arange(x.shape[0] + 1) > 2, 1.0, 0.0), wide.reshape(-1), wide - x.mean(0)

    x = jax.ShapeDtypeStruct(jaxexp.symbolic_shape("b, s"), "float32")
    found = blocks.folded(graph.read(bytes(jaxexp.export(jax.jit(function))(x).mlir_module_serialized)), [])
    block = found.functions["_wrapped_jax_export_main"]
    drawn = [operation for i, operation in enumerate(block["o"]) if i not in block["h"]]
    kinds = {found.texts[operation[0]] for operation in drawn}
    assert {"dynamic_iota", "dynamic_reshape", "dynamic_broadcast_in_dim", "concatenate", "reduce"} <= kinds
    assert not any(found.texts[type_].startswith("int32[]") for operation in drawn for type_ in operation[4])
    assert len(drawn) < 0.6 * len(block["o"])

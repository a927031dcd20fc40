"""A module taken apart: operations, values, scopes, lines, and the names of dimensions as far as they are known."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

import jaxexp
from jaxexp import _native
from jaxexp._view import graph
from jaxexp._view.graph import SignatureType
from jaxexp.errors import DeserializationError
from kit.corpus import spec

pytestmark = pytest.mark.jax


def module_of(function, *args) -> bytes:
    return jaxexp.export(jax.jit(function))(*args).mlir_module_serialized


def read(function, *args) -> graph.Graph:
    return graph.read(module_of(function, *args))


def test_everything_is_there() -> None:
    """The graph has as many operations of each kind as the bytecode; but for returns and what holds the others."""

    def function(x):
        with jax.named_scope("a"):
            x = jax.lax.cond(x.sum() > 0, jnp.sin, jnp.cos, jax.nn.relu(x))
        return jax.lax.while_loop(lambda x: x.sum() < 3, lambda x: x + 1, x)

    module = module_of(function, spec((4,)))
    found = graph.read(module)
    counted: dict[str, int] = {}
    blocks = list(found.functions.values())
    while blocks:
        block = blocks.pop()
        for operation in block["o"]:
            name = found.texts[operation[0]].removeprefix("func.")
            counted[name] = counted.get(name, 0) + 1
            blocks += operation[6]
    contents = _native.contents(module)
    expected = {kind.removeprefix("vhlo.").rpartition("_v")[0]: count for kind, count in contents[0].items()}
    for kind in ("return", "func", ""):
        expected.pop(kind, None)
    assert (counted, len(found.functions)) == (expected, contents[0]["vhlo.func_v1"])


def test_places() -> None:
    named = {
        "#loc1": '"g"(#loc3)', "#loc2": "unknown", "#loc3": '"x.py":3:4 to :9', "#loc4": '"s/sin"',
        "#loc5": "callsite(#loc5 at #loc5)", "#loc6": '"h"',
    }  # fmt: skip
    for text, place in (
        ('"jit(f)/a/b/sin"(#loc1)', ("a/b", "x.py:3 in g")),
        ('"jit(f)/jit(main)/sin"(callsite(#loc1 at #loc2))', ("", "x.py:3 in g")),
        ('fused<"meta">[#loc4, #loc1]', ("s", "")),
        ("callsite(#loc5 at #loc5)", ("", "")),
        ('"jit(f)/a/sin"(#loc6)', ("a", "in h")),
        ('"jit(f)/a/sin"(callsite(#loc6 at #loc6))', ("a", "in h")),
        ('"sin:"("jit(f)/a/sin")', ("", "")),
        (r'"\C3\A9\\/sin"', ("é\\", "")),
        ('"say \\22a\\22/sin"', ('say "a"', "")),
        ("unknown", ("", "")),
        ('"jit(f)/vmap()/sin"', ("", "")),
        ('"jit(f)/a/vmap(vmap())/vmap(b)/sin"', ("a/b (vmap)", "")),
        ('"jit(f)/transpose(jvp(vmap(nn.Linear)))/c/sin"', ("nn.Linear (transpose of jvp of vmap)/c", "")),
        ('"jit(f)/transpose(jvp(vmap()))/sin"', ("transpose(jvp())", "")),
        ('"jit(f)/vmap(a/sin"', ("vmap(a", "")),
        ('"jit(f)/mine(a)/vmap(f(x))/sin"', ("mine(a)/vmap(f(x))", "")),
    ):
        assert graph.place_of("#loc", {"#loc": text, **named}) == place


def test_values_are_numbered_and_donations_known() -> None:
    exported = jaxexp.export(jax.jit(lambda x, y: (jnp.sin(x) * y, y), donate_argnums=1))(spec((4,)), spec((4,)))
    found = graph.read(exported.mlir_module_serialized)
    assert found.donated == (False, True)
    (sine, multiply) = found.functions["main"]["o"]
    assert [found.texts[one[0]] for one in (sine, multiply)] == ["sine", "multiply"]
    assert (sine[3], multiply[3], found.functions["main"]["r"]) == ([0], [2, 1], [3, 1])


def test_dimensions_have_their_names() -> None:
    x = jax.ShapeDtypeStruct(jaxexp.symbolic_shape("b, c"), "float32")
    exported = jaxexp.export(jax.jit(lambda x: jnp.concatenate([x, x])), platforms=("cpu", "cuda"))(x)
    texts, functions = (found := graph.read(exported.mlir_module_serialized)).texts, found.functions
    named = {name: [(i, texts[text]) for i, text in block.get("d", ())] for name, block in functions.items()}
    assert named["main"] == [(0, "platform")]
    assert named["_wrapped_jax_export_main"] == [(0, "platform"), (1, "b"), (2, "c")]
    assert "d" not in read(jnp.sin, spec((4,))).functions["main"]


def test_numbers_and_attributes_are_short() -> None:
    def function(x):
        return jnp.where(x > 2.5, x.sum(axis=1, keepdims=True), jnp.arange(12.0).reshape(3, 4) ** 0.1)

    found = read(function, spec((3, 4)))
    more = {(found.texts[operation[0]], found.texts[operation[5]]) for operation in found.functions["main"]["o"]}
    assert ("constant", "2.5") in more
    assert any(kind == "compare" and "comparison_direction = GT" in text for kind, text in more)
    assert any(kind == "reduce" and text == "dimensions = [1]" for kind, text in more)
    assert max(map(len, found.texts)) <= graph.LONGEST


def test_compared() -> None:
    old, new = read(lambda x: jnp.sin(x) + 1, spec((4,))), read(lambda x: jnp.cos(x) + 1, spec((4,)))
    graph.compare(old, new)
    marked = [
        {found.texts[operation[0]] for operation in found.functions["main"]["o"] if operation[7]}
        for found in (old, new)
    ]
    assert marked == [{"sine"}, {"cosine"}]


def test_too_many_values_are_refused(monkeypatch) -> None:
    monkeypatch.setattr(graph, "MOST_VALUES", 10)
    with pytest.raises(DeserializationError, match="at most 10 operands and results to draw"):
        read(lambda x: jnp.sin(jnp.concatenate([x] * 20)), spec((4,)))
    with pytest.raises(DeserializationError):
        graph.read(b"ML\xefR nothing")


BATCH = SignatureType("float32", ("b", "4"))


def symbolic(text: str, dtype: str = "float32") -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(jaxexp.symbolic_shape(text, constraints=["s >= 2"] if "s" in text else []), dtype)


def arguments(found: graph.Graph, name: str) -> list[str]:
    return [found.texts[i] for i in found.functions[name]["a"]]


def results(found: graph.Graph, name: str) -> list[str]:
    block = found.functions[name]
    types = {}
    first = len(block["a"])
    for operation in block["o"]:
        for type_ in operation[4]:
            types[first] = found.texts[type_]
            first += 1
        first += sum(map(values, operation[6]))
    return [types[value] for value in block["r"]]


def values(block) -> int:
    return len(block["a"]) + sum(len(one[4]) + sum(map(values, one[6])) for one in block["o"])


def test_arguments_and_results_of_the_function_and_of_what_it_wraps() -> None:
    def function(w, x):
        x = jax.lax.while_loop(lambda x: x.sum() < 3, lambda x: x + 1, x)  # values inside of blocks are numbered, too
        return w, jnp.concatenate([x, x])

    old = read(function, jnp.ones(4), symbolic("b, 4"))
    wrapped = "_wrapped_jax_export_main"
    assert arguments(old, wrapped)[-2:] == ["float32[4]", "float32[?,4]"]
    found = graph.named(
        old,
        [SignatureType("float32", ("4",)), BATCH],
        [SignatureType("float32", ("4",)), SignatureType("float32", ("2*b", "4"))],
    )
    for name in ("main", wrapped):
        assert arguments(found, name)[-2:] == ["float32[4]", "float32[b,4]"]
    assert results(found, "main") == ["float32[4]", "float32[2*b,4]"]
    assert arguments(old, "main")[-1] == "float32[?,4]", "the old graph stays as it is"
    assert found.texts[: len(old.texts)] == old.texts


def test_what_does_not_fit_is_left() -> None:
    old = read(lambda x: jnp.sin(x), symbolic("b, 4"))
    for dtype, *shape in (("int32", "b", "4"), ("float32", "b", "5"), ("float32", "b"), ("float32", "b", "4", "4")):
        known = SignatureType(dtype, tuple(shape))
        assert arguments(graph.named(old, [known], [known]), "main") == ["float32[?,4]"]
    assert arguments(graph.named(old, [BATCH] * 9, [BATCH] * 9), "main") == ["float32[?,4]"]
    long = graph.named(old, [SignatureType("float32", ("b" * 999, "4"))], [])
    assert max(map(len, long.texts)) <= graph.LONGEST, "names are short"
    empty = graph.Graph(("",), {}, ())
    assert graph.named(empty, [BATCH], []) == empty
    keys = read(lambda keys: keys, jax.eval_shape(lambda: jax.random.split(jax.random.key(0), 3)))
    assert arguments(graph.named(keys, [SignatureType("key<fry>", ("3",))], []), "main") == ["key<fry>[3]"]
    assert arguments(graph.named(keys, [SignatureType("key<fry>", ("4",))], []), "main") == ["uint32[3,2]"]


@pytest.mark.parametrize("others", ["b", "c"])
def test_a_function_of_two_calls_is_named_if_they_are_alike(others: str) -> None:
    texts = ("", "func.call", "f", "float32[?,4]", "sine")
    calls = [[1, 0, 0, [place], [3], 2, [], 0, 0] for place in (0, 1)]
    sine = {"a": [3], "o": [[4, 0, 0, [0], [3], 0, [], 0, 0]], "r": [1]}
    old = graph.Graph(texts, {"main": {"a": [3, 3], "o": calls, "r": [2, 3]}, "f": sine}, ())
    found = graph.named(old, [BATCH, SignatureType("float32", (others, "4"))], [])
    assert arguments(found, "main") == results(found, "main") == ["float32[b,4]", f"float32[{others},4]"]
    assert arguments(found, "f") == results(found, "f") == ["float32[b,4]" if others == "b" else "float32[?,4]"]


def recurrent(w, xs):
    def step(h, x):
        h = jnp.tanh(x @ w["x"] + h @ w["h"])
        return h, h.sum(-1)

    h, ys = jax.lax.scan(step, jnp.zeros((xs.shape[1], 8)), xs)
    return jnp.concatenate([h, h * 2]), xs.reshape(-1, 4), xs[1:], jnp.pad(h, ((0, 0), (1, 2))), jnp.flip(ys, 1)


def convolutional(filters, head, images):
    x = jax.lax.conv_general_dilated(images, filters, (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    return jax.nn.log_softmax(x.reshape(x.shape[0], -1) @ head)


def attention(embedding, tokens):
    x = embedding[tokens]
    places = jnp.arange(x.shape[1])
    scores = jnp.where(places[:, None] >= places, x @ x.transpose(0, 2, 1), -jnp.inf)
    return (x + jax.nn.softmax(scores) @ x) @ embedding.T


MODELS = {
    "recurrent": (recurrent, {"x": jnp.ones((4, 8)), "h": jnp.ones((8, 8))}, symbolic("s, b, 4")),
    "convolutional": (convolutional, jnp.ones((3, 3, 3, 8)), jnp.ones((128, 10)), symbolic("b, 16, 16, 3")),
    "attention": (attention, jnp.ones((16, 8)), symbolic("b, s", "int32")),
}


@pytest.mark.parametrize("name", MODELS)
def test_each_dimension_of_a_model_has_a_name(name: str) -> None:
    """Also of what the functions inside of it make; but for a slice of a sequence, whose limits are computed."""
    function, *args = MODELS[name]
    exported = jaxexp.export(jax.jit(function))(*args)
    types = [
        [SignatureType(str(one.dtype), tuple(map(str, one.shape))) for one in avals]
        for avals in (exported.in_avals, exported.out_avals)
    ]
    found = graph.named(graph.read(bytes(exported.mlir_module_serialized)), *types)
    operations = graph.operations(found.functions.values())
    made = [(found.texts[one[0]], found.texts[type_]) for one in operations for type_ in one[4]]
    assert len(made) > 40
    assert {kind for kind, type_ in made if "?" in type_} <= {"real_dynamic_slice"}
    expected = {"recurrent": "float32[2*b,8]", "convolutional": "float32[b,4,4,8]", "attention": "float32[b,s,s]"}
    assert expected[name] in {type_ for _, type_ in made}


def test_a_function_that_calls_itself_is_named_once() -> None:
    """No module does this, but one that is damaged may say so."""
    texts = ("", "func.call", "main", "f", "float32[?,4]")
    call = [1, 0, 0, [0], [4], 3, [], 0]
    again = [1, 0, 0, [0], [4], 2, [], 0]
    block = {"a": [4], "o": [call], "r": [1]}
    found = graph.named(
        graph.Graph(texts, {"main": block, "f": {"a": [4], "o": [again], "r": [1]}}, ()), [BATCH], [BATCH]
    )
    assert [arguments(found, name) for name in ("main", "f")] == [["float32[b,4]"]] * 2


def test_a_scope_with_another_name_is_no_difference() -> None:
    def named(name, function):
        def inside(x):
            with jax.named_scope("first"):
                x = jnp.sin(x)
            with jax.named_scope(name):
                return function(x)

        return read(inside, spec((4,)))

    old, new = named("second", jnp.sin), named("last", lambda x: jnp.sin(jnp.sin(x)))
    graph.compare(old, new)
    assert [operation[7] for operation in old.functions["main"]["o"]] == [0, 0]
    assert [operation[7] for operation in new.functions["main"]["o"]] == [0, 0, 1]

"""A module taken apart: operations, values, scopes and lines are those of the module."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import pytest

import jaxexp
from jaxexp import DeserializationError, _native
from jaxexp._view import graph, locations
from kit.corpus import spec


def module_of(function, *args) -> bytes:
    return jaxexp.export(jax.jit(function))(*args).mlir_module_serialized


def read(function, *args) -> graph.Graph:
    return graph.read(module_of(function, *args))


def kinds(found: graph.Graph, block: dict) -> list[str]:
    return [found.texts[operation[0]] for operation in block["o"]]


def test_values_are_numbered_in_order() -> None:
    found = read(lambda x, y: (jnp.sin(x) * y, y), spec((4,)), spec((4,)))
    main = found.functions["main"]
    assert kinds(found, main) == ["sine", "multiply"]
    (sine, multiply) = main["o"]
    assert (sine[3], multiply[3], main["r"]) == ([0], [2, 1], [3, 1])
    assert [found.texts[i] for i in (*main["a"], *sine[4])] == ["float32[4]"] * 3


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
    assert contents is not None
    expected = {kind.removeprefix("vhlo.").rpartition("_v")[0]: count for kind, count in contents[0].items()}
    for kind in ("return", "func", ""):
        expected.pop(kind, None)
    assert counted == expected
    assert len(found.functions) == contents[0]["vhlo.func_v1"]


def test_scopes_and_lines() -> None:
    def inner(x):
        return jnp.sin(x)

    def function(x):
        with jax.named_scope("outer"), jax.named_scope("in"):
            y = inner(x)
        return jnp.cos(y)

    found = read(function, spec((4,)))
    sine, cosine = found.functions["main"]["o"]
    assert (found.texts[sine[1]], found.texts[cosine[1]]) == ("outer/in", "")
    line = inner.__code__.co_firstlineno + 1
    assert re.search(rf"test_graph\.py:{line} in .*inner$", found.texts[sine[2]])


@pytest.mark.parametrize(
    ("text", "place"),
    [
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
    ],
)
def test_places(text: str, place: tuple[str, str]) -> None:
    named = {
        "#loc": text,
        "#loc1": '"g"(#loc3)',
        "#loc2": "unknown",
        "#loc3": '"x.py":3:4 to :9',
        "#loc4": '"s/sin"',
        "#loc5": "callsite(#loc5 at #loc5)",
        "#loc6": '"h"',
    }
    assert locations.place_of("#loc", named) == place


def test_donation() -> None:
    exported = jaxexp.export(jax.jit(lambda x, y: x + y, donate_argnums=1))(spec((4,)), spec((4,)))
    assert graph.read(exported.mlir_module_serialized).donated == (False, True)


def test_dimensions_have_their_names() -> None:
    x = jax.ShapeDtypeStruct(jaxexp.symbolic_shape("b, c"), "float32")
    found = graph.read(
        jaxexp.export(jax.jit(lambda x: jnp.concatenate([x, x])), platforms=("cpu", "cuda"))(x).mlir_module_serialized
    )
    named = {
        name: [(i, found.texts[text]) for i, text in block.get("d", ())] for name, block in found.functions.items()
    }
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


def test_too_many_values_are_refused(monkeypatch) -> None:
    monkeypatch.setattr(graph, "MOST_VALUES", 10)
    with pytest.raises(DeserializationError, match="at most 10 operands and results to draw"):
        read(lambda x: jnp.sin(jnp.concatenate([x] * 20)), spec((4,)))


def test_no_module_is_an_error() -> None:
    with pytest.raises(DeserializationError):
        graph.read(b"ML\xefR nothing")

"""Dimensions in the graph have the names that the signature gives them, as far as it is known which is which."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

import jaxexp
from jaxexp._view import dimensions, graph
from jaxexp._view.dimensions import Known
from kit.pages import Page

BATCH = Known("float32", ("b", "4"))


def symbolic(text: str) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(jaxexp.symbolic_shape(text), "float32")


def graph_of(function, *args) -> graph.Graph:
    return graph.read(jaxexp.export(jax.jit(function))(*args).mlir_module_serialized)


def arguments(found: graph.Graph, name: str) -> list[str]:
    return [found.texts[i] for i in found.functions[name]["a"]]


def results(found: graph.Graph, name: str) -> list[str]:
    """The types of what a function returns, each of which is a result of an operation of its own."""
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

    old = graph_of(function, jnp.ones(4), symbolic("b, 4"))
    wrapped = "_wrapped_jax_export_main"
    assert arguments(old, wrapped)[-2:] == ["float32[4]", "float32[?,4]"]
    found = dimensions.named(
        old, [Known("float32", ("4",)), BATCH], [Known("float32", ("4",)), Known("float32", ("2*b", "4"))]
    )
    for name in ("main", wrapped):
        assert arguments(found, name)[-2:] == ["float32[4]", "float32[b,4]"]
    assert results(found, "main") == ["float32[4]", "float32[2*b,4]"]
    assert arguments(old, "main")[-1] == "float32[?,4]", "the old graph stays as it is"
    assert found.texts[: len(old.texts)] == old.texts


def test_functions_that_are_called_twice_keep_their_question_marks() -> None:
    @jax.jit
    def inner(x):
        return jnp.sin(x) * 2

    x = symbolic("b, 4")
    old = graph_of(lambda x, y: (inner(x), inner(y)), x, x)
    found = dimensions.named(old, [BATCH, BATCH], [BATCH, BATCH])
    assert arguments(found, "main") == ["float32[b,4]"] * 2
    (name,) = (name for name in found.functions if name.startswith("inner"))
    assert arguments(found, name)[-1] == "float32[?,4]"


def test_what_does_not_fit_is_left() -> None:
    old = graph_of(lambda x: jnp.sin(x), symbolic("b, 4"))
    for known in (
        Known("int32", ("b", "4")),
        Known("float32", ("b", "5")),
        Known("float32", ("b",)),
        Known("float32", ("b", "4", "4")),
    ):
        assert arguments(dimensions.named(old, [known], [known]), "main") == ["float32[?,4]"]
    assert arguments(dimensions.named(old, [BATCH] * 9, [BATCH] * 9), "main") == ["float32[?,4]"]
    empty = graph.Graph(("",), {}, ())
    assert dimensions.named(empty, [BATCH], []) == empty


def test_keys_stay_keys() -> None:
    keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), 3))
    old = graph_of(lambda keys: (jax.vmap(jax.random.uniform)(keys), keys), keys)
    assert arguments(old, "main") == ["uint32[3,2]"]
    found = dimensions.named(old, [Known("key<fry>", ("3",))], [])
    assert arguments(found, "main") == ["key<fry>[3]"]
    assert arguments(dimensions.named(old, [Known("key<fry>", ("4",))], []), "main") == ["uint32[3,2]"]


def test_names_are_short() -> None:
    found = dimensions.named(graph_of(lambda x: jnp.sin(x), symbolic("b, 4")), [Known("float32", ("b" * 999, "4"))], [])
    assert max(map(len, found.texts)) <= graph.LONGEST


def test_a_function_that_calls_itself_is_named_once() -> None:
    """No module does this, but one that is damaged may say so."""
    texts = ("", "func.call", "main", "f", "float32[?,4]")
    call = [1, 0, 0, [0], [4], 3, [], 0]
    again = [1, 0, 0, [0], [4], 2, [], 0]
    block = {"a": [4], "o": [call], "r": [1]}
    found = dimensions.named(
        graph.Graph(texts, {"main": block, "f": {"a": [4], "o": [again], "r": [1]}}, ()), [BATCH], [BATCH]
    )
    assert [arguments(found, name) for name in ("main", "f")] == [["float32[b,4]"]] * 2


@pytest.mark.parametrize("name", ["main", "_wrapped_jax_export_main"])
def test_on_the_page(pages, name: str) -> None:
    (module,) = Page(pages("batched.jaxexp")).data()["modules"]
    block = dict(module["functions"])[name]
    assert module["texts"][block["a"][-1]] == "float32[batch,64]"
    assert module["texts"][block["o"][-1][4][-1]] == "float32[batch,64]", "the result"

"""`repr`, and cards in notebooks: what they say, that they are short, and that they run nothing."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import jaxexp
from kit.archive_files import make
from kit.corpus import mesh, spec
from kit.pages import HOSTILE_NAME, Page

pytestmark = pytest.mark.jax


def scores(weights, x):
    return x @ weights["w"] + weights["b"]


@pytest.fixture(scope="module")
def exported():
    x = jax.ShapeDtypeStruct(jaxexp.symbolic_shape("batch, 4"), "float32")
    return jaxexp.export(jax.jit(scores))({"w": spec((4, 3)), "b": spec((3,))}, x)


def hostile():
    def plus(tree):
        return {key: value + 1 for key, value in tree.items()}

    plus.__name__ = HOSTILE_NAME
    return jaxexp.export(jax.jit(plus))({HOSTILE_NAME: 1.0})


def is_static(card: str) -> Page:
    page = Page(card)
    assert page.problems == []
    assert {*page.names()} <= {
        "div", "style", "p", "code", "dl", "dt", "dd", "h3", "details", "summary", "span", "figure", "figcaption",
        "svg", "rect", "text", "title", "br", "table", "thead", "tbody", "tr", "th", "td",
    }  # fmt: skip
    for _, attributes in page.elements:
        assert not any(key.startswith("on") or key in ("src", "href", "style") for key in attributes)
    return page


def test_repr_says_types_and_sizes(exported, tmp_path) -> None:
    size = f"{len(exported.mlir_module_serialized) / 1000:.3g} kB"
    types = "float32[3], float32[4,3], float32[batch,4]"
    assert repr(exported) == f"Exported(scores: {types} -> float32[batch,3], module of {size})"
    assert repr(jaxexp.deserialize(exported.serialize())) == repr(exported)
    assert repr(jaxexp.export(jax.jit(lambda: ()))()).startswith("Exported(<lambda>: nothing -> nothing, module of ")
    archive = jaxexp.Archive.open(path := make(tmp_path / "fleet.zip", {"a": exported}))
    assert re.fullmatch(rf"Archive\('{path}': 1 artifact, [\d.]+ kB\)", repr(archive))
    assert repr(archive.glob("*")) == f"Archive('{path}': 1 artifact)"
    assert f"scores({types}) -> float32[batch,3] on cpu, " in repr(archive["a"])


def test_repr_is_short_whatever_the_function_is() -> None:
    def long(*xs):
        return xs

    long.__name__ = "n" * 10_000
    shape = jaxexp.symbolic_shape(", ".join(f"{'d' * 60}{i}" for i in range(8)))
    text = repr(jaxexp.export(jax.jit(long))(*[jax.ShapeDtypeStruct(shape, "float32")] * 6))
    assert "... 2 more" in text
    assert len(text) < 2_000
    assert repr(hostile()).isprintable()


def test_card_of_a_function(exported) -> None:
    for one in (exported, jaxexp.deserialize(exported.serialize(vjp_order=1))):
        page = is_static(one._repr_html_())
        for part in ("scores", "['w']", "float32[batch,4]", "48 bytes", "3 arguments", "1 result", "for 1 device"):
            assert part in page.text, part
    assert "VJPs up to order 1" in page.text
    weights = {"w": np.ones((64, 32), np.float32), "b": np.ones(32, np.float32)}
    bound = jaxexp.export(jax.jit(lambda x: x @ weights["w"] + weights["b"]), weights=weights)(spec((2, 64)))
    page = is_static(bound._repr_html_())
    assert "2 weights" in page.text and "1 argument " in page.text
    many = jaxexp.export(jax.jit(lambda *xs: xs))(*[spec((4,))] * 1000)._repr_html_()
    assert is_static(many).text.count("and 800 more values") == 2
    assert len(many) < 200_000
    assert HOSTILE_NAME.replace("\u202e", "\\u202e") in is_static(hostile()._repr_html_()).text


def test_card_draws_shardings() -> None:
    on = NamedSharding(mesh((4, 2), ("x", "y")), P(("x", "y"), None))
    exported = jaxexp.export(jax.jit(jnp.sin, in_shardings=on, out_shardings=on))(spec((8, 4)))
    page = is_static(exported._repr_html_())
    assert "P(('x', 'y'), None)" in page.text
    assert page.names().count("rect") == 8
    assert is_static(jaxexp.deserialize(exported.serialize())._repr_html_()).elements == page.elements


def test_cards_of_archives(exported, tmp_path) -> None:
    members = dict.fromkeys([*(f"m{i:02}" for i in range(60)), "<script>alert(1)</script>"], exported)
    archive = jaxexp.Archive.open(make(tmp_path / "fleet.zip", members))
    page = is_static(archive._repr_html_())
    assert "and 11 more" in page.text and "m07" in page.text
    page = is_static(archive["m07"]._repr_html_())
    for part in ("m07", "scores", "3 arguments", "float32[batch,4]", "no VJP"):
        assert part in page.text
    assert "<script>alert(1)" in is_static(archive.glob("<*")._repr_html_()).text


def test_nodes_that_cannot_hold_numbers_have_numbered_values() -> None:
    @jax.tree_util.register_pytree_node_class
    class Strict:
        def __init__(self, x) -> None:
            if isinstance(x, int):
                raise TypeError("arrays only")
            self.x = x

        def tree_flatten(self):
            return (self.x,), None

        @classmethod
        def tree_unflatten(cls, _, children):
            return cls(*children)

    exported = jaxexp.export(jax.jit(lambda s: s.x + 1))(Strict(spec((4,))))
    assert "args[0][<flat index 0>]" in is_static(exported._repr_html_()).text

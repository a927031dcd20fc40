"""Nodes of classes that nobody registered: how functions with such trees are written, read and called."""

from __future__ import annotations

import collections
import pickle
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import export as jax_export

import jaxexp
from jaxexp._kernel.codec import binding, library_nodes, treedefs
from kit.compare import assert_same_values
from kit.corpus import arr, spec
from kit.library_nodes import (
    MISSING,
    VALUES,
    Layer,
    Node,
    Pair,
    double,
    replaced_name,
    written,
)

KIT = "kit.library_nodes"


@pytest.mark.parametrize("name", VALUES)
def test_trees_come_back(name: str, way_of_trees: None) -> None:
    value = VALUES[name]
    exported = jaxexp.export(jax.jit(double))(value)
    loaded = jaxexp.deserialize(exported.serialize())
    assert loaded.in_tree == exported.in_tree
    assert loaded.out_tree == exported.out_tree
    for call in (loaded.call, jax.jit(loaded.call)):
        assert jax.tree.structure(call(value)) == jax.tree.structure(value)
        assert_same_values(jax.tree.leaves(call(value)), [2 * leaf for leaf in jax.tree.leaves(value)])
    theirs = jax_export.deserialize(bytearray(exported.serialize()))
    assert theirs.in_tree == exported.in_tree
    assert jax.tree.structure(theirs.call(value)) == jax.tree.structure(value)


def test_both_ways_of_writing_give_the_same_bytes(monkeypatch: Any) -> None:
    blobs = {}
    for known in (True, False):
        with monkeypatch.context() as patch:
            patch.setattr(treedefs, "state_is_known", known)
            binding.bind.cache_clear()
            blobs[known] = [written(value) for value in VALUES.values()]
    binding.bind.cache_clear()
    binding.bind()
    assert blobs[True] == blobs[False]


def test_derivatives_and_other_artifacts_keep_the_trees(tmp_path: Any) -> None:
    value = Pair(arr(2), Layer(arr(2, seed=1), arr(2, seed=2)))
    exported = jaxexp.export(jax.jit(lambda t: jax.tree.map(jnp.sin, t)))(value)
    loaded = jaxexp.deserialize(exported.serialize(vjp_order=1))

    def total(fun: Any) -> Any:
        return lambda value: sum(jnp.sum(leaf) for leaf in jax.tree.leaves(fun(value)))

    found = jax.grad(total(loaded.call))(value)
    assert jax.tree.structure(found) == jax.tree.structure(value)
    assert_same_values(jax.tree.leaves(found), [jnp.cos(leaf) for leaf in jax.tree.leaves(value)])
    batched = jax.vmap(loaded.call)(jax.tree.map(lambda x: jnp.stack([x, x]), value))
    assert type(batched) is Pair

    again = loaded.serialize(vjp_order=1)
    assert again == exported.serialize(vjp_order=1)
    assert pickle.loads(pickle.dumps(loaded)) == loaded
    assert hash(jaxexp.deserialize(again)) == hash(loaded)
    assert type(jaxexp.deserialize(jaxexp.migrate(again)).call(value)) is Pair
    with jaxexp.Archive.create(tmp_path / "archive") as archive:
        archive.add("f", loaded)
    with jaxexp.Archive.open(tmp_path / "archive") as archive:
        assert archive["f"].load().in_tree == exported.in_tree
    (many,) = jaxexp.load_many([bytes(again)])
    assert many.in_tree == exported.in_tree

    symbolic = jaxexp.export(jax.jit(double))(Pair(jax.ShapeDtypeStruct(jaxexp.symbolic_shape("b"), "f4"), arr(1)))
    small = jaxexp.deserialize(symbolic.serialize()).specialize(Pair(arr(3), arr(1)))
    assert type(small.call(Pair(arr(3), arr(1)))) is Pair


def test_a_registration_comes_first() -> None:
    Registered = collections.namedtuple("Registered", "a b")
    before = written(Registered(arr(1), arr(2)))
    jaxexp.register_namedtuple_serialization(Registered, serialized_name="test_library_nodes.Registered")
    after = written(Registered(arr(1), arr(2)))
    assert b"jaxexp.node" in before
    assert b"jaxexp.node" not in after
    assert b"test_library_nodes.Registered" in after
    assert jaxexp.deserialize(after).call(Registered(arr(1), arr(2))).b.shape == (2,)


def test_strict_names_all_types_and_how_to_register_them() -> None:
    Local = collections.namedtuple("Local", "x")
    value = {"a": Pair(arr(1), Local(arr(1))), "b": Node({"x": arr(1)}, 3), "c": Pair(arr(1), None)}
    exported = jaxexp.export(jax.jit(lambda t: (MISSING, t)))(value)
    with pytest.raises(jaxexp.SerializationError) as error:
        exported.serialize(strict=True)
    lines = str(error.value).split("\n  ")
    assert "4 pytree node types" in lines[0]
    start, _, line = lines[1].partition("; ")
    assert start == f"from {__name__} import Local"
    assert line == f"jaxexp.register_namedtuple_serialization(Local, serialized_name='{__name__}.Local')"
    assert lines[2].startswith(f"from {KIT} import Pair; jaxexp.register_namedtuple_serialization(Pair, ")
    assert "register_pytree_node_serialization(Node, " in lines[3]
    assert "auxiliary data is of <class 'tuple'>" in lines[3]
    assert "serialize_auxdata=lambda _: b'', deserialize_auxdata=lambda _: None)" in lines[4]
    with pytest.raises(jaxexp.SerializationError, match="4 pytree node types"):
        exported.save("never", strict=True)
    assert written({"x": arr(1)}, strict=True) == written({"x": arr(1)})
    # The line does what the message says.
    exec(line, {"jaxexp": jaxexp, "Local": Local})
    with pytest.raises(jaxexp.SerializationError, match="3 pytree node types") as error:
        exported.serialize(strict=True)
    assert "Local" not in str(error.value)


@pytest.mark.parametrize("kind", [dict, collections.OrderedDict])
def test_strict_refuses_keys_that_are_not_strings(kind: Any) -> None:
    exported = jaxexp.export(jax.jit(lambda t: t[1]))(kind({1: arr(1)}))
    with pytest.raises(jaxexp.SerializationError, match=r"with strict=True: .* keys that are not strings") as error:
        exported.serialize(strict=True)
    assert isinstance(error.value, TypeError)
    exported.serialize()


def test_a_tuple_with_other_values_than_fields() -> None:
    class Odd(tuple[Any, ...]):
        _fields = ("one", "two")

    with pytest.raises(jaxexp.SerializationError, match=r"Odd.* with 1 values, which is not a namedtuple of as many"):
        library_nodes.describe(Odd, None, 1)  # JAX refuses such a tuple where it asks for keys


def test_old_readers_are_refused() -> None:
    exported = jaxexp.export(jax.jit(double))(Pair(arr(1), arr(1)))
    with pytest.raises(jaxexp.ExportError, match=r"Pair.*0\.10\.2"):
        exported.serialize(compatibility="jax-0.6.2")
    exported.serialize(compatibility="jax-0.10.2")


def test_a_policy_can_refuse_them() -> None:
    blob = written(Pair(arr(1), arr(1)))
    jaxexp.deserialize(blob, policy=jaxexp.Policy())
    with pytest.raises(jaxexp.PolicyError, match=r"unregistered classes: .*\.Pair") as error:
        jaxexp.deserialize(blob, policy=jaxexp.Policy(unregistered_nodes=False))
    assert error.value.field == "unregistered_nodes"
    generic = replaced_name(blob)
    with pytest.raises(jaxexp.PolicyError, match="Nobody"):
        jaxexp.deserialize(generic, policy=jaxexp.Policy(unregistered_nodes=False))
    jaxexp.deserialize(written({"x": arr(1)}), policy=jaxexp.Policy(unregistered_nodes=False))


def test_nobody_is_told_to_register_classes_of_jax() -> None:
    strict = jaxexp.Policy(unregistered_nodes=False)
    decomposed = jaxexp.export(jax.jit(jnp.linalg.qr))(spec((3, 3))).serialize()
    with pytest.raises(jaxexp.PolicyError, match=r"QRResult\. These classes are JAX's own, .* tuples or dicts"):
        jaxexp.deserialize(decomposed, policy=strict)
    with pytest.raises(jaxexp.PolicyError, match="Register the classes, or pass"):
        jaxexp.deserialize(written(Pair(arr(1), arr(1))), policy=strict)
    plain = jaxexp.export(jax.jit(lambda x: tuple(jnp.linalg.qr(x))))(spec((3, 3))).serialize()
    jaxexp.deserialize(plain, policy=strict)

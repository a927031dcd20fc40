"""What is kept of trees that were written: the same bytes as the first time, and nothing that could have changed."""

from __future__ import annotations

import dataclasses
import functools
import gc
import sys
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import pytest
from jax import export as jax_export

import jaxexp
from jaxexp._kernel.codec import binding
from kit import costs


@pytest.fixture(autouse=True)
def nothing_is_kept() -> None:
    binding.bind.cache_clear()
    binding.bind()  # starts with empty caches


def exported(tree: Any) -> jaxexp.Exported:
    return jaxexp.export(jax.jit(lambda tree: jax.tree.map(lambda x: x * 2, tree)))(tree)


def blocks(count: int) -> dict[str, Any]:
    one = np.float32(1)
    return {f"block_{i}": {"w": one, "b": (one, None), "é": [one, {}, {"": one}, ()]} for i in range(count)}


def again(treedef: Any) -> Any:
    """An equal tree that is another object."""
    return jax.tree.structure(jax.tree.unflatten(treedef, [0] * treedef.num_leaves))


def written(function: jaxexp.Exported) -> bytes:
    return bytes(function.serialize())


@pytest.mark.parametrize("tree", [np.float32(1), (), blocks(1), blocks(40), [blocks(2), blocks(3), (blocks(2),)]])
def test_the_second_time_is_as_the_first(tree: Any) -> None:
    function = exported(tree)
    first = written(function)
    equal = dataclasses.replace(function, in_tree=again(function.in_tree), out_tree=again(function.out_tree))
    assert written(function) == written(equal) == first
    loaded = jaxexp.deserialize(first)
    assert written(loaded) == first
    theirs = jax_export.deserialize(bytearray(first))
    assert theirs.in_tree == function.in_tree
    assert theirs.out_tree == function.out_tree


def test_trees_that_differ_only_in_keys_are_told_apart() -> None:
    # JAX's hash of a tree does not say which keys it has; more of them than are compared.
    functions = [exported({f"key_{i}": np.float32(1)}) for i in range(10)]
    for _ in range(2):
        for i, function in enumerate(functions):
            tree = jaxexp.deserialize(written(function)).in_tree
            assert tree == jax.tree.structure((({f"key_{i}": 0},), {}))


def test_keys_that_are_equal_but_not_the_same() -> None:
    one, true = exported({1: np.float32(1)}), exported({True: np.float32(1)})
    for _ in range(2):
        assert "True" in str(jaxexp.deserialize(written(true)).in_tree)
        assert "True" not in str(jaxexp.deserialize(written(one)).in_tree)


def test_registered_functions_are_asked_each_time() -> None:
    said = iter("abc")

    class Node:
        def __init__(self, child: Any) -> None:
            self.child = child

    jax.tree_util.register_pytree_node(Node, lambda n: ((n.child,), None), lambda aux, children: Node(*children))
    jaxexp.register_pytree_node_serialization(
        Node,
        serialized_name="tests.encoded_trees.Node",
        serialize_auxdata=lambda aux: next(said).encode(),
        deserialize_auxdata=lambda data: None,
    )
    function = jaxexp.export(jax.jit(lambda tree: 1))([Node(np.float32(1))])
    assert written(function) != written(function)


@pytest.fixture(params=[True, False], ids=["collector on", "collector off"])
def collector(request: pytest.FixtureRequest) -> Iterator[bool]:
    was_on = gc.isenabled()
    (gc.enable if request.param else gc.disable)()
    yield request.param
    (gc.enable if was_on else gc.disable)()


def test_the_collector_is_as_it_was(collector: bool) -> None:
    function = exported(blocks(3))
    written(function)
    assert gc.isenabled() == collector
    with pytest.raises(jaxexp.SerializationError):
        written(exported({"\ud800": np.float32(1)}))
    assert gc.isenabled() == collector


def test_no_collection_starts_while_a_tree_is_written() -> None:
    function = exported({f"leaf_{i}": (np.float32(1), {}) for i in range(3000)})
    starts: list[str] = []

    def note(phase: str, info: dict[str, int]) -> None:
        starts.extend(["start"] if phase == "start" else [])

    gc.collect()
    gc.callbacks.append(note)
    try:
        written(function)
    finally:
        gc.callbacks.remove(note)
    assert len(starts) <= 1  # Python may start one afterwards


def with_tree(function: jaxexp.Exported, tree: Any) -> jaxexp.Exported:
    """A function of as many arguments as the tree has leaves."""
    count = tree.num_leaves
    return dataclasses.replace(
        function, in_tree=tree, in_avals=function.in_avals[:1] * count, _in_named_shardings=(None,) * count
    )


@pytest.mark.parametrize("leaves", [1000, 30_000, 65_000])
def test_trees_of_any_size_are_kept(leaves: int) -> None:
    tree = jax.tree.structure((({str(i): (0,) for i in range(leaves)},), {}))
    function = with_tree(exported(blocks(1)), tree)
    references = sys.getrefcount(tree)
    first = written(function)
    assert sys.getrefcount(tree) > references
    assert written(function) == first
    loaded = jaxexp.deserialize(first).in_tree
    assert loaded == tree
    assert jaxexp.deserialize(first).in_tree is loaded


@pytest.mark.parametrize(("reads", "most"), [(False, 40_000_000), (True, 60_000_000)], ids=["written", "read, too"])
def test_memory_is_bounded(reads: bool, most: int) -> None:
    """Three times as many trees as there is room for: those of a round take more than this, but not those that stay."""

    def keep(round_: int) -> None:
        for i in range(60):
            tree = jax.tree.structure((({f"{round_}_{i}": [{str(k): 0} for k in range(4000)]},), {}))
            data = written(with_tree(function, tree))
            if reads:
                assert jaxexp.deserialize(data).in_tree == tree

    function = exported(blocks(1))
    grown = [costs.measured(functools.partial(keep, round_))[2] for round_ in range(3)]
    assert grown[2] < most, grown

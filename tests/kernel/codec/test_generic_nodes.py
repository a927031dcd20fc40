"""Generic nodes, which stand in for classes that a process has not."""

from __future__ import annotations

import collections
import copy
import pickle
import re
import sys
import types
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxexp
from jaxexp._kernel.artifact.node import Key, canonical
from kit.compare import assert_same_values
from kit.corpus import arr
from kit.library_nodes import (
    VALUES,
    Node,
    Pair,
    described,
    replaced_name,
    written,
)
from kit.places import ROOT

KIT = "kit.library_nodes"


@pytest.mark.parametrize("name", ["namedtuple", "namedtuple in dict", "dataclass", "node"])
def test_generic_nodes_stand_in(name: str, way_of_trees: None) -> None:
    value = VALUES[name]
    loaded = jaxexp.deserialize(replaced_name(written(value)))
    assert "Nobody" in str(loaded.in_tree)
    args, _ = loaded.in_tree.unflatten(jax.tree.leaves(value))
    for given in (value, *args):
        for call in (loaded.call, jax.jit(loaded.call)):
            result = call(given)
            assert_same_values(jax.tree.leaves(result), [2 * leaf for leaf in jax.tree.leaves(value)])
    assert jax.tree.structure(loaded.call(*args)) == jax.tree.structure(args[0])
    assert loaded.serialize(trailer=False) == replaced_name(written(value))
    assert jaxexp.deserialize(loaded.serialize()) == jaxexp.deserialize(loaded.serialize())
    assert "Nobody" in jaxexp.inspect(loaded.serialize()).in_tree


def generic_pair() -> Any:
    loaded = jaxexp.deserialize(replaced_name(written(Pair(arr(1), arr(2)))))
    return loaded, loaded.in_tree.unflatten([1, "two"])[0][0]


def test_generic_node() -> None:
    _, node = generic_pair()
    assert type(node) is jaxexp.GenericNode
    assert node._class_name.endswith(".Pair")
    assert node._names == ("right", "left")
    assert node._static is None
    assert (node.right, node.left) == (node["right"], node["left"]) == (node[0], node[1]) == tuple(node) == (1, "two")
    assert len(node) == 2
    assert {"right", "left"} <= set(dir(node))
    assert repr(node).endswith(".Pair, right=1, left='two')")
    assert "Nobody" in repr(node)
    assert node == copy.copy(node) == copy.deepcopy(node) == pickle.loads(pickle.dumps(node))
    assert hash(node) == hash(copy.copy(node))
    assert node != jax.tree.map(lambda _: 3, node)
    assert node != Pair(1, "two")
    assert [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(node)] == [".right", ".left"]
    with pytest.raises(AttributeError, match="has no 'middle'; it has right, left"):
        node.middle  # noqa: B018
    with pytest.raises(KeyError, match="has no 'middle'"):
        node["middle"]
    with pytest.raises(IndexError):
        node[2]
    with pytest.raises(AttributeError, match="immutable"):
        node.right = 3
    with pytest.raises(jaxexp.ExportError, match="2 children, not 1"):
        jaxexp.GenericNode(described("a:B"), [1])
    with pytest.raises(jaxexp.ExportError, match="made of what an artifact says"):
        jaxexp.GenericNode(b"{}", [])


def test_arguments_for_generic_nodes() -> None:
    loaded, _ = generic_pair()
    expected = [2 * arr(1), 2 * arr(2)]
    Other = collections.namedtuple("Other", "right left")
    for given in (
        {"left": arr(2), "right": arr(1)},
        collections.OrderedDict(right=arr(1), left=arr(2)),
        Node({"right": arr(1), "left": arr(2)}, "other data"),
        Other(arr(1), arr(2)),
    ):
        assert_same_values(jax.tree.leaves(loaded.call(given)), expected)
        assert_same_values(jax.tree.leaves(jax.jit(loaded.call)(given)), expected)
        loaded.specialize(given)
    assert type(loaded.call(Other(arr(1), arr(2)))) is Other
    assert type(loaded.call({"left": arr(2), "right": arr(1)})) is jaxexp.GenericNode
    for wrong in (
        {"left": arr(2)}, {"left": arr(2), "middle": arr(1)}, (arr(1), arr(2)), arr(1), None, [arr(1), arr(2)],
        collections.OrderedDict(left=arr(2), right=arr(1)), Node({"left": arr(2), "right": arr(1)}, None),
        Pair(arr(1), (arr(2),)),
    ):  # fmt: skip
        with pytest.raises(jaxexp.ExportError, match="another tree structure") as error:
            loaded.call(wrong)
        assert "right, left" in str(error.value) or isinstance(wrong, Pair)


def test_errors_leave_out_what_would_fit() -> None:
    loaded = jaxexp.deserialize(replaced_name(written((Pair(arr(1), arr(2)), {"step": arr(1)}))))
    loaded.call((Pair(arr(1), arr(2)), {"step": arr(1)}))
    with pytest.raises(jaxexp.ExportError, match="another tree structure") as error:
        loaded.call((Pair(arr(1), arr(2)), [arr(1)]))
    (line,) = str(error.value).splitlines()[1:]
    assert "args[0][1]: expected <class 'dict'>, found <class 'list'>" in line
    with pytest.raises(jaxexp.ExportError, match="another tree structure") as error:
        loaded.call((Pair(arr(1), [arr(2)]), {"step": arr(1)}))
    assert str(error.value).splitlines()[1:] == ["  expected one array, found <class 'list'> of 1"]


def test_leaves_are_put_in_order() -> None:
    def fun(tree: Any) -> Any:
        return tree["a"].right - tree["b"].left

    loaded = jaxexp.deserialize(
        replaced_name(written({k: Pair(arr(2, seed=i), arr(2, seed=i + 5)) for i, k in enumerate("ab", 1)}, fun=fun))
    )
    plain = {k: {"right": arr(2, seed=i), "left": arr(2, seed=i + 5)} for i, k in enumerate("ab", 1)}
    assert_same_values(loaded.call(plain), arr(2, seed=1) - arr(2, seed=7))


def test_a_class_that_is_imported_later(monkeypatch: Any) -> None:
    loaded = jaxexp.deserialize(replaced_name(written(arr(2), fun=lambda x: Pair(x, x))))
    assert type(loaded.call(arr(2))) is jaxexp.GenericNode
    name = loaded.call(arr(2))._class_name.rpartition(".")[0]
    module = types.ModuleType(name)
    monkeypatch.setitem(sys.modules, name, module)
    assert type(loaded.call(arr(2))) is jaxexp.GenericNode
    module.Pair = Pair  # type: ignore[attr-defined]
    assert type(loaded.call(arr(2))) is Pair
    assert type(jaxexp.deserialize(loaded.serialize()).out_tree.unflatten([1, 2])) is Pair


def test_functions_in_static_data_are_compared() -> None:
    value = Node({"x": arr(2)}, jnp.sin)
    loaded = jaxexp.deserialize(written(value, fun=lambda node: {"same": node, "none": arr(1)}))
    assert "GenericNode" in str(loaded.in_tree)
    result = loaded.call(value)["same"]
    assert type(result) is Node
    assert result.aux is jnp.sin
    with pytest.raises(
        jaxexp.ExportError, match=r"auxiliary data of .*Node is .*sin.* in export and .*cos.* in the call"
    ):
        loaded.call(Node({"x": arr(2)}, jnp.cos))
    generic = loaded.in_tree.unflatten([arr(2)])[0][0]
    assert "sin" in generic._static
    assert type(loaded.call(generic)["same"]) is jaxexp.GenericNode


def test_its_repr_shows_types_of_arrays() -> None:
    keys = [Key("attribute", "w"), Key("attribute", "rest")]
    node = jaxexp.GenericNode(
        canonical("lib", "Layer", False, keys, ["tuple", *["x" * 30] * 30]),
        [np.zeros((300, 2), np.float32), {"b": [jax.numpy.ones(3)], "n": (np.int32(4),), "s": None}],
    )
    assert "w=float32[300,2], rest={'b': [float32[3]], 'n': (np.int32(4),), 's': None})" in repr(node)
    assert len(repr(node)) < 250
    assert len(node._static or "") > 900


def test_the_example_of_the_documentation(tmp_path: Any, monkeypatch: Any, capsys: Any) -> None:
    page = (ROOT / "docs" / "guide" / "trees.md").read_text()
    (code,) = re.findall(r"<!-- example: trees -->\n```python\n(.*?)```", page, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    exec(code, {"__name__": "__main__"})
    assert capsys.readouterr().out == "<class '__main__.Momentum'> 1\n"
    assert "__main__.Momentum(step=*, mean={'weight': *})" in jaxexp.inspect("train.jaxexp").in_tree
    # Here is no __main__.Momentum, as in another process.
    state = jaxexp.load("train.jaxexp").in_tree.unflatten([0, 1, 2])[0][1]
    assert repr(state) == "GenericNode(__main__.Momentum, step=1, mean={'weight': 2})"
    assert repr(state) == re.findall(r"(GenericNode\(.*\))", page)[0].replace("Array(1, dtype=int32)", "1").replace(
        "float32[3]", "2"
    )


def test_names_of_others_are_escaped() -> None:
    node = jaxexp.GenericNode(described("a:B\x1b]0;x\x07\u202e"), [1, 2])
    for text in (repr(node), str(node), str(jax.tree.structure(node))):
        assert text.isprintable()
        assert "\\x1b" in text

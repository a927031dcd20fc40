"""Trees as people build them: dicts with keys of any kind."""

from __future__ import annotations

import collections
import dataclasses
import enum
import gc
import math
import typing
from typing import Any

import jax
import numpy as np
import pytest
from jax import export as jax_export

import jaxexp
from jaxexp._kernel.codec import binding, classes, treedefs
from kit import wire
from kit.alike import LIBRARIES
from kit.command_line import started
from kit.corpus import arr, f32
from kit.each import each
from kit.layout import CUSTOM, LIST, NONE, function, node, put_together
from kit.library_nodes import VALUES
from kit.trees import check, of, squares

pytestmark = pytest.mark.jax


OrderedDict = collections.OrderedDict


def ordered(*keys: Any) -> OrderedDict[Any, Any]:
    return OrderedDict(of(*keys))


class Name(enum.StrEnum):
    first = "first"


KEYED: dict[str, Any] = {
    "int": of(10, 9, -1),
    "bool": of(True, False),
    "float": of(1.5, -math.inf, 5e-324, 0.1, math.inf),
    "negative zero": of(-0.0),
    "NaN": of(math.nan),
    "large int": of(10**4000, -(2**70), 2**63),
    "bytes": of(b"\xff\0", b"", b"ab"),
    "None": of(None),
    "tuple of tuples": of(((1, (None,)), b"x"), ((0, ()), b"y")),
    "empty tuple": of(()),
    "numbers": of(True, 2.5, 3, -1),
    "string subclass": of((Name.first, 1)),
    "ordered, mixed": ordered("b", 3, None, "a", 1.5, b"a", (1, "x"), False),
    "ordered, alike": ordered(1, "1", b"1", (1,), ("1",), "1.0", 1.5, "None", None),
    "ordered, not ASCII": ordered('é\n"', 1, ("\U0001f600",), ("\ud800",)),
    "in other nodes": {"a": [of(2, 1), (ordered("x", 1), None)], "b": (of("s"), {3: {2: arr(2), 0: (0,)}, 1: []})},
    "same keys twice": [of(2, 1), of(2, 1), ordered(2, 1)],
}


def keys_of(tree: Any) -> Any:
    """Equal trees are not enough: 1, 1.0 and True are equal keys."""
    if isinstance(tree, dict):
        # str subclasses are written as strings, as in the format's own dicts.
        return [(repr(key).replace("<Name.first: 'first'>", "'first'"), keys_of(child)) for key, child in tree.items()]
    return [keys_of(child) for child in tree] if isinstance(tree, (list, tuple)) else None


@each("name", KEYED)
def test_dict_keys(name: str) -> None:
    value = KEYED[name]
    loaded = check(value, jaxexp, jaxexp)
    assert keys_of(loaded.call(value)) == keys_of(jax.tree.map(lambda x: x, value))
    assert jax_export.deserialize(loaded.serialize()).in_tree == loaded.in_tree


@each("reader", LIBRARIES)
def test_dict_keys_of_derivatives(reader: str) -> None:
    check(KEYED["in other nodes"], jaxexp, LIBRARIES[reader], vjp_order=1)


def test_both_ways_of_writing_give_the_same_bytes(monkeypatch) -> None:
    exports = [jaxexp.export(jax.jit(squares))(value) for value in (*KEYED.values(), *VALUES.values())]
    blobs = {}
    for known in (True, False):
        with monkeypatch.context() as patch:
            patch.setattr(treedefs, "state_is_known", known)
            binding.bind.cache_clear()
            blobs[known] = [bytes(exported.serialize()) for exported in exports]
            assert [jaxexp.deserialize(blob).in_tree for blob in blobs[known]] == [e.in_tree for e in exports]
    binding.bind.cache_clear()
    binding.bind()
    assert blobs[True] == blobs[False]


def test_nan_is_one_object() -> None:
    """In Python NaN equals nothing but the very object that it is, so it has to be math.nan."""
    loaded = jaxexp.deserialize(jaxexp.export(jax.jit(squares))(of(math.nan)).serialize())
    assert next(iter(loaded.call(of(math.nan)))) is math.nan
    with pytest.raises(jaxexp.errors.ExportError):
        loaded.call(of(float("nan")))
    with pytest.raises(jaxexp.errors.SerializationError, match="NaN"):
        jaxexp.export(jax.jit(lambda t: 0))(of(float("nan"), float("nan"))).serialize()


def test_string_keys_are_written_as_before() -> None:
    """In the format's own way, which jax.export reads without jaxexp."""
    for value in (of("b", "a"), {}, ordered("b", "a"), OrderedDict()):
        blob = jaxexp.export(jax.jit(squares))(value).serialize()
        assert b"jaxexp." not in blob
        kind = wire.read(blob, "in_tree.children.0.children.0.kind")
        assert kind == (5 if isinstance(value, OrderedDict) else 4)


class Number(enum.IntEnum):
    one = 1


class Point(typing.NamedTuple):
    x: int


@dataclasses.dataclass(frozen=True)
class Frozen:
    x: int


NOT_KEYS = (Number.one, np.float64(1.5), np.int32(3), Frozen(1), Point(1), 1j, frozenset({1}), int, (1, ("a", 2j)))


@each("make", [of, ordered])
@each("key", NOT_KEYS)
def test_keys_that_cannot_be_serialized(key: Any, make: Any) -> None:
    """The error names the key and its type, and is also what jax.export raises, which writes no other keys at all."""
    value = {"outer": [make(key)]}
    for refused in (make(1), value):
        with pytest.raises((TypeError, NotImplementedError)) as theirs:
            jax_export.export(jax.jit(lambda t: 0))(refused).serialize()
    with pytest.raises(jaxexp.errors.SerializationError) as ours:
        jaxexp.export(jax.jit(lambda t: 0))(value).serialize()
    assert isinstance(ours.value, NotImplementedError if isinstance(theirs.value, NotImplementedError) else TypeError)
    text = str(ours.value)
    assert repr(key) in text
    assert str(type(2j if type(key) is tuple else key)) in text
    assert "register_pytree_node_serialization" in text
    assert "\n" not in text


def test_keys_that_are_too_deep() -> None:
    for depth in (64, 65):
        key: Any = 1
        for _ in range(depth):
            key = (key,)
        if depth == 64:
            check(of(key), jaxexp, jaxexp)
    with pytest.raises(jaxexp.errors.SerializationError, match="64 levels"):
        jaxexp.export(jax.jit(lambda t: 0))(of(key)).serialize()


def hostile(auxdata: bytes, name: str = "jaxexp.dict") -> bytes:
    custom = node(CUSTOM, *[node(NONE)] * 2, name=name, auxdata=auxdata)
    return put_together(function(out_tree=node(LIST, node(NONE), custom)))


def encoded(*keys: str, version: str = "1") -> bytes:
    return f'{{"version":{version},"keys":[{",".join(keys)}]}}'.encode()


ONE, TWO = '["int","0x1"]', '["int","0x2"]'
HOSTILE: list[tuple[bytes, str]] = [
    (b"\xff\xfe{", "not dict keys"),
    (b"[1,2]", "not dict keys"),
    (b'{"version":1}', "keys"),
    (b'{"version":1,"keys":"ab"}', "not dict keys"),
    (encoded(ONE, TWO, version="2"), "version 2"),
    (encoded(ONE, TWO, version="[]"), "version"),
    (encoded(ONE, TWO, version='"' + "2" * 5000 + '"'), "version"),
    (encoded(ONE), "shorter|longer"),
    (encoded(ONE, TWO, '["int","0x3"]'), "shorter|longer"),
    (encoded(ONE, '["float","0x1.0000000000000p+0"]'), "equal keys"),
    (encoded('["float","nan"]', '["float","nan"]'), "equal keys"),
    (encoded(TWO, ONE), "ascending"),
    (encoded('["None"]', ONE), "not supported between"),
    (encoded('["list",["int","0x1"]]', TWO), "not dict keys"),
    (encoded(f'["int",["{"x" * 5000}"]]', TWO), "not dict keys"),
    (encoded("[[],[]]", TWO), "not dict keys"),
    (encoded('["int",true]', TWO), "not dict keys"),
    (encoded('["bool","true"]', TWO), "not dict keys"),
    (encoded('["int","0x1","0x1"]', TWO), "not dict keys"),
    (encoded('["int","0xg"]', TWO), "not dict keys"),
    (encoded('["float","one"]', TWO), "not dict keys"),
    (encoded('["bytes","0"]', TWO), "not dict keys"),
    (encoded('["float","0x1p+99999"]', TWO), "not dict keys"),
    (encoded('["int","0x01"]', TWO), "canonical"),
    (encoded(ONE, TWO) + b"\n", "canonical"),
    (encoded(ONE, TWO)[:-1] + b',"more":1}', "canonical"),
    (encoded('["tuple",' * 65 + ONE + "]" * 65, TWO), "levels"),
    (b"[" * 200_000, "not dict keys"),
]


@each("name", ["jaxexp.dict", "jaxexp.OrderedDict"])
@each("auxdata, match", HOSTILE)
def test_hostile_auxdata(name: str, auxdata: bytes, match: str) -> None:
    blob = hostile(auxdata, name)
    if name == "jaxexp.OrderedDict" and match in ("ascending", "not supported between"):
        assert jaxexp.deserialize(blob).out_tree.num_leaves == 0  # an OrderedDict may have its keys in any order
        return
    with pytest.raises(jaxexp.errors.DeserializationError, match=match) as error:
        jaxexp.deserialize(blob)
    assert error.value.path == "out_tree.children[1]"
    assert name in error.value.expected
    assert error.value.__cause__ is not None
    assert len(str(error.value)) < 600


READ_BY_JAX = """
import sys
{first}
assert ("jax" in sys.modules) == ({first!r} == "import jax")
from jax import export

def read():
    try:
        f = export.deserialize(bytearray(open(sys.argv[1], "rb").read()))
    except ValueError as error:
        return "refused" if "jaxexp.dict" in str(error) else error
    return type(f).__module__, f.call({{2: 1.0, 1: 2.0}})

print(read())
{then}
print(read())
"""


@pytest.mark.wide(
    one_in=2, promise="jax.export reads dicts with any keys where jaxexp is imported, before or after JAX"
)
@pytest.mark.parametrize(("first", "then"), [("import jaxexp", "jaxexp.export"), ("import jax", "import jaxexp")])
@pytest.mark.processes(reason="what jax.export reads depends on what is imported, and when")
def test_stock_jax_export_reads_them_where_jaxexp_is_imported(first, then, tmp_path, subprocess_env) -> None:
    """Importing jaxexp loads no JAX; its first name does, and from then on jax.export reads the nodes."""
    jaxexp.export(jax.jit(lambda d: d))({1: f32(0), 2: f32(0)}).save(tmp_path / "f")
    done = started(READ_BY_JAX.format(first=first, then=then), tmp_path / "f", env=subprocess_env())
    read = "('jax._src.export._export', {1: Array(2., dtype=float32), 2: Array(1., dtype=float32)})"
    assert done.stdout.splitlines() == ["refused", read], done.stderr


@each("name", ["jaxexp.dict", "jaxexp.OrderedDict", "jaxexp.node"])
@each("library", LIBRARIES)
def test_names_of_the_nodes_are_taken(name: str, library: str) -> None:
    options = {"serialize_auxdata": str.encode, "deserialize_auxdata": bytes.decode, "from_children": lambda a, c: None}
    with pytest.raises(ValueError, match=name):
        LIBRARIES[library].register_pytree_node_serialization(type("Other", (), {}), serialized_name=name, **options)
    assert classes.is_registered(jaxexp.GenericNode)


def test_defaultdict() -> None:
    """What makes the missing values is a function; `list` is a name that every process has."""
    value = collections.defaultdict(list, of("b", "a"))
    exported = jaxexp.export(jax.jit(squares))(value)
    with pytest.raises(jaxexp.errors.SerializationError, match=r"defaultdict.*register_pytree_node_serialization"):
        exported.serialize(strict=True)
    result = jaxexp.deserialize(exported.serialize()).call(value)
    assert type(result) is collections.defaultdict
    assert result["missing"] == []


@pytest.fixture(autouse=True)
def nothing_is_kept() -> None:
    binding.bind.cache_clear()
    binding.bind()  # starts with empty caches


def made(tree: Any) -> jaxexp.Exported:
    return jaxexp.export(jax.jit(lambda tree: jax.tree.map(lambda x: x * 2, tree)))(tree)


def blocks(count: int) -> dict[str, Any]:
    one = np.float32(1)
    return {f"block_{i}": {"w": one, "b": (one, None), "é": [one, {}, {"": one}, ()]} for i in range(count)}


@each("tree", [np.float32(1), (), blocks(1), blocks(40), [blocks(2), blocks(3), (blocks(2),)]])
def test_the_second_time_is_as_the_first(tree: Any) -> None:
    function = made(tree)
    first = function.serialize()
    other = {
        name: jax.tree.structure(jax.tree.unflatten(tree, [0] * tree.num_leaves))
        for name, tree in (("in_tree", function.in_tree), ("out_tree", function.out_tree))
    }
    assert function.serialize() == dataclasses.replace(function, **other).serialize() == first
    assert jaxexp.deserialize(first).serialize() == first
    theirs = jax_export.deserialize(first)
    assert (theirs.in_tree, theirs.out_tree) == (function.in_tree, function.out_tree)


def test_trees_that_differ_only_in_keys_are_told_apart() -> None:
    # JAX's hash of a tree does not say which keys it has; more of them than are compared. 1 and True are equal.
    functions = {key: made({key: np.float32(1)}) for key in [*(f"key_{i}" for i in range(10)), 2]}
    one, true = made({1: np.float32(1)}), made({True: np.float32(1)})
    for _ in range(2):
        for key, one_key in functions.items():
            assert jaxexp.deserialize(one_key.serialize()).in_tree == jax.tree.structure((({key: 0},), {}))
        assert "True" in str(jaxexp.deserialize(true.serialize()).in_tree)
        assert "True" not in str(jaxexp.deserialize(one.serialize()).in_tree)


def test_registered_functions_are_asked_each_time() -> None:
    said = iter("abc")
    node = type("Node", (tuple,), {})
    jax.tree_util.register_pytree_node(node, lambda n: (tuple(n), None), lambda _, children: node(children))
    jaxexp.register_pytree_node_serialization(
        node,
        serialized_name="tests.encoded_trees.Node",
        serialize_auxdata=lambda _: next(said).encode(),
        deserialize_auxdata=lambda _: None,
    )
    function = jaxexp.export(jax.jit(lambda tree: 1))([node([np.float32(1)])])
    assert function.serialize() != function.serialize()


def test_the_collector_is_as_it_was() -> None:
    function, odd, was_on = made(blocks(300)), made({"\ud800": np.float32(1)}), gc.isenabled()
    starts: list[str] = []
    gc.collect()
    gc.callbacks.append(lambda phase, _: starts.append(phase))
    try:
        function.serialize()
        gc.callbacks.pop()
        assert starts.count("start") <= 1  # Python may start one afterwards
        for switch, is_on in ((gc.enable, True), (gc.disable, False)):
            switch()
            function.serialize()
            with pytest.raises(jaxexp.errors.SerializationError):
                odd.serialize()
            assert gc.isenabled() == is_on
    finally:
        (gc.enable if was_on else gc.disable)()

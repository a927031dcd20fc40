"""Trees as people build them: dicts with keys of any kind."""

from __future__ import annotations

import collections
import dataclasses
import enum
import itertools
import json
import math
import subprocess
import sys
import typing
from typing import Any

import jax
import numpy as np
import pytest
from jax import export as jax_export

import jaxexp
from kit import wire
from kit.compare import assert_same_values
from kit.corpus import arr, f32
from kit.trees import LIBRARIES, check, of, squares

pytestmark = pytest.mark.sampled(one_in=3, reason="many cases go the same way")

each_reader = pytest.mark.parametrize("reader", LIBRARIES)


# --- dicts with other keys than strings -----------------------------------------------------------------------------

OrderedDict = collections.OrderedDict


def ordered(*keys: Any) -> OrderedDict[Any, Any]:
    return OrderedDict(of(*keys))


class Name(enum.StrEnum):
    first = "first"


# JAX flattens a dict in the order of its sorted keys, so these have to compare; those of an OrderedDict don't.
KEYED: dict[str, Any] = {
    "int": of(10, 9, -1),
    "bool": of(True, False),
    "float": of(1.5, -math.inf, 5e-324, 0.1, math.inf),
    "negative zero": of(-0.0),
    "NaN": of(math.nan),
    "large int": of(10**40, -(2**70), 2**63),
    "very large int": of(10**4000),
    "bytes": of(b"\xff\0", b"", b"ab"),
    "None": of(None),
    "tuple": of((1, "b"), (0, "z"), (1, "a")),
    "tuple of tuples": of(((1, (None,)), b"x"), ((0, ()), b"y")),
    "empty tuple": of(()),
    "numbers": of(True, 2.5, 3, -1),
    "string subclass": of((Name.first, 1)),
    "ordered": ordered(3, 1, 2),
    "ordered, mixed": ordered("b", 3, None, "a", 1.5, b"a", (1, "x"), False),
    "ordered, alike": ordered(1, "1", b"1", (1,), ("1",), "1.0", 1.5, "None", None),
    "ordered, not ASCII": ordered("é\n\"", 1, ("\U0001f600",), ("\ud800",)),
    "dict in dict": {2: {1: arr(2), 0: {(): arr(3)}}, 1: {"a": arr(1)}},
    "in other nodes": {"a": [of(2, 1), (ordered("x", 1), None)], "b": (of("s"), {3: (), 1: []})},
    "same keys twice": [of(2, 1), of(2, 1), ordered(2, 1)],
}  # fmt: skip


@each_reader
@pytest.mark.parametrize("name", KEYED)
def test_dict_keys(name: str, reader: str) -> None:
    check(KEYED[name], jaxexp, LIBRARIES[reader])


@pytest.mark.parametrize("name", KEYED)
def test_dict_keys_both_ways_of_writing(name: str, way_of_trees) -> None:
    exported = jaxexp.export(jax.jit(squares))(KEYED[name])
    blob = exported.serialize()
    for library in LIBRARIES.values():
        assert library.deserialize(blob).in_tree == exported.in_tree


def test_both_ways_of_writing_give_the_same_bytes(monkeypatch) -> None:

    from jaxexp._kernel.codec import binding, treedefs

    blobs = {}
    for known in (True, False):
        with monkeypatch.context() as patch:
            patch.setattr(treedefs, "state_is_known", known)
            binding.bind.cache_clear()
            blobs[known] = [bytes(jaxexp.export(jax.jit(squares))(value).serialize()) for value in KEYED.values()]
    binding.bind.cache_clear()
    binding.bind()
    assert blobs[True] == blobs[False]


@pytest.mark.parametrize("name", KEYED)
def test_keys_keep_their_types_and_order(name: str) -> None:
    """Equal trees are not enough: 1, 1.0 and True are equal keys."""

    def keys(tree: Any) -> Any:
        if isinstance(tree, dict):
            # str subclasses are written as strings, as in the format's own dicts.
            return [(repr(key).replace("<Name.first: 'first'>", "'first'"), keys(child)) for key, child in tree.items()]
        return [keys(child) for child in tree] if isinstance(tree, (list, tuple)) else None

    value = KEYED[name]
    loaded = jaxexp.deserialize(jaxexp.export(jax.jit(squares))(value).serialize())
    assert keys(loaded.call(value)) == keys(jax.tree.map(lambda x: x, value))


def test_int_keys_are_in_the_order_of_numbers() -> None:
    value = of(*range(11, -1, -1))
    loaded = check(value, jaxexp, jaxexp)
    assert list(loaded.call(value)) == list(range(12))
    shapes = {key: np.zeros(key, f32) for key in (10, 9, 100)}
    in_avals = jaxexp.deserialize(jaxexp.export(jax.jit(squares))(shapes).serialize()).in_avals
    assert [aval.shape for aval in in_avals] == [(9,), (10,), (100,)]


def test_keys_of_keyword_arguments_trees() -> None:
    exported = jaxexp.export(jax.jit(lambda x, *, k: {0: x[1], 1: k[("a", 1)]}))(of(1), k=of(("a", 1)))
    loaded = jaxexp.deserialize(exported.serialize())
    assert_same_values(loaded.call(of(1), k=of(("a", 1))), {0: arr(2), 1: arr(2)})


def test_a_call_with_other_keys_is_refused() -> None:
    loaded = jaxexp.deserialize(jaxexp.export(jax.jit(squares))(of(1, 2)).serialize())
    for wrong in (of(1, 3), of(1), of("1", "2"), ordered(1, 2), of((1,), (2,))):
        with pytest.raises(jaxexp.ExportError):
            loaded.call(wrong)
    in_order = jaxexp.deserialize(jaxexp.export(jax.jit(squares))(ordered(2, "a")).serialize())
    in_order.call(ordered(2, "a"))
    with pytest.raises(jaxexp.ExportError):
        in_order.call(ordered("a", 2))


def test_nan_is_one_object() -> None:
    """In Python NaN equals nothing but the very object that it is, so it has to be math.nan."""
    loaded = jaxexp.deserialize(jaxexp.export(jax.jit(squares))(of(math.nan)).serialize())
    assert next(iter(loaded.call(of(math.nan)))) is math.nan
    with pytest.raises(jaxexp.ExportError):
        loaded.call(of(float("nan")))


@pytest.mark.parametrize("value", [of("b", "a"), {}, ordered("b", "a"), OrderedDict()], ids=repr)
def test_string_keys_are_written_as_before(value) -> None:
    """In the format's own way, which jax.export reads without jaxexp."""
    blob = jaxexp.export(jax.jit(squares))(value).serialize()
    assert b"jaxexp." not in blob
    kind = wire.read(blob, "in_tree.children.0.children.0.kind")
    assert kind == (5 if isinstance(value, OrderedDict) else 4)


def test_equal_keys_have_one_encoding() -> None:
    values = [of(1, 2, (3, 4.5)[0]), of(3, 2, 1)]
    first, second = (bytes(jaxexp.export(jax.jit(squares))(value).serialize()) for value in values)
    assert first == second
    assert b'{"version":1,"keys":[["int","0x1"],["int","0x2"],["int","0x3"]]}' in first


def test_jax_export_still_refuses_to_write_them() -> None:
    for value in (of(1), ordered(1)):
        with pytest.raises((TypeError, NotImplementedError)):
            jax_export.export(jax.jit(squares))(value).serialize()


class Number(enum.IntEnum):
    one = 1


class Point(typing.NamedTuple):
    x: int


@dataclasses.dataclass(frozen=True)
class Frozen:
    x: int


NOT_KEYS = {
    "enum": Number.one, "numpy scalar": np.float64(1.5), "numpy int": np.int32(3), "dataclass": Frozen(1),
    "namedtuple": Point(1), "complex": 1j, "frozenset": frozenset({1}), "type": int, "part": (1, ("a", 2j)),
}  # fmt: skip


@pytest.mark.parametrize("make", [of, ordered])
@pytest.mark.parametrize("name", NOT_KEYS)
def test_keys_that_cannot_be_serialized(name: str, make) -> None:
    """The error names the key and its type, and is also what jax.export raises."""
    key = NOT_KEYS[name]
    value = {"outer": [make(key)]}
    with pytest.raises(Exception) as theirs:
        jax_export.export(jax.jit(lambda t: 0))(value).serialize()
    with pytest.raises(jaxexp.SerializationError) as ours:
        jaxexp.export(jax.jit(lambda t: 0))(value).serialize()
    assert isinstance(ours.value, NotImplementedError if isinstance(theirs.value, NotImplementedError) else TypeError)
    text = str(ours.value)
    assert repr(key) in text
    assert str(type(2j if name == "part" else key)) in text
    assert "register_pytree_node_serialization" in text
    assert "\n" not in text


def test_two_nan_keys_are_refused() -> None:
    with pytest.raises(jaxexp.SerializationError, match="NaN"):
        jaxexp.export(jax.jit(lambda t: 0))(of(float("nan"), float("nan"))).serialize()


def nested(depth: int) -> Any:
    key: Any = 1
    for _ in range(depth):
        key = (key,)
    return key


def test_keys_that_are_too_deep() -> None:
    check(of(nested(64)), jaxexp, jaxexp)
    with pytest.raises(jaxexp.SerializationError, match="64 levels"):
        jaxexp.export(jax.jit(lambda t: 0))(of(nested(65))).serialize()


def hostile(auxdata: bytes, node: str = "jaxexp.dict", children: int = 2) -> bytes:
    """An artifact whose only argument is [None, a node of this name with this auxiliary data and these children]."""

    class Node(list):
        pass

    jax.tree_util.register_pytree_node(Node, lambda n: (tuple(n), None), lambda _, leaves: Node(leaves))
    name = "x" * len(node)  # replaced below: the name itself is taken
    jaxexp.register_pytree_node_serialization(
        Node,
        serialized_name=f"{name}{id(Node)}",
        serialize_auxdata=lambda _: auxdata,
        deserialize_auxdata=lambda _: None,
    )
    blob = bytearray(jaxexp.export(jax.jit(lambda t: 0))([None, Node([arr(1)] * children)]).serialize(trailer=False))
    at, _ = wire.locate(blob, "in_tree.children.0.children.0.children.1.custom_name")
    blob[at : at + 4 + len(node) + 1] = len(node).to_bytes(4, "little") + node.encode() + b"\0"
    return bytes(blob)


def encoded(*keys: str, version: str = "1") -> bytes:
    return f'{{"version":{version},"keys":[{",".join(keys)}]}}'.encode()


ONE, TWO = '["int","0x1"]', '["int","0x2"]'
HOSTILE: dict[str, tuple[bytes, str]] = {
    "no JSON": (b"\xff\xfe{", "not dict keys"),
    "empty": (b"", "not dict keys"),
    "another JSON": (b"[1,2]", "not dict keys"),
    "no keys": (b'{"version":1}', "keys"),
    "keys are a number": (b'{"version":1,"keys":2}', "not dict keys"),
    "keys are text": (b'{"version":1,"keys":"ab"}', "not dict keys"),
    "later version": (encoded(ONE, TWO, version="2"), "version 2"),
    "version is a list": (encoded(ONE, TWO, version="[]"), "version"),
    "too few": (encoded(ONE), "shorter|longer"),
    "too many": (encoded(ONE, TWO, '["int","0x3"]'), "shorter|longer"),
    "twice": (encoded(ONE, ONE), "equal keys"),
    "equal across types": (encoded(ONE, '["float","0x1.0000000000000p+0"]'), "equal keys"),
    "NaN twice": (encoded('["float","nan"]', '["float","nan"]'), "equal keys"),
    "descending": (encoded(TWO, ONE), "ascending"),
    "do not compare": (encoded('["None"]', ONE), "not supported between"),
    "unknown tag": (encoded('["list",["int","0x1"]]', TWO), "not dict keys"),
    "long value": (encoded(f'["int",["{"x" * 5000}"]]', TWO), "not dict keys"),
    "long version": (encoded(ONE, TWO, version='"' + "2" * 5000 + '"'), "version"),
    "tag of another type": (encoded("[[],[]]", TWO), "not dict keys"),
    "number instead of text": (encoded('["int",1]', TWO), "not dict keys"),
    "bool instead of text": (encoded('["int",true]', TWO), "not dict keys"),
    "text instead of bool": (encoded('["bool","true"]', TWO), "not dict keys"),
    "too many parts": (encoded('["int","0x1","0x1"]', TWO), "not dict keys"),
    "no integer": (encoded('["int","0xg"]', TWO), "not dict keys"),
    "no float": (encoded('["float","one"]', TWO), "not dict keys"),
    "no bytes": (encoded('["bytes","0"]', TWO), "not dict keys"),
    "float too large": (encoded('["float","0x1p+99999"]', TWO), "not dict keys"),
    "not canonical": (encoded('["int","0x01"]', TWO), "canonical"),
    "white space": (encoded(ONE, TWO) + b"\n", "canonical"),
    "more fields": (b'{"version":1,"keys":[' + ONE.encode() + b"," + TWO.encode() + b'],"more":1}', "canonical"),
    "deep tuple": (encoded('["tuple",' * 65 + ONE + "]" * 65, TWO), "levels"),
    "very deep tuple": (encoded('["tuple",' * 900 + ONE + "]" * 900, TWO), "levels"),
    "very deep JSON": (b"[" * 200_000, "not dict keys"),
}


@pytest.mark.parametrize("node", ["jaxexp.dict", "jaxexp.OrderedDict"])
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_auxdata(name: str, node: str) -> None:
    auxdata, match = HOSTILE[name]
    blob = hostile(auxdata, node)
    if node == "jaxexp.OrderedDict" and match in ("ascending", "not supported between"):
        assert jaxexp.deserialize(blob).in_tree.num_leaves == 2  # an OrderedDict may have its keys in any order
        return
    with pytest.raises(jaxexp.DeserializationError, match=match) as error:
        jaxexp.deserialize(blob)
    assert error.value.path == "in_tree.children[0].children[0].children[1]"
    assert node in error.value.expected
    assert error.value.__cause__ is not None
    assert error.value.args == (error.value.path, error.value.expected, error.value.found)
    assert len(str(error.value)) < 600


def test_harmless_auxdata() -> None:
    """What the cases above are damage to."""
    for node in ("jaxexp.dict", "jaxexp.OrderedDict"):
        loaded = jaxexp.deserialize(hostile(encoded(ONE, TWO), node))
        expected = [None, of(1, 2) if node == "jaxexp.dict" else ordered(1, 2)]
        assert loaded.in_tree == jax.tree.structure(((expected,), {}))


def test_path_of_an_unknown_node() -> None:
    with pytest.raises(jaxexp.DeserializationError, match=r"jaxexp\.nobody") as error:
        jaxexp.deserialize(hostile(b"", "jaxexp.nobody"))
    assert error.value.path == "in_tree.children[0].children[0].children[1]"
    assert str(error.value).startswith("cannot read the artifact: at in_tree.children[0].children[0].children[1]: ")


READ_BY_JAX = """
import sys, jax
{imports}
from jax import export
try:
    f = export.deserialize(bytearray(open(sys.argv[1], "rb").read()))
except ValueError as error:
    print("refused", "jaxexp.dict" in str(error))
else:
    print(type(f).__module__, f.call({{2: 1.0, 1: 2.0}}))
"""


@pytest.mark.parametrize(
    ("imports", "expected"),
    [
        ("", "refused True"),
        ("import jaxexp", "jax._src.export._export {1: Array(2., dtype=float32), 2: Array(1., dtype=float32)}"),
    ],
    ids=["without jaxexp", "with jaxexp"],
)
def test_stock_jax_export_reads_them_where_jaxexp_is_imported(tmp_path, subprocess_env, imports, expected) -> None:
    jaxexp.export(jax.jit(lambda d: d))({1: f32(0), 2: f32(0)}).save(tmp_path / "f")
    done = subprocess.run(
        [sys.executable, "-c", READ_BY_JAX.format(imports=imports), tmp_path / "f"],
        env=subprocess_env(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stdout.strip() == expected, done.stderr


def test_jaxexp_imported_before_jax(tmp_path, subprocess_env) -> None:
    """Importing jaxexp loads no JAX; its first name does, and from then on jax.export reads the nodes."""
    jaxexp.export(jax.jit(lambda d: d))({1: f32(0), 2: f32(0)}).save(tmp_path / "f")
    code = READ_BY_JAX.replace("import sys, jax\n", "import sys, jaxexp\nassert 'jax' not in sys.modules\nimport jax\n")
    for imports, expected in (("", "refused"), ("jaxexp.export", "jax._src.export._export")):
        done = subprocess.run(
            [sys.executable, "-c", code.format(imports=imports), tmp_path / "f"],
            env=subprocess_env(), capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.stdout.split()[:1] == [expected], done.stderr


def test_names_of_the_nodes_are_taken() -> None:
    class Other:
        pass

    options = {"serialize_auxdata": str.encode, "deserialize_auxdata": bytes.decode, "from_children": lambda a, c: None}
    for name, library in itertools.product(("jaxexp.dict", "jaxexp.OrderedDict"), LIBRARIES.values()):
        with pytest.raises(ValueError, match=name):
            library.register_pytree_node_serialization(Other, serialized_name=name, **options)


def test_defaultdict_may_be_registered() -> None:
    """What makes the missing values is a function, which only the reader's program can know."""
    value = collections.defaultdict(list, of("b", "a"))
    exported = jaxexp.export(jax.jit(squares))(value)
    with pytest.raises(jaxexp.SerializationError, match=r"defaultdict.*register_pytree_node_serialization"):
        exported.serialize(strict=True)
    result = jaxexp.deserialize(exported.serialize()).call(value)
    assert type(result) is collections.defaultdict  # `list` is a name that every process has
    assert result["missing"] == []
    try:
        jaxexp.register_pytree_node_serialization(
            collections.defaultdict,
            serialized_name="test_pytrees.defaultdict",
            serialize_auxdata=lambda aux: json.dumps([aux[0].__name__, *aux[1]]).encode(),
            deserialize_auxdata=lambda data: ({"list": list}[json.loads(data)[0]], tuple(json.loads(data)[1:])),
        )
        for library in LIBRARIES.values():
            check(value, jaxexp, library)
    finally:
        forget(collections.defaultdict, "test_pytrees.defaultdict")


def forget(nodetype: type, name: str) -> None:
    """Undoes a registration of a type that other tests use as well."""
    from jaxexp._kernel.codec import registry, shared_registry

    del registry.by_type[nodetype], registry.by_name[name]
    for table, key in zip(shared_registry.share(), (nodetype, name), strict=True):
        table.pop(key)
        table.from_jaxexp.pop(key)

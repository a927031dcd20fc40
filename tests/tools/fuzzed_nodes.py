"""Auxiliary data of pytree nodes: what `reader_fuzz.py nodes` makes, and what has to come out."""

from __future__ import annotations

import contextlib
import functools
import json
import random
from typing import Any

import jax

import jaxexp
from kit.layout import CUSTOM, NONE, TUPLE, function, node
from kit.library_nodes import described
from kit.parts import put_together
from tools.fuzzed_texts import TEXTS, check_text

PRIME = 2**61 - 1  # Python's hash of an integer is its remainder
KIT = "kit.library_nodes"
CLASSES = [f"{KIT}:{name}" for name in ("Node", "Node", "Node", "Layer", "Pair", "Config", "Sentinel", "NotThere")]
CLASSES += ["jax.tree_util:Partial", "collections:defaultdict", "jax._src.tree_util:Static", "jax._src.api:VJP"]
CLASSES += ["builtins:dict", "builtins:tuple", "jaxexp:GenericNode", "os:path"]
NAMES = ["jaxexp.dict", "jaxexp.OrderedDict", "collections.OrderedDict", "jaxexp.new", "a.registered.namedtuple"]
INTEGERS = [0, 1, -1, 2**53 - 1, 2**53, -(2**53), PRIME, 2**64, 10**4299, 10**4300 - 1, 10**4300, -(10**4300), 10**9000]
HEXADECIMAL = ["0x0", "-0x1", "0X1", "0x01", "12", "", "0x", "0x1g", " 0x1", "0x1_0", "0x\u0661"]
FLOATS = ["nan", "-nan", "NaN", "inf", "-inf", "Infinity", "0x0.0p+0", "-0x0.0p+0", "0x1.8000000000000p+1", "1.5",
          "0x1p99999"]  # fmt: skip
DTYPES = ["float32", "bfloat16", "int4", "bool", "complex128", "object", "u1", "uint8", "nothing"]
BYTES = ["", "00", "0000c07f", "0000803f0000803f", "0", "00 00", "zz", "ff" * 40]
PLACES = [("jax.numpy", "float32"), ("builtins", "int"), ("os", "system"), (KIT, "Pair"), (KIT, "MISSING"), ("", "")]
ENUMS = [(KIT, "Color", "red"), (KIT, "Flag", "two"), ("re", "RegexFlag", "nothing"), ("os", "environ", "PATH")]
RECORDS = [("namedtuple", "Pair", ["right", "left"]), ("dataclass", "Config", ["sizes", "rate", "color"]),
           ("dataclass", "Settings", ["config", "more"]), ("namedtuple", "NotThere", ["x"])]  # fmt: skip
PIECES = [b"", b"\xff", b"0", b'"', b"[", b"\\ud800", b"NaN", b"1" * 4400]
SPOILED = [None, True, 1.5, [], [[]], ["nothing", 1], {"a": 1}, ["dict", 1], ["int"], "x", 2**70, ["opaque", "f"]]


def integer(source: random.Random) -> Any:
    number = source.choice([*INTEGERS, source.randrange(70) * PRIME, source.randrange(5)])
    return number if abs(number) < 2**53 and source.random() < 0.7 else ["int", hex(number)]


def simple(source: random.Random) -> Any:
    match source.randrange(11):
        case 0:
            return source.choice([None, True, False, ["ellipsis"]])
        case 1:
            return source.choice(TEXTS)
        case 2:
            return ["int", source.choice(HEXADECIMAL)]
        case 3:
            return ["float", source.choice(FLOATS)]
        case 4:
            return ["complex", source.choice(FLOATS), source.choice(FLOATS)]
        case 5:
            return ["bytes", source.choice(BYTES)]
        case 6:
            shape = [source.choice([0, 1, 2, 10**12]) for _ in range(source.randrange(3))]
            return ["array", source.choice(DTYPES), shape, source.choice(BYTES)]
        case 7:
            return ["scalar", source.choice(DTYPES), source.choice(BYTES)]
        case 8:
            return source.choice([["dtype", source.choice(DTYPES)], ["enum", *source.choice(ENUMS)]])
        case 9:
            return [source.choice(["type", "constant"]), *source.choice(PLACES)]
        case _:
            return ["opaque", source.choice(["function", *TEXTS]), source.choice(TEXTS)]


def value(source: random.Random, depth: int = 0) -> Any:
    """In the encoding of auxiliary data, more or less."""
    if source.random() < 0.03:
        return source.choice(SPOILED)
    if depth > 4 or source.random() < 0.4:
        return integer(source) if source.random() < 0.4 else simple(source)
    several = [value(source, depth + 1) for _ in range(source.choice([0, 1, 2, 2, 3, 5]))]
    match source.randrange(7):
        case 0:
            return [source.choice(["tuple", "list"]), *several]
        case 1:
            return [source.choice(["set", "frozenset"]), *several]
        case 2:
            return ["dict", *([key, value(source, depth + 1)] for key in several)]
        case 3:
            return [source.choice(["slice", "range"]), *(integer(source) for _ in range(source.choice([3, 3, 3, 2])))]
        case 4:
            tag, name, fields = source.choice(RECORDS)
            return [tag, KIT, name, fields, *(value(source, depth + 1) for _ in fields)]
        case 5:
            return repeated(source, source.choice([8, 9, 64, 65, 70]))
        case _:
            for _ in range(source.choice([1, 5, 60, 64])):
                several = [source.choice(["tuple", "list", "frozenset"]), *([several] if several else [])]
            return several


def repeated(source: random.Random, count: int) -> Any:
    """Values of a kind, many of which may have one hash."""
    step = source.choice([PRIME, PRIME, 1])
    numbers = [["int", hex(i * step)] for i in range(count)]
    kinds = [lambda n: n, lambda n: ["tuple", 1, n], lambda n: ["frozenset", n], lambda n: ["range", 0, n, 1]]
    values = list(map(source.choice(kinds), numbers))
    return source.choice([["frozenset", *values], ["dict", *([one, None] for one in values)], ["list", *values]])


def key(source: random.Random, number: int) -> Any:
    """Of a child."""
    choices = [f"k{number}", f"k{number}", None, ["item", f"k{number}"], ["item", number * PRIME], source.choice(TEXTS)]
    return source.choice([*choices, ["item", source.choice(TEXTS)], ["item", 10**4299], ["other", 1], 1])


def tagged_key(source: random.Random, number: int) -> Any:
    """Of a dict whose keys are no strings."""
    numbers = [number, number * PRIME, 10**4300 + number]
    choices = [["int", hex(source.choice(numbers))], ["str", f"{number}"], ["float", source.choice(FLOATS)]]
    choices += [["bool", True], ["None"], ["bytes", source.choice(BYTES)], ["str", source.choice(TEXTS)], ["other", 1]]
    return ["tuple", *source.sample(choices, 2)] if source.random() < 0.2 else source.choice(choices)


def data_of_node(source: random.Random, count: int, size: int) -> tuple[str, bytes]:
    """The serialized name of a node with so many children, and its auxiliary data; `size` of it has many values."""
    if source.random() < 0.7:
        data = repeated(source, size) if size else value(source)
        if source.random() < 0.7:  # as kit.library_nodes.Node has it
            data = ["tuple", ["tuple", *(f"k{i}" for i in range(count))], data]
        keys = [f"k{i}" if source.random() < 0.9 else key(source, i) for i in range(count)]
        kind = source.choice(["registered", "registered", "registered", "namedtuple", "other"])
        return "jaxexp.node", described(source.choice(CLASSES), keys, kind, data)
    name = source.choice(NAMES)
    if name.startswith("jaxexp."):
        keys = [tagged_key(source, i) if source.random() < 0.5 else ["int", hex(i)] for i in range(count)]
        return name, json.dumps({"version": 1, "keys": keys}, separators=(",", ":")).encode()
    keys = [source.choice([f"k{i}", f"k{i}", i, i * PRIME, source.choice(TEXTS)]) for i in range(count)]
    return name, json.dumps(keys).encode()


@functools.cache
def module() -> bytes:
    return jaxexp.export(jax.jit(lambda: ()))().mlir_module_serialized


def make(source: random.Random) -> bytes:
    """An artifact whose results are nodes with such data; one in thirty has a lot of it."""
    size = source.choice([1_000, 20_000]) if source.random() < 0.03 else 0
    count = size if size and source.random() < 0.5 else source.choice([0, 1, 1, 2, 3, 66])
    name, data = data_of_node(source, count, size)
    if source.random() < 0.15:
        at = source.randrange(len(data))
        data = data[:at] + source.choice(PIECES) + data[at + 1 :]
    one = node(CUSTOM, *[node(NONE)] * count, name=name, auxdata=data)
    tree = node(TUPLE, *[one] * source.choice([1, 1, 2, 50]))
    return put_together(function(out_tree=tree, mlir_module_serialized=module()))


STRICT = jaxexp.Policy(unregistered_nodes=False)


def look_at(blob: bytes) -> str:
    """Refused with a clear error; or a tree that can be shown, compared, hashed and written again."""
    for policy in (None, STRICT):
        try:
            one = jaxexp.deserialize(blob, policy=policy)
        except jaxexp.errors.PolicyError as error:
            check_text(str(error))
        except jaxexp.errors.DeserializationError as error:
            check_text(str(error))
            if policy is None:
                with contextlib.suppress(jaxexp.errors.DeserializationError):  # it makes nothing of the data
                    check_text(str(jaxexp.inspect(blob)))
                return "refused"
    tree, other = one.out_tree, jaxexp.deserialize(blob).out_tree
    assert tree == other, "trees of one artifact are equal"
    assert hash(tree) == hash(other)
    repr(tree).encode()
    check_text(str(one))
    one._repr_html_().encode()
    try:
        written = bytes(one.serialize())
    except jaxexp.errors.SerializationError as error:  # keys that are all strings are written as JAX does it
        assert "the key of a dict has to be a string of Unicode characters" in str(error), repr(error)
        return "read"
    again = jaxexp.deserialize(written)
    assert again.out_tree == tree, "a tree is what was written of it"
    assert bytes(again.serialize()) == written
    found = jaxexp.inspect(blob)
    check_text(str(found))
    if b"jaxexp.node" in blob:  # a dict with string keys is written as JAX does it
        assert found.out_tree == jaxexp.inspect(written).out_tree
    check_text(str(jaxexp.compatibility(blob)))
    return "read"

"""Artifacts that try to cost more than their bytes: families, each of any size.

Tables, vectors and strings are Python objects, and `parts.put_together` writes each object once, however often it is
used. So an attack shares, repeats and nests at will.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from typing import Any

from . import mlir_bytes
from .layout import (
    CUSTOM,
    DICT,
    NONE,
    TUPLE,
    arguments,
    aval,
    function,
    node,
    of_values,
    repeated,
    table,
    with_cases,
    with_constraints,
    with_weights,
)
from .parts import Copy, Part, put_together

FAMILIES: dict[str, Callable[[int], bytes]] = {}


def family(make: Callable[[int], bytes]) -> Callable[[int], bytes]:
    """Registers a function that makes an artifact of about so many bytes."""
    FAMILIES[make.__name__] = make
    return make


# --- trees and names --------------------------------------------------------------------------------------------------

PRIME = 2**61 - 1  # Python's hash of an integer is its remainder


def _dict(*children: Part, keys: list[str]) -> Part:
    return node(DICT, *children, names=keys)


def _nested(size: int) -> Part:
    names, tree = ["", "\1" * (size // 2)], node(NONE)
    for _ in range(min(900, size // 60)):
        tree = _dict(tree, node(NONE), keys=names)
    return tree


def _shared(size: int) -> Part:
    key, none = ["k" * (size // 2)], node(NONE)
    return node(TUPLE, *[_dict(none, keys=key) for _ in range(size // 50)])


def _custom(name: str, auxdata: bytes, children: int = 1) -> Part:
    return node(CUSTOM, *[node(NONE)] * children, name=name, auxdata=auxdata)


def _often(name: str, auxdata: bytes) -> Part:
    return repeated(_custom(name, auxdata), min(10_000, 16 + (1 << 22) // len(auxdata)))


def _encoded(fields: Any) -> bytes:
    return json.dumps(fields, separators=(",", ":")).encode()


def _keyed(name: str, size: int) -> Part:
    keys = [["int", hex(i * PRIME)] for i in range(size // 40)]
    return _custom(name, _encoded({"version": 1, "keys": keys}), len(keys))


def _described(keys: list[Any], data: Any) -> Part:
    """A node of a class that JAX loads, with one child for each key."""
    fields = {"version": 1, "class": ["jax.tree_util", "Partial"], "kind": "registered", "keys": keys, "data": data}
    return _custom("jaxexp.node", _encoded(fields), len(keys))


_TREES: dict[str, Callable[[int], Part]] = {
    "one_dict_with_a_long_key": lambda n: repeated(_dict(node(NONE), keys=["k" * (n // 2)]), min(30_000, n // 8)),
    "dicts_that_share_a_long_key": _shared,
    "nested_dicts_with_a_long_key": _nested,
    "shared_tuples": lambda n: repeated(node(TUPLE), 64_000 + n // 5),
    "auxiliary_data_of_a_shared_node": lambda n: _often(
        "collections.OrderedDict", b'["' + rb"\u0061" * (n // 8) + b'"]'
    ),
    "ordered_dicts": lambda n: repeated(_custom("collections.OrderedDict", b'["k"]'), 12_000 + n // 24),
    "keys_of_one_hash": lambda n: _keyed("jaxexp.OrderedDict", n),
    "dict_keys_of_one_hash": lambda n: _keyed("jaxexp.dict", n),
    "auxiliary_data_of_one_hash": lambda n: _described(
        [], ["frozenset", *(["tuple", 1, ["int", hex(i * PRIME)]] for i in range(n // 50))]
    ),
    "keys_of_children_of_one_hash": lambda n: _described([["item", i * PRIME] for i in range(n // 50)], None),
    "a_large_integer_in_auxiliary_data": lambda n: repeated(_described([], ["int", hex((1 << 3 * n) - 1)]), 16),
    "a_large_integer_as_key": lambda n: _often(
        "jaxexp.dict", _encoded({"version": 1, "keys": [["int", hex((1 << 2 * n) - 1)]]})
    ),
}


def _with_tree(make: Callable[[int], Part]) -> Callable[[int], bytes]:
    return lambda size: put_together(function(out_tree=make(size)))


FAMILIES |= {name: _with_tree(make) for name, make in _TREES.items()}
FAMILIES |= {
    "shared_leaves": lambda size: of_values([aval("1")], [0] * (size // 13)),
    "values_of_one_high_rank": lambda size: of_values([aval(*["1"] * (size // 16))], [0] * (size // 30)),
    "one_platform_in_many_places": lambda size: put_together(function(platforms=["p" * (size // 2)] * (size // 8))),
}


@family
def platforms_that_differ_at_the_end(size: int) -> bytes:
    count = int(size**0.5) // 2
    return put_together(function(platforms=[f"{'p' * (size // count)}{i:09}" for i in range(count)]))


@family
def one_effect_in_many_places(size: int) -> bytes:
    name = "e" * (size // 2)
    return put_together(function(ordered_effects=[table("Effect", type_name=name) for _ in range(size // 24)]))


# --- meshes, shardings, avals -----------------------------------------------------------------------------------------


def mesh(names: list[Any]) -> Part:
    return table("AbstractMesh", axis_sizes=[1] * len(names), axis_names=names, axis_types=[1] * len(names))


def spec(*axes: str) -> Part:
    """Of one dimension, which is sharded over these."""
    return table("PartitionSpec", partitions=[table("PartitionSpecOneAxis", axes=list(axes))])


def sharded(meshes: list[Part], shardings: list[Part], avals: list[Part], pairs: list[tuple[int, int]]) -> bytes:
    return of_values(
        avals, [one for one, _ in pairs], [1 + other for _, other in pairs],
        unique_abstract_meshes=meshes, unique_named_shardings=shardings,
    )  # fmt: skip


@family
def pairs_of_avals_and_shardings(size: int) -> bytes:
    side, of_x = max(2, int((size // 20) ** 0.5)), spec("x")
    shardings = [table("NamedSharding", spec=of_x, memory_kind=f"m{i}") for i in range(side)]
    avals = [aval(str(i)) for i in range(side)]
    return sharded([mesh(["x"])], shardings, avals, [(i, j) for i in range(side) for j in range(side)])


@family
def shardings_of_many_partitions(size: int) -> bytes:
    long = table("PartitionSpec", partitions=[table("PartitionSpecOneAxis")] * (size // 8))
    shardings = [table("NamedSharding", spec=long) for _ in range(size // 30)]
    return sharded([mesh(["x"])], shardings, [aval(*["1"] * (size // 8))], [(0, 0)])


@family
def specs_of_long_names(size: int) -> bytes:
    names = [f"{'x' * (size // 1000)}{i:03}" for i in range(200)]
    spec_names = [Copy(name.encode()) for name in names]
    partitions = [table("PartitionSpecOneAxis", axes=spec_names)]
    specs = [table("PartitionSpec", partitions=partitions) for _ in range(size // 60)]
    return sharded([mesh(names)], [table("NamedSharding", spec=spec) for spec in specs], [aval("1")], [(0, 0)])


@family
def meshes_of_many_axes(size: int) -> bytes:
    names, ones, of_x = [f"x{i}" for i in range(256)], [1] * 256, spec("x0")
    meshes = [table("AbstractMesh", axis_sizes=ones, axis_names=names, axis_types=ones) for _ in range(size // 60)]
    shardings = [table("NamedSharding", spec=of_x, abstract_mesh_idx=i) for i in range(len(meshes))]
    return sharded(meshes, shardings, [aval("1")], [(0, i) for i in range(len(shardings))])


@family
def values_of_one_large_mesh(size: int) -> bytes:
    names = [f"x{i}" + "n" * (size // 1000) * (i > 0) for i in range(256)]
    return sharded([mesh(names)], [table("NamedSharding", spec=spec("x0"))], [aval("1")], [(0, 0)] * (size // 24))


@family
def avals_that_share_nothing(size: int) -> bytes:
    """As `jax.export` lists them; every tenth is another one."""
    kinds = [("12", "345"), ("12", "346")]
    indices = [i % 10 == 9 for i in range(size // 60)]
    listed = [aval(*(Copy(text.encode()) for text in kinds[index])) for index in indices]
    return of_values([aval(*kind) for kind in kinds], [int(index) for index in indices], in_avals=listed)


def sizes_of_one_hash(count: int) -> list[tuple[int, int]]:
    """Sizes of matrices whose tuples have one hash in Python: the second size undoes what the first one did."""
    mask, prime, multiplier = 2**64 - 1, 2**61 - 1, 14029467366897019727
    found: list[tuple[int, int]] = []
    first = 0
    while len(found) < count:
        first += 1
        state = (2870177450012600261 + first * multiplier) & mask
        state = ((state << 31 | state >> 33) * 11400714785074694791) & mask
        second = (1 - state) * pow(multiplier, -1, 2**64) & mask
        if 0 < second < prime:
            found.append((first, second))
    return found


@family
def shapes_of_one_hash(size: int) -> bytes:
    avals = [aval(*map(str, sizes)) for sizes in sizes_of_one_hash(size // 60)]
    return of_values(avals, list(range(len(avals))))


@family
def sharded_shapes_of_one_hash(size: int) -> bytes:
    avals = [aval(*map(str, sizes)) for sizes in sizes_of_one_hash(size // 60)]
    pairs = [(i, 0) for i in range(len(avals))]
    return sharded([mesh(["x"])], [table("NamedSharding", spec=spec("x"))], avals, pairs)


@family
def avals_of_one_high_rank(size: int) -> bytes:
    shape = ["1"] * 400
    avals = [table("AbstractValue", kind=0, shape=shape, dtype=10, memory_space=1) for _ in range(size // 24)]
    return of_values(avals, list(range(len(avals))))


def _number(number: int) -> bytes:
    encoded = b""
    while number >> 7:
        encoded, number = encoded + bytes([number & 127 | 128]), number >> 7
    return encoded + bytes([number])


def _packed(field: int, numbers: list[int]) -> bytes:
    content = b"".join(map(_number, numbers))
    return _number(field << 3 | 2) + _number(len(content)) + content


@family
def shardings_of_billions_of_devices(size: int) -> bytes:
    """An xla.OpSharding describes the order of its devices by a few numbers."""
    devices = 2**30  # jaxlib takes no more
    orders = [([devices], [0]), ([2**15, 2**15], [1, 0]), ([2] * 30, list(range(30))[::-1])]
    protos = [
        _number(1 << 3) + _number(3) + _packed(3, [devices]) + _packed(9, lengths) + _packed(10, order)
        for lengths, order in orders
    ]
    count = max(3, size // 160)
    shardings = [
        table("Sharding", kind=1, hlo_sharding_proto=Copy(protos[i % len(protos)])) for i in range(count)
    ]  # fmt: skip
    root = function(
        serialization_version=3, nr_devices=devices, in_tree=arguments(count), in_shardings=shardings,
        in_avals=[aval(str(devices)) for _ in range(count)], jax_version=None,
    )  # fmt: skip
    return put_together(root)


# --- symbolic dimensions ----------------------------------------------------------------------------------------------


def _sum_up_to(length: int, term: Callable[[int], str]) -> str:
    terms: list[str] = []
    while sum(map(len, terms)) + 3 * len(terms) < length - 60:
        terms.append(term(len(terms)))
    return " + ".join(terms)


def _of_dimensions(size: int, text: str) -> bytes:
    return of_values([aval(*[Copy(text.encode()) for _ in range(max(1, size // (len(text) + 12)))])], [0])


# Texts of a dimension, which is there as often as it fits.
_DIMENSIONS: dict[str, Callable[[int], str]] = {
    "dimensions_of_powers": lambda n: _sum_up_to(min(n, 16_000), lambda i: f"a^{2 + i % 60}*b^{2 + i // 60}"),
    "dimensions_of_products": lambda n: _sum_up_to(
        min(n, 16_000), lambda i: "*".join(name for k, name in enumerate("abcdefghijklmn") if i + 1 >> k & 1)
    ),
    "dimensions_of_one_variable": lambda n: "b",
    "dimensions_of_nested_maxima": lambda n: functools.reduce(lambda text, i: f"max({text}, {i})", range(2, 62), "a"),
}


def _with_dimensions(make: Callable[[int], str]) -> Callable[[int], bytes]:
    return lambda size: _of_dimensions(size, make(size))


FAMILIES |= {name: _with_dimensions(make) for name, make in _DIMENSIONS.items()}


@family
def avals_of_one_long_dimension(size: int) -> bytes:
    text = "v" * min(size // 2, 16_000)
    avals = [aval(text, str(i)) for i in range((size - len(text)) // 60)]
    return of_values(avals, list(range(len(avals))))


@family
def shapes_of_one_long_dimension(size: int) -> bytes:
    """Avals share a shape, whose dimensions are one text."""
    shape = ["v" * min(size // 2, 16_000)] * min(size // 8, 4_000)
    kinds = [(dtype, space) for dtype in range(2, 22) for space in (1, 2, 3)]
    avals = [
        table("AbstractValue", kind=0, shape=shape, dtype=dtype, memory_space=space) for dtype, space in kinds
    ]  # fmt: skip
    return of_values(avals, list(range(len(avals))))


_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_CONSTRAINTS: dict[str, tuple[str, Callable[[int], list[str]]]] = {
    "constraints_of_products": (
        "a",
        lambda n: ["*".join([f"max({'+'.join(_LETTERS)},0)"] * 12) + " >= 0"] * min(1000, 1 + n // 700),
    ),
    "equalities_in_chains": ("v0", lambda n: _chained(n)),
    "equalities_in_chains_from_the_end": ("v0", lambda n: _chained(n)[::-1]),
    "equalities_of_powers": ("v0", lambda n: [f"v{i} == 9*v{i + 1}^63" for i in range(min(1000, 2 + n // 40))][::-1]),
    "equalities_that_go_in_circles": ("v0*v1*v2", lambda n: _circular(min(900, 2 + n // 40))),
    "equalities_of_operations": (
        f"floordiv({' + '.join(_LETTERS[:10])}, 2)^20",
        lambda n: [f"mod({'+'.join(_LETTERS[:10])}, {i + 2}) == 0" for i in range(min(900, 1 + n // 60))],
    ),
    # None of which changes another.
    "equalities_of_many_operations": (
        "8*floordiv(v0 + 2*w0, 8)",
        lambda n: [f"mod(v{i} + 2*w{i}, 8) == 0" for i in range(min(900, 1 + n // 40))],
    ),
    "inequalities": ("x0", lambda n: [_weighted(i) for i in range(min(1000, 2 + n // 100))]),
    "division_by_sums": (
        "x",
        lambda n: ["floordiv(x^63*y^63, x - a - b - c - d - e) >= mod(x^63, x - a - b)"],
    ),
}


def _chained(size: int) -> list[str]:
    return [f"v{i} == v{i + 1}*v{i + 1} + w{i + 1}" for i in range(min(1000, 2 + size // 40))]


def _circular(count: int) -> list[str]:
    return [f"v{i} == v{(i + 1) % count} + v{(i + 7) % count}" for i in range(count)]


def _weighted(i: int) -> str:
    return "+".join(f"{1 + (i * 7 + j) % 9}*x{j}" for j in range(12)) + f" >= max(x0, {i})"


def _constrained(dimension: str, make: Callable[[int], list[str]]) -> Callable[[int], bytes]:
    return lambda size: with_constraints(make(size), (), dimension)


FAMILIES |= {name: _constrained(*how) for name, how in _CONSTRAINTS.items()}


# --- weights, cases, metadata, modules, VJPs --------------------------------------------------------------------------


def _of_module(module: bytes) -> bytes:
    return put_together(function(mlir_module_serialized=module))


FAMILIES |= {
    "one_file_of_weights_many_times": lambda size: with_weights(size // 4, 1),
    "many_weights": lambda size: with_weights(1, size // 60),
    "one_case_many_times": lambda size: with_cases(size // 8, size // 8),
    "one_large_array_of_cases_many_times": lambda size: with_cases(1, size // 8, size // 2),
    "metadata_of_lists": lambda size: with_constraints((), [("k", "[" + ",".join(["[]"] * (size // 3)) + "]")]),
    "metadata_of_dicts": lambda size: with_constraints((), [("k", "[" + ",".join(['{"":0}'] * (size // 7)) + "]")]),
    "modules_of_small_attributes": lambda size: _of_module(mlir_bytes.many_attributes(size // 3)),
    "modules_of_many_names": lambda size: _of_module(mlir_bytes.many_operations(size)),
    "modules_of_large_dictionaries": lambda size: _of_module(mlir_bytes.large_dictionary(size // 12, size // 6)),
}


def _chain_of_vjps(**fields: Any) -> bytes:
    return put_together(functools.reduce(lambda inner, _: function(vjp=inner, **fields), range(65), None))


@family
def vjps_that_share_trees(size: int) -> bytes:
    shared = repeated(node(DICT, node(NONE), names=["k"]), min(9000, size // 8))
    return _chain_of_vjps(in_tree=node(TUPLE, node(TUPLE, shared), node(DICT)), out_tree=shared)


@family
def vjps_that_share_a_module(size: int) -> bytes:
    return _chain_of_vjps(mlir_module_serialized=Copy(mlir_bytes.large_dictionary(size // 12, size // 6)))

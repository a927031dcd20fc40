"""Artifacts that try to cost more than their bytes: families, each of any size.

Tables, vectors and strings are Python objects, and `parts.put_together` writes each object once, however often it is
used. So an attack shares, repeats and nests at will.
"""

from __future__ import annotations

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


# --- trees ------------------------------------------------------------------------------------------------------------


@family
def one_dict_with_a_long_key(size: int) -> bytes:
    shared = node(DICT, node(NONE), names=["k" * (size // 2)])
    return put_together(function(out_tree=repeated(shared, min(30_000, size // 8))))


@family
def dicts_that_share_a_long_key(size: int) -> bytes:
    key, none = "k" * (size // 2), node(NONE)
    names = [key]
    return put_together(function(out_tree=node(TUPLE, *[node(DICT, none, names=names) for _ in range(size // 50)])))


@family
def nested_dicts_with_a_long_key(size: int) -> bytes:
    names, tree = ["", "\1" * (size // 2)], node(NONE)
    for _ in range(min(900, size // 60)):
        tree = node(DICT, tree, node(NONE), names=names)
    return put_together(function(out_tree=tree))


@family
def shared_tuples(size: int) -> bytes:
    return put_together(function(out_tree=repeated(node(TUPLE), 64_000 + size // 5)))


@family
def shared_leaves(size: int) -> bytes:
    return of_values([aval("1")], [0] * (size // 13))


@family
def auxiliary_data_of_a_shared_node(size: int) -> bytes:
    auxdata = b'["' + rb"\u0061" * (size // 8) + b'"]'
    shared = node(CUSTOM, node(NONE), name="collections.OrderedDict", auxdata=auxdata)
    return put_together(function(out_tree=repeated(shared, min(10_000, 16 + (1 << 22) // len(auxdata)))))


@family
def ordered_dicts(size: int) -> bytes:
    shared = node(CUSTOM, node(NONE), name="collections.OrderedDict", auxdata=b'["k"]')
    return put_together(function(out_tree=repeated(shared, 12_000 + size // 24)))


def _colliding(name: str, size: int) -> bytes:
    prime = 2**61 - 1
    keys = [["int", hex(i * prime)] for i in range(size // 40)]
    auxdata = json.dumps({"version": 1, "keys": keys}, separators=(",", ":")).encode()
    tree = node(CUSTOM, *[node(NONE)] * len(keys), name=name, auxdata=auxdata)
    return put_together(function(out_tree=tree))


@family
def keys_of_one_hash(size: int) -> bytes:
    return _colliding("jaxexp.OrderedDict", size)


@family
def dict_keys_of_one_hash(size: int) -> bytes:
    return _colliding("jaxexp.dict", size)


def _described(keys: list[Any], data: Any) -> Part:
    """A node of a class that JAX loads, with one child for each key."""
    fields = {"version": 1, "class": ["jax.tree_util", "Partial"], "kind": "registered", "keys": keys, "data": data}
    auxdata = json.dumps(fields, separators=(",", ":")).encode()
    return node(CUSTOM, *[node(NONE)] * len(keys), name="jaxexp.node", auxdata=auxdata)


@family
def auxiliary_data_of_one_hash(size: int) -> bytes:
    values = [["tuple", 1, ["int", hex(i * (2**61 - 1))]] for i in range(size // 50)]
    return put_together(function(out_tree=_described([], ["frozenset", *values])))


@family
def keys_of_children_of_one_hash(size: int) -> bytes:
    keys = [["item", i * (2**61 - 1)] for i in range(size // 50)]
    return put_together(function(out_tree=_described(keys, None)))


@family
def a_large_integer_in_auxiliary_data(size: int) -> bytes:
    return put_together(function(out_tree=repeated(_described([], ["int", hex((1 << 3 * size) - 1)]), 16)))


@family
def a_large_integer_as_key(size: int) -> bytes:
    auxdata = json.dumps({"version": 1, "keys": [["int", hex((1 << 2 * size) - 1)]]}, separators=(",", ":")).encode()
    shared = node(CUSTOM, node(NONE), name="jaxexp.dict", auxdata=auxdata)
    return put_together(function(out_tree=repeated(shared, min(10_000, 16 + (1 << 22) // len(auxdata)))))


# --- names ------------------------------------------------------------------------------------------------------------


@family
def one_platform_in_many_places(size: int) -> bytes:
    return put_together(function(platforms=["p" * (size // 2)] * (size // 8)))


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


def sharded(meshes: list[Part], shardings: list[Part], avals: list[Part], pairs: list[tuple[int, int]]) -> bytes:
    return of_values(
        avals, [one for one, _ in pairs], [1 + other for _, other in pairs],
        unique_abstract_meshes=meshes, unique_named_shardings=shardings,
    )  # fmt: skip


@family
def pairs_of_avals_and_shardings(size: int) -> bytes:
    spec = table("PartitionSpec", partitions=[table("PartitionSpecOneAxis", axes=["x"])])
    side = max(2, int((size // 20) ** 0.5))
    shardings = [table("NamedSharding", spec=spec, memory_kind=f"m{i}") for i in range(side)]
    avals = [aval(str(i)) for i in range(side)]
    return sharded([mesh(["x"])], shardings, avals, [(i, j) for i in range(side) for j in range(side)])


@family
def shardings_of_many_partitions(size: int) -> bytes:
    none = table("PartitionSpecOneAxis")
    spec = table("PartitionSpec", partitions=[none] * (size // 8))
    shardings = [table("NamedSharding", spec=spec) for _ in range(size // 30)]
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
    names = [f"x{i}" for i in range(256)]
    sizes, types = [1] * 256, [1] * 256
    meshes = [table("AbstractMesh", axis_sizes=sizes, axis_names=names, axis_types=types) for _ in range(size // 60)]
    spec = table("PartitionSpec", partitions=[table("PartitionSpecOneAxis", axes=["x0"])])
    shardings = [table("NamedSharding", spec=spec, abstract_mesh_idx=i) for i in range(len(meshes))]
    return sharded(meshes, shardings, [aval("1")], [(0, i) for i in range(len(shardings))])


@family
def values_of_one_large_mesh(size: int) -> bytes:
    spec = table("PartitionSpec", partitions=[table("PartitionSpecOneAxis", axes=["x0"])])
    names = [f"x{i}" + "n" * (size // 1000) * (i > 0) for i in range(256)]
    return sharded([mesh(names)], [table("NamedSharding", spec=spec)], [aval("1")], [(0, 0)] * (size // 24))


@family
def values_of_one_high_rank(size: int) -> bytes:
    return of_values([aval(*["1"] * (size // 16))], [0] * (size // 30))


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
    spec = table("PartitionSpec", partitions=[table("PartitionSpecOneAxis", axes=["x"])])
    avals = [aval(*map(str, sizes)) for sizes in sizes_of_one_hash(size // 60)]
    pairs = [(i, 0) for i in range(len(avals))]
    return sharded([mesh(["x"])], [table("NamedSharding", spec=spec)], avals, pairs)


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


@family
def dimensions_of_powers(size: int) -> bytes:
    return _of_dimensions(size, _sum_up_to(min(size, 16_000), lambda i: f"a^{2 + i % 60}*b^{2 + i // 60}"))


@family
def dimensions_of_products(size: int) -> bytes:
    names = [*"abcdefghijklmn"]
    return _of_dimensions(
        size, _sum_up_to(min(size, 16_000), lambda i: "*".join(n for k, n in enumerate(names) if i + 1 >> k & 1))
    )


@family
def dimensions_of_one_variable(size: int) -> bytes:
    return _of_dimensions(size, "b")


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


@family
def dimensions_of_nested_maxima(size: int) -> bytes:
    text = "a"
    for i in range(60):
        text = f"max({text}, {i + 2})"
    return _of_dimensions(size, text)


@family
def constraints_of_products(size: int) -> bytes:
    maximum = f"max({'+'.join('abcdefghijklmnopqrstuvwxyz')},0)"
    return with_constraints(["*".join([maximum] * 12) + " >= 0"] * min(1000, 1 + size // 700), (), "a")


@family
def equalities_in_chains(size: int) -> bytes:
    count = min(1000, 2 + size // 40)
    return with_constraints([f"v{i} == v{i + 1}*v{i + 1} + w{i + 1}" for i in range(count)], (), "v0")


@family
def equalities_in_chains_from_the_end(size: int) -> bytes:
    count = min(1000, 2 + size // 40)
    return with_constraints([f"v{i} == v{i + 1}*v{i + 1} + w{i + 1}" for i in reversed(range(count))], (), "v0")


@family
def equalities_of_powers(size: int) -> bytes:
    count = min(1000, 2 + size // 40)
    return with_constraints([f"v{i} == 9*v{i + 1}^63" for i in reversed(range(count))], (), "v0")


@family
def equalities_that_go_in_circles(size: int) -> bytes:
    count = min(900, 2 + size // 40)
    return with_constraints([f"v{i} == v{(i + 1) % count} + v{(i + 7) % count}" for i in range(count)], (), "v0*v1*v2")


@family
def equalities_of_operations(size: int) -> bytes:
    names = "+".join("abcdefghij")
    constraints = [f"mod({names}, {i + 2}) == 0" for i in range(min(900, 1 + size // 60))]
    return with_constraints(constraints, (), f"floordiv({' + '.join('abcdefghij')}, 2)^20")


@family
def equalities_of_many_operations(size: int) -> bytes:
    """None of which changes another."""
    constraints = [f"mod(v{i} + 2*w{i}, 8) == 0" for i in range(min(900, 1 + size // 40))]
    return with_constraints(constraints, (), "8*floordiv(v0 + 2*w0, 8)")


@family
def inequalities(size: int) -> bytes:
    count = min(1000, 2 + size // 100)
    terms = ["+".join(f"{1 + (i * 7 + j) % 9}*x{j}" for j in range(12)) + f" >= max(x0, {i})" for i in range(count)]
    return with_constraints(terms, (), "x0")


@family
def division_by_sums(size: int) -> bytes:
    return with_constraints(["floordiv(x^63*y^63, x - a - b - c - d - e) >= mod(x^63, x - a - b)"], (), "x")


# --- weights ----------------------------------------------------------------------------------------------------------


@family
def one_file_of_weights_many_times(size: int) -> bytes:
    return with_weights(size // 4, 1)


@family
def many_weights(size: int) -> bytes:
    return with_weights(1, size // 60)


@family
def one_case_many_times(size: int) -> bytes:
    return with_cases(size // 8, size // 8)


@family
def one_large_array_of_cases_many_times(size: int) -> bytes:
    return with_cases(1, size // 8, size // 2)


# --- metadata, modules, VJPs ------------------------------------------------------------------------------------------


@family
def metadata_of_lists(size: int) -> bytes:
    return with_constraints((), [("k", "[" + ",".join(["[]"] * (size // 3)) + "]")])


@family
def metadata_of_dicts(size: int) -> bytes:
    return with_constraints((), [("k", "[" + ",".join(['{"":0}'] * (size // 7)) + "]")])


@family
def modules_of_small_attributes(size: int) -> bytes:
    return put_together(function(mlir_module_serialized=mlir_bytes.many_attributes(size // 3)))


@family
def modules_of_many_names(size: int) -> bytes:
    return put_together(function(mlir_module_serialized=mlir_bytes.many_operations(size)))


@family
def modules_of_large_dictionaries(size: int) -> bytes:
    return put_together(function(mlir_module_serialized=mlir_bytes.large_dictionary(size // 12, size // 6)))


@family
def vjps_that_share_trees(size: int) -> bytes:
    shared = repeated(node(DICT, node(NONE), names=["k"]), min(9000, size // 8))
    tree = node(TUPLE, node(TUPLE, shared), node(DICT))
    inner = None
    for _ in range(65):
        inner = function(in_tree=tree, out_tree=shared, vjp=inner)
    assert inner is not None
    return put_together(inner)


@family
def vjps_that_share_a_module(size: int) -> bytes:
    module = Copy(mlir_bytes.large_dictionary(size // 12, size // 6))
    inner = None
    for _ in range(65):
        inner = function(vjp=inner, mlir_module_serialized=module)
    assert inner is not None
    return put_together(inner)

"""Floors: the least time that any library needs for the work."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
from jax._src.core import Primitive, ShapedArray
from jax._src.tree_util import PyTreeDef
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

from bench.measure import in_a_row


def memcpy(blobs: Sequence[bytes]) -> Callable[[], object]:
    """One copy of each into new memory."""
    return in_a_row([partial(bytearray, memoryview(blob)) for blob in blobs])


def write(path: Path, blob: bytes) -> None:
    """open(2), write(2) and close(2) of a file that does not exist yet."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        rest = memoryview(blob)
        while rest:  # Linux writes 2 GiB at most in one go
            rest = rest[os.write(file, rest) :]
    finally:
        os.close(file)


def digest(blob: memoryview) -> bytes:
    """What jaxexp computes of every byte that it verifies."""
    from jaxexp import _native

    return _native.digest(blob)


class _Distinct:
    """Values by number, equal ones under one number."""

    def __init__(self) -> None:
        self.values: list[Any] = []
        self._numbers: dict[Any, int] = {}

    def number(self, value: Any) -> int:
        if value not in self._numbers:
            self._numbers[value] = len(self.values)
            self.values.append(value)
        return self._numbers[value]


def building(exported: Any) -> Callable[[], object]:
    """Makes the objects of a signature again: meshes, shardings, abstract values, both trees, tuples, and a dict.

    Equal objects are made once. Nothing is parsed: names, sizes, dtypes, symbolic dimensions and the node lists of the
    trees exist already. The objects themselves are not kept here, because JAX would return them again.
    """
    meshes, shardings, avals = _Distinct(), _Distinct(), _Distinct()

    def sharding(named: Any) -> int | None:
        if named is None:
            return None
        mesh = named.mesh
        device = mesh.abstract_device
        number = meshes.number((mesh.axis_sizes, mesh.axis_names, mesh.axis_types, device))
        return shardings.number((number, tuple(named.spec), named.memory_kind))

    def aval(value: Any) -> int:
        own = sharding(value.sharding) if value.sharding.mesh.shape else None
        return avals.number((value.shape, value.dtype, value.weak_type, own, value.memory_space))

    lists = {
        "in_avals": ("avals", [aval(a) for a in exported.in_avals]),
        "out_avals": ("avals", [aval(a) for a in exported.out_avals]),
        "_in_named_shardings": ("shardings", [sharding(s) for s in exported._in_named_shardings]),
        "_out_named_shardings": ("shardings", [sharding(s) for s in exported._out_named_shardings]),
    }
    states = [tree.__getstate__() for tree in (exported.in_tree, exported.out_tree)]
    kept = exported.module_kept_var_idx
    mesh_parts, sharding_parts, aval_parts = meshes.values, shardings.values, avals.values
    none = len(sharding_parts)  # the number of "unspecified"
    numbers = {
        name: (kind, tuple(none if number is None else number for number in found))
        for name, (kind, found) in lists.items()
    }

    def tree(state: Any) -> Any:
        made = PyTreeDef.__new__(PyTreeDef)
        made.__setstate__(state)
        return made

    def build() -> dict[str, Any]:
        made_meshes = [
            AbstractMesh(sizes, names, axis_types=types, abstract_device=device)
            for sizes, names, types, device in mesh_parts
        ]
        made_shardings = [
            NamedSharding(made_meshes[mesh], PartitionSpec(*spec), memory_kind=kind)
            for mesh, spec, kind in sharding_parts
        ]
        made_shardings.append(None)
        made_avals = [
            ShapedArray(
                shape,
                dtype,
                weak_type,
                sharding=None if own is None else made_shardings[own],
                memory_space=space,
            )
            for shape, dtype, weak_type, own, space in aval_parts
        ]
        made = {"avals": made_avals, "shardings": made_shardings}
        fields: dict[str, Any] = {
            name: tuple(map(made[kind].__getitem__, chosen)) for name, (kind, chosen) in numbers.items()
        }
        fields["in_tree"], fields["out_tree"] = map(tree, states)
        fields["module_kept_var_idx"] = tuple(kept)
        return fields

    return build


def same_objects(built: Any, exported: Any) -> bool:
    """Whether `building` made what it should."""
    return all(getattr(exported, name) == value for name, value in built.items())


def lowering(program: Any) -> Callable[[], object]:
    """Tracing and lowering by jit, without any export."""
    return lambda: program.fresh().lower(*program.specs)


_nothing_p = Primitive("nothing")
_nothing_p.multiple_results = True
_nothing_p.def_abstract_eval(lambda *_, avals: avals)


def binding(program: Any, exported: Any) -> Callable[[], object]:
    """Tracing under jit of a function with the same arguments and results that is one primitive of known types."""
    avals = exported.out_avals

    def function(*args: Any) -> Any:
        leaves = jax.tree_util.tree_leaves((args, {}))
        return jax.tree_util.tree_unflatten(exported.out_tree, _nothing_p.bind(*leaves, avals=avals))

    return lambda: jax.jit(lambda *args: function(*args)).trace(*program.specs)


def tracing(program: Any) -> Callable[[], object]:
    """Tracing of the live function under jit."""
    return lambda: jax.jit(lambda *args: program.function(*args)).trace(*program.specs)

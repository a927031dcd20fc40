"""Pytree nodes of classes that nobody registers for serialization, and artifacts with such nodes."""

from __future__ import annotations

import collections
import dataclasses
import enum
import json
import typing
from typing import Any

import jax
import jax.numpy as jnp

import jaxexp
from kit.corpus import arr


class Pair(typing.NamedTuple):
    right: Any
    left: Any


class Color(enum.Enum):
    red = 1


@dataclasses.dataclass(frozen=True)
class Config:
    """How a model is made: what `__init__` of its instances would do is not done when an artifact is read."""

    sizes: tuple[int, ...] = (3,)
    rate: float = 0.5
    color: Color = Color.red

    def __post_init__(self) -> None:
        object.__setattr__(self, "sizes", (*self.sizes, len(self.sizes)))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    config: Config
    more: Any = None


class Flag(enum.Flag):
    one = 1
    two = 2


class Sentinel:
    def __eq__(self, other: object) -> bool:
        raise AssertionError("data of nodes is compared by what an artifact says of it")

    __hash__ = None  # type: ignore[assignment]


jax.tree_util.register_pytree_node(Sentinel, lambda _: ((), None), lambda _, __: MISSING)
MISSING = Sentinel()
PLAIN = object()


@jax.tree_util.register_pytree_with_keys_class
class Node:
    """A node whose children have keys, and whose auxiliary data is anything."""

    def __init__(self, children: Any, aux: Any) -> None:
        self.children, self.aux = children, aux

    def tree_flatten_with_keys(self) -> Any:
        return [(jax.tree_util.GetAttrKey(key), child) for key, child in self.children.items()], (
            tuple(self.children),
            self.aux,
        )

    @classmethod
    def tree_unflatten(cls, aux: Any, children: Any) -> Any:
        keys, aux = aux
        return cls(dict(zip(keys, children, strict=True)), aux)


def double(tree: Any) -> Any:
    return jax.tree.map(lambda x: 2 * x, tree)


def written(*values: Any, fun: Any = double, **how: Any) -> bytes:
    return bytes(jaxexp.export(jax.jit(fun))(*values).serialize(**how))


@dataclasses.dataclass
class Layer:
    weight: Any
    bias: Any
    units: int = dataclasses.field(default=3, metadata={"static": True})


jax.tree_util.register_dataclass(Layer)


VALUES: dict[str, Any] = {
    "namedtuple": Pair(arr(2), arr(3)),
    "namedtuple in dict": {"a": [Pair(arr(2), None), Pair(arr(2), ())], "b": Pair(Pair(arr(1), arr(2)), arr(3))},
    "dataclass": Layer(arr(2), [arr(3)]),
    "node": Node({"b": arr(2), "a": {"x": arr(3)}}, ("data", 1, (2.5, None))),
    "result of JAX": jnp.linalg.eigh(jnp.eye(2)),
    "with other keys": {1: Pair(arr(2), arr(2)), 2: collections.OrderedDict(b=arr(2), a=Layer(arr(1), arr(1)))},
    "empty": Node({}, None),
}


def described(
    name: str, keys: Any = ("right", "left"), kind: str = "namedtuple", data: Any = None, **more: Any
) -> bytes:
    module, qualname = name.split(":")
    fields = {"version": 1, "class": [module, qualname], "kind": kind, "keys": list(keys), "data": data, **more}
    return json.dumps(fields, separators=(",", ":")).encode()


def replaced_name(blob: bytes) -> bytes:
    """The same artifact with classes of a module that nobody has, `Nobody...`."""
    name = "Nobody".ljust(len(__name__), "y")
    return jaxexp_without_trailer(blob).replace(f'["{__name__}"'.encode(), f'["{name}"'.encode())


def jaxexp_without_trailer(blob: bytes) -> bytes:
    return bytes(jaxexp.deserialize(blob).serialize(trailer=False))

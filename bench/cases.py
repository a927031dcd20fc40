"""The cases: functions to export, each with its specs, concrete arguments, and the VJP order it is serialized with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import cycle, islice
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

SHAPES = ((8, 8), (8,), (16, 8), (8, 24), (32,), (8, 4, 2), (64, 8), (8, 16))
PARTITIONS = (("data", "model"), ("data",), ("model",), (None, "data"))


@dataclass(frozen=True)
class Program:
    """One function with what it is exported for and called with."""

    function: Callable[..., Any]
    specs: tuple[Any, ...]
    args: tuple[Any, ...]

    def fresh(self) -> Any:
        """A jitted function that JAX has never traced: no cache of an earlier export serves it."""
        return jax.jit(lambda *args: self.function(*args))


@dataclass(frozen=True)
class Case:
    name: str
    build: Callable[[], Program]
    vjp_order: int = 0
    quick: bool = field(default=False, kw_only=True)  # part of `make bench QUICK=1`


def _like(x: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding if len(x.devices()) > 1 else None)


def _concrete(function: Callable[..., Any], *args: Any) -> Program:
    return Program(function, jax.tree.map(_like, args), args)


def _decay(tree: Any) -> Any:
    return jax.tree.map(lambda p: p * 0.9, tree)


def _tiny() -> Program:
    return _concrete(jnp.sin, jnp.arange(3.0))


def _parameters(count: int, shardings: tuple[NamedSharding, ...] = ()) -> Program:
    """`count` arrays of eight shapes in nested dicts, named as in a transformer, and as many results."""
    parts = [("attention", name) for name in ("query", "key", "value", "out")]
    parts += [("mlp", name) for name in ("up", "down", "bias", "scale")]
    params: dict[str, dict[str, dict[str, jax.Array]]] = {}
    for i, (shape, (part, name)) in enumerate(islice(cycle(zip(SHAPES, parts, strict=True)), count)):
        value = jnp.full(shape, i + 1.0)
        if shardings:
            fits = [s for s in shardings if len(s.spec) <= len(shape)]
            value = jax.device_put(value, fits[i % len(fits)])
        params.setdefault(f"block_{i // len(parts):04}", {}).setdefault(part, {})[name] = value
    return _concrete(_decay, params)


def _sharded(count: int) -> Program:
    mesh = Mesh(np.array(jax.devices()[:8]).reshape(4, 2), ("data", "model"))
    return _parameters(count, tuple(NamedSharding(mesh, PartitionSpec(*axes)) for axes in ((), *PARTITIONS)))


def _deep(levels: int) -> Program:
    """A dict, a tuple and a list in turn, one within the other, with an array on each level."""
    tree: Any = jnp.ones(4)
    for level in range(levels):
        leaf = jnp.full(4, level + 1.0)
        tree = ({"below": tree, "here": leaf}, (tree, leaf), [leaf, tree])[level % 3]
    return _concrete(_decay, tree)


def _network() -> Program:
    """The loss of a small network, for VJPs."""

    def loss(params: list[tuple[jax.Array, jax.Array]], x: jax.Array) -> jax.Array:
        for w, b in params:
            x = jnp.tanh(x @ w + b)
        return jnp.sum(x**2)

    rng = np.random.default_rng(0)
    params = [(jnp.asarray(rng.standard_normal((16, 16), np.float32)), jnp.zeros(16)) for _ in range(6)]
    return _concrete(loss, params, jnp.asarray(rng.standard_normal((8, 16), np.float32)))


def _constant(mebibytes: int) -> Program:
    # Random, so that it cannot be folded into a splat.
    constant = np.random.default_rng(0).standard_normal((mebibytes, 2**18), np.float32)
    return _concrete(lambda row: jnp.asarray(constant)[row], jnp.asarray(mebibytes // 2))


def _symbolic() -> Program:
    """50 arguments whose shapes are expressions over five dimension variables."""
    shapes = [f"{a}, {b} + {i % 3}, {c}*{a}" for i, (a, b, c) in enumerate(islice(cycle(_triples("abcde")), 50))]
    scope = jax.export.SymbolicScope()
    specs = jax.export.symbolic_args_specs([np.zeros((0, 0, 0), np.float32)] * 50, shapes, scope=scope)
    sizes = {name: n for n, name in enumerate("abcde", start=2)}
    # The shapes are this file's own text.
    args = [jnp.ones(eval(shape, {}, sizes)) for shape in shapes]
    return Program(lambda *xs: [x * 2.0 for x in xs], tuple(specs), tuple(args))


def _triples(names: str) -> list[tuple[str, str, str]]:
    return [(names[i], names[(i + 1) % 5], names[(i + 2) % 5]) for i in range(len(names))]


CASES = (
    Case("tiny", _tiny, quick=True),
    Case("20 parameters", lambda: _parameters(20), quick=True),
    Case("200 parameters", lambda: _parameters(200), quick=True),
    Case("2000 parameters", lambda: _parameters(2000)),
    Case("2000 sharded", lambda: _sharded(2000)),
    Case("deep tree", lambda: _deep(200), quick=True),
    Case("VJP order 1", _network, 1),
    Case("VJP order 2", _network, 2, quick=True),
    Case("64 MiB constant", lambda: _constant(64)),
    Case("50 symbolic", _symbolic),
)

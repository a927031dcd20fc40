"""The cases: functions to export, each with its specs and concrete arguments, and what the questions ask of a case."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from functools import partial
from itertools import cycle, islice
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from bench.batches import BATCHES, long
from bench.chain import chain, total
from bench.fleet import fleet
from bench.members import members
from bench.models import MODELS, SERVED
from bench.program import Program
from bench.recorded import recorded

SHAPES = ((8, 8), (8,), (16, 8), (8, 24), (32,), (8, 4, 2), (64, 8), (8, 16))
PARTITIONS = (("data", "model"), ("data",), ("model",), (None, "data"))


@dataclass(frozen=True)
class Case:
    """`family` groups cases that differ in one number; `size` is that number."""

    name: str
    build: Callable[[], Program]
    _: KW_ONLY
    family: str = ""
    size: int = 0
    vjp_order: int = 0
    quick: bool = False  # part of `make bench QUICK=1`
    runnable: bool = True  # XLA compiles it within seconds
    large: bool = False  # its memory is worth measuring
    memory: int = 0  # how many GiB a machine needs for it


def _like(x: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding if len(x.devices()) > 1 else None)


def _concrete(function: Callable[..., Any], *args: Any) -> Program:
    return Program(function, jax.tree.map(_like, args), args)


def _full(shape: tuple[int, ...], value: float) -> jax.Array:
    # jnp.full would compile a function for each shape.
    return jnp.asarray(np.full(shape, value, np.float32))


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


def _distinct(count: int) -> Program:
    """`count` arrays, no two of the same shape."""
    return _concrete(_decay, {f"p{i:04}": _full((1 + i % 50, 1 + i // 50), i + 1.0) for i in range(count)})


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


def _symbolic(count: int) -> Program:
    """Arguments whose shapes are expressions over five dimension variables."""
    shapes = [f"{a}, {b} + {i % 3}, {c}*{a}" for i, (a, b, c) in enumerate(islice(cycle(_triples("abcde")), count))]
    scope = jax.export.SymbolicScope()
    specs = jax.export.symbolic_args_specs([np.zeros((0, 0, 0), np.float32)] * count, shapes, scope=scope)
    sizes = {name: n for n, name in enumerate("abcde", start=2)}
    # The shapes are this file's own text.
    args = [jnp.ones(eval(shape, {}, sizes)) for shape in shapes]
    return Program(lambda *xs: [x * 2.0 for x in xs], tuple(specs), tuple(args))


def _sizes(count: int) -> Program:
    """As many arguments of one size each, and 30 constraints on these sizes."""
    names = [f"d{i}" for i in range(count)]
    kinds = ("{0} >= 2", "{0} <= 64", "{0} + {1} >= 5")
    constraints = [kinds[i // count].format(names[i % count], names[(i + 1) % count]) for i in range(30)]
    scope = jax.export.SymbolicScope(constraints)
    specs = jax.export.symbolic_args_specs([np.zeros(0, np.float32)] * count, names, scope=scope)
    return Program(lambda *xs: [x * 2.0 for x in xs], tuple(specs), tuple(jnp.ones(3 + i % 8) for i in range(count)))


def _leaves(count: int) -> Program:
    """As many arrays in its trees: a quarter are arguments, which are not made, since artifacts have at most 65,536."""
    params: dict[str, dict[str, jax.ShapeDtypeStruct]] = {}
    for i, shape in enumerate(islice(cycle(SHAPES), count // 4)):
        params.setdefault(f"block_{i // 8:05}", {})[f"part_{i % 8}"] = jax.ShapeDtypeStruct(shape, jnp.float32)
    return Program(lambda params: [_decay(params)] * 3, (params,), ())


def _with_vjps(count: int) -> Program:
    """As many small functions, no two with the same signature."""
    members = tuple(_concrete(jnp.sin, jnp.ones((1 + i % 40, 1 + i // 40))) for i in range(count))
    return dataclasses.replace(members[0], members=members)


def _triples(names: str) -> list[tuple[str, str, str]]:
    return [(names[i], names[(i + 1) % 5], names[(i + 2) % 5]) for i in range(len(names))]


def _model(name: str) -> Program:
    function, arguments = MODELS[name]
    return _concrete(function, *arguments())


def _served(name: str) -> Program:
    """A model whose weights are in the artifact."""
    function, arguments = SERVED[name]
    weights, x = arguments()
    return _concrete(lambda x: function(weights, x), x)


def _many(count: int) -> Program:
    """`count` small functions, no two with the same signature."""

    def member(index: int) -> Program:
        scale = 1.0 + index
        params = {f"p{i}": _full((1 + index // 5,), scale) for i in range(1 + index % 5)}
        return _concrete(lambda tree: jax.tree.map(lambda p: p * scale, tree), params)

    members = tuple(map(member, range(count)))
    return dataclasses.replace(members[0], members=members)


def _batch(name: str, size: int) -> Case:
    """A batch of one function."""
    function, arguments, _ = BATCHES[name]
    return Case(
        f"{name}, {size}",
        lambda: _concrete(function, *arguments()),
        family="batch",
        size=size,
        vjp_order=int(name.startswith("gradients")),
        quick=name == "solve",
    )


def _of_weights(mebibytes: int) -> dict[str, Any]:
    return {"size": mebibytes, "runnable": False, "large": True}


CASES = (
    Case("tiny", _tiny, quick=True),
    Case("200 parameters", lambda: _parameters(200), family="parameters", size=200, quick=True),
    Case("2,000 parameters", lambda: _parameters(2000), family="parameters", size=2000),
    Case("20 sharded", lambda: _sharded(20), family="sharded", size=20, quick=True),
    Case("2,000 sharded", lambda: _sharded(2000), family="sharded", size=2000),
    Case("2,000 distinct shapes", lambda: _distinct(2000), family="distinct", size=2000, runnable=False),
    Case("50 symbolic", lambda: _symbolic(50)),
    Case("deep tree", lambda: _deep(200)),
    Case("VJP order 1", _network, family="VJP", vjp_order=1, quick=True),
    Case("VJP order 3", _network, family="VJP", vjp_order=3),
    Case("1 MiB constant", lambda: _constant(1), family="constant", size=1, quick=True),
    Case("512 MiB constant", lambda: _constant(512), family="constant", size=512, runnable=False, large=True),
    Case("tiny model", lambda: _model("tiny"), family="model"),
    Case("convnet", lambda: _model("convnet"), family="model"),
    Case("transformer", lambda: _model("transformer"), family="model"),
    Case("train step", lambda: _model("train_step"), family="model"),
    *(Case(f"served {name}", partial(_served, name), family="served") for name in SERVED),
    *(_batch(name, 16) for name in BATCHES),
    Case("5,000 operations", lambda: _concrete(long, jnp.arange(8.0)), family="module", size=5000),
    Case("1,000 artifacts", lambda: _many(1000), family="many", size=1000),
    Case("2 small weights", lambda: chain(2, 64), family="weights", size=1, vjp_order=1, quick=True),
    Case("64 MiB of weights", lambda: chain(1), family="weights", **_of_weights(64)),
    Case("512 MiB of weights", lambda: chain(8), family="weights", **_of_weights(512)),
    Case("512 MiB, VJP order 1", lambda: chain(8), family="weights", **_of_weights(512), vjp_order=1),
    Case("4 GiB of weights", lambda: chain(64), family="weights", **_of_weights(4096), memory=20),
    Case("3 GiB in little memory", lambda: chain(1, 64), family="limited weights", size=3072, memory=7),
    Case("40 weights", lambda: chain(40, 256), family="calls with weights", size=40),
    Case("400 weights", lambda: total(400), family="calls with weights", size=400),
    Case("100 versions", lambda: fleet(10, 10), family="fleet", size=100, quick=True),
    Case("100 distinct", lambda: fleet(100, 1), family="fleet", size=100, quick=True),
    Case("10,000 versions", lambda: fleet(200, 50), family="fleet", size=10_000),
    Case("10,000 distinct", lambda: fleet(10_000, 1), family="fleet", size=10_000),
    *(Case(f"{n} sizes", partial(_sizes, n), family="sizes", size=n, quick=n == 10) for n in (10, 30, 100)),
    *(Case(f"{n:,} leaves", partial(_leaves, n), family="leaves", size=n) for n in (2_000, 20_000, 200_000)),
    *(
        Case(f"{n:,} with VJPs", partial(_with_vjps, n), family="functions with VJPs", size=n, vjp_order=1)
        for n in (10, 100, 1_000)
    ),
    Case("2 recorded", lambda: recorded(2), family="recorded", size=2, quick=True),
    Case("200 recorded", lambda: recorded(200), family="recorded", size=200),
    *(
        Case(f"{count:,} members", partial(members, count), family="archive", size=count, quick=count == 1000)
        for count in (1_000, 10_000, 100_000, 1_000_000)
    ),
)


def built(name: str) -> Program:
    """The program of a case, in a process that was only told its name."""
    (case,) = (case for case in CASES if case.name == name)
    return case.build()

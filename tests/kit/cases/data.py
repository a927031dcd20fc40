"""Cases of arguments and results: shapes, trees, dtypes."""

from __future__ import annotations

import collections
import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes  # noqa: F401  (gives numpy the names of the small dtypes)
import numpy as np
from jax import export as jax_export

from .case import Program, arr, case, f32, plain, spec

plain("sin", jnp.sin, arr(4), vjp_order=2)
plain("scalars", lambda x, y: x * y + 1, f32(2.5), f32(-1.5), vjp_order=2)
plain("weak_types", lambda x, n, z: (x * 2, n + 1, z * x), 2.5, 3, 1 + 2j, vjp_order=1)
plain("no_arguments", lambda: jnp.arange(5, dtype=jnp.float32))
plain("no_results", lambda x: (), arr(3))
plain("result_is_none", lambda x: None, arr(3))
plain("nothing_at_all", dict)
plain("zero_size", lambda x, y: (jnp.concatenate([x, y]), x.sum()), arr(0, 3), arr(2, 3), vjp_order=1)
plain(
    "fifty_arguments",
    lambda *xs: (sum(xs[1:], xs[0]), xs[7] * xs[8]),
    *(arr(2, seed=i) if i % 3 else f32(i) for i in range(50)),
    vjp_order=1,
)
plain("fifty_results", lambda x: [x, x * 2, x[:1]] * 16 + [x.sum(), None, x], arr(3))
plain("dropped", lambda a, b, c, d: b * d, arr(2), arr(3), arr(4, dtype=np.int32), arr(3, seed=1), vjp_order=2)
plain("all_dropped", lambda a, b: jnp.ones(3), arr(2), arr(3))
case("kept_unused", lambda: Program(jax.jit(lambda a, b: b + 1, keep_unused=True), (arr(2), arr(3))))
plain("identity", lambda x, y: (y, x, y), arr(2), arr(3), vjp_order=1)
plain("rank_seven", lambda x: x.transpose((6, 5, 4, 3, 2, 1, 0)).sum((1, 3)), arr(1, 2, 3, 1, 2, 1, 2))


@case()
def static_argnums() -> Program:
    fun = jax.jit(lambda x, n, y, mode: x**n + (y if mode == "add" else -y), static_argnums=(1, 3))
    x, y = arr(3), arr(3, seed=1)
    return Program(fun, (x, y), specs=(x, 2, y, "add"), live=lambda x, y: fun(x, 2, y, "add"))


@case(vjp_order=1)
def static_argnames() -> Program:
    fun = jax.jit(lambda x, *, scale, kind: jnp.tanh(x) * scale if kind == "t" else x, static_argnames=("kind",))
    kwargs = {"scale": f32(3)}
    live = lambda x, *, scale: fun(x, scale=scale, kind="t")  # noqa: E731
    return Program(fun, (arr(3),), kwargs, kwspecs={**kwargs, "kind": "t"}, live=live)


@case()
def static_by_name_passed_by_position() -> Program:
    def repeat(x, times):
        return jnp.tile(x, times)

    fun = jax.jit(repeat, static_argnames="times")
    return Program(fun, (arr(3),), specs=(spec((3,)), 2), live=lambda x: fun(x, 2))


plain(
    "keywords",
    lambda x, *, zeta, alpha, mid: x * zeta - alpha / mid,
    arr(3),
    kwargs={"zeta": arr(3, seed=1), "alpha": arr(3, seed=2), "mid": arr(3, seed=3)},
    vjp_order=1,
)
plain("only_keywords", lambda **kw: {k + "'": v * 2 for k, v in kw.items()}, kwargs={"b": arr(2), "a": arr(3)})


Point = collections.namedtuple("Point", "x y")
Segment = collections.namedtuple("Segment", ["start", "end", "weight"])


@jax.tree_util.register_pytree_node_class
class Tagged:
    """A custom node with auxiliary data of several kinds."""

    def __init__(self, left: Any, right: Any, tag: tuple[str, int]):
        self.left, self.right, self.tag = left, right, tag

    def tree_flatten(self):
        return (self.left, self.right), self.tag

    @classmethod
    def tree_unflatten(cls, tag, children):
        return cls(*children, tag)


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Layer:
    """A dataclass node; `activation` is static."""

    w: Any
    b: Any
    activation: str = dataclasses.field(metadata={"static": True}, default="tanh")


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class Settings:
    """A node without children."""

    rate: int


def _encode_tag(tag: tuple[str, int]) -> bytes:
    return f"{tag[0]}\0{tag[1]}".encode()


def _decode_tag(data: bytes) -> tuple[str, int]:
    name, number = bytes(data).decode().split("\0")
    return name, int(number)


jax_export.register_namedtuple_serialization(Point, serialized_name="corpus.Point")
jax_export.register_namedtuple_serialization(Segment, serialized_name="corpus.Segment")
jax_export.register_pytree_node_serialization(
    Tagged, serialized_name="corpus.Tagged", serialize_auxdata=_encode_tag, deserialize_auxdata=_decode_tag
)
jax_export.register_pytree_node_serialization(
    Layer,
    serialized_name="corpus.Layer",
    serialize_auxdata=lambda aux: aux[0].encode(),
    deserialize_auxdata=lambda data: (bytes(data).decode(),),
    from_children=lambda aux, children: Layer(*children, activation=aux[0]),
)
jax_export.register_pytree_node_serialization(
    Settings,
    serialized_name="corpus.Settings",
    serialize_auxdata=lambda aux: str(aux.rate).encode(),
    deserialize_auxdata=lambda data: Settings(int(bytes(data))),
    from_children=lambda aux, children: aux,
)


def _nested(a, b):
    return {"s": a["x"] * b[0], "n": None, "t": (b[1][0], [a["y"], {"z": jnp.sin(a["x"])}])}


def _turned_around(s):
    return Segment(s.end, s.start, Point(s.weight * 2, s.start.x + s.end.y))


def _doubled(d):
    return collections.OrderedDict((k, v * 2) for k, v in reversed(d.items()))


def _exchanged(t):
    return Tagged(t.right * t.left, {"d": t.left}, ("out", t.tag[1] + 1))


def _applied(layer, x):
    y = getattr(jnp, layer.activation)(x @ layer.w + layer.b)
    return y, Layer(layer.w * 2, layer.b, activation="sin")


def _mixed(tree, *, extra):
    layer = tree["p"].x
    return collections.OrderedDict(out=Tagged(layer.w * extra[0], None, ("a", 1)), rest=[tree["p"].y])


def _nest(leaf, depth):
    for i in range(depth):
        leaf = ((leaf,), [leaf], {"k": leaf})[i % 3]
    return leaf


TREE = {"p": Point(Layer(arr(2), None, "cos"), collections.OrderedDict(k=(arr(1), Tagged((), [], ("", 0)))))}
SEGMENT = Segment(Point(arr(2), arr(2, seed=1)), Point(arr(2), arr(2, seed=2)), f32(3))

plain("nested_containers", _nested, {"x": arr(2), "y": arr(3)}, [arr(2, seed=1), (arr(1), None)], vjp_order=2)
plain(
    "empty_containers",
    lambda a, b, c, d: ((), [], {}, None, {"e": [(), [{}]]}, d + 1),
    *((), [[], {}], {"k": None, "l": ()}, arr(2)),
    vjp_order=1,
)
plain("namedtuples", _turned_around, SEGMENT, vjp_order=1)
plain("ordered_dict", _doubled, collections.OrderedDict([("z", arr(2)), ("a", arr(3)), ("m", arr(1))]), vjp_order=1)
plain("custom_node", _exchanged, Tagged(arr(2), arr(2, seed=1), ("in", 41)), vjp_order=2)
plain("dataclass_node", _applied, Layer(arr(3, 2), arr(2)), arr(4, 3), vjp_order=1)
plain("static_node", lambda s, x: (x * s.rate, Settings(s.rate + 1)), Settings(3), arr(2))
plain("mixed_nodes", _mixed, TREE, kwargs={"extra": Point(arr(2, seed=1), None)}, vjp_order=1)
plain(
    "same_nodes_many_times",
    lambda t: [layer["w"] * layer["b"].left for layer in t],
    [{"w": arr(2, seed=i), "b": Tagged(arr(1), None, ("t", 1))} for i in range(12)],
)
plain("unicode_keys", lambda d: {"β'": d["β"], "": d[""], "λ/\n": d["🦜"] + 1}, {"β": arr(1), "": arr(2), "🦜": arr(3)})
plain(
    "wide_tree",
    lambda p: sum(v["w"].sum() + v["b"] for v in p.values()),
    {f"layer{i}": {"w": arr(2, seed=i), "b": f32(i)} for i in range(60)},
)
plain("deep_tree", lambda t: _nest(jax.tree.leaves(t)[0] * 2, 90), _nest(arr(2), 90))

FLOAT8 = ("e4m3b11fnuz", "e4m3fn", "e4m3fnuz", "e5m2", "e5m2fnuz", "e4m3", "e3m4", "e8m0fnu")


NAMES = "bool int8 int16 int32 uint8 uint16 uint32 float16 bfloat16 float32 complex64".split()


def _twice(x):
    """In float32, and x itself as that."""
    return (x.astype(f32) * 2).astype(x.dtype), x.astype(f32)


plain(
    "standard_dtypes",
    lambda *xs: [~xs[0], *(x[::-1] if x.dtype == np.float16 else x + x for x in xs[1:])],
    *(np.ones(3, name) for name in NAMES),
    vjp_order=1,
)
plain(
    "wide_dtypes",
    lambda i, u, x, z: (i + 2**40, u + u, x * x * 2, z * x),
    *(arr(3, dtype=name) for name in ("int64", "uint64", "float64", "complex128")),
    x64=True,
    vjp_order=2,
)
plain(
    "four_bit_integers",
    lambda i, u: (-i, u + u, i.astype(jnp.int32)),
    *(np.asarray([1, 2, 3]).astype(name) for name in ("int4", "uint4")),
)
plain(
    "float8s", lambda *xs: list(map(_twice, xs)), *(np.asarray([1, 2, 0.5]).astype(f"float8_{name}") for name in FLOAT8)
)
plain("float4", _twice, np.asarray([1, 2, 0.5]).astype("float4_e2m1fn"))
plain("float0", lambda z, x: (z, x + 1), np.zeros((3,), jax.dtypes.float0), arr(2))
plain(
    "integers_and_floats",
    lambda x, n, b: (jnp.where(b, x * n, x), n + 1, ~b),
    *(arr(3), np.arange(3, dtype=np.int32), np.array([True, False, True])),
    vjp_order=1,
)
plain(
    "complex_numbers",
    lambda z, x: (jnp.exp(z) * x, jnp.abs(z), z.conj()),
    *((arr(3) + 1j * arr(3, seed=1)).astype(np.complex64), arr(3)),
    vjp_order=1,
)


def _keys(impl: str) -> Program:
    def fun(key, x):
        return jax.random.split(key, 2), jax.random.uniform(key, x.shape) + x

    return Program(jax.jit(fun), (jax.random.key(7, impl=impl), arr(3)))


case("threefry_key", lambda: _keys("threefry2x32"))
case("rbg_key", lambda: _keys("rbg"))
case("unsafe_rbg_key", lambda: _keys("unsafe_rbg"))


@case()
def key_batch() -> Program:
    fun = jax.jit(lambda keys: (keys[::-1], jax.vmap(lambda k: jax.random.normal(k, (2,)))(keys)))
    return Program(fun, (jax.random.split(jax.random.key(3), (3,)),))

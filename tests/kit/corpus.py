"""The corpus: functions that between them use every feature that can be exported.

A case is a function that returns a `Program`; `CASES` holds them by name. Building one is cheap and may be
repeated, also in a child process. What a case needs around it (64-bit mode) is `Case.context()`.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes  # noqa: F401  (gives numpy the names of the small dtypes)
import numpy as np
from jax import export as jax_export
from jax import lax
from jax._src import core, effects
from jax._src.interpreters import mlir
from jax.sharding import AxisType, NamedSharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P
from jaxlib.mlir.dialects import stablehlo

f32 = np.float32


@dataclasses.dataclass
class Program:
    """A jitted function, what to export it with, and what to call it with.

    `specs`, `kwspecs` go to the exporter; `args`, `kwargs` to `live` and to the exported function. They are the same by
    default, and so are `live` and `fun`, which differ where some arguments are static.
    """

    fun: Callable[..., Any]
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = dataclasses.field(default_factory=dict)
    specs: tuple[Any, ...] | None = None
    kwspecs: dict[str, Any] | None = None
    platforms: tuple[str, ...] | None = None
    disabled: tuple[str, ...] = ()  # "platform", or the target of a custom call
    live: Callable[..., Any] | None = None  # the function of the call arguments; default `fun`
    finish: Callable[[Any], Any] = lambda results: results  # makes results readable on the host
    callable_here: bool = True  # False where this machine lacks what the module calls

    def __post_init__(self) -> None:
        self.live = self.fun if self.live is None else self.live
        self.specs = self.args if self.specs is None else self.specs
        self.kwspecs = self.kwargs if self.kwspecs is None else self.kwspecs


@dataclasses.dataclass(frozen=True)
class Case:
    """A named program; `vjp_order` is how often the tests differentiate it."""

    name: str
    build: Callable[[], Program]
    vjp_order: int = 0
    x64: bool = False

    @contextlib.contextmanager
    def context(self) -> Iterator[None]:
        with jax.enable_x64(True) if self.x64 else contextlib.nullcontext():
            yield


CASES: dict[str, Case] = {}


def case(build: Callable[[], Program] | None = None, **options: Any) -> Any:
    """Adds a builder to `CASES` under its own name."""

    def add(build: Callable[[], Program]) -> Callable[[], Program]:
        CASES[build.__name__] = Case(build.__name__, build, **options)
        return build

    return add if build is None else add(build)


def export_with(library: Any, program: Program) -> Any:
    """The Exported that `library` (jax.export or jaxexp) makes of a program."""
    checks = [
        library.DisabledSafetyCheck.platform() if c == "platform" else library.DisabledSafetyCheck.custom_call(c)
        for c in program.disabled
    ]
    return library.export(program.fun, platforms=program.platforms, disabled_checks=checks)(
        *program.specs, **program.kwspecs
    )


def arr(*shape: int, dtype: Any = f32, seed: int = 0) -> np.ndarray:
    """Random values, the same ones in every process."""
    values = np.random.default_rng([seed, *shape]).uniform(0.25, 1.75, shape)
    return values.astype(dtype)


def spec(shape: tuple[Any, ...], dtype: Any = f32, **kwargs: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype, **kwargs)


def mesh(shape: tuple[int, ...], names: tuple[str, ...], axis_type: AxisType = AxisType.Auto) -> jax.sharding.Mesh:
    return jax.make_mesh(shape, names, axis_types=(axis_type,) * len(names))


# --- shapes and arguments -------------------------------------------------------------------------------------------


@case(vjp_order=2)
def sin() -> Program:
    return Program(jax.jit(jnp.sin), (arr(4),))


@case(vjp_order=2)
def scalars() -> Program:
    return Program(jax.jit(lambda x, y: x * y + 1), (f32(2.5), f32(-1.5)))


@case(vjp_order=1)
def weak_types() -> Program:
    return Program(jax.jit(lambda x, n, z: (x * 2, n + 1, z * x)), (2.5, 3, 1 + 2j))


@case
def no_arguments() -> Program:
    return Program(jax.jit(lambda: jnp.arange(5, dtype=jnp.float32)))


@case
def no_results() -> Program:
    return Program(jax.jit(lambda x: ()), (arr(3),))


@case
def result_is_none() -> Program:
    return Program(jax.jit(lambda x: None), (arr(3),))


@case
def nothing_at_all() -> Program:
    return Program(jax.jit(dict))


@case(vjp_order=1)
def zero_size() -> Program:
    return Program(jax.jit(lambda x, y: (jnp.concatenate([x, y]), x.sum())), (arr(0, 3), arr(2, 3)))


@case(vjp_order=1)
def fifty_arguments() -> Program:
    args = tuple(arr(2, seed=i) if i % 3 else f32(i) for i in range(50))
    return Program(jax.jit(lambda *xs: (sum(xs[1:], xs[0]), xs[7] * xs[8])), args)


@case
def fifty_results() -> Program:
    return Program(jax.jit(lambda x: [x, x * 2, x[:1]] * 16 + [x.sum(), None, x]), (arr(3),))


@case(vjp_order=2)
def dropped() -> Program:
    return Program(jax.jit(lambda a, b, c, d: b * d), (arr(2), arr(3), arr(4, dtype=np.int32), arr(3, seed=1)))


@case
def all_dropped() -> Program:
    return Program(jax.jit(lambda a, b: jnp.ones(3)), (arr(2), arr(3)))


@case
def kept_unused() -> Program:
    return Program(jax.jit(lambda a, b: b + 1, keep_unused=True), (arr(2), arr(3)))


@case(vjp_order=1)
def identity() -> Program:
    return Program(jax.jit(lambda x, y: (y, x, y)), (arr(2), arr(3)))


@case
def rank_seven() -> Program:
    return Program(jax.jit(lambda x: x.transpose((6, 5, 4, 3, 2, 1, 0)).sum((1, 3))), (arr(1, 2, 3, 1, 2, 1, 2),))


@case
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


@case
def static_by_name_passed_by_position() -> Program:
    def repeat(x, times):
        return jnp.tile(x, times)

    fun = jax.jit(repeat, static_argnames="times")
    return Program(fun, (arr(3),), specs=(spec((3,)), 2), live=lambda x: fun(x, 2))


@case(vjp_order=1)
def keywords() -> Program:
    fun = jax.jit(lambda x, *, zeta, alpha, mid: x * zeta - alpha / mid)
    return Program(fun, (arr(3),), {"zeta": arr(3, seed=1), "alpha": arr(3, seed=2), "mid": arr(3, seed=3)})


@case
def only_keywords() -> Program:
    return Program(jax.jit(lambda **kw: {k + "'": v * 2 for k, v in kw.items()}), (), {"b": arr(2), "a": arr(3)})


# --- pytrees --------------------------------------------------------------------------------------------------------

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


@case(vjp_order=2)
def nested_containers() -> Program:
    def fun(a, b):
        return {"s": a["x"] * b[0], "n": None, "t": (b[1][0], [a["y"], {"z": jnp.sin(a["x"])}])}

    return Program(jax.jit(fun), ({"x": arr(2), "y": arr(3)}, [arr(2, seed=1), (arr(1), None)]))


@case(vjp_order=1)
def empty_containers() -> Program:
    fun = jax.jit(lambda a, b, c, d: ((), [], {}, None, {"e": [(), [{}]]}, d + 1))
    return Program(fun, ((), [[], {}], {"k": None, "l": ()}, arr(2)))


@case(vjp_order=1)
def namedtuples() -> Program:
    def fun(s):
        return Segment(s.end, s.start, Point(s.weight * 2, s.start.x + s.end.y))

    return Program(jax.jit(fun), (Segment(Point(arr(2), arr(2, seed=1)), Point(arr(2), arr(2, seed=2)), f32(3)),))


@case(vjp_order=1)
def ordered_dict() -> Program:
    def fun(d):
        return collections.OrderedDict((k, v * 2) for k, v in reversed(d.items()))

    return Program(jax.jit(fun), (collections.OrderedDict([("z", arr(2)), ("a", arr(3)), ("m", arr(1))]),))


@case(vjp_order=2)
def custom_node() -> Program:
    fun = jax.jit(lambda t: Tagged(t.right * t.left, {"d": t.left}, ("out", t.tag[1] + 1)))
    return Program(fun, (Tagged(arr(2), arr(2, seed=1), ("in", 41)),))


@case(vjp_order=1)
def dataclass_node() -> Program:
    def fun(layer, x):
        y = getattr(jnp, layer.activation)(x @ layer.w + layer.b)
        return y, Layer(layer.w * 2, layer.b, activation="sin")

    return Program(jax.jit(fun), (Layer(arr(3, 2), arr(2)), arr(4, 3)))


@case
def static_node() -> Program:
    return Program(jax.jit(lambda s, x: (x * s.rate, Settings(s.rate + 1))), (Settings(3), arr(2)))


@case(vjp_order=1)
def mixed_nodes() -> Program:
    def fun(tree, *, extra):
        layer = tree["p"].x
        return collections.OrderedDict(out=Tagged(layer.w * extra[0], None, ("a", 1)), rest=[tree["p"].y])

    tree = {"p": Point(Layer(arr(2), None, "cos"), collections.OrderedDict(k=(arr(1), Tagged((), [], ("", 0)))))}
    return Program(jax.jit(fun), (tree,), {"extra": Point(arr(2, seed=1), None)})


@case
def same_nodes_many_times() -> Program:
    tree = [{"w": arr(2, seed=i), "b": Tagged(arr(1), None, ("t", 1))} for i in range(12)]
    return Program(jax.jit(lambda t: [layer["w"] * layer["b"].left for layer in t]), (tree,))


@case
def unicode_keys() -> Program:
    return Program(
        jax.jit(lambda d: {"β'": d["β"], "": d[""], "λ/\n": d["🦜"] + 1}), ({"β": arr(1), "": arr(2), "🦜": arr(3)},)
    )


@case
def wide_tree() -> Program:
    params = {f"layer{i}": {"w": arr(2, seed=i), "b": f32(i)} for i in range(60)}
    return Program(jax.jit(lambda p: sum(v["w"].sum() + v["b"] for v in p.values())), (params,))


@case
def deep_tree() -> Program:
    def nest(leaf, depth):
        for i in range(depth):
            leaf = ((leaf,), [leaf], {"k": leaf})[i % 3]
        return leaf

    return Program(jax.jit(lambda t: nest(jax.tree.leaves(t)[0] * 2, 90)), (nest(arr(2), 90),))


# --- dtypes ---------------------------------------------------------------------------------------------------------

FLOAT8 = ("e4m3b11fnuz", "e4m3fn", "e4m3fnuz", "e5m2", "e5m2fnuz", "e4m3", "e3m4", "e8m0fnu")


@case(vjp_order=1)
def standard_dtypes() -> Program:
    names = "bool int8 int16 int32 uint8 uint16 uint32 float16 bfloat16 float32 complex64".split()
    args = tuple(np.ones(3, name) for name in names)
    return Program(jax.jit(lambda *xs: [~xs[0], *(x + x for x in xs[1:])]), args)


@case(x64=True, vjp_order=2)
def wide_dtypes() -> Program:
    args = tuple(arr(3, dtype=name) for name in ("int64", "uint64", "float64", "complex128"))
    return Program(jax.jit(lambda i, u, x, z: (i + 2**40, u + u, x * x * 2, z * x)), args)


@case
def four_bit_integers() -> Program:
    args = tuple(np.asarray([1, 2, 3]).astype(name) for name in ("int4", "uint4"))
    return Program(jax.jit(lambda i, u: (-i, u + u, i.astype(jnp.int32))), args)


@case
def float8s() -> Program:
    args = tuple(np.asarray([1, 2, 0.5]).astype(f"float8_{name}") for name in FLOAT8)
    return Program(jax.jit(lambda *xs: [((x.astype(f32) * 2).astype(x.dtype), x.astype(f32)) for x in xs]), args)


@case
def float4() -> Program:
    x = np.asarray([1, 2, 0.5]).astype("float4_e2m1fn")
    return Program(jax.jit(lambda x: ((x.astype(f32) * 2).astype(x.dtype), x.astype(f32))), (x,))


@case
def float0() -> Program:
    zeros = np.zeros((3,), jax.dtypes.float0)
    return Program(jax.jit(lambda z, x: (z, x + 1)), (zeros, arr(2)))


@case(vjp_order=1)
def integers_and_floats() -> Program:
    fun = jax.jit(lambda x, n, b: (jnp.where(b, x * n, x), n + 1, ~b))
    return Program(fun, (arr(3), np.arange(3, dtype=np.int32), np.array([True, False, True])))


@case(vjp_order=1)
def complex_numbers() -> Program:
    z = arr(3) + 1j * arr(3, seed=1)
    return Program(jax.jit(lambda z, x: (jnp.exp(z) * x, jnp.abs(z), z.conj())), (z.astype(np.complex64), arr(3)))


def _keys(impl: str) -> Program:
    def fun(key, x):
        return jax.random.split(key, 2), jax.random.uniform(key, x.shape) + x

    return Program(jax.jit(fun), (jax.random.key(7, impl=impl), arr(3)))


@case
def threefry_key() -> Program:
    return _keys("threefry2x32")


@case
def rbg_key() -> Program:
    return _keys("rbg")


@case
def unsafe_rbg_key() -> Program:
    return _keys("unsafe_rbg")


@case
def key_batch() -> Program:
    fun = jax.jit(lambda keys: (keys[::-1], jax.vmap(lambda k: jax.random.normal(k, (2,)))(keys)))
    return Program(fun, (jax.random.split(jax.random.key(3), (3,)),))


# --- symbolic shapes ------------------------------------------------------------------------------------------------


@case(vjp_order=2)
def symbolic_batch() -> Program:
    (b,) = jax_export.symbolic_shape("b")
    return Program(jax.jit(lambda x, w: jnp.tanh(x @ w)), (arr(5, 4), arr(4, 3)), specs=(spec((b, 4)), spec((4, 3))))


@case(vjp_order=1)
def symbolic_several() -> Program:
    a, b, c = jax_export.symbolic_shape("a, b, c")
    fun = jax.jit(lambda x, y: jnp.concatenate([x @ y, x @ y * 2], axis=0))
    return Program(fun, (arr(2, 3), arr(3, 4)), specs=(spec((a, b)), spec((b, c))))


@case
def symbolic_expressions() -> Program:
    a, b = jax_export.symbolic_shape("a, b")

    def fun(x, y, z):
        return x.reshape(-1), jnp.pad(y, (1, 2)), z.sum() * x.shape[0], jnp.concatenate([y, y, y[:1]])

    return Program(
        fun=jax.jit(fun),
        args=(arr(2, 5), arr(5), arr(4, 11)),
        specs=(spec((a, b)), spec((b,)), spec((2 * a, 2 * b + 1))),
    )


@case
def symbolic_division() -> Program:
    (n,) = jax_export.symbolic_shape("n", constraints=["n >= 4", "mod(n, 2) == 0"])

    def fun(x):
        (n,) = x.shape
        return x.reshape((n // 2, 2)), x[: n - 3], jnp.zeros(core.max_dim(n, 7)), x[: core.min_dim(n % 5, 1)]

    return Program(jax.jit(fun), (arr(6),), specs=(spec((n,)),))


@case(vjp_order=1)
def symbolic_value() -> Program:
    (n,) = jax_export.symbolic_shape("n")
    return Program(jax.jit(lambda x: x.mean() + jnp.array(x.shape[0], f32)), (arr(6),), specs=(spec((n,)),))


@case
def symbolic_tree() -> Program:
    args = ({"x": arr(3, 2), "y": [arr(3)]},)
    specs = jax_export.symbolic_args_specs(args, ({"x": "b, ...", "y": ["b"]},))
    return Program(jax.jit(lambda d, *, s: d["x"].sum(1) * d["y"][0] + s), args, {"s": f32(2)}, specs=specs)


@case
def symbolic_unused() -> Program:
    (n,) = jax_export.symbolic_shape("n")
    return Program(jax.jit(lambda x, unused: x * 2), (arr(6), arr(6)), specs=(spec((n,)), spec((n,))))


@case(vjp_order=1)
def symbolic_multi_platform() -> Program:
    (n,) = jax_export.symbolic_shape("n")
    return Program(jax.jit(lambda x: jnp.cos(x).sum()), (arr(6),), specs=(spec((n,)),), platforms=("tpu", "cpu"))


@case
def symbolic_while() -> Program:
    (n,) = jax_export.symbolic_shape("n")
    fun = jax.jit(lambda x: lax.fori_loop(0, x.shape[0], lambda i, c: c + x[i], f32(0)))
    return Program(fun, (arr(6),), specs=(spec((n,)),))


# --- platforms and safety checks ------------------------------------------------------------------------------------


@case(vjp_order=2)
def multi_platform() -> Program:
    return Program(jax.jit(lambda x: jnp.cos(x) * x), (arr(4),), platforms=("cpu", "cuda", "tpu"))


@case(vjp_order=1)
def platform_dependent() -> Program:
    def fun(x):
        return lax.platform_dependent(x, cpu=lambda x: x * 2, cuda=lambda x: x * 3, default=lambda x: x * 4)

    return Program(jax.jit(fun), (arr(4),), platforms=("cuda", "cpu", "rocm"))


@case
def platform_check_disabled() -> Program:
    return Program(jax.jit(lambda x: x * 2 + 1), (arr(4),), platforms=("tpu",), disabled=("platform",))


@case
def other_platform() -> Program:
    return Program(jax.jit(lambda x: x * 2 + 1), (arr(4),), platforms=("rocm",), callable_here=False)


@case
def custom_call_allowed() -> Program:
    target = "jaxexp_corpus_no_such_target"
    fun = jax.jit(lambda x: jax.ffi.ffi_call(target, jax.ShapeDtypeStruct((2,), f32))(x))
    return Program(fun, (arr(2),), disabled=(target, "another_target"), callable_here=False)


# --- several devices ------------------------------------------------------------------------------------------------


def _placed(fun: Any, shardings: tuple[Any, ...], *args: Any, **options: Any) -> Program:
    """A program called with arguments that lie where `shardings` say; exported from shapes alone."""
    specs = tuple(spec(x.shape, x.dtype) for x in args)
    return Program(fun, tuple(map(jax.device_put, args, shardings)), specs=specs, **options)


@case(vjp_order=1)
def sharded_1d() -> Program:
    s = NamedSharding(mesh((8,), ("x",)), P("x"))
    return _placed(jax.jit(lambda a, b: a * 2 + b, in_shardings=s, out_shardings=s), (s, s), arr(8), arr(8, seed=1))


@case(vjp_order=2)
def sharded_2d() -> Program:
    m = mesh((4, 2), ("x", "y"))
    s, r, t = (NamedSharding(m, p) for p in (P("x", "y"), P("y"), P(None, "x")))
    fun = jax.jit(lambda a, b: jnp.sin(a @ b), in_shardings=(s, r), out_shardings=t)
    return _placed(fun, (s, r), arr(8, 4), arr(4, 4))


@case
def sharded_over_two_axes() -> Program:
    m = mesh((2, 2, 2), ("x", "y", "z"))
    s, r = NamedSharding(m, P(("x", "z"), None, "y")), NamedSharding(m, P(None, ("y", "x")))
    fun = jax.jit(lambda a, b: (a + 1, b * a[0]), in_shardings=(s, r), out_shardings=(r, s))
    return _placed(jax.jit(lambda a: fun(a, a)), (s,), arr(4, 4, 4))


@case
def replicated() -> Program:
    m = mesh((8,), ("x",))
    r, s = NamedSharding(m, P()), NamedSharding(m, P("x"))
    fun = jax.jit(lambda a, b: (a * 2, b + a), in_shardings=(r, s), out_shardings=(r, r))
    return _placed(fun, (r, s), arr(8), arr(8, seed=1))


@case(vjp_order=1)
def partly_sharded() -> Program:
    m = mesh((4, 2), ("x", "y"))
    s, r = NamedSharding(m, P("x")), NamedSharding(m, P())
    fun = jax.jit(lambda a, b, c: (a * b, b.sum() * c["k"]), in_shardings=(s, None, None))
    args = (arr(8), arr(8, seed=1), {"k": arr(3)})
    placed = (jax.device_put(args[0], s), jax.device_put(args[1], r), jax.device_put(args[2], r))
    return Program(fun, placed, specs=(spec((8,)), spec((8,)), {"k": spec((3,))}))


@case
def sharded_specs() -> Program:
    s = NamedSharding(mesh((8,), ("x",)), P("x"))
    x = jax.device_put(arr(8, 2), s)
    return Program(jax.jit(lambda a: a.sum(1)), (x,), specs=(spec((8, 2), sharding=s),))


@case
def constrained_inside() -> Program:
    m = mesh((4, 2), ("x", "y"))
    s, t = NamedSharding(m, P("x")), NamedSharding(m, P("y", "x"))
    fun = jax.jit(lambda a: lax.with_sharding_constraint(a * 2, t).T, in_shardings=s)
    return _placed(fun, (s,), arr(8, 8))


@case
def memory_kinds() -> Program:
    m = mesh((8,), ("x",))
    host, device = (NamedSharding(m, P("x"), memory_kind=kind) for kind in ("pinned_host", "device"))
    fun = jax.jit(
        lambda a, b: (jax.device_put(a, device) * 2 + b, jax.device_put(b, host)),
        in_shardings=(host, device),
        out_shardings=(device, host),
    )
    return _placed(fun, (host, device), arr(8), arr(8, seed=1))


@case
def one_device_sharding() -> Program:
    s = SingleDeviceSharding(jax.devices()[0], memory_kind="unpinned_host")
    return Program(jax.jit(lambda x, y: x * y, in_shardings=(s, None)), (arr(3), arr(3, seed=1)))


@case
def sharded_trees_and_dropped() -> Program:
    m = mesh((2, 4), ("data", "model"))
    s, r = NamedSharding(m, P("data", "model")), NamedSharding(m, P("model"))
    args = ({"w": arr(4, 8), "unused": arr(2)}, arr(8))
    shardings = ({"w": s, "unused": NamedSharding(m, P())}, r)
    fun = jax.jit(lambda p, b: {"o": p["w"] + b}, in_shardings=shardings, out_shardings={"o": s})
    specs = jax.tree.map(lambda x: spec(x.shape, x.dtype), args)
    return Program(fun, jax.tree.map(jax.device_put, args, shardings), specs=specs)


@case
def sharded_symbolic() -> Program:
    s = NamedSharding(mesh((8,), ("x",)), P(None, "x"))
    (b,) = jax_export.symbolic_shape("b")
    fun = jax.jit(lambda a: a * 2, in_shardings=s, out_shardings=s)
    return Program(fun, (jax.device_put(arr(3, 8), s),), specs=(spec((b, 8)),))


@case(vjp_order=1)
def shard_map_psum() -> Program:
    m = mesh((8,), ("i",))
    body = jax.shard_map(lambda x: lax.psum(jnp.sin(x), "i"), mesh=m, in_specs=P("i"), out_specs=P())
    s = NamedSharding(m, P("i"))
    return _placed(jax.jit(body, in_shardings=s), (s,), arr(8, 2))


@case(vjp_order=1)
def explicit_mesh() -> Program:
    m = mesh((4, 2), ("x", "y"), AxisType.Explicit)
    s, r = NamedSharding(m, P("x", "y")), NamedSharding(m, P("y", None))
    fun = jax.jit(lambda a, b: jnp.einsum("ij,jk->ik", a, b, out_sharding=NamedSharding(m, P("x", None))))
    args = jax.device_put(arr(8, 4), s), jax.device_put(arr(4, 3), r)
    return Program(fun, args)


@case
def unreduced_result() -> Program:
    m = mesh((4, 2), ("x", "y"), AxisType.Explicit)
    a, b = (jax.device_put(arr(4, 4), NamedSharding(m, p)) for p in (P("x", "y"), P("y", None)))
    out = NamedSharding(m, P("x", None, unreduced={"y"}))
    fun = jax.jit(lambda a, b: jnp.einsum("ij,jk->ik", a, b, out_sharding=out))
    return Program(fun, (a, b), finish=jax.jit(lambda r: jax.sharding.reshard(r, NamedSharding(m, P("x", None)))))


@case
def reduced_argument() -> Program:
    m = mesh((4, 2), ("x", "y"), AxisType.Explicit)
    a = jax.device_put(arr(4, 4), NamedSharding(m, P("x", None)))
    b = jax.device_put(arr(4, 4), NamedSharding(m, P(None, None, reduced={"x"})))
    return Program(jax.jit(lambda a, b: (a + 1, jnp.sin(b))), (a, b))


# --- effects --------------------------------------------------------------------------------------------------------


class _Effect(effects.Effect):
    """Equal to every effect of its own class, as an effect must be to survive serialization."""

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other)

    def __hash__(self) -> int:
        return hash(type(self).__name__)

    def __lt__(self, other: object) -> bool:
        return type(self).__name__ < type(other).__name__


class FirstOrderedEffect(_Effect): ...


class SecondOrderedEffect(_Effect): ...


class UnorderedEffect(_Effect): ...


class EffectWithArgument(_Effect):
    """Cannot be serialized: there is no constructor without arguments."""

    def __init__(self, name: str):
        self.name = name


class UnequalEffect(_Effect):
    """Cannot be serialized: two instances differ."""

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)


EFFECTS = {
    "first": FirstOrderedEffect(),
    "second": SecondOrderedEffect(),
    "unordered": UnorderedEffect(),
    "argument": EffectWithArgument("e"),
    "unequal": UnequalEffect(),
}
for _effect in EFFECTS.values():
    # Artifacts name an effect by its class, and those in tests/golden know this one.
    type(_effect).__module__ = "corpus"
    effects.lowerable_effects.add_type(type(_effect))
    effects.control_flow_allowed_effects.add_type(type(_effect))
    effects.custom_derivatives_allowed_effects.add_type(type(_effect))
for _name in ("first", "second"):
    effects.ordered_effects.add_type(type(EFFECTS[_name]))

touch_p = core.Primitive("corpus_touch")
touch_p.def_impl(lambda x, *, effect: jnp.sin(x))


@touch_p.def_effectful_abstract_eval
def _touch_abstract_eval(x, *, effect):
    return x, {EFFECTS[effect]}


def _touch_lowering(ctx, x, *, effect):
    if effect in ("first", "second"):  # the token passes through: all that ordering needs here
        ctx.set_tokens_out(mlir.TokenSet({EFFECTS[effect]: ctx.tokens_in.get(EFFECTS[effect])}))
    return [stablehlo.sine(x)]


mlir.register_lowering(touch_p, _touch_lowering)


def touch(x: Any, effect: str) -> Any:
    """sin(x), with the named effect."""
    return touch_p.bind(x, effect=effect)


@case
def ordered_effect() -> Program:
    return Program(jax.jit(lambda x: touch(x, "first") * 2), (arr(3),))


@case
def unordered_effect() -> Program:
    return Program(jax.jit(lambda x: touch(x, "unordered") * 2), (arr(3),))


@case
def several_effects() -> Program:
    def fun(x, unused):
        return touch(touch(touch(x, "first"), "unordered"), "second")

    return Program(jax.jit(fun), (arr(3), arr(2)))


@case
def effects_and_symbolic_shapes() -> Program:
    (n,) = jax_export.symbolic_shape("n")
    fun = jax.jit(lambda x: touch(touch(x, "first"), "second") + x.shape[0])
    return Program(fun, (arr(4),), specs=(spec((n,)),), platforms=("cpu", "cuda"))


# --- linear algebra: custom calls -----------------------------------------------------------------------------------


def _spd(n: int) -> np.ndarray:
    a = arr(n, n)
    return a @ a.T + n * np.eye(n, dtype=f32)


@case(vjp_order=1)
def cholesky() -> Program:
    return Program(jax.jit(lambda a: lax.linalg.cholesky(a, symmetrize_input=False)), (_spd(3),))


@case
def qr() -> Program:
    return Program(jax.jit(lambda a: lax.linalg.qr(a, full_matrices=False)), (arr(4, 3) + np.eye(4, 3, dtype=f32),))


@case
def eigh() -> Program:
    return Program(jax.jit(jnp.linalg.eigvalsh), (_spd(3),))


@case
def svd() -> Program:
    return Program(jax.jit(lambda a: lax.linalg.svd(a, compute_uv=False)), (arr(4, 3),))


@case
def lu() -> Program:
    return Program(jax.jit(lax.linalg.lu), (_spd(3),))


@case(vjp_order=1)
def triangular_solve() -> Program:
    lower = np.tril(_spd(3))
    return Program(
        jax.jit(lambda a, b: lax.linalg.triangular_solve(a, b, left_side=True, lower=True)), (lower, arr(3, 2))
    )


@case
def linalg_symbolic_multi_platform() -> Program:
    (b,) = jax_export.symbolic_shape("b")
    fun = jax.jit(lambda a: jnp.linalg.cholesky(a))
    args = (np.stack([_spd(3)] * 2),)
    return Program(fun, args, specs=(spec((b, 3, 3)),), platforms=("cpu", "tpu"))


# --- control flow, derivatives, and the rest ------------------------------------------------------------------------


@case(vjp_order=2)
def scan() -> Program:
    def fun(x, xs):
        return lax.scan(lambda c, y: (jnp.sin(c * y), c + y), x, xs)

    return Program(jax.jit(fun), (f32(0.5), arr(4)))


@case
def while_loop() -> Program:
    return Program(
        jax.jit(lambda x, n: lax.while_loop(lambda c: c[1] > 0, lambda c: (c[0] * 1.5, c[1] - 1), (x, n))),
        (arr(2), np.int32(3)),
    )


@case(vjp_order=1)
def cond() -> Program:
    return Program(jax.jit(lambda p, x: lax.cond(p, jnp.sin, jnp.cos, x)), (np.bool_(True), arr(3)))


@case(vjp_order=1)
def fori_and_switch() -> Program:
    def fun(i, x):
        y = lax.switch(i, [jnp.sin, jnp.cos, lambda x: x * x], x)
        return lax.fori_loop(0, 3, lambda k, c: c * y + k, x)

    return Program(jax.jit(fun), (np.int32(2), arr(3)))


@case(vjp_order=2)
def custom_vjp() -> Program:
    @jax.custom_vjp
    def clipped(x):
        return jnp.clip(x, -1, 1)

    # Deliberately not the true derivative: the test sees whether this rule travelled.
    clipped.defvjp(lambda x: (clipped(x), x), lambda x, ct: (ct * jnp.cos(x) * 3,))
    return Program(jax.jit(lambda x: clipped(x * 2)), (arr(4) - 1,))


@case(vjp_order=2)
def custom_jvp() -> Program:
    @jax.custom_jvp
    def softened(x):
        return jnp.log1p(jnp.exp(x))

    @softened.defjvp
    def _(primals, tangents):
        (x,), (t,) = primals, tangents
        return softened(x), t * jax.nn.sigmoid(x) * 2

    return Program(jax.jit(softened), (arr(4),))


@case(vjp_order=2)
def remat() -> Program:
    fun = jax.checkpoint(lambda x, w: jnp.sin(jnp.sin(x @ w)))
    return Program(jax.jit(lambda x, w: fun(x, w).sum()), (arr(2, 3), arr(3, 3)))


@case
def donated() -> Program:
    # numpy arguments: the copies that JAX makes of them are what gets donated.
    fun = jax.jit(lambda state, x: ({"s": state["s"] + x}, (state["s"] * x).sum()), donate_argnums=0)
    return Program(fun, ({"s": arr(4)}, arr(4, seed=1)))


@case
def donated_symbolic() -> Program:
    (n,) = jax_export.symbolic_shape("n")
    fun = jax.jit(lambda x, y: x + y, donate_argnums=0)
    return Program(fun, (arr(4), arr(4, seed=1)), specs=(spec((n,)), spec((n,))))


@case(vjp_order=1)
def large_constant() -> Program:
    table = arr(64, 1024)
    return Program(jax.jit(lambda x: x @ table), (arr(2, 64),))


@case(vjp_order=2)
def perceptron() -> Program:
    def loss(params, x, y):
        for layer in params:
            x = jnp.tanh(x @ layer["w"] + layer["b"])
        return -(jax.nn.log_softmax(x) * jax.nn.one_hot(y, 3)).sum(1).mean()

    params = [{"w": arr(4, 4), "b": arr(4)}, {"w": arr(4, 3), "b": arr(3)}]
    return Program(jax.jit(loss), (params, arr(5, 4), np.arange(5, dtype=np.int32) % 3))


@case(vjp_order=1)
def convolution_and_gather() -> Program:
    def fun(image, kernel, index):
        y = lax.conv_general_dilated(image, kernel, (1, 1), "SAME")
        return y[:, :, index], jnp.sort(y.reshape(-1))[::7]

    return Program(jax.jit(fun), (arr(1, 2, 5, 5), arr(3, 2, 3, 3), np.array([3, 0], np.int32)))


@case(vjp_order=1)
def nested_jit_and_vmap() -> Program:
    inner = jax.jit(lambda x, s: jnp.sin(x) * s, inline=False)
    return Program(jax.jit(jax.vmap(lambda x: inner(x, 2.0) + inner(x[::-1], 3.0))), (arr(3, 4),))


@case(vjp_order=1)
def calls_an_exported() -> Program:
    (n,) = jax_export.symbolic_shape("n")
    inner = jax_export.export(jax.jit(lambda x: jnp.sin(x) * x.shape[0]))(spec((n,)))
    blob = inner.serialize(vjp_order=1)
    loaded = jax_export.deserialize(blob)
    return Program(jax.jit(lambda x, y: loaded.call(x) + loaded.call(y).sum()), (arr(3), arr(5)))


@case
def random_inside() -> Program:
    return Program(jax.jit(lambda seed: jax.random.normal(jax.random.key(seed), (4,))), (np.uint32(5),))


@case
def named_scopes() -> Program:
    def fun(x):
        with jax.named_scope("outer"):
            return jax.named_call(jnp.sin, name='quo"ted')(x)

    return Program(jax.jit(fun), (arr(3),))

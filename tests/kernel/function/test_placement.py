"""Functions of several devices, called on devices and meshes other than those of the export."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export as jax_export
from jax import lax
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxexp
from kit.alike import raises_alike
from kit.compare import assert_same_placement, assert_same_values
from kit.corpus import Program, arr, export_with, f32, mesh, spec
from kit.derivatives import pull_back
from kit.each import each
from kit.places import TESTS
from kit.sharded.all import name_of
from kit.sharded.case import LIBRARIES, Auto, Explicit, abstract, gspmd

pytestmark = pytest.mark.jax


def jit_of(how: str, call: Any) -> Any:
    return call if how == "eager" else jax.jit(call)


@functools.cache
def centred() -> dict[str, Any]:
    """x - mean(x) over eight devices, by both libraries."""
    s = NamedSharding(mesh((8,), ("x",)), P("x"))
    fun = jax.jit(lambda x: x - x.mean(), in_shardings=s, out_shardings=s)
    return {
        key: library.deserialize(library.export(fun)(spec((8,))).serialize(vjp_order=1))
        for key, library in LIBRARIES.items()
    }


def _elsewhere() -> dict[str, Any]:
    eight = mesh((8,), ("x",))
    reversed_ = jax.make_mesh((8,), ("x",), devices=jax.devices()[::-1], axis_types=(Auto,))
    return {
        "replicated": NamedSharding(eight, P()),
        "another mesh": NamedSharding(mesh((2, 4), ("p", "q")), P("q")),
        "reversed devices": NamedSharding(reversed_, P("x")),
        "explicit axes": NamedSharding(mesh((8,), ("x",), Explicit), P("x")),
        "host memory": NamedSharding(eight, P("x"), memory_kind="pinned_host"),
        "without a mesh": gspmd(eight, P("x"), 1),
    }


def test_arguments_that_lie_elsewhere() -> None:
    """They are moved to where the function wants them, as jax.export does."""
    for where, sharding in _elsewhere().items():
        x = jax.device_put(arr(8), sharding)
        for how in ("eager", "used"):
            found = {}
            for key, exported in centred().items():
                call = exported.call
                if how == "used":
                    call = lambda x, f=exported.call: f(f(x) + 1)  # noqa: E731
                found[key] = jit_of(how, call)(x)
            ours, theirs = found["ours"], found["jax"]
            np.testing.assert_allclose(ours, arr(8) - arr(8).mean(), atol=1e-6, err_msg=f"{where}, {how}")
            assert_same_placement(ours, theirs)
            assert [s.device for s in ours.addressable_shards] == [s.device for s in theirs.addressable_shards]


@each("devices", [1, 4])
def test_too_few_devices(devices: int) -> None:
    m = jax.make_mesh((devices,), ("x",), devices=jax.devices()[:devices], axis_types=(Auto,))
    x = arr(8) if devices == 1 else jax.device_put(arr(8), NamedSharding(m, P("x")))
    for of in (lambda call: call, jax.jit, lambda call: jax.grad(lambda x: call(x).sum())):
        raises_alike(
            lambda library, of=of: of(centred()[name_of(library)].call)(x),
            match=f"exported for 8 devices.*called on {devices}.*in_shardings_jax",
        )


def test_numpy_arguments_under_jit_with_shardings() -> None:
    s = NamedSharding(mesh((8,), ("x",)), P("x"))
    for options in ({"in_shardings": s}, {"out_shardings": NamedSharding(s.mesh, P())}):
        ours, theirs = (jax.jit(centred()[key].call, **options)(arr(8)) for key in ("ours", "jax"))
        np.testing.assert_allclose(ours, arr(8) - arr(8).mean(), atol=1e-6)
        assert_same_placement(ours, theirs)


MESHES = {"8": ((8,), ("x",), P("x")), "4x2": ((4, 2), ("x", "y"), P("y", "x")),
          "explicit": ((4, 2), ("x", "y"), P("x", None))}  # fmt: skip


@functools.cache
def on_mesh(library: Any, name: str) -> Any:
    shape, names, partitions = MESHES[name]
    s = NamedSharding(mesh(shape, names, Explicit if name == "explicit" else Auto), partitions)
    fun = jax.jit(lambda x: jnp.sin(x) @ jnp.ones((8, 8), f32), in_shardings=s, out_shardings=s)
    return library.deserialize(library.export(fun)(spec((8, 8))).serialize())


@each("first, second", [("8", "4x2"), ("8", "8"), ("4x2", "explicit")])
def test_functions_of_two_meshes_in_one_module(first: str, second: str) -> None:
    """Each module calls its own mesh "mesh". Where the axes have other names, jax.export takes one for the other."""
    x = jax.device_put(arr(8, 8), NamedSharding(mesh((8,), ("x",)), P("x")))
    one, two = on_mesh(jaxexp, first), on_mesh(jaxexp, second)
    once = np.sin(arr(8, 8)) @ np.ones((8, 8), f32)
    results = jax.jit(lambda x: (one.call(x), two.call(x), one.call(two.call(x))))(x)
    for result, expected in zip(results, (once, once, np.sin(once) @ np.ones((8, 8), f32)), strict=True):
        np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-4)
    text = jax.jit(lambda x: (one.call(x), two.call(x))).lower(x).as_text()
    meshes = dict(re.findall(r"sdy\.mesh (@\w+) = <(\[.*?\])>", text))
    functions = re.findall(
        r'func\.func private @"call_exported_[^"]*"\(%arg0: [^{]*\{sdy\.sharding = #sdy.sharding<(@\w+)', text
    )
    expected = [on_mesh(jaxexp, name)._in_named_shardings[0].mesh.shape_tuple for name in (first, second)]
    found = [tuple((n, int(size)) for n, size in re.findall(r'"(\w+)"=(\d+)', meshes[f])) for f in functions]
    assert sorted(set(found)) == sorted(set(expected))


@each("golden", ["jax-0.12.0.1/sharded", "jax-0.4.23/sharded", "before_shardy/jax-0.4.23/six_devices"])
def test_a_mesh_like_that_of_the_export(golden: str) -> None:
    """Of axes that have another type than JAX's default, or no names."""
    exported = jaxexp.load(TESTS / "golden" / f"{golden}.bin")
    m = exported.make_mesh()
    assert list(m.devices.flat) == jax.devices()[: exported.nr_devices]
    others = jax.devices()[::-1][: exported.nr_devices]
    assert list(exported.make_mesh(others).devices.flat) == others
    arguments = [np.ones(aval.shape, aval.dtype) for aval in exported.in_avals]
    made = made_by(exported, lambda: exported.call(*arguments))
    results = [exported.call(*map(jax.device_put, arguments, exported.in_shardings_jax(mesh))) for mesh in (m, made)]
    assert_same_values(*results)
    for wrong in (jax.devices()[:1], [*jax.devices(), *jax.devices()]):
        with pytest.raises(jaxexp.errors.ExportError, match=f"for {exported.nr_devices} devices, found {len(wrong)}"):
            exported.make_mesh(wrong)


def made_by(exported: jaxexp.Exported, provoke: Any, said: str = r"make_mesh\(\), or jax\.make_mesh") -> Mesh:
    """The mesh that the line makes which an error has."""
    with pytest.raises(jaxexp.errors.ExportError, match=said) as error:
        provoke()
    line = re.search(r"jax\.make_mesh\(.*\)", str(error.value))
    assert line is not None
    return eval(line[0])


def test_a_mesh_for_a_function_without_shardings() -> None:
    exported = jaxexp.export(jax.jit(jnp.sin))(spec((8,)))
    assert exported.make_mesh().shape == {"devices": 1}
    for nr_devices, shape in ((2, {"devices": 2}), (6, {"devices_0": 2, "devices_1": 3})):
        assert dataclasses.replace(exported, nr_devices=nr_devices).make_mesh().shape == shape


INSIDE = {
    "shard_map": lambda m: jax.shard_map(lambda x: x * lax.axis_index("x"), mesh=m, in_specs=P("x"), out_specs=P("x")),
    "with_sharding_constraint": lambda m: lambda x: lax.with_sharding_constraint(x * 2, NamedSharding(m, P("x"))),
}


@each("name", INSIDE)
def test_a_mesh_that_is_only_inside(name: str) -> None:
    """Neither arguments nor results say anything: the tools and the words of the error take the mesh of the module."""
    fun = jax.jit(INSIDE[name](mesh((4, 2), ("x", "y"))))
    x = arr(8, 3)
    exported = jaxexp.deserialize(jaxexp.export(fun)(x).serialize())
    m = exported.make_mesh()
    assert m.shape == {"x": 4, "y": 2}
    assert exported.in_shardings_jax(m) == (None,)  # as in jax.export
    made = made_by(exported, lambda: exported.call(x), r"device_put\(argument, jax\.sharding\.NamedSharding\(mesh, ")
    placed = jax.device_put(x, NamedSharding(made, P()))
    expected = fun(placed)
    assert_same_placement(exported.call(placed), expected)
    assert_same_values(exported.bind(x).with_mesh(m).call(), expected)


@each("wrong", [((2, 4), ("x", "y")), ((4, 2), ("a", "b")), ((4, 2), ("x", "y"), Explicit)])
def test_the_error_has_the_line_that_makes_a_mesh(wrong: Any) -> None:
    exported = on_mesh(jaxexp, "4x2")
    said = r"make_mesh\(\) makes one that fits, jax\.make_mesh"
    exported.in_shardings_jax(made_by(exported, lambda: exported.in_shardings_jax(mesh(*wrong)), said))


def _in_shard_map(library: Any, name: str, axis_names: set[str]) -> Any:
    m, inner = mesh((4, 2), ("u", "v")), mesh((8,), ("p",))
    s = NamedSharding(inner, P("p"))
    single = jax.make_mesh((1,), ("u",), devices=jax.devices()[:1], axis_types=(Auto,))

    def fun(x):
        return x - x.mean()

    jitted = {
        "one device": jax.jit(fun),
        "shardings": jax.jit(fun, in_shardings=s),
        "shard_map": jax.jit(jax.shard_map(lambda x: lax.psum(x, "p"), mesh=inner, in_specs=P("p"), out_specs=P())),
        "constraint": jax.jit(lambda x: lax.with_sharding_constraint(fun(x), s)),
        "size one": jax.jit(fun, in_shardings=NamedSharding(single, P("u"))),
    }[name]
    loaded = library.deserialize(library.export(jitted)(spec((8,))).serialize())
    specs = P(("u", "v")) if len(axis_names) == 2 else P("u")
    body = jax.shard_map(loaded.call, mesh=m, in_specs=specs, out_specs=specs, axis_names=axis_names, check_vma=False)
    return jax.jit(body)(jax.device_put(arr(64 if len(axis_names) == 2 else 32), NamedSharding(m, specs)))


@each("name, axis_names", [("one device", "uv"), ("one device", "u"), ("constraint", "uv")])
def test_called_inside_shard_map(name: str, axis_names: str) -> None:
    ours, theirs = (_in_shard_map(library, name, set(axis_names)) for library in (jaxexp, jax_export))
    parts = np.asarray(arr(ours.size)).reshape(-1, 8)
    np.testing.assert_allclose(ours, (parts - parts.mean(1, keepdims=True)).reshape(-1), atol=1e-6)
    assert_same_placement(ours, theirs)


@each("name, axis_names", [("shardings", "uv"), ("shard_map", "u"), ("constraint", "u"), ("size one", "uv")])
def test_refused_inside_shard_map(name: str, axis_names: str) -> None:
    """What jax.export hands to the compiler, which raises errors of several types or ends the process."""
    with pytest.raises(jaxexp.errors.ExportError, match=r"inside jax\.shard_map.*'u'.*exported with shardings"):
        _in_shard_map(jaxexp, name, set(axis_names))


def _product(m: Mesh, shape: tuple[int, ...] = (8, 4)) -> Program:
    """sin(a @ w), sharded over both axes of `m`, named ("x", "y")."""
    s, t, out = (NamedSharding(m, p) for p in (P("x", "y"), P("y", None), P("x", None)))
    args = jax.device_put(arr(8, 4), s), jax.device_put(arr(4, 4), t)
    if m.axis_types[0] == Explicit:
        return Program(jax.jit(lambda a, w: jnp.sin(jnp.einsum("ij,jk->ik", a, w, out_sharding=out))), args)
    fun = jax.jit(lambda a, w: jnp.sin(a @ w), in_shardings=(s, t), out_shardings=out)
    return Program(fun, args, specs=(spec((8, 4)), spec((4, 4))))


NAMES = {"x": "data", "y": "model"}
both_axis_types = each("axis_type", [Auto, Explicit])


@functools.cache
def renamed(axis_type: AxisType) -> tuple[Any, Program]:
    p = _product(mesh((4, 2), ("x", "y"), axis_type))
    return jaxexp.deserialize(export_with(jaxexp, p).serialize(vjp_order=2)), p


@both_axis_types
def test_shardings_by_other_axis_names(axis_type: AxisType) -> None:
    exported, _ = renamed(axis_type)
    concrete = mesh((4, 2), ("data", "model"), axis_type)
    memory_kinds = [s.memory_kind for s in exported._in_named_shardings]
    partitions = P("data", "model"), P("model", None)
    for m in (concrete, concrete.abstract_mesh):
        ins = exported.in_shardings_jax(m, axis_names=NAMES)
        assert ins == tuple(NamedSharding(m, p, memory_kind=k) for p, k in zip(partitions, memory_kinds, strict=True))
        (out,) = exported.out_shardings_jax(m, axis_names=NAMES)
        assert out == NamedSharding(m, P("data", None), memory_kind=exported._out_named_shardings[0].memory_kind)


@both_axis_types
def test_calls_on_a_mesh_of_other_axis_names(axis_type: AxisType) -> None:
    exported, p = renamed(axis_type)
    plain = tuple(np.asarray(a) for a in p.args)

    for how, permuted in (("eager", True), ("in a mesh context", False)):
        m = mesh((4, 2), ("data", "model"), axis_type)
        if permuted:
            m = Mesh(m.devices[::-1, ::-1], m.axis_names, axis_types=m.axis_types)
        shardings = exported.in_shardings_jax(m, axis_names=NAMES)
        args = tuple(map(jax.device_put, plain, shardings))
        (out,) = exported.out_shardings_jax(m, axis_names=NAMES)
        with jax.set_mesh(m) if how == "in a mesh context" else contextlib.nullcontext():
            found = jit_of(how, exported.call)(*args)
            # The result is of use beside an argument, and can be differentiated.
            beside = jax.jit(lambda a, w: exported.call(a, w) + a)(*args)
            first = jax.jit(lambda *args: pull_back(exported.call, args, {}))(*args)
        assert found.sharding.is_equivalent_to(out, 2)
        assert_same_values(found, p.live(*p.args))
        np.testing.assert_allclose(beside, np.asarray(p.live(*p.args)) + arr(8, 4), rtol=1e-5)
        assert_same_values(first, pull_back(lambda a, w: jnp.sin(a @ w), plain, {}))
        for cotangent, s in zip(first[0], shardings, strict=True):
            assert cotangent.sharding.is_equivalent_to(s, 2)


def test_axis_names_that_swap() -> None:
    """The names of the export with another meaning: positions count."""
    exported, p = renamed(Auto)
    m = mesh((4, 2), ("y", "x"))
    shardings = exported.in_shardings_jax(m, axis_names={"x": "y", "y": "x"})
    assert shardings[0].spec == P("y", "x")
    args = [jax.device_put(np.asarray(a), s) for a, s in zip(p.args, shardings, strict=True)]
    for call in exported.call, jax.jit(exported.call):
        assert_same_values(call(*args), p.live(*p.args))


def test_axis_names_of_compound_and_unspecified_shardings() -> None:
    m = mesh((2, 2, 2), ("x", "y", "z"))
    fun = jax.jit(lambda a, b: a[:, 0] + b, in_shardings=(NamedSharding(m, P(("x", "z"), None, "y")), None))
    exported = jaxexp.export(fun)(spec((4, 4, 4)), spec((4, 4)))
    other = mesh((2, 2, 2), ("p", "q", "r"))
    first, second = exported.in_shardings_jax(other, axis_names={"z": "r", "y": "q", "x": "p"})
    assert (first.spec, second) == (P(("p", "r"), None, "q"), None)
    reduced = NamedSharding(abstract(Explicit), P("x", reduced={"y"}))
    replaced = dataclasses.replace(exported, _in_named_shardings=(reduced, reduced.update(spec=P(unreduced={"x"}))))
    one, two = replaced.in_shardings_jax(mesh((4, 2), ("a", "b"), Explicit), axis_names={"x": "a", "y": "b"})
    assert (one.spec, two.spec) == (P("a", reduced={"b"}), P(unreduced={"a"}))


WRONG_NAMES = {
    "lacks 'y'.*leaves out.*'model'": {"x": "data"},
    "not exported with: 'z'.*does not have: 'other'": {"x": "data", "y": "model", "z": "other"},
    "does not have: 'expert'": {"x": "data", "y": "expert"},
    "more than once: 'data'": {"x": "data", "y": "data"},
    r"order.*\('model', 'data'\), not \('data', 'model'\)": {"x": "model", "y": "data"},
    "lacks 'x', 'y'": {},
}


def test_wrong_axis_names() -> None:
    exported, _ = renamed(Auto)
    m = mesh((4, 2), ("data", "model"))
    for match, names in WRONG_NAMES.items():
        for shardings in exported.in_shardings_jax, exported.out_shardings_jax:
            with pytest.raises(jaxexp.errors.ExportError, match=match):
                shardings(m, axis_names=names)
    for match, other in (  # they do not excuse another mesh
        (r"axis_sizes \(4, 2\).*\(2, 4\)", mesh((2, 4), ("data", "model"))),
        (r"axis_types.*Auto.*Explicit", mesh((4, 2), ("data", "model"), Explicit)),
        (r"leaves out.*'more'", mesh((4, 2, 1), ("data", "model", "more"))),
        ("pass the mesh", None),
    ):
        with pytest.raises(jaxexp.errors.ExportError, match=match):
            exported.in_shardings_jax(other, axis_names=NAMES)
    with pytest.raises(jaxexp.errors.ExportError, match=r"axis_names=.*exported: given"):
        exported.in_shardings_jax(m)


def test_cotangent_on_a_mesh_of_other_axis_types() -> None:
    """A function of Auto axes gives cotangents without an Explicit sharding, which an Explicit argument needs."""
    x = jax.device_put(arr(8), NamedSharding(mesh((8,), ("x",), Explicit), P("x")))

    def provoke(library: Any) -> Any:
        call = centred()[name_of(library)].call
        return jax.jit(jax.grad(lambda x: (call(x) ** 2).sum()))(x)

    raises_alike(provoke, match="differentiating.*axis types")

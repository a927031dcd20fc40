"""Functions of several devices through both libraries in both directions, as in test_differential.py.

The placement of results is compared as well. The cases are those of kit/sharded.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export as jax_export
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import jaxexp
from jaxexp import _jax
from jaxexp._errors import DeserializationError, ExportTypeError
from jaxexp._kernel.function import sharding
from kit.alike import raises_alike
from kit.compare import assert_same_fields, assert_same_placement, assert_same_values, chain, module_interface
from kit.corpus import Program, arr, export_with, f32, mesh, spec
from kit.derivatives import pull_back, second_order
from kit.each import each
from kit.sharded.all import CASES, exported, loaded, name_of, program
from kit.sharded.case import LIBRARIES, Auto, Explicit, abstract, abstract_mesh_by_default, gspmd

pytestmark = pytest.mark.jax

every_case = pytest.mark.parametrize("name", CASES)
some = pytest.mark.wide(one_in=12, promise="functions of several devices go through both libraries")


@functools.cache
def results(name: str, how: str) -> Any:
    p, call = program(name), loaded("jax to jax", name).call
    if how == "live":
        with CASES[name].exporting() if CASES[name].calling is contextlib.nullcontext else CASES[name].calling():
            return p.live(*p.args)
    with CASES[name].calling():
        return (jax.jit(call) if how == "jitted" else call)(*p.args)


@every_case
@pytest.mark.wide(one_in=6, promise="functions of several devices are exported, read and written as by jax.export")
def test_exports_the_same(name: str) -> None:
    order = CASES[name].shared_order
    with CASES[name].exporting():
        links = list(zip(chain(exported("ours", name), order), chain(exported("jax", name), order), strict=True))
        if order < CASES[name].vjp_order:
            with pytest.raises(ValueError):
                links[-1][1].vjp()
    for ours, theirs in links:
        assert_same_fields(ours, theirs, module=False)
        assert module_interface(ours) == module_interface(theirs)
    for reader, writer in ("ours", "jax"), ("jax", "ours"), ("ours", "ours"):
        found = loaded(f"{writer} to {reader}", name)
        for ours, theirs in zip(chain(found, order), chain(loaded("jax to jax", name), order), strict=True):
            assert_same_fields(ours, theirs, module=False)
        again = jax_export.deserialize(bytearray(found.serialize(vjp_order=order)))
        assert_same_fields(again, found)


@every_case
@some
def test_computes_the_same(name: str) -> None:
    p = program(name)
    for route in ("ours to jax", "jax to ours"):
        call = loaded(route, name).call
        if not p.callable_here:
            raises_alike(lambda library: loaded(f"jax to {name_of(library)}", name).call(jnp.zeros((8, 4), f32)))
            continue
        for how in "eager", "jitted":
            with CASES[name].calling():
                found = (jax.jit(call) if how == "jitted" else call)(*p.args)
            assert_same_values(found, results(name, "live"))
            assert_same_placement(found, results(name, how))


differentiated = [name for name, c in CASES.items() if c.vjp_order and name != "mesh_of_tpus_by_context"]


@pytest.mark.parametrize("name", differentiated)
@some
def test_first_derivatives(name: str) -> None:
    p, c = program(name), CASES[name]

    def derivatives(fun: Any) -> Any:
        def pulled(*args: Any) -> Any:
            return pull_back(fun, args, {})

        with c.calling():
            # Under jit, JAX itself does not find the mesh of a result among several.
            return (jax.jit(pulled) if c.shared_order else pulled)(*p.args)

    theirs = None
    if c.shared_order and c.theirs_usable:
        theirs = derivatives(loaded("jax to jax", name).call)
    elif c.shared_order:
        with pytest.raises(ValueError):
            derivatives(loaded("jax to jax", name).call)
    expected = derivatives(p.live) if theirs is None else theirs
    for route in ("ours to ours", "jax to ours"):
        if route == "jax to ours" and not c.shared_order:
            assert not loaded(route, name).has_vjp()
            continue
        found = derivatives(loaded(route, name).call)
        assert_same_values(found, expected)
        if theirs is not None:
            assert_same_placement(found, theirs)


@pytest.mark.parametrize("name", [name for name, c in CASES.items() if c.vjp_order > 1])
@some
def test_second_derivatives(name: str) -> None:
    c, p = CASES[name], program(name)
    expected = second_order(p.live, p.args, {})
    assert any(jnp.any(x != 0) for x in expected)
    for route in ("ours to jax", "jax to ours"):
        if c.shared_order < 2 and route == "jax to ours":
            with pytest.raises(jaxexp.errors.ExportError, match="vjp_order"):
                second_order(loaded(route, name).call, p.args, {})
        else:
            assert_same_values(second_order(loaded(route, name).call, p.args, {}), expected)


def _reduced_programs() -> dict[str, tuple[Any, tuple[Any, ...], Callable[[Any], Any]]]:
    """A function, its arguments, and how to make something of its result that can be summed up."""
    m = mesh((4, 2), ("x", "y"), Explicit)
    row, whole = NamedSharding(m, P("x", None)), NamedSharding(m, P(None, None, reduced={"x"}))
    a, b = jax.device_put(arr(4, 4), row), jax.device_put(arr(4, 4, seed=1), whole)
    left, right = (jax.device_put(arr(4, 4), NamedSharding(m, p)) for p in (P("x", "y"), P("y", None)))
    partial = NamedSharding(m, P("x", None, unreduced={"y"}))
    product = jax.jit(lambda a, b: jnp.einsum("ij,jk->ik", a, b, out_sharding=partial))
    return {
        "reduced argument": (jax.jit(lambda a, b: a @ b), (a, b), lambda r: r),
        "reduced result": (jax.jit(lambda a, b: (a + 1, jnp.sin(b))), (a, b), lambda r: r[0] @ r[1]),
        "unreduced argument": (jax.jit(lambda u: jax.sharding.reshard(u, row)), (product(left, right),), lambda r: r),
        "unreduced result": (product, (left, right), lambda r: jax.sharding.reshard(r, row)),
    }


@each("name", ["reduced argument", "reduced result", "unreduced argument", "unreduced result"])
def test_derivatives_by_reduced_and_unreduced_arrays(name: str) -> None:
    """The cotangent of a reduced array is unreduced, and the other way round; jax.export stops at all of them."""
    fun, args, finish = _reduced_programs()[name]

    def gradient(call: Any) -> Any:
        def loss(*args: Any) -> Any:
            return jnp.sum(jnp.sin(finish(call(*args))))

        with jax.set_mesh(args[0].sharding.mesh):
            return jax.jit(jax.grad(loss, tuple(range(len(args)))))(*args)

    def whole(x: Any) -> Any:
        """How a sum is spread over its terms is up to the compiler."""
        summed = NamedSharding(x.sharding.mesh, P(*x.sharding.spec.partitions))
        return np.asarray(jax.jit(lambda x: jax.sharding.reshard(x, summed))(x) if x.sharding.spec.unreduced else x)

    expected = gradient(fun)
    for writer in LIBRARIES:
        source = export_with(LIBRARIES[writer], Program(fun, args))
        if writer == "jax" and name.endswith("result"):
            with pytest.raises(ValueError):
                source.vjp()
            continue
        blob = bytearray(source.serialize(vjp_order=1))
        if name != "unreduced result":
            with pytest.raises((ValueError, AssertionError)):
                gradient(jax_export.deserialize(blob).call)
        found = gradient(jaxexp.deserialize(blob).call)
        assert_same_placement(found, expected)
        assert [x.sharding.spec for x in found] == [x.sharding.spec for x in expected]
        assert_same_values([whole(x) for x in found], [whole(x) for x in expected])


def test_unreduced_by_another_operation_is_refused() -> None:
    """The format says which axes are unreduced, not how: anything but a sum would be read as a sum."""
    kinds = getattr(jax.sharding, "UnreducedKind", None)
    if kinds is None:
        with pytest.raises(TypeError):
            P("x", unreduced={"y"}, unreduced_kind="max")
        return
    s = NamedSharding(abstract(Explicit), P("x", unreduced={"y"}, unreduced_kind=kinds.max))
    exported = dataclasses.replace(jaxexp.export(jax.jit(jnp.sin))(arr(4)), _in_named_shardings=(s,))
    with pytest.raises(jaxexp.errors.SerializationError, match="unreduced"):
        exported.serialize()


def test_result_whose_sharding_is_left_open() -> None:
    """With Explicit and Auto axes in one mesh, JAX may leave the Auto ones of a result open. The format cannot."""
    m = jax.make_mesh((4, 2), ("x", "y"), axis_types=(Explicit, Auto))
    x = jax.device_put(arr(8, 4), NamedSharding(m, P("x", "y")))
    fun = jax.jit(lambda x: jnp.sin(x))
    ours, theirs = (library.export(fun)(x) for library in (jaxexp, jax_export))
    assert_same_fields(ours, theirs, module=False)
    assert P.UNCONSTRAINED in ours._out_named_shardings[0].spec
    assert_same_values(ours.call(x), fun(x))
    assert_same_placement(ours.call(x), theirs.call(x))
    with pytest.raises(jaxexp.errors.SerializationError, match=r"_out_named_shardings\[0\].*UNCONSTRAINED"):
        ours.serialize()
    with pytest.raises(TypeError):
        theirs.serialize()


def test_made_up_meshes() -> None:
    """Of a live sharding as jax.export makes them, of an artifact from before meshes were stored with Auto axes."""
    live_sharding = gspmd(mesh((4, 2), ("x", "y")), P("y", "x"), 2)
    live, theirs = (
        library.export(jax.jit(jnp.sin, in_shardings=live_sharding))(spec((8, 8))) for library in (jaxexp, jax_export)
    )
    (ours,), (expected,) = live._in_named_shardings, theirs._in_named_shardings
    assert ours == expected
    assert ours.mesh.axis_types == abstract_mesh_by_default().axis_types
    assert ours.mesh.abstract_device == expected.mesh.abstract_device
    old = sharding.from_proto(live_sharding._hlo_sharding.to_proto().SerializeToString(), live.in_avals[0])
    assert old.mesh.axis_types == (Auto, Auto)
    assert old.spec == ours.spec
    assert old.mesh.axis_sizes == ours.mesh.axis_sizes


def tiled(tiles: list[int], lengths: list[int], order: list[int], replicas: str = "") -> _jax.OpSharding:
    proto = _jax.OpSharding()
    proto.type = _jax.OpSharding.Type.OTHER
    proto.tile_assignment_dimensions = tiles
    proto.iota_reshape_dims, proto.iota_transpose_perm = lengths, order
    if replicas == "last":
        proto.replicate_on_last_tile_dim = True
    elif replicas == "subgroup":
        proto.last_tile_dims = [_jax.OpSharding.Type.REPLICATED]
    return proto


IOTAS = [
    *([[8, 1], [8], [0]], [[4, 2], [8], [0]], [[2, 4], [4, 2], [1, 0]], [[1, 8], [4, 2], [1, 0]]),
    *([[6], [2, 3], [0, 1]], [[3, 2], [2, 3], [1, 0]], [[12, 3], [3, 4, 3], [1, 0, 2]], [[36], [6, 6], [1, 0]]),
    *([[2, 3, 4], [4, 3, 2], [2, 1, 0]], [[4, 1, 2], [2, 2, 2], [2, 0, 1]], [[1, 12], [2, 6], [1, 0]]),
]


@each("tiles, lengths, order", IOTAS)
def test_axes_are_those_that_xla_finds(tiles: list[int], lengths: list[int], order: list[int]) -> None:
    """JAX lists the devices and XLA their axes; both agree with what is computed from the numbers."""
    for replicas in ("", "last", "subgroup"):
        proto = tiled(tiles, lengths, order, replicas)
        hlo = _jax.HloSharding.from_proto(proto)
        if hlo.is_replicated():
            continue
        sizes, spec = sharding._axes_of_iota(proto)
        sharding._check_tiles(hlo)
        assert list(sizes) == list(hlo.get_axis_sizes()), replicas
        mesh = _jax.AbstractMesh(sizes, sharding._axis_names(sizes), (_jax.AxisType.Auto,) * len(sizes))
        assert [spec] == _jax.partition_specs_of_hlo(hlo, mesh), replicas


def test_parts_of_axes_are_refused() -> None:
    """XLA 2026 ends the process when it is asked for the axes of this one."""
    proto = tiled([18, 2], [3, 4, 3], [1, 0, 2])
    with pytest.raises(ExportTypeError, match="divides an axis"):
        sharding._axes_of_iota(proto)
    with pytest.raises(DeserializationError, match="that a mesh can express"):
        sharding.from_proto(proto.SerializeToString(), _jax.ShapedArray((36, 2), "float32"))


def test_devices_are_not_listed() -> None:
    for order, axes in (([0, 1], 1), ([1, 0], 2)):
        sizes, spec = sharding._axes_of_iota(tiled([2**31], [2**15, 2**16], order))
        assert math.prod(sizes) == 2**31
        assert (len(sizes), len(spec)) == (axes, 1)

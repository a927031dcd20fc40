"""`jax.shard_map` is read back as itself, with its collectives, on eight devices."""

from __future__ import annotations

import collections
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import jaxexp
from jaxexp import _jax
from jaxexp._readback import reader
from jaxexp._readback.read_back import OPERATIONS
from jaxexp._readback.refused import RefusedError
from kit.batches import equations, reload
from kit.corpus import arr, export_with, mesh
from kit.each import each
from kit.harnesses import numbers
from kit.places import GOLDEN
from kit.raising import assert_same_bits, no_loops
from kit.sharded.all import CASES
from kit.snippets.devices import MESH as MESH_OF_MODULE
from kit.snippets.snippet import Snippet

pytestmark = pytest.mark.jax

MESH = mesh((2, 4), ("x", "y"))
X = arr(8, 16)
COLLECTIVES = "psum pmax pmin all_gather reduce_scatter all_to_all ppermute axis_index shard_map".split()


WHOLE, OVER_X = P("x", "y"), P("x")


def mapped(body: Callable[..., Any], in_specs: Any = WHOLE, out_specs: Any = WHOLE, **options: Any) -> Any:
    return jax.jit(jax.shard_map(body, mesh=MESH, in_specs=in_specs, out_specs=out_specs, **options))


def over_x(body: Callable[..., Any], out: Any = OVER_X) -> Any:
    """Manual along x; the compiler has y."""
    return mapped(body, OVER_X, out, axis_names={"x"})


def looped(x: Any) -> Any:
    def step(carry: Any, row: Any) -> tuple[Any, Any]:
        return lax.psum(carry * row, "y") / 4 + carry, lax.ppermute(carry, "x", [(0, 1), (1, 0)])

    last, rows = lax.scan(step, x[0], x)
    return rows + last


def switched(x: Any) -> Any:
    return lax.cond(lax.axis_index("y") > 1, jnp.sin, jnp.cos, x)


@jax.jit
def normalized(x: Any) -> Any:
    return x / lax.pmean(x, ("x", "y"))


FUNCTIONS: dict[str, Any] = {
    "sums": mapped(lambda x: (lax.psum(x, "x"), lax.psum(x, ("y", "x"))), out_specs=(P(None, "y"), P())),
    "extremes": mapped(lambda x: (lax.pmax(x, "y"), lax.pmin(x.astype(int), "x")), out_specs=(P("x"), P(None, "y"))),
    "sums in groups": mapped(lambda x: lax.psum(x, "y", axis_index_groups=[[0, 3], [2, 1]]), check_vma=False),
    "gathered over both": mapped(lambda x: lax.all_gather(x, ("y", "x"), axis=1, tiled=True), out_specs=P("x", "y")),
    "scattered, without the axis": mapped(lambda x: lax.psum_scatter(x, "y"), out_specs=P(("x", "y"))),
    "exchanged, without the axis": mapped(lambda x: lax.all_to_all(x, "y", 0, 1)),
    "permuted over both": mapped(lambda x: lax.ppermute(x, ("x", "y"), [(i, 7 - i) for i in range(8)])),
    "indices": mapped(lambda x: x * lax.axis_index("x") + lax.axis_index(("y", "x"))),
    "over one axis": over_x(lambda x: lax.psum(jnp.sin(x), "x") @ x.T, P(None, "x")),
    "index over one axis": over_x(lambda x: x + lax.axis_index("x")),
    "constants": mapped(lambda x: x + lax.psum(jnp.full((4, 4), 0.1), ("x", "y"))),
    "loop": mapped(looped),
    "branches": mapped(switched),
    "functions": mapped(lambda x: normalized(normalized(x))),
    "around it": lambda x: jnp.sin(mapped(lambda x: lax.psum(x, "x"), out_specs=P(None, "y"))(x * 2)) + 1,
}


def placed(*arrays: Any, m: Any = MESH) -> list[Any]:
    return [jax.device_put(array, NamedSharding(m, P())) for array in arrays]


def loaded(function: Any, vjp_order: int = 0) -> jaxexp.Exported:
    return reload(jaxexp.export(jax.jit(function))(*placed(X)), vjp_order)


def collectives(jaxpr: Any) -> dict[str, int]:
    counted = collections.Counter(one.primitive.name.removesuffix("_invariant") for one in equations(jaxpr))
    return {name: counted[name] for name in COLLECTIVES}


@pytest.mark.wide(one_in=6, promise="jax.shard_map is read back with its collectives, gives the same bits, and maps")
@pytest.mark.parametrize("name", FUNCTIONS)
def test_values(name: str) -> None:
    exported, (x,) = loaded(FUNCTIONS[name]), placed(X)
    expected = jax.tree.leaves(exported.call(x))
    for run in (exported.raised(), jax.jit(exported.raised())):
        assert_same_bits(jax.tree.leaves(run(x)), expected)
    live = collectives(jax.make_jaxpr(FUNCTIONS[name])(X).jaxpr)
    assert collectives(exported.make_jaxpr().jaxpr) == live
    assert live["shard_map"] >= 1
    (rows,) = placed(np.stack([X, X[::-1], 2 * X]))
    with no_loops():
        found = jax.tree.leaves(jax.jit(jax.vmap(exported.call))(rows))
    of_rows = [jax.tree.leaves(exported.call(row)) for row in placed(*np.asarray(rows))]
    for one, column in zip(found, zip(*of_rows, strict=True), strict=True):
        np.testing.assert_allclose(one, np.stack(column), rtol=1e-5, atol=1e-5)


@pytest.mark.wide(one_in=3, promise="a batch of gradients of a jax.shard_map is no loop")
@pytest.mark.parametrize("name", ["around it", "gathered over both", "loop"])
def test_gradients_of_each_element(name: str) -> None:
    exported = loaded(FUNCTIONS[name], 1)
    (rows,) = placed(np.stack([X, X[::-1], 2 * X]))

    def gradient(function: Any) -> Any:
        return jax.grad(lambda x: sum((leaf**2).sum() for leaf in jax.tree.leaves(function(x))))

    with no_loops():
        found = jax.jit(jax.vmap(gradient(exported.call)))(rows)
    np.testing.assert_allclose(found, np.stack([gradient(FUNCTIONS[name])(row) for row in placed(*rows)]), rtol=1e-5)


MANUAL = [name for name in CASES if name.startswith("mapped_")]


@pytest.mark.wide(one_in=6, promise="functions with manual axes of all kinds are raised")
@pytest.mark.parametrize("name", MANUAL)
def test_functions_of_all_kinds(name: str) -> None:
    case = CASES[name]
    with case.exporting():
        program = case.build()
        exported = jaxexp.deserialize(export_with(jaxexp, program).serialize())
    with case.calling():
        found = jax.jit(exported.raised())(*program.args, **program.kwargs)
        assert_same_bits(jax.tree.leaves(found), jax.tree.leaves(exported.call(*program.args, **program.kwargs)))


OLD = [
    path.relative_to(GOLDEN).as_posix()
    for pattern in ("before_shardy/*/shard_map_*.bin", "compat/*/shard_map_psum.bin", "*/shard_map_psum.bin")
    for path in sorted(GOLDEN.glob(pattern))
]
# One axis is the compiler's, which Shardy cannot say of these; the module stays on the old partitioner.
NOT_EXPRESSIBLE = "shard_map_partly.bin"


@pytest.mark.wide(one_in=20, promise="manual computations of old releases are raised")
@pytest.mark.parametrize("name", OLD)
def test_artifacts_of_releases(name: str) -> None:
    """And their VJPs."""
    function: jaxexp.Exported | None = jaxexp.load(GOLDEN / name)
    rng = np.random.default_rng(0)
    while function is not None:
        values = [rng.normal(size=aval.shape).astype(aval.dtype) for aval in function.in_avals]
        args = list(map(jax.device_put, values, function.in_shardings_jax(function.make_mesh())))
        flat = function.in_tree.unflatten(args)
        if name.endswith(NOT_EXPRESSIBLE):
            with pytest.raises(jaxexp.errors.UnsupportedError, match=r"mhlo\.sharding"):
                function.raised()(*flat[0])
            return
        found = jax.jit(function.raised())(*flat[0])
        assert_same_bits(jax.tree.leaves(found), jax.tree.leaves(function.call(*flat[0])))
        function = function.vjp() if function.has_vjp() else None


# --- meshes of the caller

OTHER = mesh((2, 2, 2), ("a", "b", "c"))
EXPLICIT = mesh((2, 4), ("x", "y"), jax.sharding.AxisType.Explicit)


@pytest.mark.wide(one_in=5, promise="a raised jax.shard_map runs where the caller has set a mesh")
@pytest.mark.parametrize("m", [MESH, OTHER, EXPLICIT], ids=["same", "other", "explicit"])
@pytest.mark.parametrize("name", ["sums", "indices", "around it"])
def test_where_the_caller_has_set_a_mesh(name: str, m: Any) -> None:
    exported = loaded(FUNCTIONS[name])
    (x,) = placed(X)
    expected = list(map(np.asarray, jax.tree.leaves(exported.call(x))))
    assert_same_bits(jax.tree.leaves(jax.jit(exported.raised())(x)), expected)  # and JAX keeps what it traced
    with jax.set_mesh(m):
        x = jax.device_put(X, NamedSharding(m, P(m.axis_names[0])))
        assert_same_bits(jax.tree.leaves(jax.jit(exported.raised())(x)), expected)
        assert_same_bits(jax.tree.leaves(exported.raised()(x)), expected)
        doubled = jax.jit(lambda x: [leaf * 2 for leaf in jax.tree.leaves(exported.raised()(1 * x))])
        assert_same_bits(doubled(x), [leaf * 2 for leaf in expected])
        (rows,) = placed(X[None], m=m)
        with no_loops():
            found = jax.jit(jax.vmap(exported.call))(rows)
        assert_same_bits([leaf[0] for leaf in jax.tree.leaves(found)], expected)


def test_over_one_axis_where_the_caller_has_set_a_mesh() -> None:
    """JAX would look for the axes of the function's mesh on the one that is set; in a batch, it cannot."""
    exported = loaded(FUNCTIONS["index over one axis"])
    (x,) = placed(X)
    expected = exported.call(x)
    with jax.set_mesh(MESH):
        assert_same_bits([jax.jit(exported.raised())(x)], [expected])
    with jax.set_mesh(OTHER):
        x = jax.device_put(X, NamedSharding(OTHER, P("a")))
        with pytest.raises(
            jaxexp.errors.UnsupportedError, match=r"over some axes, where jax.set_mesh has set a mesh of other"
        ):
            jax.jit(exported.raised())(x)
        with no_loops():
            found = jax.jit(jax.vmap(exported.call))(x[None])
        assert_same_bits([found[0]], [expected])


def test_on_too_few_devices() -> None:
    exported = loaded(FUNCTIONS["sums"])
    for run in (exported.raised(), jax.jit(exported.raised()), lambda x: jax.vmap(exported.raised())(x[None])):
        with pytest.raises(jaxexp.errors.ExportError, match="exported for 8 devices, and is called on 1"):
            run(X)


@each("axes", [{"x", "y"}, {"x"}])
def test_inside_another(axes: set[str]) -> None:
    exported = loaded(FUNCTIONS["sums"])
    for run in (exported.call, exported.raised()):
        inside = jax.shard_map(run, mesh=MESH, in_specs=P(), out_specs=P(), axis_names=axes, check_vma=False)
        with pytest.raises(jaxexp.errors.ExportError, match=r"inside jax\.shard_map.*Call it outside"):
            jax.jit(inside)(*placed(X))


def test_exported_again_for_another_platform() -> None:
    again = jaxexp.export(jax.jit(loaded(FUNCTIONS["around it"]).raised()), platforms=["cpu", "tpu"])(*placed(X))
    assert again.nr_devices == 8
    (x,) = placed(X)
    assert_same_bits([again.call(x)], [jax.jit(FUNCTIONS["around it"])(x)])


def test_keys() -> None:
    """Arrays of keys beside a `jax.shard_map`."""
    function = lambda key, x: (jax.random.split(key), mapped(lambda x: lax.psum(x, "x"), out_specs=P(None, "y"))(x))  # noqa: E731
    args = placed(jax.random.key(3), X)
    exported = reload(jaxexp.export(jax.jit(function))(*args), 0)
    assert_same_bits(numbers(exported.raised()(*args)), numbers(exported.call(*args)))


def test_on_one_device() -> None:
    """There, JAX writes the collectives without a manual computation around them."""
    one = mesh((1,), ("i",))

    def body(x: Any) -> Any:
        x = lax.psum(lax.all_gather(x, "i", tiled=True), "i") + lax.axis_index("i")
        return lax.ppermute(lax.psum_scatter(lax.all_to_all(x, "i", 0, 1, tiled=True), "i", tiled=True), "i", [(0, 0)])

    exported = reload(jaxexp.export(jax.jit(jax.shard_map(body, mesh=one, in_specs=P("i"), out_specs=P("i"))))(X), 0)
    assert_same_bits([exported.raised()(X)], [X])
    with no_loops():
        assert_same_bits([jax.vmap(exported.call)(X[None])], [X[None]])


def test_constraints_of_axes_that_are_not_manual() -> None:
    function = over_x(lambda x: lax.with_sharding_constraint(lax.psum(x, "x"), P(None, "y")), P())
    text = jax.jit(loaded(function).raised()).lower(*placed(X)).as_text()
    assert re.search(r'sdy.sharding_constraint .*\[\{\}, \{"y"\}\]', text)


# --- refused

CHANNEL = "channel_handle = #stablehlo.channel_handle<handle = 1, type = 0>, "
FLAG = ", use_global_device_ids"


def all_reduce(operation: str = "add", groups: str = "[[0, 1, 2, 3], [4, 5, 6, 7]]", part: str = "4x2xf32") -> str:
    sizes = f"{groups.count('[') - 1}x{groups.partition(']')[0].count(',') + 1}"
    return (
        f'%s = "stablehlo.all_reduce"(%a) <{{{CHANNEL}replica_groups = dense<{groups}> : tensor<{sizes}xi64>{FLAG}}}>'
        f" ({{\n^bb0(%b: <<f32>>, %c: <<f32>>):\n%d = stablehlo.{operation} %b, %c : <<f32>>\n"
        f"stablehlo.return %d : <<f32>>\n}}) : (<<{part}>>) -> <<{part}>>"
    )


NEIGHBOURS = "[[0, 1], [2, 3], [4, 6], [5, 7]]"
ON_BOTH, ON_X = ('"x", "y"', '[{"x"}, {"y"}]', "4x2xf32"), ('"x"', '[{"x", ?}, {?}]', "4x8xf32")
REFUSED = {
    "another reduction": (all_reduce("multiply"), ON_BOTH, "whose reduction is not psum, pmax or pmin"),
    "groups of other numbers": (all_reduce().replace(FLAG, ""), ON_BOTH, "whose groups do not have the numbers of"),
    "replicas": (all_reduce().replace(FLAG, "").replace(CHANNEL, ""), ON_BOTH, "among replicas, of which JAX has one"),
    "an axis that is not manual": (
        all_reduce(part="4x8xf32"), ON_X, "among devices that no mesh axes of its jax.shard_map connect"
    ),
    "other groups on the other axis": (
        all_reduce(groups=NEIGHBOURS, part="4x8xf32"), ON_X, "among devices that no mesh axes of its"
    ),
    "groups of other sizes": (
        all_reduce(groups="[[0, 1, 2], [3, -1, -1]]"), ON_BOTH, "whose devices are not all on its mesh"
    ),
    "part of a named axis": (
        re.sub(
            r"dense<.*xi64>",
            "#stablehlo.replica_group_mesh_axes<mesh = @mesh, "
            'axes = [#stablehlo.axis_ref<name = "y", sub_axis_info = (1)2>]>',
            all_reduce(),
        ), ON_BOTH, "over parts of a mesh axis"
    ),
    "the device's number where an axis is not manual": (
        "%n = stablehlo.partition_id : <<ui32>>\n%f = stablehlo.convert %n : (<<ui32>>) -> <<f32>>\n"
        "%g = stablehlo.broadcast_in_dim %f, dims = [] : (<<f32>>) -> <<4x8xf32>>\n"
        "%s = stablehlo.add %a, %g : <<4x8xf32>>", ON_X, "outside of a jax.shard_map over the mesh axes that it needs"
    ),
}  # fmt: skip


@each("name", REFUSED)
def test_what_is_refused(name: str) -> None:
    body, (axes, spec, part), why = REFUSED[name]
    text = (
        f"%r = sdy.manual_computation(%0) in_shardings=[<@mesh, {spec}>] out_shardings=[<@mesh, {spec}>]"
        f" manual_axes={{{axes}}} (%a: <<{part}>>) {{\n{body}\nsdy.return %s : <<{part}>>\n}}"
        " : (<<8x8xf32>>) -> <<8x8xf32>>"
    )
    snippet = Snippet(("8x8xf32",), ("8x8xf32",), text, around=MESH_OF_MODULE, devices=8)
    with _jax.make_ir_context() as context, pytest.raises(RefusedError, match=rf"stablehlo\.\w+ \({why}"):
        reader.ModuleReader(_jax.ir.Module.parse(snippet.text, context), OPERATIONS, partitioned=True).main()


def test_collectives_outside_are_refused() -> None:
    body = all_reduce().replace("%s", "%r").replace("%a)", "%0)")
    snippet = Snippet(("4x2xf32",), ("4x2xf32",), body, devices=8)
    with pytest.raises(jaxexp.errors.UnsupportedError, match=r"all_reduce \(outside of a jax.shard_map"):
        snippet.exported().make_jaxpr()

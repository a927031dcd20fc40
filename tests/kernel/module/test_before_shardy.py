"""Functions for several devices that releases before Shardy wrote: they run, sharded as they were, on Shardy."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export as jax_export
from jax._src.config import use_shardy_partitioner
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxexp
from jaxexp import _jax
from jaxexp._kernel.module import from_gspmd, runnable
from jaxexp._kernel.write import reader
from kit import goldens, other_modules
from kit.compare import assert_same_values
from kit.compiled import compiling
from kit.corpus import mesh
from kit.derivatives import pull_back
from kit.each import each
from kit.places import GOLDEN

pytestmark = pytest.mark.jax
FOLDER = GOLDEN / "before_shardy"
ARTIFACTS = {
    f"{folder.name}/{name}": entry
    for folder in sorted(FOLDER.glob("jax-*"))
    for name, entry in json.loads((folder / "cases.json").read_text()).items()
}
# What Shardy cannot say in one mesh, or as a manual computation; the compiler falls back to the old partitioner.
NOT_EXPRESSIBLE = ("six_devices", "shard_map_partly")
TRANSLATED = [name for name in ARTIFACTS if not name.endswith(NOT_EXPRESSIBLE)]
# Results whose sharding the artifact leaves open, with operands that disagree: Shardy takes what they have in common,
# which is fewer parts than the old partitioner made.
DIVIDED_OTHERWISE = {("sub_axes", 0)}
# The old partitioner's warnings: that it is used at all, and that it will go.
FALL_BACK = re.compile("GSPMD attrs|GSPMD sharding propagation is going to be deprecated")


@pytest.fixture(autouse=True)
def _the_compiler_speaks() -> Iterator[None]:
    with compiling():
        yield


def load(name: str) -> jaxexp.Exported:
    return jaxexp.deserialize((FOLDER / f"{name}.bin").read_bytes())


def stored(name: str, kind: str) -> list[np.ndarray]:
    return goldens.stored(FOLDER / f"{name}.npz", kind)


def arguments(name: str) -> list[Any]:
    """The stored arguments, where the artifact wants them."""
    values, exported = stored(name, "in"), load(name)
    if name.endswith("/sub_axes"):
        # JAX has to express the first result's sharding, which is open, on the caller's mesh: it takes fine axes.
        fine = mesh((2, 2, 2), ("a", "b", "c"))
        specs = P(("a", "b"), "c"), P(None, ("a", "b", "c"))
        return [jax.device_put(x, NamedSharding(fine, spec)) for x, spec in zip(values, specs, strict=True)]
    placed = []
    for x, aval, sharding in zip(values, exported.in_avals, exported._in_named_shardings, strict=True):
        devices = np.array(jax.devices()[: exported.nr_devices])
        spec = P() if sharding is None else sharding.spec
        m = sharding.mesh if sharding is not None and not sharding.mesh.empty else None
        shape, names = (m.axis_sizes, m.axis_names) if m is not None else (devices.shape, ("i",))
        assert x.dtype == aval.dtype
        placed.append(jax.device_put(x, NamedSharding(Mesh(devices.reshape(shape), names), spec)))
    return placed


def parts(x: Any) -> list[Any]:
    """For each device in order, the starts and ends of the part of an array that it holds."""
    held = x.sharding.devices_indices_map(x.shape)
    return [
        [list(s.indices(n)[:2]) for s, n in zip(held[device], x.shape, strict=True)]
        for device in jax.devices()[: len(held)]
    ]


@pytest.mark.wide(one_in=3, promise="what releases before Shardy sharded runs, sharded as it was, on Shardy")
@pytest.mark.parametrize("name", TRANSLATED)
def test_runs_sharded_on_shardy(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    exported, expected = load(name), ARTIFACTS[name]
    args = arguments(name)
    assert [parts(x) for x in args] == expected["in"]
    capfd.readouterr()
    lowered = jax.jit(exported.call).lower(*args)
    results = jax.tree.leaves(lowered.compile()(*args))
    assert not FALL_BACK.search(capfd.readouterr().err)
    text = lowered.as_text()
    assert "sdy." in text
    assert not re.search(r"mhlo\.sharding|@Sharding|SPMD\w+Shape", text)
    if name == "jax-0.4.23/shard_map_inside":
        assert text.count("sdy.manual_computation") == 3
        assert "xla.sdy" not in text
    assert_same_values(results, stored(name, "out"), rtol=1e-4)
    for i, (result, wanted) in enumerate(zip(results, expected["out"], strict=True)):
        if (name.partition("/")[2], i) in DIVIDED_OTHERWISE:
            assert np.prod([end - start for start, end in parts(result)[0]]) < result.size
        else:
            assert parts(result) == wanted


@each("name", [name for name in ARTIFACTS if name not in TRANSLATED])
def test_falls_back_where_shardy_has_no_words(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    exported = load(name)
    args = arguments(name)
    results = jax.tree.leaves(jax.jit(exported.call)(*args))
    assert FALL_BACK.search(capfd.readouterr().err)
    assert_same_values(results, stored(name, "out"), rtol=1e-4)
    assert [parts(x) for x in results] == ARTIFACTS[name]["out"]


LIVE = {
    "jax-0.4.23/arguments": lambda a, b: (a * 2 + b, (a @ b.T).sum()),
    "jax-0.5.3/constraint": lambda a: jnp.sin(a) @ a.T,
}


@each("name", LIVE)
def test_derivatives(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    exported, args = load(name), tuple(arguments(name))
    found = jax.jit(lambda *args: pull_back(exported.call, args, {}))(*args)
    assert not FALL_BACK.search(capfd.readouterr().err)
    assert_same_values(found, pull_back(LIVE[name], tuple(map(np.asarray, args)), {}), rtol=1e-4)


def test_next_to_shardings_of_the_caller(capfd: pytest.CaptureFixture[str]) -> None:
    """Several old functions, of several meshes, in one function that has a mesh of its own."""
    names = ["jax-0.4.23/constraint", "jax-0.4.38/unconstrained"]
    s = NamedSharding(mesh((2, 4), ("p", "q")), P("q", "p"))
    (x,) = stored(names[0], "in")

    @jax.jit
    def function(x: Any) -> Any:
        return [jax.lax.with_sharding_constraint(load(name).call(x), s) for name in names]

    results = function(jax.device_put(x, s))
    assert not FALL_BACK.search(capfd.readouterr().err)
    for name, result in zip(names, results, strict=True):
        assert_same_values([result], stored(name, "out"), rtol=1e-4)
        assert result.sharding.is_equivalent_to(s, 2)


def test_specialized_and_exported_again(capfd: pytest.CaptureFixture[str]) -> None:
    """Both write Shardy's form, for stock jax.export too."""
    symbolic, inside = "jax-0.4.23/symbolic", "jax-0.4.23/shard_map_inside"
    args = arguments(symbolic)
    specialized = load(symbolic).specialize(*args)
    again = jaxexp.export(jax.jit(load(inside).call))(*arguments(inside))
    for exported, name in ((specialized, symbolic), (again, inside)):
        theirs = jax_export.deserialize(exported.serialize())
        results = jax.tree.leaves(jax.jit(theirs.call)(*arguments(name)))
        assert_same_values(results, stored(name, "out"), rtol=1e-4)
        assert [parts(x) for x in results] == ARTIFACTS[name]["out"]
    assert not FALL_BACK.search(capfd.readouterr().err)


def test_old_shardings_stay_where_shardy_is_off() -> None:
    exported = load("jax-0.4.23/constraint")
    for shardy in (False, True):
        with use_shardy_partitioner(shardy), _jax.make_ir_context() as context:
            text = str(runnable.parse(exported, context))
        assert ("@Sharding" in text, "mhlo.sharding" in text, "sdy." in text) == (not shardy, not shardy, shardy)


def test_one_device_has_no_shardings(capfd: pytest.CaptureFixture[str]) -> None:
    """JAX 0.4.23 wrote "{replicated}" to every argument."""
    folder = GOLDEN / "jax-0.4.23"
    exported = jaxexp.deserialize((folder / "sin.bin").read_bytes())
    assert b"mhlo.sharding" in exported.mlir_module_serialized
    (x,), expected = (goldens.stored(folder / "sin.npz", kind) for kind in ("in", "out"))
    lowered = jax.jit(exported.call).lower(x)
    assert_same_values([lowered.compile()(x)], expected)
    assert not FALL_BACK.search(capfd.readouterr().err)
    assert "mhlo.sharding" not in lowered.as_text()


def test_hints_on_any_operation_become_words_of_gspmd() -> None:
    text = """
        sdy.mesh @m = <["x"=4]>
        func.func @main(%x: tensor<8xf32>) -> tensor<8xf32> {
          %0 = stablehlo.sine %x {sdy.sharding = #sdy.sharding_per_value<[<@m, [{"x"}]>]>} : tensor<8xf32>
          %1 = stablehlo.cosine %0 {sdy.sharding_rule = #sdy.op_sharding_rule<([i])->([i]) {i=8}>} : tensor<8xf32>
          return %1 : tensor<8xf32>
        }"""
    with other_modules.context():
        module = _jax.ir.Module.parse(text)
        reader.without_shardy(module, pytest.fail)
        written = str(module)
    assert "sdy" not in written
    assert 'stablehlo.sine %arg0 {mhlo.sharding = "{devices=[4]<=[4]}"}' in written


UNWRITTEN = [
    "@Sharding(%x)",
    '@Sharding(%x) {mhlo.sharding = "{devices=[2]<=[2]}", backend_config = "unspecified_dims=[,]"}',
    "@SPMDFullToShardShape(%x)",
]


@each("call", UNWRITTEN)
def test_calls_that_no_release_writes(call: str) -> None:
    """They stay as they are."""
    said = call if "{" in call else f'{call} {{backend_config = ""}}'
    text = f"""func.func @main(%x: tensor<2xf32> {{mhlo.sharding = "{{devices=[2]<=[2]}}"}}) -> tensor<2xf32> {{
        %0 = stablehlo.custom_call {said} : (tensor<2xf32>) -> tensor<2xf32>
        return %0 : tensor<2xf32> }}"""
    serialized = other_modules.serialized(text)
    two = NamedSharding(mesh((2,), ("d",)), P())
    exported = jaxexp.export(jax.jit(lambda x: x + 1, in_shardings=two, out_shardings=two))(np.ones(2, np.float32))
    exported = dataclasses.replace(exported, mlir_module_serialized=serialized)
    with _jax.make_ir_context() as context:
        text = str(runnable.parse(exported, context))
    assert call.partition("(")[0] in text
    assert "mhlo.sharding" in text
    jaxexp.migrate(exported.serialize())


# How tilings cut the sequence of devices


TILINGS = [
    ("{replicated}", 8, ()),
    ("{devices=[8,1]<=[8]}", 8, (((1, 8),), ())),
    ("{devices=[2,4]<=[4,2]T(1,0)}", 8, (((1, 2),), ((2, 8),))),
    ("{devices=[1,8]<=[4,2]T(1,0)}", 8, ((), ((1, 2), (2, 8)))),
    ("{devices=[2,1,4]<=[8] last_tile_dim_replicate}", 8, (((4, 8),), ())),
    ("{devices=[4,1,2]<=[2,2,2]T(2,0,1) last_tile_dim_replicate}", 8, (((1, 2), (4, 8)), ())),
    ("{devices=[3,2]<=[2,3]T(1,0)}", 6, (((1, 3),), ((3, 6),))),
    ("{devices=[2,3]<=[3,2]}", 6, (((3, 6),), ((1, 3),))),
    ("{devices=[2,2]0,1,2,3}", 4, (((2, 4),), ((1, 2),))),
]


@each("text, devices, tiling", TILINGS)
def test_tilings(text: str, devices: int, tiling: Any) -> None:
    assert from_gspmd._tiling(text, devices) == tiling


NO_TILINGS = """
{maximal device=0}
{devices=[2,2]0,2,1,3}
{devices=[2,1,2]<=[4] last_tile_dims={manual}}
{devices=[2,2]<=[8]}
{devices=[3,2]<=[3,2]T(1,0)}
{devices=[4]<=[4]T(1)}
{devices=[2,2]<=[2,2]T(0,0)}
{devices=[4]<=[2,2]T(0)}
{devices=[4,0]<=[4]}
{devices=[,]<=[4]}
{devices=[4]<=[,]}
{devices=[4]0,1,2}
""".split("\n")[1:-1]


@each("text", [*NO_TILINGS, f"{{devices=[{'9' * 5000}]<=[4]}}", f"{{devices=[4]<=[{'2,' * 100_000}2]}}"])
def test_no_tilings(text: str) -> None:
    with pytest.raises(from_gspmd.NotExpressibleError):
        from_gspmd._tiling(text, 6 if "3" in text.partition("]")[0] else 4)


def test_a_list_of_devices_is_not_as_long_as_there_are_devices() -> None:
    with pytest.raises(from_gspmd.NotExpressibleError):
        from_gspmd._tiling("{devices=[8]0,1,2,3,4,5,6,7}", 1 << 40)
    ones = "1," * 200_000
    assert from_gspmd._tiling(f"{{devices=[{ones}8]<=[{ones}8]}}", 8)[-1] == ((1, 8),)

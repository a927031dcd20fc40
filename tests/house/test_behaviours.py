"""The table of behaviours: complete, and true; and the ways to fail that no other file has a reason to test."""

from __future__ import annotations

import ast
import dataclasses
import re
import types
from collections import Counter
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from jax import export as jax_export
from jax._src.lib import xla_client

import jaxexp
from jaxexp import _jax
from jaxexp._kernel.call import primitive
from jaxexp._kernel.export import export as exporting
from jaxexp._kernel.function.sharding import to_named
from kit import wire
from kit.alike import raises_alike, reload
from kit.corpus import CASES, EFFECTS, arr, export_with
from kit.places import TESTS
from tools import behaviours

pytestmark = pytest.mark.jax
ROWS = behaviours.load()


def _raises(source: Path) -> Counter[str]:
    counts: Counter[str] = Counter()

    def visit(node: ast.AST, inside: tuple[str, ...]) -> None:
        for child in ast.iter_child_nodes(node):
            named = isinstance(child, ast.FunctionDef | ast.ClassDef)
            if isinstance(child, ast.Raise) and child.exc is not None:
                counts[".".join(inside) or source.name] += 1
            visit(child, (*inside, child.name) if named else inside)

    visit(ast.parse(source.read_text()), ())
    return counts


def test_every_raise_has_a_row() -> None:
    from jax._src import export

    (folder,) = export.__path__
    rows = Counter(row["where"] for row in ROWS["failure"])
    for file in ("_export.py", "serialization.py"):
        raises = _raises(Path(folder) / file)
        assert len(raises) > 8, "the count finds what there is"
        # _export_internal is what export was called inside until JAX 0.11.
        missing = {
            function: count
            for function, count in raises.items()
            if rows[{"_export_internal": "export"}.get(function, function)] < count
        }
        assert not missing, f"places where jax.export raises and behaviours.toml has too few rows: {missing}"


def test_rows_name_tests_that_exist() -> None:
    known = {
        f"{path.relative_to(TESTS).as_posix()}::{name}"
        for path in TESTS.rglob("test_*.py")
        for name in re.findall(r"^ *def (test_\w+)\(", path.read_text(), re.MULTILINE)
    }
    named = {test for rows in ROWS.values() for row in rows for test in row["tests"]}
    assert named <= known, named - known
    assert all(row["tests"] for rows in ROWS.values() for row in rows)
    kinds = {"ValueError", "TypeError", "NotImplementedError", "ImportError"}
    assert {row["raises"] for row in ROWS["failure"]} <= kinds, "what an ExportError is"


def test_the_page_lists_the_rows() -> None:
    page = behaviours.ROOT / "docs" / "behaviours.md"
    if not page.parent.exists():
        pytest.skip("the documentation is not beside the tests")

    text = page.read_text()
    assert behaviours.without_outcomes(text) == behaviours.without_outcomes(behaviours.render({})), (
        "run `python tests/tools/behaviours.py`"
    )
    assert not re.search(r"\d failed|not run", text)


def test_mutable_arrays() -> None:
    ref = jax.new_ref(jnp.ones(3)) if hasattr(jax, "new_ref") else jax.array_ref(jnp.ones(3))

    def fun(x):
        ref[...] = ref[...] + x
        return ref[...]

    error = raises_alike(lambda library: library.export(jax.jit(fun))(arr(3)), match="Ref")
    assert isinstance(error, NotImplementedError)


def test_other_lowerings() -> None:
    """What no public function brings about in this JAX, and another JAX might."""
    with pytest.raises(jaxexp.errors.UnsupportedError, match="jit"):
        exporting._check_lowering(object(), None)
    for facts, match in (({"auto_spmd_lowering": True}, "AUTO"), ({"new_in_2030": 1}, "new_in_2030")):
        computation = jax.jit(jnp.sin).lower(arr(3))._lowering
        exporting._check_lowering(computation, None)
        before = dict(computation.compile_args)
        try:
            computation.compile_args.update(facts)
            with pytest.raises(jaxexp.errors.UnsupportedError, match=match):
                exporting._check_lowering(computation, None)
            with pytest.raises(NotImplementedError):
                _jax.jax_exporter._check_lowering(computation)
        finally:
            computation.compile_args.clear()
            computation.compile_args.update(before)


def test_shardings_without_a_mesh() -> None:
    aval = jax.typeof(jnp.ones((8, 8)))
    proto = xla_client.OpSharding()
    proto.type = xla_client.OpSharding.Type.TUPLE
    proto.tuple_shardings = [xla_client.HloSharding.replicate().to_proto()] * 2
    devices = tuple(jax.devices())
    shardings = {"tuple": xla_client.HloSharding.from_proto(proto), "manual": xla_client.HloSharding.manual()}
    reordered = xla_client.OpSharding()
    reordered.type = xla_client.OpSharding.Type.OTHER
    reordered.tile_assignment_dimensions = [8, 1]
    reordered.tile_assignment_devices = [1, 0, 3, 2, 5, 4, 7, 6]
    shardings["order"] = xla_client.HloSharding.from_proto(reordered)
    for name, hlo in shardings.items():
        sharding = _jax.GSPMDSharding(devices, hlo)
        with pytest.raises(TypeError):
            _jax.jax_exporter.to_named_sharding_with_abstract_mesh(sharding, aval, None)
        with pytest.raises(jaxexp.errors.ExportError) as error:
            to_named(sharding, aval, None)
        assert isinstance(error.value, TypeError), name


def test_call_belongs_to_exported() -> None:
    assert not hasattr(jax_export, "call")
    for library in (jaxexp, jax_export):
        with pytest.raises((AttributeError, TypeError, ValueError)):
            library.Exported.call(3, arr(3))


def test_shardy_turned_off() -> None:
    p = CASES["sharded_1d"].build()

    def provoke(library, how):
        loaded = reload(library, export_with(library, p))
        with _jax.shardy_flag(False):
            how(loaded.call)(*p.args)

    for how in (lambda call: call, jax.jit):
        raises_alike(lambda library, how=how: provoke(library, how), match="Shardy.*jax_use_shardy_partitioner")


def test_unknown_axis_context() -> None:
    """Such as that of pmap, before it was built on jit."""
    exported = jaxexp.export(jax.jit(jnp.sin))(arr(3))
    with pytest.raises(jaxexp.errors.UnsupportedError, match="SimpleNamespace"):
        primitive.check_device_count(types.SimpleNamespace(), exported)


def test_without_named_shardings() -> None:
    exported = jaxexp.export(jax.jit(jnp.sin))(arr(3))
    assert exported._has_named_shardings
    fields = {field.name: getattr(exported, field.name) for field in dataclasses.fields(exported)}
    jaxexp.Exported(**fields)
    with pytest.raises(jaxexp.errors.ExportError, match="NamedSharding"):
        jaxexp.Exported(**fields, _has_named_shardings=False)


def test_unhashable_effect() -> None:
    class Unhashable(type(EFFECTS["unordered"])):
        def __hash__(self):
            raise RuntimeError("no hash")

    theirs = dataclasses.replace(jax_export.export(jax.jit(jnp.sin))(arr(3)), unordered_effects=(Unhashable(),))
    error = raises_alike(
        lambda library: (theirs if library is jax_export else jaxexp.Exported.from_jax(theirs)).serialize(),
        match="hash",
    )
    assert isinstance(error, NotImplementedError)


def test_unknown_kind_of_device() -> None:
    """Artifacts of JAX 0.9 name the kind of a mesh's devices, and no platform."""
    m = jax.make_mesh((8,), ("x",), axis_types=(jax.sharding.AxisType.Explicit,))
    sharding = jax.sharding.NamedSharding(m, jax.sharding.PartitionSpec("x"))
    x = jax.device_put(arr(8), sharding)
    blob = bytearray(jax_export.export(jax.jit(jnp.sin, in_shardings=sharding))(x).serialize())
    meshes = ("unique_abstract_meshes.0", "unique_named_shardings.0.mesh", "in_shardings.0.named_sharding.mesh",
              "out_shardings.0.named_sharding.mesh")  # fmt: skip
    tables = [f"{mesh}.abstract_device" for mesh in meshes if _is_there(blob, f"{mesh}.abstract_device")]
    wire.remove(blob, f"{tables[0]}.platform")  # of all of them: they have one vtable
    device = jaxexp.deserialize(bytes(blob)).in_shardings_jax()[0].mesh.abstract_device
    assert device.platform == "cpu"
    for table in tables:
        wire.write(blob, f"{table}.device_kind", "xpu")
    with pytest.raises(jaxexp.errors.DeserializationError, match="xpu") as error:
        jaxexp.deserialize(bytes(blob))
    assert "device_kind" in error.value.path


def _is_there(blob: bytearray, path: str) -> bool:
    try:
        wire.locate(blob, path)
    except LookupError:
        return False
    return True

"""`serialize(locations=)`: what artifacts say about the source of their functions."""

from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxexp
from jaxexp import _jax
from jaxexp._kernel.module import locations, mlir
from jaxexp._kernel.releases.table import number
from jaxexp.errors import ExportError
from kit import goldens, named_devices
from kit.compare import assert_same_values
from kit.each import each

pytestmark = pytest.mark.jax
X = np.ones(4, np.float32)


def function(x: jax.Array) -> jax.Array:
    with jax.named_scope("block"):
        return jax.lax.fori_loop(0, 3, lambda i, y: jnp.where(y > i, y * x, y), x)


@pytest.fixture(scope="module")
def exported() -> jaxexp.Exported:
    return jaxexp.export(jax.jit(function))(X)


@each("version", ["0.4.23", "0.6.2"])
def test_names_of_scopes_are_no_paths(version: str) -> None:
    """JAX begins that of an operation outside of all scopes with a slash."""
    blob = goldens.blob_of(version, "poly")
    assert b"\0/dimension_size" in bytes(blob)
    assert jaxexp.inspect(blob).absolute_paths == ("/tmp/w/corpus/gen.py",)


def test_a_file_is_a_path_even_if_a_scope_has_its_name() -> None:
    def named(x: jax.Array) -> jax.Array:
        with jax.named_scope(__file__):
            return x + 1

    assert __file__ in jaxexp.inspect(jaxexp.export(jax.jit(named))(X).serialize()).absolute_paths


@each("keep", ["names", "none"])
def test_no_path_and_no_line(exported: jaxexp.Exported, keep: str, tmp_path: Path) -> None:
    path = tmp_path / "f.jaxexp"
    exported.save(path, vjp_order=1, locations=keep)
    assert __file__.encode() not in path.read_bytes()
    assert Path(__file__).name.encode() not in path.read_bytes()
    assert jaxexp.inspect(path).absolute_paths == ()
    loaded = jaxexp.load(path)
    for text in (loaded.mlir_module(), loaded.vjp().mlir_module()):
        assert ":1" not in text.partition("\n#loc1")[2]
        assert ("block" in text) == (keep == "names")
        assert ('"function"' in text) == (keep == "names")
    assert_same_values(loaded.call(X), exported.call(X))
    gradients = [jax.grad(lambda x, f=f: f.call(x).sum())(X) for f in (loaded, exported)]
    assert_same_values(*gradients)
    assert loaded.serialize(locations=keep) == loaded.serialize()
    blob = exported.serialize(vjp_order=1)
    assert blob == exported.serialize(vjp_order=1, locations="full")
    assert __file__ in jaxexp.inspect(blob).absolute_paths


def test_another_choice_is_an_error(exported: jaxexp.Exported) -> None:
    for call in (exported.serialize, lambda **how: jaxexp.migrate(exported.serialize(), **how)):
        with pytest.raises(ExportError, match="locations='some' has to be one of 'full', 'names', 'none'"):
            call(locations="some")


@pytest.mark.wide(one_in=5, promise="modules of any age lose their paths")
@goldens.every_artifact
def test_artifacts_of_any_age(version: str, name: str) -> None:
    """Their modules lose all paths, and stay in their version of StableHLO, if this jaxlib writes it."""
    loaded = jaxexp.deserialize(goldens.blob_of(version, name))
    if jaxexp.compatibility(goldens.blob_of(version, name)).unreadable_here is not None:
        pytest.skip("its module is too new for this jaxlib")
    again = jaxexp.inspect(loaded.serialize(locations="none"))
    before = jaxexp.inspect(goldens.blob_of(version, name))
    assert again.absolute_paths == ()
    if number(before.stablehlo) <= number(_jax.newest_stablehlo()):
        assert again.stablehlo == before.stablehlo


def test_locations_of_all_kinds() -> None:
    """Also those that JAX does not write: fused ones, calls without names, files under a name of their own."""
    with _jax.make_ir_context() as context:
        name, calls, fused = _jax.ir.Location.name, _jax.ir.Location.callsite, _jax.ir.Location.fused
        file, unknown = _jax.ir.Location.file("/home/user/f.py", 3, 4), _jax.ir.Location.unknown()
        f, g, h = (name(text, file) for text in "fgh")
        for before, after in (
            (file, unknown),
            (name("x"), name("x")),
            (name("scope", file), name("scope")),
            (name("a", name("b", f)), name("a", name("b", name("f")))),
            (calls(file, [file, file]), unknown),
            (calls(calls(f, [file, g]), [h, file]), calls(name("f"), [name("g"), name("h")])),
            (fused([f, g]), fused([name("f"), name("g")])),
        ):
            module = _jax.ir.Module.parse("module { func.func public @main() { return } }", context)
            list(mlir.iter_operations(module))[-1].location = before
            locations.reduce(module, "names")
            assert list(mlir.iter_operations(module))[-1].location == after


NESTED = {
    "calls": lambda ir, one: ir.Location.callsite(ir.Location.name("g"), [one]),
    "calls in calls": lambda ir, one: ir.Location.callsite(one, [ir.Location.name("g")]),
    "scopes": lambda ir, one: ir.Location.name("g", one),
    "fused": lambda ir, one: ir.Location.name("g", ir.Location.fused([one, ir.Location.name("h")])),
    "calls that share": lambda ir, one: ir.Location.callsite(one, [one]),  # 2**1100 of them
}


@each("kind", NESTED)
def test_many_levels_are_no_recursion(kind: str) -> None:
    with _jax.make_ir_context():
        ir = _jax.ir
        before, after = ir.Location.name("f", ir.Location.file("/f.py", 1, 1)), ir.Location.name("f")
        for _ in range(1100):
            before, after = NESTED[kind](ir, before), NESTED[kind](ir, after)
        module = ir.Module.parse(named_devices.module())
        operations = list(mlir.iter_operations(module))
        operations[-1].location, operations[-2].location = before, ir.Location.name("scope", before)
        blob = named_devices.with_bytecode(named_devices.bytecode(module))
        assert locations.reduce(module, "names")
        if kind not in ("calls in calls", "calls that share"):  # the first ones of these become a chain
            assert operations[-1].location == after
    written = jaxexp.deserialize(blob).serialize(locations="names")
    assert b"/f.py" not in written
    assert jaxexp.digests(written).meaning == jaxexp.digests(blob).meaning

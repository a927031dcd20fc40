"""Objects of both libraries in one process: code that knows one library's classes meets the other's objects."""

from __future__ import annotations

import dataclasses
import inspect
import typing
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import export as jax_export
from jax._src.export import _export as private
from jax.extend.core import ClosedJaxpr, Jaxpr

import jaxexp
from kit import vhlo
from kit.alike import LIBRARIES, raises_alike, reload
from kit.compare import assert_same_values
from kit.corpus import CASES, arr, export_with
from kit.each import each
from kit.installed import STOCK
from kit.models import exported_case
from kit.weighted import X, bound

pytestmark = pytest.mark.jax

STOCK_CHECK = jax_export.DisabledSafetyCheck


# --- isinstance, and equal checks -----------------------------------------------------------------------------------


def test_each_class_knows_the_objects_of_both() -> None:
    ours, theirs = exported_case("sin"), exported_case("sin", jax_export)
    for exported in (ours, theirs, reload(jaxexp, ours), reload(jax_export, theirs)):
        assert isinstance(exported, jaxexp.Exported)
        assert isinstance(exported, STOCK)
    assert (type(ours), type(theirs)) == (jaxexp.Exported, STOCK)
    assert isinstance(bound()[0], STOCK)
    assert not any(isinstance(exported, jaxexp.BoundExported) for exported in (ours, theirs))
    for other in (None, 3, jaxexp.DisabledSafetyCheck.platform(), jaxexp.Exported, STOCK):
        assert not isinstance(other, jaxexp.Exported)


def test_checks_are_equal() -> None:
    makers: list[Callable[[Any], Any]] = [lambda c: c.platform(), lambda c: c.custom_call("a"), lambda c: c("odd")]
    for i, make in enumerate(makers):
        for j, other in enumerate(makers):
            for one, two in ((jaxexp.DisabledSafetyCheck, STOCK_CHECK), (STOCK_CHECK, jaxexp.DisabledSafetyCheck)):
                assert (make(one) == other(two)) == (i == j)
                assert (make(one) in [other(two)]) == (i == j)
                assert len({make(one), other(two)}) == 2 - (i == j)
                assert isinstance(make(one), two)
    assert jaxexp.DisabledSafetyCheck.platform() != "platform"


@each(
    "exporter, check",
    [(lib, check) for lib in (jaxexp, jax_export, private) for check in (jaxexp.DisabledSafetyCheck, STOCK_CHECK)],
)
def test_each_exporter_takes_the_checks_of_both(exporter: Any, check: Any) -> None:
    """JAX's private exporter is what `jax.experimental.jax2tf` calls."""
    export = exporter.export(jax.jit(jnp.sin), platforms=("tpu",), disabled_checks=[check.platform()])
    exported = export(arr(2))
    for function in (exported, jaxexp.deserialize(exported.serialize()), jax_export.deserialize(exported.serialize())):
        assert_same_values(function.call(arr(2)), jnp.sin(arr(2)))
        assert list(function.disabled_safety_checks) == [check.platform()]


# --- functions in the other library's hands ------------------------------------------------------------------------

PASSED_ON = ("custom_vjp", "multi_platform", "symbolic_batch", "sharded_1d", "threefry_key")


@each("name", PASSED_ON)
def test_private_calls_of_our_functions(name: str) -> None:
    case = CASES[name]
    with case.context():
        p = case.build()
        ours, theirs = (export_with(library, p) for library in (jaxexp, jax_export))
        for exported in (ours, reload(jaxexp, ours, case.vjp_order)):
            call = private.call_exported(exported)
            expected = private.call_exported(theirs)(*p.args, **p.kwargs)
            for results in (call(*p.args, **p.kwargs), jax.jit(call)(*p.args, **p.kwargs)):
                assert_same_values(p.finish(results), p.finish(expected))


def test_private_gradients_of_our_functions() -> None:
    loaded = reload(jaxexp, exported_case("sin"), 2)

    def call(x: Any) -> Any:
        return private.call_exported(loaded)(x).sum()

    x = arr(4)
    assert_same_values(jax.grad(call)(x), jnp.cos(x))
    assert_same_values(jax.grad(lambda x: jax.grad(call)(x).sum())(x), -jnp.sin(x))


def test_methods_of_the_other_class() -> None:
    """As in `map(Exported.serialize, functions)`, with a name that was imported earlier."""
    ours = exported_case("sin")
    assert_same_values(jax_export.deserialize(STOCK.serialize(ours)).call(arr(4)), jnp.sin(arr(4)))
    assert STOCK.mlir_module(ours) == ours.mlir_module()
    assert_same_values(STOCK.call(ours, arr(4)), jnp.sin(arr(4)))


# --- programs that look at a jaxpr ----------------------------------------------------------------------------------


def by_attributes(jaxpr: Any) -> Iterator[str]:
    """As counters of operations do that support several releases of JAX."""
    for equation in jaxpr.eqns:
        yield equation.primitive.name
        for value in equation.params.values():
            for inner in value if isinstance(value, (tuple, list)) else [value]:
                if hasattr(inner, "jaxpr"):
                    yield from by_attributes(inner.jaxpr)
                elif hasattr(inner, "eqns"):
                    yield from by_attributes(inner)


def by_types(jaxpr: Any) -> Iterator[str]:
    for equation in jaxpr.eqns:
        yield equation.primitive.name
        for inner in jax.tree.leaves(tuple(equation.params.values())):
            if isinstance(inner, ClosedJaxpr):
                yield from by_types(inner.jaxpr)
            elif isinstance(inner, Jaxpr):
                yield from by_types(inner)


@each("walk", [by_attributes, by_types])
def test_walkers_pass_over_calls(walk: Callable[[Any], Iterator[str]]) -> None:
    loaded = reload(jaxexp, exported_case("sin"), 2)
    weighted, _ = bound()
    programs: list[tuple[Callable[..., Any], Any]] = [
        (loaded.call, arr(4)),
        (jax.jit(lambda x: loaded.call(x) + 1), arr(4)),
        (jax.grad(lambda x: loaded.call(x).sum()), arr(4)),
        (lambda x: jax.jvp(loaded.call, (x,), (x,)), arr(4)),
        (lambda x: jax.lax.cond(x.sum() > 0, loaded.call, jnp.cos, x), arr(4)),
        (lambda x: jax.lax.scan(lambda c, _: (loaded.call(c), None), x, length=2), arr(4)),
        (weighted.call, X),
    ]
    for program, x in programs:
        names = list(walk(jax.make_jaxpr(program)(x).jaxpr))
        assert any(name.startswith("call_exported") for name in names)


# --- fields and annotations -----------------------------------------------------------------------------------------


@each("name", ["sin", "sharded_2d", "partly_sharded", "memory_kinds", "replicated"])
def test_hlo_shardings_are_those_of_the_installed_jax(name: str) -> None:
    def said(library: Any) -> list[Any]:
        exported = exported_case(name, library)
        made = dataclasses.replace(exported, in_shardings_hlo=("mine",), out_shardings_hlo=("mine", None))
        functions = (exported, reload(library, exported), made)
        return [(f.in_shardings_hlo, f.out_shardings_hlo) for f in functions]

    assert said(jaxexp) == said(jax_export)


def test_annotations_name_the_same_fields() -> None:
    ours, theirs = (set(typing.get_type_hints(library.Exported)) for library in LIBRARIES.values())
    assert ours == theirs
    ours, theirs = (list(inspect.get_annotations(library.Exported)) for library in LIBRARIES.values())
    assert ours == [field.name for field in dataclasses.fields(jaxexp.Exported)]
    assert {*ours} == {*theirs} - {"_has_named_shardings"}
    assert not [name for name in vars(jaxexp.BoundExported).get("__annotations__", {}) if name.startswith("_")]


@each("name", [name for name in jax_export.__all__ if callable(getattr(jaxexp, name, None))])
def test_types_of_arguments_are_known_where_those_of_jax_export_are(name: str) -> None:
    theirs, ours = getattr(jax_export, name), getattr(jaxexp, name)
    methods = [m for m, value in vars(theirs).items() if inspect.isfunction(value)] if isinstance(theirs, type) else []
    for one, other in [(theirs, ours), *((getattr(theirs, m), getattr(ours, m)) for m in methods)]:
        assert inspect.signature(one) and inspect.signature(other)
        try:
            typing.get_type_hints(one)
        except NameError:  # of a name that JAX 0.11 has for type checkers only
            continue
        assert isinstance(typing.get_type_hints(other), dict)


# --- modules as text ------------------------------------------------------------------------------------------------


def with_text(library: Any, function: Any) -> Any:
    exported = library.export(jax.jit(lambda x: x * 2))(arr(2, 3))
    text = jax.jit(function).lower(arr(2, 3)).as_text()
    return dataclasses.replace(exported, mlir_module_serialized=text.encode())


def test_a_module_of_text() -> None:
    for library in LIBRARIES.values():
        edited = with_text(library, lambda x: x * 3)
        for function in (edited, jaxexp.Exported.from_jax(edited), reload(library, edited)):
            assert_same_values(function.call(arr(2, 3)), arr(2, 3) * 3)
            assert "stablehlo.multiply" in function.mlir_module()
    ours = with_text(jaxexp, lambda x: x * 3)
    assert_same_values(jax_export.deserialize(ours.serialize()).call(arr(2, 3)), arr(2, 3) * 3)
    assert ours.mlir_module_serialized.startswith(b"ML\xefR")


def test_a_module_of_other_bytecode() -> None:
    """As MLIR writes it, and not as a portable artifact. It is refused in an artifact, as text is."""
    bytecode = vhlo.bytecode(jax.jit(lambda x: x * 4).lower(arr(2, 3)).as_text())
    for library in LIBRARIES.values():
        edited = dataclasses.replace(with_text(library, lambda x: x * 3), mlir_module_serialized=bytecode)
        for function in (edited, jaxexp.Exported.from_jax(edited), reload(library, edited)):
            assert_same_values(function.call(arr(2, 3)), arr(2, 3) * 4)
    with pytest.raises(jaxexp.errors.DeserializationError, match=r"func\.func, which no export has"):
        jaxexp.deserialize(edited.serialize()).call(arr(2, 3))


def test_text_is_checked_like_bytecode() -> None:
    """The signature has to be that of the fields, and nothing calls back to Python."""
    with pytest.raises(jaxexp.errors.ExportError, match="mlir_module_serialized"):
        with_text(jaxexp, lambda x: (x, x)).call(arr(2, 3))
    target = "xla_ffi_python_cpu_callback"
    calls_back = with_text(jaxexp, lambda x: jax.ffi.ffi_call(target, jax.ShapeDtypeStruct(x.shape, x.dtype))(x))
    with pytest.raises(jaxexp.errors.ExportError, match=f"calls back to Python.*{target}"):
        calls_back.call(arr(2, 3))


@each("text", [b"", b"no module", b"module {}", b"\xff\xfe", b"\0" * 100])
def test_other_bytes_stay_as_they_are(text: bytes) -> None:
    exported = dataclasses.replace(exported_case("sin"), mlir_module_serialized=text)
    assert exported.mlir_module_serialized == text
    with pytest.raises(jaxexp.errors.DeserializationError):
        exported.call(arr(4))


def test_text_in_an_artifact_is_refused() -> None:
    """jaxlib's parser of text is not made for bytes of others; whoever trusts an artifact can convert it."""
    blob = with_text(jax_export, lambda x: x * 3).serialize()
    with pytest.raises(jaxexp.errors.DeserializationError, match="expected MLIR bytecode"):
        jaxexp.deserialize(blob).call(arr(2, 3))
    converted = jaxexp.Exported.from_jax(jax_export.deserialize(blob))
    assert_same_values(converted.call(arr(2, 3)), arr(2, 3) * 3)


# --- errors ---------------------------------------------------------------------------------------------------------


def test_custom_calls_that_a_plugin_adds_to_the_stable_ones(monkeypatch) -> None:
    fun = jax.jit(lambda x: jax.ffi.ffi_call("plugin_eigh", jax.ShapeDtypeStruct(x.shape, x.dtype))(x))
    raises_alike(lambda library: library.export(fun)(arr(4)), match="plugin_eigh")
    stable = private._CUSTOM_CALL_TARGETS_GUARANTEED_STABLE
    monkeypatch.setattr(private, "_CUSTOM_CALL_TARGETS_GUARANTEED_STABLE", stable | {"plugin_eigh"})
    for library in LIBRARIES.values():
        assert b"plugin_eigh" in library.export(fun)(arr(4)).mlir_module_serialized


def test_an_archive_takes_functions_of_both(tmp_path) -> None:
    with jaxexp.Archive.create(tmp_path / "both.zip") as writer:
        for name, library in LIBRARIES.items():
            writer.add(name, exported_case("sin", library), vjp_order=1)
    with jaxexp.Archive.open(tmp_path / "both.zip") as archive:
        for name in LIBRARIES:
            call = archive[name].load().call
            assert_same_values(jax.grad(lambda x, call=call: call(x).sum())(arr(4)), jnp.cos(arr(4)))

"""`compatibility`: what it says of artifacts, and its predictions against what 43 releases of JAX really read."""

from __future__ import annotations

import collections
import contextlib
import datetime
import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export as jax_export

import jaxexp
from jaxexp._compat import compatibility as _compatibility
from jaxexp._kernel.read.decode import verified
from jaxexp._kernel.releases import table
from jaxexp._kernel.releases.table import number
from kit import wire
from kit.damaged import jax_blob
from kit.each import each
from kit.goldens import ARTIFACTS, RELEASES, blob_of
from kit.places import GOLDEN, ROOT

pytestmark = pytest.mark.jax

# What the `jax.export` of each release did with each golden artifact, recorded with its wheels by
# tests/interop/record_reading.py; "0.12.0 expired" is that release with its flag for expired artifacts.
RECORD = json.loads((GOLDEN / "readers.json").read_text())
INSTALLED = jax.__version__


def predicted(version: str, name: str, expired: bool = False) -> set[str]:
    facts = _compatibility._Facts.of(verified(blob_of(version, name)))
    return {r.version for r in table.RELEASES if _compatibility._why_not(r, facts, expired) is None}


def test_the_record_is_complete() -> None:
    assert RECORD["artifacts"] == sorted(f"jax-{version}/{name}" for version, name in ARTIFACTS)
    assert {reader.split()[0] for reader in RECORD["readers"]} == {r.version for r in table.RELEASES}
    assert INSTALLED in RECORD["readers"]


@each("version, name", ARTIFACTS)
def test_prediction_and_truth(version: str, name: str) -> None:
    for flag in (False, True):
        outcomes = {
            reader.split()[0]: not any(f"jax-{version}/{name}" in failed for failed in failures.values())
            for reader, failures in RECORD["readers"].items()
            if reader.endswith("expired") == flag
        }
        found = predicted(version, name, flag) & outcomes.keys()
        assert found == {release for release, loads in outcomes.items() if loads}


@pytest.mark.wide(one_in=6, promise="what is said of golden artifacts is so with the installed JAX")
@pytest.mark.parametrize("release", RELEASES)
def test_the_installed_jax(release: str) -> None:
    wrong = {}
    for version, name in ARTIFACTS:
        try:
            if version == release:
                check_here(version, name)
        except AssertionError as error:
            wrong[name] = str(error)
    assert wrong == {}


def check_here(version: str, name: str) -> None:
    blob = blob_of(version, name)
    report = jaxexp.compatibility(blob)
    check_writer(report, version, name)
    check_where_jaxexp_loads_it(report, blob)

    def reads() -> bool:
        try:
            jax_export.deserialize(bytearray(blob)).mlir_module()
            return True
        except Exception:
            return False

    assert (report.jax_export_refuses is None) == reads() == report.readable_by(INSTALLED)
    assert report.jax_export_version == INSTALLED
    if not hasattr(jax.config, "jax_export_deserialize_expired_versions"):
        assert not report.expired_flag_helps
        return
    before = jax.config.jax_export_deserialize_expired_versions
    jax.config.update("jax_export_deserialize_expired_versions", True)
    try:
        with pytest.warns(DeprecationWarning) if report.expired_flag_helps else contextlib.nullcontext():
            helped = reads()
    finally:
        jax.config.update("jax_export_deserialize_expired_versions", before)
    assert report.expired_flag_helps == (helped and report.jax_export_refuses is not None)


def check_writer(report: jaxexp.Compatibility, version: str, name: str) -> None:
    first, last = map(table.number, report.writers)
    assert first <= table.number(version) <= last
    assert (report.jax_version == version) == (table.number(version) >= (0, 11, 1))
    assert report.fun_name
    assert report.vjp_order == json.loads((GOLDEN / f"jax-{version}" / "cases.json").read_text())[name]["vjp_order"]


def check_where_jaxexp_loads_it(report: jaxexp.Compatibility, blob: bytes) -> None:
    here = number(INSTALLED)
    predicted = any(number(first) <= here <= number(last) for first, last in report.jaxexp_readers)
    assert predicted == (report.unreadable_here is None), report.unreadable_here
    said = " ".join(str(report).split())
    assert ("jaxexp loads it here, as on JAX " if predicted else "jaxexp loads it here, but cannot call it: ") in said
    assert report.loaded_here
    jaxexp.deserialize(blob)


@each("path", sorted(GOLDEN.glob("compat/jax-*/*.bin")))
def test_what_was_written_for_a_release(path: Path) -> None:
    """That release has read it, when it was written."""
    assert jaxexp.compatibility(path.read_bytes()).readable_by(path.parent.name.removeprefix("jax-"))


def test_a_module_that_needs_a_newer_jax_needs_it_with_jaxexp_too() -> None:
    report = jaxexp.compatibility(blob_of("0.12.0.1", "poly"))
    assert report.jaxexp_readers == (("0.11.0", "0.12.0.1"),)
    assert "on JAX 0.11.0 to 0.12.0.1" in " ".join(str(report).split())


def test_facts_of_an_old_artifact() -> None:
    report = jaxexp.compatibility(blob_of("0.8.3", "sharded"))
    assert (report.writers, report.jax_version) == (("0.8.2", "0.9.0.1"), None)
    assert report.layout == "16-bit and 32-bit device count, HloShardings"
    assert (report.serialization_version, report.stablehlo, report.nr_devices) == (3, "1.13.1", 8)
    assert report.dialects == ("builtin", "sdy", "vhlo")
    assert "vhlo.broadcast_in_dim_v1" in (report.operations or ())
    assert (report.custom_calls, report.custom_nodes, report.dtypes) == ({}, (), ("float32",))
    assert (report.readers, report.jaxexp_readers) == ((("0.7.0", "0.11.0"),), (("0.10.2", "0.12.0.1"),))
    assert [(one.first, one.last) for one in report.refusals] == [
        ("0.4.22", "0.4.23"), ("0.4.24", "0.4.34"), ("0.4.35", "0.4.35"), ("0.4.36", "0.6.2"), ("0.11.1", "0.12.0.1")
    ]  # fmt: skip
    assert report.refusals[0].reason == "serialization version 3 (it reads 1)"
    assert report.refusals[-1].reason == "an old form of shardings (of JAX 0.8.3 or older)"
    assert report.promised_until == datetime.date(2026, 6, 18)


def test_nodes_that_only_jaxexp_reads() -> None:
    eye = np.eye(2, dtype=np.float32)
    slogdet = f"{jnp.linalg.slogdet(eye).__class__.__module__}.SlogdetResult"
    for fun, argument, nodes in (
        (jnp.linalg.slogdet, eye, (slogdet,)),
        (lambda d: d[1], {1: eye}, ("jaxexp.dict",)),
        (lambda d: jnp.linalg.slogdet(d[1]), {1: eye}, tuple(sorted(("jaxexp.dict", slogdet)))),
    ):
        report = jaxexp.compatibility(jaxexp.export(jax.jit(fun))(argument).serialize())
        assert report.custom_nodes == nodes
        assert (report.readers, report.readable_by(INSTALLED), report.promised_until) == ((), False, None)
        assert report.jax_export_refuses is not None
        assert "only if jaxexp is imported: " in report.jax_export_refuses
        assert report.unreadable_here is None
        assert any(one.last == "0.10.1" and "only jaxexp reads" in one.reason for one in report.refusals)
        assert "loaded by     no release of JAX" in str(report)


def test_text() -> None:
    text = str(jaxexp.compatibility(blob_of("0.6.2", "mlp")))
    assert max(map(len, text.splitlines())) <= 100
    assert text.splitlines()[0] == "mlp:"
    for line in (
        "  platforms     cpu, for 1 device",
        "  written by    JAX 0.6.1 to 0.8.1, serialization version 2, calling convention 9",
        "  layout        16-bit device count",
        "  derivatives   VJPs up to order 1",
        "  loaded by     JAX 0.5.3 to 0.11.0",
        "                JAX 0.5.1 to 0.5.2: the module contains vhlo.tanh_v2",
    ):
        assert line in text.splitlines()
    assert "Its promise of 6 months ends on 2025-11-21" in " ".join(text.split())


def test_custom_calls_and_nodes() -> None:
    Point = collections.namedtuple("Point", "x y")
    jaxexp.register_namedtuple_serialization(Point, serialized_name="test_readers.Point")

    def fun(p: Any) -> Any:
        return jnp.linalg.cholesky(p.x), jnp.linalg.cholesky(p.y), jnp.linalg.qr(p.x)[1]

    point = Point(np.eye(3, dtype=np.float32), np.eye(2, dtype=np.float32))
    report = jaxexp.compatibility(jaxexp.export(jax.jit(fun))(point).serialize())
    assert report.custom_calls is not None
    assert report.custom_calls["lapack_spotrf_ffi"] == 2
    assert report.custom_calls["lapack_sgeqrf_ffi"] == 1
    assert "lapack_spotrf_ffi (2, since JAX 0.4.31)" in " ".join(str(report).split())
    assert report.custom_nodes == ("test_readers.Point",)
    assert not report.readable_by("0.4.34")
    with pytest.raises(jaxexp.errors.ExportError, match=r"'0\.3\.0' is not a known release of JAX; next to it are JAX"):
        report.readable_by("0.3.0")
    assert report.jax_version == INSTALLED
    assert report.writers == (INSTALLED, INSTALLED)
    assert report.vjp_order == 0


def test_where_the_module_is_too_new_jaxexp_does_not_help_either() -> None:
    def reason(blob: Any, asked: str) -> str | None:
        found = [
            r.reason for r in jaxexp.compatibility(blob).refusals if number(r.first) <= number(asked) <= number(r.last)
        ]
        return found[0] if found else None

    eye = np.eye(2, dtype=np.float32)
    own = jaxexp.export(jax.jit(lambda d: jnp.linalg.cholesky(d[1])))({1: eye})
    plain = jaxexp.export(jax.jit(lambda d: jnp.linalg.cholesky(d["1"])))({"1": eye})
    for asked in ("0.10.2", INSTALLED):
        module = reason(plain.serialize(), asked)
        expected = "it reads only if jaxexp is imported: jaxexp.dict"
        if module is not None:
            expected += f"; and {module}, which jaxexp does not read there, either"
        assert reason(own.serialize(), asked) == f"pytree nodes that {expected}"
    for_older = reason(own.serialize(compatibility="0.10.2"), "0.10.2")
    assert for_older == "pytree nodes that it reads only if jaxexp is imported: jaxexp.dict"


def test_what_is_unreadable_here_is_described_all_the_same() -> None:
    blob = jax_blob("ordered_effect")
    name = wire.read(blob, "ordered_effects.0.type_name")
    wire.write(blob, "ordered_effects.0.type_name", name.replace("First", "Thrsd"))
    report = jaxexp.compatibility(blob)
    assert not report.loaded_here
    assert report.unreadable_here is not None
    assert "Thrsd" in report.unreadable_here
    assert report.custom_calls == jaxexp.compatibility(jax_blob("ordered_effect")).custom_calls
    assert "cannot load it here" in str(report)


def test_classes_that_are_registered_elsewhere() -> None:
    blob = bytearray(blob_of("0.12.0.1", "namedtuple_tree"))
    wire.write(blob, "in_tree.children.0.children.0.custom_name", "elsewhere")
    report = jaxexp.compatibility(blob)
    assert report.unreadable_here is None
    assert report.custom_nodes == ("corpus.Pt", "elsewhere")
    assert report.readers == jaxexp.compatibility(blob_of("0.12.0.1", "namedtuple_tree")).readers
    assert "loads it here, with generic nodes for elsewhere (no such class here), as on" in str(report)


def test_a_module_that_is_no_bytecode() -> None:
    exported = jaxexp.export(jax.jit(jnp.sin))(np.float32(1))
    blob = bytearray(exported.serialize(trailer=False))
    at = bytes(blob).index(b"ML\xefR")
    blob[at] = 0
    with pytest.raises(jaxexp.errors.DeserializationError, match="expected MLIR bytecode, found another first word"):
        jaxexp.compatibility(blob)
    with pytest.raises(FileNotFoundError):  # a str is a path
        jaxexp.compatibility("text")
    with pytest.raises(TypeError):
        jaxexp.compatibility(7)


@pytest.mark.skipif(table.RELEASES[-1].version != INSTALLED, reason="the page shows what the newest JAX says")
def test_the_page_shows_what_is_said() -> None:
    page = (ROOT / "docs" / "guide" / "compatibility.md").read_text()
    old = blob_of("0.8.3", "sharded")
    for blob in (old, jaxexp.migrate(old)):
        assert f"```text\n{jaxexp.compatibility(blob)}\n```" in page


@each("order, trailer", [(order, trailer) for order in range(3) for trailer in (True, False)])
def test_damage_in_any_module_is_found(order: int, trailer: bool) -> None:
    """As `verify` finds it, also in a VJP that nobody has asked for."""
    function = jaxexp.export(jax.jit(lambda x: jnp.sin(x) * x))(jax.ShapeDtypeStruct((3,), np.float32))
    blob = bytearray(function.serialize(vjp_order=2, trailer=trailer))
    link = verified(bytes(blob))
    for _ in range(order):
        link = link.vjp()
    start = blob.find(bytes(link.module())) + 20
    blob[start : start + 40] = b"\xff" * 40
    said = set()
    for read in (jaxexp.verify, jaxexp.compatibility):
        with pytest.raises(jaxexp.errors.DeserializationError) as error:
            read(bytes(blob))
        assert error.value.path == f"{'vjp.' * order}mlir_module_serialized"
        said.add(str(error.value))
    assert len(said) == 1


def test_without_the_node_type() -> None:
    exported = jaxexp.export(jax.jit(lambda d: d["a"] + 1))({"a": np.float32(1)})
    blob = bytearray(exported.serialize(vjp_order=2, trailer=False))
    report = jaxexp.compatibility(blob)
    assert report.unreadable_here is None
    assert report.vjp_order == 2
    wire.write(blob, "in_tree.children.0.children.0.kind", 5)  # a custom node called "nobody"
    with pytest.raises(jaxexp.errors.DeserializationError, match="custom_name"):
        jaxexp.compatibility(blob)

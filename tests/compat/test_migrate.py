"""`migrate`: every old artifact as one that the installed jax.export loads."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export as jax_export

import jaxexp
from jaxexp._compat import migrate as _migrate
from jaxexp._kernel.releases import table
from jaxexp._kernel.releases.table import number
from jaxexp.errors import DeserializationError, ExportError, TooOldReaderError, UnsupportedError
from kit import wire
from kit.compare import assert_same_values
from kit.corpus import CASES, export_with
from kit.derivatives import pull_back
from kit.each import each
from kit.goldens import RELEASES, arguments, assert_runs, blob_of, every_artifact

pytestmark = pytest.mark.jax

INSTALLED = table.release(jax.__version__)


@pytest.mark.wide(one_in=16, promise="jax.export reads each golden artifact that was migrated, and computes the same")
@every_artifact
def test_jax_export_reads_what_was_migrated(version: str, name: str) -> None:
    if jaxexp.compatibility(blob_of(version, name)).unreadable_here is not None:
        assert INSTALLED.number < number(version)
        with pytest.raises(DeserializationError, match=r"newer read"):
            jaxexp.migrate(blob_of(version, name))
        return
    old = jaxexp.deserialize(blob_of(version, name))
    blob = jaxexp.migrate(blob_of(version, name), inputs=arguments(old, version, name))
    report = jaxexp.compatibility(blob)
    assert report.jax_export_refuses is None
    assert report.jax_version == jax.__version__
    assert number(report.stablehlo or "0.0.0") <= number(INSTALLED.stablehlo)
    assert report.calling_convention_version >= jax_export.minimum_supported_calling_convention_version
    assert_runs(jax_export.deserialize(blob), version, name)


@pytest.mark.wide(one_in=6, promise="migrated artifacts of each release keep their derivatives")
@pytest.mark.parametrize("version", RELEASES)
def test_derivatives_are_kept(version: str) -> None:
    old = jaxexp.deserialize(blob_of(version, "mlp"))
    migrated = jax_export.deserialize(jaxexp.migrate(blob_of(version, "mlp")))
    assert migrated.has_vjp()
    assert not migrated.vjp().has_vjp()
    args, kwargs = arguments(old, version, "mlp")
    assert_same_values(pull_back(migrated.call, args, kwargs), pull_back(old.call, args, kwargs))


@each(
    "name",
    [
        "symbolic_several", "multi_platform", "custom_node", "threefry_key", "several_effects", "sharded_2d",
        "memory_kinds", "float8s", "cholesky", "custom_call_allowed",
    ],
)  # fmt: skip
def test_today_s_artifacts_stay_what_they_are(name: str) -> None:
    with CASES[name].context():
        exported = export_with(jaxexp, CASES[name].build())
        again = jaxexp.deserialize(jaxexp.migrate(exported.serialize()))
        assert _migrate._signature(again) == _migrate._signature(jaxexp.deserialize(exported.serialize()))
        assert again.calling_convention_version == exported.calling_convention_version
        assert again.mlir_module() == jaxexp.deserialize(exported.serialize()).mlir_module()


def ordered(convention: int) -> bytearray:
    blob = bytearray(export_with(jaxexp, CASES["ordered_effect"].build()).serialize(trailer=False))
    wire.write(blob, "calling_convention_version", convention)
    return blob


def test_an_old_calling_convention_with_tokens_is_refused() -> None:
    assert jaxexp.migrate(ordered(9))
    with pytest.raises(UnsupportedError, match=r"ordered effects .* calling convention 8.* export it again"):
        jaxexp.migrate(ordered(8))


def test_a_changed_signature_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    current = _migrate._up_to_date

    def broken(old: Any) -> Any:
        exported = current(old)
        exported.__dict__["platforms"] = ("tpu",)
        return exported

    monkeypatch.setattr(_migrate, "_up_to_date", broken)
    with pytest.raises(ExportError, match=r"sin would not be .* platforms was \('cpu',\), and is \('tpu',\)"):
        jaxexp.migrate(blob_of("0.6.2", "sin"))


def test_changed_results_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.float32([1, 2, 3])
    sin = jaxexp.export(jax.jit(jnp.sin))(x)
    other = jaxexp.export(jax.jit(lambda x: jnp.sin(x) * 1.001))(x)
    monkeypatch.setattr(_migrate, "_module_up_to_date", lambda old: other.mlir_module_serialized)
    assert jaxexp.migrate(sin.serialize())  # nobody has looked
    with pytest.raises(ExportError, match="with the given inputs, result 0 was"):
        jaxexp.migrate(sin.serialize(), inputs=((x,), {}))


def test_rounding_is_no_difference() -> None:
    x = np.float32([1, 2, np.nan, np.inf])
    near = np.float32([*np.nextafter(x[:2], np.float32(3)), np.nan, np.inf])
    assert not _migrate.differing(x, x).any()
    assert not _migrate.differing(x[:2], near[:2]).any()
    assert not _migrate.differing(x, near).any()
    assert _migrate.differing(x[:2], x[:2] * np.float32(1.0001)).any()
    assert _migrate.differing(x, np.float32([1, 2, 3, np.inf])).any()
    assert _migrate.differing(np.int32([1]), np.int32([2])).any()
    assert _migrate.differing(np.complex64([1j]), np.complex64([1])).any()


@each(
    "version, name, to",
    [("0.4.30", "mlp", "jax-0.9.2"), ("0.12.0.1", "tree", "jax-0.6.2"), ("0.9.2", "sharded", "jax-0.6.2")],
)
def test_to_a_named_release(version: str, name: str, to: str) -> None:
    report = jaxexp.compatibility(jaxexp.migrate(blob_of(version, name), to))
    assert report.readable_by(to.removeprefix("jax-"))


class Out(NamedTuple):
    a: Any


def test_what_an_old_reader_needs_is_said_as_a_line_of_python() -> None:
    function = jaxexp.export(jax.jit(lambda x: Out(x)))(1.0)
    for write in (lambda to: function.serialize(compatibility=to), lambda to: jaxexp.migrate(function.serialize(), to)):
        with pytest.raises(TooOldReaderError) as error:
            write("0.8.1")
        assert "jaxexp.register_namedtuple_serialization(" in str(error.value)
        assert ", serialized_name=" in str(error.value)


def test_all_orders_are_kept() -> None:
    blob = export_with(jaxexp, CASES["sin"].build()).serialize(vjp_order=2)
    migrated = jaxexp.deserialize(jaxexp.migrate(blob))
    assert migrated.vjp().vjp().fun_name == jaxexp.deserialize(blob).vjp().vjp().fun_name
    assert not migrated.vjp().vjp().has_vjp()

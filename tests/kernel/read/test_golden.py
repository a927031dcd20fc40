"""Artifacts that were written earlier: by releases of JAX from 0.4.23 on, by jaxexp, and by jaxexp for old readers."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export as jax_export

import jaxexp
from jaxexp import _native
from jaxexp._api.cases import culprit
from jaxexp._api.cases.calling import Chain
from jaxexp._kernel.artifact import module_head
from jaxexp._kernel.releases import table
from jaxexp._kernel.write import reader as readers
from jaxexp.errors import DeserializationError, ExportError
from kit import own_goldens, wire
from kit.compare import assert_same_chains, assert_same_fields, assert_same_values
from kit.corpus import CASES
from kit.derivatives import pull_back
from kit.each import each
from kit.goldens import ARTIFACTS, RELEASES, arguments, assert_runs, blob_of, release
from kit.harnesses import numbers
from kit.places import GOLDEN
from kit.ways import assert_apart_as_in_one, assert_calls_as_parsed, assert_inspected_as_loaded

pytestmark = pytest.mark.jax
every_release = pytest.mark.parametrize("version", RELEASES)
NAMES = {version: [name for v, name in ARTIFACTS if v == version] for version in RELEASES}


def read(library: Any, blob: bytes) -> Any:
    """The artifact; None where the library refuses it, for which jaxexp has one class of exceptions."""
    refusal = ExportError if library is jaxexp else Exception
    try:
        return library.deserialize(blob)
    except refusal:
        return None


def newest_stablehlo() -> tuple[int, ...]:
    return table.number(table.release(jax.__version__).stablehlo)


def stablehlo_of(exported: Any) -> tuple[int, ...]:
    return table.number(module_head.stablehlo_of(module_head.producer(exported.mlir_module_serialized)) or "")


def is_read_as_jax_reads_it(blob: bytes) -> None:
    theirs, ours = read(jax_export, blob), jaxexp.deserialize(blob)
    assert_same_fields(jax_export.deserialize(ours.serialize()), ours)
    if theirs is None:
        return
    if getattr(theirs, "_has_named_shardings", True):
        assert_same_fields(ours, theirs)
        return
    # Up to 0.10 an artifact without NamedShardings kept its HLO ones; jaxexp names them.
    for name in ("in_shardings_hlo", "out_shardings_hlo", "in_tree", "mlir_module_serialized"):
        assert getattr(ours, name) == getattr(theirs, name)
    for found, expected in ((ours.in_avals, theirs.in_avals), (ours.out_avals, theirs.out_avals)):
        assert [(str(a.shape), a.dtype) for a in found] == [(str(a.shape), a.dtype) for a in expected]


def is_inspected_as_it_is_loaded(blob: bytes) -> None:
    found = jaxexp.inspect(blob)
    assert found.total_bytes == len(blob)
    assert_inspected_as_loaded(found, jaxexp.deserialize(blob))


def has_the_calls_that_a_parser_finds(blob: bytes) -> None:
    assert_calls_as_parsed(blob, jaxexp.inspect(blob))


HOLDS = [is_read_as_jax_reads_it, is_inspected_as_it_is_loaded, has_the_calls_that_a_parser_finds]


@every_release
@each("holds", HOLDS)
def test_artifacts_of_a_release(version: str, holds: Callable[[bytes], None]) -> None:
    each("name", NAMES[version])(lambda name: holds(blob_of(version, name)))()


@pytest.mark.wide(one_in=4, promise="what a release of JAX wrote runs as it did then, or the error says what it needs")
@every_release
def test_what_a_release_wrote_runs(version: str) -> None:
    @each("name", NAMES[version])
    def runs(name: str) -> None:
        exported = jaxexp.deserialize(blob_of(version, name))
        try:
            assert_runs(exported, version, name)
        except DeserializationError as error:
            assert "for StableHLO" in str(error)
            assert stablehlo_of(exported) > newest_stablehlo()

    runs()
    if release(RELEASES[version]) <= jax.__version_info__:
        assert all(jaxexp.deserialize(blob_of(version, name)).mlir_module() for name in NAMES[version])


@pytest.mark.wide(one_in=8, promise="derivatives of what a release of JAX wrote are as they were")
@every_release
def test_derivatives(version: str) -> None:
    """`mlp` was written with one VJP: three layers tanh(x @ w + b)."""
    theirs, ours = (read(library, blob_of(version, "mlp")) for library in (jax_export, jaxexp))

    def live(params: Any, x: Any) -> Any:
        for i in range(3):
            x = jnp.tanh(x @ params[f"layer{i}"]["w"] + params[f"layer{i}"]["b"])
        return x

    assert ours.has_vjp()
    assert not ours.vjp().has_vjp()
    args, kwargs = arguments(ours, version, "mlp")
    assert_same_values(pull_back(ours.call, args, kwargs), pull_back(live, args, kwargs), rtol=1e-4)
    if theirs is not None and getattr(theirs, "_has_named_shardings", True):
        assert_same_fields(ours.vjp(), theirs.vjp())


@pytest.mark.parametrize("folder", own_goldens.CASES)
def test_what_jaxexp_wrote(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is read, inspected and written again byte for byte; its modules may be stored apart.

    By any version of JAX: the bytes name the one that writes them, and nothing else may depend on it.
    """

    @each("name", own_goldens.CASES[folder])
    def holds(name: str) -> None:
        blob, order = own_goldens.blob_of(folder, name), own_goldens.CASES[folder][name]["vjp_order"]
        with own_goldens.around(folder, name):
            ours = jaxexp.deserialize(blob)
            assert_same_chains(ours, jax_export.deserialize(bytearray(blob)), order)
            has_the_calls_that_a_parser_finds(blob)
            if read(jaxexp, blob) is not None and not own_goldens.CASES[folder][name]["x64"]:
                is_inspected_as_it_is_loaded(blob)
            if wire.has_trailer(blob):
                assert_apart_as_in_one(blob)
            else:
                with pytest.raises(DeserializationError, match="expected a trailer, without which no module"):
                    _native.cut(blob)
            monkeypatch.setattr(jax, "__version__", folder.rpartition("_jax-")[2])
            # The first ones were written before there were trailers.
            assert bytes(ours.serialize(order, trailer=wire.has_trailer(blob))) == blob
            monkeypatch.undo()

    holds()


@pytest.mark.parametrize("folder", own_goldens.CASES)
def test_what_jaxexp_wrote_runs(folder: str) -> None:
    @each("name", own_goldens.CASES[folder])
    def runs(name: str) -> None:
        with own_goldens.around(folder, name):
            exported = jaxexp.deserialize(own_goldens.blob_of(folder, name))
            args, kwargs = own_goldens.arguments(exported, folder, name)
            try:
                results = jax.tree.leaves(exported.call(*args, **kwargs))
            except DeserializationError:  # it says which JAX is needed
                assert stablehlo_of(exported) > newest_stablehlo()
                return
            assert [result.dtype for result in results] == [aval.dtype for aval in exported.out_avals]
            found, then = numbers(results), own_goldens.stored(folder, name, "out")
            assert_same_values(found, [value.astype(one.dtype) for value, one in zip(then, found, strict=True)])

    runs()


def named(name: str) -> list[jaxexp.Exported]:
    found = [
        jaxexp.deserialize(own_goldens.blob_of(f, name)) for f, cases in own_goldens.CASES.items() if name in cases
    ]
    assert found
    return found


def test_recorded_calls() -> None:
    for exported in named("recorded"):
        assert [case.name for case in exported.cases] == ["0", "drawn", "gradient"]
        report = exported.check()
        assert report.ok, report


def test_traces() -> None:
    """Another JAX finds the operations of a trace in the module. An earlier form of a trace is not compared."""
    compared = 0
    for exported in named("traced"):
        report = exported.check()
        assert report.ok, report
        (case,) = exported.cases
        traced, here = Chain(exported).trace(0, [value.array() for value in case.arguments])
        recorded = culprit.Trace.of_case(case.trace)
        if recorded is None:
            continue
        compared += 1
        assert len(traced.rows) > 10
        assert recorded.module == here.module
        np.testing.assert_array_equal(recorded.identities, here.identities)
        np.testing.assert_array_equal(recorded.counts, here.counts)
        is_float = np.array([row.is_float for row in traced.rows])
        one, other = (run.numbers[:, is_float] for run in (here, recorded))
        np.testing.assert_array_equal(one[..., :2], other[..., :2])  # how often it ran, and what is special
        np.testing.assert_allclose(one.view(np.float32)[..., 4:], other.view(np.float32)[..., 4:], rtol=1e-4, atol=1e-3)
        np.testing.assert_array_equal(here.numbers[:, ~is_float], recorded.numbers[:, ~is_float])
    assert compared


def test_sizes() -> None:
    for exported in named("sized"):
        assert exported.sizes == ({"batch": 16, "n": 8}, {"batch": 4, "n": 8})
    assert {exported.padded for exported in named("sized")} == {(), ("batch",)}  # since 2026-11-29


FOR_READERS = sorted(folder.name for folder in (GOLDEN / "compat").iterdir() if folder.is_dir())


@pytest.mark.wide(one_in=3, promise="what was written for an old reader is read, runs, and is written again")
@pytest.mark.parametrize("version", FOR_READERS)
def test_what_was_written_for_a_reader(version: str) -> None:
    """Each was read, called and compared by the release that it was written for, when it was made."""
    folder = GOLDEN / "compat" / version
    entries = json.loads((folder / "cases.json").read_text())

    @each("name", entries)
    def holds(name: str) -> None:
        blob, order = (folder / f"{name}.bin").read_bytes(), entries[name]["vjp_order"]
        is_inspected_as_it_is_loaded(blob)
        has_the_calls_that_a_parser_finds(blob)
        with CASES[name].context():
            program, exported = CASES[name].build(), jaxexp.deserialize(blob)
            if stablehlo_of(exported) <= table.number(readers.readers()[-1].stablehlo):
                results = exported.call(*program.args, **program.kwargs)
                expected = program.live(*program.args, **program.kwargs)
                assert_same_values(jax.tree.leaves(results), jax.tree.leaves(expected))
            again = exported.serialize(order, compatibility=version, trailer=wire.has_trailer(blob))
        if wire.read(blob, "jax_version") == jax.__version__:
            assert again == blob
        for slot in ("serialization_version", "nr_devices", "calling_convention_version", "function_name"):
            assert wire.read(again, slot) == wire.read(blob, slot)
        assert exported.has_vjp() == bool(order)

    holds()

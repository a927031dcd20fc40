"""Artifacts that jaxexp wrote earlier: each is read, runs, matches, and is written again byte for byte."""

from __future__ import annotations

import jax
import pytest
from jax import export as jax_export

import jaxexp
from jaxexp._api.cases import culprit
from jaxexp._api.cases.calling import Chain
from jaxexp._kernel.artifact import module_head
from jaxexp._kernel.releases.table import number, release
from kit import wire
from kit.compare import assert_same_fields, assert_same_values
from kit.own_goldens import CASES, arguments, around, blob_of, every_artifact, stored


def test_there_are_some() -> None:
    assert sum(map(len, CASES.values())) >= 30


@every_artifact
def test_runs_and_matches(folder: str, name: str) -> None:
    with around(folder, name):
        exported = jaxexp.deserialize(blob_of(folder, name))
        args, kwargs = arguments(exported, folder, name)
        try:
            results = jax.tree.leaves(exported.call(*args, **kwargs))
        except jaxexp.DeserializationError:  # it says which JAX is needed
            wanted = module_head.stablehlo_of(module_head.producer(exported.mlir_module_serialized))
            assert number(wanted or "") > number(release(jax.__version__).stablehlo)
            return
        expected = [
            value if jax.dtypes.issubdtype(aval.dtype, jax.dtypes.prng_key) else value.astype(aval.dtype)
            for value, aval in zip(stored(folder, name, "out"), exported.out_avals, strict=True)
        ]
        found = [jax.random.key_data(x) if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key) else x for x in results]
        assert_same_values(found, expected)


def test_recorded_calls() -> None:
    """They are found again, by any version of JAX."""
    found = [(folder, "recorded") for folder, cases in CASES.items() if "recorded" in cases]
    assert found
    for artifact in found:
        exported = jaxexp.deserialize(blob_of(*artifact))
        assert [case.name for case in exported.cases] == ["0", "drawn", "gradient"]
        report = exported.check()
        assert report.ok, report


def test_traces() -> None:
    """They are still compared: a run of today makes the same rows."""
    found = [(folder, "traced") for folder, cases in CASES.items() if "traced" in cases]
    assert found
    for artifact in found:
        exported = jaxexp.deserialize(blob_of(*artifact))
        assert exported.check().ok
        (case,) = exported.cases
        traced, here = Chain(exported).trace(0, [value.array() for value in case.arguments])
        recorded = culprit.Trace.of_case(case.trace)
        assert recorded is not None
        assert len(traced.rows) > 10
        assert recorded.identities == here.identities
        assert culprit.find(traced.rows, here, recorded) is None


def test_sizes() -> None:
    found = [(folder, "sized") for folder, cases in CASES.items() if "sized" in cases]
    assert found
    for artifact in found:
        sizes = ({"batch": 16, "n": 8}, {"batch": 4, "n": 8})
        assert jaxexp.deserialize(blob_of(*artifact)).sizes == sizes


@every_artifact
def test_read_as_jax_export_does(folder: str, name: str) -> None:
    ours, theirs = jaxexp.deserialize(blob_of(folder, name)), jax_export.deserialize(bytearray(blob_of(folder, name)))
    for order in range(CASES[folder][name]["vjp_order"] + 1):
        assert_same_fields(ours, theirs)
        assert ours.has_vjp() == theirs.has_vjp() == (order < CASES[folder][name]["vjp_order"])
        if ours.has_vjp():
            ours, theirs = ours.vjp(), theirs.vjp()


@every_artifact
def test_written_again_byte_for_byte(folder: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By any version of JAX: the bytes name the one that writes them, and nothing else may depend on it."""
    blob = blob_of(folder, name)
    exported = jaxexp.deserialize(blob)
    monkeypatch.setattr(jax, "__version__", folder.rpartition("_jax-")[2])
    # The first ones were written before there were trailers.
    assert bytes(exported.serialize(CASES[folder][name]["vjp_order"], trailer=wire.has_trailer(blob))) == blob

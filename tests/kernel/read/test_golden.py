"""Artifacts that released versions of JAX wrote, from 0.4.23 on."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import export as jax_export

import jaxexp
from kit.compare import assert_same_fields, assert_same_values
from kit.derivatives import pull_back
from kit.goldens import ARTIFACTS, RELEASES, arguments, assert_runs, blob_of, every_artifact, release


def read(library: Any, version: str, name: str) -> Any:
    """The artifact; None where the library refuses it, for which jaxexp has one class of exceptions."""
    refusal = jaxexp.ExportError if library is jaxexp else Exception
    try:
        return library.deserialize(blob_of(version, name))
    except refusal:
        return None


@pytest.mark.sampled(one_in=4, reason="many cases go the same way")
@every_artifact
def test_reads_what_the_installed_jax_reads(version: str, name: str) -> None:
    theirs, ours = read(jax_export, version, name), jaxexp.deserialize(blob_of(version, name))
    if theirs is not None:
        if getattr(theirs, "_has_named_shardings", True):
            assert_same_fields(ours, theirs)
        else:
            # Up to 0.10 an artifact without NamedShardings kept its HLO ones; jaxexp names them.
            assert ours.in_shardings_hlo == theirs.in_shardings_hlo
            assert ours.out_shardings_hlo == theirs.out_shardings_hlo
            assert ours.in_tree == theirs.in_tree
            for found, expected in ((ours.in_avals, theirs.in_avals), (ours.out_avals, theirs.out_avals)):
                assert [(str(a.shape), a.dtype) for a in found] == [(str(a.shape), a.dtype) for a in expected]
            assert ours.mlir_module_serialized == theirs.mlir_module_serialized
        try:
            assert_runs(theirs, version, name)
        except jax.errors.JaxRuntimeError:
            # Written by a newer JAX, for a newer compiler than the installed one.
            assert release(RELEASES[version]) > jax.__version_info__
            with pytest.raises(jaxexp.DeserializationError, match=r"for StableHLO .*, which JAX .* and newer read"):
                assert_runs(ours, version, name)
            return
    assert_runs(ours, version, name)


@pytest.mark.parametrize("version", RELEASES)
def test_derivatives(version: str) -> None:
    """`mlp` was written with one VJP: three layers tanh(x @ w + b)."""
    theirs, ours = read(jax_export, version, "mlp"), jaxexp.deserialize(blob_of(version, "mlp"))

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


@every_artifact
def test_rewrites_old_artifacts(version: str, name: str) -> None:
    """All of them, in today's layout, for today's jax.export."""
    ours = jaxexp.deserialize(blob_of(version, name))
    assert_same_fields(jax_export.deserialize(ours.serialize()), ours)


def runs(library: Any, version: str, name: str) -> bool:
    """Whether an artifact is read, and its module parsed, which is where an older jaxlib gives up."""
    exported = read(library, version, name)
    try:
        return exported is not None and bool(exported.mlir_module())
    except Exception as error:
        assert library is not jaxexp or isinstance(error, jaxexp.ExportError)
        return False


def test_count_per_release() -> None:
    """Shown by ``pytest -rP``; jaxexp reads whatever the jaxlib can parse, which is everything for the newest."""
    print(f"{'written by':>12} {'artifacts':>9} {'jax.export ' + jax.__version__:>20} {'jaxexp':>7}")
    for version in RELEASES:
        names = [name for v, name in ARTIFACTS if v == version]
        theirs, ours = (sum(runs(library, version, n) for n in names) for library in (jax_export, jaxexp))
        print(f"{version:>12} {len(names):>9} {theirs:>20} {ours:>7}")
        assert ours >= theirs
        if release(RELEASES[version]) <= jax.__version_info__:
            assert ours == len(names)
            if release(RELEASES[version]) >= (0, 10, 0):
                assert theirs == len(names)
    assert len(ARTIFACTS) == 159

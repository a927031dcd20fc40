"""The table of JAX releases, against the one that is installed and against itself."""

from __future__ import annotations

import datetime
import importlib
import itertools
import re

import jax
import pytest
from jax import export as jax_export
from jaxlib.mlir.dialects import stablehlo

import jaxexp
from jaxexp._kernel.releases import table
from jaxexp._kernel.releases.table import RELEASES, number, release
from kit.places import ROOT


def test_what_it_says_of_the_installed_release() -> None:
    installed = release(jax.__version__)
    assert installed.stablehlo == stablehlo.get_current_version()
    assert stablehlo.get_minimum_version() == "0.9.0"  # as for every jaxlib since JAX 0.4.22
    assert installed.oldest_convention == jax_export.minimum_supported_calling_convention_version
    assert installed.newest_convention == jax_export.maximum_supported_calling_convention_version
    kinds = importlib.import_module("jax._src.export.serialization")._dtype_to_dtype_kind
    assert installed.dtypes == len(set(kinds.values()))
    assert installed.custom_nodes == hasattr(jax_export, "register_pytree_node_serialization")
    assert installed.shardy == jax.config.jax_use_shardy_partitioner


@pytest.mark.skipif(not (ROOT / "cpp" / "runtime").exists(), reason="this is no checkout, so there are no C++ sources")
def test_the_table_of_the_cpp_runtime() -> None:
    """It has the newest release for each version of StableHLO."""
    source = (ROOT / "cpp" / "runtime" / "program" / "releases.h").read_text()
    rows = re.findall(r'\{\{(\d+), (\d+), (\d+)\}, "jax-([\d.]+)"\}', source)
    assert [(".".join(newest), name) for *newest, name in rows] == list(
        {row.stablehlo: row.version for row in RELEASES}.items()
    )


def test_order() -> None:
    assert [r.number for r in RELEASES] == sorted({r.number for r in RELEASES})
    assert RELEASES[0].version == "0.4.22"
    for older, newer in itertools.pairwise(RELEASES):
        assert number(older.stablehlo) <= number(newer.stablehlo)
        assert older.newest_convention <= newer.newest_convention
        assert older.dtypes <= newer.dtypes
        assert older.custom_nodes <= newer.custom_nodes
        assert older.shardy <= newer.shardy


def test_look_up_by_version() -> None:
    assert release("0.4.30").date == datetime.date(2024, 6, 18)
    with pytest.raises(
        jaxexp.ExportError, match=r"'0\.4\.21' is not a known release of JAX: .* one of 0\.4\.22, .*0\.12\.0\.1"
    ):
        release("0.4.21")


def test_look_up_by_date() -> None:
    assert table.newest_before(datetime.date(2023, 12, 13)) is None
    assert table.newest_before(datetime.date(2024, 6, 17)) == release("0.4.29")
    assert table.newest_before(datetime.date(2024, 6, 18)) == release("0.4.30")
    # 0.8.3 came out after 0.9.0.
    assert table.newest_before(datetime.date(2026, 1, 30)) == release("0.9.0")
    assert table.newest_before(datetime.date.max) == RELEASES[-1]


def test_look_up_by_stablehlo() -> None:
    assert table.first_to_read("0.9.0") == RELEASES[0]
    assert table.first_to_read("1.1.3") == release("0.4.30")
    assert table.first_to_read("1.1.4") == release("0.4.31")
    assert table.first_to_read("99.0.0") is None

"""Every operation that the installed jaxlib knows is in the table, or refused for a reason."""

from __future__ import annotations

import re
from typing import Any

import jaxlib.mlir.dialects._chlo_ops_gen as chlo
import jaxlib.mlir.dialects._stablehlo_ops_gen as stablehlo
import pytest

from jaxexp._raise.table import OPERATIONS, REFUSED
from kit.snippets import SNIPPETS

# These end blocks, and are read with them.
TERMINATORS = {"stablehlo.return"}


def known(dialect: Any) -> set[str]:
    return {value.OPERATION_NAME for value in vars(dialect).values() if hasattr(value, "OPERATION_NAME")}


@pytest.mark.parametrize("dialect", [stablehlo, chlo], ids=["stablehlo", "chlo"])
def test_every_operation_is_read_or_refused(dialect: Any) -> None:
    assert len(known(dialect)) > 50
    assert known(dialect) - OPERATIONS.keys() - TERMINATORS == set()


def test_reasons() -> None:
    assert all(REFUSED.values())
    assert len(REFUSED) == len(set(REFUSED))


def test_every_operation_that_is_read_has_a_snippet() -> None:
    """So that its values, and its mutants, are looked at."""
    text = "\n".join(snippet.text for snippet in SNIPPETS.values())
    elsewhere = {"stablehlo.custom_call", "stablehlo.cholesky", "chlo.mulhi", "sdy.sharding_constraint"}
    read = OPERATIONS.keys() - REFUSED.keys() - elsewhere
    assert {name for name in read if not re.search(rf"(?<![\w.]){re.escape(name)}\b", text)} == set()

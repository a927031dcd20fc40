"""The runtime under AddressSanitizer, UBSan and LeakSanitizer; `make sanitize` does the same with ThreadSanitizer."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import sanitize

pytestmark = [
    pytest.mark.slow(reason="builds the C++ runtime with sanitizers, which takes minutes"),
    pytest.mark.once(reason="what is built in C++ is the same for every pair of Python and JAX"),
]


def test_functions_called_by_threads(programs: Path, plugin: Path, tmp_path: Path) -> None:
    assert sanitize.call_functions(programs, plugin, tmp_path) == 0

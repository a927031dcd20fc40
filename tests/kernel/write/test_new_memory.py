"""Memory for large copies is asked for in large pages, where the system has them: it is there sooner."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import jaxexp
from jaxexp import _native

SMAPS = Path("/proc/self/smaps")
LARGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def wants_large_pages(buffer: Any) -> bool:
    """Whether somebody asked for large pages where the middle of a buffer is."""
    array = np.frombuffer(buffer, np.uint8)
    middle = array.ctypes.data + array.size // 2
    is_here = False
    for line in SMAPS.read_text().splitlines():
        first = line.split()[0]
        if not first.endswith(":"):
            begin, end = (int(part, 16) for part in first.split("-"))
            is_here = begin <= middle < end
        elif is_here and first == "VmFlags:":
            return "hg" in line.split()
    raise AssertionError(f"no mapping has the address {middle:x}")


@pytest.mark.skipif(not SMAPS.exists() or not LARGE_PAGES.exists(), reason="the system has no large pages")
def test_large_copies(tmp_path: Path) -> None:
    constant = np.random.default_rng(0).standard_normal(2**21, np.float32)  # 8 MiB
    exported = jaxexp.export(jax.jit(lambda x: x + constant))(np.float32(0))
    blob = exported.serialize()
    assert wants_large_pages(blob)
    loaded = jaxexp.deserialize(blob)  # a copy: the bytearray may change
    assert wants_large_pages(loaded.mlir_module_serialized)
    assert wants_large_pages(_native.join(_native.cut(blob), [loaded.mlir_module_serialized]))
    (path := tmp_path / "f.jaxexp").write_bytes(blob)
    assert wants_large_pages(_native.FileBytes(path).read(0, len(blob)))
    for how in ({}, {"at_once": True}):
        assert wants_large_pages(_native.FileBytes(path, **how))

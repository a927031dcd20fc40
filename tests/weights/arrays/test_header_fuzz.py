"""A short run of the fuzzer of headers, with fixed seeds; tests/tools/tensors_fuzz.py runs longer."""

from __future__ import annotations

import collections
import random
from pathlib import Path

import pytest

from tools import tensors_fuzz

pytestmark = pytest.mark.once(reason="files, whatever JAX there is")


@pytest.mark.parametrize("seed", range(4))
def test_changed_files(seed: int, tmp_path: Path) -> None:
    source = random.Random(seed)
    outcomes = collections.Counter(
        tensors_fuzz.look_at(tmp_path / "x.safetensors", tensors_fuzz.changed_file(source)) for _ in range(400)
    )
    assert outcomes["read"] > 50
    assert outcomes["refused"] > 150


def test_costs(tmp_path: Path) -> None:
    """Headers that say much in few bytes: the promise is the one for artifacts."""
    path = tmp_path / "x.safetensors"
    count = 20_000
    for text in (
        "{" + ",".join(f'"{i}":{{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}' for i in range(count)) + "}",
        '{"__metadata__":{' + ",".join(f'"{i}":""' for i in range(count)) + "}}",
        '{"a":{"dtype":"U8","shape":[' + ",".join(["1"] * count) + '],"data_offsets":[0,1]}}',
        '{"' + "n" * count + '":{"dtype":"U8","shape":[0],"data_offsets":[0,1]}}',
        "{" * count,
        '{"a":' + "[" * count,
        '{"a":' + "9" * count + "}",
    ):
        blob = len(text).to_bytes(8, "little") + text.encode()
        slowness = tensors_fuzz.costs.slowness()
        found, seconds, memory = tensors_fuzz.costs.measured(lambda blob=blob: tensors_fuzz.look_at(path, blob))
        assert found in ("read", "refused")
        assert seconds <= tensors_fuzz.costs.allowed_seconds(len(blob), slowness), text[:100]
        assert memory <= tensors_fuzz.costs.allowed_memory(len(blob)), text[:100]

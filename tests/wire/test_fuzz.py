"""A short run of every fuzz target: `make fuzz` runs them for as long as one likes.

The numbers of runs and the seeds are fixed, so a failure here is one everywhere. Those in C++ are built with sanitizers
before they run: `make sanitize` runs them for a shorter time, and the night these tests.
"""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import jaxexp
from kit import hostile
from kit.parts import Part, put_together, take_apart, walk
from kit.places import TESTS
from tools import decoder_fuzz, fuzz, reader_fuzz

NATIVE_RUNS = 20_000
LARGE = 400_000
sys.setrecursionlimit(max(sys.getrecursionlimit(), 30_000))  # nested trees are written by recursion
DECODER_RUNS = int(os.environ.get("JAXEXP_DECODER_FUZZ_RUNS", "1500"))
PARTS = 8  # of which one gates
TARGETS = sorted(path.stem for path in (TESTS / "cpp").glob("fuzz_*.cpp"))


def instrumented(test: Callable[..., None]) -> Callable[..., None]:
    """A test of what is built with sanitizers, which takes minutes."""
    for mark in (
        pytest.mark.cpp,
        pytest.mark.long(promise="hostile bytes do no harm to C++", sibling="test_fuzz.py::test_python_decoder"),
    ):
        test = mark(test)
    return test


@pytest.fixture(scope="session")
def seeds(sanitized: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("seeds")
    assert fuzz.make_seeds(sanitized, folder) > 200
    return folder


@instrumented
@pytest.mark.parametrize("target", TARGETS)
def test_native_target(target: str, sanitized: Path, seeds: Path, tmp_path: Path) -> None:
    done = fuzz.short_run(sanitized / target, NATIVE_RUNS, seeds, f"-artifact_prefix={tmp_path}/")
    assert done.returncode == 0, done.stdout[-5000:]
    runs, edges, corpus = map(int, re.search(r"Done (\d+) runs.*cov: (\d+), corpus: (\d+)", done.stdout).groups())
    assert runs == NATIVE_RUNS
    # Some have little to find: an xla.OpSharding and a constraint are small, and an archive ends at one place.
    small = {
        "fuzz_op_sharding": (50, 20),
        "fuzz_end": (300, 20),
        "fuzz_npy": (300, 30),
        "fuzz_dimension": (300, 40),
        "fuzz_executables": (300, 40),
        "fuzz_tensors": (300, 40),
    }
    least_edges, least_kept = small.get(target, (300, 100))
    assert edges > least_edges, "the codec is compiled with the tracing of its edges"
    assert corpus > least_kept, "inputs that reach something new are kept"


@instrumented
@pytest.mark.parametrize("family", hostile.FAMILIES)
def test_large_artifacts(family: str, sanitized: Path, seeds: Path, tmp_path: Path) -> None:
    """Seeds are small, and what grows with the square of a size shows in large ones only."""
    path = tmp_path / family
    path.write_bytes(hostile.FAMILIES[family](LARGE))
    for target in TARGETS:
        if fuzz.seeds_of(target, seeds).name == "artifacts":
            done = subprocess.run([sanitized / target, path], cwd=tmp_path, capture_output=True, text=True, timeout=300)
            assert done.returncode == 0, f"{target}: {done.stdout[-3000:]}{done.stderr[-3000:]}"


@instrumented
def test_native_driver_notices(sanitized: Path, tmp_path: Path) -> None:
    """What a target makes of bytes that are no artifact, and of an option that does not exist."""
    (tmp_path / "no_artifact").write_bytes(b"\xff" * 64)
    replayed = subprocess.run([sanitized / TARGETS[0], tmp_path / "no_artifact"], capture_output=True, text=True)
    assert replayed.returncode == 0
    assert "Done 1 runs" in replayed.stdout
    assert subprocess.run([sanitized / TARGETS[0], "-nothing=1"], capture_output=True).returncode == 2


@pytest.mark.wide(one_in=PARTS, promise="fields of artifacts are what they were, or refused")
@pytest.mark.parametrize("part", range(PARTS))
def test_python_decoder(part: int) -> None:
    """Fields changed one by one: a consistent function or a DeserializationError, and both of them often."""
    count = DECODER_RUNS // PARTS
    outcomes = reader_fuzz.run("decoder", seed=part * count, count=count)
    assert outcomes["read"] > count // 10
    assert outcomes["refused"] > count // 10


READERS = {"scopes": 100, "archives": 30, "nodes": 50, "devices": 40, "locations": 16, "signatures": 40}


@pytest.mark.wide(one_in=PARTS, promise="what Python reads by itself is the same each time, or refused")
@pytest.mark.parametrize(("kind", "part"), [(kind, part) for kind in READERS for part in range(PARTS)])
def test_other_readers(kind: str, part: int) -> None:
    if kind == "signatures":
        pytest.importorskip("model_signing", reason="comes with the extra 'sign'")
    outcomes = reader_fuzz.run(kind, seed=part * READERS[kind], count=READERS[kind])
    assert outcomes["read"] and outcomes["refused"], "both outcomes are frequent"


def test_parts_of_an_artifact() -> None:
    """Taking apart and putting together loses nothing: what the decoder is given is what was meant."""
    for blob in decoder_fuzz.sources():
        root = take_apart(blob)
        again = put_together(root)
        assert put_together(take_apart(again)) == again
        assert decoder_fuzz.look_at(again) == "read"
        ours, theirs = jaxexp.deserialize(again), jaxexp.deserialize(blob)
        assert str(ours.in_tree) == str(theirs.in_tree)
        # Weak types are in the trailer, which stays behind.
        assert [str(aval) for aval in ours.in_avals] == [str(aval).lstrip("~") for aval in theirs.in_avals]
        assert ours.mlir_module_serialized == theirs.mlir_module_serialized


def test_shared_parts_stay_shared() -> None:
    """A tree of 2**20 leaves in a few hundred bytes is refused at once, whoever made it."""
    root = take_apart(decoder_fuzz.sources()[0])
    node = next(part for part in walk(root) if part.kind == "PyTreeDef")
    for _ in range(20):
        parent = Part("PyTreeDef")
        parent["kind"], parent["children"] = 2, [node, node]
        node = parent
    root["in_tree"] = node
    blob = put_together(root)
    assert len(blob) < 10_000
    with pytest.raises(jaxexp.errors.DeserializationError):
        jaxexp.deserialize(blob)


def test_changes_reach_every_field() -> None:
    """A field that is never changed would be a hole in the test above."""
    source = random.Random(0)
    changers = [decoder_fuzz.Changer(take_apart(blob), source) for blob in decoder_fuzz.sources()]
    changed = {source.choice(changers).change() for _ in range(5000)}
    assert changed == {f"{kind}.{field}" for kind, fields in decoder_fuzz.LAYOUT.items() for field in fields}

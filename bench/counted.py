"""The process under callgrind: runs each operation between two marks. `bench/counts.py` starts it."""

from __future__ import annotations

import ctypes
import gc
import pickle
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jaxexp
from jaxexp import _native
from jaxexp._kernel.codec import binding

WARM = 3  # the first runs fill caches, and Python specializes its bytecode


def operations(folder: Path) -> dict[str, tuple[Callable[[], Any], int]]:
    """By name, an operation on the artifacts in a folder, and how often it runs."""
    artifacts: dict[str, bytes] = pickle.loads((folder / "artifacts.pickle").read_bytes())
    loaded = {name: jaxexp.deserialize(artifact) for name, artifact in artifacts.items()}
    found: dict[str, tuple[Callable[[], Any], int]] = {}
    for name, artifact in artifacts.items():
        repeats = 3 if len(artifact) > 10**5 else 20
        found[f"deserialize, {name}"] = partial(jaxexp.deserialize, artifact), repeats
        found[f"deserialize and look, {name}"] = partial(_looked_at, artifact), repeats
        found[f"serialize, {name}"] = partial(loaded[name].serialize, 3 if name.startswith("VJP") else 0), repeats
    large = "2,000 parameters"
    versions = [bytes(loaded["tiny"].serialize(metadata={"version": i})) for i in range(100)]
    path = folder / "archive"
    with jaxexp.Archive.create(path) as archive:
        for i, version in enumerate(versions):
            archive.add(f"version {i}", version)
    found[f"verify, {large}"] = partial(_native.Artifact, artifacts[large]), 3
    found[f"serialize, first time, {large}"] = loaded[large].serialize, 1
    for name in ("tiny", large, "2,000 sharded", "VJP order 3"):
        found[f"deserialize and look, first time, {name}"] = partial(_looked_at, artifacts[name]), 1
    found["load_many, 100 versions"] = partial(jaxexp.load_many, versions, workers=1), 3
    found["archive, open and load one"] = lambda: jaxexp.Archive.open(path)["version 50"].load(), 3
    found["load_all, 100 versions"] = lambda: jaxexp.Archive.open(path).load_all(workers=1), 3
    return found


def _looked_at(artifact: bytes) -> dict[str, Any]:
    """The fields of a function, which are decoded for this."""
    return vars(jaxexp.deserialize(artifact))


def main(folder: str, marks: str) -> None:
    library = ctypes.PyDLL(marks)
    for name, (run, repeats) in operations(Path(folder)).items():
        # As often as is counted: memory that earlier operations left is in order then. That may take longer than what
        # is counted, and happens only sometimes.
        for _ in range(max(WARM, repeats)):
            run()
        if "first time" in name:
            binding.bind.cache_clear()
            binding.bind()
        gc.collect()
        gc.disable()
        library.start()
        for _ in range(repeats):
            run()
        library.stop(f"{repeats} {name}".encode())
        gc.enable()


if __name__ == "__main__":
    main(*sys.argv[1:])

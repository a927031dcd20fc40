"""Writes every case for some old releases, with arguments and results: python write.py FOLDER RELEASE...

Each artifact is written twice: of a function that was exported for the release (NAME.bin), and of one that was
exported without a thought of it (NAME.later.bin) where that gives other bytes.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from pathlib import Path
from typing import Any

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["JAX_TRACEBACK_IN_LOCATIONS_LIMIT"] = "0"  # artifacts do not tell where this checkout lies
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8"
warnings.simplefilter("ignore")

import jax
import numpy as np
from cases import CASES

import jaxexp
from kit.corpus import Program, export_with
from kit.derivatives import cotangents, is_inexact


def plain(leaf: Any) -> np.ndarray:
    """An array that a file of any numpy can hold; the reader knows the dtype from the artifact."""
    dtype = jax.numpy.result_type(leaf) if not hasattr(leaf, "dtype") else leaf.dtype
    if jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key):
        return np.asarray(jax.random.key_data(leaf))
    if dtype == jax.dtypes.float0:
        return np.zeros(np.shape(leaf), bool)
    array = np.asarray(leaf)
    if array.dtype.kind == "V" or array.dtype.name.startswith(("bfloat", "float8", "float4", "int4", "uint4")):
        return array.astype(np.int32 if "int" in array.dtype.name else np.float32)
    return array


def values_of(program: Program, vjp_order: int) -> dict[str, np.ndarray]:
    """What goes in and comes out; `grad_i` is the cotangent of argument i under `cotangents` of the results."""
    leaves, tree = jax.tree.flatten((program.args, program.kwargs))

    def results(*xs: Any) -> list[Any]:
        args, kwargs = tree.unflatten(xs)
        return jax.tree.leaves(program.live(*args, **kwargs))

    found = [(f"in_{i}", leaf) for i, leaf in enumerate(leaves)]
    found += [(f"out_{i}", leaf) for i, leaf in enumerate(results(*leaves))]
    if vjp_order:
        leaves = [leaf if hasattr(leaf, "dtype") else jax.numpy.asarray(leaf) for leaf in leaves]
        out, pull = jax.vjp(results, *leaves)
        grads = zip(leaves, pull(cotangents(out)), strict=True)
        found += [(f"grad_{i}", grad) for i, (leaf, grad) in enumerate(grads) if is_inexact(leaf)]
    return {name: plain(program.finish(leaf)) for name, leaf in found}


class _Export:
    """jaxexp with a compatibility of its own, for `export_with`."""

    DisabledSafetyCheck = jaxexp.DisabledSafetyCheck

    def __init__(self, compatibility: str | None) -> None:
        self.compatibility = compatibility

    def export(self, fun: Any, **options: Any) -> Any:
        return jaxexp.export(fun, compatibility=self.compatibility, **options)


def write(name: str, folder: Path, releases: list[str]) -> dict[str, dict[str, Any]]:
    case = CASES[name]
    entries: dict[str, dict[str, Any]] = {}
    order = min(case.vjp_order, 1)
    with case.context():
        np.savez(folder / f"{name}.npz", **values_of(case.build(), order))
        later = export_with(_Export(None), case.build())
        for release in releases:
            choice = f"jax-{release}"
            entry: dict[str, Any] = {"vjp_order": order, "x64": case.x64, "devices": later.nr_devices}
            blobs = {}
            try:
                blobs["bin"] = export_with(_Export(choice), case.build()).serialize(vjp_order=order)
            except jaxexp.errors.ExportError as error:
                entry["refused"] = str(error)
            try:
                blobs["later.bin"] = later.serialize(order, compatibility=choice)
            except jaxexp.errors.ExportError as error:
                entry["later_refused"] = str(error)
            if blobs.get("bin") == blobs.get("later.bin"):
                blobs.pop("later.bin", None)
            for suffix, blob in blobs.items():
                (folder / release / f"{name}.{suffix}").write_bytes(blob)
            entry["files"] = [f"{name}.{suffix}" for suffix in blobs]
            entries[release] = entry
    return entries


def main(folder: Path, releases: list[str], names: list[str]) -> None:
    for release in releases:
        (folder / release).mkdir(parents=True, exist_ok=True)
        for old in (folder / release).glob("*.bin"):
            old.unlink()
    written: dict[str, dict[str, Any]] = {release: {} for release in releases}
    for name in names:
        for release, entry in write(name, folder, releases).items():
            written[release][name] = entry
    for release, entries in written.items():
        (folder / release / "cases.json").write_text(json.dumps(entries, indent=1))
        refused = sum("refused" in entry for entry in entries.values())
        print(f"for {release}: {len(entries) - refused} of {len(entries)} cases written", flush=True)


if __name__ == "__main__":
    chosen = os.environ.get("CASES", "").split()
    main(Path(sys.argv[1]), sys.argv[2:], chosen or list(CASES))

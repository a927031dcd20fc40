"""Artifacts with a recorded call each, and the same for `jax.export`: artifacts with files of NumPy beside them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import jax
import numpy as np

from bench import disk, fleet
from bench.program import Program

_F32 = len(fleet.DTYPES)  # every so many functions of a fleet are of float32, which NumPy's files have


@dataclass(frozen=True)
class Recorded(Program):
    """The first of `count` functions with their own signatures, modules and arguments."""

    count: int = 0

    def folder(self, subject: ModuleType, oracle: ModuleType) -> Path:
        """Files of both libraries for each function: `.jaxexp`, and `.jax` with `.npz`."""
        folder = disk.new_path().parent
        for index in range(self.count):
            program = _member(index)
            path = folder / f"function_{index:04}.jaxexp"
            subject.export(program.fresh())(*program.specs).save(path, cases=[program.args])
            exported = oracle.export(program.fresh())(*program.specs)
            path.with_suffix(".jax").write_bytes(exported.serialize())
            leaves = jax.tree.leaves((program.args, exported.call(*program.args)))
            np.savez(path.with_suffix(".npz"), *map(np.asarray, leaves))
        return folder


def _member(index: int) -> Program:
    program = fleet.member(_F32 * index, 1)
    rng = np.random.default_rng(index)

    def argument(spec: jax.ShapeDtypeStruct) -> np.ndarray:
        if spec.dtype.kind == "i":
            return np.zeros(spec.shape, spec.dtype)
        return rng.standard_normal(spec.shape, np.float32) / 8

    return Program(program.function, program.specs, jax.tree.map(argument, program.specs))


def recorded(count: int) -> Recorded:
    first = _member(0)
    return Recorded(first.function, first.specs, first.args, count=count)

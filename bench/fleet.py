"""Fleets: thousands of artifacts in a folder, as on a server, exported in processes of their own.

Every function takes parameters in nested dicts and a batch. Most have a constant baked in, such as the statistics of a
training set. There are two kinds of fleets. In one, each model has many versions that differ only in the constant, like
a model that is trained again. In the other, no two functions have the same signature.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np

from bench import disk
from bench.program import Program

# The sizes of baked constants in kB, in turn: small in many models, large in a few, 22 on average.
CONSTANTS = (0, 0, 0, 0, 0, 0, 1, 1, 2, 2, 4, 4, 8, 8, 16, 16, 32, 32, 64, 256)
WIDTHS, BATCHES, LAYERS = 50, 25, 8
DTYPES = (jnp.float32, jnp.bfloat16, jnp.float16)


@dataclass(frozen=True)
class Fleet(Program):
    """The first of its functions, and the folder `made` with a file that jax.export wrote for each name."""

    made: Path = Path()
    names: tuple[str, ...] = ()
    _written: dict[Any, Any] = field(default_factory=dict, repr=False)

    def files(self, library: ModuleType) -> dict[str, Path]:
        """The files that a library writes for the same functions, by name; made once for all questions."""

        def write() -> dict[str, Path]:
            folder = disk.new_path().parent
            for name in self.names:
                (folder / name).write_bytes(library.deserialize((self.made / name).read_bytes()).serialize())
            return {name: folder / name for name in self.names}

        return self._once("files", library, write)

    def folder(self, library: ModuleType) -> Path:
        """The folder of these files, and of nothing else."""
        return next(iter(self.files(library).values())).parent

    def zipped(self, library: ModuleType) -> Path:
        """The same files in a ZIP file, as they are."""

        def write() -> Path:
            path = disk.new_path()
            with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
                for name, file in self.files(library).items():
                    archive.write(file, name)
            return path

        return self._once("zipped", library, write)

    def archive(self, library: ModuleType) -> Path:
        """The same files in an archive of the library's own."""

        def write() -> Path:
            path = disk.new_path()
            with library.Archive.create(path) as archive:
                for name, file in self.files(library).items():
                    archive.add(name, file.read_bytes())
            return path

        return self._once("archive", library, write)

    def some(self, count: int) -> Sequence[str]:
        """Names, evenly spread."""
        return self.names[:: max(1, len(self.names) // count)]

    def _once(self, what: str, library: ModuleType, make: Callable[[], Any]) -> Any:
        key = what, library.__name__
        if key not in self._written:
            self._written[key] = make()
        return self._written[key]


def fleet(functions: int, versions: int) -> Fleet:
    """`functions` functions in `versions` versions each, exported in as many processes as there are processors."""
    folder = disk.new_path().parent
    count = min(os.cpu_count() or 1, 8, 1 + functions // 50)
    program = "import sys; from bench import fleet; fleet.make(*sys.argv[1:])"
    ranges = [(worker * functions // count, (worker + 1) * functions // count) for worker in range(count)]
    commands = [[sys.executable, "-c", program, str(folder), str(versions), *map(str, range_)] for range_ in ranges]
    workers = [subprocess.Popen(command, cwd=disk.ROOT) for command in commands]
    statuses = [worker.wait() for worker in workers]
    if any(statuses):
        raise RuntimeError("a process that exports functions failed; its message is above")
    first = member(0, versions)
    names = tuple(sorted(os.listdir(folder)))
    assert len(names) == functions * versions
    args = jax.tree.map(lambda spec: jnp.ones(spec.shape, spec.dtype), first.specs)
    return Fleet(first.function, first.specs, args, made=folder, names=names)


def make(folder: str, versions: str, start: str, stop: str) -> None:
    """The work of one process: exports functions, and writes a file for each version of each."""
    for index in range(int(start), int(stop)):
        program = member(index, int(versions))
        artifact = bytes(jax.export.export(jax.jit(program.function))(*program.specs).serialize())
        baked = constant(index, 0, int(versions)).tobytes()
        assert not baked or artifact.count(baked) == 1, "the constant is in the artifact once, unchanged"
        at = artifact.index(baked)
        for version in range(int(versions)):
            other = constant(index, version, int(versions)).tobytes()
            blob = artifact[:at] + other + artifact[at + len(baked) :]
            (Path(folder) / _name(index, version)).write_bytes(blob)


def _name(index: int, version: int) -> str:
    return f"predict_{index:05}-v{version:02}"


def constant(index: int, version: int, versions: int) -> np.ndarray:
    """The constant of one version of one function; no other has it. It may be empty if there is only one version."""
    kilobytes = CONSTANTS[index * 7 % len(CONSTANTS)] or (versions > 1)
    return np.random.default_rng((index, version)).standard_normal(256 * kilobytes, np.float32)


def member(index: int, versions: int) -> Program:
    """A function and its specs. No two of the first WIDTHS * BATCHES * LAYERS have the same specs."""
    layers, rest = 1 + index % LAYERS, index // LAYERS
    batch, width = 1 + rest % BATCHES, 4 + 4 * (rest // BATCHES % WIDTHS)
    dtype = DTYPES[index % len(DTYPES)]
    like = functools.partial(jax.ShapeDtypeStruct, dtype=dtype)
    params: dict[str, Any] = {}
    for i in range(layers):
        params[f"layer_{i}"] = layer = {"dense": {"kernel": like((width, width)), "bias": like((width,))}}
        if (index + i) % 4 == 0:
            layer["norm"] = {"scale": like((width,))}
    inputs = {"x": like((batch, width)), "step": jax.ShapeDtypeStruct((), jnp.int32)}
    if index % 5 == 0:
        inputs["mask"] = jax.ShapeDtypeStruct((batch, 1), dtype)
    baked = constant(index, 0, versions)

    def predict(params: Any, inputs: Any) -> Any:
        x = inputs["x"]
        for layer in params.values():
            x = x @ layer["dense"]["kernel"] + layer["dense"]["bias"]
            if "norm" in layer:
                x = x * layer["norm"]["scale"]
        if "mask" in inputs:
            x = x * inputs["mask"]
        if baked.size:
            x = x + jnp.asarray(baked)[inputs["step"]].astype(dtype)
        return {"logits": x, "step": inputs["step"] + 1}

    predict.__name__ = predict.__qualname__ = f"predict_{index:05}"
    return Program(predict, (params, inputs), ())

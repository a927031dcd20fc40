"""All golden artifacts with their arguments, and the results of the functions that they were exported from."""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np

import jaxexp

from . import linear_algebra
from .corpus import CASES, export_with
from .places import GOLDEN
from .runtime import numpy_dtype
from .runtime_values import flat_arguments, flat_results

# The folders, by what they have. A release's folder is one with a number behind "jax-".
KINDS = {
    "written by the `jax.export` of a release, 0.4.23 to 0.12.0.1": "jax-*/*.bin",
    "in calling conventions 6 to 8": "conventions/*/*.bin",
    "for several devices, before Shardy": "before_shardy/*/*.bin",
    "linear algebra, from before JAX 0.6": "lapack/*/*.bin",
    "written by earlier versions of jaxexp": "*_jaxexp-*/*.bin",
    "written by jaxexp for older releases": "compat/*/*.bin",
    "the README's example": "readme/*.bin",
}
ARTIFACTS = {
    path.relative_to(GOLDEN).with_suffix("").as_posix(): kind
    for kind, pattern in KINDS.items()
    for path in sorted(GOLDEN.glob(pattern))
}


def path_of(name: str) -> Path:
    return GOLDEN / f"{name}.bin"


def recorded(name: str) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """The arguments and the results, as modules have them: the data of PRNG keys, false for float0."""
    folder, _, case = name.rpartition("/")
    if folder == "readme":
        arguments = [np.zeros(3, np.float32), np.eye(4, 3, dtype=np.float32), np.ones((2, 4), np.float32)]
        return arguments, [np.full((2, 3), 1 / 3, np.float32)]
    if folder.startswith("compat/"):
        return _of_case(case)
    if folder.startswith("lapack/") and case.startswith(("schur", "hessenberg")):
        return _of_jaxlib(name.removeprefix("lapack/"))
    file = path_of(case.rpartition("_")[0] if folder.startswith("conventions/") else case).name
    inspection = jaxexp.inspect(path_of(name))
    with np.load((path_of(name).parent / file).with_suffix(".npz")) as stored:
        return tuple(
            [stored[f"{kind}_{i}"].astype(numpy_dtype(value.dtype)) for i, value in enumerate(values)]
            for kind, values in (("in", inspection.arguments), ("out", inspection.results))
        )


@functools.cache
def _of_case(name: str) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """What is known without the function's artifact."""
    case = CASES[name]
    with case.context():
        program = case.build()
        exported = export_with(jaxexp, program)
        found = program.live(*program.args, **program.kwargs)
        return flat_arguments(exported, program.args, program.kwargs), flat_results(exported, found)


def _of_jaxlib(name: str) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """What jaxlib's LAPACK computes today: phases of complex vectors, which the equations leave open, were chosen in
    another way when the artifact was made.
    """
    with linear_algebra.precision(name):
        exported = linear_algebra.load(name)
        argument, _ = linear_algebra.stored(name)
        return flat_arguments(exported, (argument,), {}), flat_results(exported, exported.call(argument))

"""Records a case in a copy of each golden artifact, for `jaxexp check` on other releases, plugins and machines.

JAX_NUM_CPU_DEVICES=8 PYTHONPATH=tests python tests/golden/record_cases.py FOLDER
jaxexp check FOLDER --python other/bin/python --matrix
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np

import jaxexp
from kit import recorded


def arguments(exported: jaxexp.Exported, arrays: list[np.ndarray]) -> tuple[Any, Any]:
    """What the function is called with, positional and by name, from arrays as modules have them."""

    def of(array: np.ndarray, dtype: Any) -> Any:
        if jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key):
            return jax.random.wrap_key_data(array, impl=dtype._impl.name)
        return np.zeros(array.shape, dtype) if dtype == jax.dtypes.float0 else array

    leaves = [of(array, aval.dtype) for array, aval in zip(arrays, exported.in_avals, strict=True)]
    return jax.tree.unflatten(exported.in_tree, leaves)


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    made = 0
    for name in recorded.ARTIFACTS:
        exported = jaxexp.load(recorded.path_of(name))
        args, kwargs = arguments(exported, recorded.recorded(name)[0])
        try:
            exported.save(folder / f"{name.replace('/', '__')}.jaxexp", cases=[{"args": args, "kwargs": kwargs}])
            made += 1
        except jaxexp.ExportError as error:
            print(f"{name}: {error}")
    print(f"{made} of {len(recorded.ARTIFACTS)} recorded")


if __name__ == "__main__":
    main(Path(sys.argv[1]))

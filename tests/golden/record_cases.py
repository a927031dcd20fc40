"""Records a case in a copy of each golden artifact, for `jaxexp check` on other releases, plugins and machines.

JAX_NUM_CPU_DEVICES=8 PYTHONPATH=tests python tests/golden/record_cases.py FOLDER
jaxexp check FOLDER --python other/bin/python --matrix
"""

from __future__ import annotations

import sys
from pathlib import Path

import jax

import jaxexp
from jaxexp._api.cases.calling import for_jax
from kit import recorded


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    made = 0
    for name in recorded.ARTIFACTS:
        exported = jaxexp.load(recorded.path_of(name))
        arrays, _ = recorded.recorded(name)
        leaves = map(for_jax, arrays, exported.in_avals)
        args, kwargs = jax.tree.unflatten(exported.in_tree, leaves)
        try:
            exported.save(folder / f"{name.replace('/', '__')}.jaxexp", cases=[{"args": args, "kwargs": kwargs}])
            made += 1
        except jaxexp.ExportError as error:
            print(f"{name}: {error}")
    print(f"{made} of {len(recorded.ARTIFACTS)} recorded")


if __name__ == "__main__":
    main(Path(sys.argv[1]))

"""Changes one operation of a module at a time, and prints how often a check names it: for docs/guide/check.md.

python tests/tools/named_operations.py FOLDER [--most 25] [--models NAME ...]

The models are those of kit/traced_models.py, which nobody tuned the check to. They are recorded once, with a trace.
Then each one gets changes (kit/mutations.py) until so many make a difference, and is checked as `jaxexp check` does: as
the compiler is, and without its optimizations. FOLDER keeps a file of results for each model; a run goes on where
another one was stopped.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import jax
import numpy as np

import jaxexp
from jaxexp._api.cases import recording
from jaxexp._api.cases.calling import Chain
from kit import traced_models
from kit.mutations import Mutation, mutations

# A result that is off by a smaller part of its largest number may be rounded otherwise.
ROUNDING = 1e-3
LEVELS = {"optimized": "", "not optimized": "--xla_backend_optimization_level=0"}
# How a check may go if results differ: a change is named exactly, by what is around it, or wrongly; the compiler is
# blamed for it; nothing is named; or all results pass.
DIFFERING = ("exact", "around", "wrong", "compiler", "unnamed", "unnoticed")
# Beside these: changes that make no difference, modules that cannot run, and reports that do not say that the module
# was changed.
OUTCOMES = (*DIFFERING, "same", "fails", "untold")


class NamesOnly(Chain):
    """Leaves out what a check does besides, which takes most of its time and changes no name: float64."""

    def trace(self, order: int, arguments: Any, at: Any = None) -> Any:
        return super().trace(order, arguments) if at is None else self.in_float64(order, arguments)

    def in_float64(self, order: int, leaves: Any) -> Any:
        raise NotImplementedError


def outcome(exported: jaxexp.Exported, mutation: Mutation) -> dict[str, Any]:
    """How a check of a changed module goes."""
    (checked,) = dataclasses.replace(exported, mlir_module_serialized=mutation.module).check().cases
    if checked.error is not None:  # such as a branch that there is not
        return {"outcome": "fails", "said": checked.error}
    told = {"is_told": bool(checked.changed), "said": str(checked.culprit or checked.unnamed)}
    if checked.culprit is not None:
        return {"outcome": mutation.names(checked.culprit.at), **told}
    if checked.verdict == "differs":
        return {"outcome": "compiler" if "compiler" in checked.unnamed else "unnamed", **told}
    by = [one.max_absolute / (np.abs(value.array().astype(np.complex128)).max(initial=1e-30))
          for one, value in zip(checked.results, exported.cases[0].results, strict=True)]  # fmt: skip
    return {"outcome": "unnoticed" if max(by) > ROUNDING else "same", "said": f"{max(by):.2g} of the result"}


def examine(model: Path, results: Path, most: int) -> None:
    """Adds a line for each change to the results, until so many make a difference."""
    done = [json.loads(line) for line in results.read_text().splitlines()] if results.exists() else []
    differing = sum(one["outcome"] in DIFFERING for one in done)
    exported = jaxexp.load(model)
    recording.Chain = NamesOnly
    with results.open("a") as lines:
        for number, mutation in enumerate(mutations(bytes(exported.mlir_module_serialized))):
            if number < len(done):
                continue
            if differing >= most:
                return
            found = {"operation": mutation.operation, "how": mutation.how, **outcome(exported, mutation)}
            differing += found["outcome"] in DIFFERING
            print(json.dumps(found), file=lines, flush=True)
            jax.clear_caches()  # compiled code takes places in memory, of which a process has only so many


def table(folder: Path, level: str, models: Sequence[str]) -> None:
    print(f"{level:16}", *(f"{name:>10}" for name in ("differing", *OUTCOMES)))
    total = collections.Counter[str]()
    for model in (*models, "all"):
        path = folder / level / f"{model}.jsonl"
        found = collections.Counter[str]()
        for line in path.read_text().splitlines() if path.exists() else ():
            one = json.loads(line)
            found.update([one["outcome"], *["untold"] * (not one.get("is_told", True))])
        total += found
        of = total if model == "all" else found
        numbers = sum(of[name] for name in DIFFERING), *(of[name] for name in OUTCOMES)
        print(f"{model:16}", *(f"{number:10}" for number in numbers))


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--most", type=int, default=25, help="how many changes of a model make a difference")
    parser.add_argument("--models", nargs="+", default=list(traced_models.MODELS), choices=traced_models.MODELS)
    parser.add_argument("--level", choices=LEVELS, help=argparse.SUPPRESS)  # in a process of its own
    given = parser.parse_args(arguments)
    models = given.folder / "models"
    if given.level is not None:
        (model,) = given.models
        examine(models / f"{model}.jaxexp", given.folder / given.level / f"{model}.jsonl", given.most)
        return
    if not models.exists():
        models.mkdir(parents=True)
        traced_models.record(models)
    for model in given.models:
        for level, flags in LEVELS.items():
            (given.folder / level).mkdir(exist_ok=True)
            options = ["--most", str(given.most), "--models", model, "--level", level]
            environment = {**os.environ, "XLA_FLAGS": flags}
            subprocess.run([sys.executable, __file__, given.folder, *options], check=True, env=environment)
    for level in LEVELS:
        table(given.folder, level, given.models)


if __name__ == "__main__":
    main(sys.argv[1:])

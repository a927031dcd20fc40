"""How long does the import take, in a new process that has imported JAX already?"""

from __future__ import annotations

import subprocess
import sys
from types import ModuleType

from bench.cases import Case
from bench.measure import Reading
from bench.program import Program
from bench.question import Question, Trial

NAMES = "export", "deserialize", "Exported", "symbolic_shape"


def _seconds(statement: str, before: str = "import jax") -> float:
    code = f"import time\n{before}\nstart = time.perf_counter()\n{statement}\nprint(time.perf_counter() - start)"
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return float(child.stdout.splitlines()[-1])


def _trial(case: Case, program: Program, subject: ModuleType, oracle: ModuleType) -> Trial:
    def names_of(library: ModuleType) -> Reading:
        return Reading(lambda: _seconds(f"from {library.__name__} import {', '.join(NAMES)}"))

    return Trial(
        subject=names_of(subject),
        oracle=names_of(oracle),
        wrong=lambda: [name for name in NAMES if not hasattr(subject, name)],
        beside={"import jax": Reading(lambda: _seconds("import jax", before=""))},
    )


QUESTION = Question(
    "import names",
    "The import of the names that programs use first, after `import jax`, in a new process for each sample: "
    f"`from ... import {', '.join(NAMES)}`.",
    _trial,
    beside={"import jax": "`import jax` itself"},
    applies=lambda case: case.name == "tiny",
    patience=5,
    quick=False,
)

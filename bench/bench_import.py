"""How long does the import take, in a new process that has imported JAX already?"""

from __future__ import annotations

import subprocess
import sys
from functools import partial
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


def _trial(case: Case, program: Program, subject: ModuleType, oracle: ModuleType, *, names: bool) -> Trial:
    def statement(library: ModuleType) -> str:
        return f"from {library.__name__} import {', '.join(NAMES)}" if names else f"import {library.__name__}"

    return Trial(
        subject=Reading(lambda: _seconds(statement(subject))),
        oracle=Reading(lambda: _seconds(statement(oracle))),
        wrong=lambda: [name for name in NAMES if not hasattr(subject, name)],
        beside={"import jax": Reading(lambda: _seconds("import jax", before=""))},
    )


def _once(case: Case) -> bool:
    return case.name == "tiny"


QUESTIONS = (
    Question(
        "import",
        "The import statement after `import jax`, in a new process for each sample.",
        partial(_trial, names=False),
        beside={"import jax": "`import jax` itself"},
        applies=_once,
        patience=5,
        quick=False,
    ),
    Question(
        "import names",
        f"As `import`, with the names that programs use first: `from ... import {', '.join(NAMES)}`.",
        partial(_trial, names=True),
        beside={"import jax": "`import jax` itself"},
        applies=_once,
        patience=5,
        quick=False,
    ),
)

"""Reads again and again while one allocation of the native module after the other fails: test_out_of_memory.py does it.

failing_malloc.py load|load_many|verify|... PATH FAILURES

`FAILURES` is how many allocations in a row fail. Prints how many allocations a read makes, and what came of the reads:
"done", or the type of the error.
"""

import ctypes
import sys
from collections import Counter
from pathlib import Path

import jaxexp
from jaxexp import _native
from jaxexp._fleet.archive.summary import to_store
from jaxexp._kernel.artifact.inspect import shown_node

how, path, failures = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
if how == "verify":

    def read() -> None:
        assert jaxexp.Archive.open(str(path)).verify(workers=3) == {}
elif how == "verify_files":
    paths = [str(file) for file in sorted(path.iterdir())]

    def read() -> None:
        assert len(_native.verify_files(paths, 3)) == len(paths)
elif how == "load_many":
    paths = [str(file) for file in sorted(path.iterdir())]

    def read() -> None:
        functions = jaxexp.load_many(paths, workers=3)
        assert all(map(vars, functions))
        assert len(functions) == len(paths)
elif how == "load_all":

    def read() -> None:
        assert all(map(vars, jaxexp.Archive.open(str(path)).load_all(workers=3)))
elif how == "describe":
    artifact = _native.Artifact(sorted(path.iterdir())[0].read_bytes())
    long = "x" * 99

    def read() -> None:
        said = to_store(artifact)
        stored = _native.Member(summary=said, digest=artifact.digest(), size=1, metadata=long, own_metadata=True)
        assert stored.summary.fun_name == said.fun_name
        assert artifact.facts(shown_node)["dtypes"]
        assert artifact.trailer() is not None
else:
    file = str(sorted(path.iterdir())[-1])

    def read() -> None:
        function = jaxexp.load(file, verify=True)
        assert vars(function)
        assert len(function.mlir_module_serialized) > 0


for _ in range(3):
    read()
hook = ctypes.CDLL(None)
arm, disarm = hook.failing_malloc_arm, hook.failing_malloc_disarm
arm.argtypes, disarm.restype = [ctypes.c_long, ctypes.c_long], ctypes.c_long
assert hook.failing_malloc_begin()
# Python's own code has to live with its own failures; and PyOS_FSPath takes any of these for a type that is no path.
for name in ("_PyEval_EvalFrameDefault", "PyOS_FSPath"):
    assert hook.failing_malloc_leave_out(ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p))

outcomes: Counter[str] = Counter()
successes, whole_reads = 0, 0
while whole_reads < 3:  # threads do not always allocate the same
    arm(successes, failures)
    try:
        read()
        outcome = "done"
    except Exception as error:
        outcome = f"{type(error).__name__}"
        if outcome != "MemoryError":
            outcome += f": {error}"
    finally:
        made = disarm()
    outcomes[outcome] += 1
    successes += 1
    whole_reads += outcome == "done" and made <= successes
print(successes)
for outcome in sorted(outcomes):
    print(outcome)

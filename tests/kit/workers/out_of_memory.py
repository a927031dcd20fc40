"""Reads while memory runs out: test_out_of_memory.py starts this.

out_of_memory.py HOW PATH spare KILOBYTES    with so much memory, once
out_of_memory.py HOW PATH fail COUNT         while so many allocations of the native module fail in a row: the first
                                             ones, then those from the second on, and so on until a read makes fewer

Prints what came of the reads, "done" or the type of the error; for `fail`, first how many reads there were.
"""

import ctypes
import os
import re
import resource
import sys
from collections import Counter
from pathlib import Path

import jaxexp
from jaxexp import _native
from jaxexp._fleet.archive.summary import to_store
from jaxexp._kernel.artifact.inspect import shown_node

how, path, mode, amount = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
files = [str(file) for file in sorted(Path(path).iterdir())] if Path(path).is_dir() else []


def load() -> None:
    function = jaxexp.load(files[-1], verify=True)
    assert vars(function)
    assert len(function.mlir_module_serialized) > 0


def load_many() -> None:
    functions = jaxexp.load_many(files, workers=3)
    assert all(map(vars, functions))
    assert len(functions) == len(files)


def verify_files() -> None:
    assert len(_native.verify_files(files, 3)) == len(files)


def verify() -> None:
    assert jaxexp.Archive.open(path).verify(workers=3) == {}


def load_all() -> None:
    assert all(map(vars, jaxexp.Archive.open(path).load_all(workers=3)))


def describe() -> None:
    said = to_store(artifact)
    stored = _native.Member(summary=said, digest=artifact.digest(), size=1, metadata="x" * 99, own_metadata=True)
    assert stored.summary.fun_name == said.fun_name
    assert artifact.facts(shown_node)["dtypes"]
    assert artifact.trailer() is not None


read = globals()[how]
if how == "describe":
    artifact = _native.Artifact(Path(files[0]).read_bytes())


def with_little_memory() -> None:
    if how == "verify":
        jaxexp.Archive.open(path).glob("m0").verify(workers=1)
    else:
        jaxexp.load_many(files[:2], workers=1)
    size = int(re.search(r"VmSize:\s+(\d+)", Path("/proc/self/status").read_text())[1]) << 10
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (size + (amount << 10),) * 2)
    try:
        read()
        said = b"done\n"
    except MemoryError:
        said = b"MemoryError\n"
    except OSError as error:
        said = b"MemoryError\n" if error.errno == 12 else b"OSError\n"  # ENOMEM
    os.write(1, said)
    os._exit(0)


def with_failures() -> None:
    for _ in range(3):
        read()
    hook = ctypes.CDLL(None)
    arm, disarm = hook.failing_malloc_arm, hook.failing_malloc_disarm
    arm.argtypes, disarm.restype = [ctypes.c_long, ctypes.c_long], ctypes.c_long
    assert hook.failing_malloc_begin()
    # Python has to live with its own failures; PyOS_FSPath takes any of these for a type that is no path.
    for name in ("_PyEval_EvalFrameDefault", "PyOS_FSPath"):
        assert hook.failing_malloc_leave_out(ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p))
    outcomes: Counter[str] = Counter()
    successes, whole_reads = 0, 0
    while whole_reads < 3:  # threads do not always allocate the same
        arm(successes, amount)
        try:
            read()
            outcome = "done"
        except MemoryError:
            outcome = "MemoryError"
        except Exception as error:
            outcome = f"{type(error).__name__}: {error}"
        finally:
            made = disarm()
        outcomes[outcome] += 1
        successes += 1
        whole_reads += outcome == "done" and made <= successes
    print(successes, *sorted(outcomes), sep="\n")


with_little_memory() if mode == "spare" else with_failures()

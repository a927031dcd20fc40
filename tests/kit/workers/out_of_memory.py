"""Reads with less and less memory: test_out_of_memory.py starts this.

out_of_memory.py load|load_many|verify PATH KILOBYTES

Prints what came of it: "done", or the type of the error.
"""

import os
import re
import resource
import sys
from pathlib import Path

import jaxexp

how, path, spare = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]) << 10
if how == "verify":
    archive = jaxexp.Archive.open(path)
    archive.glob("m0").verify(workers=1)

    def read() -> None:
        assert jaxexp.Archive.open(path).verify(workers=4) == {}
elif how == "load_many":
    paths = sorted(path.iterdir())
    jaxexp.load_many(paths[:2], workers=1)

    def read() -> None:
        functions = jaxexp.load_many(paths, workers=4)
        assert all(map(vars, functions))
        assert len(functions) == len(paths)
else:
    file = sorted(path.iterdir())[-1]
    jaxexp.load(sorted(path.iterdir())[0])

    def read() -> None:
        function = jaxexp.load(file, verify=True)
        assert vars(function)
        assert len(function.mlir_module_serialized)


size = int(re.search(r"VmSize:\s+(\d+)", Path("/proc/self/status").read_text())[1]) << 10
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
resource.setrlimit(resource.RLIMIT_AS, (size + spare, size + spare))
try:
    read()
    said = b"done\n"
except MemoryError:
    said = b"MemoryError\n"
except OSError as error:
    said = b"MemoryError\n" if error.errno == 12 else b"OSError\n"  # ENOMEM
os.write(1, said)
os._exit(0)

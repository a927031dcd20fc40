"""Programs that each need a fresh process, as forks of one: it has imported JAX, and nothing of jaxexp."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping

_PARENT = """
import json, os, sys, traceback, warnings
import jax

found = {}
for name, program in json.load(sys.stdin).items():
    files = [os.path.join(sys.argv[1], stream) for stream in ("out", "err")]
    with warnings.catch_warnings(action="ignore"):  # JAX warns of forks; nothing of it has run yet
        child = os.fork()
    if child == 0:
        for number, file in enumerate(files, start=1):
            os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
        status = 1
        try:
            exec(compile(program, name, "exec"), {"__name__": "__main__"})
            status = 0
        except SystemExit as end:
            status = end.code or 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    found[name] = [status, *(open(file).read() for file in files)]
print(json.dumps(found))
"""
# For a program: runs the command line, whose arguments follow.
COMMAND = "import sys; from jaxexp._cli.start import main; sys.argv[1:] = {}; sys.exit(main())"


def run(programs: Mapping[str, str], env: Mapping[str, str], cwd: object = None) -> dict[str, tuple[int, str, str]]:
    """Runs programs one after the other: for each its status, what it printed, and its standard error."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run([sys.executable, "-c", _PARENT, folder], input=json.dumps(programs), env=dict(env),
                              cwd=cwd, capture_output=True, text=True)  # fmt: skip
    assert done.returncode == 0, done.stderr
    return {name: tuple(one) for name, one in json.loads(done.stdout).items()}

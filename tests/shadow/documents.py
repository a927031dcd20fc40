"""The examples in JAX's own documents on export, run with `jax.export` and with jaxexp in its place.

usage: documents.py DOCUMENT jax|jaxexp    (prints what came of each example, as JSON)

Both have to print the same. They are compared with each other, and not with the document, which may be of another
release. Where an example raises, jaxexp's exception has to be of the type that `jax.export` raises, in its own words.
"""

from __future__ import annotations

import contextlib
import doctest
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

DOCUMENTS = ("docs/export/export.md", "docs/export/shape_poly.md")
Outcome = dict[str, Any]


def outcomes(document: Path, library: str) -> list[Outcome]:
    """What came of each example of a document, in a process of its own."""
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
        "PYTHONWARNINGS": "ignore",
    }
    command = [sys.executable, __file__, os.fspath(document), library]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{document} did not run with {library}:\n{done.stderr[-3000:]}")
    found: list[Outcome] = json.loads(done.stdout.splitlines()[-1])
    return found


def differences(document: Path) -> tuple[int, list[str]]:
    """How many examples there are, and those at which jaxexp does something else."""
    theirs, ours = (outcomes(document, library) for library in ("jax", "jaxexp"))
    found = []
    for expected, actual in zip(theirs, ours, strict=True):
        raised = expected["raised"][:1]  # the first built-in type
        same = set(raised) <= set(actual["raised"]) and bool(raised) == bool(actual["raised"])
        if not same or expected["printed"] != actual["printed"]:
            told = " | ".join(f"{it['printed']}{it['raised']}" for it in (expected, actual))
            found.append(f"{document.name} line {expected['line']}: {expected['source']}: {told}")
    return len(ours), found


def _run(example: doctest.Example, names: dict[str, Any]) -> Outcome:
    """Runs an example as at a prompt."""
    import builtins

    printed, raised = io.StringIO(), []
    with contextlib.redirect_stdout(printed):
        try:
            exec(compile(example.source, "<example>", "single", dont_inherit=True), names)
        except Exception as error:
            raised = [kind.__name__ for kind in type(error).__mro__ if vars(builtins).get(kind.__name__) is kind]
    source = example.source.strip()
    # Addresses and memory differ from process to process.
    text = "" if " at 0x" in printed.getvalue() else printed.getvalue()
    return {"line": example.lineno + 1, "source": source, "printed": text, "raised": raised}


def main(document: str, library: str) -> None:
    import jax

    if library == "jaxexp":
        import jaxexp

        jaxexp.install()
    examples = doctest.DocTestParser().get_examples(Path(document).read_text())
    names: dict[str, Any] = {"__name__": "__main__", "jax": jax}
    print(json.dumps([_run(example, names) for example in examples]))


if __name__ == "__main__":
    main(*sys.argv[1:])

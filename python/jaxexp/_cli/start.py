"""Starts a command, or says which packages it needs first."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command, by default that of this process, and returns its exit status."""
    missing = [name for name in ("click", "rich") if importlib.util.find_spec(name) is None]
    if missing:
        print(
            f"jaxexp: the command line needs {' and '.join(missing)}, which {'are' if missing[1:] else 'is'} not "
            "installed: pip install 'jaxexp[cli]'",
            file=sys.stderr,
        )
        return 1
    from .app import run

    return run(sys.argv[1:] if arguments is None else list(arguments))

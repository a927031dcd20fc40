"""Reads hostile artifacts of several sizes in every way, and prints what each took, as a line of JSON.

python tests/kit/workers/costs.py SIZE,SIZE [FAMILY...]
"""

from __future__ import annotations

import gc
import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")
sys.path.insert(0, str(Path(__file__).parents[2]))
sys.setrecursionlimit(30_000)

import jaxexp  # noqa: E402
from jaxexp import _native  # noqa: E402
from kit import costs, hostile  # noqa: E402


def outcome(action: Callable[[], object]) -> str:
    """ "read", or the error that refuses it; any other exception ends the process."""
    try:
        action()
    except jaxexp.DeserializationError as error:
        return str(error)
    except jaxexp.ExportError as error:
        if "cannot be stored in the archive" not in str(error):
            raise
        return str(error)
    return "read"


def readings(blob: bytes, folder: Path) -> dict[str, Callable[[], object]]:
    path, archive = folder / "f.jaxexp", folder / "a.zip"
    path.write_bytes(blob)

    def archived() -> None:
        archive.unlink(missing_ok=True)
        with jaxexp.Archive.create(archive) as writer:
            writer.add("f", blob)
        with jaxexp.Archive.open(archive) as opened:
            list(map(vars, opened.load_all()))

    # `vars` of a function decodes its fields.
    return {
        "deserialize": lambda: vars(jaxexp.deserialize(blob)),
        "inspect": lambda: jaxexp.inspect(blob),
        "verify": lambda: _native.verify_files([str(path)], 1),
        "compatibility": lambda: jaxexp.compatibility(blob),
        "load_many": lambda: list(map(vars, jaxexp.load_many([path], workers=1))),
        "archive": archived,
    }


def main() -> None:
    sizes = list(map(int, sys.argv[1].split(",")))
    families = sys.argv[2:] or list(hostile.FAMILIES)
    with tempfile.TemporaryDirectory() as name:
        for action in readings(hostile.FAMILIES["ordered_dicts"](1000), Path(name)).values():
            outcome(action)  # so that what is loaded once is loaded
        for family in families:
            for size in sizes:
                blob = hostile.FAMILIES[family](size)
                slowness = costs.slowness()
                for way, action in readings(blob, Path(name)).items():
                    gc.collect()
                    found, seconds, memory = costs.measured(lambda action=action: outcome(action))
                    line = {"family": family, "size": len(blob), "way": way, "seconds": seconds, "memory": memory}
                    print(json.dumps({**line, "slowness": slowness, "outcome": found}), flush=True)


if __name__ == "__main__":
    main()

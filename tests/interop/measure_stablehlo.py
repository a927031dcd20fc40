"""Measures the table of python/jaxexp/_stablehlo.py: the names of VHLO's operations, types and attributes in jaxlibs.

    python tests/interop/measure_stablehlo.py --python 3.11=python3.11 --python 3.13=python3.13

Prints, for each release of JAX since 0.4.22, the names in its jaxlib that the release before it did not have.
"""

from __future__ import annotations

import argparse
import mmap
import re
import shutil
import tempfile
from pathlib import Path

from wheels import Wheels, number, pypi


def names(folder: Path) -> set[str]:
    """The names in compiled code, where the registration of the dialect keeps them."""
    found: set[bytes] = set()
    for library in (folder / "jaxlib").rglob("*.so"):
        with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as code:
            found.update(re.findall(rb"vhlo\.([A-Za-z0-9_]+_v[0-9]+)", code))
    return {name.decode() for name in found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", action="append", required=True, metavar="VERSION=PATH")
    parser.add_argument("--keep", type=Path, help="leave the wheels in this folder, and use what is there")
    options = parser.parse_args()

    folder = options.keep or Path(tempfile.mkdtemp())
    wheels = Wheels(folder, dict(entry.split("=", 1) for entry in options.python))
    known: set[str] = set()
    for release in sorted((r for r in pypi("jax") if number(r) >= (0, 4, 22)), key=number):
        wheels.environment(release)
        found = names(folder / release)
        print(release, *sorted(found - known) if known else [f"{len(found)} names"], flush=True)
        known |= found
        if not options.keep:
            shutil.rmtree(folder / release)


if __name__ == "__main__":
    main()

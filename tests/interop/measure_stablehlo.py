"""Measures what `_kernel/releases/table.py` lists: the names of VHLO operations, types and attributes in jaxlibs.

    python tests/interop/measure_stablehlo.py --python 3.11=python3.11 --python 3.13=python3.13

Prints, for each release of JAX since 0.4.22, the names in its jaxlib that the release before it did not have.
"""

from __future__ import annotations

import mmap
import re
from pathlib import Path

from wheels import Wheels, exporters, parser


def names(folder: Path) -> set[str]:
    """The names in compiled code, where the registration of the dialect keeps them."""
    found: set[bytes] = set()
    for library in (folder / "jaxlib").rglob("*.so"):
        with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as code:
            found.update(re.findall(rb"vhlo\.([A-Za-z0-9_]+_v[0-9]+)", code))
    return {name.decode() for name in found}


def main() -> None:
    options = parser(__doc__).parse_args()
    known: set[str] = set()
    with Wheels.chosen(options) as wheels:
        for release in options.releases or exporters():
            wheels.environment(release)
            found = names(wheels.folder / release)
            print(release, *sorted(found - known) if known else [f"{len(found)} names"], flush=True)
            known |= found
            wheels.done(release)


if __name__ == "__main__":
    main()

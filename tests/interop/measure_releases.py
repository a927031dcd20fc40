"""Measures the table of python/jaxexp/_releases.py: installs every release of JAX since 0.4.22 and asks it.

    python tests/interop/measure_releases.py --python 3.11=python3.11 --python 3.13=python3.13 [RELEASE ...]

Dates are those of the uploads to PyPI. The wheels take about 400 MB a release, and are deleted as soon as a release
has answered unless `--keep` names a folder for them.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from pathlib import Path
from typing import Any

from wheels import Wheels, number, pypi, upload_date

HERE = Path(__file__).parent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", action="append", required=True, metavar="VERSION=PATH")
    parser.add_argument("--keep", type=Path, help="leave the wheels in this folder, and use what is there")
    parser.add_argument("releases", nargs="*")
    options = parser.parse_args()

    folder = options.keep or Path(tempfile.mkdtemp())
    wheels = Wheels(folder, dict(entry.split("=", 1) for entry in options.python))
    releases = options.releases or [release for release in pypi("jax") if number(release) >= (0, 4, 22)]
    try:
        for release in sorted(releases, key=number):
            print(row(release, wheels.run(release, HERE / "probe_release.py")), flush=True)
            if not options.keep:
                shutil.rmtree(folder / release)
    finally:
        if not options.keep:
            shutil.rmtree(folder)


def row(release: str, facts: dict[str, Any]) -> str:
    """A row of the table, as `ruff format` leaves it."""
    kinds = facts["dtypes"]
    assert facts["version"] == release
    assert facts["oldest_stablehlo"] == "0.9.0", "the same for every release so far, and one constant in the table"
    assert kinds == list(range(len(kinds))), "the kinds of dtypes have been counted from 0, without gaps"
    oldest, newest = facts["conventions"]
    arguments = [f'"{release}"', f'"{upload_date("jax", release)}"', f'"{facts["stablehlo"]}"']
    arguments += map(str, (oldest, newest, len(kinds), facts["custom_nodes"], facts["shardy"]))
    return f"    _row({', '.join(arguments)}),"


if __name__ == "__main__":
    main()

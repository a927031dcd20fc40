"""Measures the table in python/jaxexp/_kernel/releases/table.py: installs every JAX since 0.4.22 and asks it.

    python tests/interop/measure_releases.py --python 3.11=python3.11 --python 3.13=python3.13 [RELEASE ...]

Dates are those of the uploads to PyPI. The wheels take about 400 MB a release, and are deleted as soon as a release
has answered unless `--keep` names a folder for them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from wheels import Wheels, exporters, number, parser, upload_date

HERE = Path(__file__).parent


def main() -> None:
    options = parser(__doc__).parse_args()
    with Wheels.chosen(options) as wheels:
        for release in sorted(options.releases or exporters(), key=number):
            print(row(release, wheels.run(release, HERE / "probe_release.py")), flush=True)
            wheels.done(release)


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

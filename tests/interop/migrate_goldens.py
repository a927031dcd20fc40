"""Migrates every golden artifact to older formats, and has those releases of JAX read, call and compare the results.

    python tests/interop/migrate_goldens.py --python 3.11=python3.11 --python 3.13=python3.13 [RELEASE ...]

Run it with a Python that has jaxexp and the newest JAX. It prints, for each release, how many artifacts were read, and
why each of the others could not be written or read; it fails where one was written and not read.
"""

from __future__ import annotations

import collections
import shutil
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from kit import devices  # noqa: F401  (eight devices, before JAX is there)

# isort: split
from wheels import Wheels, parser

import jaxexp
from kit.goldens import ARTIFACTS, RELEASES, blob_of

HERE = Path(__file__).parent
TARGETS = ("0.4.30", "0.4.38", "0.5.3", "0.6.2", "0.7.2", "0.8.3", "0.9.2", "0.10.2", "0.11.2", "0.12.0.1")


def main() -> None:
    options = parser(__doc__).parse_args()
    failed = False
    with Wheels.chosen(options) as wheels, tempfile.TemporaryDirectory() as scratch:
        for target in options.releases or TARGETS:
            folder = Path(scratch) / f"for-{target}"
            refused = migrate_all(target, folder)
            outcomes = wheels.run(target, HERE / "read.py", "--goldens", str(folder))
            counts = collections.Counter(outcomes.values())
            print(f"{target}: {counts.pop('ok', 0)} read")
            for reason, count in (refused + counts).items():
                print(f"  {count:>3} {reason}")
            failed |= bool(counts)
            wheels.done(target)
    sys.exit(failed)


def migrate_all(target: str, folder: Path) -> collections.Counter[str]:
    """Writes what can be written for a release; returns why the rest cannot."""
    folder.mkdir()
    refused: collections.Counter[str] = collections.Counter()
    for version, name in ARTIFACTS:
        try:
            blob = jaxexp.migrate(blob_of(version, name), f"jax-{target}")
        except jaxexp.errors.ExportError as error:
            refused[f"not written: {error}"] += 1
            continue
        (folder / f"{version}-{name}.bin").write_bytes(blob)
        shutil.copy(RELEASES[version] / f"{name}.npz", folder / f"{version}-{name}.npz")
    return refused


if __name__ == "__main__":
    main()

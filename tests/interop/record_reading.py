"""Records which golden artifacts each released `jax.export` really loads and runs, in tests/golden/readers.json.

    python tests/interop/record_reading.py --python 3.11=python3.11 --python 3.13=python3.13 [RELEASE ...]

Releases that are named replace what the file said of them; without any, all since 0.4.22 are asked. From 0.11.1 on
they are asked a second time, with the flag that lets them read expired versions: "0.11.1 expired".
"""

from __future__ import annotations

import json
from pathlib import Path

from wheels import Wheels, exporters, number, parser

HERE = Path(__file__).parent
GOLDEN = HERE.parent / "golden"
RECORD = GOLDEN / "readers.json"


def main() -> None:
    options = parser(__doc__).parse_args()
    folders = list(map(str, sorted(GOLDEN.glob("jax-*"))))
    record = json.loads(RECORD.read_text()) if RECORD.exists() else {"readers": {}}
    readers = record["readers"]
    with Wheels.chosen(options) as wheels:
        for release in sorted(options.releases or exporters(), key=number):
            outcomes = wheels.run(release, HERE / "read.py", "--goldens", *folders)
            readers[release] = failures(outcomes)
            if number(release) >= (0, 11, 1):
                expired = wheels.run(release, HERE / "read.py", "--goldens", "--expired", *folders)
                readers[f"{release} expired"] = failures(expired)
            print(release, list(outcomes.values()).count("ok"), flush=True)
            in_order = sorted(readers.items(), key=lambda item: (number(item[0].split()[0]), item[0]))
            record = {"artifacts": sorted(outcomes), "readers": dict(in_order)}
            RECORD.write_text(json.dumps(record, indent=1) + "\n")
            wheels.done(release)


def failures(outcomes: dict[str, str]) -> dict[str, list[str]]:
    """The artifacts by what went wrong; those that are not named were fine."""
    found: dict[str, list[str]] = {}
    for artifact, outcome in outcomes.items():
        if outcome != "ok":
            found.setdefault(outcome, []).append(artifact)
    return found


if __name__ == "__main__":
    main()

"""A few tests for the time between two keystrokes: what `make check` does.

python tests/tools/check.py [ROOM...] [-- PYTEST_ARGUMENT...]

Of each test of the rooms, its first case; of each other file, one test. The rooms are folders of tests/. Unless they
are named, they are the rooms of what has changed since the last commit, if these are few.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from kit.places import ROOT, TESTS

FEW = 2

# Where the tests of code are that has no folder of its own name.
ELSEWHERE = {
    "cpp/runtime": "runtime",
    "cpp/wire/api": "wire",
    "cpp/wire/archive": "archive",
    "cpp/wire/artifact": "artifact",
    "cpp/wire/base": "wire",
    "cpp/wire/bytecode": "module",
    "cpp/wire/exported": "codec",
    "cpp/bindings": "codec",
    "cpp/example": "wire",
    "schema/archive.fbs": "archive",
    "schema/exported.fbs": "codec",
    "schema/trailer.fbs": "artifact",
    "docs": "house",
    "bench": "bench",
}


def rooms() -> set[str]:
    return {path.parent.name for path in TESTS.glob("*/test_*.py")}


def room_of(path: str) -> str | None:
    """Whose tests to run when this file has changed; None where no room is nearer than others."""
    parts = Path(path).parts
    if parts[:1] == ("tests",) and len(parts) > 2:
        return parts[1] if parts[1] in rooms() else None
    if parts[:2] == ("python", "jaxexp") and len(parts) > 3:
        return parts[2].removeprefix("_") if parts[2].removeprefix("_") in rooms() else None
    return next((room for place, room in ELSEWHERE.items() if Path(path).is_relative_to(place)), None)


def changed() -> list[str]:
    """The files that differ from the last commit, new ones included; none outside of a checkout."""
    found: list[str] = []
    for command in (["diff", "--name-only", "HEAD"], ["ls-files", "--others", "--exclude-standard"]):
        done = subprocess.run(["git", *command], cwd=ROOT, capture_output=True, text=True)
        found += done.stdout.splitlines() if done.returncode == 0 else []
    return found


def chosen(files: Iterable[str]) -> set[str]:
    """The rooms of these files; none if they are many, as everything is then looked at a little."""
    found = {room for room in map(room_of, files) if room is not None}
    return found if len(found) <= FEW else set()


def main(arguments: list[str]) -> int:
    end = arguments.index("--") if "--" in arguments else len(arguments)
    named, others = arguments[:end], arguments[end + 1 :]
    if unknown := set(named) - rooms():
        sys.exit(f"no rooms of tests: {' '.join(sorted(unknown))}; there are {' '.join(sorted(rooms()))}")
    looked_at = set(named) or chosen(changed())
    where = " ".join(sorted(looked_at)) or "no room in particular"
    print(f"check: {where}, and one test of each other file", flush=True)
    pytest = Path(sys.executable).with_name("pytest")
    command = [str(pytest), "-q", "--no-header", "--brief", ",".join(sorted(looked_at)), *others]
    return subprocess.run(command, cwd=ROOT).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

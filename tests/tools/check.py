"""A few tests for the time between two keystrokes: what `make check` does.

python tests/tools/check.py [ROOM...] [-- PYTEST_ARGUMENT...]

Of each test of the rooms, its first case; of each other file, one test. The rooms are folders of tests/, such as
kernel/read. Unless they are named, they are the rooms of what has changed since the last commit, if these are few.
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
    "cpp/runtime": "runtime", "cpp/wire/api": "wire", "cpp/wire/archive": "fleet/archive",
    "cpp/wire/artifact": "kernel/artifact", "cpp/wire/base": "wire", "cpp/wire/bytecode": "kernel/module",
    "cpp/wire/exported": "kernel/codec", "cpp/bindings": "kernel/codec", "cpp/example": "wire",
    "schema/archive.fbs": "fleet/archive", "schema/exported.fbs": "kernel/codec",
    "schema/trailer.fbs": "kernel/artifact", "docs": "house", "bench": "bench",
}  # fmt: skip


def rooms() -> set[str]:
    return {path.parent.relative_to(TESTS).as_posix() for path in TESTS.rglob("test_*.py")}


def room_of(path: str) -> str | None:
    """Whose tests to run when this file has changed; None where no room is nearer than others."""
    folder = Path(path).parent.as_posix()
    for code in ("tests/", "python/jaxexp/_"):
        if folder.startswith(code):
            room = folder.removeprefix(code)
            return next((known for known in (room, room.split("/")[0]) if known in rooms()), None)
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

"""Appends a member that has archives inside, in child processes that are killed: test_archive_sections.py starts this.

hostile_append.py ARCHIVE MEMBER COUNT SEED

Prints how often nothing of the member was there afterwards, a part of it, or the whole new archive.
"""

import collections
import os
import random
import signal
import sys
import time
from pathlib import Path

from jaxexp import Archive
from kit.dying import assert_died, forked, kill_after

path, member, count, source = (
    Path(sys.argv[1]),
    Path(sys.argv[2]).read_bytes(),
    int(sys.argv[3]),
    random.Random(sys.argv[4]),
)
base = path.read_bytes()


def contents() -> dict[str, bytes]:
    with Archive.open(path) as archive:
        assert archive.verify() == {}
        return {name: bytes(handle.read()) for name, handle in archive.items()}


old = contents()
new = {**old, "uploads/mine": member}


def append() -> None:
    with Archive.append(path) as archive:
        archive.add("uploads/mine", member)
    signal.pause()


start = time.monotonic()
with Archive.append(path) as archive:
    archive.add("uploads/mine", member)
longest = 2 * (time.monotonic() - start)
found: collections.Counter[str] = collections.Counter()
for _ in range(count):
    path.write_bytes(base)
    child, ended = forked(append)
    kill_after(child, ended, source.uniform(0, longest))
    assert_died(child, signal.SIGKILL)
    os.close(ended)
    left = path.read_bytes()
    complete = contents() == new
    assert complete or contents() == old
    found["complete" if complete else "unfinished" if len(left) > len(base) else "nothing"] += 1
    for _ in range(20):  # what a copy of it would have that was cut
        path.write_bytes(left[: source.randrange(len(base), len(left) + 1)])
        assert contents() in (old, new)
    with Archive.append(path) as archive:
        archive.add("next", base_member := next(iter(old.values())))
    assert contents() in ({**old, "next": base_member}, {**new, "next": base_member})
for outcome, times in found.items():
    print(outcome, times)

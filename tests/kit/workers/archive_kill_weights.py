"""Appends an artifact with weights to an archive, in child processes that die: test_archive_weights.py starts this.

archive_kill_weights.py ARCHIVE NEW_ARTIFACT COUNT

The archive has the member `old`, with weights. Each child dies when the archive has a size by chance.
"""

import os
import random
import shutil
import signal
import sys
from pathlib import Path

from jaxexp import Archive
from kit.dying import assert_died, die_at, forked


def append(archive: Path, artifact: Path) -> None:
    with Archive.append(archive) as writer:
        writer.add_file("new", artifact)


def look(archive: Path) -> list[str]:
    """The members, each of which has its weights."""
    with Archive.open(archive) as opened:
        assert opened.verify() == {}
        for handle in opened.values():
            weights = handle.stored_weights()
            assert weights is not None, "a member without weights"
            weights.check_digests()
        return list(opened)


def main(archive: Path, artifact: Path, count: int) -> None:
    whole = archive.with_suffix(".whole")
    shutil.copy(archive, whole)
    append(archive, artifact)
    first, end = whole.stat().st_size, archive.stat().st_size
    assert look(archive) == ["new", "old"]
    source = random.Random(0)
    for number in range(count):
        shutil.copy(whole, archive)
        size = (first, end - 1, source.randrange(first, end))[min(number, 2)]

        def run(size: int = size) -> None:
            die_at(size)
            append(archive, artifact)

        child, ended = forked(run)
        assert_died(child, signal.SIGXFSZ)
        os.close(ended)
        assert look(archive) == ["old"]
    append(archive, artifact)  # which cuts off what the last one left
    assert look(archive) == ["new", "old"]
    print("died", count)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))

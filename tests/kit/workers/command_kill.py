"""Runs a command again and again in child processes that die while they write: test_command_kill.py starts this.

command_kill.py FOLDER BEFORE AFTER COUNT SEED COMMAND...

The command runs in FOLDER, which is a copy of BEFORE. A child dies when a file of its own has a size by chance. Then
each file is that of BEFORE or of AFTER, where the command came to its end; and so it does when it is repeated.
"""

import filecmp
import os
import random
import shutil
import signal
import sys
from pathlib import Path

import jax  # noqa: F401  # once, for all children

from jaxexp._cli import app
from kit.dying import assert_died, die_at, forked


def run(folder: Path, command: list[str], size: int | None) -> None:
    os.chdir(folder)
    os.dup2(os.open("/dev/null", os.O_WRONLY), 1)
    if size is not None:
        die_at(size)
    os._exit(app.run(command))


def files_in(folder: Path) -> dict[str, Path]:
    """All files that are not hidden; a journal is for the next run only."""
    found = (path for path in folder.rglob("*") if path.is_file() and path.name[0] != "." and path.name != "journal")
    return {str(path.relative_to(folder)): path for path in found}


def main() -> None:
    folder, before, after = map(Path, sys.argv[1:4])
    count, seed = map(int, sys.argv[4:6])
    command, source = sys.argv[6:], random.Random(seed)
    old, new = files_in(before), files_in(after)
    written = [path for name, path in new.items() if name not in old or not filecmp.cmp(old[name], path, shallow=False)]
    largest = max(path.stat().st_size for path in written)
    for number in range(count):
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(before, folder)
        # The first two die at the first byte and at the last one.
        size = (0, largest - 1, source.randrange(largest))[min(number, 2)]
        child, ended = forked(lambda size=size: run(folder, command, size))
        assert_died(child, signal.SIGXFSZ)
        os.close(ended)
        for name, path in files_in(folder).items():
            is_new = name in new and filecmp.cmp(path, new[name], shallow=False)
            assert is_new or (name in old and filecmp.cmp(path, old[name], shallow=False)), name
        assert files_in(folder).keys() >= old.keys() & new.keys(), "nothing is lost"
        child, ended = forked(lambda: run(folder, command, None))
        _, status = os.waitpid(child, 0)
        os.close(ended)
        assert status == 0, status
        there = files_in(folder)
        assert there.keys() == new.keys()
        assert all(filecmp.cmp(path, new[name], shallow=False) for name, path in there.items())


if __name__ == "__main__":
    main()

"""Changes an archive again and again in child processes that are killed: test_archive_kill.py starts this.

archive_kill.py ARCHIVE FOLDER-OF-ARTIFACTS create|append|compact COUNT SEED
"""

import collections
import os
import random
import select
import signal
import sys
from pathlib import Path

from jaxexp import Archive
from kit.workers.kill import forked


def main() -> None:
    archive, folder, how, count, seed = sys.argv[1:]
    path = Path(archive)
    artifacts = {file.name: file.read_bytes() for file in Path(folder).iterdir()}
    source = random.Random(int(seed))
    found: collections.Counter[str] = collections.Counter()
    with Archive.create(path) as writer:
        for name, artifact in artifacts.items():
            writer.add(f"old/{name}", artifact)
    members = {f"old/{name}": artifact for name, artifact in artifacts.items()}

    def work() -> None:
        for number in range(1 << 30):
            if how == "compact":
                Archive.compact(path)
                continue
            with Archive.create(path) if how == "create" else Archive.append(path) as writer:
                for name, artifact in artifacts.items():
                    writer.add(f"{number}/{name}" if how == "append" else f"old/{name}", artifact)
                if how == "append" and number:
                    for name in artifacts:
                        writer.remove(f"{number - 1}/{name}")

    for _ in range(int(count)):
        child, ended = forked(work)
        select.select([ended], [], [], source.uniform(0, 0.05))
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        os.close(ended)
        assert os.WIFSIGNALED(status), f"the child ended by itself, status {status}"
        assert os.WTERMSIG(status) == signal.SIGKILL
        with Archive.open(path) as left:
            assert left.verify() == {}
            read = {name: bytes(handle.read()) for name, handle in left.items()}
            found["unfinished"] += left.unfinished_bytes > 0
        assert {name: artifact for name, artifact in read.items() if name.startswith("old/")} == members
        added = [name for name in read if not name.startswith("old/")]
        assert len(added) in (0, len(artifacts)), "all that was added at once is there, or nothing"
        assert all(read[name] == artifacts[name.split("/")[1]] for name in added)
        found["added"] += bool(added)
        for file in path.parent.iterdir():
            found["partial"] += file != path
            if file != path:
                file.unlink()
        if added:  # the next child begins with the same numbers
            with Archive.append(path) as writer:
                for name in added:
                    writer.remove(name)
            Archive.compact(path)
    for name, times in found.items():
        print(name, times)


if __name__ == "__main__":
    main()

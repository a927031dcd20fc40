"""The command line, run inside of this process."""

from __future__ import annotations

import subprocess
import sys

HOSTILE = "evil\x1b[31m\n\u202egood\x07"


def started(code: str, *arguments: object, env: dict[str, str], **options) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        env=env,
        capture_output=True,
        text=True,
        check=False,
        **options,
    )


NAMES = ["b8", "h", "inner/again", "inner/b16"]

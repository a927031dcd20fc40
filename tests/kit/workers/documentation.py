"""One process of a page: ``documentation.py PAGE NUMBER`` (see `kit.documentation`)."""

from __future__ import annotations

import sys
from pathlib import Path

from kit import documentation as pages

names = {"__name__": "__main__"}
for block in pages.processes(Path(sys.argv[1]))[int(sys.argv[2])]:
    pages.run_block(block, names, Path.cwd())

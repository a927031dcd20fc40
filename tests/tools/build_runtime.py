"""Builds the C++ runtime and installs it into build/runtime/installed: what `make runtime` does."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from kit import native, runtime


def main() -> int:
    try:
        print(runtime.build())
    except native.UnavailableError as missing:
        print(missing, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

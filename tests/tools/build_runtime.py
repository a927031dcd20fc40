"""Builds the libraries and programs of cpp/ and installs them into build/cpp/installed: what `make runtime` does.

It needs CMake, Ninja and flatc, and no other package.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from kit import native


def main() -> int:
    try:
        print(native.libraries())
    except native.UnavailableError as missing:
        print(missing, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""The command line: `python -m bench`, and `compare`, `render`, `counts`, `archives` or `accelerator` behind it."""

from __future__ import annotations

import os
import sys

# Before JAX starts: eight devices to shard over.
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8"
# The command `accelerator` names the platform behind it.
os.environ["JAX_PLATFORMS"] = ",".join(
    dict.fromkeys([*(sys.argv[2:3] if sys.argv[1:2] == ["accelerator"] else ()), "cpu"])
)
# New processes find modules compiled, as pip leaves them.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

from bench import accelerator, archives, compare, counts, render, run

COMMANDS = {
    "compare": compare.main,
    "render": render.main,
    "counts": counts.main,
    "archives": archives.main,
    "accelerator": accelerator.main,
}


def main(argv: list[str]) -> int:
    if argv and argv[0] in COMMANDS:
        return COMMANDS[argv[0]](argv[1:])
    return run.main(argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

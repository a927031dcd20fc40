"""Where a case is recorded or checked, and what went wrong there. Without JAX."""

from __future__ import annotations

import contextlib
import functools
import os
import platform
import re
import sys
from collections.abc import Mapping

from jaxexp._errors import ExportError, in_one_line
from jaxexp._kernel.io import files

_LONGEST = 1000


def described(facts: Mapping[str, str]) -> dict[str, str]:
    """What is known of what runs functions, and of this machine. There is nothing of the machine's name, its user or
    its folders, unless a flag has it.
    """
    here = {
        "jaxexp": files.RELEASE,
        "python": platform.python_version(),
        "system": f"{sys.platform} {platform.machine()}",
        "processor": _processor(),
        "XLA_FLAGS": " ".join(sorted(flags())),
    }
    return {key: value for key, value in {**facts, **here}.items() if value}


@functools.cache
def _processor() -> str:
    """The model of the processor, as far as the system says it."""
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8", errors="replace") as lines:
        for line in lines:
            name, _, model = line.partition(":")
            if name.strip() == "model name":
                return model.strip()
    return platform.processor()


def explained(error: Exception) -> str:
    """The message of an error of a call, in one line."""
    text = in_one_line(error)
    name = "" if isinstance(error, ExportError) else f"{type(error).__name__}: "
    return f"{name}{text if len(text) <= _LONGEST else f'{text[:_LONGEST]}...'}"


def flags() -> list[str]:
    """XLA_FLAGS, or those in the file that it names."""
    text = os.environ.get("XLA_FLAGS", "").strip()
    if text and not text.startswith("-") and os.path.isfile(text):
        with open(text, encoding="utf-8", errors="replace") as file:
            text = file.read()
    return split(text)


def split(text: str) -> list[str]:
    """Flags, as XLA takes them apart: quotes keep spaces."""
    return re.findall(r"""(?:[^\s"']|"[^"]*"|'[^']*')+""", text)

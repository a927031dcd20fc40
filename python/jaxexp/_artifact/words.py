"""Names and amounts as people read them. Names are from an artifact, so what could act on a terminal is escaped."""

from __future__ import annotations

from jaxexp._errors import shown

LONGEST = 240  # characters of a text, where there is not room for all


def cut(text: str, most: int = LONGEST) -> str:
    """The same, of a text that is no longer than there is room."""
    return shown(text if len(text) <= most else f"{text[: most - 1]}…")


def counted(number: int, what: str) -> str:
    """As in "1 device" and "1,000 devices"."""
    return f"{number:,} {what}{'s' * (number != 1)}"


def bytes_in_words(size: int) -> str:
    """As in "12 bytes", "3.4 kB" and "1.2 GB"."""
    value = float(size)
    for unit in ("bytes", "kB", "MB", "GB"):
        if value < 1000:
            return f"{size:,} bytes" if unit == "bytes" else f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:,.3g} TB"

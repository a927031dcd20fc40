"""Texts that are hard to show."""

from __future__ import annotations

import unicodedata

HALVES = ["\ud800", "\udfff\ud800"]  # of characters
CONTROLS = ["\x1b[31m", "\a", "\n", "\u202e", "\0"]
TEXTS = ["", "x", *HALVES, *CONTROLS, "é", "名前", "k0", "__class__", "'\"", "x" * 3000]


def check_text(text: str) -> None:
    """It can be shown in one piece, and changes nothing else: no controls, no directions, no halves of characters."""
    text.encode()
    hostile = {one for one in text if unicodedata.category(one) in ("Cc", "Cf", "Zl", "Zp") and one != "\n"}
    assert not hostile, f"{hostile} in {text!r}"

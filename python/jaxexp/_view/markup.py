"""HTML and SVG from foreign texts: everything is escaped here when it is put in, and nowhere else: what HTML would take
for markup, and characters that change the direction of a text or cannot be seen.
"""

from __future__ import annotations

import html
from collections.abc import Iterable
from typing import NewType

from jaxexp._errors import shown

# Text that is HTML already.
Markup = NewType("Markup", str)

_WITHOUT_END = frozenset(("meta", "input", "br"))


def joined(parts: Iterable[Markup]) -> Markup:
    return Markup("".join(parts))


def element(tag: str, inside: str | Iterable[Markup] | None = None, **attributes: str | float | bool | None) -> Markup:
    """An element.

    Args:
        tag: its name.
        inside: a text, which is escaped, or elements, which are not.
        attributes: its attributes: an underscore at the end is dropped, others become hyphens. None and False omit an
            attribute, and True omits its value.
    """
    written = "".join(_attribute(key, value) for key, value in attributes.items())
    content = _escaped(inside) if isinstance(inside, str) else joined(inside or ())
    if tag in _WITHOUT_END:
        return Markup(f"<{tag}{written}>")
    return Markup(f"<{tag}{written}>{content}</{tag}>")


def _attribute(key: str, value: str | float | bool | None) -> str:
    if value is None or value is False:
        return ""
    name = key.rstrip("_").replace("_", "-")
    if value is True:
        return f" {name}"
    text = f"{round(value, 1):g}" if isinstance(value, (int, float)) else _escaped(value)
    return f' {name}="{text}"'


def _escaped(text: str) -> str:
    return html.escape(shown(text), quote=True)

"""The origin of a module's operations: the name scopes of their function, and lines of its source.

Releases of jaxlib differ in what their bindings say about locations, and a location can share its parts so often that
its text is endless. The text of a whole module names each location once, and is the same in all releases.
"""

from __future__ import annotations

import collections
import itertools
import re
from typing import Any, NamedTuple

_NAMED = re.compile(r"^(#loc\d*) = loc\((.*)\)$")
_LAST = re.compile(r"loc\((#loc\d*|unknown)\)$")
_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"')
_ESCAPED = re.compile(rb"\\([0-9A-Fa-f]{2}|.)")
_LINE = re.compile(r":(\d+):\d+")
_PLACE = re.compile(r":(\d+):(\d+)")
_CALLSITE = re.compile(r"callsite\((#loc\d*) at (#loc\d*)\)")
_FIRST_IN = re.compile(r"(?:callsite\(|fused(?:<[^>]*>)?\[)(#loc\d*|unknown)")
_ALIAS = re.compile(r"#loc\d*")
_TRANSFORMED = re.compile(r"((?:(?:vmap|jvp|transpose)\()+)([^()]*)(\)+)")
_MOST_STEPS = 32  # from an operation to its line
_MOST_CALLS = 100  # that an operation is inside of
# Bytes of a name that are many, and of a text that takes too much memory.
_LONG, _LONGEST_TEXT = 1 << 12, 1 << 27
_KEPT = 64  # elements of a constant in the text


class Place(NamedTuple):
    """The origin of an operation.

    Attributes:
        scope: its name scopes, outermost first, with slashes between; without the primitive.
        source: file and line, with the name of the function, as in ``"model.py:12 in attention"``; only
            ``"in attention"`` if the module has no files and lines.
    """

    scope: str
    source: str


class Call(NamedTuple):
    """A function that ran when the module was traced, and where it was: file, line and column, or empty."""

    function: str
    at: str


def of_operations(module: Any, blob: bytes) -> dict[Any, tuple[Place, tuple[Call, ...]]] | None:
    """The places of all operations of a module, and the calls that led to them, outermost first; None if its text is
    not as expected, or would be too long. `blob` is the bytes of the module.
    """
    from jaxexp._kernel.module import mlir

    if _is_endless(module, blob):
        return None
    text = module.operation.get_asm(enable_debug_info=True, print_generic_op_form=True, large_elements_limit=_KEPT)
    named: dict[str, str] = {}
    last: list[str] = []
    for line in text.splitlines():
        if (alias := _NAMED.match(line)) is not None:
            named[alias[1]] = alias[2]
        elif (end := _LAST.search(line)) is not None:
            last.append(end[1])
    operations = list(mlir.iter_operations(module, innermost_first=True))  # in the order in which their texts end
    if len(operations) != len(last):
        return None
    known: dict[str, tuple[Call, ...]] = {}
    places = {name: (place_of(name, named), calls_of(name, named, known)) for name in {*last}}
    return {operation: places[name] for operation, name in zip(operations, last, strict=True)}


def _is_endless(module: Any, blob: bytes) -> bool:
    """Whether the text of a module, which repeats the names in its locations, may be much longer than the module."""
    from jaxexp._kernel.artifact import module_head
    from jaxexp._kernel.module import mlir

    long = collections.Counter(length for length in module_head.lengths_of_strings(blob) if length > _LONG)
    if not long:
        return False
    operations = list(mlir.iter_operations(module))  # most long texts are in their attributes
    long -= collections.Counter(map(len, {text for operation in operations for text in mlir.texts(operation)}))
    return max(long, default=0) * len(operations) > _LONGEST_TEXT


def place_of(name: str, named: dict[str, str]) -> Place:
    """The place that the name of a location stands for, in the text of a module."""
    text, names = named.get(name, ""), list[str]()
    for _ in range(_MOST_STEPS):
        if (quoted := _QUOTED.match(text)) is not None:
            rest = text[quoted.end() :]
            if (line := _LINE.match(rest)) is not None:
                return Place(_scope(names), _source(plain(quoted[1]), line[1], names))
            names.append(plain(quoted[1]))
            text = rest[1:-1] if rest.startswith("(") else ""
        elif (first := _FIRST_IN.match(text)) is not None:
            text = first[1]
        elif _ALIAS.fullmatch(text):
            text = named.get(text, "")
        else:
            break
    functions = names[2 if names and names[0].endswith(":") else 1 :]
    return Place(_scope(names), f"in {functions[0]}" if functions else "")


def calls_of(name: str, named: dict[str, str], known: dict[str, tuple[Call, ...]]) -> tuple[Call, ...]:
    """The calls that the name of a location stands for, in the text of a module, outermost first. Chains of calls that
    were read before are known by their names.
    """
    for _ in range(_MOST_STEPS):
        text = named.get(name, "")
        if text.startswith("callsite"):
            break
        name = _inner(text)
        if text.startswith('"'):  # the name of the operation
            break
    inside: list[tuple[str, str]] = []
    while name not in known and len(inside) < _MOST_CALLS:
        both = _CALLSITE.match(named.get(name, ""))
        if both is None:
            known[name] = _call(name, named)
        else:
            inside.append((name, both[1]))
            name = both[2]
    chain = known.get(name, ())
    for name, inner in reversed(inside):
        if inner not in known:
            known[inner] = _call(inner, named)
        # A function that is inlined names its caller once more.
        chain = known[name] = chain if chain[-1:] == known[inner] or len(chain) == _MOST_CALLS else chain + known[inner]
    return chain


def _call(name: str, named: dict[str, str]) -> tuple[Call, ...]:
    """A function with its place; nothing if the location is another one."""
    text = named.get(name, "")
    function = _QUOTED.match(text)
    if function is None:
        return ()
    if function.end() == len(text):
        return (Call(plain(function[1]), ""),)
    file = named.get(_inner(text), "")
    quoted = _QUOTED.match(file)
    place = None if quoted is None else _PLACE.match(file, quoted.end())
    if quoted is None or place is None:
        return ()
    return (Call(plain(function[1]), f"{plain(quoted[1])}:{place[1]}:{place[2]}"),)


def _inner(text: str) -> str:
    """The location in a name, or the first one of many; empty if there is none."""
    if (first := _FIRST_IN.match(text)) is not None:
        return first[1]
    inner = _ALIAS.match(text, text.rfind("(") + 1)
    return "" if inner is None else inner[0]


def plain(text: str) -> str:
    """A name without the escapes that MLIR printed."""
    if "\\" not in text:
        return text
    found = _ESCAPED.sub(lambda one: bytes.fromhex(one[1].decode()) if len(one[1]) == 2 else one[1], text.encode())
    return found.decode(errors="replace")


def _scope(names: list[str]) -> str:
    """The scopes in the name of an operation, as in ``jit(f)/layer0/attention/dot_general``."""
    if not names:
        return ""
    parts = itertools.dropwhile(lambda part: part.startswith("jit("), names[0].rstrip(":").split("/")[:-1])
    return "/".join(filter(None, map(_shown, parts)))


def _shown(part: str) -> str:
    """A scope with JAX's transformations after its name; nothing for a `vmap` without a scope."""
    if (found := _TRANSFORMED.fullmatch(part)) is None or found[1].count("(") != len(found[3]):
        return part
    transformations = found[1].rstrip("(").split("(")
    if found[2]:
        return f"{found[2]} ({' of '.join(transformations)})"
    kept = [name for name in transformations if name != "vmap"]
    return f"{'('.join(kept)}({')' * len(kept)}" if kept else ""


def _source(file: str, line: str, names: list[str]) -> str:
    function = f" in {names[-1]}" if len(names) > 1 else ""
    return f"{file}:{line}{function}"

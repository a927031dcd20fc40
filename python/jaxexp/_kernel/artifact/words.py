"""Facts about artifacts, in words. `cut` and `text` escape what could act on a terminal."""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, TypeVar

from jaxexp._errors import ExportTypeError, shown

T = TypeVar("T")

LONGEST = 240  # characters of a text that has to be cut

# Facts about an artifact: labels, and texts in which nothing is escaped yet.
Facts = list[tuple[str, str]]


def cut(name: object, most: int = LONGEST) -> str:
    """A text, or whatever a user put in its place, shortened to `most` characters and escaped."""
    text = str(name)
    return shown(text if len(text) <= most else f"{text[: most - 1]}…")


def is_text(name: str) -> bool:
    """Whether a name is Unicode text, which can be written and printed: JSON's escapes also write halves of surrogate
    pairs, which are no characters."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def where_they_differ(one: str, other: str) -> tuple[str, str]:
    """Two texts that differ; of long ones, the parts around the first difference."""
    if max(len(one), len(other)) <= 120:
        return one, other
    same = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))
    start = max(0, same - 60)

    def part(text: str) -> str:
        return f"{'...' if start else ''}{text[start : same + 60]}{'...' if len(text) > same + 60 else ''}"

    return part(one), part(other)


def counted(number: int, what: str) -> str:
    """As in "1 device" and "1,000 devices"."""
    return f"{number:,} {what}{'s' * (number != 1)}"


def name_of_order(name: str, order: int) -> str:
    """For messages: the name of a function, or of its VJP of this order."""
    return f"the VJP of order {order} of {name}" if order else name


def listed(
    names: Collection[T], shown: Callable[[T], str] = str, *, most: int | None = None, separator: str = ", "
) -> str:
    """As in "a, b, c", "a, b and 1,000 more" and "none". `shown` makes the texts of the names that are listed."""
    text = separator.join(map(shown, itertools.islice(names, most))) or "none"
    return text if most is None or len(names) <= most else f"{text} and {len(names) - most:,} more"


def near(name: str, known: Iterable[str], most: int = 2) -> list[str]:
    """Known names that are like another name, the nearest first."""
    import difflib  # for a message

    # Comparing takes time in proportion to the product of the lengths, and a file may have a million names.
    short = [other for other in known if len(other) <= _COMPARED]
    if len(name) > _COMPARED or len(short) > _COMPARED:
        return []
    folded = {other.casefold(): other for other in short}
    return [folded[found] for found in difflib.get_close_matches(name.casefold(), folded, most)]


def meant(name: object, known: Collection[str]) -> str:
    """The end of a message that there is no such name, as in ": did you mean 'a'?" and "; it has 'a', 'b'"."""
    if isinstance(name, str) and (found := near(name, known)):
        return f": did you mean {' or '.join(map(repr, found))}?"
    return f"; it has {listed(known, lambda one: cut(repr(one), 80), most=5)}"


def no_weight(name: object, known: Collection[str]) -> KeyError:
    return KeyError(f"{name!r} is not a weight of the function{meant(name, known)}")


_COMPARED = 500


def dtype_and_shape(dtype: object, shape: Iterable[object]) -> str:
    """As in "float32[batch,4]"; a long one is cut, as many values may share a shape with long dimensions."""
    sizes, left = [], LONGEST
    for size in map(str, shape):
        left -= len(size) + 1
        if left < 0:
            sizes.append("…")
            break
        sizes.append(size)
    return f"{dtype}[{','.join(sizes)}]"


def bytes_in_words(size: int) -> str:
    """As in "12 bytes", "3.4 kB" and "1.2 GB"."""
    value = float(size)
    for unit in ("bytes", "kB", "MB", "GB"):
        if value < 1000:
            return f"{size:,} bytes" if unit == "bytes" else f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:,.3g} TB"


def span(first: str, last: str) -> str:
    """As in "0.6.1" and "0.6.1 to 0.8.1"."""
    return first if first == last else f"{first} to {last}"


def lowered_for(platforms: Collection[str], devices: int, most: int | None = None) -> str:
    """As in "cpu, tpu, for 8 devices"."""
    return f"{listed(platforms, most=most)}, for {counted(devices, 'device')}"


def spec(dims: Iterable[tuple[str, ...]]) -> str:
    """The text between a PartitionSpec's parentheses, as in "'x', None, ('y', 'z')"."""
    return ", ".join("None" if not axes else repr(axes[0]) if len(axes) == 1 else repr(axes) for axes in dims)


def mesh(axes: Iterable[tuple[str, int]]) -> str:
    """As in "'x': 4, 'y': 2"."""
    return ", ".join(f"{name!r}: {size}" for name, size in axes)


def derivatives(order: int) -> str:
    """As in "VJPs up to order 2" and "no VJP"."""
    return f"VJPs up to order {order}" if order else "no VJP"


def kind(name: str) -> str:
    """The kind of an operation as StableHLO names it: "add" for the "vhlo.add_v1" of portable artifacts."""
    return re.sub(r"^vhlo\.(.*)_v\d+$", r"\1", name).removeprefix("stablehlo.")


def operations(kinds: Mapping[str, int]) -> str:
    """As in "54 operations of 19 kinds"."""
    return f"{counted(sum(kinds.values()), 'operation')} of {counted(len(kinds), 'kind')}"


def effects(ordered: Iterable[object], unordered: Iterable[object], most: int | None = None) -> str:
    """As in "IO (ordered), Debug"."""
    pairs = [*((one, " (ordered)") for one in ordered), *((one, "") for one in unordered)]
    # An effect without a text of its own is printed by JAX as its class.
    return listed(pairs, lambda pair: re.sub(r"^<class '(.*)'>$", r"\1", str(pair[0])) + pair[1], most=most)


def custom_calls(
    counts: Mapping[str, int] | None, most: int | None = None, note: Callable[[str], str] = lambda target: ""
) -> str:
    """As in "lapack_sgetrf_ffi (1), Sharding (2)", with notes on the targets. Counts that are not known are None."""
    if counts is None:
        return "not known: the module is damaged, or newer than what can be read here"
    return listed(counts, lambda target: f"{target} ({counts[target]}{note(target)})", most=most)


def text(title: str, facts: Facts) -> str:
    """Facts for `print`, below a title."""
    return "\n".join([f"{shown(title)}:", *(f"  {label:<14}{shown(said)}" for label, said in facts)])


def listed_cases(given: Any) -> list[Any]:
    """The cases that a user gave, which are looked at later."""
    if isinstance(given, Iterable) and not isinstance(given, (str, bytes, Mapping)):
        return list(given)
    raise ExportTypeError(f"cases= takes a list of cases, each a tuple of arguments or a dict, not {type(given)}")


def check_flags(**given: Any) -> None:
    """Refuses options that have to be True or False, by their names, and are something else: "no" would count as True.
    NumPy's truth values are taken, too.
    """
    for name, value in given.items():
        if not isinstance(value, bool) and type(value).__name__ not in ("bool_", "bool"):
            raise ExportTypeError(f"{name}= takes True or False, not {value!r:.80}")


def why_no_numbers(array: Any) -> str:
    """Why what looks like an array is not taken for its numbers; empty if it is."""
    if type(array).__name__ == "ShapeDtypeStruct":
        return "a ShapeDtypeStruct, which has a shape and a dtype, but no numbers"
    ma = sys.modules.get("numpy.ma")  # which NumPy imports when somebody makes one
    if ma is None or not isinstance(array, ma.MaskedArray):
        return ""
    return "a masked array, whose mask would be lost: pass array.filled(...)"


def why_traced(array: Any) -> str:
    """As `why_no_numbers`, where JAX's tracers, which stand for arrays inside of functions, have no use."""
    core = sys.modules.get("jax.core")
    if core is not None and isinstance(array, core.Tracer):
        return f"a tracer of JAX for {array.aval}, which has no numbers yet: call outside of jax.jit and jax.grad"
    return why_no_numbers(array)


_USER = r"(\w://)[^/?#@\s'\"]*@"
_WORD = r"[^\s'\"]+"


def without_secrets(text: str) -> str:
    """A text whose URLs have no user, no password and no query: for files that people pass on."""
    return re.sub(_WORD, lambda word: _without_queries(word[0]), re.sub(_USER, r"\1", text)) if "://" in text else text


def _without_queries(word: str) -> str:
    start, mark, rest = word.partition("://")
    links = (link.partition("?") for link in rest.split("::"))
    return f"{start}{mark}{'::'.join(link + (f'{query}...' if query else '') for link, query, _ in links)}"

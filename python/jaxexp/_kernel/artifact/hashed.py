"""How many values of an artifact one set or dict may hash: every value that becomes an element or a key passes here.

Python compares a new element with the elements that have its hash. Who writes an artifact can choose the hashes of
numbers, and of tuples and sets of numbers; Python mixes a secret only into the hashes of texts and bytes.
"""

from __future__ import annotations

import collections
from collections.abc import Sequence
from typing import Any

MOST_OF_ONE_HASH = 64
MOST_VALUES = 1 << 16  # values of different hashes, too, can be made to look for a free place one after another
_WITH_SECRET = (str, bytes)


def most_of_one_hash(values: Sequence[Any], inside: int = 1) -> int:
    """The most values that Python may compare to find one of these.

    Args:
        values: the elements of a set, or the keys of a dict.
        inside: the same for sets inside of the values: comparing two values may compare as many of their elements.

    Raises:
        ValueError: more than `MOST_OF_ONE_HASH`, or more than `MOST_VALUES` values that are not texts.
        TypeError: a value has no hash.
    """
    chosen = [value for value in values if type(value) not in _WITH_SECRET]
    if not chosen:
        return inside
    if len(chosen) > MOST_VALUES:
        raise ValueError(f"{len(chosen)} keys or elements that are not texts, more than {MOST_VALUES}")
    hash_, most = collections.Counter(map(hash, chosen)).most_common(1)[0]
    if most * inside > MOST_OF_ONE_HASH:
        sets = "" if inside == 1 else f", and {inside} in a set inside of them"
        raise ValueError(f"{most} keys or elements with the hash {hash_}{sets}, more than {MOST_OF_ONE_HASH}")
    return most * inside

"""What a worker does when an archive is verified: it reads members, or files of weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from jaxexp._bulk.errors import packed
from jaxexp._errors import DeserializationError

from . import verify
from .opened import Opened
from .parts import opened_in_worker
from .verify_weights import damaged_in_files

if TYPE_CHECKING:
    from jaxexp._policy.policy import Policy

MEMBERS, WEIGHTS = "members", "weights"


def verify_archives(parts: Sequence[tuple[tuple[Any, ...], Sequence[int]]], options: dict[str, Any]) -> list[Any]:
    """Reads parts of archives; what `verify_members` returns for each."""
    return [verify_members(place, numbers, options) for place, numbers in parts]


def verify_members(place: tuple[Any, ...], numbers: Sequence[int], options: dict[str, Any]) -> Any:
    """Reads all bytes of members, or of files of weights.

    Args:
        place: which archive, and what of it.
        numbers: of the members or the files.
        options: "threads", and "policy" or None.

    Returns:
        The numbers and errors of members that are damaged; or how many tensors are in the files, and the digests of
        those that are damaged with what was found. A list of one text and an error, if the archive cannot be read.
    """
    _, what, *address = place
    try:
        with opened_in_worker(*address) as opened:
            if what == WEIGHTS:
                seen, bad = damaged_in_files(opened, numbers)
                return [seen, {digest.hex(): found.hex() for digest, found in bad.items()}]
            found = verify.damaged(opened, numbers, options["threads"])
            damaged: list[Any] = [[number, packed(DeserializationError(*wrong))] for number, *wrong in found]
            if options["policy"] is not None:
                damaged += _refused(opened, numbers, {number for number, _ in damaged}, options["policy"])
            return damaged
    except (DeserializationError, OSError, ImportError) as error:
        return [UNREAD, packed(error)]


UNREAD = "unread"


def _refused(opened: Opened, numbers: Sequence[int], damaged: set[int], policy: Policy) -> list[Any]:
    """What the policy does not allow."""
    from .load import load

    whole = [number for number in numbers if number not in damaged]
    names = [opened.index.name(number) for number in whole]
    found = zip(whole, load(opened, names, 1, "return", policy), strict=True)
    return [[number, packed(error)] for number, error in found if isinstance(error, Exception)]

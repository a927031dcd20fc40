"""`compatibility` and `migrate`: which releases read an artifact, and the same artifact for another release."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from jaxexp._public import public

from .source import source

if TYPE_CHECKING:
    from jaxexp._compat.compatibility import Compatibility

    from .source import Given


@public
def compatibility(artifact: Given) -> Compatibility:
    """Says what an artifact is and who can load it, without running it.

    Args:
        artifact: a path, a member of an archive, a file object or a buffer, as for `load`.

    Raises:
        DeserializationError: the bytes are not an artifact, are damaged (a module of a VJP, too), or contain a number
            that this jaxexp does not know.
        KeyError: the archive has no such member.
        OSError: the file cannot be opened.
        TypeError: `load` does not accept it.

    Example:
        >>> jaxexp.compatibility("model.jaxexp").readable_by("0.6.2")
    """
    from jaxexp._compat.compatibility import compatibility_of

    found = source(artifact, "compatibility")
    with found.named():
        return compatibility_of(found.read())


@public
def migrate(
    artifact: Given,
    to: str | None = None,
    *,
    inputs: tuple[Sequence[Any], Mapping[str, Any]] | None = None,
    locations: str = "full",
) -> bytearray:
    """Rewrites an artifact of any age, with all its VJPs, so that today's `jax.export` can load it.

    HloShardings become NamedShardings, expired layouts become today's layout, and the modules are written for the
    StableHLO version that `Exported.serialize` writes. The function stays the same: name, trees, types, platforms,
    devices and effects. To make sure, the new artifact is read again and its signature is compared with the old one. If
    the artifact has weights or cases in files beside it, the new one uses them, too. It says who wrote the first one:
    see `Inspection.first_writer`.

    Args:
        artifact: a path, a member of an archive, a file object or a buffer, as for `load`.
        to: the release to write for, like `compatibility` in `Exported.serialize`, for example ``"0.6.2"``; None for
            the installed `jax.export`.
        inputs: sample inputs as a pair (args, kwargs). With them, the old and the new function are called, and must
            return the same results up to rounding.
        locations: what the new artifact keeps of locations in source code, as in `Exported.serialize`.

    Returns:
        The new artifact.

    Raises:
        DeserializationError: the bytes are not an artifact that can be read here.
        UnsupportedError: it has ordered effects and a calling convention older than 9.
        ExportError: the function does not fit into the format, or the new function is not the same as the old one.
        KeyError: the archive has no such member.
        OSError: the file cannot be opened.
        TypeError: `load` does not accept it.

    Example:
        >>> pathlib.Path("new.jaxexp").write_bytes(jaxexp.migrate("old.bin"))
    """
    from jaxexp._compat.migrate import migrated

    found = source(artifact, "migrate")
    with found.named():
        return migrated(found.read(), to, inputs, locations, case_files=found.is_file, metadata=found.own_metadata())

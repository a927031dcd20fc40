"""What an artifact is, wherever it is, and nothing is run: `inspect` (without JAX), `digests`, `compatibility`, and
`migrate`, which writes the same one for another release."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from jaxexp._errors import ExportError
from jaxexp._kernel.artifact.inspection import described
from jaxexp._public import public

from .source import source

if TYPE_CHECKING:
    from jaxexp._compat.compatibility import Compatibility
    from jaxexp._kernel.artifact.inspection import Inspection

    from .source import Given, Opened


@public
def inspect(artifact: Given, *, check_modules: bool = False, digests: bool = False) -> Inspection:
    """Reads the facts about an artifact (signature, age, sizes of the modules), without loading it and without JAX.

    The bytes are verified as in `deserialize`, except checks that need JAX: that constraints can hold, that registered
    pytree nodes, effects and kinds of memory are known, and that the module can be parsed.

    Args:
        artifact: a path, a member of an archive, a file object or a buffer, as for `load`.
        check_modules: whether to read the modules, too, and compare them with their digests. Otherwise only both ends
            of a large file are read.
        digests: whether to add the `digests` of the artifact. This needs JAX, and reads everything.

    Raises:
        DeserializationError: the bytes are not an artifact, or are damaged. The error names the file, if there is one.
        KeyError: the archive has no such member.
        OSError: the file cannot be opened.
        TypeError: `load` does not accept it.

    Example:
        >>> print(jaxexp.inspect("model.jaxexp"))
    """
    return inspected(source(artifact, "inspect").opened(), check_modules, digests)


def inspected(found: Opened, check_modules: bool = False, digests: bool = False, *, whole: bool = False) -> Inspection:
    """The same for an artifact that was opened. With `whole`, it is read now, because its bytes are needed anyway."""
    place = found.source
    with place.named():
        buffer = found.buffer if digests or whole else None
        if place.handle is not None:
            inspection = place.handle.inspect(check_modules=check_modules)
        else:
            inspection = described(place.mapped() if buffer is None else buffer, check_modules)
    return dataclasses.replace(inspection, **dataclasses.asdict(digests_of(found))) if digests else inspection


@public
@dataclasses.dataclass(frozen=True, slots=True)
class Digests:
    """Two SHA-256 digests that identify an artifact, as hexadecimal numbers.

    Attributes:
        sha256: the digest of its bytes, as `sha256sum` prints it for the file; for a member of an archive, the file
            that ``jaxexp unpack`` writes.
        meaning: the digest of the program: its modules without names of functions and locations, its signature without
            the name of the function, its VJPs, and the content of its weights. Equal programs have equal meanings,
            independent of place, time and format. Compare only meanings that the same release of jaxexp computed. Other
            releases of JAX may lower the same function to another program.
    """

    sha256: str
    meaning: str


@public
def digests(artifact: Given) -> Digests:
    """The SHA-256 digests of an artifact and of its meaning.

    This reads the whole artifact and its weights. The modules are parsed, but nothing is compiled.

    Args:
        artifact: a path, a member of an archive, a file object or a buffer, as for `load`.

    Raises:
        DeserializationError: the bytes are not an artifact, or are damaged.
        ExportError: the artifact is a buffer or a file object, and its weights are in files beside it, which cannot be
            found.
        KeyError: the archive has no such member.
        OSError: the file, or one with weights, cannot be opened.
        TypeError: `load` does not accept it.

    Example:
        >>> jaxexp.digests("model.jaxexp").meaning == jaxexp.digests("again.jaxexp").meaning
    """
    return digests_of(source(artifact, "digests").opened())


def digests_of(found: Opened) -> Digests:
    """The same for an artifact that was opened."""
    from jaxexp._api.exported import reader
    from jaxexp._compat.meaning import meaning_of
    from jaxexp._kernel.codec import binding
    from jaxexp._weights.files.header import sha256

    with found.source.named():
        binding.bind()
        exported = reader.decode(found.artifact)
        weights = found.weights()
        if weights is None and found.artifact.weights() is not None:
            raise ExportError(
                "the weights of this artifact are in files beside it, and its digests include them: pass the path of "
                "the artifact"
            )
        digests = [] if weights is None else [sha256(tensor.pieces()) for tensor in weights.sources()]
        return Digests(hashlib.sha256(found.buffer).hexdigest(), meaning_of(exported, digests))


@public
def compatibility(artifact: Given) -> Compatibility:
    """Says which releases of JAX can load an artifact, without running it.

    Args:
        artifact: a path, a member of an archive, a file object or a buffer, as for `load`.

    Raises:
        DeserializationError: the bytes are not an artifact, are damaged (also in the module of a VJP), or contain a
            number that this jaxexp does not know.
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
    """Rewrites an artifact of any age, with all its VJPs, so that the installed `jax.export` can load it.

    HloShardings become NamedShardings, expired layouts become the current layout, and the modules are written for the
    StableHLO version that `Exported.serialize` writes. The function keeps its name, trees, types, platforms, devices
    and effects: the new artifact is read again, and its signature is compared with the old one. The new artifact uses
    the weights and cases in files beside the old one, and names the first writer (`Inspection.first_writer`).

    Args:
        artifact: a path, a member of an archive, a file object or a buffer, as for `load`.
        to: the release to write for, like `compatibility` in `Exported.serialize`, for example ``"0.6.2"``; None for
            the installed `jax.export`.
        inputs: a pair (args, kwargs). The old and the new function are called with it, and must return the same results
            up to rounding.
        locations: the source locations that the new artifact keeps, as in `Exported.serialize`.

    Returns:
        The new artifact.

    Raises:
        DeserializationError: the bytes are not an artifact that can be read here.
        UnsupportedError: it has ordered effects and a calling convention older than 9.
        ExportError: the function does not fit into the format, or the new function differs from the old one.
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

"""`inspect`: shows what an artifact says about itself, wherever it is, without JAX."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from jaxexp._kernel.artifact.inspect import described
from jaxexp._public import public

from .source import Source, source

if TYPE_CHECKING:
    from jaxexp._kernel.artifact.inspection import Inspection

    from .source import Given


@public
def inspect(artifact: Given, *, check_modules: bool = False, digests: bool = False) -> Inspection:
    """Says what is in an artifact, without loading it and without JAX: signature, age, sizes of the modules.

    The bytes are verified as in `deserialize`. Checks that need JAX are left out: that constraints can hold, that
    registered pytree nodes, effects and kinds of memory are known, and that the module is what its first bytes say.

    Args:
        artifact: a path, a member of an archive, a file object or a buffer, as for `load`.
        check_modules: whether to read the modules, too, and compare them with their digests. Otherwise only both ends
            of a large file are read.
        digests: whether to add the SHA-256 digests of the artifact and of its meaning, as the function `digests`
            returns them. This needs JAX, and reads everything.

    Raises:
        DeserializationError: the bytes are not an artifact, or are damaged. The error names the file, if there is one.
        KeyError: the archive has no such member.
        OSError: the file cannot be opened.
        TypeError: `load` does not accept it.

    Example:
        >>> print(jaxexp.inspect("model.jaxexp"))
    """
    return inspected(source(artifact, "inspect"), check_modules, digests)


def inspected(found: Source, check_modules: bool = False, digests: bool = False) -> Inspection:
    """The same for a source."""
    with found.named():
        if digests and found.file is not None:  # which can be read only once
            found = Source(found.name, buffer=found.read())
        if found.handle is not None:
            inspection = found.handle.inspect(check_modules=check_modules)
        else:
            inspection = described(found.mapped(), check_modules)
    if not digests:
        return inspection
    from .digests import digests_of

    return dataclasses.replace(inspection, **dataclasses.asdict(digests_of(found)))

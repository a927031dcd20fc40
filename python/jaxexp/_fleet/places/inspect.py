"""`inspect`: shows what an artifact says about itself, wherever it is, without JAX."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jaxexp._kernel.artifact.inspect import described
from jaxexp._public import public

from .source import source

if TYPE_CHECKING:
    from jaxexp._kernel.artifact.inspection import Inspection

    from .source import Given


@public
def inspect(artifact: Given, *, check_modules: bool = False) -> Inspection:
    """Says what is in an artifact, without loading it and without JAX: signature, age, sizes of the modules.

    The bytes are verified as in `deserialize`. Checks that need JAX are left out: that symbolic shapes parse, that
    pytree nodes and effects are known, and that the module is what its first bytes say.

    Args:
        artifact: a path, a member of an archive, a file object or a buffer, as for `load`.
        check_modules: whether to read the modules, too, and compare them with their digests. Otherwise only both ends
            of a large file are read.

    Raises:
        DeserializationError: the bytes are not an artifact, or are damaged. The error names the file, if there is one.
        KeyError: the archive has no such member.
        OSError: the file cannot be opened.
        TypeError: `load` does not accept it.

    Example:
        >>> print(jaxexp.inspect("model.jaxexp"))
    """
    found = source(artifact, "inspect")
    if found.handle is not None:
        return found.handle.inspect(check_modules=check_modules)
    with found.named():
        return described(found.mapped(), check_modules)

"""Reading artifacts: from a buffer, and from a file."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from jaxexp._errors import ExportError
from jaxexp._exported import Exported
from jaxexp._function import data
from jaxexp._io import files
from jaxexp._public import public

from .decode import decode, read, verified, verify_modules

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from .policy import Policy


@public
def deserialize(blob: Buffer, *, policy: Policy | None = None) -> Exported:
    """Reads a function from the bytes that `Exported.serialize` returned, in jaxexp or in any `jax.export` since JAX
    0.4.22.

    All metadata is verified, then the signature is decoded. The module and the VJPs are read from the buffer when they
    are needed, and compared with their digests then. So a read-only buffer stays in use as long as the function. A
    writable buffer, such as a bytearray, is copied first; you may change it afterwards.

    Verification covers the structure, not what the module does. A loaded function is a program, and may run any custom
    call that is registered in the process. Load only what you trust, or pass a policy, which is checked before the
    function is returned.

    Args:
        blob: an object with a contiguous buffer: bytes, bytearray, memoryview, mmap or an array of bytes. Bytes after
            the artifact are ignored.
        policy: what the artifact may contain; None allows anything. It is checked only here, and not again for what you
            make of the function later: VJPs, specialized functions, new artifacts. With a policy, the buffer must not
            change during the call.

    Raises:
        DeserializationError: the bytes are not an artifact that can be read here. The error says where, what was
            expected, and what was found. Functions that were registered for pytree nodes may be what refuses the data.
        PolicyError: the artifact contains something that the policy does not allow. The error says what, where, and
            which field would allow it.
        TypeError: `blob` is not a buffer.
    """
    if policy is None:
        return read(blob)
    if isinstance(blob, (bytes, bytearray, memoryview)):
        policy.check_size(memoryview(blob).nbytes)
    artifact = verified(blob)
    policy.check_declared(artifact)
    exported = decode(artifact)
    policy.check(exported)
    return exported


@public
def load(
    path: str | os.PathLike[str],
    *,
    policy: Policy | None = None,
    verify: bool = False,
    executables: str | os.PathLike[str] | None = None,
) -> Exported:
    """Reads a function from a file that `Exported.save` wrote, or that holds the bytes of `Exported.serialize`.

    A file below 1 MB is read at once. Of a larger one, the modules are read when they are first used, if the artifact
    has a trailer; the file stays open until then. `Exported.save` replaces files, which does not affect loaded
    functions. If another program changes the file in place, the function stays what it was, or the first use of a
    module raises a DeserializationError. With a policy, the whole file is read at once, so that what runs is what was
    checked.

    If the function was saved with weights, it is returned as a `BoundExported`. The files of weights, which have to be
    in the same folder, are opened when the first weight is needed.

    Args:
        path: the file.
        policy: what the artifact may contain, as in `deserialize`.
        verify: whether to read all modules now, those of VJPs too, and compare them with their digests; otherwise that
            happens when each is first used. Weights are read and compared with their digests, too; otherwise they never
            are, but for their sizes and for what their files say of their content.
        executables: a file that `Exported.precompile` wrote. It has native code, which can do anything that the process
            may do, so name only a file that you trust like a program. Eager calls use the code that fits; where none
            does, they compile as always, and `Exported.executables` says why.

    Raises:
        DeserializationError: as in `deserialize`; it names the file.
        PolicyError: as in `deserialize`; it names the file.
        ExportError: both `policy` and `executables` are given: no policy can say what native code does.
        OSError: a file cannot be opened.
    """
    refuse_both(path, policy, executables)
    with files.named_in_errors(path):
        if policy is not None:
            exported = deserialize(files.read(path, policy.check_size), policy=policy)
        else:
            exported = read(files.opened(path))
        if verify:
            verify_modules(exported)
        if executables is not None:
            give_executables(exported, executables)
        if data.weights_in_trailer(exported) is None:
            return exported
        from jaxexp._bound.load import with_stored  # with what calls need, which most functions load later

        bound = with_stored(exported, path)
    if verify:
        bound.weights.check_digests()  # errors name the file of weights
    return bound


def refuse_both(
    name: str | os.PathLike[str], policy: Policy | None, executables: str | os.PathLike[str] | None
) -> None:
    """Raises ExportError if there are a policy and executables, whatever is in them."""
    if executables is not None and policy is not None:
        raise ExportError(
            f"loading {os.fsdecode(name)!r}: a policy says what a program may contain, and executables are native "
            "code, of which nobody can say that. Leave out one of the two"
        )


def give_executables(exported: Exported, path: str | os.PathLike[str]) -> None:
    """Makes a function use the code in a file of executables.

    Raises:
        DeserializationError: it is something else, or it is damaged.
        OSError: it cannot be opened.
    """
    from jaxexp._compiled.executables import attach  # which most functions do not need

    attach(exported, path)

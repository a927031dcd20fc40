"""Reading artifacts: from a buffer, and from a file."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from jaxexp._errors import ExportError, WeightsError
from jaxexp._kernel.function import data
from jaxexp._kernel.io import files
from jaxexp._kernel.read.decode import verified, verify_modules
from jaxexp._public import public

from .exported import BoundExported, Exported, reader

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from jaxexp._kernel.artifact.cases import Cases
    from jaxexp._native import FileBytes
    from jaxexp._policy.policy import Policy
    from jaxexp._signing.reading import SignedFiles
    from jaxexp._signing.signed_by import SignedBy
    from jaxexp._weights.arrays.weights import Weights
    from jaxexp._weights.files.header import Table
    from jaxexp._weights.files.places import Take
    from jaxexp._weights.files.reading import Opening, Tensors
else:  # so that `typing.get_type_hints` takes `deserialize`, as it takes that of jax.export
    Buffer = Policy = Any

_read = reader.read


@public
def deserialize(blob: Buffer, *, policy: Policy | None = None) -> Exported:
    """Reads a function from the bytes that `Exported.serialize` returned, in jaxexp or in any `jax.export` since JAX
    0.4.22.

    All metadata is verified now. The fields are decoded on the first access to one of them, except fields that JAX or a
    registered function might refuse. The module and the VJPs are read from the buffer when they are needed, and
    compared with their digests then. So `bytes` stay in use as long as the function does; a memoryview of them may be
    released. Any other buffer (a bytearray, a mapped file, a read-only view of either) is copied first, so you may
    change it afterwards.

    Verification covers the structure, not what the module does. A loaded function is a program, and may run any custom
    call that is registered in the process. Load only what you trust, or pass a policy, which is checked before the
    function is returned.

    Args:
        blob: an object with a contiguous buffer: bytes, bytearray, memoryview, mmap or an array of bytes. Bytes after
            the artifact are ignored.
        policy: what the artifact may contain; None allows anything. It is checked only here, not again for VJPs,
            specialized functions and new artifacts that you make from the function later.

    Raises:
        DeserializationError: the bytes are not an artifact that can be read here. The error says where, what was
            expected, and what was found. Functions registered for pytree nodes may also refuse the data.
        PolicyError: the artifact contains something that the policy does not allow. The error says what, where, and
            which field would allow it.
        TypeError: `blob` is not a contiguous buffer (the error is a BufferError, too, if it is a buffer), or `policy`
            is not a Policy.
    """
    if policy is None:
        return _read(blob)
    check_policy(policy)
    with contextlib.suppress(TypeError):  # not a buffer, which is refused below
        policy.check_size(memoryview(blob).nbytes)
    artifact = verified(blob)
    policy.check_declared(artifact)
    exported: Exported = reader.decode(artifact)
    policy.check(exported)
    return exported


def check_policy(policy: object) -> None:
    """Raises ExportTypeError if what a caller passed as `policy` is neither a policy nor None."""
    if policy is not None:
        from jaxexp._policy.policy import check_is_policy

        check_is_policy(policy)


def load_file(
    path: str,
    policy: Policy | None,
    verify: bool,
    executables: str | os.PathLike[str] | None,
    signed_by: SignedBy | None = None,
    stable: bool = False,
) -> Exported:
    """What `load` returns for a file."""
    with files.named_in_errors(path):
        check_size = None if policy is None else policy.check_size
        signed = code = None
        if signed_by is not None:
            from jaxexp._signing.reading import SignedFiles

            signed = SignedFiles(signed_by)
            if executables is not None:  # before anything is made of the artifact
                code = signed.opened(executables, path)
            buffer: Any = signed.opened(path, check_size=check_size)  # which types can say since Python 3.12
            exported = deserialize(buffer, policy=policy)
        elif check_size is not None:
            exported = deserialize(files.read(path, check_size), policy=policy)
        else:
            exported = reader.read(files.opened(path))
        if verify:
            verify_modules(exported)
        if executables is not None:
            give_executables(exported, executables, code)
        give_cases_beside(exported, path, signed, verify=verify)
        if data.weights_in_trailer(exported) is None:
            return exported
        weights = stored_weights(exported, path, signed, stable)
    if verify:
        weights.check_digests()  # errors name the file of weights
    return BoundExported.of(exported, weights)


def give_cases(exported: Exported, stored: Callable[[Table], Tensors | None], *, verify: bool = False) -> Cases | None:
    """Lets a function find the arrays of its cases in files beside its artifact, if there are some, and returns these
    cases. `stored` finds the files, given what the trailer says of them; None if they are missing. With `verify`, they
    are read now.
    """
    cases = data.cases_of(exported)
    if cases is None or not cases.table.files:
        return None
    from jaxexp._api.cases.files import reader_of
    from jaxexp._weights.files.header import Table

    if (found := stored(Table.of_trailer(*cases.table))) is None:
        return None
    if verify:
        found.check_digests()
    cases = cases.beside(reader_of(found))
    data.note(exported, cases=cases)
    return cases


def give_cases_beside(
    exported: Exported, path: str | os.PathLike[str], signed: SignedFiles | None = None, *, verify: bool = False
) -> None:
    """The same for files on this machine, which are opened when they are needed. With `signed`, they are read now, and
    have to be among these.
    """

    def stored(table: Table) -> Tensors:
        from jaxexp._weights.files.reading import StoredTensors

        return StoredTensors(path, table, _opening(path, signed, "in pieces"))

    give_cases(exported, stored, verify=verify)


def stored_weights(
    exported: Exported, path: str | os.PathLike[str], signed: SignedFiles | None = None, stable: bool = False
) -> Weights:
    """The weights in files beside a program, which are mapped later; copied to memory later if they are to be stable.
    With `signed`, they are read now, and have to be among these.

    Raises:
        DeserializationError: they do not fit the program.
        SignatureError: they are not signed.
    """
    from jaxexp._weights.bound.program import stored  # imports what calls need, which most functions load later
    from jaxexp._weights.files.reading import StoredTensors

    how = _opening(path, signed, "copied" if stable else "mapped")
    return stored(exported, lambda table, _: StoredTensors(path, table, how))


def _opening(path: str | os.PathLike[str], signed: SignedFiles | None, take: Take) -> Opening:
    """How files beside an artifact are opened, unless they have to be signed."""
    from jaxexp._weights.files.reading import Opening

    if signed is None:
        return Opening(take)
    return Opening.signed(functools.partial(signed.check, used_by=os.fsdecode(path)))


def load_bytes(
    buffer: Buffer, policy: Policy | None, verify: bool, executables: str | os.PathLike[str] | None
) -> Exported:
    """What `load` returns for bytes; for a function with weights, the program."""
    exported = deserialize(buffer, policy=policy)
    if verify:
        verify_modules(exported)
    if executables is not None:
        give_executables(exported, executables)
    return exported


def refuse_both(name: str, policy: Policy | None, executables: str | os.PathLike[str] | None) -> None:
    """Raises an ExportError if both are given. The name is the artifact's, for the message, and may be empty."""
    if executables is not None and policy is not None:
        raise ExportError(
            f"{f'loading {name!r}: ' if name else ''}a policy says what a program may contain, and executables are "
            "native code, which no policy can check. Leave out one of the two"
        )


def refuse_weights_beside_url(exported: Exported, url: str) -> None:
    """Raises a WeightsError if there are weights: without them, the function takes an unexpected first argument."""
    if (weights := data.weights_in_trailer(exported)) is not None:
        names = ", ".join(repr(name) for name, *_ in weights[0])
        raise WeightsError(
            "", "a program without weights, or a member of an archive (its weights are read by URL, too)",
            f"one with weights beside it in {names}: copy all files into one folder, and load from it", file=url,
        )  # fmt: skip


def give_executables(exported: Exported, path: str | os.PathLike[str], file: FileBytes | None = None) -> None:
    """Makes a function use the code in a file of executables; `file` is its bytes, if they were read already."""
    from jaxexp._executables.executables import attach  # most functions do not need it

    attach(exported, path, file)

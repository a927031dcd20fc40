"""`load`: makes a function from an artifact, wherever it is."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from jaxexp._public import public

from .source import source
from .verify import stored_beside

if TYPE_CHECKING:
    from jaxexp._api.exported import Exported
    from jaxexp._policy.policy import Policy
    from jaxexp._signing.signed_by import SignedBy

    from .source import Given


@public
def load(
    artifact: Given,
    *,
    policy: Policy | None = None,
    verify: bool = False,
    executables: str | os.PathLike[str] | None = None,
    signed_by: SignedBy | None = None,
    stable: bool = False,
) -> Exported:
    """Reads a function from a file that `Exported.save` wrote, from a member of an archive, or from bytes of
    `Exported.serialize`.

    A file below 1 MB is read at once. From a larger one with a trailer, each module is read when it is first used; the
    file stays open until then. `Exported.save` replaces files, which does not affect loaded functions. If another
    program changes the file in place, the function stays what it was, or the first use of a module raises a
    DeserializationError. With a policy, the whole file is read at once, so that the code that runs is the code that was
    checked.

    If the function was saved with weights, it is returned as a `BoundExported`. The files of weights, which have to be
    in the same folder, are opened when the first weight is needed; weights of a member are in its archive. Bytes
    without a folder give the program, which takes the weights as its first argument.

    Args:
        artifact: a path, as a str or an object such as `pathlib.Path`; a member of an archive, as in
            ``"fleet.zip::resnet/b8"`` (the archive may be a URL) or as a `Handle`; a binary file object, which is read
            from where it is to its end; or a buffer, as for `deserialize`. A str with ``://`` is a URL that fsspec
            supports; all of it is read.
        policy: what the artifact may contain, as in `deserialize`.
        verify: whether to read all modules now, also those of VJPs, and compare them with their digests; otherwise
            each module is compared when it is first used. With True, weights and cases are read and compared with
            their digests, too; otherwise only the sizes of weights are checked, and the digest of their content that
            their files state. The bytecode of a module is checked when it is used.
        executables: a file that `Exported.precompile` wrote. It has native code, which can do anything that the process
            may do, so trust it as you trust a program. Eager calls use the code that fits; if none does, they compile
            as always, and `Exported.executables` says why.
        signed_by: who has to have signed the artifact, its weights and the file of executables; `sign` signs files.
            Signatures are verified first of all. Each file is read once, as a whole, and these bytes are compared with
            the signed SHA-256 before anything looks at them, and then used: weights are copied to memory instead of
            mapped. This needs the package ``model-signing`` (extra ``jaxexp[sign]``).
        stable: whether files of weights are copied to memory when they are opened, instead of mapped. If another
            program shortens a mapped file, the process ends with SIGBUS; if it writes to the file, calls may compute
            with the new bytes.

    Raises:
        DeserializationError: as in `deserialize`; it names the file. Or the artifact is at a URL, and its weights are
            in files beside it.
        PolicyError: as in `deserialize`; it names the file.
        SignatureError: a file is not signed by whom `signed_by` says, or is not what was signed.
        ExportError: both `policy` and `executables` are given: a policy cannot judge native code. Or `signed_by` is
            given, and the artifact is not in a file on this machine, but a buffer, a file object or behind a URL; or it
            is a `Handle`, whose archive has to be opened with `signed_by`; the same holds for `stable`.
        ImportError: `signed_by` is given, and ``model-signing`` is not installed.
        KeyError: the archive has no such member.
        OSError: a file cannot be opened.
        TypeError: `artifact` is none of these, or a file object opened for text; or `policy` is not a Policy, or
            `signed_by` no SignedBy.

    Example:
        >>> exported = load("model.jaxexp")
        >>> exported = load("fleet.zip::resnet/b8", policy=Policy(platforms=("cpu",)))
        >>> exported = load("model.jaxexp", signed_by=SignedBy(public_key="release.pub"))
    """
    from jaxexp._api import load as reading  # which imports JAX
    from jaxexp._kernel.function.kept import kept_by

    found = source(artifact, "load", signed_by, stable)
    reading.refuse_both(found.name, policy, executables)
    reading.check_policy(policy)
    if found.handle is not None:
        return found.handle.load(policy=policy, verify=verify, executables=executables)
    with found.named():
        if found.is_file:
            assert found.path is not None
            exported = reading.load_file(found.path, policy, verify, executables, signed_by, stable)
            vars(kept_by(exported))["file"] = found.name
            return exported
        buffer = found.read(None if policy is None else policy.check_size)
        exported = reading.load_bytes(buffer, policy, verify, executables)
        if (url := found.path) is not None:
            vars(kept_by(exported))["file"] = url
            reading.refuse_weights_beside_url(exported, url)
            reading.give_cases(exported, lambda table: stored_beside(url, table))
        return exported

"""`sign`: signs artifacts with their weights, archives and files of executables, without JAX."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from jaxexp._errors import ExportError, ExportTypeError
from jaxexp._kernel.io.files import path_of
from jaxexp._public import public
from jaxexp._signing.reading import SUFFIX
from jaxexp._signing.signed_by import path_of_pem
from jaxexp._signing.writing import Signer

from .source import Kind, Source, kind_of_file, split
from .verify import checked_other_file, tensors_in, verified


@public
def sign(
    files: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    *,
    key: str | os.PathLike[str] | None = None,
    password: str | bytes | None = None,
    certificate: str | os.PathLike[str] | None = None,
    chain: Iterable[str | os.PathLike[str]] = (),
    sigstore: Mapping[str, Any] | None = None,
    signature: str | os.PathLike[str] | None = None,
) -> list[str]:
    """Signs files, so that others can load them with `signed_by`.

    A signature is a file in the OpenSSF Model Signing format, which the command ``model_signing verify`` checks, too.
    It has the SHA-256 of a file, and of the files with its weights. Each file gets its own signature beside it, with
    the name of the file and ``.sig``. An old signature is replaced; another file in its place is an error. Every file
    is verified first.

    This needs the package ``model-signing`` (extra ``jaxexp[sign]``).

    Args:
        files: the paths of artifacts, archives, files of executables, safetensors files, and indices of safetensors
            files (``.safetensors.index.json``), with the files that they name. A folder stands for the artifacts and
            archives in it and in its folders.
        key: a PEM file with the private key of an elliptic curve: NIST P-256, P-384 or P-521.
        password: the password of an encrypted key. It cannot be used with a certificate.
        certificate: a PEM file with the certificate of the key, which becomes a part of the signature.
        chain: PEM files with further certificates for the signature, from `certificate` up to a trusted one.
        sigstore: signs with an identity that Sigstore confirms, in place of a key. It takes the options of
            ``model_signing.signing.Config.use_sigstore_signer``, such as ``{"use_ambient_credentials": True}`` in CI.
            With ``{}``, a browser asks for your identity.
        signature: the path of one signature for all files. It must be in the folder of the files, or in a folder above.

    Returns:
        The paths of the signatures.

    Raises:
        ExportError: not exactly one of `key` and `sigstore` is given, or it cannot sign; a folder has no artifact; a
            file is outside of the folder of `signature`; or the path of a signature is another file.
        DeserializationError: a file is damaged, or of another kind.
        ImportError: ``model-signing`` is not installed.
        OSError: a file cannot be read or written.

    Example:
        >>> sign("model.jaxexp", key="release.pem")
        ['model.jaxexp.sig']
    """
    several = isinstance(files, Iterable) and not isinstance(files, (str, bytes, os.PathLike))
    advice = ": a function is saved before its file is signed"
    names = [path_of(path, "sign", advice) for path in (files if several else [files])]  # type: ignore[union-attr]
    with_key = signer(key, password, certificate, chain, sigstore)
    from .folders import Folders

    found = [file for name in names for file in Folders().files_of(name)]
    return [written for written, _ in signed(found, with_key, signature)]


def signed(
    paths: Iterable[str], by: Signer, signature: str | os.PathLike[str] | None
) -> Iterator[tuple[str, list[str]]]:
    """Writes the signatures of `sign`, and yields each with the files in it."""
    parts = {path: [path, *_files_beside(path)] for path in paths}  # all are verified before the first one is signed
    if not parts:
        raise ExportError("there is no file to sign")
    if signature is None:
        groups = [(path + SUFFIX, os.path.basename(path), part) for path, part in parts.items()]
    else:
        name = os.fsdecode(signature)
        every = dict.fromkeys(file for part in parts.values() for file in part)
        groups = [(name, os.path.basename(name).removesuffix(SUFFIX), list(every))]
    for written, what, part in groups:
        by.sign(part, written, what)
        yield written, part


def signer(
    key: Any, password: str | bytes | None, certificate: Any, chain: Iterable[Any], sigstore: Mapping[str, Any] | None
) -> Signer:
    if sigstore is not None and not isinstance(sigstore, Mapping):
        raise ExportTypeError(f"sign takes a dict of options as sigstore, not {type(sigstore)}")
    if (key is None) == (sigstore is None):
        raise ExportError(f"sign takes either a key or sigstore, found {'none' if key is None else 'both'}")
    if not isinstance(password, (str, bytes, type(None))):
        raise ExportTypeError(f"sign takes text or bytes as password, not {type(password)}")
    further = [
        path_of_pem(path, "chain=") for path in ([chain] if isinstance(chain, (str, bytes, os.PathLike)) else chain)
    ]
    if certificate is None and further:
        raise ExportError("sign takes a chain only with the certificate that it begins at")
    if password is not None and (key is None or certificate is not None):
        raise ExportError("sign takes a password only with a key that is used without a certificate")
    if certificate is not None and key is None:
        raise ExportError("sign takes a certificate only with its key")
    return Signer(
        None if key is None else path_of_pem(key, "key="),
        password,
        None if certificate is None else path_of_pem(certificate, "certificate="),
        further,
        None if sigstore is None else dict(sigstore),
    )


def _files_beside(path: str) -> list[str]:
    """The files with the weights and cases of an artifact, which are verified with it."""
    whole, member = split(path)
    if member is not None:
        raise ExportError(f"sign signs whole files, and {path!r} is a member of an archive: sign {whole!r}")
    source = Source(path, path)
    if not source.is_file:
        raise ExportError(f"sign signs files on this machine: {path!r} is a URL")
    if kind_of_file(path) is Kind.ARCHIVE:
        from jaxexp._fleet.archive.archive import Archive

        with Archive.open(path) as archive:
            for error in archive.verify().values():
                raise error
        return []
    from jaxexp._weights.files.places import INDEX_SUFFIX

    if path.endswith(INDEX_SUFFIX) and (tensors := tensors_in(path)) is not None:
        beside = [file.name for file in tensors.files]
        for file in beside:
            checked_other_file(file)
        return beside
    if checked_other_file(path) is not None:
        return []
    from jaxexp._weights.files.reading import Opening

    with source.named():
        return [file for file, _ in verified(source.opened(), Opening("in pieces", own_names=True)).files]

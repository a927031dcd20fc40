"""`SignedBy`: whose signatures are trusted."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from jaxexp._errors import ExportError, ExportTypeError, cause
from jaxexp._kernel.artifact.words import check_flags
from jaxexp._kernel.io.files import path_here
from jaxexp._public import public


def model_signing() -> Any:
    """The package, with its modules for signing, verifying, hashing and manifests; ImportError if it is missing."""
    try:
        import model_signing as package
        import model_signing.hashing
        import model_signing.manifest
        import model_signing.signing
        import model_signing.verifying
    except ImportError as error:  # the package needs pyopenssl, and its releases up to 1.1.1 do not say so
        raise ImportError("signatures need model-signing: pip install 'jaxexp[sign]'") from error
    return package


def said(error: Exception) -> str:
    """What an error of the package says, in one line. Some have only a type, and some repeat what was signed."""
    text, most = " ".join(str(error).split()), 300
    name = type(error).__name__
    return f"{name}: {text[:most]}{'...' if len(text) > most else ''}" if text else name


CURVES = "an elliptic curve (NIST P-256, P-384 or P-521)"


@public
@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class SignedBy:
    """A trusted signer: the owner of a key, of a certificate, or of an identity of Sigstore. Give one of the three.

    Attributes:
        public_key: a PEM file with the public key of the signer: an elliptic curve, NIST P-256, P-384 or P-521.
        certificates: PEM files with the trusted certificates. The signer's certificate is in the signature, and its
            chain must end in one of them. It is checked for the time at which it became valid, so an expired
            certificate is accepted. Revocation is not checked.
        identity: the identity in the signer's certificate by Sigstore, such as an e-mail address or the URL of a
            workflow. It needs an `issuer`.
        issuer: the URL of the identity provider that must have confirmed the identity.
        trust_config: a JSON file with the trust configuration of your own Sigstore; by default the public Sigstore,
            whose trusted roots the package `sigstore` downloads.
        staging: whether Sigstore's staging instance is trusted instead of the public one.
        signature: the file with the signature; by default the name of the signed file and ``.sig``. A signature lists
            files by their paths from its own folder.

    Raises:
        ExportError: not exactly one of the three is given, or an attribute that does not belong to it.
        TypeError: an attribute has another type.

    Example:
        >>> exported = load("model.jaxexp", signed_by=SignedBy(public_key="release.pub"))
    """

    public_key: str | os.PathLike[str] | None = None
    certificates: str | os.PathLike[str] | Iterable[str | os.PathLike[str]] | None = None
    identity: str | None = None
    issuer: str | None = None
    trust_config: str | os.PathLike[str] | None = None
    staging: bool = False
    signature: str | os.PathLike[str] | None = None

    def __post_init__(self) -> None:
        given = [name for name in ("public_key", "certificates", "identity") if getattr(self, name) is not None]
        check_flags(staging=self.staging)
        if len(given) != 1:
            raise ExportError(
                f"SignedBy takes one of public_key, certificates and identity, found {' and '.join(given) or 'none'}"
            )
        if (self.identity is None) != (self.issuer is None):
            raise ExportError(
                "SignedBy takes identity and issuer together: anybody can get an identity from some issuer"
            )
        if self.identity is None and (self.trust_config is not None or self.staging):
            raise ExportError("SignedBy takes trust_config and staging only with an identity, which Sigstore confirms")
        for name in ("public_key", "trust_config", "signature"):
            if (path := getattr(self, name)) is not None:
                object.__setattr__(self, name, path_of_pem(path, f"{name}="))
        if (paths := self.certificates) is not None:
            several = [paths] if isinstance(paths, (str, bytes, os.PathLike)) else list(paths)
            if not several:
                raise ExportError("SignedBy takes at least one certificate; found an empty list")
            object.__setattr__(self, "certificates", tuple(path_of_pem(path, "certificates=") for path in several))

    def __str__(self) -> str:
        """As in "the owner of the public key 'release.pub'"."""
        if self.public_key is not None:
            return f"the owner of the public key {self.public_key!r}"
        if self.certificates is not None:
            assert isinstance(self.certificates, tuple)
            return f"the owner of a certificate that leads to one in {', '.join(map(repr, self.certificates))}"
        return f"{self.identity!r}, confirmed by {self.issuer!r}"


def path_of_pem(given: Any, what: str) -> str:
    """The path of a PEM file. A message never has its content, which people pass by mistake."""
    path = path_here(given, what)
    if "\n" in path:
        raise ExportError(f"{what} takes the path of a file, not its content")
    return path


def checked(given: object) -> SignedBy:
    """What a caller passed as `signed_by`; ExportTypeError if it is something else."""
    if not isinstance(given, SignedBy):
        raise ExportTypeError(
            f"signed_by takes a SignedBy, such as SignedBy(public_key='release.pub'), not {type(given)}"
        )
    return given


def verifier(by: SignedBy) -> Any:
    """The package's configuration for verifying signatures of somebody.

    Raises:
        ExportError: a file is not what it should be.
        ImportError: the package is not installed.
        OSError: a file cannot be read, or Sigstore's trusted roots cannot be downloaded.
    """
    config = model_signing().verifying.Config()
    try:
        if by.public_key is not None:
            return config.use_elliptic_key_verifier(public_key=by.public_key)
        if by.certificates is not None:
            return config.use_certificate_verifier(certificate_chain=by.certificates)
        trust = None if by.trust_config is None else Path(by.trust_config)
        return config.use_sigstore_verifier(
            identity=by.identity, oidc_issuer=by.issuer, use_staging=by.staging, trust_config=trust
        )
    except (OSError, MemoryError):
        raise
    except Exception as error:
        expected = "" if by.certificates is None else "expected PEM files of certificates, found "
        if by.public_key is not None:
            expected = f"expected a public key, in PEM, of {CURVES}, found "
        raise ExportError(f"signatures of {by} cannot be verified: {expected}{of_key(error)}") from cause(error)


def of_key(error: Exception) -> str:
    """What the package found in place of a key that it takes."""
    # It looks for the curve of a key, which only keys of elliptic curves have.
    return "one of another kind, such as RSA" if isinstance(error, AttributeError) else said(error)

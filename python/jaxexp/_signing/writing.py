"""Signs files."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jaxexp._errors import ExportError, cause
from jaxexp._kernel.io import files
from jaxexp._kernel.io.other_files import SIGNATURE

from .reading import Hashed, bundle_of, folder_of, listed_name
from .signed_by import CURVES, model_signing, of_key, said

_LARGEST = 1 << 26  # bytes of a signature


class Signer:
    """A private key, a private key with its certificates, or an identity of Sigstore."""

    def __init__(self, key: str | None, password: str | bytes | None, certificate: str | None, chain: Sequence[str],
                 sigstore: dict[str, Any] | None) -> None:  # fmt: skip
        """Reads the key and the certificates; an ExportError if they are not what they should be."""
        self._package = model_signing()
        self._config = self._package.signing.Config()
        try:
            if sigstore is not None:
                if (trust := sigstore.get("trust_config")) is not None:
                    sigstore["trust_config"] = Path(trust)
                self._config.use_sigstore_signer(**sigstore)
            elif certificate is not None:
                # The package takes no empty chain.
                self._config.use_certificate_signer(
                    private_key=key, signing_certificate=certificate, certificate_chain=chain or [certificate]
                )
            else:
                secret = password.encode() if isinstance(password, str) else password
                self._config.use_elliptic_key_signer(private_key=key, password=secret)
        except (OSError, MemoryError):
            raise
        except Exception as error:
            expected = "" if key is None else f"expected a private key, in PEM, of {CURVES}, "
            if certificate is not None:
                expected += "and PEM files of its certificates, "
            found = of_key(error)
            if "is encrypted" in found:
                found += (
                    ": pass password=, or --password-from on the command line"
                    if certificate is None
                    else ": with a certificate, the key has to be in a file without a password"
                )
            found = f"found {found}" if expected else found
            given = " and ".join(repr(name) for name in (key, certificate) if name is not None) or "Sigstore"
            raise ExportError(f"cannot sign with {given}: {expected}{found}") from cause(error)

    def sign(self, paths: Sequence[str], signature: str, name: str) -> None:
        """Writes the signature of some files, which have to be in its folder or below it. Another signature in its
        place is replaced. `name` is what the statement calls the files together.

        Raises:
            ExportError: a file is elsewhere; there is something else in the place of `signature`; or Sigstore did not
                sign.
            OSError: a file cannot be read or written.
        """
        for path in paths:
            if listed_name(path, folder_of(signature)).split("/")[0] == "..":
                raise ExportError(
                    f"{path!r} is not in the folder of the signature {signature!r}, which names files by their paths "
                    "from there: write the signature to a folder above all files"
                )
        if os.path.islink(signature):
            raise ExportError(f"{signature!r} is a link, which a signature does not replace: remove it")
        if os.path.exists(signature) and not _is_signature(signature):
            raise ExportError(
                f"{signature!r} is not a signature, so a signature does not replace it: choose another path"
            )
        with tempfile.TemporaryDirectory() as folder:
            written = os.path.join(folder, "signature")
            config = self._config.set_hashing_config(Hashed(self._hashed(paths, signature, name)))
            try:
                config.sign(folder, written)
            except (OSError, MemoryError):
                raise
            except Exception as error:
                raise ExportError(f"cannot write the signature {signature!r}: {said(error)}") from cause(error)
            content = Path(written).read_bytes()
        files.replace(signature, [content], SIGNATURE)

    def _hashed(self, paths: Sequence[str], signature: str, name: str) -> Any:
        """The digests of files, as the package signs them. It would sign the name of the folder, too."""
        manifest, hashing = self._package.manifest, self._package.hashing
        folder = folder_of(signature)
        config = hashing.Config().set_ignored_paths(paths=(), ignore_git_paths=False)
        config.set_allow_symlinks(any(os.path.islink(path) for path in paths))
        found = config.hash(folder, files_to_hash=[Path(folder, listed_name(path, folder)) for path in paths])
        kind = manifest.SerializationType.from_args(found.serialization_type)
        items = [kind.new_item(one.identifier, one.digest) for one in found.resource_descriptors()]
        return manifest.Manifest(name, items, kind)


def _is_signature(path: str) -> bool:
    """Whether a file is a signature in the form of the package, or empty."""
    size = os.path.getsize(path)
    return size == 0 or (size <= _LARGEST and bundle_of(Path(path).read_bytes()) is not None)

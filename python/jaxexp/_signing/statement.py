"""What a signature says: the digests of files. The package `model-signing` checks who says so."""

from __future__ import annotations

import dataclasses
import os
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jaxexp._errors import ExportError, SignatureError, cause

from .package import said
from .signed_by import SignedBy

# What follows the name of a file in the name of its signature.
SUFFIX = ".sig"
# A signature takes about 200 bytes for each file, in one text. It has few lists and objects besides. The package would
# take 40 seconds and 9 GB for as many empty ones as there is space for.
_LARGEST, _MOST_PARTS = 1 << 22, 4096


@dataclasses.dataclass(frozen=True, slots=True)
class Statement:
    """The digests in a signature that was verified.

    Attributes:
        signature: the path of the signature.
        folder: its folder, wherever the process goes.
        digests: the SHA-256 of each file as a hexadecimal number, by its path from the folder of the signature.
    """

    signature: str
    folder: str
    digests: Mapping[str, str]

    def digest_of(self, path: str) -> str | None:
        """The digest of a file, by its name and its place beside the signature; None if it is not listed."""
        return self.digests.get(listed_name(path, self.folder))


def folder_of(signature: str) -> str:
    """The folder of a signature, as an absolute path."""
    return os.path.dirname(os.path.abspath(signature))


def listed_name(path: str, folder: str) -> str:
    """The name of a file in a signature: its path from the signature's folder. It begins with ``..`` if it is not
    inside of this folder.
    """
    try:
        return os.path.relpath(os.path.abspath(path), folder).replace(os.sep, "/")
    except ValueError:  # another drive
        return ".."


def verified(by: SignedBy, config: Any, signature: str) -> Statement:
    """The statement in a signature, if it was signed by somebody. `config` is their `verifier`.

    Raises:
        SignatureError: it was not, or there is none.
        OSError: the file cannot be read.
    """
    try:
        content = _content(signature)
    except FileNotFoundError:
        raise SignatureError(signature, f"a signature by {by}", "no such file") from None
    signed = _Signed()
    try:
        with tempfile.TemporaryDirectory() as folder:  # the package takes paths, and what it sees was looked at here
            copy = os.path.join(folder, "signature")
            Path(copy).write_bytes(content)
            config.set_hashing_config(signed).verify(folder, copy)
        manifest = signed.manifest
        method = manifest.serialization_type["method"]
        resources = [(one.identifier, str(one.digest.algorithm), one.digest.digest_hex) for one in _resources(manifest)]
    except (OSError, MemoryError):
        raise
    except Exception as error:  # of any kind: the package lets errors of its parsers pass
        raise SignatureError(signature, f"a signature by {by}", _found(error)) from cause(error)
    if others := sorted({algorithm for _, algorithm, _ in resources if algorithm != "sha256"}) or method != "files":
        what = ", ".join(others) if isinstance(others, list) else method
        raise SignatureError(signature, "the SHA-256 of each file", f"digests of another kind ({what})")
    # The signature of a single file calls it ".", and has its name elsewhere.
    digests = {manifest.model_name if n == "." else n: digest for n, _, digest in resources}
    return Statement(signature, folder_of(signature), digests)


def _found(error: Exception) -> str:
    """What the package found in place of a signature by somebody."""
    if "Key mismatch" in str(error):  # but for those of old releases, signatures name their keys
        return "one that was signed with another key"
    if type(error).__name__ == "InvalidSignature":
        return "one that was signed with another key, or has changed since"
    return said(error)


def _content(signature: str) -> bytes:
    if not stat.S_ISREG(os.stat(signature).st_mode):  # opening a pipe would wait for its writer
        raise SignatureError(signature, "a signature", "no regular file")
    with open(signature, "rb") as file:
        content = file.read(_LARGEST + 1)
    if len(content) > _LARGEST:
        raise SignatureError(signature, f"a signature of at most {_LARGEST:,} bytes", "more")
    parts = sum(map(content.count, (b",", b"[", b"{")))
    if parts > _MOST_PARTS:
        raise SignatureError(signature, f"a signature of at most {_MOST_PARTS:,} parts", f"JSON of {parts:,}")
    return content


def _resources(manifest: Any) -> Any:
    if manifest is None:
        raise ExportError("this release of model-signing compares digests in a way that jaxexp does not know")
    return manifest.resource_descriptors()


class _Signed:
    """Stands in for the digests of files on the disk, which the package compares with the signed ones: it keeps the
    signed ones.
    """

    manifest: Any = None

    def add_ignored_paths(self, **_: Any) -> None: ...

    def hash(self, *_: Any, **__: Any) -> _Signed:
        return self

    def __ne__(self, manifest: object) -> bool:
        self.manifest = manifest
        return False

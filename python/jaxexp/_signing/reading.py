"""What a signature says, and files that are signed: each is read once, so that what is used is what was compared with
the signed digest."""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import json
import os
import stat
import tempfile
import time
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxexp import _native
from jaxexp._errors import ExportError, SignatureError, cause
from jaxexp._kernel.artifact import words
from jaxexp._kernel.io import files, lock

from .signed_by import SignedBy, checked, said, verifier

if TYPE_CHECKING:
    from typing_extensions import Buffer


# What the media types of signatures begin with.
_BUNDLE = "application/vnd.dev.sigstore.bundle"
_SIGN_AGAIN = "Copy the signature again, or sign the files again"
# What says in a signature how it was made.
_MADE_WITH = {"publicKey": "a key", "x509CertificateChain": "a certificate", "certificate": "an identity"}
# The modules with errors that say in words why a signature is refused, besides plain errors of values.
_WITH_WORDS = ("OpenSSL.crypto", "sigstore.errors")
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

    def compare(self, path: str, digest: str) -> None:
        """Raises a SignatureError if the SHA-256 of a file is not the one that was signed."""
        if digest != (expected := self.digest_of(path)):
            because = (
                ". It has changed since it was signed: get the signed file again; or, if you changed it, as record and "
                "Archive.append do, sign it again"
            )
            raise SignatureError(path, self.said(expected), f"SHA-256 {digest}{because}")

    def said(self, digest: str | None) -> str:
        return f"SHA-256 {digest}, as {self.signature!r} says"


def folder_of(signature: str) -> str:
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

    A SignatureError if it was not, or if there is none.
    """
    try:
        content = _content(signature)
    except FileNotFoundError:
        raise SignatureError(signature, f"a signature by {by}", "no such file") from None
    signed = Hashed()
    try:
        with tempfile.TemporaryDirectory() as folder:  # the package takes paths, and what it sees was looked at here
            looked_at = os.path.join(folder, "signature")
            Path(looked_at).write_bytes(content)
            # Of a copy, which nobody else sets up meanwhile.
            copy.copy(config).set_hashing_config(signed).verify(folder, looked_at)
        manifest: Any = signed.manifest
        if manifest is None:
            raise ExportError("this release of model-signing compares digests in a way that jaxexp does not know")
        method = manifest.serialization_type["method"]
        resources = [
            (one.identifier, str(one.digest.algorithm), one.digest.digest_hex)
            for one in manifest.resource_descriptors()
        ]
    except (OSError, MemoryError):
        raise
    except Exception as error:  # of any kind: the package lets errors of its parsers pass
        raise SignatureError(signature, f"a signature by {by}", _found(error, content, by)) from cause(error)
    if others := sorted({algorithm for _, algorithm, _ in resources if algorithm != "sha256"}) or method != "files":
        what = ", ".join(others) if isinstance(others, list) else method
        raise SignatureError(signature, "the SHA-256 of each file", f"digests of another kind ({what})")
    # The signature of a single file calls it ".", and has its name elsewhere.
    digests = {manifest.model_name if n == "." else n: digest for n, _, digest in resources}
    return Statement(signature, folder_of(signature), digests)


def bundle_of(content: bytes) -> dict[str, Any] | None:
    """A signature as JSON; None if the content of a file is none."""
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) and str(found.get("mediaType", "")).startswith(_BUNDLE) else None


def _found(error: Exception, content: bytes, by: SignedBy) -> str:
    """What the package found in place of a signature by somebody."""
    if not content.strip():
        return f"an empty file. {_SIGN_AGAIN}"
    if (bundle := bundle_of(content)) is None:
        return f"a file that is no signature in the expected format, a Sigstore bundle in JSON. {_SIGN_AGAIN}"
    if "Key mismatch" in str(error):  # but for those of old releases, signatures name their keys
        return "one that was signed with another key"
    if type(error).__name__ == "InvalidSignature":
        return "one that was signed with another key, or has changed since"
    if isinstance(error, ExportError) or type(error) is ValueError or type(error).__module__ in _WITH_WORDS:
        return said(error)
    material = bundle.get("verificationMaterial")
    made_with = {what for name, what in _MADE_WITH.items() if isinstance(material, dict) and name in material}
    own = "a key" if by.public_key is not None else "a certificate" if by.certificates is not None else "an identity"
    if made_with and own not in made_with:
        return f"one that was made with {' and '.join(sorted(made_with))}"
    return f"a damaged signature: parts of it are missing or wrong. {_SIGN_AGAIN}"


def _content(signature: str) -> bytes:
    if not stat.S_ISREG(os.stat(signature).st_mode):  # opening a pipe would wait for its writer
        raise SignatureError(signature, "a signature", "something that is not a regular file")
    with open(signature, "rb") as file:
        content = file.read(_LARGEST + 1)
    if len(content) > _LARGEST:
        raise SignatureError(signature, f"a signature of at most {_LARGEST:,} bytes", "more")
    parts = sum(map(content.count, (b",", b"[", b"{")))
    if parts > _MOST_PARTS:
        raise SignatureError(signature, f"a signature of at most {_MOST_PARTS:,} parts", f"JSON of {parts:,}")
    return content


class Hashed:
    """Stands in for the package's configuration of how to hash files on the disk: it has the digests already, or keeps
    the signed ones, which the package compares with it.
    """

    def __init__(self, manifest: Any = None) -> None:
        self.manifest = manifest

    def add_ignored_paths(self, **_: Any) -> None: ...

    def hash(self, *_: Any, **__: Any) -> Any:
        return self if self.manifest is None else self.manifest

    def __ne__(self, manifest: object) -> bool:
        self.manifest = manifest
        return False


# The files that something uses: by the SHA-256 that their bytes have, which some signature says, whoever is trusted;
# and by that and where the bytes were read.
_in_use: weakref.WeakValueDictionary[Any, _native.FileBytes] = weakref.WeakValueDictionary()
# Threads that open the same bytes read them once. Others rarely wait.
_turns = [lock.reentrant() for _ in range(64)]
# How many nanoseconds after a change another one may leave all times as they are: clocks of file systems are coarse.
_SETTLED = 2_000_000_000


class SignedFiles:
    """Files, as far as somebody signed them. Each signature is verified once."""

    def __init__(self, by: SignedBy) -> None:
        """Reads the keys or certificates; errors as of `verifier`, and an ExportTypeError for what is no SignedBy."""
        self._by = checked(by)
        self._verifier = verifier(by)
        self._statements: dict[str, Statement] = {}
        self._lock = lock.reentrant()  # a second thread waits for the statement

    def opened(
        self,
        path: str | os.PathLike[str],
        used_by: str | None = None,
        check_size: Callable[[int], None] | None = None,
    ) -> _native.FileBytes:
        """The bytes of a file, read at once, which are those that were signed.

        Args:
            path: the file.
            used_by: the artifact or the archive that the file belongs to. The file may be in the signature of that, or
                have one of its own, or be in one that was read before.
            check_size: is called with the size, before the file is read.

        Raises:
            SignatureError: the file is not signed, or not these bytes.
            OSError: the file is missing, or cannot be read.
        """
        name = os.fsdecode(path)
        os.stat(name)  # of a file that is missing, nobody needs to look for a signature
        statement = self._about(name, used_by)
        if check_size is not None:
            check_size(os.path.getsize(name))
        signed = statement.digest_of(name)
        with _turns[hash(signed) % len(_turns)]:
            version = _version(name)
            if (found := _in_use.get((signed, version))) is not None:
                return found
            found = files.file_bytes(name, at_once=True)
            buffer: Any = found  # which types can say since Python 3.12
            statement.compare(name, hashlib.sha256(buffer).hexdigest())
            found = _in_use.setdefault(signed, found)
            if version is not None and version == _version(name):
                _in_use[signed, version] = found
            return found

    def check(self, path: str, content: Buffer, used_by: str | None = None) -> None:
        """Raises a SignatureError if the content of a file, which was read already, is not what was signed."""
        self._about(path, used_by).compare(path, hashlib.sha256(content).hexdigest())

    def check_listed(self, path: str) -> None:
        """Reads every file in the signature of a file; a SignatureError if one is missing, or not what was signed."""
        statement = self._statement(self._signature_of(path))
        for name, digest in statement.digests.items():
            file = os.path.join(os.path.dirname(statement.signature), *name.split("/"))
            if os.path.isabs(name) or os.path.splitdrive(name)[0] or ".." in name.replace("\\", "/").split("/"):
                raise SignatureError(statement.signature, "the names of files in its folder", repr(name))
            if not os.path.isfile(file):  # opening a pipe would wait for its writer
                what = "something that is not a regular file" if os.path.lexists(file) else "no such file"
                raise SignatureError(file, statement.said(digest), what)
            with open(file, "rb") as opened:
                statement.compare(file, hashlib.file_digest(opened, "sha256").hexdigest())

    def _about(self, path: str, used_by: str | None) -> Statement:
        """The statement that has the digest of a file."""
        looked_at: list[str] = []
        for owner in (used_by, path):
            if owner is None or (signature := self._signature_of(owner)) in looked_at:
                continue
            if owner == path and looked_at and not os.path.exists(signature):
                break
            statement = self._statement(signature)
            if statement.digest_of(path) is not None:
                return statement
            looked_at.append(signature)
        for statement in list(self._statements.values()):  # as that of an index, for the files of weights that it names
            if statement.digest_of(path) is not None:
                return statement
        listed = " or ".join(map(repr, looked_at))
        own = "" if self._by.signature is not None or used_by is None else f", or a signature {path + SUFFIX!r}"
        names = [name for signature in looked_at for name in self._statement(signature).digests]
        found = f"no such name; it has {words.listed(names, lambda name: words.cut(repr(name), 80), most=5)}"
        raise SignatureError(path, f"the name of this file in the signature {listed}{own}", found)

    def _signature_of(self, path: str) -> str:
        return path + SUFFIX if self._by.signature is None else os.fsdecode(self._by.signature)

    def _statement(self, signature: str) -> Statement:
        place = os.path.abspath(signature)
        with self._lock:
            if place not in self._statements:
                self._statements[place] = verified(self._by, self._verifier, signature)
            return self._statements[place]


def unnamed(what: str) -> ExportError:
    """The error for what is not a file on this machine."""
    return ExportError(
        f"signed_by is for files on this machine, which have their signatures beside them, not for {what}"
    )


def _version(path: str) -> tuple[int, ...] | None:
    """Which file this is, and its times, of which a user can set all but the last; None if it has just been changed."""
    try:
        found = os.stat(path)
    except OSError:  # to read it says why; and what was read may be gone
        return None
    if time.time_ns() - found.st_ctime_ns < _SETTLED:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns

"""Keys and certificates for signatures, a program to sign, and a look at what decoders get to see."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxexp
from jaxexp import _native
from jaxexp._api import load as reading
from jaxexp._api.exported import reader
from jaxexp._fleet.archive import opened
from jaxexp._weights.files.reading import TensorFile

X = np.linspace(-1, 1, 8, dtype=np.float32).reshape(2, 4)
WEIGHTS = {"w": np.arange(12, dtype=np.float32).reshape(4, 3)}
SHAPES = (jax.ShapeDtypeStruct(X.shape, X.dtype),)
RESULT = np.tanh(X @ WEIGHTS["w"])


def program() -> jaxexp.BoundExported:
    """Computes RESULT from X."""
    exported = jaxexp.export(jax.jit(lambda x: jnp.tanh(x @ jnp.asarray(WEIGHTS["w"]))), weights=WEIGHTS)(X)
    assert isinstance(exported, jaxexp.BoundExported)
    return exported


@dataclasses.dataclass(frozen=True)
class Pair:
    """A private key, and the certificate of its public key, if there is one."""

    key: Any
    certificate: Any = None

    @classmethod
    def make(cls, curve: str = "SECP256R1", issuer: Pair | None = None, name: str = "", signs: bool = True) -> Pair:
        """A new key; with a name, also a certificate for it, by the issuer or by itself. `signs` is for the last one of
        a chain; others sign certificates.
        """
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.asymmetric import ec

        key = ec.generate_private_key(getattr(ec, curve)())
        if not name:
            return cls(key)
        own = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        now = datetime.datetime.now(datetime.UTC)
        names = ("digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement",
                 "key_cert_sign", "crl_sign", "encipher_only", "decipher_only")  # fmt: skip
        used = "digital_signature" if signs else "key_cert_sign"
        builder = (
            x509.CertificateBuilder()
            .subject_name(own)
            .issuer_name(own if issuer is None else issuer.certificate.subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=not signs, path_length=None), critical=True)
            .add_extension(x509.KeyUsage(**{one: one == used for one in names}), critical=True)
        )
        return cls(key, builder.sign(key if issuer is None else issuer.key, hashes.SHA256()))

    def write(self, folder: Path, name: str, password: bytes | None = None) -> None:
        """Writes the key as .pem, its public key as .pub, and the certificate as .crt."""
        from cryptography.hazmat.primitives import serialization as s

        secret = s.NoEncryption() if password is None else s.BestAvailableEncryption(password)
        private = self.key.private_bytes(s.Encoding.PEM, s.PrivateFormat.PKCS8, secret)
        public = self.key.public_key().public_bytes(s.Encoding.PEM, s.PublicFormat.SubjectPublicKeyInfo)
        (folder / f"{name}.pem").write_bytes(private)
        (folder / f"{name}.pub").write_bytes(public)
        if self.certificate is not None:
            (folder / f"{name}.crt").write_bytes(self.certificate.public_bytes(s.Encoding.PEM))


@contextlib.contextmanager
def seen_by_decoders() -> Iterator[set[str]]:
    """The SHA-256 of everything that reaches a decoder inside: of artifacts, weights, executables, archives. XLA and
    MLIR get their bytes from these.
    """
    seen: set[str] = set()

    def look(content: Any) -> None:
        with contextlib.suppress(TypeError):  # a path, or nothing
            seen.add(hashlib.sha256(content).hexdigest())

    def spy(real: Callable[..., Any], of: Callable[..., Any]) -> Callable[..., Any]:
        def looking(*args: Any, **kwargs: Any) -> Any:
            look(of(*args))
            return real(*args, **kwargs)

        return looking

    class Many:
        def __init__(self, real: Any) -> None:
            self._real = real

        def items(self, items: Any, *rest: Any) -> Any:
            for item in items:
                look(item)
            return self._real.items(items, *rest)

        def slices(self, owner: Any, *rest: Any) -> Any:
            look(owner)
            return self._real.slices(owner, *rest)

    many = reader.many
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reading, "_read", spy(reading._read, lambda buffer: buffer))
        patch.setattr(reader, "_read", spy(reader._read, lambda buffer: buffer))
        patch.setattr(reader, "many", lambda *args: Many(many(*args)))
        patch.setattr(_native, "Artifact", spy(_native.Artifact, lambda buffer, *_: buffer))
        patch.setattr(_native, "read_executables", spy(_native.read_executables, lambda file, *_: file))
        patch.setattr(opened, "_find_index", spy(opened._find_index, lambda source: source.read(0, source.size)))
        patch.setattr(
            TensorFile, "__init__", spy(TensorFile.__init__, lambda self, name, found: found.read(0, found.size))
        )
        yield seen


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def flip(path: Path, position: int) -> None:
    """Flips a bit of a byte in a file; a negative position counts from the end."""
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)

"""`jaxexp.sign`: what is signed, and what is refused before anything is written."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("model_signing", reason="comes with the extra 'sign'")

from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

import jaxexp
from kit.each import each
from kit.signing import Pair, flip


def signatures(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("*.sig")}


def test_damaged_files_are_not_signed(signed: Path, keys: Path) -> None:
    before = signatures(signed)
    for name in ("model.jaxexp", "model.exe", "fleet.zip", "model.safetensors"):
        flip(signed / name, -100 if name != "fleet.zip" else 2000)
        with pytest.raises(jaxexp.errors.DeserializationError):
            jaxexp.sign([signed / "model.jaxexp", signed / name], key=keys / "release.pem")
        flip(signed / name, -100 if name != "fleet.zip" else 2000)
    (signed / "text").write_text("this is text, and nothing of jaxexp's")
    with pytest.raises(jaxexp.errors.DeserializationError):
        jaxexp.sign([signed / "model.jaxexp", signed / "text"], key=keys / "release.pem")
    assert signatures(signed) == before
    assert not list(signed.glob(".*"))


def test_weights_on_their_own(signed: Path, keys: Path, by: jaxexp.SignedBy) -> None:
    """A signature of its own is enough for a file of weights, which several programs may use."""
    (weights,) = jaxexp.sign(signed / "model.safetensors", key=keys / "release.pem")
    assert weights == str(signed / "model.safetensors.sig")
    jaxexp.verify(signed / "model.safetensors", signed_by=by)


def test_a_folder(signed: Path, keys: Path, by: jaxexp.SignedBy, tmp_path: Path) -> None:
    for path in signed.glob("*.sig"):
        path.unlink()
    written = jaxexp.sign(signed, key=keys / "release.pem")
    assert {Path(path).name for path in written} == {"fleet.zip.sig", "model.jaxexp.sig"} == set(signatures(signed))
    jaxexp.load(signed / "model.jaxexp", signed_by=by)
    (tmp_path / "nothing").mkdir()
    with pytest.raises(jaxexp.errors.ExportError, match=r"there is no artifact in .*nothing"):
        jaxexp.sign(tmp_path / "nothing", key=keys / "release.pem")


def test_a_signature_takes_the_place_of_no_file_elsewhere(signed: Path, keys: Path, tmp_path: Path) -> None:
    other = tmp_path / "precious"
    other.write_text("precious")
    (signed / "model.jaxexp.sig").unlink()
    (signed / "model.jaxexp.sig").symlink_to(other)
    with pytest.raises(jaxexp.errors.ExportError, match="is a link"):
        jaxexp.sign(signed / "model.jaxexp", key=keys / "release.pem")
    assert other.read_text() == "precious"


def test_a_second_signature_replaces_the_first(signed: Path, keys: Path) -> None:
    before = signatures(signed)
    (signed / "model.jaxexp.sig").chmod(0o600)
    assert jaxexp.sign(signed / "model.jaxexp", key=keys / "other.pem") == [str(signed / "model.jaxexp.sig")]
    after = signatures(signed)
    assert after.keys() == before.keys()
    assert {name for name in after if after[name] != before[name]} == {"model.jaxexp.sig"}
    assert (signed / "model.jaxexp.sig").stat().st_mode & 0o777 == 0o600
    jaxexp.load(signed / "model.jaxexp", signed_by=jaxexp.SignedBy(public_key=keys / "other.pub"))


def test_links_to_files_elsewhere(signed: Path, keys: Path, by: jaxexp.SignedBy, tmp_path: Path) -> None:
    """As in a cache of downloads: all blobs in one folder, and links to them in another."""
    links = tmp_path / "links"
    links.mkdir()
    for name in ("model.jaxexp", "model.safetensors"):
        (links / name).symlink_to(signed / name)
    jaxexp.sign(links / "model.jaxexp", key=keys / "release.pem")
    jaxexp.load(links / "model.jaxexp", signed_by=by)
    assert not (links / "model.jaxexp.sig").is_symlink()


def test_an_encrypted_key(signed: Path, tmp_path: Path) -> None:
    Pair.make().write(tmp_path, "secret", b"a password")
    key = tmp_path / "secret.pem"
    for password in ("a password", b"a password"):
        jaxexp.sign(signed / "model.jaxexp", key=key, password=password)
        jaxexp.load(signed / "model.jaxexp", signed_by=jaxexp.SignedBy(public_key=tmp_path / "secret.pub"))
    for password in (None, "another"):
        with pytest.raises(jaxexp.errors.ExportError, match="cannot sign with"):
            jaxexp.sign(signed / "model.jaxexp", key=key, password=password)


def test_what_does_not_go_together(signed: Path, keys: Path) -> None:
    model, key = signed / "model.jaxexp", keys / "release.pem"
    for options in (
        {},
        {"key": key, "sigstore": {}},
        {"key": key, "chain": [key]},
        {"key": key, "certificate": key, "password": "x"},
        {"certificate": key, "sigstore": {}},
    ):
        with pytest.raises(jaxexp.errors.ExportError, match="sign takes"):
            jaxexp.sign(model, **options)
    with pytest.raises(jaxexp.errors.ExportError, match="no file to sign"):
        jaxexp.sign([], key=key)
    with pytest.raises(jaxexp.errors.ExportError, match="is a URL"):
        jaxexp.sign("https://host/model.jaxexp", key=key)
    with pytest.raises(FileNotFoundError):
        jaxexp.sign(model, key=keys / "missing.pem")
    with pytest.raises(FileNotFoundError):
        jaxexp.sign(signed / "missing", key=key)
    with pytest.raises(jaxexp.errors.ExportError, match=r"cannot sign with .*: expected a private key, in PEM"):
        jaxexp.sign(model, key=keys / "release.pub")


def test_without_the_package(signed: Path, keys: Path, by: jaxexp.SignedBy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "model_signing", None)
    said = r"signatures need model-signing: pip install 'jaxexp\[sign\]'"
    with pytest.raises(ImportError, match=said):
        jaxexp.sign(signed / "model.jaxexp", key=keys / "release.pem")
    with pytest.raises(ImportError, match=said):
        jaxexp.load(signed / "model.jaxexp", signed_by=by)
    with pytest.raises(ImportError, match=said):
        jaxexp.Archive.open(signed / "fleet.zip", signed_by=by)
    jaxexp.load(signed / "model.jaxexp")


@each("name", ["model.jaxexp", "model.safetensors", "model.exe", "fleet.zip", "key.pem", "notes"])
def test_a_signature_takes_the_place_of_nothing_else(name: str, signed: Path, keys: Path) -> None:
    (signed / "key.pem").write_bytes((keys / "release.pem").read_bytes())
    (signed / "notes").write_text('["mediaType"]')
    before = (signed / name).read_bytes()
    with pytest.raises(jaxexp.errors.ExportError, match="is not a signature, so a signature does not replace it"):
        jaxexp.sign(signed / "model.jaxexp", key=signed / "key.pem", signature=signed / name)
    assert (signed / name).read_bytes() == before


def test_a_key_in_place_of_its_path_is_in_no_message(signed: Path, keys: Path) -> None:
    model, key = signed / "model.jaxexp", keys / "release.pem"
    pem = key.read_text()
    uses: list[Callable[[Any], Any]] = [
        lambda secret: jaxexp.sign(model, key=secret),
        lambda secret: jaxexp.sign(model, key=key, certificate=secret),
        lambda secret: jaxexp.sign(model, key=key, certificate="c", chain=[secret]),
        lambda secret: jaxexp.SignedBy(public_key=secret),
        lambda secret: jaxexp.SignedBy(certificates=secret),
        lambda secret: jaxexp.SignedBy(certificates=[secret]),
    ]
    for secret in (pem, pem.encode(), pem.replace("\n", "\\n"), pem.partition("\n")[2]):
        for use in uses:
            with pytest.raises(jaxexp.errors.ExportError, match="= takes the path of a file, not its content") as error:
                use(secret)
            assert pem.splitlines()[1] not in "".join(traceback.format_exception(error.value))
    with pytest.raises(jaxexp.errors.ExportTypeError, match="text or bytes as password") as refused:
        jaxexp.sign(model, key=keys / "release.pem", password=["secret"])
    assert "secret" not in str(refused.value)


def test_what_cannot_sign_or_be_signed(signed: Path, keys: Path, tmp_path: Path) -> None:
    pem, public, private = signed / "model.jaxexp", keys / "release.pub", tmp_path / "rsa.pem"
    rsa_key = rsa.generate_private_key(65537, 2048)
    private.write_bytes(rsa_key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    Pair.make().write(tmp_path, "secret", b"a password")
    for use, said in (
        (lambda: jaxexp.sign(pem, key=private), "found one of another kind, such as RSA"),
        (lambda: jaxexp.sign(pem, key=keys / "release.pem", certificate=public), "PEM files of its certificates"),
        (lambda: jaxexp.sign(pem, key=tmp_path / "secret.pem"), "pass password="),
        (lambda: jaxexp.sign(jaxexp.load(pem), key=keys / "release.pem"), "a function is saved before"),
        (
            lambda: jaxexp.sign(f"{signed / 'fleet.zip'}::models/one", key=keys / "release.pem"),
            "sign signs whole files",
        ),
        (lambda: jaxexp.load(pem, signed_by=jaxexp.SignedBy(certificates=public)), "expected PEM files of certif"),
    ):
        with pytest.raises(jaxexp.errors.ExportError, match=said):
            use()

"""What jaxexp signs, `model_signing verify` verifies, and the other way round: with keys, certificates and Sigstore."""

from __future__ import annotations

import base64
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import jaxexp
from jaxexp._signing.signed_by import model_signing as package
from jaxexp.errors import ExportError, SignatureError
from kit.signing import Pair

pytest.importorskip("model_signing", reason="comes with the extra 'sign'")


def statement(signature: Path) -> Any:
    """What a signature says, whoever signed it."""
    return json.loads(base64.b64decode(json.loads(signature.read_text())["dsseEnvelope"]["payload"]))


@pytest.fixture(scope="session")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A signer's certificate, by one that is signed by a root; and another root."""
    folder = tmp_path_factory.mktemp("chain")
    root, other = Pair.make(name="root", signs=False), Pair.make(name="other", signs=False)
    middle = Pair.make(issuer=root, name="middle", signs=False)
    for name, pair in {
        "root": root,
        "other": other,
        "middle": middle,
        "signer": Pair.make("SECP384R1", middle, "signer"),
        "stranger": Pair.make(issuer=other, name="signer"),
        "direct": Pair.make(issuer=root, name="direct"),
        "unfit": Pair.make(issuer=middle, name="unfit", signs=False),
    }.items():
        pair.write(folder, name)
    return folder


def alone(signed: Path, name: str) -> Path:
    folder = signed.parent / f"alone_{name}"
    folder.mkdir()
    for path in signed.iterdir():
        if path.name in (name, f"{name}.sig", "model.safetensors" * (name == "model.jaxexp")):
            shutil.copy(path, folder)
    return folder


def model_signing(*arguments: object) -> Any:
    """What the command of the package answers."""
    from click.testing import CliRunner
    from model_signing._cli import main

    return CliRunner().invoke(main, list(map(str, arguments)))


OF_THE_PACKAGE = pytest.mark.filterwarnings("ignore:The 'warn' method is deprecated:DeprecationWarning")


@OF_THE_PACKAGE
def test_the_package_verifies_what_jaxexp_signs(signed: Path, keys: Path) -> None:
    for name in ("model.jaxexp", "model.exe", "fleet.zip"):
        folder = alone(signed, name)
        arguments = "verify", "key", folder, "--signature", folder / f"{name}.sig", "--public_key"
        done = model_signing(*arguments, keys / "release.pub")
        assert (done.exit_code, done.stdout) == (0, "Verification succeeded\n"), done.stderr
        assert "Key mismatch" in model_signing(*arguments, keys / "other.pub").stderr
        (folder / "another").touch()
        assert "Extra files" in model_signing(*arguments, keys / "release.pub").stderr
        done = model_signing(*arguments, keys / "release.pub", "--ignore_unsigned_files")
        assert done.exit_code == 0, done.stderr


@OF_THE_PACKAGE
def test_jaxexp_verifies_what_the_package_signs(signed: Path, keys: Path, by: jaxexp.SignedBy) -> None:
    for path in signed.glob("*.sig"):
        path.unlink()
    key = "--private_key", keys / "release.pem"
    # A whole folder, with the name that the package gives to signatures.
    signature = signed / "model.sig"
    done = model_signing("sign", "key", signed, "--signature", signature, *key)
    assert done.exit_code == 0, done.stderr
    for_all = jaxexp.SignedBy(public_key=keys / "release.pub", signature=signature)
    jaxexp.load(signed / "model.jaxexp", executables=signed / "model.exe", signed_by=for_all)
    jaxexp.Archive.open(signed / "fleet.zip", signed_by=for_all)
    jaxexp.verify(signed / "model.jaxexp", signed_by=for_all)
    # Single files: their names are in another place of the signature.
    for name in ("model.jaxexp", "model.safetensors", "fleet.zip"):
        done = model_signing("sign", "key", signed / name, "--signature", signed / f"{name}.sig", *key)
        assert done.exit_code == 0, done.stderr
    jaxexp.load(signed / "model.jaxexp", signed_by=by)
    jaxexp.Archive.open(signed / "fleet.zip", signed_by=by)
    for suffix in ("", ".sig"):
        shutil.copy(signed / f"fleet.zip{suffix}", signed / f"renamed.zip{suffix}")
    with pytest.raises(SignatureError, match=r"no such name; it has 'fleet\.zip'"):
        jaxexp.Archive.open(signed / "renamed.zip", signed_by=by)


@OF_THE_PACKAGE
def test_certificates_in_both_directions(signed: Path, chain: Path) -> None:
    model = signed / "model.jaxexp"
    trusted = jaxexp.SignedBy(certificates=chain / "root.crt")
    others = jaxexp.SignedBy(certificates=chain / "other.crt")
    jaxexp.sign(model, key=chain / "signer.pem", certificate=chain / "signer.crt", chain=[chain / "middle.crt"])
    jaxexp.load(model, signed_by=trusted)
    jaxexp.load(model, signed_by=jaxexp.SignedBy(certificates=[chain / "other.crt", chain / "root.crt"]))
    with pytest.raises(SignatureError, match="unable to get local issuer certificate"):
        jaxexp.load(model, signed_by=others)
    with pytest.raises(SignatureError, match=r"the public key .*, found one that was made with a certificate$"):
        jaxexp.load(model, signed_by=jaxexp.SignedBy(public_key=chain / "signer.pub"))
    folder = alone(signed, "model.jaxexp")
    arguments = "certificate", folder, "--signature", folder / "model.jaxexp.sig", "--certificate_chain"
    assert model_signing("verify", *arguments, chain / "root.crt").exit_code == 0
    assert model_signing("verify", *arguments, chain / "other.crt").exit_code == 1
    given = "--private_key", chain / "signer.pem", "--signing_certificate", chain / "signer.crt"
    done = model_signing("sign", *arguments, chain / "middle.crt", *given)
    assert done.exit_code == 0, done.stderr
    jaxexp.load(folder / "model.jaxexp", signed_by=trusted)
    # One that the root issued.
    jaxexp.sign(model, key=chain / "direct.pem", certificate=chain / "direct.crt")
    jaxexp.load(model, signed_by=trusted)
    with pytest.raises(SignatureError):
        jaxexp.load(model, signed_by=others)


@OF_THE_PACKAGE
def test_certificates_that_do_not_count(signed: Path, chain: Path) -> None:
    model, trusted = signed / "model.jaxexp", jaxexp.SignedBy(certificates=chain / "root.crt")
    for name, why in (("stranger", "certificate"), ("unfit", "cannot be used for signing")):
        files = {"key": chain / f"{name}.pem", "certificate": chain / f"{name}.crt", "chain": chain / "middle.crt"}
        jaxexp.sign(model, **files)
        with pytest.raises(SignatureError, match=why):
            jaxexp.load(model, signed_by=trusted)
    with pytest.raises(ExportError, match="does not match"):
        jaxexp.sign(model, key=chain / "signer.pem", certificate=chain / "stranger.crt")


def test_what_is_in_a_signature(signed: Path) -> None:
    said = statement(signed / "model.jaxexp.sig")
    assert said["predicateType"] == "https://model_signing/signature/v1.0"
    assert [one["name"] for one in said["subject"]] == ["model.jaxexp"]
    assert [one["name"] for one in said["predicate"]["resources"]] == ["model.jaxexp", "model.safetensors"]
    text = json.dumps(said)
    assert str(signed.parent) not in text
    assert signed.name not in text.replace("https://model_signing/signature", ""), "no name of a folder is in it"


def test_digests_of_other_kinds_are_refused(signed: Path, keys: Path, by: jaxexp.SignedBy) -> None:
    """They are right, but jaxexp makes only SHA-256 of whole files."""
    from model_signing import hashing, signing

    shards = hashing.Config().use_shard_serialization()
    for config, kind in (
        (hashing.Config().use_file_serialization(hashing_algorithm="blake2"), "blake2"),
        (shards, "shards|sha256-"),
    ):
        config.set_ignored_paths(paths=[signed / "model.sig"])
        signer = signing.Config().use_elliptic_key_signer(private_key=keys / "release.pem")
        signer.set_hashing_config(config).sign(signed, signed / "model.sig")
        with pytest.raises(SignatureError, match=f"the SHA-256 of each file, found .*({kind})"):
            jaxexp.load(
                signed / "model.jaxexp",
                signed_by=jaxexp.SignedBy(public_key=keys / "release.pub", signature=signed / "model.sig"),
            )


def test_names_that_lead_out_of_the_folder(signed: Path, keys: Path) -> None:
    """`verify` opens what a signature lists, and so it looks at the names."""
    from model_signing import manifest, signing

    class Hashed:
        def __init__(self, name: str) -> None:
            self.name = name

        def hash(self, path: Any, **_: Any) -> Any:
            found = package().hashing.Config().hash(signed / "model.jaxexp")
            kind = manifest.SerializationType.from_args(found.serialization_type)
            (one,) = found.resource_descriptors()
            items = [kind.new_item(name, one.digest) for name in ("model.jaxexp", "model.safetensors", self.name)]
            return manifest.Manifest("x", items, kind)

    for name in ("../outside", "/etc/passwd", "a/../../b", "a\\..\\b"):
        signer = signing.Config().use_elliptic_key_signer(private_key=keys / "release.pem")
        signer.set_hashing_config(Hashed(name)).sign(signed, signed / "model.jaxexp.sig")
        with pytest.raises(SignatureError, match="the names of files in its folder") as caught:
            jaxexp.verify(signed / "model.jaxexp", signed_by=jaxexp.SignedBy(public_key=keys / "release.pub"))
        assert caught.value.found == repr(name)


def test_the_options_of_sigstore_arrive(signed: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Its servers cannot be asked here, so what the package would ask them is looked at."""
    from model_signing import signing, verifying

    found: list[dict[str, Any]] = []

    def note(self: Any, **options: Any) -> Any:
        found.append(options)
        raise ValueError("the end of the test")

    monkeypatch.setattr(verifying.Config, "use_sigstore_verifier", note)
    monkeypatch.setattr(signing.Config, "use_sigstore_signer", note)
    trust = tmp_path / "trust.json"
    for more in ({}, {"staging": True}, {"trust_config": trust}):
        by = jaxexp.SignedBy(identity="me@example.org", issuer="https://accounts.example.org", **more)
        with pytest.raises(ExportError, match=r"signatures of 'me@example\.org', confirmed by 'https://acc"):
            jaxexp.load(signed / "model.jaxexp", signed_by=by)
    assert [one.pop("identity") for one in found] == ["me@example.org"] * 3
    assert [one.pop("oidc_issuer") for one in found] == ["https://accounts.example.org"] * 3
    assert found == [
        {"use_staging": False, "trust_config": None},
        {"use_staging": True, "trust_config": None},
        {"use_staging": False, "trust_config": trust},
    ]
    found.clear()
    with pytest.raises(ExportError, match="cannot sign with Sigstore: ValueError: the end of the test"):
        jaxexp.sign(signed / "model.jaxexp", sigstore={"identity_token": "abc", "trust_config": str(trust)})
    assert found == [{"identity_token": "abc", "trust_config": trust}]


def test_a_signature_by_a_key_is_none_of_sigstore(signed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sigstore's own bundles are read by another class of the package, which refuses this one."""
    from model_signing import verifying
    from model_signing._signing import sign_sigstore

    def offline(self: Any, **_: Any) -> Any:
        self._uses_sigstore = True
        self._verifier = object.__new__(sign_sigstore.Verifier)
        return self

    monkeypatch.setattr(verifying.Config, "use_sigstore_verifier", offline)
    with pytest.raises(SignatureError, match="confirmed by 'https://accounts"):
        jaxexp.load(
            signed / "model.jaxexp",
            signed_by=jaxexp.SignedBy(identity="me@example.org", issuer="https://accounts.example.org"),
        )

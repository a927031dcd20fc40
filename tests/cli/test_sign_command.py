"""`jaxexp sign`, and `jaxexp verify --signed-by`."""

from __future__ import annotations

import io
import json
import shutil
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest

pytest.importorskip("model_signing", reason="comes with the extra 'sign'")

from kit.archive_files import make
from kit.signing import Pair, flip, program


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("keys")
    Pair.make().write(folder, "release")
    Pair.make().write(folder, "secret", b"a password")
    root = Pair.make(name="root", signs=False)
    root.write(folder, "root")
    Pair.make(issuer=root, name="signer").write(folder, "signer")
    return folder


@pytest.fixture
def models(tmp_path: Path) -> Path:
    folder = tmp_path / "models"
    folder.mkdir()
    exported = program()
    exported.save(folder / "model.jaxexp")
    exported.precompile(into=folder / "model.exe")
    make(folder / "fleet.zip", {"a/one": exported, "a/two": exported})
    return folder


def test_sign_and_verify(models: Path, keys: Path, good, run) -> None:
    names = [models / name for name in ("model.jaxexp", "model.exe", "fleet.zip")]
    out = good("sign", *names, "--key", keys / "release.pem")
    assert out.splitlines() == [
        f"{models}/model.jaxexp.sig: 2 files signed ('model.jaxexp', 'model.safetensors')",
        f"{models}/model.exe.sig: 1 file signed ('model.exe')",
        f"{models}/fleet.zip.sig: 1 file signed ('fleet.zip')",
    ]
    out = good("verify", *names, "--signed-by", keys / "release.pub")
    assert out.splitlines()[-1].startswith("4 of 4 artifacts whole and signed, ")
    assert "compiled code of 1 call" in out
    member = f"{models / 'fleet.zip'}::a/o*"
    assert "1 of 1 artifact whole and signed" in good("verify", member, "--signed-by", keys / "release.pub")
    status, out, err = run("verify", *names, "--signed-by", keys / "secret.pub", "--json")
    assert (status, err) == (1, "jaxexp: 3 of 3 artifacts are not signed\n")
    found = json.loads(out)
    assert (found["whole"], found["unsigned"]) == (0, 3)
    assert [file["archive"] for file in found["files"]] == [None, None, str(models / "fleet.zip")]
    assert {file["state"] for file in found["files"]} == {"unsigned"}
    assert all("signed with another key" in file["error"] for file in found["files"])


def test_what_is_wrong_is_said_of_each_file(models: Path, keys: Path, good, run, tmp_path: Path) -> None:
    good("sign", models, "--key", keys / "release.pem")
    command = "verify", models, "--signed-by", keys / "release.pub", "--policy", tmp_path / "policy.toml"
    (tmp_path / "policy.toml").write_text("platforms = ['cpu']\n")
    assert "3 of 3 artifacts whole, signed and allowed" in good(*command)
    (tmp_path / "policy.toml").write_text("platforms = ['tpu']\n")
    status, out, err = run(*command, "--json")
    assert (status, err) == (1, "jaxexp: 3 of 3 artifacts are not allowed\n")
    assert json.loads(out)["refused"] == 3
    shutil.copy(models / "model.jaxexp", models / "new.jaxexp")
    flip(models / "fleet.zip", 1000)
    status, out, err = run(*command[:4])
    assert (status, err) == (1, "jaxexp: 2 of 3 artifacts are not signed\n")
    rows = {Path(line.split()[0]).name: line for line in out.splitlines() if line.lstrip().startswith(str(models))}
    assert "whole" in rows["model.jaxexp"]
    assert "expected a signature by the owner of the public key" in rows["new.jaxexp"]
    assert "no such file" in rows["new.jaxexp"]
    assert "expected SHA-256" in rows["fleet.zip"]
    assert "1 of 3 artifacts whole and signed" in out.splitlines()[-1]
    assert "2 unsigned (1 archive, not opened)" in out.splitlines()[-1]
    status, out, _ = run(*command[:4], "--quiet")
    assert (status, "/model.jaxexp " in out) == (1, False)
    (models / "model.safetensors").unlink()
    status, out, _ = run("verify", models / "model.jaxexp", *command[2:4])
    assert (status, "model.safetensors" in out) == (1, True)


def test_what_follows_is_counted_where_an_end_is_known(tmp_path: Path, keys: Path, good) -> None:
    for name, trailer, more in (("whole", True, 5), ("without", False, 0)):
        (tmp_path / name).write_bytes(program().serialize(trailer=trailer) + b"12345")
        good("sign", tmp_path / name, "--key", keys / "release.pem")
        found = json.loads(good("verify", tmp_path / name, "--signed-by", keys / "release.pub", "--json"))
        assert [(file["state"], file["more_bytes"]) for file in found["files"]] == [("whole", more)]


def test_one_signature_for_all_with_certificates(models: Path, keys: Path, good, run) -> None:
    given = "--key", keys / "signer.pem", "--certificate", keys / "signer.crt", "--chain", keys / "root.crt"
    out = good("sign", models, models / "model.exe", *given, "-o", models / "all.sig")
    assert out == f"{models}/all.sig: 4 files signed ('fleet.zip', 'model.jaxexp', 'model.safetensors', 'model.exe')\n"
    assert [path.name for path in models.glob("*.sig")] == ["all.sig"]
    trusted = "--signed-by", keys / "root.crt", "--signature", models / "all.sig"
    good("verify", models, models / "model.exe", *trusted)
    assert run("verify", models, "--signed-by", keys / "root.crt")[0] == 1


def test_a_password(models: Path, keys: Path, good, refused, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    given = "sign", models / "model.jaxexp", "--key", keys / "secret.pem"
    (tmp_path / "password").write_text("a password\n")
    good(*given, "--password-from", tmp_path / "password")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a password\n")))
    good(*given, "--password-from", "-")
    good("verify", models / "model.jaxexp", "--signed-by", keys / "secret.pub")
    refused("private key is encrypted: pass password=, or --password-from on the command line", *given)


def test_commands_that_make_no_sense(models: Path, keys: Path, refused) -> None:
    model, key, pub = models / "model.jaxexp", keys / "release.pem", keys / "release.pub"
    for arguments, said in (
        (("sign", model), "either --key or --sigstore"),
        (("sign", model, "--key", key, "--sigstore"), "either --key or --sigstore"),
        (("sign", model, "--key", key, "--ambient"), "--ambient needs --sigstore"),
        (("sign", model, "--key", key, "--chain", key), "--chain needs --certificate"),
        (("verify", model, "--signature", key), "--signature needs"),
        (("verify", model, "--signed-by", pub, "--signed-by", pub), "one public key"),
        (("verify", model, "--signed-by", pub, "--identity", "me"), "SignedBy takes one of"),
        (("verify", model, "--identity", "me"), "identity and issuer together"),
        (("verify", model, "--signed-by", pub, "--workers", 2), "leave out options for workers"),
        (("verify", model, "--signed-by", keys / "missing"), "No such file"),
    ):
        refused(said, *arguments, status=2)
    refused("not in the folder of the signature", "sign", model, "--key", key, "-o", keys / "x.sig")
    refused("there is no artifact in", "sign", keys, "--key", key)


def test_what_the_command_asks_of_sigstore(models: Path, run, monkeypatch: pytest.MonkeyPatch) -> None:
    from model_signing import signing, verifying

    asked = Mock(side_effect=ValueError("no network"))
    monkeypatch.setattr(verifying.Config, "use_sigstore_verifier", asked)
    monkeypatch.setattr(signing.Config, "use_sigstore_signer", asked)
    model = models / "model.jaxexp"
    assert run("sign", model, "--sigstore", "--ambient")[0] == 1
    status, _, err = run("verify", model, "--identity", "me@example.org", "--issuer", "https://accounts.example.org")
    assert (status, "no network" in err) == (1, True)
    assert [call.kwargs for call in asked.call_args_list] == [
        {"use_ambient_credentials": True},
        {"identity": "me@example.org", "oidc_issuer": "https://accounts.example.org", "use_staging": False,
         "trust_config": None},
    ]  # fmt: skip

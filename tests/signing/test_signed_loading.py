"""`load(..., signed_by=)`: what is signed is loaded, and nothing else reaches a decoder."""

from __future__ import annotations

import gc
import hashlib
import json
import os
import pickle
import shutil
import signal
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("model_signing", reason="comes with the extra 'sign'")

from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

import jaxexp
from jaxexp import _native
from jaxexp._signing import reading
from jaxexp._weights.files.places import second_name
from jaxexp.errors import ExportError, PolicyError, SignatureError, WeightsError
from kit.each import each
from kit.signing import RESULT, X, digest, flip, seen_by_decoders

FILES = {"artifact": "model.jaxexp", "weights": "model.safetensors", "executables": "model.exe"}


def load(folder: Path, by: jaxexp.SignedBy, **options: Any) -> jaxexp.Exported:
    return jaxexp.load(folder / "model.jaxexp", executables=folder / "model.exe", signed_by=by, **options)


def load_many(folder: Path, by: jaxexp.SignedBy) -> jaxexp.Exported:
    return jaxexp.load_many([folder / "model.jaxexp"], signed_by=by)[0]


def load_member(folder: Path, by: jaxexp.SignedBy) -> jaxexp.Exported:
    return jaxexp.load(f"{folder / 'fleet.zip'}::models/one", executables=folder / "model.exe", signed_by=by)


def load_handle(folder: Path, by: jaxexp.SignedBy) -> jaxexp.Exported:
    return jaxexp.Archive.open(folder / "fleet.zip", signed_by=by)["models/one"].load(executables=folder / "model.exe")


def load_all(folder: Path, by: jaxexp.SignedBy) -> jaxexp.Exported:
    return jaxexp.Archive.open(folder / "fleet.zip", signed_by=by).load_all()[0]


def verify(folder: Path, by: jaxexp.SignedBy) -> None:
    jaxexp.verify(folder / "model.jaxexp", signed_by=by)
    jaxexp.verify(folder / "model.exe", signed_by=by)


ALL = {
    "load": (load, FILES.values()),
    "load_many": (load_many, ("model.jaxexp", "model.safetensors")),
    "member": (load_member, ("fleet.zip", "model.exe")),
    "handle": (load_handle, ("fleet.zip", "model.exe")),
    "load_all": (load_all, ("fleet.zip",)),
    "verify": (verify, FILES.values()),
}


@each("how", ALL)
def test_signed_files_are_loaded(how: str, signed: Path, by: jaxexp.SignedBy) -> None:
    use, names = ALL[how]
    with seen_by_decoders() as seen:
        loaded = use(signed, by)
    # `verify` needs only the digest of a file of executables.
    assert {digest(signed / name) for name in names if (how, name) != ("verify", "model.exe")} <= seen
    if loaded is not None:
        np.testing.assert_allclose(loaded.call(X), RESULT, rtol=1e-6)
        if loaded.weights.stored is not None:  # members have their archive's
            used = np.frombuffer(loaded.weights.stored.find("w").data(), np.float32).ctypes.data
            assert loaded.weights["w"].unsafe_buffer_pointer() == used, "without a further copy"
        assert how in ("load_many", "load_all") or [one.used for one in loaded.executables] == [True]


@each("how, name", [(how, name) for how, (_, names) in ALL.items() for name in names])
def test_a_flipped_bit_is_refused_before_anything_looks_at_it(
    how: str, name: str, signed: Path, by: jaxexp.SignedBy
) -> None:
    expected = digest(signed / name)
    for where in (0, 100, -1):
        flip(signed / name, where)
        with seen_by_decoders() as seen, pytest.raises(SignatureError) as caught:
            ALL[how][0](signed, by)
        assert digest(signed / name) not in seen
        assert name not in ("model.jaxexp", "fleet.zip") or not seen - {digest(signed / "model.exe")}
        assert (how, name) != ("load", "model.exe") or not seen, "executables come before the artifact"
        assert Path(caught.value.file).name == name
        assert expected in caught.value.expected
        assert caught.value.found.startswith(f"SHA-256 {digest(signed / name)}. It has changed since it was signed")
        flip(signed / name, where)


@each("name", ["model.jaxexp", "fleet.zip"])
def test_a_changed_signature_says_the_same_or_is_refused(name: str, signed: Path, by: jaxexp.SignedBy) -> None:
    """Some changes do not matter: other bytes of Base64 may stand for the same signature."""
    use = load_many if name == "model.jaxexp" else load_all
    signature = signed / f"{name}.sig"
    content = signature.read_bytes()
    refused = 0
    places = range(0, len(content), 41)
    for place in places:
        flip(signature, place)
        with seen_by_decoders() as seen:
            try:
                use(signed, by)
            except SignatureError as error:
                assert error.file == str(signature)
                assert not seen
                refused += 1
        signature.write_bytes(content)
    assert refused > 0.9 * len(places)
    signature.write_bytes(content[:-1])
    with pytest.raises(SignatureError):
        use(signed, by)


@each("how", ALL)
def test_another_key(how: str, signed: Path, keys: Path) -> None:
    with seen_by_decoders() as seen, pytest.raises(SignatureError, match=r"signed with another key$") as caught:
        ALL[how][0](signed, jaxexp.SignedBy(public_key=keys / "other.pub"))
    assert not seen
    assert "other.pub" in caught.value.expected


def test_another_key_that_claims_to_be_this_one(signed: Path, by: jaxexp.SignedBy, keys: Path) -> None:
    """The signature names its key by a digest, which anybody can copy."""
    mine = (signed / "model.jaxexp.sig").read_text()
    jaxexp.sign(signed / "model.jaxexp", key=keys / "other.pem")
    theirs = (signed / "model.jaxexp.sig").read_text()
    hints = [text.split('"hint":')[1].split('"')[1] for text in (mine, theirs)]
    assert hints[0] != hints[1]
    (signed / "model.jaxexp.sig").write_text(theirs.replace(hints[1], hints[0]))
    with pytest.raises(SignatureError, match="was signed with another key, or has changed since"):
        load(signed, by)


def test_a_signature_of_another_file(signed: Path, by: jaxexp.SignedBy) -> None:
    """Or a file that was renamed with its signature: the name is signed."""
    for suffix in ("", ".sig"):
        shutil.copy(signed / f"model.jaxexp{suffix}", signed / f"better.jaxexp{suffix}")
    for name in ("model.exe.sig", "fleet.zip.sig"):
        shutil.copy(signed / name, signed / "model.jaxexp.sig")
        with seen_by_decoders() as seen, pytest.raises(SignatureError, match="the name of this file"):
            load_many(signed, by)
        assert not seen
    with seen_by_decoders() as seen, pytest.raises(SignatureError, match="no such name; it has 'model"):
        jaxexp.load(signed / "better.jaxexp", signed_by=by)
    assert not seen


def test_a_missing_signature(signed: Path, by: jaxexp.SignedBy) -> None:
    (signed / "model.exe.sig").unlink()
    with seen_by_decoders() as seen, pytest.raises(SignatureError) as caught:
        load(signed, by)
    assert not seen
    assert caught.value.file.endswith("model.exe")
    assert "model.jaxexp.sig" in caught.value.expected
    assert "or a signature" in caught.value.expected
    (signed / "model.jaxexp.sig").unlink()
    with seen_by_decoders() as seen, pytest.raises(SignatureError) as caught:
        load_many(signed, by)
    assert not seen
    assert caught.value.found == "no such file"
    assert str(caught.value).startswith(f"cannot trust {str(signed / 'model.jaxexp.sig')!r}: expected a signature by ")


def test_missing_files(signed: Path, by: jaxexp.SignedBy) -> None:
    (signed / "model.safetensors").unlink()
    with pytest.raises(WeightsError, match="none of this name"):
        load(signed, by)
    with pytest.raises(SignatureError, match="no such file"):
        jaxexp.verify(signed / "model.jaxexp", signed_by=by)
    (signed / "model.jaxexp").unlink()
    with pytest.raises(FileNotFoundError):
        jaxexp.load(signed / "model.jaxexp", signed_by=by)
    for name in ("none.zip", "none.zip::model"):  # and not a missing signature
        with pytest.raises(FileNotFoundError, match=r"none\.zip'$"):
            jaxexp.Archive.open(signed / name, signed_by=by) if name.endswith("zip") else jaxexp.load(
                signed / name, signed_by=by
            )


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_pipes_in_place_of_files(signed: Path, by: jaxexp.SignedBy) -> None:
    """Nobody writes to them, so opening one as usual would wait for ever."""
    for name, error in (
        ("model.safetensors", (WeightsError, SignatureError)),
        ("model.exe", SignatureError),
        ("model.jaxexp", SignatureError),
        ("model.jaxexp.sig", SignatureError),
    ):
        (signed / name).unlink()
        os.mkfifo(signed / name)
        for use in (load, verify):
            with pytest.raises(error):
                use(signed, by)


def test_weights_under_their_second_name_are_not_looked_for(signed: Path, by: jaxexp.SignedBy) -> None:
    """Unsigned loads look for a file between two steps of saving first. Nobody signs it under this name."""
    (file,) = load_many(signed, by).weights.stored.table.files
    second = signed / second_name(file.name, file.content)
    shutil.copy(signed / file.name, second)
    flip(second, -1)
    np.testing.assert_allclose(load_many(signed, by).call(X), RESULT, rtol=1e-6)


def test_what_is_used_is_what_was_compared(signed: Path, by: jaxexp.SignedBy, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are overwritten in place directly after their digests were made, and are neither read again nor mapped."""
    paths = [signed / name for name in (*FILES.values(), "fleet.zip")]
    contents = {digest(path): path for path in paths}
    real: Callable[..., Any] = hashlib.sha256
    overwritten = []

    def and_overwrite(content: Any = b"") -> Any:
        found = real(content)
        if (path := contents.get(found.hexdigest())) is not None:
            path.write_bytes(bytes(path.stat().st_size))
            overwritten.append(path)
        return found

    monkeypatch.setattr(reading.hashlib, "sha256", and_overwrite)
    loaded = load(signed, by, verify=True)
    archive = jaxexp.Archive.open(signed / "fleet.zip", signed_by=by)
    monkeypatch.undo()
    assert set(overwritten) == set(paths)
    np.testing.assert_allclose(loaded.call(X), RESULT, rtol=1e-6)
    assert [one.used for one in loaded.executables] == [True]
    np.testing.assert_allclose(archive["models/one"].load(verify=True).call(X), RESULT, rtol=1e-6)
    assert archive.verify() == {}
    assert archive["models/one"].read()[4:10] == b"jaxexp"


def memory_of(archive: jaxexp.Archive) -> Any:
    return archive._opened.source.content


def test_what_is_in_use_is_read_once(signed: Path, by: jaxexp.SignedBy, keys: Path, reads: list[str]) -> None:
    """By all that trust it, also at the same time; and it is gone with the last of them."""
    path = signed / "fleet.zip"
    with ThreadPoolExecutor(8) as threads:
        archives = list(threads.map(lambda _: jaxexp.Archive.open(path, signed_by=by), range(8)))
    again = load_member(signed, by)
    assert reads.count("fleet.zip") == 1
    (memory,) = {memory_of(one) for one in archives}
    with pytest.raises(SignatureError, match="another key"):
        jaxexp.Archive.open(path, signed_by=jaxexp.SignedBy(public_key=keys / "other.pub"))
    equal = shutil.copytree(signed, signed / "copy") / "fleet.zip"
    archives.append(jaxexp.Archive.open(equal, signed_by=by))
    assert reads.count("fleet.zip") == 2, "another file, which has to be compared"
    assert memory_of(archives[-1]) is memory
    for one in archives:
        one.close()
    gone = weakref.ref(memory)
    del again, memory
    gc.collect()
    assert gone() is None
    jaxexp.Archive.open(path, signed_by=by)
    assert reads.count("fleet.zip") == 3


def replace_with(path: Path, content: bytes) -> None:
    path.with_name("next").write_bytes(content)
    path.with_name("next").rename(path)


@pytest.mark.parametrize("write", [Path.write_bytes, replace_with])
def test_a_file_that_changed_is_not_what_is_in_use(
    write: Callable[[Path, bytes], object], signed: Path, by: jaxexp.SignedBy, keys: Path, reads: list[str]
) -> None:
    path = signed / "fleet.zip"
    content, before = path.read_bytes(), path.stat()
    archive = jaxexp.Archive.open(path, signed_by=by)
    write(path, content[:-1] + bytes([content[-1] ^ 1]))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(SignatureError, match=r"fleet\.zip"):
        jaxexp.Archive.open(path, signed_by=by)
    np.testing.assert_allclose(archive["models/one"].load().call(X), RESULT, rtol=1e-6)
    write(path, content)
    assert memory_of(jaxexp.Archive.open(path, signed_by=by)) is memory_of(archive)
    assert reads.count("fleet.zip") == 3
    with jaxexp.Archive.append(path) as more:
        more.add_file("models/two", signed / "model.jaxexp")
    jaxexp.sign(path, key=keys / "release.pem")
    assert len(jaxexp.Archive.open(path, signed_by=by)) == 2
    assert len(archive) == 1


def test_a_file_that_was_just_written_is_read_again(
    signed: Path, by: jaxexp.SignedBy, reads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next change may leave its times as they are."""
    monkeypatch.setattr(reading, "_SETTLED", 1 << 62)
    archives = [jaxexp.Archive.open(signed / "fleet.zip", signed_by=by) for _ in range(2)]
    assert reads == ["fleet.zip"] * 2
    assert memory_of(archives[0]) is memory_of(archives[1])


def test_one_signature_for_all(signed: Path, keys: Path) -> None:
    for path in signed.glob("*.sig"):
        path.unlink()
    files = [signed / name for name in ("model.jaxexp", "model.exe", "fleet.zip")]
    assert jaxexp.sign(files, key=keys / "release.pem", signature=signed / "all.sig") == [str(signed / "all.sig")]
    by = jaxexp.SignedBy(public_key=keys / "release.pub", signature=signed / "all.sig")
    for use, _ in ALL.values():
        use(signed, by)
    (signed / "fleet.zip").unlink()
    load(signed, by)
    with pytest.raises(SignatureError, match=r"fleet\.zip.*no such file"):
        verify(signed, by)


def test_files_in_folders_below_the_signature(signed: Path, keys: Path, tmp_path: Path) -> None:
    jaxexp.sign(signed / "model.jaxexp", key=keys / "release.pem", signature=tmp_path / "all.sig")
    by = jaxexp.SignedBy(public_key=keys / "release.pub", signature=tmp_path / "all.sig")
    load_many(signed, by)
    moved = shutil.copytree(signed, tmp_path / "elsewhere")
    with pytest.raises(SignatureError, match="the name of this file"):
        load_many(moved, by)
    with pytest.raises(ExportError, match="not in the folder of the signature"):
        jaxexp.sign(signed / "model.jaxexp", key=keys / "release.pem", signature=moved / "all.sig")


def test_a_policy_is_checked_too(signed: Path, by: jaxexp.SignedBy) -> None:
    path = signed / "model.jaxexp"
    jaxexp.load(path, signed_by=by, policy=jaxexp.Policy(), verify=True)
    for policy in (jaxexp.Policy(platforms=("tpu",)), jaxexp.Policy(max_artifact_bytes=10)):
        with pytest.raises(PolicyError) as caught:
            jaxexp.load(path, signed_by=by, policy=policy)
        assert caught.value.file == str(path)
        (found,) = jaxexp.load_many([path], signed_by=by, policy=policy, on_error="return")
        assert isinstance(found, PolicyError)
    with pytest.raises(ExportError, match="native code"):
        load(signed, by, policy=jaxexp.Policy())


def test_errors_of_many(signed: Path, by: jaxexp.SignedBy) -> None:
    shutil.copy(signed / "model.jaxexp", signed / "unsigned.jaxexp")
    (signed / "cut.jaxexp").write_bytes((signed / "model.jaxexp").read_bytes()[:-1])
    paths = [signed / f"{name}.jaxexp" for name in ("model", "unsigned", "model", "cut", "missing")]
    first, *others = jaxexp.load_many(paths, signed_by=by, on_error="return")
    assert isinstance(first, jaxexp.BoundExported)
    assert [type(one) for one in others[:3]] == [SignatureError, jaxexp.BoundExported, SignatureError]
    assert Path(others[0].file).name == "unsigned.jaxexp.sig"
    assert isinstance(others[3], (OSError, SignatureError))
    with pytest.raises(SignatureError, match="unsigned"):
        jaxexp.load_many(paths, signed_by=by)


def test_what_has_no_signature_beside_it(signed: Path, by: jaxexp.SignedBy) -> None:
    content = (signed / "model.jaxexp").read_bytes()
    handle = jaxexp.Archive.open(signed / "fleet.zip")["models/one"]
    for given in (content, (signed / "model.jaxexp").open("rb"), handle, "https://host/model.jaxexp"):
        for use in (jaxexp.load, jaxexp.verify):
            with pytest.raises(ExportError, match="signed_by is for files on this machine"):
                use(given, signed_by=by)
        if hasattr(given, "close"):
            given.close()
    for given in ("https://host/fleet.zip", (signed / "fleet.zip").open("rb")):
        with pytest.raises(ExportError, match="signed_by is for files on this machine"):
            jaxexp.Archive.open(given, signed_by=by)
        if hasattr(given, "close"):
            given.close()
    with pytest.raises(ExportError, match="not for a buffer"):
        jaxexp.load_many([content], signed_by=by)


def test_who_is_trusted_is_said_in_full(tmp_path: Path, signed: Path, keys: Path) -> None:
    for wrong in (
        {},
        {"public_key": "a", "identity": "b", "issuer": "c"},
        {"identity": "b"},
        {"issuer": "c"},
        {"public_key": "a", "issuer": "c"},
        {"public_key": "a", "staging": True},
        {"certificates": []},
    ):
        with pytest.raises(ExportError, match="SignedBy takes"):
            jaxexp.SignedBy(**wrong)
    with pytest.raises(TypeError, match="public_key= takes a path"):
        jaxexp.SignedBy(public_key=1)
    for use in (jaxexp.load, jaxexp.verify):
        with pytest.raises(TypeError, match="signed_by takes a SignedBy"):
            use(signed / "model.jaxexp", signed_by="release.pub")
    with pytest.raises(TypeError, match="signed_by takes a SignedBy"):
        jaxexp.load_many([signed / "model.jaxexp"], signed_by="release.pub")
    with pytest.raises(FileNotFoundError):
        load(signed, jaxexp.SignedBy(public_key=tmp_path / "missing.pub"))
    (tmp_path / "text.pub").write_text("no key")
    other = rsa.generate_private_key(65537, 2048).public_key()
    (tmp_path / "rsa.pub").write_bytes(other.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    for key in (keys / "release.pem", tmp_path / "text.pub", tmp_path / "rsa.pub"):
        with pytest.raises(ExportError, match=r"cannot be verified: expected a public key, in PEM, of an ellip"):
            load(signed, jaxexp.SignedBy(public_key=key))
    with pytest.raises(ExportError, match=r"found one of another kind, such as RSA$"):
        load(signed, jaxexp.SignedBy(public_key=tmp_path / "rsa.pub"))


def without(signature: bytes, part: str) -> bytes:
    return json.dumps({name: value for name, value in json.loads(signature).items() if name != part}).encode()


# Signatures of another kind, and damaged ones: what is found.
DAMAGED: list[tuple[str, Callable[[bytes], bytes], str]] = [
    ("empty", lambda old: b"", "an empty file"),
    ("blank", lambda old: b" \n", "an empty file"),
    ("cut", lambda old: old[: len(old) // 2], "a file that is no signature in the expected format"),
    ("a page", lambda old: b"<html>not found</html>", "a file that is no signature in the expected format"),
    ("binary", lambda old: b"\xff\0", "a file that is no signature in the expected format"),
    ("other JSON", lambda old: b'{"name": "model"}', "a file that is no signature in the expected format"),
    ("a list", lambda old: b"[1, 2]", "a file that is no signature in the expected format"),
    ("no material", lambda old: without(old, "verificationMaterial"), "a damaged signature"),
    ("no envelope", lambda old: without(old, "dsseEnvelope"), "a damaged signature"),
    ("another envelope", lambda old: old.replace(b'"dsseEnvelope"', b'"messageSignature"'), "a damaged signature"),
]


@each("case", DAMAGED)
def test_damaged_signatures(case: Any, made: Path, tmp_path: Path, by: jaxexp.SignedBy) -> None:
    _, damage, found = case
    signed = Path(shutil.copytree(made, tmp_path / "signed"))
    signature = signed / "model.jaxexp.sig"
    signature.write_bytes(damage(signature.read_bytes()))
    with pytest.raises(SignatureError) as caught:
        load(signed, by)
    assert caught.value.found.startswith(found)
    assert caught.value.found.endswith("Copy the signature again, or sign the files again")
    assert caught.value.file == str(signature)


def test_hostile_signatures(signed: Path, by: jaxexp.SignedBy) -> None:
    signature = signed / "model.jaxexp.sig"
    texts = (b"", b"[]", b"{}", b"null", b"\xff", b"[" * 100_000, b'{"verificationMaterial": 1}', bytes(1 << 22))
    for hostile in texts:
        signature.write_bytes(hostile)
        with pytest.raises(SignatureError):
            load_many(signed, by)
    # A million empty objects would cost the package's parser 40 s and 9 GB.
    signature.write_text('{"verificationMaterial": {"tlogEntries": [' + "{}," * 1_000_000 + "{}]}}")
    with pytest.raises(SignatureError, match=r"at most 4,096 parts, found JSON of 2,000,00\d"):
        load_many(signed, by)
    signature.write_bytes(bytes((1 << 22) + 1))
    with pytest.raises(SignatureError, match="at most"):
        load_many(signed, by)
    signature.unlink()
    signature.mkdir()
    with pytest.raises(SignatureError, match="something that is not a regular file"):
        load_many(signed, by)


def test_an_archive_in_memory_stays_in_its_process(signed: Path, by: jaxexp.SignedBy) -> None:
    archive = jaxexp.Archive.open(signed / "fleet.zip", signed_by=by)
    with pytest.raises(ExportError, match="opened with signed_by"):
        pickle.dumps(archive)
    assert pickle.loads(pickle.dumps(by)) == by
    loaded = archive["models/one"].load()
    archive.close()
    np.testing.assert_allclose(loaded.call(X), RESULT, rtol=1e-6)
    with pytest.raises(ValueError, match="closed"):
        archive["models/one"].read()


@pytest.fixture
def cases(tmp_path: Path, keys: Path) -> Path:
    path = tmp_path / "model.jaxexp"
    exported = jaxexp.export(jax.jit(jnp.sin))(jax.ShapeDtypeStruct((200, 200), np.float32))
    exported.save(path, cases=[(np.ones((200, 200), np.float32),)])
    jaxexp.sign(path, key=keys / "release.pem")
    return path


def test_the_file_of_cases_is_signed(cases: Path, by: jaxexp.SignedBy) -> None:
    assert jaxexp.check(cases, signed_by=by).verdict == "equal"
    jaxexp.verify(cases, signed_by=by)
    flip(cases.with_name("model.cases.safetensors"), -1)
    for use in (
        lambda: jaxexp.load(cases, signed_by=by),
        lambda: jaxexp.verify(cases, signed_by=by),
        lambda: jaxexp.load_many([cases], signed_by=by),
    ):
        with pytest.raises(SignatureError, match=r"model\.cases\.safetensors"):
            use()


def test_what_a_killed_process_left_is_not_signed(cases: Path, keys: Path) -> None:
    """It moved no file to its own name, where there is an older one."""
    beside = cases.with_name("model.cases.safetensors")
    before = beside.read_bytes()
    jaxexp.record(cases, [(np.zeros((200, 200), np.float32),)])
    (_, _, ((name, _, found),), _) = _native.Artifact(cases.read_bytes()).cases()
    beside.rename(cases.with_name(second_name(name, found)))
    beside.write_bytes(before)
    cases.with_name("model.jaxexp.sig").unlink()
    assert jaxexp.check(cases).ok
    with pytest.raises(WeightsError, match="a process that died while it saved"):
        jaxexp.sign(cases, key=keys / "release.pem")
    assert not cases.with_name("model.jaxexp.sig").exists()
    jaxexp.record(cases, [(np.ones((200, 200), np.float32),)])
    jaxexp.sign(cases, key=keys / "release.pem")
    assert not list(cases.parent.glob(".*"))


@each("step", [(reading, "_content"), (reading.files, "file_bytes"), (reading.Statement, "compare")])
def test_a_signal_handler_loads_what_is_being_loaded(
    step: tuple[Any, str], made: Path, by: jaxexp.SignedBy, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, name = step
    real, left, found = getattr(owner, name), [1], []
    files = reading.SignedFiles(by)

    def interrupted(*args: Any, **how: Any) -> Any:
        if left:
            left.pop()
            signal.raise_signal(signal.SIGINT)
        return real(*args, **how)

    monkeypatch.setattr(reading, "_in_use", weakref.WeakValueDictionary())
    monkeypatch.setattr(owner, name, interrupted)
    before = signal.signal(signal.SIGINT, lambda *_: found.append(bytes(files.opened(made / "model.jaxexp"))))
    try:
        assert bytes(files.opened(made / "model.jaxexp")) == (made / "model.jaxexp").read_bytes()
    finally:
        signal.signal(signal.SIGINT, before)
    assert found == [(made / "model.jaxexp").read_bytes()]

"""Weights beside an artifact behind a URL: whoever verifies the artifact verifies them, too."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import pytest

import jaxexp
from jaxexp._cli.start import main
from jaxexp._fleet.places.source import beside_url
from jaxexp._weights.files import reading
from kit.served import serving
from kit.weighted import bound

Put = Callable[[str, bytes], str]


@pytest.fixture
def files(tmp_path: Path) -> dict[str, bytes]:
    model, _ = bound()
    model.save(tmp_path / "model.jaxexp")
    return {path.name: path.read_bytes() for path in tmp_path.iterdir()}


@pytest.fixture
def put() -> Put:
    """Puts a file into a folder behind a URL, and returns its URL."""
    folder = f"memory://{secrets.token_hex(8)}"

    def write(name: str, data: bytes) -> str:
        with fsspec.open(f"{folder}/{name}", "wb") as file:
            file.write(data)
        return f"{folder}/{name}"

    return write


def flipped(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


def local_error(tmp_path: Path, files: dict[str, bytes], weights: bytes | None) -> str:
    """What is said of the same files on this machine, with their folder as HERE."""
    folder = tmp_path / "copied"
    folder.mkdir()
    (folder / "model.jaxexp").write_bytes(files["model.jaxexp"])
    if weights is not None:
        (folder / "model.safetensors").write_bytes(weights)
    with pytest.raises(jaxexp.WeightsError) as error:
        jaxexp.verify(folder / "model.jaxexp")
    return str(error.value).replace(str(folder), "HERE")


def test_whole_weights_are_read(files: dict[str, bytes], put: Put, capsys: pytest.CaptureFixture[str]) -> None:
    put("model.safetensors", files["model.safetensors"])
    url = put("model.jaxexp", files["model.jaxexp"])
    jaxexp.verify(url)
    assert jaxexp.verify_many([url]) == {}
    assert main(["verify", "--json", url]) == 0
    (verdict,) = json.loads(capsys.readouterr().out)["files"]
    assert verdict["weights"] == [url.replace(".jaxexp", ".safetensors")]
    assert verdict["weight_bytes"] == len(files["model.safetensors"])


@pytest.mark.parametrize(
    "damage",
    [lambda data: data[:1500], lambda data: data[:4], flipped, lambda data: b"", lambda data: None],
    ids=["cut", "cut header", "flipped", "empty", "missing"],
)
def test_damage_is_found_and_said_as_of_files_here(
    tmp_path: Path, files: dict[str, bytes], put: Put, damage: Callable[[bytes], bytes | None],
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    weights = damage(files["model.safetensors"])
    if weights is not None:
        put("model.safetensors", weights)
    url = put("model.jaxexp", files["model.jaxexp"])
    expected = local_error(tmp_path, files, weights)
    with pytest.raises(jaxexp.WeightsError) as error:
        jaxexp.verify(url)
    assert str(error.value).replace(url.rpartition("/")[0], "HERE") == expected
    (found,) = jaxexp.verify_many([url]).values()
    assert str(found) == str(error.value)
    assert main(["verify", url]) == 1
    assert "damaged" in capsys.readouterr().out


def test_weights_of_another_model(tmp_path: Path, files: dict[str, bytes], put: Put) -> None:
    other, _ = bound(layers=2)
    other.save(tmp_path / "other.jaxexp")
    put("model.safetensors", (tmp_path / "other.safetensors").read_bytes())
    with pytest.raises(jaxexp.WeightsError, match=r"expected the file that 'model.jaxexp' was saved with"):
        jaxexp.verify(put("model.jaxexp", files["model.jaxexp"]))


def test_a_policy_is_applied_to_the_program(files: dict[str, bytes], put: Put) -> None:
    weights = put("model.safetensors", files["model.safetensors"])
    url = put("model.jaxexp", files["model.jaxexp"])
    assert jaxexp.verify_many([url], policy=jaxexp.Policy()) == {}
    (found,) = jaxexp.verify_many([url], policy=jaxexp.Policy(max_weights=1)).values()
    assert isinstance(found, jaxexp.PolicyError)
    fsspec.filesystem("memory").rm(weights)
    (found,) = jaxexp.verify_many([url], policy=jaxexp.Policy()).values()
    assert isinstance(found, jaxexp.WeightsError)


def test_they_are_fetched_in_pieces(files: dict[str, bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "PIECE", 1000)
    with serving(b"") as server:
        server.others = {f"/models/{name}": data for name, data in files.items()}
        url = server.url.replace("fleet.zip", "models/model.jaxexp")
        jaxexp.verify(url + "?token=mine")
        sizes = [size for method, size in server.requests if method == "GET"]
        program, *pieces = sizes
        assert program == len(files["model.jaxexp"])
        assert sum(pieces) == len(files["model.safetensors"])
        assert max(pieces[2:]) == 1000, "after the length of the header, and the header"
        server.others["/models/model.safetensors"] = files["model.safetensors"][:1500]
        with pytest.raises(jaxexp.WeightsError, match=r"up to the end of the file|as its header says"):
            jaxexp.verify(url)
        del server.others["/models/model.safetensors"]
        with pytest.raises(jaxexp.WeightsError, match=r"a file that 'model.jaxexp' names, found none of this name"):
            jaxexp.verify(url)


def test_a_server_that_refuses_them_is_no_damage(files: dict[str, bytes]) -> None:
    with serving(b"") as server:
        server.others = {"/model.jaxexp": files["model.jaxexp"]}
        url = server.url.replace("fleet.zip", "model.jaxexp")
        whole = server.RequestHandlerClass.whole
        refused = server.RequestHandlerClass.send_error

        def forbidden(self: Any, status: int) -> None:
            refused(self, 403 if status == 404 else status)

        server.RequestHandlerClass = type("Forbidding", (server.RequestHandlerClass,), {"send_error": forbidden})
        assert server.RequestHandlerClass.whole is whole
        with pytest.raises(OSError, match=r"model.safetensors: the server answers 403") as error:
            jaxexp.verify(url)
        assert not isinstance(error.value, jaxexp.ExportError)


def test_a_journal_looks_at_weights_again(tmp_path: Path, files: dict[str, bytes], put: Put) -> None:
    put("model.safetensors", files["model.safetensors"])
    url = put("model.jaxexp", files["model.jaxexp"])
    journal = tmp_path / "verify.journal"
    assert jaxexp.verify_many([url], journal=journal) == {}
    put("model.safetensors", flipped(files["model.safetensors"]))
    assert [type(e) for e in jaxexp.verify_many([url], journal=journal).values()] == [jaxexp.WeightsError]


@pytest.mark.parametrize(
    ("url", "beside"),
    [
        ("http://h/models/a.jaxexp", "http://h/models/w%20%231.safetensors"),
        ("https://h/a%20b/a.jaxexp?token=x/y", "https://h/a%20b/w%20%231.safetensors?token=x/y"),
        ("simplecache::http://h/a.jaxexp", "simplecache::http://h/w%20%231.safetensors"),
        ("zip://models/a.jaxexp::/tmp/all.zip", "zip://models/w #1.safetensors::/tmp/all.zip"),
        ("zip://a.jaxexp::/tmp/all.zip", "zip://w #1.safetensors::/tmp/all.zip"),
        ("s3://bucket/models/a.jaxexp", "s3://bucket/models/w #1.safetensors"),
    ],
)
def test_the_url_of_a_file_beside(url: str, beside: str) -> None:
    assert beside_url(url, "w #1.safetensors") == beside


def test_a_name_that_would_be_another_url(tmp_path: Path, put: Put) -> None:
    """fsspec would look for the second part in the working folder."""
    bound()[0].save(tmp_path / "model.jaxexp", weights="aa::b.safetensors")
    jaxexp.verify(tmp_path / "model.jaxexp")
    url = put("model.jaxexp", (tmp_path / "model.jaxexp").read_bytes())
    with pytest.raises(jaxexp.WeightsError, match="expected a name without '::', which joins URLs, found 'aa::b"):
        jaxexp.verify(url)

"""Signatures of an artifact: what `reader_fuzz.py signatures` makes, and that nothing is parsed of what they refuse."""

from __future__ import annotations

import base64
import contextlib
import functools
import io
import json
import random
import shutil
import tempfile
from pathlib import Path
from typing import Any

import jaxexp
from kit.places import GOLDEN
from kit.signing import Pair, seen_by_decoders
from tools.fuzzed_texts import TEXTS, check_text

STRANGE: list[Any] = [None, True, 0, -1, 1e400, 10**4000, "", [], {}, [[]], "AA==", "?", "2.0", *TEXTS]
PIECES = [b"", b"{", b"[", b'"', b"\\ud800", b"\xff", b"\0", b"1" * 5000, b"[" * 3000, b'{"a":' * 2000, b"null", b"NaN"]


class Signed:
    """An artifact in a folder of its own, with a signature by a key and one by a certificate."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory()
        folder = Path(self._folder.name)
        Pair.make().write(folder, "key")
        root = Pair.make(name="root", signs=False)
        root.write(folder, "root")
        Pair.make(name="leaf", issuer=root).write(folder, "leaf")
        self.path, self.signature = folder / "f.jaxexp", folder / "f.jaxexp.sig"
        shutil.copy(next(GOLDEN.glob("*_jaxexp-*/sin.bin")), self.path)
        self.by: list[jaxexp.SignedBy] = []
        self.contents: list[bytes] = []
        ways: list[tuple[dict[str, Any], dict[str, Any]]] = [
            ({"key": folder / "key.pem"}, {"public_key": folder / "key.pub"}),
            ({"key": folder / "leaf.pem", "certificate": folder / "leaf.crt", "chain": [folder / "root.crt"]},
             {"certificates": folder / "root.crt"}),
        ]  # fmt: skip
        for how, by in ways:
            jaxexp.sign(self.path, **how)
            self.by.append(jaxexp.SignedBy(**by))
            self.contents.append(self.signature.read_bytes())


signed = functools.cache(Signed)


def make(source: random.Random) -> bytes:
    """A signature with other values in its JSON, in the JSON in its JSON, or with other bytes. The first byte says who
    is trusted.
    """
    which = source.randrange(2)
    content = signed().contents[which]
    if source.random() < 0.6:
        bundle = json.loads(content)
        for _ in range(source.choice([0, 1, 1, 2])):
            change(source, bundle)
        content = json.dumps(bundle).encode()
    for _ in range(source.choice([0, 0, 1, 2])):
        at = source.randrange(len(content) + 1)
        content = content[:at] + source.choice(PIECES) + content[at + source.choice([0, 1, 20]) :]
    return bytes([which]) + content


def change(source: random.Random, bundle: Any) -> None:
    """Changes one value somewhere in JSON."""
    at = bundle
    while True:
        names = list(at) if isinstance(at, dict) else list(range(len(at)))
        if not names:
            return
        name = source.choice(names)
        if not isinstance(at[name], (dict, list)) or source.random() < 0.1:
            break
        at = at[name]
    match source.randrange(4):
        case 0:
            del at[name]
        case 1 if name == "payload":
            with contextlib.suppress(ValueError):  # it was changed before
                statement = json.loads(base64.b64decode(at[name]))
                change(source, statement)
                at[name] = base64.b64encode(json.dumps(statement).encode()).decode()
        case 2 if isinstance(at[name], str) and at[name]:
            place = source.randrange(len(at[name]))
            at[name] = at[name][:place] + source.choice(["", "A", "=", "\ud800"]) + at[name][place + 1 :]
        case _:
            at[name] = source.choice(STRANGE)


def look_at(data: bytes) -> str:
    """Read, or refused without a look at the artifact."""
    which, content = data[0], data[1:]
    signed().signature.write_bytes(content)
    # The package prints a warning about older signatures.
    with seen_by_decoders() as seen, contextlib.redirect_stdout(io.StringIO()):
        try:
            jaxexp.load(signed().path, signed_by=signed().by[which])
        except jaxexp.errors.SignatureError as error:
            check_text(str(error))
            assert not seen, "what is not signed is not parsed"
            return "refused"
    return "read"

"""Every text that somebody else wrote, in everything that shows it: no character reaches a person that acts on a
terminal, changes the direction of a text, or makes lines of a log."""

from __future__ import annotations

import json
import logging
import warnings
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxexp
from jaxexp import _native
from jaxexp._cli.commands.view import page_of
from jaxexp._executables.file import ExecutablesFile, GrowingFile
from jaxexp._fleet.places.source import source
from kit import hostile_archives, hostile_texts, layout
from kit.archives import blob
from kit.parts import Copy, put_together, take_apart
from kit.safetensors_files import a_file, entry
from kit.wire import seal

EVIL = "evil\x1b[31m\x07\u202e\u2066\x9b\x7f\u2028\n\r\tgood"
LONE = "evil\ud800\x1b"  # which UTF-8 cannot have, and JSON can
Run = Callable[..., tuple[int, str, str]]


class Shown:
    """What people get to see: texts, each with what showed it."""

    def __init__(self, run: Run, records: pytest.LogCaptureFixture) -> None:
        self._run, self._records = run, records
        self.raw: dict[str, str] = {}
        self.is_seen = self.was_seen = False

    def add(self, what: str, text: str, *, lines: bool = True) -> None:
        # In a page or a traceback, lines and what indents them are jaxexp's own.
        for line in text.split("\n") if lines else [text]:
            if not line.isprintable():
                self.raw.setdefault(what, ascii(line)[:300])
        if "evil" in text:
            self.is_seen = self.was_seen = True

    def of(self, what: str, make: Callable[[], object]) -> Any:
        """The result of a function, whose text or error is added, with its warnings and log records."""
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            try:
                made = make()
                if isinstance(made, str):
                    self.add(what, made)
            except Exception as error:
                made = None
                if isinstance(error, (jaxexp.errors.ExportError, OSError)):
                    self.add(f"{what}: str", str(error))
                    self.add(f"{what}: repr", repr(error), lines=False)
        for warning in warned:
            self.add(f"{what}: warning", str(warning.message))
        for record in self._records.records:
            if record.name.startswith("jaxexp"):
                self.add(f"{what}: log", record.getMessage())
        self._records.clear()
        return made

    def command(self, *arguments: object) -> None:
        what = f"jaxexp {arguments[0]}{' --json' if '--json' in arguments else ''}"
        _, out, err = self._run(*arguments)
        self.add(what, out)
        self.add(f"{what}: stderr", err)
        if "--json" in arguments and out:
            json.loads(out)


@pytest.fixture
def shown(run: Run, caplog: pytest.LogCaptureFixture) -> Iterator[Shown]:
    """At the end, some of the hostile texts were shown, and none as it is."""
    caplog.set_level(logging.DEBUG, logger="jaxexp")
    yield (shown := Shown(run, caplog))
    assert shown.was_seen
    assert not shown.raw


def show_artifact(shown: Shown, path: Path, other: Path) -> None:
    found = shown.of("inspect", lambda: jaxexp.inspect(path))
    if found is not None:
        shown.add("str of an inspection", str(found))
        shown.add("repr of an inspection", repr(found), lines=False)
        shown.add("JSON of an inspection", json.dumps(found.to_dict()), lines=False)
    for name, call in (("verify", jaxexp.verify), ("compatibility", jaxexp.compatibility)):
        shown.of(name, lambda call=call: str(call(path)))
    tight = jaxexp.Policy(platforms=("tpu",), max_devices=0, unregistered_nodes=False, effects=())
    for policy in (jaxexp.Policy(unregistered_nodes=False), jaxexp.Policy(operations=()), tight):
        shown.of("policy", lambda policy=policy: jaxexp.load(path, policy=policy))
    loaded = shown.of("load", lambda: jaxexp.load(path))
    if loaded is not None:
        for name, make in {
            "repr": lambda: repr(loaded),
            "card": lambda: loaded._repr_html_(),
            "call": lambda: loaded.call(),
            "call with something else": lambda: loaded.call({"x": 1}, [jnp.ones((3, 5), np.int8)], k=(2,)),
            "vjp": lambda: repr(loaded.vjp()),
            "serialize": lambda: [None, loaded.serialize()][0],
        }.items():
            shown.of(name, make)
    shown.of("page", lambda: page_of(source(path, "view")))
    for command in ("inspect", "verify"):
        shown.command(command, path)
        shown.command(command, path, "--json")
    shown.command("compat", path)
    shown.command("--traceback", "inspect", "--jaxpr", path)
    shown.command("diff", path, other)
    shown.command("run", path, path.with_suffix(".npz"))
    shown.command("migrate", path, path.with_suffix(".migrated"), "--to", "max")


# A device is only compared, and so is what a class of pytrees that nobody registered keeps beside its children.
UNSEEN = {"AbstractDevice.device_kind", "AbstractDevice.platform", "PyTreeDef.custom_auxdata"}


@pytest.mark.wide(one_in=3, promise="texts of artifacts are escaped, at whatever place they are")
@pytest.mark.parametrize("part", range(3))
def test_texts_of_artifacts(part: int, shown: Shown, tmp_path: Path) -> None:
    path, other = tmp_path / "one.jaxexp", tmp_path / "other.jaxexp"
    other.write_bytes(blob())
    np.savez(path.with_suffix(".npz"), **{"x": np.ones(3), EVIL.replace("\n", ""): np.ones(3)})
    seen, raw = set(), {}
    places = [(place.partition(",")[0], place, make) for place, make in (*hostile_texts.places(), *modules())]
    fields = sorted({field for field, _, _ in places})[part::3]
    for field, place, make in [one for one in places if one[0] in fields]:
        for text in (EVIL,) if place.endswith("everywhere") else (EVIL, LONE):
            path.write_bytes(make(text))
            shown.is_seen = False
            show_artifact(shown, path, other)
            seen |= {field} if shown.is_seen else set()
            raw |= {f"{place}: {what}": said for what, said in shown.raw.items()}
            shown.raw.clear()
    assert {*fields} - seen <= UNSEEN, "changed, and shown by nothing"
    assert len(fields) > 4
    assert not raw, "\n".join(f"{where}: {text}" for where, text in raw.items())


def modules() -> Iterator[tuple[str, Callable[[str], bytes]]]:
    """Texts in the place of the module: as they are, and in the place of bytecode's own texts."""
    for begin in (b"", b"ML\xefR\r"):

        def make(text: str, begin: bytes = begin) -> bytes:
            root, evil = take_apart(blob()), text.encode(errors="replace")
            root["mlir_module_serialized"] = Copy(begin + evil + b"\0" + evil * 9)
            return put_together(root)

        yield "Exported.mlir_module_serialized", make


# --- trailer.fbs, archive.fbs, executables.fbs ------------------------------------------------------------------------

MARKED = "marked_text_{:02}_with_room_for_evil"


def marks(count: int) -> list[str]:
    return [MARKED.format(i) for i in range(count)]


def hostile_bytes(mark: str) -> bytes:
    size = len(mark)
    return EVIL.encode()[:size].decode(errors="ignore").encode().ljust(size, b"\x07")


def test_texts_of_trailers(shown: Shown, tmp_path: Path) -> None:
    key, value, name, leaf = marks(4)
    folder, other = tmp_path / "served", tmp_path / "other.jaxexp"
    folder.mkdir()
    weights = {leaf: jnp.ones(3, np.float32), "also": jnp.ones(2, np.float32)}
    x = jax.ShapeDtypeStruct(
        jaxexp.symbolic_shape("batch_of_this_function, 3", constraints=["batch_of_this_function >= 2"]), np.float32
    )
    bound = jaxexp.export(jax.jit(lambda x: x * weights[leaf] + weights["also"][0]), weights=weights)(x)
    path = folder / f"{name}.jaxexp"
    bound.save(path, metadata={key: value})
    bound.save(other, metadata={"k": 1})
    data = path.read_bytes()
    texts = [key, value, name, leaf, "batch_of_this_function", f"jaxexp {jaxexp.__version__}"]
    for text in texts:
        assert data.count(text.encode()), text
        changed = bytearray(data.replace(text.encode(), hostile_bytes(text)))
        path.write_bytes(seal(changed))
        show_artifact(shown, path, other)
        for file in folder.glob("*.safetensors"):
            file.write_bytes(file.read_bytes().replace(leaf.encode(), hostile_bytes(leaf)))
    # JSON has escapes of its own.
    path.write_bytes(layout.with_constraints([f"{EVIL} >= 2"], [(EVIL, json.dumps([EVIL, LONE])), ("k", EVIL)], "n"))
    show_artifact(shown, path, other)


def test_texts_of_files_of_tensors(shown: Shown, tmp_path: Path) -> None:
    weights = {"w": jnp.ones(1, np.float32)}
    jaxexp.export(jax.jit(lambda x: x * weights["w"]), weights=weights)(1.0).save(tmp_path / "a.jaxexp")
    file = tmp_path / "a.safetensors"
    one = entry("F32", [1], 0, 4)
    content = bytes(4)
    files = [
        a_file({EVIL: one}, content), a_file({"w": {**one, "dtype": EVIL}}, content),
        a_file({"w": {**one, EVIL: 1}}, content),
        a_file({"w": one, "__metadata__": {EVIL: EVIL, "jaxexp": EVIL, "format": EVIL}}, content),
        a_file({LONE: one, "__metadata__": {LONE: LONE}}, content), a_file({EVIL: one, f"{EVIL}2": one}, content),
        a_file({EVIL: {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}, content), a_file(EVIL.encode()),
        a_file(b"{" + EVIL.encode()),
    ]  # fmt: skip
    for data in files:
        file.write_bytes(data)
        shown.of("load", lambda: jaxexp.load(tmp_path / "a.jaxexp").call(1.0))
        shown.of("weights by path", lambda: jaxexp.load(tmp_path / "a.jaxexp", weights=file))
        shown.of("verify", lambda: jaxexp.verify(tmp_path / "a.jaxexp"))
        shown.command("verify", file, tmp_path / "a.jaxexp")
        shown.command("verify", file, "--json")
        shown.command("inspect", file)
        shown.command("run", tmp_path / "a.jaxexp", file)


def test_texts_of_archives(shown: Shown, tmp_path: Path) -> None:
    artifact = blob()
    path, other = tmp_path / f"{EVIL.replace(chr(10), '')}.zip", tmp_path / "other.jaxexp"
    other.write_bytes(artifact)

    def members(bodies: dict[str, Any]) -> Iterator[tuple[str, Any]]:
        yield "a", bodies["a"].member(text=EVIL, metadata=json.dumps({EVIL: EVIL}))
        yield "b", bodies["b"].member(text=EVIL, metadata=json.dumps({EVIL: LONE}), digest=bytes(16))
        yield name, bodies["c"].member(text="x", metadata=EVIL)

    for name in (f"c/{EVIL}", "c"):  # noqa: B007
        path.write_bytes(hostile_archives.archive({"a": artifact, "b": artifact, "c": artifact}, members))
        shown.command("ls", path)
        shown.command("verify", path, "--json")
    archive = shown.of("open", lambda: jaxexp.Archive.open(path))
    shown.of("repr", lambda: repr(archive))
    shown.of("card", archive._repr_html_)
    shown.of("another name", lambda: archive["missing" + EVIL])
    shown.of("load_all", archive.load_all)
    for error in (shown.of("verify", archive.verify) or {}).values():
        shown.add("error of a member", str(error))
    for handle in archive.values():
        shown.of("card of a handle", handle._repr_html_)
        for what in (lambda h: h, lambda h: str(h.summary), lambda h: h.load(), lambda h: h.metadata):
            shown.of("handle", lambda what=what, handle=handle: repr(what(handle)))
    for command in (["ls"], ["verify"], ["inspect"], ["compat"], ["unpack", "-d", tmp_path / "out"]):
        shown.command(*command, path)
    shown.command("diff", f"{path}::b", other)
    shown.command("migrate", path, tmp_path / "new")
    shown.command("pack", tmp_path / "new.zip", path, "-m", f"{EVIL}=1")


def test_texts_of_executables(shown: Shown, tmp_path: Path) -> None:
    artifact, code = tmp_path / "a.jaxexp", tmp_path / "code"
    exported = jaxexp.export(jax.jit(lambda x: x + 1))(jnp.ones(3))
    exported.save(artifact)
    exported.precompile((jnp.ones(3),), into=code)
    (record,) = ExecutablesFile(code).records
    for field in record.conditions:
        changed = tmp_path / "changed"
        changed.unlink(missing_ok=True)
        GrowingFile(changed).put({**record.conditions, field: EVIL}, dict(record.call), b"code")
        GrowingFile(changed).put({**record.conditions, EVIL: "1"}, {**record.call, "jax": EVIL}, b"code")
        GrowingFile(changed).put(dict(record.conditions), {**record.call, "arguments": EVIL, EVIL: EVIL}, b"code")
        for command in ("inspect", "verify"):
            shown.command(command, changed)
            shown.command(command, changed, "--json")
        shown.of("call", lambda changed=changed: repr(jaxexp.load(artifact, executables=changed).call(jnp.ones(3))))


def test_texts_of_journals_policies_and_arrays(shown: Shown, tmp_path: Path) -> None:
    artifact = tmp_path / "a.jaxexp"
    jaxexp.export(jax.jit(lambda x: x + 1))(jnp.ones(3)).save(artifact)
    journal = tmp_path / "journal"
    start = {"jaxexp": "journal", "layout": 1, EVIL: EVIL}
    for lines in (
        [start], [EVIL], [{**start, "pass": EVIL}], [{"jaxexp": EVIL, "layout": EVIL}],
        [{"jaxexp": "journal", "layout": 1, "pass": LONE}],
    ):  # fmt: skip
        texts = [json.dumps(line).encode() for line in lines]
        journal.write_bytes(b"".join(_native.digest(t).hex().encode() + b" " + t + b"\n" for t in texts))
        shown.command("verify", artifact, "--journal", journal)
    journal.unlink()
    shown.command("verify", artifact, "--journal", journal)
    first = journal.read_bytes().split(b"\n")[0]
    evil = [str(artifact), EVIL, 0, 1, ["DeserializationError", EVIL, EVIL, EVIL, EVIL]]
    for done in ([evil], [[EVIL, EVIL, 0, 1, EVIL]], [EVIL], EVIL):
        text = json.dumps({"done": done}).encode()
        journal.write_bytes(first + b"\n" + _native.digest(text).hex().encode() + b" " + text + b"\n")
        shown.command("verify", artifact, "--journal", journal)

    policy = tmp_path / f"policy{EVIL.replace(chr(10), '')}.toml"
    quoted = json.dumps(EVIL.replace("\x7f", ""))
    for text in (
        f"{quoted} = 1", f"platforms = [{quoted}]", f"custom_calls = {quoted}", f"max_devices = {quoted}",
        f"effects = [{{a = {quoted}}}]", EVIL, f"callbacks = {{ {quoted} = 1 }}", f"platforms = [{quoted}, \"cpux\"]",
    ):  # fmt: skip
        policy.write_text(text)
        shown.of("from_toml", lambda: repr(jaxexp.Policy.from_toml(policy)))
        shown.command("verify", artifact, "--policy", policy)

    arrays = tmp_path / f"arrays{EVIL.replace(chr(10), '')}.npz"
    for names in ({EVIL: np.ones(3)}, {"x": np.ones(3), EVIL: np.ones(3)}, {"x": np.ones(2), f"x.{EVIL}": np.ones(1)}):
        np.savez(arrays, **names)
        shown.command("run", artifact, arrays)
        shown.command("run", artifact, arrays, "-o", tmp_path / "out.npz")
    with zipfile.ZipFile(arrays, "w") as file:
        file.writestr(f"x{EVIL}.npy", b"no array")
        file.writestr("y.npy", b"\x93NUMPY\1\0\x40\0" + f"{{'descr': '{EVIL[:20]}'}}".encode())
    shown.command("run", artifact, arrays)
    arrays.write_bytes(b"\x93NUMPY\1\0\x40\0" + f"{{'descr': '{EVIL}'}}".encode().ljust(64))
    shown.command("run", artifact, arrays)

"""`jaxexp compat` and `migrate`."""

from __future__ import annotations

import json
import re
import shutil
from unittest.mock import Mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxexp
from jaxexp._compat import migrate
from jaxexp._fleet.places.source import Source
from jaxexp._kernel.io import lock
from kit import wire
from kit.corpus import arr
from kit.damaged import jax_blob
from kit.places import GOLDEN
from kit.vhlo import for_version

pytestmark = pytest.mark.jax


def test_compat(folder, good, run) -> None:
    old = GOLDEN / "jax-0.4.30" / "poly.bin"
    found = jaxexp.compatibility(old.read_bytes())
    text = good("compat", old)
    assert found.fun_name in text
    for first, last in found.readers:
        assert re.search(rf"^  {re.escape(first)} to {re.escape(last)} +loads it", text, re.MULTILINE)
    (facts,) = json.loads(good("compat", "--json", old))
    assert facts.pop("file") == str(old)
    refuses = facts["jax_export_refuses"]
    assert (facts.pop("verdict"), facts.pop("reason")) == ("jaxexp only" if refuses else "loaded", refuses)
    assert facts["readers"] == [list(span) for span in found.readers]
    assert facts["promised_until"] == found.promised_until.isoformat()
    assert facts.keys() == set(type(found).__dataclass_fields__)
    good("compat", "--reader", jax.__version__, folder / "scores.jaxexp")
    status, out, err = run("compat", "--reader", "0.4.30", old, folder / "scores.jaxexp")
    assert status == 1
    assert "scores" in out
    assert err.count("\n") == 1
    assert str(folder / "scores.jaxexp") in err and str(old) not in err


def test_compat_of_those_that_are_not_loaded(folder, damaged, good, run) -> None:
    whole = folder / "scores.jaxexp", folder / "sharded.jaxexp"
    assert good("compat", "--quiet", whole[0]) == good("compat", "-q", "--reader", jax.__version__, whole[0]) == ""
    assert good("compat", "--quiet", *whole).splitlines()[-1].startswith("2 artifacts: 2 loaded")
    status, out, _ = run("compat", "--quiet", *whole, damaged / "cut")
    assert (status, "cut" in out, "scores" in out, "3 artifacts: 2 loaded, 1 damaged" in out) == (1, True, False, True)
    (facts,) = json.loads(run("compat", "--quiet", "--json", *whole, damaged / "cut")[1])
    assert facts["verdict"] == "damaged"
    assert "scores" in run("compat", "--quiet", "--reader", "0.4.30", whole[0])[1]


def remedies(text: str) -> list[str]:
    """What is after "remedy", as arguments of the command: the last column has no line breaks in a pipe."""
    (line,) = (line for line in text.splitlines() if line.startswith("  remedy"))
    return re.findall(r"'jaxexp migrate ((?:--to \S+ )?)\S+ NEW' writes one that (JAX|jaxexp)", line)


def test_compat_says_what_migrate_does(folder, tmp_path, good) -> None:
    old, scores = GOLDEN / "jax-0.4.30" / "poly.bin", folder / "scores.jaxexp"
    for i, artifact in enumerate((old, scores)):
        before = jaxexp.compatibility(artifact)
        found = remedies(good("compat", artifact))
        assert len(found) == (2 if before.jax_export_refuses and artifact is old else 1)
        for j, (to, who) in enumerate(found):
            new = tmp_path / f"new{i}{j}"
            good("migrate", *to.split(), artifact, new)
            release = to.split()[1] if to else jax.__version__
            assert who == "JAX" and not before.readable_by(release)
            assert jaxexp.compatibility(new).readable_by(release)
    # What everybody reads needs none.
    everyone = jaxexp.migrate(old, to="max")
    (tmp_path / "everyone").write_bytes(everyone)
    if not jaxexp.compatibility(everyone).refusals:
        assert "remedy" not in good("compat", tmp_path / "everyone")


def test_compat_says_what_migrate_does_for_one_reader(folder, tmp_path, good, run) -> None:
    scores = folder / "scores.jaxexp"
    status, _, err = run("compat", "--reader", "0.6.2", scores)
    assert status == 1
    assert err.endswith(f"; 'jaxexp migrate --to 0.6.2 {scores} NEW' writes one that it loads\n")
    good("migrate", "--to", "0.6.2", scores, tmp_path / "new")
    assert "loaded" in good("compat", "--reader", "0.6.2", tmp_path / "new")

    jaxexp.export(jax.jit(jax.random.normal))(jax.random.key(0)).save(tmp_path / "key")
    err = run("compat", "--reader", "0.5.3", tmp_path / "key")[2]
    assert "; 'jaxexp migrate' cannot write it for that release: " in err
    assert "args[0] has dtype key<fry>; write for JAX 0.6.0 or newer" in err

    own = jaxexp.export(jax.jit(lambda d: d[1] + 1))({1: arr(3)})
    own.save(tmp_path / "own")
    status, _, err = run("compat", "--reader", jax.__version__, tmp_path / "own")
    assert (status, err.count("\n")) == (1, 1)
    assert "'jaxexp migrate' does not help: it would still have pytree nodes that it reads only if jaxexp is" in err


def test_compat_says_what_migrate_does_for_older_readers_with_jaxexp(tmp_path, good, run) -> None:
    """Nodes that only jaxexp reads keep every jax.export out; a module that is too new keeps jaxexp out."""
    own = jaxexp.export(jax.jit(lambda d: jax.numpy.linalg.cholesky(d[1])))({1: np.eye(2, dtype=np.float32)})
    own.save(tmp_path / "own")
    text = good("compat", tmp_path / "own")
    if jaxexp.compatibility(tmp_path / "own").jaxexp_readers[0][0] == "0.10.2":
        assert "remedy" not in text
        return
    ((to, who),) = remedies(text)
    assert (to.split(), who) == (["--to", "0.10.2"], "jaxexp")
    good("migrate", *to.split(), tmp_path / "own", tmp_path / "new")
    assert jaxexp.compatibility(tmp_path / "new").jaxexp_readers[0][0] == "0.10.2"
    status, _, err = run("compat", "--reader", "0.10.2", tmp_path / "own")
    assert (status, err.count("\n")) == (1, 1)
    assert f"--to 0.10.2 {tmp_path / 'own'} NEW' writes one that jaxexp loads there; jax.export would still" in err


def test_readers_have_the_same_words_everywhere(folder, tmp_path, good, run) -> None:
    scores = folder / "scores.jaxexp"
    found = jaxexp.compatibility(scores)
    # Whatever JAX is installed: the modules that it writes are for the releases of the last four weeks.
    for same in (["0.12.0", "jax-0.12.0"], ["4w"]):
        assert len({good("compat", "--reader", reader, scores) for reader in same}) == 1
        assert {found.readable_by(reader) for reader in same} == {True}
    for same in (["0.6.2", "jax-0.6.2"], ["max"]):
        written = set()
        for reader in same:
            good("migrate", "--force", "--to", reader, scores, tmp_path / "new")
            written |= {(tmp_path / "new").read_bytes(), bytes(jaxexp.migrate(scores, to=reader))}
        assert len(written) == 1
    assert not found.readable_by("0.6.2")
    for wrong in ("6", "max", "0.6.3", "jax0.6.2"):
        with pytest.raises(jaxexp.errors.ExportError, match=r"readable_by takes a release from '0\.4\.22'"):
            found.readable_by(wrong)
        assert run("compat", "--reader", wrong, scores)[:2] == (2, "")
        if wrong != "max":
            with pytest.raises(jaxexp.errors.ExportError, match=r"to= takes a release from '0\.4\.22'"):
                jaxexp.migrate(scores, to=wrong)
            assert run("migrate", "--to", wrong, scores, tmp_path / "other")[:2] == (2, "")


def test_what_is_refused_here_has_a_status(folder, tmp_path, run) -> None:
    blob, unknown = jax_blob("ordered_effect"), tmp_path / "unknown"
    name = wire.read(blob, "ordered_effects.0.type_name")
    wire.write(blob, "ordered_effects.0.type_name", name.replace("First", "Thrsd"))
    unknown.write_bytes(blob)
    line = f"jaxexp: jaxexp with JAX {jax.__version__} does not load '{unknown}'\n"
    status, out, err = run("compat", unknown)
    assert (status, err) == (1, line)
    assert "cannot load it here" in out
    status, out, err = run("compat", unknown, folder / "scores.jaxexp")
    assert (status, err) == (1, line)
    assert "1 refused, 1 loaded" in out
    status, out, err = run("compat", "--json", unknown, "http://127.0.0.1:1/model.jaxexp")
    assert (status, json.loads(out)[0]["verdict"], err.count("\n")) == (1, "refused", 2)


def test_what_is_loaded_but_cannot_be_called_has_a_verdict_of_its_own(folder, tmp_path, run) -> None:
    blob = jaxexp.export(jax.jit(jax.numpy.sin))(arr(3)).serialize(trailer=False)
    new = tmp_path / "new"
    new.write_bytes(for_version(blob, "1.99.0", "sine_v2"))
    said = f"jaxexp: jaxexp with JAX {jax.__version__} loads '{new}', but cannot call it\n"
    status, out, err = run("compat", new)
    assert (status, err) == (1, said)
    assert "loads it here, but cannot call it: " in out
    status, out, err = run("compat", new, folder / "scores.jaxexp")
    assert (status, err) == (1, said)
    assert re.search(rf"^  {new} .*  not callable  at mlir_module_serialized: expected ", out, re.MULTILINE)
    assert "\n2 artifacts: 1 not callable, 1 loaded\n" in out
    (facts,) = json.loads(run("compat", "--json", new)[1])
    assert (facts["verdict"], facts["loaded_here"]) == ("not callable", True)
    assert run("inspect", new)[0] == 0
    status, _, err = run("run", "--random", new)
    assert (status, err.split(": expected")[0]) == (
        1, f"jaxexp: cannot read the artifact '{new}': at mlir_module_serialized"
    )  # fmt: skip


def test_damage_is_one_reason_whatever_the_digests_are(folder, tmp_path, run) -> None:
    blob = (folder / "scores.jaxexp").read_bytes()
    function = jaxexp.load(folder / "scores.jaxexp")
    for i, module in enumerate([function.mlir_module_serialized, function.vjp().mlir_module_serialized] * 2):
        bad = bytearray(blob)
        bad[blob.find(bytes(module)) + 100 + i] ^= 0xFF
        (tmp_path / f"{i}.jaxexp").write_bytes(bad)
    status, out, err = run("compat", tmp_path)
    assert (status, err) == (1, "jaxexp: 4 of 4 artifacts cannot be read\n")
    assert "4 artifacts: 4 damaged" in out
    reasons = out.split("\n\n")[2].splitlines()[1:]
    assert [line.split()[:2] for line in reasons] == [["2", "damaged"]] * 2
    assert all("found different bytes, with the digest ... instead of ...: " in line for line in reasons)
    status, _, err = run("migrate", tmp_path, tmp_path.parent / "new")
    assert (status, err.count("\n")) == (1, 2)


def test_migrate_in_json(damaged, tmp_path, run) -> None:
    many = tmp_path / "many"
    many.mkdir()
    (many / "good.bin").write_bytes((GOLDEN / "jax-0.4.30" / "poly.bin").read_bytes())
    (many / "cut.jaxexp").write_bytes((damaged / "cut").read_bytes())
    (many / "key.jaxexp").write_bytes(jaxexp.export(jax.jit(jax.random.normal))(jax.random.key(0)).serialize())
    (many / "notes.txt").write_text("no artifact at all, but long enough to be looked at")
    status, out, err = run("migrate", "--json", "--to", "0.5.3", many, tmp_path / "new")
    found = json.loads(out)
    files = {file["file"]: file for file in found.pop("files")}
    written = tmp_path / "new" / "good.jaxexp"
    assert (status, err.count("\n")) == (1, 2)
    assert found == {
        "into": str(tmp_path / "new"), "artifacts": 3, "migrated": 1, "refused": 1, "damaged": 1, "unreadable": 0,
        "bytes": written.stat().st_size, "skipped": [str(many / "notes.txt")],
    }  # fmt: skip
    assert files[str(many / "good.bin")] == {
        "file": str(many / "good.bin"), "state": "migrated", "written": str(written),
        "bytes": written.stat().st_size, "weights": [], "error": None, "try_again": False,
    }  # fmt: skip
    assert files[str(many / "cut.jaxexp")]["state"] == "damaged"
    assert "has dtype key<fry>" in files[str(many / "key.jaxexp")]["error"]
    # One artifact has the same form.
    for name, state in (("cut.jaxexp", "damaged"), ("key.jaxexp", "refused"), ("good.bin", "migrated")):
        status, out, err = run("migrate", "--json", "--to", "0.5.3", many / name, tmp_path / "one")
        (one,) = json.loads(out)["files"]
        assert one["state"] == state and (status, err.count("\n")) == ((0, 0) if state == "migrated" else (1, 1))


def test_try_again(folder, tmp_path, run) -> None:
    """What may go better the next time has a status of its own, unless something else is wrong."""
    gone, damaged = "http://127.0.0.1:1/model.jaxexp", tmp_path / "damaged.jaxexp"
    damaged.write_bytes((folder / "scores.jaxexp").read_bytes()[:-9])
    for command in (("verify",), ("compat",), ("inspect", "--digests"), ("inspect",)):
        assert (run(*command, gone)[0], run(*command, gone, folder / "hostile.jaxexp")[0]) == (75, 75)
        assert run(*command, gone, damaged)[0] == 1
    for more, status in ((), 75), ((damaged,), 1), ((folder / "hostile.jaxexp",), 75):
        assert run("pack", "--keep-going", "--force", tmp_path / "new.zip", gone, *more)[0] == status
    assert run("pack", tmp_path / "newer.zip", gone, folder / "hostile.jaxexp")[0] == 75
    status, out, _ = run("migrate", "--json", gone, tmp_path / "new")
    assert (status, json.loads(out)["files"][0]["try_again"]) == (75, True)
    assert json.loads(run("verify", "--json", gone, damaged)[1])["files"][0]["try_again"]
    journal = tmp_path / "journal"
    arguments = "migrate", damaged.parent, tmp_path / "out", "--journal", journal
    journal.touch()
    with lock.locked(journal):
        status, _, err = run(*arguments)
    assert (status, "try again later" in err) == (75, True)
    journal.write_text("no journal, and longer than a digest is: so it is another file")
    assert run(*arguments)[0] == 1


def test_migrate_with_inputs(folder, tmp_path, good, refused) -> None:
    scores = folder / "scores.jaxexp"
    np.savez(tmp_path / "in.npz", arr(3), np.eye(4, 3, dtype=np.float32), arr(3, 4))
    good("migrate", "--inputs", tmp_path / "in.npz", scores, tmp_path / "new")
    with np.load(tmp_path / "in.npz") as given:
        paths = [value.path for value in jaxexp.inspect(scores).arguments]
        np.savez(tmp_path / "named.npz", **dict(reversed([*zip(paths, given.values(), strict=True)])))
    good("migrate", "--inputs", tmp_path / "named.npz", scores, tmp_path / "named")
    assert (tmp_path / "named").read_bytes() == (tmp_path / "new").read_bytes()
    np.savez(tmp_path / "few.npz", arr(3))
    said = "has the arrays arr_0; expected args[0]['b'], args[0]['w'], args[1], the paths of the arguments"
    refused(said, "migrate", "--inputs", tmp_path / "few.npz", scores, tmp_path / "other")
    assert not (tmp_path / "other").exists()
    w = np.eye(3, dtype=np.float32)
    exported = jaxexp.export(jax.jit(lambda x, y: x @ jax.numpy.asarray(w) + y), weights={"w": w})(arr(2, 3), arr(3))
    exported.save(tmp_path / "old.jaxexp")
    np.savez(tmp_path / "in.npz", arr(2, 3), arr(3))
    good("migrate", "--inputs", tmp_path / "in.npz", tmp_path / "old.jaxexp", tmp_path / "new.jaxexp")
    np.testing.assert_array_equal(jaxexp.load(tmp_path / "new.jaxexp").call(arr(2, 3), arr(3)), arr(2, 3) + arr(3))


def test_migrate_keeps_cases_with_their_files(tmp_path, run) -> None:
    exported = jaxexp.export(jax.jit(jnp.sin))(jax.ShapeDtypeStruct((200, 200), np.float32))
    file = tmp_path / "f.jaxexp"
    exported.save(file, cases=[(np.ones((200, 200), np.float32),), (jaxexp.Drawn((200, 200), "float32"),)])
    status, out, _ = run("migrate", file, file, "--force")
    assert (status, "left out" in out) == (0, False)
    assert len(jaxexp.check(file).cases) == 2
    (tmp_path / "new").mkdir()
    status, out, _ = run("migrate", file, tmp_path / "new" / "f.jaxexp")
    assert status == 0
    assert "cases: 2 left out, with arrays that are not in files beside it" in out
    status, _, _ = run("migrate", tmp_path, tmp_path, "--force")
    assert (status, len(jaxexp.check(file).cases)) == (0, 2)
    assert jaxexp.check(file).ok


def test_what_jaxlib_cannot_write_is_no_remedy(folder, good, monkeypatch) -> None:
    monkeypatch.setattr(migrate, "migrated", Mock(side_effect=RuntimeError("of jaxlib\nand more")))
    text = good("compat", folder / "scores.jaxexp")
    assert "refuses it" in text and "remedy" not in text
    with pytest.raises(jaxexp.errors.ExportError, match=r"^JAX cannot write its module: of jaxlib$"):
        migrate.rewritten(b"", None)


def test_compat_in_json_has_the_verdict_of_the_table(folder, damaged, run) -> None:
    files = [folder / "scores.jaxexp", GOLDEN / "jax-0.4.30" / "poly.bin", damaged / "cut", damaged / "missing"]
    for options in ((), ("--reader", "0.4.30"), ("--reader", jax.__version__)):
        status, out, _ = run("compat", *options, *files)
        found = {one["file"]: one for one in json.loads(run("compat", "--json", *options, *files)[1])}
        assert status == 1
        for line, file in zip(out.splitlines()[1:], files, strict=False):
            one = found[str(file)]
            assert one["verdict"] in line and (one["reason"] or "") in line
            assert one.get("reader") == (options[1] if options else None)
        assert [found[str(file)]["verdict"] for file in files[2:]] == ["damaged", "unreadable"]
    assert found[str(files[0])]["verdict"] == "loaded"


def test_a_folder_may_be_readable_later(folder, tmp_path, run, monkeypatch) -> None:
    """As one artifact is."""
    shutil.copy(folder / "hostile.jaxexp", tmp_path / "good.jaxexp")
    (tmp_path / "busy.jaxexp").touch()

    def busy(self: Source, read, *check_size):
        if self.name.endswith("busy.jaxexp"):
            raise ConnectionResetError(104, "Connection reset by peer", self.name)
        return read(self, *check_size)

    for method in ("read", "mapped"):
        read = getattr(Source, method)
        monkeypatch.setattr(Source, method, lambda self, *check_size, read=read: busy(self, read, *check_size))
    for command in ("ls", "inspect"):
        status, out, err = run(command, tmp_path)
        assert (status, err.count("\n"), "good" in out) == (75, 1, True)
    (tmp_path / "cut.jaxexp").write_bytes((folder / "scores.jaxexp").read_bytes()[:-9])
    for command in ("ls", "inspect"):
        assert run(command, tmp_path)[0] == 1


def test_migrate_calls_as_run_does(folder, tmp_path, good) -> None:
    """On all devices, and with 64-bit arrays."""
    with jax.enable_x64(True):
        jaxexp.export(jax.jit(jax.numpy.sin))(np.ones(3)).save(tmp_path / "wide.jaxexp")
    sharded, wide = folder / "sharded.jaxexp", tmp_path / "wide.jaxexp"
    for old, array in ((wide, np.ones(3)), (sharded, arr(8, 4))):
        np.savez(tmp_path / "in.npz", array)
        good("migrate", "--force", "--inputs", tmp_path / "in.npz", old, tmp_path / "new")
        assert (tmp_path / "new").read_bytes() == jaxexp.migrate(old)

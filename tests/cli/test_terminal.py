"""What reaches a terminal: colours, widths, progress."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import jax
import pytest

import jaxexp
from jaxexp._cli import page
from kit.command_line import HOSTILE, started


def test_hostile_names(folder, tmp_path, run, good) -> None:
    hostile = folder / "hostile.jaxexp"
    assert jaxexp.inspect(hostile).fun_name == HOSTILE
    text = good("inspect", hostile)
    assert r"evil\x1b[31m\n\u202egood\x07" in text and r"\x1b]0;title\x07" in text
    name, archive = tmp_path / "file\x1b[2J\n\u202e", tmp_path / "a.zip"
    name.write_bytes(b"no artifact")
    for command in (
        ["inspect", "--mlir", hostile], ["inspect", name], ["verify", name], ["verify", "--json", tmp_path],
        ["migrate", "--force", hostile, name], ["nothing\x1b[2J"],
        ["pack", archive, hostile, "-m", '"k\x1b"="v\x1b[2J"', f"\x1b[2J={hostile}"],
        ["pack", archive, hostile, "-m", r'k="\u001b[2J\u009b"'], ["ls", "--long", archive],
        ["ls", "--json", archive], ["ls", archive, "\x1b[2J"], ["unpack", archive, "-d", tmp_path / "\x1b[31m"],
    ):  # fmt: skip
        _, out, err = run(*command)
        assert out + err and all(line.isprintable() for line in (out + err).split("\n")), command


def test_shown_and_wrapped() -> None:
    assert page._wrapped("one two three", 8) == ["one two", "three"]
    assert page._wrapped("漢字漢字漢", 4) == ["漢字", "漢字", "漢"]
    assert page._wrapped("args[0]['layers']['kernel']", 22) == ["args[0]['layers']", "['kernel']"]
    assert page._wrapped("float32[8,4,4,2,3,7,5,2]", 16) == ["float32[8,4,4,2,", "3,7,5,2]"]
    assert page._shortened("漢字漢字漢", 7) == "漢字..."
    assert page._shortened("float32[3], float32[4,3], float32[5,4]", 24, True) == "float32..., float32[5,4]"
    assert page.shown("plain é 漢 text") == "plain é 漢 text"
    assert page.shown("\x1b\x00\x7f\x9b\u202e\ud800\U000e0001\u2028") == r"\x1b\x00\x7f\x9b\u202e\ud800\U000e0001\u2028"


def terminal(env: dict[str, str], *arguments: object, delay: float = 0) -> tuple[int, str]:
    """Runs a command on a terminal of its own: its status, and all that appears there."""
    from kit.terminal import on_terminal  # which not every system has

    # As if it took long, and the files were many.
    code = (
        "import sys; from jaxexp._cli import page, start; from jaxexp._cli.commands import verify; "
        f"page.DELAY = {delay}; verify._FILES = 1; sys.exit(start.main())"
    )
    env = {name: value for name, value in env.items() if name not in ("COLUMNS", "LINES")} | {"TERM": "xterm-256color"}
    if not env.get("NO_COLOR"):
        env.pop("NO_COLOR", None)
    return on_terminal([sys.executable, "-c", code, *map(str, arguments)], 40, 80, env=env)


@pytest.mark.skipif(sys.platform == "win32", reason="there are no pseudo-terminals")
def test_colours_and_progress_on_a_terminal(folder, subprocess_env) -> None:
    """And none in a pipe, nor a bar for what takes no time, or is one step."""
    status, seen = terminal(subprocess_env(NO_COLOR=""), "verify", folder)
    assert status == 0
    assert "\x1b[32mwhole" in seen
    assert "verifying" in seen and "/4" in seen
    status, seen = terminal(subprocess_env(NO_COLOR=""), "inspect", folder / "missing")
    assert status == 1
    assert seen.startswith("\x1b[31mjaxexp:\x1b[0m")
    status, seen = terminal(subprocess_env(NO_COLOR="1"), "verify", folder)
    assert status == 0
    assert not re.search(r"\x1b\[[0-9;]*m", seen)
    assert "verifying" in seen
    assert "\x1b" not in terminal(subprocess_env(NO_COLOR="1"), "inspect", folder / "hostile.jaxexp")[1]
    assert "verifying" not in terminal(subprocess_env(), "verify", folder, delay=1e9)[1]
    code = "import sys; from jaxexp._cli import page, start; page.DELAY = 0; sys.exit(start.main())"
    done = started(code, "verify", folder, env=subprocess_env(FORCE_COLOR="1", TERM="xterm-256color"))
    assert (done.returncode, done.stderr, "\x1b" in done.stdout) == (0, "", False)


@pytest.mark.skipif(sys.platform == "win32", reason="there are no pseudo-terminals")
def test_progress_says_what_was_resumed_and_what_went_wrong(folder, damaged, tmp_path, subprocess_env) -> None:
    journal = "--journal", tmp_path / "journal"
    for seen_again in (False, True):
        status, seen = terminal(subprocess_env(), "verify", damaged, folder, *journal)
        assert status == 1
        assert ("from the journal" in seen) == seen_again
        assert re.search(r"verifying(, \d from the journal)?, \d error", seen)
    for command in ("check", "compat"):
        seen = terminal(subprocess_env(), command, folder, damaged)[1]
        assert {"check": "checking", "compat": "reading"}[command] in seen and "error" in seen


def test_tables_fit_the_terminal(folder, tmp_path, lines_on) -> None:
    """Signatures are cut before names are broken, such as people give them."""
    names = ("resnet50/imagenet-1k/train_step_batch_32", "resnet50/imagenet-1k/predict_float32_batch_128", "vit/b16")
    fleet, place = tmp_path / "fleet.zip", tmp_path / "models"
    with jaxexp.Archive.create(fleet) as archive:
        for name, source in zip(names, ("scores", "sharded", "untrailed"), strict=True):
            blob = (folder / f"{source}.jaxexp").read_bytes()
            archive.add(name, blob, metadata={"commit": "0e3c650", "step": 9000})
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            (place / f"{name}.jaxexp").write_bytes(blob)
    files = sorted(place.rglob("*.jaxexp"))
    for columns in (60, 80, 100, 140, 200):
        for status, *arguments in (
            (0, "ls", fleet), (0, "ls", "--long", fleet), (0, "verify", place, fleet), (0, "compat", fleet),
            (1, "compat", "--reader", "0.6.2", fleet), (1, "diff", *files[:2]),
        ):  # fmt: skip
            shown = lines_on(columns, *arguments, status=status)
            if arguments[0] == "ls":
                assert any("vit/b16" in line for line in shown)
                assert columns < 100 or "--long" in arguments or any(names[0] in line for line in shown)


def test_long_tables_are_cut_on_a_terminal_alone(tmp_path, lines_on, good) -> None:
    jaxexp.export(jax.jit(lambda xs: xs[0]))([1.0] * 300).save(tmp_path / "f")
    seen = "\n".join(lines_on(80, "inspect", tmp_path / "f"))
    assert "args[0][39]" in seen and "args[0][40]" not in seen and "260 more: --all" in seen
    assert "... (--all)" in seen  # of the tree
    seen = "\n".join(lines_on(80, "inspect", "--all", tmp_path / "f"))
    assert "args[0][99]" in seen and "--all" not in seen
    lines = good("inspect", tmp_path / "f").splitlines()
    assert sum(line.startswith("  args[0][") for line in lines) == 300
    assert any(len(line) > 500 for line in lines)  # the tree


@pytest.fixture
def table(monkeypatch, capsys):
    def table(width: int, columns: list[page.Column], rows: list[tuple[str, ...]]) -> list[str]:
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
        monkeypatch.setenv("COLUMNS", str(width))
        monkeypatch.setenv("NO_COLOR", "1")
        made = page.Page()
        made.table(columns, rows)
        made.write()
        return capsys.readouterr().out.splitlines()

    return table


def test_a_table_that_cannot_fit_becomes_records(table) -> None:
    columns = [
        page.Column("name"), page.Column("bytes", right=True), page.Column("signature", cut=True), page.Column("note")
    ]  # fmt: skip
    rows = [("resnet/batch_8", "1,234,567", "f" * 80, "one two three four"), ("vit", "8", "g", "")]
    first = table(60, columns, rows)[:2]
    assert [line.split()[:2] for line in first] == [["name", "bytes"], ["resnet/batch_8", "1,234,567"]]
    assert table(40, columns, rows) == [
        "  resnet/batch_8", "    bytes      1,234,567", f"    signature  {'f' * 22}...",
        "    note       one two three four", "  vit", "    bytes      8", "    signature  g",
    ]  # fmt: skip


def test_output_in_another_encoding(subprocess_env, tmp_path) -> None:
    jaxexp.export(jax.jit(lambda tree: tree["漢"]))({"漢": 1.0}).save(tmp_path / "f")
    code = "import sys; from jaxexp._cli.start import main; sys.exit(main())"
    done = started(code, "inspect", tmp_path / "f", env=subprocess_env(PYTHONIOENCODING="latin-1", PYTHONUTF8="0"))
    assert (done.returncode, done.stderr) == (0, "")
    assert r"\u6f22" in done.stdout


@pytest.mark.skipif(os.name == "nt", reason="a shell of POSIX closes them, and its pipes end so")
@pytest.mark.processes(reason="one of the commands imports JAX")
def test_closed_streams_and_readers_who_have_left(folder, subprocess_env) -> None:
    """The exit status says what there is to say: whether something is wrong, or that nobody reads any more."""
    files = {folder / "scores.jaxexp": 0, folder / "none.jaxexp": 1}
    commands = [(f"verify '{file}' <&- >&- 2>&-", status) for file, status in files.items()]
    commands += [(f"verify '{next(iter(files))}' {how}", 0) for how in (">&-", "2>&-")]
    commands += [(f"{command} '{next(iter(files))}'", 141) for command in ("inspect", "inspect --mlir")]
    for command, status in commands:
        reading, writing = os.pipe()
        if status == 141:
            os.close(reading)
        shell = ["sh", "-c", f'exec "$0" -m jaxexp {command}', sys.executable]
        done = subprocess.run(shell, env=subprocess_env(), stdout=writing, stderr=subprocess.PIPE, text=True)
        assert (done.returncode, "Error" in done.stderr) == (status, False), command
        assert status != 141 or done.stderr == "", command
        for end in (writing, *([reading] if status != 141 else [])):
            os.close(end)

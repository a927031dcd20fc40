"""What reaches a terminal: colours, widths, progress."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import jax
import pytest

import jaxexp
from jaxexp._cli import page, progress
from kit.command_line import HOSTILE, started

# --- what reaches a terminal ------------------------------------------------------------------------------------------


def printable(text: str) -> bool:
    return all(line.isprintable() for line in text.split("\n"))


def test_hostile_names(folder, tmp_path, run, good) -> None:
    hostile = folder / "hostile.jaxexp"
    assert jaxexp.inspect(hostile).fun_name == HOSTILE
    text = good("inspect", hostile)
    assert r"evil\x1b[31m\n\u202egood\x07" in text
    assert r"\x1b]0;title\x07" in text
    outputs = [text, good("inspect", "--json", hostile), good("inspect", "--mlir", hostile), good("compat", hostile)]
    outputs += [good("compat", "--json", hostile), good("verify", hostile)]
    outputs += run("diff", hostile, folder / "scores.jaxexp")[1:]
    name = tmp_path / "file\x1b[2J\n\u202e"
    name.write_bytes(b"no artifact")
    outputs += run("inspect", name)[1:]
    outputs += run("verify", name)[1:]
    outputs += run("verify", "--json", tmp_path)[1:]
    name.unlink()
    outputs += run("bench", "--rounds", 1, hostile)[1:]
    outputs += run("migrate", hostile, name)[1:]
    outputs += run("nothing\x1b[2J")[1:]
    outputs += run("pack", tmp_path / "a.zip", hostile, "-m", '"k\x1b"="v\x1b[2J"', f"\x1b[2J={hostile}")[1:]
    outputs += [good("pack", tmp_path / "a.zip", hostile, "-m", r'k="\u001b[2J\u009b"')]
    outputs += [good("ls", "--long", tmp_path / "a.zip"), good("ls", "--json", tmp_path / "a.zip")]
    outputs += run("ls", tmp_path / "a.zip", "\x1b[2J")[1:]
    outputs += [good("unpack", tmp_path / "a.zip", "-d", tmp_path / "\x1b[31m")]
    for output in outputs:
        assert printable(output), output


def test_shown() -> None:
    assert page.shown("plain é 漢 text") == "plain é 漢 text"
    assert page.shown("\x1b\x00\x7f\x9b\u202e\ud800\U000e0001\u2028") == r"\x1b\x00\x7f\x9b\u202e\ud800\U000e0001\u2028"


def terminal(env: dict[str, str], columns: int, *arguments: object, delay: float | None = 0) -> tuple[int, str]:
    """Runs a command on a terminal of its own: its status, and all that appears there."""
    from kit.terminal import on_terminal  # which not every system has

    # As if it took long, and the files were many.
    code = (
        "import sys; from jaxexp._cli import progress, start; from jaxexp._cli.commands import verify; "
        "progress.DELAY = {}; verify._FILES = 1; sys.exit(start.main())"
    )
    env = {name: value for name, value in env.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")} | {
        "TERM": "xterm-256color",
        **{name: value for name, value in env.items() if name == "NO_COLOR" and value},
    }
    code = code.format("progress.DELAY" if delay is None else delay)
    return on_terminal([sys.executable, "-c", code, *map(str, arguments)], 40, columns, env=env)


needs_pty = pytest.mark.skipif(sys.platform == "win32", reason="there are no pseudo-terminals")


@needs_pty
def test_colours_and_progress_on_a_terminal(folder, subprocess_env) -> None:
    status, seen = terminal(subprocess_env(), 80, "verify", folder)
    assert status == 0
    assert "\x1b[32mwhole" in seen
    assert "verifying" in seen and "/4" in seen
    status, seen = terminal(subprocess_env(), 80, "inspect", folder / "missing")
    assert status == 1
    assert seen.startswith("\x1b[31mjaxexp:\x1b[0m")
    status, seen = terminal(subprocess_env(NO_COLOR="1"), 80, "verify", folder)
    assert status == 0
    assert not re.search(r"\x1b\[[0-9;]*m", seen)
    assert "verifying" in seen
    assert "\x1b" not in terminal(subprocess_env(NO_COLOR="1"), 80, "inspect", folder / "hostile.jaxexp")[1]


@needs_pty
def test_work_that_takes_no_time_shows_no_bar(folder, subprocess_env) -> None:
    assert "verifying" not in terminal(subprocess_env(), 80, "verify", folder, delay=1e9)[1]
    assert "verifying" not in terminal(subprocess_env(), 80, "verify", folder / "scores.jaxexp")[1]  # one step


@needs_pty
@pytest.mark.parametrize("columns", [60, 80, 120])
def test_lines_fit_the_terminal(folder, damaged, subprocess_env, columns: int) -> None:
    env = subprocess_env(NO_COLOR="1")
    for arguments in (
        ["inspect", folder / "scores.jaxexp", folder / "sharded.jaxexp"],
        ["verify", "-q", damaged],
        ["diff", folder / "scores.jaxexp", folder / "sharded.jaxexp"],
    ):
        seen = terminal(env, columns, *arguments, delay=1e9)[1]
        shown = [line for line in seen.replace("\r", "").split("\n") if not line.startswith(("jaxexp:", "scores  "))]
        assert max(map(len, shown)) <= columns
        assert len(shown) > 3
        for line in shown:  # nothing is lost but spaces
            assert "..." not in line


@pytest.fixture(scope="module")
def named_as_people_do(folder, tmp_path_factory):
    """An archive and two files with long names."""
    place = tmp_path_factory.mktemp("models")
    names = ("resnet50/imagenet-1k/train_step_batch_32", "resnet50/imagenet-1k/predict_float32_batch_128", "vit/b16")
    for name, source in zip(names, ("scores", "sharded", "untrailed"), strict=True):
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / f"{name}.jaxexp").write_bytes((folder / f"{source}.jaxexp").read_bytes())
    with jaxexp.Archive.create(place / "fleet.zip") as archive:
        for name in names:
            archive.add(name, (place / f"{name}.jaxexp").read_bytes(), metadata={"commit": "0e3c650", "step": 9000})
    return place


OTHER_WIDTHS = pytest.mark.slow(reason="six commands in a terminal for each")


@needs_pty
@pytest.mark.parametrize("columns", [60, *(pytest.param(n, marks=OTHER_WIDTHS) for n in (80, 100, 140, 200))])
def test_tables_fit_the_terminal(named_as_people_do, subprocess_env, columns: int) -> None:
    env, place = subprocess_env(NO_COLOR="1"), named_as_people_do
    fleet, files = place / "fleet.zip", sorted(place.rglob("*.jaxexp"))
    for arguments in (
        ["ls", fleet],
        ["ls", "--long", fleet],
        ["verify", place],
        ["compat", fleet],
        ["compat", "--reader", "0.6.2", fleet],
        ["diff", *files[:2]],
    ):
        seen = terminal(env, columns, *arguments, delay=1e9)[1].replace("\r", "")
        lines = [line for line in seen.split("\n") if not line.startswith("jaxexp:")]
        assert max(map(len, lines)) <= columns, arguments
        if arguments[0] == "ls":  # signatures are cut before names are broken
            assert "vit/b16" in seen
            assert columns < 100 or "--long" in arguments or "resnet50/imagenet-1k/train_step_batch_32" in seen


def test_a_table_that_cannot_fit_becomes_records(monkeypatch, capsys) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    columns = [
        page.Column("name"),
        page.Column("bytes", right=True),
        page.Column("signature", cut=True),
        page.Column("note"),
    ]
    rows = [("resnet/batch_8", "1,234,567", "f" * 80, "one two three four"), ("vit", "8", "g", "")]

    def shown(width: int) -> list[str]:
        monkeypatch.setenv("COLUMNS", str(width))
        monkeypatch.setenv("NO_COLOR", "1")
        made = page.Page()
        made.table(columns, rows)
        made.write()
        return capsys.readouterr().out.splitlines()

    assert [line.split()[:2] for line in shown(60)[:2]] == [["name", "bytes"], ["resnet/batch_8", "1,234,567"]]
    assert shown(40) == [
        "  resnet/batch_8",
        "    bytes      1,234,567",
        f"    signature  {'f' * 22}...",
        "    note       one two three four",
        "  vit",
        "    bytes      8",
        "    signature  g",
    ]


@needs_pty
def test_long_tables_are_cut_on_a_terminal_alone(tmp_path, subprocess_env) -> None:
    jaxexp.export(jax.jit(lambda xs: xs[0]))([1.0] * 300).save(tmp_path / "f")
    seen = terminal(subprocess_env(NO_COLOR="1"), 80, "inspect", tmp_path / "f")[1]
    assert "args[0][39]" in seen
    assert "args[0][40]" not in seen
    assert "260 more: --all" in seen
    assert "... (--all)" in seen  # of the tree
    seen = terminal(subprocess_env(NO_COLOR="1"), 80, "inspect", "--all", tmp_path / "f")[1]
    assert "args[0][99]" in seen
    assert "--all" not in seen


def test_no_colours_and_no_progress_in_a_pipe(folder, subprocess_env) -> None:
    code = "import sys; from jaxexp._cli import progress, start; progress.DELAY = 0; sys.exit(start.main())"
    done = started(code, "verify", folder, env=subprocess_env(FORCE_COLOR="1", TERM="xterm-256color"))
    assert done.returncode == 0
    assert done.stderr == ""
    assert "\x1b" not in done.stdout


def test_text_is_wrapped_at_spaces() -> None:
    assert page._wrapped("one two three", 8) == ["one two", "three"]
    assert page._wrapped("one two", 7) == ["one two"]
    assert page._wrapped("one two ", 7) == ["one two", ""]
    assert page._wrapped("abcdefghij", 4) == ["abcd", "efgh", "ij"]
    assert page._wrapped("漢字漢字漢", 4) == ["漢字", "漢字", "漢"]
    assert page._wrapped("", 4) == [""]
    assert page._wrapped("models/resnet/b8", 10) == ["models/", "resnet/b8"]
    assert page._wrapped("m/aaaaaaaaaaaa", 10) == ["m/aaaaaaaa", "aaaa"]
    assert page._wrapped("args[0]['layers']['kernel']", 22) == ["args[0]['layers']", "['kernel']"]
    assert page._wrapped("float32[8,4,4,2,3,7,5,2]", 16) == ["float32[8,4,4,2,", "3,7,5,2]"]
    text = " ".join(["word"] * 100_000)
    assert " ".join(page._wrapped(text, 72)) == text
    assert page._shortened("漢字漢字漢", 7) == "漢字..."
    assert page._shortened("float32[3], float32[4,3], float32[5,4]", 24, True) == "float32..., float32[5,4]"
    assert page._shortened("漢字漢字漢漢字漢字漢", 11, True) == "漢字...字漢"


def test_names_are_broken_last(monkeypatch, capsys) -> None:
    monkeypatch.setattr(page.shutil, "get_terminal_size", lambda: os.terminal_size((80, 24)))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    shown = page.Page()
    name, types = "result[0]['enc']['kernel']", ("float32[64,1024] over P('x', None)", "bfloat16[64,1024] over P('x')")
    shown.table([page.Column("signature", style="name"), page.Column("a"), page.Column("b")], [(name, *types)])
    shown.write()
    lines = re.sub(r"\x1b\[\d*m", "", capsys.readouterr().out).splitlines()
    assert max(map(len, lines)) <= 80
    assert any(name in line for line in lines)


def test_one_long_cell_does_not_lengthen_every_row(capsys) -> None:
    shown = page.Page()
    shown.table([page.Column("a"), page.Column("b")], [("x" * 10_000, "y"), *[("z", "y")] * 3])
    shown.write()
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines[2:])) < 300
    assert "x" * 10_000 in lines[1]


def test_output_in_another_encoding(folder, subprocess_env, tmp_path) -> None:
    jaxexp.export(jax.jit(lambda tree: tree["漢"]))({"漢": 1.0}).save(tmp_path / "f")
    code = "import sys; from jaxexp._cli.start import main; sys.exit(main())"
    done = started(code, "inspect", tmp_path / "f", env=subprocess_env(PYTHONIOENCODING="latin-1", PYTHONUTF8="0"))
    assert (done.returncode, done.stderr) == (0, "")
    assert r"\u6f22" in done.stdout


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
@pytest.mark.skipif(os.name == "nt", reason="a shell of POSIX closes them")
def test_closed_streams(folder, subprocess_env, closed: str) -> None:
    """Nobody reads the output then; the exit status says what there is to say."""
    for name, status in (("scores.jaxexp", 0), ("none.jaxexp", 1)):
        command = f'exec "$0" -m jaxexp verify "$1" {closed}'
        arguments = ["sh", "-c", command, sys.executable, str(folder / name)]
        done = subprocess.run(arguments, env=subprocess_env(), capture_output=True, text=True, check=False)
        assert (done.returncode, "AttributeError" in done.stderr) == (status, False)


def test_progress_counts(monkeypatch, capsys) -> None:
    with progress.bar("work", 3) as advance:
        advance(1)
        advance(2)
    assert capsys.readouterr() == ("", "")


def test_shell_completion(subprocess_env) -> None:
    code = "import sys; from jaxexp._cli.start import main; sys.exit(main())"
    done = started(code, env=subprocess_env(_JAXEXP_COMPLETE="bash_source"))
    assert "_JAXEXP_COMPLETE=bash_complete" in done.stdout
    env = subprocess_env(_JAXEXP_COMPLETE="bash_complete", COMP_WORDS="jaxexp in", COMP_CWORD="1")
    assert started(code, env=env).stdout.split(",")[-1].strip() == "inspect"

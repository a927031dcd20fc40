"""The code of the documentation, run as a reader would paste it.

The blocks of a page run in their order, in one folder. A block of ``python`` sees what those before it have defined,
unless ``<!-- new process -->`` stands above it. A ``text`` block below is what it prints: there ``...`` stands for
anything. ``<!-- not run: REASON -->`` leaves a block out, and ``<!-- only on JAX 0.12 -->`` compares what it prints on
that JAX and later ones only. ``<!-- file: app.py -->`` makes a block a file, which the blocks below it can import. In
``console`` blocks, lines that begin with ``$`` are commands, and the others what they print. Blocks in other languages
are for the tests of those.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import logging
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kit.places import ROOT, WORKERS

DOCS = ROOT / "docs"
PROMPT = "$ "
FENCE = re.compile(r"^( *)(```+)([\w{}:-]*)[^\n]*\n(.*?)^\1\2 *$", re.DOTALL | re.MULTILINE)
NOTE = re.compile(r"<!-- (new process|not run|only on JAX|file)(?:: | |)(.*?) -->")
RUN = ("python", "console")


@dataclasses.dataclass(frozen=True, slots=True)
class Block:
    """A block of a page: what is in it, what stands in comments above it, and the text block that follows, if any."""

    place: str  # the page and the line, for messages
    language: str
    code: str
    notes: Mapping[str, str]
    printed: str | None = None

    @property
    def runs(self) -> bool:
        return self.language in RUN and "not run" not in self.notes


def all_pages() -> list[Path]:
    return [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))] if DOCS.exists() else []


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def blocks(page: Path) -> list[Block]:
    """The fenced blocks of a page, those of text joined to the code that they follow."""
    text = page.read_text(encoding="utf-8")
    found: list[Block] = []
    end = 0
    for fence in FENCE.finditer(text):
        between, end = text[end : fence.start()], fence.end()
        indent, _, language, code = fence.groups()
        code = re.sub(f"^{indent}", "", code, flags=re.MULTILINE)
        comments = between[len(re.sub(r"(?:\s*<!--[^>]*-->)*\s*\Z", "", between)) :]  # directly above
        notes = dict(NOTE.findall(comments))
        if language == "text" and "not run" not in notes:
            assert found and found[-1].runs and found[-1].printed is None, f"{name_of(page)}: what prints {code!r}?"
            found[-1] = dataclasses.replace(found[-1], printed=code, notes={**found[-1].notes, **notes})
            continue
        line = text.count("\n", 0, fence.start()) + 2
        found.append(Block(f"{name_of(page)}:{line}", language, code, notes))
    return found


def processes(page: Path) -> list[list[Block]]:
    """The blocks that run, by the processes that they run in."""
    found: list[list[Block]] = [[]]
    for block in filter(lambda block: block.runs, blocks(page)):
        if "new process" in block.notes:
            found.append([])
        found[-1].append(block)
    return [part for part in found if part]


def needs_processes(page: Path) -> bool:
    """Whether a page sets JAX up, writes files to import, or is a story of several processes from its first line on."""
    code = [block for block in blocks(page) if block.runs]
    return page.name == "tutorial.md" or any("jax.config.update(" in b.code or "file" in b.notes for b in code)


def libraries(page: Path) -> set[str]:
    """What a page imports that does not come with jaxexp, and that it does not write itself; and a plugin's package."""
    python = [block for block in blocks(page) if block.runs and block.language == "python"]
    found = set(re.findall(r"^(?:import|from) (\w+)", "\n".join(block.code for block in python), re.MULTILINE))
    if any("jaxexp.runtime" in block.code for block in python):
        found.add("xla_plugins")
    written = {block.notes["file"].removesuffix(".py") for block in python if "file" in block.notes}
    return found - written - sys.stdlib_module_names - {"jax", "jaxexp", "numpy", "safetensors"}


def programs(page: Path) -> set[str]:
    """The programs that the commands of a page begin with."""
    sessions = [session(block.code) for block in blocks(page) if block.runs and block.language == "console"]
    return {command.split()[0] for commands in sessions for command, _ in commands} - {"jaxexp", "python"}


def run_here(page: Path, folder: Path) -> dict[str, Any]:
    """Runs a page in this process, except for its commands. Returns the names that its last part has."""
    logger = logging.getLogger("jaxexp")
    level = logger.level
    try:
        with contextlib.chdir(folder):
            return [{}, *(run_part(page, number, folder) for number in range(len(processes(page))))][-1]
    finally:
        logger.setLevel(level)  # a page may set it for its reader; the tests that follow need it as it was


def run_apart(page: Path, folder: Path) -> None:
    """Runs a page in as many processes as it speaks of. They import what the page has written."""
    for number in range(len(processes(page))):
        run_process(page, number, folder, sys.executable, environment(folder))


def run_process(page: Path, number: int, folder: Path, python: str, env: Mapping[str, str]) -> None:
    """Runs one of the processes of a page."""
    code = "import pathlib, sys; from kit import documentation; documentation.run_part(pathlib.Path(sys.argv[1]), "
    command = [python, "-c", f"{code}{number}, pathlib.Path.cwd())", str(page)]
    done = subprocess.run(command, cwd=folder, env=dict(env), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def run_part(page: Path, number: int, folder: Path) -> dict[str, Any]:
    """Runs the blocks of a process here. Returns the names that they leave."""
    names = {"__name__": "__main__"}
    for block in processes(page)[number]:
        run_block(block, names, folder)
    return names


def run_block(block: Block, names: dict[str, Any], folder: Path) -> None:
    if block.language == "console":
        for command, printed in session(block.code):
            found = run_command(command, folder)
            assert alike(found, printed), f"{block.place}: {command}\nprints\n{found}\nand the page says\n{printed}"
        return
    if "file" in block.notes:
        (folder / block.notes["file"]).write_text(block.code, encoding="utf-8")
        return
    out = io.StringIO()
    code = compile(
        "\n" * (int(block.place.rpartition(":")[2]) - 1) + block.code, block.place, "exec", dont_inherit=True
    )
    with contextlib.redirect_stdout(out):
        exec(code, names)
    if block.printed is not None and _is_compared(block):
        assert alike(out.getvalue(), block.printed), f"{block.place} prints\n{out.getvalue()}"


def _is_compared(block: Block) -> bool:
    release = block.notes.get("only on JAX")
    if release is None:
        return True
    import jax

    return jax.__version_info__ >= tuple(map(int, release.split(".")))


def session(code: str) -> list[tuple[str, str]]:
    """The commands of a console block, each with what it prints."""
    first, *parts = re.split(r"^\$ (.*)$", re.sub(r"\\\n(> )?", "", code), flags=re.MULTILINE)
    assert parts and not first, "a console block begins with a command"
    return [(command, printed.strip("\n")) for command, printed in zip(parts[::2], parts[1::2], strict=True)]


def run_command(command: str, folder: Path) -> str:
    shell, pipe = ["sh", "-c", command], subprocess.PIPE
    env = environment(folder)
    return subprocess.run(shell, cwd=folder, env=env, stdout=pipe, stderr=subprocess.STDOUT, text=True).stdout


def environment(folder: Path) -> dict[str, str]:
    """Programs of a page find ``jaxexp`` and ``python``, and print as where nobody looks."""
    programs = folder.with_name(f"{folder.name}-bin")
    if not programs.exists():
        programs.mkdir()
        for name, more in (("python", ""), ("jaxexp", " -m jaxexp")):
            (programs / name).write_text(f'#!/bin/sh\nexec "{sys.executable}"{more} "$@"\n')
            (programs / name).chmod(0o755)
    kept = {name: value for name, value in os.environ.items() if name not in ("XLA_FLAGS", "LINES")}
    path = os.pathsep.join([str(WORKERS.parents[1]), str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    own = {"PATH": f"{programs}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": path, "COLUMNS": "100"}
    return {**kept, **own, "NO_COLOR": "1", "JAX_PLATFORMS": "cpu", "LC_ALL": "C.UTF-8"}


def alike(found: str, shown: str) -> bool:
    """Whether a page shows what was printed; its ``...`` stands for anything, also for lines."""
    parts = [re.escape(part) for part in "\n".join(map(str.rstrip, shown.strip().splitlines())).split("...")]
    text = "\n".join(map(str.rstrip, found.strip().splitlines()))
    return re.fullmatch(".*?".join(parts), text, re.DOTALL) is not None

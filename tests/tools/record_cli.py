"""Records the terminal sessions in docs/guide/cli.md from the real program: ``python tests/tools/record_cli.py``.

The page says what to run: the block of Python makes the artifacts, and each line of a console block that begins with
``$`` is a command, whose output replaces what stands below it. Commands run one after the other in one empty folder,
on a terminal of 100 columns without colours.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from kit.documentation import PROMPT, environment
from kit.places import GOLDEN, ROOT
from kit.terminal import on_terminal

PAGE = ROOT / "docs" / "guide" / "cli.md"
OLD = GOLDEN / "jax-0.4.30" / "poly.bin"
COLUMNS = 100
CONSOLE = re.compile(r"```console\n(.*?)```", re.DOTALL)
PYTHON = re.compile(r"<!-- artifacts -->\n```python\n(.*?)```", re.DOTALL)
VERSIONS = re.compile(r"<!-- recorded with -->\n(.*)\n")


def recorded(text: str) -> str:
    """The page with what its commands print today."""
    with tempfile.TemporaryDirectory() as place:
        folder, env = setting(Path(place))
        make_artifacts(text, folder, env)
        text = CONSOLE.sub(lambda block: "```console\n" + session(block[1], folder, env) + "```", text)
    return VERSIONS.sub(f"<!-- recorded with -->\n{versions()}\n", text)


def setting(place: Path) -> tuple[Path, dict[str, str]]:
    """An empty folder, and the variables of commands that run there."""
    folder = place / "here"
    folder.mkdir()
    # Modules remember which files they were traced from; so their sizes would tell where jaxexp is installed.
    return folder, {**environment(folder), "TERM": "xterm", "JAX_TRACEBACK_IN_LOCATIONS_LIMIT": "0"}


def make_artifacts(text: str, folder: Path, env: dict[str, str]) -> None:
    """Makes the artifacts of the page, with its own program."""
    (folder / "old.bin").write_bytes(OLD.read_bytes())
    code = PYTHON.search(text)
    assert code is not None, "the page has no block of Python that makes artifacts"
    subprocess.run([sys.executable, "-c", code[1]], cwd=folder, env=env, check=True)


def session(block: str, folder: Path, env: dict[str, str]) -> str:
    commands = [line for line in block.splitlines() if line.startswith(PROMPT)]
    return "".join(f"{command}\n{output(command.removeprefix(PROMPT), folder, env)}" for command in commands)


def output(command: str, folder: Path, env: dict[str, str]) -> str:
    """What a command of a shell leaves on a terminal."""
    _, seen = on_terminal(["sh", "-c", command], 50, COLUMNS, cwd=folder, env=env)
    return settled(seen)


def settled(seen: str) -> str:
    """Without progress bars, which take themselves back."""
    text = seen.replace("\r\n", "\n")
    return re.sub(r"\x1b\[\?25l.*?\x1b\[\?25h(\r?\x1b\[1A)?\r?(\x1b\[2K)?", "", text, flags=re.DOTALL)


def versions() -> str:
    import jax

    import jaxexp

    return f"Recorded with jaxexp {jaxexp.__version__} and JAX {jax.__version__}, at {COLUMNS} columns."


if __name__ == "__main__":
    PAGE.write_text(recorded(PAGE.read_text()))

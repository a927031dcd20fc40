"""What type checkers see of the public names: their exact types, and every misspelt one."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import jaxexp
from tools import public_names

REPOSITORY = Path(__file__).parents[2]
CORRECT, MISTAKES = (Path(__file__).with_name("typed") / name for name in ("correct.py", "mistakes.py"))
ROOT = Path(jaxexp.__file__).parents[1]

Found = dict[tuple[str, int], list[str]]


def test_the_stub_is_what_the_table_says() -> None:
    for module in (jaxexp, jaxexp.errors):
        source = Path(module.__file__)
        assert source.with_suffix(".pyi").read_text() == public_names.stub(source)
        assert public_names.table(source) == module._HOMES


def run(*arguments: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", *arguments],
        cwd=REPOSITORY,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr  # 1: there are errors
    return done.stdout


def mypy() -> Found:
    # A package that is installed is found without help, and mypy does not want to be told where.
    elsewhere = {} if str(ROOT) in sys.path and ROOT.name == "site-packages" else {"MYPYPATH": str(ROOT)}
    output = run("mypy", "--output", "json", str(CORRECT), str(MISTAKES), **elsewhere)
    found: Found = {}
    for line in output.splitlines():
        error = json.loads(line)
        found.setdefault((Path(error["file"]).name, error["line"]), []).append(error["message"])
    return found


def pyright(folder: Path) -> Found:
    project = folder / "pyrightconfig.json"
    files = [os.path.relpath(path, folder) for path in (CORRECT, MISTAKES)]
    project.write_text(json.dumps({"include": files, "extraPaths": [str(ROOT)]}))
    output = run("pyright", "--outputjson", "--pythonpath", sys.executable, "--project", str(project))
    found: Found = {}
    for error in json.loads(output)["generalDiagnostics"]:
        place = Path(error["file"]).name, error["range"]["start"]["line"] + 1
        found.setdefault(place, []).append(error["message"])
    return found


@pytest.mark.long(
    promise="type checkers see each misspelt name, and nothing wrong in code that follows the documentation",
    sibling="test_typing.py::test_the_stub_is_what_the_table_says",
)
def test_type_checkers_find_every_mistake_and_nothing_else(tmp_path: Path) -> None:
    for name in ("mypy", "pyright"):
        pytest.importorskip(name, reason="type checkers come with the extra 'lint', which one Python of the matrix has")
    expected = [number for number, line in enumerate(MISTAKES.read_text().splitlines(), 1) if "# mistake" in line]
    assert len(expected) == 5
    for found in (mypy(), pyright(tmp_path)):
        errors = {line: messages for (file, line), messages in found.items() if file == MISTAKES.name}
        assert sorted(errors) == expected
        assert all(len(messages) == 1 for messages in errors.values()), errors
        assert [place for place in found if place[0] != MISTAKES.name] == []


def test_the_correct_code_uses_every_name() -> None:
    text = CORRECT.read_text()
    assert set(re.findall(r"jaxexp\.(\w+)", text)) - {"__version__", "runtime"} == set(jaxexp.__all__)
    assert set(re.findall(r"jaxexp\.errors\.(\w+)", text)) == set(jaxexp.errors.__all__)

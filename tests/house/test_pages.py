"""The code of the documentation runs, and prints what the pages say. Pages of libraries are in tests/libraries."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from kit import documentation as pages

PAGES = pages.all_pages()
# The recorded sessions of cli.md and the README's example have tests of their own.
ELSEWHERE = {"docs/guide/cli.md", "README.md"}
# Languages of blocks that are for tests of those languages, for other tools, or show no code.
OTHERS = {"sh", "cpp", "c", "cmake", "", "{toctree}", "{include}", "{eval-rst}"}

HERE = [page for page in PAGES if not pages.libraries(page) and pages.name_of(page) not in ELSEWHERE]
TOGETHER = [page for page in HERE if pages.processes(page) and not pages.needs_processes(page)]
APART = [page for page in HERE if pages.processes(page) and pages.needs_processes(page)]


@pytest.mark.sampled(one_in=3, reason="many cases go the same way")
@pytest.mark.parametrize("page", TOGETHER, ids=pages.name_of)
def test_page(page: Path, tmp_path: Path) -> None:
    skip_without_programs(page)
    pages.run_here(page, tmp_path)


@pytest.mark.sampled(one_in=3, reason="many cases go the same way")
@pytest.mark.parametrize("page", APART, ids=pages.name_of)
@pytest.mark.processes(reason="runs the page in the processes that it speaks of")
def test_page_in_processes(page: Path, tmp_path: Path) -> None:
    skip_without_programs(page)
    pages.run_apart(page, tmp_path)


def skip_without_programs(page: Path) -> None:
    missing = [program for program in sorted(pages.programs(page)) if shutil.which(program) is None]
    if missing:
        pytest.skip(f"the page uses {', '.join(missing)}, which this machine has not")


@pytest.mark.parametrize("page", PAGES, ids=pages.name_of)
def test_every_block_runs_or_says_why_not(page: Path) -> None:
    for block in pages.blocks(page):
        if block.language in (*pages.RUN, "text"):
            assert block.runs or len(block.notes["not run"]) > 10, block.place
        else:
            assert block.language in OTHERS, f"{block.place}: a block of {block.language or 'nothing'}"


def test_most_pages_have_code_that_runs() -> None:
    assert len(TOGETHER) + len(APART) > 15


def test_a_page_that_is_wrong_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "ROOT", tmp_path)
    page = tmp_path / "page.md"
    (tmp_path / "here").mkdir()
    right = "```python\nx = 2\n```\n\n```python\nprint(x)\nprint(7.25)\n```\n\n```text\n2\n7...\n```\n"
    commands = "```console\n$ echo one\none\n$ echo two; \\\n> echo three\ntwo\nthree\n```\n"
    page.write_text(right + commands)
    assert pages.run_here(page, tmp_path / "here")["x"] == 2
    for before, after in (("\n2\n", "\n3\n"), ("7...", "8..."), ("$ echo two", "$ echo four"), ("x = 2", "y = 2")):
        assert before in right + commands
        page.write_text((right + commands).replace(before, after))
        with pytest.raises((AssertionError, NameError)):
            pages.run_here(page, tmp_path / "here")
    page.write_text(right.replace("\n\n```python", "\n\n<!-- new process -->\n```python"))
    with pytest.raises(NameError):
        pages.run_here(page, tmp_path / "here")
    page.write_text("```text\nwho printed this?\n```\n")
    with pytest.raises(AssertionError, match="what prints"):
        pages.blocks(page)
    page.write_text("<!-- file: two.py -->\n```python\n1 / 0\n```\n")
    pages.run_here(page, tmp_path / "here")
    assert (tmp_path / "here" / "two.py").read_text() == "1 / 0\n"
    page.write_text("<!-- not run: no network here -->\n```python\n1 / 0\n```\n")
    assert not pages.processes(page)

"""The code of the documentation runs, and prints what the pages say; the README's example is read by those it names.

Pages of libraries are in tests/libraries.
"""

from __future__ import annotations

import importlib
import re
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest
from jax import export as jax_export

import jaxexp
from jaxexp import _jax
from kit import documentation as pages
from kit.places import GOLDEN, ROOT

PAGES = pages.all_pages()
# The recorded sessions of cli.md and the README's example have tests of their own.
ELSEWHERE = {"docs/guide/cli.md", "README.md"}
# Languages of blocks that are for tests of those languages, for other tools, or show no code.
OTHERS = {"sh", "cpp", "c", "cmake", "", "{toctree}", "{include}", "{eval-rst}"}

HERE = [page for page in PAGES if not pages.libraries(page) and pages.name_of(page) not in ELSEWHERE]
pytestmark = pytest.mark.jax
TOGETHER = [page for page in HERE if pages.processes(page) and not pages.needs_processes(page)]
APART = [page for page in HERE if pages.processes(page) and pages.needs_processes(page)]


@pytest.mark.wide(one_in=5, promise="the code of each page runs, and prints what the page says")
@pytest.mark.parametrize("page", TOGETHER, ids=pages.name_of)
def test_page(page: Path, tmp_path: Path) -> None:
    skip_without_programs(page)
    pages.run_here(page, tmp_path)


@pytest.mark.long(promise="the code of pages about several processes runs there", sibling="test_pages.py::test_page")
@pytest.mark.processes(reason="runs the page in the processes that it speaks of")
@pytest.mark.parametrize("page", APART, ids=pages.name_of)
def test_page_in_processes(page: Path, tmp_path: Path) -> None:
    skip_without_programs(page)
    pages.run_apart(page, tmp_path)


def skip_without_programs(page: Path) -> None:
    missing = [program for program in sorted(pages.programs(page)) if shutil.which(program) is None]
    if missing:
        pytest.skip(f"the page uses {', '.join(missing)}, which this machine has not")


def test_every_block_runs_or_says_why_not() -> None:
    assert len(TOGETHER) + len(APART) > 15
    for block in (block for page in PAGES for block in pages.blocks(page)):
        if block.language in (*pages.RUN, "text"):
            assert block.runs or len(block.notes["not run"]) > 10, block.place
        else:
            assert block.language in OTHERS, f"{block.place}: a block of {block.language or 'nothing'}"


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
    page.write_text("```text\nwho printed this?\n```\n")
    with pytest.raises(AssertionError, match="what prints"):
        pages.blocks(page)


README = ROOT / "README.md"
TESTED = ("0.10.2", "0.11.2", "0.12.0.1")
OLDEST = f"jax-{TESTED[0]}"
FILES = {"default": "jax-0.12.0.1.bin", "for the oldest": f"for-{OLDEST}.bin"}


def number(release: str) -> tuple[int, ...]:
    return tuple(map(int, release.split(".")))


def reads(release: str, blob: bytes) -> bool:
    """Whether `jaxexp.compatibility` says that a release reads an artifact."""
    spans = jaxexp.compatibility(blob).readers
    return any(number(first) <= number(release) <= number(last) for first, last in spans)


@pytest.mark.parametrize("name", FILES)
def test_the_example_is_read_by_jax_export(name: str) -> None:
    """Written on JAX 0.12.0.1: 0.10.2 does not read it, unless it was written for it."""
    blob = (GOLDEN / "readme" / FILES[name]).read_bytes()
    assert [release for release in TESTED if reads(release, blob)] == [
        release for release in TESTED if name == "for the oldest" or release != TESTED[0]
    ]
    weights = {"w": np.eye(4, 3, dtype=np.float32), "b": np.zeros(3, np.float32)}
    x = np.ones((2, 4), np.float32)
    loaded = jax_export.deserialize(bytearray(blob))
    if not reads(jax.__version__, blob):
        with pytest.raises(RuntimeError):
            loaded.call(weights, x)
        return
    np.testing.assert_allclose(loaded.call(weights, x), np.full((2, 3), 1 / 3), rtol=1e-6)
    gradient = jax.grad(lambda weights: loaded.call(weights, x)[0, 0])(weights)["b"]
    np.testing.assert_allclose(gradient, [2 / 9, -1 / 9, -1 / 9], rtol=1e-5)


def test_the_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """What is written is for this release and newer ones; with the README's `compatibility`, for all tested ones."""
    blocks = dict(re.findall(r"<!-- example: (\w+) -->\n```python\n(.*?)```", README.read_text(), re.DOTALL))
    (tmp_path / "here").mkdir()
    program = blocks["producer"] + f'\nexported.save("../oldest", vjp_order=1, compatibility="{OLDEST}")\n'
    monkeypatch.chdir(tmp_path / "here")
    exec(program, {"__name__": "__main__"})
    assert capsys.readouterr().out == ""
    assert [path.name for path in (tmp_path / "here").iterdir()] == ["scores.jaxexp"]
    default, oldest = ((tmp_path / file).read_bytes() for file in ("here/scores.jaxexp", "oldest"))
    assert all(reads(release, default) for release in TESTED if number(release) >= number(jax.__version__))
    assert all(reads(release, oldest) for release in TESTED)
    assert jax_export.deserialize(bytearray(oldest)).fun_name == "scores"

    exec(blocks["consumer"], {"__name__": "__main__"})
    printed = capsys.readouterr().out
    assert "0.3333" in printed  # equal scores for equal inputs


@pytest.mark.parametrize("library", ["jax.export", "jaxexp"])
def test_the_mistake_of_the_readme(library: str) -> None:
    """The messages that stand beside each other, for the README's example with the constraint that it speaks of."""
    (table,) = re.findall(r"<!-- printed: mistakes -->\n(.*?)\n\n", README.read_text(), re.DOTALL)
    (said,) = re.findall(rf"\| `?{library}`? \| `(.*?)` \|", table)
    module = importlib.import_module(library)

    @jax.jit
    def scores(weights: dict[str, jax.Array], x: jax.Array) -> jax.Array:
        return jax.nn.softmax(x @ weights["w"] + weights["b"])

    weights = {"w": np.eye(4, 3, dtype=np.float32), "b": np.zeros(3, np.float32)}
    x = jax.ShapeDtypeStruct(module.symbolic_shape("batch, 4", constraints=["batch >= 2"]), np.float32)
    loaded = module.deserialize(module.export(scores)(weights, x).serialize())
    with pytest.raises(ValueError) as raised:
        loaded.call(weights, np.ones((1, 4), np.float32))
    assert str(raised.value) == said


def test_pages_name_the_tested_releases() -> None:
    assert (".".join(map(str, _jax.OLDEST_JAX)), ".".join(map(str, _jax.NEWEST_JAX))) == (TESTED[0], TESTED[-1])
    assert "JAX {}, {} and {}".format(*TESTED) in README.read_text().replace("\n", " ")
    assert f'`compatibility="{OLDEST}"`, the `jax.export` of every tested JAX' in (ROOT / "docs/stable.md").read_text()

"""The pages about other libraries, in the processes that they speak of: one with the library, one without."""

from __future__ import annotations

from pathlib import Path

import pytest

from kit import documentation as pages

PAGES = [page for page in pages.all_pages() if pages.libraries(page)]


@pytest.mark.long(
    promise="the examples of pages about libraries run in the processes that they speak of",
    sibling="test_library_pages.py::test_there_are_pages_of_libraries",
)
@pytest.mark.parametrize("page", PAGES, ids=pages.name_of)
@pytest.mark.processes(reason="one writes with the library, one reads without it")
def test_page_of_a_library(page: Path, tmp_path: Path) -> None:
    for library in sorted(pages.libraries(page)):
        pytest.importorskip(library, reason="comes with the group 'test' or 'mlflow', where its releases fit this JAX")
    pages.run_apart(page, tmp_path)


def test_there_are_pages_of_libraries() -> None:
    assert {"equinox", "fastapi", "flax", "haiku", "mlflow", "optax"} <= set().union(*map(pages.libraries, PAGES))

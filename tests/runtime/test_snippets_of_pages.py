"""The C++ and C of the guide compiles as a reader pastes it."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from kit.documentation import DOCS, blocks

pytestmark = [
    pytest.mark.slow(reason="builds the C++ runtime, which takes minutes"),
    pytest.mark.once(reason="what is built in C++ is the same for every pair of Python and JAX"),
]
# What the text around the snippets speaks of.
BEFORE = {
    "cpp": """
#include <jaxexp/archive.h>
#include <jaxexp/runtime.h>
#include <iostream>
void show(const jaxexp::Artifact&);
void compile(std::span<const std::uint8_t>);
std::string sha256(std::span<const std::uint8_t>);
enum { kDLCUDA = 2 };  // of dlpack.h
void page(std::span<const std::uint8_t> bytes, std::span<const std::uint8_t> mapped, const jaxexp::Runtime& runtime,
          const jaxexp::Function& f, const jaxexp::Array& w, const jaxexp::Array& b, const jaxexp::Array& x,
          const jaxexp::Array& n, const jaxexp::Array& array, const jaxexp::Artifact& artifact, const std::string& file,
          std::size_t i, void (*log)(const std::string&), jaxexp::FfiHandler* handler,
          DLManagedTensorVersioned* tensor, const std::map<std::filesystem::path, std::string>& expected) {
""",
    "c": """
#include <jaxexp/run.h>
#include <stdio.h>
void page(const int64_t* shape, const float* numbers, const jaxexp_array* const* inputs, jaxexp_array** results) {
""",
}
COMPILERS = {"cpp": ["c++", "-std=c++20", "-x", "c++"], "c": ["cc", "-std=c99", "-x", "c"]}


def compiles(language: str, snippets: list[str], installed: Path) -> None:
    """A page in one function: a snippet sees what those before it declare."""
    command = COMPILERS[language]
    if shutil.which(command[0]) is None:
        pytest.skip(f"there is no {command[0]}")
    includes = [line for text in snippets for line in re.findall(r"^#include .*", text, re.MULTILINE)]
    code = "\n{\n".join(re.sub(r"^#include .*", "", text, flags=re.MULTILINE) for text in snippets)
    source = "\n".join(includes) + BEFORE[language] + "{\n" + code + "}" * (len(snippets) + 1)
    done = subprocess.run(
        [*command, "-fsyntax-only", "-I", installed / "include", "-"], input=source, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("language", "page"), [("cpp", "run"), ("cpp", "cpp"), ("cpp", "executables"), ("c", "run")])
def test_blocks(language: str, page: str, installed: Path) -> None:
    snippets = [block.code for block in blocks(DOCS / "guide" / f"{page}.md") if block.language == language]
    assert snippets
    compiles(language, snippets, installed)


def test_calls_inside_sentences(installed: Path) -> None:
    text = (DOCS / "guide" / "run.md").read_text(encoding="utf-8")
    calls = re.findall(r"`(runtime\.\w+\([^`]*\))`", text.replace("\n", " "))
    calls = [call for call in calls if "..." not in call]
    assert len(calls) >= 5
    compiles("cpp", [f"{call};\n" for call in calls], installed)

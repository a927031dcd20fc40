"""What no build can be for is refused while CMake configures it."""

import subprocess

import pytest

from kit import native
from kit.places import ROOT


@pytest.mark.parametrize(
    ("facts", "needed"),
    [
        ({"CMAKE_SIZEOF_VOID_P": "4", "CMAKE_CXX_BYTE_ORDER": "LITTLE_ENDIAN"}, "needs a 64-bit platform"),
        ({"CMAKE_SIZEOF_VOID_P": "8", "CMAKE_CXX_BYTE_ORDER": "BIG_ENDIAN"}, "needs a little-endian platform"),
        ({"CMAKE_SIZEOF_VOID_P": "8", "CMAKE_CXX_BYTE_ORDER": "LITTLE_ENDIAN"}, None),
    ],
)
def test_platforms(facts: dict[str, str], needed: str | None) -> None:
    definitions = [f"-D{name}={value}" for name, value in facts.items()]
    script = str(ROOT / "cpp" / "cmake" / "platform.cmake")
    done = subprocess.run([native.cmake(), *definitions, "-P", script], capture_output=True, text=True)
    assert (done.returncode == 0) == (needed is None), done.stderr
    assert needed is None or needed in done.stderr


def test_every_project_asks() -> None:
    for project in (".", "cpp", "cpp/wire"):
        text = (ROOT / project / "CMakeLists.txt").read_text()
        assert text.index("version.cmake)") < text.index("project(") < text.index("platform.cmake)"), project

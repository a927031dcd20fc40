"""Checks what is in a source distribution and in the wheel that was built from it.

python tests/wheel/contents.py SDIST WHEEL
"""

from __future__ import annotations

import csv
import io
import json
import re
import sys
import tarfile
import zipfile
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).parents[2]
OF_FOLDERS = ("dlpack", "nlohmann", "pjrt", "xla", "xxhash")
LICENSES = (*(f"{folder}/LICENSE" for folder in OF_FOLDERS), "licenses/nanobind", "licenses/robin_map")
LICENSED = {"LICENSE", *(f"cpp/third_party/{n}" for n in LICENSES)}
BUNDLED = {"nanobind", "robin-map", "flatbuffers", "nlohmann-json", "xxHash", "dlpack", "pjrt-c-api", "xla-ffi-c-api"}
NATIVE = ("_native", "_runtime")
OF_THE_CHECKOUT = ("tests/", "bench/", "demo/", "docs/", "build/", ".")


def sources() -> set[str]:
    """The package's own files in the checkout, as the wheel names them; without what a build leaves there."""
    package = ROOT / "python"
    files = (path for path in package.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {str(file.relative_to(package).as_posix()) for file in files if not file.name.startswith(NATIVE)}


def check_page(name: str, metadata: str) -> None:
    """The page on PyPI, which is below the fields of the metadata."""
    fields, _, page = metadata.partition("\n\n")
    _expect("Description-Content-Type: text/markdown" in fields, f"{name} has no page in Markdown")
    _expect("import jaxexp as export" in page, f"the page of {name} does not show the package")
    relative = re.findall(r"\]\((?!https?:)[^)]*\)", page)
    _expect(not relative, f"the page of {name} has links that PyPI cannot follow: {relative[:5]}")


def check_source(path: Path) -> None:
    with tarfile.open(path) as archive:
        names = {str(PurePosixPath(*PurePosixPath(name).parts[1:])) for name in archive.getnames()}
        info = archive.extractfile(f"{path.name.removesuffix('.tar.gz')}/PKG-INFO")
        _expect(info is not None, f"{path.name} has no PKG-INFO")
        check_page(path.name, info.read().decode())
    missing = {f"python/{name}" for name in sources()} | LICENSED | {"CMakeLists.txt", "pyproject.toml", "PKG-INFO"}
    missing -= names
    needless = {name for name in names if name.startswith(OF_THE_CHECKOUT)} - {"."}
    _expect(not missing, f"{path.name} lacks {sorted(missing)}")
    _expect(not needless, f"{path.name} has {sorted(needless)[:5]}, which a build does not need")


def check_wheel(path: Path) -> None:
    version = path.name.split("-")[1]
    with zipfile.ZipFile(path) as archive:
        names = {name for name in archive.namelist() if not name.endswith("/")}
        read = {name: archive.read(name) for name in names if ".dist-info/" in name}
    info = f"jaxexp-{version}.dist-info/"
    _expect(sources() <= names, f"{path.name} lacks {sorted(sources() - names)}")
    native = {name for name in names if name.startswith(tuple(f"jaxexp/{module}." for module in NATIVE))}
    stubs = {f"jaxexp/{module}.pyi" for module in NATIVE}
    _expect(stubs < native and len(native) == 2 * len(NATIVE), f"{path.name} has {sorted(native)} for native modules")
    others = {n for n in names - sources() - native if not n.startswith(info)}
    _expect(not others, f"{path.name} has {sorted(others)[:5]}, which are not the package's")
    check_page(path.name, read[info + "METADATA"].decode())
    licenses = {info + "licenses/" + name for name in LICENSED}
    _expect(licenses <= names, f"{path.name} lacks {sorted(licenses - names)}")
    bill = json.loads(read[info + "sboms/sbom.cdx.json"])
    _expect(
        bill["metadata"]["component"]["version"] == version, f"the SBOM is of version {bill['metadata']['component']}"
    )
    components = {component["name"]: component.get("version") for component in bill["components"]}
    _expect(set(components) == BUNDLED, f"the SBOM names {sorted(components)}, not {sorted(BUNDLED)}")
    _expect(all(v for n, v in components.items() if n != "robin-map"), f"the SBOM lacks a version: {components}")
    recorded = {row[0] for row in csv.reader(io.StringIO(read[info + "RECORD"].decode()))}
    _expect(recorded == names, f"RECORD and the wheel differ in {sorted(recorded ^ names)}")
    print(f"{path.name}: {len(names)} files, {path.stat().st_size / 1e6:.1f} MB, with {', '.join(sorted(components))}")


def _expect(condition: bool, otherwise: str) -> None:
    if not condition:
        sys.exit(otherwise)


if __name__ == "__main__":
    check_source(Path(sys.argv[1]))
    check_wheel(Path(sys.argv[2]))

"""Makes `__init__.pyi` and `errors.pyi` from the tables of public names in `__init__.py` and `errors.py`.

    python tests/tools/public_names.py            write it anew
    python tests/tools/public_names.py --check    fail if it is not what the table says

Type checkers and editors need each name as an import, which at run time would load JAX. They read the stub instead.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "python" / "jaxexp"
SOURCES = PACKAGE / "__init__.py", PACKAGE / "errors.py"


def table(source: Path) -> dict[str, str]:
    """The public names of a module and their homes, read without importing anything."""
    for node in ast.parse(source.read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "_HOMES":
            homes: dict[str, str] = ast.literal_eval(node.value)
            return homes
    raise SystemExit(f"{source} has no table _HOMES")


def stub(source: Path) -> str:
    """The text of a module's stub."""
    homes, imports = table(source), []
    for name, home in homes.items():
        module, _, name_there = home.partition(":")
        if not home:
            imports.append(("", 0, f"from . import {name} as {name}"))
            continue
        there = name_there or name
        # From one module: constants, then classes, then functions, which is ruff's order.
        kind = 0 if there.isupper() else 1 if there[0].isupper() else 2
        imports.append((module, kind, f"from .{module} import {there} as {name}"))
    head = f"# Made from the table in {source.name}: run `make format` after a change there."
    version = "__version__: str\n\n" if source.stem == "__init__" else ""
    lines, names = "\n".join(line for *_, line in sorted(imports)), "\n".join(f'    "{name}",' for name in homes)
    return f"{head}\n{lines}\n\n{version}__all__ = [\n{names}\n]\n"


def main(arguments: list[str]) -> None:
    for source in SOURCES:
        text, made = stub(source), source.with_suffix(".pyi")
        if "--check" not in arguments:
            made.write_text(text)
        elif not made.exists() or made.read_text() != text:
            raise SystemExit(f"{made} is not what the table in {source} says: run `make format`")


if __name__ == "__main__":
    main(sys.argv[1:])

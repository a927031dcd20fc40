"""Makes `python/jaxexp/__init__.pyi` from the table of public names in `python/jaxexp/__init__.py`.

    python tests/tools/public_names.py            write it anew
    python tests/tools/public_names.py --check    fail if it is not what the table says

Type checkers and editors need each name as an import, which at run time would load JAX. They read the stub instead.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "python" / "jaxexp"
SOURCE, STUB = PACKAGE / "__init__.py", PACKAGE / "__init__.pyi"


def table() -> dict[str, str]:
    """The public names and their homes, read without importing anything."""
    for node in ast.parse(SOURCE.read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "_HOMES":
            homes: dict[str, str] = ast.literal_eval(node.value)
            return homes
    raise SystemExit(f"{SOURCE} has no table _HOMES")


def stub(homes: dict[str, str]) -> str:
    """The text of the stub."""
    imports = []
    for name, home in homes.items():
        module, _, name_there = home.partition(":")
        there = name_there or name
        # From one module: constants, then classes, then functions, which is ruff's order.
        kind = 0 if there.isupper() else 1 if there[0].isupper() else 2
        imports.append((module, kind, f"from .{module} import {there} as {name}"))
    head = "# Made from the table in __init__.py: run `make format` after a change there."
    lines, names = "\n".join(line for *_, line in sorted(imports)), "\n".join(f'    "{name}",' for name in homes)
    return f"{head}\n{lines}\n\n__version__: str\n\n__all__ = [\n{names}\n]\n"


def main(arguments: list[str]) -> None:
    text = stub(table())
    if "--check" not in arguments:
        STUB.write_text(text)
    elif not STUB.exists() or STUB.read_text() != text:
        raise SystemExit(f"{STUB} is not what the table in {SOURCE} says: run `make format`")


if __name__ == "__main__":
    main(sys.argv[1:])

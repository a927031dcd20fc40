"""What tests/tools/mutants.py may change in a file. In a change's new text, $MUTANT is where the switch belongs."""

from __future__ import annotations

import ast
import copy
import re
from collections.abc import Iterator
from typing import Any, TypeAlias

Mutant: TypeAlias = dict[str, Any]


def change(line: int, column: int, old: str, new: str, shown: str) -> Mutant:
    return {"line": line, "column": column, "old": old, "new": new, "shown": shown}


# What can be changed in Python: in bodies of functions, expressions on one line, and statements that may go on.

PAIRS: list[tuple[Any, Any]] = [
    (ast.Lt, ast.LtE), (ast.Gt, ast.GtE), (ast.Eq, ast.NotEq), (ast.Is, ast.IsNot), (ast.In, ast.NotIn),
    (ast.And, ast.Or), (ast.Add, ast.Sub),
]  # fmt: skip
OTHER = {first: second for pair in PAIRS for first, second in (pair, pair[::-1])}
# Runs when a function is made, or is no expression.
LEFT_OUT = {"annotation", "returns", "decorator_list", "defaults", "kw_defaults", "pattern"}


def python_changes(text: str) -> Iterator[Mutant]:
    lines = text.splitlines()

    def place(node: ast.expr | ast.stmt) -> tuple[int, int, str]:
        line = lines[node.lineno - 1].encode()
        old = line[node.col_offset : node.end_col_offset if node.end_lineno == node.lineno else None]
        return node.lineno, len(line[: node.col_offset].decode()), old.decode()

    def visit(node: ast.AST, inside: bool) -> Iterator[Mutant]:
        if isinstance(node, ast.JoinedStr):  # whose places Python 3.11 does not know
            return
        if inside and isinstance(node, ast.expr) and node.lineno == node.end_lineno and (new := other(node)):
            at = place(node)
            yield change(*at, f"(({new}) if $MUTANT else ({at[2]}))", f"{at[2]} → {new}")
        if inside and isinstance(node, ast.stmt):
            yield from statement(node)
        inside = inside or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for field, value in ast.iter_fields(node):
            for child in value if isinstance(value, list) else [value]:
                if field not in LEFT_OUT and isinstance(child, ast.AST):
                    yield from visit(child, inside)

    def statement(node: ast.stmt) -> Iterator[Mutant]:
        line, column, old = place(node)
        if isinstance(node, ast.If | ast.While) and node.test.lineno == node.test.end_lineno:
            at = place(node.test)
            yield change(*at, f"((not ({at[2]})) if $MUTANT else ({at[2]}))", f"{at[2]} → not ({at[2]})")
        called = isinstance(node, ast.Expr) and isinstance(node.value, ast.Call | ast.Await)
        skipped = called or isinstance(node, ast.Raise | ast.Continue | ast.Break | ast.AugAssign)
        if skipped and not lines[line - 1][:column].strip():
            yield change(line, column, old, f"if not $MUTANT: {old}", f"{old} → pass")
        if isinstance(node, ast.Return) and not isinstance(node.value, ast.Constant | ast.Tuple | ast.Yield | None):
            yield change(line, column, "return ", "return None if $MUTANT else ", f"{old} → return None")

    return visit(ast.parse(text), False)


def other(node: ast.expr) -> str:
    """What an expression becomes; nothing if it stays."""
    changed: Any = copy.copy(node)
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        changed.ops = [OTHER[type(node.ops[0])]()]
    elif isinstance(node, ast.BoolOp | ast.BinOp) and type(node.op) in OTHER:
        changed.op = OTHER[type(node.op)]()
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        changed = node.operand
    elif isinstance(node, ast.Constant) and type(node.value) is int:
        changed.value = node.value + 1
    else:
        return ""
    return ast.unparse(changed)


# What can be changed in C++: on lines that look as if they were in a function. What does not compile is dropped later.

NO_PLACE = r"//|^ *\*|[#\\]|\b(const(expr|eval)|static_assert|template|case|using|enum|requires|operator)\b"
COMPARED = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==", "&&": "||", "||": "&&"}
NUMBER = r"(?<![\w.<])\d+(?![\w.'])"
ADDED = r" ([+-]) (\w+(?:(?:\.|->)\w+|\(\))*)(?![\w(*.\[:<]| [*/%]|->)"
STATEMENT = r" +(?:throw .*|(?:[\w:.>-]+\(.*\)|continue|break|[\w.>-]+ [+-]= .*);)"


def cpp_changes(text: str) -> Iterator[Mutant]:
    for number, line in enumerate(text.splitlines(), 1):
        bare = re.sub(r"\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)+'", lambda found: '"' * len(found[0]), line)
        if re.match(r"  +\S", bare) and not re.search(NO_PLACE, bare):
            yield from changes_of_line(number, line, bare)


def changes_of_line(number: int, line: str, bare: str) -> Iterator[Mutant]:
    """`bare` is the line without what its texts say, and as long."""
    whole = line.strip()
    for start, end, is_condition in conditions(bare):
        old = line[start:end]
        news = [f"!({old})"] if is_condition else []
        for found in re.finditer(r" ([<>]=?|[=!]=|&&|\|\|) ", bare[start:end]):
            news.append(f"{old[: found.start(1)]}{COMPARED[found[1]]}{old[found.end(1) :]}")
        to_bool = "!!" if is_condition else ""  # it may be a pointer
        for new in news:
            yield change(number, start, old, f"($MUTANT ? {to_bool}({new}) : {to_bool}({old}))", f"{old} → {new}")
    for found in re.finditer(NUMBER, bare):
        new = str(int(found[0]) + 1)
        shown = f"{whole} → {line[: found.start()].lstrip()}{new}{line[found.end() :]}"
        yield change(number, found.start(), found[0], f"($MUTANT ? {new} : {found[0]})", shown)
    for found in re.finditer(ADDED, bare):  # what is negative wraps around, and is subtracted all the same
        new = f"{found[1]} ($MUTANT ? -({found[2]}) : ({found[2]}))"
        yield change(number, found.start(1), found[0][1:], new, f"{whole} → the other sign of {found[2]}")
    if re.fullmatch(STATEMENT, bare) and ("throw" in bare or bare.count("(") == bare.count(")")):
        yield change(number, len(line) - len(line.lstrip()), whole, f"if (!$MUTANT) {whole}", f"{whole} → nothing")
    for found in re.finditer(r"\breturn (true|false);", bare):
        new = "false" if found[1] == "true" else "true"
        yield change(number, found.start(1), found[1], f"$MUTANT ? {new} : {found[1]}", f"{found[0]} → return {new};")


def conditions(bare: str) -> Iterator[tuple[int, int, bool]]:
    """Where they are; and where results that may be comparisons are, with False."""
    for found in re.finditer(r"\b(?:if|while) \(", bare):
        depths = {")": -1, "(": 1}
        depth = 1
        for end in range(found.end(), len(bare)):
            depth += depths.get(bare[end], 0)
            if depth == 0:
                if not re.search(r"[;{\[]|(?<![=!<>])=(?!=)", bare[found.end() : end]):
                    yield found.end(), end, True
                break
    for found in re.finditer(r"\breturn ([^?;{]+);", bare):
        yield found.start(1), found.end(1), False

"""The reference has every public name exactly once, and the page on errors quotes messages that are in the code."""

from __future__ import annotations

import ast
import functools
import inspect
import re

import jax
import numpy as np
import pytest

import jaxexp
from kit.places import ROOT

DOCS = ROOT / "docs"
PACKAGE = ROOT / "python" / "jaxexp"

if not DOCS.exists():
    pytest.skip("the documentation is not beside the tests", allow_module_level=True)

DIRECTIVE = re.compile(r"^\.\. auto(\w+):: (\w+)$", re.MULTILINE)
# Messages that come from JAX, and pass through.
OF_OTHERS = {
    "Symbolic dimension", "Symbolic dimension comparison", "is inconclusive",
    "used in a context that requires a constant", "unhashable type: 'jaxlib._jax.ArrayImpl'",
    "No module named 'absl'", "Please install 'flatbuffers' in order to use Exported serialization",
    "deserialize unsupported version 12", "Cannot deserialize a PyTreeDef containing an unregistered type",
    "Cannot mutate BatchStat from a different trace level",
}  # fmt: skip


def test_every_public_name_is_in_the_reference_once_as_what_it_is() -> None:
    pages = sorted((DOCS / "reference").glob("*.md"))
    found = [entry for page in pages for entry in DIRECTIVE.findall(page.read_text(encoding="utf-8"))]
    values = {name: getattr(owner, name) for owner in (jaxexp, jaxexp.errors) for name in owner.__all__}
    values.pop("errors")
    assert sorted(name for _, name in found) == sorted(values)
    for kind, name in found:
        value = values[name]
        is_error = isinstance(value, type) and issubclass(value, Exception)
        expected = "exception" if is_error else "class" if isinstance(value, type) else "function"
        assert kind == ("data" if isinstance(value, int) else expected), name


def test_errors_that_are_raised_or_documented_are_public() -> None:
    """A class of jaxexp's own errors that has no public name is only raised where it is caught again."""
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in PACKAGE.rglob("*.py")]
    bases = {
        node.name: {ast.unparse(base).rpartition(".")[2] for base in node.bases}
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    }
    own, more = {"ExportError"}, {"ExportError"}
    while more:
        more = {name for name, of in bases.items() if of & more} - own
        own |= more
    assert len(own) > 20
    assert own == {*jaxexp.errors.__all__}
    internal = {name for name in bases if name.endswith("Error")} - own
    pages = [path.read_text(encoding="utf-8") for path in (ROOT / "README.md", *DOCS.rglob("*.md"))]
    documented = {name for page in pages for name in re.findall(r"\b[A-Z]\w*Error\b", page)}
    for value in (getattr(owner, name) for owner in (jaxexp, jaxexp.errors) for name in owner.__all__):
        members = vars(value).values() if isinstance(value, type) else [value]
        documented |= {e for member in members for e in re.findall(r"\b[A-Z]\w*Error\b", inspect.getdoc(member) or "")}
    assert not documented & internal


def texts_of_python() -> list[str]:
    found = []
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
            elif isinstance(node, ast.JoinedStr):
                found.append("".join(v.value if isinstance(v, ast.Constant) else "\0" for v in node.values))
    return found


def texts_of_cpp() -> list[str]:
    """The texts in the C++ code; those that follow each other with nothing between are one."""
    code = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "cpp").rglob("*.cpp"))
    joined = re.sub(r'"\s*\n\s*"', "", code)
    return re.findall(r'"((?:[^"\\\n]|\\.)*)"', joined)


def quoted() -> list[str]:
    page = (DOCS / "troubleshooting.md").read_text(encoding="utf-8")
    return re.findall(r"^### `(.*)`$", page, re.MULTILINE)


# Words that put messages together from parts.
JOINTS = re.compile("…|; |expected |, found |must have ")


def parts(message: str) -> list[str]:
    """What a message says between the names and numbers."""
    return [part.strip() for part in JOINTS.split(message) if re.search(r"\w{2}", part)]


def test_quoted_messages_are_in_the_code() -> None:
    texts = "\n".join(texts_of_python() + texts_of_cpp())
    messages = quoted()
    assert len(messages) > 25
    assert len(set(messages)) == len(messages)
    page = (DOCS / "troubleshooting.md").read_text(encoding="utf-8")
    assert len(re.findall(r"^### ", page, re.MULTILINE)) == len(messages), "every heading is a message"
    missing = [(m, part) for m in messages for part in parts(m) if part not in texts and part not in OF_OTHERS]
    assert not missing
    assert "needs a function made by jax.jit, nor" not in texts, "parts are looked for as a whole"


# What the table in derivatives.md says, as programs: the first words of its rows.
X, V = np.linspace(0, 1, 3, dtype=np.float32), np.ones(3, np.float32)
ROWS = {
    "only calls": lambda f: f(X),
    "`jax.grad`, `jax.vjp`": lambda f: (jax.grad(f)(X), jax.jacrev(f)(X), jax.value_and_grad(f)(X)),
    "`jax.jvp`, `jax.jacfwd`": lambda f: (jax.jvp(f, (X,), (V,)), jax.jacfwd(f)(X)),
    "`jax.grad` of `jax.grad`": lambda f: jax.jacrev(jax.jacrev(f))(X),
    "`jax.hessian`": lambda f: jax.hessian(f)(X),
    "Hessian-vector products": lambda f: jax.jvp(jax.grad(f), (X,), (V,)),
    "the same in reverse mode": lambda f: jax.grad(lambda x: jax.grad(f)(x) @ V)(X),
    "`jax.jvp` of `jax.jvp`": lambda f: jax.jvp(lambda x: jax.jvp(f, (x,), (V,))[1], (X,), (V,)),
}


@pytest.mark.jax
def test_the_table_of_derivatives() -> None:
    page = (DOCS / "guide" / "derivatives.md").read_text(encoding="utf-8")
    table = re.findall(r"^\| (.*) \| (\d) \|$", page, re.MULTILINE)
    exported = jaxexp.export(jax.jit(lambda x: (x**5).sum()))(X)
    loaded = [jaxexp.deserialize(exported.serialize(vjp_order=order)) for order in range(5)]
    assert len(table) == len(ROWS)
    for (row, order), (words, use) in zip(table, ROWS.items(), strict=True):
        assert row.startswith(words)
        jax.jit(functools.partial(use, loaded[int(order)].call)).lower()
        if order != "0":
            with pytest.raises(jaxexp.errors.ExportError, match="VJP"):
                jax.jit(functools.partial(use, loaded[int(order) - 1].call)).lower()

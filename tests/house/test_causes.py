"""Tracebacks show the errors that one of jaxexp's was raised from, whose texts may come from an artifact."""

from __future__ import annotations

import ast
import builtins
import traceback
from collections.abc import Iterator
from pathlib import Path

import jax
import numpy as np
import pytest

import jaxexp
from jaxexp import _errors
from jaxexp._errors import ExportError, cause
from kit.hostile_texts import HOSTILE, LINE

PACKAGE = Path(jaxexp.__file__).parent
EVIL = "".join(text for text in HOSTILE.values() if isinstance(text, str))
# Errors that make no use of texts of others, or escape them.
HARMLESS = {"AttributeError", "RecursionError", "UnicodeDecodeError", "UnicodeEncodeError"}


def assert_harmless(error: BaseException) -> None:
    for line in "".join(traceback.format_exception(error)).split("\n"):
        assert line.isprintable(), line
        assert not line.startswith(LINE), line


def _is_harmless(name: str) -> bool:
    kind = getattr(_errors, name, None) or getattr(builtins, name, None)
    return name in HARMLESS or (kind is not None and issubclass(kind, (ExportError, OSError, ImportError)))


def _raised_from_others() -> Iterator[str]:
    for path in sorted(PACKAGE.rglob("*.py")):
        if "_cli" in path.parts:  # prints tracebacks only with --traceback, and escapes them
            continue
        for handler in ast.walk(ast.parse(path.read_text())):
            if not isinstance(handler, ast.ExceptHandler) or handler.type is None:
                continue
            kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
            if all(_is_harmless(ast.unparse(kind)) for kind in kinds):
                continue
            for node in ast.walk(handler):
                if isinstance(node, ast.Raise) and node.exc is not None:
                    source = ast.unparse(node.cause) if node.cause else "nothing"
                    if source != "None" and not source.startswith("cause("):
                        yield f"{path.relative_to(PACKAGE)}:{node.lineno}: from {source}"


def test_every_error_of_others_goes_through_one_function() -> None:
    assert list(_raised_from_others()) == []


class OwnTextError(Exception):
    def __str__(self) -> str:
        return EVIL


def test_texts_are_escaped_indented_and_cut() -> None:
    below = ValueError(EVIL)
    error = jax.errors.JaxRuntimeError(f"first\nsecond{EVIL}" + "x" * 1_000_000)
    error.add_note(EVIL)
    error.__context__ = below
    assert cause(error) is error
    assert str(error).startswith("first\n    second\\x1b[31mred\\x07a\n    EVIL")
    assert len(str(error)) < 10_000
    assert_harmless(error)


def test_an_error_that_makes_its_own_text_is_left_out() -> None:
    assert cause(OwnTextError("x")) is None
    error = ValueError("harmless")
    error.__cause__ = OwnTextError("x")
    assert cause(error) is None


def test_a_custom_call_that_nobody_knows() -> None:
    target = f"evil{EVIL}".replace("\0", "")
    call = jax.jit(lambda x: jax.ffi.ffi_call(target, jax.ShapeDtypeStruct(x.shape, x.dtype))(x))
    checks = [jaxexp.DisabledSafetyCheck.custom_call(target)]
    x = np.ones(3, np.float32)
    exported = jaxexp.deserialize(jaxexp.export(call, disabled_checks=checks)(x).serialize())
    with pytest.raises(jaxexp.errors.ExportError) as error:
        exported.call(x)
    assert isinstance(error.value, jax.errors.JaxRuntimeError)
    assert error.value.__cause__ is not None or error.value.__suppress_context__
    assert_harmless(error.value)


def test_what_a_registered_function_says() -> None:
    class Node:
        pass

    def refuse(data: bytes) -> object:
        raise ValueError(data.decode())

    jax.tree_util.register_pytree_node(Node, lambda node: ((), EVIL), lambda data, children: Node())
    jaxexp.register_pytree_node_serialization(
        Node, serialized_name="test_causes.Node", serialize_auxdata=str.encode, deserialize_auxdata=refuse
    )
    artifact = jaxexp.export(jax.jit(lambda x, node: x))(np.ones(3, np.float32), Node()).serialize()
    with pytest.raises(jaxexp.errors.DeserializationError) as error:
        jaxexp.deserialize(artifact)
    assert isinstance(error.value.__cause__, ValueError)
    assert_harmless(error.value)


def test_what_is_harmless_stays_as_it_is() -> None:
    error = ValueError("one line")
    error.add_note("a note")
    error.__cause__ = KeyError(EVIL)  # which shows the repr
    assert cause(error) is error
    assert (error.args, error.__notes__) == (("one line",), ["a note"])

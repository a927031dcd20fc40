"""Names from an artifact in errors, warnings, log records and in what is printed: escaped, so that no name makes lines
of a log or acts on a terminal."""

from __future__ import annotations

import collections
import logging
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxexp
from jaxexp._errors import Lines
from kit.command_line import HOSTILE

pytestmark = pytest.mark.jax
ESCAPED = r"evil\x1b[31m\n\u202egood\x07"
Failing = Callable[[], object]


class Files:
    """Artifacts with a hostile name in every place that takes one."""

    def __init__(self, folder: Path) -> None:
        def f(tree: Any) -> Any:
            called = jax.ffi.ffi_call(HOSTILE, jax.ShapeDtypeStruct((3,), np.float32))(tree[HOSTILE])
            return {HOSTILE: called + 1}

        f.__name__ = HOSTILE
        checks = [jaxexp.DisabledSafetyCheck.custom_call(HOSTILE)]
        self.argument = {HOSTILE: jnp.ones(3, np.float32)}
        exported = jaxexp.export(jax.jit(f), disabled_checks=checks)(self.argument)
        self.program = folder / "program.jaxexp"
        exported.save(self.program, metadata={HOSTILE: HOSTILE})

        def g(x: Any) -> Any:
            return x * self.argument[HOSTILE]

        g.__name__ = HOSTILE
        bound = jaxexp.export(jax.jit(g), weights=self.argument)(jnp.ones(3, np.float32))
        self.bound = folder / "bound.jaxexp"
        bound.save(self.bound)
        with jaxexp.Archive.create(folder / "fleet.zip") as archive:
            archive.add_file("program", self.program)
        self.archive = folder / "fleet.zip"
        self.damaged = folder / f"{HOSTILE}.jaxexp"
        self.damaged.write_bytes(self.program.read_bytes()[:-8])


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return Files(tmp_path_factory.mktemp("hostile"))


def ways(files: Files) -> Iterator[tuple[str, Failing]]:
    """Ways to an error about something with the name. cli/test_texts_of_others.py goes those of a changed artifact."""
    program, bound = jaxexp.load(files.program), jaxexp.load(files.bound)
    assert isinstance(bound, jaxexp.BoundExported)
    x = jnp.ones(3, np.float32)
    named = collections.namedtuple("named", ["x"])
    named.__name__ = named.__qualname__ = HOSTILE
    yield "policy: custom call", lambda: jaxexp.load(files.program, policy=jaxexp.Policy())
    yield "policy: size", lambda: jaxexp.load(files.program, policy=jaxexp.Policy(max_module_bytes=1))
    yield "call: type", lambda: program.call({HOSTILE: jnp.ones(4, np.float32)})
    yield "call: tree", lambda: program.call({"x": x})
    yield "call: class", lambda: program.call({HOSTILE: named(x)})
    yield "call: nobody implements it", lambda: program.call(files.argument)
    yield "specialize", lambda: program.specialize({HOSTILE: jax.ShapeDtypeStruct((4,), np.float32)})
    yield "load: damaged", lambda: jaxexp.load(files.damaged)
    yield "verify: damaged", lambda: jaxexp.verify(files.damaged)
    yield "weights: missing", lambda: bound.with_weights({"x": x})
    yield "weights: type", lambda: bound.with_weights({HOSTILE: jnp.ones(4, np.float32)})
    yield "archive: another member", lambda: jaxexp.Archive.open(files.archive)[HOSTILE]
    yield "archive: policy", lambda: jaxexp.Archive.open(files.archive)["program"].load(policy=jaxexp.Policy())


def test_every_error_escapes_names(files: Files) -> None:
    for way, fail in ways(files):
        with pytest.raises((jaxexp.errors.ExportError, KeyError)) as raised:
            fail()
        text = str(raised.value)
        own = isinstance(raised.value.args[0], Lines) if raised.value.args else False
        lines = text.split("\n") if own else [text]
        assert all(line.isprintable() for line in lines), (way, text)
        assert "evil" in text, (way, text)
        assert r"\x1b[31m" in text, (way, text)
        assert text.count("\n") == 0 or all(line.startswith("  ") for line in lines[1:]), (way, text)
    # Attributes have names as they are; own lines stay.
    with pytest.raises(jaxexp.errors.PolicyError) as raised:
        jaxexp.load(files.program, policy=jaxexp.Policy(max_module_bytes=1))
    assert HOSTILE in raised.value.where
    assert ESCAPED in str(raised.value)
    assert str(pickle.loads(pickle.dumps(raised.value))) == str(raised.value)
    with pytest.raises(jaxexp.errors.UnsupportedError) as raised:
        jaxexp.export(jax.jit(lambda x: jax.debug.print("{}", x)))(1.0)
    assert str(raised.value).count("\n") == 2
    assert str(pickle.loads(pickle.dumps(raised.value))) == str(raised.value)


def messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [record.getMessage() for record in caplog.records if record.name.startswith("jaxexp")]
    caplog.clear()
    return found


def named(function: Callable[..., Any]) -> Any:
    function.__name__ = HOSTILE
    return jax.jit(function)


def test_warnings_escape_names() -> None:
    large = np.ones(1 << 19, np.float32)
    weights = {HOSTILE: large[1:], "small": np.ones(3, np.float32)}
    export = jaxexp.export(named(lambda x: (x * weights["small"]).sum() * large), weights=weights)
    with pytest.warns(UserWarning) as warned:
        export(jnp.ones(3, np.float32))
    (text,) = [str(warning.message) for warning in warned if "stay in its module" in str(warning.message)]
    assert text.isprintable()
    assert text.startswith(f"exporting {ESCAPED}: ")
    assert text.count("evil") == 2, "the function, and the leaf that an array is a view of"

    model = {"layer": {"small": weights["small"]}}
    bound = jaxexp.export(named(lambda x: x * weights["small"]), weights=model)(jnp.ones(3, np.float32))
    with pytest.warns(UserWarning, match="given arrays that are not used") as warned:
        bound.with_weights({"layer": {**model["layer"], HOSTILE: large}})
    (text,) = [str(warning.message) for warning in warned]
    assert text.isprintable()
    assert "layer/evil" in text


def test_logs_escape_names(files: Files, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="jaxexp")
    x = jax.ShapeDtypeStruct(jaxexp.symbolic_shape("b, 3"), np.float32)
    double = jaxexp.export(named(lambda tree: tree[HOSTILE] * 2))({HOSTILE: x})
    first, module, *_ = messages(caplog)
    assert first.startswith(f"exported {ESCAPED} for ")
    assert all(line.isprintable() for line in module.split("\n"))

    double.precompile(({HOSTILE: np.ones((2, 3), np.float32)},), into=tmp_path / "code")
    double.save(tmp_path / "double.jaxexp")
    loaded = jaxexp.load(tmp_path / "double.jaxexp", executables=tmp_path / "code")
    caplog.clear()
    for rows in (2, 5):
        loaded.call({HOSTILE: np.ones((rows, 3), np.float32)})
    used, unused = messages(caplog)
    assert used.startswith(f"{ESCAPED}: uses code from ")
    assert unused.startswith(f"{ESCAPED}: no code in ")
    assert used.isprintable()
    assert unused.isprintable()

    program = jaxexp.load(files.program)
    jax.jit(jax.vmap(program.call)).lower({HOSTILE: jnp.ones((2, 3), np.float32)})
    (loop,) = messages(caplog)
    assert loop.startswith(f"jax.vmap of {ESCAPED} is a loop, one call after the other: ")
    assert loop.isprintable()

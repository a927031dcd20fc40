"""Wrong types in the arguments of public functions and methods: no error of the native modules themselves, which names
neither the argument nor what it takes, reaches a user.
"""

from __future__ import annotations

import inspect
import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import jaxexp
from jaxexp import runtime
from kit import without_jax

pytestmark = pytest.mark.jax
X = np.ones(3, np.float32)
WRONG = {
    "None": None, "3": 3, "too large": 1 << 70, "text": "x", "no text": "\ud800", "NUL": "a\0b", "bytes": b"",
    "an object": object(), "a list": [3], "a dict": {"a": 3},
}  # fmt: skip
# What arguments are that are not the wrong one, by their names; others have defaults or are the artifact.
GOOD = {
    "name": "f", "into": "into", "plugin": "cpu", "array": X, "target": "t", "handler": None,
    "arguments": {"args[0]": X}, "fun_jit": jax.jit(lambda x: x), "artifacts": ["f.jaxexp"], "items": ["f.jaxexp"],
    "cases": [{"args": (X,)}], "pattern": "*", "model": {"w": X},
}  # fmt: skip
LEFT_OUT = {
    "install", "uninstall",  # they change the process
    "from_stablehlo",  # takes a process for each text
}  # fmt: skip


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("wrong")
    exported = jaxexp.export(jax.jit(lambda x: x * 2))(X)
    exported.save(place / "f.jaxexp", vjp_order=1)
    jaxexp.export(jax.jit(lambda p, x: p["w"] * x))({"w": X}, X).bind({"w": X}).save(place / "bound.jaxexp")
    with jaxexp.Archive.create(place / "a.zip") as archive:
        archive.add("f", exported)
    return place


def owners() -> Iterator[tuple[str, Callable[[], Any]]]:
    yield "jaxexp", lambda: jaxexp
    yield "Exported", lambda: jaxexp.load("f.jaxexp")
    yield "BoundExported", lambda: jaxexp.load("bound.jaxexp")
    yield "Archive", lambda: jaxexp.Archive.open("a.zip")
    yield "Handle", lambda: jaxexp.Archive.open("a.zip")["f"]
    yield "Policy", jaxexp.Policy


def functions(owner: Any) -> list[str]:
    names = owner.__all__ if inspect.ismodule(owner) else [n for n in dir(owner) if not n.startswith("_")]
    return [n for n in names if n not in LEFT_OUT and inspect.isroutine(getattr(owner, n, None))]


def refused_natively(function: Callable[..., Any]) -> list[str]:
    found = []
    for parameter, (what, wrong) in itertools.product(inspect.signature(function).parameters, WRONG.items()):
        if parameter != "vjp_order" or what != "too large":  # so many VJPs take their time
            try:
                result = called(function, parameter, wrong)
                if isinstance(result, Iterator):
                    list(itertools.islice(result, 3))
            except Exception as error:
                if "incompatible function arguments" in str(error):
                    found.append(f"{function.__name__}({parameter}={what})")
    return found


def called(function: Callable[..., Any], of_wrong: str, wrong: Any) -> Any:
    """Calls a function with a wrong argument, and good ones where it has no defaults."""
    args, kwargs = [], {}
    for name, parameter in inspect.signature(function).parameters.items():
        value = wrong if name == of_wrong else GOOD.get(name, "f.jaxexp")
        if name != of_wrong and parameter.default is not parameter.empty:
            continue
        if parameter.kind is parameter.KEYWORD_ONLY or parameter.default is not parameter.empty:
            kwargs[name] = value
        elif parameter.kind is not parameter.VAR_KEYWORD:
            args.append(value)
    return function(*args, **kwargs)


def test_the_runtime(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of it hands what callers give to a native module."""
    without_jax.skip_without_plugin()
    monkeypatch.chdir(place)
    session = runtime.Session("f.jaxexp", plugin="cpu")
    found = [one for function in (runtime.Session, runtime.find_plugin, runtime.register_ffi, runtime.use_lapack)
             for one in refused_natively(function)]  # fmt: skip
    for owner in (session, session.on_device(X)):
        found += [one for name in functions(owner) for one in refused_natively(getattr(owner, name))]
    assert not found


@pytest.mark.filterwarnings("ignore:nothing was written")  # by the writers of archives, which nobody enters
@pytest.mark.parametrize("owner", dict(owners()))
def test_the_rest(owner: str, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    made = dict(owners())[owner]()
    found = [one for name in functions(made) for one in refused_natively(getattr(made, name))]
    jaxexp.compile_cache(None)
    os.fstat(WRONG["3"])  # it was not taken for the number of an open file
    assert not found

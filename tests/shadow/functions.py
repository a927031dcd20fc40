"""A pytest plugin for JAX's own tests: each function that they jit and call is exported by both libraries.

When a test calls a jitted function of its own for the first time, each library exports it, serializes it, loads the
bytes of both, and calls what it has loaded. A line in SHADOW_OUT says how far each library came, and how the results
differ.
"""

from __future__ import annotations

import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jax import export as jax_export
from jax._src import core, pjit
from outcomes import write

import jaxexp

LIBRARIES: dict[str, Any] = {"jax": jax_export, "jaxexp": jaxexp}
_busy = False
_test = ""
_folders: set[Path] = set()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    global _test
    _test = item.nodeid
    _folders.add(item.path.parent)
    try:
        return (yield)  # type: ignore[return-value]
    finally:
        _test = ""


class _Compiler(types.ModuleType):
    """jaxlib as `jit` uses it, with a look at each call that it has not compiled before."""

    def __init__(self, jaxlib: Any) -> None:
        super().__init__(jaxlib.__name__)
        self._jaxlib = jaxlib

    def __getattr__(self, name: str) -> Any:
        return getattr(self._jaxlib, name)

    def pjit(self, name: str, fun: Any, miss: Any, *how: Any) -> Any:
        def seen_miss(*args: Any, **kwargs: Any) -> Any:
            wanted = not _busy and _test and hasattr(jitted, "_jit_info") and core.trace_state_clean() and _is_own(fun)
            arguments = _kept(jitted, args, kwargs) if wanted else None
            result = miss(*args, **kwargs)
            if arguments is not None:
                _compare(jitted, *arguments)
            return result

        jitted = self._jaxlib.pjit(name, fun, seen_miss, *how)
        return jitted


pjit._jax = _Compiler(pjit._jax)  # type: ignore[attr-defined]


def _is_own(fun: Any) -> bool:
    """Whether a function comes from the tests, or from what they share."""
    while hasattr(fun, "func"):
        fun = fun.func
    file = Path(getattr(getattr(fun, "__code__", None), "co_filename", ""))
    return file.parent in _folders or "test_util" in str(file)


def _kept(jitted: Any, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
    """The arguments; copies of them if the function donates some."""
    global _busy
    if any(isinstance(leaf, core.Tracer) for leaf in jax.tree.leaves((args, kwargs))):
        return None
    info = jitted._jit_info
    if not (info.donate_argnums or info.donate_argnames):
        return args, kwargs
    _busy = True
    try:
        return jax.tree.map(lambda leaf: leaf.copy() if isinstance(leaf, jax.Array) else leaf, (args, kwargs))
    finally:
        _busy = False


def _compare(jitted: Any, args: Any, kwargs: Any) -> None:
    global _busy
    _busy = True
    try:
        artifacts: dict[str, bytes] = {}
        stages: dict[str, dict[str, str]] = {name: {} for name in LIBRARIES}
        results: dict[str, Any] = {}
        for name, library in LIBRARIES.items():
            exported = _tried(stages[name], "export", lambda e: e.export(jitted)(*args, **kwargs), library)
            if exported is not None:
                blob = _tried(stages[name], "serialize", lambda exported: bytes(exported.serialize()), exported)
                if blob is not None:
                    artifacts[name] = blob
        arrays, named_arrays = _without_static(jitted, args, kwargs)
        for name, library in LIBRARIES.items():
            for writer, blob in artifacts.items():
                loaded = _tried(stages[name], f"read {writer}'s", library.deserialize, blob)
                if loaded is not None:
                    call = f"call {writer}'s"
                    outcome = _tried(stages[name], call, lambda loaded: loaded.call(*arrays, **named_arrays), loaded)
                    results[f"{name} {call}"] = [_described(leaf) for leaf in jax.tree.leaves(outcome)]
        reference = results.get("jax call jax's")
        differing = [how for how, found in results.items() if reference is not None and found != reference]
        write(
            function=getattr(jitted, "__name__", "?"),
            of=_test,
            **stages,
            differ=[f"{how}: {_difference(reference, results[how])}" for how in differing],
        )
    finally:
        _busy = False


def _tried(stages: dict[str, str], stage: str, run: Any, argument: Any) -> Any:
    try:
        result = jax.block_until_ready(run(argument))
    except Exception as error:
        stages[stage] = f"{type(error).__name__}: {str(error)[:300]}"
        return None
    stages[stage] = "ok"
    return result


def _without_static(jitted: Any, args: Any, kwargs: Any) -> tuple[list[Any], dict[str, Any]]:
    info = jitted._jit_info
    static = {number % len(args) for number in info.static_argnums if args and number < len(args)}
    dynamic = {name: value for name, value in kwargs.items() if name not in info.static_argnames}
    return [arg for number, arg in enumerate(args) if number not in static], dynamic


def _described(leaf: Any) -> tuple[Any, ...]:
    """A result as it compares: type, place, and every bit of its value."""
    if not isinstance(leaf, jax.Array):
        return type(leaf).__name__, np.asarray(leaf).tobytes()
    type_ = str(leaf.aval), "weak" if leaf.aval.weak_type else "strong", str(leaf.sharding)
    plain = jax.random.key_data(leaf) if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf
    return *type_, np.asarray(plain).tobytes()


def _difference(expected: Any, found: Any) -> str:
    for left, right in zip(expected, found, strict=False):
        if left[:-1] != right[:-1]:
            return f"{right[:-1]} for {left[:-1]}"
        if left != right:
            return "other values"
    return f"{len(found)} results for {len(expected)}"

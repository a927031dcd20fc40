"""`export(..., reproducible=True)`: equal source, equal bytes."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxexp
from jaxexp import _jax
from kit.command_line import started
from kit.corpus import CASES
from kit.places import GOLDEN, TESTS

pytestmark = pytest.mark.jax

X = np.ones((4, 4), np.float32)
DIFFERENT = {
    "calls_an_exported",  # the function that it calls is exported in the same process, and not reproducibly
    "several_effects",  # JAX takes the order of several ordered effects from a set
    "effects_and_symbolic_shapes",
}


# Prints a digest for each function of the corpus in a folder and its VJP: first in their process, or after exports of
# other kinds, from other callers.
CORPUS = """
import hashlib, json, sys
folder, history = sys.argv[1:]
sys.path.insert(0, folder)
from kit.devices import DEVICES
import jaxexp
from kit.corpus import CASES, export_with

def export(name, **options):
    case = CASES[name]
    with case.context():
        return export_with(jaxexp, case.build(), **options).serialize(vjp_order=min(case.vjp_order, 1))

def digest(name, depth=0):
    if depth:
        return digest(name, depth - 1)
    written = export(name, reproducible=True)
    assert folder.encode() not in written, name
    assert jaxexp.inspect(bytes(written)).absolute_paths == (), name
    return hashlib.sha256(written).hexdigest()

def later(name):
    export(name), export(name, reproducible=True)
    return digest(name, depth=12)

names = reversed(CASES) if history == "after" else CASES
print(json.dumps({name: (later if history == "after" else digest)(name) for name in names}))
"""


@pytest.mark.processes(reason="each has another folder, hash seed and user")
@pytest.mark.long(
    promise="another folder, user, hash seed, history or comment in the source makes no difference to the bytes",
    sibling="test_reproducible.py::test_another_place_and_another_history",
)
def test_another_folder_user_hash_seed_history_and_a_comment(tmp_path: Path) -> None:
    folder = tmp_path / "a longer name" / "tests"
    shutil.copytree(TESTS / "kit", folder / "kit", ignore=shutil.ignore_patterns("__pycache__"))
    for file in (folder / "kit" / "cases").glob("*.py"):
        text = re.sub(r"\n(?=def |@case|plain\()", "\n# An inserted comment.\n\n\n", file.read_text())
        file.write_text(text.replace("\n    return ", "\n    # Another one.\n    return "))
    found = []
    for place, history, env in (
        (TESTS, "first", {"PYTHONHASHSEED": "1"}),
        (folder, "after", {"PYTHONHASHSEED": "2", "HOME": str(tmp_path), "USER": "somebody"}),
    ):
        done = started(CORPUS, place, history, env={**os.environ, **env}, cwd=place)
        assert done.returncode == 0, done.stderr[-2000:]
        found.append(json.loads(done.stdout))
    here, there = found
    assert here.keys() == there.keys() == CASES.keys()
    assert {name for name in here if here[name] != there[name]} <= DIFFERENT


SOURCE = """
@jax.jit
def block(x):
    for y in [jnp.sin(x), jnp.where(x > 0, x, 1)]:
        x = x + y @ y
    return jax.lax.fori_loop(0, 3, lambda i, x: x * 0.5, x)
"""


def test_another_place_and_another_history() -> None:
    written = []
    for place, source in (("/here/f.py", SOURCE), ("/a/longer/name.py", f"# A comment.\n\n{SOURCE}")):
        space = {"jax": jax, "jnp": jnp}
        exec(compile(source, place, "exec"), space)
        if written:
            space["block"](X)
            jaxexp.export(space["block"])(X)
        export = jaxexp.export(space["block"], reproducible=True)
        written.append(bytes((lambda e=export: e(X))().serialize(vjp_order=1)))
        assert place.encode() not in written[-1]
        assert jaxexp.inspect(written[-1]).absolute_paths == ()
    assert written[0] == written[1]


def test_sizes_that_are_computed_have_no_history() -> None:
    """Checks of constraints, and sizes of results, are traced after the function: in JAX's own jitted functions."""
    (n,) = jaxexp.symbolic_shape("n", constraints=["n >= 4", "mod(n, 2) == 0"])
    spec = jax.ShapeDtypeStruct((n,), np.float32)

    @jax.jit
    def halves(x: jax.Array) -> jax.Array:
        return x.reshape(x.shape[0] // 2, 2)

    written = []
    for has_history in (False, True):
        with _jax.jit_cache(_jax.JitCache(capacity=64)):  # nothing has been traced in it
            if has_history:
                jaxexp.export(halves)(spec)
            written.append(bytes(jaxexp.export(halves, reproducible=True)(spec).serialize(vjp_order=1)))
    assert written[0] == written[1]


@jax.jit
def layer(w: jax.Array, x: jax.Array) -> jax.Array:
    with jax.named_scope("dense"):
        return jnp.tanh(x @ w)


def model(params: list[jax.Array], x: jax.Array) -> jax.Array:
    for y in [layer(w, x) for w in params]:  # a function of its own before Python 3.12
        x = x + jnp.where(y > 0, y, jax.nn.gelu(y))
    return jax.lax.scan(lambda carry, row: (carry * row, None), x, x)[0]


def test_the_bytes_are_known() -> None:
    """What another machine exported with this JAX: in another folder, at another time, perhaps with another Python."""
    exported = jaxexp.export(jax.jit(model), platforms=["cpu"], reproducible=True)([X, X], X)
    modules = [exported.mlir_module_serialized, exported.vjp().mlir_module_serialized]
    known = json.loads((GOLDEN / "reproducible.json").read_text())
    if jax.__version__ not in known:
        pytest.skip(f"nobody has exported it with JAX {jax.__version__} yet")
    assert [hashlib.sha256(module).hexdigest() for module in modules] == known[jax.__version__]


def test_names_stay_and_callers_do_not() -> None:
    text = jaxexp.export(jax.jit(model), reproducible=True)([X, X], X).mlir_module()
    for name in ("jit(model)", "dense/", 'loc("layer")', 'loc("model")', 'loc("model.<locals>.<lambda>")'):
        assert name in text
    for name in (__file__, ".py", "test_names_stay", "pytest", "<listcomp>"):
        assert name not in text


def test_with_weights_symbolic_shapes_and_an_old_reader() -> None:
    (batch,) = jaxexp.symbolic_shape("batch")
    spec = jax.ShapeDtypeStruct((batch, 4), np.float32)
    params = [jnp.asarray(X), jnp.asarray(X) * 2]

    def one() -> bytes:
        function = jax.jit(lambda x: jnp.where(x > 0, x @ params[0] @ params[1], x))
        made = jaxexp.export(function, weights=params, compatibility="jax-0.8.1", reproducible=True)(spec)
        return bytes(made.serialize(vjp_order=1))

    first, second = one(), (lambda: one())()
    assert first == second
    assert jaxexp.inspect(first).absolute_paths == ()


def test_settings_of_locations_make_no_difference() -> None:
    def bytes_of() -> bytes:
        function = jax.jit(lambda x: model([x, x], x))
        return bytes(jaxexp.export(function, reproducible=True)(X).serialize(vjp_order=1))

    expected = bytes_of()
    with _jax.config_states["jax_include_full_tracebacks_in_locations"](False):
        assert bytes_of() == expected
    for limit in (1, -1):
        with _jax.config_states["jax_traceback_in_locations_limit"](limit):
            assert bytes_of() == expected


def test_functions_are_not_traced_again_afterwards() -> None:
    traces = []
    counted = jax.jit(lambda x: traces.append(1) or x * 2)
    counted(X)
    jaxexp.export(counted, reproducible=True)(X)
    counted(X)
    assert len(traces) == 2

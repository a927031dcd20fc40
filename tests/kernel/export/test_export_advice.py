"""Functions that cannot be exported as they are: the error says where, and its advice works."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path
from typing import Any

import equinox
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import jaxexp
from kit.alike import LIBRARIES, raises_alike, reload
from kit.compare import assert_same_values
from kit.corpus import arr

# --- callbacks ------------------------------------------------------------------------------------------------------


def prints(x: Any) -> Any:
    jax.debug.print("{}", x)  # line 1
    return x


def asks(x: Any) -> Any:
    return jax.pure_callback(np.sin, jax.ShapeDtypeStruct(x.shape, x.dtype), x)  # line 1


def inside(x: Any) -> Any:
    def branch(x: Any) -> Any:
        return jax.lax.fori_loop(0, 3, lambda _, x: asks(x), x)

    return jax.lax.cond(x.sum() > 0, branch, jax.jit(branch), x)


def checks(x: Any) -> Any:
    return equinox.error_if(x, x.sum() > 3, "too much")  # line 1


def refusal(fun: Any) -> str:
    error = raises_alike(lambda library: library.export(jax.jit(fun))(arr(2)), match="calls back")
    assert isinstance(error, NotImplementedError)
    return str(error)


def line_of(fun: Any) -> str:
    """Where a function says `# line 1`."""
    source, first = inspect.getsourcelines(fun)
    return f"{Path(__file__)}:{first + next(i for i, line in enumerate(source) if '# line 1' in line)} ({fun.__name__})"


def test_line_of_a_callback() -> None:
    text = refusal(lambda x: prints(x) * 2)
    assert line_of(prints) in text
    assert "jax.debug.print" in text.partition("Take the callbacks out")[2]
    text = refusal(asks)
    assert f"pure_callback at {line_of(asks)}" in text
    assert "jax.debug.print" not in text
    assert "equinox" not in text


def test_line_of_a_callback_inside_of_control_flow() -> None:
    text = refusal(inside)
    assert text.count(line_of(asks)) == 1, "each place is said once"


def test_many_callbacks() -> None:
    sources = "\n".join(
        f"    x = jax.pure_callback(np.sin, jax.ShapeDtypeStruct(x.shape, x.dtype), x)  # {i}" for i in range(9)
    )
    space: dict[str, Any] = {"jax": jax, "np": np}
    exec(compile(f"def many(x):\n{sources}\n    return x", "many.py", "exec"), space)
    text = refusal(space["many"])
    assert "many.py:2 (many)" in text
    assert text.count("many.py") == 5
    assert "and 4 more" in text


def test_line_of_a_check_of_equinox() -> None:
    text = refusal(checks)
    assert f"{line_of(checks)}, inside equinox" in text
    assert "EQX_ON_ERROR" in text


@pytest.mark.parametrize("value", ["nan", "off"])
def test_advice_for_equinox(value: str, subprocess_env) -> None:
    program = """
import equinox, jax, jax.numpy as jnp, numpy as np, jaxexp
fun = jax.jit(lambda x: equinox.error_if(x, x.sum() > 3, "too much"))
exported = jaxexp.deserialize(jaxexp.export(fun)(np.ones(2, np.float32)).serialize())
print(exported.call(np.ones(2, np.float32)))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], env=subprocess_env(EQX_ON_ERROR=value), capture_output=True, text=True
    )
    assert done.stdout == "[1. 1.]\n", done.stderr


# --- functions that call jit inside ---------------------------------------------------------------------------------


def test_filter_jit() -> None:
    model = equinox.nn.MLP(2, 2, 4, 1, key=jax.random.key(0))
    fun = equinox.filter_jit(lambda model, x: model(x))
    error = raises_alike(
        lambda library: library.export(fun)(model, arr(2)), match="equinox.filter_jit keeps.*partition"
    )
    assert len(str(error)) < 400

    arrays, rest = equinox.partition(model, equinox.is_array)  # what the advice says
    advised = jax.jit(lambda arrays, x: equinox.combine(arrays, rest)(x))
    leaves, tree = jax.tree.flatten(arrays)
    for library in LIBRARIES.values():
        flat = jax.jit(lambda leaves, x: advised(jax.tree.unflatten(tree, leaves), x))
        exported = reload(library, library.export(flat)(leaves, arr(2)))
        assert_same_values(exported.call(leaves, arr(2)), model(jnp.asarray(arr(2))))


@pytest.mark.parametrize("with_model", [True, False])
def test_nnx_jit(with_model: bool) -> None:
    model = nnx.Linear(2, 2, rngs=nnx.Rngs(0))
    fun = nnx.jit(lambda model, x: model(x)) if with_model else nnx.jit(lambda x: x * 2)
    args = (model, arr(2)) if with_model else (arr(2),)
    error = raises_alike(lambda library: library.export(fun)(*args), match="nnx.jit takes modules apart.*nnx.split")
    assert isinstance(error, TypeError)

    graphdef, state = nnx.split(model)  # what the advice says
    advised = jax.jit(lambda state, x: nnx.merge(graphdef, state)(x))
    leaves, tree = jax.tree.flatten(state)
    for library in LIBRARIES.values():
        flat = jax.jit(lambda leaves, x: advised(jax.tree.unflatten(tree, leaves), x))
        exported = reload(library, library.export(flat)(leaves, arr(2)))
        assert_same_values(exported.call(leaves, arr(2)), model(arr(2)))


@pytest.mark.parametrize("weights", [False, True])
@pytest.mark.parametrize("layer", [nnx.BatchNorm, nnx.Dropout])
def test_state_that_a_model_of_flax_changes(layer: Any, weights: bool) -> None:
    model = nnx.BatchNorm(2, rngs=nnx.Rngs(0)) if layer is nnx.BatchNorm else nnx.Dropout(0.5, rngs=nnx.Rngs(0))
    kind = "BatchStat" if layer is nnx.BatchNorm else "RngCount"

    def export() -> Any:
        graph, state = nnx.split(model)
        options = {"weights": state} if weights and layer is nnx.BatchNorm else {}
        return jaxexp.export(jax.jit(lambda x: nnx.merge(graph, state)(x)), **options)(arr(2, 2))

    with pytest.raises(Exception, match=f"Cannot mutate {kind} from a different trace level") as error:
        export()
    assert (
        f"changes a {kind} that the function closes over. For inference, call model.eval()" in error.value.__notes__[-1]
    )
    model.eval()  # what the advice says
    assert_same_values(export().call(arr(2, 2)), model(arr(2, 2)))


def test_other_things_are_shown() -> None:
    for other in (jnp.sin.__wrapped__, jax.jit(jnp.sin).lower(arr(2)), 3, "text"):
        with pytest.raises(jaxexp.ExportError, match=r"made by jax\.jit, not .*: pass jax\.jit\(function\)"):
            jaxexp.export(other)

"""Functions that cannot be exported as they are: the error says where, and its advice works.

Errors of JAX about symbolic dimensions stay as they are, and get a note with the constraint to add.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import equinox
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax import export as jax_export
from jax.experimental import io_callback

import jaxexp
from jaxexp._kernel.export.advice import advise
from kit.alike import LIBRARIES, raises_alike, reload
from kit.compare import assert_same_values
from kit.corpus import arr
from kit.each import each

pytestmark = pytest.mark.jax


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
    refusal(lambda x: io_callback(np.sin, jax.ShapeDtypeStruct(x.shape, x.dtype), x, ordered=True))
    text = refusal(asks)
    assert f"pure_callback at {line_of(asks)}" in text
    assert "jax.debug.print" not in text
    assert "equinox" not in text
    assert refusal(inside).count(line_of(asks)) == 1, "each place is said once"


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


def test_advice_for_equinox() -> None:
    text = refusal(checks)
    assert f"{line_of(checks)}, inside equinox" in text
    assert "EQX_ON_ERROR" in text
    for value in ("nan", "off"):  # what the setting means
        fun = jax.jit(lambda x, value=value: equinox.error_if(x, x.sum() > 3, "too much", on_error=value))
        exported = jaxexp.deserialize(jaxexp.export(fun)(arr(2) * 0).serialize())
        assert_same_values(exported.call(arr(2) * 0), arr(2) * 0)


def as_advised(advised: Any, arrays: Any, expected: Any) -> None:
    """The function of the leaves of `arrays` can be exported by both libraries."""
    leaves, tree = jax.tree.flatten(arrays)
    flat = jax.jit(lambda leaves, x: jax.jit(advised)(jax.tree.unflatten(tree, leaves), x))
    for library in LIBRARIES.values():
        exported = reload(library, library.export(flat)(leaves, arr(2)))
        assert_same_values(exported.call(leaves, arr(2)), expected)


def test_filter_jit() -> None:
    model = equinox.nn.MLP(2, 2, 4, 1, key=jax.random.key(0))
    fun = equinox.filter_jit(lambda model, x: model(x))
    error = raises_alike(
        lambda library: library.export(fun)(model, arr(2)), match="equinox.filter_jit keeps.*partition"
    )
    assert len(str(error)) < 400
    arrays, rest = equinox.partition(model, equinox.is_array)  # what the advice says
    as_advised(lambda arrays, x: equinox.combine(arrays, rest)(x), arrays, model(jnp.asarray(arr(2))))


def test_nnx_jit() -> None:
    model = nnx.Linear(2, 2, rngs=nnx.Rngs(0))
    for fun, args in ((nnx.jit(lambda model, x: model(x)), (model, arr(2))), (nnx.jit(lambda x: x * 2), (arr(2),))):
        error = raises_alike(
            lambda library, fun=fun, args=args: library.export(fun)(*args),
            match="nnx.jit takes modules apart.*nnx.split",
        )
        assert isinstance(error, TypeError)
    graphdef, state = nnx.split(model)  # what the advice says
    as_advised(lambda state, x: nnx.merge(graphdef, state)(x), state, model(arr(2)))


@each("layer, weights", [(nnx.BatchNorm, False), (nnx.BatchNorm, True), (nnx.Dropout, False)])
def test_state_that_a_model_of_flax_changes(layer: Any, weights: bool) -> None:
    model = nnx.BatchNorm(2, rngs=nnx.Rngs(0)) if layer is nnx.BatchNorm else nnx.Dropout(0.5, rngs=nnx.Rngs(0))
    kind = "BatchStat" if layer is nnx.BatchNorm else "RngCount"

    def export() -> Any:
        graph, state = nnx.split(model)
        options = {"weights": state} if weights else {}
        return jaxexp.export(jax.jit(lambda x: nnx.merge(graph, state)(x)), **options)(arr(2, 2))

    with pytest.raises(Exception, match=f"Cannot mutate {kind} from a different trace level") as error:
        export()
    assert (
        f"changes a {kind} that the function closes over. For inference, call model.eval()" in error.value.__notes__[-1]
    )
    model.eval()  # what the advice says
    assert_same_values(export().call(arr(2, 2)), model(arr(2, 2)))


CASES: list[tuple[str, Callable[..., Any], list[str]]] = [
    ("b, 4", lambda x: jax.lax.top_k(x.T, 5), ["b <= 4", "b >= 5"]),
    ("b, 4", lambda x: x if x.shape[0] // 2 <= 8 else 2 * x, ["floordiv(b, 2) <= 8", "floordiv(b, 2) >= 9"]),
    ("b, 4", lambda x: jax.lax.slice(x, (2, 0), (x.shape[0] - 5, 4)), ["b - 5 >= 0", "b - 5 <= -1"]),
    ("a, b", lambda x: x if x.shape[0] < x.shape[1] - 2 else 2 * x, ["a <= b - 2 - 1", "a >= b - 2"]),
    ("b, 4", lambda x: x.reshape(8, -1), ["mod(4*b, - 8) == 0"]),
    # JAX refuses a constraint that divides by what may be 0; or none helps.
    ("b, n", lambda x: x.reshape(-1, x.shape[1], x.shape[0] - 1), []),
    ("b, n", lambda x: x + np.ones(8), []),
    ("b", lambda x: np.zeros(int(x.shape[0])), []),
]

# What the advice says is all that it takes.
SUFFICES: list[tuple[str, Callable[..., Any], list[str]]] = [
    ("b, n", lambda x: x.reshape(-1, x.shape[1] // 2, 2), ["mod(n, 2) == 0"]),
    ("b, n", lambda x: x.reshape(-1, 6), ["mod(b*n, - 6) == 0"]),
    ("b, n", lambda x: jnp.split(x, 2), ["mod(b, 2) == 0"]),
    ("b, n", lambda x: x[:, :512] + jnp.ones((1, 512)), ["n >= 512"]),
    ("b, n", lambda x: x[:, -512:] + jnp.ones((1, 512)), ["n - 512 >= 0"]),
    ("b, n", lambda x: x[:, :512] @ jnp.ones((512, 3)), ["n >= 512"]),
    ("b, n", lambda x: jnp.concatenate([x[:, :512], jnp.ones((3, 512))]), ["n >= 512"]),
    ("a, b", lambda x: x[:3, :4] + jnp.ones((3, 4)), ["a >= 3", "b >= 4"]),
    ("n", lambda x: x[2:6] + jnp.ones(4), ["n >= 6", "n >= 2"]),
    ("n", lambda x: jnp.zeros(512).at[: x.shape[0]].set(x), ["n <= 512"]),
    ("n", lambda x: jnp.pad(x, (0, 512 - x.shape[0])), ["- n + 512 >= 0"]),
]


def exported(
    export: Callable[..., Any], shape: str, function: Any, constraints: Sequence[str] = ()
) -> Exception | None:
    spec = jax.ShapeDtypeStruct(jaxexp.symbolic_shape(shape, constraints=constraints), np.float32)
    try:
        export(jax.jit(function))(spec)
    except Exception as error:
        return error
    return None


def notes_of(error: Exception) -> str:
    return "\n".join(getattr(error, "__notes__", ()))


@each("shape, function, constraints", CASES)
def test_the_constraint_to_add(shape: str, function: Any, constraints: list[str]) -> None:
    error, of_jax = (exported(library.export, shape, function) for library in (jaxexp, jax_export))
    assert error is not None and type(error) is type(of_jax) and str(error) == str(of_jax)
    assert re.findall(r"constraints=\['(.*?)'\]", notes_of(error)) == constraints
    assert constraints or "constraints=" not in notes_of(error)
    for constraint in constraints:
        after = exported(jaxexp.export, shape, function, [constraint])
        assert after is None or str(after) != str(error)  # JAX may refuse sizes for which a layer makes no sense


@each("shape, function, constraints", SUFFICES)
def test_the_constraint_suffices(shape: str, function: Any, constraints: list[str]) -> None:
    error = exported(jaxexp.export, shape, function)
    assert error is not None
    assert repr(constraints)[1:-1] in re.findall(r"constraints=\[(.*?)\]", notes_of(error))
    assert exported(jaxexp.export, shape, function, constraints) is None


def test_a_dimension_is_compared_in_words() -> None:
    error = exported(jaxexp.export, "b, 4", lambda x: jax.lax.top_k(x.T, 5))
    assert error is not None and notes_of(error).endswith(
        "If b < 5 holds for all sizes, add constraints=['b <= 4'] to symbolic_shape; if it holds for none, add "
        "constraints=['b >= 5']."
    )
    other = ValueError("something else")
    advise(other)
    assert not hasattr(other, "__notes__")

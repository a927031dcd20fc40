"""Symbolic shapes: constraints, expressions, calls with other symbolic shapes; always beside jax.export."""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export as jax_export

import jaxexp
from kit.alike import LIBRARIES
from kit.compare import assert_same_values
from kit.corpus import arr, spec
from kit.each import each

pytestmark = pytest.mark.jax


@dataclasses.dataclass(frozen=True)
class Polymorphic:
    """A function of symbolic shapes, argument shapes that fit, and argument shapes that do not."""

    fun: Callable[..., Any]
    shapes: Sequence[str]
    good: Sequence[Sequence[tuple[int, ...]]]
    bad: Sequence[Sequence[tuple[int, ...]]] = ()
    constraints: Sequence[str] = ()

    def export(self, library: Any) -> Any:
        return library.export(jax.jit(self.fun))(*specs_of(library, self.shapes, self.constraints))


def specs_of(library: Any, shapes: Sequence[str], constraints: Sequence[str] = ()) -> list[jax.ShapeDtypeStruct]:
    scope = library.SymbolicScope(constraints)
    return [spec(library.symbolic_shape(shape, scope=scope)) for shape in shapes]


def tile(x):
    return jnp.tile(x, 2), jnp.ones((x.shape[0] * x.shape[0],)), jnp.int32(x.shape[0])


def halves(x):
    n = x.shape[0]
    return x[: n // 2], x[n // 2 :], jnp.arange(n) % 3


def minmax(x, y):
    m, n = x.shape[0], y.shape[0]
    return jnp.zeros((jax.core.max_dim(m, n),)), x[: jax.core.min_dim(m, n)].sum() + y.sum()


def outer(x, y):
    return jnp.outer(x, y).reshape((-1,)), jnp.concatenate([x, y])


FUNCTIONS = {
    "square": Polymorphic(tile, ["a"], [[(3,)], [(1,)]]),
    "quotient and remainder": Polymorphic(halves, ["a"], [[(5,)], [(2,)]]),
    "maximum and minimum": Polymorphic(minmax, ["a", "b"], [[(3,), (5,)], [(5,), (3,)]], constraints=["a >= 2"]),
    "product": Polymorphic(outer, ["a", "b"], [[(3,), (5,)]]),
    "linear": Polymorphic(lambda x, y: x.sum() + y, ["2*a", "a + 1"], [[(4,), (3,)]], [[(3,), (3,)], [(4,), (4,)]]),
    "two variables in a dimension": Polymorphic(
        lambda x, y, z: (x.sum() + z, y), ["a", "a*b", "b + a"], [[(2,), (6,), (5,)]], [[(2,), (6,), (4,)]]
    ),
    "power": Polymorphic(lambda x, y: x.sum() * y, ["a", "a^2"], [[(3,), (9,)]], [[(3,), (8,)]]),
    "floordiv": Polymorphic(lambda x, y: x.sum() * y, ["a", "floordiv(a, 2)"], [[(5,), (2,)]], [[(5,), (3,)]]),
    "mod": Polymorphic(lambda x, y: x.sum() * y, ["a", "mod(a, 3) + 1"], [[(5,), (3,)]], [[(5,), (1,)]]),
    "same variable twice": Polymorphic(lambda x, y: x + y, ["a, 3", "a, 3"], [[(2, 3), (2, 3)]], [[(2, 3), (1, 3)]]),
    "ellipsis of constants": Polymorphic(lambda x: x * 2, ["a, 3"], [[(2, 3)]], [[(2, 4)], [(2,)], [(2, 3, 1)]]),
    "lower bound": Polymorphic(lambda x: x[3], ["a"], [[(4,)]], [[(3,)], [(1,)]], ["a >= 4"]),
    "upper bound": Polymorphic(jnp.sin, ["a"], [[(4,)]], [[(5,)]], ["a <= 4"]),
    "multiple": Polymorphic(jnp.cos, ["a"], [[(4,)]], [[(6,)], [(1,)]], ["mod(a, 4) == 0"]),
    "ordered": Polymorphic(lambda x, y: x[: y.shape[0]] + y, ["a", "b"], [[(4,), (2,)]], [[(2,), (4,)]], ["a >= b"]),
    "equal products": Polymorphic(
        lambda x, y: x.reshape((-1,)) + y, ["a, b", "c"], [[(2, 3), (6,)]], [[(2, 3), (5,)]], ["a*b == c"]
    ),
    "zero allowed": Polymorphic(lambda x: x.sum(), ["a - 1"], [[(0,)], [(3,)]]),
}


def arguments(shapes: Sequence[tuple[int, ...]]) -> list[np.ndarray]:
    return [arr(*shape) for shape in shapes]


@pytest.mark.wide(one_in=3, promise="functions of symbolic sizes compute what the live ones do")
@pytest.mark.parametrize("name", FUNCTIONS)
def test_values(name: str) -> None:
    function = FUNCTIONS[name]
    ours, theirs = function.export(jaxexp), function.export(jax_export)
    assert [str(a) for a in (*ours.in_avals, *ours.out_avals)] == [
        str(a) for a in (*theirs.in_avals, *theirs.out_avals)
    ]
    # Our own reader is compared on all ways, stock's once: it compiles again for each.
    read = jaxexp.deserialize(ours.serialize()).call
    calls = [ours.call, read, jax.jit(read), jaxexp.deserialize(theirs.serialize()).call]
    calls.append(jax_export.deserialize(ours.serialize()).call)
    for shapes in function.good:
        expected = function.fun(*map(jnp.asarray, arguments(shapes)))
        for call in calls:
            assert_same_values(call(*arguments(shapes)), expected)


@each("name", [name for name, function in FUNCTIONS.items() if function.bad])
def test_shapes_that_do_not_fit(name: str) -> None:
    """A fresh export knows its constraints; what the bytes do not say of them, the module asserts.

    So every call is checked, however it is made, as in jax.export: an error, and never a result.
    """
    function = FUNCTIONS[name]
    theirs, ours = function.export(jax_export), function.export(jaxexp)
    read, of_theirs = (jaxexp.deserialize(exported.serialize()) for exported in (ours, theirs))
    for number, shapes in enumerate(function.bad):
        args = arguments(shapes)
        for call in (ours.call, read.call) if number else (ours.call, read.call, jax.jit(ours.call), of_theirs.call):
            with pytest.raises(jaxexp.errors.ExportError, match="calling"):
                call(*args)
        with pytest.raises(ValueError):
            theirs.call(*args)
    with pytest.raises(jaxexp.errors.ExportError, match="calling"):
        jax.vmap(ours.call)(*(x[None] for x in args))
    for call in (jax.jit(read.call), *([jax_export.deserialize(ours.serialize()).call] if "bound" in name else [])):
        with pytest.raises(ValueError):  # JAX's own, where JAX compiles
            call(*args)


def test_wide_dimension_variables() -> None:
    with jax.enable_x64(True):
        exported = FUNCTIONS["two variables in a dimension"].export(jaxexp)
        for library in LIBRARIES.values():
            found = library.deserialize(exported.serialize()).call(*arguments([(2,), (6,), (5,)]))
            np.testing.assert_allclose(found[0], arr(2).sum() + arr(5), rtol=1e-6)


def inner(library: Any) -> Any:
    """float32[a, b], float32[b] -> float32[a], float32[a*b]."""
    specs = specs_of(library, ["a, b", "b"])
    fun = jax.jit(lambda x, y: (x @ y, (x * y).reshape((-1,))))
    return jaxexp.deserialize(library.export(fun)(*specs).serialize(vjp_order=1))


OUTER = {
    "other names": (["n, m", "m"], ["n", "m*n"]),
    "swapped names": (["b, a", "a"], ["b", "a*b"]),
    "expressions": (["2*n, n + 1", "n + 1"], ["2*n", "2*n^2 + 2*n"]),
    "one variable for two": (["n, n", "n"], ["n", "n^2"]),
    "constant": (["2, 3", "3"], ["2", "6"]),
}


@each("shapes", OUTER)
def test_called_with_symbolic_shapes(shapes: str) -> None:
    args, results = OUTER[shapes]
    specs = specs_of(jaxexp, args)
    sizes = {"n": 2, "m": 3, "a": 4, "b": 5}
    x, y = (arr(*(int(eval(d.replace("^", "**"), {}, sizes)) for d in a.split(","))) for a in args)
    for library in LIBRARIES.values() if shapes == "expressions" else [jaxexp]:
        callee = inner(library)
        exported = jaxexp.export(jax.jit(lambda x, y, f=callee: f.call(x, y)))(*specs)
        assert [str(aval.shape[0]) for aval in exported.out_avals] == results
        for reader in LIBRARIES.values() if shapes == "expressions" else [jaxexp]:
            again = reader.deserialize(exported.serialize(vjp_order=1))
            assert_same_values(again.call(x, y), (jnp.asarray(x @ y), jnp.asarray((x * y).reshape(-1))))
            gradient = jax.jit(jax.grad(lambda x, call=again.call: call(x, y)[0].sum()))(x)
            np.testing.assert_allclose(gradient, np.broadcast_to(y, x.shape), rtol=1e-6)
    for wrong in (["n, m", "n"], ["2*n, n", "n + 1"], ["n, m", "k"]):
        with pytest.raises(jaxexp.errors.ExportError, match="calling"):
            jaxexp.export(jax.jit(callee.call))(*specs_of(jaxexp, wrong))


# Each constraint of the callee, and one of the caller that implies it.
IMPLIED = {"b >= 4": "n >= 6", "b <= 4": "n <= 3", "mod(b, 6) == 0": "mod(n, 6) == 0"}


def outcome(use: Callable[[], Any]) -> Any:
    """What it returns, or the built-in type of the error."""
    try:
        return jax.tree_util.tree_map(lambda leaf: leaf.tolist() if hasattr(leaf, "tolist") else leaf, use())
    except Exception as error:
        return next(base for base in type(error).__mro__ if base.__module__ == "builtins")


def uses(library: Any, callee: Any, implied: str) -> list[Any]:
    """What becomes of calls: of known sizes, of symbolic ones, and of an export that makes the call."""
    found = []
    for dims, limits in (("3, 2", ()), ("6, 2", ()), ("n, 2", ()), ("n, 2", (implied,))):
        spec_of_call = spec(library.symbolic_shape(dims, constraints=limits))
        for function in (callee.call, jax.grad(callee.call)):
            found.append(outcome(lambda f=function, s=spec_of_call: str(jax.eval_shape(f, s))))
        caller = outcome(lambda s=spec_of_call: library.export(jax.jit(lambda x: callee.call(x) + 1))(s).serialize())
        for n in (3, 6) if isinstance(caller, bytearray) else ():
            found.append(outcome(lambda n=n, caller=caller: library.deserialize(caller).call(arr(n, 2))))
        found.append(isinstance(caller, bytearray) or caller)
    for x in (arr(3, 2), arr(6, 2)):
        for function in (callee.call, jax.jit(callee.call), jax.grad(callee.call), jax.jit(jax.grad(callee.call))):
            found.append(outcome(lambda f=function, x=x: f(x)))
        found.append(outcome(lambda x=x: str(type(jax.jit(callee.call).lower(x)))))
    return found


@pytest.mark.wide(one_in=4, promise="constraints of a loaded function are checked where jax.export checks them")
@pytest.mark.parametrize("constraint", IMPLIED)
@pytest.mark.parametrize("written_by", ["jax", "jaxexp", "nobody"])
def test_constraints_of_a_callee(written_by: str, constraint: str) -> None:
    """Those of a loaded function when sizes are known, whoever wrote it; those of a new export when it is traced."""
    fun = jax.jit(lambda x: x.sum() * x.shape[0])
    callees = {}
    for name, library in LIBRARIES.items():
        source = LIBRARIES.get(written_by, library)
        callee = source.export(fun)(spec(source.symbolic_shape("b, 2", constraints=[constraint])))
        callees[name] = callee if written_by == "nobody" else library.deserialize(callee.serialize(vjp_order=1))
    ours, theirs = (uses(LIBRARIES[name], callee, IMPLIED[constraint]) for name, callee in callees.items())
    assert ours == theirs
    for x in (arr(3, 2), arr(6, 2)):  # jax.export maps nothing; as a call of each element
        each_element = outcome(lambda x=x: jnp.stack([callees["jax"].call(x)]))
        for mapped in (jax.vmap(callees["jaxexp"].call), jax.jit(jax.vmap(callees["jaxexp"].call))):
            assert outcome(lambda x=x, mapped=mapped: mapped(x[None])) == each_element


def test_constraints_of_what_is_made_of_a_loaded_function() -> None:
    """Copies, VJPs, batches and functions with weights are traced as the function is; eager calls say what is wrong."""
    (b,) = jaxexp.symbolic_shape("b", constraints=["b >= 4"])
    exported = jaxexp.export(jax.jit(lambda w, x: x.sum() * w["w"]))({"w": arr()}, spec((b, 2)))
    loaded = jaxexp.deserialize(exported.serialize(vjp_order=1))
    bound, x = loaded.bind({"w": arr()}), spec(jaxexp.symbolic_shape("n, 2"))
    for function in (loaded, dataclasses.replace(loaded, fun_name="f"), pickle.loads(pickle.dumps(loaded))):
        jax.eval_shape(function.call, {"w": arr()}, x)
        jax.eval_shape(function.vjp().call, arr(), x, arr())
    caller = jaxexp.export(jax.jit(jax.vmap(bound.call)))(spec((1, *x.shape)))
    np.testing.assert_allclose(caller.call(arr(1, 4, 2)), jax.vmap(bound.call)(arr(1, 4, 2)), rtol=1e-6)
    for call, shape in ((caller.call, (1, 3, 2)), (jax.vmap(bound.call), (1, 3, 2)), (bound.raised(), (3, 2))):
        with pytest.raises(jaxexp.errors.ExportError, match=r"calling .*b >= 4"):
            call(arr(*shape))
    with pytest.raises(jaxexp.errors.ExportError, match=r"specializing .*b >= 4"):
        bound.specialize(x)
    with pytest.raises(jaxexp.errors.ExportError, match=r"saving .*b >= 4"):
        bound.serialize(sizes=[{"b": 3}])


def test_many_equalities() -> None:
    """They substitute nothing in each other, so a reader has not to expect that what they substitute grows."""
    constraints = [f"mod(1 + 2*d{i} - e, 4) == 1" for i in range(12)]
    scope = jaxexp.SymbolicScope(constraints)
    shape = jaxexp.symbolic_shape("e, " + ", ".join(f"d{i}, c{i}, {i + 1}*d{i}" for i in range(12)), scope=scope)
    exported = jaxexp.export(jax.jit(lambda x: x + 1))(spec(shape))
    loaded = jaxexp.deserialize(exported.serialize())
    assert str(loaded.in_avals) == str(exported.in_avals)
    assert bytes(loaded.serialize()) == bytes(exported.serialize())

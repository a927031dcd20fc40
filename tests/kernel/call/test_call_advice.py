"""Calls with arguments of another kind, and in processes of another kind: what to do about it."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxexp
from kit.alike import raises_alike, reload
from kit.corpus import arr
from kit.each import each

pytestmark = pytest.mark.jax


def of(library: Any, fun: Any, *args: Any) -> Any:
    return reload(library, library.export(jax.jit(fun))(*args))


MODEL = {"w": arr(3), "act": None}
FUNCTIONS_AND_TEXTS = [(jnp.tanh, "a function"), ("relu", "one str"), (object(), "one object"), (3, "one array")]
# What the export had, what the call has, and what is said.
STRUCTURES: list[tuple[Any, Any, str]] = [
    (arr(2, 2), [1.0, 2.0], "args[0]: expected an array, float32[2,2], found <class 'list'>; make an array of it"),
    ({"a": arr(3), "b": arr(2)}, {"a": (1,), "b": arr(2)},
     "args[0]['a']: expected an array, float32[3], found <class 'tuple'>; make an array of it"),
    ([arr(2)], arr(2, 2), "args[0]: expected <class 'list'>, found one array; take it apart, as in list(array)"),
    ((arr(2), arr(2)), {"a": arr(2)}, "expected <class 'tuple'>, found <class 'dict'>; their Python types differ"),
    *((MODEL, {**MODEL, "act": leaf}, f"args[0]['act']: expected <class 'NoneType'>, found {said}; pass None there")
      for leaf, said in FUNCTIONS_AND_TEXTS),  # of a whole model
]  # fmt: skip


@each("exported, given, said", STRUCTURES)
def test_another_structure(exported: Any, given: Any, said: str) -> None:
    error = raises_alike(lambda library: of(library, lambda tree: jax.tree.leaves(tree)[0], exported).call(given))
    assert said in str(error)
    assert "'int'" not in str(error)


def test_a_list_for_an_array_of_any_size() -> None:
    exported = jaxexp.export(jax.jit(jnp.sin))(jax.ShapeDtypeStruct(jaxexp.symbolic_shape("b"), np.float32))
    with pytest.raises(jaxexp.errors.ExportError, match=r"expected an array, float32\[b\], found <class 'list'>"):
        exported.specialize([arr(2)])


class OfArrays:
    """A pytree class that checks its children, also when JAX makes an instance."""

    def __init__(self, array: Any) -> None:
        if not hasattr(array, "shape"):
            raise TypeError(f"OfArrays takes an array, not {array!r}")
        self.array = array


jax.tree_util.register_pytree_node(OfArrays, lambda node: ((node.array,), None), lambda _, found: OfArrays(*found))

CHECKED: dict[str, tuple[Any, str]] = {
    "another key": (lambda f: f.call(OfArrays(arr(2)), {"j": arr(2)}), r"args\[1\]: expected <class 'dict'>"),
    "no instance": (lambda f: f.call(arr(2), {"k": arr(2)}), "expected <class '.*OfArrays'>, found one array"),
    "traced": (lambda f: jax.jit(f.call)(OfArrays(arr(2)), arr(2)), "expected <class 'dict'>, found one array"),
    "another dtype": (lambda f: f.call(OfArrays(np.arange(2)), {"k": arr(2)}), r"args\[0\].* must have dtype float32"),
    "another shape": (lambda f: f.call(OfArrays(arr(3)), {"k": arr(2)}), r"args\[0\].*\.shape\[0\] must have size 2"),
    "specialize": (lambda f: f.specialize(OfArrays(arr(2)), {"k": np.arange(2)}), r"\['k'\] has dtype float32"),
    "bind": (lambda f: f.bind([np.arange(2)]), "tensor '0': expected float32"),
}


@each("what", CHECKED)
def test_a_class_that_checks_its_children(what: str) -> None:
    """What differs in a call is told without instances of it."""
    use, message = CHECKED[what]
    function = jaxexp.export(jax.jit(lambda node, d: node.array + d["k"]))(OfArrays(arr(2)), {"k": arr(2)})
    with pytest.raises(jaxexp.errors.ExportError, match=message):
        use(function)


@each("dtype", ["float64", "uint64"])
def test_64_bits_in_a_process_of_32(dtype: str) -> None:
    with jax.enable_x64(True):
        blob = jaxexp.export(jax.jit(lambda x: x * 2))(np.ones(2, dtype)).serialize()
    for how in (lambda call: call, jax.jit):
        with pytest.raises(
            jaxexp.errors.ExportError, match=f"must have dtype {dtype}.*jax_enable_x64.*arrays of dtype {dtype}"
        ):
            how(jaxexp.deserialize(blob).call)(np.ones(2, dtype))
    with pytest.raises(jaxexp.errors.ExportError, match="jax_enable_x64"):
        jaxexp.deserialize(blob).specialize(jax.ShapeDtypeStruct((2,), np.float32))
    jax.config.update("jax_enable_x64", True)  # what the advice says
    try:
        assert jaxexp.deserialize(blob).call(np.ones(2, dtype)).dtype == dtype
        with pytest.raises(jaxexp.errors.ExportError) as error:
            jaxexp.deserialize(blob).call(np.ones(2, np.int8))
    finally:
        jax.config.update("jax_enable_x64", False)
    assert "x64" not in str(error.value), "it is on"


def test_keys_and_their_numbers() -> None:
    of_key = of(jaxexp, jax.random.key_data, jax.random.key(0))
    of_numbers = of(jaxexp, lambda x: x, jax.random.PRNGKey(0))
    with pytest.raises(jaxexp.errors.ExportError, match="wrap_key_data"):
        of_key.call(np.uint32(3))
    with pytest.raises(jaxexp.errors.ExportError, match=r"wrap_key_data"):
        of_key.call(jax.random.PRNGKey(0))
    with pytest.raises(jaxexp.errors.ExportError, match=r"jax\.random\.key_data\(key\)"):
        of_numbers.call(jax.random.key(0))
    key = jax.random.wrap_key_data(jax.random.PRNGKey(0))
    assert (of_key.call(key) == of_numbers.call(jax.random.key_data(key))).all()


def test_a_path_for_an_artifact(tmp_path) -> None:
    for path in ("model.jaxexp", tmp_path):
        with pytest.raises(TypeError, match=r"load\(path\) reads a file"):
            jaxexp.deserialize(path)
    with pytest.raises(TypeError, match=r"not <class 'int'>$"):
        jaxexp.deserialize(3)


def test_fewer_devices_than_the_function_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a process with one device, `device_put` cannot help."""
    mesh = jax.make_mesh((8,), ("x",), axis_types=(AxisType.Auto,))
    exported = jaxexp.export(jax.jit(jnp.sin, in_shardings=NamedSharding(mesh, P("x"))))(arr(8))
    loaded = jaxexp.deserialize(exported.serialize())
    monkeypatch.setattr(jax, "device_count", lambda: 1)
    with pytest.raises(jaxexp.errors.ExportError, match="exported for 8 devices, and is called on 1") as error:
        loaded.call(arr(8))
    assert "This process has 1 cpu device: call it where there are 8." in str(error.value)
    assert 'jax.config.update("jax_num_cpu_devices", 8)' in str(error.value)
    assert "device_put" not in str(error.value)


@each(
    "transform",
    [lambda f: f, jax.vmap, lambda f: jax.grad(lambda x: f(x).sum()), lambda f: lambda x: jax.jvp(f, (x,), (x,))],
)
def test_explicit_axes_and_arguments_that_are_not_placed(transform: Any) -> None:
    mesh = jax.make_mesh((8,), ("x",), axis_types=(AxisType.Explicit,))
    exported = jaxexp.export(jax.jit(jnp.sin, in_shardings=NamedSharding(mesh, P("x"))))(arr(8))
    loaded = jaxexp.deserialize(exported.serialize(vjp_order=2))
    x = arr(2, 8) if transform is jax.vmap else arr(8)
    with pytest.raises(jaxexp.errors.ExportError, match="exported for 8 devices, and is called on 1") as error:
        transform(loaded.call)(x)
    assert "axis_types=(jax.sharding.AxisType.Explicit,))" in str(error.value)


# Dimensions, a constraint on them, sizes that break it, and what the error says.
CASES = """
3, batch     | batch <= 512       | 3, 600  | args[0].shape[1] must be at most 512, found 600
3, batch     | batch >= 8         | 3, 6    | args[0].shape[1] must be at least 8, found 6
a, b         | mod(b, 8) == 0     | 3, 6    | args[0].shape[1] must be a multiple of 8, found 6
a, b         | b == 4             | 3, 6    | args[0].shape[1] must have size 4, found size 6
2*a, b       | a <= 4             | 12, 6   | the sizes of the arguments must satisfy a <= 4, found a = 6 (args[0].shape[0] is 2*a = 12)
aa, a, b     | a >= 2*b           | 1, 3, 6 | the sizes of the arguments must satisfy a >= 2*b, found a = 3 (args[0].shape[1]), b = 6 (args[0].shape[2])
b, 5         | b <= 9             | 0, 5    | args[0].shape[0] must be at least 1, found 0
b + 3, 5     | b <= 9             | 2, 5    | b must be at least 1, found b = -1 (args[0].shape[0] is b + 3 = 2)
b, b         | b <= 9             | 2, 3    | args[0].shape[1] must have size 2, found size 3 (exported with b, here b = 2 (args[0].s
a, b, a*b    | a <= 9             | 2, 3, 7 | args[0].shape[2] must have size 6, found size 7 (exported with a*b, here a = 2 (args[0].shape[0]), b = 3 (
2*b, 5       | b <= 9             | 3, 5    | b must be a whole number, found 2*b = 3 (args[0].shape[0])
a, b         | mod(b, 8) >= 3     | 3, 9    | the sizes of the arguments must satisfy mod(b, 8) >= 3, found b = 9 (
"""  # noqa: E501


@each("dims, constraint, sizes, message", [map(str.strip, line.split("|")) for line in CASES.strip().splitlines()])
def test_a_broken_constraint(dims: str, constraint: str, sizes: str, message: str) -> None:
    spec = jax.ShapeDtypeStruct(jaxexp.symbolic_shape(dims, constraints=[constraint]), np.float32)
    x = np.ones([int(size) for size in sizes.split(",")], np.float32)
    fresh = jaxexp.export(jax.jit(lambda x: -x))(spec)
    loaded = jaxexp.deserialize(fresh.serialize())
    for doing, use in (
        ("calling", fresh.call),
        ("calling", loaded.call),
        ("calling", jax.jit(fresh.call)),
        ("specializing", loaded.specialize),
    ):
        with pytest.raises(jaxexp.errors.ExportError) as caught:
            use(x)
        assert str(caught.value).startswith(f"{doing} <lambda>: {message}"), str(caught.value)
        assert isinstance(caught.value, ValueError), "as in jax.export"


def test_paths_are_those_of_the_call() -> None:
    (b,) = jaxexp.symbolic_shape("b", constraints=["b <= 4"])
    weights = {"w": np.ones((3, 3), np.float32)}
    exported = jaxexp.export(jax.jit(lambda x: x["a key"] @ weights["w"]), weights=weights)
    model = exported({"a key": jax.ShapeDtypeStruct((b, 3), np.float32)})
    with pytest.raises(jaxexp.errors.ExportError, match=r"args\[0\]\['a key'\].shape\[0\] must be at most 4, found 5"):
        model.call({"a key": np.ones((5, 3), np.float32)})

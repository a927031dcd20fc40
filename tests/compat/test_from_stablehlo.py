"""`from_stablehlo`: what becomes of a module's signature, and the options."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import jaxexp
from jaxexp._compat.foreign import source
from kit.corpus import mesh
from kit.each import each
from kit.producers import identity
from kit.vhlo import bytecode

pytestmark = pytest.mark.jax

W, B, X = np.full((3, 3), 0.5, np.float32), np.float32(2), np.arange(3, dtype=np.float32)


def scores(params: Any, x: Any) -> Any:
    return {"loss": jnp.tanh(params["w"] @ x).sum() + params["b"], "both": (x, x + 1)}


LOWERED = jax.jit(scores, donate_argnums=1).lower({"w": W, "b": B}, X)
NAMED = bytecode(LOWERED.as_text(debug_info=True))
UNNAMED = bytecode(LOWERED.as_text())  # results have names there, too
MATMUL = bytecode("""
module @products {
  func.func @product(%a: tensor<?x3xf32>, %b: tensor<3x?xf32>) -> (tensor<?x?xf32>, tensor<?x3xf32>) {
    %0 = stablehlo.dot %a, %b : (tensor<?x3xf32>, tensor<3x?xf32>) -> tensor<?x?xf32>
    %1 = stablehlo.concatenate %a, %a, dim = 0 : (tensor<?x3xf32>, tensor<?x3xf32>) -> tensor<?x3xf32>
    return %0, %1 : tensor<?x?xf32>, tensor<?x3xf32>
  }
}
""")
# In the form that Reactant.jl prints: attributes of Enzyme's dialects, counts of 64 bits, donated arguments that are
# returned, names that are paths in Julia.
OF_REACTANT = """
module @reactant_scale attributes {mhlo.num_partitions = 1 : i64, mhlo.num_replicas = 1 : i64} {
  func.func private @"*_broadcast"(%a: tensor<f64>, %b: tensor<f64>) -> (tensor<f64>, tensor<f64>) {
    %0 = stablehlo.multiply %a, %b : tensor<f64>
    return %0, %a : tensor<f64>, tensor<f64>
  }
  func.func @main(%x: tensor<4x2xf64> {enzymexla.memory_effects = [], tf.aliasing_output = 1 : i32}
                      loc("x (path=(:args, 1))"),
                  %s: tensor<f64> {enzymexla.memory_effects = []} loc("s (path=(:args, 2))"))
      -> (tensor<2x4xf64>, tensor<4x2xf64>) attributes {enzymexla.memory_effects = []} {
    %0:2 = call @"*_broadcast"(%s, %s) : (tensor<f64>, tensor<f64>) -> (tensor<f64>, tensor<f64>)
    %1 = stablehlo.transpose %x, dims = [1, 0] {enzymexla.non_negative = [1]}
        : (tensor<4x2xf64>) -> tensor<2x4xf64>
    %2 = stablehlo.broadcast_in_dim %0#0, dims = [] : (tensor<f64>) -> tensor<2x4xf64>
    %3 = stablehlo.multiply %1, %2 : tensor<2x4xf64>
    return %3, %x : tensor<2x4xf64>, tensor<4x2xf64>
  }
}
"""


def close(found: Any, expected: Any) -> None:
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), found, expected)


def test_names_of_jax_make_trees() -> None:
    exported = jaxexp.from_stablehlo(NAMED)
    expected = jaxexp.export(jax.jit(scores))({"w": W, "b": B}, X)
    again = jaxexp.from_stablehlo(expected.mlir_module_serialized)  # a portable artifact
    for one in (exported, again):
        assert (one.in_tree, one.out_tree) == (expected.in_tree, expected.out_tree)
    assert (exported.fun_name, exported.platforms, exported.nr_devices) == ("jit_scores", ("cpu",), 1)
    assert exported.donated_arguments == (2,)
    close(exported.call({"w": W, "b": B}, X), scores({"w": W, "b": B}, X))


def test_without_names_arguments_come_one_after_the_other() -> None:
    exported = jaxexp.from_stablehlo(UNNAMED)
    assert exported.in_tree == jax.tree.structure(((0, 0, 0), {}))
    close(exported.call(B, W, X), scores({"w": W, "b": B}, X))


ODD = "x['\\\\x']"  # a key that is no text of Python: its brackets make a tuple of their own


@each(
    "first, second",
    [("x", "x"), ("x[1]", "x[0]"), ("x['b']", "x['a']"), ("x", "x[0]"), ("x[0]", "y[0"), (ODD, "y")],
)
def test_names_that_make_no_tree(first: str, second: str) -> None:
    text = f"""func.func @main(%a: tensor<2xf32> loc("{first}"), %b: tensor<3xf32> loc("{second}")) -> (tensor<2xf32> {{
        jax.result_info = "{first}"}}, tensor<3xf32> {{jax.result_info = "{second}"}}) {{
        return %a, %b : tensor<2xf32>, tensor<3xf32> }}"""
    exported = jaxexp.from_stablehlo(bytecode(text))
    two = np.ones(2, np.float32), np.zeros(3, np.float32)
    if first == ODD:
        assert exported.in_tree.num_leaves == 2
        return
    close(exported.call(*two), two)


def test_trees_of_the_caller() -> None:
    exported = jaxexp.from_stablehlo(
        NAMED, args=[2], kwargs={"more": (1, {"bias": 0})}, results=[1, {"loss": 2}], differentiable=True
    )
    loss, (_, x_plus) = (scores({"w": W, "b": B}, X)[name] for name in ("loss", "both"))

    def call(function: Any, x: Any) -> Any:
        return function.call(x, more=(W, {"bias": B}))

    close(call(exported, X), [x_plus, {"loss": loss}])
    assert exported.donated_arguments == ()  # its result is not returned any more
    again = jaxexp.deserialize(exported.serialize(vjp_order=1))
    close(call(again, X), [x_plus, {"loss": loss}])
    expected = jax.grad(lambda x: scores({"w": W, "b": B}, x)["loss"])(X)
    for function in (exported, again):
        close(jax.grad(lambda x, f=function: call(f, x)[1]["loss"])(X), expected)
    kept = jaxexp.from_stablehlo(NAMED, args=[2, 1, 0], results=(2, 1, 0))
    assert kept.donated_arguments == (0,)
    assert "tf.aliasing_output = 2 : i32" in kept.mlir_module().partition("private")[0]  # result 0 of the module


@each(
    "options, message",
    [
        ({"args": [0, 1]}, "args and kwargs have to name each argument of the module; 2 is missing"),
        ({"args": [0, 1, 2, 2]}, "args and kwargs has the argument 2 more than once"),
        ({"args": [0, 1, 3]}, "the leaves have to be the indices of the module's arguments, 0 to 2, not 3"),
        ({"kwargs": {"x": "y"}}, "the leaves have to be the indices of the module's arguments, 0 to 2, not 'y'"),
        ({"args": [0, True, 2]}, "the leaves have to be the indices of the module's arguments, 0 to 2, not True"),
        ({"results": [0, 0]}, "results has the result 0 more than once"),
        ({"results": 5}, "results: the leaves have to be the indices of the module's results, 0 to 2, not 5"),
        ({"shapes": {3: "b"}}, "shapes= has the key 3, but the module has 3 arguments, numbered from 0"),
        ({"shapes": {2: "4"}}, "shapes= gives argument 2 the shape (4), and in the module it is (3)"),
        ({"entry": "f"}, "expected a function @f, as entry= says, found functions @main"),
    ],
)
def test_options_that_do_not_fit(options: Any, message: str) -> None:
    with pytest.raises(jaxexp.errors.ExportError) as error:
        jaxexp.from_stablehlo(UNNAMED, **options)
    assert str(error.value).endswith(message)


def test_several_platforms() -> None:
    exported = jaxexp.from_stablehlo(UNNAMED, platforms=["cuda", "cpu", "tpu"], differentiable=True)
    assert exported.platforms == ("cuda", "cpu", "tpu")
    assert exported.donated_arguments == (2,)
    blob = exported.serialize(vjp_order=1)
    assert __file__.encode() not in blob
    loaded = jaxexp.deserialize(blob)
    close(loaded.call(B, W, X), scores({"w": W, "b": B}, X))
    assert loaded.vjp().platforms == ("cuda", "cpu", "tpu")
    close(jax.grad(lambda b: loaded.call(b, W, X)["loss"])(B), 1.0)
    close(
        jax.vmap(loaded.call, (0, None, None))(np.stack([B, B]), W, X)["loss"],
        [scores({"w": W, "b": B}, X)["loss"]] * 2,
    )


def test_text_and_paths(tmp_path: Path) -> None:
    text = LOWERED.as_text()
    for module in (text, text.encode(), bytearray(text.encode())):
        close(jaxexp.from_stablehlo(module).call(B, W, X), scores({"w": W, "b": B}, X))
    (tmp_path / "m.mlir").write_text(text)
    (tmp_path / "m.mlirbc").write_bytes(UNNAMED)
    assert jaxexp.from_stablehlo(tmp_path / "m.mlir") == jaxexp.from_stablehlo(str(tmp_path / "m.mlirbc"))


def test_a_module_in_the_form_of_reactant() -> None:
    x = np.arange(8, dtype=float).reshape(4, 2)
    with jax.enable_x64(True):
        exported = jaxexp.from_stablehlo(bytecode(OF_REACTANT), differentiable=True, results=0)
        assert exported.fun_name == "reactant_scale"
        close(exported.call(x, 3.0), 9 * x.T)
        close(jax.grad(lambda x, s: exported.call(x, s).sum(), (0, 1))(x, 3.0), (np.full((4, 2), 9.0), 6 * x.sum()))
        close(jax.vmap(exported.call)(np.stack([x, x]), np.array([1.0, 2.0])), np.stack([x.T, 4 * x.T]))
        assert jaxexp.from_stablehlo(bytecode(OF_REACTANT)).donated_arguments == (0,)


def test_symbolic_shapes() -> None:
    exported = jaxexp.from_stablehlo(MATMUL, shapes={0: "rows, 3", 1: "3, columns"})
    assert [str(aval) for aval in exported.out_avals] == ["float32[rows,columns]", "float32[2*rows,3]"]
    assert exported.fun_name == "products"
    a, b = np.ones((2, 3), np.float32), np.full((3, 4), 2, np.float32)
    for function in (exported, jaxexp.deserialize(exported.serialize())):
        close(function.call(a, b), (a @ b, np.concatenate([a, a])))
        close(function.call(np.ones((5, 3), np.float32), b)[0].shape, (5, 4))
        close(jax.vmap(function.call, (0, None))(np.stack([a, a]), b)[0], np.stack([a @ b, a @ b]))
    square = jaxexp.from_stablehlo(MATMUL, shapes={0: "n, 3", 1: "3, n"})
    with pytest.raises(jaxexp.errors.ExportError, match="must have size 2, found size 4"):
        square.call(a, b)
    scope = jaxexp.SymbolicScope(["n >= 8"])
    shapes = {i: jaxexp.symbolic_shape(text, scope=scope) for i, text in enumerate(["2*n, 3", "3, n"])}
    assert str(jaxexp.from_stablehlo(MATMUL, shapes=shapes).out_avals[0]) == "float32[2*n,n]"


def test_sizes_for_dynamic_shapes() -> None:
    exported = jaxexp.from_stablehlo(MATMUL, shapes={0: (2, 3), 1: "3, 4"}, differentiable=True)
    assert [aval.shape for aval in exported.out_avals] == [(2, 4), (4, 3)]
    a, b = np.ones((2, 3), np.float32), np.full((3, 4), 2, np.float32)
    close(exported.call(a, b)[0], a @ b)
    close(jax.grad(lambda a: exported.call(a, b)[0].sum())(a), np.full((2, 3), 8.0))
    assert "?" not in exported.mlir_module()


def test_dynamic_shapes_without_names() -> None:
    with pytest.raises(
        jaxexp.errors.ExportError, match=r"argument 0 .* \(\?, 3\): say its dimensions in shapes=.*\{0: 'a, 3'\}"
    ):
        jaxexp.from_stablehlo(MATMUL)
    with pytest.raises(jaxexp.errors.UnsupportedError, match="differentiable=True needs constant shapes"):
        jaxexp.from_stablehlo(MATMUL, shapes={0: "a, 3", 1: "3, b"}, differentiable=True)


def test_results_that_are_not_linear() -> None:
    text = """func.func @main(%x: tensor<?x?xf32>, %n: tensor<1xi32>) -> tensor<?xf32> {
        %0 = stablehlo.get_dimension_size %x, dim = 0 : (tensor<?x?xf32>) -> tensor<i32>
        %1 = stablehlo.get_dimension_size %x, dim = 1 : (tensor<?x?xf32>) -> tensor<i32>
        %2 = stablehlo.multiply %0, %1 : tensor<i32>
        %3 = stablehlo.reshape %2 : (tensor<i32>) -> tensor<1xi32>
        %4 = stablehlo.dynamic_reshape %x, %3 : (tensor<?x?xf32>, tensor<1xi32>) -> tensor<?xf32>
        return %4 : tensor<?xf32> }"""
    module = bytecode(text)
    with pytest.raises(jaxexp.errors.UnsupportedError, match="dimension 0 of result 0 is not linear in a, b"):
        jaxexp.from_stablehlo(module, shapes={0: "a, b"})
    assert str(jaxexp.from_stablehlo(module, shapes={0: "a, 5"}).out_avals[0]) == "float32[5*a]"
    assert jaxexp.from_stablehlo(module, shapes={0: (2, 5)}).out_avals[0].shape == (10,)


def test_shapes_that_depend_on_values() -> None:
    text = """func.func @main(%x: tensor<4xf32>, %n: tensor<1xi32>) -> tensor<?xf32> {
        %0 = stablehlo.dynamic_reshape %x, %n : (tensor<4xf32>, tensor<1xi32>) -> tensor<?xf32>
        return %0 : tensor<?xf32> }"""
    with pytest.raises(
        jaxexp.errors.UnsupportedError, match=r"arguments of the shapes \(4\), \(1\), the module's other shapes"
    ):
        jaxexp.from_stablehlo(bytecode(text))


def test_entries() -> None:
    text = """module {
      func.func @f(%x: tensor<2xf32>) -> tensor<2xf32> { %0 = call @main(%x) : (tensor<2xf32>) -> tensor<2xf32>
        return %0 : tensor<2xf32> }
      func.func private @main(%x: tensor<2xf32>) -> tensor<2xf32> { %0 = stablehlo.negate %x : tensor<2xf32>
        return %0 : tensor<2xf32> }
      func.func private @unused(%x: tensor<2xf32>) -> tensor<2xf32> { return %x : tensor<2xf32> } }"""
    x = np.ones(2, np.float32)
    exported = jaxexp.from_stablehlo(bytecode(text))  # the only public one
    assert exported.fun_name == "f"
    close(exported.call(x), -x)
    assert "unused" not in exported.mlir_module()
    named = jaxexp.from_stablehlo(bytecode(text), entry="unused", name="same")
    assert named.fun_name == "same"
    close(named.call(x), x)
    public = text.replace("private ", "")
    close(jaxexp.from_stablehlo(bytecode(public)).call(x), -x)  # @main, whatever else is public
    with pytest.raises(jaxexp.errors.DeserializationError, match="2 of them, @f, @g: choose one with entry="):
        jaxexp.from_stablehlo(
            bytecode(public.replace("@main", "@g").replace("func.func @unused", "func.func private @unused"))
        )


def test_arguments_and_results_of_all_kinds() -> None:
    for type_ in ("i1", "i4", "ui8", "bf16", "f8E5M2", "complex<f32>"):
        exported = jaxexp.from_stablehlo(bytecode(identity(f"tensor<2x{type_}>")))
        assert exported.in_avals[0].shape == (2,)
        assert jaxexp.deserialize(exported.serialize()).in_avals == exported.in_avals
    nothing = jaxexp.from_stablehlo(bytecode("func.func @main() { return }"))
    assert nothing.call() == ()


@pytest.mark.parametrize("shardy", [True, False])
def test_shardings(shardy: bool) -> None:
    devices = mesh((2, 4), ("x", "y"))
    rows, columns = NamedSharding(devices, P("x", None)), NamedSharding(devices, P(None, "y"))
    with jax._src.config.use_shardy_partitioner(shardy):  # type: ignore[attr-defined]
        function = jax.jit(
            lambda a, b: a @ b, in_shardings=(rows, columns), out_shardings=NamedSharding(devices, P("x", "y"))
        )
        text = function.lower(np.ones((4, 6), np.float32), np.ones((6, 4), np.float32)).as_text()
    assert ("sdy" in text) == shardy
    exported = jaxexp.from_stablehlo(bytecode(text), differentiable=True)
    assert exported.nr_devices == 8
    here = exported.make_mesh()
    a, b = np.arange(24, dtype=np.float32).reshape(4, 6), np.ones((6, 4), np.float32)
    placed = list(map(jax.device_put, (a, b), exported.in_shardings_jax(here)))
    for one in (exported, jaxexp.deserialize(exported.serialize(vjp_order=1))):
        result = one.call(*placed)
        assert len({str(shard.index) for shard in result.addressable_shards}) == 8
        close(result, a @ b)
        close(jax.grad(lambda a, b, f=one: f.call(a, b).sum())(*placed), np.full((4, 6), 4.0))


def test_older_forms_of_operations() -> None:
    text = """module {
      func.func @main(%x: tensor<4x3xf32>, %s: tensor<3xf32>)
          -> (tensor<4x3xf32>, tensor<3xf32>, tensor<4x3xf32>, tensor<4x2xf32>) {
        %0:3 = "stablehlo.batch_norm_training"(%x, %s, %s) {epsilon = 0.1 : f32, feature_index = 1 : i64}
          : (tensor<4x3xf32>, tensor<3xf32>, tensor<3xf32>) -> (tensor<4x3xf32>, tensor<3xf32>, tensor<3xf32>)
        %1 = "stablehlo.batch_norm_inference"(%x, %s, %s, %0#1, %0#2) {epsilon = 0.1 : f32, feature_index = 1 : i64}
          : (tensor<4x3xf32>, tensor<3xf32>, tensor<3xf32>, tensor<3xf32>, tensor<3xf32>) -> tensor<4x3xf32>
        %2 = stablehlo.custom_call @mhlo.erf(%1) {mhlo.attributes = {}, mhlo.version = 1 : i64}
          : (tensor<4x3xf32>) -> tensor<4x3xf32>
        %3:2 = stablehlo.custom_call @mhlo.topk(%x) {mhlo.attributes = {k = 2 : i64, largest = true}}
          : (tensor<4x3xf32>) -> (tensor<4x2xf32>, tensor<4x2xi32>)
        %4 = stablehlo.reshape %2 : (tensor<4x3xf32>) -> tensor<4x3xf32>
        %5 = stablehlo.transpose %4, dims = [0, 1] : (tensor<4x3xf32>) -> tensor<4x3xf32>
        return %0#0, %0#2, %5, %3#0 : tensor<4x3xf32>, tensor<3xf32>, tensor<4x3xf32>, tensor<4x2xf32>
      } }"""
    exported = jaxexp.from_stablehlo(bytecode(text), differentiable=True)
    x, s = np.sin(np.arange(12, dtype=np.float32)).reshape(4, 3), np.array([1, 2, 3], np.float32)
    normalized = s * (x - x.mean(0)) / np.sqrt(x.var(0) + 0.1) + s
    expected = normalized, x.var(0), jax.scipy.special.erf(normalized), -np.sort(-x)[:, :2]
    for found, wanted in zip(exported.call(x, s), expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
    text = exported.mlir_module()
    assert not any(name in text for name in ("batch_norm", "mhlo.erf", "reshape %", "transpose"))
    assert exported.vjp().call(x, s, *expected)


def test_custom_calls_are_allowed_by_name() -> None:
    call = "%0 = stablehlo.custom_call @mine(%x) {has_side_effect = true} : (tensor<2xf32>) -> tensor<2xf32>"
    module = bytecode(identity(body=call))
    with pytest.raises(jaxexp.errors.ExportError, match="custom calls that may change with any release of JAX: mine"):
        jaxexp.from_stablehlo(module)
    allowed = [jaxexp.DisabledSafetyCheck.custom_call("mine")]
    exported = jaxexp.from_stablehlo(module, disabled_checks=allowed)
    assert list(exported.disabled_safety_checks) == allowed
    assert "@mine" in exported.mlir_module()


@pytest.mark.long(
    promise="a process that parses text ends by itself if its parent has ended",
    sibling="test_modules_refused.py::test_text_that_ends_or_stops_a_parser",
)
@pytest.mark.processes(reason="text is parsed in a process of its own")
def test_a_child_without_parent_ends() -> None:
    """Each attribute has the one before it twice, so that the text has no end."""
    aliases = ["#a0 = [unit, unit]", *(f"#a{i} = [#a{i - 1}, #a{i - 1}]" for i in range(1, 40))]
    add = "%0 = stablehlo.add %x, %x {mhlo.frontend_attributes = {a = #a39}} : tensor<4xf32> return %0 : tensor<4xf32>"
    main = f"func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {{ {add} }}"
    text = "\n".join([*aliases, f"module {{ {main} }}"])
    command = [sys.executable, "-c", source._CHILD, "1", *sys.path]
    assert subprocess.run(command, input=text.encode(), capture_output=True, timeout=300).returncode < 0


def with_map(first: str, second: str, named: str = "") -> str:
    functions = "".join(
        f'func.func private @"{name}"(%a: tensor<2xf32>) -> tensor<2xf32> {{ '
        f"%0 = stablehlo.{operation} %a : tensor<2xf32>\n return %0 : tensor<2xf32> }}\n"
        for name, operation in ((first, "sine"), (second, "negate"))
    )
    call = f"stablehlo.custom_call @my_map(%1) {{mhlo.backend_config = {{body = @{named}}}}} : (tensor<2xf32>)"
    last = f"%2 = {call} -> tensor<2xf32>\n return %2" if named else "return %1"
    return (
        f"module @m {{\n{functions}func.func public @main(%a: tensor<2xf32>) -> tensor<2xf32> {{\n"
        f'%0 = func.call @"{first}"(%a) : (tensor<2xf32>) -> tensor<2xf32>\n'
        f'%1 = func.call @"{second}"(%0) : (tensor<2xf32>) -> tensor<2xf32>\n{last} : tensor<2xf32> }} }}'
    )


def test_digests_of_what_names_functions_in_attributes() -> None:
    """The meaning of an attribute is not known: other names there may be other programs."""
    allowed = [jaxexp.DisabledSafetyCheck.custom_call("my_map")]

    def meaning(*names: str) -> str:
        return jaxexp.digests(jaxexp.from_stablehlo(with_map(*names), disabled_checks=allowed).serialize()).meaning

    assert meaning("a", "b", "a") != meaning("b", "a", "a")
    assert meaning("a", "b", "a") == meaning("a", "c", "a")
    assert meaning("a", "b") == meaning("b", "a") == meaning("function.1", "function.0")
    assert meaning("function.0", "b", "function.0") != meaning("b", "function.0", "function.0")


def test_pages_tell_functions_apart() -> None:
    from jaxexp._view import graph

    for first, second in (("f" * 300 + "A", "f" * 300 + "B"), ("f\\0Ag", "f\\5Cng")):
        found = graph.read(jaxexp.from_stablehlo(with_map(first, second)).mlir_module_serialized)
        assert [found.texts[one[0]] for one in found.functions["main"]["o"]] == ["func.call"] * 2
        called = [found.texts[one[5]] for one in found.functions["main"]["o"]]
        made = [[found.texts[one[0]] for one in found.functions[name]["o"]] for name in called]
        assert made == [["sine"], ["negate"]]
        assert len(found.functions) == 3


def test_a_long_attribute_of_another_dialect() -> None:
    """Messages of MLIR have all of it."""
    attribute = "`!a" * 200_000
    text = (
        "module @m { func.func public @main(%a: tensor<2xf32>) -> tensor<2xf32> {\n"
        f'%0 = "stablehlo.slice"(%a) <{{start_indices=array<i64: 0>}}> {{a="{attribute}"}} : '
        "(tensor<2xf32>) -> tensor<2xf32>\n return %0 : tensor<2xf32> } }"
    )
    with pytest.raises(jaxexp.errors.ExportError, match="cannot import the module"):  # not after an hour
        jaxexp.from_stablehlo(text)

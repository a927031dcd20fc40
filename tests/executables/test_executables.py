"""Functions that are called with code from a file: the same results, no trace, and a reason where code is not used."""

from __future__ import annotations

import hashlib
import logging
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

import jaxexp
from jaxexp._executables import conditions
from jaxexp._executables.file import ExecutablesFile, GrowingFile
from kit.devices import DEVICES
from kit.steps import counted

X = np.linspace(-1, 1, 64, dtype=np.float32).reshape(8, 8)


def saved(tmp_path: Path, function: Any, *args: Any, vjp_order: int = 0, **kwargs: Any) -> Path:
    path = tmp_path / "model.jaxexp"
    jaxexp.export(jax.jit(function))(*args, **kwargs).save(path, vjp_order=vjp_order)
    return path


@pytest.fixture
def exe(tmp_path: Path) -> Path:
    return tmp_path / "model.exe"


def test_the_first_call_traces_lowers_and_compiles_nothing(tmp_path: Path, exe: Path) -> None:
    path = saved(tmp_path, lambda x, *, scale: {"y": jnp.sin(x) * scale, "z": (x.sum(),)}, X, scale=np.float32(2))
    plain = jaxexp.load(path)
    plain.precompile(into=exe)
    jax.clear_caches()
    with counted() as steps:
        model = jaxexp.load(path, executables=exe)
        found = [model.call(X, scale=np.float32(2)) for _ in range(3)]
    assert not steps
    assert [one.used for one in model.executables] == [True]
    expected = plain.call(X, scale=np.float32(2))
    jax.tree.map(np.testing.assert_array_equal, found, [expected] * 3)
    assert jax.tree.structure(found[0]) == jax.tree.structure(expected)
    for one, other in zip(jax.tree.leaves(found[1]), jax.tree.leaves(expected), strict=True):
        assert (one.aval, one.committed, one.sharding) == (other.aval, other.committed, other.sharding)


def test_arrays_that_were_placed_on_the_device_use_the_same_code(tmp_path: Path, exe: Path) -> None:
    path = saved(tmp_path, lambda x: x + 1, X)
    jaxexp.load(path).precompile(into=exe)
    model = jaxexp.load(path, executables=exe)
    with counted() as steps:
        placed, unplaced = model.call(jax.device_put(X, jax.devices()[0])), model.call(X)
    assert placed.committed == jaxexp.load(path).call(X).committed == unplaced.committed
    assert not steps
    elsewhere = model.call(jax.device_put(X, jax.devices()[3]))
    assert elsewhere.devices() == {jax.devices()[3]}
    np.testing.assert_array_equal(elsewhere, X + 1)


@pytest.mark.parametrize("reproducible", [False, True])
def test_code_for_source_whose_lines_moved(tmp_path: Path, exe: Path, reproducible: bool) -> None:
    """A module names the lines of its source, unless its export was reproducible."""
    for version in ("", "# A comment.\n\n"):
        names = {"jnp": jnp}
        exec(compile(f"{version}def scores(x):\n    return jnp.sin(x) * 2\n", tmp_path / "source.py", "exec"), names)
        exported = jaxexp.export(jax.jit(names["scores"]), reproducible=reproducible)(X)
        exported.save(tmp_path / "model.jaxexp")
        if not version:
            exported.precompile(into=exe)
    model = jaxexp.load(tmp_path / "model.jaxexp", executables=exe)
    model.call(X)
    (code,) = model.executables
    assert code.used is reproducible
    assert reproducible or (code.why or "").startswith("module: compiled for ")


def test_weak_types_are_no_condition(tmp_path: Path, exe: Path) -> None:
    """A loaded function has none, and the compiler knows none."""
    exported = jaxexp.export(jax.jit(lambda x, factor: (x * factor, 1.0)))(X, 2.0)
    exported.save(tmp_path / "f.jaxexp")
    exported.precompile(into=exe)
    loaded = jaxexp.load(tmp_path / "f.jaxexp", executables=exe)
    np.testing.assert_array_equal(loaded.call(X, 2.0)[0], 2 * X)
    assert [one.used for one in loaded.executables] == [True]


def test_each_size_of_a_symbolic_function_has_its_code(tmp_path: Path, exe: Path) -> None:
    (n,) = jaxexp.symbolic_shape("n")
    path = saved(tmp_path, lambda x: (x @ x.T).sum(0), jax.ShapeDtypeStruct((n, 8), np.float32))
    plain = jaxexp.load(path)
    for size in (1, 3, 5):
        plain.precompile((jax.ShapeDtypeStruct((size, 8), np.float32),), into=exe)
    model = jaxexp.load(path, executables=exe)
    with counted() as steps:
        found = {size: model.call(X[:size]) for size in (5, 3)}
    assert not steps
    found[7] = model.call(X[:7])
    for size, result in found.items():
        np.testing.assert_allclose(result, plain.call(X[:size]), rtol=1e-6)
    other = "args[0]: compiled for float32[1,8], here it is float32[7,8]"
    assert [one.why for one in model.executables] == [other, None, None]


def test_an_eager_gradient_uses_the_code_of_the_vjp(tmp_path: Path, exe: Path) -> None:
    path = saved(tmp_path, lambda x, n, y: jnp.sin(x) * n + y, X, np.int32(3), X, vjp_order=1)
    jaxexp.load(path).precompile(into=exe, vjp_order=1)
    model, plain = jaxexp.load(path, executables=exe), jaxexp.load(path)

    def gradient(function: Any) -> Any:
        return jax.grad(lambda x, y: function.call(x, np.int32(3), y).sum(), argnums=(0, 1))(X, X)

    jax.tree.map(np.testing.assert_allclose, gradient(model), gradient(plain))
    assert [one.used for one in (*model.executables, *model.vjp().executables)] == [True, True]


def test_under_transformations_functions_are_traced_as_always(tmp_path: Path, exe: Path) -> None:
    path = saved(tmp_path, lambda x: jnp.sin(x).sum(), X)
    jaxexp.load(path).precompile(into=exe)
    model = jaxexp.load(path, executables=exe)
    np.testing.assert_allclose(jax.jit(model.call)(X), np.sin(X).sum(), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(jax.vmap(model.call)(X[None]), np.sin(X).sum()[None], rtol=1e-5, atol=1e-5)
    assert not model.executables[0].used


def test_weights_come_in_front(tmp_path: Path, exe: Path) -> None:
    weights = {"w": jnp.asarray(X), "b": jnp.ones(8)}
    path = tmp_path / "bound.jaxexp"
    exported = jaxexp.export(jax.jit(lambda p, x: x @ p["w"] + p["b"]))(weights, X)
    exported.bind(weights).save(path)
    jaxexp.load(path).precompile(into=exe)
    model = jaxexp.load(path, executables=exe)
    with counted() as steps:
        found = model.call(X)
    assert not steps["compiled"] and not steps["lowered"]
    np.testing.assert_allclose(found, X @ X + 1, rtol=1e-5, atol=1e-5)
    assert [one.used for one in model.executables] == [True]


@pytest.mark.skipif(DEVICES < 2, reason="one device")
def test_shardings_of_arguments_are_conditions(tmp_path: Path, exe: Path) -> None:
    mesh = jax.make_mesh((DEVICES,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    rows, columns = (NamedSharding(mesh, PartitionSpec(*spec)) for spec in (("d",), (None, "d")))
    path = tmp_path / "model.jaxexp"
    jitted = jax.jit(lambda x: (x @ x.T, x.sum()), in_shardings=rows)
    jaxexp.export(jitted)(jax.ShapeDtypeStruct(X.shape, X.dtype)).save(path)
    plain = jaxexp.load(path)
    plain.precompile(into=exe, mesh_or_device=mesh)
    model = jaxexp.load(path, executables=exe)
    x = jax.device_put(X, rows)
    with counted() as steps:
        found = model.call(x)
    assert not steps
    expected = plain.call(x)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)
        assert one.sharding.is_equivalent_to(other.sharding, one.ndim) and one.committed
    for one, other in zip(model.call(x), expected, strict=True):
        np.testing.assert_array_equal(one, other)
    np.testing.assert_allclose(model.call(jax.device_put(X, columns))[0], expected[0], rtol=1e-5, atol=1e-5)


def test_mistakes_raise_the_same_errors(tmp_path: Path, exe: Path) -> None:
    path = saved(tmp_path, lambda x: x + 1, X)
    jaxexp.load(path).precompile(into=exe)
    model, plain = jaxexp.load(path, executables=exe), jaxexp.load(path)
    for args in ((), (X, X), (X[:4],), (X.astype(np.int32),), ({"x": X},), ("text",), (None,)):
        messages = []
        for function in (plain, model):
            with pytest.raises(Exception) as caught:
                function.call(*args)
            messages.append((type(caught.value), str(caught.value).splitlines()[0]))
        assert messages[0] == messages[1]


@pytest.mark.parametrize(
    ("condition", "function", "value"),
    [
        ("processor", "jaxexp._native.cpu_features", lambda: "x86 1.c=0"),
        ("build of jaxlib", "jaxexp._executables.conditions._build", lambda: "00"),
        ("target", "jaxexp._executables.reuse.compilation_for", lambda _: ("00", "00")),
        ("jaxexp", "jaxexp._executables.conditions.__version__", "0.0.0"),
        ("processes", "jax.process_count", lambda: 2),
    ],
)
def test_what_differs_is_named(
    tmp_path: Path,
    exe: Path,
    condition: str,
    function: str,
    value: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    path = saved(tmp_path, lambda x: x + 1, X)
    jaxexp.load(path).precompile(into=exe)
    monkeypatch.setattr(function, value)
    model = jaxexp.load(path, executables=exe)
    with caplog.at_level(logging.INFO, "jaxexp.executables"):
        np.testing.assert_array_equal(model.call(X), X + 1)
    (executable,) = model.executables
    assert not executable.used
    assert executable.why is not None and executable.why.startswith(f"{condition}: compiled for ")
    assert executable.why in caplog.text


@pytest.mark.parametrize("wanted", [0, 1])
def test_a_gradient_by_one_argument_says_why_it_compiles(
    tmp_path: Path, exe: Path, wanted: int, caplog: pytest.LogCaptureFixture
) -> None:
    path = saved(tmp_path, lambda x, y: x * y, X, X, vjp_order=1)
    jaxexp.load(path).precompile(into=exe, vjp_order=1)
    model = jaxexp.load(path, executables=exe)
    with caplog.at_level(logging.INFO, "jaxexp.executables"):
        found = jax.grad(lambda x, y: model.call(x, y).sum(), wanted)(X, X)
    np.testing.assert_array_equal(found, X)
    assert f"is for this call: results: compiled for all, here it is {wanted}" in caplog.text
    assert not model.vjp().executables[0].used


def test_the_argument_that_differs_is_named(tmp_path: Path, exe: Path, caplog: pytest.LogCaptureFixture) -> None:
    layers = {f"layer{i:02}": X for i in range(20)}
    path = saved(tmp_path, lambda layers, x: x, layers, jax.ShapeDtypeStruct(jaxexp.symbolic_shape("b, 7"), np.float32))
    jaxexp.load(path).precompile((layers, np.ones((8, 7), np.float32)), into=exe)
    model = jaxexp.load(path, executables=exe)
    assert repr(model.executables[0]).startswith("Executable(<lambda> of float32[8,8], ")
    assert ", ..., float32[8,7]: not used" in repr(model.executables[0])
    with caplog.at_level(logging.INFO, "jaxexp.executables"):
        model.call(layers, np.ones((9, 7), np.float32))
    assert caplog.messages[-1].endswith(
        "is for this call: args[1]: compiled for float32[8,7], here it is float32[9,7]"
    ), caplog.text


def test_arguments_are_counted_without_weights(tmp_path: Path, exe: Path, caplog: pytest.LogCaptureFixture) -> None:
    weights = {"a": X, "b": X + 1}
    batch = jax.ShapeDtypeStruct(jaxexp.symbolic_shape("b, 8"), np.float32)
    path = tmp_path / "model.jaxexp"
    exported = jaxexp.export(jax.jit(lambda x: x @ weights["a"] @ weights["b"]), weights=weights)(batch)
    exported.save(path, vjp_order=1)
    jaxexp.load(path).precompile((X,), into=exe)
    model = jaxexp.load(path, executables=exe)
    with caplog.at_level(logging.INFO, "jaxexp.executables"):
        model.call(X[:3])
    assert caplog.messages[-1].endswith("args[0]: compiled for float32[8,8], here it is float32[3,8]"), caplog.text


@pytest.mark.parametrize("of", ["processor", "compile options"])
def test_long_conditions_are_cut_where_they_differ(of: str) -> None:
    same = "+avx" * 100
    why = conditions.difference({of: f"{same}+amx{same}"}, {of: f"{same}+vnni{same}"})
    assert why is not None and len(why) < 300
    assert "+amx" in why.partition("here it is")[0] and "+vnni" in why.partition("here it is")[2]


def test_whatever_the_reason_it_is_logged_once(
    tmp_path: Path, exe: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, "jaxexp.executables")
    path = saved(tmp_path, lambda x: x + 1, X, vjp_order=1)
    jaxexp.load(path).precompile(into=exe)
    model = jaxexp.load(path, executables=exe)
    with jax.disable_jit():
        model.call(X)
    with jax.debug_nans(True):
        model.call(X), model.call(X)
    for _ in range(2):
        jax.grad(lambda x: model.call(x).sum())(X)
    other = jaxexp.load(saved(tmp_path, lambda x: x + 2, X), executables=exe)
    other.call(X)
    monkeypatch.setattr("jaxexp._jax.missing_for_reuse", "jax.gone")
    jaxexp.load(path, executables=exe).call(X)
    said = [message.replace(repr(str(exe)), "FILE") for message in caplog.messages if "uses code" not in message]
    assert said == [
        "<lambda>: code in FILE is not used: jax_disable_jit is set",
        "<lambda>: code in FILE is not used: jax_debug_nans is set",
        "the VJP of order 1 of <lambda>: FILE has no code of this function",
        "<lambda>: FILE has no code of this function",
        "<lambda>: code in FILE is not used: this JAX has no jax.gone",
    ]


def test_code_that_does_not_run_is_logged(
    tmp_path: Path, exe: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken:
        def unsafe_call(self, *_: Any) -> Any:
            raise jax.errors.JaxRuntimeError("INTERNAL: no symbol")

    path = saved(tmp_path, lambda x: x + 1, X)
    jaxexp.load(path).precompile(into=exe)
    monkeypatch.setattr("jaxexp._executables.executables.made_of", lambda *_: Broken())
    model = jaxexp.load(path, executables=exe)
    with caplog.at_level(logging.INFO, "jaxexp.executables"):
        np.testing.assert_array_equal(model.call(X), X + 1)
    assert model.executables[0].why == "it does not run: INTERNAL: no symbol"
    assert caplog.messages[-1].endswith("is not used: it does not run: INTERNAL: no symbol")


def test_another_function_of_the_name_is_listed_and_not_used(tmp_path: Path, exe: Path) -> None:
    jaxexp.load(saved(tmp_path, lambda x: x + 1, X)).precompile(into=exe)
    model = jaxexp.load(saved(tmp_path, lambda x: x + 2, X), executables=exe)
    np.testing.assert_array_equal(model.call(X), X + 2)
    (executable,) = model.executables
    assert executable.why is not None and executable.why.startswith("module: compiled for ")
    assert "not used: module" in repr(executable)


def test_damaged_code_is_not_used(tmp_path: Path, exe: Path) -> None:
    path = saved(tmp_path, lambda x: x + 1, X)
    jaxexp.load(path).precompile(into=exe)
    written = exe.read_bytes()
    middle = len(written) - 1000
    exe.write_bytes(written[:middle] + bytes([written[middle] ^ 255]) + written[middle + 1 :])
    model = jaxexp.load(path, executables=exe)
    np.testing.assert_array_equal(model.call(X), X + 1)
    assert "expected the bytes as they were written" in str(model.executables[0].why)
    jaxexp.load(path).precompile(into=exe)  # another copy, behind the damaged one
    model = jaxexp.load(path, executables=exe)
    model.call(X)
    assert [one.used for one in model.executables] == [False, True]


@pytest.mark.parametrize(
    "call", ["", "[]", "{}", '{"kept": 1}', '{"kept": [7], "committed": true, "arguments": [null], "results": [null]}']
)
def test_a_record_that_says_something_else_is_not_used(tmp_path: Path, exe: Path, call: str) -> None:
    path = saved(tmp_path, lambda x: x + 1, X)
    jaxexp.load(path).precompile(into=exe)
    written = ExecutablesFile(exe)
    (record,) = written.records
    code = written.code(record)
    exe.unlink()
    GrowingFile(exe).append(record.conditions, {**record.call, "jax": call}, code)
    model = jaxexp.load(path, executables=exe)
    np.testing.assert_array_equal(model.call(X), X + 1)
    assert str(model.executables[0].why).startswith("it cannot be loaded: ")


def test_a_module_is_named_by_its_sha256(tmp_path: Path) -> None:
    """Somebody could make a module with the same digest of the trailer, which would get or give the code of another."""
    exported = jaxexp.export(jax.jit(jnp.sin))(np.ones(3, np.float32))
    exported.save(tmp_path / "f.jaxexp")
    loaded = jaxexp.load(tmp_path / "f.jaxexp")
    (made,) = loaded.precompile(into=tmp_path / "f.exe")
    assert made.conditions["module"] == hashlib.sha256(loaded.mlir_module_serialized).hexdigest()


def test_code_that_is_there_is_not_compiled_again(tmp_path: Path, exe: Path) -> None:
    path = saved(tmp_path, lambda x: x + 1, X)
    jaxexp.load(path).precompile(into=exe)
    written = exe.read_bytes()
    with counted() as steps:
        (same,) = jaxexp.load(path).precompile(into=exe)
    assert not steps and exe.read_bytes() == written
    assert same.conditions["arguments"] == "float32[8,8]"


def test_a_mode_that_looks_at_results_is_respected(tmp_path: Path, exe: Path) -> None:
    path = saved(tmp_path, lambda x: jnp.log(x), X)
    jaxexp.load(path).precompile(into=exe)
    model = jaxexp.load(path, executables=exe)
    with jax.debug_nans(True), pytest.raises(FloatingPointError):
        model.call(X)
    with jax.debug_nans(True):
        assert model.executables[0].why == "jax_debug_nans is set"
    assert np.isnan(model.call(X)).any()
    assert model.executables[0].used


def test_never_with_a_policy(tmp_path: Path) -> None:
    with pytest.raises(jaxexp.ExportError, match="native code") as caught:
        jaxexp.load(tmp_path / "missing", policy=jaxexp.Policy(), executables=tmp_path / "missing")
    assert isinstance(caught.value, ValueError)


def test_what_is_tied_to_the_process_is_refused(tmp_path: Path, exe: Path) -> None:
    def printing(x: Any) -> Any:
        jax.debug.print("{}", x[0, 0], ordered=False)
        return x

    exported = jaxexp.export(
        jax.jit(printing), disabled_checks=[jaxexp.DisabledSafetyCheck.custom_call("xla_ffi_python_cpu_callback")]
    )
    with pytest.raises((jaxexp.ExportError, NotImplementedError)):
        exported(X).precompile(into=exe)
    assert not exe.exists()


def test_a_jax_without_a_private_name_compiles_as_always(
    tmp_path: Path, exe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = saved(tmp_path, lambda x: x + 1, X)
    jaxexp.load(path).precompile(into=exe)
    monkeypatch.setattr("jaxexp._jax.missing_for_reuse", "jax._src.pjit.gone")
    model = jaxexp.load(path, executables=exe)
    np.testing.assert_array_equal(model.call(X), X + 1)
    assert model.executables[0].why == "this JAX has no jax._src.pjit.gone"
    with pytest.raises(jaxexp.UnsupportedError, match="this JAX has no"):
        model.precompile(into=exe)


@pytest.mark.parametrize("order", [-1, 1.5, "1", None])
def test_a_vjp_order_that_is_no_number_of_vjps(exe: Path, order: Any) -> None:
    with pytest.raises(jaxexp.ExportError, match="vjp_order is the number of VJPs to compile") as caught:
        jaxexp.export(jax.jit(jnp.sin))(X).precompile(into=exe, vjp_order=order)
    assert isinstance(caught.value, TypeError) and not exe.exists()


def test_a_vjp_that_was_not_serialized(tmp_path: Path, exe: Path) -> None:
    model = jaxexp.load(saved(tmp_path, lambda x: x + 1, X))
    with pytest.raises(jaxexp.ExportError, match=r"has no VJP of order 1: it was serialized with vjp_order=0\."):
        model.precompile(into=exe, vjp_order=1)
    assert not exe.exists()


def test_code_has_no_paths_of_those_who_compile(tmp_path: Path, exe: Path) -> None:
    path = tmp_path / "model.jaxexp"
    jaxexp.export(jax.jit(lambda x: jnp.sin(x).sum()), reproducible=True)(X).save(path, vjp_order=1)
    jaxexp.load(path).precompile(into=exe)
    jax.clear_caches()
    jaxexp.compile_cache(tmp_path / "cache")
    try:
        jaxexp.load(path).call(X)
    finally:
        jaxexp.compile_cache(None)
    (entry,) = (tmp_path / "cache").glob("*.exe")
    for file in (exe, entry):
        assert Path(__file__).name.encode() not in file.read_bytes()


@pytest.mark.parametrize("is_warm", [False, True])
def test_code_and_a_search_for_nans(tmp_path: Path, exe: Path, is_warm: bool) -> None:
    path = saved(tmp_path, lambda x: x * 2, X)
    jaxexp.load(path).precompile(into=exe)
    model = jaxexp.load(path, executables=exe)
    if is_warm:
        model.call(X)
    with jax.debug_nans(True), pytest.raises(FloatingPointError, match="nan"):
        model.call(np.full_like(X, np.nan))
    np.testing.assert_array_equal(model.call(X), X * 2)

"""Functions that are called with code from a file: the same results, no trace, and a reason where code is not used."""

from __future__ import annotations

import hashlib
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

import jaxexp
from jaxexp._executables import conditions
from jaxexp._executables.file import ExecutablesFile, GrowingFile
from jaxexp.errors import ExportError, UnsupportedError
from kit import weighted
from kit.archive_files import make
from kit.corpus import mesh
from kit.devices import DEVICES
from kit.flips import flip
from kit.saved import saved
from kit.steps import counted

pytestmark = pytest.mark.jax

X = np.linspace(-1, 1, 64, dtype=np.float32).reshape(8, 8)
ANY = jax.ShapeDtypeStruct(jaxexp.symbolic_shape("n, 8"), np.float32)


@pytest.fixture
def exe(tmp_path: Path) -> Path:
    return tmp_path / "f.exe"


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, "jaxexp.executables")
    return caplog


@pytest.fixture
def plus_one(tmp_path: Path, exe: Path) -> Path:
    """A function with its code in a file."""
    path = saved(tmp_path, lambda x: x + 1, X)
    jaxexp.load(path).precompile(into=exe)
    return path


def used(function: Any) -> list[bool]:
    return [one.used for one in function.executables]


def test_the_first_call_traces_lowers_and_compiles_nothing(tmp_path: Path, exe: Path) -> None:
    path = saved(tmp_path, lambda x, *, scale: {"y": jnp.sin(x) * scale, "z": (x.sum(),)}, X, scale=np.float32(2))
    plain = jaxexp.load(path)
    plain.precompile(into=exe)
    jax.clear_caches()
    with counted() as steps:
        model = jaxexp.load(path, executables=exe)
        found = [model.call(X, scale=np.float32(2)) for _ in range(3)]
    assert not steps
    assert used(model) == [True]
    expected = plain.call(X, scale=np.float32(2))
    assert jax.tree.structure(found) == jax.tree.structure([expected] * 3)
    for result in found:
        for one, other in zip(jax.tree.leaves(result), jax.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-6)
            assert (one.aval, one.committed, one.sharding) == (other.aval, other.committed, other.sharding)


def test_arrays_that_were_placed_on_the_device_use_the_same_code(plus_one: Path, exe: Path) -> None:
    model = jaxexp.load(plus_one, executables=exe)
    with counted() as steps:
        placed, unplaced = model.call(jax.device_put(X, jax.devices()[0])), model.call(X)
    assert placed.committed == jaxexp.load(plus_one).call(X).committed == unplaced.committed
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
        exported.save(tmp_path / "f.jaxexp")
        if not version:
            exported.precompile(into=exe)
    model = jaxexp.load(tmp_path / "f.jaxexp", executables=exe)
    model.call(X)
    (code,) = model.executables
    assert code.used is reproducible
    assert reproducible or (code.why or "").startswith("module: compiled for ")


def test_weak_types_and_transformations(tmp_path: Path, exe: Path) -> None:
    """A loaded function has no weak types, and the compiler knows none; under transformations it is traced."""
    exported = jaxexp.export(jax.jit(lambda x, factor: (x * factor, 1.0)))(X, 2.0)
    exported.save(tmp_path / "f.jaxexp")
    exported.precompile(into=exe)
    model = jaxexp.load(tmp_path / "f.jaxexp", executables=exe)
    np.testing.assert_array_equal(jax.jit(model.call)(X, 2.0)[0], 2 * X)
    np.testing.assert_array_equal(jax.vmap(model.call, (0, None))(X[None], 2.0)[0], 2 * X[None])
    assert used(model) == [False]
    np.testing.assert_array_equal(model.call(X, 2.0)[0], 2 * X)
    assert used(model) == [True]


def test_each_size_of_a_symbolic_function_has_its_code(tmp_path: Path, exe: Path) -> None:
    path = saved(tmp_path, lambda x: (x @ x.T).sum(0), ANY)
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


def test_an_eager_gradient_uses_the_code_of_the_vjp(tmp_path: Path, exe: Path, said: Any) -> None:
    """By all arguments; by one of two, it says why it compiles."""
    path = saved(tmp_path, lambda x, n, y: jnp.sin(x) * n + y, X, np.int32(3), X, vjp_order=1)
    jaxexp.load(path).precompile(into=exe, vjp_order=1)
    model, plain = jaxexp.load(path, executables=exe), jaxexp.load(path)

    def gradient(function: Any, by: Any) -> Any:
        return jax.grad(lambda x, y: function.call(x, np.int32(3), y).sum(), by)(X, X)

    jax.tree.map(np.testing.assert_allclose, gradient(model, (0, 1)), gradient(plain, (0, 1)))
    assert used(model) + used(model.vjp()) == [True, True]
    for by in (0, 1):
        path = saved(tmp_path, lambda x, y: x * y, X, X, vjp_order=1)
        jaxexp.load(path).precompile(into=exe, vjp_order=1)
        model = jaxexp.load(path, executables=exe)
        np.testing.assert_allclose(jax.grad(lambda x, y: model.call(x, y).sum(), by)(X, X), X, rtol=1e-6)  # noqa: B023
        assert f"is for this call: results: compiled for all, here it is {by}" in said.text
        assert not any(used(model.vjp()))


def test_weights_come_in_front(tmp_path: Path, exe: Path, said: Any) -> None:
    """And are not counted where an argument differs."""
    weights = {"w": jnp.asarray(X), "b": jnp.ones(8)}
    exported = jaxexp.export(jax.jit(lambda p, x: x @ p["w"] + p["b"]))(weights, ANY)
    exported.bind(weights).save(tmp_path / "f.jaxexp")
    jaxexp.load(tmp_path / "f.jaxexp").precompile((X,), into=exe)
    model = jaxexp.load(tmp_path / "f.jaxexp", executables=exe)
    with counted() as steps:
        found = model.call(X)
    assert not steps["compiled"] and not steps["lowered"]
    np.testing.assert_allclose(found, X @ X + 1, rtol=1e-5, atol=1e-5)
    assert used(model) == [True]
    model.call(X[:3])
    assert said.messages[-1].endswith("args[0]: compiled for float32[8,8], here it is float32[3,8]"), said.text


@pytest.mark.skipif(DEVICES < 2, reason="one device")
def test_shardings_of_arguments_are_conditions(tmp_path: Path, exe: Path) -> None:
    devices = mesh((DEVICES,), ("d",))
    rows, columns = (NamedSharding(devices, PartitionSpec(*spec)) for spec in (("d",), (None, "d")))
    spec = jax.ShapeDtypeStruct(X.shape, X.dtype)
    path = saved(tmp_path, jax.jit(lambda x: (x @ x.T, x.sum()), in_shardings=rows), spec)
    plain = jaxexp.load(path)
    plain.precompile(into=exe, mesh_or_device=devices)
    model = jaxexp.load(path, executables=exe)
    x = jax.device_put(X, rows)
    with counted() as steps:
        found = [model.call(x), model.call(x)]
    assert not steps
    expected = plain.call(x)
    for results in found:
        for one, other in zip(results, expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)
            assert one.sharding.is_equivalent_to(other.sharding, one.ndim) and one.committed
    np.testing.assert_allclose(model.call(jax.device_put(X, columns))[0], expected[0], rtol=1e-5, atol=1e-5)


def test_mistakes_raise_the_same_errors(plus_one: Path, exe: Path) -> None:
    model, plain = jaxexp.load(plus_one, executables=exe), jaxexp.load(plus_one)
    for args in ((), (X, X), (X[:4],), (X.astype(np.int32),), ({"x": X},), ("text",), (None,)):
        messages = []
        for function in (plain, model):
            with pytest.raises(Exception) as caught:
                function.call(*args)
            messages.append((type(caught.value), str(caught.value).splitlines()[0]))
        assert messages[0] == messages[1]


# --- why code is not used -------------------------------------------------------------------------------------------

OTHER = {
    "processor": ("jaxexp._native.cpu_features", lambda: "x86 1.c=0"),
    "build of jaxlib": ("jaxexp._executables.conditions._build", lambda: "00"),
    "target": ("jaxexp._executables.conditions.compilation_for", lambda _: ("00", "00")),
    "jaxexp": ("jaxexp._executables.conditions.__version__", "0.0.0"),
    "processes": ("jax.process_count", lambda: 2),
}


@pytest.mark.parametrize("condition", OTHER)
def test_what_differs_is_named(
    condition: str, plus_one: Path, exe: Path, said: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(*OTHER[condition])
    model = jaxexp.load(plus_one, executables=exe)
    np.testing.assert_array_equal(model.call(X), X + 1)
    (executable,) = model.executables
    assert not executable.used
    assert executable.why is not None and executable.why.startswith(f"{condition}: compiled for ")
    assert executable.why in said.text


def test_the_argument_that_differs_is_named(tmp_path: Path, exe: Path, said: Any) -> None:
    layers = {f"layer{i:02}": X for i in range(20)}
    path = saved(tmp_path, lambda layers, x: x, layers, jax.ShapeDtypeStruct(jaxexp.symbolic_shape("b, 7"), np.float32))
    jaxexp.load(path).precompile((layers, np.ones((8, 7), np.float32)), into=exe)
    model = jaxexp.load(path, executables=exe)
    assert repr(model.executables[0]).startswith("Executable(<lambda> of float32[8,8], ")
    assert ", ..., float32[8,7]: not used" in repr(model.executables[0])
    model.call(layers, np.ones((9, 7), np.float32))
    difference = "is for this call: args[1]: compiled for float32[8,7], here it is float32[9,7]"
    assert said.messages[-1].endswith(difference), said.text


def test_long_conditions_are_cut_where_they_differ() -> None:
    same = "+avx" * 100
    for of in ("processor", "compile options"):
        why = conditions.difference({of: f"{same}+amx{same}"}, {of: f"{same}+vnni{same}"})
        assert why is not None and len(why) < 300
        assert "+amx" in why.partition("here it is")[0] and "+vnni" in why.partition("here it is")[2]


def test_whatever_the_reason_it_is_logged_once(
    tmp_path: Path, exe: Path, said: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = saved(tmp_path, lambda x: x + 1, X, vjp_order=1)
    jaxexp.load(path).precompile(into=exe)
    model = jaxexp.load(path, executables=exe)
    with jax.disable_jit():
        model.call(X)
    with jax.debug_nans(True):
        model.call(X), model.call(X)
        assert model.executables[0].why == "jax_debug_nans is set"
    for _ in range(2):
        jax.grad(lambda x: model.call(x).sum())(X)
    other = jaxexp.load(saved(tmp_path / "other", lambda x: x + 2, X), executables=exe)
    np.testing.assert_array_equal(other.call(X), X + 2)
    monkeypatch.setattr("jaxexp._jax.missing_for_reuse", "jax.gone")
    model = jaxexp.load(path, executables=exe)
    np.testing.assert_array_equal(model.call(X), X + 1)
    assert model.executables[0].why == "this JAX has no jax.gone"
    with pytest.raises(UnsupportedError, match="this JAX has no"):
        model.precompile(into=exe)
    messages = [message.replace(repr(str(exe)), "FILE") for message in said.messages if "uses code" not in message]
    assert messages == [
        "<lambda>: code in FILE is not used: jax_disable_jit is set",
        "<lambda>: code in FILE is not used: jax_debug_nans is set",
        "the VJP of order 1 of <lambda>: FILE has no code of this function",
        "<lambda>: FILE has no code of this function",
        "<lambda>: code in FILE is not used: this JAX has no jax.gone",
    ]


def test_another_function_of_the_name_is_listed_and_not_used(
    tmp_path: Path, plus_one: Path, exe: Path, said: Any
) -> None:
    model = jaxexp.load(saved(tmp_path, lambda x: x + 2, X), executables=exe)
    np.testing.assert_array_equal(model.call(X), X + 2)
    assert [(one.levelname, "has no code of this function" in one.message) for one in said.records] == [
        ("WARNING", True)
    ]
    (executable,) = model.executables
    assert executable.why is not None and executable.why.startswith("module: compiled for ")
    assert "not used: module" in repr(executable)


def test_code_of_a_session_is_listed_and_not_used(plus_one: Path, exe: Path, said: Any) -> None:
    code = jaxexp.load(plus_one, executables=exe).executables[0].conditions
    own = {name: code[name] for name in ("function", "module", "processor")}
    GrowingFile(exe).put({**own, "plugin": "one"}, {}, b"code")
    model = jaxexp.load(plus_one, executables=exe)
    np.testing.assert_array_equal(model.call(X), X + 1)
    assert [(one.used, one.why) for one in model.executables] == [
        (True, None),
        (False, "for sessions (jaxexp.runtime) on this processor"),
    ]
    assert "unknown value" not in said.text


def test_damaged_code_is_not_used(plus_one: Path, exe: Path, said: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor is code that does not run."""
    broken = SimpleNamespace(unsafe_call=Mock(side_effect=jax.errors.JaxRuntimeError("INTERNAL: no symbol")))
    with monkeypatch.context() as patch:
        patch.setattr("jaxexp._executables.executables.made_of", lambda *_: broken)
        model = jaxexp.load(plus_one, executables=exe)
        np.testing.assert_array_equal(model.call(X), X + 1)
    assert model.executables[0].why == "it does not run: INTERNAL: no symbol"
    assert said.messages[-1].endswith("is not used: it does not run: INTERNAL: no symbol")
    flip(exe, -1000)
    model = jaxexp.load(plus_one, executables=exe)
    np.testing.assert_array_equal(model.call(X), X + 1)
    assert "expected the bytes as they were written" in str(model.executables[0].why)
    jaxexp.load(plus_one).precompile(into=exe)  # another copy, behind the damaged one
    model = jaxexp.load(plus_one, executables=exe)
    model.call(X)
    assert used(model) == [False, True]


def test_a_record_that_says_something_else_is_not_used(plus_one: Path, exe: Path) -> None:
    written = ExecutablesFile(exe)
    (record,) = written.records
    code = written.code(record)
    more = '{"kept": [7], "committed": true, "arguments": [null], "results": [null]}'
    for call in ("", "[]", "{}", '{"kept": 1}', more):
        exe.unlink()
        GrowingFile(exe).put(record.conditions, {**record.call, "jax": call}, code)
        model = jaxexp.load(plus_one, executables=exe)
        np.testing.assert_array_equal(model.call(X), X + 1)
        assert str(model.executables[0].why).startswith("it cannot be loaded: "), call


def test_code_that_is_there_is_not_compiled_again(plus_one: Path, exe: Path) -> None:
    """A module is named by its SHA-256: somebody could make one with the same digest of the trailer."""
    written = exe.read_bytes()
    loaded = jaxexp.load(plus_one)
    with counted() as steps:
        (same,) = loaded.precompile(into=exe)
    assert not steps and exe.read_bytes() == written
    assert same.conditions["arguments"] == "float32[8,8]"
    assert same.conditions["module"] == hashlib.sha256(loaded.mlir_module_serialized).hexdigest()


@pytest.mark.parametrize("is_warm", [False, True])
def test_a_mode_that_looks_at_results_is_respected(plus_one: Path, exe: Path, is_warm: bool) -> None:
    model = jaxexp.load(plus_one, executables=exe)
    if is_warm:
        model.call(X)
    with jax.debug_nans(True), pytest.raises(FloatingPointError, match="nan"):
        model.call(np.full_like(X, np.nan))
    assert np.isnan(model.call(np.full_like(X, np.nan))).all()
    np.testing.assert_array_equal(model.call(X), X + 1)
    assert used(model) == [True]


# --- precompile -----------------------------------------------------------------------------------------------------


def test_what_is_refused(tmp_path: Path, exe: Path) -> None:
    model = jaxexp.load(saved(tmp_path, jnp.sin, X))
    for order in (-1, 1.5, None):
        with pytest.raises(ExportError, match="vjp_order is the number of VJPs to compile") as caught:
            model.precompile(into=exe, vjp_order=order)  # type: ignore[arg-type]
        assert isinstance(caught.value, TypeError)
    with pytest.raises(ExportError, match=r"has no VJP of order 1: it was serialized with vjp_order=0\."):
        model.precompile(into=exe, vjp_order=1)
    tied = jaxexp.DisabledSafetyCheck.custom_call("xla_ffi_python_cpu_callback")
    printing = jax.jit(lambda x: jax.debug.print("{}", x[0, 0], ordered=False))
    with pytest.raises((ExportError, NotImplementedError)):  # what is tied to the process
        jaxexp.export(printing, disabled_checks=[tied])(X).precompile(into=exe)
    assert not exe.exists()


def test_code_has_no_paths_of_those_who_compile(tmp_path: Path, exe: Path) -> None:
    path = tmp_path / "f.jaxexp"
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


# --- members of an archive ------------------------------------------------------------------------------------------


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    double, plus_one = jaxexp.export(jax.jit(lambda x: 2 * x))(X), jaxexp.export(jax.jit(lambda x: x + 1))(ANY)
    return make(tmp_path / "fleet.zip", {"double": double, "any": plus_one, "model": weighted.bound()[0]})


def test_one_file_has_the_code_of_all_members(archive: Path, exe: Path, tmp_path: Path) -> None:
    """Those with weights, too."""
    with jaxexp.Archive.open(archive) as opened:
        assert list(opened.precompile(["double"], into=exe)) == ["double"]
        with pytest.raises(KeyError):
            opened.precompile(["missing"], into=tmp_path / "none.exe")
        assert not (tmp_path / "none.exe").exists()
        with pytest.raises(ExportError, match=r"fleet\.zip::any'.*symbolic dimensions n.*\{'any': args\}"):
            opened.precompile(into=exe)
        sizes = {"any": (jax.ShapeDtypeStruct((3, 8), np.float32),), "double": None, "model": None}
        assert list(opened.precompile(sizes, into=exe)) == ["any", "double", "model"]
        any_size, double, model = (opened[name].load(executables=exe) for name in sizes)
        np.testing.assert_array_equal(any_size.call(X[:3]), X[:3] + 1)
        np.testing.assert_array_equal(double.call(X), 2 * X)
        weighted.close(model.call(weighted.X), weighted.bound()[0].call(weighted.X))
        for function in (any_size, double, model):
            assert sum(used(function)) == 1
        assert opened["double"].load().executables == (), "who names no file gets none"
    with jaxexp.Archive.append(archive) as writer:
        writer.remove("any")
    with jaxexp.Archive.open(archive) as opened:
        assert list(opened.precompile(into=tmp_path / "all.exe")) == ["double", "model"]
        assert opened["double"].load(executables=tmp_path / "all.exe").executables


def test_never_with_a_policy(archive: Path, tmp_path: Path) -> None:
    how: dict[str, Any] = {"policy": jaxexp.Policy(), "executables": tmp_path / "missing"}
    with jaxexp.Archive.open(archive) as opened:
        handle = opened["double"]
        for load, message in (
            (lambda: handle.load(**how), "native code"),
            (lambda: jaxexp.load(f"{archive}::double", **how), r"fleet\.zip::double'.*native code"),
            (lambda: jaxexp.load(handle.read(), **how), r"executables are native code"),
            (lambda: jaxexp.load(tmp_path / "missing", **how), "native code"),
        ):
            with pytest.raises(ExportError, match=message) as caught:
                load()
            assert isinstance(caught.value, ValueError)

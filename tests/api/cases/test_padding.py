"""`save(pad=...)`: what may be padded passes, what mixes is refused by dimension, result and difference, and the
declaration goes along.
"""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export as jax_export
from jax import lax

import jaxexp
from jaxexp import _native
from jaxexp.errors import ExportError
from kit.each import each

pytestmark = pytest.mark.jax

W = np.random.default_rng(1).normal(size=(4, 4)).astype(np.float32)
TABLE = np.random.default_rng(2).normal(size=(16, 4)).astype(np.float32)


def exported(
    function: Callable[..., Any], shapes: str = "b, 4", dtype: Any = "float32", constraints: Any = (), **options: Any
) -> jaxexp.Exported:
    """Of one argument for each shape; shapes are separated by semicolons."""
    scope = jaxexp.SymbolicScope(constraints)
    dims = (jaxexp.symbolic_shape(shape, scope=scope) for shape in shapes.split(";"))
    return jaxexp.export(jax.jit(function), **options)(*(jax.ShapeDtypeStruct(one, dtype) for one in dims))


def attended(x: Any, hidden: float | None) -> Any:
    scores = jnp.einsum("...qd,...kd->...qk", x, x)
    if hidden is not None:
        scores = jnp.where(jnp.tril(jnp.ones(scores.shape[-2:], bool)), scores, hidden)
    return jnp.einsum("...qk,...kd->...qd", jax.nn.softmax(scores, -1), x)


def causal(x: Any) -> Any:
    return attended(x, -jnp.inf)


def language_model(tokens: Any) -> Any:
    """Of three layers; to logits."""
    x = jnp.asarray(TABLE)[tokens] + jnp.sin(jnp.arange(tokens.shape[1]))[:, None]
    for _ in range(3):
        x = x + attended(x @ W, -1e9)
        x = x / jnp.sqrt(1e-6 + (x * x).mean(-1, keepdims=True))
    return x @ TABLE.T


MAY: dict[str, tuple[Callable[..., Any], str, Any, Any]] = {
    "rows": (lambda x: {"y": jnp.tanh(x @ W), "top": lax.top_k(x, 2), "half": x[: x.shape[0] // 2]}, "b, 4", "f4", "b"),
    "a causal sequence": (causal, "b, t, 4", "float32", ("b", "t")),
    "a causal sequence in float16": (lambda x: attended(x, -1e4), "b, t, 4", "float16", ("t", "b")),
    "a language model": (language_model, "b, t", "int32", ("b", "t")),
    "a batch beside a sequence": (lambda x: attended(x, None), "b, t, 4", "bfloat16", ["b"]),
    "a running sum": (lambda x: jnp.cumsum(x, 0), "b, 4", "float32", "b"),
    "the number of rows": (lambda x: x + jnp.arange(x.shape[0])[:, None], "b, 4", "int32", "b"),
    "expressions": (lambda x: x.reshape(-1, 2), "2*b, 4", "complex64", "b"),
    "truth values": (lambda x: ~x, "b, 4", "bool", "b"),
    "small floats": (lambda x: x * 2, "b, 4", "float8_e4m3fn", "b"),
    "keys": (jax.vmap(jax.random.split), "b", jax.random.key(0).dtype, "b"),
}  # fmt: skip


@each("name", MAY)
def test_what_may_be_padded(name: str, tmp_path: Path) -> None:
    function, shapes, dtype, pad = MAY[name]
    exported(function, shapes, dtype).save(tmp_path / "f.jaxexp", pad=pad)
    loaded = jaxexp.load(tmp_path / "f.jaxexp")
    assert loaded.padded == tuple(sorted([pad] if isinstance(pad, str) else pad))


# What must not be padded along a dimension, which result shows it, and what is behind the arguments then.
MAY_NOT: dict[str, tuple[Callable[..., Any], str, str, str]] = {
    "a mean": (lambda x: {"mean": x.mean(0), "x": x}, "b, 4", "b", r"with zeros, .* result\['mean'\] changes by up"),
    "the largest": (lambda x: x - x.max(), "b, 4", "b", "random numbers, the kept part of result changes by up"),
    "a sum": (lambda x: (x, x.sum(0)), "b, 4", "b", r"random numbers, .* result\[1\] changes by up to"),
    "a sorted batch": (lambda x: jnp.sort(x, 0), "b, 4", "b", "result changes by up to"),
    "the last row": (lambda x: x[-1], "b, 4", "b", "result changes by up to"),
    "a reversed batch": (lambda x: x[::-1], "b, 4", "b", "result changes by up to"),
    "a size": (lambda x: x.shape[0], "b, 4", "b", "result changes by up to [0-9.]+, where 0 is allowed"),
    "attention without a mask": (lambda x: attended(x, None), "b, t, 4", "t", "result changes by up to"),
    "what becomes NaN": (
        lambda x: x + 0 / jnp.abs(x).min(0),
        "b, 4",
        "b",
        "8 of 8 numbers in the kept part of .* become, or stop being, NaN",
    ),
    "concatenated": (lambda x: jnp.concatenate([x, x]), "b, 4", "b", "result changes by up to"),
    "what shrinks": (lambda x, y: (x, y), "b;20 - b", "b", r"args\[1\] has the smaller shape"),
}


@each("name", MAY_NOT)
def test_what_mixes_is_refused(name: str) -> None:
    function, shapes, dimension, said = MAY_NOT[name]
    constraints = ["b <= 19"] if "20" in shapes else []
    start = rf"^saving .*: {dimension} must not be padded\. With {dimension}=[0-9]+ in place of [0-9]+, "
    with pytest.raises(ExportError, match=f"{start}.*{said}"):
        exported(function, shapes, constraints=constraints).serialize(pad=dimension)


def test_one_dimension_of_two() -> None:
    function = exported(lambda x: attended(x, None), "b, t, 4")
    with pytest.raises(ExportError, match=r"pad=\('b', 't'\): t must not be padded.* Save it with pad=\('b',\)"):
        function.serialize(pad=["t", "b"])


def test_names() -> None:
    function, static = exported(jnp.sin, "b, t"), exported(jnp.sin, "3")
    for pad, error, said in (
        ("c", ValueError, "pad takes names of its symbolic dimensions, b, t, found 'c'"),
        ("b, t", ValueError, "found 'b, t'"),
        (True, TypeError, r"as in pad=\('batch',\), not True"),
        ([1], TypeError, r"not \[1\]"),
    ):
        with pytest.raises(error, match=said):
            function.serialize(pad=pad)
    with pytest.raises(ValueError, match="pad is not possible, because it has no symbolic dimensions, found 'b'"):
        static.serialize(pad="b")
    with pytest.raises(ExportError, match="with pad and trailer=False: pad is in the trailer"):
        function.serialize(pad="b", trailer=False)


def test_the_declaration_goes_along() -> None:
    """`tests/fleet/test_companions.py` has the other ways."""
    blob = exported(jnp.sin, "b, t").serialize(pad="b")
    loaded = jaxexp.deserialize(blob)
    assert loaded.padded == jaxexp.inspect(blob).padded == ("b",)
    assert "padded" in str(jaxexp.inspect(blob))
    assert json.loads(json.dumps(jaxexp.inspect(blob).to_dict()))["padded"] == ["b"]
    assert jaxexp.deserialize(_native.with_cases(blob, None)).padded == ("b",)
    assert jaxexp.deserialize(dataclasses.replace(loaded, fun_name="g").serialize()).padded == ("b",)
    assert jaxexp.deserialize(loaded.serialize(pad=("b", "t"))).padded == ("b", "t")
    assert jaxexp.deserialize(loaded.serialize(pad=())).padded == ()
    assert loaded.specialize(jax.ShapeDtypeStruct((2, 3), "float32")).padded == ()
    assert jax_export.deserialize(blob).fun_name == "sin"


def test_a_batch_dim_is_declared() -> None:
    """It is a promise, and checked where sizes are saved."""
    function = exported(lambda x: x * 2, "b, t", batch_dim="b")
    assert function.padded == jaxexp.deserialize(function.serialize()).padded == ("b",)
    (n,) = jaxexp.symbolic_shape("n")
    assert function.specialize(jax.ShapeDtypeStruct((n, 3), "float32")).padded == ("n",)
    assert jaxexp.deserialize(function.serialize(pad=())).padded == ()
    broken = exported(lambda x: x - x.mean(0), "b, 4", batch_dim="b")
    assert jaxexp.deserialize(broken.serialize()).padded == ("b",)
    with pytest.raises(ExportError, match="b must not be padded"):
        broken.serialize(sizes=[{"b": 8}])
    assert jaxexp.deserialize(broken.serialize(sizes=[{"b": 8}], pad=())).sizes == ({"b": 8},)


def test_what_cannot_run_here(caplog: pytest.LogCaptureFixture) -> None:
    """A declaration of `pad` needs a check. A `batch_dim` was promised before."""
    function = exported(jnp.sin, "b, 4", platforms=["tpu"], batch_dim="b")
    with pytest.raises(ExportError, match=r"cannot check that padding keeps the results: it does not run here"):
        function.serialize(pad="b")
    with caplog.at_level(logging.INFO, "jaxexp"):
        assert jaxexp.deserialize(function.serialize(sizes=[{"b": 8}])).padded == ("b",)
    assert "its batch_dim is not checked: it does not run here" in caplog.text


def test_sizes_that_are_tried() -> None:
    """Those that are saved, or others that fit the constraints."""
    function = exported(jnp.sin, "b, t", constraints=["mod(b, 128) == 0", "t >= 200", "b >= t + 1"])
    for sizes in ([{"b": 512, "t": 300}], [{"b": 384, "t": 201}, {"b": 1280, "t": 1000}]):
        assert jaxexp.deserialize(function.serialize(pad="b", sizes=sizes)).padded == ("b",)
    with pytest.raises(ExportError, match=r"found no sizes at which b can grow: pass some, as in sizes="):
        function.serialize(pad="b")


def test_arguments_of_cases(tmp_path: Path) -> None:
    """Random arguments may have no result that could be compared."""
    function = exported(lambda x: jnp.sqrt(x - 100), "b, 4")
    with pytest.raises(ExportError, match=r"result has no finite number .*: give a case .* cases=\[\(x,\)\]"):
        function.save(tmp_path / "f.jaxexp", pad="b")
    x = np.linspace(200, 300, 12, dtype=np.float32).reshape(3, 4)
    function.save(tmp_path / "f.jaxexp", pad="b", cases=iter([(x,)]))
    again = jaxexp.load(tmp_path / "f.jaxexp")
    assert [case.name for case in again.cases] == ["0"]
    again.save(tmp_path / "g.jaxexp", pad=["b"])  # with the case that was recorded
    worse = exported(lambda x: jnp.sqrt(x - 100) - jnp.sqrt(x.max(0) - 100), "b, 4")
    with pytest.raises(ExportError, match=r"b must not be padded\. With b=6 in place of 3"):
        worse.save(tmp_path / "h.jaxexp", pad="b", cases=[{"args": (x,), "name": "real"}])


def test_vjps_are_checked() -> None:
    """A gradient of a weight sums over the rows, and what is padded adds 0, or NaN."""
    fine = exported(lambda x, w: jnp.tanh(x @ w), "b, 4;4, 4")
    assert jaxexp.deserialize(fine.serialize(2, pad="b")).padded == ("b",)
    nan = exported(lambda x, w: (x @ w) / jnp.linalg.norm(x @ w, axis=-1, keepdims=True), "b, 4;4, 4")
    nan.serialize(pad="b")
    with pytest.raises(ExportError, match=r"b must not be padded.*zeros, .*result\[1\] of the VJP of order 1"):
        nan.serialize(1, pad="b")


def test_weights_are_those_of_the_function(tmp_path: Path) -> None:
    """They are never padded."""
    x = jax.ShapeDtypeStruct(jaxexp.symbolic_shape("b, 4"), np.float32)
    w = jnp.asarray(W)
    program = jaxexp.export(jax.jit(lambda x: x @ w), weights={"w": w})(x)
    program.save(tmp_path / "f.jaxexp", pad="b", vjp_order=1, sizes=[{"b": 8}])
    assert jaxexp.load(tmp_path / "f.jaxexp").padded == ("b",)


def test_several_devices() -> None:
    mesh = jax.make_mesh((2,), ("a",), devices=jax.devices()[:2])
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(None, "a"))
    spec = jax.ShapeDtypeStruct(jaxexp.symbolic_shape("b, 4"), np.float32)
    function = jaxexp.export(jax.jit(jnp.sin, in_shardings=sharding))(spec)
    with pytest.raises(ExportError, match="a function for several devices is never padded"):
        function.serialize(pad="b")

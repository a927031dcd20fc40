"""Recording calls and making them again: every kind of function, what is refused, and where cases go."""

from __future__ import annotations

import dataclasses
import json
import os
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxexp
from jaxexp import CheckReport, Drawn, Tolerance, _native
from jaxexp._api.cases import culprit, recording
from jaxexp._api.cases.calling import Chain
from jaxexp._readback.traced import RETURN
from jaxexp._view import graph
from jaxexp.errors import BusyError, DeserializationError, ExportError, WeightsError
from kit.archive_files import make
from kit.corpus import CASES, export_with
from kit.flips import flip
from kit.weighted import X, bound

pytestmark = pytest.mark.jax
_EFFECTS = r"has effects .* a case holds only results"
REFUSED = {
    **dict.fromkeys(("ordered_effect", "unordered_effect", "several_effects", "effects_and_symbolic_shapes"), _EFFECTS),
    "unreduced_result": "a result is not yet reduced over devices",
}


def f(x: jax.Array, y: jax.Array) -> dict[str, jax.Array]:
    return {"loss": jnp.sum(jnp.sin(x) @ y), "out": x @ y}


@pytest.fixture(scope="module")
def exported() -> jaxexp.Exported:
    spec = jax.ShapeDtypeStruct
    return jaxexp.export(jax.jit(f))(spec((4, 3), np.float32), spec((3, 2), np.float32))


ARGS = Drawn((4, 3), "float32"), Drawn((3, 2), "float32", seed=1)


@pytest.fixture
def path(exported: jaxexp.Exported, tmp_path: Path) -> Path:
    exported.save(tmp_path / "f.jaxexp", vjp_order=1, cases=[ARGS, {"args": ARGS, "vjp_order": 1, "name": "gradient"}])
    return tmp_path / "f.jaxexp"


@pytest.mark.wide(one_in=26, promise="calls of every kind of function are recorded, traced and found again")
@pytest.mark.parametrize("name", CASES)
def test_every_kind(name: str, tmp_path: Path) -> None:
    """Of the function and of its VJP. jax.export reads the file; a trace has the operations in the order of pages."""
    case, file = CASES[name], tmp_path / "f.jaxexp"
    with case.context():
        program = case.build()
        if not program.callable_here:
            pytest.skip("nothing here implements what it calls")
        exported = export_with(jaxexp, program)
        orders = range(min(case.vjp_order, 1) + 1)
        given = [{"args": program.args, "kwargs": program.kwargs, "vjp_order": order, "name": f"order {order}",
                  "trace": True} for order in orders]  # fmt: skip
        if refused := REFUSED.get(name):
            with pytest.raises(ExportError, match=refused):
                exported.save(file, cases=given)
            assert not file.exists()
            return
        exported.save(file, vjp_order=len(given) - 1, cases=given)
    report = jaxexp.check(file)  # outside of the context: the check sees to dtypes
    assert report.verdict == "equal", report
    assert len(report.cases) == len(given)
    assert CheckReport.from_json(json.loads(json.dumps(report.to_json(), allow_nan=False))) == report
    jaxexp.verify(file)
    with case.context():
        assert jax.export.deserialize(bytearray(file.read_bytes())).fun_name == exported.fun_name
    loaded = jaxexp.load(file)
    chain = Chain(loaded)
    for one in loaded.cases:
        traced, here = chain.trace(one.vjp_order, [value.array() for value in one.arguments])
        np.testing.assert_array_equal(here.words, one.trace.array())
        assert culprit.Comparison(traced.rows, here, culprit.Trace.of_case(one.trace)).first() is None
        drawn = kinds(graph.read(traced.module))
        numbered = [row for row in traced.rows if row.operation != RETURN]
        assert all(row.operation == drawn[row.at[0]][row.at[1]] for row in numbered)


def kinds(module: graph.Graph) -> dict[str, list[str]]:
    """The kinds of a page's operations in the order in which it numbers them."""

    def inside(block: dict[str, Any]) -> Iterator[str]:
        for operation in block["o"]:
            kind = module.texts[operation[0]]
            yield kind if "." in kind else f"stablehlo.{kind}"
            for inner in operation[6]:
                yield from inside(inner)

    return {name: [*inside(block)] for name, block in module.functions.items()}


DTYPES = [
    "bool", "int4", "uint4", "int8", "uint64", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "float32",
    "float64", "complex64", "complex128", "key<fry>", "key<rbg>",
]  # fmt: skip


@pytest.mark.wide(one_in=5, promise="arrays of every dtype are recorded and drawn")
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype(dtype: str, tmp_path: Path) -> None:
    drawn = tuple(Drawn(shape, dtype, seed=3) for shape in ((), (0, 2), (3, 2)))
    with jax.enable_x64(True):
        if dtype.startswith("key"):
            impl = {"key<fry>": "threefry2x32", "key<rbg>": "rbg"}[dtype]
            arrays = [jax.random.wrap_key_data(one.array(), impl=impl) for one in drawn]
        else:
            arrays = [jnp.asarray(one.array()) for one in drawn]
        exported = jaxexp.export(jax.jit(lambda *xs: (*xs, *(x.reshape(-1) for x in xs))))(*arrays)
        exported.save(tmp_path / "f.jaxexp", cases=[tuple(arrays), drawn])
    report = jaxexp.check(tmp_path / "f.jaxexp")
    assert report.verdict == "equal", report
    given, described = jaxexp.load(tmp_path / "f.jaxexp").cases
    assert [value.dtype for value in (*given.arguments, *given.results, *described.results)] == [dtype] * 15
    assert [value.drawn for value in described.arguments] == [*drawn]
    for one, other in zip((*given.arguments, *given.results), (*described.arguments, *described.results), strict=True):
        assert one.shape == other.shape
        np.testing.assert_array_equal(one.array(), other.array())


def test_what_a_case_is(path: Path, exported: jaxexp.Exported) -> None:
    first, gradient = jaxexp.load(path).cases
    assert (first.name, first.vjp_order, gradient.name, gradient.vjp_order) == ("0", 0, "gradient", 1)
    assert first.recorded["jax"] == jax.__version__
    assert {"jaxlib", "jaxexp", "platform", "device", "processor", "system", "python"} <= first.recorded.keys()
    assert [value.shape for value in first.results] == [(), (4, 2)]
    assert [value.shape for value in gradient.arguments] == [(4, 3), (3, 2), (), (4, 2)]
    assert [value.shape for value in gradient.results] == [(4, 3), (3, 2)]
    assert all(value.drawn is not None for value in gradient.arguments)
    digests = jaxexp.digests(path)
    exported.save(path, vjp_order=1)
    without = jaxexp.digests(path)  # they are part of the artifact, and not of its meaning
    assert (digests.sha256 != without.sha256, digests.meaning == without.meaning) == (True, True)


def test_cotangents_may_be_given(exported: jaxexp.Exported, tmp_path: Path) -> None:
    cotangents = [np.float32(1), np.zeros((4, 2), np.float32)]
    exported.save(tmp_path / "f.jaxexp", vjp_order=1, cases=[{"args": ARGS, "vjp_order": 1, "cotangents": cotangents}])
    (case,) = jaxexp.load(tmp_path / "f.jaxexp").cases
    loss = jax.grad(lambda *args: f(*args)["loss"], argnums=(0, 1))(*(drawn.array() for drawn in ARGS))
    for value, expected in zip(case.results, loss, strict=True):
        np.testing.assert_allclose(value.array(), expected, rtol=1e-5)


def test_cases_that_are_none(exported: jaxexp.Exported, tmp_path: Path) -> None:
    wrong: list[tuple[Any, str]] = [
        ([7], "a case is a tuple of the positional arguments, or a dict with args, kwargs"),
        ([{"arg": ()}], "a dict of a case has args, kwargs, name, .*, not 'arg'"),
        ([(np.ones((4, 3), np.float32),)], "args"),
        ([(np.ones((4, 4), np.float32), ARGS[1])], r"args\[0\] is float32\[4,3\], found float32\[4,4\]"),
        ([(np.ones((4, 3), np.int32), ARGS[1])], r"args\[0\] is float32\[4,3\], found int32\[4,3\]"),
        ([ARGS, {"args": ARGS, "name": "0"}], "expected a name that no other case has, found '0'"),
        ([{"args": ARGS, "name": "\ud800"}], r"expected a name that no other case has, found '\\ud800'"),
        ([(np.ma.array(ARGS[0], mask=True), ARGS[1])], "expected an array, found a masked array"),
        ([{"args": ARGS, "vjp_order": 1}], "cannot be saved with vjp_order=0: case '0' calls the VJP of order 1"),
        ([{"args": ARGS, "vjp_order": -1}], "vjp_order is 0 for the function"),
        ([{"args": ARGS, "tolerance": -1.0}], "a tolerance has finite numbers that are not negative, not -1"),
        ([{"args": ARGS, "tolerance": float("nan")}], "a tolerance has finite numbers"),
        ([{"args": ARGS, "tolerance": "x"}], "a tolerance is a number, 'dtype' or 'measured', not 'x'"),
        ([{"args": ARGS, "tolerance": {"result['out']": "x"}}], "a tolerance is a number, 'dtype' or 'measured', not"),
        (
            [{"args": ARGS, "tolerance": {"result": 1}}],
            r"tolerances are for result\['loss'\], result\['out'\], not for",
        ),
    ]
    for given, message in wrong:
        with pytest.raises(ExportError, match=message):
            exported.save(tmp_path / "f.jaxexp", cases=given)
        assert not list(tmp_path.iterdir())


def test_without_a_trailer(exported: jaxexp.Exported, path: Path) -> None:
    with pytest.raises(ExportError, match="cases are in the trailer"):
        exported.save(path, cases=[ARGS], trailer=False)
    jaxexp.load(path).save(path, trailer=False)
    assert not jaxexp.load(path).cases
    before = path.read_bytes()
    with pytest.raises(DeserializationError, match="a trailer, which holds the cases, found no trailer"):
        jaxexp.record(path, [ARGS])
    assert path.read_bytes() == before


def test_what_cannot_be_drawn() -> None:
    for given, options, message in (
        (((2,), "float0"), {}, "is not an array of numbers"),
        (((2,), "text"), {}, "dtypes that artifacts have, not of text"),
        (((-1,), "float32"), {}, "is not an array of numbers"),
        (((2,), "int8", "normal"), {}, "the distribution of int8 is one of integers"),
        (((2,), "int8"), {"second": 129}, "have to be whole numbers from -128 to 128, and first below second"),
        (((2,), "uint8"), {"first": -1}, "have to be whole numbers from 0 to 256, and first"),
        (((2,), "float32", "cauchy"), {}, "is one of normal, uniform, integers"),
        (((2,), "float32"), {"seed": 1 << 64}, r"from 0 to 2\^64 - 1"),
        (((2,), "float32"), {"first": float("inf")}, "have to be finite"),
        (((2,), "float32", "uniform"), {"first": 2}, "first must not be larger than second"),
    ):
        with pytest.raises(ExportError, match=message):
            Drawn(*given, **options)


def test_too_many_random_numbers(path: Path) -> None:
    report = jaxexp.load(path).check(max_drawn_bytes=71)
    assert report.verdict == "failed"
    assert "its random arguments take 72 bytes; max_drawn_bytes allows 71 bytes" in str(report)


def test_the_vjp_that_is_asked_for_is_the_one_that_is_needed(path: Path) -> None:
    with pytest.raises(ExportError, match=r"has no VJP of order 5: .* vjp_order=1\. .* vjp_order=5 or more"):
        jaxexp.record(path, [{"args": ARGS, "vjp_order": 5}])


def test_record_adds_and_replaces(path: Path) -> None:
    before = path.read_bytes()
    assert [case.name for case in jaxexp.record(path, [{"args": ARGS, "name": "new"}])] == ["0", "gradient", "new"]
    after = path.read_bytes()
    offset, size, _ = _native.Artifact(before).modules()[-1]
    assert after[16 : offset + size] == before[16 : offset + size]  # all but where the artifact ends, and the trailer
    assert jaxexp.check(path).verdict == "equal"
    assert [case.name for case in jaxexp.record(path, [ARGS], replace=True)] == ["0"]
    assert [case.name for case in jaxexp.load(path).cases] == ["0"]
    with pytest.raises(ExportError, match="is a URL"):
        jaxexp.record("http://localhost/f.jaxexp", [ARGS])


def test_large_arrays_are_beside(tmp_path: Path) -> None:
    file = tmp_path / "f.jaxexp"
    exported = jaxexp.export(jax.jit(lambda x, y: (x * 2, y + 1)))(
        jax.ShapeDtypeStruct((200, 200), np.float32), jax.ShapeDtypeStruct((3,), np.int32)
    )
    args = np.arange(40_000, dtype=np.float32).reshape(200, 200), np.arange(3, dtype=np.int32)
    exported.save(file, cases=[args])
    assert sorted(os.listdir(tmp_path)) == ["f.cases.safetensors", "f.jaxexp"]
    assert file.stat().st_size < 10_000
    (case,) = jaxexp.load(file).cases
    assert [value.tensor for value in case.arguments] == ["0/arguments/0", None]
    np.testing.assert_array_equal(case.arguments[0].array(), args[0])
    jaxexp.record(file, [args])
    loaded = jaxexp.load(file)
    assert (len(loaded.cases), loaded.check().verdict) == (2, "equal")
    # Without a folder, the function has its cases, and cannot find the arrays. They are not written again.
    apart = jaxexp.deserialize(file.read_bytes())
    assert "with the arrays of its cases beside it" in str(apart.check())
    assert not jaxexp.deserialize(loaded.serialize()).cases
    os.makedirs(tmp_path / "other")
    loaded.save(tmp_path / "other" / "g.jaxexp")
    assert jaxexp.check(tmp_path / "other" / "g.jaxexp").verdict == "equal"
    assert sorted(os.listdir(tmp_path / "other")) == ["g.cases.safetensors", "g.jaxexp"]
    (found,) = jaxexp.load_many([file])
    assert found.check().verdict == "equal"
    (tmp_path / "f.cases.safetensors").rename(tmp_path / "elsewhere")
    with pytest.raises(WeightsError, match=r"^cannot read the arrays of the cases '.*f\.cases\.safetensors': "):
        jaxexp.verify(file)
    (tmp_path / "elsewhere").rename(tmp_path / "f.cases.safetensors")
    # Fewer arrays stay inside.
    jaxexp.record(file, [(Drawn((200, 200), "float32"), args[1])], replace=True)
    assert jaxexp.check(file).verdict == "equal"


def test_packed_and_key_arrays_are_beside(tmp_path: Path) -> None:
    x, keys = np.ones(20_000, np.float32), jax.random.split(jax.random.key(1), 9_000)
    exported = jaxexp.export(jax.jit(lambda x, k: (x.astype(jnp.int4), k)))(x, keys)
    exported.save(tmp_path / "f.jaxexp", cases=[(x, keys)])
    (case,) = jaxexp.inspect(tmp_path / "f.jaxexp").cases
    assert case.file == "f.cases.safetensors"
    for place in (tmp_path / "f.jaxexp", f"{make(tmp_path / 'a.zip', {'f': tmp_path / 'f.jaxexp'})}::f"):
        assert jaxexp.check(place).verdict == "equal"


def test_digests_are_compared_unless_results_are_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x, path = np.random.default_rng(0).standard_normal((200, 200), np.float32), tmp_path / "f.jaxexp"
    jaxexp.export(jax.jit(jnp.sin))(x).save(path, cases=[(x,)])
    computed, digest = list[int](), _native.digest

    def counted(data: Any) -> bytes:
        computed.append(len(data))
        return digest(data)

    monkeypatch.setattr(_native, "digest", counted)
    assert (jaxexp.check(path).verdict, computed) == ("equal", [])
    flip(tmp_path / "f.cases.safetensors", x.tobytes()[1000:1040], behind=3)
    (case,) = jaxexp.check(path).cases
    assert case.error is not None
    assert "found the digest" in case.error
    assert case.verdict == "failed"


@pytest.mark.parametrize(
    ("module", "step"), [(recording, "recorded"), (_native, "with_cases")], ids=["calls are made", "it is written"]
)
def test_a_file_that_is_saved_meanwhile_stays(
    module: Any, step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = jaxexp.export(jax.jit(lambda x: x + 1))(X)
    other = jaxexp.export(jax.jit(lambda x: x * 100))(X)
    file, do = tmp_path / "m.jaxexp", getattr(module, step)
    model.save(file)

    def meanwhile(*args: Any, **how: Any) -> Any:
        made = do(*args, **how)
        other.save(file)
        return made

    monkeypatch.setattr(module, step, meanwhile)
    with pytest.raises(BusyError, match="was saved by another writer meanwhile; record again"):
        jaxexp.record(file, [(X,)])
    jaxexp.verify(file)
    assert jaxexp.load(file).cases == ()
    np.testing.assert_array_equal(jaxexp.load(file).call(X), other.call(X))


def test_weights_are_apart(tmp_path: Path) -> None:
    file = tmp_path / "m.jaxexp"
    model, params = bound()
    model.save(file, vjp_order=1, cases=[(X,), {"args": (X,), "vjp_order": 1}])
    loaded = jaxexp.load(file)
    assert ([len(case.arguments) for case in loaded.cases], loaded.check().verdict) == ([1, 2], "equal")
    jaxexp.record(file, [(X + 1,)])
    assert jaxexp.check(file).verdict == "equal"
    # Other weights give other results, so they drop the cases; and the program takes weights, so they do not fit it.
    assert not loaded.with_weights(params).cases
    assert not loaded.unbound.cases
    assert not loaded.unbound.bind(dict(loaded.weights)).cases
    assert not jax.tree_util.tree_map(lambda x: x, loaded).cases
    assert len(loaded.with_mesh(None).cases) == 2


def test_they_follow_a_function(path: Path) -> None:
    """`tests/fleet/test_companions.py` has the other ways."""
    loaded = jaxexp.load(path)
    ways = {
        "replace": dataclasses.replace(loaded, fun_name="g"),
        "serialize": jaxexp.deserialize(loaded.serialize(vjp_order=1)),
        "locations": jaxexp.deserialize(loaded.serialize(vjp_order=1, locations="none")),
        "pickle": pickle.loads(pickle.dumps(loaded)),
    }
    for way, found in ways.items():
        assert found.check().verdict == "equal", way
        assert len(found.cases) == 2, way
    assert [case.vjp_order for case in jaxexp.deserialize(loaded.serialize()).cases] == [0]


def test_symbolic_shapes(tmp_path: Path) -> None:
    """Cases stay where their sizes fit."""
    b, c = jaxexp.symbolic_shape("b, c")
    spec, file = jax.ShapeDtypeStruct, tmp_path / "f.jaxexp"
    exported = jaxexp.export(jax.jit(lambda x: (x * 2, x.sum())))(spec((b, 2), np.float32))
    exported.save(file, cases=[(np.ones((n, 2), np.float32),) for n in (2, 5)])
    loaded = jaxexp.load(file)
    assert loaded.check().verdict == "equal"
    five = loaded.specialize(spec((5, 2), np.float32))
    assert ([case.name for case in five.cases], five.check().verdict) == (["1"], "equal")
    five.save(tmp_path / "five.jaxexp")
    assert [case.name for case in jaxexp.load(tmp_path / "five.jaxexp").cases] == ["1"]
    exported = jaxexp.export(jax.jit(lambda x, y: (x + 1, y.sum())))(spec((b,), np.float32), spec((c,), np.float32))
    exported.save(file, cases=[(np.ones(3, np.float32), np.ones(5, np.float32))])
    loaded = jaxexp.load(file)
    m, n = jaxexp.symbolic_shape("m, n")
    for sizes, fit in (((m, n), 1), ((3, n), 1), ((m, m + 2), 1), ((m, m), 0), ((2 * m, m), 0), ((m, m + 1), 0)):
        assert len(loaded.specialize(*(spec((size,), np.float32) for size in sizes)).cases) == fit, sizes


def test_tolerances(exported: jaxexp.Exported, tmp_path: Path) -> None:
    file = tmp_path / "f.jaxexp"
    given = {"args": ARGS, "tolerance": {"result['loss']": Tolerance(absolute=0.5), "result['out']": "measured"}}
    exported.save(file, cases=[given, {"args": ARGS, "tolerance": 0.25}, ARGS])
    first, second, third = jaxexp.load(file).cases
    assert (first.results[0].tolerance, first.measured) == (Tolerance(0.0, 0.5), {1})
    assert [value.tolerance for value in third.results] == [None, None]
    assert [value.tolerance for value in second.results] == [Tolerance(0.25, 0.0)] * 2
    whose = [[one.tolerance_of for one in case.results] for case in jaxexp.check(file).cases]
    assert whose == [["case", "recording"], ["case", "case"], ["dtype", "dtype"]]
    assert jaxexp.check(file, tolerance=(1e-3, 0)).cases[0].results[0].tolerance_of == "check"
    with pytest.raises(ExportError, match="not negative"):
        jaxexp.check(file, tolerance=-1)


def test_arrays_of_64_bits_are_taken_as_calls_take_them(tmp_path: Path) -> None:
    i, x = np.arange(3), np.linspace(0, 1, 4)
    exported = jaxexp.export(jax.jit(lambda i, x: x * i.sum()))(i, x)
    exported.save(tmp_path / "f.jaxexp", cases=[(i, x)])
    jaxexp.record(tmp_path / "f.jaxexp", [(i, x)])
    assert jaxexp.check(tmp_path / "f.jaxexp").verdict == "equal"
    assert exported.make_jaxpr(i, x).in_avals == list(exported.in_avals)
    assert exported.specialize(i, x).in_avals == exported.in_avals
    with jax.enable_x64(True), pytest.raises(ExportError, match="found int64"):
        jaxexp.record(tmp_path / "f.jaxexp", [(i, x)])


def test_numbers_that_a_dtype_has_not(tmp_path: Path) -> None:
    for dtype, number in (("int32", 1.5), ("bool", 7), ("int4", 9), ("int8", 300), ("float32", 1j), ("int32", True)):
        exported = jaxexp.export(jax.jit(lambda x: x))(jax.ShapeDtypeStruct((), dtype))
        with pytest.raises(ExportError, match=f"of dtype {dtype}, found the number"):
            exported.save(tmp_path / "f.jaxexp", cases=[(number,)])
        assert not (tmp_path / "f.jaxexp").exists()

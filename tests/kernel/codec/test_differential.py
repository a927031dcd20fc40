"""Every case of the corpus through both libraries: fields, bytes, values and derivatives must agree."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import export as jax_export

import jaxexp
from kit.compare import (
    assert_same_chains,
    assert_same_fields,
    assert_same_placement,
    assert_same_values,
    chain,
    module_interface,
    scopes,
)
from kit.corpus import CASES, Program, export_with
from kit.derivatives import cotangents, pull_back, second_order

pytestmark = pytest.mark.sampled(one_in=4, reason="many cases go the same way")

LIBRARIES = {"jax": jax_export, "ours": jaxexp}

# Called before serialization as well as after it: one of each kind, for the module is the same.
FRESH = ("weak_types", "dropped", "nested_containers", "threefry_key", "symbolic_batch", "multi_platform", "sharded_2d",
         "memory_kinds", "several_effects", "cholesky")  # fmt: skip

every_case = pytest.mark.parametrize("name", CASES)
# Who wrote the bytes, who reads and calls them. jax.export reading its own bytes is the reference.
every_route = pytest.mark.parametrize("route", ["ours to ours", "ours to jax", "jax to ours"])


@functools.lru_cache(maxsize=4)
def made(name: str) -> dict[tuple[Any, ...], Any]:
    """All that was made of a case. It comes and goes together: modules say where their function was exported."""
    return {}


def once_a_case(make: Callable[..., Any]) -> Callable[..., Any]:
    """Keeps what a function makes of a case, whose name is its first argument."""

    @functools.wraps(make)
    def kept(name: str, *how: str) -> Any:
        of_case, key = made(name), (make.__name__, *how)
        if key not in of_case:
            of_case[key] = make(name, *how)
        return of_case[key]

    return kept


@once_a_case
def program(name: str) -> Program:
    with CASES[name].context():
        return CASES[name].build()


@once_a_case
def exported(name: str, library: str) -> Any:
    with CASES[name].context():
        return export_with(LIBRARIES[library], program(name))


@once_a_case
def blob(name: str, library: str) -> bytes:
    with CASES[name].context():
        return bytes(exported(name, library).serialize(vjp_order=CASES[name].vjp_order))


@once_a_case
def loaded(name: str, route: str) -> Any:
    writer, reader = route.split(" to ")
    with CASES[name].context():
        return LIBRARIES[reader].deserialize(bytearray(blob(name, writer)))


@every_case
def test_reads_what_jax_export_wrote(name: str) -> None:
    case = CASES[name]
    with case.context():
        theirs, ours = loaded(name, "jax to jax"), loaded(name, "jax to ours")
        assert_same_chains(ours, theirs, case.vjp_order)
        last = chain(ours, case.vjp_order)[-1]
        assert not last.has_vjp()
        assert len(scopes(ours)) <= 1


@every_case
def test_jax_export_reads_what_jaxexp_wrote(name: str) -> None:
    case = CASES[name]
    with case.context():
        theirs = loaded(name, "ours to jax")
        assert_same_chains(theirs, exported(name, "ours"), case.vjp_order, as_written=True)
        assert_same_chains(theirs, loaded(name, "jax to jax"), case.vjp_order, module=False)
        assert not chain(theirs, case.vjp_order)[-1].has_vjp()


@every_case
def test_reads_what_jaxexp_wrote(name: str) -> None:
    case = CASES[name]
    with case.context():
        assert_same_chains(loaded(name, "ours to ours"), exported(name, "ours"), case.vjp_order, as_written=True)


@every_case
def test_rewrites_what_jax_export_wrote(name: str) -> None:
    """jax.export's bytes, read and written again by jaxexp, still say the same to jax.export."""
    case = CASES[name]
    with case.context():
        again = jax_export.deserialize(loaded(name, "jax to ours").serialize(vjp_order=case.vjp_order))
        assert_same_chains(again, loaded(name, "jax to jax"), case.vjp_order)


@every_case
def test_exports_the_same(name: str) -> None:
    case = CASES[name]
    with case.context():
        ours, theirs = exported(name, "ours"), exported(name, "jax")
        assert_same_chains(ours, theirs, case.vjp_order, module=False)
        for our_link, their_link in zip(chain(ours, case.vjp_order), chain(theirs, case.vjp_order), strict=True):
            assert module_interface(our_link) == module_interface(their_link)
            assert module_interface(our_link)["public"], "no public function found in the module's text"
            assert our_link.has_vjp()


@every_case
def test_crosses_over(name: str) -> None:
    case = CASES[name]
    with case.context():
        theirs = exported(name, "jax")
        ours = jaxexp.Exported.from_jax(theirs)
        assert isinstance(ours, jaxexp.Exported)
        assert_same_fields(ours, theirs)
        # jax.export makes a VJP anew each time, with other source locations in the module.
        assert_same_chains(ours, theirs, case.vjp_order, module=False)
        back = exported(name, "ours").to_jax()
        assert isinstance(back, jax_export.Exported)
        assert_same_chains(back, exported(name, "ours"), case.vjp_order)


@every_case
def test_traces_the_same(name: str) -> None:
    """Calling with the exporter's own specs, symbolic ones included, gives the same types and effects."""
    case = CASES[name]
    p = program(name)
    if p.live is not p.fun:
        specs, kwspecs = p.args, p.kwargs
    else:
        specs, kwspecs = p.specs, p.kwspecs
    with case.context():
        ours, theirs = (
            jax.make_jaxpr(loaded(name, route).call)(*specs, **kwspecs) for route in ("jax to ours", "jax to jax")
        )
        assert [str(a) for a in ours.out_avals] == [str(a) for a in theirs.out_avals]
        assert [a.sharding for a in ours.out_avals] == [a.sharding for a in theirs.out_avals]
        assert [a.memory_space for a in ours.out_avals] == [a.memory_space for a in theirs.out_avals]
        assert ours.effects == theirs.effects


@once_a_case
def results(name: str, how: str) -> Any:
    """What the routes are compared with: the live function's values and derivatives, and jax.export's call."""
    p = program(name)
    if how == "live":
        return p.live(*p.args, **p.kwargs)
    if how == "first derivatives":
        return pull_back(p.live, p.args, p.kwargs)
    if how == "second derivatives":
        return second_order(p.live, p.args, p.kwargs)
    call = loaded(name, "jax to jax").call
    return (jax.jit(call) if how == "jitted" else call)(*p.args, **p.kwargs)


@every_route
@every_case
def test_computes_the_same(name: str, route: str) -> None:
    case, p = CASES[name], program(name)
    with case.context():
        call = loaded(name, route).call
        if not p.callable_here:
            with pytest.raises(Exception) as theirs:
                loaded(name, "jax to jax").call(*p.args, **p.kwargs)
            # What the compiler refuses, a custom call that nothing implements, is jaxexp's error in an eager call.
            at_compilation = route != "ours to jax" and isinstance(theirs.value, jax.errors.JaxRuntimeError)
            with pytest.raises(RuntimeError if at_compilation else type(theirs.value)):
                call(*p.args, **p.kwargs)
            return
        for how, caller in {"eager": call, "jitted": jax.jit(call)}.items():
            if (how, route) == ("eager", "ours to jax"):
                continue  # jax.export's eager call is jax.export's business; under jit the bytes show as well
            found = caller(*p.args, **p.kwargs)
            assert_same_values(p.finish(found), p.finish(results(name, "live")))
            assert_same_placement(found, results(name, how))


@every_case
def test_fresh_computes_the_same(name: str) -> None:
    """Before any serialization, too; the same function as after it."""
    case, p = CASES[name], program(name)
    with case.context():
        fresh, read = exported(name, "ours"), loaded(name, "ours to ours")
        assert fresh.mlir_module() == read.mlir_module()
        if p.callable_here and name in FRESH:
            assert_same_values(p.finish(fresh.call(*p.args, **p.kwargs)), p.finish(results(name, "live")))


differentiated = pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.vjp_order])
differentiated_twice = pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.vjp_order > 1])


@every_route
@differentiated
def test_first_derivatives(name: str, route: str) -> None:
    case, p = CASES[name], program(name)
    with case.context():
        assert_same_values(pull_back(loaded(name, route).call, p.args, p.kwargs), results(name, "first derivatives"))


@pytest.mark.parametrize("route", ["ours to jax", "jax to ours"])
@differentiated
def test_vjp_called_directly(name: str, route: str) -> None:
    """The VJP is itself an Exported: flat primal arguments and cotangents in, flat cotangents out."""
    case, p = CASES[name], program(name)
    with case.context():
        flat = jax.tree.leaves((p.args, p.kwargs))
        cts = jax.tree.leaves(cotangents(results(name, "live")))
        found = loaded(name, route).vjp().call(*flat, *cts)
        assert len(found) == len(flat)
        assert_same_values(list(found), jax.tree.leaves(results(name, "first derivatives")))


@every_route
@differentiated_twice
def test_second_derivatives(name: str, route: str) -> None:
    case, p = CASES[name], program(name)
    with case.context():
        expected = results(name, "second derivatives")
        assert any(jnp.any(x != 0) for x in expected), "a second derivative of zero would show nothing"
        assert_same_values(second_order(loaded(name, route).call, p.args, p.kwargs), expected)


def test_vjp_of_symbolic_shapes_at_several_sizes() -> None:
    """One artifact, any batch."""
    ours = loaded("symbolic_batch", "ours to ours")
    p = program("symbolic_batch")
    for rows in (1, 2, 7):
        args = (jnp.ones((rows, 4)), p.args[1])
        assert_same_values(ours.call(*args), p.live(*args))
        assert_same_values(pull_back(ours.call, args, {}), pull_back(p.live, args, {}))


# --- beyond jax.export: forward mode and vmap, compared with the live function alone ----------------------------------

BEYOND = ("scalars", "nested_containers", "integers_and_floats", "symbolic_batch", "custom_vjp", "scan", "dropped")


@pytest.mark.parametrize("how", ["eager", "jitted"])
@pytest.mark.parametrize("name", BEYOND)
def test_forward_mode(name: str, how: str) -> None:
    """Needs the VJP of the VJP: computed from it, on loaded functions too."""
    p = program(name)
    fun = jaxexp.deserialize(exported(name, "ours").serialize(vjp_order=2)).call

    def push(f: Any) -> Any:
        pushed = lambda *args: jax.jvp(f, args, cotangents(args))  # noqa: E731  (any tangents of the arguments' types)
        return (jax.jit(pushed) if how == "jitted" else pushed)(*p.args)

    expected = push(custom_vjp_as_jvp if name == "custom_vjp" else p.live)
    assert_same_values(push(fun), expected)


def custom_vjp_as_jvp(x: Any) -> Any:
    """What the corpus's custom_vjp computes, with its rule: JAX itself has no forward mode for a custom_vjp."""

    @jax.custom_jvp
    def clipped(x: Any) -> Any:
        return jnp.clip(x, -1, 1)

    clipped.defjvp(lambda primals, tangents: (clipped(*primals), tangents[0] * jnp.cos(primals[0]) * 3))
    return clipped(x * 2)


@pytest.mark.parametrize("how", ["eager", "jitted"])
@pytest.mark.parametrize("name", ["scalars", "nested_containers", "integers_and_floats", "multi_platform", "scan"])
def test_vmap(name: str, how: str) -> None:
    p = program(name)
    stacked = jax.tree.map(lambda x: jnp.stack([x, x]), p.args)

    def batched(f: Any) -> Any:
        mapped = jax.vmap(f)
        return (jax.jit(mapped) if how == "jitted" else mapped)(*stacked)

    assert_same_values(batched(loaded(name, "ours to ours").call), batched(p.live))


def test_hessian() -> None:
    """Forward over reverse and reverse over forward, of a loaded function."""
    loss = jaxexp.deserialize(exported("remat", "ours").serialize(vjp_order=3)).call
    p = program("remat")
    expected = jax.hessian(p.live)(*p.args)
    assert_same_values(jax.hessian(loss)(*p.args), expected, rtol=1e-4)
    assert_same_values(jax.jacrev(jax.jacfwd(loss))(*p.args), expected, rtol=1e-4)


# --- the corpus itself ----------------------------------------------------------------------------------------------


def test_corpus_uses_every_feature() -> None:
    """Found in what jax.export makes of the cases, not in their names."""
    dtypes, kinds, nodes, seen = set(), set(), set(), set()

    def walk(tree: Any) -> None:
        data = tree.node_data()
        nodes.add(data and data[0])
        for child in tree.children():
            walk(child)

    for name in CASES:
        case = CASES[name]
        with case.context():
            primal = exported(name, "jax")
            for e in chain(primal, case.vjp_order):
                dtypes |= {str(a.dtype) for a in e.in_avals + e.out_avals}
            walk(primal.in_tree)
            walk(primal.out_tree)
            shardings = [s for s in primal._in_named_shardings + primal._out_named_shardings if s is not None]
            kinds |= {s.memory_kind for s in shardings}
            seen |= {f"axis type {t.name}" for s in shardings for t in s.mesh.axis_types}
            seen |= {"reduced" for s in shardings if s.spec.reduced} | {
                "unreduced" for s in shardings if s.spec.unreduced
            }
            seen |= {f"{primal.nr_devices} devices", f"{len(primal.platforms)} platforms"}
            seen |= {"ordered"} if primal.ordered_effects else set()
            seen |= {"unordered"} if primal.unordered_effects else set()
            seen |= {"dropped"} if len(primal.module_kept_var_idx) < len(primal.in_avals) else set()
            seen |= {"symbolic"} if scopes(primal) else {"static"}
            seen |= {"disabled checks"} if primal.disabled_safety_checks else set()
            seen |= {"weak"} if any(a.weak_type for a in primal.in_avals) else set()
            text = primal.mlir_module()
            seen |= {word for word in ("custom_call @lapack_", "tf.aliasing_output", "stablehlo.while",
                                       "stablehlo.case",
                                       "jax.buffer_donor", "sdy.manual_computation") if word in text}  # fmt: skip

    expected_dtypes = set(
        "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64 complex64 complex128 bfloat16 "
        "int4 uint4 float8_e4m3b11fnuz float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz float8_e4m3 "
        "float8_e3m4 float8_e8m0fnu float4_e2m1fn key<fry> key<rbg> key<urbg>".split()
    ) | {str(jax.dtypes.float0)}
    assert dtypes == expected_dtypes
    assert {None, tuple, list, dict, type(None)} < nodes
    assert len(nodes) == 5 + 6, "and OrderedDict, two namedtuples, two dataclasses, one custom node"
    assert kinds >= {"device", "pinned_host", "unpinned_host"}
    assert seen >= {
        "axis type Auto", "axis type Explicit", "reduced", "unreduced", "1 devices", "8 devices", "1 platforms",
        "3 platforms", "ordered", "unordered", "dropped", "symbolic", "static", "disabled checks", "weak",
        "custom_call @lapack_", "tf.aliasing_output", "stablehlo.while", "stablehlo.case", "sdy.manual_computation",
    }  # fmt: skip

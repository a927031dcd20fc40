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
from jaxexp._kernel.codec.dtypes import DTYPES
from kit import wire
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
from kit.each import each
from kit.sharded.case import LIBRARIES
from kit.ways import assert_apart_as_in_one, assert_inspected_as_loaded

pytestmark = pytest.mark.jax

ROUTES = ("ours to ours", "ours to jax", "jax to ours")  # who writes the bytes, who reads and calls them
every_case = pytest.mark.parametrize("name", CASES)


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
            with CASES[name].context():
                of_case[key] = make(name, *how)
        return of_case[key]

    return kept


@once_a_case
def program(name: str) -> Program:
    return CASES[name].build()


@once_a_case
def exported(name: str, library: str) -> Any:
    return export_with(LIBRARIES[library], program(name))


@once_a_case
def blob(name: str, library: str) -> bytes:
    return bytes(exported(name, library).serialize(vjp_order=CASES[name].vjp_order))


@once_a_case
def loaded(name: str, route: str) -> Any:
    writer, reader = route.split(" to ")
    return LIBRARIES[reader].deserialize(bytearray(blob(name, writer)))


def reads_what_jax_export_wrote(name: str, order: int) -> None:
    theirs, ours = loaded(name, "jax to jax"), loaded(name, "jax to ours")
    assert_same_chains(ours, theirs, order)
    assert not chain(ours, order)[-1].has_vjp()
    assert len(scopes(ours)) <= 1


def jax_export_reads_what_jaxexp_wrote(name: str, order: int) -> None:
    theirs = loaded(name, "ours to jax")
    assert_same_chains(theirs, exported(name, "ours"), order, as_written=True)
    assert_same_chains(theirs, loaded(name, "jax to jax"), order, module=False)
    assert not chain(theirs, order)[-1].has_vjp()


def reads_what_jaxexp_wrote(name: str, order: int) -> None:
    assert_same_chains(loaded(name, "ours to ours"), exported(name, "ours"), order, as_written=True)
    assert exported(name, "ours").mlir_module() == loaded(name, "ours to ours").mlir_module()


def rewrites_what_jax_export_wrote(name: str, order: int) -> None:
    again = jax_export.deserialize(loaded(name, "jax to ours").serialize(vjp_order=order))
    assert_same_chains(again, loaded(name, "jax to jax"), order)


def exports_the_same(name: str, order: int) -> None:
    ours, theirs = exported(name, "ours"), exported(name, "jax")
    assert_same_chains(ours, theirs, order, module=False)
    for our_link, their_link in zip(chain(ours, order), chain(theirs, order), strict=True):
        assert module_interface(our_link) == module_interface(their_link)
        assert module_interface(our_link)["public"], "no public function found in the module's text"
        assert our_link.has_vjp()


def crosses_over(name: str, order: int) -> None:
    ours = jaxexp.Exported.from_jax(exported(name, "jax"))
    assert isinstance(ours, jaxexp.Exported)
    assert_same_fields(ours, exported(name, "jax"))
    # jax.export makes a VJP anew each time, with other source locations in the module.
    assert_same_chains(ours, exported(name, "jax"), order, module=False)
    for there in (exported(name, "ours"), loaded(name, "ours to ours")):
        back = there.to_jax()
        assert {type(link) for link in chain(back, order)} == {jax_export.Exported}
        assert_same_chains(back, there, order)
    assert not chain(back, order)[-1].has_vjp()


def jax_export_ignores_the_trailer(name: str, order: int) -> None:
    without = exported(name, "ours").serialize(order, trailer=False)
    assert wire.has_trailer(blob(name, "ours"))
    assert not wire.has_trailer(without)
    assert_same_chains(loaded(name, "ours to jax"), jax_export.deserialize(bytearray(without)), order)


def is_the_same_apart(name: str, order: int) -> None:
    assert_apart_as_in_one(blob(name, "ours"))


def is_inspected_as_it_is_loaded(name: str, order: int) -> None:
    if not CASES[name].x64:
        assert_inspected_as_loaded(jaxexp.inspect(blob(name, "ours")), loaded(name, "ours to ours"))


def traces_the_same(name: str, order: int) -> None:
    p = program(name)
    specs, kwspecs = (p.specs, p.kwspecs) if p.live is p.fun else (p.args, p.kwargs)
    ours, theirs = (
        jax.make_jaxpr(loaded(name, route).call)(*specs, **kwspecs) for route in ("jax to ours", "jax to jax")
    )
    assert [str(a) for a in ours.out_avals] == [str(a) for a in theirs.out_avals]
    assert [a.sharding for a in ours.out_avals] == [a.sharding for a in theirs.out_avals]
    assert [a.memory_space for a in ours.out_avals] == [a.memory_space for a in theirs.out_avals]
    assert ours.effects == theirs.effects


HOLDS = [
    reads_what_jax_export_wrote, jax_export_reads_what_jaxexp_wrote, reads_what_jaxexp_wrote,
    rewrites_what_jax_export_wrote, exports_the_same, crosses_over, jax_export_ignores_the_trailer,
    is_the_same_apart, is_inspected_as_it_is_loaded, traces_the_same,
]  # fmt: skip


@pytest.mark.wide(one_in=3, promise="jaxexp and jax.export read and write the same of every function of the corpus")
@every_case
@each("holds", HOLDS)
def test_both_libraries_agree(name: str, holds: Callable[[str, int], None]) -> None:
    with CASES[name].context():
        holds(name, CASES[name].vjp_order)


@once_a_case
def results(name: str, how: str) -> Any:
    p = program(name)
    if how == "live":
        return p.live(*p.args, **p.kwargs)
    if how == "first derivatives":
        return pull_back(p.live, p.args, p.kwargs)
    if how == "second derivatives":
        return second_order(p.live, p.args, p.kwargs)
    call = loaded(name, "jax to jax").call
    return (jax.jit(call) if how == "jitted" else call)(*p.args, **p.kwargs)


def computes_the_same(name: str, route: str) -> None:
    p, call = program(name), loaded(name, route).call
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


def has_the_same_first_derivatives(name: str, route: str) -> None:
    p = program(name)
    if CASES[name].vjp_order:
        assert_same_values(pull_back(loaded(name, route).call, p.args, p.kwargs), results(name, "first derivatives"))


def has_a_vjp_to_call(name: str, route: str) -> None:
    p = program(name)
    if CASES[name].vjp_order and route != "ours to ours":
        flat = jax.tree.leaves((p.args, p.kwargs))
        cts = jax.tree.leaves(cotangents(results(name, "live")))
        found = loaded(name, route).vjp().call(*flat, *cts)
        assert len(found) == len(flat)
        assert_same_values(list(found), jax.tree.leaves(results(name, "first derivatives")))


def has_the_same_second_derivatives(name: str, route: str) -> None:
    p = program(name)
    if CASES[name].vjp_order > 1:
        expected = results(name, "second derivatives")
        assert any(jnp.any(x != 0) for x in expected), "a second derivative of zero would show nothing"
        assert_same_values(second_order(loaded(name, route).call, p.args, p.kwargs), expected)


@pytest.mark.wide(one_in=8, promise="every function of the corpus computes the same after a way through bytes")
@every_case
@each("route", ROUTES)
@each("holds", [computes_the_same, has_the_same_first_derivatives, has_a_vjp_to_call, has_the_same_second_derivatives])
def test_values_and_derivatives(name: str, route: str, holds: Callable[[str, str], None]) -> None:
    with CASES[name].context():
        holds(name, route)


@pytest.mark.long(
    promise="the corpus uses every feature that can be exported",
    sibling="test_differential.py::test_both_libraries_agree",
)
def test_corpus_uses_every_feature() -> None:
    dtypes, seen = set(), set()
    for name, case in CASES.items():
        with case.context():
            primal = exported(name, "jax")
            dtypes |= {a.dtype for e in chain(primal, case.vjp_order) for a in e.in_avals + e.out_avals}
        shardings = [s for s in primal._in_named_shardings + primal._out_named_shardings if s is not None]
        facts = {
            "reduced": any(s.spec.reduced for s in shardings),
            "unreduced": any(s.spec.unreduced for s in shardings),
            "ordered": primal.ordered_effects,
            "unordered": primal.unordered_effects,
            "dropped": len(primal.module_kept_var_idx) < len(primal.in_avals),
            "symbolic": scopes(primal),
            "disabled checks": primal.disabled_safety_checks,
            "weak": any(a.weak_type for a in primal.in_avals),
            "custom node": "CustomNode" in str(primal.in_tree),
        }
        words = ("custom_call @lapack_", "tf.aliasing_output", "stablehlo.while", "stablehlo.case", "sdy.manual_comput")
        facts |= {word: word in primal.mlir_module() for word in words}
        seen |= {fact for fact, holds in facts.items() if holds}
        seen |= {f"{primal.nr_devices} devices", f"{len(primal.platforms)} platforms"}
        seen |= {f"axis type {t.name}" for s in shardings for t in s.mesh.axis_types}
        seen |= {s.memory_kind for s in shardings}

    assert dtypes >= set(DTYPES)
    assert seen >= {
        *facts, "axis type Auto", "axis type Explicit", "1 devices", "8 devices", "1 platforms", "3 platforms",
        "device", "pinned_host", "unpinned_host",
    }  # fmt: skip

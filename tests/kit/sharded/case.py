"""What a case of several devices is, and what most of them are made of."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable
from typing import Any

import jax
from jax import export as jax_export
from jax._src.sharding_impls import GSPMDSharding
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxexp
from kit.cases.case import Program, adding_to, mesh, placed

LIBRARIES = {"jax": jax_export, "ours": jaxexp}
Auto, Explicit, Manual = AxisType.Auto, AxisType.Explicit, AxisType.Manual


@dataclasses.dataclass(frozen=True)
class Case:
    name: str
    build: Callable[[], Program]
    vjp_order: int = 0
    exporting: Callable[[], Any] = contextlib.nullcontext  # the context to export in
    calling: Callable[[], Any] = contextlib.nullcontext
    theirs: int | None = None  # how many VJPs jax.export can export, where that is less than `vjp_order`
    theirs_usable: bool = True  # whether jax.export can differentiate calls with them

    @property
    def shared_order(self) -> int:
        return self.vjp_order if self.theirs is None else self.theirs


CASES: dict[str, Case] = {}
case = adding_to(CASES, Case)


def mapped(body: Any, m: Mesh, in_specs: tuple[Any, ...], out_specs: Any, *args: Any, **options: Any) -> Program:
    """A `shard_map` whose arguments lie as it wants them."""
    shardings = tuple(NamedSharding(m, s) for s in in_specs)
    fun = jax.shard_map(body, mesh=m, in_specs=in_specs, out_specs=out_specs, **options)
    return placed(jax.jit(fun, in_shardings=shardings), shardings, *args)


def gspmd(m: Mesh, partitions: P, ndim: int) -> GSPMDSharding:
    return GSPMDSharding(list(m.devices.flat), NamedSharding(m, partitions)._to_xla_hlo_sharding(ndim))


def abstract_mesh_by_default() -> AbstractMesh:
    """Of Auto axes up to JAX 0.10, then of Explicit ones."""
    return AbstractMesh((4, 2), ("a", "b"))


def in_mesh(axis_type: AxisType = Auto) -> Callable[[], Any]:
    return lambda: jax.set_mesh(mesh((4, 2), ("x", "y"), axis_type))


def abstract(axis_type: AxisType = Auto, **options: Any) -> AbstractMesh:
    return AbstractMesh((4, 2), ("x", "y"), (axis_type,) * 2, **options)


def sharded(
    name: str, fun: Callable[..., Any], sharding: Callable[[], Any], *args: Any, out: Any = None, **options: Any
) -> None:
    """Adds a function that says how its argument is sharded, and its result if `out` does."""

    def build() -> Program:
        s = sharding()
        return placed(jax.jit(fun, in_shardings=s, out_shardings=out and out()), (s,), *args)

    case(name, build, **{"vjp_order": 1, **options})


def kept(name: str, fun: Callable[..., Any], sharding: Callable[[], Any], *args: Any, **options: Any) -> None:
    """Adds a function whose argument and result are sharded alike."""
    sharded(name, fun, sharding, *args, out=sharding, **options)


def simple(name: str, fun: Callable[..., Any], sharding: Callable[[], Any], *args: Any, **options: Any) -> None:
    """Adds a function whose argument lies so."""
    case(name, lambda: placed(jax.jit(fun), (sharding(),), *args), **{"vjp_order": 1, **options})

"""What a case of the corpus is, and what most of them are made of; tests import them from kit/corpus.py."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax import export as jax_export
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

f32 = np.float32


@dataclasses.dataclass
class Program:
    """A jitted function, what to export it with, and what to call it with.

    `specs`, `kwspecs` go to the exporter; `args`, `kwargs` to `live` and to the exported function. They are the same by
    default, and so are `live` and `fun`, which differ where some arguments are static.
    """

    fun: Callable[..., Any]
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = dataclasses.field(default_factory=dict)
    specs: tuple[Any, ...] | None = None
    kwspecs: dict[str, Any] | None = None
    platforms: tuple[str, ...] | None = None
    disabled: tuple[str, ...] = ()  # "platform", or the target of a custom call
    live: Callable[..., Any] | None = None  # the function of the call arguments; default `fun`
    finish: Callable[[Any], Any] = lambda results: results  # makes results readable on the host
    callable_here: bool = True  # False where this machine lacks what the module calls

    def __post_init__(self) -> None:
        self.live = self.fun if self.live is None else self.live
        self.specs = self.args if self.specs is None else self.specs
        self.kwspecs = self.kwargs if self.kwspecs is None else self.kwspecs


@dataclasses.dataclass(frozen=True)
class Case:
    """A named program; `vjp_order` is how often the tests differentiate it."""

    name: str
    build: Callable[[], Program]
    vjp_order: int = 0
    x64: bool = False

    @contextlib.contextmanager
    def context(self) -> Iterator[None]:
        with jax.enable_x64(True) if self.x64 else contextlib.nullcontext():
            yield


def adding_to(cases: dict[str, Any], kind: Callable[..., Any]) -> Callable[..., Any]:
    """What adds a builder to cases of a kind: under this name, or as a decorator under its own."""

    def case(named: str | None = None, build: Callable[[], Program] | None = None, **options: Any) -> Any:
        def add(build: Callable[[], Program]) -> Callable[[], Program]:
            name = named or build.__name__
            cases[name] = kind(name, build, **options)
            return build

        return add if build is None else add(build)

    return case


CASES: dict[str, Case] = {}
case = adding_to(CASES, Case)


def plain(
    name: str,
    fun: Callable[..., Any],
    *args: Any,
    shapes: Sequence[str] | None = None,
    constraints: Sequence[str] = (),
    vjp_order: int = 0,
    x64: bool = False,
    **more: Any,
) -> None:
    """Adds a function that is jitted, and its arguments; `shapes` are symbolic ones to export it with."""

    def build() -> Program:
        specs = None
        if shapes is not None:
            scope = jax_export.SymbolicScope(constraints)
            specs = tuple(spec(jax_export.symbolic_shape(shape, scope=scope)) for shape in shapes)
        return Program(jax.jit(fun), args, **{"specs": specs, **more})

    case(name, build, vjp_order=vjp_order, x64=x64)


def grid(*partitions: Any, axis_type: AxisType = AxisType.Auto) -> NamedSharding:
    """On the mesh that most cases have."""
    return NamedSharding(mesh((4, 2), ("x", "y"), axis_type), P(*partitions))


def row(*partitions: Any, axis_type: AxisType = AxisType.Auto) -> NamedSharding:
    """On eight devices in a row."""
    return NamedSharding(mesh((8,), ("x",), axis_type), P(*partitions))


def placed(fun: Any, shardings: tuple[Any, ...], *args: Any, specs: Any = None, **options: Any) -> Program:
    """Exported from shapes alone, unless `specs` are given; called with arguments that lie where `shardings` say."""
    specs = tuple(spec(x.shape, x.dtype) for x in args) if specs is None else specs
    return Program(fun, tuple(map(jax.device_put, args, shardings)), specs=specs, **options)


def export_with(library: Any, program: Program, **options: Any) -> Any:
    """The Exported that `library` (jax.export or jaxexp) makes of a program."""
    checks = [
        library.DisabledSafetyCheck.platform() if c == "platform" else library.DisabledSafetyCheck.custom_call(c)
        for c in program.disabled
    ]
    return library.export(program.fun, platforms=program.platforms, disabled_checks=checks, **options)(
        *program.specs, **program.kwspecs
    )


def arr(*shape: int, dtype: Any = f32, seed: int = 0) -> np.ndarray:
    """Random values, the same ones in every process."""
    values = np.random.default_rng([seed, *shape]).uniform(0.25, 1.75, shape)
    return values.astype(dtype)


def spec(shape: tuple[Any, ...], dtype: Any = f32, **kwargs: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype, **kwargs)


def mesh(shape: tuple[int, ...], names: tuple[str, ...], axis_type: AxisType = AxisType.Auto) -> jax.sharding.Mesh:
    return jax.make_mesh(shape, names, axis_types=(axis_type,) * len(names))

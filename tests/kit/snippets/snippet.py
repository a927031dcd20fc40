"""What a snippet is: a small StableHLO program, which can be exported and called."""

from __future__ import annotations

import dataclasses
import functools
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxexp
from jaxexp._readback import array_type
from kit.corpus import mesh
from kit.other_modules import serialized

SNIPPETS: dict[str, Snippet] = {}


@dataclasses.dataclass(frozen=True)
class Snippet:
    """A program of one function.

    Attributes:
        takes: the types of its arguments, %0 and so on.
        gives: the types of its results.
        body: its operations. The results are %r, or %r#0 and so on.
        values: arguments for which it shows what it does; random ones without.
        around: further functions.
        devices: how many it is for.
    """

    takes: tuple[str, ...]
    gives: tuple[str, ...]
    body: str
    values: tuple[Any, ...] | None = None
    around: str = ""
    devices: int = 1

    @property
    def text(self) -> str:
        arguments = ", ".join(f"%arg{i}: tensor<{t}>" for i, t in enumerate(self.takes))
        types = ", ".join(f"tensor<{t}>" for t in self.gives)
        results = "%r" if len(self.gives) == 1 else ", ".join(f"%r#{i}" for i in range(len(self.gives)))
        body = re.sub(r"%(\d+)\b", r"%arg\1", self.body)
        body = re.sub(r"<<(.*?)>>", r"tensor<\1>", body)
        says = f"{{mhlo.num_partitions = {self.devices} : i32, mhlo.num_replicas = 1 : i32}}"
        return (
            f"module attributes {says} {{\nfunc.func public @main({arguments}) -> ({types}) {{\n{body}\n"
            f"func.return {results} : {types}\n}}\n{self.around}\n}}"
        )

    def exported(self) -> jaxexp.Exported:
        """The program as a function."""
        module = serialized(self.text)
        return dataclasses.replace(
            _frame(self.takes, self.gives), mlir_module_serialized=module, nr_devices=self.devices
        )

    def arguments(self, seed: int = 0) -> list[np.ndarray]:
        rng = np.random.default_rng(seed)
        if self.values is not None:
            return [np.asarray(v).astype(_type(t).dtype) for v, t in zip(self.values, self.takes, strict=True)]
        return [_random(rng, _type(t)) for t in self.takes]

    def placed(self, *arrays: Any) -> list[Any]:
        """Arrays on the devices that it is for: one, or eight."""
        if self.devices == 1:
            return list(arrays)
        everywhere = jax.sharding.NamedSharding(mesh((2, 4), ("x", "y")), jax.P())
        return [jax.device_put(array, everywhere) for array in arrays]


@functools.cache
def _frame(takes: tuple[str, ...], gives: tuple[str, ...]) -> jaxexp.Exported:
    """A function of these types."""
    specs, results = ([_type(t).as_spec() for t in types] for types in (takes, gives))
    with jax.enable_x64(True):
        function = jax.jit(lambda *_: [jnp.zeros(r.shape, r.dtype) for r in results], keep_unused=True)
        return jaxexp.export(function)(*specs)


def _type(text: str) -> Any:
    *sizes, dtype = re.split(r"x(?=[\dusifbc])", text)
    return array_type.ArrayType(tuple(map(int, sizes)), array_type.DTYPES[dtype])


def _random(rng: Any, type_: Any) -> np.ndarray:
    if type_.kind == "b":
        return rng.random(type_.shape) < 0.5
    if type_.kind in "iu":
        return rng.integers(0 if type_.kind == "u" else -3, 7, type_.shape).astype(type_.dtype)
    if type_.kind == "c":
        return (rng.normal(size=type_.shape) + 1j * rng.normal(size=type_.shape)).astype(type_.dtype)
    return rng.normal(size=type_.shape).astype(type_.dtype)


def snippet(name: str, takes: str, gives: str, body: str, *values: Any, around: str = "", devices: int = 1) -> None:
    """Types of an operation that stands for all, at the end of the body, are those of the snippet."""
    assert name not in SNIPPETS
    taken, given = tuple(takes.split()), tuple(gives.split())
    if body.endswith(":"):
        operands, results = (", ".join(f"tensor<{one}>" for one in types) for types in (taken, given))
        body += f" ({operands}) -> {results if len(given) == 1 else f'({results})'}"
    SNIPPETS[name] = Snippet(taken, given, body, values or None, around, devices)

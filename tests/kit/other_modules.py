"""Artifacts whose modules were exchanged."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp

import jaxexp
from jaxexp import _jax
from jaxexp._kernel.module import mlir
from kit.corpus import arr


@functools.cache
def context() -> Any:
    """One for many modules: making one takes longer than parsing one."""
    return _jax.make_ir_context()


def serialized(text: str) -> bytes:
    """MLIR text as a portable artifact."""
    with context(), _jax.ir.Location.unknown():
        return mlir.serialize(_jax.ir.Module.parse(text))


def from_text(text: str, **options) -> jaxexp.Exported:
    """A module of text that is trusted, imported without a process that parses it."""
    return jaxexp.from_stablehlo(serialized(text), **options)


def with_module(text: str, **fields) -> bytes:
    """An artifact of a function float32[2] -> float32[2] whose module is another one."""
    exported = jaxexp.export(jax.jit(jnp.sin))(arr(2))
    return bytes(dataclasses.replace(exported, mlir_module_serialized=serialized(text), **fields).serialize())

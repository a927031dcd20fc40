"""Every case of several devices, by name; exported and loaded by both libraries."""

from __future__ import annotations

import functools
from typing import Any

from kit.corpus import Program, export_with

from . import meshes  # noqa: F401  (it fills CASES)
from .case import CASES, LIBRARIES


@functools.cache
def program(name: str) -> Program:
    return CASES[name].build()


@functools.cache
def exported(library: str, name: str) -> Any:
    with CASES[name].exporting():
        return export_with(LIBRARIES[library], program(name))


@functools.cache
def loaded(route: str, name: str) -> Any:
    writer, reader = route.split(" to ")
    order = CASES[name].vjp_order if writer == "ours" else CASES[name].shared_order
    with CASES[name].exporting():
        return LIBRARIES[reader].deserialize(bytearray(exported(writer, name).serialize(vjp_order=order)))


def name_of(library: Any) -> str:
    return next(key for key, value in LIBRARIES.items() if value is library)

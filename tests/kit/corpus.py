"""The corpus: functions that between them use every feature that can be exported.

A case is a function that returns a `Program`; `CASES` holds them by name. Building one is cheap and may be
repeated, also in a child process. What a case needs around it (64-bit mode) is `Case.context()`.
"""

from .cases import data, devices, programs  # noqa: F401  (they fill CASES)
from .cases.case import CASES, Case, Program, arr, case, export_with, f32, mesh, spec
from .cases.data import Point, Segment, Tagged
from .cases.programs import EFFECTS, FirstOrderedEffect, touch

__all__ = [
    "CASES", "EFFECTS", "Case", "FirstOrderedEffect", "Point", "Program", "Segment", "Tagged", "arr", "case",
    "export_with", "f32", "mesh", "spec", "touch",
]  # fmt: skip

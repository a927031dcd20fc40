"""Every case of several devices, by name."""

from . import mapped, memories, meshes  # noqa: F401
from .case import CASES

__all__ = ["CASES"]

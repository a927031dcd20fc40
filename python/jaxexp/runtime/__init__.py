"""Runs artifacts on PJRT plugins, without JAX: `jaxexp.runtime.Session`.

A session finds a plugin (`plugins`), has the native module `_runtime` verify the artifact (`programs`), and calls the
function with the leaves of its arguments (`trees`, `arrays`). Nothing here imports JAX. Each plugin starts once in a
process, and stays.
"""

from .arrays import Array as Array
from .plugins import find_plugin as find_plugin
from .plugins import register_ffi as register_ffi
from .plugins import use_lapack as use_lapack
from .session import Session as Session
from .session import Value as Value

__all__ = ["Array", "Session", "Value", "find_plugin", "register_ffi", "use_lapack"]

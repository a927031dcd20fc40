"""jaxexp: `jax.export` at native speed. Use it as ``import jaxexp as export``.

Each public name is loaded when it is first used; JAX is loaded with the first name that needs it. Where JAX is not
installed, the other names work, and so does `jaxexp.runtime`.
"""

from __future__ import annotations

import importlib.util
import sys
import warnings
from types import FrameType

from ._version import __version__ as __version__

# The public names and where each one lives: "module", or "module:name" if it has another name there; "" of a module.
# Type checkers and editors read `__init__.pyi`, which is made from this table: run `make format` after a change.
_HOMES = {
    "Archive": "_fleet.archive.archive",
    "ArchiveWriter": "_fleet.archive.writer",
    "BoundExported": "_api.exported",
    "Case": "_kernel.artifact.cases",
    "CheckReport": "_api.cases.report",
    "Compatibility": "_compat.compatibility",
    "Digests": "_fleet.places.inspect",
    "DisabledSafetyCheck": "_kernel.function.safety_check",
    "Drawn": "_kernel.artifact.cases",
    "Executable": "_executables.executables",
    "Exported": "_api.exported",
    "GenericNode": "_kernel.codec.nodes",
    "Handle": "_fleet.archive.archive",
    "Inspection": "_kernel.artifact.inspection",
    "Policy": "_policy.policy",
    "SignedBy": "_signing.signed_by",
    "Summary": "_fleet.archive.summary",
    "SymbolicScope": "_jax",
    "Tolerance": "_kernel.artifact.cases",
    "check": "_fleet.places.load",
    "check_many": "_fleet.passes.many",
    "compatibility": "_fleet.places.inspect",
    "compatibility_many": "_fleet.passes.many",
    "compile_cache": "_kernel.io.compile_cache",
    "default_export_platform": "_kernel.export.export",
    "deserialize": "_api.load",
    "digests": "_fleet.places.inspect",
    "digests_many": "_fleet.passes.many",
    "errors": "",
    "export": "_api.export",
    "from_stablehlo": "_compat.foreign.from_stablehlo",
    "inspect": "_fleet.places.inspect",
    "install": "_compat.install",
    "is_symbolic_dim": "_jax",
    "load": "_fleet.places.load",
    "load_many": "_api.load",
    "maximum_supported_calling_convention_version": "_kernel.function.convention:NEWEST_VERSION",
    "maximum_supported_serialization_version": "_kernel.function.convention:NEWEST_VERSION",  # its name before 2024
    "migrate": "_fleet.places.inspect",
    "migrate_many": "_fleet.passes.migrate_many",
    "minimum_supported_calling_convention_version": "_kernel.function.convention:OLDEST_VERSION",
    "minimum_supported_serialization_version": "_kernel.function.convention:OLDEST_VERSION",  # its name before 2024
    "record": "_fleet.places.load",
    "register_namedtuple_serialization": "_kernel.codec.nodes",
    "register_pytree_node_serialization": "_kernel.codec.nodes",
    "sign": "_fleet.places.sign",
    "spread": "_fleet.passes.many",
    "symbolic_args_specs": "_jax",
    "symbolic_dim_bounds": "_jax",
    "symbolic_shape": "_jax",
    "uninstall": "_compat.install",
    "verify": "_fleet.places.verify",
    "verify_many": "_fleet.passes.many",
}

# What is in the place of names that are gone.
_GONE = {
    "prefetch": "compile_cache(folder), and then Exported.precompile() or Archive.precompile()",
}

# Where names live that would bring JAX along, if it is not installed.
_WITHOUT_JAX = {"GenericNode": "_kernel.artifact.node"}

__all__ = list(_HOMES)  # pyright: ignore[reportUnsupportedDunderAll]  # it is written out in the stub


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if name in _WITHOUT_JAX and _is_without_jax():
        home = _WITHOUT_JAX[name]
    if home is None:
        errors = importlib.import_module(".errors", __name__)
        if name in errors.__all__:
            warnings.warn(f"jaxexp.{name} is jaxexp.errors.{name} now", DeprecationWarning, stacklevel=2)
            return getattr(errors, name)
        advice = f" any more: use {_GONE[name]}" if name in _GONE else ""
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{advice}")
    if not home:
        return importlib.import_module(f".{name}", __name__)
    module, _, name_there = home.partition(":")
    value = getattr(importlib.import_module(f".{module}", __name__), name_there or name)
    if "jaxexp._jax" in sys.modules:
        _meet_jax()
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """The public names, without the standard library's modules that are imported above."""
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})


def _meet_jax() -> None:
    """Refuses a JAX that cannot be supported, and lets jax.export read jaxexp's own nodes."""
    importlib.import_module("._kernel.codec.nodes", __name__)


class _MissingJax:
    """Says which name of jaxexp needs JAX, where JAX is not installed. Python asks it last, when nobody else has found
    a module, and it answers only to jaxexp: whoever else looks for JAX finds none, as ever.
    """

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:
        if name not in ("jax", "jaxlib"):
            return
        frame: FrameType | None = sys._getframe(1)
        user = None  # the outermost frame of jaxexp, if it is jaxexp that imports
        while frame is not None and (package := _package(frame)) in (__name__, _IMPORTING):
            user = frame if package == __name__ else user
            frame = frame.f_back
        if user is not None:
            raise ModuleNotFoundError(
                f"{_name(user)} needs JAX, which is not installed: pip install 'jaxexp[jax]'. "
                "(jaxexp.runtime runs functions without it.)",
                name=name,
            )


_IMPORTING = "importlib._bootstrap"


def _package(frame: FrameType) -> str:
    """To which package the code of a frame belongs, as far as it matters here."""
    name: str = frame.f_globals.get("__name__", "")
    if name == "importlib" or name.startswith(_IMPORTING):
        return _IMPORTING
    return name.partition(".")[0]


def _name(frame: FrameType) -> str:
    """The public name that a user called or looked up, or the command."""
    module: str = frame.f_globals["__name__"]
    if frame.f_code.co_qualname == "__getattr__":
        return f"{module}.{frame.f_locals['name']}"
    if module.startswith(f"{__name__}._cli.commands."):
        return f"{__name__} {module.rpartition('.')[2].replace('_', '-')}"
    called = frame.f_code.co_qualname
    return f"{__name__}.{called}" if called.partition(".")[0] in _HOMES else "this part of jaxexp"


def _is_without_jax() -> bool:
    try:
        return sys.modules.get("jax") is None and importlib.util.find_spec("jax") is None
    except ImportError:  # somebody forbids it
        return True


sys.meta_path.append(_MissingJax)  # type: ignore[arg-type]  # a finder needs no more than find_spec
if "jax" in sys.modules:
    _meet_jax()

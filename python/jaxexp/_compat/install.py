"""Puts jaxexp in the place of `jax.export`, so that code for `jax.export` runs on jaxexp."""

from __future__ import annotations

import contextlib
import logging
from typing import Any

from jaxexp import _jax
from jaxexp._api.export import export
from jaxexp._api.exported import Exported
from jaxexp._api.load import deserialize
from jaxexp._kernel.codec.nodes import register_namedtuple_serialization, register_pytree_node_serialization
from jaxexp._kernel.export.export import default_export_platform
from jaxexp._kernel.function.convention import NEWEST_VERSION, OLDEST_VERSION
from jaxexp._kernel.function.safety_check import DisabledSafetyCheck
from jaxexp._kernel.io import lock
from jaxexp._public import public

#: The names in `jax.export` that jaxexp replaces by its own.
_OURS: dict[str, Any] = {
    "DisabledSafetyCheck": DisabledSafetyCheck,
    "Exported": Exported,
    "SymbolicScope": _jax.SymbolicScope,
    "default_export_platform": default_export_platform,
    "deserialize": deserialize,
    "export": export,
    "is_symbolic_dim": _jax.is_symbolic_dim,
    "maximum_supported_calling_convention_version": NEWEST_VERSION,
    "minimum_supported_calling_convention_version": OLDEST_VERSION,
    "register_namedtuple_serialization": register_namedtuple_serialization,
    "register_pytree_node_serialization": register_pytree_node_serialization,
    "symbolic_args_specs": _jax.symbolic_args_specs,
    "symbolic_dim_bounds": _jax.symbolic_dim_bounds,
    "symbolic_shape": _jax.symbolic_shape,
}

_lock = lock.reentrant()
_installations = 0
_originals: dict[str, Any] = {}
_logger, _logger_of_jax = logging.getLogger("jaxexp"), logging.getLogger(_jax.jax_exporter.__name__)
_above_logger: logging.Logger | None = None


@public
def install() -> contextlib.AbstractContextManager[object]:
    """Makes the names in `jax.export` refer to jaxexp, for all code in this process.

    Code that uses the module, as in ``from jax import export``, uses jaxexp from now on. A name imported from the
    module, as in ``from jax.export import deserialize``, is jaxexp's if it is imported between `install` and
    `uninstall`. JAX's private modules, and code that imports them (``jax.experimental.jax2tf``), are not affected.

    Each library accepts the other's functions and safety checks: `isinstance` is true for both classes, and equal
    checks are equal. Only `type` tells them apart. Functions of `jax.export` lack the methods that jaxexp adds.
    Settings for the log of `jax.export`, such as its module's name in ``JAX_DEBUG_LOG_MODULES``, apply to the log of
    jaxexp.

    Returns:
        A context manager: ``with jaxexp.install(): ...`` calls `uninstall` at the end. Installations nest: `jax.export`
            is restored when `uninstall` has been called as often as `install`.
    """
    global _installations
    with _lock:
        if not _installations:
            # A newer JAX may have names that jaxexp lacks, and an older one may lack some: these stay as they are.
            names = [name for name in _jax.jax_export_module.__all__ if name in _OURS]
            for name in names:
                _originals.setdefault(name, getattr(_jax.jax_export_module, name))
                setattr(_jax.jax_export_module, name, _OURS[name])
            _log_below(_logger_of_jax)
        _installations += 1
    undo = contextlib.ExitStack()
    undo.callback(uninstall)
    return undo


@public
def uninstall() -> None:
    """Undoes one `install`, if there is one. A name that other code has replaced since then stays as it is."""
    global _installations
    with _lock:
        if _installations == 1:
            for name, original in _originals.items():
                if getattr(_jax.jax_export_module, name, None) is _OURS[name]:
                    setattr(_jax.jax_export_module, name, original)
            _originals.clear()
            if _logger.parent is _logger_of_jax:
                _log_below(_above_logger)
        _installations = max(0, _installations - 1)


def _log_below(parent: logging.Logger | None) -> None:
    """Gives jaxexp's loggers the levels and handlers of another logger, unless they have their own."""
    global _above_logger
    _above_logger, _logger.parent = _logger.parent, parent
    _logger.setLevel(_logger.level)  # makes logging forget the levels that it has looked up

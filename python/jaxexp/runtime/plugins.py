"""Finds PJRT plugins and the LAPACK of this environment, and starts each plugin once.

No package is imported to find them: a plugin is a file in the package that brings it.
"""

from __future__ import annotations

import contextlib
import glob
import importlib.util
import itertools
import os
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from jaxexp import _runtime
from jaxexp._errors import RunError
from jaxexp._kernel.artifact.words import listed
from jaxexp._kernel.io import lock

from . import checked

_VARIABLE = "JAXEXP_PLUGIN"
_GROUP = "jax_plugins"  # the entry points of packages that bring plugins for JAX
_SUFFIXES = (".so", ".dylib", ".dll")


class _Known(NamedTuple):
    """A package that has a plugin, and how it is installed."""

    platform: str
    module: str
    file: str
    install: str


# Those of accelerators come first, as JAX prefers them.
_KNOWN = (
    _Known("tpu", "libtpu", "libtpu.so", "libtpu"),
    _Known("cuda", "jax_plugins.xla_cuda13", "xla_cuda_plugin.so", "jax-cuda13-pjrt"),
    _Known("cuda", "jax_plugins.xla_cuda12", "xla_cuda_plugin.so", "jax-cuda12-pjrt"),
    _Known("rocm", "jax_plugins.xla_rocm7", "xla_rocm_plugin.so", "jax-rocm7-pjrt"),
    _Known("cpu", "xla_plugins.xla_cpu_pjrt", "xla_cpu_pjrt.so", "xla-cpu-pjrt"),
)
# Packages with an OpenBLAS, and where they have it.
_LAPACKS = (
    ("scipy", "../scipy.libs/*openblas*"),
    ("scipy_openblas32", "lib/*openblas*"),
    ("numpy", "../numpy.libs/*openblas*"),
)

Options = Mapping[str, str | int | float | bool]

_lock = lock.reentrant()
_started: dict[str, tuple[_runtime.Plugin, dict[str, Any]]] = {}  # by paths; each stays in the process
_capsules: list[Any] = []  # of handlers, which plugins keep


def find_plugin(*platforms: str) -> str:
    """The path of an installed PJRT plugin for one of these platforms, such as ``"cpu"``, ``"cuda"`` or ``"tpu"``.
    Without arguments, it may be for any platform.

    This looks into the packages ``libtpu``, ``jax-cuda13-pjrt``, ``jax-cuda12-pjrt``, ``jax-rocm7-pjrt`` and
    ``xla-cpu-pjrt``, in this order, and then into packages with an entry point in the group ``jax_plugins`` whose name
    contains the platform. It imports no package.

    Raises:
        RunError: there is no such plugin. The message lists the places and the packages to install.

    Example:
        >>> find_plugin("cpu")
        '.../site-packages/xla_plugins/xla_cpu_pjrt/xla_cpu_pjrt.so'
    """
    known = [one for one in _KNOWN if not platforms or one.platform in platforms]
    for one in known:
        for folder in _folders(one.module):
            if os.path.isfile(path := os.path.join(folder, one.file)):
                return path
    names = []
    import importlib.metadata  # takes a tenth of a start without JAX, and known packages come first

    for entry in importlib.metadata.entry_points(group=_GROUP):
        names.append(entry.name)
        if not platforms or any(platform in entry.name for platform in platforms):
            for path in _found(entry.module, "*"):
                name = os.path.basename(path)
                if name.endswith(_SUFFIXES) and ("pjrt" in name or "plugin" in name):
                    return path
    wanted = listed(platforms, most=5) if platforms else "any platform"
    if known:
        packages = listed([one.install for one in known], separator=" or ")
        searched = f"the known packages ({packages}) are not installed"
    else:
        searched = f"the known packages are for {listed(sorted({one.platform for one in _KNOWN}))}"
    of_cpu = ", as pip install 'jaxexp[cpu]' does" if "cpu" in platforms else ""
    raise RunError(
        f"there is no PJRT plugin for {wanted}: {searched}, and the entry points of {_GROUP} are {listed(names)}. "
        f"Install such a package{of_cpu}, or name the file of a plugin by plugin= or by the environment variable "
        f"{_VARIABLE}",
        "argument",
    )


def start(
    plugin: str | os.PathLike[str] | None, platforms: tuple[str, ...], options: Options | None
) -> _runtime.Plugin:
    """The plugin that a user names by a path or by a platform, or else one for these platforms. It is started once."""
    path, wanted = _path(plugin, platforms), checked.options(options)
    with _lock:
        if path not in _started:
            _started.setdefault(path, (_runtime.Plugin(path, wanted), wanted))
    native, given = _started[path]
    if options is not None and wanted != given:
        raise RunError(
            f"the plugin {path} was started with the options {given}, and cannot take others ({wanted}): a process "
            "starts a plugin once",
            "argument",
        )
    return native


def _path(plugin: str | os.PathLike[str] | None, platforms: tuple[str, ...]) -> str:
    if plugin is None and not (plugin := os.environ.get(_VARIABLE)):
        return os.path.realpath(find_plugin(*platforms))
    path = checked.path("plugin", plugin)
    if isinstance(plugin, str) and not path.endswith(_SUFFIXES) and os.path.basename(path) == path:
        return os.path.realpath(find_plugin(path))
    return os.path.realpath(path)


def register_ffi(target: str, handler: object, *, plugin: str | os.PathLike[str] | None = None) -> None:
    """Gives a plugin a handler for a custom call. Functions that are compiled from now on use it.

    Args:
        target: the name of the custom call.
        handler: a PyCapsule with the address of a handler of XLA's FFI, as `jax.ffi.pycapsule` returns it.
        plugin: as in `Session`; by default the plugin of the CPU.

    Raises:
        RunError: `handler` is not a PyCapsule; the plugin takes no handlers, has another handler for this custom call,
            or does not find the handler afterwards, because it was built for another version of XLA's FFI.

    Example:
        >>> register_ffi("rms_norm", my_extension.rms_norm())
    """
    checked.handler(handler)
    start(plugin, ("cpu",), None).register_ffi(checked.text("target", target), handler)
    _capsules.append(handler)


def use_lapack(library: str | os.PathLike[str]) -> None:
    """Sets the LAPACK of this process: a shared library, by its path or by a name that the system finds.

    By default, it is the library in the environment variable ``JAXEXP_LAPACK``, or else the OpenBLAS of SciPy,
    ``scipy-openblas32`` or NumPy, or else a library of the system. It is looked for when a function that calls LAPACK
    is loaded.

    Raises:
        RunError: the library is not a LAPACK, or another one is in use already.

    Example:
        >>> use_lapack("/usr/lib/x86_64-linux-gnu/libopenblas.so.0")
    """
    _runtime.use_lapack(checked.path("library", library))


def provide_lapack() -> None:
    """Names a LAPACK that is in this environment, unless one was named."""
    if "JAXEXP_LAPACK" in os.environ:
        return
    for path in itertools.chain.from_iterable(itertools.starmap(_found, _LAPACKS)):
        with contextlib.suppress(RunError):  # it is something else, or one is in use
            _runtime.use_lapack(path)
            return


def _found(module: str, pattern: str) -> Iterator[str]:
    """The files in the folder of a package."""
    for folder in _folders(module):
        yield from sorted(glob.glob(os.path.join(glob.escape(folder), pattern)))


def _folders(module: str) -> list[str]:
    """The folders of a package, without running its code."""
    outer, *inner = module.split(".")
    try:
        spec = importlib.util.find_spec(outer)
    except (ImportError, ValueError):
        return []
    return [os.path.join(folder, *inner) for folder in (spec.submodule_search_locations if spec else None) or ()]

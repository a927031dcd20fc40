"""Takes JAX's objects for compiled code apart, and puts them together again without a trace or a compilation."""

from __future__ import annotations

import contextlib
import hashlib
import threading
from collections.abc import Callable, Generator, Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental.compilation_cache import compilation_cache

from jaxexp import _jax


def why_not() -> str | None:
    """Why code that was compiled earlier cannot be used in this JAX, or in its current mode; None if it can."""
    if _jax.missing_for_reuse is not None:
        return f"this JAX has no {_jax.missing_for_reuse}"
    for mode in _jax.modes:
        if mode.value:
            return f"{mode._name} is set"
    if not (_jax.thread_resources.env.physical_mesh.empty and jax.sharding.get_abstract_mesh().empty):
        return "there is a mesh in context"
    return None


def compilation_for(devices: Sequence[Any]) -> tuple[str, str]:
    """Digests of what the code for some devices depends on: the target in detail, and the compiler's options."""
    assignment = np.array(devices, object).reshape(1, -1)
    options = _jax.compile_options(1, len(devices), assignment, backend=devices[0].client)
    # Where JAX's own cache is does not change the code.
    for place in ("xla_gpu_per_fusion_autotune_cache_dir", "xla_gpu_kernel_cache_file"):
        with contextlib.suppress(AttributeError):  # as in another release of XLA
            setattr(options.executable_build_options.debug_options, place, "")
    hashed = hashlib.sha256()
    _jax.hash_options(hashed, options)
    return f"{_jax.topology_of(list(devices)).fingerprint():016x}", hashed.hexdigest()[:32]


_anew = threading.RLock()  # the setting is one for all threads


@contextlib.contextmanager
def compiling_anew() -> Generator[None]:
    """A context without JAX's persistent cache. Code from the cache, or from a file of executables, runs here, but
    if XLA serializes it again, the result does not run anywhere.
    """
    config: Any = jax.config  # its types lack its attributes
    if config.jax_compilation_cache_dir is None:
        yield
        return
    with _anew:
        if not config.jax_enable_compilation_cache:
            yield
            return
        _set_cache(False)
        try:
            yield
        finally:
            _set_cache(True)


def _set_cache(enabled: bool) -> None:
    jax.config.update("jax_enable_compilation_cache", enabled)
    compilation_cache.reset_cache()  # otherwise it remembers whether it is in use


def lowered(jitted: Any, *args: Any, **kwargs: Any) -> Any:
    """What `jitted.lower` returns, without the places of callers: code goes to others, who have no use for paths."""
    with _jax.callers_in_locations(0):
        return jitted.lower(*args, **kwargs)


def executable_from(code: bytes, devices: Sequence[Any], **parts: Any) -> Any:
    """An executable, as `_jax.executable_of` returns it, for devices in the order of the device assignment.

    Its parts are from `_jax.parts_of_executable`: name, committed, kept_var_idx, and avals and shardings of the kept
    inputs and of the outputs. All layouts are the default ones.
    """
    listed, client = _jax.DeviceList(tuple(devices)), devices[0].client
    in_layouts, out_layouts = ([None] * len(parts[name]) for name in ("input_avals", "output_avals"))
    return _jax.UnloadedMeshExecutable(
        xla_executable=client.deserialize_executable(code, executable_devices=listed),
        device_list=listed,
        backend=client,
        unordered_effects=[],
        ordered_effects=[],
        keepalive=(),
        host_callbacks=[],
        mut=None,
        xla_in_layouts=in_layouts,
        dispatch_in_layouts=in_layouts,
        xla_out_layouts=out_layouts,
        all_args_info=None,
        pgle_profiler=None,
        **parts,
    ).load()


def dispatched(name: str, plain: Callable[..., Any], miss: Callable[..., Any]) -> Any:
    """A callable with the dispatch of `jax.jit`.

    `plain` is called if jit is disabled. `miss` is called with arguments of new types: it returns the results, and the
    code for such arguments, as `for_dispatch` returns it, or None.
    """

    def asked(*args: Any, **kwargs: Any) -> tuple[Any, Any, bool]:
        return *miss(args, kwargs), False

    made = _jax.jit_dispatch(name, plain, asked, [], [], _jax.jit_keys(), _jax.dispatch_registry, _jax.shard_argument)
    made._fun = plain  # JAX calls it again if there is a NaN in the results and somebody looks for NaNs
    return made


def for_dispatch(executable: Any, out_tree: Any, leaves: Sequence[Any], results: Sequence[Any]) -> Any:
    """The data that the dispatch keeps to call code again; None if it cannot."""
    return _jax.for_dispatch(executable, out_tree, leaves, results, (), (), None, [])

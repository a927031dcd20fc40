"""Takes JAX's objects for compiled code apart, and puts them together again without a trace or a compilation."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Generator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.experimental.compilation_cache import compilation_cache

from jaxexp import _jax
from jaxexp._kernel.io import lock


def why_not_reusable() -> str | None:
    """Why code that was compiled earlier cannot be used in this JAX, or in its current mode; None if it can."""
    if _jax.missing_for_reuse is not None:
        return f"this JAX has no {_jax.missing_for_reuse}"
    for mode in _jax.modes:
        if mode.value:
            return f"{_jax.name_of_mode(mode)} is set"
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


_anew = lock.reentrant()  # the setting is one for all threads


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
    # Otherwise it remembers whether it is in use (https://github.com/jax-ml/jax/issues/25768).
    compilation_cache.reset_cache()


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


def for_dispatch(executable: Any, out_tree: Any, leaves: Sequence[Any], results: Sequence[Any]) -> Any:
    """The data that the dispatch keeps to call code again; None if it cannot."""
    return _jax.for_dispatch(executable, out_tree, leaves, results, (), (), None, [])


# --- calls with code that was compiled earlier, and the dispatch of `jax.jit` -----------------------------------------


Flattened = Callable[[tuple[Any, ...], dict[str, Any]], tuple[Sequence[Any], Any]]
# Given flat arguments, and what compiles the call to a `jax.stages.Compiled`.
CodeOf = Callable[[Sequence[Any], Callable[[], Any]], "Code | None"]


class Code(NamedTuple):
    """The code of a call.

    Attributes:
        executable: JAX's object, as `_jax.executable_of` returns it.
        give_up: called with the reason if the code fails to run; None if this process compiled it.
    """

    executable: Any
    give_up: Callable[[str], None] | None

    def unsafe_call(self, *leaves: Any) -> Any:
        return self.executable.unsafe_call(*leaves)


def callable_of(
    why_not: Callable[[str], str | None],
    name: str,
    jitted: Callable[[], Any],
    flattened: Flattened,
    code_of: CodeOf,
) -> Any:
    """A callable whose first call with arguments of some types looks for code, without a trace. Later calls use the
    dispatch of `jax.jit`.

    Args:
        why_not: why no code can be used at the moment, given the function's name; None if it can.
        name: of the function.
        jitted: makes the function's jitted callable, for calls that have no code.
        flattened: returns the flat arguments of a call, and the structure of its results.
        code_of: returns the code of a call; None if there is none.
    """

    def plain(*args: Any, **kwargs: Any) -> Any:
        why_not(name)
        return jitted()(*args, **kwargs)

    def miss(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
        if why_not_reusable() is not None:
            return plain(*args, **kwargs), None
        leaves, out_tree = flattened(args, kwargs)

        def compiled() -> Any:
            return lowered(jitted(), *args, **kwargs).compile()

        try:
            code = code_of(leaves, compiled)
        except (TypeError, ValueError):  # the call itself explains these
            code = None
        flat = None
        if code is not None:
            try:
                flat = code.unsafe_call(*leaves)
            except jax.errors.JaxRuntimeError as error:
                if code.give_up is None:
                    raise
                code.give_up(f"it does not run: {error}")
        if code is None or flat is None:
            code = Code(_jax.executable_of(compiled()), None)
            flat = code.unsafe_call(*leaves)
        results = jax.tree_util.tree_unflatten(out_tree, flat)
        return results, for_dispatch(code.executable, out_tree, leaves, flat)

    if _jax.missing_for_reuse is None:
        return _jax.dispatched(name, plain, miss)
    why_not(name)
    return jitted()

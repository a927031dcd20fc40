"""Compiling many functions ahead of their first call."""

from __future__ import annotations

import concurrent.futures
import contextlib
from collections.abc import Iterable, Sequence
from typing import Any, Literal, Protocol, overload

import jax
from jax.sharding import Mesh, SingleDeviceSharding

from jaxexp._errors import ExportError, ExportTypeError
from jaxexp._kernel.call.call import compiled, lowered
from jaxexp._kernel.call.first_argument import as_called
from jaxexp._kernel.function import data
from jaxexp._kernel.function.data import ExportedData
from jaxexp._kernel.function.paths import argument_paths
from jaxexp._kernel.io import compile_cache
from jaxexp._kernel.io.workers import worker_count
from jaxexp._kernel.module import meshes
from jaxexp._public import public

from . import reuse

# JAX keeps the code of this many functions: the ones that were used last.
_MOST = 2048


class Loadable(Protocol):
    """A `Handle`, or another object whose `load` returns a function."""

    def load(self) -> ExportedData: ...


class Checks(Protocol):
    """A `Policy`, which stands above this room."""

    def check(self, exported: Any) -> None: ...


_Function = ExportedData | Loadable
_Item = _Function | tuple[_Function, tuple[Any, ...]] | tuple[_Function, tuple[Any, ...], dict[str, Any]]


@overload
def prefetch(
    handles: Iterable[_Item],
    mesh_or_device: Any = None,
    *,
    workers: int | None = None,
    on_error: Literal["raise"] = "raise",
    policy: Checks | None = None,
) -> list[jax.stages.Compiled]: ...
@overload
def prefetch(
    handles: Iterable[_Item],
    mesh_or_device: Any = None,
    *,
    workers: int | None = None,
    on_error: Literal["return"],
    policy: Checks | None = None,
) -> list[jax.stages.Compiled | Exception]: ...
@public
def prefetch(
    handles: Iterable[_Item],
    mesh_or_device: Any = None,
    *,
    workers: int | None = None,
    on_error: Literal["raise", "return"] = "raise",
    policy: Checks | None = None,
) -> list[jax.stages.Compiled] | list[jax.stages.Compiled | Exception]:
    """Compiles functions ahead of time, so that the first `Exported.call` of each does not wait for the compiler.

    The caller's thread lowers the modules. Meanwhile XLA compiles them in several threads. Nothing is executed. If
    JAX's persistent compilation cache is configured (`jax.config.jax_compilation_cache_dir`), it is used. With a
    `compile_cache`, neither is read, and the first call of each function adds what was compiled here.

    The code is for calls outside of `jax.jit`, with the shapes and dtypes of the signature and with arguments in these
    places:

    - without `mesh_or_device`: arrays that were not placed, such as NumPy arrays and results of `jax.numpy`;
    - with a device: arrays that `jax.device_put` placed on it;
    - with a mesh: arrays with the shardings of `Exported.in_shardings_jax(mesh)`; for arguments without a sharding,
      arrays that were not placed, or if no argument has one, arrays that are whole on each device.

    A call with other arguments compiles again, as usual in JAX. Compiled code is kept as long as the function,
    unless you call `jax.clear_caches`, or use 2,048 other functions.

    Args:
        handles: the functions: `Exported` objects, handles of an archive, or other objects whose method `load` returns
            an `Exported`. An archive keeps the functions of its handles until it is closed, so that `Handle.load`
            returns them. A function with symbolic dimensions needs arguments to be compiled for. Give them in a tuple:
            ``(function, args)`` or ``(function, args, kwargs)``, where `args` is a tuple of arrays or
            `jax.ShapeDtypeStruct`. You may also give arguments for other functions; then `mesh_or_device` does not
            apply to them.
        mesh_or_device: a `jax.sharding.Mesh` or a device, as above.
        workers: how many threads compile; by default one for each CPU that the process may use.
        on_error: ``"raise"`` raises the error of the first function that cannot be compiled. ``"return"`` puts the
            exception in its place and compiles the others.
        policy: a `Policy`, which is checked before a function is lowered. Handles load with it, as in `Handle.load`;
            for other functions, the modules are checked.

    Returns:
        A `jax.stages.Compiled` for each function. Its `memory_analysis` and `cost_analysis` estimate what a call needs.
        With ``on_error="return"``, an exception for each function that failed.

    Raises:
        ExportError: a function has symbolic dimensions and no arguments; it is for other platforms or another number of
            devices; or there are more than 2,048 functions, because JAX would forget some of them.
        PolicyError: a function contains something that the policy does not allow.
        TypeError: an item is not a function, or `policy` is not a Policy.

    Example:
        >>> functions = load_many(paths)
        >>> prefetch(functions)
        >>> prefetch([(batched, (jax.ShapeDtypeStruct((n, 784), np.float32),)) for n in (1, 8, 64)])
    """
    if not isinstance(handles, Iterable):
        raise ExportTypeError(f"prefetch takes many functions, in a list or another iterable, not {type(handles)}")
    items = list(handles)
    if on_error not in ("raise", "return"):
        raise ExportError(f'on_error has to be "raise" or "return", found {on_error!r}')
    if policy is not None and (isinstance(policy, type) or not callable(getattr(policy, "check", None))):
        raise ExportTypeError(f"policy= takes a jaxexp.Policy or None, found {type(policy)}")
    if len(items) > _MOST:
        raise ExportError(
            f"prefetch compiles at most {_MOST:,} functions, because JAX would forget the first ones of a "
            f"longer list; found {len(items):,}. With jax.config.jax_compilation_cache_dir set, compile the others in "
            "further calls"
        )
    # What is compiled here is what the first call adds to the compile cache.
    anew = contextlib.nullcontext() if compile_cache.current() is None else reuse.compiling_anew()
    with anew, concurrent.futures.ThreadPoolExecutor(worker_count(workers), "jaxexp-prefetch") as pool:
        compiling: list[concurrent.futures.Future[Any]] = []
        try:
            for item in items:
                compiling.append(_begin(pool, item, mesh_or_device, policy))
                if on_error == "raise":
                    _raise_first(compiling)
            if on_error == "raise":
                return [future.result() for future in compiling]
            outcomes: list[Any] = [future.exception() or future.result() for future in compiling]
            return outcomes
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)  # functions that XLA is compiling are waited for
            raise


def _begin(
    pool: concurrent.futures.Executor, item: Any, place: Any, policy: Checks | None
) -> concurrent.futures.Future[Any]:
    """Lowers a function here, under the caller's JAX context managers, and compiles it in another thread."""
    try:
        exported, args, kwargs = _function_and_arguments(item, place, policy)
        program = lowered(exported, args, kwargs)
    except Exception as error:
        failed: concurrent.futures.Future[Any] = concurrent.futures.Future()
        failed.set_exception(error)
        return failed
    return pool.submit(compiled, exported, program)


def _raise_first(compiling: list[concurrent.futures.Future[Any]]) -> None:
    """Raises the error of the first function that failed, if all functions before it are done."""
    for future in compiling:
        if not future.done():
            return
        if (error := future.exception()) is not None:
            raise error


def _function_and_arguments(
    item: Any, place: Any, policy: Checks | None
) -> tuple[ExportedData, tuple[Any, ...], dict[str, Any]]:
    given: list[Any] = list(item) if isinstance(item, tuple) else [item]
    exported = given[0] if given else None
    if callable(keep := getattr(exported, "load_and_keep", None)):
        # An archive keeps functions that handles load this way: another handle of the member finds the compiled one.
        exported = keep(policy)
    else:
        if not isinstance(exported, ExportedData):
            load = getattr(exported, "load", None)
            exported = load() if callable(load) else None
        if policy is not None and isinstance(exported, ExportedData):
            policy.check(exported)
    if not isinstance(exported, ExportedData) or len(given) > 3:
        raise ExportTypeError(
            "prefetch takes functions (an Exported, or a handle whose load() returns one), or tuples (function, args) "
            f"and (function, args, kwargs), not {type(item)}"
        )
    if len(given) == 1:
        return exported, *arguments_of(exported, place, f"prefetch of {exported.fun_name}", "Pass (function, args)")
    args, kwargs = given[1], given[2] if len(given) == 3 else {}
    if not isinstance(args, tuple) or not isinstance(kwargs, dict):
        raise ExportTypeError(
            f"prefetch of {exported.fun_name}: expected the tuple of its positional arguments, and perhaps the dict of "
            f"those by keyword, found {type(args)} and {type(kwargs)}"
        )
    return exported, args, kwargs


def arguments_of(exported: ExportedData, place: Any, doing: str, advice: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Specs of the arguments of a call, from the signature, on a mesh or a device if one is given.

    Messages begin with `doing`; if a size is not known, `advice` says how to pass arguments.
    """
    shardings: Sequence[Any]
    exported = as_called(exported)
    if isinstance(place, Mesh):
        shardings = meshes.shardings_on(exported, place)
    elif place is None or isinstance(place, jax.Device):
        shardings = (None if place is None else SingleDeviceSharding(place),) * len(exported.in_avals)
    else:
        raise ExportTypeError(f"{doing}: expected a jax.sharding.Mesh, a device or None, found {type(place)}")
    specs, weak = [], set(data.weak_arguments(exported))
    for i, (aval, placed) in enumerate(zip(exported.in_avals, shardings, strict=True)):
        if not all(isinstance(size, int) for size in aval.shape):
            raise ExportError(
                f"{doing}: {argument_paths(exported.in_tree)[i]} has the symbolic shape {aval.shape}, but code is "
                f"compiled for known sizes. {advice}, with arrays or jax.ShapeDtypeStruct of these sizes"
            )
        specs.append(jax.ShapeDtypeStruct(aval.shape, aval.dtype, sharding=placed, weak_type=i in weak))
    args, kwargs = jax.tree_util.tree_unflatten(exported.in_tree, specs)
    return args, kwargs

"""Migration: an old artifact is decoded, updated to today's format or another release's, written and read again."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import jax
import numpy as np

from jaxexp import _jax
from jaxexp._api.cases.comparing import rounding
from jaxexp._api.exported import Exported, reader
from jaxexp._errors import ExportError, ExportTypeError, ModuleError, UnsupportedError, cause
from jaxexp._kernel.call.specialize import checked_sizes
from jaxexp._kernel.function import data, vjps
from jaxexp._kernel.function.convention import OLDEST_VERSION
from jaxexp._kernel.module import composites, mlir, runnable
from jaxexp._kernel.write import reader as readers
from jaxexp._kernel.write.options import Writing
from jaxexp._kernel.write.reader import check_choice
from jaxexp._kernel.write.serialize import serialize

from .compatibility import Compatibility, compatibility_of


def migrated(
    buffer: Any,
    to: str | None,
    inputs: tuple[Sequence[Any], Mapping[str, Any]] | None = None,
    locations: str = "full",
    sizes: Sequence[Mapping[str, int]] | None = None,
    case_files: bool = False,
    metadata: Mapping[str, Any] | None = None,
    file_name: Callable[[str, bytes], str] = lambda name, content: name,
) -> bytearray:
    """The result of the public function `migrate`, for an artifact in a buffer. `sizes` are those of `Exported.save`.
    With `case_files`, files with arrays of cases will be beside the new artifact, too; without, such cases are left
    out. `metadata` takes the place of that of the old one. `file_name` says what a file that the trailer names will be
    called, given its name and the digest of its content.
    """
    check_choice(to, "to=")
    match inputs:
        case None | (tuple() | list(), Mapping()):
            pass
        case _:
            raise ExportTypeError(f"inputs= takes a pair (args, kwargs) of a tuple and a dict, not {inputs!r:.80}")
    old: Exported = reader.read(buffer)
    order = vjps.stored_orders(old)
    weights, cases = data.weights_in_trailer(old), data.cases_of(old)
    if weights is not None:
        weights = _renamed(weights[0], file_name), *weights[1:]
    if cases is not None:
        cases = dataclasses.replace(cases, table=cases.table._replace(files=_renamed(cases.table.files, file_name)))
    metadata = old.metadata if metadata is None else metadata
    checked = checked_sizes(old, sizes)
    how = Writing(
        order, to, metadata=metadata, weights=weights, locations=locations, cases=cases, case_files=case_files,
        sizes=checked,
    )  # fmt: skip
    try:
        blob = serialize(_up_to_date(old), how)
    except ExportError:
        raise
    except RuntimeError as error:  # of jaxlib's bindings, which make strings of names that are no text
        found = f"one that it cannot: {mlir.what_is_wrong(error)}"
        raise ModuleError("mlir_module_serialized", "a module that jaxlib can rewrite", found) from cause(error)
    new: Exported = reader.read(bytes(blob))
    for before, after in zip(vjps.stored_chain(old), vjps.stored_chain(new), strict=True):
        _check_signatures(before, after, named_shardings=to is None)
    if inputs is not None:
        _check_results(old, new, *inputs)
    return blob


def _renamed(
    files: Sequence[tuple[str, int, bytes]], file_name: Callable[[str, bytes], str]
) -> tuple[tuple[str, int, bytes], ...]:
    return tuple((file_name(name, content), size, content) for name, size, content in files)


def _up_to_date(old: Exported) -> Exported:
    """The same function and VJPs, with all outdated parts replaced."""
    module, version = _module_up_to_date(old), old.calling_convention_version
    if version < OLDEST_VERSION and old.ordered_effects:
        raise UnsupportedError(
            f"{old.fun_name} has ordered effects {old.ordered_effects} and calling convention {version}, which passes "
            f"their tokens in another way than version {OLDEST_VERSION}, the oldest that is read today: "
            "export it again"
        )
    return dataclasses.replace(
        old,
        mlir_module_serialized=module,
        calling_convention_version=max(version, OLDEST_VERSION),  # without tokens it is the same
        _get_vjp=(lambda _: _up_to_date(old.vjp())) if old.has_vjp() else None,
    )


def _module_up_to_date(old: Exported) -> bytes:
    """The module without operations that only older jaxlibs run, for the StableHLO version that `export` writes for."""
    with _jax.make_ir_context() as context:
        module = runnable.parse(old, context)
        composites.check(module)
        return mlir.serialize(module)


def _check_signatures(old: Exported, migrated: Exported, named_shardings: bool) -> None:
    """Compares the facts that callers rely on. Some formats drop the names of mesh axes."""
    before, after = _signature(old, named_shardings), _signature(migrated, named_shardings)
    if differing := [name for name in before if before[name] != after[name]]:
        raise ExportError(
            f"{data.described(old)} would not be the same function after migration: "
            + "; ".join(f"{name} was {before[name]}, and is {after[name]}" for name in differing)
        )


def _signature(exported: Exported, named_shardings: bool = True) -> dict[str, Any]:
    """The facts that stay the same, in a form that compares across symbolic scopes."""
    if named_shardings:
        in_shardings, out_shardings = exported._in_named_shardings, exported._out_named_shardings
    else:
        in_shardings, out_shardings = data.in_hlo_shardings(exported), data.out_hlo_shardings(exported)
    return {
        "fun_name": exported.fun_name,
        "in_tree": exported.in_tree,
        "in_avals": [_aval(aval) for aval in exported.in_avals],
        "out_tree": exported.out_tree,
        "out_avals": [_aval(aval) for aval in exported.out_avals],
        "in_shardings": in_shardings,
        "out_shardings": out_shardings,
        "nr_devices": exported.nr_devices,
        "platforms": exported.platforms,
        "ordered_effects": exported.ordered_effects,
        "unordered_effects": exported.unordered_effects,
        "disabled_safety_checks": tuple(map(str, exported.disabled_safety_checks)),
        "module_kept_var_idx": exported.module_kept_var_idx,
        "uses_global_constants": exported.uses_global_constants,
    }


def _aval(aval: Any) -> tuple[tuple[str, ...], Any, Any]:
    return tuple(map(str, aval.shape)), aval.dtype, aval.memory_space


def _check_results(old: Exported, migrated: Exported, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    before, after = (_jax_leaves(exported.call(*args, **kwargs)) for exported in (old, migrated))
    for i, (expected, found) in enumerate(zip(before, after, strict=True)):
        if differing(np.asarray(expected), np.asarray(found)).any():
            raise ExportError(
                f"{old.fun_name} would not be the same function after migration: with the given inputs, result {i} "
                f"was {expected}, and is {found}"
            )


def differing(expected: Any, found: Any) -> Any:
    """Which numbers of two arrays of one shape differ by more than rounding to the dtype of the first one."""
    if not _jax.issubdtype(expected.dtype, np.inexact):
        return expected != found
    wide = np.complex128 if _jax.issubdtype(expected.dtype, np.complexfloating) else np.float64
    largest = np.max(np.abs(expected), initial=0, where=np.isfinite(expected))
    tolerance = rounding(expected.dtype) * float(largest)
    return ~np.isclose(found.astype(wide), expected.astype(wide), rtol=0, atol=tolerance, equal_nan=True)


def _jax_leaves(results: Any) -> list[Any]:
    """Results as arrays that NumPy can hold."""
    leaves = jax.tree_util.tree_leaves(results)
    return [jax.random.key_data(x) if _jax.issubdtype(x.dtype, jax.dtypes.prng_key) else x for x in leaves]


# --- finds out what `migrate` can do for releases that refuse an artifact, by migrating it in memory ------------------


def rewritten(buffer: Any, to: str | None) -> Compatibility:
    """The compatibility of an artifact rewritten for a release, or for the installed one; or an ExportError."""
    return compatibility_of(_tried(lambda: migrated(buffer, to)))


def rewritten_for_oldest(buffer: Any) -> tuple[str, Compatibility]:
    """The oldest release that an artifact can be written for, and its compatibility then; or an ExportError."""
    reader, blob = _tried(lambda: readers.oldest(lambda reader: migrated(buffer, reader.release.version)))
    return reader.release.version, compatibility_of(blob)


_T = TypeVar("_T")


def _tried(write: Callable[[], _T]) -> _T:
    """The result of `write`. If jaxlib raises anything for a foreign module, the module cannot be written."""
    try:
        return write()
    except (ExportError, MemoryError):
        raise
    except Exception as error:  # jaxlib has no class of its own
        raise ExportError(f"JAX cannot write its module: {str(error).partition(chr(10))[0]}") from cause(error)

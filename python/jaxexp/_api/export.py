"""`export`: checks its arguments, and exports with or without weights."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from jaxexp._errors import ExportError, ExportTypeError
from jaxexp._kernel.artifact.words import check_flags
from jaxexp._kernel.export.export import Exporting, default_export_platform, is_jitted, not_jitted, platform_names
from jaxexp._kernel.function.safety_check import DisabledSafetyCheck
from jaxexp._kernel.module import locations
from jaxexp._public import public

from .exported import BoundExported, Exported

if TYPE_CHECKING:
    from jaxexp._weights.bound.lifting import Taking


@public
def export(
    fun_jit: Callable[..., Any],
    *,
    platforms: Sequence[str] | None = None,
    disabled_checks: Sequence[DisabledSafetyCheck] = (),
    _override_lowering_rules: Sequence[tuple[Any, Any]] | None = None,
    batch_dim: str | None = None,
    compatibility: str | None = None,
    weights: Any = None,
    reproducible: bool = False,
) -> Callable[..., Exported]:
    """Prepares the export of a jitted function.

    Args:
        fun_jit: the result of `jax.jit`.
        platforms: the platforms to lower for, such as ``("cpu", "cuda", "tpu")``. With several, the module gets an
            argument for the platform that it runs on. The default is `default_export_platform()`.
        disabled_checks: safety checks to leave out.
        _override_lowering_rules: pairs (primitive, lowering rule) to lower with in place of JAX's rules.
        batch_dim: the name of a dimension variable that is a batch. It must be the leading dimension of some arguments
            and of every result, and must not appear elsewhere in their shapes. This is checked. You also promise,
            unchecked, that element i of every result, and of its derivatives, depends only on element i of these
            arguments and on the other arguments. `jax.vmap` over these arguments is then one call with a longer batch.
            The artifact keeps `batch_dim`; `jax.export` ignores it. `jaxexp.runtime` may pad this dimension, as with
            `pad` of `Exported.serialize`.
        compatibility: the oldest JAX that must be able to read the artifact: a release such as ``"jax-0.6.2"``; a
            number of weeks before the installed release, such as ``"12w"``; or ``"max"`` for the oldest release that
            can read this function. The function is lowered for that release, and `serialize` and `save` of the function
            and of its VJPs write for it by default. The default is the current layout and the StableHLO of four weeks
            ago, as in `jax.export`.
        weights: the closed-over arrays that become weights: they stay outside of the module, and the result is a
            `BoundExported`. Pass a pytree, such as the parameters of a model: the leaves that the function itself uses,
            as the same objects, become weights, named by their paths (``layers/0/w``). Leaves that are not arrays are
            left out. Or pass True for all arrays of at least 4 KiB, named by their content; without such arrays, the
            result is a plain `Exported`. None and False leave all arrays in the module. If large arrays must stay in
            the module, a warning names them.
        reproducible: whether equal source gives equal bytes for every folder, user and caller. The module then names
            scopes and functions, but no files and lines of the source, and the function is traced anew with all
            functions that it calls.

    Returns:
        A function that takes the specs of the arguments, by position or by keyword, and returns the `Exported`. A spec
        is an object with a shape and a dtype, such as a `jax.ShapeDtypeStruct` or an array. Shapes may contain symbolic
        dimensions (`symbolic_shape`, `symbolic_args_specs`) of one scope. Static arguments of `fun_jit` are passed as
        values.

    Raises:
        ExportError: `fun_jit` is not jitted. The returned function raises it if symbolic dimensions have several
            scopes, a custom call is not known to be stable, `batch_dim` contradicts the shapes, the release in
            `compatibility` lacks a feature of the function, the function uses no leaf of `weights`, or two weights
            would have the same name.
        NotImplementedError: the function contains something that no artifact can hold, such as a host callback.

    Example:
        >>> exported = export(jax.jit(jnp.sin))(jax.ShapeDtypeStruct((4,), np.float32))
        >>> exported.save("sin.jaxexp")
        >>> load("sin.jaxexp").call(np.zeros(4, np.float32))
        Array([0., 0., 0., 0.], dtype=float32)
    """
    if not is_jitted(fun_jit):
        raise ExportError(not_jitted(fun_jit))
    chosen = None if platforms is None else platform_names(platforms)
    checks = DisabledSafetyCheck.coerce_all(disabled_checks)
    rules = None if _override_lowering_rules is None else _pairs(_override_lowering_rules)
    if compatibility is not None:
        from jaxexp._kernel.write.reader import check_choice

        check_choice(compatibility)
    check_flags(reproducible=reproducible)
    takes = None if weights is None or weights is False else _chosen(weights)

    def do_export(*args_specs: Any, **kwargs_specs: Any) -> Exported:
        actual_platforms = (default_export_platform(),) if chosen is None else chosen
        how = Exporting(
            Exported, actual_platforms, checks, rules, batch_dim, compatibility, reproducible,
            (locations.callers(),) if reproducible else (),
        )  # fmt: skip
        if takes is None:
            program: Exported = how.export(fun_jit, args_specs, kwargs_specs)
            return program
        from jaxexp._weights.bound.program import given

        taking = takes()
        program = how.export(fun_jit, args_specs, kwargs_specs, taking)
        if not taking.weights:  # no array is large
            return program
        return BoundExported.of(program, given(program, taking.weights, taking.other_names))

    return do_export


def _pairs(rules: Any) -> tuple[tuple[Any, Any], ...]:
    found = tuple(rules) if isinstance(rules, Iterable) else (rules,)
    for one in found:
        if not isinstance(one, Sequence) or isinstance(one, (str, bytes)) or len(one) != 2:
            raise ExportTypeError(
                f"_override_lowering_rules takes pairs of a primitive and its lowering rule, not {one!r:.80}"
            )
    return tuple((primitive, rule) for primitive, rule in found)


def _chosen(weights: Any) -> Callable[[], Taking]:
    from jaxexp._weights.bound.lifting import ByContent, Named, Taking

    if isinstance(weights, (str, bytes, os.PathLike)):
        raise ExportTypeError(
            f"weights= takes the arrays that the function closes over, not a path ({weights!r:.80}): pass the path to "
            "with_weights or bind of the exported function"
        )
    return (lambda: Taking(ByContent())) if weights is True else functools.partial(Taking, Named(weights))

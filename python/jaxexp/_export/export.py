"""`export`: checks the arguments, then lowers, wraps, checks and serializes one module."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jaxexp import _jax
from jaxexp._artifact import module_head
from jaxexp._bound.bound import BoundExported
from jaxexp._errors import ExportError, shown
from jaxexp._exported import Exported
from jaxexp._function import data
from jaxexp._function.convention import NEWEST_VERSION, OLDEST_VERSION
from jaxexp._function.safety_check import DisabledSafetyCheck
from jaxexp._function.specs import check_one_scope
from jaxexp._function.vjps import LaterVjp
from jaxexp._module import batch_dim as batch_dims
from jaxexp._module import main, mlir
from jaxexp._module.custom_calls import check_stable
from jaxexp._public import public
from jaxexp._write import retarget
from jaxexp._write.reader import check_choice

from .lower import Lowering, lower, not_jitted
from .surroundings import Surroundings
from .vjp import vjp_function
from .weights import ByContent, Named, StillThere, Taking

logger = logging.getLogger(__name__)


@public
def default_export_platform() -> str:
    """The platform that `export` lowers for by default: that of JAX's default backend.

    One of ``"cpu"``, ``"cuda"``, ``"rocm"``, ``"tpu"``, or a platform that a plugin added.
    """
    return _jax.default_platform()


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
) -> Callable[..., Exported]:
    """Prepares the export of a jitted function.

    Args:
        fun_jit: the result of `jax.jit`.
        platforms: the platforms to lower for, such as ``("cpu", "cuda", "tpu")``; with several, the module gets an
            argument that says on which platform it runs. The default is `default_export_platform()`.
        disabled_checks: safety checks to leave out.
        _override_lowering_rules: pairs (primitive, lowering rule) to lower with in place of JAX's rules.
        batch_dim: the name of a dimension variable that is a batch. It must be the leading dimension of some arguments
            and of every result, and must not appear elsewhere in their shapes. This is checked. You also promise that
            element i of every result, and of its derivatives, depends only on element i of these arguments and on the
            other arguments. This is not checked. `jax.vmap` over these arguments is then one call with a longer batch.
            The artifact keeps `batch_dim`; `jax.export` ignores it.
        compatibility: the oldest JAX that must be able to read the artifact: a release such as ``"jax-0.6.2"``; a
            number of weeks before the installed release, such as ``"12w"``; or ``"max"`` for the oldest release that
            can read this function. The function is lowered for that release, and `serialize` and `save` of the function
            and of its VJPs write for it by default. The default is today's layout and the StableHLO of four weeks ago,
            as in `jax.export`.
        weights: arrays that the function closes over and that become weights: they stay outside of the module, and the
            result is a `BoundExported`. A pytree, such as the parameters of a model: those of its leaves that the
            function uses become weights, named by their paths (``layers/0/w``). They must be the same objects that the
            function uses; leaves that are no arrays, such as functions, are left out. Or True: all arrays of 4 KiB or
            more, named by their content; if there are none, the result is a plain `Exported`. None and False leave all
            arrays in the module. If large arrays have to stay there, a warning says which ones.

    Returns:
        A function that takes the specs of the arguments, by position or by keyword, and returns the `Exported`. A spec
        is a `jax.ShapeDtypeStruct`, an array, or anything else with a shape and a dtype; shapes may contain symbolic
        dimensions (`symbolic_shape`, `symbolic_args_specs`) of one scope. Static arguments of `fun_jit` are passed as
        they are.

    Raises:
        ExportError: `fun_jit` is not jitted. The returned function raises it for symbolic dimensions of several scopes,
            for custom calls that are not known to be stable, for a `batch_dim` that contradicts the shapes, and for
            anything that the release in `compatibility` does not support.
            It raises it, too, if the function uses none of the leaves of `weights`, or two would have one name.
        NotImplementedError: the function contains something that no artifact can hold, such as a host callback.

    Example:
        >>> exported = export(jax.jit(jnp.sin))(jax.ShapeDtypeStruct((4,), np.float32))
        >>> exported.save("sin.jaxexp")
        >>> load("sin.jaxexp").call(np.zeros(4, np.float32))
        Array([0., 0., 0., 0.], dtype=float32)
    """
    if not isinstance(fun_jit, _jax.Wrapped):
        raise ExportError(not_jitted(fun_jit))
    chosen = None if platforms is None else (platforms,) if isinstance(platforms, str) else tuple(platforms)
    checks = tuple(map(DisabledSafetyCheck.coerce, disabled_checks))
    check_choice(compatibility)
    chosen_weights = None if weights is None or weights is False else ByContent() if weights is True else Named(weights)

    def do_export(*args_specs: Any, **kwargs_specs: Any) -> Exported:
        actual_platforms = (default_export_platform(),) if chosen is None else chosen
        how = _How(actual_platforms, checks, _override_lowering_rules, batch_dim, compatibility)
        if chosen_weights is None:
            return how.export(fun_jit, args_specs, kwargs_specs)
        taking = Taking(chosen_weights)
        program = how.export(fun_jit, args_specs, kwargs_specs, taking, taking.weights)
        if not taking.weights:  # no array is large
            return program
        return BoundExported.of(program, taking.weights, taking.other_names)

    return do_export


@dataclasses.dataclass(frozen=True, slots=True)
class _How:
    """How a function is exported, by the options of `export`."""

    platforms: tuple[str, ...]
    checks: tuple[DisabledSafetyCheck, ...]
    override_lowering_rules: Sequence[tuple[Any, Any]] | None
    batch_dim: str | None
    compatibility: str | None

    def export(
        self,
        fun_jit: Any,
        args_specs: Sequence[Any],
        kwargs_specs: dict[str, Any],
        rewrite: Callable[[Any], Any] | None = None,
        weights: Mapping[str, Any] | None = None,
    ) -> Exported:
        """The program: a function whose first argument are its weights, if there are any.

        Args:
            fun_jit: the jitted function.
            args_specs: specs of its positional arguments.
            kwargs_specs: specs of its keyword arguments.
            rewrite: as in `lower`.
            weights: the values of the first arguments, by their names. They are asked for after `rewrite` was called.
        """
        version = _calling_convention_version()
        check_one_scope(_jax.function_name(fun_jit), args_specs, kwargs_specs)
        with retarget.lowering_context(self.compatibility):
            lowering = lower(fun_jit, args_specs, kwargs_specs, self.platforms, self.override_lowering_rules, rewrite)
        if self.batch_dim is not None:
            facts = lowering.in_avals, lowering.in_tree, lowering.out_avals, lowering.out_tree
            batch_dims.check(self.batch_dim, lowering.fun_name, *facts)
        still_there = StillThere(weights) if weights else None
        exported = _exported(lowering, version, self.checks, self.batch_dim, still_there)
        if self.compatibility is None:
            return exported
        return _for_readers(exported, self.compatibility, len(weights or ()))


def _for_readers(exported: Exported, compatibility: str, weights: int) -> Exported:
    """The function in the form for the chosen reader. It remembers the choice."""
    _, (written,) = retarget.for_choice([exported], compatibility, weights)
    return data.note(written, compatibility=compatibility)


def _calling_convention_version() -> int:
    version: int = _jax.calling_convention_flag.value
    if not OLDEST_VERSION <= version <= NEWEST_VERSION:
        raise ExportError(
            f"jax_export_calling_convention_version is set to {version}; versions that can be exported are "
            f"{OLDEST_VERSION} to {NEWEST_VERSION}"
        )
    return version


def _exported(
    lowering: Lowering,
    version: int,
    checks: tuple[DisabledSafetyCheck, ...],
    batch_dim: str | None,
    weights: StillThere | None,
) -> Exported:
    is_wrapped = lowering.has_symbolic_arguments() or bool(lowering.ordered_effects)
    # The lowering's own module is in JAX's caches. One attribute that describes it does no harm there, and a copy costs
    # more than all the rest where there are large constants.
    module = mlir.copy(lowering.module) if is_wrapped or batch_dim is not None else lowering.module
    if is_wrapped:
        main.wrap_main(module, lowering.in_avals, lowering.in_tree, lowering.has_platform_index)
    main.say_whether_polymorphic(module, lowering.uses_dim_vars)
    if batch_dim is not None:
        batch_dims.declare(module, batch_dim, lowering.in_avals)
    dumped = _jax.dump_module_to_file(module, "export")
    serialized = mlir.serialize(module)
    if logger.isEnabledFor(logging.DEBUG):
        _log(lowering, version, module, dumped, len(serialized))
    if module_head.may_name(serialized, "custom_call"):
        check_stable(module, {target for check in checks if (target := check.is_custom_call())})
    return Exported(
        fun_name=lowering.fun_name,
        in_tree=lowering.in_tree,
        in_avals=lowering.in_avals,
        out_tree=lowering.out_tree,
        out_avals=lowering.out_avals,
        _in_named_shardings=lowering.in_shardings,
        _out_named_shardings=lowering.out_shardings,
        in_shardings_hlo=(),  # follow from the NamedShardings
        out_shardings_hlo=(),
        nr_devices=lowering.nr_devices,
        platforms=lowering.platforms,
        ordered_effects=lowering.ordered_effects,
        unordered_effects=lowering.unordered_effects,
        disabled_safety_checks=checks,
        mlir_module_serialized=serialized,
        calling_convention_version=version,
        module_kept_var_idx=lowering.kept_var_idx,
        uses_global_constants=lowering.uses_dim_vars,
        _get_vjp=_ExportVjp(lowering.jaxpr, Surroundings.now(), weights),
    )


def _log(lowering: Lowering, version: int, module: Any, dumped: str | None, size: int) -> None:
    logger.debug("exported %s for %s, calling convention %d", shown(lowering.fun_name), lowering.platforms, version)
    if dumped:
        logger.debug("its module takes %d bytes and is in %s, in jax_dump_ir_to", size, shown(dumped))
    else:
        logger.debug("its module takes %d bytes:\n%s", size, _jax.module_to_string(module))
        logger.debug("to have modules written to files instead, set jax_dump_ir_to (JAX_DUMP_IR_TO)")


class _ExportVjp(LaterVjp):
    """Exports the VJP of a function that was exported in this process, in the surroundings of that export."""

    __slots__ = ("_jaxpr", "_surroundings", "_weights")

    def __init__(self, jaxpr: Any, surroundings: Surroundings, weights: StillThere | None) -> None:
        self._jaxpr, self._surroundings, self._weights = jaxpr, surroundings, weights

    def __call__(self, primal: Exported) -> Exported:
        with self._surroundings.restored():
            function, specs = vjp_function(
                self._jaxpr,
                primal.in_avals,
                primal._in_named_shardings,
                primal.out_avals,
                primal._out_named_shardings,
            )
            how = _How(
                primal.platforms,
                primal.disabled_safety_checks,
                None,
                batch_dims.of_vjp(primal),
                data.facts_of(primal).compatibility,
            )
            if self._weights is None:
                return how.export(function, specs, {})
            return how.export(function, specs, {}, self._weights.without_copies, self._weights.arrays())

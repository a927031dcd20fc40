"""Exports a function: lowers, wraps, checks and serializes one module."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import re
from collections.abc import Callable, Generator, Sequence
from typing import Any

import jax

from jaxexp import _jax
from jaxexp._errors import ExportError, shown
from jaxexp._kernel.artifact import module_head
from jaxexp._kernel.function import data, sharding
from jaxexp._kernel.function.convention import NEWEST_VERSION, OLDEST_VERSION
from jaxexp._kernel.function.data import ExportedData
from jaxexp._kernel.function.safety_check import DisabledSafetyCheck
from jaxexp._kernel.function.specs import check_one_scope
from jaxexp._kernel.function.vjps import LaterVjp
from jaxexp._kernel.module import batch_dim as batch_dims
from jaxexp._kernel.module import locations, main, mlir
from jaxexp._kernel.module.custom_calls import check_stable
from jaxexp._kernel.write.reader import for_choice, lowering_context

from .lower import Lifting, Lowering, lower

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, slots=True)
class Exporting:
    """The options of `export`, and the class of the functions that it makes."""

    made: type[ExportedData]
    platforms: tuple[str, ...]
    checks: Sequence[DisabledSafetyCheck]
    override_lowering_rules: Sequence[tuple[Any, Any]] | None
    batch_dim: str | None
    compatibility: str | None
    reproducible: bool
    # The calls around this export, and for a VJP also those around the export of its function.
    outside: tuple[tuple[locations.Frame, ...], ...]

    def export(
        self,
        fun_jit: Any,
        args_specs: Sequence[Any],
        kwargs_specs: dict[str, Any],
        lifting: Lifting | None = None,
    ) -> Any:
        """Exports a jitted function for arguments of these specs."""
        version: int = _jax.calling_convention_flag.value
        if not OLDEST_VERSION <= version <= NEWEST_VERSION:
            raise ExportError(
                f"jax_export_calling_convention_version is set to {version}; versions that can be exported are "
                f"{OLDEST_VERSION} to {NEWEST_VERSION}"
            )
        check_one_scope(_jax.function_name(fun_jit), args_specs, kwargs_specs)
        # Sizes that are computed from dimension variables are traced when the module is wrapped, after the lowering.
        with exporting_anew() if self.reproducible else contextlib.nullcontext():
            with lowering_context(self.compatibility), advising_on_tracing():
                lowering = lower(
                    fun_jit, args_specs, kwargs_specs, self.platforms, self.override_lowering_rules, lifting
                )
            if self.batch_dim is not None:
                facts = lowering.in_avals, lowering.in_tree, lowering.out_avals, lowering.out_tree
                batch_dims.check(self.batch_dim, lowering.fun_name, *facts)
            exported = self._exported(lowering, version, None if lifting is None else lifting.of_vjp())
        if self.batch_dim is not None:
            data.note(exported, padded=(self.batch_dim,))
        if self.compatibility is None:
            return exported
        # In the form for the chosen reader. The function remembers the choice.
        _, (written,) = for_choice([exported], self.compatibility, 0 if lifting is None else lifting.count)
        return data.note(written, compatibility=self.compatibility)

    def _exported(self, lowering: Lowering, version: int, lifting_of_vjp: Lifting | None) -> Any:
        is_wrapped = _jax.any_symbolic(lowering.in_avals) or bool(lowering.ordered_effects)
        # The lowering's own module is in JAX's caches. An attribute that describes it does no harm there. With large
        # constants, a copy would cost more than everything else.
        module = mlir.copy(lowering.module) if is_wrapped or self.batch_dim is not None else lowering.module
        if is_wrapped:
            main.wrap_main(module, lowering.in_avals, lowering.in_tree, lowering.has_platform_index)
        main.say_whether_polymorphic(module, lowering.uses_global_constants)
        if self.batch_dim is not None:
            batch_dims.declare(module, self.batch_dim)
        if self.reproducible:  # then the lowering is of this export only
            locations.reduce(module, "names", self.outside)
        dumped = _jax.dump_module_to_file(module, "export")
        serialized = mlir.serialize(module)
        if logger.isEnabledFor(logging.DEBUG):
            _log(lowering, version, module, dumped, len(serialized))
        if module_head.may_name(serialized, "custom_call"):
            check_stable(module, {target for check in self.checks if (target := check.is_custom_call())})
        return self.made(
            **{name: getattr(lowering, name) for name in _OF_LOWERING},
            in_shardings_hlo=(None,) * len(lowering.in_avals),
            out_shardings_hlo=(None,) * len(lowering.out_avals),
            disabled_safety_checks=self.checks,
            mlir_module_serialized=serialized,
            calling_convention_version=version,
            _get_vjp=_ExportVjp(
                lowering.jaxpr, Surroundings.now(), lifting_of_vjp, self.outside if self.reproducible else None
            ),
        )


_OF_LOWERING = {field.name for field in dataclasses.fields(Lowering)} & {
    field.name for field in dataclasses.fields(ExportedData)
}


def _log(lowering: Lowering, version: int, module: Any, dumped: str | None, size: int) -> None:
    logger.debug("exported %s for %s, calling convention %d", shown(lowering.fun_name), lowering.platforms, version)
    if dumped:
        logger.debug("its module takes %d bytes and is in %s, in jax_dump_ir_to", size, shown(dumped))
    else:
        logger.debug("its module takes %d bytes:\n%s", size, _jax.module_to_string(module))
        logger.debug("to have modules written to files instead, set jax_dump_ir_to (JAX_DUMP_IR_TO)")


class _ExportVjp(LaterVjp):
    """Exports the VJP of a function that was exported in this process, in the surroundings of that export."""

    __slots__ = ("_jaxpr", "_lifting", "_outside", "_surroundings")

    def __init__(
        self,
        jaxpr: Any,
        surroundings: Surroundings,
        lifting: Lifting | None,
        outside: tuple[tuple[locations.Frame, ...], ...] | None,
    ) -> None:
        """`outside` is None unless the function is reproducible."""
        self._jaxpr, self._surroundings, self._lifting, self._outside = jaxpr, surroundings, lifting, outside

    def __call__(self, primal: ExportedData) -> Any:
        with self._surroundings.restored():
            function, specs = _vjp_function(self._jaxpr, primal)
            how = Exporting(
                type(primal),
                primal.platforms,
                primal.disabled_safety_checks,
                None,
                batch_dims.of_vjp(primal),
                data.compatibility_of(primal),
                self._outside is not None,
                () if self._outside is None else (*self._outside, locations.callers()),
            )
            return how.export(function, specs, {}, self._lifting)


def _vjp_function(jaxpr: Any, primal: ExportedData) -> tuple[Callable[..., Any], list[Any]]:
    """The jitted VJP of a jaxpr, and the abstract values to export it with: the flat primal arguments and one cotangent
    per result. It returns one cotangent per argument, of dtype float0 if the primal is not differentiable.
    """
    function, n = _jax.jaxpr_as_fun(jaxpr), len(primal.in_avals)

    def fun_vjp_jax(*primals_and_cotangents: Any) -> Any:  # named as jax.export names it: the name is in the artifact
        _, pullback = jax.vjp(function, *primals_and_cotangents[:n])
        return pullback(list(primals_and_cotangents[n:]))

    of_primals = tuple(map(sharding.for_jit, primal._in_named_shardings))
    of_cotangents = tuple(sharding.of_cotangent(sharding.for_jit(s)) for s in primal._out_named_shardings)
    jitted = jax.jit(fun_vjp_jax, in_shardings=of_primals + of_cotangents, out_shardings=of_primals)
    return jitted, [*primal.in_avals, *(aval.to_ct_aval() for aval in primal.out_avals)]


_COMPARISON = re.compile(r"comparison '(.+?)' (<|<=|>|>=) '(.+?)' is inconclusive")
_REMAINDER = re.compile(r"[Tt]he remainder (mod\(.+\)) should be 0|division: rest is (mod\(.+\))")
_BY_NUMBER = re.compile(r"mod\(.+, (- ?)?[0-9]+\)")
_DIFFER = re.compile("ncompatible|same shape|shapes that differ")
_EXTREME = re.compile(r"\b(min|max)\(([^(),]+), ([^(),]+)\)")
_ROUNDED = re.compile(r"([0-9]+)\*floordiv\((\w+), \1\)")
_STATE = re.compile(r"Cannot mutate (\w+) from a different trace level")
_NUMBER = re.compile(r"(- ?)?[0-9]+")


@contextlib.contextmanager
def advising_on_tracing() -> Generator[None]:
    """Adds a note to an error of JAX about symbolic dimensions, if a constraint can help, and to Flax's about state."""
    try:
        yield
    except (jax.errors.InconclusiveDimensionOperation, ValueError, TypeError) as error:
        if advice := _advice(str(error)):
            error.add_note(advice)
        raise
    except Exception as error:  # Flax may not be here, so its class has no name
        if (found := _STATE.match(str(error))) is not None:
            error.add_note(
                f"The model changes a {found[1]} that the function closes over. For inference, call model.eval() "
                "before nnx.split. Otherwise pass this part of the state as an argument, and return it."
            )
        raise


def _advice(message: str) -> str | None:
    if (found := _COMPARISON.search(message)) is not None:
        left, operator, right = found.groups()
        always, never = {
            "<": (f"<= {_plus(right, -1)}", f">= {right}"),
            "<=": (f"<= {right}", f">= {_plus(right, 1)}"),
            ">": (f">= {_plus(right, 1)}", f"<= {right}"),
            ">=": (f">= {right}", f"<= {_plus(right, -1)}"),
        }[operator]
        return (
            f"If {left} {operator} {right} holds for all sizes, add constraints=['{left} {always}'] to symbolic_shape; "
            f"if it holds for none, add constraints=['{left} {never}']."
        )
    if (found := _REMAINDER.search(message)) is not None:
        remainder = found[1] or found[2]
        if _BY_NUMBER.fullmatch(remainder):
            return _if_always([f"{remainder} == 0"])
        # JAX cannot divide by what may be 0, also in a constraint. But 2*floordiv(n, 2) is n, if 2 divides n.
        return _if_always([f"mod({name}, {number}) == 0" for number, name in _ROUNDED.findall(remainder)])
    if _DIFFER.search(message):
        return _if_always(_of_extremes(message))
    return None


def _of_extremes(message: str) -> list[str]:
    """What makes shapes equal whose sizes have minima and maxima with numbers, as slices make them."""
    sizes = {size.strip() for size in re.split(r"[\[\](),]", _EXTREME.sub("", message))}
    found = []
    for kind, *operands in _EXTREME.findall(message):
        number, other = sorted(operands, key=lambda operand: _NUMBER.fullmatch(operand) is None)
        if not _NUMBER.fullmatch(number) or _NUMBER.fullmatch(other):
            continue
        needed = next((operand for operand in (number, other) if operand in sizes), None)
        is_less = needed is not None and (kind == "min") == (needed == other)
        found.append(f"{other} {'<=' if is_less else '>='} {number}")
    return found


def _if_always(constraints: list[str]) -> str | None:
    given = list(dict.fromkeys(constraints))
    return f"If that holds for all sizes, add constraints={given} to symbolic_shape." if given else None


def _plus(dimension: str, number: int) -> str:
    if re.fullmatch(r"-?[0-9]+", dimension):
        return str(int(dimension) + number)
    return f"{dimension} {'+' if number > 0 else '-'} {abs(number)}"


# Not in the keys of JAX's caches, but `export` reads them.
_OF_EXPORT = ("jax_export_calling_convention_version", "jax_export_ignore_forward_compatibility")
# JAX's defaults.
_OF_LOCATIONS = {"jax_include_full_tracebacks_in_locations": True, "jax_traceback_in_locations_limit": 10}


@dataclasses.dataclass(frozen=True, slots=True)
class Surroundings:
    """The state of a thread, and of JAX's configuration, at one moment."""

    configured: tuple[tuple[Any, Any], ...]  # each state of the configuration, and its value
    others: tuple[Any, ...]  # the thread's settings in `_jax.other_surroundings`
    meshes: tuple[Any, ...]  # from `with mesh:`, the innermost last

    @classmethod
    def now(cls) -> Surroundings:
        names = (*_jax.names_of_surroundings(), *_OF_EXPORT)
        states = [_jax.config_states[name] for name in names if name in _jax.config_states]
        return cls(
            configured=tuple((state, state.value) for state in states),
            others=tuple(context.get_local() for context in _jax.other_surroundings),
            meshes=tuple(_jax.thread_resources.stack),
        )

    @contextlib.contextmanager
    def restored(self) -> Generator[None]:
        """A context that restores these surroundings."""
        with contextlib.ExitStack() as undo:
            for state, value in self.configured:
                if state.value != value:
                    undo.enter_context(state(value))
            for context, value in zip(_jax.other_surroundings, self.others, strict=True):
                undo.callback(context.set_local, context.swap_local(value))
            resources = _jax.thread_resources
            undo.callback(_set_meshes, resources.stack)
            _set_meshes(list(self.meshes))
            yield


@contextlib.contextmanager
def exporting_anew() -> Generator[None]:
    """A context in which JAX's caches have no trace and no lowering from outside of it, and locations have the same
    calls whatever is set.
    """
    # Each value of the first setting has entries of its own.
    with _jax.jit_cache(_jax.JitCache(capacity=256)), contextlib.ExitStack() as settings:
        for name, value in _OF_LOCATIONS.items():
            settings.enter_context(_jax.config_states[name](value))
        yield


def _set_meshes(stack: list[Any]) -> None:
    _jax.thread_resources.stack, _jax.thread_resources.env = stack, stack[-1]

"""Exports a function: traces, lowers, wraps, checks and serializes one module."""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import jax
from jax.core import Tracer

from jaxexp import _jax
from jaxexp._errors import ExportError, ExportRuntimeError, ExportTypeError, Lines, UnsupportedError, cause, shown
from jaxexp._kernel.artifact import module_head
from jaxexp._kernel.function import data, sharding
from jaxexp._kernel.function.convention import NEWEST_VERSION, OLDEST_VERSION
from jaxexp._kernel.function.data import ExportedData
from jaxexp._kernel.function.safety_check import DisabledSafetyCheck
from jaxexp._kernel.function.specs import check_dims
from jaxexp._kernel.function.vjps import LaterVjp
from jaxexp._kernel.module import batch_dim as batch_dims
from jaxexp._kernel.module import locations, main, mlir
from jaxexp._kernel.module.custom_calls import check_stable
from jaxexp._public import public

logger = logging.getLogger(__name__)

# --- lowering: from a jitted function and argument specs to a module and everything its signature needs ---------------


class Lowering(NamedTuple):
    """One function as JAX lowers it, and the fields of an `Exported` that follow; lists in them cover all arguments,
    whether the module keeps them or not.
    """

    jaxpr: Any
    module: Any  # MLIR module; it belongs to JAX's caches, so do not change it
    has_platform_index: bool
    fields: dict[str, Any]


class Lifting(Protocol):
    """Turns constants of a traced function into arguments: those that become weights, or, for the export of a VJP,
    those that already are weights.
    """

    @property
    def count(self) -> int:
        """How many arguments were added in front; known after a function was rewritten."""
        ...

    def rewritten(self, traced: Any) -> Any:
        """The `jax.stages.Traced` with arguments in place of constants."""
        ...

    def of_vjp(self) -> Lifting | None:
        """The `Lifting` for the VJP of the last rewritten function; None if there is nothing to do."""
        ...


@public
def default_export_platform() -> str:
    """The platform that `export` lowers for by default: the platform of JAX's default backend.

    It is ``"cpu"``, ``"cuda"``, ``"rocm"``, ``"tpu"``, or a platform that a plugin added.
    """
    return _jax.platform_name()


def platform_of(device: Any) -> str:
    """The platform that a device is for: ``"cuda"`` of NVIDIA's GPUs, which say that they are ``"gpu"``."""
    return _jax.platform_name(device.platform)


def lower(
    fun_jit: Any,
    args_specs: Sequence[Any],
    kwargs_specs: dict[str, Any],
    platforms: Sequence[str],
    override_lowering_rules: Any,
    lifting: Lifting | None = None,
) -> Lowering:
    """Traces and lowers a jitted function for all `platforms` together."""
    traced = fun_jit.trace(*args_specs, **kwargs_specs)
    if not isinstance(traced, jax.stages.Traced):
        raise ExportTypeError(not_jitted(fun_jit))
    found = next((one for one in _jax.closed_over(traced) if isinstance(one, Tracer)), None)
    if found is not None:
        raise ExportError(
            f"{traced.fun_name} closes over a tracer for {found.aval}: JAX is tracing the function that makes it, by "
            "jax.jit, jax.grad or jax.vmap, so it has no numbers yet. Pass it as an argument"
        )
    if lifting is not None:
        traced = lifting.rewritten(traced)
    check_platforms(traced.fun_name, platforms)
    lowered = traced.lower(
        lowering_platforms=tuple(platforms), _private_parameters=_jax.lowering_parameters(override_lowering_rules)
    )
    computation = _jax.computation_of(lowered)
    _check_lowering(computation, traced.jaxpr)
    facts = computation.compile_args

    in_avals = tuple(jax.tree_util.tree_leaves(lowered.in_avals))
    out_avals = tuple(facts["global_out_avals"])
    kept_var_idx = tuple(sorted(facts["kept_var_idx"]))
    in_shardings: list[Any] = [_jax.UNSPECIFIED] * len(in_avals)
    for index, found in zip(kept_var_idx, facts["in_shardings"], strict=True):
        in_shardings[index] = found
    out_shardings = facts["out_shardings"]
    on_meshes = (s for s in (*in_shardings, *out_shardings) if isinstance(s, _jax.NamedSharding))
    mesh = next((one.mesh.abstract_mesh for one in on_meshes), None)
    shape_poly_state = facts["shape_poly_state"]
    fields = {
        "fun_name": traced.fun_name,
        "in_tree": lowered.in_tree,
        "in_avals": in_avals,
        "_in_named_shardings": tuple(
            sharding.to_named(s, a, mesh) for s, a in zip(in_shardings, in_avals, strict=True)
        ),
        "out_tree": lowered.out_tree,
        "out_avals": out_avals,
        "_out_named_shardings": tuple(
            sharding.to_named(s, a, mesh) for s, a in zip(out_shardings, out_avals, strict=True)
        ),
        "module_kept_var_idx": kept_var_idx,
        "nr_devices": facts["num_devices"],
        "platforms": tuple(_jax.platforms_of(computation)),
        "ordered_effects": tuple(facts["ordered_effects"]),
        # They come from a set. In this order, the same function has the same bytes in every process.
        "unordered_effects": tuple(sorted(facts["unordered_effects"], key=lambda effect: str(type(effect)))),
        "uses_global_constants": shape_poly_state.uses_dim_vars,
    }
    return Lowering(traced.jaxpr, computation.stablehlo(), shape_poly_state.has_platform_index_argument, fields)


def platform_names(given: Any) -> tuple[str, ...]:
    """The names of platforms that a caller gives: several, or a single one."""
    is_one = isinstance(given, (str, bytes)) or not isinstance(given, Iterable)
    found: tuple[Any, ...] = (given,) if is_one else tuple(given)
    for one in found:
        if (is_one and not isinstance(one, str)) or isinstance(one, (bytes, jax.Device)):
            what = f"the device {one}" if isinstance(one, jax.Device) else repr(one)[:80]
            raise ExportTypeError(
                f"platforms takes the names of platforms, such as 'cpu', 'cuda' or 'tpu', not {what}: say "
                "platforms=['cpu', 'cuda']"
            )
    return found


def check_platforms(fun_name: str, platforms: Sequence[Any]) -> None:
    """Explains the names of platforms that mean nothing here. JAX lowers for names that it does not know, too."""
    if "gpu" in platforms:  # stands for the platform of the GPUs in this process
        try:
            jax.devices("gpu")
        except RuntimeError as error:
            raise ExportRuntimeError(
                f"exporting {fun_name} for 'gpu': this process has no GPU, so the kind of GPU is not known. Name the "
                "platform: 'cuda' for GPUs of NVIDIA, or 'rocm' for GPUs of AMD"
            ) from cause(error)
    known = _jax.known_platforms()
    if unknown := [platform for platform in platforms if platform not in known]:
        logger.warning(
            "exporting %s for %s, which is not a platform of this JAX or of a plugin that is installed here (%s)",
            shown(fun_name),
            shown(", ".join(map(repr, unknown))),
            ", ".join(sorted(known)),
        )


# Objects that call `jit` inside, for arguments that are not only arrays: the module of their type, and what to do.
_JIT_INSIDE = {
    "equinox": "equinox.filter_jit keeps all but arrays out of jit's arguments. Do the same: with arrays, rest = "
    "equinox.partition(model, equinox.is_array), export jax.jit(lambda arrays, x: equinox.combine(arrays, rest)(x))",
    "flax": "nnx.jit takes modules apart and puts them together again. Do the same: with graphdef, state = "
    "nnx.split(model), export jax.jit(lambda state, x: nnx.merge(graphdef, state)(x))",
}


def is_jitted(fun_jit: Any) -> bool:
    return isinstance(fun_jit, _jax.Wrapped)


def not_jitted(fun_jit: Any) -> str:
    """The message for something that `jax.jit` did not make: what to do instead."""
    library = type(fun_jit).__module__.partition(".")[0]
    if library in _JIT_INSIDE:
        name = getattr(fun_jit, "__name__", type(fun_jit).__name__)
        return f"export needs a function made by jax.jit; {name} is a {type(fun_jit).__name__}. {_JIT_INSIDE[library]}"
    if isinstance(fun_jit, _jax.Exported):
        exported: str = fun_jit.fun_name  # type: ignore[attr-defined]
        return f"export needs a function made by jax.jit; {exported} is exported already: pass jax.jit(exported.call)"
    text = repr(fun_jit)  # of a model, that may be a page
    what = text if len(text) <= 200 and text.isprintable() else f"an object of {type(fun_jit)}"
    return f"export needs a function made by jax.jit, not {what}: pass jax.jit(function)"


# Facts about compilation that do not change what a lowered module means or how it is called. A name that is missing
# here came with a newer JAX, and is refused until somebody has looked at it.
_KNOWN_COMPILE_ARGS = frozenset(
    "all_args_info all_default_mem_kind auto_spmd_lowering backend committed context_mesh device_assignment "
    "global_in_avals global_out_avals host_callbacks in_layouts in_shardings intermediate_shardings "
    "jaxpr_debug_info keepalive kept_var_idx mesh mut num_devices ordered_effects out_layouts out_shardings "
    "pgle_profiler platforms shape_poly_state tuple_args unordered_effects".split()
)


def _check_lowering(computation: Any, jaxpr: Any) -> None:
    if not isinstance(computation, _jax.MeshComputation):
        raise UnsupportedError(f"only functions made by jax.jit can be exported; this one was lowered as {computation}")
    facts = computation.compile_args
    if facts.get("host_callbacks") or facts.get("keepalive"):
        raise UnsupportedError(why_callbacks_are_refused(jaxpr))
    if facts.get("mut"):
        raise UnsupportedError(
            "the function reads or writes mutable arrays (Refs), which cannot be exported: take and return their values"
        )
    if facts.get("auto_spmd_lowering"):
        raise UnsupportedError("shardings that are left to the compiler (AUTO) cannot be exported: state them")
    if unknown := sorted(facts.keys() - _KNOWN_COMPILE_ARGS):
        raise UnsupportedError(
            f"the lowering says {', '.join(unknown)}, which this version of jaxexp does not know: use a newer one"
        )


_MOST_PLACES = 5


def why_callbacks_are_refused(jaxpr: Any) -> str:
    """Lists the calls to Python in a function, with their source lines, and what to do about the usual ones."""
    calls = list(_calls(jaxpr))
    places = list(dict.fromkeys(f"  {chain[-1].primitive.name} at {_place(chain)}" for chain in calls))
    if len(places) > _MOST_PLACES:
        places[_MOST_PLACES:] = [f"  and {len(places) - _MOST_PLACES} more"]
    names = {chain[-1].primitive.name for chain in calls}
    advice = ["Take the callbacks out, or export the parts around them."]
    if names & {"debug_callback", "debug_print"}:
        advice.append("jax.debug.print and jax.debug.callback only show values, and can be left out.")
    if any(_library(frame) == "equinox" for chain in calls for frame in _frames(chain[-1])):
        advice.append(
            "equinox.error_if, which much of equinox uses, raises its errors in Python: set the environment variable "
            "EQX_ON_ERROR to nan or off before equinox is imported."
        )
    found = ":" if places else "."
    return Lines.of(
        [f"the function calls back to Python, and Python code cannot be exported{found}", *places, " ".join(advice)]
    )


def _calls(jaxpr: Any) -> Iterator[tuple[Any, ...]]:
    """The equations that call back to Python, in a jaxpr and the jaxprs inside it, each after its outer equations."""
    pending: list[tuple[Any, tuple[Any, ...]]] = [(jaxpr, ())]
    seen: set[int] = set()
    while pending:
        current, outer = pending.pop()
        for equation in current.eqns:
            chain = (*outer, equation)
            if equation.primitive.name.endswith("_callback") or equation.primitive.name == "debug_print":
                yield chain
            for inner in _jax.jaxprs_in_params(equation.params):
                if id(inner) not in seen:
                    seen.add(id(inner))
                    pending.append((inner, chain))


def _frames(equation: Any) -> list[Any]:
    """The stack of an equation without JAX's own frames, innermost first."""
    return list(_jax.user_frames(equation.source_info.traceback))


def _library(frame: Any) -> str | None:
    """The installed package that a frame belongs to; None for a user's own file."""
    found = re.search(r"[\\/](?:site|dist)-packages[\\/](\w+)", frame.file_name)
    return found[1] if found else None


def _place(chain: tuple[Any, ...]) -> str:
    """The source line of an equation, in the user's code or a library other than JAX."""
    # A library may trace a part of the function late. Then an outer equation has the user's line.
    frames = [frame for equation in reversed(chain) for frame in _frames(equation)]
    if not frames:
        return "an unknown place"
    own = next((frame for frame in frames if _library(frame) is None), frames[0])
    inside = f", inside {_library(frames[0])}" if _library(frames[0]) else ""
    return f"{own.file_name}:{own.start_line} ({own.function_name}){inside}"


# --- exporting --------------------------------------------------------------------------------------------------------


class Exporting(NamedTuple):
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
        version: int = _jax.calling_convention_flag.value
        if not OLDEST_VERSION <= version <= NEWEST_VERSION:
            raise ExportError(
                f"jax_export_calling_convention_version is set to {version}; versions that can be exported are "
                f"{OLDEST_VERSION} to {NEWEST_VERSION}"
            )
        check_dims(_jax.function_name(fun_jit), args_specs, kwargs_specs)
        # Sizes that are computed from dimension variables are traced when the module is wrapped, after the lowering.
        with exporting_anew() if self.reproducible else contextlib.nullcontext():
            with self._lowering_context(), advising_on_tracing():
                lowering = lower(
                    fun_jit, args_specs, kwargs_specs, self.platforms, self.override_lowering_rules, lifting
                )
            if self.batch_dim is not None:
                names = "fun_name", "in_avals", "in_tree", "out_avals", "out_tree"
                batch_dims.check(self.batch_dim, *map(lowering.fields.__getitem__, names))
            exported = self._exported(lowering, version, None if lifting is None else lifting.of_vjp())
        if self.batch_dim is not None:
            data.note(exported, padded=(self.batch_dim,))
        if self.compatibility is None:
            return exported
        # In the form for the chosen reader. The function remembers the choice.
        from jaxexp._kernel.write.reader import for_choice

        _, (written,) = for_choice([exported], self.compatibility, 0 if lifting is None else lifting.count)
        return data.note(written, compatibility=self.compatibility)

    def _lowering_context(self) -> Any:
        if self.compatibility is None:
            return contextlib.nullcontext()
        from jaxexp._kernel.write.reader import lowering_context

        return lowering_context(self.compatibility)

    def _exported(self, lowering: Lowering, version: int, lifting_of_vjp: Lifting | None) -> Any:
        fields = lowering.fields
        is_wrapped = _jax.any_symbolic(fields["in_avals"]) or bool(fields["ordered_effects"])
        # The lowering's own module is in JAX's caches. An attribute that describes it does no harm there. With large
        # constants, a copy would cost more than everything else.
        module = mlir.copy(lowering.module) if is_wrapped or self.batch_dim is not None else lowering.module
        if is_wrapped:
            main.wrap_main(module, fields["in_avals"], fields["in_tree"], lowering.has_platform_index)
        main.say_whether_polymorphic(module, fields["uses_global_constants"])
        if self.batch_dim is not None:
            batch_dims.declare(module, self.batch_dim)
        if self.reproducible:  # then the lowering is of this export only
            locations.reduce(module, "names", self.outside)
        dumped = _jax.dump_module_to_file(module, "export")
        serialized = mlir.serialize(module)
        if logger.isEnabledFor(logging.DEBUG):
            _log(fields, version, module, dumped, len(serialized))
        if module_head.may_name(serialized, "custom_call"):
            check_stable(module, {target for check in self.checks if (target := check.is_custom_call())})
        return self.made(
            **fields,
            in_shardings_hlo=(None,) * len(fields["in_avals"]),
            out_shardings_hlo=(None,) * len(fields["out_avals"]),
            disabled_safety_checks=self.checks,
            mlir_module_serialized=serialized,
            calling_convention_version=version,
            _get_vjp=_ExportVjp(
                lowering.jaxpr, Surroundings.now(), lifting_of_vjp, self.outside if self.reproducible else None
            ),
        )


def _log(fields: dict[str, Any], version: int, module: Any, dumped: str | None, size: int) -> None:
    logger.debug("exported %s for %s, calling convention %d", shown(fields["fun_name"]), fields["platforms"], version)
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


@contextlib.contextmanager
def advising_on_tracing() -> Generator[None]:
    """Adds a note to an error of a trace, if there is something that helps."""
    try:
        yield
    except Exception as error:
        from .advice import advise  # its patterns take longer to compile than the rest of this module

        advise(error)
        raise


# Not in the keys of JAX's caches, but `export` reads them.
_OF_EXPORT = ("jax_export_calling_convention_version", "jax_export_ignore_forward_compatibility")
# JAX's defaults.
_OF_LOCATIONS = {"jax_include_full_tracebacks_in_locations": True, "jax_traceback_in_locations_limit": 10}


class Surroundings(NamedTuple):
    """The state of a thread, and of JAX's configuration, at one moment."""

    configured: list[tuple[Any, Any]]  # each state of the configuration, and its value
    others: list[Any]  # the thread's settings in `_jax.other_surroundings`
    meshes: list[Any]  # from `with mesh:`, the innermost last

    @classmethod
    def now(cls) -> Surroundings:
        names = (*_jax.names_of_surroundings(), *_OF_EXPORT)
        states = [_jax.config_states[name] for name in names if name in _jax.config_states]
        others = [context.get_local() for context in _jax.other_surroundings]
        return cls([(state, state.value) for state in states], others, list(_jax.thread_resources.stack))

    @contextlib.contextmanager
    def restored(self) -> Generator[None]:
        with contextlib.ExitStack() as undo:
            for state, value in self.configured:
                if state.value != value:
                    undo.enter_context(state(value))
            for context, value in zip(_jax.other_surroundings, self.others, strict=True):
                undo.callback(context.set_local, context.swap_local(value))
            undo.callback(_set_meshes, _jax.thread_resources.stack)
            _set_meshes([*self.meshes])
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

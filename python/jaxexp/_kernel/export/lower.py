"""From a jitted function and argument specs to a lowered StableHLO module and everything its signature needs."""

from __future__ import annotations

import dataclasses
import logging
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

import jax

from jaxexp import _jax
from jaxexp._errors import ExportRuntimeError, ExportTypeError, Lines, UnsupportedError, cause, shown
from jaxexp._kernel.function.sharding import to_named
from jaxexp._public import public

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, slots=True)
class Lowering:
    """One function as JAX lowers it; lists cover all arguments, whether the module keeps them or not.

    Fields of an `Exported` have its names here.
    """

    fun_name: str
    jaxpr: Any
    module: Any  # MLIR module; it belongs to JAX's caches, so do not change it
    in_tree: Any
    in_avals: tuple[Any, ...]
    _in_named_shardings: tuple[Any, ...]  # NamedSharding on an abstract mesh, or None
    out_tree: Any
    out_avals: tuple[Any, ...]
    _out_named_shardings: tuple[Any, ...]
    module_kept_var_idx: tuple[int, ...]
    nr_devices: int
    platforms: tuple[str, ...]
    ordered_effects: tuple[Any, ...]
    unordered_effects: tuple[Any, ...]
    has_platform_index: bool
    uses_global_constants: bool


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
    for index, sharding in zip(kept_var_idx, facts["in_shardings"], strict=True):
        in_shardings[index] = sharding
    out_shardings = facts["out_shardings"]
    on_meshes = (s for s in (*in_shardings, *out_shardings) if isinstance(s, _jax.NamedSharding))
    mesh = next((sharding.mesh.abstract_mesh for sharding in on_meshes), None)
    shape_poly_state = facts["shape_poly_state"]
    return Lowering(
        fun_name=traced.fun_name,
        jaxpr=traced.jaxpr,
        module=computation.stablehlo(),
        in_tree=lowered.in_tree,
        in_avals=in_avals,
        _in_named_shardings=tuple(to_named(s, a, mesh) for s, a in zip(in_shardings, in_avals, strict=True)),
        out_tree=lowered.out_tree,
        out_avals=out_avals,
        _out_named_shardings=tuple(to_named(s, a, mesh) for s, a in zip(out_shardings, out_avals, strict=True)),
        module_kept_var_idx=kept_var_idx,
        nr_devices=facts["num_devices"],
        platforms=_jax.platforms_of(computation),
        ordered_effects=tuple(facts["ordered_effects"]),
        # They come from a set. In this order, the same function has the same bytes in every process.
        unordered_effects=tuple(sorted(facts["unordered_effects"], key=lambda effect: str(type(effect)))),
        has_platform_index=shape_poly_state.has_platform_index_argument,
        uses_global_constants=shape_poly_state.uses_dim_vars,
    )


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

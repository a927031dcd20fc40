"""`ExportedData`: the fields of an exported function, the facts beside them, and what is kept with it.

The verbs (`call`, `serialize`, `specialize`, ...) are in rooms above. They take an `ExportedData`, and return one of
the same class.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeVar, get_type_hints

import jax

from jaxexp import _jax, _native
from jaxexp._errors import DeserializationError, ExportError, ExportTypeError
from jaxexp._kernel.artifact.opened import first_writer
from jaxexp._kernel.artifact.words import counted, name_of_order
from jaxexp._public import public_dir

from . import sharding
from .safety_check import DisabledSafetyCheck

if TYPE_CHECKING:
    from jaxexp._kernel.artifact.cases import Cases
    from jaxexp._native import Artifact


# --- values that are computed from a function once, when they are first needed ----------------------------------------


_Owner = TypeVar("_Owner", bound="Attributes")
T = TypeVar("T")


class Kept:
    """The values that one function keeps, as attributes; all may be thrown away. docs/design.md has a table of them."""

    eager_call: Callable[..., Any] | None = None  # each call reads it, also for functions that keep nothing
    file: str | None = None  # the file or the member of an archive that `load` read, for errors about its bytes


class Attributes:
    """The place of a function's attributes, whatever `__dict__` is in its class.

    Besides its fields these are `_facts`, `_kept`, and `_artifact` if it was loaded. Each may be absent.
    """

    _kept = Kept()


#: The attributes that a function has so far. `__dict__` also decodes the fields of its artifact, and has them too.
attributes_of: Callable[[Any], dict[str, Any]] = vars(Attributes)["__dict__"].__get__


def kept_by(exported: Attributes) -> Kept:
    """The values that a function keeps. Callers may add to them."""
    attributes = attributes_of(exported)
    return attributes["_kept"] if "_kept" in attributes else attributes.setdefault("_kept", Kept())


def kept(exported: _Owner, name: str, make: Callable[[_Owner], T]) -> T:
    """The result of `make` for a function, made once and kept with the function under a name."""
    known = vars(exported._kept)
    if name not in known:  # several threads may make it at once; all return the result of one of them
        known = vars(kept_by(exported))
        known.setdefault(name, make(exported))
    return known[name]


class MadeLater:
    """An attribute that `make` makes for a function on first use, and keeps with it. A function's own attribute of the
    same name comes first. Protocols look for data in the class. They find this, and nothing is made for them.
    """

    __slots__ = ("make", "name")

    def __init__(self, name: str, make: Callable[[Any], Any]) -> None:
        self.name, self.make = name, make

    def __get__(self, function: Any, owner: type) -> Any:
        if function is None:  # fields of a dataclass are not in its class, unless they have defaults
            raise AttributeError(
                f"type object {owner.__name__!r} has no attribute {self.name!r}", name=self.name, obj=owner
            )
        return self.make(function)


# --- what a function knows besides its fields -------------------------------------------------------------------------


class Written(NamedTuple):
    """A tree whose artifact describes classes that are not registered for serialization: the tree in this process, with
    the classes that are loaded here, and as the artifact describes it, with generic nodes in their place. The children
    of a class may have another order there, so this is what is written again.
    """

    tree: Any
    written: Any


class Facts(NamedTuple):
    """What a function knows besides its fields. It travels with the function to everything that is made from it:
    through `dataclasses.replace`, `bind`, `specialize`, `migrate`, pickles, and into new artifacts.

    Each fact is None if there is nothing to say. `tests/kernel/function/test_facts.py` checks every fact on every way.
    """

    name_and_order: tuple[str, int] | None = None  # for a VJP, the name of the function and the order of the VJP
    # What the artifact has that the function was loaded from: the user's metadata, and sets of sizes of dimensions.
    metadata: Mapping[str, Any] | None = None
    sizes: Sequence[Mapping[str, int]] | None = None
    # The dimension variables along which arguments may be padded: those that it declares, or the `batch_dim` of export.
    padded: tuple[str, ...] | None = None
    first_writer: str | None = None  # of its first artifact, as in "JAX 0.4.30"; None for the installed JAX
    compatibility: str | None = None  # of the export, for which `serialize` writes by default
    # Indices of the arguments and results whose types were weak in the export. None means those whose avals are weak.
    weak_arguments: tuple[int, ...] | None = None
    weak_results: tuple[int, ...] | None = None
    in_tree: Written | None = None  # how the artifact describes it, if differently
    out_tree: Written | None = None
    # True if a policy allowed it. Then what runs is another module, as `_kernel/module/confined.py` says, so it is no
    # other function's equal. No artifact says it.
    under_policy: bool | None = None
    why_no_vjp: str | None = None  # for messages, if it was made without; no artifact says it
    # Calls that were recorded. They go along as long as the weights are the same, and into artifacts and functions
    # whose signatures they fit.
    cases: Cases | None = None

    def of(self, in_tree: Any, in_avals: Sequence[Any], out_tree: Any, out_avals: Sequence[Any]) -> Facts:
        """The facts that hold for a signature: a description needs its tree, and indices need enough values."""
        return self._replace(
            weak_arguments=_within(self.weak_arguments, len(in_avals)),
            weak_results=_within(self.weak_results, len(out_avals)),
            in_tree=_of_tree(self.in_tree, in_tree),
            out_tree=_of_tree(self.out_tree, out_tree),
        )

    def apart(self) -> dict[str, Any] | None:
        """The facts that have no place in an artifact; None if there are none."""
        names = "name_and_order", "compatibility", "under_policy", "why_no_vjp"
        facts = {name: getattr(self, name) for name in names}
        return {name: fact for name, fact in facts.items() if fact is not None} or None


NO_FACTS = Facts()


def first_writer_of(exported: Attributes) -> str | None:
    """Who wrote the first artifact of a function. No field is decoded for it."""
    return kept(exported, "first_writer", _first_writer)


def _first_writer(exported: Attributes) -> str | None:
    attributes = attributes_of(exported)
    if (artifact := attributes.get("_artifact")) is not None:
        return first_writer(artifact, jax.__version__)
    known: Facts = attributes.get("_facts", NO_FACTS)
    return known.first_writer


def _within(indices: tuple[int, ...] | None, count: int) -> tuple[int, ...] | None:
    return indices if indices is None or all(i < count for i in indices) else None


def _of_tree(found: Written | None, tree: Any) -> Written | None:
    return found if found is not None and (found.tree is tree or found.tree == tree) else None


# --- the fields -------------------------------------------------------------------------------------------------------


E = TypeVar("E", bound="ExportedData")


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class ExportedData(Attributes):
    """The data of an `Exported`; its docstring has the fields."""

    # In the order of jax.export since JAX 0.11. The constructor takes them, and patterns match them, in this order.
    fun_name: str
    in_tree: Any
    in_avals: tuple[Any, ...]
    out_tree: Any
    out_avals: tuple[Any, ...]
    _in_named_shardings: tuple[Any, ...]
    _out_named_shardings: tuple[Any, ...]
    in_shardings_hlo: tuple[Any, ...]
    out_shardings_hlo: tuple[Any, ...]
    nr_devices: int
    platforms: tuple[str, ...]
    ordered_effects: tuple[Any, ...]
    unordered_effects: tuple[Any, ...]
    disabled_safety_checks: Sequence[DisabledSafetyCheck]
    mlir_module_serialized: bytes
    calling_convention_version: int
    module_kept_var_idx: tuple[int, ...]
    uses_global_constants: bool
    _get_vjp: Callable[[Any], Any] | None
    # Not fields, but the constructor takes them; `dataclasses.replace` gives them to it.
    _has_named_shardings: dataclasses.InitVar[bool] = dataclasses.field(default=True, kw_only=True)
    _facts: dataclasses.InitVar[Facts] = dataclasses.field(default=NO_FACTS, kw_only=True)

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        _jax.kept_weakly_in_caches.add(cls)  # JAX's caches of traced functions do not keep these objects alive

    def __post_init__(self, _has_named_shardings: bool, _facts: Facts) -> None:
        if not _has_named_shardings:
            raise ExportError("an Exported is made with NamedShardings: _has_named_shardings=False is not supported")
        attributes = attributes_of(self)
        for name in _TUPLES:
            attributes[name] = tuple(attributes[name])
        named, count = set(self.module_kept_var_idx), len(self.in_avals)  # whatever order names them
        if wrong := named.difference(range(count)):
            raise ExportError(
                f"module_kept_var_idx has indices of the {counted(count, 'argument')} in in_avals, all below {count}, "
                f"found {wrong.pop()!r}. Where arguments are added or removed, replace in_tree, in_avals, the "
                "shardings and module_kept_var_idx together"
            )
        attributes["module_kept_var_idx"] = tuple(i for i in range(count) if i in named)
        attributes["disabled_safety_checks"] = tuple(map(DisabledSafetyCheck.coerce, self.disabled_safety_checks))
        if _facts is not NO_FACTS:
            attributes["_facts"] = _facts.of(self.in_tree, self.in_avals, self.out_tree, self.out_avals)

    if not TYPE_CHECKING:

        @property
        def __dict__(self) -> dict[str, Any]:
            """The attributes, with the fields of the artifact, for `vars`."""
            attributes = attributes_of(self)
            if (artifact := attributes.get("_artifact")) is not None:
                artifact.complete(attributes)
            return attributes

    __dir__ = public_dir
    __str__ = object.__str__  # the same as `repr`

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, ExportedData):
            return NotImplemented
        mine, others = vars(kept_by(self)), vars(kept_by(other))
        known = mine.get("equal")
        if known is not None and known is others.get("equal"):
            return True
        try:
            is_equal = (
                hash(self) == hash(other)
                and is_under_policy(self) == is_under_policy(other)
                and signature(self) == signature(other)
                and have_equal_modules(self, other)
                and self._get_vjp == other._get_vjp
            )
        except Exception:  # JAX's caches compare functions whenever they like, also those whose files are gone
            is_equal = False
        if is_equal:  # JAX's caches compare the same functions at each trace, and would walk long modules again
            mine["equal"] = others["equal"] = known or others.get("equal") or object()
        return is_equal

    def __hash__(self) -> int:
        return kept(self, "hash", _hash)

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def vjp(self) -> Self:
        """The VJP, which is itself an `Exported`. The first call exports or decodes it, and keeps it for later calls.

        It takes the flat primal arguments, then one cotangent per result, and returns one cotangent per argument. The
        cotangent of an integer or boolean value has dtype float0.

        Raises:
            ExportError: the function was loaded from an artifact without this VJP.
        """
        if self._get_vjp is None:
            raise no_vjp(self, 0, 1)
        return kept(self, "vjp", _vjp)

    def has_vjp(self) -> bool:
        """Whether there is a VJP. After `export`, there always is; after loading, only if it was serialized."""
        return self._get_vjp is not None


def bare(exported: E) -> E:
    """An equal function for caches: it keeps its hash, and keeps nothing alive but its data."""
    copied = object.__new__(type(exported))
    attributes = _data(attributes_of(exported))
    if (known := vars(exported._kept).get("hash")) is not None:
        attributes["_kept"] = Kept()
        vars(attributes["_kept"])["hash"] = known
    attributes_of(copied).update(attributes)
    return copied


def _data(attributes: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in attributes.items() if name in _DATA}


def varied(exported: E, **attributes: Any) -> E:
    """A function with some attributes replaced. Unlike `dataclasses.replace`, no checks and no copy of the module."""
    copied = object.__new__(type(exported))
    attributes_of(copied).update({**_data(vars(exported)), **attributes})
    return copied


def is_loaded(exported: ExportedData) -> bool:
    """Whether a function comes from an artifact, unchanged."""
    return artifact_of(exported) is not None


def weights_in_trailer(exported: ExportedData) -> Any | None:
    """What `_native.Artifact.weights` returns for the artifact of a loaded function; None if there is none."""
    artifact = artifact_of(exported)
    return None if artifact is None else artifact.weights()


def origin(exported: ExportedData) -> tuple[str, int]:
    """For messages: the name of the original function, and the order of this VJP; 0 for the function itself."""
    return facts_of(exported).name_and_order or (exported.fun_name, 0)


def no_vjp(exported: ExportedData, found: int, needed: int) -> ExportError:
    """The error for a function that has fewer VJPs, one of the other, than somebody needs."""
    name, order = origin(exported)
    if (why := facts_of(exported).why_no_vjp) is not None:
        return ExportTypeError(f"{name} {why}")  # which JAX raises in forward mode
    return ExportError(
        f"{name} has no VJP of order {order + needed}: it was serialized with vjp_order={order + found}. Export it "
        f"again from its code, and serialize it with vjp_order={order + needed} or more"
    )


def described(exported: ExportedData) -> str:
    return name_of_order(*origin(exported))


def facts_of(exported: ExportedData) -> Facts:
    known: Facts | None = attributes_of(exported).get("_facts")
    return _facts(exported) if known is None else known


def metadata_of(exported: ExportedData) -> Mapping[str, Any]:
    """The metadata of the artifact that a function was loaded from. No field is decoded for it."""
    if (artifact := artifact_of(exported)) is not None:
        return artifact.noted or {}
    known: Facts = attributes_of(exported).get("_facts", NO_FACTS)
    return known.metadata or {}


def has_notes(exported: ExportedData) -> bool:
    """Whether a function has metadata, cases, sizes, padded dimensions or an older writer, which are in a trailer."""
    attributes = attributes_of(exported)
    artifact: Artifact | None = attributes.get("_artifact")
    if artifact is not None and (artifact.noted or artifact.has_cases_or_sizes() or first_writer_of(exported)):
        return True
    known: Facts = attributes.get("_facts", NO_FACTS)
    return bool(known.metadata or known.cases or known.sizes or known.padded or known.first_writer)


def cases_of(exported: ExportedData) -> Cases | None:
    """The cases of a function, which may not all fit it. No field is decoded for them."""
    known: Facts | None = attributes_of(exported).get("_facts")
    if known is not None:
        return known.cases
    artifact = artifact_of(exported)
    return None if artifact is None else _cases_in(artifact)


def without_cases(exported: E) -> E:
    """The function without its cases, for other weights; itself if it has none."""
    if cases_of(exported) is None:
        return exported
    return varied(exported, _facts=facts_of(exported)._replace(cases=None))


def _cases_in(artifact: Artifact) -> Cases | None:
    if artifact.origin is not None or (said := artifact.cases()) is None:
        return None
    from jaxexp._kernel.artifact.cases import Cases  # few artifacts have some

    return Cases.of_trailer(said)


def sizes_of(exported: ExportedData) -> Sequence[Mapping[str, int]]:
    """The sets of sizes of the artifact that a function was loaded from. No field is decoded for it."""
    if (artifact := artifact_of(exported)) is not None:
        return artifact.sizes()
    known: Facts = attributes_of(exported).get("_facts", NO_FACTS)
    return known.sizes or ()


def padded_of(exported: ExportedData) -> tuple[str, ...]:
    """The dimension variables along which arguments may be padded. No field is decoded for it."""
    if (artifact := artifact_of(exported)) is not None:
        return artifact.padded()
    known: Facts = attributes_of(exported).get("_facts", NO_FACTS)
    return known.padded or ()


def compatibility_of(exported: ExportedData) -> str | None:
    """The `compatibility` of the export. No field is decoded for it, since no artifact says it."""
    known: Facts = attributes_of(exported).get("_facts", NO_FACTS)
    return known.compatibility


def is_under_policy(exported: ExportedData) -> bool:
    """Whether a policy allowed a function. No field is decoded for it, since no artifact says it."""
    known: Facts = attributes_of(exported).get("_facts", NO_FACTS)
    return bool(known.under_policy)


def weak_arguments(exported: ExportedData) -> tuple[int, ...]:
    """Indices into `in_avals`: the arguments whose types were weak in the export."""
    return _weak(facts_of(exported).weak_arguments, exported.in_avals)


def weak_results(exported: ExportedData) -> tuple[int, ...]:
    """Indices into `out_avals`: the results whose types were weak in the export."""
    return _weak(facts_of(exported).weak_results, exported.out_avals)


def _weak(noted: tuple[int, ...] | None, avals: Sequence[Any]) -> tuple[int, ...]:
    return tuple(i for i, aval in enumerate(avals) if aval.weak_type) if noted is None else noted


def note(exported: E, like: ExportedData | None = None, **facts: Any) -> E:
    """Adds facts to those of a function that was just made, or of another one from the same bytes, and returns it."""
    attributes_of(exported)["_facts"] = facts_of(exported if like is None else like)._replace(**facts)
    return exported


def signature(exported: ExportedData, *, without_scope: bool = False, weak_types: bool = True) -> tuple[Any, ...]:
    """Everything but the module and the VJP, for comparisons. `without_scope`, symbolic dimensions of two scopes are
    equal if their expressions and the constraints of the scopes are the same; otherwise they differ. A loaded function
    has no weak types.
    """
    compared = {name: getattr(exported, name) for name in _COMPARED}
    if not weak_types:
        compared |= {name: tuple(a.strip_weak_type() for a in compared[name]) for name in ("in_avals", "out_avals")}
    if without_scope and _jax.any_symbolic(exported.in_avals):
        constraints = _jax.explicit_constraints(exported.in_avals)
        compared["in_avals"] = (constraints, *map(_without_scope, compared["in_avals"]))
        compared["out_avals"] = tuple(map(_without_scope, compared["out_avals"]))
    return tuple(compared.values())


def _without_scope(aval: Any) -> tuple[Any, ...]:
    return tuple(map(str, aval.shape)), aval.dtype, aval.weak_type, aval.memory_space


def _hash(exported: ExportedData) -> int:
    # The module takes part by its length: walking it would cost more than the calls that need the hash. The policy does
    # not, because a late one must not change the hash.
    return hash((signature(exported), module_size(exported)))


def _vjp(exported: E) -> E:
    assert exported._get_vjp is not None
    vjp: E = exported._get_vjp(exported)
    if not is_loaded(vjp):  # an artifact says it
        name, order = origin(exported)
        note(vjp, name_and_order=(name, order + 1))
    if is_under_policy(exported):
        note(vjp, under_policy=True)
    known = vars(exported._kept)
    for name in ("executables", "file"):
        if name in known:  # it has VJPs, too
            vars(kept_by(vjp))[name] = known[name]
    return vjp


def in_hlo_shardings(exported: ExportedData) -> tuple[Any, ...]:
    """The HLO form of the arguments' shardings; None for each that is unspecified."""
    return tuple(map(sharding.to_hlo, exported._in_named_shardings, exported.in_avals))


def out_hlo_shardings(exported: ExportedData) -> tuple[Any, ...]:
    return tuple(map(sharding.to_hlo, exported._out_named_shardings, exported.out_avals))


_FIELDS = [field.name for field in dataclasses.fields(ExportedData)]
_TUPLES = (
    "in_avals", "out_avals", "_in_named_shardings", "_out_named_shardings", "in_shardings_hlo", "out_shardings_hlo",
    "platforms", "ordered_effects", "unordered_effects", "module_kept_var_idx",
)  # fmt: skip
_UNUSED = {"in_shardings_hlo": in_hlo_shardings, "out_shardings_hlo": out_hlo_shardings}  # by the NamedShardings
_COMPARED = [name for name in _FIELDS if name not in {*_UNUSED, "mlir_module_serialized", "_get_vjp"}]
_DATA = {*_FIELDS, "_artifact", "_facts"}

# Fields that a loaded function has before the others are decoded.
_APART: dict[str, Callable[[Artifact], Any]] = {
    **{name: operator.attrgetter(name) for name in ("fun_name", "nr_devices", "platforms")},
    "mlir_module_serialized": _native.Artifact.copied_module,
}


def _facts(exported: ExportedData) -> Facts:
    """What the artifact of a function says besides its fields."""
    artifact = artifact_of(exported)
    if artifact is None:
        return NO_FACTS
    facts = Facts(
        artifact.origin,
        artifact.noted,
        artifact.sizes() or None,
        artifact.padded() or None,
        first_writer_of(exported),
        cases=_cases_in(artifact),
    )
    if (said := artifact.said()) is not None:
        weak_arguments, weak_results, in_tree, out_tree = said
        facts = facts._replace(
            weak_arguments=weak_arguments,
            weak_results=weak_results,
            in_tree=None if in_tree is None else Written(exported.in_tree, in_tree),
            out_tree=None if out_tree is None else Written(exported.out_tree, out_tree),
        )
    return attributes_of(exported).setdefault("_facts", facts)


def _loaded_hlo_shardings(
    name: str, shardings: Callable[[ExportedData], tuple[Any, ...]], exported: ExportedData
) -> tuple[Any, ...]:
    """`in_shardings_hlo` or `out_shardings_hlo` of a function that was loaded, as the installed JAX fills them."""
    found = shardings(exported)
    return attributes_of(exported).setdefault(name, found if _jax.loads_hlo_shardings else (None,) * len(found))


def _of_artifact(name: str) -> Callable[[ExportedData], Any]:
    # At exit, Python clears the globals of modules before it deletes the last objects, which may still read fields.
    find, own_attributes = _APART.get(name), attributes_of

    def found(exported: ExportedData) -> Any:
        attributes = own_attributes(exported)
        artifact: Artifact | None = attributes.get("_artifact")
        if artifact is None:
            error = f"{type(exported).__name__!r} object has no attribute {name!r}: its constructor was not called"
            raise AttributeError(error, name=name, obj=exported)
        try:
            if find is not None:
                return attributes.setdefault(name, find(artifact))
            artifact.complete(attributes)
        except DeserializationError as error:
            error.file = error.file or exported._kept.file
            raise
        return attributes[name]

    return found


# Only of fields, and no text, which `Exported` would look up in another module.
_types = get_type_hints(ExportedData)
ExportedData.__annotations__ = {name: _types[name] for name in _FIELDS}

# For code that looks at the class, such as protocols. `dataclass` would have taken them for defaults.
_MADE_LATER: dict[str, Callable[[Any], Any]] = {
    **{name: _of_artifact(name) for name in _FIELDS},
    "_facts": _facts,
    **{name: functools.partial(_loaded_hlo_shardings, name, shardings) for name, shardings in _UNUSED.items()},
    "_hlo_shardings": lambda e: (in_hlo_shardings(e), out_hlo_shardings(e)),  # for readers that need them
}
for _name, _make in _MADE_LATER.items():
    setattr(ExportedData, _name, MadeLater(_name, _make))


def artifact_of(exported: Any) -> Artifact | None:
    return attributes_of(exported).get("_artifact")


def module_view(exported: Any) -> bytes | memoryview:
    """The module without a copy: a view into the loaded artifact, or the bytes once they were made."""
    artifact = _artifact_with_module(exported)
    try:
        return exported.mlir_module_serialized if artifact is None else artifact.module()
    except DeserializationError as error:
        error.file = error.file or exported._kept.file
        raise


def module_size(exported: Any) -> int:
    """How many bytes the module has. This does not read it."""
    artifact = _artifact_with_module(exported)
    return len(exported.mlir_module_serialized) if artifact is None else artifact.module_size


def _artifact_with_module(exported: Any) -> Artifact | None:
    """The artifact that holds the module; None once the module was made as bytes."""
    return None if "mlir_module_serialized" in attributes_of(exported) else artifact_of(exported)


def have_equal_modules(one: Any, other: Any) -> bool:
    """Whether two functions have the same modules, damaged or not. If their digests differ, nothing is read. If these
    are equal, the bytes decide: somebody can make others of the same digest.
    """
    digests = _digest(one), _digest(other)
    return (None in digests or digests[0] == digests[1]) and _native.equal_bytes(_unchecked(one), _unchecked(other))


def _digest(exported: Any) -> bytes | None:
    """What the trailer says of the module; None if there is no trailer, or the module was made as bytes."""
    artifact = _artifact_with_module(exported)
    said: Any = None if artifact is None else artifact.trailer()
    if artifact is None or said is None:
        return None
    _, order = artifact.origin or ("", 0)
    digest: bytes = said["functions"][order]["module_digest"]
    return digest


def _unchecked(exported: Any) -> bytes | memoryview:
    artifact = _artifact_with_module(exported)
    return exported.mlir_module_serialized if artifact is None else artifact.unchecked_module()

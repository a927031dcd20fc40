"""`Exported`: the data of an exported function, and what can be derived from it."""

from __future__ import annotations

import dataclasses
import os
import types
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from . import _jax
from ._artifact import metadata as _metadata
from ._call import batching as _batch
from ._call import call as _call
from ._call import specialize as _specialize
from ._errors import ExportError, ExportTypeError
from ._function import sharding as _sharding
from ._function.safety_check import DisabledSafetyCheck
from ._write import serialize as _codec

if TYPE_CHECKING:
    from ._call.batching import BatchDim
    from ._native import Artifact


@dataclasses.dataclass(frozen=True, init=False, eq=False, repr=False, kw_only=True)
class Exported:
    """A JAX function, lowered to StableHLO for good: its module, its signature, and the way to its VJP.

    It has the fields, constructor keywords and methods of `jax.export.Exported`. Objects come from `export`,
    `deserialize`, `load` or `from_jax`. Two of them are equal when signature, module and way to the VJP are: so are two
    that were loaded from equal bytes, unless their shapes are symbolic (JAX compares dimensions within one scope only).

    Attributes:
        fun_name: the name of the function that was exported.
        in_tree: the tree structure of the pair (args, kwargs).
        in_avals: one abstract value (shape, dtype, sharding, memory space) per leaf of `in_tree`; shapes may contain
            symbolic dimensions.
        out_tree: the tree structure of the result.
        out_avals: one abstract value per leaf of `out_tree`; their symbolic dimensions are functions of those in
            `in_avals`.
        in_shardings_hlo: per argument the HLO form of its sharding, None where it is unspecified; it follows from the
            NamedSharding, so what the constructor is given is ignored.
        out_shardings_hlo: the same per result.
        nr_devices: how many devices the module was lowered for.
        platforms: the platforms it was lowered for, such as ``("cpu", "cuda")``.
        ordered_effects: effects that take part in the calling convention, each by a token in and a token out.
        unordered_effects: effects that do not.
        disabled_safety_checks: the checks that `export` was told to leave out.
        mlir_module_serialized: the module, as a StableHLO portable artifact.
        calling_convention_version: how the module's main function takes its arguments
            ("Module calling convention" in https://docs.jax.dev/en/latest/export/export.html).
        module_kept_var_idx: ascending indices into `in_avals` of the arguments that the module takes; the others
            are not used by the function.
        uses_global_constants: whether the module must be specialized to shapes or a platform before compilation.
    """

    # In the order that jax.export gives them, which dataclasses.fields shows.
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
    disabled_safety_checks: tuple[DisabledSafetyCheck, ...]
    mlir_module_serialized: bytes
    calling_convention_version: int
    module_kept_var_idx: tuple[int, ...]
    uses_global_constants: bool
    _get_vjp: Callable[[Exported], Exported] | None

    # Some attributes come into being on first use: the constructor, or `_from_artifact`, leaves them out of the
    # instance's __dict__, Python then asks __getattr__, and what that computes is kept in the __dict__.

    def __init__(
        self,
        *,
        fun_name: str,
        in_tree: Any,
        in_avals: Sequence[Any],
        out_tree: Any,
        out_avals: Sequence[Any],
        _in_named_shardings: Sequence[Any],
        _out_named_shardings: Sequence[Any],
        in_shardings_hlo: Sequence[Any] = (),
        out_shardings_hlo: Sequence[Any] = (),
        nr_devices: int,
        platforms: Sequence[str],
        ordered_effects: Sequence[Any],
        unordered_effects: Sequence[Any],
        disabled_safety_checks: Sequence[DisabledSafetyCheck],
        mlir_module_serialized: bytes,
        calling_convention_version: int,
        module_kept_var_idx: Sequence[int],
        uses_global_constants: bool,
        _get_vjp: Callable[[Exported], Exported] | None,
        _has_named_shardings: bool = True,
    ) -> None:
        if not _has_named_shardings:
            raise ExportError("an Exported is made from NamedShardings; this one says that it has none")
        self.__dict__.update(
            fun_name=fun_name,
            in_tree=in_tree,
            in_avals=tuple(in_avals),
            out_tree=out_tree,
            out_avals=tuple(out_avals),
            _in_named_shardings=tuple(_in_named_shardings),
            _out_named_shardings=tuple(_out_named_shardings),
            nr_devices=nr_devices,
            platforms=tuple(platforms),
            ordered_effects=tuple(ordered_effects),
            unordered_effects=tuple(unordered_effects),
            disabled_safety_checks=tuple(map(DisabledSafetyCheck.coerce, disabled_safety_checks)),
            mlir_module_serialized=mlir_module_serialized,
            calling_convention_version=calling_convention_version,
            module_kept_var_idx=tuple(module_kept_var_idx),
            uses_global_constants=uses_global_constants,
            _get_vjp=_get_vjp,
        )

    @classmethod
    def _from_artifact(cls, artifact: Artifact) -> Exported:
        """An Exported whose metadata is decoded now, and whose module and VJP when somebody asks for them."""
        attributes = artifact.decode()
        vjp = artifact.vjp()
        attributes["_artifact"] = artifact
        if (texts := artifact.metadata()) is not None:
            attributes["_metadata"] = _metadata.from_json(texts)
        attributes["_get_vjp"] = None if vjp is None else _LoadedVjp(vjp)
        exported = cls.__new__(cls)
        object.__setattr__(exported, "__dict__", attributes)
        return exported

    if TYPE_CHECKING:  # with __getattr__ in sight, a type checker accepts every name
        _eager_call: Any
        _batch: BatchDim | None
        _compatibility: str | None
        _metadata: dict[str, Any]
        _origin: tuple[str, int]
        _vjp: Exported
        _hash: int
    else:

        def __getattr__(self, name: str) -> Any:
            derive = _DERIVED.get(name)
            if derive is None:
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)
            value = self.__dict__[name] = derive(self)
            return value

    @property
    def _module_buffer(self) -> bytes | memoryview:
        """The module without a copy: a view into the artifact that was loaded, until somebody asked for bytes."""
        if "mlir_module_serialized" in self.__dict__:
            return self.mlir_module_serialized
        view: memoryview = self.__dict__["_artifact"].module()
        return view

    @property
    def _module_as_it_is(self) -> bytes | memoryview:
        """The module for comparisons, which tell whether two are alike and not whether they are damaged."""
        if "mlir_module_serialized" in self.__dict__:
            return self.mlir_module_serialized
        view: memoryview = self.__dict__["_artifact"].unchecked_module()
        return view

    @property
    def batch_dim(self) -> str | None:
        """The dimension variable that `export` was told is a batch, None where there is none.

        A VJP has it too if every differentiable argument of the function has that dimension.
        """
        return None if self._batch is None else self._batch.name

    @property
    def metadata(self) -> Mapping[str, Any]:
        """What the user said of the artifact that this was loaded from: the `metadata` that `serialize` was given.

        `serialize` and `save` write it again unless they are given another.
        """
        return types.MappingProxyType(self._metadata)

    @property
    def _has_named_shardings(self) -> bool:
        return True

    def _signature(self) -> tuple[Any, ...]:
        """Everything but the module and the VJP."""
        return (
            self.fun_name,
            self.in_tree,
            self.in_avals,
            self.out_tree,
            self.out_avals,
            self._in_named_shardings,
            self._out_named_shardings,
            self.nr_devices,
            self.platforms,
            self.ordered_effects,
            self.unordered_effects,
            self.disabled_safety_checks,
            self.calling_convention_version,
            self.module_kept_var_idx,
            self.uses_global_constants,
        )

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Exported):
            return NotImplemented
        return (
            hash(self) == hash(other)
            and self._signature() == other._signature()
            and self._module_as_it_is == other._module_as_it_is
            and self._get_vjp == other._get_vjp
        )

    def __hash__(self) -> int:
        value: int = self._hash
        return value

    def __repr__(self) -> str:
        # Short, because it ends up in the locations of modules that call the function.
        return f"Exported({self.fun_name}: {len(self.in_avals)} arguments, {len(self.out_avals)} results)"

    def __copy__(self) -> Exported:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Exported:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        if (artifact := self.__dict__.get("_artifact")) is None:
            raise ExportTypeError(
                f"{self.fun_name} was exported in this process; pickle would not know how many VJPs to keep. "
                "Pickle the result of serialize(vjp_order=...) instead"
            )
        orders = 0
        while (artifact := artifact.vjp()) is not None:
            orders += 1
        return read_exported, (bytes(self.serialize(orders)),)

    def mlir_module(self, serialized: bool = True) -> Any:
        """The StableHLO module.

        Args:
            serialized: whether to return its text; otherwise the MLIR module itself, in the MLIR context that is
                entered at the moment.
        """
        if not serialized:
            return _jax.deserialize_module(self.mlir_module_serialized, None)
        with _jax.make_ir_context() as context:
            return _jax.module_to_string(_jax.deserialize_module(self.mlir_module_serialized, context))

    def in_shardings_jax(self, mesh: Any = None, *, axis_names: Mapping[str, str] | None = None) -> tuple[Any, ...]:
        """The shardings of the arguments, for `jax.device_put` and `jax.jit`.

        Args:
            mesh: a Mesh or AbstractMesh of the axis sizes, names and types of the mesh that the function was
                exported with; None leaves the shardings on the abstract mesh that they are stored with.
            axis_names: what the axes are called in `mesh`, where its names are others: a mapping with the exported
                name of every axis as key. The axes of `mesh` are in the exported order all the same.

        Returns:
            One NamedSharding per argument, None where it is unspecified.

        Raises:
            ExportError: the mesh is another one, or `axis_names` does not map its axes one to one.
        """
        return tuple(_sharding.on_mesh(sharding, mesh, axis_names) for sharding in self._in_named_shardings)

    def out_shardings_jax(self, mesh: Any = None, *, axis_names: Mapping[str, str] | None = None) -> tuple[Any, ...]:
        """The shardings of the results; see `in_shardings_jax`."""
        return tuple(_sharding.on_mesh(sharding, mesh, axis_names) for sharding in self._out_named_shardings)

    def vjp(self) -> Exported:
        """The VJP, itself an Exported; it is exported, or decoded, on the first call and kept.

        It takes the flat primal arguments, then one cotangent per result, and returns one cotangent per argument.
        Where a primal value has an integer or boolean dtype, the cotangent has dtype float0.

        Raises:
            ExportError: the function was loaded from an artifact without it.
        """
        if self._get_vjp is None:
            name, order = self._origin
            raise ExportError(
                f"{name} has no VJP of order {order + 1}: it was serialized with vjp_order={order}. Serialize it with "
                f"vjp_order={order + 1} or more"
            )
        vjp: Exported = self._vjp
        return vjp

    def has_vjp(self) -> bool:
        """Whether `vjp` can be called: always after `export`, after loading if a VJP was serialized."""
        return self._get_vjp is not None

    def specialize(self, *args_specs: Any, **kwargs_specs: Any) -> Exported:
        """The same function with symbolic dimensions fixed, as a new Exported.

        Where all dimensions are fixed, the module holds no dynamic shapes any more. They may also be replaced by other
        symbolic dimensions. Everything else stays: name, trees, dtypes, shardings, platforms, donation, effects, and
        the VJPs, which are specialized when they are asked for.

        Args:
            args_specs: for each argument something with a shape and a dtype, as in `export`; of the tree structure
                that the function was exported with.
            kwargs_specs: the keyword arguments likewise.

        Raises:
            ExportError: a spec does not fit the function's signature or its constraints.

        Example:
            >>> batched = load("model.jaxexp")  # takes float32[b, 784]
            >>> batched.specialize(jax.ShapeDtypeStruct((32, 784), np.float32)).save("model_32.jaxexp")
        """
        specialized = _specialize.specialize(self, args_specs, kwargs_specs)
        if specialized is not self:
            specialized.__dict__.update(_compatibility=self._compatibility, _metadata=self._metadata)
        return specialized

    def serialize(
        self,
        vjp_order: int = 0,
        compatibility: str | None = None,
        *,
        trailer: bool = True,
        metadata: Mapping[str, Any] | None = None,
    ) -> bytearray:
        """The function as bytes that `deserialize`, here and in `jax.export`, turns back.

        Args:
            vjp_order: how many VJPs to include: 1 allows `jax.grad` of the loaded function, 2 also `jax.grad` of
                that, and so on. `call` says what each derivative takes.
            compatibility: the oldest JAX whose `jax.export` is to read the bytes: a release such as ``"jax-0.6.2"``,
                weeks back from the installed release such as ``"12w"``, or ``"max"`` for the oldest release that can
                be told of this function. By default what the function was exported with; and where that is nothing,
                today's layout and the StableHLO of four weeks ago, as with `jax.export`.
            trailer: whether to put behind what `jax.export` reads what it has no place for: digests, by which any
                damage is noticed when the function is loaded, or its module first used; the constraints of symbolic
                dimensions; weak types; `metadata`.
            metadata: what else is to be known of the artifact: strings and what JSON can say. It is the `metadata` of
                the loaded function, and in `inspect`. By default what the function was loaded with, if it was.

        Raises:
            ExportError: `vjp_order` is no count of VJPs, no VJP of that order is available, or something in the
                signature has no serialized form, such as a pytree node type that is not registered; `compatibility`
                is no release and no span, or names a release that knows nothing of something in the function, such as
                a dtype, an operation or a custom call: the message says of what, and which release is the first to;
                `metadata` is not JSON, or given without a trailer.
            DeserializationError: the function was loaded, and its module is not what was written.
        """
        return _codec.serialize(self, vjp_order, compatibility, trailer, metadata)

    def save(
        self,
        path: str | os.PathLike[str],
        *,
        vjp_order: int = 0,
        compatibility: str | None = None,
        trailer: bool = True,
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        """Writes what `serialize` returns to a file, without a second copy of the module in memory.

        The bytes go to a temporary file in the same folder that replaces `path` when it is complete, so that a
        reader sees the old file or the new one.

        Args:
            path: the file; an existing one is replaced.
            vjp_order: as in `serialize`.
            compatibility: as in `serialize`.
            trailer: as in `serialize`.
            metadata: as in `serialize`.

        Raises:
            ExportError: as in `serialize`.
            OSError: the file cannot be written; one that was there before is untouched.
        """
        _codec.save(self, path, vjp_order, compatibility, trailer, metadata)

    def call(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the function: eagerly, or under `jax.jit`, `jax.grad`, `jax.jvp`, `jax.vmap` and what is built on them.

        Each derivative in reverse mode (`jax.grad`, `jax.vjp`, `jax.jacrev`) takes one serialized VJP order, each in
        forward mode (`jax.jvp`, `jax.jacfwd`) takes two: `jax.hessian`, which is forward over reverse, takes three.
        `jax.vmap` is one call if all mapped arguments have the `batch_dim` that the function was exported with;
        otherwise it runs one call after the other. It refuses functions with ordered effects.

        Args:
            args: positional arguments of the tree structure, shapes and dtypes that the function was exported with;
                symbolic dimensions take any size that fits.
            kwargs: keyword arguments likewise.

        Returns:
            The result, of the tree structure `out_tree`.

        Raises:
            ExportError: an argument does not match, the platform or the number of devices is not what the function
                was exported for, or a derivative is asked for that was not serialized.
        """
        return _call.call_exported(self, args, kwargs)

    @classmethod
    def from_jax(cls, exported: Any) -> Exported:
        """The same function as a jaxexp object, given a `jax.export.Exported`; nothing is lowered again."""
        if isinstance(exported, cls):
            return exported
        fields = _fields_of(exported, _FIELD_NAMES)
        fields["_get_vjp"] = _Converted(exported, cls.from_jax) if exported.has_vjp() else None
        return cls(**fields)

    def to_jax(self) -> Any:
        """The same function as a `jax.export.Exported`, of the installed JAX."""
        # Not from jax.export itself, where `install` may have put jaxexp's own classes.
        exported_type, check_type = _jax.jax_exporter.Exported, _jax.jax_exporter.DisabledSafetyCheck
        fields = _fields_of(self, [field.name for field in dataclasses.fields(exported_type)])
        fields["disabled_safety_checks"] = tuple(check_type(str(check)) for check in self.disabled_safety_checks)
        fields["_get_vjp"] = _Converted(self, Exported.to_jax) if self.has_vjp() else None
        return exported_type(**fields)


def read_exported(buffer: Any, modules: Sequence[Any] = ()) -> Exported:
    """The function in a buffer, or in an image and its modules; under a name that pickle can find."""
    return Exported._from_artifact(_codec.read(buffer, modules))


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class _LoadedVjp:
    """The VJP inside an artifact; equal to another one of equal content."""

    artifact: Artifact

    def __call__(self, primal: Exported) -> Exported:
        return Exported._from_artifact(self.artifact)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _LoadedVjp):
            return NotImplemented
        return self is other or Exported._from_artifact(self.artifact) == Exported._from_artifact(other.artifact)

    def __hash__(self) -> int:
        return hash(_LoadedVjp)


@dataclasses.dataclass(frozen=True, slots=True)
class _Converted:
    """The VJP of an Exported that came from the other library."""

    primal: Any
    convert: Callable[[Any], Any]

    def __call__(self, _: Any) -> Any:
        return self.convert(self.primal.vjp())


def _fields_of(exported: Any, names: Sequence[str]) -> dict[str, Any]:
    return {name: getattr(exported, name) for name in names if name != "_get_vjp"}


_FIELD_NAMES = [field.name for field in dataclasses.fields(Exported)]


def _derive_vjp(exported: Exported) -> Exported:
    assert exported._get_vjp is not None
    vjp = exported._get_vjp(exported)
    name, order = exported._origin
    vjp.__dict__.setdefault("_origin", (name, order + 1))
    return vjp


def _derive_hash(exported: Exported) -> int:
    # The module takes part by its length: walking it would cost more than the calls that need the hash.
    return hash((exported._signature(), len(exported._module_as_it_is)))


_DERIVED: dict[str, Callable[[Exported], Any]] = {
    "_eager_call": _call.eager_callable,
    "mlir_module_serialized": lambda exported: bytes(exported.__dict__["_artifact"].module()),
    "in_shardings_hlo": lambda e: tuple(map(_sharding.to_hlo, e._in_named_shardings, e.in_avals)),
    "out_shardings_hlo": lambda e: tuple(map(_sharding.to_hlo, e._out_named_shardings, e.out_avals)),
    "_batch": _batch.declared,
    # What the function was exported with: for whom `serialize` writes unless told otherwise.
    "_compatibility": lambda exported: None,
    "_metadata": lambda exported: {},
    # For messages: the function that this one is a VJP of, and of which order.
    "_origin": lambda exported: (exported.fun_name, 0),
    "_vjp": _derive_vjp,
    "_hash": _derive_hash,
}

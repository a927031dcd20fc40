"""`Exported`: the data of an exported function with its verbs, which are in the rooms below."""

from __future__ import annotations

import dataclasses
import os
import types
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from jaxexp import _jax
from jaxexp._function import data, sharding, vjps
from jaxexp._function.conversion import from_jax, to_jax
from jaxexp._function.data import ExportedData
from jaxexp._public import public

if TYPE_CHECKING:
    from jaxexp import BoundExported, Executable

# The verbs are imported when they are first used: who only loads a function does not wait for them. These two are
# called so often that they take the place of their detour; the others are imported where they are called.


def _call(exported: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    from jaxexp._call.call import call_exported

    globals()["_call"] = call_exported  # from now on, without this detour
    return call_exported(exported, args, kwargs)


def _serialize(exported: Any, *how: Any) -> bytearray:
    from jaxexp._write.serialize import serialize

    globals()["_serialize"] = serialize
    return serialize(exported, *how)


@public
@dataclasses.dataclass(frozen=True, init=False, eq=False, repr=False)
class Exported(ExportedData):
    """A JAX function that was lowered to StableHLO: its module, its signature, and access to its VJP.

    It has the fields, the constructor and the methods of `jax.export.Exported`. Objects come from `export`,
    `deserialize`, `load` or `from_jax`. Two objects are equal if their signatures, their modules and the sources of
    their VJPs are equal. So two functions that were loaded from equal bytes are equal, unless their shapes are
    symbolic: JAX compares dimensions only within one scope.

    Attributes:
        fun_name: the name of the function that was exported.
        in_tree: the tree structure of the pair (args, kwargs).
        in_avals: one abstract value (shape, dtype, sharding, memory space) per leaf of `in_tree`; shapes may contain
            symbolic dimensions.
        out_tree: the tree structure of the result.
        out_avals: one abstract value per leaf of `out_tree`; their symbolic dimensions are functions of those in
            `in_avals`.
        in_shardings_hlo: the HLO form of each argument's sharding, None where it is unspecified. It follows from the
            NamedShardings, so the constructor ignores what it is given.
        out_shardings_hlo: the same for the results.
        nr_devices: how many devices the module was lowered for.
        platforms: the platforms it was lowered for, such as ``("cpu", "cuda")``.
        ordered_effects: effects whose order is kept. Each one adds a token to the module's arguments and one to its
            results.
        unordered_effects: the other effects.
        disabled_safety_checks: the safety checks that `export` left out.
        mlir_module_serialized: the module, as a StableHLO portable artifact.
        calling_convention_version: how the module's main function takes its arguments
            ("Module calling convention" in https://docs.jax.dev/en/latest/export/export.html).
        module_kept_var_idx: ascending indices into `in_avals` of the arguments that the module takes. The function does
            not use the others.
        uses_global_constants: whether the module must be specialized to shapes or a platform before compilation.
    """

    @property
    def batch_dim(self) -> str | None:
        """The `batch_dim` of `export`, or None. A VJP has it if each differentiable argument of the function has it."""
        from jaxexp._module import batch_dim

        declared = batch_dim.of(self)
        return None if declared is None else declared.name

    @property
    def donated_arguments(self) -> tuple[int, ...]:
        """Indices into `in_avals`: the arguments that were donated in the export and whose memory a result can take.

        A call keeps all arguments, as in `jax.export`. To donate some, call the function in a `jax.jit` of your own:
        ``jax.jit(exported.call, donate_argnums=...)``.

        Raises:
            DeserializationError: the function was loaded, and its module is damaged.
        """
        from jaxexp._module import donation

        return donation.donated_arguments(self)

    @property
    def weak_arguments(self) -> tuple[int, ...]:
        """Indices into `in_avals`: the arguments whose types were weak in the export, such as Python scalars.

        An artifact's trailer keeps them. In the `in_avals` of a loaded function no type is weak, as in `jax.export`.
        """
        return data.weak_arguments(self)

    @property
    def weak_results(self) -> tuple[int, ...]:
        """Indices into `out_avals`: the results whose types were weak in the export; see `weak_arguments`.

        A call of a loaded function returns results whose types are not weak, as in `jax.export`.
        """
        return data.weak_results(self)

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The `metadata` of the artifact that this function was loaded from; empty if there is none.

        `serialize` and `save` write it again, unless they are given other metadata.
        """
        return types.MappingProxyType(data.metadata_of(self))

    @property
    def weights(self) -> Mapping[str, Any]:
        """The weights of the function by their names, as arrays on devices; empty if it has none.

        Weights that are in files are read when they are first asked for, or when the function is first called. On one
        CPU device, an array is the mapped file, without a copy.
        """
        return types.MappingProxyType({})

    @property
    def executables(self) -> tuple[Executable, ...]:
        """The code for this function in the file that `load` was given as `executables`: what it was compiled for, and
        whether calls use it or why not.
        """
        return () if (found := vars(self._kept).get("executables")) is None else found.listed(self)

    @property
    def unbound(self) -> Exported:
        """The program of a function with weights, which takes them as its first argument, a dict by their names. A
        function without weights is its own program."""
        return self

    def bind(self, weights: Any) -> BoundExported:
        """The function with its first argument as its weights: they are saved in a file beside it, and shared by its
        VJPs.

        Args:
            weights: the first argument, a pytree of arrays; or a mapping of arrays by the paths that the leaves have in
                the first argument (``layers/0/w``); or the path of a safetensors file, or of its index
                (``.safetensors.index.json``), in which tensors have these names. Shapes and dtypes are checked, and
                nothing else: other arrays are not used, and files are read when they are needed.

        Returns:
            A function of the other arguments. Its `unbound` program takes a dict by the names in place of the pytree.

        Raises:
            ExportError: there is no first argument, its shapes are symbolic, or two of its leaves have one name.
            DeserializationError: a weight is missing, or has another shape or dtype; or a file cannot be read.
            OSError: a file cannot be opened.
        """
        from jaxexp import BoundExported  # which is a subclass, and so stands above this class

        return BoundExported.from_first_argument(self, weights)

    def with_weights(self, weights: Any) -> BoundExported:
        """The function with other weights of the same names, shapes and dtypes; nothing is exported or compiled again.

        Args:
            weights: as in `bind`. A `UserWarning` names arrays of a pytree that are not used; files may have more.

        Raises:
            ExportError: the function has no weights.
            DeserializationError: a weight is missing, or has another shape or dtype; or a file cannot be read.
            OSError: a file cannot be opened.
        """
        raise data.has_no_weights(self)

    def weights_into(self, model: Any) -> Any:
        """The way back from `with_weights`: a pytree like `model`, in which the leaves at the paths of weights are the
        weights of the function, also at the other paths of tied ones. All other leaves are the model's own.

        Args:
            model: a pytree of arrays or specs, such as a module. A `UserWarning` names its arrays that are no weights.

        Raises:
            ExportError: the function has no weights. DeserializationError: a leaf is missing, or of another type.
        """
        raise data.has_no_weights(self)

    def with_mesh(self, mesh: Any, *, axis_names: Mapping[str, str] | None = None) -> BoundExported:
        """The function with its weights on the devices of a mesh, as `in_shardings_jax` says; each process reads only
        what its devices need.

        Args:
            mesh, axis_names: as in `in_shardings_jax`.

        Raises:
            ExportError: the function has no weights, or the mesh does not match.
        """
        raise data.has_no_weights(self)

    def __repr__(self) -> str:
        from jaxexp._view.line import line

        return line(self, len(self.weights))

    def _repr_html_(self) -> str:
        from jaxexp._view.card import of_exported

        return of_exported(self, len(self.weights))

    def __reduce__(self) -> tuple[Any, ...]:
        """Functions are pickled as artifacts, loaded ones with the VJPs that they were loaded with."""
        data.check_picklable(self)
        from jaxexp import deserialize  # under the name by which pickle finds it again

        return deserialize, (bytes(self.serialize(vjps.stored_orders(self))),), data.facts_apart(self)

    def __setstate__(self, facts: dict[str, Any]) -> None:
        data.note(self, **facts)

    def mlir_module(self, serialized: bool = True) -> Any:
        """The StableHLO module.

        Args:
            serialized: True for the text of the module; False for the MLIR module itself, in the current MLIR context.

        Raises:
            DeserializationError: the module is damaged, or needs a newer JAX.
            ExportError: `serialized` is False and there is no current MLIR context. It is a RuntimeError, too.
        """
        from jaxexp._module import mlir

        return mlir.shown_module(self.fun_name, self.mlir_module_serialized, serialized)

    def in_shardings_jax(self, mesh: Any = None, *, axis_names: Mapping[str, str] | None = None) -> tuple[Any, ...]:
        """The shardings of the arguments, for `jax.device_put` and `jax.jit`.

        Args:
            mesh: a Mesh or AbstractMesh with the same axis sizes, names and types as the mesh that the function was
                exported with. None leaves the shardings on the abstract mesh that they are stored with.
            axis_names: for a `mesh` whose axes have other names: a mapping from the exported name of every axis to its
                name in `mesh`. The order of the axes must be the exported one.

        Returns:
            One NamedSharding per argument, None where it is unspecified.

        Raises:
            ExportError: the mesh does not match, or `axis_names` does not map the axes one to one.
        """
        return tuple(sharding.on_mesh(stored, mesh, axis_names) for stored in self._in_named_shardings)

    def out_shardings_jax(self, mesh: Any = None, *, axis_names: Mapping[str, str] | None = None) -> tuple[Any, ...]:
        """The shardings of the results; see `in_shardings_jax`."""
        return tuple(sharding.on_mesh(stored, mesh, axis_names) for stored in self._out_named_shardings)

    def specialize(self, *args_specs: Any, **kwargs_specs: Any) -> Exported:
        """The same function with symbolic dimensions fixed, as a new Exported.

        If all dimensions are fixed, the new module has no dynamic shapes. Dimensions can also be replaced by other
        symbolic dimensions. Everything else stays: name, trees, dtypes, shardings, platforms, donation, effects, and
        the VJPs, which are specialized when they are first used.

        Args:
            args_specs: for each argument something with a shape and a dtype, as in `export`, in the tree structure that
                the function was exported with.
            kwargs_specs: the same for keyword arguments.

        Raises:
            ExportError: a spec does not fit the function's signature or its constraints.

        Example:
            >>> batched = load("model.jaxexp")  # takes float32[b, 784]
            >>> batched.specialize(jax.ShapeDtypeStruct((32, 784), np.float32)).save("model_32.jaxexp")
        """
        from jaxexp._call.specialize import specialize

        return specialize(self, args_specs, kwargs_specs)

    def serialize(
        self,
        vjp_order: int = 0,
        compatibility: str | None = None,
        *,
        trailer: bool = True,
        metadata: Mapping[str, Any] | None = None,
        strict: bool = False,
    ) -> bytearray:
        """The function as bytes, which `deserialize` reads, here and in `jax.export`.

        Args:
            vjp_order: how many VJPs to include: 1 allows `jax.grad` of the loaded function, 2 also `jax.grad` of that,
                and so on. `call` says how many each derivative needs.
            compatibility: the oldest JAX whose `jax.export` must be able to read the bytes: a release such as
                ``"jax-0.6.2"``; a number of weeks before the installed release, such as ``"12w"``; or ``"max"`` for the
                oldest release that can read this function. The default is the `compatibility` that `export` was given.
                If it was given none, the default is today's layout and the StableHLO of four weeks ago, as in
                `jax.export`.
            trailer: whether to append a trailer, which `jax.export` ignores. It holds digests, so that any damage is
                noticed when the function is loaded or its module is first used; the constraints of symbolic dimensions;
                weak types; and `metadata`.
            metadata: your own notes on the artifact, a mapping of strings to JSON values. The loaded function and
                `inspect` return it as `metadata`. The default is the metadata that this function was loaded with.
            strict: whether every pytree node type has to be registered for serialization. By default, nodes of other
                classes (namedtuples, dataclasses, optimizer states, modules) are stored by the names of their classes;
                such an artifact can be read where jaxexp is imported.

        Raises:
            ExportError: `vjp_order` is not a number of VJPs, or there is no VJP of that order; something in the
                signature has no serialized form, such as a dict key that is a function; with `strict`, a pytree node
                type is not registered (the message has the lines that register all of them); `compatibility` is
                neither a release nor a number of weeks, or its release does not support a dtype, an operation, a custom
                call or something else in the function (the message names it, and the first release that supports it);
                `metadata` is not JSON, or is given with ``trailer=False``.
            DeserializationError: the function was loaded, and its module is damaged.
        """
        return _serialize(self, vjp_order, compatibility, trailer, metadata, strict)

    def save(
        self,
        path: str | os.PathLike[str],
        *,
        vjp_order: int = 0,
        compatibility: str | None = None,
        trailer: bool = True,
        metadata: Mapping[str, Any] | None = None,
        strict: bool = False,
    ) -> None:
        """Writes what `serialize` returns to a file, without a second copy of the module in memory.

        The bytes go to a temporary file in the same folder. When it is complete, it replaces `path`, so other programs
        see the old file or the new one.

        Args:
            path: the file; an existing one is replaced.
            vjp_order, compatibility, trailer, metadata, strict: as in `serialize`.

        Raises:
            ExportError: as in `serialize`.
            OSError: the file cannot be written; an existing file is unchanged.
        """
        from jaxexp._write.serialize import save

        save(self, path, vjp_order, compatibility, trailer, metadata, strict)

    def call(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the function: eagerly, or under `jax.jit`, `jax.grad`, `jax.jvp`, `jax.vmap` and their compositions.

        Each reverse-mode derivative (`jax.grad`, `jax.vjp`, `jax.jacrev`) needs one serialized VJP order. Each
        forward-mode derivative (`jax.jvp`, `jax.jacfwd`) needs two. So `jax.hessian`, which is forward over reverse,
        needs three. `jax.vmap` makes one call if all mapped arguments have the function's `batch_dim`. Otherwise it
        reads the module back into JAX's primitives and maps these; if it cannot, it makes one call for each element,
        and logs which operation is the reason. It refuses functions with ordered effects.

        A call keeps its arguments; `donated_arguments` says how to donate some. Equal functions share compiled code.

        Args:
            args: positional arguments with the tree structure, shapes and dtypes that the function was exported with. A
                symbolic dimension accepts any size that satisfies its constraints.
            kwargs: the same for keyword arguments.

        Returns:
            The result, with the tree structure `out_tree`.

        Raises:
            ExportError: an argument does not match, the platform or the number of devices is not what the function was
                exported for, or a derivative is needed that was not serialized. It is a RuntimeError too if nothing in
                this process implements a custom call of the function; it names them. (Inside a `jax.jit` of yours, JAX
                raises its own error.)
            TypeError, ValueError: an argument is no array to JAX, such as a NumPy array that is big-endian or masked.
        """
        return _call(self, args, kwargs)

    def precompile(
        self,
        args: tuple[Any, ...] | None = None,
        kwargs: dict[str, Any] | None = None,
        *,
        into: str | os.PathLike[str],
        mesh_or_device: Any = None,
        vjp_order: int = 0,
    ) -> tuple[Executable, ...]:
        """Compiles a call, and adds its code to a file that `load` takes as `executables`, for processes to come.

        Args:
            args: the positional arguments: arrays, or specs as in `specialize`. None stands for those of the signature.
            kwargs: the arguments by keyword.
            into: the file, which is made if it is not there. One file can have the code of many functions, sizes,
                devices, machines and releases. Code that it has already is not compiled again.
            mesh_or_device: where the arguments of the signature are, as in `prefetch`.
            vjp_order: how many VJPs to compile too, as eager gradients by all arguments call them.

        Returns:
            What is in the file for the function and for each VJP.

        Raises:
            UnsupportedError: this code cannot be kept, for instance because of effects, or of several processes.
            ExportError: the arguments do not fit, there is no such VJP, or another process is writing to the file.
            DeserializationError: the file is something else, or it is damaged.
            OSError: the file cannot be written.
        """
        from jaxexp._call.precompile import precompile

        return precompile(self, args, kwargs, into, mesh_or_device, vjp_order)

    def raised(self) -> Callable[..., Any]:
        """The function read back from its module into JAX: an ordinary function that `jax.jit`, `jax.vmap`,
        `jax.make_jaxpr` and `export` trace through.

        It takes and returns what `call` does, and computes the same. It can be exported again for other platforms,
        unless it calls foreign functions, such as those of LAPACK, which exist only on the platforms of this export.
        It cannot be differentiated: `call` uses the stored VJPs, which can be read back like any function.

        Raises:
            UnsupportedError: when it is traced, the module does what has no exact counterpart in JAX, or a derivative
                is taken; the message names the operation.

        Example:
            >>> again = export(jax.jit(load("model.jaxexp").raised()), platforms=["tpu"])(*specs)
        """
        from jaxexp._call.read_back import raised

        return raised(self)

    def jaxpr(self, *args_specs: Any, **kwargs_specs: Any) -> Any:
        """The program as a jaxpr, read back from the module: what to print to see what an artifact computes.

        Args:
            args_specs: for each argument an array or a `jax.ShapeDtypeStruct`, as in `specialize`. They may be left
                out if no shape of the function is symbolic.
            kwargs_specs: the same for keyword arguments.

        Returns:
            A `jax.core.ClosedJaxpr` of the flat arguments. Loops that count are `scan`, and functions keep their names.

        Raises:
            ExportError: a spec does not fit the function's signature.
            UnsupportedError: the module does what has no exact counterpart in JAX; the message names the operation.
        """
        from jaxexp._call.read_back import jaxpr

        return jaxpr(self, args_specs, kwargs_specs)

    @classmethod
    def from_jax(cls, exported: Any) -> Exported:
        """The same function as a jaxexp object, given a `jax.export.Exported`; nothing is lowered again."""
        return exported if isinstance(exported, cls) else from_jax(cls, exported, cls.from_jax)

    def to_jax(self) -> Any:
        """The same function as a `jax.export.Exported`. Raises ExportError for classes that `call` would refuse."""
        from jaxexp._call import trees

        trees.check_classes(self)
        return to_jax(self)


# JAX's caches of what it traced do not keep functions that nobody else has.
_jax.kept_weakly_in_caches.add(Exported)

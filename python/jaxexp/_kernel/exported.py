"""`Function`: the data of an exported function with the verbs of the kernel."""

from __future__ import annotations

import copyreg
import dataclasses
import functools
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Self

from jaxexp import _jax, _native
from jaxexp._errors import ExportPicklingError, ExportTypeError, UnsupportedError
from jaxexp._kernel.call import first_argument
from jaxexp._kernel.function import data, sharding, vjps
from jaxexp._kernel.function.data import NO_FACTS, E, ExportedData, Facts, facts_of
from jaxexp._kernel.function.vjps import DerivedVjp
from jaxexp._kernel.module import meshes
from jaxexp._kernel.write.options import PLAIN, Writing, check_types

# --- functions of the two libraries: an `Exported` of `jax.export`, and one of jaxexp ---------------------------------


# Not from jax.export: `install` may have put jaxexp's own class there.
ExportedOfJax = _jax.Exported

_FACTS = "_jaxexp_facts"  # the attribute of a converted function that keeps its facts for the way back


class ConvertedVjp(DerivedVjp):
    """The VJP of an Exported that came from the other library."""

    __slots__ = ()

    def __call__(self, primal: Any) -> Any:
        exported, convert = self.of
        return convert(exported.vjp())


def from_jax(cls: type[E], exported: Any, convert: Callable[[Any], Any]) -> E:
    """A function of the class `cls`, from one of the other library. `convert` converts its VJP."""
    if not issubclass(type(exported), ExportedOfJax):
        raise ExportTypeError(f"from_jax takes a jax.export.Exported, not {type(exported)}")
    names = [field.name for field in dataclasses.fields(cls)]
    fields = {name: getattr(exported, name) for name in names if name != "_get_vjp"}
    fields["_get_vjp"] = ConvertedVjp(exported, convert) if exported.has_vjp() else None
    return cls(**fields, _facts=getattr(exported, _FACTS, NO_FACTS))


def to_jax(exported: ExportedData, module_of: Callable[[Any], bytes]) -> Any:
    """A function as a `jax.export.Exported`. `module_of` has the module that JAX may run, of it and of its VJPs."""
    exporter: Any = _jax.jax_exporter
    names = [field.name for field in dataclasses.fields(exporter.Exported)]
    fields = {name: getattr(exported, name) for name in names if name not in ("_get_vjp", "mlir_module_serialized")}
    fields["mlir_module_serialized"] = module_of(exported)
    checks = map(str, exported.disabled_safety_checks)
    fields["disabled_safety_checks"] = tuple(map(exporter.DisabledSafetyCheck, checks))
    convert = functools.partial(to_jax, module_of=module_of)
    fields["_get_vjp"] = ConvertedVjp(exported, convert) if exported.has_vjp() else None
    converted = exporter.Exported(**fields)
    object.__setattr__(converted, _FACTS, facts_of(exported))
    return converted


# --- the function with its verbs --------------------------------------------------------------------------------------

# The verbs are imported when they are first used, so loading a function does not wait for them. These two are called so
# often that the imported function replaces the importing one; the others are imported where they are called.


def _call(exported: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    from jaxexp._kernel.call.call import call_exported

    globals()["_call"] = call_exported  # from now on, without this detour
    return call_exported(exported, args, kwargs)


def _serialize(exported: Any, how: Writing) -> bytearray:
    from jaxexp._kernel.write.serialize import serialize

    globals()["_serialize"] = serialize
    return serialize(exported, how)


class Function(ExportedData):
    """An exported function that can be called, specialized and written. `jaxexp.Exported` adds what the wings do."""

    def __post_init__(self, _has_named_shardings: bool, _facts: Facts) -> None:
        super().__post_init__(_has_named_shardings, _facts)
        module = self.mlir_module_serialized
        if not (_native.module_producer(module) or "").startswith("StableHLO_v"):  # jax.export takes others, too
            from jaxexp._kernel.module import mlir

            data.attributes_of(self)["mlir_module_serialized"] = mlir.as_portable(module) or module

    @property
    def batch_dim(self) -> str | None:
        """The `batch_dim` of `export`, or None. A VJP has it if each differentiable argument of the function has it."""
        from jaxexp._kernel.module import batch_dim

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
        from jaxexp._kernel.module import runnable

        return data.kept(self, "donated", runnable.donated_arguments)

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
        """The `metadata` of the artifact that this function was loaded from; empty without metadata.

        `serialize` and `save` write it again, unless they are given other metadata.
        """
        return types.MappingProxyType(data.metadata_of(self))

    @property
    def sizes(self) -> tuple[Mapping[str, int], ...]:
        """The `sizes` of the artifact that this function was loaded from; empty if there are none.

        `serialize` and `save` write them again, unless they are given others. A specialized function has no `sizes`.
        """
        return tuple(map(types.MappingProxyType, data.sizes_of(self)))

    @property
    def padded(self) -> tuple[str, ...]:
        """The symbolic dimensions along which programs without JAX may pad arguments: the `pad` of `serialize`, or the
        `batch_dim` of `export`. A specialized function has at most its `batch_dim`.
        """
        return data.padded_of(self)

    def mlir_module(self, serialized: bool = True) -> Any:
        """The StableHLO module.

        Args:
            serialized: True for the text of the module; False for the MLIR module itself, in the current MLIR context.

        Raises:
            DeserializationError: the module is damaged, or needs a newer JAX.
            ExportError: `serialized` is False, and there is no current MLIR context. The error is also a RuntimeError.
        """
        from jaxexp._kernel.module import mlir

        return mlir.shown_module(self.fun_name, self.mlir_module_serialized, serialized)

    def in_shardings_jax(self, mesh: Any = None, *, axis_names: Mapping[str, str] | None = None) -> tuple[Any, ...]:
        """The shardings of the arguments, for `jax.device_put` and `jax.jit`.

        Args:
            mesh: a Mesh or AbstractMesh with the same axis sizes, names and types as the mesh that the function was
                exported with, such as `make_mesh` makes. None leaves the shardings on the abstract mesh that they are
                stored with.
            axis_names: if the axes of `mesh` have other names, a mapping from the exported name of every axis to its
                name in `mesh`. The order of the axes must be the exported one.

        Returns:
            A NamedSharding for each of `in_avals`, weights first; None if it is unspecified.

        Raises:
            ExportError: the mesh does not match, or `axis_names` does not map the axes one to one.
        """
        return tuple(sharding.on_mesh(stored, mesh, axis_names) for stored in self._in_named_shardings)

    def out_shardings_jax(self, mesh: Any = None, *, axis_names: Mapping[str, str] | None = None) -> tuple[Any, ...]:
        """The shardings of the results; see `in_shardings_jax`."""
        return tuple(sharding.on_mesh(stored, mesh, axis_names) for stored in self._out_named_shardings)

    def make_mesh(self, devices: Sequence[Any] | None = None) -> Any:
        """A mesh like the one that the function was exported with: of the same axis sizes, names and types.

        If the arguments and results have no shardings, it is like a mesh inside the module. If the module has no mesh,
        there is an axis for each prime factor of the number of devices: ``devices_0`` and so on, or ``devices`` for a
        single factor. Axes in artifacts of JAX before 0.9 have no names; here they are ``_axis_0`` and so on.

        Args:
            devices: the devices of the mesh, as in `jax.make_mesh`. The default is the first of `jax.devices()`.

        Raises:
            ExportError: there are fewer devices than the function was exported for, or more are given.

        Example:
            >>> mesh = exported.make_mesh()
            >>> result = exported.call(*map(jax.device_put, arguments, exported.in_shardings_jax(mesh)))
        """
        return meshes.make(self, devices)

    def specialize(self, *args_specs: Any, **kwargs_specs: Any) -> Self:
        """The same function with symbolic dimensions fixed, as a new Exported.

        If all dimensions are fixed, the new module has no dynamic shapes. Dimensions can also be replaced by other
        symbolic dimensions. Everything else stays: name, trees, dtypes, shardings, platforms, donation, effects, and
        the VJPs, which are specialized when they are first used.

        Args:
            args_specs: the specs of the arguments, as in `export`, in the tree structure of the export.
            kwargs_specs: the same for keyword arguments.

        Raises:
            ExportError: a spec does not fit the function's signature or its constraints.

        Example:
            >>> batched = load("model.jaxexp")  # takes float32[b,784]
            >>> batched.specialize(jax.ShapeDtypeStruct((32, 784), np.float32)).save("model_32.jaxexp")
        """
        from jaxexp._kernel.call.specialize import specialize

        return specialize(self, args_specs, kwargs_specs)

    def serialize(
        self,
        vjp_order: int = 0,
        compatibility: str | None = None,
        *,
        trailer: bool = True,
        metadata: Mapping[str, Any] | None = None,
        strict: bool = False,
        locations: str = "full",
        sizes: Iterable[Mapping[str, int]] | None = None,
        pad: str | Iterable[str] | None = None,
    ) -> bytearray:
        """The function as bytes, which `deserialize` reads, here and in `jax.export`.

        Args:
            vjp_order: how many VJPs to include: 1 allows `jax.grad` of the loaded function, 2 also `jax.grad` of that,
                and so on. `call` says how many each derivative needs. As in `jax.export`, less than 0 counts as 0.
            compatibility: the oldest JAX whose `jax.export` must be able to read the bytes, as in `export`. The default
                is the `compatibility` that the function was exported with.
            trailer: whether to append a trailer, which `jax.export` ignores. It holds digests, so that any damage is
                noticed when the function is loaded or its module is first used; the constraints of symbolic dimensions;
                weak types; `metadata`; `sizes`; and `pad`.
            metadata: your own notes on the artifact, a mapping of strings to JSON values. The loaded function and
                `inspect` return it as `metadata`. The default is the metadata that this function was loaded with.
            strict: whether every pytree node type must be registered for serialization. By default, nodes of other
                classes (namedtuples, dataclasses, optimizer states, modules) are stored by class name, and readers of
                the artifact must import jaxexp.
            locations: the source locations that the modules keep. ``"full"``: all of them, with the absolute paths and
                lines of files, and the names of functions and scopes; after ``export(..., reproducible=True)``, only
                the names. ``"names"``: only the names. ``"none"``: nothing. A module that loses locations is parsed and
                written again, in time proportional to its size. The loaded function then has another module, and is not
                equal to this one.
            sizes: sets of sizes of the symbolic dimensions, as in ``[{"batch": 1}, {"batch": 8}]``. Programs without
                JAX (`jaxexp.runtime`, ``jaxexp-run``) compile the function for them before the first call, and can pad
                arguments of other sizes to them along the dimensions in `pad`. The loaded function returns them as
                `sizes`. The default is the sizes that this function was loaded with.
            pad: the symbolic dimensions along which arguments may be padded, as in ``("batch", "seq")``. Zeros at the
                end of arguments may add elements to results, but must not change the others. This is checked now by
                calls of the function, and of its VJPs up to `vjp_order`, with larger arguments; results may differ
                within the tolerance of a case. The loaded function returns the names as `padded`. The default is the
                `batch_dim` of `export`, or the names that this function was loaded with; it is checked if `sizes` are
                given and the function runs here.

        Raises:
            ExportError: `vjp_order` is not a number of VJPs, or there is no VJP of that order; something in the
                signature has no serialized form, such as a dict key that is a function; with `strict`, a pytree node
                type is not registered (the message has the lines that register all of them); `compatibility` is neither
                a release nor a number of weeks, or its release does not support a dtype, an operation, a custom call or
                something else in the function (the message names it, and the first release that supports it);
                `metadata` is not JSON; a set in `sizes` does not have one size for each symbolic dimension, or violates
                a constraint; padding along a dimension in `pad` changes results, or the function cannot run here to
                check that; or `metadata`, `sizes` or `pad` is given with ``trailer=False``.
            DeserializationError: the function was loaded, and its module is damaged.
        """
        # Making the record would take a tenth of the time in which a small function is written.
        plain = vjp_order == 0 and compatibility is None and trailer is True and metadata is None and strict is False
        if plain and locations == "full" and sizes is None and pad is None:
            return _serialize(self, PLAIN)
        how = self._writing(vjp_order, compatibility, trailer, metadata, strict, locations, sizes, pad)
        return _serialize(first_argument.program_of(self), how)

    def _writing(
        self,
        vjp_order: int,
        compatibility: str | None,
        trailer: bool,
        metadata: Mapping[str, Any] | None,
        strict: bool,
        locations: str,
        sizes: Iterable[Mapping[str, int]] | None,
        pad: str | Iterable[str] | None,
        cases: Iterable[Any] = (),
    ) -> Writing:
        """The options of `serialize`, with sizes and padded dimensions that were checked. `cases` are those of `save`,
        whose arguments are used for that.
        """
        check_types(trailer, strict)
        found: Sequence[Mapping[str, int]] | None = None
        padded: tuple[str, ...] | None = None
        if sizes is not None or pad is not None:
            from jaxexp._kernel.call.specialize import checked_sizes, padded_names

            found = checked_sizes(self, sizes)
            padded = None if pad is None else padded_names(self, pad)
        if trailer and (checked := data.padded_of(self) if padded is None and found else padded):
            self._check_padding(checked, found or self.sizes, vjp_order, cases, pad is not None)
        return Writing(vjp_order, compatibility, trailer, metadata, strict, None, locations, sizes=found, padded=padded)

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
            ExportError: an argument does not match, the function was exported for another platform or number of
                devices, or a needed VJP was not serialized. If this process does not implement a custom call of the
                function, the error names it, and is also a RuntimeError. (Inside your own `jax.jit`, JAX raises its
                error.)
            TypeError, ValueError: an argument is not an array for JAX, such as a big-endian or masked NumPy array.
        """
        return _call(self, args, kwargs)

    def _batch(self, primitive: Any, *mapped: Any, **params: Any) -> Any:
        """The rule of `jax.vmap` for calls. `jaxexp.Exported` implements it."""
        raise UnsupportedError(f"vmap of {self.fun_name}: only jaxexp.Exported has it, not {type(self).__name__}")

    def _check_padding(self, *how: Any) -> None:
        """Raises an ExportError if the function may not be padded. `jaxexp.Exported` implements it."""
        raise UnsupportedError(f"padding {self.fun_name}: only jaxexp.Exported checks it, not {type(self).__name__}")

    def _code_in_cache(self, *call: Any) -> Any:
        """The code of a call in the compile cache. `jaxexp.Exported` has it."""
        return None

    def _callable_with_cache(self, jitted: Any, flattened: Any, code_of: Any) -> Any:
        """A callable that asks `code_of` before it compiles. `jaxexp.Exported` makes it."""
        return jitted()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles a function as its artifact; a loaded one keeps the VJPs that it was loaded with."""
        if self.has_vjp() and not data.is_loaded(self):
            raise ExportPicklingError(
                f"cannot pickle {self.fun_name}: its VJPs are made when they are needed, and pickle does not know how "
                "many to keep. Pickle the result of serialize(vjp_order=...), or the function without VJPs, "
                "dataclasses.replace(exported, _get_vjp=None)"
            )
        blob = bytes(self.serialize(vjps.stored_orders(self)))
        return copyreg.__newobj__, (type(self),), (blob, data.facts_of(self).apart())  # type: ignore[attr-defined]

    def __setstate__(self, state: Any) -> None:
        from jaxexp._kernel.read.decode import reader_of

        blob, facts = state
        own_class: Any = type(self)
        data.attributes_of(self).update(data.attributes_of(reader_of(own_class).read(blob)))
        if facts:
            data.note(self, **facts)

    @classmethod
    def from_jax(cls, exported: Any) -> Self:
        """Makes a jaxexp object from a `jax.export.Exported`. Nothing is lowered again.

        Raises:
            TypeError: `exported` is something else.
        """
        return exported if issubclass(type(exported), cls) else from_jax(cls, exported, cls.from_jax)

    def to_jax(self) -> Any:
        """The same function as a `jax.export.Exported` of the installed JAX.

        Its module has the same bytes; if a policy checked the function, it is the module that `call` runs.

        Raises:
            ExportError: a class in its trees has other children here than in the artifact, as in `call`.
            DeserializationError: a policy checked the function, and the module is damaged.
        """
        from jaxexp._kernel.call import trees
        from jaxexp._kernel.module import runnable

        trees.has_generic_nodes(self)  # which compares classes with the artifact
        return to_jax(self, runnable.module_of)

"""`Exported` and `BoundExported`: the public classes, put together above the wings."""

from __future__ import annotations

import functools
import os
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import jax

from jaxexp._errors import ExportError, ExportTypeError
from jaxexp._kernel.artifact.words import listed_cases
from jaxexp._kernel.exported import ExportedOfJax, Function
from jaxexp._kernel.function import data
from jaxexp._kernel.io.files import path_to_save
from jaxexp._kernel.module import meshes
from jaxexp._kernel.read.decode import reader_of
from jaxexp._public import InPlaceOf, public

if TYPE_CHECKING:
    from jaxexp._api.cases.report import CheckReport
    from jaxexp._executables.executables import Executable
    from jaxexp._kernel.artifact.cases import Case
    from jaxexp._kernel.write.options import Writing
    from jaxexp._weights.arrays.weights import Weights
    from jaxexp._weights.files.names import Rename


@public
class Exported(Function, ExportedOfJax, metaclass=InPlaceOf):
    """A JAX function that was lowered to StableHLO: its module, its signature and its VJP.

    It has the fields, the constructor and the methods of `jax.export.Exported`. Objects come from `export`,
    `deserialize`, `load` or `from_jax`. Two objects are equal if their signatures, their modules and the sources of
    their VJPs are equal. Two functions loaded from equal bytes are equal, unless their shapes are symbolic: JAX
    compares dimensions only within one scope.

    Attributes:
        fun_name: the name of the function that was exported.
        in_tree: the tree structure of the pair (args, kwargs).
        in_avals: one abstract value (shape, dtype, sharding, memory space) per leaf of `in_tree`; shapes may contain
            symbolic dimensions.
        out_tree: the tree structure of the result.
        out_avals: one abstract value per leaf of `out_tree`; their symbolic dimensions are functions of the dimensions
            in `in_avals`.
        in_shardings_hlo: for each argument None, or its HloSharding if the function was loaded on JAX before 0.11.1.
            Use `in_shardings_jax`.
        out_shardings_hlo: the same for the results.
        nr_devices: the number of devices that the module was lowered for.
        platforms: the platforms that the module was lowered for, such as ``("cpu", "cuda")``.
        ordered_effects: effects whose order is kept. Each adds a token to the module's arguments and to its results.
        unordered_effects: the other effects.
        disabled_safety_checks: the safety checks that `export` left out.
        mlir_module_serialized: the module, as a StableHLO portable artifact. The constructor and `dataclasses.replace`
            convert StableHLO text and other MLIR bytecode.
        calling_convention_version: how the module's main function takes its arguments
            ("Module calling convention" in https://docs.jax.dev/en/latest/export/export.html).
        module_kept_var_idx: ascending indices into `in_avals` of the arguments that the module takes. The function does
            not use the other arguments.
        uses_global_constants: whether the module must be specialized to shapes or a platform before compilation.
    """

    __annotations__ = data.ExportedData.__annotations__  # which a class does not inherit

    @property
    def weights(self) -> Mapping[str, Any]:
        """The weights of the function by name, as arrays on devices; empty for a function without weights.

        Weights in files are read at the first access or the first call. On one CPU device, the arrays are the mapped
        file, without a copy.
        """
        return types.MappingProxyType({})

    @property
    def executables(self) -> tuple[Executable, ...]:
        """The executables for this function in the file that was passed to `load` as `executables`; empty without a
        file, and if the file has code of other functions only.
        """
        program = self.unbound
        return () if (found := vars(program._kept).get("executables")) is None else found.listed(program)

    @property
    def unbound(self) -> Exported:
        """The program: the function with its weights as the first argument, a dict by name. A function without weights
        is its own program.
        """
        return self

    def bind(
        self, weights: Any, *, rename: Rename | None = None, cast: bool = False, stable: bool = False
    ) -> BoundExported:
        """Makes the first argument the function's weights. `save` writes them to a file beside the artifact, and the
        VJPs share them.

        Args:
            weights: the first argument, a pytree of arrays; or a mapping of arrays by the paths of the leaves in the
                first argument (``layers/0/w``); or the path of a safetensors file, or of an index
                (``.safetensors.index.json``), with these names. Only shapes and dtypes are checked. Other arrays are
                ignored. Files are read when they are needed.
            rename, cast, stable: as in `with_weights`.

        Returns:
            A function of the other arguments. Its `unbound` program takes a dict by these names instead of the pytree.

        Raises:
            ExportError: there is no first argument, its shapes are symbolic, two of its leaves have the same name, or
                `rename` maps a name that no leaf has.
            DeserializationError: a weight is missing, has another shape or dtype, or does not fit into the dtype; or a
                file cannot be read.
            OSError: a file cannot be opened.

        Example:
            >>> model = exported.bind(params)  # exported takes (params, x)
            >>> model.call(x)
        """
        from jaxexp._weights.bound.program import with_named_weights, without_arrays

        program = data.without_cases(with_named_weights(self))
        return BoundExported.of(program, without_arrays(program, weights).with_values(weights, rename, cast, stable))

    def with_weights(
        self, weights: Any, *, rename: Rename | None = None, cast: bool = False, stable: bool = False
    ) -> BoundExported:
        """The function with other weights of the same names, shapes and dtypes. Nothing is exported or compiled again.

        Args:
            weights: as in `bind`. A `UserWarning` names arrays that are not used, but not those of a file.
            rename: the names in `weights`, if they differ: a function that takes the name of a weight (``layers/0/w``)
                and returns its name in `weights` (``layers.0.w``), or a mapping of such names. Weights that a mapping
                leaves out keep their names.
            cast: whether arrays of another dtype are cast to the function's: floats to floats, complex numbers to
                complex numbers, integers to integers. Floats are rounded. A float that would become infinite is an
                error, and so is an integer that does not fit. Tensors in a file are cast when they are first used. By
                default, another dtype is an error.
            stable: whether files are copied to memory now, instead of mapped, as in `load`. If the weights of this
                function were copied, files always are.

        Raises:
            ExportError: the function has no weights, or `rename` maps a name that no weight has.
            DeserializationError: a weight is missing, has another shape or dtype, or does not fit into the dtype; or a
                file cannot be read.
            TypeError: `rename` is neither a mapping nor a function, or does not return a name.
            OSError: a file cannot be opened.

        Example:
            >>> model.with_weights("tuned.safetensors", rename=lambda name: name.replace("/", "."), cast=True)
        """
        _refuse_without_weights(self)

    def weights_into(self, model: Any) -> Any:
        """The reverse of `with_weights`: `model` with the function's weights at their paths. Tied weights are at all of
        their paths. All other leaves stay.

        Args:
            model: a pytree of arrays or specs, such as a module. A `UserWarning` names its arrays that are not weights.

        Raises:
            ExportError: the function has no weights.
            DeserializationError: a leaf is missing, or has another shape or dtype.
        """
        _refuse_without_weights(self)

    def with_mesh(self, mesh: Any, *, axis_names: Mapping[str, str] | None = None) -> BoundExported:
        """The function with its weights on the devices of a mesh, with the shardings of `in_shardings_jax`. Each
        process reads only the parts for its own devices.

        Args:
            mesh, axis_names: as in `in_shardings_jax`.

        Raises:
            ExportError: the function has no weights, or the mesh does not match.
        """
        _refuse_without_weights(self)

    @property
    def cases(self) -> tuple[Case, ...]:
        """The recorded calls that fit the function's signature.

        New artifacts and `dataclasses.replace` keep them, and `specialize` keeps cases whose shapes fit. `serialize`
        leaves out cases with arrays in files. `bind`, `with_weights` and JAX's transformations of a `BoundExported`
        drop them, because other weights give other results.
        """
        from jaxexp._api.cases.calling import Chain

        return Chain(self).cases()

    def check(self, *, tolerance: Any = None, max_drawn_bytes: int = 1 << 32) -> CheckReport:
        """Repeats the recorded calls, and compares the results with the recorded ones.

        Args:
            tolerance: the tolerance for all results: a `Tolerance`, or a number, which is a relative tolerance; 0 means
                equal numbers. The default is the tolerance that was given or measured when the case was recorded.
                Without such a tolerance, integers must be equal, and a float may differ by 64 units in the last place
                of the largest number of its result.
            max_drawn_bytes: the largest size of the random arguments of a case, in bytes.

        Returns:
            A report of all cases, including cases that cannot be called here. If a case differs and has a trace, the
            report names the first operation that differs.

        Raises:
            ExportError: the tolerance is negative or not finite. If it is not a number, the error is also a TypeError.

        Example:
            >>> print(jaxexp.load("model.jaxexp").check())
        """
        from jaxexp._api.cases.recording import check

        return check(self, tolerance, max_drawn_bytes)

    def save(
        self,
        path: str | os.PathLike[str],
        *,
        vjp_order: int = 0,
        compatibility: str | None = None,
        trailer: bool = True,
        metadata: Mapping[str, Any] | None = None,
        strict: bool = False,
        locations: str = "full",
        sizes: Iterable[Mapping[str, int]] | None = None,
        pad: str | Iterable[str] | None = None,
        cases: Iterable[Any] = (),
        weights: str | None = None,
        max_weights_file_size: int | None = None,
    ) -> None:
        """Writes the function to a file, and its weights to a file beside it.

        A temporary file in the same folder replaces `path` when it is complete, so other programs see the old file or
        the new one. Saving needs little memory: the module is not copied, and weights are written in small parts.

        The weights of ``model.jaxexp`` are in ``model.safetensors``, in the safetensors format. An artifact always
        finds the weights that it was saved with, even if the process dies while it saves. Weights that were loaded from
        the target files, and are still there, are not written again.

        Args:
            path: the file. An artifact there is replaced, but no file of another kind, such as an archive or weights. A
                file of weights or an index is replaced only if jaxexp wrote it and no other artifact in the folder
                needs it. If the artifact shares its own file of weights,
                the old file stays under a hidden name for the others.
            vjp_order, compatibility, trailer, metadata, strict, locations, sizes, pad: as in `serialize`. With weights,
                `trailer` must be True, because it names their files.
            cases: calls to make and record now, so that `check` can repeat them. A case is a tuple of the positional
                arguments without the weights, or a dict with ``args`` and ``kwargs``. An array may be a `Drawn`. Other
                keys of the dict are optional. ``name`` is a text. ``tolerance`` is as in `check` for all results, or a
                dict by the paths of results, as in ``{"result['loss']": 1e-3}``; or ``"dtype"``, the default, for the
                tolerance of the dtype; or ``"measured"``, which measures the effect of rounding on floats by several
                calls. ``vjp_order`` records a call of this VJP, with the list ``cotangents`` for the results, which are
                random by default. ``"trace": True`` saves a fingerprint of each operation's result, so that `check` can
                name the first operation that differs; this compiles a second program. If arrays take more than 64 KiB,
                the largest go to ``model.cases.safetensors`` beside ``model.jaxexp``.
            weights: the name of the file of weights, ``NAME.safetensors``, in the folder of `path`.
            max_weights_file_size: the largest size of the weights in a file, in bytes. More weights go to files
                ``NAME-00001-of-00003.safetensors`` and so on, with an index ``NAME.safetensors.index.json``. A weight
                is never divided, so a file with one larger weight is larger.

        Raises:
            ExportError: as in `serialize`; or the path is a file of another kind; or the arguments of a case do not
                fit; or a function with cases has effects or cannot run here; or cases are given with ``trailer=False``;
                or a weight has a dtype that the format lacks, or is not completely in this process; or the file of
                weights or cases to replace is damaged, is needed by another artifact in the folder, or was written by
                another program; or the path of a function with weights is a symbolic link. Nothing is written. If the
                function has no weights and options for weights are given, the error is also a TypeError.
            WeightsError: the files that the weights were loaded from are missing or have changed.
            BusyError: another writer has been saving weights or cases in the folder for a minute. Nothing is written.
            OSError: a file cannot be written. The old files are still there.
        """
        path = path_to_save(path)
        self._check_options(trailer, weights, max_weights_file_size)
        cases = listed_cases(cases)
        how = self._writing(vjp_order, compatibility, trailer, metadata, strict, locations, sizes, pad, cases)
        write = functools.partial(self._write, path, weights, max_weights_file_size)
        if (kept := cases_to_write(self, how, cases)) is None:
            write(how)
            return
        from .cases import files

        files.save(path, kept, lambda placed: write(how._replace(cases=placed, case_files=True)))

    def _check_options(self, trailer: bool, weights: str | None, max_weights_file_size: int | None) -> None:
        given = {"weights": weights, "max_weights_file_size": max_weights_file_size}
        if (name := next((name for name, value in given.items() if value is not None), None)) is not None:
            raise ExportTypeError(f"{self.fun_name} cannot be saved with {name}=, because it {_without_weights(self)}")

    def _write(self, path: Any, weights: str | None, max_weights_file_size: int | None, how: Writing) -> None:
        from jaxexp._kernel.write.serialize import save

        save(self, path, how)

    def __repr__(self) -> str:
        from jaxexp._view.facts import line

        return line(self, len(self.weights))

    def _repr_html_(self) -> str:
        from jaxexp._view.card import of_exported

        return of_exported(self, len(self.weights))

    def precompile(
        self,
        args: tuple[Any, ...] | None = None,
        kwargs: dict[str, Any] | None = None,
        *,
        into: str | os.PathLike[str] | None = None,
        mesh_or_device: Any = None,
        vjp_order: int = 0,
    ) -> tuple[Executable, ...]:
        """Compiles a call, and adds its code to a file of executables for `load`, or to the folder of `compile_cache`.
        Nothing is run.

        XLA compiles without Python's global lock, so threads can compile several functions or sizes at once.

        Args:
            args: the positional arguments: arrays, or specs as in `specialize`. None stands for the arguments of the
                signature.
            kwargs: the arguments by keyword.
            into: the file, which is created if it does not exist. It can hold the code of many functions, sizes,
                devices, machines and releases. Code that it already holds is not compiled again. None stands for the
                folder of `compile_cache`, where calls of this process find the code, too.
            mesh_or_device: the placement of the arguments of the signature. None stands for arrays without a placement,
                such as NumPy arrays and results of `jax.numpy`; a device for arrays that `jax.device_put` placed on it;
                a `jax.sharding.Mesh` for arrays with the shardings of `in_shardings_jax(mesh)`.
            vjp_order: how many VJPs to compile as well, for eager gradients with respect to all arguments.

        Returns:
            The executables of the function and of each VJP.

        Raises:
            UnsupportedError: the code cannot be stored, for example because of effects.
            ExportError: the arguments do not fit, there is no such VJP, another process is writing to the file, or
                there is neither `into` nor a compile cache.
            DeserializationError: the file is not a file of executables, or it is damaged.
            OSError: the file cannot be written.

        Example:
            >>> exported.precompile((x,), into="model.exe")
            >>> load("model.jaxexp", executables="model.exe").call(x)
        """
        from jaxexp._executables.precompile import precompile

        return precompile(self, args, kwargs, into, mesh_or_device, vjp_order)

    def raised(self) -> Callable[..., Any]:
        """The function read back from its module into JAX: an ordinary function that `jax.jit`, `jax.vmap`,
        `jax.make_jaxpr` and `export` trace through.

        It has the arguments and results of `call`. It can be exported again for other platforms, unless it calls
        foreign functions, such as LAPACK's, which exist only on the platforms of this export. It cannot be
        differentiated: differentiate `call`, or read back the stored VJPs. A function with a `jax.shard_map` runs on
        the devices of its arguments.

        Raises:
            ExportError: when it is lowered, if the function has a `jax.shard_map` and was exported for another number
                of devices, or is inside another `jax.shard_map`.
            UnsupportedError: when it is traced, if an operation of the module has no exact counterpart in JAX, or if a
                derivative is taken; the message names the operation.

        Example:
            >>> again = export(jax.jit(load("model.jaxexp").raised()), platforms=["tpu"])(*specs)
        """
        from jaxexp._readback.read_back import raised

        return raised(self)

    def make_jaxpr(self, *args_specs: Any, **kwargs_specs: Any) -> Any:
        """The program as a jaxpr, read back from the module.

        Args:
            args_specs: for each argument an array or a `jax.ShapeDtypeStruct`, as in `specialize`. Leave them out if no
                shape of the function is symbolic.
            kwargs_specs: the same for keyword arguments.

        Returns:
            A `jax.core.ClosedJaxpr` of the flat arguments. Loops that count are `scan`, and functions keep their names.

        Raises:
            ExportError: a spec does not fit the function's signature.
            UnsupportedError: an operation of the module has no exact counterpart in JAX; the message names it. Or the
                module is nested too deeply, or has too many operations after all calls are inlined.

        Example:
            >>> print(load("model.jaxexp").make_jaxpr())
        """
        from jaxexp._readback.read_back import make_jaxpr

        return make_jaxpr(self, args_specs, kwargs_specs)

    def _check_padding(self, *how: Any) -> None:
        from jaxexp._api.cases.padding import check

        check(self, *how)

    def _batch(self, primitive: Any, *mapped: Any, **params: Any) -> Any:
        from jaxexp._readback.vmap import batch_call

        return batch_call(primitive, *mapped, **params)

    def _code_in_cache(self, *call: Any) -> Any:
        from jaxexp._executables.executables import code_in_cache

        return code_in_cache(*call)

    def _callable_with_cache(self, jitted: Any, flattened: Any, code_of: Any) -> Any:
        from jaxexp._executables.executables import callable_with_cache

        return callable_with_cache(self.fun_name, jitted, flattened, code_of)


def cases_to_write(exported: Any, how: Writing, given: Sequence[Any]) -> list[Case] | None:
    """The cases of a function for a new artifact, and new ones for what was given; None if there are none."""
    if not how.trailer or (not given and data.cases_of(exported.unbound) is None):
        if given:
            raise ExportError(
                f"{exported.fun_name} cannot be saved with cases and trailer=False: cases are in the trailer"
            )
        return None
    from jaxexp._api.cases import recording

    cases = recording.recorded(exported, given)
    for case in cases[len(cases) - len(given) :]:
        if case.vjp_order > how.vjp_order:
            raise ExportError(
                f"{exported.fun_name} cannot be saved with vjp_order={how.vjp_order!r}: case {case.name!r} calls the "
                f"VJP of order {case.vjp_order}"
            )
    return [case for case in cases if case.vjp_order <= how.vjp_order]


def _refuse_without_weights(exported: Exported) -> NoReturn:
    raise ExportError(f"{exported.fun_name} {_without_weights(exported)}")


def _without_weights(exported: Exported) -> str:
    from jaxexp._kernel.call.trees import names_in_first

    if names_in_first(exported.in_tree) is not None:
        return (
            "has no weights yet: its first argument is a dict of arrays by name. bind makes it its weights: "
            "bind(arrays), or bind(path) of a file of tensors"
        )
    return (
        "has no weights: its arrays are in its module. Export it with weights=..., or make its first argument its "
        "weights, with bind"
    )


@public
class BoundExported(Exported):
    """An exported function together with its weights, which are not in its module.

    Objects come from ``export(f, weights=...)``, from `Exported.bind`, and from `load` where weights are beside the
    artifact. `call`, `specialize` and `save` include the weights. A trace of `raised` has them as constants. The result
    of `make_jaxpr` takes them as its first arguments, and does not read them. Everything else is about the program
    (`unbound`), which `jax.export` reads: a function whose first argument is a dict of the weights by name. So
    `in_avals` and `in_tree` include the weights, `serialize` writes no weights, and `vjp` is the VJP of the program.

    It is a pytree whose leaves are the weights. Pass it to functions that are compiled, differentiated or mapped:

        >>> jax.jit(lambda model, x: model.call(x))(model, x)
        >>> jax.grad(lambda model: loss(model.call(x)))(model)  # a BoundExported whose weights are gradients

    A function that you compile should take it as an argument, as here. If the function closes over it, as in
    `jax.jit(model.call)`, JAX writes the weights into the module as constants.

    Two objects are equal if their programs are equal and their weights are the same arrays, or were loaded from files
    with equal digests.
    """

    if TYPE_CHECKING:
        _weights: Weights
        _bound: Any  # the program, and the arrays of the weights as its first argument

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise ExportTypeError(
            "a BoundExported is made by Exported.bind. To change fields, use dataclasses.replace(bound.unbound, ...), "
            "and bind(bound.weights)"
        )

    @classmethod
    def of(cls, program: Exported, weights: Weights) -> BoundExported:
        """Joins a program, whose first argument is a dict of weights by name, and its weights."""
        from jaxexp._kernel.call.first_argument import Given

        bound, fields = object.__new__(cls), data.attributes_of(data.bare(program))
        given = Given(program, weights.for_calls, weights.specs)
        data.attributes_of(bound).update(fields, _weights=weights, _bound=given)
        return bound

    @property
    def weights(self) -> Weights:
        return self._weights

    @property
    def unbound(self) -> Exported:
        return self._bound.program

    @property
    def batch_dim(self) -> str | None:
        return self.unbound.batch_dim

    def bind(
        self, weights: Any, *, rename: Rename | None = None, cast: bool = False, stable: bool = False
    ) -> BoundExported:
        """Raises an ExportError: the function has weights already."""
        raise ExportTypeError(f"{self.fun_name} has weights already: pass others to with_weights, or to unbound.bind")

    def with_weights(
        self, weights: Any, *, rename: Rename | None = None, cast: bool = False, stable: bool = False
    ) -> BoundExported:
        if isinstance(weights, Exported):
            raise ExportTypeError(f"with_weights takes arrays, not the function {weights.fun_name}: pass its .weights")
        program = data.without_cases(self.unbound)
        return BoundExported.of(program, self.weights.with_values(weights, rename, cast, stable))

    def weights_into(self, model: Any) -> Any:
        return self.weights.into(model)

    def with_mesh(self, mesh: Any, *, axis_names: Mapping[str, str] | None = None) -> BoundExported:
        shardings = meshes.shardings_on(self.unbound, mesh, axis_names)[: len(self.weights)]
        return BoundExported.of(self.unbound, self.weights.on(shardings))

    def vjp(self) -> Exported:  # type: ignore[override]
        return self.unbound.vjp()

    def specialize(self, *args_specs: Any, **kwargs_specs: Any) -> BoundExported:
        from jaxexp._weights.bound.program import specialized

        return BoundExported.of(specialized(self.unbound, args_specs, kwargs_specs), self.weights)

    def _check_options(self, trailer: bool, weights: str | None, max_weights_file_size: int | None) -> None:
        if not trailer:
            raise ExportTypeError(
                f"{self.fun_name} cannot be saved with trailer=False, because the trailer says where its weights are. "
                "Save unbound, and the weights with another tool"
            )

    def _write(self, path: Any, weights: str | None, max_weights_file_size: int | None, how: Writing) -> None:
        from jaxexp._weights.bound.program import save

        save(self.unbound, self.weights, path, how, weights, max_weights_file_size)

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, BoundExported):
            return NotImplemented if not isinstance(other, Exported) else False
        return self.weights == other.weights and self.unbound == other.unbound

    def __hash__(self) -> int:
        return hash(self.unbound)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled as its artifact, and the weights as arrays."""
        return _bound_again, (self.unbound, dict(self.weights), self.weights.other_names)


def _bound_again(program: Exported, arrays: dict[str, Any], other_names: dict[str, str]) -> BoundExported:
    from jaxexp._weights.bound.program import given

    return BoundExported.of(program, given(program, arrays, other_names))


_Unflattened = tuple[Exported, tuple[tuple[str, str], ...]]  # the program, and other names of its weights


def _flatten(bound: BoundExported) -> tuple[tuple[tuple[Any, dict[str, Any]]], _Unflattened]:
    weights = bound.weights
    arrays = dict(zip(weights, weights.arrays(), strict=True))
    return ((jax.tree_util.GetAttrKey("weights"), arrays),), (bound.unbound, tuple(weights.other_names.items()))


def _unflatten(rest: _Unflattened, children: Iterable[Any]) -> BoundExported:
    from jaxexp._weights.bound.program import of_leaves

    (leaves,), (program, other_names) = children, rest
    return BoundExported.of(data.without_cases(program), of_leaves(program, leaves, dict(other_names)))


jax.tree_util.register_pytree_with_keys(BoundExported, _flatten, _unflatten)

#: Makes functions of artifacts.
reader = reader_of(Exported)

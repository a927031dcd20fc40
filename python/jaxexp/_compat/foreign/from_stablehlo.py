"""`from_stablehlo`: a module of another producer as a function."""

from __future__ import annotations

import ast
import collections
import contextlib
import dataclasses
import functools
import graphlib
import itertools
import math
import os
import re
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxexp import _jax
from jaxexp._api.exported import Exported
from jaxexp._errors import (
    ExportError,
    ExportTypeError,
    ForeignModuleError,
    ModuleError,
    UnsupportedError,
    UnsupportedModuleError,
    cause,
    in_one_line,
)
from jaxexp._kernel.artifact import module_head
from jaxexp._kernel.artifact.operations import OPERATIONS
from jaxexp._kernel.artifact.words import check_flags, listed
from jaxexp._kernel.codec.dtypes import has_number
from jaxexp._kernel.export.export import Exporting, check_platforms, default_export_platform, platform_names
from jaxexp._kernel.function import sharding
from jaxexp._kernel.function.convention import NEWEST_VERSION
from jaxexp._kernel.function.data import E, note
from jaxexp._kernel.function.safety_check import DisabledSafetyCheck
from jaxexp._kernel.function.vjps import DerivedVjp
from jaxexp._kernel.module import from_gspmd, locations, mlir
from jaxexp._kernel.module import main as mains
from jaxexp._kernel.module.custom_calls import check_stable
from jaxexp._kernel.module.meshes import of_operation
from jaxexp._public import public
from jaxexp._readback.array_type import DTYPES, is_wide
from jaxexp._readback.read_back import on_any_platform

from . import source
from .source import DIALECTS, other_dialects

if TYPE_CHECKING:
    from typing_extensions import Buffer


# --- the module: parsed, refused if it is not all StableHLO, and tidied until only `main` is public -------------------


# What tools that convert HLO leave at operations: layouts, and remarks of TensorFlow. They do not change what is
# computed. Neither does any attribute of another dialect, which compilers may drop.
_REMARKS = {"xla_shape", "result_layout", "mhlo.frontend_attributes"}
_OF_OPERATIONS = ("mhlo.", "sdy.", "stablehlo.", "chlo.")
_ALIAS = "tf.aliasing_output"
_OF_VALUES = {_ALIAS, "jax.buffer_donor", "sdy.sharding", "mhlo.sharding"}
_OF_FUNCTIONS = {"sym_name", "function_type", "sym_visibility", "arg_attrs", "res_attrs"}
_NAMES = "jax.arg_info", "jax.result_info"  # of values of main
_MOST_DEVICES = 2**20
_SYMBOL = "@{}".format
INDEX = "jax.global_constant"  # of an argument of main that is not one of the function


def parse(bytecode: bytes, context: Any) -> Any:
    """A module, in an MLIR context that is entered."""
    try:
        head = module_head.read(bytecode)
        others = [name for name in head.operations if name.partition(".")[0] not in DIALECTS]
        if others := others or [f"{name}.*" for name in head.dialects - DIALECTS]:
            raise UnsupportedError(other_dialects(sorted(others)))
        if module_head.stablehlo_of(module_head.producer(bytecode)) is None:
            raise UnsupportedError("the module has types or attributes that StableHLO's portable artifacts cannot hold")
        return mlir.parse(bytecode, context)
    except UnsupportedModuleError as error:
        raise UnsupportedError(
            f"the module is {error.found.partition('; ')[0]}, and the installed jaxlib knows StableHLO "
            f"{_jax.newest_stablehlo()}: let its producer write it for that version, or use a newer JAX"
        ) from error
    except ModuleError as error:
        raise ForeignModuleError("", error.expected, error.found) from error


def entry_of(module: Any, name: str | None) -> str:
    """The name of the function that a module is called by: the given one, `main`, or the only public one."""
    functions = {_symbol(f): f for f in mlir.functions(module)}
    public = [n for n, f in functions.items() if _text(f.attributes, "sym_visibility") in (None, "public")]
    if name is not None:
        if name not in functions:
            raise ForeignModuleError(
                "", f"a function @{name}, as entry= says", f"functions {listed(functions, _SYMBOL)}"
            )
        return name
    if "main" in public:
        return "main"
    if len(public) != 1:
        found = f"{len(public)} of them, {listed(public, _SYMBOL)}: choose one with entry=" if public else "none"
        raise ForeignModuleError("", "a module with one public function, or one that is @main", found)
    return public[0]


def tidy(module: Any, entry: str) -> int:
    """Makes one function the public `main` and drops everything that is not computed or called. Shardings become
    those of Shardy. Returns the number of devices.
    """
    ir = _jax.ir
    symbols = ir.SymbolTable(module.operation)
    for function in mlir.functions(module):
        name = _symbol(function)
        function.attributes["sym_visibility"] = ir.StringAttr.get("public" if name == entry else "private")
    if entry != "main":
        if "main" in symbols:
            _rename(symbols, "main", mlir.free_name("main_0", symbols))
        _rename(symbols, entry, "main")
    mlir.run_passes(module, "symbol-dce")
    for name in (operation.operation.name for operation in module.body.operations):
        if name not in ("func.func", "sdy.mesh"):
            raise UnsupportedError(f"the module has a {name} at its top, where an artifact has only functions")
    _check_calls(module)
    bring_up_to_date(module)
    frontend = module.operation.attributes.get("mhlo.frontend_attributes")
    if isinstance(frontend, ir.DictAttr) and "xla.sdy.meshes" in frontend:
        raise UnsupportedError(
            "the module has Shardy's meshes as mhlo.frontend_attributes: let its producer write the dialect sdy"
        )
    partitions = _partitions(module)
    for operation in mlir.iter_operations(module):
        if operation.name not in ("builtin.module", "func.func"):
            _drop(operation, {n for n in map(str, operation.attributes) if _is_remark(operation, n)})
    for function in mlir.functions(module):
        _drop(function.operation, {*map(str, function.attributes)} - _OF_FUNCTIONS)
        _keep_of_values(function, is_main=_symbol(function) == "main")
    attributes = module.operation.attributes
    _drop(module.operation, {*map(str, attributes)} - {"sym_name"})
    number = ir.IntegerType.get_signless(32)
    attributes["mhlo.num_partitions"] = ir.IntegerAttr.get(number, partitions)
    attributes["mhlo.num_replicas"] = ir.IntegerAttr.get(number, 1)
    _to_shardy(module, partitions)
    return partitions


def names_of(module: Any) -> tuple[list[str | None], list[str | None]]:
    """The names of main's arguments and results, where its attributes or locations have them."""
    main = _jax.ir.SymbolTable(module.operation)["main"]
    places = (argument.location for argument in main.arguments)
    arguments = [
        _text(_jax.ir.DictAttr(attributes), _NAMES[0]) or _place(at)
        for attributes, at in zip(mlir.argument_attributes(module), places, strict=True)
    ]
    return arguments, [_text(_jax.ir.DictAttr(entry), _NAMES[1]) for entry in mlir.result_attributes(main)]


def with_results_at(attributes: Any, places: Mapping[int, int]) -> Any:
    """The attributes of an argument, for a function whose results have another order: its memory goes to the same
    result, if that is still there: `places` has where each result is now."""
    ir = _jax.ir
    entry = ir.DictAttr(attributes)
    if _ALIAS not in entry:
        return attributes
    known = dict(mlir.items(entry))
    index = known.pop(_ALIAS).value
    if index in places:
        known[_ALIAS] = ir.IntegerAttr.get(ir.IntegerType.get_signless(32), places[index])
    return ir.DictAttr.get(known)


@contextlib.contextmanager
def named(file: str | None) -> Generator[None]:
    """A context that adds the name of a file to errors about the module in it."""
    try:
        yield
    except ForeignModuleError as error:
        error.file = file
        raise
    except UnsupportedError as error:
        where = "importing a module" if file is None else f"importing {file!r}"
        raise UnsupportedError(f"{where}: {error}") from cause(error.__cause__ or error)


def _rename(symbols: Any, old: str, new: str) -> None:
    symbol = symbols[old]
    _jax.ir.SymbolTable.replace_all_symbol_uses(old, new, symbol.operation.parent)
    symbols.set_symbol_name(symbol, new)


def _check_calls(module: Any) -> None:
    """Refuses functions that call themselves, also by others: compilers would follow them until their stack ends."""
    callees = {
        _symbol(function): {
            called.value
            for operation in mlir.iter_operations(function)
            for called in (operation.attributes.get("callee"), operation.attributes.get("decomposition"))
            if isinstance(called, _jax.ir.FlatSymbolRefAttr)
        }
        for function in mlir.functions(module)
    }
    try:
        graphlib.TopologicalSorter(callees).prepare()
    except graphlib.CycleError as error:
        raise ForeignModuleError(
            "", "functions that do not call themselves", listed(error.args[1], _SYMBOL)
        ) from cause(error)


def _partitions(module: Any) -> int:
    replicas = _count(module, "mhlo.num_replicas")
    if replicas != 1:
        raise UnsupportedError(
            f"the module is for {replicas} replicas, which exported functions do not have: let its producer partition "
            "it (num_partitions) instead"
        )
    sizes = [_count(module, "mhlo.num_partitions")]
    for mesh in (o for o in module.body.operations if o.operation.name == "sdy.mesh"):
        axes = _jax.sdy.MeshAttr(mesh.attributes["mesh"]).axes
        sizes.append(math.prod(_jax.sdy.MeshAxisAttr(axis).size for axis in axes))
    if max(sizes) > _MOST_DEVICES:
        raise ForeignModuleError("", f"a module for at most {_MOST_DEVICES:,} devices", f"one for {max(sizes):,}")
    return max(sizes)


def _count(module: Any, name: str) -> int:
    attribute = module.operation.attributes.get(name)
    if attribute is None:
        return 1
    if not isinstance(attribute, _jax.ir.IntegerAttr) or attribute.value < 1:
        raise ForeignModuleError("", f"a number of devices as {name}", str(attribute))
    return int(attribute.value)


def _to_shardy(module: Any, partitions: int) -> None:
    for operation in mlir.iter_operations(module):
        for attributes in (operation.attributes, *_of_values(operation)):
            sharding = _get(attributes, "mhlo.sharding")
            if sharding is not None and not (_text(attributes, "mhlo.sharding") or "").startswith("{"):
                raise ForeignModuleError("", "shardings as text, such as {replicated}", str(sharding))
    try:
        from_gspmd.to_shardy(module, partitions)
    except from_gspmd.NotExpressibleError as error:
        raise UnsupportedError(f"the module has {error}, which no mesh of Shardy's expresses") from cause(error)


def _is_remark(operation: Any, name: str) -> bool:
    if operation.name == "stablehlo.custom_call":  # its target may read them
        return False
    return name in _REMARKS or ("." in name and not name.startswith(_OF_OPERATIONS))


def _drop(operation: Any, names: set[str]) -> None:
    for name in names:
        del operation.attributes[name]


def _keep_of_values(function: Any, *, is_main: bool) -> None:
    """Drops what the attributes of a function's arguments and results say beside donation, shardings and names."""
    ir = _jax.ir
    results = len(function.type.results)
    for group in ("arg_attrs", "res_attrs"):
        if group not in function.attributes:
            continue
        kept = []
        for entry in map(ir.DictAttr, ir.ArrayAttr(function.attributes[group])):
            known = dict(mlir.items(entry))
            if is_main:
                _check_argument(known, results)
            kept.append(
                ir.DictAttr.get({n: a for n, a in known.items() if n in _OF_VALUES or (is_main and n in _NAMES)})
            )
        function.attributes[group] = ir.ArrayAttr.get(kept)


def _check_argument(attributes: dict[str, Any], results: int) -> None:
    if INDEX in attributes:
        raise UnsupportedError(
            "the module takes a platform or dimensions as arguments, as the modules of jax.export do: load the "
            "artifact that it is from"
        )
    memory = attributes.get("mhlo.memory_kind")
    if memory is not None and memory != _jax.ir.StringAttr.get("device"):
        raise UnsupportedError(f"the module has an argument or a result in the memory {memory}")
    aliased = attributes.get(_ALIAS)
    if aliased is not None and not (isinstance(aliased, _jax.ir.IntegerAttr) and 0 <= aliased.value < results):
        raise ForeignModuleError(
            "", f"arguments that give their memory to one of {results} results", f"{_ALIAS} = {aliased}"
        )


def _of_values(operation: Any) -> list[Any]:
    """The attributes of the arguments and results of a function; nothing for other operations."""
    groups = (operation.attributes.get(group) for group in ("arg_attrs", "res_attrs"))
    return [_jax.ir.DictAttr(entry) for group in groups if group is not None for entry in _jax.ir.ArrayAttr(group)]


def _text(attributes: Any, name: str) -> str | None:
    """An attribute that is text; None if there is none, or no text."""
    attribute = _get(attributes, name)
    with contextlib.suppress(UnicodeDecodeError):
        return attribute.value_bytes.decode() if isinstance(attribute, _jax.ir.StringAttr) else None
    return None


def _get(attributes: Any, name: str) -> Any:
    """An attribute of an operation or in a dictionary, whose `get` makes dictionaries; None if there is none."""
    return attributes[name] if name in attributes else None  # noqa: SIM401


def _symbol(operation: Any) -> str:
    """The name of a function; a ForeignModuleError if it is not UTF-8."""
    name = _text(operation.attributes, "sym_name")
    if name is None:
        raise ForeignModuleError("", "functions whose names are UTF-8", str(operation.attributes["sym_name"]))
    return name


def _place(location: Any) -> str | None:
    """The name in a location."""
    try:
        return location.name_str if isinstance(location, _jax.ir.NameLoc) else None
    except RuntimeError:  # it is not UTF-8
        return None


def name_of(module: Any) -> str | None:
    return _text(module.operation.attributes, "sym_name")


def bring_up_to_date(module: Any) -> None:
    """Replaces what has a newer form, in place; the module's MLIR context is entered."""
    _jax.hlo.register_stablehlo_passes()
    mlir.run_passes(module, "func.func(stablehlo-legalize-deprecated-ops{fail-on-unused=false})")
    for target, call in mlir.custom_calls(module):
        # What a translation from HLO makes of operations that StableHLO does not have.
        if target.startswith("mhlo.") and "mhlo.attributes" in call.attributes:
            said = call.attributes["mhlo.attributes"]
            if isinstance(said, _jax.ir.DictAttr):
                _to_chlo(call, target.removeprefix("mhlo."), said)
    for operation in mlir.iter_operations(module, innermost_first=True):
        if operation.name in _BATCH_NORM:
            _write_out(module, operation)
        elif operation.name in ("stablehlo.reshape", "stablehlo.transpose") and _changes_nothing(operation):
            mlir.replace(operation, operation.operands)


def _to_chlo(call: Any, name: str, said: Any) -> None:
    attributes: dict[str, Any] = {}
    if name == "topk":
        if {name for name, _ in mlir.items(said)} != {"k", "largest"} or str(said["largest"]) != "true":
            return
        name, attributes = "top_k", {"k": said["k"]}
    elif len(said):
        return
    if f"chlo.{name}" not in OPERATIONS:
        return
    with _jax.ir.InsertionPoint(call), call.location:
        types = [result.type for result in call.results]
        made = _jax.ir.Operation.create(
            f"chlo.{name}", results=types, operands=list(call.operands), attributes=attributes
        )
    try:
        made.verify()
    except _jax.ir.MLIRError:  # the call has other operands or results: `check_stable` refuses it
        made.erase()
    else:
        mlir.replace(call, made.results)


def _changes_nothing(operation: Any) -> bool:
    """Whether a reshape or a transposition returns what it gets. HLO marks arguments and results with such."""
    if operation.operands[0].type != operation.results[0].type:
        return False
    if operation.name == "stablehlo.reshape":
        return bool(operation.results[0].type.has_static_shape)
    return [*operation.attributes["permutation"]] == [*range(operation.results[0].type.rank)]


def _batch_norm(feature: int, epsilon: float, x: Any, scale: Any, offset: Any, *given: Any) -> Sequence[Any]:
    """Batch normalization: by a given mean and variance, or by those of the batch, which it returns then."""
    axes = tuple(axis for axis in range(x.ndim) if axis != feature)
    mean, variance = given or (jnp.mean(x, axes), jnp.var(x, axes))
    of_all = [lax.broadcast_in_dim(array, x.shape, (feature,)) for array in (scale, offset, mean, variance)]
    scale, offset, center, spread = of_all
    normalized = scale * (x - center) * lax.rsqrt(spread + np.asarray(epsilon, x.dtype)) + offset
    return [normalized] if given else [normalized, mean, variance]


_BATCH_NORM = "stablehlo.batch_norm_training", "stablehlo.batch_norm_inference"


def _write_out(module: Any, operation: Any) -> None:
    """Replaces a batch normalization, which JAX does not lower anything to. One of unknown shapes stays."""
    types = [operand.type for operand in operation.operands]
    if not all(type_.has_static_shape for type_ in types):
        return
    avals = [_jax.ShapedArray(tuple(type_.shape), DTYPES[str(type_.element_type)]) for type_ in types]
    feature, epsilon = (operation.attributes[name].value for name in ("feature_index", "epsilon"))
    function = functools.partial(_batch_norm, feature, epsilon)
    with jax.enable_x64(True), _jax.ir.InsertionPoint(operation), operation.location:
        mlir.replace(operation, mains.lowered_inline(function, module, avals, list(operation.operands)))


# --- the signature of `main`: abstract values and shardings, from its types and attributes ----------------------------


Shape = tuple[Any, ...]


def check_signature(types: Sequence[Any], what: str) -> None:
    """Raises an UnsupportedError if a value of `main`, a `what` in messages, is no array, or one that JAX lacks."""
    for index, type_ in enumerate(types):
        value = f"{what} {index} of the module"
        if not isinstance(type_, _jax.ir.RankedTensorType):
            raise UnsupportedError(f"{value} has the type {type_}, and {_advice(type_)}")
        if type_.encoding is not None:
            raise UnsupportedError(
                f"{value} has the type {type_}: JAX has no bounds and no layouts in types. Let its producer write "
                "constant shapes, or dimensions without bounds"
            )
        dtype = DTYPES.get(str(type_.element_type))
        if dtype is None or not has_number(dtype):
            raise UnsupportedError(f"{value} has elements of type {type_.element_type}, which no artifact can have")


def _advice(type_: Any) -> str:
    if str(type_).startswith("tuple"):
        return "a call takes and returns arrays: let the producer return several results instead of a tuple"
    if type_ == _jax.token_type():
        return "only JAX's own effects have tokens: leave out what is printed, sent or received"
    return "a call takes and returns arrays"


def shape_of(type_: Any) -> tuple[int | None, ...]:
    """The shape of an array type; None for each dimension that is not known."""
    return tuple(None if type_.is_dynamic_dim(i) else type_.get_dim_size(i) for i in range(type_.rank))


def avals(types: Sequence[Any], shapes: Sequence[Shape]) -> tuple[Any, ...]:
    """Abstract values of these types with shapes that may be symbolic."""
    return tuple(
        _jax.ShapedArray(shape, DTYPES[str(type_.element_type)]) for type_, shape in zip(types, shapes, strict=True)
    )


def shardings_of(module: Any, in_avals: Sequence[Any], out_avals: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """The shardings of main's arguments and of its results by their attributes; None where there is none."""
    meshes = {
        operation.attributes["sym_name"].value: _mesh(operation)
        for operation in module.body.operations
        if operation.operation.name == "sdy.mesh"
    }

    def of(attributes: Sequence[Any], avals: Sequence[Any], what: str) -> list[Any]:
        return [
            _sharding(meshes, _jax.ir.DictAttr(entry), aval, f"{what} {i} of the module")
            for i, (entry, aval) in enumerate(zip(attributes, avals, strict=True))
        ]

    results = mlir.result_attributes(_jax.ir.SymbolTable(module.operation)["main"])
    return of(mlir.argument_attributes(module), in_avals, "argument"), of(results, out_avals, "result")


def _mesh(operation: Any) -> Any:
    if (mesh := of_operation(operation)) is not None:
        return mesh
    if len(_jax.sdy.MeshAttr(operation.attributes["mesh"]).device_ids) > 1:
        raise UnsupportedError(
            f"the mesh @{operation.attributes['sym_name'].value} has an order of devices of its own, which an artifact "
            "cannot store: let its producer leave out device_ids"
        )
    return _jax.AbstractMesh((), ())


def _sharding(meshes: dict[str, Any], attributes: Any, aval: Any, what: str) -> Any:
    if "sdy.sharding" not in attributes:
        return None
    sharding = _jax.sdy.TensorShardingAttr(attributes["sdy.sharding"])
    mesh = meshes.get(str(sharding.mesh_or_ref).removeprefix("@"))
    if mesh is None or len(sharding.dimension_shardings) != aval.ndim:
        raise ForeignModuleError("", f"a sharding for {what}, of type {aval}", str(sharding))
    if len(sharding.unreduced_axes):
        raise UnsupportedError(f"{what} is not yet reduced over devices ({sharding}): let its producer reduce it")
    if mesh.size == 1:
        return None
    entries = [_entry(_jax.sdy.DimensionShardingAttr(d), what) for d in sharding.dimension_shardings]
    return _jax.NamedSharding(mesh, _jax.PartitionSpec(*entries))


def _entry(dimension: Any, what: str) -> Any:
    axes = [_jax.sdy.AxisRefAttr(axis) for axis in dimension.axes]
    if any(axis.sub_axis_info is not None for axis in axes):
        raise UnsupportedError(f"{what} is sharded over a part of a mesh axis, which an artifact cannot store")
    names = tuple(axis.name for axis in axes)
    return (names[0] if len(names) == 1 else names) if names else None


# --- trees ------------------------------------------------------------------------------------------------------------
# How the arguments and results of a module stand in a call: by names that the module has, or as the caller says.


# JAX's names: of arguments, as in params['w'][0], and of results, as in result['loss'].
_STEP_OF_PATH = r"\[(\d{1,9}|'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")\]"
_ARGUMENT = re.compile(rf"([A-Za-z_]\w*)((?:{_STEP_OF_PATH}){{0,64}})")
_RESULT = re.compile(rf"(?:result)?((?:{_STEP_OF_PATH}){{0,64}})")


class Arrangement(NamedTuple):
    """The tree of a call, and for each leaf the index of the module's argument or result."""

    tree: Any
    order: tuple[int, ...]

    @property
    def is_flat(self) -> bool:
        """Whether the order of the leaves is that of the module."""
        return self.order == tuple(range(len(self.order)))


def of_arguments(
    names: Sequence[str | None], args: Sequence[Any] | None, kwargs: Mapping[str, Any] | None
) -> Arrangement:
    """The tree of the arguments: what a call passes, with indices in the place of arrays; if both are None, the names
    that the module has for them decide.
    """
    is_named = args is None and kwargs is None
    tree = (_named_arguments(names), {}) if is_named else ((*(args or ()),), dict(kwargs or {}))
    found = _given(tree, len(names), "args and kwargs", "argument")
    if missing := sorted({*range(len(names))} - {*found.order}):
        raise ExportError(f"args and kwargs have to name each argument of the module; {listed(missing)} is missing")
    return found


def of_results(names: Sequence[str | None], results: Any) -> Arrangement:
    """The tree of the results. `results` may leave some of them out."""
    return _given(_named_results(names) if results is None else results, len(names), "results", "result")


def _given(tree: Any, count: int, option: str, what: str) -> Arrangement:
    leaves, structure = jax.tree_util.tree_flatten(tree)
    if wrong := [leaf for leaf in leaves if type(leaf) is not int or not 0 <= leaf < count]:
        raise ExportError(
            f"{option}: the leaves have to be the indices of the module's {what}s, 0 to {count - 1}, not {wrong[0]!r}"
            if count
            else f"{option}: the module has no {what}s, not {len(leaves)}"
        )
    if twice := sorted(leaf for leaf, times in collections.Counter(leaves).items() if times > 1):
        raise ExportError(f"{option} has the {what} {listed(twice)} more than once")
    return Arrangement(structure, tuple(leaves))


def _named_arguments(names: Sequence[str | None]) -> tuple[Any, ...]:
    """The arguments as JAX's names say; one after the other if these do not say it."""
    matches = [_ARGUMENT.fullmatch(name or "") for name in names]
    found = _nested({(match[1], *_steps(match[2])): i for i, match in enumerate(matches) if match is not None})
    top = tuple(found.values()) if isinstance(found, dict) else None
    return top if top is not None and _is_in_order(top, len(names)) else tuple(range(len(names)))


def _named_results(names: Sequence[str | None]) -> Any:
    flat: Any = tuple(range(len(names))) if len(names) != 1 else 0
    matches = [None if name is None else _RESULT.fullmatch(name) for name in names]
    found = _nested({_steps(match[1]): i for i, match in enumerate(matches) if match is not None})
    return found if found and _is_in_order(found, len(names)) else flat


def _steps(text: str) -> tuple[str | int, ...]:
    try:
        return tuple(ast.literal_eval(step) for step in re.findall(_STEP_OF_PATH, text))
    except (SyntaxError, ValueError):  # escapes that are none
        return (text,)


def _nested(leaves: Mapping[tuple[str | int, ...], int]) -> Any | None:
    """The tree with these leaves at their paths, of dicts and tuples; None if there is none."""
    if () in leaves:
        return leaves[()] if len(leaves) == 1 else None
    inside: dict[str | int, dict[tuple[str | int, ...], int]] = {}
    for path, leaf in leaves.items():
        inside.setdefault(path[0], {})[path[1:]] = leaf
    tree: dict[Any, Any] = {step: _nested(part) for step, part in inside.items()}
    if None in tree.values():
        return None
    if all(isinstance(step, str) for step in tree):
        return tree
    return tuple(tree[i] for i in range(len(tree))) if {*tree} == {*range(len(tree))} else None


def _is_in_order(tree: Any, count: int) -> bool:
    return jax.tree_util.tree_leaves(tree) == list(range(count))


# --- makes a function of a module: puts its parts together ------------------------------------------------------------


def _imported(
    bytecode: bytes,
    entry: str | None,
    name: str | None,
    platforms: tuple[str, ...],
    shapes: Mapping[int, Any] | None,
    args: Sequence[Any] | None,
    kwargs: Mapping[str, Any] | None,
    wanted: Any,
    checks: Sequence[DisabledSafetyCheck],
) -> Exported:
    """The function of a module, given the options of `from_stablehlo`."""
    with _jax.make_ir_context() as context, _jax.ir.Location.unknown(context):
        module = parse(bytecode, context)
        entry = entry_of(module, entry)
        nr_devices = tidy(module, entry)
        check_stable(module, {target for check in checks if (target := check.is_custom_call())})
        types, result_types = _types(module)
        check_signature(types, "argument")
        check_signature(result_types, "result")
        names, result_names = names_of(module)
        arguments = of_arguments(names, args, kwargs)
        results = of_results(result_names, wanted)
        in_shapes = shapes_of_arguments([shape_of(type_) for type_ in types], shapes)
        is_symbolic = any(map(_jax.is_symbolic_dim, (dim for shape in in_shapes for dim in shape)))
        out_shapes = None
        if is_symbolic:
            out_shapes = shapes_of_results(in_shapes, lambda sizes: _result_shapes(_refined(module, sizes)))
        elif _is_dynamic(module):
            module = _refined(module, in_shapes)
    with module.context as context, _jax.ir.Location.unknown(context):
        types, result_types = _types(module)
        in_avals = avals(types, in_shapes)
        out_avals = avals(result_types, out_shapes or _result_shapes(module))
        shardings, result_shardings = shardings_of(module, in_avals, out_avals)
        chosen_avals = tuple(in_avals[i] for i in arguments.order)
        is_specialized = is_symbolic or len(platforms) > 1
        if is_specialized or not (arguments.is_flat and results.is_flat and len(results.order) == len(result_types)):
            _surround(module, arguments, results, len(platforms) > 1, chosen_avals if is_symbolic else None)
        mains.say_whether_polymorphic(module, is_specialized)
        return Exported(
            fun_name=name or name_of(module) or entry,
            in_tree=arguments.tree,
            in_avals=chosen_avals,
            out_tree=results.tree,
            out_avals=tuple(out_avals[i] for i in results.order),
            _in_named_shardings=tuple(shardings[i] for i in arguments.order),
            _out_named_shardings=tuple(result_shardings[i] for i in results.order),
            in_shardings_hlo=(None,) * len(arguments.order),
            out_shardings_hlo=(None,) * len(results.order),
            nr_devices=nr_devices,
            platforms=platforms,
            ordered_effects=(),
            unordered_effects=(),
            disabled_safety_checks=checks,
            mlir_module_serialized=_serialized(module),
            calling_convention_version=NEWEST_VERSION,
            module_kept_var_idx=tuple(range(len(arguments.order))),
            uses_global_constants=is_specialized,
            _get_vjp=None,
        )


def _surround(
    module: Any, arguments: Arrangement, results: Arrangement, takes_platform: bool, symbolic: Sequence[Any] | None
) -> None:
    """Makes `main` take its arguments, and return its results, in the order of the call; before them, it takes the
    platform, if there are several. `symbolic` are the abstract values of arguments with symbolic shapes."""
    ir = _jax.ir
    types, result_types = _types(module)
    attributes = mlir.argument_attributes(module)
    new_types = [types[i] for i in arguments.order]
    places = {old: new for new, old in enumerate(results.order)}
    new_attributes = [with_results_at(attributes[i], places) for i in arguments.order]
    if takes_platform:
        new_types.insert(0, ir.RankedTensorType.get([], ir.IntegerType.get_signless(32)))
        new_attributes.insert(0, ir.DictAttr.get({INDEX: ir.StringAttr.get("_platform_index")}))
    back = sorted(range(len(types)), key=arguments.order.__getitem__)

    def operands(given: Sequence[Any]) -> Sequence[Any]:
        arrays = given[takes_platform:]
        if symbolic is not None:  # for the assertions
            mains.dim_values_of(module, symbolic, arguments.tree, arrays)
        return [arrays[i] for i in back]

    new_results = [result_types[i] for i in results.order]
    mains.surround_main(
        module, new_types, new_results, operands, argument_attributes=new_attributes, results=results.order
    )


def _types(module: Any) -> tuple[list[Any], list[Any]]:
    type_ = _jax.ir.SymbolTable(module.operation)["main"].type
    return list(type_.inputs), list(type_.results)


def _is_dynamic(module: Any) -> bool:
    """Whether a shape in the module is not known."""
    values = (value.type for operation in mlir.iter_operations(module) for value in operation.results)
    return any(
        isinstance(t, _jax.ir.RankedTensorType) and not t.has_static_shape for t in (*values, *_types(module)[1])
    )


def _refined(module: Any, in_shapes: Sequence[Shape]) -> Any:
    """A copy of a module for these constant shapes, in a context of its own."""
    copied = mlir.copy(module)
    with copied.context as context, _jax.ir.Location.unknown(context):
        types, result_types = _types(copied)
        new_types = [
            _jax.ir.RankedTensorType.get(shape, type_.element_type)
            for shape, type_ in zip(in_shapes, types, strict=True)
        ]
        attributes = mlir.argument_attributes(copied)
        mains.surround_main(copied, new_types, result_types, lambda given: given, argument_attributes=attributes)
        try:
            return _jax.refine_shapes(copied)
        except ValueError as error:
            reason = mlir.why_not_refined(error) or in_one_line(error)
            sizes = ", ".join(f"({', '.join(map(str, shape))})" for shape in in_shapes)
            raise UnsupportedError(
                f"with arguments of the shapes {sizes}, the module's other shapes cannot be inferred: {reason}"
            ) from cause(error)


def _result_shapes(module: Any) -> list[Shape]:
    return [shape_of(type_) for type_ in _types(module)[1]]


def _serialized(module: Any) -> bytes:
    try:
        return mlir.serialize(module)
    except jax.errors.JaxRuntimeError as error:
        raise UnsupportedError(
            f"the module has a part that is newer than the StableHLO of four weeks ago, which artifacts hold: "
            f"{in_one_line(error)}"
        ) from cause(error)


class _ReadBackVjp(DerivedVjp):
    """The VJP of a function that was exported again from what was read back."""

    __slots__ = ()

    def __call__(self, primal: Any) -> Any:
        (again,) = self.of
        return again.vjp()


def as_written(exported: E) -> E:
    """The function with VJPs of any order. The first is made now, so that a function without one is refused here."""
    if _jax.any_symbolic(exported.in_avals):
        raise UnsupportedError("differentiable=True needs constant shapes: give sizes in shapes=, or leave it out")

    def flat(*leaves: Any) -> Any:
        return tuple(on_any_platform(exported, leaves, differentiable=True))

    flat.__name__ = flat.__qualname__ = exported.fun_name
    jitted: Any = jax.jit(
        flat,
        in_shardings=tuple(map(sharding.for_jit, exported._in_named_shardings)),
        out_shardings=tuple(map(sharding.for_jit, exported._out_named_shardings)),
    )
    checks = exported.disabled_safety_checks
    # Without the lines of code that led here.
    how = Exporting(type(exported), exported.platforms, checks, None, None, None, True, (locations.callers(),))
    wide = any(map(is_wide, (*exported.in_avals, *exported.out_avals)))
    try:
        with jax.enable_x64(True) if wide else contextlib.nullcontext():
            again = how.export(jitted, exported.in_avals, {})
            differentiable = dataclasses.replace(exported, _get_vjp=_ReadBackVjp(again))
            differentiable.vjp()
            return differentiable
    except UnsupportedError as error:
        raise UnsupportedError(f"differentiable=True: {error}") from cause(error)
    except (ValueError, NotImplementedError, TypeError) as error:
        raise UnsupportedError(
            f"differentiable=True: JAX cannot differentiate the module: {in_one_line(error)}"
        ) from cause(error)


_Known = tuple[int | None, ...]

# From one size to another, sizes for which results are looked at: the first is not a multiple of the usual tiles.
_FIRST, _STEP = 6, 5


def shapes_of_arguments(known: Sequence[_Known], given: Mapping[int, Any] | None) -> list[Shape]:
    """The shapes of all arguments: those that are known in the module, and those that were given by the index of the
    argument, as texts such as "batch, 3", or as tuples with symbolic dimensions.
    """
    given = dict(given or {})
    if wrong := [index for index in given if index not in range(len(known))]:
        raise ExportError(
            f"shapes= has the key {wrong[0]!r}, but the module has {len(known)} arguments, numbered from 0"
        )
    dims = (dim for shape in given.values() if not isinstance(shape, str) for dim in shape)
    scope = next((dim.scope for dim in dims if _jax.is_symbolic_dim(dim)), None) or _jax.SymbolicScope()
    found = []
    for index, shape in enumerate(known):
        if index in given:
            found.append(_agreed(index, shape, given[index], scope))
        elif None in shape:
            raise ExportError(
                f"argument {index} of the module has the shape ({_dims(shape)}): say its dimensions in shapes=, as "
                f"names or sizes, such as shapes={{{index}: {_example(shape)!r}}}"
            )
        else:
            found.append(shape)
    return found


def _agreed(index: int, known: _Known, given: Any, scope: Any) -> Shape:
    try:
        shape = tuple(_jax.symbolic_shape(given, scope=scope) if isinstance(given, str) else given)
    except ValueError as error:
        raise ExportError(
            f"shapes= gives argument {index} {given!r:.80}, which is not a shape such as {_example(known)!r}: "
            f"{in_one_line(error)}"
        ) from cause(error)
    if len(shape) != len(known) or any(size not in (None, dim) for size, dim in zip(known, shape, strict=True)):
        raise ExportError(
            f"shapes= gives argument {index} the shape ({_dims(shape)}), and in the module it is ({_dims(known)})"
        )
    return shape


def _dims(shape: Sequence[Any]) -> str:
    return ", ".join("?" if dim is None else str(dim) for dim in shape)


def _example(shape: _Known) -> str:
    letters = itertools.chain("abcdefgh", itertools.repeat("i"))
    return ", ".join(next(letters) if dim is None else str(dim) for dim in shape)


def shapes_of_results(shapes: Sequence[Shape], refined: Callable[[Sequence[Shape]], Sequence[Shape]]) -> list[Shape]:
    """The shapes of the results for symbolic shapes of the arguments: what StableHLO's own inference finds for several
    sizes (`refined`, given constant shapes), as linear expressions of the dimension variables.
    """
    dims = {name: dim for shape in shapes for dim in shape for name in _jax.dim_vars(dim)}
    names = sorted(dims)
    variables = [_jax.symbolic_shape(name, scope=dims[name].scope)[0] for name in names]

    def at(sizes: Sequence[Any]) -> Sequence[Shape]:
        return refined([tuple(_jax.evaluate_shape(shape, names, *sizes)) for shape in shapes])

    base = [_FIRST + _STEP * i for i in range(len(names))]
    first = at(base)
    slopes = [at([size + (i == j) for j, size in enumerate(base)]) for i in range(len(base))]
    other = [size + _FIRST + i for i, size in enumerate(base)]
    expected = at(other)
    found = []
    for result, shape in enumerate(first):
        expressions = []
        for axis, size in enumerate(shape):
            factors = [more[result][axis] - size for more in slopes]
            constant = size - sum(f * b for f, b in zip(factors, base, strict=True))
            if constant + sum(f * o for f, o in zip(factors, other, strict=True)) != expected[result][axis]:
                raise UnsupportedError(
                    f"dimension {axis} of result {result} is not linear in {', '.join(names)}: import the module with "
                    "sizes in shapes="
                )
            expressions.append(sum((f * v for f, v in zip(factors, variables, strict=True) if f), start=constant))
        found.append(tuple(expressions))
    return found


# --- the public function ----------------------------------------------------------------------------------------------


def _check_options(entry: Any, name: Any, shapes: Any, args: Any, kwargs: Any) -> None:
    """Raises an ExportTypeError for options of other types than `from_stablehlo` says."""
    for option, value in (("entry", entry), ("name", name)):
        if value is not None and not isinstance(value, str):
            raise ExportTypeError(f"{option}= takes the name of a function, not {value!r:.80}")
    if shapes is not None and not isinstance(shapes, Mapping):
        raise ExportTypeError(
            "shapes= takes a dict of shapes by the indices of the module's arguments, such as {0: 'batch, 3'}, not "
            f"{shapes!r:.80}"
        )
    for index, shape in (shapes or {}).items():
        is_shape = isinstance(shape, str) or (isinstance(shape, Sequence) and all(map(_is_dim, shape)))
        if not is_shape or isinstance(shape, bytes):
            raise ExportTypeError(
                f"shapes= takes the shape of argument {index!r:.80} as a text of names and sizes, such as 'batch, 3', "
                f"or as a tuple of sizes and symbolic dimensions, not {shape!r:.80}"
            )
    if args is not None and (not isinstance(args, Sequence) or isinstance(args, (str, bytes))):
        raise ExportTypeError(
            "args= takes the positional arguments of a call in a tuple, with the indices of the module's arguments in "
            f"place of arrays, such as args=(0, 1), not {args!r:.80}"
        )
    if kwargs is not None and not isinstance(kwargs, Mapping):
        raise ExportTypeError(
            "kwargs= takes the arguments by keyword in a dict, with the indices of the module's arguments in place of "
            f"arrays, such as kwargs={{'x': 0}}, not {kwargs!r:.80}"
        )


def _is_dim(given: Any) -> bool:
    """Whether it is one of the dimensions of a shape."""
    return _jax.is_symbolic_dim(given) or (hasattr(given, "__index__") and not isinstance(given, bool))


@public
def from_stablehlo(
    module: str | os.PathLike[str] | Buffer,
    *,
    entry: str | None = None,
    name: str | None = None,
    platforms: Sequence[str] | None = None,
    shapes: Mapping[int, Any] | None = None,
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    results: Any = None,
    disabled_checks: Sequence[DisabledSafetyCheck] = (),
    differentiable: bool = False,
) -> Exported:
    """Makes a function from a StableHLO module of another program, such as PyTorch, TensorFlow or Reactant.jl.

    The signature comes from the module's public function: its types, shardings and donations. Names of arguments and
    results in JAX's form, such as ``params['w']``, group them into trees. Without such names, a call takes arrays by
    position, and returns an array or a tuple of arrays.

    A module is a program. Import only modules that you trust, or save the function and `load` it with a policy.

    Args:
        module: StableHLO text, MLIR bytecode (a portable artifact or not), or the path of a file with one of them. A
            str is text if it contains a line break or a brace. Text is parsed in its own process, which takes about a
            second.
        entry: the name of the function to call. The default is ``main``, or the only public function.
        name: the name of the new function. The default is the name of the module, or of the function in it.
        platforms: the platforms that the function may be called on, as in `export`. The default is
            `default_export_platform()`. Without custom calls, StableHLO is the same on all platforms: name all that you
            need.
        shapes: the shapes of arguments that have dynamic dimensions (``tensor<?x3xf32>``), by the index of the argument
            in the module. A shape is a text, such as ``"batch, 3"`` with names and sizes, or a tuple. Names become
            dimension variables, and the shapes of results follow from StableHLO's shape inference for some sizes.
        args, kwargs: the arguments of a call: pytrees with the indices of the module's arguments in place of arrays,
            such as ``args=({"w": 0, "b": 1}, 2)``. Each index must occur once.
        results: the result of a call, in the same form. Results of the module that it leaves out are not returned.
        disabled_checks: safety checks to leave out, as in `export`: custom calls that are not known to be stable.
        differentiable: whether the function gets VJPs. They differentiate the module as it is written: stopped
            gradients and custom derivatives of its source are lost. A cotangent of 0 stays 0, also times infinity or
            NaN. The first VJP is made now; `serialize` and `save` take any ``vjp_order``.

    Raises:
        DeserializationError: the input is not a StableHLO module, or `entry` is needed to choose one of its functions.
        UnsupportedError: the module has something that no artifact can hold, such as operations of other dialects,
            tuples, tokens, replicas or quantized types; the message names it. With `differentiable`, also operations
            without a derivative: a loop of unknown length, a custom call, the bits of a number.
        ExportError: custom calls are not known to be stable; or `shapes`, `args`, `kwargs` or `results` do not fit the
            module.
        TypeError: `module` is neither text, bytes nor a path.
        OSError: the file cannot be read, or is a pipe or a device.

    Example:
        >>> model = from_stablehlo("model.mlirbc", args=({"weight": 0, "bias": 1}, 2), platforms=["cpu", "cuda"])
        >>> model.save("model.jaxexp")
    """
    chosen = () if platforms is None else platform_names(platforms)
    checks = DisabledSafetyCheck.coerce_all(disabled_checks)
    check_flags(differentiable=differentiable)
    _check_options(entry, name, shapes, args, kwargs)
    chosen = chosen or (default_export_platform(),)
    content, file = source.contents(module)
    with named(file):
        bytecode = source.bytecode(content)
        exported = _imported(bytecode, entry, name, chosen, shapes, args, kwargs, results, checks)
        if differentiable:
            exported = as_written(exported)
        else:
            note(exported, why_no_vjp="has no VJP: from_stablehlo made it without. Pass differentiable=True there")
        check_platforms(exported.fun_name, exported.platforms)
        return exported

"""A module of another producer: parsed, refused if it is not all StableHLO, and tidied until only `main` is public."""

from __future__ import annotations

import contextlib
import functools
import graphlib
from collections.abc import Generator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxexp import _jax
from jaxexp._errors import ForeignModuleError, ModuleError, UnsupportedError, UnsupportedModuleError, cause
from jaxexp._kernel.artifact import module_head
from jaxexp._kernel.artifact.operations import OPERATIONS
from jaxexp._kernel.module import from_gspmd, mlir
from jaxexp._kernel.module.main import lowered_inline
from jaxexp._readback.array_type import DTYPES

from .source import DIALECTS, other_dialects

# What tools that convert HLO leave at operations: layouts, and remarks of TensorFlow. They do not change what is
# computed. Neither does any attribute of another dialect, which compilers may drop.
_REMARKS = {"xla_shape", "result_layout", "mhlo.frontend_attributes"}
_OF_OPERATIONS = ("mhlo.", "sdy.", "stablehlo.", "chlo.")
_ALIAS = "tf.aliasing_output"
_OF_VALUES = {_ALIAS, "jax.buffer_donor", "sdy.sharding", "mhlo.sharding"}
_OF_FUNCTIONS = {"sym_name", "function_type", "sym_visibility", "arg_attrs", "res_attrs"}
_NAMES = "jax.arg_info", "jax.result_info"  # of values of main
_MOST_DEVICES = 2**20
INDEX = "jax.global_constant"  # of an argument of main that is not one of the function


def parse(bytecode: bytes, context: Any) -> Any:
    """A module, in an MLIR context that is entered.

    Raises:
        ForeignModuleError: the bytes are not a module.
        UnsupportedError: it is for a newer StableHLO than jaxlib's, or has operations of other dialects, or types that
            portable artifacts do not have.
    """
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
    """The name of the function that a module is called by: the given one, `main`, or the only public one.

    Raises:
        ForeignModuleError: there is no such function, or it is not clear which one.
    """
    functions = {_symbol(f): f for f in _functions(module)}
    public = [n for n, f in functions.items() if _visibility(f) == "public"]
    if name is not None:
        if name not in functions:
            raise ForeignModuleError("", f"a function @{name}, as entry= says", f"functions {_listed(functions)}")
        return name
    if "main" in public:
        return "main"
    if len(public) != 1:
        found = f"{len(public)} of them, {_listed(public)}: choose one with entry=" if public else "none"
        raise ForeignModuleError("", "a module with one public function, or one that is @main", found)
    return public[0]


def tidy(module: Any, entry: str) -> Any:
    """Makes one function the public `main` and drops everything that is not computed or called. Shardings become
    those of Shardy.

    Returns:
        The function.

    Raises:
        ForeignModuleError, UnsupportedError: a part of the module has no place in an artifact.
    """
    ir = _jax.ir
    symbols = ir.SymbolTable(module.operation)
    for function in _functions(module):
        name = _symbol(function)
        function.attributes["sym_visibility"] = ir.StringAttr.get("public" if name == entry else "private")
    if entry != "main":
        if "main" in symbols:
            _rename(symbols, "main", mlir.free_name("main_0", symbols))
        _rename(symbols, entry, "main")
    mlir.run_passes(module, "symbol-dce")
    main = ir.SymbolTable(module.operation)["main"]
    _check_top(module)
    _check_calls(module)
    bring_up_to_date(module)
    frontend = _get(module.operation.attributes, "mhlo.frontend_attributes")
    if isinstance(frontend, ir.DictAttr) and "xla.sdy.meshes" in frontend:
        raise UnsupportedError(
            "the module has Shardy's meshes as mhlo.frontend_attributes: let its producer write the dialect sdy"
        )
    partitions = _partitions(module)
    for operation in mlir.iter_operations(module):
        if operation.name not in ("builtin.module", "func.func"):
            _drop(operation, {n for n in map(str, operation.attributes) if _is_remark(operation, n)})
    for function in _functions(module):
        _drop(function.operation, {*map(str, function.attributes)} - _OF_FUNCTIONS)
        _keep_of_values(function, is_main=_symbol(function) == "main")
    attributes = module.operation.attributes
    _drop(module.operation, {*map(str, attributes)} - {"sym_name"})
    number = ir.IntegerType.get_signless(32)
    attributes["mhlo.num_partitions"] = ir.IntegerAttr.get(number, partitions)
    attributes["mhlo.num_replicas"] = ir.IntegerAttr.get(number, 1)
    _to_shardy(module, partitions)
    return main


def partitions_of(module: Any) -> int:
    """The number of devices of a module that was tidied."""
    return int(module.operation.attributes["mhlo.num_partitions"].value)


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


def _functions(module: Any) -> list[Any]:
    return [operation for operation in module.body.operations if isinstance(operation, _jax.func_op)]


def _visibility(function: Any) -> str:
    attributes = function.attributes
    return attributes["sym_visibility"].value if "sym_visibility" in attributes else "public"


def _listed(names: Sequence[str] | dict[str, Any]) -> str:
    return ", ".join(f"@{name}" for name in names) or "none"


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
            for called in (_get(operation.attributes, "callee"), _get(operation.attributes, "decomposition"))
            if isinstance(called, _jax.ir.FlatSymbolRefAttr)
        }
        for function in _functions(module)
    }
    try:
        graphlib.TopologicalSorter(callees).prepare()
    except graphlib.CycleError as error:
        raise ForeignModuleError("", "functions that do not call themselves", _listed(error.args[1])) from cause(error)


def _check_top(module: Any) -> None:
    for operation in module.body.operations:
        name = operation.operation.name
        if name not in ("func.func", "sdy.mesh"):
            raise UnsupportedError(f"the module has a {name} at its top, where an artifact has only functions")


def _partitions(module: Any) -> int:
    replicas = _count(module, "mhlo.num_replicas")
    if replicas != 1:
        raise UnsupportedError(
            f"the module is for {replicas} replicas, which exported functions do not have: let its producer partition "
            "it (num_partitions) instead"
        )
    sizes = [_count(module, "mhlo.num_partitions")]
    for mesh in (o for o in module.body.operations if o.operation.name == "sdy.mesh"):
        size = 1
        for axis in _jax.sdy.MeshAttr(mesh.attributes["mesh"]).axes:
            size *= _jax.sdy.MeshAxisAttr(axis).size
        sizes.append(size)
    if max(sizes) > _MOST_DEVICES:
        raise ForeignModuleError("", f"a module for at most {_MOST_DEVICES:,} devices", f"one for {max(sizes):,}")
    return max(sizes)


def _count(module: Any, name: str) -> int:
    attribute = _get(module.operation.attributes, name)
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
    groups = (_get(operation.attributes, group) for group in ("arg_attrs", "res_attrs"))
    return [_jax.ir.DictAttr(entry) for group in groups if group is not None for entry in _jax.ir.ArrayAttr(group)]


def _text(attributes: Any, name: str) -> str | None:
    """An attribute that is text; None if there is none, or no text."""
    attribute = _get(attributes, name)
    return _decoded(attribute.value_bytes) if isinstance(attribute, _jax.ir.StringAttr) else None


def _decoded(text: bytes) -> str | None:
    try:
        return text.decode()
    except UnicodeDecodeError:
        return None


def _symbol(operation: Any) -> str:
    """The name of a function.

    Raises:
        ForeignModuleError: it is not UTF-8.
    """
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
    """The name of a module, if it has one."""
    return _text(module.operation.attributes, "sym_name")


def _get(attributes: Any, name: str) -> Any:
    """MLIR's mappings have no `get` in all releases."""
    return attributes[name] if name in attributes else None  # noqa: SIM401


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
        mlir.replace(operation, lowered_inline(function, module, avals, list(operation.operands)))

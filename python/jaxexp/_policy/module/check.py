"""Checks one function against a policy: first what it says of itself, then the module as it will run."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NoReturn

import numpy as np

from jaxexp import _jax, _native
from jaxexp._errors import DeserializationError, PolicyError
from jaxexp._kernel.artifact import operations
from jaxexp._kernel.artifact.op_sharding import check_tiles, size_of
from jaxexp._kernel.artifact.op_sharding import devices as devices_of_proto
from jaxexp._kernel.artifact.operations import (
    COLLECTIVES,
    KNOWN_CUSTOM_CALLS,
    REDUCTIONS,
    RESIZING,
    STABLE_CUSTOM_CALLS,
    UNTYPED,
    UNTYPED_IF_CONSTANT,
)
from jaxexp._kernel.call import first_argument
from jaxexp._kernel.codec import nodes
from jaxexp._kernel.function import data
from jaxexp._kernel.function.data import ExportedData, Kept
from jaxexp._kernel.module import call_arrays, composites, confined, mlir, runnable
from jaxexp._kernel.module.shardy_texts import meshes_in
from jaxexp._policy.limits.limits import Limits

# --- how many devices an attribute names, in each form that a mesh or a sharding has in a module ----------------------
# Shardy has attributes of its own, and the same as texts in frontend attributes. Before Shardy, a sharding is a string,
# with XLA's text for it or with the bytes of an xla.OpSharding. A form that is unknown here is an error, not 0 devices.


_OF_XLA = "mhlo.sharding"
_FRONTEND = "mhlo.frontend_attributes"
_OF_COLLECTIVES = frozenset(["replica_groups", "source_target_pairs"])
_OF_SHARDY = frozenset(["mesh", "sharding", "in_shardings", "out_shardings", "out_sharding"])
# It says how the dimensions of an operation belong together: its numbers are their sizes.
_WITHOUT_DEVICES = frozenset(["sdy.sharding_rule", "xla.sdy.sharding_rule"])
# Frontend attributes of other names are notes for the compiler, such as those of `jax.experimental.xla_metadata`.
_FRONTEND_NAMES = re.compile(r"sdy|shard|mesh|device|replica|partition|source_target", re.IGNORECASE)
_MESH_OF_MODULE = "#stablehlo.replica_group_mesh_axes<mesh = @"


class NotUnderstoodError(ValueError):
    """An attribute that may name devices, in a form that is unknown here. Its text says which attribute."""


def may_name_devices(name: str, *, of_custom_call: bool) -> bool:
    """Whether an attribute of this name is one for `of_attribute`. The others of a custom call are up to its target."""
    if name in (_OF_XLA, _FRONTEND) or name.startswith(("sdy.", "xla.sdy.")):
        return True
    return not of_custom_call and (name in _OF_COLLECTIVES or name in _OF_SHARDY)


def of_attribute(name: str, attribute: Any) -> int:
    """The size of the largest mesh in an attribute, or one more than the largest device in it; 0 if it has neither. A
    NotUnderstoodError if it is in a form that is unknown here.
    """
    ir, sdy = _jax.ir, _jax.sdy
    if name in _WITHOUT_DEVICES or isinstance(attribute, ir.UnitAttr):
        return 0
    if name == _FRONTEND and isinstance(attribute, ir.DictAttr):
        counts = (_of_frontend(one.name, one.attr) for one in attribute if _FRONTEND_NAMES.search(one.name))
        return max(counts, default=0)
    if name == _OF_XLA and isinstance(attribute, ir.StringAttr):
        return of_hlo(attribute.value_bytes)
    if name in _OF_COLLECTIVES:
        if isinstance(attribute, ir.DenseIntElementsAttr):
            return max(attribute, default=-1) + 1
        if str(attribute).startswith(_MESH_OF_MODULE):
            return 0  # that mesh is counted
        raise NotUnderstoodError(name)
    if any(one.isinstance(attribute) for one in (sdy.MeshAttr, sdy.TensorShardingAttr, sdy.TensorShardingPerValueAttr)):
        return max(map(_of_mesh, meshes_in(attribute)), default=0)  # a mesh of the module is counted there
    if isinstance(attribute, ir.StringAttr):
        return of_shardy(name, attribute.value_bytes)
    return of_shardy(name, str(attribute).encode())


def _of_mesh(mesh: Any) -> int:
    size = size_of(_jax.sdy.MeshAxisAttr(axis).size for axis in mesh.axes)
    return max(size, *(device + 1 for device in mesh.device_ids), 0)


def _of_frontend(name: str, attribute: Any) -> int:
    if not isinstance(attribute, _jax.ir.StringAttr):
        raise NotUnderstoodError(name)
    text = attribute.value_bytes
    if name in _WITHOUT_DEVICES:
        return 0
    if "sdy" in name.lower():
        return of_shardy(name, text)
    if not re.fullmatch(rb"[\d{},\s]*", text):  # such as _xla_send_recv_source_target_pairs
        raise NotUnderstoodError(name)
    return max(_numbers(name, text.decode()), default=-1) + 1


# --- texts of Shardy --------------------------------------------------------------------------------------------------

# Possessive, so that the time to match is in proportion to the text.
_NUMBER = r"\d++"
_NUMBERS = rf"\s*+(?:{_NUMBER}(?:\s*+,\s*+{_NUMBER})*+)?+\s*+"
_STRING = r'"[^"\\\n]*+"'
_AXIS_OF_MESH = rf"{_STRING}\s*+=\s*+{_NUMBER}"
_AXES = rf"\s*+(?:{_AXIS_OF_MESH}(?:\s*+,\s*+{_AXIS_OF_MESH})*+)?+\s*+"
_IDS = rf"\s*+,\s*+device_ids\s*+=\s*+\[(?P<ids>{_NUMBERS})\]"
_SHARDY = re.compile(
    rf"(?:\#sdy\.)?mesh\s*+<\s*+\[(?P<axes>{_AXES})\](?:{_IDS})?+\s*+>"
    # The name of a mesh in a list; lists of axes; and what has no size and begins no comment, which may hide a quote.
    rf"|(?:{_STRING}|[\w.$-]++)\s*+=\s*+(?=\#sdy\.mesh\b)"
    r"|(?:replicated|unreduced)\s*+=\s*+(?=\{)"
    rf'|{_STRING}|[\w.$\#-]++|[^\w.$\#"=\\/-]++',
    re.ASCII,
)


def of_shardy(name: str, text: bytes) -> int:
    """The same for attributes of Shardy as text, which refer to meshes by name or have them inside. A number that may
    be a size, but is not in a mesh, is not understood.
    """
    largest = 0
    # XLA undoes escapes before it reads the text.
    for token in _tokens(_SHARDY, name, text.decode("latin-1").replace('\\"', '"')):
        if (axes := token["axes"]) is not None:
            sizes = _numbers(name, re.sub(_STRING, "", axes))
            ids = _numbers(name, token["ids"] or "")
            largest = max(largest, size_of(sizes), *(device + 1 for device in ids))
    return largest


# --- texts of XLA -----------------------------------------------------------------------------------------------------

_HLO = re.compile(
    rf"devices=\[(?P<dims>{_NUMBERS})\](?:<=\[(?P<iota>{_NUMBERS})\](?:T\({_NUMBERS}\))?+|(?P<ids>{_NUMBERS}))"
    rf"|maximal\ device=(?P<one>{_NUMBER})"
    rf"|(?:shard_as|shard_like)\ {_NUMBER}"
    r"|(?:replicated|manual|unknown|unreduced|last_tile_dim_replicate|last_tile_dims=)(?!\w)|[{}\s,]++",
    re.ASCII,
)


def of_hlo(sharding: bytes) -> int:
    """The same for a sharding from before Shardy: XLA's text for it, or the bytes of an xla.OpSharding.

    XLA tries the bytes first. A text in braces is no message: "{" begins a group of fields, and none of these texts
    has the character that ends it.
    """
    if not sharding.startswith(b"{"):
        try:
            return devices_of_proto(sharding)
        except ValueError:
            raise NotUnderstoodError(_OF_XLA) from None
    largest = 0
    for token in _tokens(_HLO, _OF_XLA, sharding.decode("latin-1")):
        dims, iota, ids, one = (_numbers(_OF_XLA, token[group] or "") for group in ("dims", "iota", "ids", "one"))
        try:
            check_tiles(dims, ids, iota)
        except ValueError:
            raise NotUnderstoodError(_OF_XLA) from None
        largest = max(largest, size_of(dims), *(device + 1 for device in (*ids, *one)))
    return largest


def _tokens(pattern: re.Pattern[str], name: str, text: str) -> Iterator[re.Match[str]]:
    at = 0
    while at < len(text):
        token = pattern.match(text, at)
        if token is None:
            raise NotUnderstoodError(name)
        yield token
        at = token.end()


def _numbers(name: str, text: str) -> list[int]:
    found = re.findall(r"\d+", text, re.ASCII)
    if any(len(number) > 20 for number in found):  # no 64 bits
        raise NotUnderstoodError(name)
    return list(map(int, found))


# --- a function against a policy --------------------------------------------------------------------------------------


_MODULE = "mlir_module_serialized"


def check_functions(limits: Limits, chain: Iterable[ExportedData]) -> None:
    """What `Policy.check` does, for a function and its VJPs."""
    budget = composites.Budget()
    checked = list[ExportedData]()
    for exported in chain:
        _check_function(limits, exported, budget)
        checked += exported, first_argument.program_of(exported)
    for exported in reversed(checked):  # VJPs first: a function keeps only one that is allowed
        _allow(exported)


def _allow(exported: ExportedData) -> None:
    """Notes that a function is allowed, so that it runs other code: what calls have kept of it is forgotten."""
    if data.is_under_policy(exported):
        return
    before = vars(data.attributes_of(exported).pop("_kept", Kept()))
    data.note(exported, under_policy=True)
    stays = {name: before[name] for name in ("hash", "file", "vjp") if name in before}
    if "vjp" in stays and not data.is_under_policy(stays["vjp"]):  # of a function that was not loaded
        del stays["vjp"]
    vars(data.kept_by(exported)).update(stays)


def _check_function(limits: Limits, exported: ExportedData, budget: composites.Budget) -> None:
    where = data.described(exported)
    sizes = len(data.module_view(exported)), len(exported.in_avals), len(exported.out_avals)
    runs_anywhere = any(str(check) == "platform" for check in exported.disabled_safety_checks)
    limits.declared(where, *sizes, exported.nr_devices, exported.platforms, runs_anywhere)
    if limits.refuses_unregistered_nodes:
        trees = exported.in_tree, exported.out_tree
        limits.unregistered_nodes({*nodes.unregistered(trees), *nodes.generic(trees)}, where)
    for effect in (*exported.ordered_effects, *exported.unordered_effects):
        limits.effect(f"{type(effect).__module__}.{type(effect).__qualname__}", where)
    # What is brought up to date below is never in a body. `Session` asks the same.
    limits.of_elements(_native.in_bodies(data.module_view(exported)), where)
    # The module is checked after it is brought up to date, because that one runs.
    with mlir.reading(), _jax.make_ir_context() as context:
        _ModuleCheck(limits, where, budget, exported.uses_global_constants).run(runnable.parse(exported, context))


_CUSTOM_CALL = "stablehlo.custom_call"
_APPROXIMATE = ("ApproxTopK", "stablehlo.dynamic_approx_top_k")
_ORDERS = ("#stablehlo<comparison_direction GT>", "#stablehlo<comparison_direction LT>")


class _ModuleCheck:
    """The module of one function, while it is compared with a policy."""

    def __init__(self, limits: Limits, where: str, budget: composites.Budget, is_refined: bool) -> None:
        """`is_refined` says whether open sizes are computed for each call, where all types are compared."""
        self.limits, self.policy, self.where, self.budget = limits, limits.policy, where, budget
        self.is_refined = is_refined
        self.inside = "in its function @main"
        self.array_bytes: dict[Any, int] = {}  # by type
        self.attributes_with_devices: set[tuple[str, Any]] = set()  # that were looked at

    def run(self, module: Any) -> None:
        found = list(mlir.iter_operations(module))
        self.limits.at_most("max_operations", len(found) - 1, "operations", self.where)  # the module is one, too
        self.symbols = _jax.ir.SymbolTable(module.operation)
        self._devices_of_module(found[0].attributes)
        self._attributes(found[0], found[0].name)
        for operation in found[1:]:
            self._operation(operation, operation.name)
        self._collectives(found[1:])
        is_trusted = functools.partial(self.limits.allows, "operations")
        for _, name, meaning in composites.of_chlo(module, self.budget, is_trusted):
            if meaning is composites.Meaning.TWO:
                found_here = f"has a composite {name} with another function than StableHLO is known to write for {name}"
                self._refuse(f"{found_here}: XLA computes {name}, and other readers the function", name)

    def _operation(self, operation: Any, name: str) -> None:
        if name == "func.func":
            function = _jax.ir.StringAttr(operation.attributes["sym_name"]).value
            self.inside = f"in its function @{function}"
            if not len(operation.regions[0].blocks):
                raise DeserializationError(_MODULE, "functions with their bodies", f"@{function} without one")
        # A module inside the module has its own symbols, which nothing here looks up.
        if name not in operations.OPERATIONS or name == "builtin.module":
            self._refuse(f"has the operation {name} {self.inside}, which is unknown here", name)
            return
        if name == _CUSTOM_CALL:
            self._custom_call(operation)
        self._attributes(operation, name)
        if wrong := why_types_are_wrong(operation, is_refined=self.is_refined):
            self._refuse(f"has {wrong} {self.inside}, of types that XLA does not check", name)
        if name in confined.CONVOLUTIONS and (wrong := confined.why_convolution_is_wrong(operation)):
            what = f"has the operation {name} {self.inside} with {wrong}"
            self._refuse(f"{what}, for which XLA reads outside of its arrays on a CPU", name)
        self.limits.transfer(name, self.where, f" {self.inside}")
        self._arrays(operation, name)

    def _refuse(self, found: str, name: str) -> None:
        """Refuses an operation, an attribute or a type, unless the policy allows its name."""
        self.limits.operation(found, self.where, name)

    # --- attributes ---

    def _attributes(self, operation: Any, name: str) -> None:
        """Those of a custom call are up to its target, but for the devices that they name."""
        attributes, is_call = operation.attributes, name == _CUSTOM_CALL
        place = "its module" if name == "builtin.module" else f"{name} {self.inside}"
        for attribute in attributes:
            if not is_call:
                self._attribute(attribute, place)
            if self.policy.max_devices is not None and may_name_devices(attribute, of_custom_call=is_call):
                self._devices_of(attribute, attributes[attribute], place)
        for group in () if is_call else ("arg_attrs", "res_attrs"):
            for one in _jax.ir.ArrayAttr(attributes[group]) if group in attributes else ():
                for named in _jax.ir.DictAttr(one):
                    self._attribute(named.name, place)
                    if may_name_devices(named.name, of_custom_call=False):
                        self._devices_of(named.name, named.attr, place)

    def _attribute(self, name: str, place: str) -> None:
        if not operations.is_attribute_understood(name):
            self._refuse(f"has the attribute {name} in {place}, which is unknown here", name)

    def _custom_call(self, operation: Any) -> None:
        target, attributes = mlir.target_of(operation), operation.attributes
        inside = f" {self.inside}"
        self.limits.custom_call(target, target in KNOWN_CUSTOM_CALLS, self.where, inside)
        if self.policy.custom_calls is not None and (wrong := call_arrays.why_wrong(operation, target)):
            self._refuse_call(f"has the custom call {target!r}{inside}, whose {wrong}")
        if "called_computations" in attributes:
            for called in _jax.ir.ArrayAttr(attributes["called_computations"]):
                name = _jax.ir.FlatSymbolRefAttr(called).value
                if name not in self.symbols:
                    expected = f"functions that a custom call ({target!r}{inside}) may call"
                    raise DeserializationError(_MODULE, expected, f"no @{name}")
                if target in _APPROXIMATE and self.policy.custom_calls is not None:
                    self._comparator(name, f"the custom call {target!r}{inside}")
        if "has_side_effect" in attributes and _jax.ir.BoolAttr(attributes["has_side_effect"]).value:
            self.limits.side_effect(target, target in STABLE_CUSTOM_CALLS, self.where, inside)

    def _collectives(self, found: Sequence[Any]) -> None:
        has_branches = any(operation.name in operations.BRANCHES for operation in found)
        for operation in found:
            if wrong := why_sizes_are_wrong(operation, self.symbols, has_branches=has_branches):
                self._refuse(f"has {wrong}", operation.name)

    def _comparator(self, name: str, what: str) -> None:
        """XLA sorts with the function, and leaves the array if it is no order."""
        block = self.symbols[name].regions[0].blocks[0]
        comparison, *others = block.operations
        is_order = (
            comparison.operation.name == "stablehlo.compare"
            and str(comparison.attributes["comparison_direction"]) in _ORDERS
            and len(others) == 1
            and list(comparison.operands) == list(block.arguments)[:2]
            and list(others[0].operands) == list(comparison.results)
        )
        if not is_order:
            self._refuse_call(f"has {what}, whose function @{name} is not the order of its first two arguments")

    def _refuse_call(self, found: str) -> NoReturn:
        advice = "No release of JAX writes that. To allow any custom call, pass Policy(custom_calls=None)"
        raise PolicyError("custom_calls", found, self.where, advice)

    # --- devices ---

    def _devices_of_module(self, attributes: Any) -> None:
        total = 1
        for name in ("mhlo.num_partitions", "mhlo.num_replicas"):
            if name not in attributes:
                continue
            attribute = attributes[name]
            count = _jax.ir.IntegerAttr(attribute).value if isinstance(attribute, _jax.ir.IntegerAttr) else 0
            if count < 1:
                raise DeserializationError(_MODULE, f"a positive number as {name}", str(attribute)[:80])
            total *= count
        self.limits.devices(total, "devices in its module's attributes", self.where)

    def _devices_of(self, name: str, attribute: Any, place: str) -> None:
        limit = self.policy.max_devices
        if limit is None or (name, attribute) in self.attributes_with_devices:
            return
        self.attributes_with_devices.add((name, attribute))
        try:
            count = of_attribute(name, attribute)
        except NotUnderstoodError as error:
            what = str(error) if str(error) == name else f"{error} in {name}"
            found = f"has {what} of {place} in a form that is unknown here, so that its devices cannot be counted"
            raise PolicyError("max_devices", found, self.where, "To allow it, pass Policy(max_devices=None)") from None
        self.limits.devices(count, f"devices in {name} of {place}", self.where)

    # --- arrays ---

    def _arrays(self, operation: Any, name: str) -> None:
        for value in operation.results:
            self._array(value.type, lambda: f"the result of {name} {self.inside}")
        for region in operation.regions:
            for block in region:
                for argument in block.arguments:
                    self._array(argument.type, lambda: f"an argument {self.inside}")

    def _array(self, type_: Any, what: Callable[[], str]) -> None:
        if type_ not in self.array_bytes:
            size = _bytes_of(type_)
            if not self.is_refined and _is_open(type_):
                found = f"has {what()} of type {type_}, whose open sizes need dimension variables"
                self._refuse(found, str(type_))
            if size is None:
                self._refuse(f"has {what()} of type {type_}, which is unknown here", str(type_))
            self.array_bytes[type_] = size or 0
        self.limits.at_most("max_array_bytes", self.array_bytes[type_], f"bytes in {what()}", self.where)


def _parts(type_: Any) -> Iterator[Any]:
    """The types in a tuple; of what is no tuple, its type."""
    if not isinstance(type_, _jax.ir.TupleType):
        yield type_
        return
    for i in range(type_.num_types):
        yield from _parts(type_.get_type(i))


def _is_open(type_: Any) -> bool:
    """Whether a size of an array is open, or of one in a tuple."""
    return any(isinstance(one, _jax.ir.RankedTensorType) and not one.has_static_shape for one in _parts(type_))


def _bytes_of(type_: Any) -> int | None:
    """The size of an array of a type, the largest one in a tuple; None for a type that is not understood."""
    largest = 0
    for one in _parts(type_):
        if one == _jax.token_type():
            continue
        if not isinstance(one, _jax.ir.RankedTensorType):
            return None
        # An encoding has bounds of sizes that change while it runs: XLA believes what a module says.
        if one.encoding is not None or (bits := bits_of(one.element_type)) is None:
            return None
        # XLA takes whole bytes for each element, also for booleans and int4.
        elements = math.prod(1 if size is None else size for size in _shape(one))
        largest = max(largest, elements * ((bits + 7) // 8))
    return largest


# Custom calls that become operations when sizes are known. Sizes are their last operands.
_OPERATIONS_OF_CALLS = {
    f"stablehlo.dynamic_{name}": f"stablehlo.{name}" for name in ("reduce_window", "rng_bit_generator")
}
_EXPANDING = ("known_expanding_dimensions", "known_nonexpanding_dimensions")


def why_types_are_wrong(operation: Any, *, is_refined: bool) -> str | None:
    """What of an operation has types that XLA does not compare, in words; None if it has such types as JAX writes.
    `is_refined` says whether open sizes are computed for each call, where all types are compared.
    """
    name = operation.name
    if name == "stablehlo.custom_call":
        name = _OPERATIONS_OF_CALLS.get(mlir.target_of(operation), name)
    if name in UNTYPED:
        return f"the operation {name}"
    if name in UNTYPED_IF_CONSTANT and not is_refined:
        return f"the operation {name} without dimension variables"
    if name == "stablehlo.dynamic_broadcast_in_dim":
        said = [one for one in _EXPANDING if one in operation.attributes]
        return f"{name} with {said[0]}" if said else None
    if name == "stablehlo.bitcast_convert":
        is_wrong = _shape(operation.results[0].type) != _shape_of_bits(operation)
        return f"{name} from {operation.operands[0].type} to {operation.results[0].type}" if is_wrong else None
    if name == "stablehlo.rng_bit_generator":
        return _why_wrong_random_bits(operation, name)
    if name == "stablehlo.remainder" and isinstance(_element_of(operation.results[0].type), _jax.ir.ComplexType):
        return f"{name} of complex numbers"
    if name in REDUCTIONS and not _keeps_elements(operation):
        return f"{name} to other elements than it takes"
    return None


def _element_of(type_: Any) -> Any:
    return _jax.ir.RankedTensorType(type_).element_type


def bits_of(element: Any) -> int | None:
    """How many bits an element takes; None for a type that is not understood.

    Numbers of two bits are not: on CPUs, XLA has too little memory for arrays of them.
    """
    ir = _jax.ir
    if isinstance(element, ir.ComplexType):
        half = bits_of(ir.ComplexType(element).element_type)
        return None if half is None else 2 * half
    if isinstance(element, ir.IntegerType):
        width = int(ir.IntegerType(element).width)
        return None if width == 2 else width
    if isinstance(element, ir.FloatType):
        return int(ir.FloatType(element).width)
    return 64 if isinstance(element, ir.IndexType) else None


def _shape(type_: Any) -> list[int | None]:
    tensor = _jax.ir.RankedTensorType(type_)
    return [None if tensor.is_dynamic_dim(axis) else tensor.get_dim_size(axis) for axis in range(tensor.rank)]


def _shape_of_bits(operation: Any) -> list[int | None] | None:
    """The shape that the bits of an array have as elements of another type; None if they cannot be that."""
    operand, result = operation.operands[0].type, operation.results[0].type
    before, after = bits_of(_element_of(operand)), bits_of(_element_of(result))
    shape = _shape(operand)
    if before is None or after is None or max(before, after) % min(before, after):
        return None
    if before > after:
        return [*shape, before // after]
    if before < after:
        return shape[:-1] if shape[-1:] == [after // before] else None
    return shape


def _why_wrong_random_bits(operation: Any, name: str) -> str | None:
    if len(operation.results) != 2:
        return f"{name} with {len(operation.results)} results"
    state, bits = operation.results
    if state.type != operation.operands[0].type:
        return f"{name} from the state {operation.operands[0].type} to {state.type}"
    element = _element_of(bits.type)
    is_unsigned = isinstance(element, _jax.ir.IntegerType) and _jax.ir.IntegerType(element).is_unsigned
    return None if is_unsigned else f"{name} of other elements than unsigned integers"


def _keeps_elements(operation: Any) -> bool:
    """Whether arrays have the elements of the results: first those that are reduced, last initial values or updates."""
    results = [_element_of(result.type) for result in operation.results]
    values = list(operation.operands)
    if operation.name == "stablehlo.custom_call":
        if len(values) < 2 * len(results):
            return False
        values = values[: 2 * len(results)]  # behind them are sizes
    operands = [_element_of(value.type) for value in values]
    return operands[: len(results)] == results == operands[-len(results) :]


_OF_MESH = re.compile(r"#stablehlo\.replica_group_mesh_axes<mesh = @(?P<mesh>\w+), axes = \[(?P<axes>[^\[\]]*)\]>")
_AXIS = re.compile(r'#stablehlo\.axis_ref<name = "(\w+)">')


def why_sizes_are_wrong(operation: Any, symbols: Any, *, has_branches: bool) -> str | None:
    """What of an operation may differ between the devices that meet in it, in words; None if nothing may. The module
    has these symbols, and may have branches or loops.
    """
    name = operation.name
    if name not in COLLECTIVES:
        return None
    if has_branches and not all(mlir.type_of(value).has_static_shape for value in operation.operands):
        # What runs has a channel for each collective operation. Of one with open sizes, there may be several.
        return f"branches and {name} of open sizes, where devices may meet with arrays of other sizes"
    if name in RESIZING:
        axis = _jax.ir.IntegerAttr(operation.attributes[RESIZING[name]]).value
        pairs = list(zip(operation.operands, operation.results, strict=True))
        for operand, result in pairs:
            if not _has_size_of_groups(operation, operand, result, axis, symbols):
                return f"{name} from {operand.type} to {result.type}, which are not the sizes for its groups of devices"
        # XLA takes the number of parts from the first array.
        if len({operand.type == result.type for operand, result in pairs}) > 1:
            return f"{name} that changes the sizes of some of its arrays only"
    return None


def _has_size_of_groups(operation: Any, operand: Any, result: Any, axis: int, symbols: Any) -> bool:
    """Whether the larger one of two arrays has the parts of all devices in a group, or has once its size is known."""
    part, whole = (operand, result) if operation.name == "stablehlo.all_gather" else (result, operand)
    members = _members(operation.attributes["replica_groups"], symbols)
    if any(mlir.type_of(array).is_dynamic_dim(axis) for array in (part, whole)):  # it is computed from the groups
        return members is not None and mlir.type_of(result).is_dynamic_dim(axis)
    sizes = mlir.type_of(part).get_dim_size(axis), mlir.type_of(whole).get_dim_size(axis)
    return sizes[0] == sizes[1] or (members is not None and sizes[0] * members == sizes[1])


def _members(groups: Any, symbols: Any) -> int | None:
    """How many devices each group has; None where that is not known."""
    if isinstance(groups, _jax.ir.DenseIntElementsAttr):
        numbers = np.array(groups)
        return numbers.shape[1] if numbers.size else None
    said = _OF_MESH.fullmatch(str(groups))
    if said is None or said["mesh"] not in symbols:
        return None
    sizes = _axis_sizes(symbols[said["mesh"]].attributes)
    axes = [_AXIS.fullmatch(axis) for axis in said["axes"].split(", ") if axis]
    found = [sizes.get(axis[1], 0) if axis else 0 for axis in axes]
    return math.prod(found) or None


def _axis_sizes(attributes: Any) -> dict[str, int]:
    """The sizes of a mesh's axes; none if it says others for Shardy than for StableHLO."""
    ir, sdy = _jax.ir, _jax.sdy
    try:
        mesh = [(axis.name, axis.size) for axis in map(sdy.MeshAxisAttr, sdy.MeshAttr(attributes["mesh"]).axes)]
        axes = map(ir.DictAttr, ir.ArrayAttr(ir.DictAttr(attributes["stablehlo.mesh"])["axes"]))
        again = [(ir.StringAttr(axis["name"]).value, ir.IntegerAttr(axis["size"]).value) for axis in axes]
    except (KeyError, ValueError):  # it is no mesh, or not in this form
        return {}
    return dict(mesh) if mesh == again else {}

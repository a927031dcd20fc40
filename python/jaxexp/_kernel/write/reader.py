"""The reader: the oldest release of JAX that an artifact is for, what it knows, and what it cannot read; an exported
function rewritten for it: its module in that reader's StableHLO, without later features.
"""

from __future__ import annotations

import bisect
import contextlib
import dataclasses
import datetime
import functools
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

import jax

from jaxexp import _jax, _native
from jaxexp._errors import ExportError, ExportTypeError, TooOldReaderError, cause
from jaxexp._kernel.artifact import module_head
from jaxexp._kernel.artifact.node import GenericNode
from jaxexp._kernel.codec import nodes, treedefs
from jaxexp._kernel.codec.dtypes import DTYPES
from jaxexp._kernel.function.data import E, ExportedData
from jaxexp._kernel.function.paths import argument_paths, result_paths
from jaxexp._kernel.module import composites, mlir, shardy_texts
from jaxexp._kernel.releases import table
from jaxexp._kernel.releases.table import Release, Version

MAX = "max"

_KINDS = {dtype: kind for kind, dtype in enumerate(DTYPES)}


@dataclasses.dataclass(frozen=True, slots=True)
class Reader:
    """The oldest release of JAX that an artifact is for."""

    release: Release
    stablehlo: str  # the newest version that it reads and that the installed jaxlib writes

    @property
    def version(self) -> Version:
        return self.release.number

    @property
    def name(self) -> str:
        return f"JAX {self.release.version}"

    @property
    def form(self) -> _native.Form:
        """The slots to fill: the slots that this reader needs, in addition to today's."""
        return _native.Form(
            serialization_version=table.serialization_version(self.release).written,
            short_device_count=self.version < table.LONG_DEVICE_COUNT,
            hlo_shardings=self.version < table.NAMED_SHARDINGS,
        )

    def refusal(self, fun_name: str, what: str, since: Version | None, advice: str = "") -> TooOldReaderError:
        """The error for a function with something that this reader cannot read.

        `since` is the first release that knows it, or None; `advice` says what else can be done, from the comma on.
        """
        todo = f"write for JAX {_text(since)} or newer" if since else "no release is known to read it"
        return TooOldReaderError(f"{fun_name} cannot be written for {self.name}: {what}; {todo}{advice}", since)


def check_choice(compatibility: Any, parameter: str = "compatibility=") -> None:
    """Raises an ExportError, or an ExportTypeError, for what is not a value of the parameter `compatibility`."""
    if compatibility is not None and not (isinstance(compatibility, str) and compatibility == MAX):
        reader_of(compatibility, parameter)


def reader_of(compatibility: Any, parameter: str = "compatibility=", *, or_max: bool = True) -> Reader:
    """The reader for a release, as in "0.6.2" and "jax-0.6.2", or for the newest release so many weeks before the
    installed one came out, as in "12w". Messages name the parameter, and also "max" if the caller takes that.
    """
    known = readers()
    accepted = (
        f"a release from {known[0].release.version!r} to {known[-1].release.version!r}, or a span of weeks back "
        'from the installed release such as "4w" or "12w"'
    )
    if or_max:
        accepted += ', or "max" for the oldest release that can read it'
    if not isinstance(compatibility, str):
        raise ExportTypeError(f"{parameter} takes {accepted}; found {compatibility!r}")
    if match := re.fullmatch(r"([0-9]+)w", compatibility):
        return _weeks_back(int(match[1][:9]))  # more weeks than that are too many anyway
    if match := re.fullmatch(r"(?:jax-)?([0-9]{1,9}(?:\.[0-9]{1,9})+)", compatibility):
        version = table.number(match[1])
        for reader in known:
            if reader.version == version:
                return reader
        older = [reader.name for reader in known if reader.version < version][-1:]
        newer = [reader.name for reader in known if reader.version > version][:1]
        raise ExportError(
            f"{compatibility!r} is not a known release of JAX; next to it are {' and '.join(older + newer)}. "
            f"{parameter} takes {accepted}"
        )
    raise ExportError(f"{parameter} takes {accepted}; found {compatibility!r}")


def _weeks_back(weeks: int) -> Reader:
    """The newest release this many weeks before the installed release came out."""
    installed = table.at(_jax.installed_release)
    first = min(table.RELEASES, key=lambda release: release.date)
    # A calendar does not go back further, and `timedelta` has limits.
    then = installed.date - datetime.timedelta(weeks=min(weeks, 52 * 100))
    release = table.newest_before(then)
    if release is None:
        raise ExportError(
            f'compatibility="{weeks}w" goes back to before {first.date}, the date of JAX {first.version}, which is the '
            f"oldest release to write for; the installed JAX {installed.version} is of {installed.date}"
        )
    return _reader(release)


@functools.cache
def readers() -> tuple[Reader, ...]:
    return tuple(map(_reader, table.RELEASES))


def _reader(release: Release) -> Reader:
    versions = table.stablehlo_that_compiles(release), _jax.newest_stablehlo()
    return Reader(release, min(versions, key=table.number))


def check(exported: ExportedData, reader: Reader, weights: int = 0) -> None:
    """Refuses a function whose signature the reader cannot read. This does not check the module."""
    for find, what, since in _features(exported, weights):
        if reader.version < since:
            is_key = what.startswith("has dtype key<")
            raise reader.refusal(exported.fun_name, f"{find()} {what}", since, _KEY_DATA if is_key else "")


_KEY_DATA = (
    ", or export a function that takes jax.random.key_data(key), an array of uint32, and begins with "
    "jax.random.wrap_key_data"
)


def _features(exported: ExportedData, weights: int) -> Iterator[tuple[Callable[[], str], str, Version]]:
    """Features of a signature that not every reader knows: where, what, and the first release that knows it."""
    for which, avals, shardings in (
        ("argument", exported.in_avals, exported._in_named_shardings),
        ("result", exported.out_avals, exported._out_named_shardings),
    ):
        for index, (aval, sharding) in enumerate(zip(avals, shardings, strict=True)):

            def where(which: str = which, index: int = index) -> str:
                if which == "argument":
                    return argument_paths(exported.in_tree, weights)[index]
                return result_paths(exported.out_tree)[index]

            for dim in aval.shape:
                if not isinstance(dim, int) and re.search(r"\b(max|min)\(", str(dim)):
                    yield where, f"has a symbolic dimension {dim}", table.MAX_AND_MIN
            yield where, f"has dtype {aval.dtype}", table.dtype_since(_KINDS.get(aval.dtype))
            if aval.memory_space is not _jax.MemorySpace.Device:
                yield where, f"is in memory space {aval.memory_space}", table.MEMORY_SPACES
            if sharding is None:
                continue
            if sharding.memory_kind not in (None, "device") and aval.memory_space is _jax.MemorySpace.Device:
                yield where, f"is in memory of kind {sharding.memory_kind!r}", table.NAMED_SHARDINGS
            if sharding.spec.unreduced or sharding.spec.reduced:
                yield where, f"is unreduced or reduced over mesh axes ({sharding.spec})", table.NAMED_SHARDINGS
    for node in (*treedefs.nodes_of(exported.in_tree), *treedefs.nodes_of(exported.out_tree)):
        if node.type is not None and node.type not in treedefs.BUILTIN:
            name = node.data.class_name if node.type is GenericNode else node.type
            yield _in_trees, f"nodes of {name}", table.CUSTOM_NODES
    if nodes.has_other_keys((exported.in_tree, exported.out_tree)):
        yield _in_trees, "dicts with keys that are not strings, so that only jaxexp reads it", _jax.OLDEST_JAX
    for name, (nodetype, auxdata) in nodes.unregistered((exported.in_tree, exported.out_tree)).items():
        line = nodes.registration_line(name, nodetype, auxdata)
        what = f"nodes of {name}, which is not registered for serialization, so that only jaxexp reads it ({line})"
        yield _in_trees, what, _jax.OLDEST_JAX


def _in_trees() -> str:
    return "its trees hold"


def _text(version: Version) -> str:
    return ".".join(map(str, version))


# --- a function rewritten for its reader ------------------------------------------------------------------------------


def for_choice(chain: Sequence[E], compatibility: str, weights: int = 0) -> tuple[Reader, list[E]]:
    """A function and its VJPs in the form for the reader that `compatibility` names."""
    if compatibility != MAX:
        reader = reader_of(compatibility)
        return reader, [for_reader(exported, reader, weights) for exported in chain]
    return oldest(lambda reader: [for_reader(exported, reader, weights) for exported in chain])


def lowering_context(compatibility: str) -> Any:
    """The context for lowering a function for a reader: without Shardy if the reader does not know it."""
    if compatibility != MAX and reader_of(compatibility).release.shardy:
        return contextlib.nullcontext()
    return _jax.shardy_flag(False)


def oldest(write: Any) -> tuple[Reader, Any]:
    """The oldest reader for which `write` succeeds, and the result of `write`; a TooOldReaderError if there is none."""
    since: table.Version = ()
    while True:
        reader = next(reader for reader in readers() if reader.version >= since)
        try:
            return reader, write(reader)
        except TooOldReaderError as error:
            if error.since is None:
                raise
            since = error.since


def for_reader(exported: E, reader: Reader, weights: int = 0) -> E:
    """The same function for a reader, or a TooOldReaderError; the function itself if nothing has to change."""
    check(exported, reader, weights)
    refusal = functools.partial(reader.refusal, exported.fun_name)

    def written(module: Any) -> bytes:
        """In the reader's StableHLO; a TooOldReaderError names what this version lacks."""
        try:
            return mlir.serialize_for(module, reader.stablehlo)
        except jax.errors.JaxRuntimeError as error:
            since = _first_to_read(module, reader)
            what = f"its module has {_not_in_stablehlo(str(error))} that is not in StableHLO {reader.stablehlo}"
            raise refusal(f"{what}, which that release reads", None if since is None else since.version) from cause(
                error
            )

    def refuse(what: str) -> NoReturn:
        release = f"jax-{reader.release.version}"
        lowered = f", or export the function with compatibility={release!r}, which lowers it without Shardy"
        raise refusal(what, table.SHARDY, lowered)

    made = exported.mlir_module_serialized
    has_shardy = module_head.may_name(made, "sdy") and not reader.release.shardy
    version = module_head.stablehlo_of(module_head.producer(made))
    is_written = has_shardy or version is None or table.number(version) > table.number(reader.stablehlo)
    if is_written or module_head.may_name(made, "custom_call"):
        with _jax.make_ir_context() as context:
            module = mlir.parse(made, context)
            _check_module(module, reader, refusal)
            if is_written and reader.version < table.COMPOSITES:
                composites.check(module)
                # A portable artifact holds a CHLO operation as a composite.
                passes = "func.func(chlo-legalize-to-stablehlo,stablehlo-legalize-composite-to-call)"
                mlir.run_passes(module, passes)
            made = written(module) if is_written else made
    if has_shardy:  # in the reader's StableHLO, collectives do not name meshes
        with _jax.make_ir_context() as context:
            module = mlir.parse(made, context)
            shardy_texts.import_(module)
            shardy_texts.check_axes(module)
            without_shardy(module, refuse)
            made = written(module)
    convention = min(exported.calling_convention_version, reader.release.newest_convention)
    if made is exported.mlir_module_serialized and convention == exported.calling_convention_version:
        return exported
    return dataclasses.replace(exported, mlir_module_serialized=made, calling_convention_version=convention)


def _check_module(module: Any, reader: Reader, refusal: Callable[..., TooOldReaderError]) -> None:
    """Refuses custom calls that the reader's jaxlib does not have yet, and arithmetic in 4-bit integers for compilers
    that only convert them.
    """
    for target in sorted({target for target, _ in mlir.custom_calls(module)}):
        since = table.custom_call_since(target)
        if since is not None and since > reader.version:
            raise refusal(f"its module calls {target}, which that release lacks", since)
    for operation in mlir.iter_operations(module) if reader.version < table.FOUR_BITS else ():
        name = operation.name
        if name.startswith("stablehlo.") and name not in ("stablehlo.convert", "stablehlo.return"):
            values = [*operation.operands, *operation.results]
            if any(re.search(r"[x<]u?i4>", str(value.type)) for value in values):
                raise refusal(f"its module computes in 4-bit integers ({name})", table.FOUR_BITS)


def _first_to_read(module: Any, reader: Reader) -> Reader | None:
    """The first release after `reader` whose StableHLO can express a module. Later versions can express it, too."""

    def reads(newer: Reader) -> bool:
        try:
            mlir.serialize_for(module, newer.stablehlo)
        except jax.errors.JaxRuntimeError:
            return False
        return True

    newer = [r for r in readers() if r.version > reader.version]
    return next(iter(newer[bisect.bisect_left(newer, True, key=reads) :]), None)


def _not_in_stablehlo(message: str) -> str:
    """The subject of jaxlib's message, with the names that modules use."""
    operation = re.search(r"failed to legalize operation 'vhlo\.(\w+?)_v\d+'", message)
    if operation is None:
        return f"something ({message.strip().splitlines()[-1]})"
    name = "a function" if operation[1] in ("func", "return") else f"stablehlo.{operation[1]}"
    if types := sorted(set(re.findall(r"!vhlo\.(\w+?)_v\d+", message)) & table.NEW_ELEMENT_TYPES):
        return f"{name} of element type {' and '.join(types)}"
    return f"{name}, or a form of it,"


# --- to gspmd ---------------------------------------------------------------------------------------------------------
# Rewrites Shardy's dialect in a module as attributes and custom calls of GSPMD, for readers older than Shardy.


_SHARDING = "sdy.sharding"
_MANUAL = "{manual}"


def without_shardy(module: Any, refuse: Callable[[str], NoReturn]) -> None:
    """Rewrites a module, in place, so that it has nothing of Shardy's dialect. A sharding becomes an ``mhlo.sharding``,
    a constraint the custom call ``Sharding``, and the body of a `shard_map` stands between ``SPMDFullToShardShape`` and
    ``SPMDShardToFullShape``. Collectives list their replica groups. `refuse` raises for what GSPMD cannot express.
    """
    with module.context, _jax.ir.Location.unknown(module.context):
        _Rewriter(module, refuse).run()


class _Rewriter:
    def __init__(self, module: Any, refuse: Callable[[str], NoReturn]) -> None:
        self.operations = [(operation.name, operation) for operation in mlir.iter_operations(module)]
        self.mesh_operations = [operation for name, operation in self.operations if name == "sdy.mesh"]
        self.meshes = {
            _jax.ir.StringAttr(operation.attributes["sym_name"]).value: operation.attributes["mesh"]
            for operation in self.mesh_operations
        }
        self.refuse = refuse

    def run(self) -> None:
        rewrite = {
            "func.func": self.function,
            "sdy.sharding_constraint": self.constraint,
            "sdy.manual_computation": self.manual_computation,
        }
        for name, operation in self.operations:
            if name in rewrite:
                rewrite[name](operation)
            elif not name.startswith("sdy."):
                self.hints(operation)
            elif name not in ("sdy.mesh", "sdy.return"):
                self.refuse(f"its module contains {name}")
        for operation in self.mesh_operations:
            operation.erase()

    def function(self, operation: Any) -> None:
        self.hints(operation)
        for key in ("arg_attrs", "res_attrs"):
            if key in operation.attributes:
                each = _jax.ir.ArrayAttr(operation.attributes[key])
                operation.attributes[key] = _jax.ir.ArrayAttr.get([self.value_attributes(a) for a in each])

    def value_attributes(self, attributes: Any) -> Any:
        named = {entry.name: entry.attr for entry in _jax.ir.DictAttr(attributes)}
        if _SHARDING in named:
            named["mhlo.sharding"] = self.text(named.pop(_SHARDING))
        return _jax.ir.DictAttr.get(named)

    def hints(self, operation: Any) -> None:
        """Shardings of an operation's results. They are hints and may be left out; rules are only for Shardy."""
        attributes = operation.attributes
        if "sdy.sharding_rule" in attributes:
            del attributes["sdy.sharding_rule"]
        if _SHARDING in attributes:
            shardings = _jax.sdy.TensorShardingPerValueAttr(attributes[_SHARDING]).shardings
            del attributes[_SHARDING]
            if len(shardings) == 1:
                attributes["mhlo.sharding"] = self.text(shardings[0])

    def constraint(self, operation: Any) -> None:
        sharding = operation.attributes["sharding"]
        dimensions = _jax.sdy.TensorShardingAttr(sharding).dimension_shardings
        free = [i for i, d in enumerate(dimensions) if not _jax.sdy.DimensionShardingAttr(d).is_closed]
        config = f"unspecified_dims=[{','.join(map(str, free))}]" if free else ""
        operand = operation.operands[0]
        mlir.replace(operation, [self.call("Sharding", operand, operand.type, self.text(sharding), operation, config)])

    def manual_computation(self, operation: Any) -> None:
        shardings = [
            list(_jax.sdy.TensorShardingPerValueAttr(operation.attributes[key]).shardings)
            for key in ("in_shardings", "out_shardings")
        ]
        manual = _jax.sdy.ManualAxesAttr(operation.attributes["manual_axes"])
        manual_axes = {manual[i] for i in range(len(manual))}
        for sharding in (*shardings[0], *shardings[1]):
            sizes, names = self.mesh(_jax.sdy.TensorShardingAttr(sharding))
            if left := [name for name, size in zip(names, sizes, strict=True) if size > 1 and name not in manual_axes]:
                self.refuse(f"its module contains a shard_map that leaves the mesh axes {', '.join(left)} automatic")
        (block,) = operation.regions[0].blocks
        manual_text = _jax.ir.StringAttr.get(_MANUAL)
        for operand, argument, sharding in zip(operation.operands, block.arguments, shardings[0], strict=True):
            whole = self.call("Sharding", operand, operand.type, self.text(sharding), operation)
            shard = self.call("SPMDFullToShardShape", whole, argument.type, manual_text, operation)
            argument.replace_all_uses_with(shard)
        *body, terminator = (op.operation for op in block.operations)
        for inner in body:
            inner.move_before(operation)
        results = []
        for value, result, sharding in zip(terminator.operands, operation.results, shardings[1], strict=True):
            shard = self.call("Sharding", value, value.type, manual_text, operation)
            results.append(self.call("SPMDShardToFullShape", shard, result.type, self.text(sharding), operation))
        mlir.replace(operation, results)

    def call(self, target: str, operand: Any, type_: Any, sharding: Any, before: Any, config: str = "") -> Any:
        text = _jax.ir.StringAttr.get
        attributes = {"call_target_name": text(target), "backend_config": text(config), "mhlo.sharding": sharding}
        created = _jax.ir.Operation.create(
            "stablehlo.custom_call",
            results=[type_],
            operands=[operand],
            attributes=attributes,
            loc=before.location,
            ip=_jax.ir.InsertionPoint(before),
        )
        return created.results[0]

    def mesh(self, sharding: Any) -> tuple[tuple[int, ...], tuple[str, ...]]:
        """The sizes and names of a sharding's mesh axes."""
        mesh = sharding.mesh_or_ref
        if str(mesh).startswith("@"):  # otherwise it is written out here
            mesh = self.meshes[_jax.ir.FlatSymbolRefAttr(mesh).value]
        mesh = _jax.sdy.MeshAttr(mesh)
        if list(mesh.device_ids):
            self.refuse("its module places devices on a mesh in an order of their own")
        axes = [_jax.sdy.MeshAxisAttr(axis) for axis in mesh.axes]
        sizes = tuple(axis.size for axis in axes)
        return sizes, tuple(axis.name for axis in axes)

    def text(self, attribute: Any) -> Any:
        """A Shardy sharding as the text that GSPMD reads."""
        sharding = _jax.sdy.TensorShardingAttr(attribute)
        if list(sharding.unreduced_axes):
            self.refuse("its module contains values that are unreduced over mesh axes")
        dimensions = []
        for dimension in sharding.dimension_shardings:
            axes = [_jax.sdy.AxisRefAttr(axis) for axis in _jax.sdy.DimensionShardingAttr(dimension).axes]
            if any(axis.sub_axis_info is not None for axis in axes):
                self.refuse("its module shards over part of a mesh axis")
            dimensions.append(tuple(axis.name for axis in axes) or None)
        sizes, names = self.mesh(sharding)
        mesh = _jax.AbstractMesh(sizes, names, (_jax.AxisType.Auto,) * len(sizes))
        named = _jax.NamedSharding(mesh, _jax.PartitionSpec(*dimensions))
        return _jax.ir.StringAttr.get(repr(_jax.hlo_of_named_sharding(named, len(dimensions))))

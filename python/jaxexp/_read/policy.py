"""What a loaded artifact may contain. This is checked in its modules, not in what the artifact says about itself."""

from __future__ import annotations

import dataclasses
import fnmatch
import math
from collections.abc import Collection, Iterable
from typing import Any, NoReturn

from jaxexp import _jax
from jaxexp._codec import nodes
from jaxexp._errors import ExportError, ExportTypeError, PolicyError
from jaxexp._function import data
from jaxexp._function.data import ExportedData
from jaxexp._module import mlir, runnable
from jaxexp._module.custom_calls import STABLE_CUSTOM_CALLS, is_callback
from jaxexp._public import public


@public
@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Policy:
    """What an artifact may contain. `load` and `deserialize` check the function and all VJPs in the artifact.

    The default allows only custom calls that JAX promises to keep stable, no callbacks and no effects (which `export`
    allows). It does not limit sizes. In every field, None allows anything.

    A module that passes is still a program: docs/guide/policy.md says what is promised and what is not.

    Attributes:
        custom_calls: targets of custom calls that are allowed in addition to those that JAX promises to keep stable.
            ``*``, ``?`` and ``[...]`` match as in file names, for example in ``"my_library.*"``.
        callbacks: whether the module may call back to Python.
        effects: what a module may do in addition to computing its results. Each name is one of: the type of a JAX
            effect, with or without its module; the target of a custom call that declares side effects (stable targets
            need no entry); or ``"infeed"``, ``"outfeed"``, ``"send"``, ``"recv"``, operations that exchange data with
            the host or with other programs. Wildcards work here, too.
        platforms: all platforms of the artifact must be among these, such as ``("cpu", "cuda")``. Then an artifact that
            was exported with `DisabledSafetyCheck.platform` is refused.
        unregistered_nodes: whether the trees of arguments and results may have nodes of classes that are not registered
            for serialization in this process: an artifact then says by name which classes results are made of, among
            those that are loaded.
        max_devices: how many devices the artifact, its meshes and its collective operations may use.
        max_vjp_order: how many VJPs an artifact may have.
        max_artifact_bytes: the largest size of an artifact. A larger file is not read.
        max_module_bytes: the largest size of a module.
        max_operations: how many operations a module may have.
        max_arguments: how many arrays a function may take.
        max_results: how many arrays a function may return.
        max_array_bytes: the largest size of an array in a module, as far as its type says: dimensions that are not
            constant count as 1.

    Example:
        >>> policy = Policy(custom_calls=("my_kernel",), platforms=("cpu",), max_devices=1)
        >>> exported = load("uploaded.jaxexp", policy=policy)

    Raises:
        ExportError: the value of a field is not a collection of names, or not a number.
    """

    custom_calls: Collection[str] | None = ()
    callbacks: bool | None = False
    effects: Collection[str] | None = ()
    platforms: Collection[str] | None = None
    unregistered_nodes: bool | None = True
    max_devices: int | None = None
    max_vjp_order: int | None = None
    max_artifact_bytes: int | None = None
    max_module_bytes: int | None = None
    max_operations: int | None = None
    max_arguments: int | None = None
    max_results: int | None = None
    max_array_bytes: int | None = None

    def __post_init__(self) -> None:
        for name in ("custom_calls", "effects", "platforms"):
            names = getattr(self, name)
            if names is None:
                continue
            if isinstance(names, str) or not all(isinstance(n, str) for n in names):
                raise ExportTypeError(f"Policy({name}={names!r}): expected a tuple of names, or None")
            object.__setattr__(self, name, tuple(names))
        for field in dataclasses.fields(self):
            if field.name.startswith("max_") and (limit := getattr(self, field.name)) is not None:
                if isinstance(limit, bool) or not isinstance(limit, int):
                    raise ExportTypeError(f"Policy({field.name}={limit!r}): expected an int or None")
                if limit < 0:
                    raise ExportError(f"Policy({field.name}={limit!r}): expected no negative number")

    def check(self, exported: ExportedData) -> None:
        """Raises an error if a function, or a VJP in its artifact, contains something that is not allowed.

        `load` and `deserialize` call this.

        Args:
            exported: a loaded function. If it was exported in this process instead, its VJPs are not checked.

        Raises:
            PolicyError: says what was found, where, and which field would allow it.
            DeserializationError: a module is damaged, or does not fit the signature.
        """
        for order, link in enumerate(data.stored_chain(exported)):
            self._limit("max_vjp_order", order, "a VJP", f"the artifact of {exported.fun_name}", "of order")
            _Check(self, link, data.described(link)).run()

    def check_size(self, size: int) -> None:
        """Raises an error if an artifact has too many bytes.

        Raises:
            PolicyError: names both sizes.
        """
        self._limit("max_artifact_bytes", size, "bytes", "the artifact")

    def _limit(self, field: str, found: int, what: str, where: str, verb: str | None = None) -> None:
        limit: int | None = getattr(self, field)
        if limit is None or found <= limit:
            return
        text = f"has {found:,} {what}" if verb is None else f"has {what} {verb} {found:,}"
        raise PolicyError(
            field, text, where, f"At most {limit:,} are allowed; to allow it, pass Policy({field}={found})"
        )


def _allows(patterns: Collection[str] | None, *names: str) -> bool:
    return patterns is None or any(fnmatch.fnmatchcase(name, pattern) for name in names for pattern in patterns)


# What exchanges data with the host, or with another program.
_TRANSFERS = frozenset(f"stablehlo.{name}" for name in ("infeed", "outfeed", "send", "recv"))


class _Check:
    """One function of an artifact, while it is compared with a policy."""

    def __init__(self, policy: Policy, exported: ExportedData, where: str) -> None:
        self.policy, self.exported, self.where = policy, exported, where

    def run(self) -> None:
        policy, exported = self.policy, self.exported
        policy._limit("max_module_bytes", len(data.module_view(exported)), "bytes in its module", self.where)
        policy._limit("max_arguments", len(exported.in_avals), "arguments", self.where)
        policy._limit("max_results", len(exported.out_avals), "results", self.where)
        policy._limit("max_devices", exported.nr_devices, "devices", self.where)
        self._platforms()
        self._nodes()
        for effect in (*exported.ordered_effects, *exported.unordered_effects):
            self._effect_type(type(effect))
        # What runs is the module that was brought up to date, so that is what is checked.
        with _jax.make_ir_context() as context:
            self._module(runnable.parse(exported, context))

    def _platforms(self) -> None:
        allowed, exported = self.policy.platforms, self.exported
        if allowed is None:
            return
        for platform in exported.platforms:
            if platform not in allowed:
                self._refuse("platforms", f"is for the platform {platform!r}", (*allowed, platform))
        if any(str(check) == "platform" for check in exported.disabled_safety_checks):
            raise PolicyError(
                "platforms",
                "may be called on any platform, because it was exported with DisabledSafetyCheck.platform()",
                self.where,
                "To allow it, pass Policy(platforms=None)",
            )

    def _nodes(self) -> None:
        if self.policy.unregistered_nodes is not False:
            return
        if found := nodes.unregistered((self.exported.in_tree, self.exported.out_tree)):
            names = ", ".join(sorted(found)[:10])
            advice = "Register the classes, or pass Policy(unregistered_nodes=True)"
            raise PolicyError("unregistered_nodes", f"has nodes of unregistered classes: {names}", self.where, advice)

    def _effect_type(self, effect: type) -> None:
        full = f"{effect.__module__}.{effect.__qualname__}"
        if not _allows(self.policy.effects, full, effect.__qualname__):
            self._refuse("effects", f"has the effect {full}", (*(self.policy.effects or ()), full))

    def _module(self, module: Any) -> None:
        operations = list(mlir.iter_operations(module))
        self.policy._limit("max_operations", len(operations) - 1, "operations", self.where)  # the module is one, too
        self._devices_of(operations[0])
        function = "main"
        for operation in operations:
            name = operation.name
            if name == "func.func":
                function = _jax.ir.StringAttr(operation.attributes["sym_name"]).value
            elif name == "stablehlo.custom_call":
                self._custom_call(operation, function)
            elif name in _TRANSFERS and not _allows(self.policy.effects, name.partition(".")[2]):
                short = name.partition(".")[2]
                found = f"exchanges data outside of its results ({name} in its function @{function})"
                self._refuse("effects", found, (*(self.policy.effects or ()), short))
            if self.policy.max_devices is not None:
                self._devices(operation, name, function)
            if self.policy.max_array_bytes is not None:
                self._arrays(operation, function)

    def _custom_call(self, operation: Any, function: str) -> None:
        policy, target = self.policy, mlir.target_of(operation)
        inside = f"in its function @{function}"
        if is_callback(target):
            if policy.callbacks is False:
                found = f"calls back to Python (custom call {target!r} {inside})"
                raise PolicyError("callbacks", found, self.where, "To allow it, pass Policy(callbacks=True)")
        elif target in STABLE_CUSTOM_CALLS:
            return
        elif not _allows(policy.custom_calls, target):
            self._refuse(
                "custom_calls", f"has the custom call {target!r} {inside}", (*(policy.custom_calls or ()), target)
            )
        attributes = operation.attributes
        has_effect = "has_side_effect" in attributes and _jax.ir.BoolAttr(attributes["has_side_effect"]).value
        if has_effect and not _allows(policy.effects, target):
            found = f"has the custom call {target!r} with side effects {inside}"
            self._refuse("effects", found, (*(policy.effects or ()), target))

    def _devices_of(self, module: Any) -> None:
        ir, attributes, total = _jax.ir, module.attributes, 1
        for name in ("mhlo.num_partitions", "mhlo.num_replicas"):
            if name in attributes:
                total *= ir.IntegerAttr(attributes[name]).value
        self.policy._limit("max_devices", total, "devices in its module's attributes", self.where)

    def _devices(self, operation: Any, name: str, function: str) -> None:
        """Counts the devices of meshes, and those that collective operations name."""
        attributes, limit = operation.attributes, self.policy._limit
        if isinstance(operation.opview, _jax.MeshOp):
            mesh = _jax.sdy.MeshAttr(attributes["mesh"])
            sizes = math.prod(_jax.sdy.MeshAxisAttr(axis).size for axis in mesh.axes)
            limit("max_devices", max(sizes, *(i + 1 for i in mesh.device_ids), 0), "devices in a mesh", self.where)
        for groups in ("replica_groups", "source_target_pairs"):
            if groups in attributes and isinstance(attributes[groups], _jax.ir.DenseIntElementsAttr):
                named = max(attributes[groups], default=-1) + 1  # otherwise they name axes of a mesh, which is counted
                limit("max_devices", named, f"devices in {name} in its function @{function}", self.where)

    def _arrays(self, operation: Any, function: str) -> None:
        for value in operation.results:
            size = _bytes_of(value.type)
            what = f"bytes in the result of {operation.name} in its function @{function}"
            self.policy._limit("max_array_bytes", size, what, self.where)
        for region in operation.regions:
            for block in region:
                for argument in block.arguments:
                    what = f"bytes in an argument in its function @{function}"
                    self.policy._limit("max_array_bytes", _bytes_of(argument.type), what, self.where)

    def _refuse(self, field: str, found: str, allowing: Iterable[str]) -> NoReturn:
        allowing = tuple(dict.fromkeys(allowing))
        raise PolicyError(field, found, self.where, f"To allow it, pass Policy({field}={allowing!r})")


def _bytes_of(type_: Any) -> int:
    ir = _jax.ir
    if not isinstance(type_, ir.RankedTensorType):
        return 0
    tensor = ir.RankedTensorType(type_)
    sizes = (1 if tensor.is_dynamic_dim(axis) else tensor.get_dim_size(axis) for axis in range(tensor.rank))
    return (math.prod(sizes) * _bits_of(tensor.element_type) + 7) // 8


def _bits_of(element: Any) -> int:
    ir = _jax.ir
    if isinstance(element, ir.ComplexType):
        return 2 * _bits_of(ir.ComplexType(element).element_type)
    if isinstance(element, ir.IntegerType):
        return int(ir.IntegerType(element).width)
    return int(getattr(element, "width", 64))

"""A policy without JAX: what the native module finds in an artifact, compared with the policy's fields.

It allows nothing that `Policy.check` refuses, except what a plugin does in a safe way: it makes one meaning of
composites, and the handlers of the runtime compare the arrays of LAPACK. It refuses more, because it does not read
what shardings say, and knows no registered classes.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any, NoReturn

from jaxexp._errors import DeserializationError, PolicyError
from jaxexp._kernel.artifact.operations import (
    BRANCHES,
    COLLECTIVES,
    KNOWN_CUSTOM_CALLS,
    RESIZING,
    STABLE_CUSTOM_CALLS,
    TRUSTING,
    UNTYPED,
    UNTYPED_IF_CONSTANT,
    as_parsed,
    is_attribute_understood,
    is_understood,
)
from jaxexp._policy.limits.limits import Limits

from .trees import class_name, is_custom

if TYPE_CHECKING:
    from jaxexp import _runtime
    from jaxexp._policy.policy import Policy

_MODULE = "builtin.module"
_UNTYPED_LAPACK = re.compile(r"(?:blas|lapack)_(\w+)(?<!_ffi)")
# Without JAX, nobody looks at their arrays, or at the functions with which XLA sorts.
_NOT_COMPARED = TRUSTING | {"ApproxTopK", "stablehlo.dynamic_approx_top_k"}
_NAME_DEVICES = re.compile(
    r"mhlo\.sharding|mhlo\.frontend_attributes|(xla\.)?sdy\..*|\w*shardings?|mesh|replica_groups"
)


def judge(policy: Policy, program: _runtime.Program) -> None:
    """Raises a PolicyError if an artifact, or a VJP in it, has what is not allowed. The size of the artifact is not
    checked.
    """
    limits, name = Limits(policy), program.name
    where = f"the artifact of {name}"
    weights, weight_bytes = program.weights
    limits.at_most("max_weights", weights, "weights", where)
    limits.at_most("max_weight_bytes", weight_bytes, "bytes of weights", where)
    for order in range(program.order + 1):
        limits.vjp_order(order, name)
        _Judge(limits, program, order).run()


class _Judge:
    """One function, while it is compared with a policy."""

    def __init__(self, limits: Limits, program: _runtime.Program, order: int) -> None:
        self.limits, self.policy = limits, limits.policy
        self.program, self.order = program, order
        self.where = f"the VJP of order {order} of {program.name}" if order else program.name

    def run(self) -> None:
        said = self.program.facts(self.order)
        names = "module_bytes", "arguments", "results", "nr_devices", "platforms", "runs_anywhere"
        self.limits.declared(self.where, *(said[name] for name in names))
        if self.limits.refuses_unregistered_nodes:
            nodes = [node for tree in self.program.trees(self.order) for node in tree if is_custom(node)]
            self.limits.unregistered_nodes({class_name(name, data) for _, _, name, data in nodes}, self.where)
        for effect in said["effects"]:
            self.limits.effect(effect.removeprefix("<class '").removesuffix("'>"), self.where)
        found = self.program.inventory(self.order)
        if found is None:
            what = "has a module in a version of MLIR bytecode that is unknown here"
            raise PolicyError("operations", what, self.where, "jaxexp.load checks it, where JAX is installed")
        for name, count in found["device_counts"].items():
            if count is None or not 0 < count < 1 << 31:  # the native module sees no signs in 32 bits
                raise DeserializationError("mlir_module_serialized", f"a positive number as {name}", str(count))
        self._operations(found)
        if not (said["has_open_sizes"] and found["has_open_sizes"]):
            self._constant_sizes(found)
        if said["nr_devices"] > 1:
            self._collectives(found["operations"])
        self._custom_calls(found["custom_calls"])
        self._arrays(found)
        if self.policy.max_devices is not None:
            self._devices(found)

    def _refuse(self, what: str, name: str) -> NoReturn:
        self.limits.refuse_name("operations", f"has {what}", self.where, name)

    def _refuse_unless_allowed(self, what: str, *names: str) -> None:
        self.limits.operation(f"has {what}", self.where, *names)

    def _operations(self, found: dict[str, Any]) -> None:
        self.limits.at_most("max_operations", sum(found["operations"].values()) - 1, "operations", self.where)
        for name in found["operations"]:
            parsed = as_parsed(name)
            if not is_understood(name):
                self._refuse_unless_allowed(f"the operation {parsed}, which is unknown here", name, parsed)
            if parsed in RESIZING or parsed in UNTYPED:
                self._refuse_unless_allowed(f"{parsed}, whose types are not compared without JAX", name, parsed)
            if name in found["unchecked"]:
                self._refuse_unless_allowed(f"{parsed} of types that XLA does not check", name, parsed)
            self.limits.transfer(parsed, self.where)
        self.limits.of_elements(found["in_bodies"], self.where)
        if found["operations"].get(_MODULE, 0) > 1:  # one inside has symbols of its own
            self._refuse(f"the operation {_MODULE} in its module, which is unknown here", _MODULE)
        for name in found["unreadable"]:
            self._refuse_unless_allowed(f"the operation {name}, whose attributes cannot be read here", name)
        for name in found["attributes"]:
            if not is_attribute_understood(name):
                self._refuse_unless_allowed(f"the attribute {name}, which is unknown here", name)

    def _constant_sizes(self, found: dict[str, Any]) -> None:
        """Only where sizes are open, and the artifact says so, are they computed for each call, and types compared."""
        for name in found["operations"]:
            if (parsed := as_parsed(name)) in UNTYPED_IF_CONSTANT:
                what = f"{parsed} without dimension variables, whose types are not compared"
                self._refuse_unless_allowed(what, name, parsed)
        if found["has_open_sizes"]:
            self._refuse_unless_allowed("open sizes, which need dimension variables", "tensor<?>")

    def _collectives(self, operations: dict[str, int]) -> None:
        """Devices in different branches would meet in different operations, if these share a channel as JAX's do."""
        named = [(as_parsed(name), count) for name, count in operations.items()]
        met = [one for one in named if one[0] in COLLECTIVES and not self.limits.allows("operations", one[0])]
        if sum(count for _, count in met) > 1 and any(name in BRANCHES for name, _ in named):
            name = min(met)[0]
            self._refuse(f"{name} and branches, where devices may meet with arrays of other sizes", name)

    def _custom_calls(self, targets: dict[str, bool] | None) -> None:
        if targets is None:
            what = "has custom calls in a form that is unknown here"
            raise PolicyError("custom_calls", what, self.where, "jaxexp.load checks them, where JAX is installed")
        for target, has_side_effect in targets.items():
            names = {target, _as_typed(target)}
            is_known = bool(names & KNOWN_CUSTOM_CALLS) and target not in _NOT_COMPARED
            self.limits.custom_call(target, is_known, self.where)
            if has_side_effect:
                self.limits.side_effect(target, bool(names & STABLE_CUSTOM_CALLS), self.where)

    def _arrays(self, found: dict[str, Any]) -> None:
        for name in found["unknown_types"]:
            self._refuse_unless_allowed(f"a value of the type {name}, which is unknown here", name)
        if self.policy.max_array_bytes is None:
            return
        if (largest := found["largest_array"]) is None:
            self._not_understood("max_array_bytes", "an array whose size is unknown here")
        self.limits.at_most("max_array_bytes", largest, "bytes in its largest array", self.where)

    def _devices(self, found: dict[str, Any]) -> None:
        self.limits.devices(
            math.prod(found["device_counts"].values()), "devices in its module's attributes", self.where
        )
        names = [name for name in (*found["attributes"], *found["call_attributes"]) if _NAME_DEVICES.fullmatch(name)]
        names += [name for name in found["operations"] if name.startswith("sdy.") or as_parsed(name) in COLLECTIVES]
        if names:
            self._not_understood("max_devices", f"{min(names)}, whose devices are not counted without JAX")

    def _not_understood(self, field: str, what: str) -> NoReturn:
        raise PolicyError(field, f"has {what}", self.where, f"To allow it, pass Policy({field}=None)")


def _as_typed(target: str) -> str:
    """A target of LAPACK from before JAX 0.4.31, as the runtime calls it; others are returned as they are."""
    untyped = _UNTYPED_LAPACK.fullmatch(target)
    return target if untyped is None else f"lapack_{untyped[1]}_ffi"

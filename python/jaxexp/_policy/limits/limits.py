"""The fields of a policy that compare a number or a name."""

from __future__ import annotations

import fnmatch
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from jaxexp._errors import PolicyError
from jaxexp._kernel.artifact.operations import HINTS, TRANSFERS, as_parsed, is_callback, may_be_of_elements

if TYPE_CHECKING:
    from jaxexp._native import Artifact


class Limits:
    """Compares what is found with a policy."""

    def __init__(self, policy: Any) -> None:  # a `Policy`, which stands above this file
        self.policy = policy

    def at_most(self, field: str, found: int, what: str, where: str, verb: str | None = None) -> None:
        limit: int | None = getattr(self.policy, field)
        if limit is None or found <= limit:
            return
        text = f"has {found:,} {what}" if verb is None else f"has {what} {verb} {found:,}"
        raise PolicyError(
            field, text, where, f"At most {limit:,} are allowed; to allow it, pass Policy({field}={found})"
        )

    def vjp_order(self, order: int, fun_name: str) -> None:
        self.at_most("max_vjp_order", order, "a VJP", f"the artifact of {fun_name}", "of order")

    def declared(
        self,
        where: str,
        module_bytes: int,
        arguments: int,
        results: int,
        nr_devices: int,
        platforms: Sequence[str],
        runs_anywhere: bool,
    ) -> None:
        """What a function says of itself, besides its trees and its effects."""
        self.at_most("max_module_bytes", module_bytes, "bytes in its module", where)
        self.at_most("max_arguments", arguments, "arguments", where)
        self.at_most("max_results", results, "results", where)
        self.devices(nr_devices, "devices", where)
        self._platforms(platforms, runs_anywhere, where)

    def cases(self, artifact: Artifact, where: str) -> None:
        if self.policy.max_case_bytes is None or (said := artifact.cases()) is None:
            return
        from jaxexp._kernel.artifact.cases import Cases, values_of

        size = sum(value.nbytes for case in Cases.of_trailer(said).all for value in values_of(case))
        self.at_most("max_case_bytes", size, "bytes of cases", where)

    def devices(self, found: int, what: str, where: str) -> None:
        self.at_most("max_devices", found, what, where)

    def _platforms(self, platforms: Sequence[str], runs_anywhere: bool, where: str) -> None:
        allowed = self.policy.platforms
        if allowed is None:
            return
        for platform in platforms:
            if platform not in allowed:
                self.refuse("platforms", f"is for the platform {platform!r}", where, (*allowed, platform))
        if runs_anywhere:
            raise PolicyError(
                "platforms",
                "may be called on any platform, because it was exported with DisabledSafetyCheck.platform()",
                where,
                "To allow it, pass Policy(platforms=None)",
            )

    @property
    def refuses_unregistered_nodes(self) -> bool:
        return self.policy.unregistered_nodes is False

    def unregistered_nodes(self, found: Collection[str], where: str) -> None:
        if not found:
            return
        names = ", ".join(sorted(found)[:10])
        allow = "Policy(unregistered_nodes=True)"
        advice = f"Register the classes, or pass {allow}"
        if all(name.startswith("jax.") for name in found):
            advice = (
                "These classes are JAX's own, which it does not register: export a function with tuples or dicts in "
                f"their place, or pass {allow}"
            )
        raise PolicyError("unregistered_nodes", f"has nodes of unregistered classes: {names}", where, advice)

    def effect(self, name: str, where: str) -> None:
        """An effect of JAX, by the full name of its class."""
        if not self.allows("effects", name, name.rpartition(".")[2]):
            self.refuse_name("effects", f"has the effect {name}", where, name)

    def transfer(self, operation: str, where: str, inside: str = "") -> None:
        """An operation, which may exchange data. `inside` says where it is, with a space in front."""
        name = operation.partition(".")[2]
        if operation in TRANSFERS and not self.allows("effects", name):
            self.refuse_name("effects", f"exchanges data outside of its results ({operation}{inside})", where, name)

    def of_elements(self, found: Mapping[str, bool] | None, where: str) -> None:
        """What the native module's `in_bodies` returns."""
        if found is None:
            what = "has a module in a version of MLIR bytecode that is unknown here"
            raise PolicyError("operations", what, where, "A newer release of jaxexp may know it")
        for name, has_arrays in found.items():
            parsed = as_parsed(name)
            if not may_be_of_elements(name) or has_arrays:
                what = f"combines or compares elements by {parsed}{' of arrays' if has_arrays else ''}"
                self.operation(f"{what}, at which XLA may end the process", where, name, parsed)

    def operation(self, found: str, where: str, *names: str) -> None:
        """An operation, an attribute or a type that is not understood, unless one of its names is allowed."""
        if not self.allows("operations", *names):
            self.refuse_name("operations", found, where, names[-1])

    def custom_call(self, target: str, is_stable: bool, where: str, inside: str = "") -> None:
        """A custom call, but for its side effects."""
        if is_callback(target):
            if self.policy.callbacks is False:
                found = f"calls back to Python (custom call {target!r}{inside})"
                raise PolicyError("callbacks", found, where, "To allow it, pass Policy(callbacks=True)")
            return
        if is_stable and (self.policy.stable_custom_calls is not False or target in HINTS):
            return
        if not self.allows("custom_calls", target):
            self.refuse_name("custom_calls", f"has the custom call {target!r}{inside}", where, target)

    def side_effect(self, target: str, is_stable: bool, where: str, inside: str = "") -> None:
        if not is_stable and not self.allows("effects", target):
            self.refuse_name("effects", f"has the custom call {target!r} with side effects{inside}", where, target)

    def allows(self, field: str, *names: str) -> bool:
        patterns: Collection[str] | None = getattr(self.policy, field)
        return patterns is None or any(fnmatch.fnmatchcase(name, pattern) for name in names for pattern in patterns)

    def refuse(self, field: str, found: str, where: str, allowing: Iterable[str]) -> NoReturn:
        allowing = tuple(dict.fromkeys(allowing))
        raise PolicyError(field, found, where, f"To allow it, pass Policy({field}={allowing!r})")

    def refuse_name(self, field: str, found: str, where: str, name: str) -> NoReturn:
        self.refuse(field, found, where, (*(getattr(self.policy, field) or ()), name))

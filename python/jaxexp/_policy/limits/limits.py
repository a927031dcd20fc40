"""The fields of a policy that compare a number or a name."""

from __future__ import annotations

import fnmatch
from collections.abc import Collection, Iterable, Sequence
from typing import Any, NoReturn

from jaxexp._errors import PolicyError


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

    def sizes(self, where: str, module_bytes: int, arguments: int, results: int) -> None:
        self.at_most("max_module_bytes", module_bytes, "bytes in its module", where)
        self.at_most("max_arguments", arguments, "arguments", where)
        self.at_most("max_results", results, "results", where)

    def devices(self, found: int, what: str, where: str) -> None:
        self.at_most("max_devices", found, what, where)

    def platforms(self, platforms: Sequence[str], runs_anywhere: bool, where: str) -> None:
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

    def allows(self, field: str, *names: str) -> bool:
        patterns: Collection[str] | None = getattr(self.policy, field)
        return patterns is None or any(fnmatch.fnmatchcase(name, pattern) for name in names for pattern in patterns)

    def refuse(self, field: str, found: str, where: str, allowing: Iterable[str]) -> NoReturn:
        allowing = tuple(dict.fromkeys(allowing))
        raise PolicyError(field, found, where, f"To allow it, pass Policy({field}={allowing!r})")

    def refuse_name(self, field: str, found: str, where: str, name: str) -> NoReturn:
        self.refuse(field, found, where, (*(getattr(self.policy, field) or ()), name))

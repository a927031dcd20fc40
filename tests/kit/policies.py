"""What a policy says of an artifact, with JAX and without."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jaxexp
from jaxexp import Policy, _runtime
from jaxexp.runtime.judging import judge


def refused(data: bytes, policy: Policy) -> tuple[str | None, str | None]:
    """The fields of the policy that refuse an artifact, with JAX and without; None where it is allowed."""
    found: list[str | None] = [None, None]
    checks: tuple[Callable[[], Any], ...] = (
        lambda: jaxexp.deserialize(data, policy=policy),
        lambda: judge(policy, _runtime.Program.of_bytes(data)),
    )
    for number, check in enumerate(checks):
        try:
            check()
        except jaxexp.PolicyError as error:
            found[number] = error.field
    return found[0], found[1]

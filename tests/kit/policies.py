"""What a policy says of an artifact, with JAX and without; and texts of modules to ask about."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import jaxexp
from jaxexp import Policy, _runtime
from jaxexp.runtime.judging import judge


def module(body: str, attributes: str = "", more: str = "", result: str = "%arg0") -> str:
    """What it computes has to be used, or parsing it leaves it out."""
    return f"""module @f attributes {{{attributes}}} {{
      func.func public @main(%arg0: tensor<2xf32>) -> tensor<2xf32> {{
        {body}
        return {result} : tensor<2xf32>
      }}
      {more}
    }}"""


def refusal(blob: Any, **fields: Any) -> jaxexp.errors.PolicyError:
    """The error of a policy with these fields, which says all that it knows."""
    with pytest.raises(jaxexp.errors.PolicyError) as error:
        jaxexp.deserialize(blob, policy=Policy(**fields))
    for part in (error.value.field, error.value.found, error.value.where):
        assert part in str(error.value)
    return error.value


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
        except jaxexp.errors.PolicyError as error:
            found[number] = error.field
    return found[0], found[1]

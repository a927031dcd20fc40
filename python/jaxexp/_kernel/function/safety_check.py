"""`DisabledSafetyCheck`: a safety check that is left out for an exported function."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from jaxexp import _jax
from jaxexp._errors import ExportTypeError
from jaxexp._public import InPlaceOf, public


@public
class DisabledSafetyCheck(_jax.DisabledSafetyCheck, metaclass=InPlaceOf):
    """A safety check to leave out. `platform` and `custom_call` make one. The exported function keeps it.

    It equals the same check of `jax.export`, and each library accepts the other's checks.
    """

    # Not a dataclass, so that `dataclasses.asdict` of a function leaves its checks as they are.

    def __init__(self, directive: str) -> None:
        self._impl = directive  # under the name that JAX's comparisons read

    @classmethod
    def platform(cls) -> DisabledSafetyCheck:
        """Allows calls of the loaded function on platforms that it was not exported for."""
        return cls("platform")

    @classmethod
    def custom_call(cls, target_name: str) -> DisabledSafetyCheck:
        """Allows the export of a function with a custom call that is not guaranteed to be stable.

        Args:
            target_name: the target of the custom call, as it appears in the module.
        """
        return cls(f"custom_call:{target_name}")

    def is_custom_call(self) -> str | None:
        """The custom call target that this check names; None for a check of another kind."""
        kind, _, target = self._impl.partition(":")
        return target if kind == "custom_call" and target else None

    @classmethod
    def coerce(cls, check: Any) -> DisabledSafetyCheck:
        """Converts a check of jaxexp or `jax.export` to one of jaxexp."""
        if not isinstance(check, cls):
            raise ExportTypeError(
                f"a disabled check is made by DisabledSafetyCheck.platform() or .custom_call(target), not {check!r}"
            )
        return check if issubclass(type(check), cls) else cls(str(check))

    @classmethod
    def coerce_all(cls, checks: Any) -> tuple[DisabledSafetyCheck, ...]:
        """Converts several checks, as a caller gives them."""
        if isinstance(checks, DisabledSafetyCheck):
            raise ExportTypeError(
                f"disabled_checks takes a list of checks, found the single check {checks}: put it into a list"
            )
        if not isinstance(checks, Iterable):
            raise ExportTypeError(
                "disabled_checks takes a list of checks, such as [DisabledSafetyCheck.platform()], not "
                f"{checks!r:.80}: leave it out, or pass (), for no checks"
            )
        return tuple(map(cls.coerce, checks))

    def __eq__(self, other: object) -> bool:
        return self._impl == other._impl if isinstance(other, DisabledSafetyCheck) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._impl)

    def __str__(self) -> str:
        return self._impl

    __repr__ = __str__

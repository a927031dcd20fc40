"""The cases in an artifact, wherever it is, and checks of them by whatever runs functions, without JAX."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from jaxexp._kernel.artifact.opened import opened

from .verify import stored_beside

if TYPE_CHECKING:
    from jaxexp._api.cases.report import CheckReport as CheckReport
    from jaxexp._kernel.artifact.cases import Case
    from jaxexp._policy.policy import Policy
    from jaxexp._weights.files.reading import Check as Check
    from jaxexp._weights.files.reading import Tensors

    from .source import Source


def cases_in(
    source: Source, buffer: Any = None, policy: Policy | None = None, check: Check | None = None
) -> tuple[Case, ...]:
    """The cases in an artifact.

    Args:
        source: where it is.
        buffer: its bytes, if they cannot be read again.
        policy: what they may have.
        check: raises an error if a file beside the artifact is not to be used.

    Raises:
        PolicyError: their arrays are larger than the policy allows.
        DeserializationError: it is damaged.
        OSError: it cannot be opened.
    """
    from jaxexp._api.cases.files import of_trailer, reader_of
    from jaxexp._kernel.artifact.cases import Cases

    with source.named():
        artifact = opened(source.read() if buffer is None else buffer)
        if policy is not None:
            from jaxexp._policy.limits.limits import Limits

            Limits(policy).cases(artifact, f"the artifact of {artifact.fun_name}")
    if (said := artifact.cases()) is None:
        return ()
    table = of_trailer(said)
    stored: Tensors | None = None
    if source.handle is not None:
        from jaxexp._fleet.archive.member_weights import cases_of

        stored = cases_of(source.handle._opened, source.name, artifact)
    elif table is not None and source.path is not None:
        stored = stored_beside(source.path, table, check)
    return Cases.of_trailer(said, None if stored is None else reader_of(stored)).all


def check_by(
    call: Callable[[int, Sequence[Any]], Sequence[Any]],
    paths: Callable[[int], Sequence[str]],
    name: str,
    cases: Sequence[Case],
    facts: Mapping[str, str],
    tolerance: Any,
    max_drawn_bytes: int,
) -> CheckReport:
    """Checks cases.

    Args:
        call: calls the VJP of an order (0 for the function itself) with flat arguments, and returns its flat results.
        paths: the paths of the results of this VJP.
        name: what the report calls the function.
        cases: the cases.
        facts: what runs the function.
        tolerance, max_drawn_bytes: as in `Exported.check`.
    """
    from jaxexp._api.cases import machine
    from jaxexp._api.cases.replaying import replayed

    here = machine.described(facts)
    return replayed(name, cases, call, paths, here, machine.explained, tolerance, max_drawn_bytes)

"""What a caller passes as `policy`; a process that passes none does not import what checks it, nor JAX."""

from __future__ import annotations


def check_policy(policy: object) -> None:
    """Raises ExportTypeError if what a caller passed as `policy` is neither a policy nor None."""
    if policy is not None:
        from .policy import check_is_policy

        check_is_policy(policy)

"""The modules of all artifacts in tests/golden."""

from __future__ import annotations

from jaxexp import _native

from .places import GOLDEN


def modules(pattern: str = "**/*.bin") -> dict[str, bytes]:
    """Of all artifacts in the tree, VJPs included."""
    found = {}
    for path in sorted(GOLDEN.glob(pattern)):
        link, order = _native.Artifact(path.read_bytes()), 0
        while link is not None:
            found[f"{path.parent.name}/{path.stem}/{order}"] = bytes(link.module())
            link, order = link.vjp(), order + 1
    return found

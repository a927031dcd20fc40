"""What workers write in a pass: migrated artifacts, and the weights beside them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from jaxexp import _native
from jaxexp._bulk.work import FILE
from jaxexp._errors import ExportError
from jaxexp._io import files

from . import targets

if TYPE_CHECKING:
    from jaxexp._policy.policy import Policy
    from jaxexp._weights.stored import WithDigests

    from .source import Source

_SUFFIX = ".jaxexp"


class Writing:
    """What a worker writes, and where."""

    def __init__(self, into: str, to: str | None, policy: Policy | None) -> None:
        self._into, self._to, self._policy = into, to, policy

    def write(self, source: Source, kind: str, name: str) -> dict[str, Any]:
        """Migrates an artifact.

        Args:
            source: where it is.
            kind: whether it is a file, or a member.
            name: what it is called below the folder.

        Raises:
            ExportError: it cannot be migrated.
            OSError: it cannot be read, or not be written.
        """
        from jaxexp._compat.migrate import migrated

        path = targets.inside(self._into, targets.stem(name) if kind == FILE else name, _SUFFIX)
        with source.named():
            buffer = source.read(None if self._policy is None else self._policy.check_size)
            self._check(source, buffer, path)
            blob = migrated(buffer, self._to, None)
            targets.make_folder(self._into, path)
            weights = source.stored_weights()  # first: no program is without its weights
            beside = [] if weights is None else _write_weights(os.path.dirname(path), weights)
        files.replace(path, [blob])
        return {"file": path, "size": len(blob), "digest": _native.digest(blob).hex(), "weights": beside}

    def _check(self, source: Source, buffer: Any, path: str) -> None:
        if self._policy is not None:
            from jaxexp._api.load import deserialize

            deserialize(buffer, policy=self._policy)
        if source.path is not None and _native.Artifact(buffer).weights() is not None:
            folder, other = (os.path.realpath(os.path.dirname(file)) for file in (source.path, path))
            if folder != other:
                raise ExportError(
                    f"{source.name!r} has weights in files beside it, so it has to be written into the same folder, "
                    f"{folder!r}, and not into {other!r}"
                )


def _write_weights(folder: str, weights: WithDigests) -> list[tuple[str, int]]:
    """Writes files of weights under the names that say what is in them: so workers are not in each other's way."""
    from jaxexp._safetensors import content, places
    from jaxexp._weights.unpacking import Unpacking

    planned: list[tuple[str, int]] = []
    for number, file in enumerate(weights.table.files):
        places.check_name(file.name)
        planned.append((os.path.join(folder, content.second_name(file.name, file.content)), number))
    Unpacking().write(planned, weights)
    return [(path, weights.table.files[number].size) for path, number in planned]

"""Compacting archives: writes the remaining members, and the weights that they use, into a new file."""

from __future__ import annotations

import os

from jaxexp import _native
from jaxexp._errors import DeserializationError
from jaxexp._kernel.io import files, lock

from .member_weights import of_artifact
from .output import new, open_for_writing, refuse_unknown_rest
from .writer import ArchiveWriter


def compact(path: str | os.PathLike[str], share_modules: bool) -> None:
    """See `Archive.compact`."""
    with lock.locked(path), open_for_writing(path) as old:
        old.check()
        refuse_unknown_rest(old)
        with ArchiveWriter(new(files.replacing(path)), path, share_modules) as writer:
            for number, name in enumerate(old.names()):
                with old.placed(name):
                    member = old.index.member(number)
                    blob = old.artifact_bytes(number)
                    weights = of_artifact(old, old.label(name), _native.Artifact(blob))
                    if weights is not None:
                        writer._weights.add(weights.sources())
                    digest = writer._add(name, blob, member.metadata if member.own_metadata else None)
                    if digest != member.digest:
                        raise DeserializationError(
                            "", f"an artifact of digest {member.digest.hex()}", f"one of {digest.hex()}"
                        )

"""The metadata of a member, as an archive's index has it: the text of a JSON object."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from jaxexp import _native
from jaxexp._artifact.metadata import to_json
from jaxexp._errors import ExportError

_MOST = 1 << 16  # bytes


def metadata_text(metadata: Mapping[str, Any]) -> str:
    """Raises an ExportError for what is too long, or no JSON."""
    text = _object_text(to_json(metadata))
    if (size := len(text.encode())) > _MOST:
        raise ExportError(
            f"the metadata of an archive's member has to be at most {_MOST} bytes as JSON, found {size}; "
            "Exported.serialize stores more in the artifact itself"
        )
    return text


def stored_metadata(artifact: _native.Artifact) -> str | None:
    """The metadata of an artifact, if it is short: some readers read the whole index."""
    text = _object_text(artifact.metadata() or {})
    return text if len(text.encode()) <= _MOST else None


def _object_text(texts: Mapping[str, str]) -> str:
    return "{" + ",".join(f"{json.dumps(key)}:{text}" for key, text in texts.items()) + "}"

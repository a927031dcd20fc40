"""Weights from wherever they are, in a file of tensors that have the names of a function's weights. Without JAX."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import tempfile
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from jaxexp._errors import ExportError, ExportTypeError, WeightsError
from jaxexp._weights.files import reading
from jaxexp._weights.files.dtypes import held_as, unnamed
from jaxexp._weights.files.header import Source as Source
from jaxexp._weights.files.names import NOT_USED, check_names, names_given, warn_of_others
from jaxexp._weights.files.saving import publish, write_apart

if TYPE_CHECKING:
    import numpy as np

    from jaxexp._fleet.archive.archive import Handle
    from jaxexp._weights.files.names import Rename as Rename

    from .load import Check


@contextlib.contextmanager
def as_file(found: Mapping[str, Source], names: Sequence[str], rename: Rename | None) -> Generator[str]:
    """The path of a temporary file with the weights of a function, under its own `names`. `found` are tensors by the
    names that they have where they are, and `rename` is as in `Exported.with_weights`.
    """
    needed = names_given(names, {}, rename)
    check_names(needed, found, can_rename=rename is None)
    sources = [dataclasses.replace(found[there], name=own) for own, there in needed.items()]
    with tempfile.TemporaryDirectory(prefix="jaxexp-") as folder:
        path = os.path.join(folder, "weights.safetensors")
        table, temporary = write_apart(path, sources)
        for file, now in zip(table.files, temporary, strict=True):
            os.replace(now, os.path.join(folder, file.second_name))
        publish(path, table)
        yield path


def check_used(found: Mapping[str, Source], names: Sequence[str], rename: Rename | None) -> None:
    """Warns of arrays that are given, but not used."""
    warn_of_others(NOT_USED, sorted(set(found) - set(names_given(names, {}, rename).values())))


def in_member(handle: Handle) -> dict[str, Source]:
    if (stored := handle.stored_weights()) is None:
        raise WeightsError("", "a member with weights in its archive", "one without", file=handle.label)
    return {source.name: source for source in stored.sources()}


def in_file(path: str, check_file: Check | None) -> dict[str, Source]:
    """The tensors of a file, or of an index of several. `check_file` refuses files that are not signed."""
    return dict(reading.open_tensors(path, "mapped" if check_file is None else "copied", check_file))


def in_arrays(given: Any, to_numpy: Callable[[str, Any], np.ndarray]) -> dict[str, Source]:
    """Arrays in dicts, lists and tuples, by their paths, as in ``layers/0/w``. `to_numpy` takes a path and an array."""
    if not isinstance(given, (Mapping, list, tuple)):
        what = "a file, a member of an archive, or arrays by name, in dicts, lists and tuples"
        raise ExportTypeError(f"with_weights takes {what}, not {given!r:.80}")
    found: dict[str, Source] = {}
    pending = [("", given)]
    while pending:
        path, value = pending.pop()
        if isinstance(value, Mapping):
            pending += [(f"{path}/{key}" if path else str(key), one) for key, one in value.items()]
        elif isinstance(value, (list, tuple)):
            pending += [(f"{path}/{index}" if path else str(index), one) for index, one in enumerate(value)]
        elif path in found:
            raise ExportError(f"two of the given weights would be called {path!r}: rename one of them")
        else:
            found[path] = _source(path, to_numpy(path, value))
    return found


def _source(name: str, array: np.ndarray) -> Source:
    held = held_as(array.dtype.name, array.shape)
    if held is None:
        raise WeightsError(name, "an array of a dtype that files have", array.dtype.name)
    return Source(name, *held, lambda: [array.reshape(-1).view("u1").data], of=unnamed(array.dtype.name, array.shape))

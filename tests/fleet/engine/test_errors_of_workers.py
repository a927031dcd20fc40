"""Errors on the way from workers, and in journals."""

from __future__ import annotations

import errno
import json
import subprocess

import pytest

import jaxexp
from jaxexp import _errors
from jaxexp._fleet.engine.errors import packed, unpacked
from jaxexp._readback.refused import RefusedError

pytestmark = pytest.mark.once(reason="errors are values without JAX")


def crossed(error: Exception) -> Exception:
    return unpacked(json.loads(json.dumps(packed(error))))


def of_file(error: jaxexp.DeserializationError | jaxexp.PolicyError) -> Exception:
    error.file = "the file"
    return error


ERRORS = [
    jaxexp.ExportError("why"),
    jaxexp.UnsupportedError("why"),
    _errors.SerializationKeyError("why"),
    jaxexp.TooOldReaderError("why", (0, 6, 0)),
    jaxexp.TooOldReaderError("why", None),
    of_file(jaxexp.DeserializationError("at", "this", "that")),
    of_file(jaxexp.WeightsError("at", "this", "that")),
    of_file(jaxexp.PolicyError("callbacks", "calls back", "main", "do this")),
    ImportError("no such module"),
    ModuleNotFoundError("no such module"),
    FileNotFoundError("https://a.test/f"),  # as fsspec raises it
    FileNotFoundError(errno.ENOENT, "No such file or directory", "/f"),
    OSError(errno.EIO, "Input/output error"),
    OSError(errno.EACCES, "Permission denied", "/f"),
    TimeoutError("too slow"),
]


@pytest.mark.parametrize("error", ERRORS, ids=repr)
def test_everything_crosses(error: Exception) -> None:
    again = crossed(error)
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert vars(again) == vars(error)
    if isinstance(error, OSError):
        assert isinstance(again, OSError)
        assert (again.errno, again.strerror, again.filename) == (error.errno, error.strerror, error.filename)


class OfALibraryError(subprocess.TimeoutExpired, ConnectionResetError):
    def __init__(self, whom: str) -> None:
        super().__init__(whom, 1.0)

    def __str__(self) -> str:
        return "the message"


class OfOwnFieldsError(jaxexp.WeightsError):
    def __init__(self, tensor: str) -> None:
        super().__init__(tensor, "this", "that")


@pytest.mark.parametrize(
    "error, kind",
    [
        (RefusedError("stablehlo.sine", "of a string"), jaxexp.UnsupportedError),
        (OfALibraryError("a server"), ConnectionResetError),
        (OfOwnFieldsError("w"), jaxexp.WeightsError),
    ],
    ids=repr,
)
def test_classes_that_are_not_known_become_their_base(error: Exception, kind: type[Exception]) -> None:
    again = crossed(error)
    assert type(again) is kind
    assert str(again) == str(error)


def test_what_is_no_result_is_raised() -> None:
    with pytest.raises(ZeroDivisionError):
        packed(ZeroDivisionError("a mistake"))


@pytest.mark.parametrize(
    "said", [["ValueError", "x"], ["Exception", "x"], [1, "x"], ["print", "x"], ["annotations", "x"]]
)
def test_what_is_no_error(said: list[object]) -> None:
    with pytest.raises(ValueError, match="not a packed error"):
        unpacked(said)

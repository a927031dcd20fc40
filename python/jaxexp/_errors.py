"""jaxexp's exceptions: one base class, and a subclass wherever `jax.export` raises another built-in type.

Names in an artifact are whatever its author wrote. So `str` of an error escapes unprintable characters, line breaks
too: a log gets one line, or the lines that jaxexp itself made. Warnings and log records do the same, with `shown`. The
attributes of an error keep names as they are.

Nothing here imports JAX: the native codec raises these classes without it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Any

from jaxexp._public import public


def shown(text: str) -> str:
    """Text with everything but printable characters escaped."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def shown_lines(text: str, indent: str = "") -> str:
    """Text of several lines, each of which is escaped; the indent is before each line but the first."""
    return f"\n{indent}".join(map(shown, text.split("\n")))


def in_one_line(error: Exception) -> str:
    """JAX's message, which often has several lines, in one line: as part of a message of jaxexp."""
    return " ".join(map(str.strip, str(error).split("\n")))


def of_file(error: Exception, file: str) -> Exception:
    """The same error about another file that has the same bytes; as it is, if it names no file."""
    if not isinstance(error, (DeserializationError, PolicyError)):
        return error
    made = type(error).__new__(type(error), *error.args)  # tblib, which Dask uses, makes `copy` share the attributes
    made.__dict__.update(error.__dict__)
    made.file = file
    return made


def cause(error: BaseException) -> BaseException | None:
    """What an error of jaxexp is raised from, if that is an error of others: Python prints it in tracebacks.

    Their texts may have names from an artifact, so they are escaped here; each line but the first is indented, and long
    ones are cut. None if an error makes its text in another way than from its argument.
    """
    one: BaseException | None = error
    while one is not None:
        text = str(one)
        if one.args and not (text.isprintable() and len(text) <= _LONGEST_CAUSE) and not isinstance(one, ExportError):
            text = text if len(text) <= _LONGEST_CAUSE else f"{text[:_LONGEST_CAUSE]}..."
            said = shown_lines(text, "    ")
            with contextlib.suppress(Exception):
                one.__init__(said)  # type: ignore[misc]  # nothing else changes the text of XLA's errors
            if str(one) != said:
                return None
        if hasattr(one, "__notes__"):
            one.__notes__ = [shown_lines(str(note), "    ") for note in one.__notes__]
        one = one.__cause__ or (None if one.__suppress_context__ else one.__context__)
    return error


_LONGEST_CAUSE = 4000

# The end of the names of files with the arrays of cases, which are read as files of weights are.
SUFFIX_OF_CASES = ".cases.safetensors"


class Lines(str):
    """A message of several lines. Each line is escaped; the breaks between them are jaxexp's own."""

    __slots__ = ()

    @classmethod
    def of(cls, lines: Iterable[str]) -> Lines:
        return cls("\n".join(map(shown, lines)))


@public
class ExportError(ValueError):
    """The base class of jaxexp's errors.

    `str` escapes unprintable characters and line breaks in names from an artifact, so that the message can be logged.
    """

    def __str__(self) -> str:
        message = BaseException.__str__(self)  # KeyError's would put it in quotation marks
        return message if len(self.args) == 1 and isinstance(self.args[0], Lines) else shown(message)


@public
class ExportTypeError(ExportError, TypeError):
    """An argument of a type that cannot be exported."""


@public
class ExportBufferError(ExportTypeError, BufferError):
    """A buffer that is not contiguous."""


@public
class ExportPicklingError(ExportTypeError, AttributeError):
    """A function that cannot be pickled. Without jaxexp, pickle fails to look up a function inside `jax.export`."""


@public
class ExportRuntimeError(ExportError, RuntimeError):
    """The process lacks an MLIR context or the implementation of a custom call."""


@public
class UnsupportedError(ExportError, NotImplementedError):
    """A function with a feature that the format or jaxexp lacks; the message names the feature."""


@public
class SerializationError(ExportError):
    """An `Exported` that does not fit into the format."""


@public
class SerializationTypeError(SerializationError, TypeError):
    """A value inside an `Exported` whose type the format cannot store."""


@public
class SerializationKeyError(SerializationError, KeyError):
    """A dtype that has no number in the format."""


@public
class UnsupportedSerializationError(SerializationError, NotImplementedError):
    """An effect, key or check that has no serialized form."""


@public
class TooOldReaderError(UnsupportedSerializationError):
    """A function that the release of ``compatibility=`` cannot read; the message names the feature.

    Attributes:
        since: the first release that can read it, as in ``(0, 6, 0)``; None if it is unknown.
    """

    def __init__(self, message: str, since: tuple[int, ...] | None) -> None:
        super().__init__(message)
        self.since = since

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.args[0], self.since), self.__dict__


@public
class DeserializationError(ExportError):
    """Bytes that are not a serialized `Exported`, or that cannot be read here.

    Attributes:
        path: the place in the artifact, such as ``in_avals[3].dtype`` or ``vjp.in_tree.children[1]``; empty for the
            whole buffer.
        expected: the requirement, in words.
        found: the content of the artifact there, in words.
        file: the file or the member of an archive that was read; ``item 17`` for a buffer in `load_many`; None in
            `deserialize`.
    """

    def __init__(self, path: str, expected: str, found: str, file: str | None = None) -> None:
        super().__init__(path, expected, found)
        self.path = path
        self.expected = expected
        self.found = found
        self.file = file

    _failed = "cannot read the artifact"

    def _where(self) -> str:
        return f"at {self.path}: "

    def __str__(self) -> str:
        file = "" if self.file is None else f" {self.file!r}"
        where = self._where() if self.path else ""
        return shown(f"{self._failed}{file}: {where}expected {self.expected}, found {self.found}")


@public
class ModuleError(DeserializationError, RuntimeError):
    """A module that is damaged, or that belongs to another artifact."""


@public
class WeightsError(DeserializationError):
    """Weights that do not fit the program beside them, or a file of weights that cannot be read.

    Attributes:
        path: the name of the tensor; empty for the whole file.
        expected: the requirement, in words.
        found: the content of the file, in words.
        file: the file of weights.
    """

    @property
    def _failed(self) -> str:  # type: ignore[override]
        if self.file is None:
            return "the weights do not fit"
        is_of_cases = self.file.endswith(SUFFIX_OF_CASES)
        return "cannot read the arrays of the cases" if is_of_cases else "cannot read the weights"

    def _where(self) -> str:
        name = repr(self.path)  # may be as long as the header of a file
        return f"tensor {name if len(name) <= 300 else f'{name[:300]}...'}: "


@public
class ExecutablesError(DeserializationError):
    """A file of executables that cannot be read.

    Attributes:
        path: the place in the file; empty for the whole file.
        expected: the requirement, in words.
        found: the content of the file, in words.
        file: the file.
    """

    _failed = "cannot read the executables"


@public
class ForeignModuleError(DeserializationError):
    """A module of another producer that is damaged, or that has no function to call."""

    _failed = "cannot import the module"


@public
class JournalError(DeserializationError):
    """A file that is not a journal, or the journal of another pass."""

    _failed = "cannot go on with the journal"


@public
class FatalArtifactError(DeserializationError):
    """An artifact that killed every worker that read it."""


@public
class ChangedArtifactError(DeserializationError):
    """An artifact, or a file beside it, that has changed since it was opened. The new file may be whole."""


@public
class UnsupportedArtifactError(DeserializationError, NotImplementedError):
    """An artifact with something that this process does not know, such as the type of an effect."""


@public
class UnsupportedModuleError(UnsupportedArtifactError, RuntimeError):
    """A module that the installed jaxlib cannot read."""


@public
class BusyError(ExportError):
    """An archive, a file of executables or a journal that another writer is changing. Nothing was written; try again
    later.
    """


@public
class WorkerError(ExportError):
    """An executor without workers, or with workers that do not finish the work."""


@public
class UnfitWorkerError(WorkerError):
    """Workers that cannot run jaxexp, or that have other releases than the process that sent the work."""


@public
class RunError(ExportError, RuntimeError):
    """A function that `jaxexp.runtime.Session` cannot load or call.

    Attributes:
        reason: ``"argument"``: an array, a device or a plugin that the caller gave does not fit. ``"unsupported"``: the
            artifact needs a platform or a custom call that is missing. ``"plugin"``: the plugin failed; the message
            quotes it.
    """

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message)
        self.reason = reason

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.args[0], self.reason), self.__dict__


@public
class SignatureError(ExportError):
    """A file without a trusted signature, or a file that has changed since it was signed.

    Attributes:
        file: the file, or its signature.
        expected: the signature that `signed_by` requires, in words.
        found: the content of the file, in words.
    """

    def __init__(self, file: str, expected: str, found: str) -> None:
        super().__init__(file, expected, found)
        self.file = file
        self.expected = expected
        self.found = found

    def __str__(self) -> str:
        return shown(f"cannot trust {self.file!r}: expected {self.expected}, found {self.found}")


@public
class PolicyError(ExportError):
    """An artifact with contents that the caller's `Policy` does not allow.

    Attributes:
        field: the field of the policy that would allow it, such as ``"custom_calls"``.
        found: the refused part of the artifact, in words.
        where: the function or the VJP of the artifact, or a part of it, that was refused.
        file: the file or the member of an archive that was read; ``item 17`` for a buffer in `load_many`; None in
            `deserialize`.
    """

    def __init__(self, field: str, found: str, where: str, advice: str) -> None:
        super().__init__(field, found, where, advice)
        self.field = field
        self.found = found
        self.where = where
        self.advice = advice
        self.file: str | None = None

    def __str__(self) -> str:
        file = "" if self.file is None else f" {self.file!r}"
        return shown(f"the policy does not allow the artifact{file}: {self.where} {self.found}. {self.advice}")
